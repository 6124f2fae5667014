"""Receipts: by the public function, and by pytest's option ``--receipts``."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest
from builders import HERE, make_artifact, make_spec
from test_lockfile import make_lockfile, make_pin, make_receipt

import kreg
from kreg import LockfileError, Receipt
from kreg.lockfile import read_lockfile, write_lockfile
from kreg.receipts import digest_of_tests

ONE, TWO = make_artifact(1), make_artifact(2)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a lockfile of sizes 1 and 2, size 1 for two targets with one cubin."""
    pins = (make_pin(1), make_pin(2), make_pin(1, "sm_120a", cubin=make_pin(1).cubin))
    write_lockfile(str(tmp_path / "kreg.lock"), make_lockfile(*pins))
    return str(tmp_path / "kreg.lock")


def receipts(path: str) -> dict[str, Receipt | None]:
    return {pin.spec: pin.receipt for pin in read_lockfile(path).pins}


def test_receipt_goes_into_every_pin_of_its_cubin(path: str):
    receipt = make_receipt(ONE.cubin_digest)
    written = kreg.add_receipts(Path(path), [receipt])
    assert receipts(path) == {
        "fake@1[size=1]:sm_120a": receipt, "fake@1[size=1]:sm_90a": receipt, "fake@1[size=2]:sm_90a": None,
    }  # fmt: skip
    assert written.hardware == read_lockfile(path).hardware == ("sm_120a", "sm_90a")


def test_newer_receipt_replaces_its_own_and_no_other(path: str):
    first, second = make_receipt(ONE.cubin_digest), make_receipt(TWO.cubin_digest, suite="other")
    kreg.add_receipts(path, [first, second])
    newer = make_receipt(ONE.cubin_digest, date="2026-12-02")
    kreg.add_receipts(path, [newer])
    assert list(receipts(path).values()) == [newer, newer, second]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cubin": "f" * 64}, "{path} has no pin for the cubin " + "f" * 64 + " of a receipt; see `kreg check`"),
        ({"cubin": "short"}, "receipt for short: cubin is 'short', not 64 hex digits"),
        ({"tests": "A" * 64}, "receipt for {cubin}: tests is '" + "A" * 64 + "', not 64 hex digits"),
        ({"date": "yesterday"}, "receipt for {cubin}: date is 'yesterday', not one such as 2026-12-01"),
        ({"date": "20261201"}, "receipt for {cubin}: date is '20261201', not one such as 2026-12-01"),
        ({"device": None}, "receipt for {cubin}: Expected `str`, got `null` - at `$.device`"),
        ({"passed": "1"}, "receipt for {cubin}: Expected `int`, got `str` - at `$.passed`"),
        ({"cubin": None}, "receipt for None: Expected `str`, got `null` - at `$.cubin`"),
        ({"passed": 0}, "receipt for {cubin}: 0 of 2 tests passed; it takes at least one, and no more than there were"),
        ({"passed": 3}, "receipt for {cubin}: 3 of 2 tests passed; it takes at least one, and no more than there were"),
    ],
)
def test_bad_receipt_is_refused_and_nothing_written(path: str, change: dict[str, object], message: str):
    before = Path(path).read_bytes()
    good = make_receipt(TWO.cubin_digest)
    bad = make_receipt(**{"cubin": ONE.cubin_digest, **change})
    with pytest.raises(LockfileError) as caught:
        kreg.add_receipts(path, [good, bad, make_receipt(ONE.cubin_digest)])
    assert str(caught.value) == message.format(path=path, cubin=ONE.cubin_digest[:12])
    assert Path(path).read_bytes() == before


def test_lockfile_of_a_newer_revision_is_not_written(path: str):
    Path(path).write_text(Path(path).read_text(encoding="utf-8").replace('"revision":1', '"revision":2'))
    before = Path(path).read_bytes()
    with pytest.raises(LockfileError, match=r"has revision 2, written by a newer kreg; write it with that one$"):
        kreg.add_receipts(path, [make_receipt(ONE.cubin_digest)])
    assert Path(path).read_bytes() == before


def test_digest_of_tests_is_over_names_and_contents_of_python_files(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "test_x.py").write_text("x = 1\n", encoding="utf-8")
    digest = digest_of_tests(tmp_path / "a")
    assert digest_of_tests(tmp_path / "b") == digest
    (tmp_path / "b" / "data.txt").write_text("no test\n", encoding="utf-8")
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "old.py").write_text("x = 0\n", encoding="utf-8")
    assert digest_of_tests(tmp_path / "b") == digest
    (tmp_path / "b" / "deep" / "test_x.py").rename(tmp_path / "b" / "deep" / "test_y.py")
    assert digest_of_tests(tmp_path / "b") != digest
    (tmp_path / "a" / "deep" / "test_x.py").write_text("x = 2\n", encoding="utf-8")
    assert digest_of_tests(tmp_path / "a") != digest


# The plugin, as a user runs it.

CONFTEST = """
import pytest
from builders import make_artifact
from fake_driver import FakeDriver
from kreg import loader
from kreg.launch import Launch
FakeDriver().install(pytest.MonkeyPatch())
_calls = {}
@pytest.fixture
def launch():
    def run(size):
        if size not in _calls:
            kernel = loader.load(make_artifact(size))
            _calls[size] = Launch(kernel, (1, 2, 3), changing=0).bind((1, 1, 1), int)
        _calls[size]()
    return run
@pytest.fixture
def launched(launch):
    launch(1)
"""
GOOD = """
def test_one(launch): launch(1)
def test_one_and_two(launch): launch(1); launch(2)
def test_not_pinned(launch): launch(3)
def test_nothing(): pass
"""


@pytest.fixture
def suite(tmp_path: Path, path: str) -> Path:
    """Return the folder of a test suite, without tests."""
    folder = tmp_path / "checks" / "gpu"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = " + str(HERE) + "\n", encoding="utf-8")
    return folder


def run(suite: Path, tests: str, *options: str, code: int = 0) -> list[str]:
    """Run tests with ``--receipts``; return what is said of receipts at the end."""
    (suite / "test_it.py").write_text("import pytest\n" + tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--receipts", "kreg.lock"]
    given = options if any("checks" in option for option in options) else ("checks/gpu", *options)
    done = subprocess.run([*command, *given], cwd=suite.parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "receipts" in line or "without one" in line]


def passed(path: str) -> dict[str, int]:
    """Return how many tests each pin's receipt counts."""
    return {spec: receipt.passed for spec, receipt in receipts(path).items() if receipt is not None}


ALL = {"fake@1[size=1]:sm_120a": 2, "fake@1[size=1]:sm_90a": 2, "fake@1[size=2]:sm_90a": 1}


def test_cubins_whose_tests_all_passed_get_a_receipt(suite: Path, path: str):
    assert run(suite, GOOD) == ["receipts: 3 of 3 pins in kreg.lock, for cubins that passed on Made-up GPU"]
    assert passed(path) == ALL
    assert receipts(path)["fake@1[size=1]:sm_90a"] == Receipt(
        cubin=ONE.cubin_digest, suite="checks/gpu", tests=digest_of_tests(suite), device="Made-up GPU", driver="13.0",
        torch=receipts(path)["fake@1[size=1]:sm_90a"].torch, date=dt.datetime.now(dt.UTC).date().isoformat(), passed=2,
        total=4,
    )  # fmt: skip
    run(suite, GOOD, "--receipts-suite", "mine")
    assert receipts(path)["fake@1[size=1]:sm_90a"].suite == "mine"


@pytest.mark.parametrize(
    ("tests", "code", "expected"),
    [
        (GOOD + "def test_bad(launch): launch(1); assert 0\n", 1, {"fake@1[size=2]:sm_90a": 1}),
        (GOOD + "@pytest.fixture\ndef bad(launch):\n yield\n launch(2)\n assert 0\ndef test_bad(bad): pass\n", 1,
         {"fake@1[size=1]:sm_120a": 2, "fake@1[size=1]:sm_90a": 2}),
        (GOOD + "@pytest.mark.xfail\ndef test_bad(launch): launch(1); assert 0\n", 0, {"fake@1[size=2]:sm_90a": 1}),
        (GOOD + "def test_skipped(launch): launch(2); pytest.skip('no')\n", 0, ALL),
        ("def test_skipped(launch): launch(2); pytest.skip('no')\ndef test(launched): pass\n", 0,
         {"fake@1[size=1]:sm_120a": 1, "fake@1[size=1]:sm_90a": 1}),
        (GOOD + "@pytest.fixture\ndef bad():\n yield\n assert 0\n"
         "def test_bad(bad, launch): launch(1); pytest.skip('no')\n", 1, {"fake@1[size=2]:sm_90a": 1}),
    ],
)  # fmt: skip
def test_cubin_with_a_test_that_did_not_pass_gets_none(
    suite: Path, path: str, tests: str, code: int, expected: dict[str, int]
):
    run(suite, tests, code=code)
    assert passed(path) == expected


def test_pins_of_the_target_that_no_test_launched_are_told(suite: Path, path: str):
    assert run(suite, "def test_two(launch): launch(2)\n") == [
        "receipts: 1 of 3 pins in kreg.lock, for cubins that passed on Made-up GPU",
        "without one: 1 of sm_90a, as fake@1[size=1]:sm_90a",
    ]


NOT_ALL = "no receipts: not all tests were chosen, and a receipt says that all passed"
EARLY = "no receipts: the run ended before all tests had run"
LOST = "a test failed that launched nothing here, so that it may be of any cubin"
FAILS = GOOD + "def test_z_fails(): assert 0\n"


@pytest.mark.parametrize(
    ("tests", "options", "code", "said"),
    [
        (GOOD, ("-k", "one"), 0, NOT_ALL),
        (GOOD, ("checks/gpu/test_it.py::test_one",), 0, NOT_ALL),
        (GOOD, ("--deselect", "checks/gpu/test_it.py::test_one"), 0, NOT_ALL),
        ("def test_a(launch): launch(1); assert 0\n" + GOOD, ("-x",), 1, EARLY),
        (GOOD + "def test_z(): raise KeyboardInterrupt\n", (), 2, EARLY),
        (GOOD + "def test_z(launch): launch(1); pytest.exit('enough', returncode=0)\n", (), 0, EARLY),
        ("def test_z(launched): assert 0\n", ("--setup-only",), 0, EARLY),
        (FAILS, (), 1, f"no receipts: {LOST}: checks/gpu/test_it.py::test_z_fails"),
        ("def test_nothing(): pass\n", (), 0, "no receipts: no test that passed launched a cubin pinned in kreg.lock"),
    ],
)  # fmt: skip
def test_run_that_shows_too_little_writes_nothing_and_says_why(
    suite: Path, path: str, tests: str, options: tuple[str, ...], code: int, said: str
):
    before = Path(path).read_bytes()
    assert run(suite, tests, *options, code=code) == [said]
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize(
    "options",
    [
        ("checks/gpu/test_it.py",),
        ("checks/gpu/test_it.py", "checks/gpu/more"),
        ("--ignore", "checks/gpu/more"),
        ("--ignore-glob", "*/more"),
        ("-p", "cacheprovider", "--lf"),
    ],
)
def test_run_without_some_of_the_files_writes_nothing_and_says_why(suite: Path, path: str, options: tuple[str, ...]):
    for name in ("more", "other"):
        (suite / name).mkdir()
        (suite / name / f"test_{name}.py").write_text("def test_two(launch): launch(2)\n", encoding="utf-8")
    before = Path(path).read_bytes()
    assert run(suite, GOOD, *options) == [NOT_ALL]
    assert Path(path).read_bytes() == before


def test_file_that_cannot_be_collected_forbids_receipts(suite: Path, path: str):
    (suite / "test_broken.py").write_text("import there_is_no_such_module\n", encoding="utf-8")
    said = "no receipts: tests could not be collected: checks/gpu/test_broken.py"
    assert run(suite, GOOD, "--continue-on-collection-errors", code=1) == [said]
    assert passed(path) == {}


@pytest.mark.parametrize("change", [("{", "{["), ('"revision":1', '"revision":2')])
def test_bad_lockfile_is_found_before_any_test_runs(suite: Path, path: str, change: tuple[str, str]):
    Path(path).write_text(Path(path).read_text(encoding="utf-8").replace(*change, 1), encoding="utf-8")
    run(suite, "from pathlib import Path\ndef test_runs(): Path('ran').touch()\n", code=4)
    assert not Path(path).with_name("ran").exists()


def test_plugin_costs_nothing_where_no_receipts_are_wanted(suite: Path):
    tests = "import sys\ndef test_light(): assert not {'msgspec', 'cuda', 'kreg.launch'} & set(sys.modules)\n"
    (suite / "conftest.py").unlink()
    (suite / "test_it.py").write_text(tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "checks/gpu"]
    done = subprocess.run(command, cwd=suite.parent.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, "receipt" in done.stdout) == (0, False)


def test_spec_of_these_tests_is_that_of_the_pins():
    assert make_pin(1).cubin == ONE.cubin_digest
    assert make_spec(params={"size": 1}).key == ONE.key
