"""What a user calls: a target with its draft, loaded from settings, that answers requests as streams of tokens."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.choose import Chooser
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Emission, Engine
from edgespec.engine import Sequence as EngineSequence
from edgespec.errors import GenerationError, PairError, UsageError
from edgespec.events import TokenEvent
from edgespec.llama.context import Context
from edgespec.llama.model import Model, same_vocabulary
from edgespec.llama.template import ChatTemplate
from edgespec.llama.trial import extra_buffers_work
from edgespec.model_check import check_model
from edgespec.models.spec import resolve
from edgespec.settings import LoadSettings, Message, Offload, Request, check_load_settings, check_request
from edgespec.textstream import TextStream

Progress = Callable[[str, float], None]
Answer = Generator[TokenEvent, None, None]
Answers = Generator[tuple[int, TokenEvent], None, None]

# A model may have been trained for more context than most answers need or most machines can hold.
DEFAULT_CTX_SIZE = 8192


class Runtime(Closable):
    """A loaded target, with its draft if it has one. `notes` tells what the user should know about how it runs.

    `progress` is called with "loading" or "prompt" and how much of it is done, 0 to 1.
    Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError, UsageError.
    """

    def __init__(self, settings: LoadSettings, progress: Progress | None = None) -> None:
        check_load_settings(settings)
        self.settings = settings
        self._progress = progress or (lambda what, done: None)
        self._streams: weakref.WeakSet[Answers] = weakref.WeakSet()
        self.notes: list[str] = []
        self.stats = Stats()
        self._opened: list[Model | Context] = []
        self._cached: list[int] = []
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        settings = self.settings
        found = resolve(settings.model)
        draft_path = resolve(settings.draft_model).path if settings.draft_model else found.default_draft
        if settings.spec_type == "none" or settings.spec_draft_n_max == 0:
            draft_path = None
        self.model = self._open_model(found.path, settings.gpu_layers)
        n_ctx = settings.ctx_size or min(self.model.n_ctx_train, DEFAULT_CTX_SIZE)
        if n_ctx > self.model.n_ctx_train:
            self._note(f"the model was trained for {self.model.n_ctx_train} tokens of context, not for {n_ctx}")
        if draft_path is not None and not self.model.can_roll_back:
            self._note(f"decoding plainly: the memory of a {self.model.architecture} model cannot be rolled back")
            draft_path = None
        n_max = settings.spec_draft_n_max if draft_path is not None else 0
        self.context = self._open_context(self.model, n_ctx, outputs=1 + n_max)
        self.draft: Model | None = None
        drafter = None
        if draft_path is not None:
            self.draft = self._open_model(draft_path, settings.gpu_layers_draft)
            drafter = self._make_drafter(self.draft, n_ctx)
        for note in [*self.model.notes, *(self.draft.notes if self.draft else [])]:
            self._note(note)
        self._template = ChatTemplate(self.model) if self.model.chat_template else None
        self.engine = Engine(self.context, drafter=drafter, draft_n_max=n_max, warn=self._note)

    def _make_drafter(self, draft: Model, n_ctx: int) -> ModelDrafter:
        reason = same_vocabulary(self.model, draft)
        if reason:
            raise PairError(
                f"{draft.path.name} cannot draft for {self.model.path.name}",
                why=reason,
                hint="use a draft of the same model family, or none (--spec-type none)",
            )
        if not draft.can_roll_back:
            raise PairError(
                f"{draft.path.name} cannot draft",
                why=f"the memory of a {draft.architecture} model cannot be rolled back",
                hint="use a draft with attention, or none (--spec-type none)",
            )
        if draft.n_params > self.model.n_params:
            self._note("the draft model is larger than the target: it will slow it down")
        return ModelDrafter(self._open_context(draft, n_ctx, outputs=1))

    def _open_context(self, model: Model, n_ctx: int, *, outputs: int) -> Context:
        settings = self.settings
        context = Context(
            model,
            n_ctx=n_ctx,
            sequences=settings.sequences,
            max_outputs=outputs * settings.sequences,
            threads=settings.threads,
            threads_batch=settings.threads_batch,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attention=settings.flash_attention,
        )
        self._opened.append(context)
        return context

    def _open_model(self, path: Path, gpu_layers: Offload) -> Model:
        header = check_model(path)
        model = Model(
            header,
            gpu_layers=gpu_layers,
            use_extra_bufts=extra_buffers_work(path, self._note, gpu_layers=gpu_layers),
            progress=lambda done: self._progress("loading", done),
        )
        self._opened.append(model)
        return model

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def close(self) -> None:
        """End the answer in the making, and free models and caches; safe to call twice."""
        for stream in list(self._streams):
            stream.close()
        while self._opened:
            self._opened.pop().close()

    # --- answering ------------------------------------------------------------------------------------------------

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def describe(self) -> dict[str, Any]:
        """What is loaded, as plain data."""
        return {
            "model": str(self.model.path),
            "description": self.model.description,
            "draft_model": str(self.draft.path) if self.draft else None,
            "ctx_size": self.context.n_ctx,
            "threads": self.context.threads,
            "threads_batch": self.context.threads_batch,
        }

    def token_text(self, token: int) -> str:
        """What one id stands for; a part of a character shows as U+FFFD."""
        return self.model.token_bytes(token, special=True).decode("utf-8", "replace")

    def generate(self, prompt: str, *, cancel: CancelFlag | None = None, **settings: Any) -> Answer:
        """Go on from `prompt` as it stands. Keywords are the fields of `Request` and `SamplingSettings`."""
        return self.answer(_request(settings, prompt=prompt), cancel)

    def chat(
        self, messages: Sequence[Message | dict[str, str]], *, cancel: CancelFlag | None = None, **settings: Any
    ) -> Answer:
        """Answer the last of `messages` through the model's chat template; keywords as in `generate`."""
        try:
            turns = tuple(m if isinstance(m, Message) else Message(**m) for m in messages)
        except TypeError as error:
            raise UsageError("a message needs a role and a content, and nothing else", why=str(error)) from error
        return self.answer(_request(settings, messages=turns), cancel)

    def answer(self, request: Request, cancel: CancelFlag | None = None) -> Answer:
        """The events of one answer, the last one with its finish reason. The request is checked before the first one.

        Raises UsageError for a prompt that is empty or longer than the context.
        """
        return _without_index(self.answers([request], cancel))

    def answers(self, requests: Sequence[Request], cancel: CancelFlag | None = None) -> Answers:
        """Several answers at once, each event with the index of its request.

        As many as the setting `sequences` allows are decoded together; a finished one makes room for the next.
        """
        prompts = []
        for request in requests:
            check_request(request, self.model.n_vocab)
            prompts.append(self.tokenize(request))
        stream = self._run(list(zip(requests, prompts, strict=True)), cancel or CancelFlag())
        self._streams.add(stream)
        return stream

    def tokenize(self, request: Request) -> list[int]:
        """The prompt of a request as ids. Raises UsageError."""
        if request.messages:
            if self._template is None:
                raise UsageError(
                    f"{self.model.path.name} has no chat template", hint="give it a plain prompt instead (--raw)"
                )
            tokens = self._template.tokenize(request.messages, special=request.special)
        else:
            tokens = self.model.tokenize(request.prompt, add_special=True, parse_special=request.special)
        if not tokens:
            raise UsageError("the prompt is empty", hint="this model needs at least one token to go on from")
        if len(tokens) >= self.context.n_ctx:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, the context holds {self.context.n_ctx}",
                hint=f"shorten it, or use a larger context (-c {len(tokens) + 256} or more)",
            )
        return tokens

    def _run(self, jobs: list[tuple[Request, list[int]]], cancel: CancelFlag) -> Answers:
        if self.engine.active:
            raise UsageError("this model is answering already", hint="finish or close the other answer first")
        waiting = deque(enumerate(jobs))
        answers: dict[int, _Answer] = {}
        self._watch(cancel)
        try:
            while waiting or answers:
                while waiting and self.engine.has_room:
                    index, (request, tokens) = waiting.popleft()
                    answer = self._start(index, request, tokens, cancel)
                    answers[answer.sequence.slot] = answer
                for emission in self.engine.round():
                    yield from answers[emission.sequence.slot].events(emission)
                self._tell_progress(answers.values())
                for answer in [answer for answer in answers.values() if answer.sequence.finish]:
                    del answers[answer.sequence.slot]
                    self._end(answer.sequence)
                    yield answer.last_event()
        except GenerationError:
            for answer in answers.values():
                answer.sequence.finish = "error"
                answer.sequence.n_decoded = 0
                yield answer.last_event()
            raise
        finally:
            for answer in answers.values():
                self._end(answer.sequence)
            self._watch(None)

    def _start(self, index: int, request: Request, tokens: list[int], cancel: CancelFlag) -> _Answer:
        chooser = Chooser(
            request.sampling,
            request.seed,
            request.sample,
            self.model.n_vocab,
            request.logprobs,
            self.model.end_tokens if request.ignore_eos else (),
        )
        text = TextStream(request.stop)
        limit = request.max_tokens if request.max_tokens >= 0 else self.context.n_ctx
        sequence = self.engine.start(tokens, chooser, limit, cancel, n_decoded=self._reusable(request, tokens))
        self.stats = sequence.stats
        return _Answer(index, sequence, self.model, text)

    def _end(self, sequence: EngineSequence) -> None:
        self._cached = sequence.tokens[: sequence.n_decoded]
        self.engine.end(sequence)

    def _tell_progress(self, answers: Iterable[_Answer]) -> None:
        """How much of the prompts is decoded, as long as one of them is not."""
        reading = [answer.sequence for answer in answers if not answer.sequence.stats.rounds]
        if reading:
            self._progress("prompt", sum(s.n_decoded for s in reading) / sum(s.n_prompt for s in reading))

    def _reusable(self, request: Request, tokens: list[int]) -> int:
        """How many tokens of this prompt the last conversation left in the cache: only chats continue each other."""
        if not request.messages or self.settings.sequences > 1 or not self.model.can_roll_back:
            return 0
        same = 0
        for left, right in zip(self._cached, tokens, strict=False):
            if left != right:
                break
            same += 1
        return same

    def _watch(self, cancel: CancelFlag | None) -> None:
        for context in self._opened:
            if isinstance(context, Context):
                context.watch(cancel)


def _without_index(answers: Answers) -> Answer:
    with closing(answers):
        for _, event in answers:
            yield event


@dataclass(slots=True)
class _Answer:
    """One sequence of the engine on its way to the reader."""

    index: int
    sequence: EngineSequence
    model: Model
    text: TextStream

    def events(self, emission: Emission) -> Iterator[tuple[int, TokenEvent]]:
        """One event a token; end tokens and what follows a stop string are not for the reader."""
        number = self.sequence.stats.rounds - 1
        for position, choice in enumerate(emission.choices):
            if self.model.is_end(choice.id):
                return
            text = self.text.push(self.model.token_bytes(choice.id))
            drafted = position < emission.accepted
            source = emission.source if drafted else ""
            yield (
                self.index,
                TokenEvent(choice.id, text, drafted, source, number, choice.gap, choice.logprob, choice.top_logprobs),
            )
            if self.text.stopped:
                self.sequence.finish = "stop"
                return

    def last_event(self) -> tuple[int, TokenEvent]:
        finish, stats = self.sequence.finish, self.sequence.stats
        return self.index, TokenEvent(-1, self.text.flush(), finish_reason=finish, stats=stats)


def _request(settings: dict[str, Any], **what: Any) -> Request:
    """Sort keywords into the request and its sampling settings. Raises UsageError for one that neither knows."""
    sampling_names = SamplingSettings.__dataclass_fields__
    sampling = {name: settings.pop(name) for name in list(settings) if name in sampling_names}
    unknown = [name for name in settings if name not in Request.__dataclass_fields__]
    if unknown:
        raise UsageError(
            f"unknown setting {unknown[0]}", hint=f"one of: {', '.join(sampling_names)}, or a field of Request"
        )
    if sampling:
        try:
            settings["sampling"] = SamplingSettings(**sampling)
        except ValueError as error:
            raise UsageError(str(error)) from error
    return Request(**what, **settings)
