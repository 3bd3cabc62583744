"""The log-probabilities of prompts: which texts their tokens have in an answer, and vLLM's form of them."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgespec.events import TokenEvent
from edgespec.requests.bad_input import BadInputError
from edgespec.requests.openai import TokenBytes, token_text
from edgespec.requests.row import finite
from edgespec.runtime.prompts import Prompts
from edgespec.settings import Request

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
