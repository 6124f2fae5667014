"""Lockfiles: what is written, and that nothing damaged is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import make_artifact, make_spec
from hypothesis import given
from hypothesis import strategies as st

from kreg import LockfileError
from kreg.lockfile import (
    REVISION,
    Lockfile,
    Pin,
    Receipt,
    decode,
    encode,
    find_lockfile,
    pin,
    read_lockfile,
    write_lockfile,
)


def make_pin(size: int, target: str = "sm_90a", **overrides: object) -> Pin:
    spec = make_spec(params={"size": size}, target=target)
    made = pin(str(spec), make_artifact(size, spec=spec).manifest, "fake")
    return msgspec.structs.replace(made, **overrides)


def make_receipt(cubin: str, **overrides: Any) -> Receipt:
    fields = {
        "suite": "tests/gpu", "tests": "a" * 64, "device": "a GPU", "driver": "13.0", "torch": "2.11",
        "date": "2026-12-01", "passed": 1, "total": 2,
    }  # fmt: skip
    return Receipt(cubin=cubin, **{**fields, **overrides})


def make_lockfile(*pins: Pin, **overrides: object) -> Lockfile:
    chosen = pins or (make_pin(2), make_pin(16), make_pin(2, "sm_120a"))
    return Lockfile(**{"toolchains": {"fake": {"fake-compiler": "1.0"}}, "pins": chosen, **overrides})


WHOLE = encode(make_lockfile())
LINES = WHOLE.decode().splitlines(keepends=True)
FIRST = 7
"""The line of the first pin, counted from 0."""


def test_lockfile_is_read_back():
    receipt = make_receipt(make_pin(1).cubin)
    lockfile = make_lockfile(make_pin(1, receipt=receipt), make_pin(2), hardware=("sm_90a",))
    assert decode(encode(lockfile), "here") == lockfile
    assert lockfile.toolchain(lockfile.pins[0]).distributions == (("fake-compiler", "1.0"),)


def test_lockfile_is_one_json_object_with_a_pin_a_line_in_reading_order():
    specs = ["fake@1[size=2]:sm_120a", "fake@1[size=2]:sm_90a", "fake@1[size=16]:sm_90a"]
    assert [pin["spec"] for pin in json.loads(WHOLE)["pins"]] == specs
    assert [json.loads(line.rstrip(",\n"))["spec"] for line in LINES[FIRST : FIRST + 3]] == specs
    assert [line.partition(":")[0] for line in LINES[1:FIRST]] == [
        '"version"', '"revision"', '"selection"', '"toolchains"', '"hardware"', '"pins"',
    ]  # fmt: skip
    assert LINES[FIRST + 3 :] == ["]\n", "}\n"]


def test_lockfile_is_the_same_bytes_in_any_order():
    pins = make_lockfile().pins
    assert {encode(make_lockfile(*order)) for order in (pins, pins[::-1], (pins[1], pins[2], pins[0]))} == {WHOLE}


def test_pin_keeps_a_receipt_for_its_own_cubin_alone():
    manifest = make_artifact(1).manifest
    for cubin, kept in ((manifest.cubin_digest, True), ("f" * 64, False)):
        receipt = make_receipt(cubin)
        assert pin("fake@1:sm_90a", manifest, "fake", receipt).receipt == (receipt if kept else None)


def swap(first: int, second: int) -> Callable[[], str]:
    lines = [*LINES]
    lines[first], lines[second] = lines[second], lines[first]
    return lambda: "".join(lines)


def changed(old: str, new: str) -> Callable[[], str]:
    assert old in WHOLE.decode()
    return lambda: WHOLE.decode().replace(old, new, 1)


def built(*pins: Pin, **overrides: object) -> Callable[[], str]:
    return lambda: encode(make_lockfile(*pins, **overrides)).decode()


DIGEST = make_pin(2, "sm_120a").cubin
PLACE = r"here, pin 1 \(`fake@1\[size=2\]:sm_120a`\): "


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "", r"here is not a lockfile: Input data was truncated$"),
        (lambda: "[]", r"here is not a lockfile: Expected `object`, got `array`$"),
        (lambda: "{}", r"here is not a lockfile: Object missing required field `version`$"),
        (lambda: "[" * 100_000, r"here is not a lockfile: "),
        (lambda: "\udcff", r"here is not a lockfile: "),
        (swap(FIRST, FIRST + 1),
         r"here, pin 2 .*: it stands after `fake@1\[size=2\]:sm_90a`; `kreg lock` writes pins in order$"),
        (lambda: "".join([*LINES[: FIRST + 1], *LINES[FIRST:]]),
         r"here, pin 2 \(`fake@1\[size=2\]:sm_120a`\): it is there twice; `kreg lock` writes pins in order$"),
        (built(make_pin(1), make_pin(2, key=make_pin(1).key)),
         r"here, pin 2 \(`fake@1\[size=2\]:sm_90a`\): it has the key of `fake@1\[size=1\]:sm_90a`$"),
        (changed(DIGEST, DIGEST[:-1]), rf"{PLACE}cubin is '{DIGEST[:-1]}', not 64 hex digits$"),
        (changed(DIGEST, DIGEST.replace("a", "A")), rf"{PLACE}cubin is '.*', not 64 hex digits$"),
        (changed('"key":"', '"key":"0'), rf"{PLACE}key is '0.*', not 64 hex digits$"),
        (changed('"toolchain":"fake"', '"toolchain":"other"'), rf"{PLACE}its toolchain 'other' is not in the head"),
        (built(make_pin(2, "sm_120a", receipt=make_receipt("f" * 64))),
         rf"{PLACE}its receipt is for another cubin, ffffffffffff, not {DIGEST[:12]}$"),
        (changed("fake@1[size=2]:sm_120a", "fake[size=2]:sm_120a"), r"here, pin 1 .*: a pin's spec has a version and"),
        (changed("fake@1[size=2]:sm_120a", "fake@1[size=2]"), r"here, pin 1 .*: a pin's spec has a version and"),
        (changed("fake@1[size=2]:sm_120a", "../fake"), r"here, pin 1 \(`../fake`\): spec '../fake': '../fa"),
        (changed("fake@1[size=2]:sm_120a", "fake@1[size=2]:sm_12"), r"here, pin 1 .*: target 'sm_12' is not an ar"),
        (changed('"hardware":[]', '"hardware":["H200"]'), r"here, hardware: target 'H200' is not an architecture"),
        (changed('"registers":24', '"registers":"24"'),
         r"here is not a lockfile: Expected `int`, got `str` - at `\$\.pins\[0\]\.registers`$"),
        (changed('"version":1', '"version":2'), r"here has version 2; this kreg reads version 1: install a "),
        (changed('"version":1', '"version":"1"'), r"here is not a lockfile: Expected `int`, got `str` - at `"),
        (lambda: "".join([*LINES[:FIRST], "<<<<<<< ours\n", *LINES[FIRST:]]),
         r"here, line 8: a merge conflict; take either side \(`git checkout --ours here`\), then run `kreg lock`$"),
        (lambda: "".join([*LINES[: FIRST + 1], "=======\n", *LINES[FIRST + 1 :]]), r"here, line 9: a merge conflict"),
        (lambda: "".join([*LINES[:FIRST], "oops\n", *LINES[FIRST:]]),
         r"here is not a lockfile: JSON is malformed: invalid character, in line 8$"),
    ],
)  # fmt: skip
def test_damaged_lockfile_is_one_located_error(make: Callable[[], str], message: str):
    with pytest.raises(LockfileError, match=f"^{message}"):
        decode(make().encode("utf-8", "surrogateescape"), "here")


def test_lockfile_cut_short_anywhere_is_refused():
    for length in range(len(WHOLE) - 2):
        with pytest.raises(LockfileError):
            decode(WHOLE[:length], "here")


@given(st.binary(max_size=200), st.integers(0, len(WHOLE)), st.booleans())
def test_any_bytes_are_a_lockfile_or_an_error_of_one(data: bytes, place: int, inside: bool):
    try:
        decode(WHOLE[:place] + data + WHOLE[place:] if inside else data, "here")
    except LockfileError:
        return


def test_newer_revision_is_read_and_not_written_over(tmp_path: Path):
    path = tmp_path / "kreg.lock"
    text = (
        WHOLE.decode()
        .replace('"revision":1', f'"revision":{REVISION + 1},"news":[1]')
        .replace('"spec"', '"n":1,"spec"')
    )
    path.write_text(text, encoding="utf-8")
    lockfile = read_lockfile(str(path))
    assert lockfile.pins == decode(WHOLE, "here").pins
    with pytest.raises(LockfileError) as caught:
        write_lockfile(str(path), lockfile)
    assert str(caught.value) == f"{path} has revision 2, written by a newer kreg; write it with that one"
    assert path.read_text(encoding="utf-8") == text


def test_lockfile_that_is_not_there(tmp_path: Path):
    path = str(tmp_path / "kreg.lock")
    assert find_lockfile(path) is None
    with pytest.raises(LockfileError) as caught:
        read_lockfile(path)
    assert str(caught.value) == f"there is no lockfile {path}; write one with `kreg lock`, or name another"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_lockfile_that_is_no_file(tmp_path: Path, make: Callable[[str], None]):
    path = str(tmp_path / "kreg.lock")
    make(path)
    with pytest.raises(LockfileError, match=rf"^cannot read the lockfile: {path} is not a regular file$"):
        read_lockfile(path)
    with pytest.raises(LockfileError, match=f"^cannot write the lockfile {path}: "):
        write_lockfile(path, make_lockfile())


def test_write_says_whether_the_file_is_another(tmp_path: Path):
    path = str(tmp_path / "kreg.lock")
    assert [write_lockfile(path, make_lockfile()) for _ in range(2)] == [True, False]
    assert write_lockfile(path, make_lockfile(make_pin(1)))
    assert os.listdir(tmp_path) == ["kreg.lock"]


def test_write_that_fails_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "kreg.lock"
    write_lockfile(str(path), make_lockfile())

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(LockfileError, match=r"^cannot write the lockfile .*No space left on device$"):
        write_lockfile(str(path), make_lockfile(make_pin(1)))
    assert path.read_bytes() == WHOLE
    assert os.listdir(tmp_path) == ["kreg.lock"]


def test_write_follows_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    os.symlink("real/kreg.lock", tmp_path / "kreg.lock")
    write_lockfile(str(tmp_path / "kreg.lock"), make_lockfile())
    assert (tmp_path / "real" / "kreg.lock").read_bytes() == WHOLE
    assert (tmp_path / "kreg.lock").is_symlink()
    assert read_lockfile(str(tmp_path / "kreg.lock")) == decode(WHOLE, "here")
