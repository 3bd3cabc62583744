"""The prompts of completions: texts, token ids, and texts with a gap to fill. The log-probabilities of prompts, for
`echo` and in vLLM's form."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypedDict

from edgespec.events import TokenEvent
from edgespec.requests.bad_input import BadInputError, UnsupportedError, wrong
from edgespec.requests.fields import Fields
from edgespec.requests.openai import TokenBytes, token_text
from edgespec.requests.row import finite
from edgespec.requests.row_settings import is_integer
from edgespec.runtime.prompts import Prompts
from edgespec.serve.served import Served
from edgespec.settings import Request

FORMS = "a text, or a list of token ids and texts"

Prompt = str | list[int]


def take_prompts(fields: Fields, suffix: str, model: Served, *, special: bool) -> list[PromptFields]:
    """Take `prompt`, and return the prompts as fields of requests. With a suffix, each answer fills the gap between its
    prompt and the suffix. Raises BadInputError."""
    given = fields.take("prompt", "")
    if given == []:
        raise wrong("prompt", f"be {FORMS}, or a list of such prompts", given)
    prompts = [prompt_of(where, prompt, model, special=special) for where, prompt in several("prompt", given)]
    if not suffix:
        return [_fields_of(prompt) for prompt in prompts]

    def ids(text: Prompt) -> list[int]:
        return text if isinstance(text, list) else model.vocabulary.tokenize(text, parse_special=special)

    return [_fields_of(around_gap(model, "suffix", ids(prompt), ids(suffix))) for prompt in prompts]


def several(where: str, given: object) -> list[tuple[str, object]]:
    """Return the prompts in a field, each with its name. A list with a token id is one prompt."""
    if not isinstance(given, list) or any(map(is_integer, given)):
        return [(where, given)]
    return [(f"{where}[{index}]", prompt) for index, prompt in enumerate(given)]


def prompt_of(where: str, given: object, model: Served, *, special: bool) -> Prompt:
    """Return a prompt as a text or as token ids. llama.cpp's server also has texts in objects, and lists in which texts
    and ids follow each other. With `special`, control tokens in texts are parsed. Raises BadInputError."""
    if isinstance(given, dict) and isinstance(given.get("prompt_string"), str):
        if given.get("multimodal_data"):
            raise UnsupportedError(f"{where}.multimodal_data", "images are sent in the messages of a chat")
        return str(given["prompt_string"])
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(part, str) or is_integer(part) for part in given):
        raise wrong(where, f"be {FORMS}", given)
    if not any(map(is_integer, given)):
        raise wrong(where, f"be {FORMS}", given)
    ids = list[int]()
    for index, part in enumerate(given):
        is_first = index == 0  # tokens that begin every prompt come before it
        ids += (
            model.vocabulary.tokenize(part, add_special=is_first, parse_special=special)
            if isinstance(part, str)
            else [part]
        )
    return ids


def around_gap(model: Served, field: str, before: list[int], after: list[int]) -> list[int]:
    """Return the prompt whose answer fills the gap between two texts, which are given as ids. Raises BadInputError with
    the name of the field if the model has no control tokens for it."""
    vocabulary = model.vocabulary
    prefix, suffix, middle, *_ = vocabulary.fill_tokens
    if prefix is None or suffix is None or middle is None:
        raise UnsupportedError(field, "this model has no control tokens to fill gaps with")
    bos = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
    return [*bos, prefix, *before, suffix, *after, middle]


class PromptFields(TypedDict, total=False):
    """A prompt as fields of a `Request`."""

    prompt: str
    prompt_tokens: tuple[int, ...]


def _fields_of(prompt: Prompt) -> PromptFields:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt": "", "prompt_tokens": tuple(prompt)}


# --- log-probabilities of prompts -------------------------------------------------------------------------------------

MOST_SCORES = 2**22  # of all answers to a request, by the characters of their prompts


def check_scores(requests: Sequence[Request]) -> None:
    """Raise BadInputError if a request asks for more log-probabilities than are kept in memory."""
    n = sum(Prompts.length(each) * (2 + each.prompt_logprobs) for each in requests if each.prompt_logprobs is not None)
    if n > MOST_SCORES:
        why = f"{n:,} log-probabilities of prompts are too many, at most {MOST_SCORES:,} are sent at once"
        raise BadInputError(f"{why}; ask for fewer alternatives, or send fewer prompts", "prompt")


def with_texts(events: Sequence[TokenEvent], prompt: str, token_bytes: TokenBytes) -> tuple[TokenEvent, ...]:
    """Return the tokens of a prompt with texts that make up this prompt.

    Tokenizers add tokens, or a blank, in front of a text: these have no part of it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(token_bytes(event.id)) for event in events]
    n_added = max(0, sum(map(len, texts)) - len(prompt))
    found = []
    for event, text in zip(events, texts, strict=True):
        found.append(replace(event, text=text[n_added:]))
        n_added = max(0, n_added - len(text))
    return tuple(found)


def by_id(events: Sequence[TokenEvent], n: int, token_bytes: TokenBytes) -> list[dict[str, object] | None]:
    """Return the log-probabilities of a prompt as vLLM does: for each token but the first, that of the token itself and
    of the `n` likeliest ones, by their ids."""
    return [None if event.logprob is None else dict(_entries(event, n, token_bytes)) for event in events]


def _entries(event: TokenEvent, n: int, token_bytes: TokenBytes) -> Iterator[tuple[str, dict[str, object]]]:
    own = (event.rank, event.id, event.logprob)
    for rank, token, logprob in (own, *((i, *each) for i, each in enumerate(event.top_logprobs[:n], 1))):
        yield str(token), {"logprob": finite(logprob), "rank": rank, "decoded_token": token_text(token_bytes(token))}
