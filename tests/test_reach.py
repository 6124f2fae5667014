"""Which files a kernel's code was made from."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import SHIPPED

from kreg import REGISTRY
from kreg.backends.cute import BACKEND
from kreg.reach import package_files

MAIN = "reached.ops.device"


@pytest.fixture
def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a package ``reached``, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    write(tmp_path, "reached/__init__.py", "TOP = 1\n")
    write(tmp_path, "reached/ops/__init__.py", "INNER = 1\n")
    write(tmp_path, "reached/ops/one.py", "X = 1\n")
    write(tmp_path, "reached/two.py", "X = 2\n")
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def files(folder: Path, text: str, module: str = MAIN, declared_in: str = "reached/ops") -> list[str]:
    """Return the files that a module of this text reaches, its own left out."""
    write(folder, module.replace(".", "/") + ".py", text)
    importlib.import_module(module)
    found = [os.path.relpath(path, folder) for path in package_files(module, str(folder / declared_in))]
    found.remove(module.replace(".", "/") + ".py")
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("from . import one", ["reached/ops/one.py"]),
        ("from .one import X", ["reached/ops/one.py"]),
        ("from .one import *", ["reached/ops/one.py"]),
        ("from .. import two", ["reached/two.py"]),
        ("from ..two import X", ["reached/two.py"]),
        ("import reached.two", ["reached/two.py"]),
        ("import reached.two as t", ["reached/two.py"]),
        ("from reached.ops import one", ["reached/ops/one.py"]),
        ("from . import INNER", ["reached/ops/__init__.py"]),
        ("from reached import TOP", ["reached/__init__.py"]),
        ("from . import one, INNER", ["reached/ops/__init__.py", "reached/ops/one.py"]),
        ("try:\n    from . import one\nexcept ImportError:\n    pass", ["reached/ops/one.py"]),
        ("def build():\n    from . import one", []),
        ("def build():\n    from . import one\nbuild()", ["reached/ops/one.py"]),
        ("class C:\n    from . import one", ["reached/ops/one.py"]),
        ("import json, os.path\nimport pytest\nfrom kreg.spec import parse_target", []),
        ("T = False\nTYPE_CHECKING = False\nif TYPE_CHECKING:\n    from . import one\nelse:\n    from .. import two",
         ["reached/two.py"]),
        ("import reached.two\nimport typing\nif typing.TYPE_CHECKING:\n    from . import one", ["reached/two.py"]),
    ],
)  # fmt: skip
def test_import_reaches_what_it_loads(reached: Path, text: str, expected: list[str]):
    assert files(reached, text) == expected


def test_type_checkers_imports_do_not_count_where_the_module_is_loaded_by_another(reached: Path):
    importlib.import_module("reached.ops.one")
    assert files(reached, "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from . import one") == []


def test_imports_are_followed_and_cycles_end(reached: Path):
    write(reached, "reached/two.py", "from .ops import one\nfrom . import three\n")
    write(reached, "reached/three.py", "import reached.ops.device\n")
    expected = ["reached/ops/one.py", "reached/three.py", "reached/two.py"]
    assert files(reached, "from .. import two") == expected


def test_what_another_kernel_loaded_does_not_count(reached: Path):
    importlib.import_module("reached.two")
    assert files(reached, "from . import one") == ["reached/ops/one.py"]


@pytest.mark.parametrize(("folder", "expected"), [("plain", ["plain/beside.py"]), ("site-packages", [])])
def test_single_module_beside_the_declaration_is_own(
    reached: Path, monkeypatch: pytest.MonkeyPatch, folder: str, expected: list[str]
):
    write(reached, f"{folder}/beside.py", "")
    write(reached, f"{folder}/single.py", "import beside\nimport reached.two\n")
    monkeypatch.syspath_prepend(str(reached / folder))
    importlib.import_module("single")
    found = [os.path.relpath(path, reached) for path in package_files("single", str(reached / folder))]
    assert found == [*expected, f"{folder}/single.py"]


def test_module_that_cannot_be_parsed_any_more_is_listed(reached: Path):
    write(reached, "reached/ops/one.py", "from .. import two\n")
    importlib.import_module("reached.ops.one")
    write(reached, "reached/ops/one.py", "this is no Python\n")
    assert files(reached, "from . import one") == ["reached/ops/one.py"]


@pytest.mark.skipif(BACKEND.toolchain() is None, reason="needs the compiler: pip install 'kreg[cute]'")
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_kernel_declares_exactly_what_its_code_is_made_from(name: str):
    kernel = REGISTRY.get(name)
    module = kernel.build.partition(":")[0]
    importlib.import_module(module)
    assert package_files(module, os.path.dirname(kernel.file)) == sorted(kernel.source_paths())
