"""From the texts of `Inputs` to token ids, as llama.cpp's server reads them."""

from __future__ import annotations

import re
from array import array
from typing import TypeAlias

from edgespec.cancel import CancelFlag
from edgespec.errors import PromptTooLongError, UsageError
from edgespec.gguf_file.pooling import RANK, pooling_of
from edgespec.llama.model import Model
from edgespec.runtime.prompts import LONGEST_TOKEN
from edgespec.settings import Inputs

Texts: TypeAlias = "list[array[int]]"
"""The tokens of texts; a list of lists would take ten times the memory."""

_PLACES = re.compile(r"(\{query\}|\{document\})")


class InputReader:
    """Reads inputs for one model, in a context of at most `n_ctx` tokens."""

    def __init__(self, model: Model, n_ctx: int) -> None:
        self._model, self._n_ctx = model, n_ctx

    def of(self, inputs: Inputs, cancel: CancelFlag | None = None) -> Texts:
        """Return the tokens of inputs, without the last ones once `cancel` is set. Raises UsageError."""
        is_ranked = pooling_of(self._model.header) == RANK
        if is_ranked and inputs.query is None:
            raise UsageError(f"{self._model.path.name} makes no vectors", why="it is a reranking model")
        if inputs.query is not None and not is_ranked:
            raise UsageError(f"{self._model.path.name} cannot rank documents", why="it is not a reranking model")
        self._bounded("query", inputs.query or "", truncate=False)
        found: Texts = []
        for index, text in enumerate(inputs.texts):
            if cancel is None or not cancel.is_set():
                tokens = array("i", self._tokens(index, text, inputs))
                found.append(self._fitting(index, tokens, truncate=inputs.truncate))
        return found

    def _tokens(self, index: int, text: str | tuple[int, ...], inputs: Inputs) -> list[int]:
        if isinstance(text, str):
            text = self._bounded(f"input[{index}]", text, truncate=inputs.truncate)
            tokens = self._pair(inputs.query, text) if inputs.query is not None else self._whole(text)
        else:
            tokens = [*text]
        wrong = next((id for id in tokens if not 0 <= id < self._model.n_vocab), None)
        if not tokens or wrong is not None:
            raise UsageError(
                f"input[{index}] is empty" if wrong is None else f"input[{index}]: there is no token {wrong}"
            )
        return tokens

    def _bounded(self, where: str, text: str, *, truncate: bool) -> str:
        """Return a text, cut to the most characters that fit into the context: tokenizing more would take long."""
        most = LONGEST_TOKEN * self._n_ctx
        if len(text) > most and not truncate:
            what = f"{where} has {len(text):,} characters, more than fit into {self._n_ctx} tokens"
            raise _too_long(what, where)
        return text[:most]

    def _fitting(self, index: int, tokens: array[int], *, truncate: bool) -> array[int]:
        """Return the tokens of a text, cut to the context if they may be cut. Raises PromptTooLongError.

        A token that ends texts stays at the end.
        """
        if len(tokens) <= self._n_ctx:
            return tokens
        if not truncate:
            where = f"input[{index}]"
            raise _too_long(f"{where} has {len(tokens)} tokens, the context holds {self._n_ctx}", where)
        n_end = int(tokens[-1] in (self._model.eos, self._model.sep))
        return tokens[: self._n_ctx - n_end] + tokens[len(tokens) - n_end :]

    def _whole(self, text: str) -> list[int]:
        return self._model.tokenize(text, add_special=True, parse_special=True)

    def _pair(self, query: str, document: str) -> list[int]:
        """Return the tokens of a query and a document, in the order in which rerankers are trained."""
        model = self._model
        if model.rerank_template:
            return self._from_template(model.rerank_template, {"{query}": query, "{document}": document})
        bos = [model.bos] if model.adds_bos else []
        end = [model.sep if model.eos is None else model.eos] if model.adds_eos else []
        sep = [model.sep] if model.adds_sep else []
        found = [*bos, *model.tokenize(query), *end, *sep, *model.tokenize(document), *end]
        return [id for id in found if id is not None]

    def _from_template(self, template: str, given: dict[str, str]) -> list[int]:
        """Fill in a template. Control tokens that are written in a text stay text."""
        parts, model = _PLACES.split(template), self._model
        if any(map(model.control_texts.any_in, given.values())):
            return [
                id for part in parts for id in model.tokenize(given.get(part, part), parse_special=part not in given)
            ]
        return model.tokenize("".join(given.get(part, part) for part in parts), parse_special=True)


def _too_long(what: str, where: str) -> PromptTooLongError:
    """Return the error for a text that does not fit."""
    error = PromptTooLongError(what, hint="shorten it, or use a larger context (-c), if the model was trained for one")
    error.where = where
    return error
