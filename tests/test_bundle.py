"""Bundles: carried whole or refused whole, whatever is in the file."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import (
    entry_path,
    files_below,
    flip,
    make_artifact,
    make_spec,
    object_path,
    raises_os_error,
    read_spec,
)
from click.testing import CliRunner
from kreg.cache_tools import main
from tiny_elf import make_cubin

import kreg
from kreg import BundleError, MissError, PinError, Store, StoreError
from kreg.artifact import Artifact
from kreg.bundle import Imported, _header, _member, export_bundle, import_bundle, pinned, stored
from kreg.digest import canonical, sha256
from kreg.lockfile import Lockfile, pin, write_lockfile
from kreg.selector import Selector

SIZES = (1, 2, 3)


def artifacts() -> list[Artifact]:
    """Return two artifacts with a cubin of their own, and two that share one."""
    return [*map(make_artifact, SIZES), make_artifact(4, cubin=make_artifact(3).cubin)]


@pytest.fixture
def source(tmp_path: Path) -> Store:
    store = Store(tmp_path / "source")
    store.publish_all(artifacts())
    return store


@pytest.fixture
def path(source: Store, tmp_path: Path) -> str:
    """Return a bundle of everything in the source."""
    name = str(tmp_path / "all.tar")
    export_all(source, name)
    return name


def export_all(store: Store, path: str) -> None:
    export_bundle(path, store, stored(store, Selector(), kreg.REGISTRY))


def nothing_changed(store: Store, action: Callable[[], object], error: type[Exception], message: str = "") -> None:
    """Check that an action raises, and leaves a store as it was."""
    before = files_below(store.root)
    with pytest.raises(error, match=message):
        action()
    assert files_below(store.root) == before


def test_bundle_carries_every_entry(source: Store, path: str, store: Store):
    done = import_bundle(path, store)
    assert isinstance(done, Imported)
    assert done.published == tuple(f"fake@1[size={size}]:sm_90a" for size in (1, 2, 3, 4))
    for artifact in artifacts():
        found = read_spec(store, artifact)
        assert (found.cubin, found.manifest_bytes) == (artifact.cubin, artifact.manifest_bytes)
    assert {n: d for n, d in files_below(store.root).items() if "-v1/" in n} == {
        n: d for n, d in files_below(source.root).items() if "-v1/" in n
    }


def test_same_entries_make_the_same_bytes(path: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import_bundle(path, store)
    monkeypatch.chdir(tmp_path)
    os.umask(os.umask(0o077))
    export_all(store, "again.tar")
    assert Path("again.tar").read_bytes() == Path(path).read_bytes()


def test_bundle_is_a_tar_archive_that_others_can_read(path: str):
    with tarfile.open(path) as archive:
        names = archive.getnames()
        sizes = {member.name: member.size for member in archive.getmembers()}
    assert names[0] == "bundle.json"
    assert [name.partition("/")[0] for name in names[1:]] == ["objects"] * 3 + ["entries"] * 4
    assert names[1:4] == sorted(names[1:4])
    assert sizes[f"objects/{make_artifact(1).cubin_digest}.cubin"] == len(make_artifact(1).cubin)


def test_import_again_takes_nothing(path: str, store: Store):
    import_bundle(path, store)
    before = files_below(store.root)
    done = import_bundle(path, store)
    assert (done.published, len(done.held)) == ((), 4)
    assert files_below(store.root) == before


def test_import_beside_other_entries_keeps_them(path: str, store: Store):
    store.publish(make_artifact(9))
    import_bundle(path, store)
    assert read_spec(store, make_artifact(9)) is not None


def test_import_replaces_what_is_damaged(path: str, store: Store):
    import_bundle(path, store)
    flip(entry_path(store, make_artifact(1)), 400)
    object_path(store, make_artifact(2)).unlink()
    assert len(import_bundle(path, store).published) == 2
    assert all(read_spec(store, artifact) is not None for artifact in artifacts())


def test_other_machine_code_for_a_key_is_refused_and_both_are_named(path: str, store: Store):
    other = make_artifact(1, cubin=make_cubin(code=b"\7" * 64), code_digest="d" * 64)
    store.publish(other)
    message = f"cubin {make_artifact(1).cubin_digest[:12]}.*{other.cubin_digest[:12]}.*--replace"
    nothing_changed(store, lambda: import_bundle(path, store), BundleError, message)
    import_bundle(path, store, replace=True)
    assert read_spec(store, other).cubin == make_artifact(1).cubin


def test_dry_run_proves_and_publishes_nothing(path: str, store: Store):
    assert len(import_bundle(path, store, dry_run=True).published) == 4
    assert not os.path.exists(store.root)
    flip(Path(path), 3000)
    with pytest.raises(BundleError):
        import_bundle(path, store, dry_run=True)


# What is not a whole bundle.


def test_bundle_with_a_flipped_bit_anywhere_is_refused(path: str, store: Store, tmp_path: Path, is_long: bool):
    whole = Path(path).read_bytes()
    store.prepare()
    before = files_below(store.root)
    for at in range(0, len(whole), 1 if is_long else 41):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        (tmp_path / "bad.tar").write_bytes(changed)
        with pytest.raises(BundleError, match="nothing of it was taken"):
            import_bundle(str(tmp_path / "bad.tar"), store)
    assert files_below(store.root) == before


def test_bundle_that_is_cut_short_or_goes_on_is_refused(path: str, store: Store, tmp_path: Path, is_long: bool):
    whole = Path(path).read_bytes()
    lengths = [*range(0, len(whole), 1 if is_long else 97), *range(0, len(whole), 512), len(whole) - 1]
    for data in (*(whole[:length] for length in lengths), whole + b"\0", whole + bytes(512), whole + whole):
        (tmp_path / "bad.tar").write_bytes(data)
        with pytest.raises(BundleError, match="nothing of it was taken"):
            import_bundle(str(tmp_path / "bad.tar"), store)
    assert not os.path.exists(store.root)


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(data), link
    return info, data


INDEX = member("bundle.json", data=b'{"bundle":1,"objects":1,"entries":1}')
TRICKS = {
    "parent": [INDEX, member("../x", data=b"x")],
    "absolute": [INDEX, member("/tmp/kreg-was-here", data=b"x")],
    "parent in the middle": [INDEX, member("entries/../../x.json", data=b"{}")],
    "symbolic link": [INDEX, member("entries", tarfile.SYMTYPE, link="/tmp"), member("entries/x", data=b"x")],
    "hard link": [INDEX, member("entries/x.json", tarfile.LNKTYPE, link="/etc/passwd")],
    "character device": [INDEX, member("entries/x.json", tarfile.CHRTYPE)],
    "block device": [INDEX, member("entries/x.json", tarfile.BLKTYPE)],
    "fifo": [INDEX, member("entries/x.json", tarfile.FIFOTYPE)],
    "folder": [INDEX, member("entries", tarfile.DIRTYPE)],
    "index twice": [INDEX, INDEX],
    "no index": [member("entries/x.json", data=b"{}")],
    "long name": [INDEX, member("entries/" + "x" * 300, data=b"{}")],
    "upper case digest": [INDEX, member(f"entries/{sha256(b'{}').upper()}.json", data=b"{}")],
    "short digest": [INDEX, member(f"entries/{sha256(b'{}')[:60]}.json", data=b"{}")],
    "empty": [],
}


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archive_with_a_trick_is_refused(trick: str, form: int, store: Store, tmp_path: Path):
    raw = io.BytesIO()
    try:
        with tarfile.open(fileobj=raw, mode="w", format=form) as archive:
            for info, data in TRICKS[trick]:
                archive.addfile(info, io.BytesIO(data))
    except ValueError:
        pytest.skip("this form has no such name")
    for name, data in (("bad.tar", raw.getvalue()), ("bad.tar.gz", gzip.compress(raw.getvalue()))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BundleError, match="is not a whole bundle"):
            import_bundle(str(tmp_path / name), store)
    assert not os.path.exists(store.root)
    assert not os.path.exists("/tmp/kreg-was-here")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b'{"bundle":2,"objects":"new"}', "it has format 2, this kreg reads format 1: install a newer kreg"),
        (b'{"bundle":1,"objects":-1,"entries":1}', "bundle.json says"),
        (b'{"bundle":1,"objects":1000000,"entries":1}', "what lies at byte 1024 is not a member"),
        (b'{"bundle":1,"objects":1,"entries":0}', "bundle.json says"),
        (b'{"bundle":1,"objects":1,"entries":1,"more":1}', "bundle.json is not as `kreg export` writes it"),
        (b'{"bundle":1, "objects":1,"entries":1}', "bundle.json is not as"),
        (b'{"bundle":1,"bundle":1,"objects":1,"entries":1}', "bundle.json is not as"),
        (b'{"bundle":1,"objects":1.5,"entries":1}', "bundle.json says"),
        (b'{"bundle":' + b"9" * 3000 + b"}", "bundle.json says"),
        (b"[" * 4000, "bundle.json says"),
        (b"\xff\xfe", "bundle.json says"),
        (b"", "bundle.json says"),
        (b"{}", "bundle.json says"),
        (b" " * 5000, "it does not begin with bundle.json"),
    ],
)
def test_index_that_says_something_else_is_refused(index: bytes, message: str, store: Store, tmp_path: Path):
    (tmp_path / "bad.tar").write_bytes(_member("bundle.json", index) + bytes(1024))
    with pytest.raises(BundleError, match=message):
        import_bundle(str(tmp_path / "bad.tar"), store)


@pytest.mark.parametrize("size", [1 << 40, (1 << 28) + 1])
def test_size_that_lies_takes_no_memory(size: int, store: Store, tmp_path: Path):
    index = b'{"bundle":1,"objects":1,"entries":1}'
    with open(tmp_path / "bad.tar", "wb") as file:
        file.write(_member("bundle.json", index))
        try:
            file.write(_header(f"objects/{'a' * 64}.cubin", size))
        except ValueError:
            file.write(_header(f"objects/{'a' * 64}.cubin", 0o77777777777))
        file.truncate(1 << 34)  # Sparse: the file does have so many bytes.
    with pytest.raises(BundleError, match="more than the 268435456 allowed"):
        import_bundle(str(tmp_path / "bad.tar"), store)


def rebuilt(tmp_path: Path, cubins: list[bytes], manifests: list[bytes]) -> str:
    """Write a bundle of well-formed members, whatever they hold."""
    index = json.dumps({"bundle": 1, "objects": len(cubins), "entries": len(manifests)}, separators=(",", ":"))
    parts = [_member("bundle.json", index.encode())]
    parts += [_member(f"objects/{sha256(data)}.cubin", data) for data in sorted(cubins, key=sha256)]
    parts += [_member(f"entries/{sha256(data)}.json", data) for data in sorted(manifests, key=sha256)]
    (tmp_path / "rebuilt.tar").write_bytes(b"".join((*parts, bytes(1024))))
    return str(tmp_path / "rebuilt.tar")


def test_well_formed_bundle_with_wrong_contents_is_refused(store: Store, tmp_path: Path):
    good, other = make_artifact(1), make_artifact(2)
    wrong_key = make_artifact(1, spec=make_spec(params={"size": 7}), spec_key=good.key)
    wrong_target = make_artifact(1, cubin=make_cubin("sm_80"))
    wrong_symbol = make_artifact(1, symbol="elsewhere")
    no_elf = make_artifact(1, cubin=b"\x7fELF")
    newer = good.manifest_bytes.replace(b'{"manifest":1', b'{"manifest":2')
    for cubins, manifests, message in (
        ([], [good.manifest_bytes], "bundle.json says"),
        ([other.cubin], [good.manifest_bytes], "it lacks the cubin"),
        ([good.cubin, other.cubin], [good.manifest_bytes], "no entry names its cubin"),
        ([good.cubin], [], "bundle.json says: Expected `int` >= 1"),
        ([good.cubin], [b"{}"], "does not begin as a manifest"),
        ([good.cubin], [newer], "has format 2; this kreg reads format 1"),
        ([good.cubin], [good.manifest_bytes[:-3]], "does not match its own digest"),
        ([wrong_key.cubin], [wrong_key.manifest_bytes], "is not its spec key"),
        ([wrong_target.cubin], [wrong_target.manifest_bytes], "is for sm_80"),
        ([wrong_symbol.cubin], [wrong_symbol.manifest_bytes], "has no kernel 'elsewhere'"),
        ([no_elf.cubin], [no_elf.manifest_bytes], "fewer than an ELF header"),
    ):
        with pytest.raises(BundleError, match=message):
            import_bundle(rebuilt(tmp_path, cubins, manifests), store)
    assert not os.path.exists(store.root)
    assert import_bundle(rebuilt(tmp_path, [good.cubin], [good.manifest_bytes]), store).published


def test_path_in_a_manifest_is_never_used(store: Store, tmp_path: Path):
    fields = {"schema": 1, "version": 1, "params": {"size": 1}, "target": "sm_90a", "options": {}}
    for name in ("../../escape", "/tmp/kreg-was-here", "a/b", "fake\0", "F", "k" * 65, "", "fake@1"):
        evil = make_artifact(1, kernel=name, spec_key=sha256(canonical({**fields, "kernel": name})))
        with pytest.raises(BundleError, match="which names no kernel"):
            import_bundle(rebuilt(tmp_path, [evil.cubin], [evil.manifest_bytes]), store)
    assert sorted(os.listdir(tmp_path)) == ["rebuilt.tar"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda place: os.symlink("nowhere", place)])
def test_bundle_that_is_no_file_is_refused(make: Callable[[str], None], store: Store, tmp_path: Path):
    make(str(tmp_path / "b.tar"))
    with pytest.raises(BundleError, match=r"not a regular file|cannot read the bundle"):
        import_bundle(str(tmp_path / "b.tar"), store)


def test_import_that_fails_in_the_middle_shows_nothing(path: str, store: Store, monkeypatch: pytest.MonkeyPatch):
    store.publish(make_artifact(9))
    calls = iter(range(100))
    monkeypatch.setattr(os, "write", raises_os_error(errno.ENOSPC, lambda *_: next(calls) == 5, os.write))
    with pytest.raises(StoreError, match="No space left"):
        import_bundle(path, store)
    assert [os.path.basename(name) for name in store.entry_files()] == [f"{make_artifact(9).entry_key}.json"]
    assert os.listdir(f"{store.root}/tmp") == []
    assert import_bundle(path, store).published


# What is exported.


def test_export_of_a_selection(source: Store, tmp_path: Path, store: Store):
    done = export_bundle(str(tmp_path / "one.tar"), source, stored(source, Selector(params=["size=2"]), kreg.REGISTRY))
    assert done.specs == ("fake@1[size=2]:sm_90a",)
    assert import_bundle(str(tmp_path / "one.tar"), store).published == done.specs


def test_export_of_nothing_writes_nothing(source: Store, tmp_path: Path):
    with pytest.raises(BundleError, match="nothing to export"):
        export_bundle(str(tmp_path / "none.tar"), source, stored(source, Selector(targets=["sm_100a"]), kreg.REGISTRY))
    assert not (tmp_path / "none.tar").exists()


def test_export_of_a_damaged_entry_is_refused_and_the_old_bundle_stays(source: Store, path: str):
    before = Path(path).read_bytes()
    flip(object_path(source, make_artifact(3)), 100)
    with pytest.raises(StoreError, match="does not match its digest"):
        export_all(source, path)
    object_path(source, make_artifact(1)).unlink()
    with pytest.raises(StoreError, match=r"its cubin is missing; see `kreg verify`"):
        export_all(source, path)
    assert Path(path).read_bytes() == before
    assert [name for name in os.listdir(Path(path).parent) if "kreg-tmp" in name] == []


def test_export_to_what_cannot_be_written_is_said(source: Store, tmp_path: Path):
    with pytest.raises(BundleError, match=r"cannot write the bundle .*No such file"):
        export_all(source, str(tmp_path / "nowhere" / "b.tar"))


@pytest.fixture
def lockfile(source: Store, tmp_path: Path) -> str:
    """Return a lockfile that pins sizes 1 and 2."""
    chosen = [artifact.manifest for artifact in artifacts()[:2]]
    pins = tuple(pin(str(manifest.spec), manifest, "fake") for manifest in chosen)
    path = str(tmp_path / "kreg.lock")
    write_lockfile(path, Lockfile(toolchains={"fake": {"fake-compiler": "1.0"}}, pins=pins))
    return path


def command(*arguments: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(main, arguments, prog_name="kreg")
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def test_lockfile_says_what_is_exported(source: Store, lockfile: str, tmp_path: Path, store: Store):
    bundle = str(tmp_path / "pins.tar")
    said = command("export", "-o", bundle, "--lockfile", lockfile, "--store", source.root)[1]
    assert said == f"exported 2 entries to {bundle}, {os.path.getsize(bundle) / 1024:.1f} KiB\n"
    printed, said = command("import", bundle, "--store", store.root)
    assert printed == "fake@1[size=1]:sm_90a\nfake@1[size=2]:sm_90a\n"
    assert said.startswith("imported: 2 entries; 0 already there; bundle of ")


def test_pin_that_the_store_lacks_or_has_otherwise_is_an_error(source: Store, lockfile: str):
    from kreg.lockfile import read_lockfile

    def chosen() -> list[Artifact]:
        return list(pinned(source, Selector(), kreg.REGISTRY, read_lockfile(lockfile), lockfile))

    assert len(chosen()) == 2
    source.publish(make_artifact(1, cubin=make_cubin(code=b"\7" * 64)))
    with pytest.raises(PinError, match=r"has the cubin .* pins another"):
        chosen()
    entry_path(source, make_artifact(1)).unlink()
    with pytest.raises(MissError, match=r"lacks `fake@1\[size=1\]:sm_90a`, which .*kreg.lock pins"):
        chosen()


def test_import_with_a_lockfile_takes_what_is_pinned(path: str, lockfile: str, store: Store):
    said = command("import", path, "--lockfile", lockfile, "--store", store.root)[1]
    assert said.startswith("imported: 2 entries; 0 already there, 2 not pinned; bundle of ")
    assert len(list(store.entry_files())) == 2


def test_import_with_a_lockfile_refuses_another_cubin(source: Store, lockfile: str, tmp_path: Path, store: Store):
    source.publish(make_artifact(2, cubin=make_cubin(code=b"\7" * 64)))
    export_all(source, str(tmp_path / "tampered.tar"))
    said = command("import", str(tmp_path / "tampered.tar"), "--lockfile", lockfile, "--store", store.root, code=1)[1]
    assert f"the lockfile pins {make_artifact(2).cubin_digest[:12]}; nothing of the bundle was taken" in said
    assert not os.path.exists(store.root)


def test_commands_print_json(source: Store, tmp_path: Path, store: Store):
    bundle = str(tmp_path / "b.tar")
    said = json.loads(command("export", "-o", bundle, "--store", source.root, "--json")[0])
    assert (said["bundle"], said["bytes"], len(said["exported"])) == (bundle, os.path.getsize(bundle), 4)
    said = json.loads(command("import", bundle, "--store", store.root, "--dry-run", "--json")[0])
    assert (said["imported"], len(said["published"]), said["held"]) == (False, 4, [])


def test_import_into_a_folder_of_somebody_else_is_refused(path: str, tmp_path: Path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear", encoding="utf-8")
    said = command("import", path, "--store", str(tmp_path / "home"), code=1)[1]
    assert "is not empty and not a kreg store" in said
    assert os.listdir(tmp_path / "home") == ["letter"]


def test_unpickled_bundle_runs_nothing(store: Store, tmp_path: Path):
    import pickle

    class Marker:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "evil.tar").write_bytes(pickle.dumps(Marker()))
    with pytest.raises(BundleError):
        import_bundle(str(tmp_path / "evil.tar"), store)
    assert not (tmp_path / "ran").exists()
