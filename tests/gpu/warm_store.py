"""Fill a store with every artifact that the GPU tests and benchmarks load. Needs the compiler, and no GPU.

python tests/gpu/warm_store.py DIR
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import version_1

import kreg
from kreg.inventory import Selector

TARGET = "sm_90a"


def variants() -> list[tuple[kreg.Kernel, kreg.CompileSpec]]:
    """Return every variant that a GPU test loads, by kernel."""
    shipped = [(kernel, spec) for kernel in kreg.REGISTRY.kernels() for spec in kernel.specs([TARGET])]
    for name, sizes in (("all_gather_pair", (3, 7, 14)), ("all_gather_pair_kimi_topk", (7, 14))):
        worlds = Selector(kernels=[name], targets=[TARGET], params=[f"world_size={size}" for size in sizes])
        shipped += worlds.specs(kreg.REGISTRY)
    kept = [
        (kernel, spec) for kernel in (version_1.TOPK16, version_1.FUSED, version_1.LARGE) for spec in kernel.specs()
    ]
    return [*shipped, *kept]


if __name__ == "__main__":
    # The workers that compile find version_1_device beside this file.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    report = kreg.warm(variants(), store=sys.argv[1])
    for outcome in report.outcomes:
        if outcome.error:
            print(outcome.error, file=sys.stderr)
    print(f"{len(report.outcomes)} artifacts in {sys.argv[1]}")
    sys.exit(any(outcome.error for outcome in report.outcomes))
