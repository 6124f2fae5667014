"""A pytest plugin that writes receipts: ``pytest tests/gpu --receipts kreg.lock``, on a machine with a GPU.

A pinned cubin earns one if at least one test launched it and every test that did has passed. Nothing is written
where that cannot be known: some tests of the folder were left out, the run ended early, a file could not be collected,
or a test failed that launched nothing. Launches in child processes are not seen, and those of a fixture that
several tests share count for the test that sets it up.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.artifact import Artifact
    from kreg.lockfile import Lockfile, Receipt

_FROM_BEST = ("passed", "skipped", "xfailed", "failed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("kreg")
    group.addoption("--receipts", metavar="LOCKFILE", help="write a receipt into the pin of each cubin that passes")
    group.addoption("--receipts-suite", metavar="NAME", help="the suite's name (default: the tests' common folder)")


def pytest_configure(config: pytest.Config) -> None:
    """Read the lockfile before any test runs, and begin to observe launches."""
    path = config.getoption("--receipts")
    if not path:
        return
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise pytest.UsageError("--receipts takes the tests in one process, not pytest-xdist's")
    from kreg.errors import KregError

    try:
        config.pluginmanager.register(_Receipts(config, path), "kreg-receipts")
    except KregError as error:
        raise pytest.UsageError(str(error)) from error


class _Receipts:
    """Notes which test launched what and how it ended, and writes the receipts when all are done."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        from kreg.launch import observe_launches

        self._config = config
        self._path = path
        self._lockfile = _read_to_write(path)
        self._launched: dict[str, set[str]] = {}
        self._results: dict[str, str] = {}
        self._now = ""
        self._deselected = 0
        self._uncollected = ""
        self._folder = config.rootpath
        self._said: list[str] = []
        observe_launches(self._observe)

    def _observe(self, artifact: Artifact) -> None:
        self._launched.setdefault(self._now, set()).add(artifact.cubin_digest)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._uncollected = self._uncollected or report.nodeid

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        folders = {item.path.parent for item in session.items}
        if folders:
            self._folder = _common(folders)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._now = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst that setup, call and teardown of a test came to; an expected failure is no pass.

        Only a call passes a test: a setup that went well says nothing of a test that then ends the run.
        """
        outcome: str = report.outcome if report.outcome in _FROM_BEST else "failed"
        if hasattr(report, "wasxfail"):
            outcome = "xfailed"
        if outcome != "passed" or report.when == "call":
            before = self._results.get(report.nodeid, outcome)
            self._results[report.nodeid] = max(before, outcome, key=_FROM_BEST.index)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        from kreg.errors import KregError
        from kreg.launch import observe_launches

        observe_launches(None)
        try:
            why = self._why_not(session, exitstatus)
            self._said = [f"no receipts: {why}"] if why else self._write()
        except (KregError, OSError) as error:  # It must not change how the tests ended.
            self._said = [f"no receipts: {error}"]

    def _why_not(self, session: pytest.Session, exitstatus: int) -> str | None:
        has_ended = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if not has_ended or len(self._results) < session.testscollected:
            return "the run ended before all tests had run"
        if not self._is_whole():
            return "not all tests were chosen, and a receipt says that all passed"
        if self._uncollected:
            return f"tests could not be collected: {self._uncollected}"
        lost = [test for test, result in self._results.items() if result == "failed" and test not in self._launched]
        if lost:
            return f"a test failed that launched nothing here, so that it may be of any cubin: {lost[0]}"
        return None

    def _is_whole(self) -> bool:
        """Say whether the folder of the tests was given whole, and nothing in it left out.

        ``--lf`` passes over whole files, and deselects nothing in them.
        """
        options = ("ignore", "ignore_glob", "lf")
        if self._deselected or any(self._config.getoption(name, None) for name in options):
            return False
        start = self._config.invocation_params.dir
        given = [os.path.abspath(start / argument) for argument in self._config.args]
        return any(self._folder.is_relative_to(place) for place in given)

    def _write(self) -> list[str]:
        from kreg.receipts import add_receipts

        receipts = self._receipts()
        if not receipts:
            return [f"no receipts: no test that passed launched a cubin pinned in {self._path}"]
        written = add_receipts(self._path, receipts)
        held = {receipt.cubin for receipt in receipts}
        targets = {pin.spec.rpartition(":")[2] for pin in written.pins if pin.cubin in held}
        device_pins = [pin for pin in written.pins if pin.spec.rpartition(":")[2] in targets]
        others = [pin.spec for pin in device_pins if pin.cubin not in held]
        count = len(device_pins) - len(others)
        said = f"receipts: {count} of {len(written.pins)} pins in {self._path}, for cubins that passed on "
        said += receipts[0].device
        none = [f"without one: {len(others)} of {', '.join(sorted(targets))}, as {others[0]}"] if others else []
        return [said, *none]

    def _receipts(self) -> list[Receipt]:
        from datetime import UTC, datetime

        from kreg.loader import describe_device
        from kreg.lockfile import Receipt
        from kreg.receipts import digest_of_tests

        passed = self._passed()
        if not passed:
            return []
        device, driver = describe_device()
        torch = sys.modules.get("torch")
        tests = digest_of_tests(self._folder)
        return [
            Receipt(
                cubin=cubin,
                suite=self._config.getoption("--receipts-suite") or self._suite(),
                tests=tests,
                device=device,
                driver=driver,
                torch=str(torch.__version__) if torch else "none",
                date=datetime.now(UTC).date().isoformat(),
                passed=count,
                total=sum(result != "skipped" for result in self._results.values()),
            )
            for cubin, count in sorted(passed.items())
        ]

    def _suite(self) -> str:
        root = self._config.rootpath
        return self._folder.relative_to(root).as_posix() if self._folder.is_relative_to(root) else self._folder.name

    def _passed(self) -> dict[str, int]:
        """Return the pinned cubins that every test that launched them passed with, and how many tests that were."""
        pinned = {pin.cubin for pin in self._lockfile.pins}
        counts: dict[str, int] = {}
        failed: set[str] = set()
        for test, cubins in self._launched.items():
            result = self._results.get(test)
            for cubin in cubins & pinned:
                counts[cubin] = counts.get(cubin, 0) + (result == "passed")
            failed |= cubins if result in {"failed", "xfailed"} else set()
        return {cubin: count for cubin, count in counts.items() if count and cubin not in failed}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._said:
            terminalreporter.write_line(line)


def _read_to_write(path: str) -> Lockfile:
    """Read a lockfile; refuse now, not after the tests, one that this kreg does not write."""
    from kreg.errors import LockfileError
    from kreg.lockfile import REVISION, read_lockfile

    found = read_lockfile(path)
    if found.revision > REVISION:
        raise LockfileError(f"{path} has revision {found.revision}, written by a newer kreg; write it with that one")
    return found


def _common(folders: set[Path]) -> Path:
    first = min(folders)
    return next(place for place in (first, *first.parents) if all(f.is_relative_to(place) for f in folders))
