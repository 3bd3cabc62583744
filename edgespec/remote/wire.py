"""Requests as bodies of OpenAI's API with additional fields of edgespec's server, and chunks as events.

The server returns the id of each token and its drafter (`return_tokens`), and earlier answers are sent as ids, so that
an answer equals one of this machine. Other servers leave these fields out: then a chunk is an event without an id.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import asdict
from time import perf_counter
from typing import Any

from edgespec.core.setting import facts_of
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, UsageError
from edgespec.events import COMPLETE, FinishReason, TokenEvent
from edgespec.files.images import data_url
from edgespec.settings import Message, Request

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def body_of(request: Request, *, is_own: bool) -> tuple[str, dict[str, object]]:
    """Return the path and the body of a request, without the model; `is_own` is True for edgespec's server.

    Raises UsageError for settings that cannot be sent.
    """
    if request.prompt_logprobs is not None:
        raise UsageError(
            "prompt_logprobs is for models of this machine",
            hint="ask /v1/completions of the server",
            field="prompt_logprobs",
        )
    if request.reference:
        raise UsageError("a server cannot be given an answer to follow")
    settings = facts_of(Request).items()
    missing = [name for name, facts in settings if facts.wire == "own" and getattr(request, name) != facts.default]
    if missing and not is_own:
        raise UsageError(f"this server does not support {missing[0]}", hint="edgespec's server does")
    sent = ("all", "own", "quiet") if is_own else ("all",)
    body: dict[str, object] = asdict(request.sampling)
    body |= {name: getattr(request, name) for name, facts in settings if facts.wire in sent}
    body = {name: value for name, value in body.items() if value is not None}
    body |= {"stop": list(request.stop), "stream": True}
    if request.lora:
        body["lora"] = [{"id": which, "scale": scale} for which, scale in request.lora]
    body["logit_bias"] = [[id, False if bias == float("-inf") else bias] for id, bias in request.sampling.logit_bias]
    if is_own:
        body |= {"return_tokens": True, "json_schema": ""}  # removes the default constraint of the server
    if request.constraint is not None:
        body.pop("json_schema", None)
        body[request.constraint[0]] = request.constraint[1]
    if not request.messages:
        return TEXT, body | {"prompt": [*request.prompt_tokens] or request.prompt, "logprobs": request.logprobs}
    body |= {"messages": messages_of(request.messages), "reasoning_format": "none"}
    body |= {"add_system_prompt": False} if is_own else {}  # the request has the system prompt, if there is one
    if request.template:
        body["chat_template_kwargs"] = json.loads(request.template)
    if request.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    return CHAT, body


def messages_of(messages: Iterable[Message]) -> list[dict[str, object]]:
    """Return messages as plain data."""
    return [
        {"role": message.role, "content": _content(message)}
        | ({"tokens": list(message.tokens)} if message.tokens else {})
        | (json.loads(message.extra) if message.extra else {})
        for message in messages
    ]


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Return the content of a message; in parts if it has images."""
    if not message.images:
        return message.content
    parts, start = list[dict[str, Any]](), 0
    for image in message.images:
        parts += [{"type": "text", "text": message.content[start : image.at]}] if start < image.at else []
        parts.append({"type": "image_url", "image_url": {"url": data_url(image.data)}})
        start = image.at
    return [*parts, *([{"type": "text", "text": message.content[start:]}] if start < len(message.content) else [])]


async def events(
    chunks: AsyncGenerator[dict[str, Any], None], named: Callable[[str], None] = lambda id: None
) -> AsyncGenerator[TokenEvent, None]:
    """Yield the events of an answer; the last one has its statistics. `named` is called with the id that the server
    gives to the answer. Raises EdgespecError."""
    made, told, last, cut = Partial(), None, None, ""
    async with aclosing(chunks):
        async for chunk in chunks:
            try:
                named(str(chunk.get("id") or ""))
                if isinstance(told_of := chunk.get("prompt_progress"), dict):
                    reading = (told_of["total"], told_of["cache"], told_of["processed"])
                    yield TokenEvent(-1, "", reading=reading)
                tokens = [TokenEvent.from_json(token) for token in chunk.get("tokens") or ()]
                choice = (chunk.get("choices") or [{}])[0]
                text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                for event in tokens or ([TokenEvent(-1, str(text))] if text else []):
                    made.add(event)
                    yield event
                last = choice.get("finish_reason") or last
                last = choice.get("ended_by") if last == "length" and "ended_by" in choice else last
                cut = cut or str(chunk.get("cut") or "")
                if isinstance(timings := chunk.get("timings"), dict):
                    told = Stats.from_json({"timings": timings, **timings})
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise GenerationError("the server sends chunks that cannot be read", why=repr(error)[:200]) from error
    reason: FinishReason = last if last in COMPLETE else "stop"
    yield TokenEvent(-1, "", finish_reason=reason, stats=told or made.stats, cut=cut)


class Partial:
    """Statistics that are counted from the tokens of an answer, for one that is broken off, or without others."""

    def __init__(self, prompt_tokens: int = 0) -> None:
        self.stats = Stats(prompt_tokens=prompt_tokens)
        self._asked_s, self._round = perf_counter(), -1

    def add(self, event: TokenEvent) -> None:
        stats, passed_s = self.stats, perf_counter() - self._asked_s
        stats.prompt_s = stats.prompt_s or passed_s
        stats.generation_s = passed_s - stats.prompt_s
        if event.id >= 0:
            stats.generated_tokens += 1
            stats.accepted += event.from_draft
            if event.round != self._round:  # the next step, which has one figure for all of its tokens
                self._round = event.round
                stats.rounds += 1
                stats.proposed += event.proposed
