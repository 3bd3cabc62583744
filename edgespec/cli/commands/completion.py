"""`edgespec completion`: a script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.terminal.output import Output


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
    script = get_completion_class(shell)
    assert script is not None
    Output(quiet=False).line(script(ctx.find_root().command, {}, "edgespec", "_EDGESPEC_COMPLETE").source().strip("\n"))
