"""The dialects of chat templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from edgespec.dialects.derive import derive
from edgespec.dialects.dialect import HERMES, THINK, Dialect
from edgespec.dialects.known import known
from edgespec.errors import GenerationError
from edgespec.llama.rendering import TemplateFailedError, renderer

# As in Transformers, variables that are not given are none.
_BRACKETS = ("[THINK]", "[/THINK]")  # tokens of Mistral's vocabularies
_NOT_GIVEN = {"tools": None, "tool_choice": None, "functions": None, "function_call": None}


@lru_cache(maxsize=64)
def dialect_of(template: str) -> Dialect:
    """Return the dialect of a chat template, "" for none. Deriving it takes some hundredths of a second, once."""

    def render(variables: Mapping[str, Any]) -> str:
        try:
            return renderer().render(template, {**_NOT_GIVEN, "bos_token": "<s>", "eos_token": "</s>", **variables})
        except (TemplateFailedError, GenerationError) as error:
            raise ValueError(str(error)) from error

    derived = derive(render, template) if template else Dialect()
    dialect = known(template) or derived
    dialect = replace(
        dialect, reasoning_field=dialect.reasoning_field or derived.reasoning_field, reads_text="think>" in template
    )
    if dialect.reasoning is None and dialect.messages is None:  # many models reason like this without their template
        dialect = replace(dialect, reasoning=THINK)
    return dialect if dialect.calls is not None else replace(dialect, calls=HERMES)


def with_tokens(dialect: Dialect, template: str, is_token: Callable[[str], bool]) -> Dialect:
    """Return a dialect with marks of reasoning that are tokens of the vocabulary, if the template shows none."""
    if dialect.reasoning == THINK and "think>" not in template and all(map(is_token, _BRACKETS)):
        return replace(dialect, reasoning=_BRACKETS)
    return dialect
