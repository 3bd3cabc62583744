"""From the texts of `Inputs` to token ids, as llama.cpp's server reads them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from edgespec.cancel import CancelFlag
from edgespec.errors import PromptTooLongError, UsageError
from edgespec.gguf_file.pooling import RANK, pooling_of
from edgespec.llama.model import LlamaModel
from edgespec.runtime.prompts import LONGEST_TOKEN
from edgespec.settings import Inputs

Texts: TypeAlias = "list[array[int]]"
"""The tokens of texts; a list of lists would take ten times the memory."""

_PLACES = re.compile(r"(\{query\}|\{document\})")


class InputReader:
    """Reads inputs for one model, in a context of at most `n_ctx` tokens."""

    def __init__(self, model: LlamaModel, n_ctx: int) -> None:
        self._model, self._n_ctx = model, n_ctx

    def of(self, inputs: Inputs, cancel: CancelFlag | None = None) -> Texts:
        """Return the tokens of inputs, without the last ones once `cancel` is set. Raises UsageError."""
        is_ranked = pooling_of(self._model.header) == RANK
        if is_ranked and inputs.query is None:
            raise UsageError(f"{self._model.path.name} makes no vectors", why="it is a reranking model")
        if inputs.query is not None and not is_ranked:
            raise UsageError(f"{self._model.path.name} cannot rank documents", why="it is not a reranking model")
        read = self._whole if inputs.query is None else self._pairs(inputs.query)
        found: Texts = []
        for index, text in enumerate(inputs.texts):
            if cancel is None or not cancel.is_set():
                where = f"input[{index}]"
                tokens = read(self._bounded(where, text, truncate=inputs.truncate)) if isinstance(text, str) else text
                self._check(where, tokens)
                found.append(self._fitting(where, array("i", tokens), truncate=inputs.truncate))
        return found

    def _check(self, where: str, tokens: Sequence[int]) -> None:
        """Raise UsageError if there are no tokens, or one that the model does not have."""
        wrong = next((id for id in tokens if not 0 <= id < self._model.n_vocab), None)
        if not tokens or wrong is not None:
            what = f"{where} is empty" if wrong is None else f"{where}: there is no token {wrong}"
            raise UsageError(what, field=where)

    def _bounded(self, where: str, text: str, *, truncate: bool) -> str:
        """Return a text, cut to the most characters that fit into the context: tokenizing more would take long."""
        most = LONGEST_TOKEN * self._n_ctx
        if len(text) > most and not truncate:
            what = f"{where} has {len(text):,} characters, more than fit into {self._n_ctx} tokens"
            raise _too_long(what, where, None, self._n_ctx)
        return text[:most]

    def _fitting(self, where: str, tokens: array[int], *, truncate: bool) -> array[int]:
        """Return the tokens of a text, cut to the context if they may be cut. Raises PromptTooLongError.

        A token that ends texts stays at the end.
        """
        if len(tokens) <= self._n_ctx:
            return tokens
        if not truncate:
            raise _too_long(
                f"{where} has {len(tokens)} tokens, the context holds {self._n_ctx}", where, len(tokens), self._n_ctx
            )
        n_end = int(tokens[-1] in (self._model.eos, self._model.sep))
        return tokens[: self._n_ctx - n_end] + tokens[len(tokens) - n_end :]

    def _whole(self, text: str) -> list[int]:
        return self._model.tokenize(text, add_special=True, parse_special=True)

    def _pairs(self, query: str) -> Callable[[str], list[int]]:
        """Return the function that makes tokens of this query and a document, in the order in which rerankers are
        trained. Raises PromptTooLongError if the query leaves no room for a document."""
        self._bounded("query", query, truncate=False)
        template = self._model.rerank_template
        read = partial(self._from_template, template, query) if template else self._after(query)
        self._fitting("query", array("i", read("")), truncate=False)
        return read

    def _after(self, query: str) -> Callable[[str], list[int]]:
        """Return the function that makes tokens of a document after this query, which is tokenized once."""
        model = self._model
        bos = [model.bos] if model.adds_bos else []
        end = [model.sep if model.eos is None else model.eos] if model.adds_eos else []
        sep = [model.sep] if model.adds_sep else []
        start = [*bos, *model.tokenize(query), *end, *sep]
        return lambda document: [id for id in (*start, *model.tokenize(document), *end) if id is not None]

    def _from_template(self, template: str, query: str, document: str) -> list[int]:
        """Fill in a template. Control tokens and added tokens that are written in a text stay text."""
        given, parts, model = {"{query}": query, "{document}": document}, _PLACES.split(template), self._model
        if any(model.control_texts.any_in(text) or model.added_texts.any_in(text) for text in given.values()):
            written = (
                model.tokenize_text(given[part]) if part in given else model.tokenize(part, parse_special=True)
                for part in parts
            )
            return [id for ids in written for id in ids]
        return model.tokenize("".join(given.get(part, part) for part in parts), parse_special=True)


def _too_long(what: str, where: str, n_tokens: int | None, n_ctx: int) -> PromptTooLongError:
    """Return the error for a text that does not fit."""
    hint = "shorten it, or use a larger context (`ctx_size`), if the model was trained for one"
    return PromptTooLongError(what, hint=hint, field=where, n_tokens=n_tokens, n_ctx=n_ctx)
