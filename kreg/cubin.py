"""A read-only view of a cubin: what the ELF image says about its architecture and its kernels.

Bounds are checked before every read; anything that does not fit raises ``CubinError``. Nothing here loads, runs or
changes code. Layouts are those that ``readelf`` and ``cuobjdump -elf`` show for images of ptxas 12.9 and 13.0;
the attribute numbers of ``.nv.info`` are those ``cuobjdump -elf`` prints by name.
"""

from __future__ import annotations

from struct import Struct

from kreg.digest import sha256
from kreg.errors import CubinError
from kreg.record import Record

MACHINE_CUDA = 190
_HEADER = Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_IDENTITY = Struct("<4sBBxxB7xxxH20xQI6xHHxx")
"""Of the header: magic, word size, byte order, ABI version, machine, section table, flags, its row size and rows."""
_SECTION = Struct("<IIQQQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_NOBITS, _SYMTAB = 8, 2
_SECTION_LIMIT = 65536
_NAMES = 4
"""How many times the bytes of an image its section names may have: some share an ending, but not many a long one."""

_CODE = (".text.", ".rel.text.", ".rela.text.", ".nv.constant", ".nv.global")
"""Beginnings of the names of the sections that are the machine code: instructions, what they name, and their data."""

_REQNTID, _FRAME_SIZE, _KPARAM_INFO, _CBANK_PARAM_SIZE, _REGCOUNT = 0x10, 0x11, 0x17, 0x19, 0x2F
_SIZED_FORMAT = 4


class Section(Record):
    """One ELF section: name, type, its bytes (empty for NOBITS), and the size it declares."""

    __slots__ = ("name", "kind", "data", "size", "link", "info")
    name: str
    kind: int
    data: bytes
    size: int
    link: int
    info: int

    def __init__(self, *, name: str, kind: int, data: bytes, size: int, link: int, info: int) -> None:
        self._set(name=name, kind=kind, data=data, size=size, link=link, info=info)


class KernelFacts(Record):
    """What a cubin records about one kernel.

    ``parameters`` is (offset, size) in bytes per parameter, in order; ``parameter_bytes`` their space in all.
    ``registers`` per thread; ``local_bytes`` of stack frame per thread; ``static_shared_bytes`` and ``code_bytes``
    per block and in all; ``threads`` is the block shape the code was compiled for, or None.
    """

    __slots__ = (
        "symbol", "parameters", "parameter_bytes", "registers", "local_bytes", "static_shared_bytes",
        "code_bytes", "threads",
    )  # fmt: skip
    symbol: str
    parameters: tuple[tuple[int, int], ...]
    parameter_bytes: int
    registers: int
    local_bytes: int
    static_shared_bytes: int
    code_bytes: int
    threads: tuple[int, int, int] | None

    def __init__(
        self,
        *,
        symbol: str,
        parameters: tuple[tuple[int, int], ...],
        parameter_bytes: int,
        registers: int,
        local_bytes: int,
        static_shared_bytes: int,
        code_bytes: int,
        threads: tuple[int, int, int] | None,
    ) -> None:
        self._set(
            symbol=symbol,
            parameters=parameters,
            parameter_bytes=parameter_bytes,
            registers=registers,
            local_bytes=local_bytes,
            static_shared_bytes=static_shared_bytes,
            code_bytes=code_bytes,
            threads=threads,
        )


class Cubin:
    """A view of an image. Raises ``CubinError`` if ``data`` is not a CUDA ELF image, or is cut short.

    The sections are read when first asked for; one that lies outside the image is found out then.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.architecture, self.is_specific = _read_architecture(data)
        self._sections: tuple[Section, ...] | None = None

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections, in order."""
        if self._sections is None:
            self._sections = _read_sections(self.data)
        return self._sections

    def names(self, symbol: str) -> bool:
        """Say whether the image holds the name of a code section for ``symbol``; far quicker than ``kernels``."""
        return f".text.{symbol}\0".encode() in self.data

    def matches(self, target: str) -> bool:
        """Say whether the image can have been made for ``target``.

        The header has the number, and the suffix ``a`` where code depends on it: ptxas 12.9 always says so, ptxas
        13.0 only of an image that uses such a feature. So an ``a`` image is for an ``a`` target alone, and an image
        without it may be for any target of its number. The suffix ``f`` leaves no mark.
        """
        plain = target.rstrip("af")
        return self.describe_architecture() == target or (not self.is_specific and f"sm_{self.architecture}" == plain)

    def describe_architecture(self) -> str:
        """Return the architecture as the header has it: ``sm_90a``."""
        return f"sm_{self.architecture}{'a' if self.is_specific else ''}"

    def kernels(self) -> list[str]:
        """Return the symbols of all kernels in the image, sorted."""
        prefix = ".nv.info."
        return sorted(s.name[len(prefix) :] for s in self.sections if s.name.startswith(prefix))

    def code_digest(self) -> str:
        """Return the SHA-256 over code, constants and global variables alone: equal exactly if the machine code is.

        What names source lines or paths is left out.
        """
        parts = [s for s in self.sections if s.name.startswith(_CODE)]
        lines = [f"{s.name} {s.size} {sha256(s.data)}" for s in sorted(parts, key=lambda s: s.name)]
        return sha256("\n".join(lines).encode())

    def facts(self, symbol: str) -> KernelFacts:
        """Return what the image records about the kernel ``symbol``. Raises ``CubinError`` if it has none."""
        code = self._section(f".text.{symbol}")
        info = _attributes(self._section(f".nv.info.{symbol}"))
        shared = [s.size for s in self.sections if s.name == f".nv.shared.{symbol}"]
        threads = [_words(data, 3) for attribute, data in info if attribute == _REQNTID]
        sizes = [value for attribute, value in info if attribute == _CBANK_PARAM_SIZE]
        return KernelFacts(
            symbol=symbol,
            parameters=_parameters(info),
            parameter_bytes=int.from_bytes(sizes[0], "little") if sizes else 0,
            registers=self._symbol_attribute(symbol, _REGCOUNT),
            local_bytes=self._symbol_attribute(symbol, _FRAME_SIZE),
            static_shared_bytes=sum(shared),
            code_bytes=code.size,
            threads=(threads[0][0], threads[0][1], threads[0][2]) if threads else None,
        )

    def _section(self, name: str) -> Section:
        for section in self.sections:
            if section.name == name:
                return section
        raise CubinError(f"cubin has no section {name!r}; its kernels are {', '.join(self.kernels()) or 'none'}")

    def _symbol_attribute(self, symbol: str, attribute: int) -> int:
        index = self._symbol_index(symbol)
        for found, data in _attributes(self._section(".nv.info")):
            if found == attribute:
                words = _words(data, 2)
                if words[0] == index:
                    return words[1]
        return 0

    def _symbol_index(self, symbol: str) -> int:
        table = self._section(".symtab")
        if not 0 <= table.link < len(self.sections):
            raise CubinError("cubin's symbol table names no string table")
        names = self.sections[table.link].data
        wanted = symbol.encode() + b"\0"
        for index in range(len(table.data) // _SYMBOL.size):
            name = _SYMBOL.unpack_from(table.data, index * _SYMBOL.size)[0]
            if names.startswith(wanted, name):
                return index
        raise CubinError(f"cubin has no symbol {symbol!r}")


def _read_architecture(data: bytes) -> tuple[int, bool]:
    """Return (number, suffix ``a``) from ``e_flags`` of a header that fits the image.

    ABI version 7 (ptxas for sm_90 and before): number in bits 0-7, suffix in bit 11. Version 8 (sm_100 and
    after): number in bits 8-23, suffix in bit 3. Both seen with all targets from sm_80 to sm_121a (2026-12-01).
    """
    if len(data) < _HEADER.size:
        raise CubinError(f"cubin has {len(data)} bytes, fewer than an ELF header")
    magic, bits, order, abi, machine, table, flags, row, rows = _IDENTITY.unpack_from(data)
    if magic != b"\x7fELF" or (bits, order) != (2, 1):
        raise CubinError("cubin is not a 64-bit little-endian ELF image")
    if machine != MACHINE_CUDA:
        raise CubinError(f"cubin is an ELF image for machine {machine}, not for CUDA ({MACHINE_CUDA})")
    if table + row * rows > len(data):
        raise CubinError(f"cubin is cut short: {table + row * rows} bytes needed, {len(data)} there")
    if abi >= 8:
        return (flags >> 8) & 0xFFFF, bool(flags & 0x8)
    return flags & 0xFF, bool(flags & 0x800)


def _read_sections(data: bytes) -> tuple[Section, ...]:
    fields = _HEADER.unpack_from(data)
    offset, entry_size, count, names_index = fields[11], fields[16], fields[17], fields[18]
    if count == 0 or entry_size != _SECTION.size or count > _SECTION_LIMIT or names_index >= count:
        raise CubinError("cubin has no readable section table")
    rows = [_SECTION.unpack_from(_slice(data, offset + i * entry_size, entry_size)) for i in range(count)]
    if sum(row[5] for row in rows if row[1] not in (0, _NOBITS) and row[4] + row[5] <= len(data)) > len(data):
        raise CubinError("cubin has sections that lie over each other")  # Each is copied: it could be a bomb.
    names = _slice(data, rows[names_index][4], rows[names_index][5])
    if sum(_end_of(names, row[0]) - row[0] for row in rows) > _NAMES * len(data):
        raise CubinError("cubin has section names that lie over each other")
    return tuple(
        Section(
            name=_string(names, row[0]),
            kind=row[1],
            data=b"" if row[1] in (0, _NOBITS) else _slice(data, row[4], row[5]),
            size=row[5],
            link=row[6],
            info=row[7],
        )
        for row in rows
    )


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise CubinError(f"cubin is cut short: {offset + size} bytes needed, {len(data)} there")
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    return table[offset : _end_of(table, offset)].decode("utf-8", "replace")


def _end_of(table: bytes, offset: int) -> int:
    end = table.find(b"\0", offset)
    if end < 0:
        raise CubinError("cubin has a name outside its string table")
    return end


def _attributes(section: Section) -> list[tuple[int, bytes]]:
    """Split an ``.nv.info`` section into (attribute, value): format, attribute and 16 bits of value or size."""
    found, data, at = [], section.data, 0
    while at + 4 <= len(data):
        kind, attribute = data[at], data[at + 1]
        size = int.from_bytes(data[at + 2 : at + 4], "little")
        if kind == _SIZED_FORMAT:
            found.append((attribute, _slice(data, at + 4, size)))
            at += size
        else:
            found.append((attribute, data[at + 2 : at + 4]))
        at += 4
    return found


def _words(data: bytes, count: int) -> list[int]:
    if len(data) < 4 * count:
        raise CubinError("cubin has a kernel attribute that is cut short")
    return [int.from_bytes(data[4 * i : 4 * i + 4], "little") for i in range(count)]


def _parameters(info: list[tuple[int, bytes]]) -> tuple[tuple[int, int], ...]:
    """Return (offset, size) of each parameter: ordinal and offset are 16 bits each, the size starts at bit 18."""
    found = {}
    for attribute, data in info:
        if attribute == _KPARAM_INFO:
            _, place, size = _words(data, 3)
            found[place & 0xFFFF] = (place >> 16, size >> 18)
    return tuple(found[ordinal] for ordinal in sorted(found))
