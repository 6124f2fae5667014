"""Manifests: typed JSON about a cubin, as it lies in the store.

``kreg.header`` reads the first two lines, which is all a hit needs; this module reads and writes the whole, and is
imported when a field is asked for.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from kreg.digest import INT64_MAX, INT64_MIN, sha256
from kreg.errors import KregError, StoreError
from kreg.header import NAMES, has_keys, write_header
from kreg.spec import SCHEMA, TEXT_LIMIT, CompileSpec, is_name, parse_target

Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
"""A number of bytes, registers or milliseconds, as a stored manifest may hold it."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to launch a kernel. A ``grid`` entry that is a string names a run-time extent, such as ``rows``."""

    block: tuple[int, int, int]
    grid: tuple[int | str, int | str, int | str]
    shared_bytes: Count
    cluster: tuple[int, int, int] = (1, 1, 1)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about an artifact besides its bytes.

    ``parameters`` is (offset, size) in bytes of each kernel parameter; ``registers`` and ``local_bytes`` are per
    thread (``local_bytes`` are spilled registers and local arrays), ``static_shared_bytes`` per block, ``code_bytes``
    of machine code. ``code_digest`` covers the machine code alone. ``source_digest`` is that of the newest declared
    sources known to give this machine code, with the SHA-256 of each in ``sources``; ``built_from`` is that of those
    the cubin was compiled from. ``compile_ms`` is
    what the compile took.
    """

    spec_key: str
    toolchain_key: str
    cubin_digest: str
    source_digest: str
    cubin_bytes: Count
    kernel: str
    version: int
    params: dict[str, bool | int | str]
    target: str
    options: dict[str, bool | int | str]
    backend: str
    toolchain: dict[str, str]
    symbol: str
    launch: Launch
    parameters: list[tuple[int, int]]
    parameter_bytes: Count
    registers: Count
    local_bytes: Count
    static_shared_bytes: Count
    code_bytes: Count
    code_digest: str
    built_from: str
    sources: dict[str, str]
    compile_ms: Count

    @property
    def spec(self) -> CompileSpec:
        """The compile spec this artifact answers. Raises ``SpecError`` if the fields make none."""
        return CompileSpec(
            kernel=self.kernel,
            version=self.version,
            params=self.params,
            target=self.target,
            options=self.options,
        )

    @property
    def shared_bytes(self) -> int:
        """Shared memory per block, static and dynamic."""
        return self.static_shared_bytes + self.launch.shared_bytes

    @property
    def program_digest(self) -> str:
        """SHA-256 over all that a device gets to see: machine code, parameters, resources and launch."""
        return sha256(msgspec.json.encode([getattr(self, name) for name in _PROGRAM]))


_PROGRAM = (
    "symbol", "launch", "parameters", "parameter_bytes", "registers", "local_bytes", "static_shared_bytes",
    "code_digest",
)  # fmt: skip

_DECODER = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as it is stored: the header, then one field per line."""
    fields = msgspec.structs.asdict(manifest)
    spec_key, toolchain_key, cubin_digest, source_digest = (fields.pop(name) for name in NAMES)
    lines = [f'"{name}":{msgspec.json.encode(value).decode()}' for name, value in fields.items()]
    return write_header((spec_key, toolchain_key, cubin_digest, source_digest), ",\n".join(lines))


def decode(data: bytes, where: str) -> Manifest:
    """Read a stored manifest. Raises ``StoreError`` that names ``where`` and what is wrong.

    The kernel's name and version become part of a path, so they are held to their form here; and a name that JSON has
    twice must not say something else than the header.
    """
    try:
        manifest = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"manifest {where} is not a manifest: {error}") from error
    if not all(map(is_name, (*manifest.params, *manifest.options))):
        raise StoreError(f"manifest {where} has a parameter or option with what is no name")
    if not is_name(manifest.kernel) or not 1 <= manifest.version < 10**9:
        raise StoreError(f"manifest {where} is of {manifest.kernel!r:.80}@{manifest.version}, which names no kernel")
    if not has_keys(data, (manifest.spec_key, manifest.toolchain_key, manifest.cubin_digest, manifest.source_digest)):
        raise StoreError(f"manifest {where} contradicts its own header")
    return manifest


def _are_small(manifest: Manifest) -> bool:
    """Say whether every integer has 64 bits, as a spec's must."""
    values = (*manifest.params.values(), *manifest.options.values())
    return all(type(value) is not int or INT64_MIN <= value <= INT64_MAX for value in values)


def check(manifest: Manifest, where: str) -> None:
    """Check that a manifest's spec hashes to its spec key. Raises ``StoreError``."""
    fields = {
        "kernel": manifest.kernel,
        "options": manifest.options,
        "params": manifest.params,
        "schema": SCHEMA,
        "target": manifest.target,
        "version": manifest.version,
    }
    # For plain ASCII these are the canonical bytes, at a tenth of the cost; what differs takes the long way.
    plain = msgspec.json.encode(fields, order="sorted")
    if len(plain) > TEXT_LIMIT // 6:  # An escaped character has six.
        raise StoreError(f"manifest {where} holds no valid spec: it has {len(plain)} bytes")
    try:
        parse_target(manifest.target)
        if sha256(plain) == manifest.spec_key and plain.isascii() and _are_small(manifest):
            return
        key = manifest.spec.key
    except KregError as error:
        raise StoreError(f"manifest {where} holds no valid spec: {error}") from error
    if key != manifest.spec_key:
        raise StoreError(f"manifest {where} says {manifest.spec}, which is not its spec key")
