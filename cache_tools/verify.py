"""``kreg verify``: recompute every digest."""

from __future__ import annotations

import sys
import time

import click

from kreg import REGISTRY
from kreg.selector import Selector
from kreg.store import Store
from kreg.sweep import leftovers
from kreg.upkeep import Finding, Verification, verify

from .options import json_option, selector_options, store_option
from .output import plural, print_json


@click.command("verify")
@selector_options
@click.option("--recompile", is_flag=True, help="Compile every sound entry again and compare the machine code.")
@store_option
@json_option
def verify_command(
    chosen: Selector,
    recompile: bool,
    store: Store,
    as_json: bool,
) -> None:
    """Check every digest, manifest and cubin; one line per bad entry. Changes nothing."""
    start = time.perf_counter()
    done = verify(store, chosen, REGISTRY, recompile=recompile, report=None if as_json else _print_finding)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(_as_json(done, seconds, store))
    else:
        _summarise(done, seconds)
    if not (as_json or chosen):
        _print_leftovers(store)
    sys.exit(1 if done.findings else 0)


def _print_finding(finding: Finding) -> None:
    click.echo(f"{finding.path}: {finding.reason}")


def _print_leftovers(store: Store) -> None:
    left = leftovers(store)
    for path in left:
        click.echo(f"{path}: no entry needs it", err=True)
    if left:
        click.echo(f"{plural(len(left), 'leftover')}, which `kreg gc` removes when they are old enough", err=True)


def _as_json(done: Verification, seconds: float, store: Store) -> dict[str, object]:
    return {
        "checked": done.checked,
        "bad": [{"path": f.path, "spec": f.spec, "reason": f.reason} for f in done.findings],
        "newer": done.newer,
        "not_recompiled": done.skipped,
        "seconds": round(seconds, 3),
        "leftovers": leftovers(store),
    }


def _summarise(done: Verification, seconds: float) -> None:
    if done.newer:
        click.echo(f"{plural(done.newer, 'entry')} of a newer kreg left alone", err=True)
    if done.skipped:
        click.echo(f"{plural(done.skipped, 'entry')} not compiled again: no longer declared", err=True)
    summary = f"{plural(done.checked, 'entry')} checked, {len(done.findings)} bad in {seconds:.1f} s"
    click.echo(summary, err=True)
