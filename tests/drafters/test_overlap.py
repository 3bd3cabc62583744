"""Overlapped drafting: the same texts and the same drafts, only earlier, and the thread always ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, get_args

import pytest
from other_vocabulary import permute_vocabulary
from tiny_head import write_bigram, write_head

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.core.draft import Draft
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy, Verified
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.overlap import OverlappedDrafter
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import Sequence as Answer
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve
from edgespec.runtime.drafting import overlaps as overlapping
from edgespec.settings import LoadSettings

PROMPTS = ["def fibonacci(n):", "import os\nimport", "class Stack:\n    def push"]
RULES: tuple[VerifyRule, ...] = get_args(VerifyRule)
N_MAX = 3


class AtOnce(Executor):
    """Replaces the thread: drafts before the target begins."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class BesideSlowTarget(OverlappedDrafter):
    def has_time(self, passes: int = 1) -> bool:
        return True


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo").path) as model:
        yield model


@pytest.fixture(scope="module")
def small() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo:draft").path) as model:
        yield model


class Pair:
    """A target and a draft model with one thread each, and the drafts of each step."""

    def __init__(
        self, target: LlamaModel, draft: LlamaModel, *, slow: bool = False, overlapped: bool = True, slots: int = 1
    ) -> None:
        how: dict[str, Any] = {"n_ctx": 256, "threads": 1, "sequences": slots, "exact": True}
        self.target, self.draft = (
            Context(target, ContextParams(max_outputs=slots * (1 + N_MAX), **how)),
            Context(draft, ContextParams(**how)),
        )
        self.drafter = OverlappedDrafter(self.draft) if overlapped else ModelDrafter(self.draft)
        if overlapped and slow:
            self.drafter = BesideSlowTarget(self.draft, thread=AtOnce())
        self.warnings: list[str] = []
        self.drafts: list[list[int]] = []

    def engine(self, pace: DraftPolicy | None = None) -> Engine:
        propose = self.drafter.propose

        def noting(*asked: Any) -> list[Draft]:
            drafts = propose(*asked)
            self.drafts += [draft.tokens for draft in drafts]
            return drafts

        self.drafter.propose = noting  # type: ignore
        return Engine(self.target, drafters=[self.drafter], draft_n_max=N_MAX, pace=pace, warn=self.warnings.append)

    def close(self) -> None:
        self.drafter.close()
        self.draft.close()
        self.target.close()


@pytest.fixture
def pair(target: LlamaModel, small: LlamaModel) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(*args: Any, draft: LlamaModel = small, **how: Any) -> Pair:
        made.append(Pair(target, draft, *args, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


def add(engine: Engine, prompt: str, temperature: float, rule: VerifyRule, n: int, cancel: CancelFlag) -> Answer:
    model = engine.context.model
    sampler = Sampler(SamplingSettings(temperature=temperature), 3, 0, model.n_vocab, banned=model.end_tokens)
    return engine.add(model.tokenize(prompt), sampler, n, cancel, rule=rule)


def run(
    engine: Engine, prompt: str = PROMPTS[0], *, temperature: float = 0.0, rule: VerifyRule = "coupled", n: int = 40
) -> Answer:
    sequence = add(engine, prompt, temperature, rule, n, CancelFlag())
    while sequence.finish is None:
        engine.step()
    engine.finish(sequence)
    return sequence


# --- the same text ----------------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize("spec_type", ["draft", "suffix,draft"])
def test_texts_are_the_same_with_overlap_on_and_off_under_every_rule(spec_type: str) -> None:
    def texts(overlap: Any) -> list[tuple[list[int], Any]]:
        found: list[tuple[list[int], Any]] = []
        how: dict[str, Any] = {"spec_type": spec_type, "pace": f"fixed:{N_MAX}", "store": False, "threads": 1}
        with edgespec.load("demo", overlap=overlap, **how) as llm:
            for rule in RULES:
                for temperature in (0.0, 0.8):
                    for seed, prompt in enumerate(PROMPTS[:1]):
                        answer = llm.complete(
                            prompt, max_tokens=20, seed=seed, temperature=temperature, verify=rule, ignore_eos=True
                        )
                        # With two drafters, who drafts a step may depend on how far the thread has come.
                        drafted = (answer.stats.proposed, answer.stats.accepted) if spec_type == "draft" else None
                        found.append(([*answer.tokens], drafted))
                        assert overlap == "on" or not any(counts.ahead for counts in answer.stats.by_source.values())
        return found

    assert texts("on") == texts("off")


def test_the_automatic_draft_length_changes_no_text() -> None:
    texts = []
    for overlap in ("off", "on"):
        with edgespec.load("demo", draft_model="demo", spec_type="draft", overlap=overlap, threads=1) as llm:
            texts.append([llm.complete(prompt, max_tokens=32, temperature=0.8).tokens for prompt in PROMPTS])
    assert texts[0] == texts[1]


@pytest.mark.long(but=2)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("slow", [True, False])
def test_every_draft_is_the_one_that_would_have_been_made_later(
    pair: Callable[..., Pair], rule: VerifyRule, temperature: float, slow: bool
) -> None:
    plain, ahead = pair(overlapped=False), pair(slow=slow)
    for each in (plain, ahead):
        engine = each.engine()
        for prompt in PROMPTS:
            run(engine, prompt, temperature=temperature, rule=rule, n=24)
    assert ahead.drafts == plain.drafts
    assert ahead.warnings == plain.warnings == []


@pytest.mark.parametrize(("rule", "temperature"), [("coupled", 0.0), ("coupled", 0.8), ("rejection", 0.8)])
def test_what_was_drafted_ahead_is_used_where_it_fits(
    pair: Callable[..., Pair], target: LlamaModel, rule: VerifyRule, temperature: float
) -> None:
    each = pair(slow=True, draft=target)
    answer = run(each.engine(), temperature=temperature, rule=rule)
    counts = answer.stats.by_source["draft"]
    assert answer.stats.acceptance_rate == 1
    assert counts.ahead >= 9
    assert counts.overlapped >= counts.ahead - 1  # there is no room for the last one


def test_what_does_not_fit_is_removed(pair: Callable[..., Pair]) -> None:
    each = pair(slow=True)
    engine = each.engine()
    sequence = add(engine, PROMPTS[1], 0.8, "coupled", 40, CancelFlag())
    while sequence.finish is None:
        engine.step()
        held = each.draft.length(0)
        assert held <= len(sequence.tokens) + 2 * N_MAX
    counts = sequence.stats.by_source["draft"]
    assert 0 <= counts.overlapped < counts.ahead / 2  # this draft model is seldom right four times running
    engine.finish(sequence)
    assert run(engine, PROMPTS[1], temperature=0.8).tokens == sequence.tokens


def test_nothing_is_learnt_from_what_was_only_assumed(pair: Callable[..., Pair]) -> None:
    learnt = []
    for each in (pair(overlapped=False), pair(slow=True)):
        engine = each.engine()
        sequence = add(engine, PROMPTS[2], 0.0, "coupled", 200, CancelFlag())
        while len(sequence.tokens) < 60:
            engine.step()
        learnt.append(each.drafter.state())
    assert learnt[0] == learnt[1] != {}


@pytest.mark.long
def test_drafts_of_another_vocabulary_are_the_same_too(tmp_path: Path) -> None:
    draft = tmp_path / "d.gguf"
    permute_vocabulary(resolve("demo:draft").path, draft, renamed=0.1)
    texts = []
    for overlap in ("off", "on"):
        with edgespec.load(
            "demo", draft_model=str(draft), spec_type="draft", pace="fixed:2", overlap=overlap, threads=1
        ) as llm:
            how: dict[str, Any] = {"max_tokens": 32, "temperature": 0.8, "verify": "rejection", "ignore_eos": True}
            texts.append([llm.complete(prompt, **how).tokens for prompt in PROMPTS[:1]])
            assert not any("is off for this answer" in note for note in llm.notes)
    assert texts[0] == texts[1]


def test_several_answers_overlap_when_one_is_left(pair: Callable[..., Pair]) -> None:
    plain, ahead = pair(overlapped=False, slots=2), pair(slow=True, slots=2)
    texts = []
    for each in (plain, ahead):
        engine = each.engine()
        running = [
            add(engine, prompt, 0.8, "coupled", n, CancelFlag()) for prompt, n in zip(PROMPTS, (12, 40), strict=False)
        ]
        while any(sequence.finish is None for sequence in running):
            engine.step()
            for sequence in [*engine.scheduler.finished()]:
                engine.finish(sequence)
        texts.append([sequence.tokens for sequence in running])
    assert texts[0] == texts[1]
    assert running[0].stats.by_source["draft"].ahead == 0 < running[1].stats.by_source["draft"].ahead


# --- what it costs ----------------------------------------------------------------------------------------------------


class Noting:
    """A fixed draft length; records in how many passes each draft was made while the target waited."""

    def __init__(self) -> None:
        self.policy, self.passes = FixedPolicy(N_MAX), list[int]()
        self.budget, self.select = self.policy.budget, self.policy.select

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        self.passes += [proposal.passes for each in verified for proposal in each.context.proposals]


def test_passes_beside_the_target_are_not_charged(pair: Callable[..., Pair], target: LlamaModel) -> None:
    charged = []
    for overlapped in (False, True):
        pace = Noting()
        run(pair(slow=True, draft=target, overlapped=overlapped).engine(pace), n=21)
        charged.append(pace.passes)
    assert charged == [[3, 3, 3, 3, 3], [3, 0, 0, 0, 0]]


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_an_error_in_the_thread_switches_the_drafter_off_for_one_answer(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, each = pair(overlapped=False), pair()
    want, engine, main = run(plain.engine()).tokens, each.engine(), threading.get_ident()
    decode = each.draft.decode

    def failing(*batch: Any) -> None:
        if threading.get_ident() != main:
            raise RuntimeError("out of ideas")
        decode(*batch)

    with monkeypatch.context() as patch:
        patch.setattr(each.draft, "decode", failing)
        answer = run(engine)
    assert answer.tokens == want
    assert each.warnings == ["drafter draft failed and is off for this answer (RuntimeError('out of ideas'))"]
    assert answer.stats.by_source["draft"].asked == 1
    assert run(engine).tokens == want
    assert len(each.drafts) > 2 and len(each.warnings) == 1


@pytest.mark.parametrize("broken", [CancelledError, KeyboardInterrupt])
def test_a_pass_that_is_broken_off_ends_what_runs_beside_it(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, broken: type[BaseException]
) -> None:
    plain, each = pair(overlapped=False), pair()
    want, engine = run(plain.engine()).tokens, each.engine()
    cancel = CancelFlag()
    sequence = add(engine, PROMPTS[0], 0.0, "coupled", 40, cancel)
    engine.step()

    def breaking(*batch: Any) -> None:
        cancel.set()
        raise broken

    with monkeypatch.context() as patch:
        patch.setattr(each.target, "decode", breaking)
        if broken is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                engine.step()
        else:
            assert engine.step() == [] and sequence.finish == "cancelled"
        n_decodes = each.draft.decodes
        each.drafter.settle()
        assert each.draft.decodes == n_decodes  # no thread works on it any more
    engine.finish(sequence)
    engine.slots.forget()
    assert run(engine).tokens == want
    assert each.warnings == []


def test_a_cancelled_draft_is_no_failure(pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag aborts both passes: the target's and the draft model's."""
    each = pair()
    engine, cancel = each.engine(), CancelFlag()
    engine.watch = lambda flag: [context.watch(flag) for context in (each.target, each.draft)]  # type: ignore
    sequence = add(engine, PROMPTS[0], 0.0, "coupled", 40, cancel)
    engine.step()
    decode = each.target.decode

    def cancelled(*batch: Any) -> None:
        cancel.set()
        decode(*batch)

    with monkeypatch.context() as patch:
        patch.setattr(each.target, "decode", cancelled)
        assert engine.step() == [] and sequence.finish == "cancelled"
    engine.finish(sequence)
    engine.watch(None)
    assert each.warnings == []
    plain = pair(overlapped=False)
    assert run(engine).tokens == run(plain.engine()).tokens


def test_a_context_never_has_two_users(pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    each, users = pair(), threading.Lock()

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def alone(*args: Any) -> Any:
            assert users.acquire(blocking=False), "two at once"
            try:
                return method(*args)
            finally:
                users.release()

        return alone

    for name in ("decode", "truncate", "logits", "length"):
        monkeypatch.setattr(each.draft, name, guarded(getattr(each.draft, name)))
    engine = each.engine()
    for prompt in PROMPTS:
        run(engine, prompt, temperature=0.8)
    assert each.warnings == []


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("edgespec-overlap")]


def test_closing_leaves_no_thread() -> None:
    before = threads()
    with edgespec.load("demo", spec_type="draft", pace="fixed:3", overlap="on", threads=1) as llm:
        events = llm.generate(PROMPTS[0], max_tokens=40, temperature=0.0)
        for _ in range(8):
            next(events)
        assert len(threads()) == len(before) + 1
    assert threads() == before


# --- where it is used -------------------------------------------------------------------------------------------------


def loaded(**settings: Any) -> tuple[bool, list[str]]:
    """Return whether a drafter overlaps, and the notes about it."""
    how: dict[str, Any] = {"model": "demo", "threads": 1, **settings}
    with edgespec.load(**how) as llm:
        overlaps = any(isinstance(drafter, OverlappedDrafter) for drafter in llm.engine.speculator.drafters)
        return overlaps, [note for note in llm.notes if "overlap" in note]


def test_models_that_share_a_device_do_not_overlap_unless_told_to() -> None:
    assert loaded() == loaded(overlap="off") == (False, [])
    assert loaded(overlap="on") == (
        True,
        ["target and draft share CPU: overlapping them usually costs speed"],
    )


@pytest.mark.parametrize(
    ("layers", "draft_layers", "draft_gpu", "overlaps"),
    [
        *((0, 99, "GPU0", True), (99, 0, "GPU0", True), (5, 0, "GPU0", False), (5, 99, "GPU0", False)),
        *((99, 99, "GPU0", False), (99, 99, "GPU1", True), (5, 99, "GPU1", True), (5, 1, "GPU1", False)),
    ],
)
def test_on_different_devices_they_do(
    pair: Callable[..., Pair],
    monkeypatch: pytest.MonkeyPatch,
    layers: int,
    draft_layers: int,
    draft_gpu: str,
    overlaps: bool,
) -> None:
    each, notes = pair(), list[str]()
    for context, n, gpu in ((each.target, layers, "GPU0"), (each.draft, draft_layers, draft_gpu)):
        monkeypatch.setattr(context.model, "gpu_layers", n)
        monkeypatch.setattr(context.model, "gpus", (gpu,) if n else ())
    for overlap, expected in (("auto", overlaps), ("on", True), ("off", False)):
        settings = LoadSettings("demo", overlap=overlap)  # type: ignore[arg-type]
        assert overlapping(settings, each.target, each.draft, 1, notes.append) == expected
    assert notes == [] if overlaps else " share " in notes[0]


def test_what_cannot_overlap_says_why(tmp_path: Path) -> None:
    assert loaded(overlap="on", spec_tree=4) == (
        False,
        ["drafting is not overlapped: only chains can be drafted ahead, not trees (`spec_tree`)"],
    )
    assert loaded(overlap="on", spec_type="suffix") == (
        False,
        ["drafting is not overlapped: only a draft model can draft ahead"],
    )
    bigram, head = write_bigram(tmp_path / "t.gguf"), write_head(tmp_path / "h.gguf")
    assert loaded(model=str(bigram), draft_model=str(head), overlap="on") == (
        False,
        ["drafting is not overlapped: only a draft model can draft ahead"],
    )
