"""The public names, what they cost to import, and the examples in the documentation."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
from pathlib import Path

import fake_backend
import pytest
from builders import child_environment, python

import kreg

HEAVY = ("cutlass", "torch", "cuda", "numpy", "msgspec", "click", "rich", "platformdirs")
SLOW_TO_IMPORT = (
    "json",
    "dataclasses",
    "re",
    "typing",
    "inspect",
    "pathlib",
    "importlib.metadata",
    "tempfile",
    "logging",
)


def test_public_names_are_those_of_all():
    assert sorted(kreg.__all__) == list(kreg.__all__)
    assert set(kreg.__all__) <= set(dir(kreg))
    assert len(set(kreg.__all__)) == len(kreg.__all__)


@pytest.mark.parametrize("name", kreg.__all__)
def test_public_name_resolves_to_what_its_module_has(name: str):
    value = getattr(kreg, name)
    home = importlib.import_module(f"kreg.{kreg._HOMES[name]}")
    assert value is getattr(home, name)
    assert value.__doc__ or name.isupper()


def test_public_name_is_no_submodule_of_the_same_name():
    folder = Path(kreg.__file__).parent
    modules = {path.stem for path in folder.iterdir()}
    assert modules & set(kreg.__all__) == set()


def test_public_names_for_type_checkers_are_the_same():
    source = Path(kreg.__file__).read_text(encoding="utf-8")
    typed = {line.split()[-1] for line in source.splitlines() if line.startswith("    from kreg.") and " as " in line}
    assert typed == set(kreg.__all__)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match=r"^module 'kreg' has no attribute 'resolv'$"):
        kreg.resolv  # noqa: B018


def test_star_import_gives_the_public_names():
    code = "from kreg import *\nimport kreg\nprint([n for n in kreg.__all__ if n not in globals()])"
    assert python(code) == "[]\n"


def imported_by(code: str, **variables: str) -> set[str]:
    """Return the modules that code imports, beside those a bare interpreter has anyway."""
    listing = "\nimport sys; print(*sorted(sys.modules))"
    bare = set(python(listing).split())
    return set(python(code + listing, environment=child_environment(**variables)).split()) - bare


def test_importing_kreg_imports_nothing_heavy():
    found = imported_by("import kreg")
    assert {name for name in found if name.partition(".")[0] in (*HEAVY, *SLOW_TO_IMPORT)} == set()
    assert {name for name in found if name.startswith("kreg.")} == set()


HIT = "import kreg{0}\na = kreg.resolve({1}, target='sm_90a', size=1)\nassert a.cubin[:4] == b'\\x7fELF' and a.key"


@pytest.mark.parametrize("kernel", ["fake_backend.KERNEL", "shipped"])
def test_hit_imports_nothing_heavy(request: pytest.FixtureRequest, root: str, kernel: str):
    if kernel == "shipped":
        root = request.getfixturevalue("shipped_store")
        code = "import kreg; assert kreg.resolve('kimi_topk16', target='sm_90a').cubin[:4] == b'\\x7fELF'"
    else:
        kreg.resolve(fake_backend.KERNEL, size=1, target="sm_90a", store=root)
        code = HIT.format(", fake_backend", kernel)
    found = imported_by(code, KREG_STORE=root, KREG_POLICY="frozen")
    assert {name for name in found if name.partition(".")[0] in HEAVY or name in SLOW_TO_IMPORT} == set()
    expected = {"artifact", "config", "digest", "errors", "files", "header", "kernel", "resolver", "spec", "store"}
    assert {f"kreg.{name}" for name in expected} <= found
    assert not {"kreg.build", "kreg.cubin", "kreg.manifest", "kreg.loader", "kreg.launch"} & found


def test_example_of_the_package_runs(shipped_store: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KREG_STORE", shipped_store)
    kreg.freeze()
    assert doctest.testmod(kreg, raise_on_error=True).attempted >= 3


def test_examples_of_the_readme_that_need_no_gpu_run(shipped_store: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KREG_STORE", shipped_store)
    readme = Path(__file__).parent.parent / "README.md"
    blocks = [block.partition("```")[0] for block in readme.read_text(encoding="utf-8").split("```python\n")[1:]]
    names: dict[str, object] = {}
    for block in blocks[:2]:
        exec(block, names)
    artifact = names["artifact"]
    assert isinstance(artifact, kreg.Artifact)
    assert artifact.manifest.kernel == "all_gather_pair"
    assert kreg.is_frozen()


def test_every_docstring_example_is_one_that_runs():
    folder = Path(kreg.__file__).parent
    others = [path for path in folder.rglob("*.py") if path.name != "__init__.py"]
    assert [path.name for path in others if "    >>> " in path.read_text(encoding="utf-8")] == []


def test_package_says_that_it_is_typed():
    assert (Path(kreg.__file__).parent / "py.typed").exists()


def test_version_is_that_of_the_distribution():
    assert importlib.metadata.version("kreg") == kreg.__version__


def test_ci_runs_the_test_command_of_the_readme():
    root = Path(__file__).parent.parent
    readme = (root / "README.md").read_text(encoding="utf-8")
    commands = [line for line in readme.splitlines() if line.startswith("python3 -m venv .venv")]
    assert len(commands) == 2
    assert commands[1] in (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()
