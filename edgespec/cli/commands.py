"""The command `edgespec` and its subcommands, which are imported when they are called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from edgespec import __version__
from edgespec.cli import help_text

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SUBCOMMANDS = {
    "chat": ("edgespec.cli.chat:chat", "Talk with a model; conversations are kept."),
    "tui": ("edgespec.cli.chat:tui", "Talk with a model on a screen of its own ('chat --tui')."),
    "run": ("edgespec.cli.run:run", "Answer one prompt."),
    "batch": ("edgespec.cli.batch:batch", "Answer the prompts of a file; goes on where it stopped."),
    "pull": ("edgespec.cli.pull:pull", "Fetch models from the Hugging Face hub."),
    "ls": ("edgespec.cli.ls:ls", "List the models of this machine, or the catalogue."),
    "show": ("edgespec.cli.show:show", "Say what a model is, and what can draft for it."),
    "rm": ("edgespec.cli.rm:rm", "Delete models."),
    "pair": ("edgespec.cli.pair:pair", "Say whether one model can draft for another, and which can."),
    "history": ("edgespec.cli.history:history", "List, search, export, import and delete conversations."),
    "bench": ("edgespec.cli.bench:bench", "Measure how fast a model decodes, and what guessing earns."),
    "compare": ("edgespec.cli.compare:compare", "Compare quantisations, drafts and ways of guessing."),
    "perplexity": ("edgespec.cli.perplexity:perplexity", "Measure how well a model foresees a text."),
    "tune": ("edgespec.cli.tune:tune", "Find out in a minute whether a draft is worth it here."),
    "draft": ("edgespec.cli.draft:draft", "Make a draft of a target, or data to train one on."),
    "corpus": ("edgespec.cli.corpus:corpus", "Build and list texts that guesses are looked up in."),
    "store": ("edgespec.cli.store:store", "List and forget the earlier answers that guesses come from."),
    "doctor": ("edgespec.cli.doctor:doctor", "Check this machine, this build and a model."),
    "config": ("edgespec.cli.config:config", "Show the settings in force and the files they come from."),
    "completion": ("edgespec.cli.completion:completion", "Print a shell's completion script."),
}


help_text.install()


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and summary, so that its help imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module, _, name = SUBCOMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [name for name in SUBCOMMANDS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=SUBCOMMANDS[name][1]) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in SUBCOMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", message="edgespec %(version)s")
def edgespec() -> None:
    """Fast, exact answers from local GGUF models.

    \b
    Try it with the bundled models:
      edgespec run --raw "def fibonacci(n):" -n 64 --stats
    With a model of your own, or one that is fetched:
      edgespec chat -m ./model.gguf
      edgespec chat -m qwen2.5-7b

    'edgespec COMMAND --help' explains a command.
    """
