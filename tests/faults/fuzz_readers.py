#!/usr/bin/env python3
"""Coverage-guided fuzzing of what reads untrusted bytes: ``fuzz_readers.py TARGET SECONDS [FLAGS]``.

Needs ``pip install atheris``, which is no dependency of kreg. TARGET is ``bundle``, ``cubin``, ``lockfile``,
``manifest`` or ``spec``; FLAGS are libFuzzer's. It starts from the inputs in ``tests/faults/inputs/TARGET``, which
``test_readers.py`` reads too, and writes those that reach more to ``build/fuzz/TARGET``. An input that fails is
printed, and written to ``build/fuzz`` as ``crash-...``.

With 0 seconds and ``-merge=1`` it adds to the inputs what of ``build/fuzz/TARGET`` reaches more; inputs that are moved
there before that become as few as can be.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build" / "fuzz"
LARGEST = 8192
"""Bytes of the largest input that is tried or kept."""

sys.path[:0] = [str(HERE), str(HERE.parent)]
with atheris.instrument_imports(include=["kreg"]):
    from readers import SEEDS, TARGETS


def main() -> None:
    """Fuzz one target for a time, or merge what was found."""
    script, name, seconds, *flags = sys.argv
    corpus, found = HERE / "inputs" / name, BUILD / name
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (found / f"seed-{number}").write_bytes(seed)
    folders = (corpus, found) if "-merge=1" in flags else (found, corpus)
    limits = (
        f"-max_total_time={seconds}", f"-max_len={LARGEST}", "-timeout=20", "-rss_limit_mb=1024",
        f"-artifact_prefix={BUILD}/",
    )  # fmt: skip
    atheris.Setup([script, *limits, *flags, *map(str, folders)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
