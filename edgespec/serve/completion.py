"""The format of llama.cpp's server (/completion), which is read as Completions with other fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from edgespec.batch.bad_input import UnsupportedError, wrong
from edgespec.batch.fields import Fields
from edgespec.batch.known import COMPLETION
from edgespec.batch.openai import token_logprob
from edgespec.events import TokenEvent
from edgespec.serve.chat import Call, Piece, Writer, timings
from edgespec.serve.openai import text_of
from edgespec.serve.served import Served

SAMPLERS: dict[str, dict[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
"""The samplers in the order in which they are applied, each with the settings that switch the sampler off."""
ABSENT_SAMPLERS = ("dry", "top_n_sigma", "xtc", "adaptive_p")

# --- requests ---------------------------------------------------------------------------------------------------------


def completion_call(body: Mapping[str, Any], model: Served) -> Call:
    """Read a body of /completion. Raises BadInputError."""
    fields = Fields(body, COMPLETION)
    text: dict[str, Any] = {"special": fields.flag("special", True)}  # the client has usually applied a chat template
    if "samplers" in fields:
        text |= _switched_off(fields.take("samplers"))
    call = text_of(Fields(fields.rest() | text, notes=fields.notes), model)
    call.returns_tokens = True
    return call


def _switched_off(given: Any) -> dict[str, float]:
    """Return the settings that switch off the samplers that a list leaves out. Raises BadInputError."""
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise wrong("samplers", "be a list of names", given)
    names = ["typ_p" if name == "typical_p" else name for name in given if name not in ABSENT_SAMPLERS]
    if names != [name for name in SAMPLERS if name in names]:
        raise UnsupportedError("samplers", f"they are applied in this order: {', '.join(SAMPLERS)}")
    return {name: value for sampler in SAMPLERS if sampler not in names for name, value in SAMPLERS[sampler].items()}


# --- answers ----------------------------------------------------------------------------------------------------------


class CompletionObject(Writer):
    """Writes the answers to a call in the format of llama.cpp's server: one object, or a list for several answers."""

    def __init__(self, call: Call, body: Mapping[str, Any], model: Served) -> None:
        super().__init__(call)
        self._model = model
        self._returns_tokens = body.get("return_tokens") is True

    def whole(self) -> Any:
        made = [
            self._last(index, "".join(answer.texts), _ids(answer.tokens) if self._returns_tokens else [])
            | self._probabilities(answer.tokens)
            for index, answer in enumerate(self.answers)
        ]
        return made[0] if len(made) == 1 else made

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        self.take(piece)
        if piece.text or piece.tokens:
            part = {"index": piece.index, "content": piece.text, "tokens": _ids(piece.tokens), "stop": False}
            yield part | self._probabilities(piece.tokens)
        if piece.end is not None:
            yield self._last(piece.index, "", [])

    def _last(self, index: int, content: str, tokens: Sequence[int]) -> dict[str, Any]:
        answer, request = self.answers[index], self.call.requests[index]
        end, stats = answer.ended, answer.ended.stats
        kind = "limit" if end.reason == "length" else "word" if end.cut else "eos"
        return {
            "index": index,
            "content": content,
            "tokens": tokens,
            "id_slot": -1,  # answers do not know their slot
            "stop": True,
            "model": self.call.model,
            "tokens_predicted": end.n_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": self._settings(index),
            "prompt": request.prompt,
            "has_new_line": any("\n" in text for text in answer.texts),
            "truncated": kind == "limit" and stats.prompt_tokens + end.n_tokens >= self._model.n_ctx,
            "stop_type": kind,
            "stopping_word": end.cut,
            "tokens_cached": stats.cached_tokens,
            "timings": timings(stats),
        }

    def _settings(self, index: int) -> dict[str, Any]:
        request = self.call.requests[index]
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
            "stream": self.call.stream,
        }

    def _probabilities(self, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        """Return the field for the log-probabilities of tokens, if the client wants them."""
        if not self.call.wants_tokens:
            return {}
        made = []
        for event in tokens:
            known = token_logprob(event, self._model.token_bytes)
            others = zip(event.top_logprobs, known["top_logprobs"], strict=True)
            top = [{"id": id} | other for (id, _), other in others]
            made.append({"id": event.id} | known | {"top_logprobs": top})
        return {"completion_probabilities": made}


def _ids(tokens: Sequence[TokenEvent]) -> list[int]:
    return [event.id for event in tokens]
