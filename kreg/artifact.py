"""Artifacts: a cubin with its manifest, proven to belong together.

An ``Artifact`` exists only after the manifest's own digest and the cubin's digest have been checked. Its ``cubin``
is at hand at once; the rest of the manifest is decoded when first asked for.
"""

from __future__ import annotations

from kreg.digest import sha256
from kreg.errors import StoreError
from kreg.header import read_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.header import Keys
    from kreg.manifest import Launch, Manifest


class Artifact:
    """A cubin and its manifest.

    ``cubin`` is the ELF image; ``key`` the spec key and ``toolchain_key`` the toolchain fingerprint, both 64 hex
    digits; ``cubin_digest`` the SHA-256 of ``cubin``; ``source_digest`` that of the declared sources it is known to
    be of; ``manifest_bytes`` the manifest as stored; ``origin`` where it came from: a path, or ``compiled``.
    """

    __slots__ = (
        "cubin", "cubin_digest", "key", "toolchain_key", "source_digest", "manifest_bytes", "origin", "_manifest",
    )  # fmt: skip

    def __init__(self, manifest_bytes: bytes, cubin: bytes, origin: str, keys: Keys | None = None) -> None:
        """Check ``cubin`` against the manifest. Raises ``StoreError`` if either is not what it says.

        ``keys`` are what ``read_header`` returned for the manifest, if it has been asked already.
        """
        self.key, self.toolchain_key, self.cubin_digest, self.source_digest = keys or read_header(
            manifest_bytes, origin
        )
        if sha256(cubin) != self.cubin_digest:
            raise StoreError(f"the cubin of manifest {origin} does not match its digest")
        self.cubin = cubin
        self.manifest_bytes = manifest_bytes
        self.origin = origin
        self._manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """The typed manifest."""
        if self._manifest is None:
            from kreg.manifest import decode

            self._manifest = decode(self.manifest_bytes, self.origin)
        return self._manifest

    @property
    def entry_key(self) -> str:
        """``<spec key>-<toolchain key>``: what the store looks up."""
        return f"{self.key}-{self.toolchain_key}"

    @property
    def symbol(self) -> str:
        """The kernel's symbol in the cubin."""
        return self.manifest.symbol

    @property
    def launch(self) -> Launch:
        """Block, grid rule, cluster and dynamic shared memory."""
        return self.manifest.launch

    def __repr__(self) -> str:
        return f"<Artifact {self.manifest.spec} {self.key[:12]} cubin {self.cubin_digest[:12]} from {self.origin}>"
