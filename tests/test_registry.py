"""The registry: every kernel by name, and no more imported than is asked for."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fake_backend
import pytest
from builders import SHIPPED, make_kernel, python
from plugins import install_plugin

from kreg import REGISTRY, Registry
from kreg.errors import DeclarationError, SpecError


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a plug-in that offers the fake kernel."""
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "site", fake="fake_backend:KERNEL"))


def test_kernel_that_was_added_is_found():
    kernel = make_kernel()
    registry = Registry(discover=False)
    assert registry.add(kernel) is kernel
    assert registry.get("fake") is kernel
    assert registry.names() == ["fake"]


def test_declaration_may_be_added_twice_if_it_is_the_same():
    registry = Registry([make_kernel(), make_kernel()], discover=False)
    assert registry.kernels() == [make_kernel()]


def test_declaration_of_a_name_that_is_taken_is_refused(tmp_path: Path):
    (tmp_path / "fake_backend.py").touch()
    other = make_kernel(file=str(tmp_path / "x.py"), sources=("fake_backend.py",))
    with pytest.raises(DeclarationError) as caught:
        Registry([make_kernel(), other])
    assert str(caught.value) == f"fake is declared twice: in {fake_backend.KERNEL.file} and in {tmp_path}/x.py"


def test_declaration_of_another_version_is_refused():
    with pytest.raises(DeclarationError, match=r"^fake is declared twice: in "):
        Registry([make_kernel(), make_kernel(version=2)])


def test_declaration_of_a_shipped_name_is_refused():
    with pytest.raises(DeclarationError, match=r"^kimi_topk16 is declared twice: in "):
        Registry().add(make_kernel(name="kimi_topk16"))


def test_declaration_with_a_source_that_is_missing_is_refused():
    with pytest.raises(DeclarationError, match=re.escape("fake@1 declares the source 'gone.py', but ")):
        Registry().add(make_kernel(sources=("gone.py",)))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_kernel_is_found(name: str):
    assert Registry().get(name).name == name


def test_shipped_kernels_are_all_named():
    import kreg.kernels

    folder = Path(kreg.kernels.__file__).parent
    declared = sorted(path.parent.name for path in folder.glob("*/device.py"))
    assert sorted(kreg.kernels.NAMES) == declared == list(SHIPPED)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("all_gather_pear", "no kernel is called 'all_gather_pear' (did you mean 'all_gather_pair'?); known: "),
        ("", "no kernel is called ''; known: "),
        ("../kimi_topk16", "no kernel is called '../kimi_topk16' (did you mean 'kimi_topk16'?); known: "),
        ("_device", "no kernel is called '_device'"),
    ],
)
def test_unknown_kernel_is_refused_with_the_nearest(name: str, message: str):
    with pytest.raises(SpecError, match=f"^{re.escape(message)}"):
        Registry().get(name)


def test_unknown_kernel_of_an_empty_registry_is_refused():
    with pytest.raises(SpecError, match=r"^no kernel is called 'fake'; known: none$"):
        Registry(discover=False).get("fake")


def test_text_is_read():
    assert str(REGISTRY.parse("kimi_topk16", "sm_90a")) == "kimi_topk16@1:sm_90a"
    with pytest.raises(SpecError, match=r"^no kernel is called 'kimi'"):
        REGISTRY.parse("kimi:sm_90a")


@pytest.mark.usefixtures("plugin")
def test_plugin_is_found_by_its_entry_point():
    assert Registry().get("fake") is fake_backend.KERNEL
    assert Registry().names() == sorted([*SHIPPED, "fake"])
    assert [kernel.name for kernel in Registry().kernels()] == sorted([*SHIPPED, "fake"])


@pytest.mark.usefixtures("plugin")
def test_plugin_offered_twice_with_one_declaration_is_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "more", "another", fake="fake_backend:KERNEL"))
    assert Registry().get("fake") is fake_backend.KERNEL


def test_plugins_that_declare_one_name_differently_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "rivals.py").write_text(
        "from builders import make_kernel\nONE = make_kernel()\nTWO = make_kernel(version=2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "one", "one", fake="rivals:ONE"))
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "two", "two", fake="rivals:TWO"))
    registry = Registry()
    for _ in range(2):  # Asking again must not make one of them win.
        with pytest.raises(DeclarationError, match=r"^fake is declared twice: in "):
            registry.get("fake")


@pytest.mark.parametrize("value", ["fake_backend:LOG", "fake_backend:KERNEL"])
def test_plugin_that_holds_something_else_is_refused(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "site", other=value))
    with pytest.raises(DeclarationError) as caught:
        Registry().get("other")
    assert str(caught.value) == f"entry point 'other' = {value!r} does not hold the declaration of 'other'"


@pytest.mark.parametrize("value", ["fake_backend:NOTHING", "no_such_module:KERNEL", "broken_plugin:KERNEL"])
def test_plugin_that_cannot_be_imported_is_named(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "site", broken=value))
    with pytest.raises(DeclarationError, match=f"^entry point 'broken' = '{value}' cannot be loaded: "):
        Registry().get("broken")


def test_plugin_is_imported_only_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(install_plugin(tmp_path / "site", broken="broken_plugin:KERNEL"))
    assert "broken" in Registry().names()
    assert Registry().get("kimi_topk16").name == "kimi_topk16"
    assert "broken_plugin" not in sys.modules


def test_shipped_kernel_is_found_without_reading_entry_points():
    code = (
        "import sys; from kreg import REGISTRY\n"
        "before = set(sys.modules); REGISTRY.get('kimi_topk16')\n"
        "new = sorted(set(sys.modules) - before)\n"
        "print('importlib.metadata' in new, [name for name in new if name.startswith('kreg.kernels')])"
    )
    assert python(code) == "False ['kreg.kernels', 'kreg.kernels.kimi_topk16']\n"


def test_enumerating_variants_imports_no_compiler_torch_or_driver():
    code = (
        "import sys; from kreg import REGISTRY\n"
        "print(len([spec for kernel in REGISTRY.kernels() for spec in kernel.specs()]) > 10)\n"
        "print(sorted({'cutlass', 'torch', 'cuda', 'numpy'} & set(sys.modules)))"
    )
    assert python(code) == "True\n[]\n"
