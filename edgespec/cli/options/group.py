"""Groups of commands, hints for users who misspell a name or type one of another program, and the commands `help` and
`completion`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

import click

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


# --- hints ------------------------------------------------------------------------------------------------------------

ELSEWHERE = {
    **dict.fromkeys(("n-predict", "num-predict", "max-new-tokens"), "max-tokens"),
    **dict.fromkeys(("n-ctx", "num-ctx", "context-length"), "ctx-size"),
    **dict.fromkeys(("n-gpu-layers", "num-gpu"), "gpu-layers"),
    **dict.fromkeys(("system-prompt", "sys"), "system"),
    "spec-draft-device": "device-draft",
    "num-thread": "threads",
    "temperature": "temp",
    "repetition-penalty": "repeat-penalty",
    "model-draft": "draft-model",
    "draft-max": "spec-draft-n-max",
}
"""Names of options in llama.cpp, ollama and transformers."""

_HUB = ("hf", "hfr", "hf-repo", "hff", "hf-file")
_TEMPLATE = ("cnv", "conversation", "no-cnv", "no-conversation")
_COMMANDS = {
    **dict.fromkeys(("list", "ls", "models"), ("ls", "list")),
    **dict.fromkeys(("rm", "remove", "delete"), ("rm", "clear")),
    **dict.fromkeys(("info", "cat"), ("show",)),
    **dict.fromkeys(("generate", "complete", "cli"), ("run",)),
    "download": ("pull",),
    "search": ("ls --catalog",),
}
"""Commands of other programs. The first command of each that a group has is meant."""


def command_hint(name: str, known: Collection[str], group: str = "") -> str:
    """Return the hint for an unknown command of a group, by default of `edgespec` itself."""
    if not group and name in ("server", "start"):
        return "'edgespec serve' is the server, which runs until Ctrl-C"
    if not group and name in ("stop", "unload"):
        return "'edgespec ps --stop' unloads models that are kept loaded; Ctrl-C stops 'edgespec serve'"
    meant = (command for command in _COMMANDS.get(name.lower(), ()) if command.partition(" ")[0] in known)
    if found := next(meant, "") or _nearest(name.lower(), known):
        return f"did you mean '{f'edgespec {group}'.rstrip()} {found}'?"
    return f"the commands are {', '.join(known)}" if group else "'edgespec --help' lists the commands"


def usage_hint(error: click.UsageError) -> str:
    """Return the hint for an unknown option or argument, or "" if only the command's help can explain more."""
    if error.ctx is None:
        return ""
    command = error.ctx.command
    answers = command.name in ("run", "chat", "tui")
    if answers and "unexpected extra argument" in error.message:
        return f'the model is chosen with -m, and the prompt is quoted: edgespec {command.name} -m MODEL "PROMPT"'
    if not isinstance(error, click.NoSuchOption):
        return ""
    word = error.option_name.lstrip("-").lower().replace("_", "-")
    options = {name: param for param in command.params if isinstance(param, click.Option) for name in param.opts}
    if word in _HUB:
        return f"give a model of the hub as {'-m ' if '-m' in options else ''}hf:OWNER/NAME:QUANT"
    if answers and word in ("p", "prompt"):
        return f'the prompt needs no option: edgespec {command.name} "PROMPT"'
    if word in _TEMPLATE and "--chat" in options:
        return "--raw completes the prompt verbatim, --chat sends it as a user message"
    if isinstance(command, click.Group) and word in ("m", "p"):
        return 'options follow a command: edgespec run -m MODEL "PROMPT"'
    names = {name[2:]: name for name in options if name.startswith("--")}
    names |= {name: f"--{here}" for name, here in ELSEWHERE.items() if f"--{here}" in options}
    if near := names.get(_nearest(word, names)):
        return f"did you mean {near} {options[near].metavar or ''}".rstrip() + "?"
    return ""


def _nearest(word: str, names: Collection[str]) -> str:
    """Return the most similar name, or "" if none is similar."""
    return word if word in names else next(iter(difflib.get_close_matches(word, names, n=1)), "")
