"""A backend that makes tiny but valid cubins, counts its runs across processes, and misbehaves when told to.

What it does is told by the kernel's parameter ``mode``. ``FAKE_RUNS`` names a file that gets a byte for every compile,
whichever process it runs in; ``FAKE_COMPILER`` is the installed version, ``none`` for no compiler at all.

Nothing heavy is imported before a compile, as a backend's module is part of a hit.
"""

from __future__ import annotations

import os
import time

from kreg.errors import CompileError
from kreg.kernel import Kernel, Param
from kreg.toolchain import Toolchain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.backends.protocol import Compiled
    from kreg.spec import CompileSpec

LOG = "fake compiler 1.0\nline 7: error: expected ';'\nnote: because it was told to\n"
SAID = "the fake compiler speaks on standard output"

MODES = (
    "good", "refuse", "raise", "exit", "segfault", "print", "slow", "garbage", "other_target", "other_symbol",
    "other_block", "no_block", "touch_source", "hang",
)  # fmt: skip


class FakeBackend:
    """See the module."""

    def toolchain(self) -> Toolchain | None:
        version = os.environ.get("FAKE_COMPILER", "1.0")
        return None if version == "none" else Toolchain(backend="fake", distributions={"fake-compiler": version})

    def missing(self) -> str:
        return "pip install fake-compiler"

    def compile(self, kernel: Kernel, spec: CompileSpec) -> Compiled:
        from tiny_elf import make_cubin

        from kreg.backends.protocol import Compiled
        from kreg.manifest import Launch

        _count()
        arguments = kernel.arguments(spec)
        mode, size = str(arguments["mode"]), int(arguments["size"])
        _misbehave(mode, kernel, spec)
        cubin = make_cubin(
            "sm_80" if mode == "other_target" else spec.target,
            f"fake_{size}",
            threads={"other_block": (64, 1, 1), "no_block": None}.get(mode, (128, 1, 1)),
            code=size.to_bytes(4, "little") * 64,
        )
        launch = Launch(block=(128, 1, 1), grid=("rows", 1, 1), shared_bytes=1024 * size)
        return Compiled(
            cubin=b"\x7fELF, almost" if mode == "garbage" else cubin,
            symbol="elsewhere" if mode == "other_symbol" else f"fake_{size}",
            launch=launch,
            milliseconds=7,
        )


def _count() -> None:
    path = os.environ.get("FAKE_RUNS")
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(descriptor, b".")
        os.close(descriptor)


def _misbehave(mode: str, kernel: Kernel, spec: CompileSpec) -> None:
    if mode == "refuse":
        raise CompileError(f"cannot compile {spec}: expected ';'", LOG)
    if mode == "raise":
        raise RuntimeError("the fake compiler has a bug")
    if mode == "exit":
        os._exit(3)
    if mode == "segfault":
        os.abort()
    if mode == "print":
        print(SAID, flush=True)
        os.write(1, f"{SAID}\n".encode())
    if mode == "hang":
        time.sleep(600)
    if mode == "slow":
        time.sleep(0.4)
    if mode == "touch_source":
        with open(kernel.source_paths()[0], "a", encoding="utf-8") as file:
            file.write("# changed\n")


BACKEND = FakeBackend()

# The cubin depends on target and size alone: two notes of one size share an object.
PARAMS = (
    Param("size", int, allowed=range(1, 65), warm=(1, 2)),
    Param("note", str, allowed=("plain", "bright", "two words"), warm=("plain",), default="plain"),
    Param("mode", str, allowed=MODES, warm=("good",), default="good"),
)

KERNEL = Kernel(
    name="fake",
    version=1,
    backend="fake_backend:BACKEND",
    build="",
    params=PARAMS,
    targets=("sm_90a", "sm_100a", "sm_120a"),
    file=__file__,
    sources=("fake_backend.py", "tiny_elf.py"),
    summary="a kernel for tests",
)
