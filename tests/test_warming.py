"""Warming: many variants in worker processes, and one that fails costs no other."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import fake_backend
import pytest
from builders import TOOLCHAIN, entry_path, flip, make_artifact, make_kernel, read_spec
from fake_backend import KERNEL

import kreg
from kreg import Kernel, Store
from kreg.errors import StoreError, ToolchainError
from kreg.spec import CompileSpec
from kreg.warming import COMPILED, FAILED, HIT, Outcome, usable_cpus

Runs = Callable[[], int]
Variant = tuple[Kernel, CompileSpec]


def variants(*params: dict[str, object], kernel: Kernel = KERNEL) -> list[Variant]:
    """Return variants of the fake kernel."""
    return [(kernel, kernel.spec("sm_90a", chosen)) for chosen in params]


def sizes(*found: int) -> list[Variant]:
    """Return the fake kernel at these sizes."""
    return variants(*({"size": size} for size in found))


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the status of each outcome."""
    return [outcome.status for outcome in outcomes]


def test_warm_compiles_what_is_missing_and_nothing_else(store: Store, runs: Runs):
    first = kreg.warm(sizes(1, 2, 3), store=store, jobs=2)
    assert statuses(first.outcomes) == [COMPILED] * 3
    second = kreg.warm(sizes(3, 4, 1), store=store.root, jobs=2)
    assert statuses(second.outcomes) == [HIT, COMPILED, HIT]
    assert [second.count(status) for status in (COMPILED, HIT, FAILED)] == [1, 2, 0]
    assert runs() == 4


def test_warm_of_what_is_there_starts_no_process(store: Store, monkeypatch: pytest.MonkeyPatch):
    kreg.warm(sizes(1), store=store, jobs=1)
    monkeypatch.setattr("kreg.workers.ProcessPoolExecutor", None)
    assert statuses(kreg.warm(sizes(1), store=store).outcomes) == [HIT]


def test_outcomes_name_the_cubin_in_the_order_of_the_request(store: Store):
    seen: list[Outcome] = []
    report = kreg.warm(sizes(2, 1, 2), store=store, jobs=1, progress=seen.append)
    assert [outcome.spec for outcome in report.outcomes] == [spec for _, spec in sizes(2, 1, 2)]
    assert len(seen) == 2
    assert set(seen) == set(report.outcomes)
    for outcome in report.outcomes:
        found = store.read(outcome.spec, TOOLCHAIN.fingerprint)
        assert (outcome.cubin_digest, outcome.error, outcome.log_path) == (found.cubin_digest, None, None)
    assert report.seconds > 0


def test_warm_of_nothing_is_a_report_of_nothing(store: Store):
    assert kreg.warm([], store=store).outcomes == ()


def test_failure_costs_one_variant_and_keeps_its_log(store: Store):
    asked = variants({"size": 1}, {"size": 1, "mode": "refuse"}, {"size": 2})
    report = kreg.warm(asked, store=store, jobs=1)
    assert statuses(report.outcomes) == [COMPILED, FAILED, COMPILED]
    failed = report.outcomes[1]
    assert failed.error == f"cannot compile {failed.spec}: expected ';'"
    assert failed.log_path == f"{store.root}/logs/{failed.spec.key}.log"
    assert Path(failed.log_path).read_text(encoding="utf-8") == fake_backend.LOG
    assert failed.cubin_digest is None


@pytest.mark.parametrize("mode", ["exit", "segfault"])
def test_crash_of_a_compiler_costs_one_variant(store: Store, mode: str):
    asked = variants({"size": 1}, {"size": 2}, {"size": 1, "mode": mode}, {"size": 3})
    report = kreg.warm(asked, store=store, jobs=2)
    # A variant that was published when its pool broke, but not yet reported, is a hit of the second attempt.
    assert [outcome.status == FAILED for outcome in report.outcomes] == [False, False, True, False]
    failed = report.outcomes[2]
    limit = "or it took more than 1800 s (KREG_COMPILE_LIMIT)"
    assert failed.error == f"cannot compile {failed.spec}: the compiler killed its process, {limit}"
    assert len(list(store.entry_files())) == 3


def test_bug_of_a_backend_costs_one_variant(store: Store):
    report = kreg.warm(variants({"size": 1, "mode": "raise"}, {"size": 2}), store=store, jobs=1)
    assert statuses(report.outcomes) == [FAILED, COMPILED]
    assert "RuntimeError: the fake compiler has a bug" in report.outcomes[0].error


def test_source_that_is_missing_costs_one_kernel(store: Store):
    report = kreg.warm(
        [*variants({"size": 1}, kernel=make_kernel(sources=("gone.py",))), *sizes(2)], store=store, jobs=1
    )
    assert statuses(report.outcomes) == [FAILED, COMPILED]
    assert re.match("fake@1 declares the source 'gone.py', but ", report.outcomes[0].error)
    assert report.outcomes[0].log_path is None


def test_bad_entry_is_compiled_again(store: Store, runs: Runs):
    kreg.warm(sizes(1, 2), store=store, jobs=1)
    flip(entry_path(store, make_artifact(1)), 500)
    assert statuses(kreg.warm(sizes(1, 2), store=store, jobs=1).outcomes) == [COMPILED, HIT]
    assert runs() == 3


def test_entry_of_a_newer_format_is_a_failure_and_stays(store: Store):
    kreg.warm(sizes(1), store=store, jobs=1)
    path = entry_path(store, make_artifact(1))
    newer = path.read_bytes().replace(b'{"manifest":1', b'{"manifest":2')
    path.write_bytes(newer)
    (outcome,) = kreg.warm(sizes(1), store=store, jobs=1).outcomes
    assert (outcome.status, outcome.error) == (FAILED, f"manifest {path} has format 2; this kreg reads format 1")
    assert path.read_bytes() == newer


def test_what_compilers_print_stays_away_from_standard_output(store: Store, capfd: pytest.CaptureFixture[str]):
    report = kreg.warm(variants({"size": 1, "mode": "print"}), store=store, jobs=1)
    output, errors = capfd.readouterr()
    assert statuses(report.outcomes) == [COMPILED]
    assert output == ""
    assert errors.count(fake_backend.SAID) == 2


def test_warm_that_was_interrupted_goes_on_where_it_was(store: Store, runs: Runs):
    def interrupt(_outcome: Outcome) -> None:
        raise KeyboardInterrupt

    asked = sizes(*range(1, 9))
    with pytest.raises(KeyboardInterrupt):
        kreg.warm(asked, store=store, jobs=1, progress=interrupt)
    done = runs()
    assert 1 <= done < len(asked)
    report = kreg.warm(asked, store=store, jobs=1)
    # The compile that was on its way was cut off.
    assert report.count(HIT) in {done - 1, done}
    assert report.count(HIT) + report.count(COMPILED) == len(asked)
    assert runs() == done + report.count(COMPILED)


def test_warm_without_a_compiler_says_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch):
    kreg.warm(sizes(1), store=store, jobs=1)
    monkeypatch.setenv("FAKE_COMPILER", "none")
    message = "cannot compile `fake@1[size=2]:sm_90a`: its compiler is not installed; run `pip install fake-compiler`"
    with pytest.raises(ToolchainError, match=f"^{re.escape(message)}$"):
        kreg.warm(sizes(1, 2), store=store)
    assert statuses(kreg.warm(sizes(1), store=store).outcomes) == [HIT]


def test_warm_into_what_is_no_store_is_refused(store: Store, runs: Runs):
    Path(store.root).touch()
    with pytest.raises(StoreError, match=r"is not a directory; set KREG_STORE or --store to one$"):
        kreg.warm(sizes(1), store=store)
    assert runs() == 0


def test_warm_works_in_a_process_that_may_have_no_children(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert statuses(kreg.warm(sizes(1, 2), store=store).outcomes) == [COMPILED, COMPILED]


def test_variant_compiled_by_another_process_meanwhile_is_a_hit(
    store: Store, runs: Runs, monkeypatch: pytest.MonkeyPatch
):
    from kreg import warming
    from kreg.build import compile_artifact

    artifact = compile_artifact(*sizes(1)[0])
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    monkeypatch.setattr(warming, "_require_compilers", lambda _missing: store.publish(artifact))
    assert statuses(kreg.warm(sizes(1), store=store).outcomes) == [HIT]
    assert read_spec(store, artifact).cubin == artifact.cubin
    assert runs() == 1


def test_cpus_are_those_this_process_may_use():
    assert usable_cpus() == len(os.sched_getaffinity(0))


def test_compile_that_never_ends_costs_its_variant_alone(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KREG_COMPILE_LIMIT", "1.5")
    variants = [(KERNEL, KERNEL.spec("sm_90a", {"size": 3, "mode": mode})) for mode in ("good", "hang", "slow")]
    report = kreg.warm(variants, store=store, jobs=2)
    # A variant that was published when the pool broke is found by its second try.
    assert report.outcomes[1].status == FAILED
    assert {report.outcomes[0].status, report.outcomes[2].status} <= {COMPILED, HIT}
    assert report.outcomes[1].error == (
        f"cannot compile {variants[1][1]}: the compiler killed its process, or it took more than 1.5 s "
        f"(KREG_COMPILE_LIMIT)"
    )
