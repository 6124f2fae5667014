"""Receipts: the record in a lockfile that exactly these cubins passed their tests on a device.

``pytest --receipts kreg.lock`` (``kreg.pytest_plugin``) writes them; another test runner does the same with
``add_receipts``. ``kreg check --receipts`` asks for them on a machine without a GPU.
"""

from __future__ import annotations

import os
from datetime import date

from msgspec import ValidationError, convert
from msgspec.structs import asdict, replace

from kreg.digest import canonical, is_hex, sha256
from kreg.errors import LockfileError
from kreg.lockfile import Lockfile, Receipt, read_lockfile, write_lockfile
from kreg.spec import parse_spec_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def add_receipts(path: str | os.PathLike[str], receipts: Iterable[Receipt]) -> Lockfile:
    """Put each receipt into every pin of its cubin in the lockfile ``path``, in place of an older one.

    Their targets count as run on hardware from then on. Returns the lockfile as written. Raises ``LockfileError`` for
    a receipt that says nothing or is for a cubin that is not pinned; the file is then as it was.
    """
    where = os.fspath(path)
    lockfile = read_lockfile(where)
    pinned = {pin.cubin for pin in lockfile.pins}
    given: dict[str, Receipt] = {}
    for receipt in receipts:
        _check(receipt)
        if receipt.cubin not in pinned:
            raise LockfileError(f"{where} has no pin for the cubin {receipt.cubin} of a receipt; see `kreg check`")
        given[receipt.cubin] = receipt
    pins = [replace(pin, receipt=given.get(pin.cubin, pin.receipt)) for pin in lockfile.pins]
    run = {parse_spec_text(pin.spec).target or "" for pin in pins if pin.cubin in given}
    written = replace(lockfile, pins=tuple(pins), hardware=tuple(sorted({*lockfile.hardware, *run})))
    write_lockfile(where, written)
    return written


def _check(receipt: Receipt) -> None:
    complaint = _complaint(receipt)
    if complaint:
        raise LockfileError(f"receipt for {receipt.cubin!s:.12}: {complaint}")


def _complaint(receipt: Receipt) -> str | None:
    try:
        convert(asdict(receipt), Receipt)  # Nothing else proves the types of what is built in Python.
    except ValidationError as error:
        return str(error)
    for name in ("cubin", "tests"):
        digest = getattr(receipt, name)
        if len(digest) != 64 or not is_hex(digest):
            return f"{name} is {digest!r}, not 64 hex digits"
    if not 0 < receipt.passed <= receipt.total:
        return f"{receipt.passed} of {receipt.total} tests passed; it takes at least one, and no more than there were"
    return None if _is_date(receipt.date) else f"date is {receipt.date!r}, not one such as 2026-12-01"


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def digest_of_tests(folder: str | os.PathLike[str]) -> str:
    """Return the SHA-256 over the names and contents of the Python files below ``folder``."""
    parts: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                with open(path, "rb") as file:
                    parts[os.path.relpath(path, folder)] = sha256(file.read())
    return sha256(canonical(parts, "tests"))
