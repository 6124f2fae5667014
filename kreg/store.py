"""The store: entry key -> manifest, SHA-256 -> cubin, in a directory that many processes share.

Readers take no lock and see the old or the new, never a part: files are written under another name, synced and
renamed, objects first and the entry last. Every read proves both digests; what fails is set aside in
``quarantine/`` with the reason. Locks save work and never decide what is right.

    CACHEDIR.TAG
    entries-v1/<kernel>@<version>/<spec key>-<toolchain key>.json
    objects-v1/9f/9f3e….cubin
    locks/  tmp/  quarantine/

The store raises ``StoreError``; whether a launch can do without it is the resolver's business.
"""

from __future__ import annotations

import os
import time

from kreg import config
from kreg.artifact import Artifact
from kreg.digest import is_hex, sha256
from kreg.errors import KregError, StoreError
from kreg.files import (
    NotAFile,
    is_file,
    is_same_file,
    mark_used,
    put_back,
    read_file,
    read_file_and_stat,
    refuse_link,
    scan,
    touch_quietly,
    unlink_quietly,
    write_synced,
)
from kreg.header import NewerFormat, read_header
from kreg.keylock import FileLock
from kreg.root import ENTRIES, OBJECTS, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kreg.header import Keys
    from kreg.spec import CompileSpec

MANIFEST_LIMIT = 1 << 20
CUBIN_LIMIT = 1 << 28
_SWEEP_WAIT = 30.0
_USE_SECONDS = 86400.0
"""Seconds after which a read marks an entry as used anew; the time of last use is as fine as that."""


class BadEntry(StoreError):
    """An entry or object that is not what it says, now set aside if the store could be written."""


class Store:
    """A store directory, which need not exist yet.

    ``root`` is its path. Without one it is ``KREG_STORE``, else ``kreg`` in the user's cache directory, which is made
    for its owner alone and refused where others could have filled it.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = _find_root(root)
        self.root = self._root.path
        self.is_configured = root is None

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def entry_path(self, kernel: str, version: int, key: str, toolchain_key: str) -> str:
        """Return where the manifest of an entry lies."""
        return f"{self.root}/{ENTRIES}/{kernel}@{version}/{key}-{toolchain_key}.json"

    def object_path(self, digest: str) -> str:
        """Return where the cubin with SHA-256 ``digest`` lies."""
        return f"{self.root}/{OBJECTS}/{digest[:2]}/{digest}.cubin"

    def log_path(self, key: str) -> str:
        """Return where the compiler's log of a failed compile of ``key`` is kept."""
        return f"{self.root}/logs/{key}.log"

    def read(self, spec: CompileSpec, toolchain_key: str) -> Artifact | None:
        """Return the proven artifact of a spec, or None if the store has none. Raises as ``read_entry`` does."""
        return self.read_entry(spec.kernel, spec.version, spec.key, toolchain_key)

    def read_entry(self, kernel: str, version: int, key: str, toolchain_key: str) -> Artifact | None:
        """Return the proven artifact of an entry, or None if the store has none.

        Raises ``BadEntry`` for one that fails its proof, after setting it aside, and ``StoreError`` where the
        store cannot be read.
        """
        self._root.check()
        path = self.entry_path(kernel, version, key, toolchain_key)
        found = self._read_or_set_aside(path, MANIFEST_LIMIT)
        if found is None:
            return None
        data, status = found
        if time.time() - status.st_atime > _USE_SECONDS:
            mark_used(path, status)
        try:
            keys = read_header(data, path)
            if keys[:2] != (key, toolchain_key):
                raise StoreError(f"manifest {path} belongs to another entry, {keys[0][:12]}-{keys[1][:12]}")
        except NewerFormat:
            return None
        except StoreError as error:
            raise self._set_aside(path, error, is_same_file(status)) from error
        return self._read_object(data, keys, path)

    def _read_object(self, manifest: bytes, keys: Keys, entry: str) -> Artifact | None:
        path = self.object_path(keys[2])
        found = self._read_or_set_aside(path, CUBIN_LIMIT)
        if found is None:
            return None
        try:
            return Artifact(manifest, found[0], entry, keys)
        except StoreError as error:
            raise self._set_aside(path, error, is_same_file(found[1])) from error

    def _read_or_set_aside(self, path: str, limit: int) -> tuple[bytes, os.stat_result] | None:
        try:
            return read_file_and_stat(path, limit)
        except NotAFile as error:
            raise self._set_aside(path, error, lambda moved: not is_file(moved, limit)) from error

    def toolchain_keys(self, spec: CompileSpec) -> list[str]:
        """Return the toolchain keys under which the store holds ``spec``, sorted."""
        self._root.check()
        folder = f"{self.root}/{ENTRIES}/{spec.kernel}@{spec.version}"
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"cannot list {folder}: {error.strerror}") from error
        keys = [name[65:-5] for name in names if name.startswith(f"{spec.key}-") and name.endswith(".json")]
        return sorted(key for key in keys if len(key) == 64 and is_hex(key))

    def publish(self, artifact: Artifact) -> str:
        """Make an artifact visible, whole or not at all, and return the path of its entry. Raises ``StoreError``."""
        return self.publish_all([artifact])[0]

    def publish_all(self, artifacts: Iterable[Artifact]) -> list[str]:
        """Publish several artifacts: no entry of them is seen before all are written. Return the paths of the entries.

        Each is whole whenever it is seen. Only what ends the process between two renames, or fails a rename, leaves
        some of them seen and others not. Raises ``StoreError``.
        """
        self.prepare()
        written: list[tuple[str, str]] = []
        # Shared with other publishers; a sweep of unreferenced objects must not run between object and entry.
        with self.sweep_lock(shared=True):
            try:
                for artifact in artifacts:
                    manifest = artifact.manifest
                    path = self.entry_path(manifest.kernel, manifest.version, artifact.key, artifact.toolchain_key)
                    self._refuse_newer(path)
                    self._put_object(artifact)
                    written.append((self._root.write(artifact.manifest_bytes, path), path))
                for temporary, path in written:
                    self._root.rename(temporary, path)
            except BaseException:
                for temporary, _ in written:
                    unlink_quietly(temporary)
                raise
        return [path for _, path in written]

    def _put_object(self, artifact: Artifact) -> None:
        path = self.object_path(artifact.cubin_digest)
        try:
            held = read_file(path, CUBIN_LIMIT)
        except StoreError:
            held = None
        if held is None or sha256(held) != artifact.cubin_digest:
            self._root.put(path, artifact.cubin)
        else:
            touch_quietly(path)  # A gc must not take it for one that nobody has named for long.

    def _refuse_newer(self, path: str) -> None:
        try:
            data = read_file(path, MANIFEST_LIMIT)
            if data is not None:
                read_header(data, path)
        except NewerFormat:
            raise
        except StoreError:
            return

    def save_log(self, key: str, log: str) -> str:
        """Keep the log of a failed compile and return its path. Raises ``StoreError``."""
        self.prepare()
        self._root.put(self.log_path(key), log.encode("utf-8", "backslashreplace"))
        return self.log_path(key)

    def key_lock(self, key: str, wait: float, report: Callable[[str], None] | None = None) -> FileLock:
        """Hold the key lock of a spec key during a block, if it can be had within ``wait`` seconds."""
        return FileLock(f"{self.root}/locks/{key[:2]}.lock", wait=wait, report=report)

    def sweep_lock(self, *, shared: bool) -> FileLock:
        """Hold the lock between publishers (shared) and the removal of unreferenced objects (exclusive)."""
        return FileLock(f"{self.root}/locks/sweep.lock", shared=shared, wait=_SWEEP_WAIT)

    def prepare(self) -> None:
        """Create the store's directories where they are missing. Raises ``StoreError``."""
        self._root.prepare()

    def require_place(self) -> None:
        """Raise ``StoreError`` if there is no directory that could be this store's."""
        self._root.require_place()

    def is_marked(self) -> bool:
        """Say whether the directory says of itself that it is a kreg store."""
        return self._root.is_marked()

    def refuse_links(self) -> None:
        """Raise ``StoreError`` if a directory of the store is a symbolic link, which could lead anywhere."""
        self._root.refuse_links()

    def _set_aside(self, path: str, reason: StoreError, is_bad: Callable[[os.stat_result], bool]) -> BadEntry:
        """Move a bad file to ``quarantine/`` with its reason; return the error to raise.

        ``is_bad`` says whether what was moved is what was found bad: another process may have put a good file in its
        place in the meantime, and that is put back.
        """
        place = f"{self.root}/quarantine/{os.path.basename(path)}.{os.urandom(4).hex()}"
        try:
            refuse_link(os.path.dirname(path))
            os.rename(path, place)
            if not is_bad(os.lstat(place)):
                put_back(place, path)
                return BadEntry(f"{reason}; it has been replaced in the meantime")
            write_synced(f"{place}.reason", os.fsencode(f"{path}\n{reason}\n"))
        except OSError:
            return BadEntry(f"{reason} (it could not be set aside)")
        return BadEntry(f"{reason}; set aside as {place}")

    def entry_files(self, kernel: str | None = None) -> Iterator[str]:
        """Yield the paths of the store's manifests, or those of one kernel, in order. Raises ``StoreError``."""
        self._root.check()
        return _files(f"{self.root}/{ENTRIES}", ".json", "" if kernel is None else f"{kernel}@")

    def object_files(self) -> Iterator[str]:
        """Yield the paths of the store's cubins. Raises ``StoreError``."""
        self._root.check()
        return _files(f"{self.root}/{OBJECTS}", ".cubin")


def _find_root(given: str | os.PathLike[str] | None) -> Root:
    try:
        named = config.named_root(given)
        return Root(named or config.default_root(), is_default=named is None)
    except KregError as error:
        return Root(None, is_default=True, problem=str(error))


def _files(folder: str, ending: str, beginning: str = "") -> Iterator[str]:
    for inner in scan(folder):
        if inner.name.startswith(beginning) and inner.is_dir(follow_symlinks=False):
            yield from (file.path for file in scan(inner.path) if file.name.endswith(ending))
