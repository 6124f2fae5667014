"""The story kreg exists for, with the compiler and the shipped kernels' own sources, in a package of their own.

Version 1 of the fused kernel is locked; its fix is applied without a bump, and refused; with a bump, it and nothing
else changes; a comment changes nothing; a new toolchain makes new entries of the same cubins.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import HERE, SHIPPED, child_environment
from plugins import install_plugin

import kreg
from kreg import REGISTRY, DriftError, Kernel
from kreg.backends.cute import BACKEND
from kreg.difference import compare, items_of
from kreg.lockfile import Pin, read_lockfile

pytestmark = pytest.mark.skipif(BACKEND.toolchain() is None, reason="needs the compiler: pip install 'kreg[cute]'")

KREG = Path(sys.executable).with_name("kreg")
KERNELS = HERE.parent / "kernels"
FUSED, GATHER, TOP = "my_all_gather_pair_kimi_topk", "my_all_gather_pair", "my_kimi_topk16"
DEFECT = """

class TwoLevelVersion1(SELECTIONS["two_level"]):
    \"\"\"The refill of version 1: a valid key of the expert just taken.\"\"\"

    def refill(self, taken):
        return (Uint64(0x007FFFFF) << 32) | Uint64(Uint32(taken) & 0x3FF)


def chosen(name):
    return TwoLevelVersion1 if name == "two_level" else SELECTIONS[name]


"""


class Story:
    """A checkout of a package ``my_kernels``: the shipped kernels for sm_90a and a world of 2, under other names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "my_kernels"
        shutil.copytree(KERNELS, self.package, ignore=shutil.ignore_patterns("__pycache__", "launch.py", "exchange.py"))
        shutil.copy(KERNELS / "_device" / "exchange.py", self.package / "_device")
        for name in SHIPPED:
            self.edit(
                f"{name}/__init__.py",
                (f'name="{name}"', f'name="my_{name}"'), ("kreg.kernels.", "my_kernels."),
                ("warm=(2, 4, 8, 16)", "warm=(2,)"),
                ('targets=("sm_90a", "sm_100a", "sm_120a")', 'targets=("sm_90a",)'),
            )  # fmt: skip
        entries = {f"my_{name}": f"my_kernels.{name}:KERNEL" for name in SHIPPED}
        self.site = install_plugin(folder / "site", **entries)
        self.variables: dict[str, str] = {}

    def edit(self, file: str, *changes: tuple[str, str]) -> None:
        """Edit a file of the package; what is to be replaced need not be in every one."""
        path = self.package / file
        text = path.read_text(encoding="utf-8")
        edited = text
        for old, new in changes:
            edited = edited.replace(old, new)
        assert edited != text, file
        path.write_text(edited, encoding="utf-8")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([self.site, str(self.folder)])
        environment = child_environment(KREG_STORE=str(self.folder / "store"), **self.variables, PYTHONPATH=path)
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=200, check=False, env=environment
        )
        assert command[0] == sys.executable or "Traceback" not in done.stderr, done.stderr
        return done

    def kreg(self, *arguments: str, code: int = 0) -> list[str]:
        """Run ``kreg``, which must end with ``code``, and return its lines."""
        done = self.run(str(KREG), *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return (done.stdout + done.stderr).splitlines()

    def resolve(self) -> str:
        """Resolve a fused variant as a program does; return the cubin's digest, or the last line of its traceback."""
        code = (
            f"import kreg; a = kreg.resolve({FUSED!r}, world_size=2, transport='push', target='sm_90a')\n"
            f"print(a.cubin_digest)"
        )
        done = self.run(sys.executable, "-c", code)
        return (done.stdout or done.stderr).splitlines()[-1]

    def pins(self) -> dict[str, list[Pin]]:
        found: dict[str, list[Pin]] = {}
        for pin in read_lockfile(str(self.folder / "kreg.lock")).pins:
            found.setdefault(pin.spec.partition("@")[0], []).append(pin)
        return found

    def lock(self) -> dict[str, list[Pin]]:
        self.kreg("lock", "--kernel", FUSED, "--kernel", GATHER, "--kernel", TOP)
        return self.pins()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"))


def test_fix_of_the_fused_kernel_from_version_1_to_2(story: Story):
    fused = f"{FUSED[3:]}/device.py"
    # Version 1, with its defect, is locked.
    story.edit(f"{FUSED[3:]}/__init__.py", ("version=2", "version=1"))
    story.edit(
        fused, ("def build(", f"{DEFECT.lstrip()}def build("), ("SELECTIONS[selection]()", "chosen(selection)()")
    )
    first = story.lock()
    assert {name: len(pins) for name, pins in first.items()} == {FUSED: 4, GATHER: 2, TOP: 2}
    assert story.resolve() in {pin.cubin for pin in first[FUSED]}

    # The fix, without a bump, is refused by a check, a lock, a warm and a resolve.
    story.edit(fused, ("TwoLevelVersion1 if", "SELECTIONS[name] if"))
    assert story.kreg("check", code=1) == [
        f"{GATHER}@1: unchanged, 2 variants",
        f"{FUSED}@1: machine code changed, version did not: bump it (2 of 4 variants)",
        f"{TOP}@1: unchanged, 2 variants",
        "2 pins of older sources with the same machine code",
    ]
    assert story.kreg("lock", code=1)[-1].startswith(
        f"error: the machine code of {FUSED}@1 changed and the version did"
    )
    story.kreg("warm", "--kernel", FUSED, code=1)
    assert story.resolve() == (
        f"kreg.errors.DriftError: the sources of {FUSED}@1 have changed (device.py) and give other machine code for "
        f"`{FUSED}@1[world_size=2,transport=push]:sm_90a` than the store holds under this version; bump `version`, or "
        f"for a kernel still in development run `kreg warm --rebuild --kernel {FUSED}`"
    )
    assert story.pins() == first

    # Bumped: the fused kernel is new, the others keep key and digest.
    story.edit(f"{FUSED[3:]}/__init__.py", ("version=1", "version=2"))
    assert story.kreg("check", code=1)[1] == f"{FUSED} 1 -> 2: 2 of 4 variants changed"
    second = story.lock()
    assert (second[GATHER], second[TOP]) == (first[GATHER], first[TOP])
    assert not {pin.key for pin in second[FUSED]} & {pin.key for pin in first[FUSED]}
    assert story.resolve() in {pin.cubin for pin in second[FUSED]} - {pin.cubin for pin in first[FUSED]}
    assert all(line.endswith("variants") for line in story.kreg("check"))

    # A comment, in a file that all three are made of: no key and no digest moves.
    story.edit("_device/layout.py", ("from __future__", "# A remark.\nfrom __future__"))
    before = story.resolve()
    assert before in {pin.cubin for pin in second[FUSED]}
    checked = story.kreg("check")
    assert checked[:3] == [
        f"{GATHER}@1: unchanged, 2 variants",
        f"{FUSED}@2: unchanged, 4 variants",
        f"{TOP}@1: unchanged, 2 variants",
    ]
    third = story.lock()
    assert story.resolve() == before
    for name, pins in third.items():
        assert [(p.key, p.cubin, p.program) for p in pins] == [(p.key, p.cubin, p.program) for p in second[name]]
        assert {p.source for p in pins}.isdisjoint(p.source for p in second[name])

    # Another toolchain that makes the same code: new entries, the same objects.
    objects = sorted(path.name for path in (story.folder / "store").glob("objects-v1/*/*"))
    entries = len(list((story.folder / "store").glob("entries-v1/*/*")))
    shutil.copy(story.folder / "kreg.lock", story.folder / "before.lock")
    pretend_toolchain(story, "4.9.9")
    checked = story.kreg("check", code=1)
    assert checked[0] == "toolchain nvidia-cutlass-dsl-libs-cu13 none -> 4.9.9: 0 of 8 changed"
    assert [line.endswith("variants") for line in checked[1:4]] == [True] * 3
    story.lock()
    assert sorted(path.name for path in (story.folder / "store").glob("objects-v1/*/*")) == objects
    assert len(list((story.folder / "store").glob("entries-v1/*/*"))) == entries + 8
    moved = compare(items_of(str(story.folder / "before.lock")), items_of(str(story.folder / "kreg.lock")))
    assert [set(change.moved) for change in moved.changed] == [{"toolchain"}] * 8
    assert (moved.added, moved.removed, moved.same) == ((), (), 0)


def pretend_toolchain(story: Story, version: str) -> None:
    """Install one more distribution of the compiler, which changes its fingerprint and nothing else."""
    info = Path(story.site) / f"nvidia_cutlass_dsl_libs_cu13-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: nvidia-cutlass-dsl-libs-cu13\nVersion: {version}\n", encoding="utf-8"
    )


SOURCES = [(name, source) for name in SHIPPED for source in REGISTRY.get(name).sources]


@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_change_of_any_declared_source_of_a_shipped_kernel_is_drift(
    shipped_store: str, tmp_path: Path, name: str, source: str
):
    shutil.copytree(KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    kernel = REGISTRY.get(name)
    fields = {field: getattr(kernel, field) for field in Kernel.__slots__}
    copied = Kernel(**{**fields, "options": {}, "file": str(tmp_path / "kernels" / name / "__init__.py")})
    spec = next(kernel.specs())
    asked = {"target": spec.target, "store": shipped_store, "policy": "frozen", **dict(spec.params)}
    assert kreg.resolve(copied, **asked).key == spec.key
    with open(tmp_path / "kernels" / name / source, "a", encoding="utf-8") as file:
        file.write("# A remark.\n")
    kreg.forget()
    with pytest.raises(DriftError, match=re.escape(f"was made of ({source}), and the policy is frozen")):
        kreg.resolve(copied, **asked)
