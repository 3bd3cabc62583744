"""Groups of commands: other names for their commands, the command `help`, and the answer to an unknown name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click

from edgespec.cli.options.habits import command_hint
from edgespec.errors import UsageError

ALIASES = {
    "list": ("ls",),
    "ls": ("list",),
    **dict.fromkeys(("rm", "remove", "delete"), ("rm", "clear")),
    **dict.fromkeys(("info", "cat"), ("show",)),
    "download": ("pull",),
}
"""Verbs of other programs, each with the commands that it may mean; the first one that a group has is run."""


def meant(name: str, known: Collection[str]) -> str | None:
    """Return the command of a group that a name means, or None."""
    return next((command for command in (name, *ALIASES.get(name, ())) if command in known), None)


class Group(click.Group):
    """A group whose commands are also found by other verbs (`delete` for `rm`), and that has a command `help`."""

    def __init__(self, *args: object, **attrs: object) -> None:
        super().__init__(*args, **attrs)  # type: ignore[arg-type]
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])

    def known(self) -> Sequence[str]:
        """The names of the commands in the help."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "help" and "help" not in self.known():
            return show_help
        name = meant(cmd_name, self.known())
        return None if name is None else self.command_called(ctx, name)

    def command_called(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of one of the `known` names."""
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (name.startswith("-") or ctx.resilient_parsing) and self.get_command(ctx, name) is None:
            path = ctx.command_path.partition(" ")[2]
            called = f"{path} {name}" if path else name
            raise UsageError(f"there is no command '{called}'", hint=command_hint(name, self.known(), path))
        found, command, rest = super().resolve_command(ctx, args)
        return (command.name if command is not None and command is not show_help else found), command, rest


@click.command("help", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command, as --help does."""
    context = ctx.parent or ctx
    for name in names:
        if not isinstance(context.command, click.Group):
            raise UsageError(f"'{context.command_path}' has no command '{name}'")
        called, command, _ = context.command.resolve_command(context, [name])
        assert command is not None
        context = click.Context(command, info_name=called, parent=context)
    click.echo(context.get_help())
