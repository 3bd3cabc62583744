"""The prompts of completions: texts, token ids, and texts with a gap to fill."""

from __future__ import annotations

from typing import Any

from edgespec.batch.bad_input import UnsupportedError, wrong
from edgespec.batch.fields import Fields
from edgespec.serve.served import Served


def take_prompts(fields: Fields, suffix: str, model: Served, *, special: bool) -> list[dict[str, Any]]:
    """Take `prompt`, and return the prompts as fields of requests. With a suffix, each answer fills the gap between its
    prompt and the suffix. Raises BadInputError."""
    given = fields.take("prompt", "")
    prompts = given if isinstance(given, list) and not _are_ids(given) else [given]
    if not prompts or not all(isinstance(prompt, str) or _are_ids(prompt) for prompt in prompts):
        raise wrong("prompt", "be a string, a list of token ids, or a list of such prompts", given)
    if not suffix:
        return [_fields_of(prompt) for prompt in prompts]

    def ids(text: str | list[int]) -> list[int]:
        return text if isinstance(text, list) else model.vocabulary.tokenize(text, parse_special=special)

    return [_fields_of(around_gap(model, "suffix", ids(prompt), ids(suffix))) for prompt in prompts]


def around_gap(model: Served, field: str, before: list[int], after: list[int]) -> list[int]:
    """Return the prompt whose answer fills the gap between two texts, which are given as ids. Raises BadInputError with
    the name of the field if the model has no control tokens for it."""
    vocabulary = model.vocabulary
    prefix, suffix, middle, *_ = vocabulary.fill_tokens
    if prefix is None or suffix is None or middle is None:
        raise UnsupportedError(field, "this model has no control tokens to fill gaps with")
    bos = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
    return [*bos, prefix, *before, suffix, *after, middle]


def _fields_of(prompt: str | list[int]) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt": "", "prompt_tokens": tuple(prompt)}


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(id) is int for id in value)
