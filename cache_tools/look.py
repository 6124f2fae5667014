"""``kreg dir``, ``list``, ``show`` and ``key``: look at a store and at keys; nothing is changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import click
import msgspec

from kreg import REGISTRY, SpecError, StoreError
from kreg.backends import load_backend
from kreg.inventory import Entry, entries, select_from, spec_text
from kreg.manifest import Manifest
from kreg.selector import Selector, is_stale
from kreg.spec import format_params
from kreg.store import Store

from .options import json_option, selector_options, store_option
from .output import plural, print_columns, print_json, show_age, show_bytes


@click.command("dir")
@store_option
@json_option
def dir_command(store: Store, as_json: bool) -> None:
    """Print the store's directory."""
    store.require_place()
    if as_json:
        print_json({"root": store.root, "exists": store.is_marked()})
    else:
        click.echo(os.fsencode(store.root))  # Byte for byte, in whichever locale, for scripts.


@click.command("key")
@click.argument("spec")
@store_option
@json_option
def key_command(spec: str, store: Store, as_json: bool) -> None:  # noqa: ARG001
    """Print the spec key of SPEC, which is the same for every store."""
    found = REGISTRY.parse(spec)
    if as_json:
        print_json({"spec": str(found), "key": found.key})
    else:
        click.echo(found.key)


@click.command("list")
@selector_options
@click.option("--stale", is_flag=True, help="Only entries that the registry no longer declares.")
@store_option
@json_option
def list_command(
    chosen: Selector,
    stale: bool,
    store: Store,
    as_json: bool,
) -> None:
    """List what is in the store. An entry that the registry no longer declares is marked stale."""
    every = list(entries(store))
    shown = [(entry, old) for entry, old in marked(select_from(every, chosen, REGISTRY)) if old or not stale]
    if as_json:
        print_json([_listed(entry, old) for entry, old in shown])
        return
    print_entries(shown)
    size = sum(m.cubin_bytes for m in {e.manifest.cubin_digest: e.manifest for e, _ in shown if e.manifest}.values())
    click.echo(f"{plural(len(shown), 'entry')}, {show_bytes(size)} of cubins in {store.root}", err=True)
    unreadable = sum(entry.manifest is None for entry in every)
    if unreadable:
        click.echo(f"{plural(unreadable, 'entry')} cannot be read; see `kreg verify`", err=True)


def marked(found: Iterable[Entry]) -> list[tuple[Entry, bool]]:
    """Return the readable entries, each with whether it is stale."""
    return [(entry, is_stale(entry.manifest, REGISTRY)) for entry in found if entry.manifest is not None]


def print_entries(shown: list[tuple[Entry, bool]]) -> None:
    """Print entries as a table; the flag beside each says whether it is stale."""
    head = ("KERNEL", "VERSION", "VARIANT", "TARGET", "TOOLCHAIN", "SIZE", "AGE", "REGISTERS", "SHARED", "")
    rows = [_row(entry, entry.manifest, old) for entry, old in shown if entry.manifest is not None]
    if rows:
        print_columns(head, rows, right=(1, 5, 6, 7, 8))


def _row(entry: Entry, manifest: Manifest, old: bool) -> tuple[str, ...]:
    return (
        manifest.kernel,
        str(manifest.version),
        format_params(tuple(manifest.params.items()))[1:-1],
        manifest.target,
        _show_toolchain(manifest),
        show_bytes(manifest.cubin_bytes),
        show_age(entry.modified),
        str(manifest.registers),
        str(manifest.shared_bytes),
        "stale" if old else "",
    )


def _show_toolchain(manifest: Manifest) -> str:
    version = next(iter(sorted(manifest.toolchain.items())), ("", "?"))[1]
    return f"{manifest.backend} {version} {manifest.toolchain_key[:6]}"


def _listed(entry: Entry, old: bool) -> dict[str, object]:
    manifest = entry.manifest
    assert manifest is not None
    return {
        "spec": spec_text(manifest),
        "kernel": manifest.kernel,
        "version": manifest.version,
        "params": manifest.params,
        "target": manifest.target,
        "spec_key": manifest.spec_key,
        "toolchain_key": manifest.toolchain_key,
        "toolchain": manifest.toolchain,
        "cubin_digest": manifest.cubin_digest,
        "cubin_bytes": manifest.cubin_bytes,
        "age_seconds": max(0, int(time.time() - entry.modified)),
        "registers": manifest.registers,
        "shared_bytes": manifest.shared_bytes,
        "stale": old,
        "path": entry.path,
    }


@click.command("show")
@click.argument("what", metavar="KEY-PREFIX|SPEC")
@store_option
@json_option
def show_command(what: str, store: Store, as_json: bool) -> None:
    """Show one entry: its manifest, its files, and how to disassemble it."""
    entry = _find_entry(store, what)
    manifest = entry.manifest
    assert manifest is not None
    cubin = store.object_path(manifest.cubin_digest)
    if as_json:
        print_json({"entry": entry.path, "cubin": cubin, "manifest": manifest})
        return
    click.echo(spec_text(manifest))
    rows = [(name, _show_field(value)) for name, value in msgspec.to_builtins(manifest).items()]
    print_columns(("", ""), [*rows, ("entry", entry.path), ("cubin", cubin)])
    click.echo(f"disassemble: cuobjdump -sass {cubin}")


def _show_field(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_show_field(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(str(tuple(item)) if isinstance(item, list) else str(item) for item in value)
    return str(value)


def _find_entry(store: Store, what: str) -> Entry:
    readable = [entry for entry in entries(store) if entry.manifest is not None]
    is_prefix = len(what) >= 4 and not what.strip("0123456789abcdef-")
    if is_prefix:
        found = [entry for entry in readable if entry.path.rpartition("/")[2].startswith(what)]
    else:
        found = _by_spec(readable, what)
    if not found:
        raise StoreError(f"no entry for {what!r} in {store.root}; see `kreg list`")
    if len(found) > 1:
        names = "\n  ".join(entry.path.rpartition("/")[2].removesuffix(".json") for entry in found)
        raise StoreError(f"{len(found)} entries match {what!r}; name one by a longer key:\n  {names}")
    return found[0]


def _by_spec(readable: list[Entry], what: str) -> list[Entry]:
    """Find a spec by its text, declared or not; of several toolchains, prefer the installed one."""
    try:
        wanted = str(REGISTRY.parse(what))
    except SpecError:
        wanted = what
        if not any(spec_text(e.manifest) == what for e in readable if e.manifest):
            raise
    found = [entry for entry in readable if entry.manifest and spec_text(entry.manifest) == wanted]
    if len(found) > 1 and found[0].manifest is not None:
        toolchain = load_backend(found[0].manifest.backend).toolchain()
        installed = [e for e in found if e.manifest and toolchain and e.manifest.toolchain_key == toolchain.fingerprint]
        return installed or found
    return found
