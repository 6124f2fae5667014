"""Compile every warmed variant of the shipped kernels for one target, without a store.

``compile_shipped.py TARGET [reversed]`` prints a line for each: its text and the digest of its cubin.
"""

from __future__ import annotations

import sys

from builders import SHIPPED

from kreg import REGISTRY
from kreg.build import compile_artifact

if __name__ == "__main__":
    target, *order = sys.argv[1:]
    variants = [(REGISTRY.get(name), spec) for name in SHIPPED for spec in REGISTRY.get(name).specs([target])]
    for kernel, spec in reversed(variants) if order else variants:
        print(spec, compile_artifact(kernel, spec).cubin_digest)
