"""The registry: which kernels a process knows, by name, without importing more than it is asked for.

Asking for a shipped kernel imports its declaration and nothing else. Entry points are read only for other names
and for enumeration. No declaration imports a compiler, torch or a driver, so neither does this.
"""

from __future__ import annotations

from importlib import import_module

from kreg.errors import DeclarationError, SpecError, nearest
from kreg.imports import load_object
from kreg.kernel import Kernel
from kreg.spec import CompileSpec, is_name, parse_spec_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "kreg.kernels"
"""Entry-point group of third-party kernels: entry name = kernel name, value = ``module:declaration``."""

SHIPPED = "kreg.kernels"
"""Package whose ``NAMES`` lists the kernels that come with kreg; each subpackage of that name holds ``KERNEL``."""


class Registry:
    """The kernels a process knows: those that ship with kreg, those of plug-ins, and those added by hand."""

    def __init__(self, kernels: Iterable[Kernel] = (), *, discover: bool = True) -> None:
        self._kernels: dict[str, Kernel] = {}
        self._discover = discover
        for kernel in kernels:
            self.add(kernel)

    def add(self, kernel: Kernel) -> Kernel:
        """Register a declaration. Raises ``DeclarationError`` for a second one of a name or a missing source."""
        known = self._kernels.get(kernel.name) or self._shipped(kernel.name)
        if known is not None and known != kernel:
            raise _declared_twice(known, kernel)
        kernel.source_paths()
        self._kernels[kernel.name] = kernel
        return kernel

    def get(self, name: str) -> Kernel:
        """Return the kernel called ``name``. Raises ``SpecError`` with the nearest known name."""
        kernel = self._kernels.get(name)
        if kernel is None and self._discover and is_name(name):
            kernel = self._shipped(name) or self._plugin(name)
            kernel = kernel and self.add(kernel)
        if kernel is None:
            known = self.names()
            raise SpecError(f"no kernel is called {name!r}{nearest(name, known)}; known: {', '.join(known) or 'none'}")
        return kernel

    def names(self) -> list[str]:
        """Return the names of all known kernels, sorted, without importing plug-ins."""
        found = set(self._kernels)
        if self._discover:
            found.update(import_module(SHIPPED).NAMES)
            found.update(entry.name for entry in _entry_points())
        return sorted(found)

    def kernels(self) -> list[Kernel]:
        """Return all known kernels, sorted by name."""
        return [self.get(name) for name in self.names()]

    def parse(self, text: str, target: str | None = None) -> CompileSpec:
        """Read a spec text such as ``all_gather_pair@1[world_size=2,transport=pull]:sm_90a``."""
        parts = parse_spec_text(text)
        return self.get(parts.kernel).parse(parts, target)

    def _shipped(self, name: str) -> Kernel | None:
        if not self._discover or name not in import_module(SHIPPED).NAMES:
            return None
        kernel: Kernel = import_module(f"{SHIPPED}.{name}").KERNEL
        return kernel

    def _plugin(self, name: str) -> Kernel | None:
        found: Kernel | None = None
        for value in sorted({entry.value for entry in _entry_points() if entry.name == name}):
            kernel = load_object(value, f"entry point {name!r} = {value!r} cannot be loaded")
            if not isinstance(kernel, Kernel) or kernel.name != name:
                raise DeclarationError(f"entry point {name!r} = {value!r} does not hold the declaration of {name!r}")
            if found is not None and kernel != found:
                raise _declared_twice(found, kernel)
            found = kernel
        return found


def _declared_twice(first: Kernel, second: Kernel) -> DeclarationError:
    return DeclarationError(f"{first.name} is declared twice: in {first.file} and in {second.file}")


def _entry_points() -> Sequence[EntryPoint]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=ENTRY_POINTS))


REGISTRY = Registry()
"""The registry of this process."""
