"""How verbs print: JSON for programs, aligned columns for people."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

import click
import msgspec


def print_json(value: object) -> None:
    """Print ``value`` as indented JSON."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_unicode(msgspec.to_builtins(value)))
    click.echo(msgspec.json.format(data, indent=2))


def _unicode(value: object) -> object:
    """Return ``value`` with the bytes of file names that are not UTF-8 written as a backslash and their number."""
    if isinstance(value, dict):
        return {_unicode(name): _unicode(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unicode(item) for item in value]
    return os.fsencode(value).decode("utf-8", "backslashreplace") if isinstance(value, str) else value


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print rows in aligned columns under a head; the columns numbered in ``right`` align right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def show_bytes(count: int) -> str:
    """Write a number of bytes: ``512 B``, ``5.7 KiB``, ``1.2 MiB``."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def show_age(modified: float) -> str:
    """Write how long ago a file time is: ``12 s``, ``5 min``, ``3 h``, ``8 d``; a time to come is ``0 s``."""
    seconds = max(0.0, time.time() - modified)
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds / size)} {unit}"
    return f"{int(seconds / 86400)} d"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 entry``, ``3 entries``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


class Bar:
    """A progress bar on standard error during a block, where that is a terminal; nothing elsewhere."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._show: Callable[[int, int], None] = lambda _done, _total: None
        self._stop: Callable[[], None] = lambda: None

    def advance(self, done: int, total: int) -> None:
        """Show how much is done."""
        self._show(done, total)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn(self._verb),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        task = bar.add_task("", total=None)
        bar.start()
        self._show = lambda done, total: bar.update(task, completed=done, total=total)
        self._stop = bar.stop
