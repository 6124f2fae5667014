"""The root of a store: the directory that many processes share, made, marked, checked, and written to whole.

A root given by name is used as it is found. The default one is made for its owner alone, and refused where somebody
else could have filled it. Nothing is written through a symbolic link below the root.
"""

from __future__ import annotations

import os
import stat

from kreg.errors import StoreError
from kreg.files import read_file, refuse_link, rename_into, sync_folder, unlink_quietly, write_synced

ENTRIES, OBJECTS = "entries-v1", "objects-v1"
FOLDERS = (ENTRIES, OBJECTS, "locks", "tmp", "quarantine")
"""The directories of a store, but ``logs``, which is made when it is needed."""
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This is a kreg store (CACHEDIR.TAG: https://bford.info/cachedir/). `kreg clear` empties it.\n"
)


_NOWHERE = "/dev/null/kreg"
"""The path of a root that is nowhere: below a file, so that nothing can be found or made there."""


class Root:
    """The directory ``path``, which need not exist yet; ``is_default`` if nobody has named it.

    Without a path, ``problem`` says why there is none: whatever is asked of the root raises it.
    """

    def __init__(self, path: str | None, *, is_default: bool, problem: str = "") -> None:
        self.path = path or _NOWHERE
        self._problem = problem
        self._is_default = is_default
        self._checked = False
        self._prepared = False

    def require_place(self) -> None:
        """Raise ``StoreError`` if there is no directory that could be the root."""
        if self._problem:
            raise StoreError(self._problem)

    def check(self) -> None:
        """Raise ``StoreError`` if the directory is there and may not be used."""
        if self._checked:
            return
        self.require_place()
        try:
            found = os.stat(self.path)
            if not stat.S_ISDIR(found.st_mode):
                raise StoreError(f"the store {self.path} is not a directory; set KREG_STORE or --store to one")
            if self._is_default:
                self._check_owner(found)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot use the store {self.path}: {error.strerror}") from error
        self._checked = True

    def _check_owner(self, found: os.stat_result) -> None:
        """Refuse a directory that others could have filled, or put in the place of this user's."""
        if found.st_uid != os.geteuid():
            why = f"belongs to user {found.st_uid}"
        elif found.st_mode & stat.S_IWOTH:
            why = "can be written by everybody"
        elif (folder := _folder_of_everybody(os.path.dirname(os.path.realpath(self.path)))) is not None:
            why = f"lies in {folder}, where everybody can replace it"
        else:
            return
        raise StoreError(f"the default store {self.path} {why}; to use it all the same, name it in KREG_STORE")

    def prepare(self) -> None:
        """Create the directories of a store where they are missing. Raises ``StoreError``."""
        if self._prepared:
            return
        self.check()
        self.refuse_links()
        try:
            os.makedirs(self.path, mode=0o700 if self._is_default else 0o777, exist_ok=True)
            self._mark()
            for folder in FOLDERS:
                os.makedirs(f"{self.path}/{folder}", exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create the store {self.path}: {error.strerror}") from error
        self._prepared = True

    def refuse_links(self) -> None:
        """Raise ``StoreError`` if a directory of the store is a symbolic link, which could lead anywhere."""
        for folder in (*FOLDERS, "logs"):
            try:
                refuse_link(f"{self.path}/{folder}")
            except OSError as error:
                raise StoreError(f"{error.filename}: {error.strerror}; remove the link") from error

    def is_marked(self) -> bool:
        """Say whether the directory says of itself that it is a kreg store."""
        try:
            return read_file(f"{self.path}/{_TAG}", len(_TAG_TEXT)) == _TAG_TEXT
        except StoreError:
            return False

    def _mark(self) -> None:
        """Write the tag, unless the directory is somebody else's. Raises ``StoreError`` if it is.

        Another process may be doing the same; before its tag is there it has made ``tmp`` and nothing else.
        """
        found = sorted(os.listdir(self.path))
        if self.is_marked():
            return
        is_ours = {ENTRIES, OBJECTS} <= set(found)
        known = {*FOLDERS, "logs"} if is_ours else {"tmp"}
        foreign = [name for name in found if name not in known]
        if foreign:
            raise StoreError(
                f"{self.path} is not empty and not a kreg store (it holds {foreign[0]!r}); name another directory"
            )
        os.makedirs(f"{self.path}/tmp", exist_ok=True)
        self.put(f"{self.path}/{_TAG}", _TAG_TEXT)

    def put(self, path: str, data: bytes) -> None:
        """Make ``path`` a file that holds ``data``, whole or not at all. Raises ``StoreError``."""
        temporary = self.write(data, path)
        try:
            self.rename(temporary, path)
        except BaseException:
            unlink_quietly(temporary)
            raise

    def write(self, data: bytes, path: str) -> str:
        """Write what is to be ``path`` as a temporary file, and return the path of that. Raises ``StoreError``."""
        temporary = temporary_path(self.path)
        try:
            write_synced(temporary, data)
        except BaseException as error:
            unlink_quietly(temporary)
            if isinstance(error, OSError):
                raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
            raise
        return temporary

    def rename(self, temporary: str, path: str) -> None:
        """Make a temporary file ``path``. Raises ``StoreError``, and leaves the temporary file then."""
        folder = os.path.dirname(path)
        try:
            if folder != self.path:
                refuse_link(folder)
            rename_into(temporary, path)
            sync_folder(folder)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def temporary_path(root: str) -> str:
    """Return a path for a temporary file of a store that no other process takes."""
    return f"{root}/tmp/{os.getpid()}-{os.urandom(8).hex()}"


def _folder_of_everybody(folder: str) -> str | None:
    """Return the first directory, from ``folder`` up, in which everybody can rename what is another's, if any."""
    while True:
        mode = os.stat(folder).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
