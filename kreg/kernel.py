"""Kernel declarations as plain data.

A declaration is enough to name every variant and compute every key: neither needs a compiler, torch or a driver.
What builds the code is named by a string and imported only when something is compiled.
"""

from __future__ import annotations

import os
from itertools import product

from kreg.digest import canonical, describe
from kreg.errors import DeclarationError, SpecError, nearest
from kreg.record import Record
from kreg.sources import Sources, note, read_sources
from kreg.spec import CompileSpec, is_name, parse_target, parse_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kreg.spec import SpecText, Value

_RESERVED = frozenset({"kernel", "target", "store", "policy", "lockfile"})


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
"""Default of a parameter that must always be given."""


class Param(Record):
    """One named plain value that selects code at compile time.

    ``kind`` is int, bool or str, taken literally: True is no int and numpy scalars are nothing.
    ``allowed`` lists every accepted value; ``warm`` the values that are compiled ahead by default (all that are
    allowed, if not given). A parameter at its ``default`` is not part of the key.
    """

    __slots__ = ("name", "kind", "allowed", "warm", "default")
    name: str
    kind: type
    allowed: tuple[Value, ...]
    warm: tuple[Value, ...]
    default: Value | _Required

    def __init__(
        self,
        name: str,
        kind: type,
        *,
        allowed: Iterable[Value],
        warm: Iterable[Value] | None = None,
        default: Value | _Required = REQUIRED,
    ) -> None:
        values = tuple(allowed)
        self._set(
            name=name,
            kind=kind,
            allowed=values,
            warm=values if warm is None else tuple(warm),
            default=default,
        )
        if not is_name(name) or name in _RESERVED:
            raise DeclarationError(f"parameter name {name!r} is reserved or not a lower-case identifier")
        if kind not in (int, bool, str):
            raise DeclarationError(f"parameter {name!r} has kind {describe(kind)}; it is int, bool or str")
        given = () if isinstance(default, _Required) else (default,)
        for value in (*values, *self.warm, *given):
            if type(value) is not kind or value not in values:
                raise DeclarationError(f"parameter {name!r}: {describe(value)} is not among its allowed values")

    def check(self, value: object, where: str) -> Value:
        """Return ``value`` if it is allowed; raise ``SpecError`` that says what is."""
        if type(value) is not self.kind:
            raise SpecError(f"{where}: {self.name} is {describe(value)}; it takes {self.kind.__name__}")
        for allowed in self.allowed:
            if value == allowed:
                return allowed
        shown = ", ".join(map(str, self.allowed))
        hint = nearest(value, self.allowed) if isinstance(value, str) else ""
        raise SpecError(f"{where}: {self.name}={value} is not one of {shown}{hint}")


class Kernel(Record):
    """A kernel's declaration: name, version, parameters, targets, and the files it is built from.

    ``version`` is bumped by hand when the kernel's meaning or machine code changes. ``build`` names the function
    that the ``backend`` calls with the variant, as ``module:function``. ``sources`` are the files whose change is
    drift, relative to the folder of ``file`` (the declaring module's ``__file__``). ``options`` are compile
    options, part of the key.
    """

    __slots__ = (
        "name", "version", "backend", "build", "params", "targets", "file", "sources", "options", "summary",
    )  # fmt: skip
    name: str
    version: int
    backend: str
    build: str
    params: tuple[Param, ...]
    targets: tuple[str, ...]
    file: str
    sources: tuple[str, ...]
    options: tuple[tuple[str, Value], ...]
    summary: str

    def __init__(
        self,
        *,
        name: str,
        version: int,
        backend: str,
        build: str,
        targets: Sequence[str],
        file: str,
        sources: Sequence[str],
        params: Sequence[Param] = (),
        options: Mapping[str, Value] | None = None,
        summary: str = "",
    ) -> None:
        self._set(
            name=name,
            version=version,
            backend=backend,
            build=build,
            params=tuple(params),
            targets=tuple(parse_target(target) for target in targets),
            file=os.path.abspath(file),
            sources=tuple(sources),
            options=tuple(sorted((options or {}).items())),
            summary=summary,
        )
        self._check()
        note(self._paths())

    def _check(self) -> None:
        if type(self.name) is not str or not is_name(self.name):
            raise DeclarationError(f"kernel name {self.name!r} is not a lower-case ASCII identifier of 64 at most")
        if type(self.version) is not int or not 1 <= self.version < 10**9:
            raise DeclarationError(f"{self.name}: version is {describe(self.version)}; it is a whole number from 1")
        for what, names in (("parameter", [p.name for p in self.params]), ("target", self.targets)):
            if len(set(names)) != len(names):
                raise DeclarationError(f"{self.name}@{self.version}: the same {what} is declared twice")
        if not self.targets or not self.sources:
            raise DeclarationError(f"{self.name}@{self.version} declares no target or no source file")
        for name, value in self.options:
            if type(value) not in {str, int, bool}:
                raise DeclarationError(f"{self.name}: option {name!r} is {describe(value)}; it is an int, bool or str")
        canonical(dict(self.options), f"{self.name}.options")

    @property
    def label(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    def spec(self, target: object, params: Mapping[str, object]) -> CompileSpec:
        """Make the compile spec of one variant. Raises ``SpecError`` for anything that is not declared."""
        if parse_target(target) not in self.targets:
            shown = ", ".join(self.targets)
            raise SpecError(
                f"{self.label} is declared for {shown}, not for {target}{nearest(str(target), self.targets)}"
            )
        unknown = params.keys() - {param.name for param in self.params}
        if unknown:
            name = min(unknown)
            known = [param.name for param in self.params]
            takes = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise SpecError(f"{self.label} has no parameter {name!r}{nearest(name, known)}; {takes}")
        return CompileSpec(
            kernel=self.name,
            version=self.version,
            params=self._chosen(params),
            target=str(target),
            options=dict(self.options),
        )

    def _chosen(self, params: Mapping[str, object]) -> dict[str, Value]:
        chosen = {}
        for param in self.params:
            if param.name in params:
                value = param.check(params[param.name], self.label)
                if isinstance(param.default, _Required) or value != param.default:
                    chosen[param.name] = value
            elif isinstance(param.default, _Required):
                shown = ", ".join(str(value) for value in param.allowed)
                raise SpecError(f"{self.label} needs the parameter {param.name} (one of {shown})")
        return chosen

    def arguments(self, spec: CompileSpec) -> dict[str, Value]:
        """Return the value of every parameter for ``spec``, defaults filled in: what ``build`` is called with."""
        given = dict(spec.params)
        values: dict[str, Value] = {}
        for param in self.params:
            value = given.get(param.name, param.default)
            assert not isinstance(value, _Required)
            values[param.name] = value
        return values

    def defaults(self) -> dict[str, Value]:
        """Return the declared default of each parameter that has one."""
        return {param.name: param.default for param in self.params if not isinstance(param.default, _Required)}

    def specs(self, targets: Iterable[str] | None = None) -> Iterator[CompileSpec]:
        """Enumerate the variants that are warmed by default, for ``targets`` or every declared one."""
        names = [param.name for param in self.params]
        for target in self.targets if targets is None else targets:
            for values in product(*(param.warm for param in self.params)):
                yield self.spec(target, dict(zip(names, values, strict=True)))

    def parse(self, parts: SpecText, target: str | None = None) -> CompileSpec:
        """Give a spec text its meaning under this declaration. Raises ``SpecError``."""
        if parts.version not in (None, self.version):
            raise SpecError(f"{self.name}@{parts.version} is not declared; the declared version is {self.version}")
        known = {param.name: param for param in self.params}
        values: dict[str, object] = {}
        for name, text in parts.params:
            if name in values:
                raise SpecError(f"{self.label}: {name} is given twice")
            values[name] = parse_value(text, known[name].kind, f"{self.label}: {name}") if name in known else text
        chosen = parts.target or target
        if chosen is None:
            raise SpecError(f"{self.label} needs a target, one of {', '.join(self.targets)}")
        return self.spec(chosen, values)

    def _paths(self) -> list[str]:
        folder = os.path.dirname(self.file)
        return [os.path.normpath(os.path.join(folder, source)) for source in self.sources]

    def source_paths(self) -> list[str]:
        """Return the absolute paths of the declared sources. Raises ``DeclarationError`` for one that is missing."""
        paths = self._paths()
        for source, path in zip(self.sources, paths, strict=True):
            if not os.path.isfile(path):
                raise DeclarationError(f"{self.label} declares the source {source!r}, but {path} is not a file")
        return paths

    def source_digest(self) -> str:
        """Return the SHA-256 over the names and contents of the declared sources. Never part of a key."""
        return self.read_sources().digest

    def read_sources(self) -> Sources:
        """Return the digests of the declared sources as they are now, for a stat each in a hot process.

        Raises ``DeclarationError`` for one that cannot be read.
        """
        try:
            return read_sources(self.file, self.sources)
        except OSError as error:
            self.source_paths()
            raise DeclarationError(f"{self.label}: cannot read {error.filename}: {error.strerror}") from error
