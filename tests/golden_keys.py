"""The keys of every warmed variant of the shipped kernels, as text and spec key.

``tests/data/golden_keys.json`` pins them. ``python tests/golden_keys.py`` prints what they are now, in its form; to add
the keys of a new kernel or variant, write that to the file. A key that was there and has moved is a breaking change:
say so in CHANGELOG.md.

It needs no compiler, and runs with any interpreter that kreg supports, kreg installed or not.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATH = os.path.join(ROOT, "tests", "data", "golden_keys.json")


def find_kreg() -> None:
    """Make ``kreg`` and ``kreg.kernels`` those of this checkout, whatever is installed."""
    sys.path.insert(0, ROOT)
    import kreg

    folder = os.path.join(ROOT, "kernels")
    found = importlib.util.spec_from_file_location(
        "kreg.kernels", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(found)
    sys.modules["kreg.kernels"] = module
    found.loader.exec_module(module)
    kreg.kernels = module


def current_keys() -> dict[str, str]:
    """Return {spec text: spec key} of all warmed variants, in the order of the kernels' names."""
    from kreg.kernels import NAMES

    from kreg import REGISTRY

    specs = [spec for name in sorted(NAMES) for spec in REGISTRY.get(name).specs()]
    return {str(spec): spec.key for spec in specs}


if __name__ == "__main__":
    find_kreg()
    print(json.dumps(current_keys(), indent=1))
