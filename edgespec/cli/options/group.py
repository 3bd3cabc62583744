"""Groups of commands, hints for unknown names, and the commands `help` and `completion`."""

from __future__ import annotations

from collections.abc import Iterable

import click

from edgespec.cli.options.habits import command_hint
from edgespec.errors import UsageError

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
    """A group that has a command `help`, and hints for the names of commands in other programs."""

    def __init__(self, *args: object, **attrs: object) -> None:
        super().__init__(*args, **attrs)  # type: ignore[arg-type]
        self.context_settings.update(HELP_NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return show_help if cmd_name == "help" else super().get_command(ctx, cmd_name)

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


@click.command(context_settings=HELP_NAMES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash:  edgespec completion bash > ~/.local/share/bash-completion/completions/edgespec
    zsh:   edgespec completion zsh > "${fpath[1]}/_edgespec"
    fish:  edgespec completion fish > ~/.config/fish/completions/edgespec.fish
    """
    from click.shell_completion import get_completion_class

    from edgespec.cli.terminal.output import Output

    script = get_completion_class(shell)
    assert script is not None
    Output(quiet=False).line(script(ctx.find_root().command, {}, "edgespec", "_EDGESPEC_COMPLETE").source().strip("\n"))
