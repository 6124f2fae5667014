"""Writing a lockfile, and holding the declarations to one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import files_below
from source_backend import declare

import kreg
from kreg import DriftError, Kernel, LockfileError, Registry, Store
from kreg.checking import Check, check
from kreg.errors import CompileError, SpecError, ToolchainError
from kreg.lockfile import Receipt, read_lockfile
from kreg.pinning import lock
from kreg.receipts import add_receipts
from kreg.selector import Selector

Runs = Callable[[], int]
COMMENT, CODE = "# a comment\n", "another instruction\n"


class Project:
    """A folder with sources of a kernel, a registry that declares it, a store and a lockfile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.path = str(folder / "kreg.lock")
        self.declare()

    def declare(self, *others: Kernel, **overrides: object) -> None:
        self.kernel = declare(self.folder / "sources", **overrides)
        self.registry = Registry([self.kernel, *others], discover=False)

    def append(self, text: str) -> None:
        with open(self.kernel.source_paths()[0], "a", encoding="utf-8") as file:
            file.write(text)

    def lock(self, chosen: Selector | None = None, **options: object) -> bytes:
        """Write the lockfile and return its bytes."""
        lock(self.path, self.registry, self.store, chosen, jobs=1, **options)
        return Path(self.path).read_bytes()

    def check(self, chosen: Selector | None = None, **options: object) -> Check:
        return check(self.path, self.registry, self.store, chosen, jobs=1, **options)

    def says(self, chosen: Selector | None = None, **options: object) -> list[str]:
        """Return all lines of a check."""
        done = self.check(chosen, **options)
        lines = [*done.toolchains, *(kernel.describe() for kernel in done.kernels)]
        assert done.is_same == all("unchanged" in line for line in lines)
        return lines

    def edit(self, old: str, new: str) -> None:
        """Edit the lockfile as a person would."""
        text = Path(self.path).read_text(encoding="utf-8")
        assert old in text
        Path(self.path).write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr("kreg.sources._started", lambda: float("inf"))
    return Project(tmp_path)


# lock


def test_lock_pins_every_variant_and_publishes_it(project: Project):
    text = project.lock().decode()
    lockfile = read_lockfile(project.path)
    assert [pin.spec for pin in lockfile.pins] == [
        f"made@1[size={size}]:{target}" for target in ("sm_120a", "sm_90a") for size in (1, 2)
    ]
    for pin in lockfile.pins:
        artifact = kreg.resolve(
            project.kernel,
            size=int(pin.spec[12]),
            target=pin.spec.partition(":")[2],
            store=project.store,
            policy="frozen",
        )
        manifest = artifact.manifest
        assert (pin.key, pin.cubin, pin.source) == (artifact.key, artifact.cubin_digest, artifact.source_digest)
        assert (pin.registers, pin.shared_bytes, pin.local_bytes) == (
            manifest.registers, manifest.static_shared_bytes + manifest.launch.shared_bytes, manifest.local_bytes,
        )  # fmt: skip
        assert (pin.cubin_bytes, pin.code_bytes, pin.program) == (
            len(artifact.cubin), manifest.code_bytes, manifest.program_digest,
        )  # fmt: skip
    assert lockfile.toolchains == {"source": {"source-compiler": "1.0"}}
    assert len(text.splitlines()) == 8 + len(lockfile.pins) + 1
    assert json.loads(text)["version"] == 1


def test_lock_writes_the_same_bytes_on_any_machine(project: Project, tmp_path_factory: pytest.TempPathFactory):
    first = project.lock()
    assert project.lock() == first
    elsewhere = Project(tmp_path_factory.mktemp("elsewhere"))
    assert elsewhere.lock() == first


def test_lock_of_an_adopted_entry_is_that_of_a_fresh_store(project: Project, tmp_path_factory: pytest.TempPathFactory):
    # The adopted entry keeps the cubin it had, older line tables and all; a lockfile must not depend on that.
    chosen = Selector(kernels=["made"], params=["lines=true"])
    project.lock(chosen)
    project.append(COMMENT)
    for size in (1, 2):
        kreg.forget()
        kreg.resolve(project.kernel, size=size, lines=True, target="sm_90a", store=project.store)
    first = project.lock()
    elsewhere = Project(tmp_path_factory.mktemp("elsewhere"))
    elsewhere.append(COMMENT)
    assert elsewhere.lock(chosen) == first
    assert project.says() == ["made@1: unchanged, 4 variants"]
    kreg.forget()
    found = kreg.resolve(project.kernel, size=1, lines=True, target="sm_90a", store=project.store, policy="locked",
                         lockfile=project.path)  # fmt: skip
    assert found.cubin_digest in first.decode()


def test_lock_keeps_its_selection_until_another_is_given(project: Project):
    assert len(project.lock(Selector(targets=["sm_90a"])).splitlines()) == 8 + 2 + 1
    assert len(project.lock().splitlines()) == 8 + 2 + 1
    assert read_lockfile(project.path).selection.targets == ("sm_90a",)
    assert len(project.lock(Selector()).splitlines()) == 8 + 4 + 1


@pytest.mark.parametrize("loses_the_store", [False, True])
def test_lock_refuses_machine_code_that_changed_without_a_bump(project: Project, loses_the_store: bool):
    first = project.lock()
    project.append(CODE)
    if loses_the_store:
        project.store = Store(project.folder / "another")
    before = files_below(project.store.root)
    with pytest.raises(DriftError) as caught:
        project.lock()
    assert str(caught.value) == (
        "the machine code of made@1 changed and the version did not, as in `made@1[size=1]:sm_90a`; bump `version`, or "
        "for a kernel still in development run `kreg lock --rebuild`"
    )
    assert Path(project.path).read_bytes() == first
    assert files_below(project.store.root) == before
    assert project.lock(rebuild=True) != first
    assert project.says() == ["made@1: unchanged, 4 variants"]


def test_lock_of_a_compile_that_fails_writes_nothing(project: Project):
    first = project.lock()
    project.append("error\n")
    with pytest.raises(CompileError) as caught:
        project.lock()
    assert str(caught.value) == (
        "4 of 4 variants cannot be pinned, the first: cannot compile made@1[size=1]:sm_90a: error"
    )
    assert Path(project.path).read_bytes() == first


def test_lock_without_the_compiler_says_what_to_install(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_COMPILER", "none")
    with pytest.raises(ToolchainError, match="run `pip install source-compiler`"):
        project.lock()
    assert not os.path.exists(project.path)


def test_lock_does_not_drop_a_kernel_that_is_not_installed(project: Project):
    project.declare(declare(project.folder / "sources", name="other"))
    first = project.lock()
    project.declare()
    with pytest.raises(LockfileError) as caught:
        project.lock()
    assert str(caught.value) == (
        f"{project.path} pins other, which is not installed here; install it, or drop it by naming what the lockfile "
        f"shall hold (--kernel, or --all for all that is declared)"
    )
    assert Path(project.path).read_bytes() == first
    assert b"other" not in project.lock(Selector())


@pytest.mark.parametrize(
    "damage",
    [
        ("{", "["),
        ('"pins":[', '"pins":{'),
        ('"cubin":"', '"cubin":"0'),
        ("made@1[size=2]:sm_90a", "made@1[size=1]:sm_90a"),
    ],
)
def test_lock_does_not_write_over_a_damaged_file(project: Project, damage: tuple[str, str]):
    project.lock()
    project.edit(*damage)
    before = Path(project.path).read_bytes()
    with pytest.raises(LockfileError):
        project.lock()
    assert Path(project.path).read_bytes() == before


def test_lock_keeps_receipts_with_their_cubins(project: Project):
    project.lock()
    receive(project)
    tested = project.lock()
    assert tested.count(b'"suite":"tests/gpu"') == 2
    # A comment keeps the cubin, and so the receipt; another cubin loses it, and the target stays known as run.
    project.append(COMMENT)
    assert project.lock().count(b'"suite":"tests/gpu"') == 2
    project.append(CODE)
    text = project.lock(rebuild=True)
    assert b"tests/gpu" not in text
    assert read_lockfile(project.path).hardware == ("sm_90a",)


def receive(project: Project, target: str = "sm_90a") -> None:
    """Put receipts for all cubins of a target into the lockfile."""
    cubins = [pin.cubin for pin in read_lockfile(project.path).pins if pin.spec.endswith(target)]
    fields = {"tests": "a" * 64, "suite": "tests/gpu", "device": "a GPU", "driver": "13.0", "torch": "2.11"}
    add_receipts(
        project.path, [Receipt(cubin=cubin, date="2026-12-01", passed=3, total=9, **fields) for cubin in cubins]
    )


# check


def test_check_of_what_did_not_change_compiles_nothing(project: Project, runs: Runs):
    project.lock()
    assert project.says() == ["made@1: unchanged, 4 variants"]
    assert runs() == 4


def test_check_with_an_empty_store_compiles_and_keeps_what_is_pinned(project: Project, runs: Runs):
    project.lock()
    project.store = Store(project.folder / "another")
    assert project.says() == project.says() == ["made@1: unchanged, 4 variants"]
    assert (runs(), len(list(project.store.entry_files()))) == (8, 4)


def test_check_of_a_comment_is_silent(project: Project):
    project.lock()
    project.append(COMMENT)
    done = project.check()
    assert [kernel.describe() for kernel in done.kernels] == ["made@1: unchanged, 4 variants"]
    assert (done.is_same, done.kernels[0].older_sources) == (True, 4)


@pytest.mark.parametrize("loses_the_store", [False, True])
def test_check_finds_a_bump_that_was_forgotten_and_publishes_nothing(project: Project, loses_the_store: bool):
    project.lock()
    project.append(CODE)
    if loses_the_store:
        project.store = Store(project.folder / "another")
    before = files_below(project.store.root)
    assert project.says() == ["made@1: machine code changed, version did not: bump it (4 variants)"]
    assert files_below(project.store.root) == before


def test_check_counts_what_a_bump_changed(project: Project):
    project.lock()
    project.append(CODE)
    project.declare(version=2)
    assert project.says() == ["made 1 -> 2: 4 variants changed"]
    project.lock()
    assert project.says() == ["made@2: unchanged, 4 variants"]


def test_check_finds_a_bump_that_was_not_needed(project: Project):
    project.lock()
    project.append(COMMENT)
    project.declare(version=4)
    assert project.says() == ["made 1 -> 4: machine code is the same: bump not needed"]


def test_check_tells_what_a_toolchain_changed(project: Project, monkeypatch: pytest.MonkeyPatch):
    project.lock()
    monkeypatch.setenv("FAKE_COMPILER", "2.0")
    assert project.says() == [
        "toolchain source-compiler 1.0 -> 2.0: 2 of 4 changed",
        "made@1: 2 of 4 variants changed with the toolchain",
    ]
    objects = len(list(project.store.object_files()))
    project.lock()
    assert len(list(project.store.object_files())) == objects + 2, "equal code is one object"
    assert len(list(project.store.entry_files())) == 8


def test_check_tells_line_tables_from_machine_code(project: Project):
    project.lock(Selector(kernels=["made"], params=["lines=true"]))
    project.append(COMMENT)
    assert project.says() == ["made@1: machine code is the same, other bytes of 4 cubins are not"]


def test_check_finds_what_is_not_pinned_and_what_is_gone(project: Project):
    project.lock()
    project.declare(targets=("sm_90a", "sm_100a"))
    assert project.says() == ["made@1: 2 variants not pinned; 2 pins of what is no longer declared"]


def test_check_finds_keys_that_moved(project: Project):
    project.lock()
    project.declare(options={"line_info": True})
    assert project.says() == ["made@1: 4 keys moved: other compile options or defaults"]


def test_check_names_a_kernel_that_is_not_installed_and_one_that_is_new(project: Project):
    project.lock()
    project.kernel = declare(project.folder / "sources", name="other")
    project.registry = Registry([project.kernel], discover=False)
    assert project.says() == ["made@1: 4 pins, and no such kernel is installed", "other@1: 4 variants not pinned"]


def test_check_says_what_cannot_be_compiled(project: Project):
    project.lock()
    project.append("error\n")
    assert project.says() == [
        "made@1: 4 variants cannot be compiled, the first: cannot compile made@1[size=1]:sm_90a: error"
    ]


def test_check_of_a_part_looks_at_that_part(project: Project, runs: Runs):
    project.lock()
    project.append(CODE)
    assert project.says(Selector(targets=["sm_90a"], params=["size=1"])) == [
        "made@1: machine code changed, version did not: bump it (1 variant)"
    ]
    assert runs() == 5
    with pytest.raises(SpecError, match="no selected kernel is declared for sm_100a"):
        project.check(Selector(targets=["sm_100a"]))


def test_check_without_a_lockfile_says_how_to_write_one(project: Project):
    with pytest.raises(LockfileError) as caught:
        project.check()
    assert str(caught.value) == f"there is no lockfile {project.path}; write one with `kreg lock`, or name another"


# check --receipts


def test_check_asks_for_receipts_only_where_hardware_was(project: Project):
    project.lock()
    done = project.check(receipts=True)
    assert (done.is_same, done.tested, done.not_run) == (True, 0, {"sm_120a": 2, "sm_90a": 2})
    receive(project)
    done = project.check(receipts=True)
    assert (done.is_same, done.tested, done.not_run) == (True, 2, {"sm_120a": 2})


def test_check_finds_machine_code_that_nobody_has_run(project: Project):
    project.lock()
    receive(project)
    project.append(CODE)
    project.declare(version=2)
    project.lock()
    assert project.says() == ["made@2: unchanged, 4 variants"]
    assert project.says(receipts=True) == [
        "made@2: 2 cubins without a receipt: nobody has run this machine code",
    ]
    receive(project)
    assert project.says(receipts=True) == ["made@2: unchanged, 4 variants"]


def test_receipt_of_another_cubin_than_today_s_is_none(project: Project):
    project.lock()
    receive(project)
    project.append(CODE)
    assert project.says(receipts=True) == [
        (
            "made@1: machine code changed, version did not: bump it (4 variants); "
            "2 cubins without a receipt: nobody has run this machine code"
        )
    ]


def test_check_of_a_default_value_looks_at_an_older_version_too(project: Project):
    project.lock()
    project.append(CODE)
    project.declare(version=2)
    assert project.says(Selector(params=["lines=false", "size=2"])) == ["made 1 -> 2: 2 variants changed"]
