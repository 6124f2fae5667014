"""Disassembly: the instructions of a cubin, where NVIDIA's disassembler is installed, and how two lists differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from difflib import SequenceMatcher, unified_diff
from glob import glob
from shutil import which

from kreg.errors import KregError

_SECONDS = 120
_ENCODING = re.compile(r"/\*[0-9a-f]{4,}\*/|/\* 0x[0-9a-f]+ \*/")
_LABEL = re.compile(r"\.L_x_[0-9]+")
_WHEELS = "nvidia/*/bin/nvdisasm"


def find_disassembler() -> str:
    """Return the path of ``nvdisasm``: on PATH, in the CUDA toolkit, or of its wheel. Raises ``KregError``."""
    places = [which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm"]
    places += [found for folder in sys.path for found in glob(f"{folder}/{_WHEELS}")]
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    raise KregError("no disassembler here: nvdisasm is not on PATH; `pip install nvidia-cuda-nvdisasm`")


def disassemble(path: str) -> list[str]:
    """Return a cubin's instructions and labels, a line each, without addresses and encodings. Raises ``KregError``."""
    try:
        done = subprocess.run(  # noqa: S603 - found above
            [find_disassembler(), "--print-code", path], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KregError(f"cannot disassemble {path}: {error}") from error
    if done.returncode != 0:
        raise KregError(f"cannot disassemble {path}: {done.stderr.strip() or f'nvdisasm ended with {done.returncode}'}")
    lines = (" ".join(_ENCODING.sub("", line).split()) for line in done.stdout.splitlines())
    return [line for line in lines if line.endswith((";", ":")) and not line.startswith((".section", "//"))]


def instruction_diff(before: str, after: str) -> list[str]:
    """Return the unified diff of the instructions of two cubins, without a head; empty if they are the same.

    A label has the name that it has before, wherever the numbers of labels have moved.
    """
    first = disassemble(before)
    second = _with_labels_of(first, disassemble(after))
    return list(unified_diff(first, second, "before", "after", n=2, lineterm=""))[2:]


def _with_labels_of(first: list[str], second: list[str]) -> list[str]:
    """Rename the labels of ``second``: to that of the same place in ``first``, or to a name that is not in there.

    nvdisasm numbers labels from the start, so that one more branch moves all that follow. Places are paired one to
    one, and so are names: listings are equal after this only if they are the same program.
    """
    blocks = SequenceMatcher(None, _unnamed(first), _unnamed(second), autojunk=False).get_matching_blocks()
    pairs = [(first[i + k], second[j + k]) for i, j, size in blocks for k in range(size)]
    names = {new[:-1]: old[:-1] for old, new in pairs if _LABEL.fullmatch(new[:-1])}
    return [_LABEL.sub(lambda found: names.get(found[0], f"{found[0]}+"), line) for line in second]


def _unnamed(lines: list[str]) -> list[str]:
    return [_LABEL.sub(".L", line) for line in lines]
