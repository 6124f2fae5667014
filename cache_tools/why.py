"""``kreg why``: would this be a hit, and if not, what is nearest and what fixes it."""

from __future__ import annotations

import sys

import click

from kreg import REGISTRY, config
from kreg.explain import HIT, MISS, Explanation, explain
from kreg.lockfile import Lockfile, Pin, read_lockfile
from kreg.spec import CompileSpec
from kreg.store import Store

from .options import json_option, lockfile_option, store_option
from .output import print_json


@click.command("why")
@click.argument("spec")
@lockfile_option
@store_option
@json_option
def why_command(spec: str, lockfile: str | None, store: Store, as_json: bool) -> None:
    """Say whether SPEC would be a hit: what is looked at, in which order, and what fixes a miss.

    Changes nothing. Exit code 0 for a hit, 1 for anything else. A lockfile counts where it would in a resolve.
    """
    found = REGISTRY.parse(spec)
    path = config.lockfile_in_force("locked" if lockfile else config.policy(), lockfile)
    done = explain(REGISTRY.get(found.kernel), found, store, None if path is None else _pinned(path, found))
    if as_json:
        print_json(_as_json(done))
    else:
        _print(done)
    sys.exit(0 if done.result == HIT else 1)


def _pinned(path: str, spec: CompileSpec) -> tuple[Lockfile, Pin | None]:
    lockfile = read_lockfile(path)
    return lockfile, next((pin for pin in lockfile.pins if pin.key == spec.key), None)


def _print(done: Explanation) -> None:
    click.echo(f"{done.result}: {done.spec} ({done.spec.key[:12]})")
    for number, line in enumerate(done.tried, 1):
        click.echo(f"{number}. {line}")
    for near in done.near:
        click.echo(f"near: {near.spec}: {', '.join(near.differences)}")
    if done.result == MISS and not done.near:
        click.echo(f"near: nothing of {done.spec.kernel} is in the store")
    if done.command is not None:
        click.echo(f"run: {done.command}")


def _as_json(done: Explanation) -> dict[str, object]:
    return {
        "spec": str(done.spec),
        "spec_key": done.spec.key,
        "result": done.result,
        "tried": done.tried,
        "near": [{"spec": n.spec, "path": n.path, "differences": n.differences} for n in done.near],
        "run": done.command,
    }
