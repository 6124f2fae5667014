"""``kreg export`` and ``kreg import``: carry entries to another store in one file."""

from __future__ import annotations

import os

import click

from kreg import REGISTRY
from kreg.bundle import Imported, export_bundle, import_bundle, pinned, stored
from kreg.lockfile import read_lockfile
from kreg.selector import Selector
from kreg.store import Store

from .options import json_option, selector_options, store_option
from .output import plural, print_json, show_bytes


@click.command("export")
@click.option("-o", "--output", required=True, type=click.Path(), metavar="FILE", help="The bundle to write.")
@click.option("--lockfile", type=click.Path(), metavar="FILE", help="Exactly what it pins.")
@selector_options
@store_option
@json_option
def export_command(output: str, lockfile: str | None, chosen: Selector, store: Store, as_json: bool) -> None:
    """Write entries and their cubins to one file, proven: with --lockfile its pins, else what the store holds.

    The same entries make the same bytes. A pin that the store lacks, and a bad entry, are errors.
    """
    if lockfile is None:
        artifacts = stored(store, chosen, REGISTRY)
    else:
        artifacts = pinned(store, chosen, REGISTRY, read_lockfile(lockfile), lockfile)
    done = export_bundle(output, store, artifacts)
    if as_json:
        print_json({"bundle": os.path.abspath(output), "bytes": done.size, "exported": done.specs})
    else:
        click.echo(f"exported {plural(len(done.specs), 'entry')} to {output}, {show_bytes(done.size)}", err=True)


@click.command("import")
@click.argument("bundle", type=click.Path())
@click.option("--lockfile", type=click.Path(), metavar="FILE", help="Only what it pins, and only with its cubins.")
@click.option("--replace", is_flag=True, help="Take the bundle's entry where the store has other machine code.")
@click.option("--dry-run", is_flag=True, help="Only prove the bundle, and say what would be published.")
@store_option
@json_option
def import_command(
    bundle: str, lockfile: str | None, replace: bool, dry_run: bool, store: Store, as_json: bool
) -> None:
    """Publish what a bundle holds. Every byte of it is proven first: all of it, or nothing.

    Cubins are code: import what you would run. A lockfile proves that it is what was reviewed.
    """
    pins = None if lockfile is None else read_lockfile(lockfile).cubins()
    done = import_bundle(bundle, store, pins=pins, replace=replace, dry_run=dry_run)
    if as_json:
        print_json(_as_json(done, dry_run))
    else:
        _print(done, dry_run)


def _print(done: Imported, dry_run: bool) -> None:
    for spec in done.published:
        click.echo(spec)
    verb = "to import" if dry_run else "imported"
    left = f", {len(done.unpinned)} not pinned" if done.unpinned else ""
    click.echo(
        f"{verb}: {plural(len(done.published), 'entry')}; {len(done.held)} already there{left}; "
        f"bundle of {show_bytes(done.size)}",
        err=True,
    )


def _as_json(done: Imported, dry_run: bool) -> dict[str, object]:
    return {
        "imported": not dry_run,
        "published": done.published,
        "held": done.held,
        "unpinned": done.unpinned,
        "bytes": done.size,
    }
