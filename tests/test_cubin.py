"""Cubins: what the image says, or an error; never anything else, whatever the bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_elf import HEADER_BYTES, make_cubin

from kreg.cubin import Cubin, KernelFacts
from kreg.errors import CubinError

TINY = make_cubin()


def look_at_everything(data: bytes) -> bool:
    """Ask an image for all it can say; False if it says that it is not one. Any other exception is a failure."""
    try:
        image = Cubin(data)
        image.describe_architecture()
        image.code_digest()
        image.names("tiny")
        for symbol in {"tiny", *image.kernels()}:
            image.facts(symbol)
    except CubinError:
        return False
    return True


@pytest.mark.parametrize("target", ["sm_50", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103a", "sm_120a"])
def test_architecture_is_the_target(target: str):
    image = Cubin(make_cubin(target))
    assert image.describe_architecture() == target
    assert image.matches(target)


def test_architecture_of_a_family_leaves_no_mark():
    assert Cubin(make_cubin("sm_100f")).describe_architecture() == "sm_100"


@pytest.mark.parametrize(
    ("made_for", "target", "answer"),
    [
        ("sm_90a", "sm_90", False),
        ("sm_100a", "sm_100", False),
        ("sm_100a", "sm_100f", False),
        ("sm_100a", "sm_101a", False),
        ("sm_90", "sm_80", False),
        ("sm_100", "sm_10", False),
        ("sm_120", "sm_100", False),
        # An image that uses no such feature carries no suffix, whichever target it was made for.
        ("sm_90", "sm_90a", True),
        ("sm_100", "sm_100a", True),
        ("sm_100", "sm_100f", True),
        ("sm_100f", "sm_100", True),
    ],
)
def test_image_matches_a_target_it_can_have_been_made_for(made_for: str, target: str, answer: bool):
    assert Cubin(make_cubin(made_for)).matches(target) is answer


def test_facts_are_what_the_image_was_made_of():
    image = Cubin(
        make_cubin(
            symbol="kernel_x",
            parameters=((0, 8), (8, 4), (16, 8)),
            registers=77,
            local_bytes=48,
            shared_bytes=9000,
            threads=(352, 2, 1),
            code=b"x" * 640,
        )
    )
    assert image.kernels() == ["kernel_x"]
    assert image.names("kernel_x")
    assert not image.names("kernel")
    assert image.facts("kernel_x") == KernelFacts(
        symbol="kernel_x",
        parameters=((0, 8), (8, 4), (16, 8)),
        parameter_bytes=24,
        registers=77,
        local_bytes=48,
        static_shared_bytes=9000,
        code_bytes=640,
        threads=(352, 2, 1),
    )


def test_facts_of_a_kernel_for_any_block_have_no_threads():
    assert Cubin(make_cubin(threads=None)).facts("tiny").threads is None


def test_facts_of_a_kernel_without_parameters():
    facts = Cubin(make_cubin(parameters=())).facts("tiny")
    assert (facts.parameters, facts.parameter_bytes) == ((), 0)


def test_facts_of_another_kernel_name_those_there_are():
    with pytest.raises(CubinError, match=re.escape("cubin has no section '.text.other'; its kernels are tiny")):
        Cubin(TINY).facts("other")


def test_code_digest_sees_code_alone():
    same = make_cubin(registers=99, threads=None)
    assert Cubin(same).code_digest() == Cubin(TINY).code_digest()


@pytest.mark.parametrize("change", [{"code": bytes(128)}, {"symbol": "other"}, {"parameters": ((0, 8),)}])
def test_code_digest_differs_on(change: dict[str, object]):
    assert Cubin(make_cubin(**change)).code_digest() != Cubin(TINY).code_digest()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cubin has 0 bytes, fewer than an ELF header"),
        (TINY[:63], "cubin has 63 bytes, fewer than an ELF header"),
        (b"\x7fELG" + TINY[4:], "cubin is not a 64-bit little-endian ELF image"),
        (TINY[:4] + b"\x01" + TINY[5:], "cubin is not a 64-bit little-endian ELF image"),
        (TINY[:5] + b"\x02" + TINY[6:], "cubin is not a 64-bit little-endian ELF image"),
        (TINY[:18] + b"\x3e\x00" + TINY[20:], "cubin is an ELF image for machine 62, not for CUDA (190)"),
    ],
)
def test_image_of_something_else_is_refused(data: bytes, message: str):
    with pytest.raises(CubinError, match=f"^{re.escape(message)}$"):
        Cubin(data)


def test_image_without_sections_is_refused():
    with pytest.raises(CubinError, match=r"^cubin has no readable section table$"):
        Cubin(TINY[:60] + b"\0\0" + TINY[62:]).kernels()


def test_image_that_is_cut_short_is_refused_and_says_so():
    with pytest.raises(CubinError, match=f"^cubin is cut short: {len(TINY)} bytes needed, {len(TINY) - 1} there$"):
        Cubin(TINY[:-1]).kernels()


@pytest.mark.parametrize(("field", "value"), [(24, len(TINY)), (32, len(TINY) + 1), (24, 2**63), (32, 2**64 - 1)])
def test_image_with_a_section_that_reaches_beyond_it_is_refused(field: int, value: int):
    # The last section is the code; its offset in the image stands at byte 24 of its row, its size at byte 32.
    at = len(TINY) - 64 + field
    with pytest.raises(CubinError, match=r"^cubin is cut short: \d+ bytes needed, \d+ there$"):
        Cubin(TINY[:at] + value.to_bytes(8, "little") + TINY[at + 8 :]).facts("tiny")


def test_image_that_is_cut_short_anywhere_is_refused():
    assert look_at_everything(TINY)
    assert [length for length in range(len(TINY)) if look_at_everything(TINY[:length])] == []


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_image_with_a_changed_byte_is_read_or_refused(mask: int):
    refused = 0
    for position in range(len(TINY)):
        data = bytearray(TINY)
        data[position] ^= mask
        refused += not look_at_everything(bytes(data))
    assert HEADER_BYTES // 2 < refused < len(TINY)


@given(st.lists(st.tuples(st.integers(0, len(TINY) - 1), st.integers(0, 255)), min_size=2, max_size=20))
def test_image_with_several_changed_bytes_is_read_or_refused(changes: list[tuple[int, int]]):
    data = bytearray(TINY)
    for position, value in changes:
        data[position] = value
    assert look_at_everything(bytes(data)) in (True, False)


@given(st.binary(max_size=600))
def test_image_of_any_bytes_behind_a_header_is_read_or_refused(tail: bytes):
    assert look_at_everything(TINY[:HEADER_BYTES] + tail) in (True, False)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
def test_image_with_any_section_table_is_read_or_refused(offset: int, count: int, names: int):
    data = bytearray(TINY)
    data[40:48] = offset.to_bytes(8, "little")
    data[60:62] = count.to_bytes(2, "little")
    data[62:64] = names.to_bytes(2, "little")
    assert look_at_everything(bytes(data)) in (True, False)
