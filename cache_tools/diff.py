"""``kreg diff``: what two lockfiles or stores differ in, down to the instructions."""

from __future__ import annotations

import os
import sys

import click

from kreg import REGISTRY, KregError
from kreg.difference import Change, Difference, Item, compare, items_of, selected
from kreg.digest import sha256
from kreg.disassembly import instruction_diff
from kreg.files import read_file
from kreg.inventory import Entry
from kreg.selector import Selector
from kreg.store import CUBIN_LIMIT, Store

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
    sides = selected([_read(path) for path in (before, after)], chosen, REGISTRY)
    found = compare(*sides)
    stores = [_store_of(path, store) for path in (before, after)]
    listings = [_listing(change, stores) if sass else None for change in found.changed]
    if as_json:
        print_json(_as_json(found, listings))
    else:
        _print(found, listings)
    sys.exit(0 if found.is_empty else 1)


def _read(path: str) -> list[Item]:
    """Return the variants of one side, and say what had to be left out of it."""
    left_out: list[Entry] = []
    items = items_of(path, left_out.append)
    newer = sum(entry.is_newer for entry in left_out)
    if newer:
        click.echo(f"{plural(newer, 'entry')} of a newer kreg in {path} left out", err=True)
    if len(left_out) > newer:
        count = plural(len(left_out) - newer, "entry")
        click.echo(f"{count} in {path} cannot be read and left out; see `kreg verify --store {path}`", err=True)
    return items


def _store_of(path: str, store: Store) -> Store:
    return Store(path) if os.path.isdir(path) else store


def _listing(change: Change, stores: list[Store]) -> list[str] | None:
    """Return the instruction diff of a variant whose machine code moved, else None."""
    if "program" not in change.moved:
        return None
    return instruction_diff(*map(_cubin, (change.before, change.after), stores))


def _cubin(item: Item, store: Store) -> str:
    """Return the path of a proven cubin. Raises ``KregError`` if the store has none."""
    digest = str(item.values["cubin"])
    path = store.object_path(digest)
    cubin = read_file(path, CUBIN_LIMIT)
    if cubin is None:
        raise KregError(f"the cubin of `{item.spec}` is not in {store.root} ({path}); name a store that has it")
    if sha256(cubin) != digest:
        raise KregError(f"the cubin of `{item.spec}`, {path}, does not match its digest; see `kreg verify`")
    return path


def _print(found: Difference, listings: list[list[str] | None]) -> None:
    for item in found.removed:
        click.echo(f"- {item.spec}")
    for item in found.added:
        click.echo(f"+ {item.spec}  {_describe(item)}")
    listed = [pair for pair in zip(found.changed, listings, strict=True) if not pair[0].is_of_sources_alone]
    for change, listing in sorted(listed, key=lambda pair: "program" not in pair[0].moved):
        click.echo(f"~ {change.after.spec}  {', '.join(_moves(change))}")
        for line in listing or ():
            click.echo(f"    {line}")
    alone = len(found.changed) - len(listed)
    if alone:
        click.echo(f"{plural(alone, 'variant')}: sources changed, nothing else")
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


def _as_json(found: Difference, listings: list[list[str] | None]) -> dict[str, object]:
    return {
        "same": found.same,
        "added": [{"spec": item.spec, **item.values} for item in found.added],
        "removed": [{"spec": item.spec, **item.values} for item in found.removed],
        "changed": [
            {
                "before": change.before.spec,
                "after": change.after.spec,
                "moved": change.moved,
                "sass": listing,
            }
            for change, listing in zip(found.changed, listings, strict=True)
        ],
    }
