"""The format of llama.cpp's server (/completion): bodies into those of Completions, pieces of answers into objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from edgespec.batch.openai import TokenBytes, token_logprob
from edgespec.events import TokenEvent
from edgespec.serve.chat import Call, End, Piece, timings
from edgespec.serve.errors import BadFieldError, unsupported
from edgespec.serve.fields import Fields
from edgespec.serve.openai import text_call
from edgespec.serve.served import Served
from edgespec.settings import shown

SAMPLERS: dict[str, dict[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
"""The samplers in the order in which they are applied, each with the settings that switch the sampler off."""
ABSENT_SAMPLERS = ("dry", "top_n_sigma", "xtc", "adaptive_p")  # Settings that switch them on are refused.
IGNORED = (  # These change no answer, or only samplers that do not exist here.
    *("n_keep", "n_discard", "n_cache_reuse", "timings_per_token", "return_progress", "sse_ping_interval"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold"),
    *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "adaptive_decay"),
)
ABSENT: dict[str, tuple[Any, ...]] = {  # These change answers and do not exist here; the values ask for nothing.
    "n_indent": (0,),
    "min_keep": (0,),
    "t_max_predict_ms": (0, -1),
    "post_sampling_probs": (False,),
    "image_data": ([],),
    "multimodal_data": ([],),
    "system_prompt": ("",),
    "input_prefix": ("",),
    "input_suffix": ("",),
    "input_extra": ([],),
}

# --- requests ---------------------------------------------------------------------------------------------------------


def completion_call(body: Mapping[str, Any], model: Served) -> Call:
    """A body of /completion. Raises BadFieldError."""
    fields = Fields(body)
    for name in IGNORED:
        fields.take(name)
    for name, harmless in ABSENT.items():
        if (value := fields.take(name, harmless[0])) not in harmless:
            raise unsupported(name, f"{shown(value)} cannot be honoured")
    fields.flag("return_tokens")
    _fields_of(fields.take("response_fields"))
    text: dict[str, Any] = {"prompt": _prompt(fields.take("prompt"))}
    text["special"] = fields.flag("special", True)  # The client has usually applied a chat template.
    if (n_probs := fields.integer("n_probs", 0, 0, 20)) > 0:
        text["logprobs"] = n_probs
    if "n_cmpl" in fields:
        text["n"] = fields.take("n_cmpl")
    if "samplers" in fields:
        text |= _switched_off(fields.take("samplers"))
    call = text_call(fields.rest() | text, model)
    call.returns_tokens = True
    return call


def _prompt(given: Any) -> Any:
    """Return one prompt or several; each was sent as text, or as an object with text."""
    if isinstance(given, list):
        return [_prompt(prompt) for prompt in given]
    if isinstance(given, dict):
        others = [name for name in given if name != "prompt_string"]
        if others:
            raise unsupported("prompt", f"{shown(others[0])} is not text")
        given = given.get("prompt_string")
    if given is None:
        raise BadFieldError("prompt", "prompt is missing")
    if isinstance(given, int):
        raise unsupported("prompt", "it must be a text, not ids of tokens")
    return given


def _switched_off(given: Any) -> dict[str, float]:
    """The settings that switch off the samplers that a list leaves out. Raises BadFieldError."""
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise BadFieldError("samplers", f"samplers must be a list of names, not {shown(given)}")
    names = ["typ_p" if name == "typical_p" else name for name in given if name not in ABSENT_SAMPLERS]
    if names != [name for name in SAMPLERS if name in names]:
        raise unsupported("samplers", f"they are applied in this order: {', '.join(SAMPLERS)}")
    return {name: value for sampler in SAMPLERS if sampler not in names for name, value in SAMPLERS[sampler].items()}


def _fields_of(given: Any) -> list[str]:
    """Return the names of the fields that the answer should have; none means all. Raises BadFieldError."""
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise BadFieldError("response_fields", f"response_fields must be a list of names, not {shown(given)}")
    return given


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Answer:
    """The text and the tokens of one answer."""

    text: list[str] = field(default_factory=list)
    tokens: list[TokenEvent] = field(default_factory=list)


class CompletionObject:
    """The answers to a call in the format of llama.cpp's server, whole or as events."""

    def __init__(self, call: Call, body: Mapping[str, Any], model: Served) -> None:
        self._call, self._model = call, model
        self._answers = [_Answer() for _ in call.requests]
        self._returns_tokens = body.get("return_tokens") is True
        self._fields = _fields_of(body.get("response_fields"))
        self._token_bytes: TokenBytes = model.token_bytes

    async def whole(self, pieces: AsyncIterator[Piece]) -> Any:
        """The object of the answer, or a list of the objects of several."""
        made: dict[int, dict[str, Any]] = {}
        async for piece in pieces:
            self._take(piece)
            if piece.end is not None:
                answer = self._answers[piece.index]
                last = self._last(piece.index, piece.end, "".join(answer.text), self._returns_tokens)
                if self._call.wants_tokens:
                    last["completion_probabilities"] = self._probabilities(answer.tokens)
                made[piece.index] = self._chosen(last)
        return made[0] if len(made) == 1 else [made[index] for index in sorted(made)]

    async def events(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[dict[str, Any], None]:
        """The objects of a stream; closing this closes `pieces`."""
        async with aclosing(pieces):
            async for piece in pieces:
                self._take(piece)
                for event in self._events(piece):
                    yield event

    def _take(self, piece: Piece) -> None:
        answer = self._answers[piece.index]
        answer.text.append(piece.text)
        answer.tokens += piece.tokens

    def _events(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if piece.text or piece.tokens:
            part = {"index": piece.index, "content": piece.text, "tokens": _ids(piece.tokens), "stop": False}
            if self._call.wants_tokens:
                part["completion_probabilities"] = self._probabilities(piece.tokens)
            yield part
        if piece.end is not None:
            yield self._chosen(self._last(piece.index, piece.end, "", returns_tokens=False))

    def _last(self, index: int, end: End, content: str, returns_tokens: bool) -> dict[str, Any]:
        answer, request, stats = self._answers[index], self._call.requests[index], end.stats
        kind = "limit" if end.reason == "length" else "word" if end.cut else "eos"
        return {
            "index": index,
            "content": content,
            "tokens": _ids(answer.tokens) if returns_tokens else [],
            "id_slot": -1,  # Answers do not know their slot.
            "stop": True,
            "model": self._call.model,
            "tokens_predicted": end.n_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": self._settings(index),
            "prompt": request.prompt,
            "has_new_line": any("\n" in text for text in answer.text),
            "truncated": kind == "limit" and stats.prompt_tokens + end.n_tokens >= self._model.n_ctx,
            "stop_type": kind,
            "stopping_word": end.cut,
            "tokens_cached": stats.cached_tokens,
            "timings": timings(stats),
        }

    def _settings(self, index: int) -> dict[str, Any]:
        request = self._call.requests[index]
        sampling = asdict(request.sampling)
        sampling["logit_bias"] = [
            {"token": id, "bias": bias if isfinite(bias) else None} for id, bias in request.sampling.logit_bias
        ]
        return {
            "n_ctx": self._model.n_ctx,
            "n_predict": request.max_tokens,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            **sampling,
            "samplers": list(SAMPLERS),
            "stop": list(request.stop),
            "ignore_eos": request.ignore_eos,
            "grammar": request.grammar,
            "json_schema": request.json_schema,
            "n_probs": request.logprobs or 0,
            "stream": self._call.stream,
        }

    def _probabilities(self, tokens: Sequence[TokenEvent]) -> list[dict[str, Any]]:
        made = []
        for event in tokens:
            known = token_logprob(event, self._token_bytes)
            others = zip(event.top_logprobs, known["top_logprobs"], strict=True)
            top = [{"id": id} | other for (id, _), other in others]
            made.append({"id": event.id} | known | {"top_logprobs": top})
        return made

    def _chosen(self, made: dict[str, Any]) -> dict[str, Any]:
        """Keep only the fields that the client has named, if any; a/b is the field b of the object a."""
        if not self._fields:
            return made
        chosen: dict[str, Any] = {}
        for path in self._fields:
            value: Any = made
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                chosen[path] = value
        return chosen


def _ids(tokens: Sequence[TokenEvent]) -> list[int]:
    return [event.id for event in tokens]
