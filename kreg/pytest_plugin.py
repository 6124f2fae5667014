"""A pytest plugin that writes receipts: ``pytest tests/gpu --receipts kreg.lock``, on a machine with a GPU.

A pinned cubin earns one if at least one test launched it and every test that did has passed. Nothing is written
where that cannot be known: some tests were deselected, the run ended early, or a test failed that launched nothing.
Launches in child processes are not seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.artifact import Artifact
    from kreg.lockfile import Lockfile, Receipt


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
        from kreg.lockfile import read_lockfile

        self._config = config
        self._path = path
        self._lockfile: Lockfile = read_lockfile(path)
        self._launched: dict[str, set[str]] = {}
        self._results: dict[str, str] = {}
        self._now = ""
        self._deselected = 0
        self._folder = config.rootpath
        self._said: list[str] = []
        observe_launches(self._observe)

    def _observe(self, artifact: Artifact) -> None:
        self._launched.setdefault(self._now, set()).add(artifact.cubin_digest)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        folders = {item.path.parent for item in session.items}
        if folders:
            self._folder = _common(folders)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._now = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst that setup, call and teardown of a test came to; an expected failure is no pass."""
        outcome = "failed" if hasattr(report, "wasxfail") else report.outcome
        before = self._results.get(report.nodeid, "passed")
        self._results[report.nodeid] = outcome if before == "passed" else before

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        from kreg.launch import observe_launches

        observe_launches(None)
        why = self._why_not(session, exitstatus)
        self._said = [f"no receipts: {why}"] if why else self._write()

    def _why_not(self, session: pytest.Session, exitstatus: int) -> str | None:
        if self._deselected or any("::" in argument for argument in self._config.args):
            return "not all tests were chosen, and a receipt says that all passed"
        is_whole = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if not is_whole or len(self._results) < session.testscollected:
            return "the run ended before all tests had run"
        lost = [test for test, result in self._results.items() if result == "failed" and test not in self._launched]
        if lost:
            return f"a test failed that launched nothing here, so that it may be of any cubin: {lost[0]}"
        return None

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
            failed |= cubins if result == "failed" else set()
        return {cubin: count for cubin, count in counts.items() if count and cubin not in failed}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._said:
            terminalreporter.write_line(line)


def _common(folders: set[Path]) -> Path:
    first = min(folders)
    return next(place for place in (first, *first.parents) if all(f.is_relative_to(place) for f in folders))
