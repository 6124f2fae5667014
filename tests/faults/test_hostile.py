"""What somebody else has put there: links, owners, bombs and names. Nothing is followed, run, believed or removed."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from builders import (
    as_nobody,
    entry_path,
    files_below,
    make_artifact,
    make_kernel,
    make_manifest,
    object_path,
    read_spec,
    resolve_anew,
    warnings_of,
)
from click.testing import CliRunner
from fake_backend import KERNEL
from kreg.cache_tools import main
from readers import signed
from tiny_elf import make_cubin

import kreg
from kreg import Store, StoreError
from kreg.header import write_header
from kreg.inventory import entries
from kreg.manifest import encode
from kreg.root import FOLDERS
from kreg.selector import Selector
from kreg.sweep import Limits, gc
from kreg.upkeep import clear, plan_clear_all, verify

# Links.


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a folder of somebody's, of the shape of a store's folders, with files named as a store's are."""
    folder = tmp_path / "victim"
    for name in ("project@1/settings.json", "ab/data.cubin", "letter", "old.json", "00.lock"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious", encoding="utf-8")
        os.utime(path, (0, 0))
    return folder


def use_everything(root: str) -> None:
    """Do whatever may write to or remove from a store; errors are kreg's own."""
    for action in (
        lambda: warnings_of(lambda: resolve_anew(root)),
        lambda: Store(root).publish(make_artifact(2)),
        lambda: Store(root).save_log("a" * 64, "log"),
        lambda: gc(Store(root), Limits(age=0, entries=0, size=0), other_formats=True, grace=0),
        lambda: clear(Store(root), plan_clear_all(Store(root))),
        lambda: verify(Store(root), Selector(), kreg.REGISTRY),
        lambda: kreg.warm([(KERNEL, KERNEL.spec("sm_90a", {"size": 3}))], store=root, jobs=1),
    ):
        try:
            action()
        except kreg.KregError:
            pass


@pytest.mark.parametrize("name", [*FOLDERS, "logs"])
def test_folder_of_a_store_that_is_a_link_leads_nowhere(root: str, victim: Path, name: str):
    before = files_below(victim)
    resolve_anew(root)
    place = Path(root) / name
    if place.exists():
        place.rename(f"{root}-{name}")
    place.symlink_to(victim)
    use_everything(root)
    assert files_below(victim) == before
    found, said = warnings_of(lambda: resolve_anew(root))
    assert found.cubin
    assert len(said) <= 1
    with pytest.raises(
        StoreError, match=rf"{name}: a directory of a store may not be a symbolic link; remove the link"
    ):
        Store(root).publish(make_artifact(2))


@pytest.mark.parametrize("kind", ["kernel folder", "object folder"])
def test_inner_folder_that_is_a_link_leads_nowhere(root: str, victim: Path, kind: str):
    before = files_below(victim)
    resolve_anew(root)
    store = Store(root)
    artifact = make_artifact(2)
    path = entry_path(store, artifact) if kind == "kernel folder" else object_path(store, artifact)
    if path.parent.exists():
        path.parent.rename(f"{root}-aside")
    path.parent.symlink_to(victim)
    use_everything(root)
    assert files_below(victim) == before
    with pytest.raises(StoreError, match="a directory of a store may not be a symbolic link"):
        Store(root).publish(artifact)


def test_links_in_the_place_of_files_are_replaced_or_refused_and_never_followed(root: str, victim: Path):
    resolve_anew(root)
    store = Store(root)
    before = files_below(victim)
    artifact = make_artifact(2)
    for path in (entry_path(store, artifact), object_path(store, artifact)):
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(victim / "letter")
    for lock in (f"{artifact.key[:2]}.lock", "sweep.lock"):
        (Path(root) / "locks" / lock).unlink(missing_ok=True)
        (Path(root) / "locks" / lock).symlink_to(victim / "letter")
    store.publish(artifact)
    assert read_spec(store, artifact).cubin == artifact.cubin
    use_everything(root)
    assert files_below(victim) == before


def test_bad_file_behind_a_linked_folder_is_left_where_it_is(root: str, victim: Path):
    resolve_anew(root)
    path = Path(next(iter(Store(root).entry_files())))
    (victim / path.name).write_bytes(b"not a manifest, but mine")
    path.parent.rename(f"{root}-aside")
    path.parent.symlink_to(victim)
    found, said = warnings_of(lambda: resolve_anew(root))
    assert found.cubin
    assert len(said) == 2  # The bad entry, and the store that is not written to.
    assert (victim / path.name).read_bytes() == b"not a manifest, but mine"


# Owners.


@pytest.mark.parametrize(("mode", "is_refused"), [(0o777, True), (0o1777, False), (0o775, False), (0o755, False)])
def test_default_store_where_everybody_can_replace_it_is_refused(
    public_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_refused: bool
):
    cache = public_path / "shared" / "cache"
    cache.mkdir(parents=True)
    (public_path / "shared").chmod(mode)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    Store().prepare()
    assert Store().is_marked()
    if not is_refused:
        assert Store().toolchain_keys(KERNEL.spec("sm_90a", {"size": 1})) == []
        return
    with pytest.raises(StoreError, match=f"lies in {public_path}/shared, where everybody can replace it; .*KREG_STORE"):
        Store().toolchain_keys(KERNEL.spec("sm_90a", {"size": 1}))
    kreg.forget()
    found, said = warnings_of(lambda: kreg.resolve(KERNEL, size=1, target="sm_90a"))
    assert (found.origin, len(said)) == ("compiled", 1)
    monkeypatch.setenv("KREG_STORE", f"{cache}/kreg")
    assert warnings_of(lambda: resolve_anew(f"{cache}/kreg"))[1] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_named_store_of_another_user_is_read_and_cannot_be_written(public_path: Path):
    root = f"{public_path}/store"
    resolve_anew(root)
    assert as_nobody(lambda: resolve_anew(root).origin) == str(next(iter(Store(root).entry_files())))

    def publish() -> str:
        try:
            Store(root).publish(make_artifact(2))
        except StoreError as error:
            return str(error)
        return "published"

    assert as_nobody(publish).endswith("Permission denied")


# Contents.

NINES = "9" * 100_000
BOMBS = {
    "deep lists": '"kernel":' + "[" * 200_000,
    "deep objects": '"kernel":' + '{"a":' * 100_000,
    "huge integer": f'"version":{NINES}',
    "huge exponent": '"version":1e999999999',
    "not a number": '"version":NaN',
    "bad UTF-8": '"kernel":"\udcff"',
    "lone surrogate": '"kernel":"\\ud800"',
    "name twice": '"kernel":"fake","kernel":"other"',
    "no end": '"kernel":"fake',
    "many names": ",".join(f'"n{number}":{number}' for number in range(50_000)),
    "path as kernel": '"kernel":"../../../tmp"',
    "null": '"kernel":null',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_manifest_with_a_right_digest_over_a_bomb_is_one_finding(store: Store, bomb: str):
    artifact = make_artifact(1)
    store.publish_all([artifact, make_artifact(2)])
    body = BOMBS[bomb].encode("utf-8", "surrogateescape")
    keys = (artifact.key, artifact.toolchain_key, artifact.cubin_digest, artifact.source_digest)
    header = write_header(keys, "").removesuffix(b"}\n")
    entry_path(store, artifact).write_bytes(signed(header + body + b"}\n"))
    tracemalloc.start()
    found = verify(store, Selector(), kreg.REGISTRY).findings
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert len(found) == 1
    for name in ("list", "verify", "gc"):
        done = CliRunner().invoke(main, [name, "--store", store.root])
        assert done.exception is None or isinstance(done.exception, SystemExit), (bomb, name)
    assert [entry.manifest.params for entry in entries(store) if entry.manifest] == [{"size": 2}]


@pytest.mark.parametrize(
    ("cubin", "changes", "reason"),
    [
        (b"not an ELF image", {}, "fewer than an ELF header"),
        (b"\x7fELF" + bytes(100), {}, "is not a 64-bit little-endian ELF image"),
        (make_cubin("sm_80"), {}, "is for sm_80"),
        (make_cubin()[:-40], {}, "is cut short"),
        (make_cubin(), {"symbol": "elsewhere"}, "has no kernel 'elsewhere'"),
    ],
)
def test_cubin_that_is_none_or_another_machine_s_is_found(
    store: Store, cubin: bytes, changes: dict[str, object], reason: str
):
    artifact = kreg.Artifact(encode(make_manifest(cubin, **changes)), cubin, "made for a test")
    store.publish(artifact)
    (finding,) = verify(store, Selector(), kreg.REGISTRY).findings
    assert reason in finding.reason


# Names.


@pytest.mark.parametrize(
    "name",
    [
        "a/b", "..", ".", "a\\b", "a b", "a@1", "a\0b", "a\nb", "", "A", "Fake", "fáke", "\uff46ake", "f\u0430ke",
        "fake\u200b", "x" * 65, "x" * 5000, "-x", "1x", "a:b", "a[b", "a,b", "a=b", "con.", "~x", "$HOME",
    ],
)  # fmt: skip
def test_name_that_could_be_a_path_or_another_s_names_no_kernel(name: str):
    with pytest.raises(kreg.DeclarationError, match="is not a lower-case ASCII identifier of 64 at most"):
        make_kernel(name=name)
    with pytest.raises(kreg.SpecError):
        kreg.resolve(name, target="sm_90a")


def test_names_that_differ_at_the_end_are_two_kernels(store: Store):
    kernels = [make_kernel(name="k" * 63 + end) for end in "ab"]
    found = [kreg.resolve(kernel, size=1, target="sm_90a", store=store) for kernel in kernels]
    assert len({artifact.key for artifact in found}) == 2
    assert len(list(store.entry_files())) == 2


@pytest.mark.parametrize("spec", ["../../etc/passwd", "fake/../x", "/etc/passwd", "fake@../1", "fake[size=../..]"])
def test_spec_or_selector_is_never_a_path(store: Store, spec: str):
    store.publish(make_artifact(1))
    before = files_below(store.root)
    for arguments in (
        ["show", spec],
        ["clear", "--kernel", spec, "--yes"],
        ["why", spec],
        ["export", "--kernel", spec, "-o", "x"],
    ):
        done = CliRunner().invoke(main, [*arguments, "--store", store.root])
        assert done.exit_code in {1, 2}, done.output
    assert files_below(store.root) == before


@pytest.mark.parametrize("where", ["home", "link to home", "root"])
def test_clear_and_gc_of_a_folder_that_is_no_store_remove_nothing(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    (home / "entries-v1" / "a@1").mkdir(parents=True)
    (home / "entries-v1" / "a@1" / "x.json").write_text("mine")
    (tmp_path / "link").symlink_to(home)
    monkeypatch.chdir(home)
    place = {"home": "../home", "link to home": str(tmp_path / "link"), "root": "/"}[where]
    for arguments in (["clear", "--all", "--yes"], ["gc", "--max-entries", "0", "--grace", "0s", "--other-formats"]):
        done = CliRunner().invoke(main, [*arguments, "--store", place])
        assert (done.exit_code, "is not a kreg store" in done.output) == (1, True), done.output
    assert (home / "entries-v1" / "a@1" / "x.json").read_text() == "mine"
