"""Drift: declared sources that are no longer those an entry was made of.

The compiler is the judge. The same machine code, parameters, resources and launch: the entry is adopted, under the
same key and with the same cubin. Anything else under an unchanged version is refused, since the key would then mean
two things; the caller may say that it shall, for a kernel still in development.
"""

from __future__ import annotations

from kreg.artifact import Artifact
from kreg.errors import DriftError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.kernel import Kernel
    from kreg.manifest import Manifest
    from kreg.spec import CompileSpec


def is_settled(kernel: Kernel, held: Artifact, mode: str) -> bool:
    """Say whether an artifact may be used as it is: of today's sources, or drift is to be ignored.

    It costs a stat per source in a hot process. ``mode`` is one of ``config.DRIFT``.
    """
    return mode == "ignore" or kernel.source_digest() == held.source_digest


def settle(kernel: Kernel, spec: CompileSpec, held: Artifact, fresh: Artifact, mode: str) -> Artifact:
    """Return which artifact ``spec`` has from now on: ``held``, adopted, or ``fresh``, compiled from today's sources.

    Raises ``DriftError`` if they differ to the device, unless ``mode`` is ``rebuild``.
    """
    if held.manifest.program_digest == fresh.manifest.program_digest:
        return _adopt(held, fresh)
    if mode == "rebuild":
        return fresh
    raise DriftError(
        f"the sources of {kernel.label} have changed ({changed_files(kernel, held.manifest)}) and give other machine "
        f"code for `{spec}` than the store holds under this version; bump `version`, or for a kernel still in "
        f"development run `kreg warm --rebuild --kernel {kernel.name}`"
    )


def _adopt(held: Artifact, fresh: Artifact) -> Artifact:
    """Return ``held`` as known to be of the sources that ``fresh`` was compiled from; the cubin stays."""
    from msgspec.structs import replace

    from kreg.manifest import encode

    manifest = fresh.manifest
    changed = replace(held.manifest, source_digest=manifest.source_digest, sources=manifest.sources)
    if held.cubin_digest == fresh.cubin_digest:
        changed = replace(changed, built_from=manifest.built_from)
    return Artifact(encode(changed), held.cubin, held.origin)


def refusal(kernel: Kernel, spec: CompileSpec, held: Artifact, why: str) -> DriftError:
    """Return the error for a drift that cannot be judged: ``why`` says what is in the way."""
    return DriftError(
        f"the sources of {kernel.label} are not those that `{spec}` in {held.origin} was made of "
        f"({changed_files(kernel, held.manifest)}), and {why}; use the sources and the store of one build, or take "
        f"the entry as it is with KREG_DRIFT=ignore"
    )


def changed_files(kernel: Kernel, held: Manifest) -> str:
    """Name the declared files that are not as they were: changed, new to the declaration, or gone from it."""
    before, now = held.sources, kernel.read_sources().files
    changed = [name for name in now if name in before and before[name] != now[name]]
    others = [f"{name} added" for name in now if name not in before]
    return ", ".join([*changed, *others, *(f"{name} removed" for name in before if name not in now)])
