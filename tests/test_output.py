"""How the command prints."""

from __future__ import annotations

import json
import time

import pytest
from kreg.cache_tools.output import plural, print_columns, print_json, show_age, show_bytes

from kreg.manifest import Launch


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5850, "5.7 KiB"),
        (1 << 20, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_bytes(count: int, text: str):
    assert show_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-60, "0 s"),
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172799, "47 h"),
        (172800, "2 d"),
        (864000, "10 d"),
    ],
)
def test_age(monkeypatch: pytest.MonkeyPatch, seconds: float, text: str):
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert show_age(1_000_000.0 - seconds) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "entry", "1 entry"), (0, "entry", "0 entries"), (3, "entry", "3 entries"), (2, "cubin", "2 cubins")],
)
def test_plural(count: int, noun: str, text: str):
    assert plural(count, noun) == text


def test_columns_are_aligned_and_end_without_blanks(capsys: pytest.CaptureFixture[str]):
    print_columns(("NAME", "SIZE", ""), [("a", "5", "stale"), ("longer", "1000", "")], right=(1,))
    assert capsys.readouterr().out == "NAME    SIZE\na          5  stale\nlonger  1000\n"


def test_json_is_indented_and_takes_records(capsys: pytest.CaptureFixture[str]):
    print_json({"launch": Launch(block=(1, 1, 1), grid=("rows", 1, 1), shared_bytes=0), "ü": True})
    output = capsys.readouterr().out
    assert output.startswith('{\n  "launch": {\n')
    assert json.loads(output)["launch"]["grid"] == ["rows", 1, 1]
