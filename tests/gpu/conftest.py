"""Tests that need a GPU: skipped, with the reason, where there is none.

They run from a warm store, as a serving host does: ``python tests/gpu/warm_store.py DIR`` fills one without a GPU, and
``KREG_STORE=DIR KREG_POLICY=frozen pytest tests/gpu --record FILE`` runs the tests and writes what was shown.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

RECORD = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FILE", help="write a dated record of what the GPU tests showed")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RECORD] = {}


def _why_skip() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_skip()
    here = Path(__file__).parent
    for item in items:
        if reason and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def record(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the record will say, by name."""
    return request.config.stash[RECORD]


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    import kreg

    yield
    kreg.thaw()


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--record")
    if not path or _why_skip():
        return
    import torch

    import kreg
    from kreg import loader

    _, driver = loader.driver.cuDriverGetVersion()
    kernels = {str(k.artifact.manifest.spec): k.artifact.cubin_digest for k in loader._loaded.values()}
    text = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "driver_cuda": f"{driver // 1000}.{driver % 1000 // 10}",
        "torch": torch.__version__,
        "kreg": kreg.__version__,
        "tests": {"collected": session.testscollected, "failed": session.testsfailed},
        "shown": session.config.stash[RECORD],
        "cubins": dict(sorted(kernels.items())),
    }
    Path(path).write_text(json.dumps(text, indent=1) + "\n")
