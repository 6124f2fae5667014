"""``pytest --receipts`` where launches and outcomes are not a test's own: fixtures, collection, moves and expectations.

``tests/test_receipts.py`` has the usual cases.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders import child_environment
from test_lockfile import make_lockfile, make_pin
from test_receipts import CONFTEST, GOOD, LOST

from kreg.lockfile import Receipt, read_lockfile, write_lockfile

ONE, BOTH, TWO = "fake@1[size=1]:sm_90a", "fake@1[size=1]:sm_120a", "fake@1[size=2]:sm_90a"
NOTHING = "no receipts: no test that passed launched a cubin pinned in kreg.lock"

LAUNCH = """
from builders import make_artifact
from kreg import loader
from kreg.launch import Launch
def launch_now(size): Launch(loader.load(make_artifact(size)), (1, 2, 3)).bind((1, 1, 1), int)()
"""
SHARED = (
    LAUNCH
    + """
@pytest.fixture(scope='module')
def shared(): launch_now(2)
def test_a(shared): pass
def test_b(shared): pass
"""
)
THREADED = """
from threading import Thread
def test_a(launch):
    thread = Thread(target=launch, args=(2,))
    thread.start()
    thread.join()
"""
COLLECTED = LAUNCH + "launch_now(1)\ndef test_a(): pass\n"


class Suite:
    """A project with a lockfile of sizes 1 (two targets, one cubin) and 2, and tests in ``checks/gpu``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tests = folder / "checks" / "gpu"
        self.lockfile = folder / "kreg.lock"
        self.tests.mkdir(parents=True)
        (self.tests / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        pins = (make_pin(1), make_pin(2), make_pin(1, "sm_120a", cubin=make_pin(1).cubin))
        write_lockfile(str(self.lockfile), make_lockfile(*pins))

    def write(self, text: str, name: str = "test_it.py") -> None:
        path = self.tests / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("import pytest\n" + text, encoding="utf-8")

    def run(self, *options: str, code: int = 0) -> list[str]:
        """Run the suite; return the first line said of receipts, or of an error in the request."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--receipts", "kreg.lock"]
        done = subprocess.run(
            [*command, *options, "checks/gpu"], cwd=self.folder, env=child_environment(), capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "INTERNALERROR" not in done.stdout + done.stderr
        lines = (done.stdout + done.stderr).splitlines()
        return [line for line in lines if line.startswith(("receipts:", "no receipts:", "ERROR:"))]

    @property
    def receipts(self) -> dict[str, Receipt]:
        return {pin.spec: pin.receipt for pin in read_lockfile(str(self.lockfile)).pins if pin.receipt is not None}

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        return {spec: (receipt.passed, receipt.total) for spec, receipt in self.receipts.items()}


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


@pytest.mark.parametrize(
    ("tests", "counts"),
    [
        # In the setup of a test, in its teardown, and in a fixture that a module shares, for the first that asks.
        ("def test_a(launched): pass\n", {ONE: (1, 1), BOTH: (1, 1)}),
        ("@pytest.fixture\ndef late(launch):\n yield\n launch(2)\ndef test_a(late): pass\n", {TWO: (1, 1)}),
        (SHARED, {TWO: (1, 2)}),
        # Expected failures are no passes, passed or not; a skipped test is not one of the total.
        ("def test_a(launch): launch(1)\n@pytest.mark.xfail\ndef test_x(launch): launch(2)\n",
         {ONE: (1, 2), BOTH: (1, 2)}),
        ("def test_a(launch): launch(1)\ndef test_s(): pytest.skip('no')\n", {ONE: (1, 1), BOTH: (1, 1)}),
        # A parameter makes a test of its own.
        ("@pytest.mark.parametrize('size', [1, 1, 2])\ndef test_a(launch, size): launch(size)\n",
         {ONE: (2, 3), BOTH: (2, 3), TWO: (1, 3)}),
        # Many launches in one test are one pass.
        ("def test_a(launch):\n for _ in range(5): launch(2)\n", {TWO: (1, 1)}),
        (THREADED, {TWO: (1, 1)}),
    ],
)  # fmt: skip
def test_launch_counts_for_the_test_in_which_it_happened(suite: Suite, tests: str, counts: dict[str, tuple[int, int]]):
    suite.write(tests)
    (said,) = suite.run()
    assert said.endswith(" of 3 pins in kreg.lock, for cubins that passed on Made-up GPU")
    assert suite.counts == counts


@pytest.mark.parametrize(
    ("tests", "code", "said"),
    [
        # While files are collected, no test runs that could pass.
        (COLLECTED, 0, NOTHING),
        ("def test_a(launch): launch(3)\n", 0, NOTHING),
        ("@pytest.fixture\ndef bad(launch):\n launch(1)\n assert 0\ndef test_a(bad): pass\n", 1, NOTHING),
        ("def test_a(launch): launch(1)\n@pytest.fixture\ndef bad(): assert 0\ndef test_b(bad): pass\n", 1,
         f"no receipts: {LOST}: checks/gpu/test_it.py::test_b"),
        ("def test_a(launch): launch(1)\n@pytest.fixture\ndef bad():\n yield\n assert 0\ndef test_b(bad): pass\n", 1,
         f"no receipts: {LOST}: checks/gpu/test_it.py::test_b"),
    ],
)  # fmt: skip
def test_launch_outside_of_a_test_that_passed_earns_nothing(suite: Suite, tests: str, code: int, said: str):
    suite.write(tests)
    before = suite.lockfile.read_bytes()
    assert suite.run(code=code) == [said]
    assert suite.lockfile.read_bytes() == before


def test_suite_is_the_folder_that_its_tests_have_in_common(suite: Suite):
    suite.write("def test_a(launch): launch(1)\n", "deep/test_a.py")
    suite.write("def test_b(launch): launch(1)\n", "wide/test_b.py")
    suite.run()
    assert {receipt.suite for receipt in suite.receipts.values()} == {"checks/gpu"}
    assert suite.counts[ONE] == (2, 2)


def test_run_that_earns_none_leaves_earlier_receipts(suite: Suite):
    suite.write(GOOD)
    suite.run()
    earned = suite.counts
    suite.write("def test_nothing(): pass\n")
    assert suite.run() == [NOTHING]
    assert suite.counts == earned != {}


def test_lockfile_that_is_gone_after_the_tests_is_told_and_changes_no_outcome(suite: Suite):
    suite.write("import os\ndef test_a(launch):\n launch(1)\n os.remove('kreg.lock')\n")
    said = "no receipts: there is no lockfile kreg.lock; write one with `kreg lock`, or name another"
    assert suite.run() == [said]
    assert not suite.lockfile.exists()


def test_device_that_cannot_be_asked_is_told_and_changes_no_outcome(suite: Suite):
    suite.write(
        "from cuda.bindings import driver\ndef test_a(launch):\n launch(1)\n"
        " driver.cuDeviceGetName = lambda *_: (driver.CUresult.CUDA_ERROR_INVALID_DEVICE, None)\n"
    )
    assert suite.run() == ["no receipts: cannot ask device 0 its name: CUDA_ERROR_INVALID_DEVICE"]
    assert suite.counts == {}


def test_lockfile_that_is_not_there_is_a_usage_error_before_any_test(suite: Suite):
    suite.write("def test_a(launch): open('ran', 'w').close()\n")
    suite.lockfile.unlink()
    said = "ERROR: there is no lockfile kreg.lock; write one with `kreg lock`, or name another"
    assert suite.run(code=4) == [said]
    assert not (suite.folder / "ran").exists()


def test_processes_of_xdist_are_refused(suite: Suite):
    suite.write(GOOD)
    (suite.folder / "like_xdist.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--numprocesses', type=int)\n", encoding="utf-8"
    )
    (suite.folder / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = -p like_xdist\n", encoding="utf-8")
    assert suite.run("--numprocesses", "2", code=4) == [
        "ERROR: --receipts takes the tests in one process, not pytest-xdist's"
    ]
    suite.run("--numprocesses", "0")
    assert suite.counts[TWO] == (1, 4)


def test_observer_is_gone_when_the_session_is_over(suite: Suite):
    suite.write(GOOD)
    with open(suite.tests / "conftest.py", "a", encoding="utf-8") as file:
        file.write(
            "def pytest_unconfigure():\n import kreg.launch\n open('left', 'w').write(str(kreg.launch._observer))\n"
        )
    suite.run()
    assert (suite.folder / "left").read_text(encoding="utf-8") == "None"
