"""Selectors: which entries or variants are meant, and which entries are of what is still declared.

One selector means the same for every verb: kernels (with or without a version), targets and parameter values, each
repeatable. Values of one kind are alternatives, kinds narrow each other down.
"""

from __future__ import annotations

from itertools import product

from kreg.errors import KregError, SpecError, nearest
from kreg.kernel import REQUIRED, Kernel, Param
from kreg.manifest import Manifest
from kreg.record import Record
from kreg.registry import Registry
from kreg.spec import CompileSpec, format_value, parse_spec_text, parse_target, parse_value, parse_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kreg.spec import Value


class Selector(Record):
    """Which entries or variants are meant. An empty one means all."""

    __slots__ = ("kernels", "targets", "params")
    kernels: tuple[tuple[str, int | None], ...]
    targets: tuple[str, ...]
    params: tuple[tuple[str, str], ...]

    def __init__(
        self,
        *,
        kernels: Sequence[str] = (),
        targets: Sequence[str] = (),
        params: Sequence[str] = (),
    ) -> None:
        """Read ``NAME[@VERSION]``, targets and ``name=value`` as they are written. Raises ``SpecError``."""
        self._set(
            kernels=tuple(_parse_kernel(text) for text in kernels),
            targets=tuple(parse_target(target) for target in targets),
            params=tuple(_parse_param(text) for text in params),
        )

    def __bool__(self) -> bool:
        return bool(self.kernels or self.targets or self.params)

    def with_targets(self, targets: Sequence[str]) -> Selector:
        """Return the same selector for these targets."""
        kernels, _, params = self.texts()
        return Selector(kernels=kernels, targets=targets, params=params)

    def texts(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return kernels, targets and parameters as they are written."""
        kernels = (name if version is None else f"{name}@{version}" for name, version in self.kernels)
        return tuple(kernels), self.targets, tuple("=".join(param) for param in self.params)

    def values(self) -> dict[str, list[str]]:
        """Return the accepted values of each parameter that is named, as texts."""
        found: dict[str, list[str]] = {}
        for name, text in self.params:
            found.setdefault(name, []).append(text)
        return found

    def matches(self, manifest: Manifest, registry: Registry) -> bool:
        """Say whether an entry is meant. A parameter it does not mention has the declared default."""
        if self.kernels and not any(
            name == manifest.kernel and version in (None, manifest.version) for name, version in self.kernels
        ):
            return False
        if self.targets and manifest.target not in self.targets:
            return False
        params = {**_defaults(manifest, registry), **manifest.params} if self.params else {}
        return all(
            name in params and any(_is_value(params[name], text) for text in texts)
            for name, texts in self.values().items()
        )

    def means(self, spec: str, registry: Registry) -> bool:
        """Say whether a spec text is meant, declared or not; a parameter that it leaves out has its default."""
        parts = parse_spec_text(spec)
        params = {**_default_texts(parts.kernel, registry), **dict(parts.params)} if self.params else {}
        return (
            (not self.kernels or any(n == parts.kernel and v in (None, parts.version) for n, v in self.kernels))
            and (not self.targets or parts.target in self.targets)
            and all(name in params and _is_text_among(params[name], texts) for name, texts in self.values().items())
        )

    def specs(self, registry: Registry) -> list[tuple[Kernel, CompileSpec]]:
        """Enumerate the declared variants that are meant; a value named here need not be warmed by default.

        A kernel that was not named is passed over where it does not declare a parameter or value. Raises
        ``SpecError`` for a kernel, version, target, parameter or value that no selected kernel declares.
        """
        kernels = self._declared(registry)
        found: list[tuple[Kernel, CompileSpec]] = []
        refusal: SpecError | None = None
        for kernel in kernels:
            try:
                found += [(kernel, spec) for spec in self._variants(kernel)]
            except SpecError as error:
                if self.kernels:
                    raise
                refusal = refusal or error
        if not found:
            self._explain_nothing(kernels, refusal)
        return list({spec.key: (kernel, spec) for kernel, spec in found}.values())

    def _declared(self, registry: Registry) -> list[Kernel]:
        if not self.kernels:
            return registry.kernels()
        found = []
        for name, version in self.kernels:
            kernel = registry.get(name)
            if version not in (None, kernel.version):
                raise SpecError(f"{name}@{version} is not declared; the declared version is {kernel.version}")
            found.append(kernel)
        return found

    def _variants(self, kernel: Kernel) -> Iterator[CompileSpec]:
        named = self.values()
        known = {param.name: param for param in kernel.params}
        if named.keys() - known.keys():
            return
        choices: list[list[Value]] = []
        for name, param in known.items():
            texts = named.get(name)
            where = f"{kernel.label}: {name}"
            chosen = list(param.warm) if texts is None else [parse_value(text, param.kind, where) for text in texts]
            choices.append(chosen)
        for target in kernel.targets:
            if not self.targets or target in self.targets:
                for values in product(*choices):
                    yield kernel.spec(target, dict(zip(known, values, strict=True)))

    def _explain_nothing(self, kernels: Iterable[Kernel], refusal: SpecError | None) -> None:
        targets = sorted({target for kernel in kernels for target in kernel.targets})
        for target in self.targets:
            if target not in targets:
                raise SpecError(f"no selected kernel is declared for {target}{nearest(target, targets)}")
        names = sorted({param.name for kernel in kernels for param in kernel.params})
        for name, _ in self.params:
            if name not in names:
                raise SpecError(f"no selected kernel has a parameter {name!r}{nearest(name, names)}")
        raise refusal or SpecError("no declared variant matches all selectors")


def _parse_kernel(text: str) -> tuple[str, int | None]:
    name, at, version = text.partition("@")
    return name, parse_version(version, text) if at else None


def _parse_param(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise SpecError(f"{text!r} is not 'name=value'")
    return name, value


def _is_text_among(text: str, texts: Iterable[str]) -> bool:
    """Say whether a value's text is among others, each bare or a JSON string."""
    return parse_value(text, str, "") in [parse_value(other, str, "") for other in texts]


def _is_value(value: Value, text: str) -> bool:
    try:
        return parse_value(text, type(value), "") == value
    except SpecError:
        return False


def _defaults(manifest: Manifest, registry: Registry) -> dict[str, Value]:
    return {} if is_stale(manifest, registry) else registry.get(manifest.kernel).defaults()


def _default_texts(kernel: str, registry: Registry) -> dict[str, str]:
    defaults = registry.get(kernel).defaults() if kernel in registry.names() else {}
    return {name: format_value(value) for name, value in defaults.items()}


def is_stale(manifest: Manifest, registry: Registry) -> bool:
    """Say whether the registry no longer declares this entry: kernel, version, target, parameters or options."""
    try:
        kernel = registry.get(manifest.kernel)
    except KregError:
        return True
    known = {param.name: param for param in kernel.params}
    required = {param.name for param in kernel.params if param.default is REQUIRED}
    return (
        manifest.version != kernel.version
        or manifest.target not in kernel.targets
        or manifest.options != dict(kernel.options)
        or not required <= manifest.params.keys() <= known.keys()
        or not all(_is_current(known[name], value) for name, value in manifest.params.items())
    )


def _is_current(param: Param, value: Value) -> bool:
    """Say whether a spec can hold this value of a parameter: allowed, and not the default, which is left out."""
    return type(value) is param.kind and value in param.allowed and value != param.default
