"""OpenAI's Chat Completions and Completions: reads bodies, and writes answers as objects."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from edgespec import __version__
from edgespec.core.stats import Stats
from edgespec.dialects.calls import AnyCall, CallPiece
from edgespec.events import TokenEvent
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, wrong
from edgespec.requests.fields import LONGEST, Fields
from edgespec.requests.forms import MOST_LOGPROBS, SERVER_SETTINGS, AnswerFields, ChatFields, StreamOptions, TextFields
from edgespec.requests.known_fields import CHAT, TEXT, Known
from edgespec.requests.messages import chat_messages, check_count
from edgespec.requests.openai import check_best_of, take_logprobs, text_logprobs, token_logprob
from edgespec.runtime.prompts import Prompts, request_notes
from edgespec.serve.chat import Answer, Call, Piece, Writer, timings
from edgespec.serve.errors import Names
from edgespec.serve.prompts import by_id, check_scores, take_prompts
from edgespec.serve.provider_tools import ClientTools
from edgespec.serve.request_tools import refuses_reasoning, take_arguments, take_tools, use_tools, with_tools
from edgespec.serve.served import Served
from edgespec.settings import Message, Request, random_seed, with_system

MOST_ANSWERS = 64  # to one request
MOST_CHARACTERS = 2**26  # of the prompts of all answers to one request

# --- requests ---------------------------------------------------------------------------------------------------------


def chat_call(body: JsonObject, model: Served, known: Known = CHAT) -> Call:
    """Read a body of /v1/chat/completions. Raises BadInputError."""
    return chat_of(Fields(body, known), model)


def chat_of(fields: Fields, model: Served, messages: Sequence[Message] = ()) -> Call:
    """Read the fields of a chat, to which several formats are converted. Raises BadInputError.

    Other formats read their messages themselves.
    """
    form = fields.read(AnswerFields)
    given = {name: fields.take(name) for name in ("logprobs", "top_logprobs") if name in fields}
    if form.n_probs:
        given = {"logprobs": True, "top_logprobs": form.n_probs} | given
    take_logprobs(given)
    what = _common(form, fields, model)
    what["logprobs"] = _checked_logprobs("top_logprobs", given.get("logprobs"))
    tools = take_tools(fields)
    has_tools = bool(tools.functions)
    dialect = model.dialect(has_tools=has_tools)
    if refuses_reasoning(fields, dialect):
        what.setdefault("reasoning_budget", 0)
    arguments = take_arguments(fields, model.templates.of(has_tools=has_tools), dialect)
    messages = tuple(messages) or chat_messages(fields.take("messages"))
    chat = fields.read(ChatFields)
    messages = with_system(messages, model.system if chat.add_system_prompt else "")
    check_count(messages, model.n_ctx)
    _check_end(chat, is_begun=messages[-1].role == "assistant")
    if chat.verbosity != "medium":
        fields.notes.append("'verbosity' has no effect: models here have no such setting")
    request = replace(model.defaults, messages=messages, prompt="", lenient=chat.lenient, **what)
    is_constrained = request.constraint is not None
    request = with_tools(request, tools, arguments)
    call = _call(form, fields, model, [request])
    _take_scores(call, request.prompt_logprobs)
    call.splits = chat.reasoning_format != "none"
    use_tools(call, tools, model, is_constrained=is_constrained)
    return call


def text_call(body: JsonObject, model: Served) -> Call:
    """Read a body of /v1/completions. Raises BadInputError."""
    return text_of(Fields(body, TEXT), model)


def text_of(fields: Fields, model: Served) -> Call:
    """Read the fields of a completion. Raises BadInputError."""
    form, text = fields.read(AnswerFields), fields.read(TextFields)
    logprobs = fields.take("logprobs", form.n_probs or None)
    what = _common(form, fields, model)
    what["logprobs"] = _checked_logprobs("logprobs", logprobs)
    if text.echo and text.suffix:
        raise UnsupportedError("echo", "it cannot be combined with a suffix")
    n_scored = what["prompt_logprobs"]
    if text.echo and what["logprobs"] is not None:
        what["prompt_logprobs"] = max(what["logprobs"], n_scored or 0)
    prompts = take_prompts(fields, text.suffix, model, special=what.get("special", model.defaults.special))
    call = _call(form, fields, model, [replace(model.defaults, messages=(), **prompt, **what) for prompt in prompts])
    call.echoes = text.echo
    _take_scores(call, n_scored)
    return call


def _common(form: AnswerFields, fields: Fields, model: Served) -> dict[str, Any]:
    """Read the fields that chats and completions share. Return them as fields of a `Request`. Raises BadInputError, and
    ApiError for a model that does not generate."""
    model.check_generates()
    if "logit_bias" in fields:
        fields.put("logit_bias", _with_ids(fields.take("logit_bias"), model))
    what = fields.request(model.defaults)
    is_exact = model.settings.strict or model.info.exact or model.info.width_class
    if form.strict and not is_exact:
        raise UnsupportedError("strict", "this model is not loaded with exact kernels")
    if "seed" not in what:
        what["seed"] = random_seed() if model.seed is None else model.seed
    what["prompt_logprobs"] = _checked_logprobs("prompt_logprobs", fields.take("prompt_logprobs"))
    what["raw_marks"] = True  # the server reads them, except for edgespec's own clients
    return what | fields.declared(Request, SERVER_SETTINGS)


def _with_ids(biases: object, model: Served) -> object:
    """Return biases in which the tokens of a text replace it, as in llama.cpp's server. A number in the keys of an
    object is a token id. The next check finds invalid values."""
    if isinstance(biases, dict):
        biases = [[int(key) if re.fullmatch(r"-?\d{1,18}", key) else key, bias] for key, bias in biases.items()]
    if not isinstance(biases, list) or len(biases) > LONGEST["logit_bias"]:
        return biases
    found: list[object] = []
    for pair in biases:
        is_text = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
        found += [[id, pair[1]] for id in model.vocabulary.tokenize(pair[0])] if is_text else [pair]
    return found


def _check_end(chat: ChatFields, *, is_begun: bool) -> None:
    """Raise BadInputError if a request asks for another continuation than that of this server: an assistant's message
    at the end is continued, and no other message is."""
    continues = chat.continue_final_message
    begins = not is_begun if chat.add_generation_prompt is None else chat.add_generation_prompt
    if continues and begins:
        why = "continue_final_message and add_generation_prompt contradict each other"
        raise BadInputError(why, "continue_final_message")
    if continues not in (None, is_begun):
        why = "the last message is continued if and only if it is the assistant's"
        raise UnsupportedError("continue_final_message", why)
    if not begins and not is_begun:
        raise UnsupportedError("add_generation_prompt", "the prompt ends where the assistant's answer begins")


def _call(form: AnswerFields, fields: Fields, model: Served, prompts: list[Request]) -> Call:
    n = fields.integer("n", 1, 1, MOST_ANSWERS)
    check_best_of(fields.take("best_of", 1), n)
    if n * len(prompts) > MOST_ANSWERS:
        raise BadInputError(f"a request may ask for {MOST_ANSWERS} answers, not {n * len(prompts)}", "n")
    n_characters = n * sum(map(Prompts.length, prompts))
    if n > 1 and n_characters > MOST_CHARACTERS:
        raise BadInputError(f"prompts may have {MOST_CHARACTERS:,} characters together, not {n_characters:,}", "n")
    options = fields.within("stream_options").read(StreamOptions)
    requests = [replace(prompt, sample=prompt.sample + sample) for prompt in prompts for sample in range(n)]
    return Call(
        model.name,
        requests,
        form.stream,
        options.include_usage,
        returns_tokens=form.return_tokens,
        token_bytes=model.token_bytes,
        n_ctx=model.n_ctx,
        notes=[*fields.notes, *request_notes(prompts[0])],
    )


def _take_scores(call: Call, n_scored: int | None) -> None:
    """Let a call return the log-probabilities of its prompts in vLLM's form, too."""
    if call.stream and n_scored is not None:
        raise UnsupportedError("prompt_logprobs", "a stream has no place for them; echo with logprobs has one")
    check_scores(call.requests)
    call.n_scored = n_scored


def _checked_logprobs(name: str, value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_LOGPROBS):
        raise wrong(name, f"be an integer from 0 to {MOST_LOGPROBS}", value)
    return value


# --- answers ----------------------------------------------------------------------------------------------------------


class ChatObject(Writer):
    """Writes the answers to a call as OpenAI's Chat Completions."""

    done = b"data: [DONE]\n\n"
    _is_chat = True

    def __init__(self, call: Call, body: JsonObject) -> None:
        super().__init__(call, body)
        self._id = ("chatcmpl-" if self._is_chat else "cmpl-") + secrets.token_hex(12)
        self._created = int(time.time())
        self._tools = ClientTools(body)
        self._lengths = [0] * len(call.requests)  # characters, for offsets of tokens
        self._begun: set[int] = set()

    @property
    def id(self) -> str:
        return self._id

    def whole(self) -> dict[str, object]:
        choices = [self._choice(index, answer) for index, answer in enumerate(self.answers)]
        made = self._object("chat.completion" if self._is_chat else "text_completion", choices) | self._totals()
        return made | (self._scores(self.answers[0]) if self._is_chat else {})

    def chunks(self, piece: Piece) -> Iterator[dict[str, object]]:
        index = piece.index
        if self._is_chat and index not in self._begun:
            self._begun.add(index)
            yield self._chunk(index, {"role": "assistant", "content": ""})
        if piece.progress is not None:
            yield self._chunk(index, {} if self._is_chat else "") | {"prompt_progress": piece.progress}
        tool = self._tool_delta(piece.tool) if piece.tool is not None else None
        if piece.text or piece.reasoning or tool or piece.tokens or piece.prompt:
            tokens = {"tokens": _as_json(piece.tokens)} if self.call.returns_tokens and piece.tokens else {}
            said = (*piece.prompt, *piece.tokens)
            logprobs = self._logprobs(index, said) if said and self.call.wants_tokens else None
            what = self._delta(piece, tool) if self._is_chat else piece.text
            yield self._chunk(index, what, logprobs=logprobs) | tokens
        if piece.end is not None:
            self.answers[index].end = piece.end
            choice = {"index": index, "delta": {}} if self._is_chat else {"index": index, "text": ""}
            ended = {**choice, "logprobs": None, "finish_reason": piece.end.reason, **piece.end.more}
            last = self._object(self._chunk_kind, [ended])
            figures: dict[str, object] = {"seed": self.call.requests[index].seed}
            # The chunk with the usage has them too, and some clients (Open WebUI) add up the figures of all chunks.
            if not self.call.include_usage or len(self.answers) > 1:
                figures["timings"] = timings(piece.end.stats)
            yield last | figures | ({"cut": piece.end.cut} if self.call.returns_tokens else {})

    def rest(self) -> list[dict[str, object]]:
        return [self._object(self._chunk_kind, []) | self._totals()] if self.call.include_usage else []

    def _chunk(self, index: int, what: object, *, logprobs: object = None) -> dict[str, object]:
        choice = {"index": index, "delta" if self._is_chat else "text": what, "logprobs": logprobs}
        return self._object(self._chunk_kind, [choice | {"finish_reason": None}])

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._is_chat else "text_completion"

    def _choice(self, index: int, answer: Answer) -> dict[str, object]:
        text, end = "".join(answer.texts), answer.ended
        said = [*answer.prompt, *answer.tokens] if self.call.echoes else answer.tokens
        logprobs = self._logprobs(index, said) if self.call.wants_tokens else None
        made: dict[str, object] = {"index": index, "logprobs": logprobs, "finish_reason": end.reason, **end.more}
        if self._is_chat:
            message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
            if reasoning := "".join(answer.reasoning):
                message["reasoning_content"] = reasoning
            if answer.calls:
                message["tool_calls"] = [self._tool_call(tool) for tool in answer.calls]
                message["content"] = text or None
            made["message"] = message
        else:
            made |= {"text": text} | self._scores(answer)
        if len(self.answers) > 1:
            made["timings"] = timings(end.stats)
        if self.call.returns_tokens:
            made |= {"tokens": _as_json(answer.tokens), "cut": end.cut}
        return made

    def _delta(self, piece: Piece, tool: JsonObject | None) -> dict[str, object]:
        delta: dict[str, object] = {}
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if tool is not None:
            delta["tool_calls"] = [tool]
        if piece.text or not delta:
            delta["content"] = piece.text
        return delta

    def has_pieces(self, tool: AnyCall) -> bool:
        return not self._tools.is_custom(tool)

    def _tool_delta(self, tool: CallPiece | AnyCall) -> dict[str, object] | None:
        """Return what is new of a call. One whose input is a text is sent when it is complete."""
        if isinstance(tool, AnyCall):
            return {"index": tool.number, **self._tool_call(tool)} if self._tools.is_custom(tool) else None
        if self._tools.is_custom(tool):
            return None
        if tool.text:
            return {"index": tool.number, "function": {"arguments": tool.text}}
        return {"index": tool.number, **self._tool_call(AnyCall(tool.name, "", id=tool.id))}

    def _tool_call(self, tool: AnyCall) -> dict[str, object]:
        if self._tools.is_custom(tool):
            return {"id": tool.id, "type": "custom", "custom": {"name": tool.name, "input": self._tools.input_of(tool)}}
        return {"id": tool.id, "type": "function", "function": {"name": tool.name, "arguments": tool.arguments}}

    def _logprobs(self, index: int, tokens: Sequence[TokenEvent]) -> JsonObject:
        if self._is_chat:
            return {"content": [token_logprob(event, self.call.token_bytes) for event in tokens], "refusal": None}
        start = self._lengths[index]
        self._lengths[index] += sum(len(event.text) for event in tokens)
        return text_logprobs(tokens, self.call.token_bytes, start)

    def _scores(self, answer: Answer) -> dict[str, object]:
        """Return the field for the log-probabilities of a prompt, if the client wants it."""
        n = self.call.n_scored
        return {} if n is None else {"prompt_logprobs": by_id(answer.prompt, n, self.call.token_bytes)}

    def _totals(self) -> dict[str, object]:
        """Return the usage and the figures of all answers. A prompt with several answers counts once."""
        stats, requests = Stats(), self.call.requests
        n_prompt = n_cached = n_completion = n_reasoning = 0
        for request, answer in zip(requests, self.answers, strict=True):
            end = answer.ended
            stats.add(end.stats)
            n_completion += end.n_tokens
            n_reasoning += end.n_reasoning
            if request.sample == requests[0].sample:
                n_prompt += end.stats.prompt_tokens
                n_cached += end.stats.cached_tokens
        usage = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
            "prompt_tokens_details": {"cached_tokens": n_cached},
            "completion_tokens_details": {"reasoning_tokens": n_reasoning},
        }
        return {"usage": usage, "timings": timings(stats), "seed": requests[0].seed}

    def _object(self, kind: str, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.call.model,
            "system_fingerprint": f"edgespec-{__version__}",
            "choices": choices,
        }


class TextObject(ChatObject):
    """Writes the answers to a call as OpenAI's Completions."""

    names: ClassVar[Names] = {"messages": "prompt", "prompt_tokens": "prompt"}
    _is_chat = False


def _as_json(tokens: Sequence[TokenEvent]) -> list[dict[str, object]]:
    return [event.as_json() for event in tokens]
