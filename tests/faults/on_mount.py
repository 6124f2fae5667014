"""What is done on a file system of its own: ``on_mount.py NAME STORE ...``. Raises what must not happen."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from builders import warnings_of
from click.testing import CliRunner
from fake_backend import KERNEL
from kreg.cache_tools import main

import kreg
from kreg import Store
from kreg.selector import Selector
from kreg.sweep import leftovers
from kreg.upkeep import verify

SIZES = range(1, 51)


def resolve_all(root: str) -> tuple[int, list[str]]:
    """Resolve every size as one process does; return how many were compiled, and the warnings."""
    kreg.forget()
    found, said = warnings_of(lambda: [kreg.resolve(KERNEL, size=n, target="sm_90a", store=root) for n in SIZES])
    assert [artifact.manifest.params["size"] for artifact in found] == list(SIZES)
    return sum(artifact.origin == "compiled" for artifact in found), said


def fill(root: str) -> None:
    """Resolve more than there is room for: every kernel is there, one warning, nothing partial; then make room."""
    compiled, said = resolve_all(root)
    assert (compiled, len(said)) == (len(SIZES), 1), said
    assert "No space left on device; going on without the store" in said[0], said
    store = Store(root)
    held = len(list(store.entry_files()))
    assert 0 < held < len(SIZES), held
    assert verify(store, Selector(), kreg.REGISTRY).findings == ()
    assert [path for path in leftovers(store) if "/tmp/" in path.removeprefix(root)] == []
    assert resolve_all(root)[0] <= len(SIZES) - held
    for name in ("list", "verify"):
        assert CliRunner().invoke(main, [name, "--store", root]).exit_code == 0
    done = CliRunner().invoke(main, ["clear", "--all", "--yes", "--store", root])
    assert done.exit_code == 0, done.output
    kreg.forget()
    assert warnings_of(lambda: kreg.resolve(KERNEL, size=1, target="sm_90a", store=root))[1] == []
    kreg.forget()
    assert kreg.resolve(KERNEL, size=1, target="sm_90a", store=root).origin != "compiled"


def read_only(root: str, outside: str) -> None:
    """Use a store that cannot be written: hits without a word, a miss with one, and what writes says so."""
    warnings.simplefilter("error")
    before = {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")}
    kreg.forget()
    assert kreg.resolve(KERNEL, size=1, target="sm_90a", store=root, policy="frozen").origin.startswith(root)
    kreg.forget()
    assert kreg.resolve(KERNEL, size=1, target="sm_90a", store=root).origin.startswith(root)
    found, said = warnings_of(
        lambda: [kreg.resolve(KERNEL, size=size, target="sm_90a", store=root) for size in (3, 4, 5)]
    )
    assert {artifact.origin for artifact in found} == {"compiled"}
    assert len(said) == 1, said
    assert "Read-only file system" in said[0], said
    bundle = f"{outside}/b.tar"
    for arguments, code, words in (
        (["list"], 0, ""),
        (["verify"], 0, "1 entry checked, 0 bad"),
        (["show", "fake[size=1]:sm_90a"], 0, ""),
        (["export", "-o", bundle], 0, "exported 1 entry"),
        (["clear", "--all", "--yes"], 1, "Read-only file system"),
        (["gc"], 1, "cannot write to"),
        (["import", bundle, "--dry-run"], 0, "1 already there"),
        (["warm", "--kernel", "nobody"], 2, "nobody"),
    ):
        done = CliRunner().invoke(main, [*arguments, "--store", root])
        assert (done.exit_code, words in done.output) == (code, True), (arguments, done.output)
    other = Store(f"{outside}/other")
    kreg.forget()
    kreg.resolve(KERNEL, size=9, target="sm_90a", store=other)
    assert CliRunner().invoke(main, ["export", "-o", bundle, "--store", other.root]).exit_code == 0
    done = CliRunner().invoke(main, ["import", bundle, "--store", root])
    assert (done.exit_code, "Read-only file system" in done.output) == (1, True), done.output
    assert {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")} == before


if __name__ == "__main__":
    os.environ.pop("KREG_STORE", None)
    kreg.REGISTRY.add(KERNEL)
    globals()[sys.argv[1]](*sys.argv[2:])
