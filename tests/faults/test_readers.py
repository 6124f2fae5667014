"""Readers of untrusted bytes: they return or raise kreg's own errors, whatever the bytes (``readers.py``).

``fuzz_readers.py`` looks for inputs for long, guided by coverage; here are some hundreds made at random, those in
``inputs/``, and such as would take memory or time out of proportion.
"""

from __future__ import annotations

import copy
import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from readers import SEEDS, TARGETS, fuzz_cubin, fuzz_lockfile, fuzz_manifest, fuzz_spec, signed
from tiny_elf import HEADER_BYTES, NOBITS, PROGBITS, STRTAB, SYMTAB, make_cubin

from kreg.header import NAMES

FOUND = Path(__file__).parent / "inputs"
MANY = 300
PROPORTION = 64
"""Bytes of memory that a reader may hold for each byte of a large input."""
SLOWEST = 5.0
"""Seconds of this process that a reader may take for an input of a mebibyte."""

ODD_TEXTS = ("", "\0", "a]b", 'a"b', "a,b=c", "\ud800", "e\u0301", "\u00e9", "../..", "sm_90aaf", "sm_90", "x" * 300)
ODD_NUMBERS = (-1, 0, 1, 10**9, 2**31, 2**63, 2**64, 2**70, -(2**63) - 1, 10**400, 10**4299 * 9)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(ODD_NUMBERS)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(ODD_TEXTS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.sampled_from(ODD_TEXTS), inner, max_size=3)
    ),
    max_leaves=5,
)


def examples(count: int, *strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with ``count`` examples."""
    return lambda test: settings(max_examples=count)(given(*strategies)(test))


@st.composite
def changed(draw: DrawFn, seeds: list[bytes]) -> bytes:
    """Return a valid input with bytes flipped, cut out, put in, or taken from another one."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 64) | st.just(len(data))))
        other = draw(st.sampled_from(seeds))
        place = draw(st.integers(0, len(other)))
        piece = draw(
            st.sampled_from(
                [
                    b"",
                    bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[start : start + 1]),
                    other[place : place + draw(st.integers(0, 64))],
                ]
            )
            | st.binary(max_size=8)
            | st.sampled_from([text.encode("utf-8", "surrogatepass") for text in ODD_TEXTS])
        )
        data = data[:start] + piece + data[end:]
    return data


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, name or index) of everything in JSON data."""
    for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, name
        yield from places(value[name])


@st.composite
def misshapen(draw: DrawFn, seeds: list[bytes]) -> dict[str, Any]:
    """Return the JSON of a valid input with some values replaced, removed or added."""
    fields = copy.deepcopy(json.loads(draw(st.sampled_from(seeds))))
    for _ in range(draw(st.integers(1, 3))):
        holder, name = draw(st.sampled_from(list(places(fields)) or [(fields, "pins")]))
        action = draw(st.sampled_from(["replace", "replace", "remove", "rename", "repeat"]))
        if action == "replace":
            holder[name] = draw(JSON)
        elif action == "remove":
            del holder[name]
        elif isinstance(holder, dict):
            holder[draw(st.sampled_from(ODD_TEXTS) | st.text(max_size=4))] = holder[name]
        else:
            holder.insert(name, holder[name])
    return fields


@st.composite
def misshapen_manifests(draw: DrawFn) -> bytes:
    """Return a manifest of some JSON, laid out as a manifest is, some of its members twice."""
    fields = draw(misshapen(SEEDS["manifest"][:2]))
    keys = {name: fields.pop(name, "0" * 64) for name in NAMES}
    members = [(name, value) for name, value in fields.items() if name not in {"manifest", "digest"}]
    members += [(name, draw(JSON)) for name in draw(st.lists(st.sampled_from([*NAMES, *fields]), max_size=1))]
    lines = [",".join(f'"{name}":{json.dumps(value)}' for name, value in keys.items())]
    lines += [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members]
    return signed((",\n".join(lines) + "}\n").encode())


FIELDS = [
    # The ELF header: kind, machine, version, entry, tables, flags, sizes and counts.
    ("B", 4), ("B", 5), ("B", 8), ("H", 18), ("Q", 32), ("Q", 40), ("I", 48), ("H", 58), ("H", 60), ("H", 62),
]  # fmt: skip
ROW = [("I", 0), ("I", 4), ("Q", 24), ("Q", 32), ("I", 40), ("I", 44)]
"""A row of the section table: name, type, place, size, link and info."""
NUMBERS = st.sampled_from([0, 1, 2, 8, 24, 63, 64, 65, 255, 1500, 4096, 2**16 - 1, 2**32 - 1, 2**60, 2**64 - 1])


@st.composite
def misshapen_images(draw: DrawFn) -> bytes:
    """Return an image with other numbers in its header, its section table, or anywhere."""
    data = bytearray(draw(st.sampled_from(SEEDS["cubin"])))
    table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    for _ in range(draw(st.integers(1, 4))):
        row = table + 64 * draw(st.integers(0, count - 1))
        kind, place = draw(
            st.sampled_from(FIELDS)
            | st.sampled_from([(kind, row + offset) for kind, offset in ROW])
            | st.tuples(st.sampled_from("BHIQ"), st.integers(0, len(data) - 8))
        )
        value = draw(NUMBERS | st.integers(0, 2**64 - 1) | st.integers(0, 2 * len(data)))
        struct.pack_into(f"<{kind}", data, place, value % (1 << 8 * struct.calcsize(kind)))
    return bytes(data)


WORDS = st.sampled_from([
    "fake", "odd", "@1", "@10", "@", "[", "]", ",", "=", ":", "size", "note", "mode", "count", "on", "word", "1", "2",
    "-1", "true", "false", "plain", '"', "\\", '"two words"', '"a,b"', '"x]y"', '"\\ud800"', ":sm_90a", "sm_100f",
    "\nkfake", "\nkodd@10", "\ntsm_90a", "\npsize=1", "\npon=true", '\npword="a,b"', "\np", "\n", "9" * 20, "\u0661",
])  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_reader_of_any_bytes_returns_or_refuses(name: str, is_long: bool):
    @examples(20_000 if is_long else MANY, st.binary(max_size=300))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("name", TARGETS)
def test_reader_of_a_changed_input_returns_or_refuses(name: str, is_long: bool):
    @examples(20_000 if is_long else MANY, changed(SEEDS[name]))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


def test_reader_of_manifests_takes_json_of_any_shape(is_long: bool):
    examples(20_000 if is_long else MANY, misshapen_manifests())(fuzz_manifest)()


def test_reader_of_lockfiles_takes_json_of_any_shape(is_long: bool):
    shapes = misshapen(SEEDS["lockfile"]).map(lambda fields: json.dumps(fields).encode())
    examples(20_000 if is_long else MANY, shapes)(fuzz_lockfile)()


def test_reader_of_specs_takes_words_in_any_order(is_long: bool):
    texts = st.lists(WORDS, max_size=16).map(lambda words: "".join(words).encode())
    examples(50_000 if is_long else 2 * MANY, texts)(fuzz_spec)()


def test_reader_of_images_takes_any_number_in_any_field(is_long: bool):
    examples(50_000 if is_long else 2 * MANY, misshapen_images())(fuzz_cubin)()


@pytest.mark.parametrize("name", TARGETS)
def test_reader_takes_what_fuzzing_has_found(name: str):
    found = sorted((FOUND / name).iterdir())
    assert 0 < len(found) <= 100
    for path in found:
        data = path.read_bytes()
        assert len(data) <= 8192
        TARGETS[name](data)


def make_image(rows: list[tuple[int, int, int, int, int]], body: bytes, claimed: int | None = None) -> bytes:
    """Return an image of some bytes, and section rows of name, type, place, size and link; the names are in row 1."""
    header = bytearray(make_cubin()[:HEADER_BYTES])
    struct.pack_into("<Q", header, 40, HEADER_BYTES + len(body))
    struct.pack_into("<H", header, 60, len(rows) if claimed is None else claimed)
    packed = [struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, *rest, 0, 0, 0) for name, kind, *rest in rows]
    return bytes(header) + body + b"".join(packed)


NAMES_TABLE = b"\0.text.tiny\0.nv.info.tiny\0.nv.info\0.symtab\0"


def overlapping_sections() -> bytes:
    """Return an image of 128 KiB with 1,000 code sections, each of 64 KiB, all in one place."""
    body = NAMES_TABLE + bytes(1 << 16)
    return make_image(
        [(0, 0, 0, 0, 0), (0, STRTAB, 64, len(NAMES_TABLE), 0)] + 1000 * [(1, PROGBITS, 64, 1 << 16, 0)], body
    )


def long_names() -> bytes:
    """Return an image of 128 KiB with 1,000 sections, each named by 64 KiB, all in one place."""
    body = b"x" * (1 << 16) + b"\0"
    return make_image([(0, 0, 0, 0, 0), (0, STRTAB, 64, len(body), 0)] + 1000 * [(0, NOBITS, 0, 0, 0)], body)


def symbols_with_long_names() -> bytes:
    """Return an image of 1 MiB that is half a name, half symbols of that name."""
    name, symbols = b"x" * (1 << 19) + b"\0", bytes(24 * ((1 << 19) // 24))
    body = NAMES_TABLE + name + symbols
    at = HEADER_BYTES + len(NAMES_TABLE)
    rows = [(0, 0, 0, 0, 0), (0, STRTAB, HEADER_BYTES, len(NAMES_TABLE), 0)]
    for row, (wanted, kind) in enumerate([(b".text.tiny", PROGBITS), (b".nv.info.tiny", 1), (b".nv.info", 1)]):
        rows.append((NAMES_TABLE.index(b"\0" + wanted + b"\0") + 1, kind, at, row, 0))
    rows.append((NAMES_TABLE.index(b".symtab"), SYMTAB, at + len(name), len(symbols), 6))
    rows.append((0, STRTAB, at, len(name), 0))
    return make_image(rows, body)


def with_member(member: bytes) -> bytes:
    """Return a manifest with one member more."""
    return signed(SEEDS["manifest"][0].partition(b"\n")[2][:-2] + b"," + member + b"}\n")


def with_params(params: bytes) -> bytes:
    """Return a manifest with other parameters."""
    return SEEDS["manifest"][0].replace(b'"params":{"size":1}', b'"params":{' + params + b"}")


MIB = 1 << 20
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nesting": ("manifest", lambda: with_member(b'"x":' + b"[" * MIB)),
    "nesting of objects": ("manifest", lambda: with_member(b'"x":' + b'{"x":' * (MIB // 5))),
    "nested parameters": ("manifest", lambda: with_params(b'"size":' + b"[" * MIB)),
    "digits": ("manifest", lambda: SEEDS["manifest"][0].replace(b":24,", b":" + b"9" * 100_000 + b",")),
    "digits of a parameter": ("manifest", lambda: with_params(b'"size":' + b"9" * 100_000)),
    "digits of a format": ("manifest", lambda: b'{"manifest":' + b"9" * MIB + b","),
    "digits of a number that is not read": ("manifest", lambda: with_member(b'"x":' + b"9" * MIB)),
    "exponent": ("manifest", lambda: with_params(b'"size":1e999999999')),
    "not a number": ("manifest", lambda: with_params(b'"size":NaN')),
    "one name many times": ("manifest", lambda: with_params(b",".join([b'"size":1'] * (MIB // 9)))),
    "many parameters": ("manifest", lambda: with_params(b",".join(b'"p%d":1' % i for i in range(MIB // 12)))),
    "a member many times": ("manifest", lambda: with_member(b",".join([b'"spec_key":""'] * (MIB // 14)))),
    "long string": ("manifest", lambda: with_params(b'"size":"' + b"x" * MIB + b'"')),
    "long string of escapes": ("manifest", lambda: with_params(b'"size":"' + b"\\u00e9" * (MIB // 6) + b'"')),
    "no UTF-8": ("manifest", lambda: with_params(b'"size":"' + b"\xff" * MIB + b'"')),
    "long version": ("manifest", lambda: SEEDS["manifest"][0].replace(b'"version":1', b'"version":' + b"9" * 4000)),
    "many assignments": ("spec", lambda: b"fake[" + b"a=1," * (MIB // 4) + b"a=1]"),
    "many brackets": ("spec", lambda: b"fake" + b"[" * MIB),
    "open string": ("spec", lambda: b'fake[note="' + b"x" * MIB),
    "many backslashes": ("spec", lambda: b'fake[note="' + b"\\" * MIB + b'"]'),
    "long name": ("spec", lambda: b"x" * MIB + b"\nk" + b"x" * MIB),
    "long value": ("spec", lambda: b"fake[note=" + b"x" * MIB + b"]\npnote=" + b"x" * MIB),
    "long number": ("spec", lambda: b"fake@" + b"9" * MIB + b"[size=" + b"9" * MIB + b"]:sm_" + b"9" * MIB),
    "long target": ("spec", lambda: b"fake:sm_90" + b"a" * MIB + b"\nt" + b"A" * MIB),
    "section table beyond everything": ("cubin", lambda: make_cubin()[:40] + b"\xff" * 60),
    "65,535 sections of nothing": ("cubin", lambda: make_image([], b"", 65535)),
    "sections in one place": ("cubin", overlapping_sections),
    "long names in one place": ("cubin", long_names),
    "symbols with long names": ("cubin", symbols_with_long_names),
    "many lines": ("lockfile", lambda: b"\n" * MIB),
    "nested lockfile": ("lockfile", lambda: b"[" * MIB),
    "nesting in a lockfile": ("lockfile", lambda: b'{"version":1,"x":' + b'{"x":' * (MIB // 5)),
    "digits of a lockfile": ("lockfile", lambda: b'{"version":' + b"9" * 100_000 + b"}"),
    "digits of a pin": ("lockfile", lambda: SEEDS["lockfile"][0].replace(b":24,", b":" + b"9" * 100_000 + b",")),
    "a pin many times": (
        "lockfile",
        lambda: b'{"version":1,"toolchains":{"fake":{}},"pins":[' + b",".join(pin_lines()[:1] * 2000) + b"]}",
    ),
    "long spec of a pin": ("lockfile", lambda: SEEDS["lockfile"][0].replace(b"fake@1[", b"fake@1[" + b"a=1," * MIB, 1)),
}  # fmt: skip


def pin_lines() -> list[bytes]:
    """Return the pins of a valid lockfile."""
    return [line.rstrip(b",") for line in SEEDS["lockfile"][0].splitlines() if line.startswith(b'{"spec"')]


@pytest.mark.parametrize("what", BOMBS)
def test_reader_takes_time_and_memory_in_proportion(what: str):
    name, make = BOMBS[what]
    data = make()
    tracemalloc.start()
    start = time.process_time()
    try:
        TARGETS[name](data)
        taken, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PROPORTION * len(data) + MIB, f"{peak / MIB:.0f} MiB for {len(data)} bytes"
    assert taken < SLOWEST, f"{taken:.1f} s for {len(data)} bytes"
