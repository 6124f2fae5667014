"""Resolving: from a kernel and its parameters to an artifact, by memory, store, or compiler, in that order.

Where locks work, one process compiles a key and the others wait for it. A store that cannot be read or written
costs a warning, never a result; under the policy ``frozen`` nothing is compiled, and what is wrong is an error.
"""

from __future__ import annotations

from kreg import config
from kreg.backends import load_backend
from kreg.errors import KregWarning, MissError, StoreError, ToolchainError
from kreg.kernel import Kernel
from kreg.registry import REGISTRY
from kreg.spec import format_value
from kreg.store import BadEntry, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from kreg.artifact import Artifact
    from kreg.spec import CompileSpec

_frozen = False
_resolvers: dict[str, Resolver] = {}
_calls: dict[tuple[object, ...], Artifact] = {}


def freeze() -> None:
    """Set the policy of this process to ``frozen``: from now on a miss is an error, whatever else is configured."""
    global _frozen
    _frozen = True


def thaw() -> None:
    """Undo ``freeze``."""
    global _frozen
    _frozen = False


def is_frozen() -> bool:
    """Say whether ``freeze`` is in force."""
    return _frozen


def resolve(
    kernel: str | Kernel,
    *,
    target: str | None = None,
    store: str | os.PathLike[str] | Store | None = None,
    policy: str | None = None,
    **params: object,
) -> Artifact:
    """Return the artifact of one variant, compiling it if it is nowhere and the policy allows.

    ``kernel`` is a name or a declaration, ``params`` its parameters. ``store`` is a directory or a ``Store``,
    ``policy`` ``compile`` or ``frozen``; both default to the configuration. Raises ``SpecError`` for a request
    that means nothing, ``MissError`` for what is not there under ``frozen``, ``CompileError`` with the
    compiler's log, and ``ToolchainError`` if the compiler is not installed.
    """
    if policy is not None:
        config.policy(policy)
    # 1, 1.0 and True are equal and hash alike, so the types are part of what is remembered.
    call: tuple[object, ...] = (kernel, target, store)
    if params:
        call = (*call, *params, *params.values(), *map(type, params.values()))
    try:
        return _calls[call]
    except KeyError:
        pass
    except TypeError:
        call = ()
    declared = kernel if isinstance(kernel, Kernel) else REGISTRY.get(kernel)
    artifact = _resolver(store).resolve(declared, declared.spec(target, params), policy)
    if call:
        _calls[call] = artifact
    return artifact


def forget() -> None:
    """Drop everything this process remembers, so that the next resolve reads the store again."""
    _resolvers.clear()
    _calls.clear()


def _resolver(store: str | os.PathLike[str] | Store | None) -> Resolver:
    opened = store if isinstance(store, Store) else Store(store)
    return _resolvers.setdefault(opened.root, Resolver(opened))


class Resolver:
    """Resolves specs against one store, and remembers what it resolved."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._memory: dict[str, Artifact] = {}
        self._is_warned = False
        self._bad: set[str] = set()

    def resolve(self, kernel: Kernel, spec: CompileSpec, policy: str | None = None) -> Artifact:
        """Return the artifact of ``spec``, a variant of ``kernel``. Raises as the function ``resolve`` does."""
        found = self._memory.get(spec.key)
        if found is None:
            frozen = config.policy(policy) == "frozen" or _frozen
            found = self._find_frozen(kernel, spec) if frozen else self._find_or_compile(kernel, spec)
            self._memory[spec.key] = found
        return found

    def _find_frozen(self, kernel: Kernel, spec: CompileSpec) -> Artifact:
        found = self.find(kernel, spec)
        if found is None:
            raise MissError(self._explain_miss(kernel, spec, "the policy is frozen"))
        return found

    def find(self, kernel: Kernel, spec: CompileSpec) -> Artifact | None:
        """Return what the store holds of ``spec`` for the installed compiler.

        Without one, return what the store holds under the only toolchain there is. Raises ``StoreError``, and
        ``ToolchainError`` if the store has several.
        """
        toolchain = load_backend(kernel.backend).toolchain()
        if toolchain is not None:
            return self.store.read(spec, toolchain.fingerprint)
        keys = self.store.toolchain_keys(spec)
        if len(keys) > 1:
            shown = ", ".join(key[:12] for key in keys)
            raise ToolchainError(
                f"{spec} is in {self.store.root} under {len(keys)} toolchains ({shown}) and no compiler is "
                f"installed to choose by; remove the others with `kreg clear`"
            )
        return self.store.read(spec, keys[0]) if keys else None

    def _find_or_compile(self, kernel: Kernel, spec: CompileSpec) -> Artifact:
        found = self._find_or_warn(kernel, spec)
        if found is not None:
            return found
        backend = load_backend(kernel.backend)
        if backend.toolchain() is None:
            why = f"its compiler is not installed here (`{backend.missing()}`)"
            raise ToolchainError(self._explain_miss(kernel, spec, why))
        try:
            self.store.prepare()
        except StoreError as error:
            self._warn_once(error)
            return _compile(kernel, spec)
        with self.store.key_lock(spec.key, config.wait_seconds(), _say):
            found = self._find_or_warn(kernel, spec)
            return found if found is not None else self._compile_and_publish(kernel, spec)

    def _find_or_warn(self, kernel: Kernel, spec: CompileSpec) -> Artifact | None:
        try:
            return self.find(kernel, spec)
        except BadEntry as error:
            if spec.key not in self._bad:  # One that cannot be set aside is met again under the key lock.
                self._bad.add(spec.key)
                _warn(f"{error}; compiling it again")
        except StoreError as error:
            self._warn_once(error)
        return None

    def _compile_and_publish(self, kernel: Kernel, spec: CompileSpec) -> Artifact:
        artifact = _compile(kernel, spec)
        try:
            self.store.publish(artifact)
        except StoreError as error:
            self._warn_once(error)
        return artifact

    def _warn_once(self, error: StoreError) -> None:
        if not self._is_warned:
            self._is_warned = True
            _warn(f"{error}; going on without the store")

    def _explain_miss(self, kernel: Kernel, spec: CompileSpec, why: str) -> str:
        return (
            f"no artifact for `{spec}` ({spec.key[:12]}) in `{self.store.root}`, and {why}; "
            f"run `{_warm_command(kernel, spec, self.store)}`"
        )


def _warm_command(kernel: Kernel, spec: CompileSpec, store: Store) -> str:
    """Return the exact command that puts ``spec`` into ``store``, and nothing else."""
    from shlex import join

    words = ["kreg", "warm", "--kernel", spec.kernel, "--target", spec.target]
    values = kernel.arguments(spec)
    for param in kernel.params:
        if param.warm != (values[param.name],):
            words += ["--param", f"{param.name}={format_value(values[param.name])}"]
    return join(words if store.is_configured else [*words, "--store", store.root])


def _compile(kernel: Kernel, spec: CompileSpec) -> Artifact:
    from kreg.build import compile_artifact

    return compile_artifact(kernel, spec)


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, KregWarning, stacklevel=2)


def _say(message: str) -> None:
    import logging

    logging.getLogger("kreg").warning(message)
