"""The target answers prompts: its own answers are the text that a draft head has to predict.

Some prompts are written by the target itself: it continues the beginning of a user message as its chat template renders
it ("Magpie", arXiv 2406.08464).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, UsageError
from edgespec.events import COMPLETE
from edgespec.llama.model import LlamaModel
from edgespec.llama.template import ChatTemplate
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Message, Request
from edgespec.training.features import SAMPLED, TrainingRow, add_row, n_learned, read_rows
from edgespec.training.job import Listener, Settings
from edgespec.training.prompts import Passages, TrainingPrompt, bundled, held_out, is_usable

N_CTX, SEQUENCES = 1024, 16
MAX_TOKENS = 320  # of an answer: sooner or later, a small greedy model repeats itself
MAX_PROMPT_TOKENS = 160  # of a prompt that the target writes
SELF_WRITTEN_SHARE, MOST_WAITING = 0.5, 8  # of the prompts; self-written prompts that wait to be asked
FEWEST_HELD_OUT, TOKENS_PER_HELD_OUT = 6, 8000  # one held-out prompt per this number of tokens to learn from
TEMPERATURES = (0.0, SAMPLED)
MARK = "\ue000"
_OPEN = SamplingSettings(temperature=1.0, top_k=0, top_p=0.95, min_p=0.0)


@dataclass(slots=True)
class _Asked:
    """A prompt and its unfinished answer. Without a prompt, the target is writing a prompt."""

    prompt: TrainingPrompt | None
    request: Request
    ids: list[int]
    answer: list[int] = field(default_factory=list)
    text: str = ""


def load_settings(settings: Settings, sequences: int = SEQUENCES) -> LoadSettings:
    """Return the settings that load the target to answer: fast, as the exact bits of an answer do not matter here."""
    return LoadSettings(
        str(settings.target),
        spec_type="none",
        exact=False,
        store=False,
        ctx_size=N_CTX,
        threads=settings.threads,
        sequences=sequences,
        cache_ram=0,
    )


class Answers:
    """Answers `own` prompts first, then others, until `folder` holds enough tokens to learn from."""

    def __init__(
        self, llm: Runtime, folder: Path, settings: Settings, own: Sequence[TrainingPrompt], passages: Passages
    ) -> None:
        self._llm, self._folder, self._budget, self._passages = llm, folder, settings.tokens, passages
        rows = read_rows(folder)
        self._n_tokens, self._number = n_learned(rows), len(rows) + settings.seed  # of the next request
        self._open: dict[int, _Asked] = {}
        self._known = {" ".join(row.text.lower().split()) for row in rows}
        self._self_written: list[str] = []
        self._header, self._end = user_header(llm.model), end_token(llm.model)
        n_held_out = max(FEWEST_HELD_OUT, self._budget // TOKENS_PER_HELD_OUT)
        first = [(prompt, t) for prompt in held_out(chat=llm.info.has_chat_template)[:n_held_out] for t in TEMPERATURES]
        first += [(prompt, random.Random(n).choice(TEMPERATURES)) for n, prompt in enumerate(own)]
        asked = {(row.text, row.temperature) for row in rows}
        self._first = [(prompt, t) for prompt, t in first if (prompt.text, t) not in asked]
        self._bundled = bundled(self._number, passages)

    def collect(self, listener: Listener) -> None:
        """Return when there are enough answers or the listener cancels. Raises EdgespecError if the disk is full."""
        n_asked = count()

        def requests() -> Iterator[Request | None]:
            for asked in self._all_asked():
                if asked is not None:
                    self._open[next(n_asked)] = asked
                yield asked.request if asked is not None else None

        for number, event in self._llm.stream(requests(), listener.cancel):
            asked = self._open[number]
            if isinstance(event, EdgespecError):
                raise event
            asked.text += event.text
            if not event.is_last:
                asked.answer.append(event.id)
            elif event.finish_reason in COMPLETE:
                self._finish(self._open.pop(number), has_ended=event.finish_reason == "stop")
                n_open = sum(len(asked.answer) for asked in self._open_to_learn())
                listener.progress("answering", min(1.0, (self._n_tokens + n_open) / self._budget))

    def _open_to_learn(self) -> list[_Asked]:
        """Return the unfinished answers that count towards the budget."""
        return [each for each in self._open.values() if each.prompt is not None and not each.prompt.is_held_out]

    def _all_asked(self) -> Iterator[_Asked | None]:
        """Yield what to ask next; None while the open answers may be enough."""
        for prompt, temperature in self._first:
            yield from self._asked(prompt, temperature)
        while self._n_tokens < self._budget:
            if self._n_tokens + MAX_TOKENS * len(self._open_to_learn()) >= self._budget:
                yield None
                continue
            chance = random.Random(self._number)
            temperature = chance.choice(TEMPERATURES)
            if self._self_written and chance.random() < SELF_WRITTEN_SHARE:
                yield from self._asked(TrainingPrompt("self-written", self._self_written.pop(0)), temperature)
            elif self._header and len(self._self_written) < MOST_WAITING and chance.random() < SELF_WRITTEN_SHARE:
                yield self._writing()
            else:
                yield from self._asked(next(self._bundled), temperature)

    def _asked(self, prompt: TrainingPrompt, temperature: float) -> Iterator[_Asked]:
        """The prompt with its request, unless the chat template refuses it or it leaves no room for an answer."""
        self._number += 1
        request = Request(
            prompt="" if self._llm.info.has_chat_template else prompt.text,
            messages=(Message("user", prompt.text),) if self._llm.info.has_chat_template else (),
            max_tokens=MAX_TOKENS,
            sampling=SamplingSettings(temperature=temperature),
            seed=self._number,
        )
        with suppress(UsageError):
            ids = self._llm.tokenize(request)
            if 1 < len(ids) < N_CTX - MAX_TOKENS // 4:
                yield _Asked(prompt, request, ids)

    def _writing(self) -> _Asked:
        """Let the target write a prompt."""
        self._number += 1
        limit, seed = MAX_PROMPT_TOKENS, self._number
        return _Asked(None, Request(prompt=self._header, special=True, max_tokens=limit, sampling=_OPEN, seed=seed), [])

    def _finish(self, asked: _Asked, *, has_ended: bool) -> None:
        if asked.prompt is None:
            if has_ended and is_usable(asked.text.strip(), self._known):
                self._self_written.append(asked.text.strip())
            return
        ends = [self._end] if has_ended and self._end is not None else []
        prompt, temperature = asked.prompt, asked.request.sampling.temperature
        if not asked.answer and not ends:
            return
        row = TrainingRow(prompt.kind, temperature, prompt.is_held_out, asked.ids, asked.answer + ends, prompt.text)
        add_row(self._folder, row)
        self._n_tokens += 0 if row.is_held_out else len(row.answer)
        if row.kind in ("questions", "writing", "self-written"):
            self._passages.learn(asked.text)


def user_header(model: LlamaModel) -> str:
    """The text that the chat template writes before a user's first message; "" if it changes or drops the message."""
    if model.chat_template is None:
        return ""
    try:
        before, found, _ = ChatTemplate(model).render([Message("user", MARK)]).partition(MARK)
    except UsageError:
        return ""
    if model.bos is not None and model.adds_bos:  # a raw prompt gets it anyway
        before = before.removeprefix(model.token_bytes(model.bos, special=True).decode("utf-8", "replace"))
    return before if found else ""


def end_token(model: LlamaModel) -> int | None:
    """The token that ends an answer: the token that the chat template writes after it, or the vocabulary's own."""
    if model.chat_template is not None:
        messages = [Message("user", "a"), Message("assistant", MARK), Message("user", "b")]
        with suppress(UsageError):
            after = ChatTemplate(model).render(messages).partition(MARK)[2]
            first = model.tokenize(after, parse_special=True)[:1]
            if first and model.is_end(first[0]):
                return first[0]
    return model.eos
