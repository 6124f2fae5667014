"""Backends: found by name, and refused if they are none."""

from __future__ import annotations

import re
from pathlib import Path

import fake_backend
import pytest

from kreg.backends import load_backend
from kreg.backends.cute import BACKEND as CUTE
from kreg.errors import DeclarationError


def test_backend_of_kreg_is_found_by_its_name():
    assert load_backend("cute") is CUTE


def test_backend_of_a_plugin_is_found_by_module_and_object():
    assert load_backend("fake_backend:BACKEND") is fake_backend.BACKEND


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuet", "there is no backend 'cuet': No module named 'kreg.backends.cuet'"),
        ("", "there is no backend ''"),
        ("protocol", "there is no backend 'protocol': module 'kreg.backends.protocol' has no attribute 'BACKEND'"),
        ("no_such_module:BACKEND", "there is no backend 'no_such_module:BACKEND': No module named 'no_such_module'"),
        ("fake_backend:NOTHING", "there is no backend 'fake_backend:NOTHING': module 'fake_backend' has no attribute"),
        (":BACKEND", "there is no backend ':BACKEND'"),
        ("broken_backend:BACKEND", "there is no backend 'broken_backend:BACKEND': division by zero"),
        ("fake_backend:LOG", "'fake_backend:LOG' is not a backend: it has no method toolchain"),
    ],
)
def test_backend_that_is_none_is_refused(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_backend.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DeclarationError, match=f"^{re.escape(message)}"):
        load_backend(name)
