"""Tiny CUDA ELF images, built from nothing, for tests that need a cubin and no compiler.

An image has the sections that ptxas writes for one kernel and that ``kreg.cubin`` reads. The layouts are written down
here a second time, so that a mistake in the reader is not repeated by the writer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

PROGBITS, SYMTAB, STRTAB, NOBITS, CUDA_INFO = 1, 2, 3, 8, 0x70000000
HEADER_BYTES, SECTION_BYTES = 64, 64
REQNTID, FRAME_SIZE, KPARAM_INFO, CBANK_PARAM_SIZE, REGCOUNT = 0x10, 0x11, 0x17, 0x19, 0x2F


def make_cubin(
    target: str = "sm_90a",
    symbol: str = "tiny",
    *,
    parameters: Sequence[tuple[int, int]] = ((0, 8), (8, 8), (16, 4)),
    registers: int = 24,
    local_bytes: int = 0,
    shared_bytes: int = 512,
    threads: tuple[int, int, int] | None = (128, 1, 1),
    code: bytes = bytes(range(128)),
) -> bytes:
    """Return an image with one kernel; ``parameters`` is (offset, size) in bytes."""
    strings = b"\0" + symbol.encode() + b"\0"
    # The null symbol, then the kernel's, of type function and binding global.
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0x10, 8, 0, len(code))
    attributes = _sized(REGCOUNT, 1, registers) + _sized(FRAME_SIZE, 1, local_bytes)
    size = max((offset + size for offset, size in parameters), default=0)
    own = b"".join(_parameter(number, *place) for number, place in enumerate(parameters))
    own += struct.pack("<BBH", 3, CBANK_PARAM_SIZE, size)
    own += _sized(REQNTID, *threads) if threads else b""
    sections = [
        ("", 0, b"", 0),
        (".shstrtab", STRTAB, None, 0),
        (".strtab", STRTAB, strings, 0),
        (".symtab", SYMTAB, symbols, 2),
        (".nv.info", CUDA_INFO, attributes, 3),
        (f".nv.info.{symbol}", CUDA_INFO, own, 3),
        (f".nv.shared.{symbol}", NOBITS, shared_bytes, 0),
        (f".nv.constant0.{symbol}", PROGBITS, bytes(0x210 + size), 0),
        (f".text.{symbol}", PROGBITS, code, 3),
    ]
    return _assemble(target, sections)


def architecture_flags(target: str) -> tuple[int, int]:
    """Return (ABI version, ``e_flags``) of an image for ``target``; a family image looks like a plain one."""
    digits = target.removeprefix("sm_").rstrip("af")
    number, is_specific = int(digits), target.endswith("a")
    if number >= 100:
        return 8, number << 8 | (8 if is_specific else 0)
    return 7, number | number << 16 | (0x800 if is_specific else 0) | 0x500


def _sized(attribute: int, *words: int) -> bytes:
    return struct.pack(f"<BBH{len(words)}I", 4, attribute, 4 * len(words), *words)


def _parameter(ordinal: int, offset: int, size: int) -> bytes:
    return _sized(KPARAM_INFO, 0, ordinal | offset << 16, size << 18 | 0x1F000)


def _assemble(target: str, sections: Sequence[tuple[str, int, bytes | int | None, int]]) -> bytes:
    names = "".join(f"{name}\0" for name, *_ in sections).encode()
    body, rows, name_at = bytearray(), [], 0
    for name, kind, data, link in sections:
        content = names if data is None else data
        held = content if isinstance(content, bytes) else b""
        size = len(content) if isinstance(content, bytes) else content
        place = HEADER_BYTES + len(body)
        info, each = (1, 24) if kind == SYMTAB else (0, 0)
        rows.append(struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, place, size, link, info, 1, each))
        body += held
        name_at += len(name) + 1
    abi, flags = architecture_flags(target)
    header = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        b"\x7fELF", 2, 1, 1, 51, abi, 2, 190, 1, 0, 0, HEADER_BYTES + len(body), flags,
        HEADER_BYTES, 0, 0, SECTION_BYTES, len(rows), 1,
    )  # fmt: skip
    return header + bytes(body) + b"".join(rows)
