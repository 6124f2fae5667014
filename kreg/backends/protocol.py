"""The protocol between kreg and a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kreg.kernel import Kernel
from kreg.manifest import Launch
from kreg.spec import CompileSpec
from kreg.toolchain import Toolchain


class Compiled:
    """What a backend returns: the cubin, its entry symbol, how to launch it, and what the compile took.

    ``files`` are the absolute paths of the files of the kernel's own package that the compile imported or included; the
    declaration must list them all.
    """

    __slots__ = ("cubin", "files", "launch", "milliseconds", "symbol")

    def __init__(
        self, *, cubin: bytes, symbol: str, launch: Launch, milliseconds: int, files: Sequence[str] = ()
    ) -> None:
        self.cubin = cubin
        self.symbol = symbol
        self.launch = launch
        self.milliseconds = milliseconds
        self.files = tuple(files)


class Backend(Protocol):
    """A compiler, seen from kreg."""

    def toolchain(self) -> Toolchain | None:
        """Return what is installed, without importing it, or None if the compiler is not there."""

    def missing(self) -> str:
        """Return what to install where ``toolchain`` is None, as a command."""

    def compile(self, kernel: Kernel, spec: CompileSpec) -> Compiled:
        """Compile one variant for its target. Raises ``CompileError`` with the compiler's log."""
