"""What a store holds: its entries, all of them or those that a selector means."""

from __future__ import annotations

from kreg.errors import StoreError
from kreg.files import read_file_and_stat
from kreg.header import NewerFormat, read_header
from kreg.manifest import Manifest, decode
from kreg.registry import Registry
from kreg.selector import Selector
from kreg.spec import format_params, reading_order
from kreg.store import MANIFEST_LIMIT, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Entry:
    """One entry of a store: where it lies, its manifest, its size on disk in bytes, when it was written and last used.

    ``problem`` is set, and ``manifest`` None, for a file that is not a readable manifest of this format.
    ``modified`` and ``used`` are the file's times in seconds since 1970, as good as the file system's clock; ``used``
    is as fine as a day.
    """

    __slots__ = ("path", "manifest", "size", "modified", "used", "problem")

    def __init__(
        self,
        *,
        path: str,
        manifest: Manifest | None,
        size: int,
        modified: float,
        used: float,
        problem: StoreError | None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.size = size
        self.modified = modified
        self.used = used
        self.problem = problem

    @property
    def is_newer(self) -> bool:
        """Say whether the entry was written by a newer kreg, whose business it is."""
        return isinstance(self.problem, NewerFormat)


def spec_text(manifest: Manifest) -> str:
    """Write the spec of a manifest as it is written everywhere, without computing its key."""
    variant = format_params(tuple(manifest.params.items()))
    return f"{manifest.kernel}@{manifest.version}{variant}:{manifest.target}"


def entries(store: Store, kernel: str | None = None) -> Iterator[Entry]:
    """Read every entry of a store, or of one kernel, those that are unreadable or from a newer kreg included."""
    for path in store.entry_files(kernel):
        entry = _read_entry(path)
        if entry is not None:
            yield entry


def select(store: Store, selector: Selector, registry: Registry) -> list[Entry]:
    """Return the readable entries that ``selector`` means, in order. Raises ``SpecError`` for a kernel nobody knows."""
    return select_from(entries(store), selector, registry)


def select_from(every: Iterable[Entry], selector: Selector, registry: Registry) -> list[Entry]:
    """Return the readable ones of ``every`` that ``selector`` means, as ``select`` does."""
    readable = [(entry, entry.manifest) for entry in every if entry.manifest is not None]
    found = [(entry, manifest) for entry, manifest in readable if selector.matches(manifest, registry)]
    if not found:
        refuse_unknown(selector, {manifest.kernel for _, manifest in readable}, registry)
    return [entry for entry, _ in sorted(found, key=lambda pair: _order(pair[1]))]


def refuse_unknown(selector: Selector, stored: set[str], registry: Registry) -> None:
    """Raise ``SpecError`` for a named kernel that neither the store nor the registry knows."""
    for name, _ in selector.kernels:
        if name not in stored:
            registry.get(name)


def _order(manifest: Manifest) -> tuple[object, ...]:
    params = manifest.params.items()
    return *reading_order(manifest.kernel, manifest.version, manifest.target, params), manifest.toolchain_key


def _read_entry(path: str) -> Entry | None:
    manifest: Manifest | None = None
    problem: StoreError | None = None
    size, modified, used = 0, 0.0, 0.0
    try:
        found = read_file_and_stat(path, MANIFEST_LIMIT, unseen=True)
        if found is None:
            return None
        data, status = found
        size, modified, used = status.st_size, status.st_mtime, max(status.st_atime, status.st_mtime)
        read_header(data, path)
        manifest = decode(data, path)
    except StoreError as error:
        problem = error
    return Entry(path=path, manifest=manifest, size=size, modified=modified, used=used, problem=problem)
