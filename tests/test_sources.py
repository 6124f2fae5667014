"""Digests of source files: every change is seen, and an unchanged file costs a stat."""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from source_backend import declare

from kreg import DeclarationError, Kernel, sources


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return declare(tmp_path / "sources")


@pytest.fixture(params=[False, True], ids=["just written", "remembered"])
def remembered(request: pytest.FixtureRequest, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the source digest, before and after the time from which it is remembered."""
    if request.param:
        now = time.time()
        monkeypatch.setattr(sources.time, "time", lambda: now + 60)
    return kernel.source_digest()


def rewrite(path: Path) -> None:
    path.write_text("code.txt 2\n", encoding="utf-8")


def rewrite_and_put_the_time_back(path: Path) -> None:
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    rewrite(other)
    other.replace(path)


def grow(path: Path) -> None:
    path.write_text("code.txt 1\n\n", encoding="utf-8")


@pytest.mark.parametrize("change", [rewrite, rewrite_and_put_the_time_back, replace, grow])
def test_change_is_seen(kernel: Kernel, remembered: str, change: Callable[[Path], None]):
    change(Path(kernel.source_paths()[0]))
    assert kernel.source_digest() != remembered


def test_other_names_of_the_same_contents_are_another_digest(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("one\n", encoding="utf-8")
    one, two = (declare(tmp_path, sources=(name,)) for name in ("a.txt", "b.txt"))
    assert one.source_digest() != two.source_digest()


def test_unchanged_file_is_read_once(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    real, now = builtins.open, time.time()

    def count(path: str, *arguments: object, **options: object) -> object:
        opened.append(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(builtins, "open", count)
    kernel.source_digest()
    kernel.source_digest()
    assert len(opened) == 4, "what changed within the last seconds is not remembered"
    monkeypatch.setattr(sources.time, "time", lambda: now + 60)
    for _ in range(5):
        kernel.source_digest()
    assert len(opened) == 6


def test_source_that_cannot_be_read_is_named(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    path = f"{os.path.dirname(kernel.file)}/code.txt"

    def refuse(place: str) -> bytes:
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr(sources, "_read", refuse)
    with pytest.raises(DeclarationError) as caught:
        kernel.read_sources()
    assert str(caught.value) == f"made@1: cannot read {path}: Permission denied"
    os.unlink(path)
    with pytest.raises(DeclarationError) as caught:
        kernel.source_digest()
    assert str(caught.value) == f"made@1 declares the source 'code.txt', but {path} is not a file"


def test_file_that_changed_after_this_process_began_is_told(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    assert sources.changed_since_start(kernel.source_paths())
    assert not sources.changed_since_start([])
    monkeypatch.setattr(sources, "_started", lambda: time.time() + 60)
    assert not sources.changed_since_start(kernel.source_paths())
