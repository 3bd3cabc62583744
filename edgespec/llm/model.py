"""The one way to ask a model, in this process, in a worker process, on a server or on several machines."""

from __future__ import annotations

import asyncio
import warnings
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from time import sleep
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.errors import EdgespecError
from edgespec.events import Completion, TokenEvent
from edgespec.llm.info import ModelInfo
from edgespec.llm.notes import Notes
from edgespec.llm.options import AnswerOptions, Messages, asked, chat_request, request_of
from edgespec.llm.stream import Answer, Events, Loop, Stream
from edgespec.settings import Inputs, LoadSettings, Message, Request

IDLE_S = 0.005  # between two looks for a request while no answer is open
LAST = object()
NO_ANSWER = "the model ended the text at once; complete() continues a text as it is, and chat() asks a question"
AsyncAnswer = AsyncGenerator[TokenEvent, None]


class DraftingOptions(TypedDict, total=False):
    """Fields of `LoadSettings` that can change later."""

    spec_type: str | None
    pace: str | None
    spec_draft_n_max: int | None
    spec_tree: int | None


def drafting_changes(options: DraftingOptions) -> dict[str, Any]:
    """Return the keywords of `draft_with` that change a setting. Raises TypeError for unknown keywords."""
    if unknown := options.keys() - DraftingOptions.__annotations__.keys():
        raise TypeError(f"draft_with got an unexpected keyword argument {min(unknown)!r}")
    return {name: value for name, value in options.items() if value is not None}


class Model(Closable):
    """A model that answers requests: in this process (`Runtime`), in a worker process (`Worker`), on a server
    (`RemoteModel`), or on several machines (`Fleet`).

    `chat` answers a question; `complete` and `generate` continue a text. They submit a request; its answer is a stream
    of events, and closing the stream cancels the answer. Threads and coroutines iterate over it. A model implements its
    description, its `loop` and `call`; the other questions have one form here, and a model overrides those that it
    answers in another way.

    Attributes:
        notes: messages for the user about how the model runs.
        loop: makes the events of all answers.
        own_settings: the settings of answers that are left open: the model's own, or those of its server. They may have
            a system prompt ("system").
    """

    notes: Notes
    loop: Loop
    own_settings: Mapping[str, object] = MappingProxyType({})
    _settings: LoadSettings
    _info: ModelInfo

    @property
    def settings(self) -> LoadSettings:
        """The settings that the model was loaded with, and the changes of `draft_with`."""
        return self._settings

    @property
    def info(self) -> ModelInfo:
        """The description of the model."""
        return self._info

    @abstractmethod
    def call(self, name: str, *args: object, **keywords: object) -> Any:
        """Return what a method of the loaded model returns, such as "prompts.ids", or raise its error."""

    @property
    @abstractmethod
    def room(self) -> int:
        """The number of requests of `stream` that are open at a time."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.settings.model}>"

    # --- questions and texts ------------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Messages | str,
        *,
        system: str | None = None,
        cancel: CancelFlag | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        """Answer a question, or the last of `messages`, through the model's chat template.

        `print` or `str` of the result waits for the whole answer; iterate over the result for its tokens as they come.
        The last event is no token (`is_last`). To continue a chat, add `answer.message` and the next question to
        `messages`. `system` is the system prompt; None: the model's own, unless `messages` have one.

        Keywords are the fields of `Request` and `SamplingSettings`. Setting `cancel` ends the answer early. Raises
        UsageError at once, GenerationError in the middle of the answer.
        """
        return self.submit(chat_request(messages, options, self.own_settings, system), cancel)

    def generate(self, prompt: str, *, cancel: CancelFlag | None = None, **options: Unpack[AnswerOptions]) -> Answer:
        """Continue the text `prompt` as it is, without a chat template; iterate over the result for its tokens.

        A model for chats mostly ends a question at once: use `chat` to ask it. Everything else is as in `chat`.
        """
        return self.submit(request_of(options, self.own_settings, prompt=prompt), cancel)

    def complete(
        self, prompt: str | Messages, *, cancel: CancelFlag | None = None, **options: Unpack[AnswerOptions]
    ) -> Completion:
        """Continue the text `prompt` as in `generate`, or answer messages as in `chat`, and return the whole answer.

        A question has to be asked with `chat`, or as a message: a text is continued as it is. A warning says so if the
        model ends the text at once.
        """
        request = asked(prompt, options, self.own_settings)
        completion = Completion.of(self.submit(request, cancel))
        self._warn_of_no_answer(request, completion)
        return completion

    def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> AsyncAnswer:
        """`generate` for asyncio: `async for token in llm.agenerate(...)`. The answer is generated in a thread.

        Up to `sequences` answers are decoded together, others wait. Closing the generator or cancelling the task ends
        the answer within a forward pass. Errors are raised by the first step, UsageError for unknown keywords at once.
        """
        return self._asynchronous(request_of(options, self.own_settings, prompt=prompt))

    def achat(
        self, messages: Messages | str, *, system: str | None = None, **options: Unpack[AnswerOptions]
    ) -> AsyncAnswer:
        """`chat` for asyncio, as `agenerate`."""
        return self._asynchronous(chat_request(messages, options, self.own_settings, system))

    async def acomplete(self, prompt: str | Messages, **options: Unpack[AnswerOptions]) -> Completion:
        """`complete` for asyncio, as `agenerate`."""
        request = asked(prompt, options, self.own_settings)
        async with aclosing(self._asynchronous(request)) as events:
            completion = Completion.of([event async for event in events])
        self._warn_of_no_answer(request, completion)
        return completion

    async def _asynchronous(self, request: Request) -> AsyncAnswer:
        cancel = CancelFlag()
        try:
            async for event in await asyncio.to_thread(self.submit, request, cancel):
                yield event
        finally:
            cancel.set()  # stops a long pass too

    def _warn_of_no_answer(self, request: Request, completion: Completion) -> None:
        """Warn the caller of `complete`, once for each model, if a text had no continuation."""
        is_over = completion.finish_reason == "stop" and not completion.cut
        if request.messages or not is_over or completion.text.strip() or not self.info.has_chat_template:
            return
        if NO_ANSWER not in self.notes:
            self.notes.add(NO_ANSWER)
            warnings.warn(NO_ANSWER, stacklevel=3)

    # --- requests -----------------------------------------------------------------------------------------------------

    def prepared(self, request: Request | Inputs, cancel: CancelFlag | None = None) -> Any:
        """Return what the loop needs of a request, or the error with which it is refused."""
        return request

    def submit(self, request: Request, cancel: CancelFlag | None = None) -> Answer:
        """Ask for an answer, and return its events.

        The request waits for a free slot from now on, and is decoded together with others. Setting `cancel` ends the
        answer early. Raises UsageError, at once or with the first event.
        """
        return Answer(self.submit_all([request], cancel), is_chat=bool(request.messages))

    def submit_all(self, requests: Sequence[Request | Inputs], cancel: CancelFlag | None = None) -> Stream:
        """Ask for several answers, as `submit`, or for vectors; each event has the index of its request. Close the
        stream."""
        self.loop.check()
        cancel = cancel or CancelFlag()
        prepared = [self.prepared(request, cancel) for request in requests]
        for error in prepared:
            if isinstance(error, EdgespecError):
                raise error
        stream = Stream(self.loop, cancel)
        try:
            for number, each in enumerate(prepared):
                stream.add(number, each)
        except BaseException:
            stream.close()
            raise
        return stream

    def stream(self, requests: Iterable[Request | None], cancel: CancelFlag | None = None) -> Events:
        """Ask for many answers, and yield the events of each with the index of its request.

        A request is taken when fewer than `room` are open, until `cancel` is set. None in `requests` means that the
        next one is still to come; answers do not wait for it. An error in place of an event is the reason why this
        request fails; the others continue.
        """
        self.loop.check()
        return self._stream(requests, cancel or CancelFlag())

    def _stream(self, requests: Iterable[Request | None], cancel: CancelFlag) -> Events:
        arriving, n_taken, is_last = iter(requests), 0, False
        with Stream(self.loop, cancel) as stream:
            while not stream.is_closed:
                while not (is_last or stream.is_closed) and len(stream.open) < self.room:
                    request: Any = LAST if cancel.is_set() else next(arriving, LAST)
                    if request is LAST:
                        is_last = True
                    elif request is not None:
                        stream.add(n_taken, self.prepared(request, cancel))
                        n_taken += 1
                        yield from stream.arrived()
                    elif stream.open:
                        break
                    else:
                        sleep(IDLE_S)
                yield from stream.take()
                if is_last and stream.is_over:
                    return

    # --- questions ----------------------------------------------------------------------------------------------------

    def check_settings(self, request: Request) -> None:
        """Raise UsageError if the model does not support the settings of a request, whichever prompt it has."""
        self.call("check_settings", request)

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        """Change drafters, draft length or tree width from the next answer on; None keeps a setting.

        The keywords are fields of LoadSettings. Raises UsageError for a drafter that is not loaded, and for lengths or
        trees beyond those it was loaded for.
        """
        self.call("draft_with", **drafting_changes(changes))

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        """Return why drafters are active or off for requests like this one; empty without an automatic draft length."""
        return list(self.call("pace_verdicts", request))

    def forget(self) -> None:
        """Clear the KV caches, and what recycling learned from the answers of this process."""
        self.call("forget")

    def count(self, messages: Sequence[Message], template: str = "") -> int:
        """Return the number of prompt tokens of these messages, which may be more than the context holds."""
        return len(self.call("prompts.tokens_of", [*messages], template))

    def tokenize(self, request: Request) -> list[int]:
        """Return the prompt of a request as ids. Raises UsageError."""
        return list(self.call("prompts.ids", request))

    def render(self, request: Request) -> str:
        """Return the messages of a request as the chat template writes them. Raises UsageError."""
        return str(self.call("prompts.render", request))

    def token_ids(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return a text as ids. Raises UsageError."""
        return list(self.call("prompts.token_ids", text, add_special=add_special, parse_special=parse_special))

    def token_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each id. Raises UsageError."""
        return list(self.call("prompts.token_bytes", [*tokens]))

    def token_text(self, token: int) -> str:
        """Return the text of a token; a part of a character is U+FFFD."""
        return self.token_bytes([token])[0].decode("utf-8", "replace")

    def keep_state(
        self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0, template: str = ""
    ) -> int:
        """Write the KV cache of a chat to a file, for `recall_state` in another process.

        Nothing is written if reading the chat again is faster. Older files are removed until the folder has at most
        `most_bytes`. Returns the number of bytes written, -1 if there was no time.
        """
        return int(self.call("keep_state", [*messages], file, most_bytes, within_s, template))

    def recall_state(self, messages: Sequence[Message], file: Path, template: str = "") -> int:
        """Load the KV cache of a chat from a file, if it is valid for this model, build and context.

        Returns the number of tokens that need not be read now. The next answer does not change.
        """
        return int(self.call("recall_state", [*messages], file, template))
