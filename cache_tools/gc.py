"""``kreg gc``: remove what nothing needs, and what is beyond limits."""

from __future__ import annotations

from collections.abc import Callable

import click

from kreg import Store
from kreg.files import GRACE
from kreg.inventory import spec_text
from kreg.lockfile import read_lockfile
from kreg.sweep import Limits, Sweep, gc

from .look import marked, print_entries
from .options import json_option, store_option
from .output import plural, print_json, show_bytes

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def _amount(units: dict[str, int]) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Return a callback that reads a whole number with a unit, such as ``30d`` or ``5GiB``."""

    def read(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        digits = text.rstrip("".join(units)).strip()
        unit = text.strip()[len(digits) :].strip()
        if not (digits.isascii() and digits.isdecimal()) or unit not in units:
            known = ", ".join(f"10{unit}" for unit in units if unit)
            raise click.BadParameter(f"{text!r} is not a whole number with a unit, such as {known}")
        return int(digits) * units[unit]

    return read


_DURATION, _SIZE = _amount(_SECONDS), _amount(_BYTES)


@click.command("gc")
@click.option("--max-age", callback=_DURATION, help="Remove entries written longer ago, such as 90d.")
@click.option("--unused", callback=_DURATION, help="Remove entries not used for so long, such as 30d.")
@click.option("--max-entries", type=click.IntRange(min=0), help="Keep so many entries, those last used.")
@click.option("--max-size", callback=_SIZE, help="Keep so many bytes of entries and cubins, such as 5GiB.")
@click.option("--lockfile", "lockfiles", multiple=True, type=click.Path(), help="Keep what it pins. Repeatable.")
@click.option("--other-formats", is_flag=True, help="Also remove what other versions of kreg wrote.")
@click.option("--grace", callback=_DURATION, default=f"{GRACE:.0f}s", help="Leave younger leftovers. Default: 1h.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@store_option
@json_option
def gc_command(
    max_age: int | None,
    unused: int | None,
    max_entries: int | None,
    max_size: int | None,
    lockfiles: tuple[str, ...],
    other_formats: bool,
    grace: int,
    dry_run: bool,
    store: Store,
    as_json: bool,
) -> None:
    """Remove leftovers of processes that died, entries that can never be a hit, and what is beyond the limits.

    Without a limit, every sound entry stays. Asks nothing: meant for a timer.
    """
    pinned = {entry_key for path in lockfiles for entry_key in read_lockfile(path).cubins()}
    limits = Limits(age=max_age, unused=unused, entries=max_entries, size=max_size)
    done = gc(store, limits, pinned=pinned, other_formats=other_formats, grace=grace, dry_run=dry_run)
    if as_json:
        print_json(_as_json(done, dry_run))
    else:
        _print(done, dry_run)


def _print(done: Sweep, dry_run: bool) -> None:
    print_entries(marked(done.entries))
    for path in (*done.leftovers, *done.others):
        click.echo(path)
    counts = [
        plural(len(done.entries), "entry"),
        plural(len(done.objects), "cubin"),
        plural(len(done.leftovers), "leftover"),
    ]
    verb = "to remove" if dry_run else "removed"
    click.echo(f"{verb}: {', '.join(counts)}, {show_bytes(done.size)}; {plural(done.left, 'entry')} left", err=True)


def _as_json(done: Sweep, dry_run: bool) -> dict[str, object]:
    return {
        "removed": not dry_run,
        "bytes": done.size,
        "entries": [
            {"spec": spec_text(e.manifest) if e.manifest else None, "path": e.path, "bytes": e.size}
            for e in done.entries
        ],
        "objects": done.objects,
        "leftovers": done.leftovers,
        "others": done.others,
        "left": done.left,
        "pinned": done.pinned,
    }
