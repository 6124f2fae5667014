"""``kreg clear``: explicit invalidation."""

from __future__ import annotations

import sys

import click

from kreg import REGISTRY
from kreg.inventory import select, spec_text
from kreg.selector import Selector
from kreg.store import Store
from kreg.upkeep import ClearPlan, clear, plan_clear, plan_clear_all

from .look import marked, print_entries
from .options import json_option, selector_options, store_option
from .output import plural, print_json, show_bytes


@click.command("clear")
@selector_options
@click.option("--stale", is_flag=True, help="Only entries that the registry no longer declares.")
@click.option("--all", "everything", is_flag=True, help="Every entry, and what was set aside.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def clear_command(
    chosen: Selector,
    stale: bool,
    everything: bool,
    dry_run: bool,
    yes: bool,
    store: Store,
    as_json: bool,
) -> None:
    """Remove entries, and the cubins that nothing names any more.

    Name what goes by --kernel, --target, --param, --stale, or --all.
    """
    if not (chosen or stale or everything):
        raise click.UsageError("nothing is named: give --kernel, --target, --param, --stale or --all")
    if everything and (chosen or stale):
        raise click.UsageError("--all goes with no selector")
    if everything:
        plan = plan_clear_all(store)
    else:
        found = marked(select(store, chosen, REGISTRY))
        plan = plan_clear(store, [entry for entry, old in found if old or not stale])
    if not as_json:
        _show(plan)
    done = not dry_run and bool(plan.entries or plan.objects or plan.others) and _confirmed(plan, yes, as_json)
    if done:
        clear(store, plan)
    if as_json:
        print_json(_as_json(plan, done))
    elif done:
        click.echo(f"removed {_count(plan)}", err=True)


def _count(plan: ClearPlan) -> str:
    return f"{plural(len(plan.entries), 'entry')} and {plural(len(plan.objects), 'cubin')}, {show_bytes(plan.size)}"


def _show(plan: ClearPlan) -> None:
    print_entries(marked(plan.entries))
    unreadable = sum(entry.manifest is None for entry in plan.entries)
    if unreadable:
        click.echo(f"{plural(unreadable, 'unreadable entry')}")
    if plan.others:
        click.echo(f"{plural(len(plan.others), 'file')} set aside or logged")
    click.echo(f"to remove: {_count(plan)}", err=True)


def _confirmed(plan: ClearPlan, yes: bool, as_json: bool) -> bool:
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        raise click.UsageError("not a terminal to ask on; give --yes to remove, --dry-run to look")
    return click.confirm(f"remove {_count(plan)}?", err=True)


def _as_json(plan: ClearPlan, done: bool) -> dict[str, object]:
    return {
        "removed": done,
        "bytes": plan.size,
        "entries": [
            {"spec": spec_text(e.manifest) if e.manifest else None, "path": e.path, "bytes": e.size}
            for e in plan.entries
        ],
        "objects": list(plan.objects),
        "others": list(plan.others),
    }
