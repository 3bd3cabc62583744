"""Requests and answers in the form that all formats of clients share.

A format such as `openai.py` reads a body into a `Call`, and writes the `Piece`s of the answers as its own objects.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from edgespec.core.stats import Stats
from edgespec.dialects.calls import AnswerPart, AnyCall, CallPiece, CutCall, Schemas, ToolCall
from edgespec.dialects.dialect import Dialect
from edgespec.dialects.reader import reader
from edgespec.events import TokenEvent, ended_json
from edgespec.requests.bad_input import JsonObject
from edgespec.serve.errors import ApiError, Names
from edgespec.serve.prompts import with_texts
from edgespec.serve.served import Served
from edgespec.settings import Request
from edgespec.text.strict_json import json_line


@dataclass(frozen=True, slots=True)
class End:
    """The end of an answer.

    Attributes:
        reason: "stop", "length" or "tool_calls".
        cut: The stop string that ended it.
        n_reasoning: The number of tokens of reasoning and its marks.
        more: A field of the answer with the reason, if `reason` cannot express it (`ended_by`).
    """

    reason: str
    stats: Stats
    n_tokens: int
    cut: str = ""
    n_reasoning: int = 0
    more: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A new part of the answer `index`: text, reasoning, a part of a tool call, or the end; one of them in each piece.
    The pieces of a call are followed by the whole call. `tokens` are the tokens of the part, if the client wants them
    or log-probabilities; a piece may have only tokens. The first piece may be the `prompt`, with log-probabilities of
    its tokens. Before it, `progress` is what is read of the prompt, under the names of llama.cpp's server."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool: CallPiece | AnyCall | None = None
    end: End | None = None
    tokens: tuple[TokenEvent, ...] = ()
    prompt: tuple[TokenEvent, ...] = ()
    progress: Mapping[str, float] | None = None


@dataclass(slots=True)
class Call:
    """A request of a client.

    Attributes:
        requests: One for each answer.
        splits: Reasoning is separated from the text.
        returns_tokens: The client wants everything that is known about each token.
        echoes: Each answer begins with its prompt.
        n_scored: The alternatives for each token of a prompt in vLLM's form; None: it is not wanted.
        opened: What the prompt has begun of the answers, as `Dialect.opened` returns it.
        dialect: How the model writes the answers; None: they are text.
        schemas: The parameters of the tools; None: calls are not looked for.
        most_calls: The most calls in an answer.
        is_forced: The answers have to call a tool.
        eager: Tools whose arguments are sent as they come, in formats that send complete members otherwise.
        words: Control tokens that are marks of the dialect, by their ids.
        token_bytes: The bytes of a token.
        n_ctx: The context size of the model.
        notes: Notes for the log.
        started_ns: When the request was read.
    """

    model: str
    requests: list[Request]
    stream: bool = False
    include_usage: bool = False
    splits: bool = False
    returns_tokens: bool = False
    echoes: bool = False
    n_scored: int | None = None
    opened: str | None = None
    dialect: Dialect | None = None
    schemas: Schemas | None = None
    most_calls: int | None = None
    is_forced: bool = False
    eager: frozenset[str] = frozenset()
    words: Mapping[int, str] = field(default_factory=dict)
    token_bytes: Callable[[int], bytes] = lambda id: b""
    n_ctx: int = 0
    notes: list[str] = field(default_factory=list)
    started_ns: int = field(default_factory=time.perf_counter_ns)

    @property
    def wants_tokens(self) -> bool:
        return self.requests[0].logprobs is not None

    def prompt(self, index: int) -> str:
        """Return the text that an answer completes."""
        request = self.requests[index]
        ids = b"".join(map(self.token_bytes, request.prompt_tokens))
        return ids.decode("utf-8", "replace") or request.prompt


@dataclass(slots=True)
class Answer:
    """The pieces of one answer so far."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[AnyCall] = field(default_factory=list)
    tokens: list[TokenEvent] = field(default_factory=list)
    prompt: list[TokenEvent] = field(default_factory=list)
    end: End | None = None

    @property
    def ended(self) -> End:
        assert self.end is not None
        return self.end


Event = dict[str, Any]
Events = Iterator[Event]


class EventStyle:
    """The form of a stream of events.

    Attributes:
        media_type: The Content-Type of a stream.
        ping: Is sent while a client waits for the next chunk.
        done: Ends a stream.
    """

    media_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    ping: ClassVar[bytes] = b": ping\n\n"
    done: ClassVar[bytes] = b""

    @staticmethod
    def event(chunk: JsonObject) -> bytes:
        """Return a chunk as an event of a stream."""
        return f"data: {line(chunk)}\n\n".encode()

    @staticmethod
    def error(error: ApiError) -> dict[str, Any]:
        """Return the chunk for an error in a stream."""
        return error.body()


class Writer(EventStyle, ABC):
    """Reads the events of the answers to a call, and writes them as objects of a format: with `chunks` of each piece
    and the `rest`, or with `take` for each piece and then `whole`. `body` is the request as it was sent.

    Attributes:
        names: The names of this format for the fields of a chat, for errors.
        streams: Answers are sent as a stream if a request does not say.
    """

    names: ClassVar[Names] = {}
    streams: ClassVar[bool] = False

    def __init__(self, call: Call, body: JsonObject) -> None:
        self.call = call
        self.answers = [Answer() for _ in call.requests]
        self._readers = [PieceReader(call, index) for index in range(len(call.requests))]

    @property
    def id(self) -> str:
        """The id of the answers, "" if this format has none."""
        return ""

    def read(self, index: int, event: TokenEvent) -> list[Piece]:
        """Return the pieces of an event of the answer `index`."""
        return [self.shown(piece) for piece in self._readers[index].read(event)]

    def take(self, piece: Piece) -> None:
        """Add a piece to its answer."""
        answer = self.answers[piece.index]
        answer.texts.append(piece.text)
        answer.reasoning.append(piece.reasoning)
        answer.calls += [piece.tool] if isinstance(piece.tool, AnyCall) else []
        answer.tokens += piece.tokens
        answer.prompt += piece.prompt
        answer.end = piece.end

    def shown(self, piece: Piece) -> Piece:
        """Return a piece as this format can have it: a call that is cut off is text if only complete calls are sent."""
        if isinstance(piece.tool, CutCall) and not self.has_pieces(piece.tool):
            return replace(piece, text=piece.tool.text, tool=None)
        return piece

    def has_pieces(self, tool: AnyCall) -> bool:
        """Return whether the arguments of a call are sent before it is complete."""
        return True

    @abstractmethod
    def whole(self) -> object:
        """Return the object of all answers, which have ended."""

    @abstractmethod
    def chunks(self, piece: Piece) -> Iterable[dict[str, object]]:
        """Return the chunks of a piece."""

    def rest(self) -> Iterable[dict[str, object]]:
        """Return the chunks after the last piece."""
        return ()


class BlockObject(Writer):
    """Writes the answer to a call as an object with a list of blocks: reasoning, text and tool calls, with events for
    each, which are named after their types. `object` is the object so far.

    Attributes:
        kinds: The types of blocks of reasoning and of text.
    """

    kinds: ClassVar[tuple[str, str]]

    def __init__(self, call: Call, body: JsonObject) -> None:
        super().__init__(call, body)
        self.object: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._has_begun = False
        self._is_open = False  # True while the last block may grow

    @property
    def id(self) -> str:
        return str(self.object.get("id", ""))

    def take(self, piece: Piece) -> None:
        for _ in self.chunks(piece):
            pass

    def whole(self) -> dict[str, object]:
        return self.object

    @staticmethod
    def event(chunk: JsonObject) -> bytes:
        return f"event: {chunk['type']}\n".encode() + Writer.event(chunk)

    def chunks(self, piece: Piece) -> Events:
        if not self._has_begun:
            self._has_begun = True
            yield from self._first()
        for kind, text in zip(self.kinds, (piece.reasoning, piece.text), strict=True):
            if text:
                yield from self._more(kind, text)
        if piece.tool is not None:
            yield from self._tool(piece.tool)
        if piece.end is not None:
            yield from self._close(is_cut=piece.end.reason == "length")
            self.object = self.object | self._ended(piece.end)
            self.object |= {"timings": timings(piece.end.stats), "seed": self.call.requests[0].seed, **piece.end.more}
            yield from self._last(piece.end)

    @property
    def _number(self) -> int:
        """The number of the last block."""
        return len(self._blocks) - 1

    @abstractmethod
    def _first(self) -> Events: ...

    @abstractmethod
    def _more(self, kind: str, text: str) -> Events:
        """Add text to the last block if it is open and of this kind, else to a new one."""

    @abstractmethod
    def _tool(self, tool: CallPiece | AnyCall) -> Events:
        """Begin the block of a call with its first piece, add the others, and close it with the whole call."""

    @abstractmethod
    def _close(self, *, is_cut: bool = False) -> Events:
        """End the last block if it is open."""

    @abstractmethod
    def _ended(self, end: End) -> dict[str, object]:
        """Return the fields that are known at the end of the answer."""

    @abstractmethod
    def _last(self, end: End) -> Events: ...


class PieceReader:
    """Turns the events of one answer into pieces."""

    def __init__(self, call: Call, index: int) -> None:
        self._index, self._wants_tokens = index, call.wants_tokens or call.returns_tokens
        self._reader, self._before = None, ""
        self._is_thinking = False
        if (dialect := call.dialect) is not None:
            opened = call.opened
            if not call.splits and dialect.messages is None:
                is_begun = any(message.role == "assistant" for message in call.requests[index].messages[-1:])
                if opened is not None and dialect.reasoning and not is_begun:
                    self._before = dialect.reasoning[0] + opened
                dialect, opened = replace(dialect, reasoning=None), None
            self._reader = reader(dialect, call.schemas, opened=opened, most=call.most_calls, is_forced=call.is_forced)
        self._words = call.words
        self._calls_tools = self._is_cut = False  # in a call
        self._n_tokens = self._n_reasoning = 0
        self._call, self._is_begun = call, False
        self._prompt: list[TokenEvent] = []

    def read(self, event: TokenEvent) -> list[Piece]:
        if event.reading is not None:
            total, cached, processed = event.reading
            time_ms = (time.perf_counter_ns() - self._call.started_ns) // 1_000_000
            told = {"total": total, "cache": cached, "processed": processed, "time_ms": time_ms}
            return [Piece(self._index, progress=told)]
        if event.part == "prompt":
            self._prompt.append(event)
            return []
        return [*self._begin(), *self._read(event)]

    def _begin(self) -> list[Piece]:
        """Return the piece of the prompt, before the first one of the answer."""
        call, is_begun, self._is_begun = self._call, self._is_begun, True
        if is_begun or not (call.echoes or self._prompt):
            return []
        text = call.prompt(self._index)
        prompt, self._prompt = with_texts(self._prompt, text, call.token_bytes), []
        return [Piece(self._index, text if call.echoes else "", prompt=prompt)]

    def _read(self, event: TokenEvent) -> list[Piece]:
        if event.part == "end":  # belongs to the log-probabilities of an echo
            return [Piece(self._index, tokens=(event,))] if self._call.echoes and self._wants_tokens else []
        self._n_tokens += not event.is_last
        said = event.text if event.text or event.is_last else self._words.get(event.id, "")
        if said and self._before:
            said, self._before = self._opened(said), ""
        was_inside = bool(self._reader and self._reader.is_inside)
        parts: list[AnswerPart] = self._reader.push(said) if self._reader else [("answer", said)]
        is_inside = bool(self._reader and self._reader.is_inside)
        if was_inside or is_inside or any(isinstance(part, tuple) and part[0] == "thinking" for part in parts):
            self._n_reasoning = self._n_tokens
        if event.is_last and self._reader:
            parts += self._reader.end()
        made = [self._piece(part) for part in parts if not isinstance(part, tuple) or part[1]]
        self._calls_tools |= any(isinstance(piece.tool, ToolCall) for piece in made)
        self._is_cut |= any(isinstance(piece.tool, CutCall) for piece in made)
        if self._wants_tokens and not event.is_last:
            first = made.pop(0) if made else Piece(self._index)
            made.insert(0, replace(first, tokens=(event,)))
        if event.is_last:
            more = ended_json(event.finish_reason)
            reason = more.pop("finish_reason")
            if self._calls_tools and not self._is_cut and reason == "stop":
                reason = "tool_calls"
            stats = event.stats or Stats()
            end = End(str(reason), stats, self._n_tokens, event.cut, self._n_reasoning, more)
            made.append(Piece(self._index, end=end))
        return made

    def _opened(self, said: str) -> str:
        """Return the beginning of an answer with the mark of reasoning that the prompt has, unless it begins with the
        mark of its content."""
        content = self._call.dialect.content[0] if self._call.dialect is not None else ""
        return said if content and content.startswith(said[: len(content)]) else self._before + said

    def _piece(self, part: AnswerPart) -> Piece:
        if not isinstance(part, tuple):
            return Piece(self._index, tool=part)
        kind, text = part
        if self._call.splits and kind == "thinking":
            return Piece(self._index, reasoning=text)
        form = self._call.dialect.messages if self._call.dialect is not None else None
        if form is not None and (kind == "thinking") != self._is_thinking:  # the marks of reasoning stay in the text
            self._is_thinking = kind == "thinking"
            text = (f"{form.thought}{form.header_end}" if self._is_thinking else form.ends[0]) + text
        return Piece(self._index, text)


def timings(stats: Stats) -> dict[str, object]:
    """Return the figures of an answer under llama.cpp's names, followed by those of drafting."""
    figures = stats.as_json()
    times: dict[str, Any] = figures.pop("timings")
    for what in ("prompt", "predicted"):
        n = times[f"{what}_n"]
        times[f"{what}_per_token_ms"] = round(times[f"{what}_ms"] / n, 3) if n else 0.0
    return times | figures


def line(value: object) -> str:
    """Return the JSON of a value for clients, on one line."""
    return json_line(value, is_compact=True)


@dataclass(frozen=True, slots=True)
class Format:
    """A format.

    Attributes:
        paths: The paths of its endpoints, which take POST requests.
        read: Reads the body of a request for a model. Raises BadInputError.
        writer: Writes the answers.
    """

    paths: tuple[str, ...]
    read: Callable[[JsonObject, Served], Call]
    writer: type[Writer]
