"""The dialects of chat templates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from edgespec.dialects.by_name import known
from edgespec.dialects.derive import derive
from edgespec.dialects.dialect import HERMES, THINK, Dialect
from edgespec.errors import GenerationError
from edgespec.llama.rendering import TemplateFailedError, renderer

DERIVING_S = 10.0  # for all renderings of a template; usual ones take some hundredths of a second together
_BRACKETS = ("[THINK]", "[/THINK]")  # tokens of Mistral's vocabularies


@lru_cache(maxsize=64)
def dialect_of(template: str) -> Dialect:
    """Return the dialect of a chat template, "" for none. Deriving it takes some hundredths of a second, once."""
    until_s = time.monotonic() + DERIVING_S

    def render(variables: Mapping[str, object]) -> str:
        if time.monotonic() > until_s:
            raise ValueError("deriving takes too long")
        try:
            return renderer().render(template, {"bos_token": "<s>", "eos_token": "</s>", **variables})
        except (TemplateFailedError, GenerationError) as error:
            raise ValueError(str(error)) from error

    try:
        derived = derive(render, template) if template else Dialect()
    except RecursionError:  # a text that no template for a model has
        derived = Dialect()
    dialect = known(template) or derived
    dialect = replace(
        dialect,
        reasoning_field=dialect.reasoning_field or derived.reasoning_field,
        reads_text="think>" in template,
        switch=derived.switch,
    )
    if dialect.reasoning is None and dialect.messages is None:  # many models reason like this without their template
        dialect = replace(dialect, reasoning=THINK, is_assumed=True)
    return dialect if dialect.calls is not None else replace(dialect, calls=HERMES)


class Tokens(Protocol):
    """A vocabulary."""

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]: ...
    def token_bytes(self, token: int, *, special: bool = False) -> bytes: ...
    def is_control(self, token: int) -> bool: ...
    def is_special(self, token: int) -> bool: ...


def dialect_with(tokens: Tokens, template: str) -> Dialect:
    """Return the dialect of a model with this vocabulary, whose tokens may show marks that the template does not."""
    dialect = dialect_of(template)
    if dialect.reasoning != THINK or "think>" in template:
        return dialect
    has_brackets = all(len(tokens.tokenize(mark, parse_special=True)) == 1 for mark in _BRACKETS)
    return replace(dialect, reasoning=_BRACKETS, is_assumed=False) if has_brackets else dialect


def mark_texts(dialect: Dialect, tokens: Tokens) -> dict[int, str]:
    """Return the texts of the control tokens in the marks of a dialect, by their ids. An answer has no text for them
    otherwise."""
    return {id: text for id, text in _texts(dialect, tokens).items() if tokens.is_control(id)}


def special_texts(dialect: Dialect, tokens: Tokens) -> dict[int, str]:
    """Return the texts of the tokens in the marks of a dialect that are no text for llguidance, by their ids: control
    tokens, and added ones such as `<tool_call>`."""
    return {
        id: text
        for id, text in _texts(dialect, tokens).items()
        if tokens.is_control(id) or (tokens.is_special(id) and text.startswith("<") and text.endswith(">"))
    }


def _texts(dialect: Dialect, tokens: Tokens) -> dict[int, str]:
    ids = {id for mark in dialect.marks for id in tokens.tokenize(mark, parse_special=True)}
    return {id: tokens.token_bytes(id, special=True).decode("utf-8", "replace") for id in sorted(ids)}
