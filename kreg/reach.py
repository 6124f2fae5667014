"""Which files of its own package a kernel's code was made from: the modules that its build module imports.

Imports are read from the source of what is loaded, so that a module which another kernel loaded does not count and an
import that never ran does not either. A module that is imported by a computed name is not seen.
"""

from __future__ import annotations

import ast
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_SITE = ("site-packages", "dist-packages")


def package_files(module: str, folder: str) -> list[str]:
    """Return the source files of all loaded modules of a kernel's own package that ``module`` reaches by imports.

    ``module`` is loaded; its own file is included. The own package is what shares its top-level name, and single
    modules in ``folder``, that of the declaration. The paths are absolute and sorted.
    """
    waiting, met = [module], {module}
    files = set()
    while waiting:
        name = waiting.pop()
        path = _source(sys.modules[name])
        if path is None:
            continue
        files.add(path)
        found = {reached for reached in _imports(sys.modules[name], path) if _is_own(reached, module, folder)}
        waiting += sorted(found - met)
        met |= found
    return sorted(files)


def _source(module: ModuleType) -> str | None:
    path = getattr(module, "__file__", None)
    return os.path.abspath(path) if path and path.endswith(".py") else None


def _is_own(name: str, module: str, folder: str) -> bool:
    top = module.partition(".")[0]
    if name == "kreg" or (name.startswith("kreg.") and not f"{name}.".startswith("kreg.kernels.")):
        return False  # The library is no kernel's, though it shares a name with those that ship with it.
    if name.partition(".")[0] == top:
        return True
    path = _source(sys.modules[name])
    is_beside = path is not None and os.path.dirname(path) == os.path.abspath(folder)
    return "." not in name and is_beside and os.path.basename(folder) not in _SITE


def _imports(module: ModuleType, path: str) -> Iterator[str]:
    """Yield the names of the loaded modules that a module's source imports."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in sys.modules)
        else:
            yield from _imported_from(module, node)


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the import statements below a node, without those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from _statements(ast.Module([other], []))
        else:
            yield from _statements(child)


def _imported_from(module: ModuleType, node: ast.ImportFrom) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        parts = str(module.__package__).split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        if inner in sys.modules:
            yield inner
        elif base in sys.modules and _has(sys.modules[base], alias.name):
            yield base


def _has(module: ModuleType, name: str) -> bool:
    """Say whether a name is the module's own, not that of a submodule whose import has not run."""
    return name == "*" or name in vars(module) or "__getattr__" in vars(module)
