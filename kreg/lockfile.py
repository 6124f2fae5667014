"""Lockfiles: ``kreg.lock``, which pins every artifact of a project, one line each, to be read in a review.

Reading proves the whole file: its form, the order of the pins, the length of every digest, and that each receipt is
for the cubin beside it. A newer ``version`` is refused; a newer ``revision`` is read, and never written over.
"""

from __future__ import annotations

import os

import msgspec

from kreg.digest import is_hex
from kreg.errors import LockfileError, SpecError, StoreError
from kreg.files import read_file, replace_file
from kreg.spec import parse_spec_text, parse_target, reading_order
from kreg.toolchain import Toolchain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kreg.manifest import Manifest

VERSION, REVISION = 1, 1
_LIMIT = 1 << 28
_MARKERS = (b"<<<<<<< ", b"=======\n", b">>>>>>> ", b"||||||| ")


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """That a cubin passed its tests on a device.

    ``cubin`` is its SHA-256; ``suite`` the tests' name and ``tests`` the SHA-256 of their files; ``device``, ``driver``
    (the CUDA version it supports) and ``torch`` what they ran on, ``date`` when (UTC, ISO 8601). ``passed`` tests ran
    this cubin, of ``total`` that ran in all.
    """

    cubin: str
    suite: str
    tests: str
    device: str
    driver: str
    torch: str
    date: str
    passed: int
    total: int


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What a lockfile says of one variant.

    ``spec`` and its ``key``; the name of its ``toolchain`` in the lockfile's head. ``registers`` and ``local_bytes``
    (spilled registers and local arrays) per thread, ``shared_bytes`` per block, ``code_bytes`` of machine code,
    ``cubin_bytes`` in all. ``cubin`` is the SHA-256 of the cubin, ``program`` of all in it that a device gets to see,
    ``source`` the source digest.
    """

    spec: str
    toolchain: str
    registers: int
    shared_bytes: int
    local_bytes: int
    code_bytes: int
    cubin_bytes: int
    key: str
    cubin: str
    program: str
    source: str
    receipt: Receipt | None = None


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What a lockfile is about, as selectors are written; nothing means every declared kernel, target and value."""

    kernels: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    params: tuple[str, ...] = ()


class Lockfile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lockfile.

    ``toolchains`` maps a backend's label to its distributions and their versions. ``hardware`` lists the targets
    whose cubins have been tested on a device, now or earlier.
    """

    version: int = VERSION
    revision: int = REVISION
    selection: Selection = Selection()
    toolchains: dict[str, dict[str, str]]
    hardware: tuple[str, ...] = ()
    pins: tuple[Pin, ...]

    def toolchain(self, pin: Pin) -> Toolchain:
        """Return the toolchain that made a pin's cubin."""
        return Toolchain(backend=pin.toolchain, distributions=self.toolchains[pin.toolchain])

    def cubins(self) -> dict[str, str]:
        """Return the digest of each pinned cubin by entry key."""
        return {f"{pin.key}-{self.toolchain(pin).fingerprint}": pin.cubin for pin in self.pins}


class _Version(msgspec.Struct):
    version: int


def pin(spec: str, manifest: Manifest, toolchain: str, receipt: Receipt | None = None) -> Pin:
    """Make the pin of an artifact; ``receipt`` is kept if it is for the same cubin."""
    return Pin(
        spec=spec,
        toolchain=toolchain,
        registers=manifest.registers,
        shared_bytes=manifest.shared_bytes,
        local_bytes=manifest.local_bytes,
        code_bytes=manifest.code_bytes,
        cubin_bytes=manifest.cubin_bytes,
        key=manifest.spec_key,
        cubin=manifest.cubin_digest,
        program=manifest.program_digest,
        source=manifest.source_digest,
        receipt=receipt if receipt is not None and receipt.cubin == manifest.cubin_digest else None,
    )


def pin_order(spec: str) -> tuple[object, ...]:
    """Return what pins are sorted by: kernel, version, target, then the parameters, numbers by value."""
    parts = parse_spec_text(spec)
    return reading_order(parts.kernel, parts.version or 0, parts.target or "", parts.params)


def variant_of(spec: str) -> tuple[str, str | None, frozenset[tuple[str, str]]]:
    """Return what makes a variant the same in two versions of a kernel: name, target and parameters."""
    parts = parse_spec_text(spec)
    return parts.kernel, parts.target, frozenset(parts.params)


def encode(lockfile: Lockfile) -> bytes:
    """Return the bytes of a lockfile, the same for the same content: a member of the head, then a pin, per line."""
    head = [
        _member("version", lockfile.version),
        _member("revision", lockfile.revision),
        _member("selection", lockfile.selection),
        _member("toolchains", dict(sorted(lockfile.toolchains.items()))),
        _member("hardware", sorted(lockfile.hardware)),
    ]
    pins = sorted(lockfile.pins, key=lambda pin: pin_order(pin.spec))
    body = ",\n".join(msgspec.json.encode(pin).decode() for pin in pins)
    return ("{\n" + ",\n".join(head) + ',\n"pins":[\n' + body + "\n]\n}\n").encode()


def _member(name: str, value: object) -> str:
    return f'"{name}":{msgspec.json.encode(value).decode()}'


def read_lockfile(path: str) -> Lockfile:
    """Read and prove a lockfile. Raises ``LockfileError`` that says where it is wrong."""
    found = find_lockfile(path)
    if found is None:
        raise LockfileError(f"there is no lockfile {path}; write one with `kreg lock`, or name another")
    return found


def find_lockfile(path: str) -> Lockfile | None:
    """Read and prove a lockfile, or return None if there is none. Raises ``LockfileError``."""
    try:
        data = read_file(os.path.realpath(path), _LIMIT)
    except StoreError as error:
        raise LockfileError(f"cannot read the lockfile: {error}") from error
    return None if data is None else decode(data, path)


def decode(data: bytes, path: str) -> Lockfile:
    """Read and prove the bytes of a lockfile. Raises ``LockfileError`` that names ``path`` and the place in it."""
    _refuse_conflict(data, path)
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version == VERSION:
            lockfile = msgspec.json.decode(data, type=Lockfile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LockfileError(f"{path} is not a lockfile: {_locate(str(error), data)}") from error
    if version != VERSION:
        raise LockfileError(f"{path} has version {version}; this kreg reads version {VERSION}: install a newer kreg")
    _check(lockfile, path)
    return lockfile


def _locate(message: str, data: bytes) -> str:
    """Put the line where a JSON error has the byte."""
    start, found, rest = message.partition(" (byte ")
    number = rest.removesuffix(")")
    return f"{start}, in line {data[: int(number)].count(10) + 1}" if found and number.isdecimal() else message


def write_lockfile(path: str, lockfile: Lockfile) -> bool:
    """Write a lockfile, whole or not at all, and say whether it is another than before. Raises ``LockfileError``."""
    if lockfile.revision > REVISION:
        raise LockfileError(f"{path} has revision {lockfile.revision}, written by a newer kreg; write it with that one")
    data = encode(lockfile)
    real = os.path.realpath(path)
    try:
        if read_file(real, _LIMIT) == data:
            return False
        replace_file(real, [data])
    except (OSError, StoreError) as error:
        raise LockfileError(f"cannot write the lockfile {path}: {error}") from error
    return True


def _refuse_conflict(data: bytes, path: str) -> None:
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if line.startswith(_MARKERS):
            raise LockfileError(
                f"{path}, line {number}: a merge conflict; take either side (`git checkout --ours {path}`), then run "
                f"`kreg lock`"
            )


def _check(lockfile: Lockfile, path: str) -> None:
    before: tuple[str, tuple[object, ...]] | None = None
    keys: dict[str, str] = {}
    for number, pin in enumerate(lockfile.pins, 1):
        where = f"{path}, pin {number} (`{pin.spec}`)"
        try:
            order = pin_order(pin.spec)
            _check_pin(pin, lockfile.toolchains)
        except (SpecError, ValueError) as error:
            raise LockfileError(f"{where}: {error}") from error
        if before is not None and before[1] >= order:
            what = "is there twice" if before[1] == order else f"stands after `{before[0]}`"
            raise LockfileError(f"{where}: it {what}; `kreg lock` writes pins in order")
        if pin.key in keys:
            raise LockfileError(f"{where}: it has the key of `{keys[pin.key]}`")
        before, keys[pin.key] = (pin.spec, order), pin.spec
    for target in lockfile.hardware:
        try:
            parse_target(target)
        except SpecError as error:
            raise LockfileError(f"{path}, hardware: {error}") from error


def _check_pin(pin: Pin, toolchains: Mapping[str, object]) -> None:
    parts = parse_spec_text(pin.spec)
    if parts.version is None or parts.target is None:
        raise ValueError("a pin's spec has a version and a target")
    if pin.toolchain not in toolchains:
        raise ValueError(f"its toolchain {pin.toolchain!r} is not in the head of the file")
    for name in ("key", "cubin", "program", "source"):
        digest = getattr(pin, name)
        if len(digest) != 64 or not is_hex(digest):
            raise ValueError(f"{name} is {digest!r}, not 64 hex digits")
    if pin.receipt is not None and pin.receipt.cubin != pin.cubin:
        raise ValueError(f"its receipt is for another cubin, {pin.receipt.cubin[:12]}, not {pin.cubin[:12]}")
