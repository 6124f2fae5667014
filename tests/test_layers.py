"""The direction of imports: each module has one level, and imports only from lower ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LEVELS = [
    {"errors", "record"},
    {"config", "digest", "files", "imports", "reach", "workers"},
    {"cubin", "header", "keylock", "root", "sources", "spec", "toolchain"},
    {"kernel", "manifest"},
    {"artifact", "backends.protocol", "lockfile", "registry"},
    {"backends", "selector", "backends.cute", "disassembly", "drift", "loader", "receipts", "store"},
    {"build", "inventory", "memory"},
    {"apart", "difference"},
    {"upkeep"},
    {"bundle", "explain", "sweep"},
    {"resolver"},
    {"launch", "pinning", "warming"},
    {"checking", "pytest_plugin"},
    {""},
]
"""Module names within kreg, from the lowest level up; "" is the package itself."""

LEVEL_OF = {module: level for level, modules in enumerate(LEVELS) for module in modules}

# Who may import what is heavy, or binds kreg to a machine.
ALLOWED = {
    "cutlass": {"backends.cute"},
    "cuda": {"launch", "loader", "memory"},
    "torch": {"launch"},
    "msgspec": {"bundle", "drift", "lockfile", "manifest", "receipts"},
    "click": set(),
    "rich": set(),
    "platformdirs": {"config"},
    "filelock": set(),
    "importlib.metadata": {"registry"},
    "dataclasses": set(),
    "re": {"backends.cute", "disassembly"},
    "pathlib": {"pytest_plugin"},
    "pytest": {"pytest_plugin"},
}


class Import:
    """One import: the full name, and whether it is for type checkers alone."""

    def __init__(self, name: str, is_typing: bool) -> None:
        self.name = name
        self.is_typing = is_typing


def module_name(path: Path, package: str, folder: Path) -> str:
    """Return the dotted name of a file of a package."""
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join((package, *parts)).removesuffix(".__init__")


def imports(path: Path, name: str) -> list[Import]:
    """Return every import of a file, those inside functions included, relative ones made absolute."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return list(_walk(ast.parse(path.read_text(encoding="utf-8")), package, False))


def _walk(node: ast.AST, package: str, is_typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        guarded = is_typing or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, guarded) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                above = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield from (Import(f"{base}.{alias.name}", guarded) for alias in child.names)
        yield from _walk(child, package, guarded)


def sources(folder: str, package: str) -> dict[str, Path]:
    """Return the files of a package by module name."""
    return {module_name(path, package, ROOT / folder): path for path in sorted((ROOT / folder).rglob("*.py"))}


KREG = sources("kreg", "kreg")
KERNELS = sources("kernels", "kreg.kernels")
TOOLS = sources("cache_tools", "kreg.cache_tools")


def within_kreg(name: str) -> str:
    """Return the module of kreg that an imported name is, or is in; "" for one of the package's own names."""
    inner = name.removeprefix("kreg").removeprefix(".")
    while inner and inner not in LEVEL_OF:
        inner = inner.rpartition(".")[0]
    return inner


def test_every_module_has_one_level():
    assert sorted(f"kreg.{module}".removesuffix(".") for module in LEVEL_OF) == sorted(KREG)
    assert sum(map(len, LEVELS)) == len(LEVEL_OF)


@pytest.mark.parametrize("name", KREG)
def test_module_imports_only_from_lower_levels(name: str):
    level = LEVEL_OF[within_kreg(name)]
    wrong = []
    for found in imports(KREG[name], name):
        if found.name.partition(".")[0] != "kreg":
            continue
        imported = within_kreg(found.name)
        # What is imported for type checkers alone may be of the same level.
        if LEVEL_OF[imported] >= level + found.is_typing:
            wrong.append(found.name)
    assert wrong == []


@pytest.mark.parametrize("name", KREG)
def test_module_imports_the_heavy_only_where_it_may(name: str):
    wrong = [
        found.name
        for found in imports(KREG[name], name)
        for heavy, where in ALLOWED.items()
        if (found.name + ".").startswith(f"{heavy}.") and within_kreg(name) not in where and not found.is_typing
    ]
    assert wrong == []


def test_kreg_imports_neither_its_kernels_nor_its_command():
    wrong = [
        (name, found.name)
        for name, path in KREG.items()
        for found in imports(path, name)
        if found.name.startswith(("kreg.kernels", "kreg.cache_tools", "kernels", "cache_tools"))
    ]
    assert wrong == []


def test_kernels_do_not_import_the_command():
    wrong = [
        (name, found.name)
        for name, path in KERNELS.items()
        for found in imports(path, name)
        if "cache_tools" in found.name
    ]
    assert wrong == []


@pytest.mark.parametrize("name", [name for name in KERNELS if KERNELS[name].name == "__init__.py"])
def test_declarations_import_no_compiler_torch_or_driver(name: str):
    heavy = [
        found.name
        for found in imports(KERNELS[name], name)
        if found.name.partition(".")[0] in ("cutlass", "torch", "cuda") and not found.is_typing
    ]
    assert heavy == []


def test_only_config_reads_the_environment():
    readers = set()
    for name, path in {**KREG, **KERNELS, **TOOLS}.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if called in ("environ", "getenv", "environb", "getenvb"):
                readers.add(name)
    assert readers == {"kreg.config"}


def test_levels_are_told_apart_by_this_test():
    # The reader of imports sees what it is there for.
    code = (
        "if TYPE_CHECKING:\n    from kreg.store import Store\n"
        "def f():\n    from ..backends import cute\n    import os.path\n"
    )
    found = list(_walk(ast.parse(code), "kreg.backends", False))
    assert [(item.name, item.is_typing) for item in found] == [
        ("kreg.store.Store", True), ("kreg.backends.cute", False), ("os.path", False),
    ]  # fmt: skip
    assert [within_kreg(item.name) for item in found[:2]] == ["store", "backends.cute"]
