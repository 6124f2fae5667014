"""A backend that makes machine code of a kernel's source files: of every line but comments, which begin with ``#``.

The rest of the cubin, as line tables do, follows the comments too if the parameter ``lines`` is true. ``FAKE_COMPILER``
is the version; 2.0 makes other code of size 2 alone. ``FAKE_RUNS`` counts compiles, as in ``fake_backend``.
"""

from __future__ import annotations

import os
from pathlib import Path

from fake_backend import _count

from kreg.errors import CompileError
from kreg.kernel import Kernel, Param
from kreg.spec import CompileSpec
from kreg.toolchain import Toolchain


class SourceBackend:
    """See the module."""

    def toolchain(self) -> Toolchain | None:
        version = os.environ.get("FAKE_COMPILER", "1.0")
        return None if version == "none" else Toolchain(backend="source", distributions={"source-compiler": version})

    def missing(self) -> str:
        return "pip install source-compiler"

    def compile(self, kernel: Kernel, spec: CompileSpec) -> object:
        from tiny_elf import make_cubin

        from kreg.backends.protocol import Compiled
        from kreg.digest import sha256
        from kreg.manifest import Launch

        _count()
        values = kernel.arguments(spec)
        lines = [line for path in kernel.source_paths() for line in Path(path).read_text().splitlines()]
        code = [line for line in lines if not line.startswith("#")]
        if "error" in code:
            raise CompileError(f"cannot compile {spec}: error", "the log")
        grid = next((int(line.split()[1]) for line in code if line.startswith("grid ")), 1)
        version = os.environ["FAKE_COMPILER"] if values["size"] == 2 and "FAKE_COMPILER" in os.environ else "1.0"
        text = [line for line in code if not line.startswith("grid ")]
        digest = sha256(f"{values['size']} {version} {text}".encode())
        cubin = make_cubin(spec.target, "kernel", threads=(32, 1, 1), code=bytes.fromhex(digest) * 4)
        tail = "".join(lines).encode() if values["lines"] else b""
        launch = Launch(block=(32, 1, 1), grid=(grid, 1, 1), shared_bytes=0)
        return Compiled(cubin=cubin + tail, symbol="kernel", launch=launch, milliseconds=1)


BACKEND = SourceBackend()


def declare(folder: Path, **overrides: object) -> Kernel:
    """Declare a kernel of the sources ``code.txt`` and ``shared.txt`` in a folder, written if they are not there."""
    for name in ("code.txt", "shared.txt"):
        if not (folder / name).exists():
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(f"{name} 1\n")
    fields = {
        "name": "made",
        "version": 1,
        "backend": "source_backend:BACKEND",
        "build": "",
        "params": (
            Param("size", int, allowed=(1, 2, 3), warm=(1, 2)),
            Param("lines", bool, allowed=(False, True), warm=(False,), default=False),
        ),
        "targets": ("sm_90a", "sm_120a"),
        "file": str(folder / "declared.py"),
        "sources": ("code.txt", "shared.txt"),
    }
    return Kernel(**{**fields, **overrides})
