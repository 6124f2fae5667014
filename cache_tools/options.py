"""The options that verbs share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from kreg.selector import Selector
from kreg.store import Store

Command = Callable[..., Any]


def store_option(command: Command) -> Command:
    """``--store DIR``, passed on as a ``Store``."""
    return click.option(
        "--store",
        type=click.Path(),
        metavar="DIR",
        callback=lambda _ctx, _param, value: Store(value),
        help="The store's directory. Default: KREG_STORE, else kreg in the user's cache directory.",
    )(command)


def json_option(command: Command) -> Command:
    """``--json``, passed on as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, with whole keys.")(command)


def jobs_option(command: Command) -> Command:
    """``--jobs N``."""
    return click.option(
        "--jobs", type=click.IntRange(min=1), help="Processes to compile in. Default: one per usable CPU."
    )(command)


def lockfile_option(command: Command) -> Command:
    """``--lockfile FILE``."""
    return click.option(
        "--lockfile",
        type=click.Path(),
        metavar="FILE",
        help="The lockfile. Default: KREG_LOCKFILE, else kreg.lock in the current directory.",
    )(command)


def selector_options(command: Command) -> Command:
    """``--kernel``, ``--target`` and ``--param``, passed on as ``chosen``, a ``Selector``."""

    @wraps(command)
    def with_selector(
        *, kernel: tuple[str, ...], target: tuple[str, ...], param: tuple[str, ...], **others: object
    ) -> object:
        return command(chosen=Selector(kernels=kernel, targets=target, params=param), **others)

    wrapped: Command = with_selector
    for option in (
        click.option("--param", multiple=True, metavar="NAME=VALUE", help="Only this parameter value. Repeatable."),
        click.option("--target", multiple=True, metavar="T", help="Only this target, such as sm_90a. Repeatable."),
        click.option("--kernel", multiple=True, metavar="NAME[@V]", help="Only this kernel. Repeatable."),
    ):
        wrapped = option(wrapped)
    return wrapped
