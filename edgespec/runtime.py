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
from edgespec.core.prefix import common_prefix
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.drafters.base import Drafter
from edgespec.drafters.lookup import GRAM, LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Emission, Engine
from edgespec.engine import Sequence as EngineSequence
from edgespec.errors import GenerationError, PairError, UsageError
from edgespec.events import TokenEvent
from edgespec.llama.context import Context
from edgespec.llama.model import Model, vocabulary_difference
from edgespec.llama.template import ChatTemplate
from edgespec.llama.trial import extra_buffers_work
from edgespec.model_check import check_model
from edgespec.models.spec import resolve
from edgespec.rounding import Widths, measured_widths
from edgespec.settings import (
    MAX_LEAVES,
    MAX_SEQUENCES,
    LoadSettings,
    Message,
    Offload,
    Request,
    check_load_settings,
    check_request,
)
from edgespec.textstream import TextStream

Progress = Callable[[str, float], None]
Answer = Generator[TokenEvent, None, None]
Answers = Generator[tuple[int, TokenEvent], None, None]

# A model may have been trained for more context than most answers need or most machines can hold.
DEFAULT_CTX_SIZE = 8192


class Runtime(Closable):
    """A loaded target, with its draft if it has one. `notes` tells what the user should know about how it runs.

    `progress` is called with "loading", "rounding" or "prompt" and how much of it is done, 0 to 1.
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
        named = settings.drafters if settings.spec_draft_n_max else ()
        draft_path = resolve(settings.draft_model).path if settings.draft_model else found.default_draft
        if "draft" not in named:
            draft_path = None
        elif draft_path is None:
            named = tuple(name for name in named if name != "draft")
        self.model = self._open_model(found.path, settings.gpu_layers)
        n_ctx = settings.ctx_size or min(self.model.n_ctx_train, DEFAULT_CTX_SIZE)
        if n_ctx > self.model.n_ctx_train:
            self._note(f"the model was trained for {self.model.n_ctx_train} tokens of context, not for {n_ctx}")
        leaves = settings.spec_tree if draft_path else 1
        if settings.spec_tree > 1 and named and not draft_path:
            self._note("drafting chains: only a draft model guesses trees")
        if leaves > 1 and not self.model.can_roll_back:
            self._note(f"drafting chains: the memory of a {self.model.architecture} model has no branches")
            leaves = 1
        self.context = self._open_target_context(n_ctx, leaves, drafts=bool(named))
        if self.context.rollback < settings.spec_draft_n_max and named:
            self._note(f"decoding plainly: the memory of a {self.model.architecture} model cannot be rolled back")
            named, draft_path = (), None
        self._measure_rounding(drafts=bool(named))
        if settings.strict and named and (self._widths is None or self._widths.exact_from is None):
            self._note("decoding plainly: that a token's logits do not depend on its batch cannot be shown (strict)")
            named, draft_path = (), None
        self.draft: Model | None = None
        drafters: list[Drafter] = []
        if "lookup" in named:
            # Beside a draft model, which always has a guess, only what is likelier to be right.
            drafters.append(LookupDrafter(shortest=GRAM if draft_path else 1))
        if draft_path is not None:
            self.draft = self._open_model(draft_path, settings.gpu_layers_draft)
            drafters.append(self._make_drafter(self.draft, leaves))
        for note in [*self.model.notes, *(self.draft.notes if self.draft else [])]:
            self._note(note)
        self._template = ChatTemplate(self.model) if self.model.chat_template else None
        self.engine = Engine(
            self.context,
            drafters=drafters,
            draft_n_max=settings.spec_draft_n_max if drafters else 0,
            tree_width=leaves,
            least_width=(self._widths.exact_from if settings.strict and self._widths else None) or 1,
            warn=self._note,
        )

    def _open_target_context(self, n_ctx: int, leaves: int, *, drafts: bool) -> Context:
        settings = self.settings
        n_max = settings.spec_draft_n_max if drafts or settings.strict else 0
        return self._open_context(
            self.model,
            n_ctx=n_ctx,
            max_outputs=(1 + n_max) * settings.sequences,
            threads=settings.threads,
            threads_batch=settings.threads_batch,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attention="off" if settings.strict else settings.flash_attention,
            branches=self._branches(leaves),
            scratch=n_max if settings.strict else 0,
            rollback=n_max,
        )

    def _make_drafter(self, draft: Model, leaves: int) -> ModelDrafter:
        settings = self.settings
        reason = vocabulary_difference(self.model, draft)
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
        branches = self._branches(leaves)
        context = self._open_context(
            draft,
            n_ctx=settings.ctx_size_draft or self.context.n_ctx,
            max_outputs=leaves * settings.sequences,
            threads=settings.threads_draft or settings.threads,
            threads_batch=settings.threads_batch_draft or settings.threads_batch,
            cache_type_k=settings.cache_type_k_draft or settings.cache_type_k,
            cache_type_v=settings.cache_type_v_draft or settings.cache_type_v,
            flash_attention=settings.flash_attention,
            branches=branches + settings.sequences if branches else 0,
        )
        return ModelDrafter(context, width=leaves if branches else 1)

    def _branches(self, leaves: int) -> int:
        """Sequence ids for trees of that many leaves, from a pool that all sequences share."""
        wanted = (leaves - 1) * self.settings.sequences
        return max(0, min(wanted, MAX_LEAVES - 1, MAX_SEQUENCES - 2 * self.settings.sequences))

    def _open_context(self, model: Model, **settings: Any) -> Context:
        context = Context(model, sequences=self.settings.sequences, **settings)
        self._opened.append(context)
        return context

    def _measure_rounding(self, *, drafts: bool) -> None:
        """Find out which widths of the target's passes round alike, if anyone wants to know."""
        settings = self.settings
        self._widths: Widths | None = None
        if settings.spec_draft_n_max and (settings.strict or (settings.measure_rounding and drafts)):
            self._widths = measured_widths(
                self.context, 1 + settings.spec_draft_n_max, lambda done: self._progress("rounding", done)
            )

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
            "drafters": [drafter.name for drafter in self.engine.drafters],
            "strict": self.settings.strict,
            "rounding": self.rounding,
        }

    @property
    def rounding(self) -> float | None:
        """By how much a logit may depend on the width of a pass, if that was measured."""
        if self._widths is None:
            return None
        return 0.0 if self.settings.strict else self._widths.max_difference

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
            self._check_rule(request.verify)
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

    def _check_rule(self, rule: VerifyRule) -> None:
        """Say what a verify rule cannot do here. Raises UsageError."""
        if rule != "coupled" and self.settings.strict:
            raise UsageError(
                f"strict and verify {rule} exclude each other", why="only the coupled rule leaves the text as it is"
            )
        names = [drafter.name for drafter in self.engine.drafters]
        if rule in ("rejection", "block") and "lookup" in names:
            self._note(f"lookup draws its guesses from no law: {rule} keeps those that the target happens to draw too")
        if rule == "block" and self.engine.tree_width > 1:
            self._note("drafting chains: block verification checks no trees")

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
            self.rounding or 0.0,
        )
        text = TextStream(request.stop)
        limit = request.max_tokens if request.max_tokens >= 0 else self.context.n_ctx
        sequence = self.engine.start(
            tokens, chooser, limit, cancel, rule=request.verify, n_decoded=self._reusable(request, tokens)
        )
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
        return common_prefix(self._cached, tokens)

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
            event = TokenEvent(
                choice.id,
                text,
                from_draft=drafted,
                source=emission.source if drafted else "",
                round=number,
                gap=choice.gap,
                near_tie=choice.near_tie,
                logprob=choice.logprob,
                top_logprobs=choice.top_logprobs,
            )
            yield self.index, event
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
