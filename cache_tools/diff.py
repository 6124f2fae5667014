"""``kreg diff``: what two lockfiles or stores differ in, down to the instructions."""

from __future__ import annotations

import os
import sys

import click

from kreg import KregError
from kreg.difference import Change, Difference, Item, compare, items_of
from kreg.disassembly import instruction_diff
from kreg.inventory import Selector
from kreg.store import Store

from .options import json_option, selector_options, store_option
from .output import plural, print_json

_NUMBERS = {
    "registers": "registers",
    "shared_bytes": "shared",
    "local_bytes": "local (spills)",
    "code_bytes": "code",
    "cubin_bytes": "cubin size",
}


@click.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@selector_options
@click.option("--sass", is_flag=True, help="Show the instructions that differ; needs nvdisasm.")
@store_option
@json_option
def diff_command(before: str, after: str, chosen: Selector, sass: bool, store: Store, as_json: bool) -> None:
    """Show what differs between A and B, each a lockfile or a store. Exit code 1 if anything does.

    With --sass, the cubins of a lockfile are looked for in --store.
    """
    sides = [[item for item in items_of(path) if chosen.means(item.spec)] for path in (before, after)]
    found = compare(*sides)
    listings = _listings(found, [_store_of(path, store) for path in (before, after)]) if sass else {}
    if as_json:
        print_json(_as_json(found, listings))
    else:
        _print(found, listings)
    sys.exit(0 if found.is_empty else 1)


def _store_of(path: str, store: Store) -> Store:
    return Store(path) if os.path.isdir(path) else store


def _listings(found: Difference, stores: list[Store]) -> dict[str, list[str]]:
    """Return the instruction diff of each variant whose cubin moved, by spec."""
    return {
        change.after.spec: instruction_diff(*map(_cubin, (change.before, change.after), stores))
        for change in found.changed
        if "program" in change.moved
    }


def _cubin(item: Item, store: Store) -> str:
    path = store.object_path(str(item.values["cubin"]))
    if not os.path.exists(path):
        raise KregError(f"the cubin of `{item.spec}` is not in {store.root} ({path}); name a store that has it")
    return path


def _print(found: Difference, listings: dict[str, list[str]]) -> None:
    for item in found.removed:
        click.echo(f"- {item.spec}")
    for item in found.added:
        click.echo(f"+ {item.spec}  {_describe(item)}")
    for change in found.changed:
        click.echo(f"~ {change.after.spec}  {', '.join(_moves(change))}")
        for line in listings.get(change.after.spec, []):
            click.echo(f"    {line}")
    code = sum("program" in change.moved for change in found.changed)
    sides = f"{len(found.added)} added, {len(found.removed)} removed, {plural(found.same, 'variant')} the same"
    click.echo(f"{len(found.changed)} changed ({code} in machine code), {sides}", err=True)


def _describe(item: Item) -> str:
    return ", ".join(f"{label} {item.values[name]}" for name, label in _NUMBERS.items())


def _moves(change: Change) -> list[str]:
    """Say what moved, what a reviewer asks first coming first."""
    said = []
    if "version" in change.moved:
        said.append("version {} -> {}".format(*change.moved["version"]))
    if "toolchain" in change.moved:
        said.append(_toolchain_move(*change.moved["toolchain"]))
    said.append("machine code changed" if "program" in change.moved else "machine code is the same")
    for name, label in _NUMBERS.items():
        if name in change.moved:
            old, new = change.moved[name]
            said.append(f"{label} {old} -> {new} ({int(str(new)) - int(str(old)):+d})")
    said += [f"{name} {_short(change, name)}" for name in ("cubin", "key") if name in change.moved]
    return [*said, "sources changed"] if "source" in change.moved else said


def _short(change: Change, name: str) -> str:
    return " -> ".join(str(digest)[:12] for digest in change.moved[name])


def _toolchain_move(before: object, after: object) -> str:
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return ", ".join(f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names)


def _as_json(found: Difference, listings: dict[str, list[str]]) -> dict[str, object]:
    return {
        "same": found.same,
        "added": [{"spec": item.spec, **item.values} for item in found.added],
        "removed": [{"spec": item.spec, **item.values} for item in found.removed],
        "changed": [
            {
                "before": change.before.spec,
                "after": change.after.spec,
                "moved": change.moved,
                "sass": listings.get(change.after.spec),
            }
            for change in found.changed
        ],
    }
