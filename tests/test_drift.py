"""Drift: sources that changed under an unchanged version, judged by what the compiler makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import entry_path, files_below, warnings_of
from source_backend import declare

import kreg
from kreg import Artifact, DriftError, Kernel, MissError, PinError, Store, ToolchainError
from kreg.lockfile import Lockfile, pin, read_lockfile, write_lockfile
from kreg.warming import COMPILED, FAILED, HIT

Runs = Callable[[], int]
COMMENT, CODE = "# a comment\n", "another instruction\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Return a kernel with sources of its own, which this process may compile however new they are."""
    monkeypatch.setattr("kreg.sources._started", lambda: float("inf"))
    return declare(tmp_path / "sources")


def append(kernel: Kernel, text: str, number: int = 0) -> None:
    """Append to a source of a kernel."""
    with open(kernel.source_paths()[number], "a", encoding="utf-8") as file:
        file.write(text)


def resolve_anew(kernel: Kernel, root: str, **changes: object) -> Artifact:
    """Resolve size 1 as a process does that remembers nothing."""
    kreg.forget()
    return kreg.resolve(kernel, **{"size": 1, "target": "sm_90a", "store": root, **changes})


def drift_message(kernel: Kernel, files: str) -> str:
    return (
        f"the sources of made@1 have changed ({files}) and give other machine code for `made@1[size=1]:sm_90a` than "
        f"the store holds under this version; bump `version`, or for a kernel still in development run "
        f"`kreg warm --rebuild --kernel made`"
    )


def test_sources_that_did_not_change_are_a_hit(kernel: Kernel, root: str, runs: Runs):
    first = resolve_anew(kernel, root)
    assert resolve_anew(kernel, root).manifest_bytes == first.manifest_bytes
    assert runs() == 1


def test_same_machine_code_is_adopted_in_silence(kernel: Kernel, root: str, runs: Runs):
    first = resolve_anew(kernel, root)
    append(kernel, COMMENT)
    second, warnings = warnings_of(lambda: resolve_anew(kernel, root))
    assert (warnings, runs()) == ([], 2)
    assert (second.key, second.cubin_digest, second.entry_key) == (first.key, first.cubin_digest, first.entry_key)
    assert second.source_digest == kernel.source_digest() != first.source_digest
    assert second.manifest.sources == kernel.read_sources().files
    assert second.manifest.built_from == kernel.source_digest()
    # The next process finds it at once, also one without a compiler.
    assert resolve_anew(kernel, root, policy="frozen").manifest_bytes == second.manifest_bytes
    assert runs() == 2


def test_adopted_cubin_with_other_line_tables_stays_as_it_was_built(kernel: Kernel, root: str):
    first = resolve_anew(kernel, root, lines=True)
    append(kernel, COMMENT)
    second = resolve_anew(kernel, root, lines=True)
    assert (second.cubin, second.manifest.built_from) == (first.cubin, first.manifest.built_from)
    assert second.source_digest == kernel.source_digest()
    assert len(list(Store(root).object_files())) == 1


def test_other_machine_code_is_refused_and_changes_nothing(kernel: Kernel, root: str):
    resolve_anew(kernel, root)
    before = files_below(f"{root}/entries-v1"), files_below(f"{root}/objects-v1")
    append(kernel, CODE, 1)
    for _ in range(2):
        with pytest.raises(DriftError) as caught:
            resolve_anew(kernel, root)
        assert str(caught.value) == drift_message(kernel, "shared.txt")
    assert (files_below(f"{root}/entries-v1"), files_below(f"{root}/objects-v1")) == before


def test_other_launch_of_the_same_code_is_refused(kernel: Kernel, root: str):
    resolve_anew(kernel, root)
    append(kernel, "grid 7\n")
    with pytest.raises(DriftError):
        resolve_anew(kernel, root)


def test_bumped_version_is_another_entry(kernel: Kernel, root: str):
    first = resolve_anew(kernel, root)
    append(kernel, CODE)
    bumped = declare(Path(kernel.file).parent, version=2)
    second = resolve_anew(bumped, root)
    assert second.key != first.key
    assert entry_path(Store(root), first).exists()


def test_change_that_is_taken_back_is_a_hit_again(kernel: Kernel, root: str, runs: Runs):
    first = resolve_anew(kernel, root)
    path = Path(kernel.source_paths()[0])
    text = path.read_text(encoding="utf-8")
    append(kernel, CODE)
    with pytest.raises(DriftError):
        resolve_anew(kernel, root)
    path.write_text(text, encoding="utf-8")
    assert resolve_anew(kernel, root).manifest_bytes == first.manifest_bytes
    assert runs() == 2


def test_declared_list_that_changed_is_drift(kernel: Kernel, root: str):
    first = resolve_anew(kernel, root)
    folder = Path(kernel.file).parent
    (folder / "more.txt").write_text("# nothing but a comment\n", encoding="utf-8")
    more = declare(folder, sources=("code.txt", "shared.txt", "more.txt"))
    assert resolve_anew(more, root).cubin == first.cubin
    fewer = declare(folder, sources=("code.txt",))
    with pytest.raises(DriftError, match=r"\(shared\.txt removed, more\.txt removed\)"):
        resolve_anew(fewer, root)
    (folder / "other.txt").write_text("code\n", encoding="utf-8")
    with pytest.raises(DriftError, match=r"\(other\.txt added, more\.txt removed\)"):
        resolve_anew(declare(folder, sources=("code.txt", "shared.txt", "other.txt")), root)


def test_rebuild_takes_the_new_code(kernel: Kernel, root: str, monkeypatch: pytest.MonkeyPatch):
    first = resolve_anew(kernel, root)
    append(kernel, CODE)
    monkeypatch.setenv("KREG_DRIFT", "rebuild")
    second = resolve_anew(kernel, root)
    assert (second.key, second.cubin_digest) != (first.key, first.cubin_digest)
    monkeypatch.delenv("KREG_DRIFT")
    assert resolve_anew(kernel, root).cubin == second.cubin


def test_ignore_takes_the_entry(kernel: Kernel, root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch):
    first = resolve_anew(kernel, root)
    append(kernel, CODE)
    monkeypatch.setenv("KREG_DRIFT", "ignore")
    for policy, compiler in (("compile", "1.0"), ("frozen", "1.0"), ("compile", "none"), ("frozen", "none")):
        monkeypatch.setenv("FAKE_COMPILER", compiler)
        assert resolve_anew(kernel, root, policy=policy).manifest_bytes == first.manifest_bytes
    assert runs() == 1


@pytest.mark.parametrize("change", [COMMENT, CODE])
@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"KREG_POLICY": "frozen"}, "the policy is frozen"),
        ({"FAKE_COMPILER": "none"}, "its compiler is not installed here (`pip install source-compiler`)"),
    ],
)
def test_drift_that_cannot_be_judged_is_an_error(
    kernel: Kernel, root: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, change: str, variables: dict, why: str
):
    held = resolve_anew(kernel, root)
    append(kernel, change)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DriftError) as caught:
        resolve_anew(kernel, root)
    assert str(caught.value) == (
        f"the sources of made@1 are not those that `made@1[size=1]:sm_90a` in {entry_path(Store(root), held)} was made "
        f"of (code.txt), and {why}; use the sources and the store of one build, or take the entry as it is with "
        f"KREG_DRIFT=ignore"
    )
    assert runs() == 1


def test_drift_in_a_store_that_cannot_be_written_is_judged_all_the_same(
    kernel: Kernel, root: str, monkeypatch: pytest.MonkeyPatch
):
    first = resolve_anew(kernel, root)

    def refuse(*_: object) -> None:
        raise kreg.StoreError("read-only")

    monkeypatch.setattr(Store, "prepare", refuse)
    append(kernel, COMMENT)
    second, warnings = warnings_of(lambda: resolve_anew(kernel, root))
    assert (second.cubin, len(warnings)) == (first.cubin, 1)
    append(kernel, CODE)
    with pytest.warns(kreg.KregWarning), pytest.raises(DriftError):
        resolve_anew(kernel, root)


def test_bad_mode_is_named(kernel: Kernel, root: str, monkeypatch: pytest.MonkeyPatch):
    resolve_anew(kernel, root)
    monkeypatch.setenv("KREG_DRIFT", "whatever")
    with pytest.raises(kreg.KregError, match=r"^KREG_DRIFT is 'whatever'; it is one of check, rebuild, ignore$"):
        resolve_anew(kernel, root)


def test_process_that_has_imported_older_sources_compiles_apart(tmp_path: Path, root: str, runs: Runs):
    # Here the sources are newer than this process, as they are while somebody edits.
    kernel = declare(tmp_path / "sources")
    first = resolve_anew(kernel, root)
    append(kernel, COMMENT)
    assert resolve_anew(kernel, root).cubin == first.cubin
    append(kernel, CODE)
    with pytest.raises(DriftError):
        resolve_anew(kernel, root)
    assert runs() == 3


# Warm.


def statuses(kernel: Kernel, root: str, **options: object) -> list[str]:
    return [outcome.status for outcome in kreg.warm(variants(kernel), store=root, jobs=1, **options).outcomes]


def variants(kernel: Kernel) -> list[tuple[Kernel, kreg.CompileSpec]]:
    return [(kernel, spec) for spec in kernel.specs(["sm_90a"])]


def test_warm_adopts_refuses_and_rebuilds(kernel: Kernel, root: str, runs: Runs):
    assert statuses(kernel, root) == [COMPILED] * 2
    append(kernel, COMMENT)
    assert (statuses(kernel, root), runs()) == ([HIT] * 2, 4)
    assert (statuses(kernel, root), runs()) == ([HIT] * 2, 4)
    append(kernel, CODE)
    report = kreg.warm(variants(kernel), store=root, jobs=1)
    assert [outcome.status for outcome in report.outcomes] == [FAILED] * 2
    assert report.outcomes[0].error == drift_message(kernel, "code.txt")
    assert report.outcomes[0].log_path is None
    assert statuses(kernel, root, drift="ignore") == [HIT] * 2
    assert statuses(kernel, root, drift="rebuild") == [COMPILED] * 2
    assert statuses(kernel, root) == [HIT] * 2


# The policy locked.


@pytest.fixture
def locked(kernel: Kernel, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a lockfile that pins size 1, and make it be in force."""
    path = str(tmp_path / "kreg.lock")
    write_lock(path, resolve_anew(kernel, root))
    monkeypatch.setenv("KREG_POLICY", "locked")
    monkeypatch.setenv("KREG_LOCKFILE", path)
    return path


def write_lock(path: str, artifact: Artifact) -> None:
    manifest = artifact.manifest
    pins = (pin(str(manifest.spec), manifest, "source"),)
    write_lockfile(path, Lockfile(toolchains={"source": manifest.toolchain}, pins=pins))


def test_locked_takes_what_is_pinned(kernel: Kernel, root: str, runs: Runs, locked: str):
    found = resolve_anew(kernel, root)
    assert (found.cubin_digest, runs()) == (read_lockfile(locked).pins[0].cubin, 1)
    assert resolve_anew(kernel, f"{root}-2").cubin == found.cubin
    assert runs() == 2


def test_locked_refuses_what_has_no_pin(kernel: Kernel, root: str, runs: Runs, locked: str):
    spec = kernel.spec("sm_90a", {"size": 2})
    with pytest.raises(MissError) as caught:
        resolve_anew(kernel, root, size=2)
    assert str(caught.value) == (
        f"`{spec}` ({spec.key[:12]}) has no pin in {locked}, which is in force; pin it with `kreg lock`"
    )
    assert runs() == 1


def test_locked_refuses_a_compile_that_is_not_what_is_pinned(kernel: Kernel, root: str, locked: str):
    pinned = read_lockfile(locked).pins[0].cubin
    append(kernel, CODE)
    with pytest.raises(PinError) as caught:
        resolve_anew(kernel, f"{root}-2")
    said = re.fullmatch(
        rf"`made@1\[size=1\]:sm_90a` from compiled has the cubin ([0-9a-f]{{64}}), and {locked} pins {pinned}; see "
        rf"what changed with `kreg check`, and pin it with `kreg lock` if it shall be so",
        str(caught.value),
    )
    assert said
    assert said[1] != pinned
    assert list(Store(f"{root}-2").entry_files()) == []


def test_locked_compiles_where_the_store_holds_something_else(kernel: Kernel, root: str, runs: Runs, locked: str):
    pinned = read_lockfile(locked).pins[0].cubin
    path = Path(kernel.source_paths()[0])
    text = path.read_text(encoding="utf-8")
    append(kernel, CODE)
    resolve_anew(kernel, f"{root}-2", policy="compile")
    path.write_text(text, encoding="utf-8")
    assert resolve_anew(kernel, f"{root}-2").cubin_digest == pinned
    assert runs() == 3
    # Frozen may not compile, and says which digest it found and which it wants.
    append(kernel, CODE)
    resolve_anew(kernel, f"{root}-3", policy="compile")
    with pytest.raises(PinError, match=pinned):
        resolve_anew(kernel, f"{root}-3", policy="frozen")


def test_locked_does_not_take_from_memory_what_is_not_pinned(kernel: Kernel, root: str, locked: str):
    append(kernel, CODE)
    kreg.forget()
    there = f"{root}-2"
    loose = kreg.resolve(kernel, size=1, target="sm_90a", store=there, policy="compile")
    with pytest.raises(PinError):
        kreg.resolve(kernel, size=1, target="sm_90a", store=there)
    assert kreg.resolve(kernel, size=1, target="sm_90a", store=there, policy="compile") is loose


def test_pin_vouches_for_its_sources(kernel: Kernel, root: str, runs: Runs, locked: str):
    # The lockfile was written elsewhere, after a comment; here is the older entry, and no compiler.
    append(kernel, COMMENT)
    write_lock(locked, resolve_anew(kernel, f"{root}-2", policy="compile"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_COMPILER", "none")
        for policy in ("locked", "frozen"):
            assert resolve_anew(kernel, root, policy=policy).cubin_digest == read_lockfile(locked).pins[0].cubin
    assert runs() == 2


def test_pin_chooses_among_toolchains_where_no_compiler_is(
    kernel: Kernel, root: str, locked: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_COMPILER", "3.0")
    other = resolve_anew(kernel, root, policy="compile")
    monkeypatch.setenv("FAKE_COMPILER", "none")
    for policy in ("locked", "frozen"):
        found = resolve_anew(kernel, root, policy=policy)
        assert found.toolchain_key != other.toolchain_key
        assert found.manifest.toolchain == {"source-compiler": "1.0"}
    monkeypatch.delenv("KREG_LOCKFILE")
    with pytest.raises(ToolchainError, match="under 2 toolchains"):
        resolve_anew(kernel, root, policy="frozen")


def test_newer_compiler_is_taken_where_it_makes_the_pinned_cubin(
    kernel: Kernel, root: str, locked: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_COMPILER", "3.0")
    assert resolve_anew(kernel, f"{root}-2").cubin_digest == read_lockfile(locked).pins[0].cubin


def test_frozen_process_and_a_lockfile_agree(kernel: Kernel, root: str, locked: str):
    kreg.freeze()
    assert resolve_anew(kernel, root).cubin_digest == read_lockfile(locked).pins[0].cubin
    with pytest.raises(MissError, match="the policy is frozen"):
        resolve_anew(kernel, f"{root}-2")


def test_lockfile_that_is_missing_is_named(kernel: Kernel, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kreg.LockfileError) as caught:
        resolve_anew(kernel, root, policy="locked")
    path = tmp_path / "kreg.lock"
    assert str(caught.value) == f"there is no lockfile {path}; write one with `kreg lock`, or name another"
