"""``kreg lock`` and ``kreg check``: the lockfile, and what has changed since it was written."""

from __future__ import annotations

import sys

import click

from kreg import REGISTRY, config
from kreg.checking import Check, KernelCheck, check
from kreg.pinning import lock
from kreg.selector import Selector
from kreg.store import Store

from .options import jobs_option, json_option, lockfile_option, selector_options, store_option
from .output import Bar, plural, print_json


@click.command("lock")
@selector_options
@click.option("--all", "everything", is_flag=True, help="Every declared kernel and target, whatever the file says.")
@click.option("--rebuild", is_flag=True, help="Pin new machine code under an unchanged version, in development.")
@jobs_option
@lockfile_option
@store_option
@json_option
def lock_command(
    chosen: Selector,
    everything: bool,
    rebuild: bool,
    jobs: int | None,
    lockfile: str | None,
    store: Store,
    as_json: bool,
) -> None:
    """Write the lockfile: one line for each variant, with its key and the digest of its cubin.

    Compiles what the store lacks. The selectors are kept in the file and hold until others are given.
    """
    if everything and chosen:
        raise click.UsageError("--all goes with no selector")
    path = config.lockfile(lockfile)
    named = chosen if chosen or everything else None
    with Bar("pinning") as bar:
        written, is_new = lock(path, REGISTRY, store, named, rebuild=rebuild, jobs=jobs, progress=bar.advance)
    if as_json:
        print_json({"lockfile": path, "changed": is_new, "pins": written.pins})
    else:
        click.echo(f"{plural(len(written.pins), 'pin')} in {path}{'' if is_new else ', as before'}")


@click.command("check")
@selector_options
@click.option("--receipts", is_flag=True, help="Also ask for a receipt where a target has been run on hardware.")
@jobs_option
@lockfile_option
@store_option
@json_option
def check_command(
    chosen: Selector, receipts: bool, jobs: int | None, lockfile: str | None, store: Store, as_json: bool
) -> None:
    """Compare the declared kernels with the lockfile: one line for each; exit code 1 if anything differs.

    Compiles what the store does not hold of exactly these sources and this toolchain.
    """
    path = config.lockfile(lockfile)
    with Bar("checking") as bar:
        done = check(path, REGISTRY, store, chosen, receipts=receipts, jobs=jobs, progress=bar.advance)
    if as_json:
        print_json(_as_json(path, done))
    else:
        _print(done, receipts)
    sys.exit(0 if done.is_same else 1)


def _print(done: Check, receipts: bool) -> None:
    for line in (*done.toolchains, *(kernel.describe() for kernel in done.kernels)):
        click.echo(line)
    older = sum(kernel.older_sources for kernel in done.kernels)
    if older:
        click.echo(f"{plural(older, 'pin')} of older sources with the same machine code", err=True)
    if receipts:
        for target, count in done.not_run.items():
            click.echo(f"{target}: never run on hardware, {plural(count, 'pin')}")
        click.echo(f"{plural(done.tested, 'pin')} with a receipt")


def _as_json(path: str, done: Check) -> dict[str, object]:
    return {
        "lockfile": path,
        "same": done.is_same,
        "toolchains": done.toolchains,
        "kernels": [_kernel_as_json(kernel) for kernel in done.kernels],
        "receipts": done.tested,
        "never_run": done.not_run,
    }


def _kernel_as_json(kernel: KernelCheck) -> dict[str, object]:
    return {"same": kernel.is_same, "says": kernel.describe(), **vars(kernel)}
