"""``kreg warm``: compile ahead of use."""

from __future__ import annotations

import sys

import click

from kreg import REGISTRY
from kreg.inventory import select
from kreg.loader import device_targets
from kreg.selector import Selector
from kreg.store import Store
from kreg.warming import COMPILED, FAILED, HIT, Outcome, Report, warm

from .look import marked, print_entries
from .options import jobs_option, json_option, selector_options, store_option
from .output import Bar, print_json


@click.command("warm")
@selector_options
@click.option("--rebuild", is_flag=True, help="Take new machine code under an unchanged version, in development.")
@jobs_option
@store_option
@json_option
def warm_command(
    chosen: Selector,
    rebuild: bool,
    jobs: int | None,
    store: Store,
    as_json: bool,
) -> None:
    """Compile what the store lacks, and say what became of each variant.

    Without --target: the targets of the GPUs of this machine, or every declared target where there is none.
    """
    if not chosen.targets:
        here = device_targets()
        note = f"targets of this machine's GPUs: {', '.join(here)}" if here else "no GPU here: all declared targets"
        click.echo(f"no --target given; {note}", err=True)
        chosen = chosen.with_targets(here)
    variants = chosen.specs(REGISTRY)
    outcomes: list[Outcome] = []
    with Bar("compiling") as bar:

        def progress(outcome: Outcome) -> None:
            outcomes.append(outcome)
            _say_if_failed(outcome)
            bar.advance(len(outcomes), len(variants))

        report = warm(variants, store=store, jobs=jobs, progress=progress, drift="rebuild" if rebuild else None)
    if as_json:
        print_json(_as_json(report))
    else:
        print_entries(marked(select(store, chosen, REGISTRY)))
        click.echo(_summary(report))
    sys.exit(1 if report.count(FAILED) else 0)


def _summary(report: Report) -> str:
    compiled, hit, failed = (report.count(status) for status in (COMPILED, HIT, FAILED))
    return f"{compiled} compiled, {hit} already there, {failed} failed in {report.seconds:.1f} s"


def _as_json(report: Report) -> dict[str, object]:
    return {
        **{status: report.count(status) for status in (COMPILED, HIT, FAILED)},
        "seconds": round(report.seconds, 3),
        "entries": [
            {
                "spec": str(outcome.spec),
                "spec_key": outcome.spec.key,
                "status": outcome.status,
                "cubin_digest": outcome.cubin_digest,
                "error": outcome.error,
                "log": outcome.log_path,
            }
            for outcome in report.outcomes
        ],
    }


def _say_if_failed(outcome: Outcome) -> None:
    if outcome.status == FAILED:
        place = f"; log: {outcome.log_path}" if outcome.log_path else ""
        click.echo(f"failed: {outcome.error}{place}", err=True)
