"""``kreg verify``: recompute every digest."""

from __future__ import annotations

import sys
import time

import click

from kreg import REGISTRY, KregError, Registry
from kreg.build import compile_artifact
from kreg.inventory import Entry, entries, is_stale, refuse_unknown, spec_text
from kreg.store import Store
from kreg.upkeep import Finding, Verifier, same_code

from .options import json_option, selector, selector_options, store_option
from .output import plural, print_json


@click.command("verify")
@selector_options
@click.option("--recompile", is_flag=True, help="Compile every sound entry again and compare the machine code.")
@store_option
@json_option
def verify_command(
    kernel: tuple[str, ...],
    target: tuple[str, ...],
    param: tuple[str, ...],
    recompile: bool,
    store: Store,
    as_json: bool,
) -> None:
    """Check every digest, manifest and cubin; one line per bad entry. Changes nothing."""
    start = time.perf_counter()
    chosen = selector(kernel, target, param)
    verifier = Verifier(store)
    checked, newer, skipped, findings = 0, 0, 0, []
    stored: set[str] = set()
    for entry in entries(store):
        stored.update([entry.manifest.kernel] if entry.manifest else [])
        if entry.is_newer:
            newer += 1
            continue
        if chosen and (entry.manifest is None or not chosen.matches(entry.manifest, REGISTRY)):
            continue
        checked += 1
        finding = verifier.check(entry)
        if finding is None and recompile:
            if entry.manifest is None or is_stale(entry.manifest, REGISTRY):
                skipped += 1
            else:
                finding = _recompile(entry, REGISTRY)
        if finding is not None:
            findings.append(finding)
            if not as_json:
                click.echo(f"{finding.path}: {finding.reason}")
    if not checked:
        refuse_unknown(chosen, stored, REGISTRY)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(
            {
                "checked": checked,
                "bad": [{"path": f.path, "spec": f.spec, "reason": f.reason} for f in findings],
                "newer": newer,
                "not_recompiled": skipped,
                "seconds": round(seconds, 3),
            }
        )
    else:
        _summarise(checked, newer, skipped, len(findings), seconds)
    sys.exit(1 if findings else 0)


def _recompile(entry: Entry, registry: Registry) -> Finding | None:
    manifest = entry.manifest
    assert manifest is not None
    spec = registry.get(manifest.kernel).spec(manifest.target, manifest.params)
    try:
        fresh = compile_artifact(registry.get(manifest.kernel), spec)
    except KregError as error:
        return Finding(path=entry.path, spec=str(spec), reason=str(error))
    if same_code(manifest, fresh):
        return None
    here = fresh.manifest
    why = (
        "with another toolchain"
        if here.toolchain_key != manifest.toolchain_key
        else "with changed sources"
        if here.source_digest != manifest.source_digest
        else "from the same sources"
    )
    return Finding(path=entry.path, spec=spec_text(manifest), reason=f"compiling again {why} gives other machine code")


def _summarise(checked: int, newer: int, skipped: int, bad: int, seconds: float) -> None:
    if newer:
        click.echo(f"{plural(newer, 'entry')} of a newer kreg left alone", err=True)
    if skipped:
        click.echo(f"{plural(skipped, 'entry')} not compiled again: no longer declared", err=True)
    click.echo(f"{plural(checked, 'entry')} checked, {bad} bad in {seconds:.1f} s", err=True)
