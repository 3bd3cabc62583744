"""Groups of commands: other names for their commands, the command `help`, and hints for unknown names."""

from __future__ import annotations

from collections.abc import Iterable

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
"""Names of commands in other programs. The first command of each that a group has is run."""

UNBROKEN = "\N{NON-BREAKING HYPHEN}"
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class HelpFormatter(click.HelpFormatter):
    """Breaks no line at a hyphen, so that `--max-tokens` and `ID-inf` stay whole."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", UNBROKEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, text.replace("-", UNBROKEN)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(UNBROKEN, "-")


click.Context.formatter_class = HelpFormatter  # for the help of every command


class Group(click.Group):
    """A group whose commands are also found by other names (`delete` for `rm`), and that has a command `help`."""

    def __init__(self, *args: object, **attrs: object) -> None:
        super().__init__(*args, **attrs)  # type: ignore[arg-type]
        self.context_settings.update(HELP_NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = self.list_commands(ctx)
        if cmd_name == "help" and "help" not in known:
            return show_help
        name = next((name for name in (cmd_name, *ALIASES.get(cmd_name, ())) if name in known), None)
        return None if name is None else self.command_called(ctx, name)

    def command_called(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command of a name in `list_commands`."""
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (name.startswith("-") or ctx.resilient_parsing) and self.get_command(ctx, name) is None:
            path = ctx.command_path.partition(" ")[2]
            called = f"{path} {name}" if path else name
            raise UsageError(f"there is no command '{called}'", hint=command_hint(name, self.list_commands(ctx), path))
        found, command, rest = super().resolve_command(ctx, args)
        return (command.name if command is not None and command is not show_help else found), command, rest


@click.command("help", context_settings=HELP_NAMES)
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
