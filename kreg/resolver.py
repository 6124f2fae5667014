"""Resolving: from a kernel and its parameters to an artifact, by memory, store, or compiler, in that order.

Where locks work, one process compiles a key and the others wait for it. A store that cannot be read or written
costs a warning, never a result. An entry of other sources than today's is taken only after the compiler has given the
same machine code (``kreg.drift``). Under the policy ``locked`` nothing is taken that is not what the lockfile pins,
wherever it comes from; under ``frozen`` nothing is compiled, and what is wrong is an error.
"""

from __future__ import annotations

from kreg import config
from kreg.backends import load_backend
from kreg.drift import is_settled, refusal, settle
from kreg.errors import KregWarning, MissError, PinError, StoreError, ToolchainError
from kreg.kernel import Kernel
from kreg.registry import REGISTRY
from kreg.store import BadEntry, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from kreg.artifact import Artifact
    from kreg.lockfile import Lockfile, Pin
    from kreg.spec import CompileSpec

_frozen = False
_resolvers: dict[tuple[str, str | None], Resolver] = {}
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
    lockfile: str | os.PathLike[str] | None = None,
    **params: object,
) -> Artifact:
    """Return the artifact of one variant, compiling it if it is nowhere and the policy allows.

    ``kernel`` is a name or a declaration, ``params`` its parameters. ``store`` is a directory or a ``Store``,
    ``policy`` ``compile``, ``locked`` or ``frozen``, ``lockfile`` a path; all default to the configuration. A lockfile
    is in force under ``locked``, and under ``frozen`` where one is named. What has been resolved stays in memory, and
    its sources are not looked at again. Raises ``SpecError`` for a request that means nothing, ``MissError`` for what
    is not there under ``frozen`` or not pinned, ``PinError`` for what is not what the lockfile says, ``DriftError``
    for sources that changed without a new version, ``CompileError`` with the compiler's log, and ``ToolchainError`` if
    the compiler is not installed.
    """
    # 1, 1.0 and True are equal and hash alike, so the types are part of what is remembered.
    call: tuple[object, ...] = (kernel, target, store, policy, lockfile)
    if params:
        call = (*call, *params, *params.values(), *map(type, params.values()))
    try:
        return _calls[call]
    except KeyError:
        pass
    except TypeError:
        call = ()
    declared = kernel if isinstance(kernel, Kernel) else REGISTRY.get(kernel)
    chosen = config.policy(policy)
    resolver = _resolver(store, config.lockfile_in_force(chosen, lockfile))
    artifact = resolver.resolve(declared, declared.spec(target, params), frozen=chosen == "frozen")
    if call:
        _calls[call] = artifact
    return artifact


def forget() -> None:
    """Drop everything this process remembers, so that the next resolve reads the store again."""
    _resolvers.clear()
    _calls.clear()


def _resolver(store: str | os.PathLike[str] | Store | None, lockfile: str | None) -> Resolver:
    opened = store if isinstance(store, Store) else Store(store)
    return _resolvers.setdefault((opened.root, lockfile), Resolver(opened, lockfile=lockfile))


class Resolver:
    """Resolves specs against one store, and remembers what it resolved.

    ``lockfile`` is the path of the lockfile in force, whose pins every artifact must equal, or None.
    """

    def __init__(self, store: Store, *, lockfile: str | None = None) -> None:
        self.store = store
        self.lockfile = lockfile
        self._pins: tuple[Lockfile, dict[str, Pin]] | None = None
        self._memory: dict[str, Artifact] = {}
        self._is_warned = False
        self._bad: set[str] = set()

    def resolve(self, kernel: Kernel, spec: CompileSpec, *, frozen: bool = False) -> Artifact:
        """Return the artifact of ``spec``, a variant of ``kernel``; compile nothing if ``frozen`` or after ``freeze``.

        Raises as the function ``resolve`` does.
        """
        found = self._memory.get(spec.key)
        if found is None:
            is_frozen_now = frozen or _frozen
            found = self._find_frozen(kernel, spec) if is_frozen_now else self._find_or_compile(kernel, spec)
            self._memory[spec.key] = found
        return found

    def find(self, kernel: Kernel, spec: CompileSpec) -> Artifact | None:
        """Return what the store holds of ``spec`` for its pin's toolchain, if a lockfile is in force, or the installed.

        Without either, return what the store holds under the only toolchain there is. Drift is not looked at. Raises
        ``StoreError``, ``MissError`` for a spec without a pin, and ``ToolchainError`` if the store has several.
        """
        toolchain = load_backend(kernel.backend).toolchain()
        if self.lockfile is not None:
            lockfile, pin = self._pin(spec)
            pinned = lockfile.toolchain(pin).fingerprint
            found = self.store.read(spec, pinned)
            if found is not None and found.cubin_digest == pin.cubin:
                return found
            if toolchain is None or toolchain.fingerprint == pinned:
                return found
        if toolchain is not None:
            return self.store.read(spec, toolchain.fingerprint)
        keys = self.store.toolchain_keys(spec)
        if len(keys) > 1:
            shown = ", ".join(key[:12] for key in keys)
            raise ToolchainError(
                f"{spec} is in {self.store.root} under {len(keys)} toolchains ({shown}) and no compiler is "
                f"installed to choose by; name a lockfile, or remove the others with `kreg clear`"
            )
        return self.store.read(spec, keys[0]) if keys else None

    def _pin(self, spec: CompileSpec) -> tuple[Lockfile, Pin]:
        if self._pins is None:
            from kreg.lockfile import read_lockfile

            assert self.lockfile is not None
            lockfile = read_lockfile(self.lockfile)
            self._pins = lockfile, {pin.key: pin for pin in lockfile.pins}
        lockfile, pins = self._pins
        if spec.key not in pins:
            raise MissError(
                f"`{spec}` ({spec.key[:12]}) has no pin in {self.lockfile}, which is in force; pin it with `kreg lock`"
            )
        return lockfile, pins[spec.key]

    def _find_frozen(self, kernel: Kernel, spec: CompileSpec) -> Artifact:
        found = self.find(kernel, spec)
        if found is None:
            raise MissError(self._explain_miss(kernel, spec, "the policy is frozen"))
        self._require_pin(spec, found)
        if not self._is_current(kernel, spec, found):
            raise refusal(kernel, spec, found, "the policy is frozen")
        return found

    def _find_or_compile(self, kernel: Kernel, spec: CompileSpec) -> Artifact:
        found = self._find_or_warn(kernel, spec)
        if found is not None and self._is_wanted(kernel, spec, found):
            return found
        self._require_compiler(kernel, spec, found)
        try:
            self.store.prepare()
        except StoreError as error:
            self._warn_once(error)
            return self._compile(kernel, spec, found)
        with self.store.key_lock(spec.key, config.wait_seconds(), say):
            found = self._find_or_warn(kernel, spec)
            if found is not None and self._is_wanted(kernel, spec, found):
                return found
            return self._compile_and_publish(kernel, spec, found)

    def _is_wanted(self, kernel: Kernel, spec: CompileSpec, found: Artifact) -> bool:
        """Say whether a stored artifact is what its pin says, if it has one, and of today's sources."""
        if self.lockfile is not None and found.cubin_digest != self._pin(spec)[1].cubin:
            return False
        return self._is_current(kernel, spec, found)

    def _is_current(self, kernel: Kernel, spec: CompileSpec, found: Artifact) -> bool:
        if is_settled(kernel, found, config.drift()):
            return True
        # A pin vouches for its cubin and the sources beside it, whichever sources the entry knows of.
        return self.lockfile is not None and self._pin(spec)[1].source == kernel.source_digest()

    def _require_pin(self, spec: CompileSpec, artifact: Artifact) -> None:
        if self.lockfile is None:
            return
        _, pin = self._pin(spec)
        if artifact.cubin_digest != pin.cubin:
            raise PinError(
                f"`{spec}` from {artifact.origin} has the cubin {artifact.cubin_digest}, and {self.lockfile} pins "
                f"{pin.cubin}; see what changed with `kreg check`, and pin it with `kreg lock` if it shall be so"
            )

    def _require_compiler(self, kernel: Kernel, spec: CompileSpec, found: Artifact | None) -> None:
        backend = load_backend(kernel.backend)
        if backend.toolchain() is not None:
            return
        why = f"its compiler is not installed here (`{backend.missing()}`)"
        if found is None:
            raise ToolchainError(self._explain_miss(kernel, spec, why))
        self._require_pin(spec, found)
        raise refusal(kernel, spec, found, why)

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

    def _compile_and_publish(self, kernel: Kernel, spec: CompileSpec, held: Artifact | None) -> Artifact:
        artifact = self._compile(kernel, spec, held)
        try:
            self.store.publish(artifact)
        except StoreError as error:
            self._warn_once(error)
        return artifact

    def _compile(self, kernel: Kernel, spec: CompileSpec, held: Artifact | None) -> Artifact:
        """Compile ``spec``, and hold the result to what the store has of the same toolchain, and to its pin."""
        from kreg.apart import compile_current

        fresh = compile_current(kernel, spec)
        if self.lockfile is not None:
            self._require_pin(spec, fresh)
        elif held is not None:
            return settle(kernel, spec, held, fresh, config.drift())
        return fresh

    def _warn_once(self, error: StoreError) -> None:
        if not self._is_warned:
            self._is_warned = True
            _warn(f"{error}; going on without the store")

    def _explain_miss(self, kernel: Kernel, spec: CompileSpec, why: str) -> str:
        from kreg.explain import explain

        return explain(kernel, spec, self.store).miss(why)


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, KregWarning, stacklevel=2)


def say(message: str) -> None:
    """Log a line that whoever waits for kreg should see: without any set-up it goes to standard error."""
    import logging

    logging.getLogger("kreg").warning(message)
