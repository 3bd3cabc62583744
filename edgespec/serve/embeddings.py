"""Vectors and scores of texts: OpenAI's Embeddings, Ollama's API, and the reranking of Jina, Cohere and llama.cpp."""

from __future__ import annotations

import base64
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgespec.core.stats import Stats
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, wrong
from edgespec.requests.fields import Fields, content_of
from edgespec.requests.forms import RerankFields
from edgespec.requests.known_fields import EMBEDDING, EMBEDDINGS, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, RERANK, Known
from edgespec.serve.chat import line
from edgespec.serve.errors import Names, unavailable
from edgespec.serve.prompts import prompt_of, several
from edgespec.serve.served import Served
from edgespec.settings import Inputs

MOST_TEXTS = 2048  # of a request, as in OpenAI's API
MOST_VALUES = 2**22  # of all vectors of a request
MOST_HELD = 2**23  # of all requests that are open; each takes about 20 bytes of JSON

Row = NDArray[np.float32]
Text = str | tuple[int, ...]


class Room:
    """A limit of the values in all answers that are not sent yet."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self._most, self._n_held = most, 0

    @contextmanager
    def held(self, n_values: int) -> Iterator[None]:
        """Count values during this block. Raises ApiError if there are too many."""
        if self._n_held + n_values > self._most:
            raise unavailable("too many large requests are open: try again later", code="too_much")
        self._n_held += n_values
        try:
            yield
        finally:
            self._n_held -= n_values


class VectorsObject(ABC):
    """A request for vectors or scores, and its answer: `take` the row of each text, and then write the `whole`. Raises
    BadInputError and ApiError.

    Attributes:
        known: The known fields of a body.
        prompt: The field with the texts, which has other names in `prompts`.
        kind: The kind of result, in metrics.
        inputs: The texts that the model reads.
        loaded_ns: The time that loading the model took.
    """

    known: ClassVar[Known]
    prompt: ClassVar[str]
    prompts: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str] = "embedding"
    inputs: Inputs
    loaded_ns = 0

    def __init__(self, body: JsonObject, model: Served) -> None:
        self._started_ns = time.perf_counter_ns()
        self.model, self._served, self._values = model.name, model, list[str]()
        fields = Fields(body, self.known)
        self.notes = fields.notes
        if model.defaults.lora:
            raise UnsupportedError("model", "texts are read with the adapters that all requests use")
        self._read(fields)

    @classmethod
    def names(cls, body: JsonObject) -> Names:
        """Return the name in this body for each text of `Inputs`."""
        field = next((name for name in (cls.prompt, *cls.prompts) if body.get(name) is not None), cls.prompt)
        texts = several(field, body.get(field))
        return {"input[]": field if texts and texts[0][0] == field else f"{field}[]"}

    @property
    def n_values(self) -> int:
        """The number of values in the answer."""
        return len(self.inputs.texts) * self._served.info.n_embd

    @abstractmethod
    def _read(self, fields: Fields) -> None:
        """Set the inputs."""

    @abstractmethod
    def take(self, row: Row) -> None:
        """Add the row of the next text."""

    @abstractmethod
    def whole(self, stats: Stats) -> str:
        """Return the answer as JSON."""

    def _ask(self, texts: tuple[Text, ...], *, truncate: bool = False) -> None:
        """Ask for vectors. Raises BadInputError if they have too many values."""
        self._served.check_embeds()
        self.inputs = Inputs(texts, truncate=truncate)
        if self.n_values > MOST_VALUES:
            why = f"{self.prompt} asks for {self.n_values:,} values, of which a request may have {MOST_VALUES:,}"
            raise BadInputError(why, self.prompt)

    def _dimensions(self, fields: Fields) -> int:
        n_embd = self._served.info.n_embd
        return fields.integer("dimensions", n_embd, 1, n_embd)


class EmbeddingsObject(VectorsObject):
    """OpenAI's Embeddings."""

    known, prompt = EMBEDDINGS, "input"

    def _read(self, fields: Fields) -> None:
        self._ask(_texts("input", fields.take("input"), self._served))
        self._is_base64 = fields.choice("encoding_format", ("float", "base64"), "float") == "base64"
        self._n_dimensions = self._dimensions(fields)

    def take(self, row: Row) -> None:
        vector = unit(row[: self._n_dimensions])
        coded = base64.b64encode(vector.astype("<f4").tobytes()).decode() if self._is_base64 else vector.tolist()
        self._values.append(line({"object": "embedding", "index": len(self._values), "embedding": coded}))

    def whole(self, stats: Stats) -> str:
        return _object("data", self._values, {"object": "list", "model": self.model, "usage": _usage(stats)})


class NativeEmbeddingObject(EmbeddingsObject):
    """The format of llama.cpp's server, a list with a list of vectors for each text."""

    known, prompt, prompts = EMBEDDING, "content", ("input",)

    def _read(self, fields: Fields) -> None:
        if "content" in fields and "input" in fields:
            raise BadInputError("content and input exclude each other", "content")
        if "content" in fields:
            fields.put("input", fields.take("content"))
        super()._read(fields)

    def take(self, row: Row) -> None:
        vector = unit(row[: self._n_dimensions]).tolist()
        self._values.append(line({"index": len(self._values), "embedding": [vector]}))

    def whole(self, stats: Stats) -> str:
        return f"[{','.join(self._values)}]"


class RerankObject(VectorsObject):
    """The reranking of Jina and Cohere, with the scores of llama.cpp's server. With `texts` in place of `documents`,
    the format is that of Text Embeddings Inference (TEI)."""

    known, prompt, prompts, kind = RERANK, "documents", ("texts",), "rank"

    def _read(self, fields: Fields) -> None:
        self._served.check_ranks()
        self._is_tei = "texts" in fields
        if self._is_tei and "documents" in fields:
            raise BadInputError("texts and documents exclude each other", "texts")
        field = "texts" if self._is_tei else "documents"
        form, given = fields.read(RerankFields), fields.take(field)
        if not form.query:
            raise BadInputError("query is missing", "query")
        if not isinstance(given, list):
            raise wrong(field, "be a list of texts", given)
        _check_number(field, given)
        documents = list[str]()
        for index, each in enumerate(given):
            document = each.get("text") if isinstance(each, dict) else each
            if not isinstance(document, str):
                raise wrong(f"{field}[{index}]", "be a text, or an object with one", each)
            documents.append(document)
        self.inputs = Inputs(tuple(documents), form.query)
        self._n_top = fields.integer("top_n", len(documents), 1, 2**31 - 1)
        is_returned = form.return_text if self._is_tei else form.return_documents
        self._documents = documents if is_returned else None
        self._scores: list[float] = []

    @property
    def n_values(self) -> int:
        return len(self.inputs.texts)

    def take(self, row: Row) -> None:
        self._scores.append(float(row[0]))

    def whole(self, stats: Stats) -> str:
        best = sorted(range(len(self._scores)), key=lambda index: -self._scores[index])[: self._n_top]
        if self._is_tei:
            texts = self._documents
            return line(
                [{"index": at, "score": self._scores[at]} | ({"text": texts[at]} if texts else {}) for at in best]
            )
        results = [
            {"index": index, "relevance_score": self._scores[index]}
            | ({"document": {"text": self._documents[index]}} if self._documents is not None else {})
            for index in best
        ]
        return line({"object": "list", "model": self.model, "results": results, "usage": _usage(stats)})


class OllamaEmbedObject(VectorsObject):
    """Ollama's /api/embed."""

    known, prompt = OLLAMA_EMBED, "input"

    def _read(self, fields: Fields) -> None:
        self._ask(
            _texts("input", fields.take("input"), self._served, ids=False), truncate=fields.flag("truncate", True)
        )
        self._n_dimensions = self._dimensions(fields)

    @staticmethod
    def loaded(model: str, *, is_unloaded: bool) -> dict[str, object]:
        """Return the answer to a request that only loads or unloads a model."""
        return {"model": model, "embeddings": []}

    def take(self, row: Row) -> None:
        self._values.append(line(unit(row[: self._n_dimensions]).tolist()))

    def whole(self, stats: Stats) -> str:
        times = {"total_duration": self.loaded_ns + time.perf_counter_ns() - self._started_ns}
        times |= {"load_duration": self.loaded_ns, "prompt_eval_count": stats.prompt_tokens}
        return _object("embeddings", self._values, {"model": self.model, **times})


class OllamaEmbeddingObject(OllamaEmbedObject):
    """Ollama's /api/embeddings, the older endpoint for one vector, which is not normalised."""

    known, prompt = OLLAMA_EMBEDDINGS, "prompt"

    def _read(self, fields: Fields) -> None:
        self._ask((fields.text("prompt"),), truncate=True)

    @staticmethod
    def loaded(model: str, *, is_unloaded: bool) -> dict[str, object]:
        return {"embedding": []}

    def take(self, row: Row) -> None:
        self._values.append(line({"embedding": row.tolist()}))

    def whole(self, stats: Stats) -> str:
        return self._values[0]


def unit(row: Row) -> Row:
    """Return a vector with the length 1, computed as llama.cpp does."""
    length = float(np.sqrt(np.sum(np.square(row), dtype=np.float64)))
    return row * np.float32(1 / length) if length else row


def _texts(name: str, given: object, model: Served, *, ids: bool = True) -> tuple[Text, ...]:
    """Read a text or a list of texts; with `ids` a text may be a list of token ids. Raises BadInputError."""
    texts = several(name, given)
    _check_number(name, texts)
    return tuple(_text(where, text, model, ids=ids) for where, text in texts)


def _check_number(name: str, given: Sized) -> None:
    if not 0 < len(given) <= MOST_TEXTS:
        raise BadInputError(f"{name} must have 1 to {MOST_TEXTS:,} texts, not {len(given):,}", name)


def _text(where: str, given: object, model: Served, *, ids: bool) -> Text:
    if ids and isinstance(given, dict) and isinstance(parts := given.get("content"), list):
        given = content_of(f"{where}.content", parts)
    found = prompt_of(where, given, model, special=True) if ids else given
    if isinstance(found, str):
        if not found and not model.has_empty_texts:
            raise BadInputError(f"{where} is empty", where)
        return found
    if not isinstance(found, list):
        raise wrong(where, "be a text", given)
    for id in found:
        if not 0 <= id < model.n_vocab:
            raise wrong(where, f"have token ids from 0 to {model.n_vocab - 1}", id)
    return tuple(found)


def _usage(stats: Stats) -> dict[str, int]:
    return {"prompt_tokens": stats.prompt_tokens, "total_tokens": stats.prompt_tokens}


def _object(name: str, parts: list[str], rest: JsonObject) -> str:
    """Return the JSON of an object with a list of these parts, each of which is JSON, and the `rest`."""
    return f'{{"{name}":[{",".join(parts)}],{line(rest)[1:]}'
