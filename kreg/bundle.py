"""Bundles: entries and their cubins in one file, to be carried to a store elsewhere.

A bundle is a tar archive, with the same bytes for the same entries: ``bundle.json``, which says what must follow, then
the cubins, then the manifests, each named by its SHA-256 and sorted by name. Reading takes exactly what writing gives:
a header other than this module would have written for that name and size is refused, so that there is no path, link,
device, sparse file or extension to be wary of. Nothing is published before all of it is proven.

    bundle.json
    objects/9f3e….cubin
    entries/04ab….json
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from tarfile import USTAR_FORMAT, TarInfo
from typing import Annotated

import msgspec

from kreg.artifact import Artifact
from kreg.digest import is_hex, sha256
from kreg.errors import BundleError, KregError, MissError, PinError, StoreError
from kreg.files import close_quietly, read_file, replace_file
from kreg.header import read_header
from kreg.inventory import entries, select_from, spec_text
from kreg.lockfile import pin_order
from kreg.manifest import check
from kreg.record import Record
from kreg.spec import parse_spec_text
from kreg.store import CUBIN_LIMIT, MANIFEST_LIMIT, BadEntry, Store
from kreg.upkeep import check_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kreg.lockfile import Lockfile
    from kreg.registry import Registry
    from kreg.selector import Selector

FORMAT = 1
_BLOCK = 512
_END = bytes(2 * _BLOCK)
_INDEX, _INDEX_LIMIT = "bundle.json", 4096
_OBJECT, _ENTRY = ("objects/", ".cubin", CUBIN_LIMIT), ("entries/", ".json", MANIFEST_LIMIT)


class _Format(msgspec.Struct, frozen=True):
    bundle: Annotated[int, msgspec.Meta(ge=1, le=10**6)]


class Index(_Format, frozen=True):
    """The first member: the format, and how many cubins and entries follow."""

    objects: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    entries: Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class Exported(Record):
    """What an export wrote: the specs, and the size of the bundle in bytes."""

    __slots__ = ("specs", "size")
    specs: tuple[str, ...]
    size: int

    def __init__(self, *, specs: tuple[str, ...], size: int) -> None:
        self._set(specs=specs, size=size)


class Imported(Record):
    """What an import did, or would do: the specs it published, and those left out.

    ``held`` are in the store already with the same machine code, ``unpinned`` in no pin of the lockfile. ``size`` is
    that of the bundle in bytes.
    """

    __slots__ = ("published", "held", "unpinned", "size")
    published: tuple[str, ...]
    held: tuple[str, ...]
    unpinned: tuple[str, ...]
    size: int

    def __init__(
        self, *, published: tuple[str, ...], held: tuple[str, ...], unpinned: tuple[str, ...], size: int
    ) -> None:
        self._set(published=published, held=held, unpinned=unpinned, size=size)


def stored(store: Store, chosen: Selector, registry: Registry) -> Iterator[Artifact]:
    """Read the entries that ``chosen`` means. Raises ``StoreError`` for a bad one, ``SpecError`` as ``select`` does."""
    every = list(entries(store))
    for entry in every:
        if entry.problem is not None and not entry.is_newer:
            raise StoreError(f"cannot tell whether {entry.path} is meant: {entry.problem}; see `kreg verify`")
    for entry in select_from(every, chosen, registry):
        manifest = entry.manifest
        if manifest is not None:
            found = store.read_entry(manifest.kernel, manifest.version, manifest.spec_key, manifest.toolchain_key)
            if found is None:
                raise StoreError(f"{entry.path} was removed meanwhile, or its cubin is missing; see `kreg verify`")
            yield found


def pinned(store: Store, chosen: Selector, registry: Registry, lockfile: Lockfile, path: str) -> Iterator[Artifact]:
    """Read what ``lockfile``, which lies at ``path``, pins of what ``chosen`` means.

    Raises ``MissError`` if the store lacks a pin, ``PinError`` if it has another cubin.
    """
    for pin in lockfile.pins:
        if not chosen.means(pin.spec, registry):
            continue
        parts = parse_spec_text(pin.spec)
        found = store.read_entry(parts.kernel, parts.version or 0, pin.key, lockfile.toolchain(pin).fingerprint)
        if found is None:
            raise MissError(f"{store.root} lacks `{pin.spec}`, which {path} pins; fill it with `kreg warm`")
        if found.cubin_digest != pin.cubin:
            raise PinError(f"`{pin.spec}` has the cubin {found.cubin_digest[:12]} in {store.root}, {path} pins another")
        yield found


def export_bundle(path: str, store: Store, artifacts: Iterable[Artifact]) -> Exported:
    """Write artifacts of a store as a bundle, whole or not at all.

    Raises ``BundleError`` if there are none or the file cannot be written, ``StoreError`` if a cubin goes meanwhile.
    """
    manifests: dict[str, bytes] = {}
    objects: set[str] = set()
    specs = []
    for artifact in artifacts:
        manifests[sha256(artifact.manifest_bytes)] = artifact.manifest_bytes
        objects.add(artifact.cubin_digest)
        specs.append(spec_text(artifact.manifest))
    if not specs:
        raise BundleError(f"nothing of {store.root} is meant, so there is nothing to export")
    try:
        replace_file(os.path.abspath(path), _members(store, manifests, objects))
        size = os.stat(path).st_size
    except OSError as error:
        raise BundleError(f"cannot write the bundle {path}: {error.strerror}") from error
    return Exported(specs=_in_order(specs), size=size)


def _in_order(specs: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(specs, key=pin_order))


def _members(store: Store, manifests: Mapping[str, bytes], objects: set[str]) -> Iterator[bytes]:
    index = Index(bundle=FORMAT, objects=len(objects), entries=len(manifests))
    yield _member(_INDEX, msgspec.json.encode(index))
    for digest in sorted(objects):
        cubin = read_file(store.object_path(digest), CUBIN_LIMIT)
        if cubin is None or sha256(cubin) != digest:
            raise StoreError(f"cubin {digest[:12]} of {store.root} was removed or damaged meanwhile; export again")
        yield _member(_name(_OBJECT, digest), cubin)
    for digest in sorted(manifests):
        yield _member(_name(_ENTRY, digest), manifests[digest])
    yield _END


def _name(kind: tuple[str, str, int], digest: str) -> str:
    return f"{kind[0]}{digest}{kind[1]}"


def _member(name: str, data: bytes) -> bytes:
    return _header(name, len(data)) + data + bytes(_padded(len(data)) - len(data))


def _padded(size: int) -> int:
    """Return the bytes that ``size`` of a member's take: whole blocks."""
    return size + -size % _BLOCK


def _header(name: str, size: int) -> bytes:
    info = TarInfo(name)
    info.size = size
    return info.tobuf(USTAR_FORMAT, "ascii", "strict")


@contextmanager
def open_bundle(path: str) -> Iterator[Bundle]:
    """Open a bundle during a block. Raises ``BundleError`` for anything that is not a whole one."""
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        yield Bundle(path, descriptor, os.fstat(descriptor))
    except OSError as error:
        raise BundleError(f"cannot read the bundle {path}: {error.strerror}") from error
    finally:
        close_quietly(descriptor)


class Bundle:
    """A bundle that is open, its members found; what they hold is proven when it is read."""

    def __init__(self, path: str, descriptor: int, status: os.stat_result) -> None:
        self._path = path
        self._descriptor = descriptor
        if not stat.S_ISREG(status.st_mode):
            raise self._refusal("it is not a regular file")
        self.size = status.st_size
        index, at = self._read_index()
        self._objects, at = self._find(at, _OBJECT, index.objects)
        self._entries, at = self._find(at, _ENTRY, index.entries)
        if self.size != at + len(_END) or self._pread(at, len(_END)) != _END:
            raise self._refusal(f"it does not end after its {index.objects} cubins and {index.entries} entries")

    def artifacts(self) -> Iterator[Artifact]:
        """Read and prove every artifact, in order. Raises ``BundleError``, also for a cubin that no entry names."""
        named: set[str] = set()
        for digest in self._entries:
            artifact = self._artifact(digest)
            named.add(artifact.cubin_digest)
            yield artifact
        unnamed = sorted(self._objects.keys() - named)
        if unnamed:
            raise self._refusal(f"no entry names its cubin {unnamed[0][:12]}")

    def _artifact(self, digest: str) -> Artifact:
        name = _name(_ENTRY, digest)
        try:
            data = self._read(self._entries, digest, name)
            keys = read_header(data, self._path)
            artifact = Artifact(data, self._cubin(keys[2]), f"{self._path}/{name}", keys)
            check(artifact.manifest, artifact.origin)
            check_image(artifact.manifest, artifact.cubin, f"the cubin of {artifact.origin}")
        except BundleError:
            raise
        except KregError as error:
            raise self._refusal(str(error)) from error
        return artifact

    def _cubin(self, digest: str) -> bytes:
        if digest not in self._objects:
            raise self._refusal(f"it lacks the cubin {digest[:12]} that an entry names")
        return self._read(self._objects, digest, _name(_OBJECT, digest))

    def _read(self, members: Mapping[str, tuple[int, int]], digest: str, name: str) -> bytes:
        data = self._content(*members[digest])
        if sha256(data) != digest:
            raise self._refusal(f"its member {name} is damaged")
        return data

    def _content(self, at: int, size: int) -> bytes:
        data = self._pread(at, _padded(size))
        if any(data[size:]):
            raise self._refusal(f"there is something behind the member at byte {at}")
        return data[:size]

    def _read_index(self) -> tuple[Index, int]:
        name, size = self._read_header(0)
        if name != _INDEX or size > _INDEX_LIMIT:
            raise self._refusal(f"it does not begin with {_INDEX}")
        data = self._content(_BLOCK, size)
        try:
            number = msgspec.json.decode(data, type=_Format).bundle
            if number > FORMAT:
                raise self._refusal(f"it has format {number}, this kreg reads format {FORMAT}: install a newer kreg")
            index = msgspec.json.decode(data, type=Index)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._refusal(f"{_INDEX} says: {error}") from error
        if msgspec.json.encode(index) != data:
            raise self._refusal(f"{_INDEX} is not as `kreg export` writes it")
        return index, _BLOCK + _padded(size)

    def _find(self, at: int, kind: tuple[str, str, int], count: int) -> tuple[dict[str, tuple[int, int]], int]:
        """Return place and size of ``count`` members of a kind, by digest, and where the next header is."""
        found: dict[str, tuple[int, int]] = {}
        before = ""
        for number in range(1, count + 1):
            name, size = self._read_header(at)
            digest = name.removeprefix(kind[0]).removesuffix(kind[1])
            if name != _name(kind, digest) or len(digest) != 64 or not is_hex(digest) or digest <= before:
                raise self._refusal(f"member {number} of {kind[0]} is {name!r}")
            if size > kind[2]:
                raise self._refusal(f"member {name} has {size} bytes, more than the {kind[2]} allowed")
            before, found[digest] = digest, (at + _BLOCK, size)
            at += _BLOCK + _padded(size)
        return found, at

    def _read_header(self, at: int) -> tuple[str, int]:
        block = self._pread(at, _BLOCK)
        try:
            name, size = block[:100].rstrip(b"\0").decode("ascii"), int(block[124:135], 8)
            if _header(name, size) == block:
                return name, size
        except ValueError:
            pass
        raise self._refusal(f"what lies at byte {at} is not a member as `kreg export` writes it")

    def _pread(self, at: int, size: int) -> bytes:
        if at + size > self.size:
            raise self._refusal(f"it is cut short: {at + size} bytes needed, {self.size} there")
        parts: list[bytes] = []
        while size and (part := os.pread(self._descriptor, size, at)):
            parts.append(part)
            at, size = at + len(part), size - len(part)
        if size:
            raise self._refusal("it became shorter while it was read")
        return b"".join(parts)

    def _refusal(self, why: str) -> BundleError:
        return BundleError(f"{self._path} is not a whole bundle: {why}; nothing of it was taken")


def import_bundle(
    path: str,
    store: Store,
    *,
    pins: Mapping[str, str] | None = None,
    replace: bool = False,
    dry_run: bool = False,
) -> Imported:
    """Publish what a bundle holds in a store, after all of it has been proven.

    ``pins`` maps entry keys to cubin digests: what is not in it is left out, what has another cubin refused. An entry
    that the store has with other machine code is refused, unless ``replace``. Raises ``BundleError``, ``PinError`` and
    ``StoreError``; the store is then as it was.
    """
    published: dict[str, str] = {}
    held: list[str] = []
    unpinned: list[str] = []
    with open_bundle(path) as bundle:
        for artifact in bundle.artifacts():
            spec = spec_text(artifact.manifest)
            if pins is not None and artifact.entry_key not in pins:
                unpinned.append(spec)
                continue
            _require_pin(artifact, spec, pins or {})
            if not replace and _is_held(store, artifact, spec):
                held.append(spec)
            else:
                published[artifact.entry_key] = spec
        if published and not dry_run:
            store.publish_all(artifact for artifact in bundle.artifacts() if artifact.entry_key in published)
        size = bundle.size
    return Imported(
        published=_in_order(published.values()), held=_in_order(held), unpinned=_in_order(unpinned), size=size
    )


def _require_pin(artifact: Artifact, spec: str, pins: Mapping[str, str]) -> None:
    pinned = pins.get(artifact.entry_key, artifact.cubin_digest)
    if pinned != artifact.cubin_digest:
        raise PinError(
            f"{artifact.origin}: `{spec}` has the cubin {artifact.cubin_digest[:12]}, the lockfile pins "
            f"{pinned[:12]}; nothing of the bundle was taken"
        )


def _is_held(store: Store, artifact: Artifact, spec: str) -> bool:
    try:
        held = store.read(artifact.manifest.spec, artifact.toolchain_key)
    except BadEntry:
        return False  # It is set aside by now.
    if held is None:
        return False
    if held.manifest.program_digest != artifact.manifest.program_digest:
        raise BundleError(
            f"`{spec}` has other machine code in {artifact.origin} (cubin {artifact.cubin_digest[:12]}) than in "
            f"{held.origin} ({held.cubin_digest[:12]}); nothing was taken; --replace takes the bundle's"
        )
    return True
