"""Fixtures: nothing a test does reaches the user's store, environment or later tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import HERE, SHIPPED, make_artifact
from hypothesis import HealthCheck, settings

import kreg
from kreg import Store
from kreg.backends import load_backend

GPU_TESTS = HERE / "gpu"
LONGEST_TEST = 240
"""Seconds after which a test is taken to wait for ever, and is ended."""

# The same examples on every machine, however slow it is.
settings.register_profile("kreg", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("kreg")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs tests/faults at full length."""
    parser.addoption("--long", action="store_true", help="run the tests of tests/faults at full length")


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Say whether a test of tests/faults is to run at full length."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(autouse=True)
def _alone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Give each test an environment and a process memory of its own; GPU tests keep the store they are given."""
    if GPU_TESTS in request.path.parents:
        yield
        return
    for name in list(os.environ):
        if name.startswith(("KREG_", "FAKE_", "CUTE_DSL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache-of-nobody"))
    # Spawned workers and the command find the modules of this folder.
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(load_backend("cute"), "_asked", None)  # A test may hide the compiler.
    kreg.forget()
    signal.signal(signal.SIGALRM, _end)
    signal.alarm(0 if request.config.getoption("--long") else LONGEST_TEST)
    yield
    signal.alarm(0)
    kreg.thaw()
    kreg.forget()


def _end(*_: object) -> None:
    raise TimeoutError(f"a test took more than {LONGEST_TEST} s")


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the directory of a store that does not exist yet."""
    return str(tmp_path / "store")


@pytest.fixture
def store(root: str) -> Store:
    """Return a store that does not exist yet."""
    return Store(root)


@pytest.fixture
def full(store: Store) -> Store:
    """Return a store that holds the fake kernel at sizes 1 and 2."""
    for size in (1, 2):
        store.publish(make_artifact(size))
    return store


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that says how often the fake backend has compiled, in whichever process."""
    path = tmp_path / "runs"
    monkeypatch.setenv("FAKE_RUNS", str(path))
    return lambda: path.stat().st_size if path.exists() else 0


@pytest.fixture
def public_path() -> Iterator[Path]:
    """Return a folder that other users can reach, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="kreg-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shipped_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with every warmed variant of every shipped kernel, compiled for real, once for all tests."""
    if load_backend("cute").toolchain() is None:
        pytest.skip("needs the compiler: pip install 'kreg[cute]'")
    root = str(tmp_path_factory.mktemp("shipped") / "store")
    kernels = [kreg.REGISTRY.get(name) for name in SHIPPED]
    report = kreg.warm([(kernel, spec) for kernel in kernels for spec in kernel.specs()], store=root, jobs=2)
    assert [outcome.error for outcome in report.outcomes if outcome.error] == []
    return root
