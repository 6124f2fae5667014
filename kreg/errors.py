"""Every exception and warning kreg raises, in one tree.

KregError
├── DeclarationError   a kernel was declared wrongly, twice, or not at all where it should be
├── SpecError          a name, version, parameter, value, target or spec text that means nothing
├── MissError          no artifact, and the policy or the machine does not allow making one
├── ToolchainError     the compiler is absent, or several toolchains built what was asked for
├── CompileError       the compiler failed; ``log`` holds what it said
├── CubinError         bytes that are not the cubin they should be
├── DriftError         sources that give other machine code than an entry of the same version, or may
├── LockfileError      a lockfile that cannot be read, or says what cannot be
├── BundleError        a bundle that is not one, or not whole
├── PinError           an artifact that is not the one its lockfile pins
├── StoreError         a store that cannot be used, or an entry in it that is bad
├── LoadError          the driver or the device does not take an artifact
└── LaunchError        arguments a kernel cannot take, or a launch that failed

A foreign exception (compiler, file system) is mapped to one of these once, where it enters kreg, and stays
reachable as ``__cause__``. ``KregWarning`` is what is said when kreg carries on without something it wanted.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class KregError(Exception):
    """Base of every error kreg raises on purpose."""


class DeclarationError(KregError):
    """A kernel declaration that contradicts itself, its files, or another declaration."""


class SpecError(KregError, ValueError):
    """A request that names no declared kernel, version, parameter, value or target."""


class MissError(KregError, LookupError):
    """Nothing in the store for a spec, and it may not or cannot be compiled here."""


class ToolchainError(KregError):
    """The compiler for a backend is not installed, or an artifact cannot be told by toolchain."""


class CompileError(KregError):
    """The compiler refused or failed. ``log`` is its complete output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        return type(self), (str(self), self.log)


class CubinError(KregError, ValueError):
    """Bytes that are not an ELF image for CUDA, or not the one that was asked for."""


class DriftError(KregError):
    """The declared sources are no longer those of an entry, and nobody has said that its machine code may change."""


class LockfileError(KregError):
    """A lockfile that is missing, damaged, from a newer kreg, or that contradicts itself or the registry."""


class BundleError(KregError):
    """A file that is not a bundle, a damaged one, or one that holds other than what it was asked for."""


class PinError(KregError):
    """An artifact whose cubin is not the one that the lockfile pins for its spec."""


class StoreError(KregError):
    """A store directory or one of its entries cannot be read, written or trusted."""


class LoadError(KregError):
    """The driver, or the device it was meant for, does not take an artifact."""


class LaunchError(KregError):
    """An argument that does not fit, a kernel that is not ready where it must be, or a launch that failed."""


class KregWarning(UserWarning):
    """kreg goes on, without something: a store it cannot write, an entry it set aside."""


def nearest(name: str, known: Iterable[object]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the known name closest to ``name``, or ``""``."""
    from difflib import get_close_matches

    found = get_close_matches(name, list(map(str, known)), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""
