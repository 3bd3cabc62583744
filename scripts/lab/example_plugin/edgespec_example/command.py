"""The command `edgespec pieces`."""

from __future__ import annotations

import click

from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve


@click.command()
@click.argument("model")
@click.argument("text")
def pieces(model: str, text: str) -> None:
    """Show the tokens of TEXT in the vocabulary of MODEL."""
    with LlamaModel.load_vocabulary(resolve(model).path) as vocabulary:
        for token in vocabulary.tokenize(text):
            click.echo(f"{token:>7}  {vocabulary.token_bytes(token)!r}")
