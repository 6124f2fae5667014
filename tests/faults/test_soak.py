"""The short form of the soak: mixed use with faults, for seconds instead of an hour (``soak.py``)."""

from __future__ import annotations

import json
from pathlib import Path

from soak import is_well, soak


def test_store_in_mixed_use_with_faults_never_gives_a_wrong_byte(tmp_path: Path, is_long: bool):
    report = soak(str(tmp_path), 10_000 if is_long else 200, 3600 if is_long else 6)
    assert is_well(report), json.dumps(report, indent=2)
    assert report["counts"]["faults"] > 20
