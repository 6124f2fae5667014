"""The command ``kreg``. Each verb lives in a module of this package, imported when it is run.

Data goes to standard output, messages to standard error. Exit codes: 0 fine, 1 a problem was found, 2 a request
that makes no sense.
"""

from __future__ import annotations

from importlib import import_module

import click

from kreg import KregError, SpecError, __version__

_VERBS = {
    "bench": "bench",
    "check": "pin",
    "clear": "clear",
    "diff": "diff",
    "dir": "look",
    "export": "bundle",
    "gc": "gc",
    "import": "bundle",
    "key": "look",
    "list": "look",
    "lock": "pin",
    "show": "look",
    "verify": "verify",
    "warm": "warm",
    "why": "why",
}


class _Verbs(click.Group):
    """A group that imports a verb's module only when the verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        module = import_module(f".{_VERBS[cmd_name]}", __package__)
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb; map kreg's errors to a message and an exit code."""
        try:
            return super().invoke(ctx)
        except KregError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2 if isinstance(error, SpecError) else 1)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kreg")
def main() -> None:
    """Look after a versioned registry and on-disk cache of JIT-compiled GPU kernels.

    A spec is written all_gather_pair@1[world_size=2,transport=pull]:sm_90a; the version may be left out.
    """
