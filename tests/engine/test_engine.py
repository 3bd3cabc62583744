"""Steps of the engine: one target pass each, the same text with every drafter, and the right content of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgespec.cancel import CancelFlag
from edgespec.core.distribution import Distribution
from edgespec.core.draft import Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import FixedPolicy, ProposalContext, Verified
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import FloatRow, SamplingSettings
from edgespec.drafters.base import Budget, DraftContext, Drafter, Outcome
from edgespec.drafters.model import ModelDrafter
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import Sequence as Answer
from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve

PROMPTS = ["def fibonacci(n):", "import os\nimport", "class Stack:\n    def push", "for key, value in"]


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo").path) as model:
        yield model


@pytest.fixture(scope="module")
def small() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo:draft").path) as model:
        yield model


class Scripted(Drafter):
    """A drafter with scripted proposals."""

    name = "scripted"

    def __init__(self, guess: object) -> None:
        self.guess = guess
        self.proposals = 0

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        self.proposals += 1
        if isinstance(self.guess, Exception):
            raise self.guess
        assert callable(self.guess)
        drafts = [self.guess(s.tokens, budget.tokens) for s, budget in zip(sequences, budgets, strict=True)]
        return [
            draft if isinstance(draft, Draft) else Draft.chain(draft, [0.5] * len(draft), self.name) for draft in drafts
        ]


class Reading(Scripted):
    """A drafter that keeps the input of layer 1 for each token."""

    name = "reading"
    needs_layers = (1,)

    def __init__(self, guess: object) -> None:
        super().__init__(guess)
        self.rows: dict[int, FloatRow] = {}

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        self.rows |= {start + number: row.copy() for number, row in enumerate(layers[1])}


def chooser_for(model: LlamaModel, temperature: float = 0.0, seed: int = 1) -> Sampler:
    """Make a sampler that ignores the model's end token, so that an answer has the length that the test wants."""
    return Sampler(SamplingSettings(temperature=temperature), seed, 0, model.n_vocab, banned=model.end_tokens)


def run(engine: Engine, prompt: str, n: int = 40, temperature: float = 0.0, seed: int = 1) -> Answer:
    """Run one prompt to its end and free the slot."""
    model = engine.context.model
    sequence = engine.add(model.tokenize(prompt), chooser_for(model, temperature, seed), n, CancelFlag())
    while sequence.finish is None:
        engine.step()
        assert sequence.finish or sequence.n_decoded <= len(sequence.tokens) - 1
        assert engine.context.length(sequence.slot) == sequence.n_decoded
    engine.finish(sequence)
    return sequence


def make(
    target: LlamaModel,
    drafter: Drafter | None = None,
    *,
    n_max: int = 4,
    slots: int = 1,
    n_ctx: int = 512,
    leaves: int = 1,
) -> Engine:
    context = Context(
        target,
        ContextParams(n_ctx=n_ctx, sequences=slots, max_outputs=slots * (1 + n_max), branches=(leaves - 1) * slots),
    )
    return Engine(context, drafters=[drafter] if drafter else [], draft_n_max=n_max, tree_width=leaves)


class Looking(Scripted):
    """A drafter that advances the clock when it drafts, and when it observes the result."""

    name = "looking"
    needs_logits = True

    def __init__(self, clock: list[float]) -> None:
        super().__init__(lambda tokens, n: [11] * n)
        self.clock = clock

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        self.clock[0] += 1
        return super().propose(sequences, budgets)

    def observe(self, outcome: Outcome) -> None:
        self.clock[0] += 10


class Deciding:
    """A policy that advances the clock when it decides, and records what is reported to it."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.fixed = clock, FixedPolicy(2)
        self.heard: list[tuple[list[float], float | None]] = []

    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        return self.fixed.budget(context, drafter, n_unread)

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        self.clock[0] += 100
        return self.fixed.select(contexts, width, room)

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        if verified and (drafts := [each.seconds for part in verified for each in part.context.proposals]):
            self.heard.append((drafts, seconds))


def test_all_time_that_plain_decoding_does_not_need_is_a_part_of_the_draft(
    target: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    for module in ("engine", "speculator"):
        monkeypatch.setattr(f"edgespec.engine.{module}.perf_counter", lambda: clock[0])
    engine, policy = make(target, Looking(clock)), Deciding(clock)
    engine.speculator.use(engine.speculator.drafters, 2, policy, 1)
    run(engine, PROMPTS[0], 8)
    engine.context.close()
    assert policy.heard
    assert all(heard == ([111.0], 0.0) for heard in policy.heard)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_draft_model_leaves_every_text_as_it_is(target: LlamaModel, small: LlamaModel, temperature: float) -> None:
    with Context(small, ContextParams(n_ctx=512, max_outputs=1)) as draft_context:
        plain, drafted = make(target), make(target, ModelDrafter(draft_context))
        for seed, prompt in enumerate(PROMPTS[:2]):
            want, got = (run(engine, prompt, temperature=temperature, seed=seed) for engine in (plain, drafted))
            assert got.tokens == want.tokens
            assert want.stats.proposed == 0 < got.stats.proposed
            assert got.stats.rounds <= want.stats.rounds
        plain.context.close()
        drafted.context.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_drafts_for_itself_is_accepted(target: LlamaModel, temperature: float) -> None:
    with Context(target, ContextParams(n_ctx=512, max_outputs=1)) as draft_context:
        engine = make(target, ModelDrafter(draft_context))
        answer = run(engine, PROMPTS[0], temperature=temperature)
        engine.context.close()
    assert answer.stats.acceptance_rate > 0.95
    assert answer.stats.tokens_per_round > 3.5


def test_the_draft_model_decodes_each_token_once(
    target: LlamaModel, small: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache: list[int] = []
    removed: list[tuple[int, int]] = []
    with Context(small, ContextParams(n_ctx=512, max_outputs=1)) as draft_context:
        decode, truncate = draft_context.decode, draft_context.truncate

        def recording_decode(tokens: Sequence[int], positions: Sequence[int], *rest: Any) -> None:
            assert list(positions) == list(range(len(cache), len(cache) + len(tokens)))
            cache.extend(tokens)
            decode(tokens, positions, *rest)

        def recording_truncate(slot: int, length: int) -> bool:
            removed.append((length, cache[length]))
            del cache[length:]
            return truncate(slot, length)

        monkeypatch.setattr(draft_context, "decode", recording_decode)
        monkeypatch.setattr(draft_context, "truncate", recording_truncate)
        engine = make(target, ModelDrafter(draft_context))
        answer = run(engine, PROMPTS[2])
        engine.context.close()
    # The removed tokens begin with a token that the target rejected.
    assert all(answer.tokens[position] != token for position, token in removed)
    assert len(removed) <= answer.stats.rounds
    assert cache[: answer.n_prompt] == answer.tokens[: answer.n_prompt]


def wrong(tokens: list[int], budget: int) -> list[int]:
    return [11] * budget


def nonsense(tokens: list[int], budget: int) -> list[int]:
    return [10**6] * budget


def too_many(tokens: list[int], budget: int) -> list[int]:
    return [11] * (budget + 5)


def silent(tokens: list[int], budget: int) -> list[int]:
    return []


@pytest.mark.parametrize("guess", [wrong, silent])
def test_useless_drafts_cost_rounds_but_never_text(target: LlamaModel, guess: object) -> None:
    plain, drafted = make(target), make(target, Scripted(guess))
    want, got = run(plain, PROMPTS[3]), run(drafted, PROMPTS[3])
    assert got.tokens == want.tokens
    assert got.stats.accepted <= got.stats.proposed // 10
    for engine in (plain, drafted):
        engine.context.close()


@pytest.mark.long(but=1)
@pytest.mark.parametrize("guess", [nonsense, too_many, RuntimeError("out of ideas")])
def test_a_failing_drafter_is_switched_off_with_one_warning(target: LlamaModel, guess: object) -> None:
    warnings: list[str] = []
    drafter = Scripted(guess)
    engine, plain = make(target, drafter), make(target)
    engine.speculator.warn = warnings.append
    assert run(engine, PROMPTS[1]).tokens == run(plain, PROMPTS[1]).tokens
    assert drafter.proposals == 1
    assert len(warnings) == 1
    assert "drafter scripted failed and is off" in warnings[0]
    # The next answer uses the drafter again.
    run(engine, PROMPTS[1])
    assert drafter.proposals == 2
    for each in (engine, plain):
        each.context.close()


def test_every_round_is_one_target_decode_for_all_sequences(target: LlamaModel, small: LlamaModel) -> None:
    with Context(small, ContextParams(n_ctx=1024, sequences=3, max_outputs=3)) as draft_context:
        engine = make(target, ModelDrafter(draft_context), slots=3, n_ctx=1024)
        # One prompt is longer than a batch: it takes several steps, and the others do not wait for it.
        prompts = [PROMPTS[0], PROMPTS[1], "x = 1\n" * 130]
        answers = [
            engine.add(target.tokenize(text), chooser_for(target, 0.8, seed), 24, CancelFlag())
            for seed, text in enumerate(prompts)
        ]
        rounds = 0
        while any(answer.finish is None for answer in answers):
            before = engine.context.decodes
            engine.step()
            rounds += 1
            assert engine.context.decodes == before + 1
        for answer in answers:
            assert answer.finish in ("length", "stop")
            assert answer.stats.proposed > 0
            assert len(answer.tokens) - answer.n_prompt <= 24
        assert rounds < sum(answer.stats.rounds for answer in answers)
        engine.context.close()


def test_a_long_prompt_lets_short_ones_go_first(target: LlamaModel) -> None:
    engine = make(target, slots=2, n_ctx=1024)
    long, short = (
        engine.add(target.tokenize(text), chooser_for(target), 4, CancelFlag()) for text in ("x = 1\n" * 130, "def")
    )
    assert [emission.sequence for emission in engine.step()] == [short]
    assert long.n_decoded > 400
    while long.is_prefill:
        assert short in [emission.sequence for emission in engine.step()]
    engine.context.close()


def test_a_prompt_may_fill_batches_to_the_last_token(target: LlamaModel) -> None:
    texts = []
    for n_batch in (8, 16, 32):
        with Context(target, ContextParams(n_ctx=64, n_batch=n_batch, threads=1)) as context:
            engine = Engine(context)
            answer = engine.add([*range(300, 332)], chooser_for(target), 4, CancelFlag())
            while answer.finish is None:
                engine.step()
            texts.append(answer.tokens)
    assert answer.finish == "length" and texts[0] == texts[1] == texts[2]


def test_more_sequences_than_a_batch_has_room_for_still_draft(small: LlamaModel) -> None:
    slots = 130
    with Context(small, ContextParams(n_ctx=64, sequences=slots, max_outputs=slots)) as draft_context:
        engine = make(small, ModelDrafter(draft_context), n_max=3, slots=slots, n_ctx=64)
        warnings: list[str] = []
        engine.speculator.warn = warnings.append
        answers = [
            engine.add(small.tokenize("def"), chooser_for(small, 1.0, seed), 7, CancelFlag()) for seed in range(slots)
        ]
        while any(answer.finish is None for answer in answers):
            engine.step()
        assert not warnings
        proposed, accepted = (sum(getattr(a.stats, name) for a in answers) for name in ("proposed", "accepted"))
        # A model that drafts for itself is right, except for the rounding of kernels.
        assert accepted > 0.9 * proposed > 0
        engine.context.close()


def test_a_drafter_reads_what_flows_into_layers_of_every_token(target: LlamaModel) -> None:
    drafter = Reading(lambda tokens, n: [7] * n)
    with Context(target, ContextParams(n_ctx=512, max_outputs=5, n_batch=16)) as context:
        engine = Engine(context, drafters=[drafter], draft_n_max=3)
        answer = run(engine, PROMPTS[0] * 4, n=12)
        assert answer.n_prompt > 16 and answer.stats.proposed > answer.stats.accepted
        known = len(answer.tokens) - 1
        assert {*range(known)} <= {*drafter.rows}
        context.forget(0)
        for start in range(0, known, 16):
            tokens = answer.tokens[:known][start : start + 16]
            context.decode(tokens, range(start, start + len(tokens)), [(0,)] * len(tokens), [False] * len(tokens))
            for number, row in enumerate(context.layer_inputs(1)):
                np.testing.assert_allclose(drafter.rows[start + number], row, atol=0.05)
        engine.speculator.use([], 0, FixedPolicy(0), 1)
        assert not context.layers


def test_nothing_follows_an_end_token_not_even_in_the_cache(target: LlamaModel) -> None:
    end = target.eos
    assert end is not None
    prompt = target.tokenize("x")
    engine = make(target, Scripted(lambda tokens, budget: [end, 11, 12, 13][:budget]))
    # A bias makes the target choose the end token first.
    sampler = Sampler(SamplingSettings(temperature=0, logit_bias=((end, 100.0),)), 0, 0, target.n_vocab)
    sequence = engine.add(prompt, sampler, 20, CancelFlag())
    emissions = engine.step()
    assert [choice.id for choice in emissions[0].choices] == [end]
    assert sequence.finish == "stop"
    assert engine.context.length(sequence.slot) == sequence.n_decoded == len(prompt)
    engine.context.close()


def test_an_answer_ends_with_length_when_the_context_is_full(target: LlamaModel, small: LlamaModel) -> None:
    with Context(small, ContextParams(n_ctx=128, max_outputs=1)) as draft_context:
        engine = make(target, ModelDrafter(draft_context), n_ctx=128)
        model = engine.context.model
        sequence = engine.add(model.tokenize("x = 1\n" * 20), chooser_for(model), 10**6, CancelFlag())
        while sequence.finish is None:
            engine.step()
        assert sequence.finish == "length"
        assert len(sequence.tokens) == 128
        engine.context.close()


def test_a_cancelled_answer_leaves_a_usable_context(target: LlamaModel) -> None:
    engine = make(target)
    want = run(engine, PROMPTS[0], n=10).tokens
    cancel = CancelFlag()
    sequence = engine.add(target.tokenize("x = 1\n" * 50), chooser_for(target), 20, cancel)
    engine.context.watch(cancel)
    cancel.set()
    assert engine.step() == []
    assert sequence.finish == "cancelled"
    engine.finish(sequence)
    engine.context.watch(None)
    assert run(engine, PROMPTS[0], n=10).tokens == want
    engine.context.close()


def test_a_decode_that_is_aborted_half_way_is_taken_back(target: LlamaModel) -> None:
    """The native flag is set; the sequence's own flag is not checked before the decode."""
    draft_context = Context(target, ContextParams(n_ctx=512, max_outputs=1))
    engine = make(target, ModelDrafter(draft_context))
    engine.speculator.warn = pytest.fail
    cancel, native = CancelFlag(), CancelFlag()
    sequence = engine.add(target.tokenize(PROMPTS[0]), chooser_for(target), 20, cancel)
    engine.step()
    n_decoded = sequence.n_decoded
    engine.context.watch(native)
    native.set()
    assert engine.step() == []
    assert sequence.finish is None
    assert engine.context.length(sequence.slot) == n_decoded
    native.clear()
    while sequence.finish is None:
        engine.step()
    engine.context.watch(None)
    engine.finish(sequence)
    assert sequence.stats.accepted > 0
    plain = make(target)
    assert sequence.tokens == run(plain, PROMPTS[0], n=20).tokens
    for context in (engine.context, draft_context, plain.context):
        context.close()


def test_statistics_add_up(target: LlamaModel) -> None:
    engine = make(target, Scripted(lambda tokens, budget: [11] * budget))
    stats = run(engine, PROMPTS[1], n=30).stats
    assert stats.generated_tokens == 30
    assert stats.generated_tokens == stats.rounds + stats.accepted
    assert sum(stats.accepted_histogram) == stats.rounds
    assert sum(stats.proposed_per_pos) == stats.proposed
    assert sum(stats.accepted_per_pos) == stats.accepted
    assert np.isclose(stats.tokens_per_round, 30 / stats.rounds)
    assert 0 < stats.target_s < stats.generation_s
    engine.context.close()


class Drawing(Scripted):
    """Proposes sampled drafts of the maximum length."""

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        distribution = Distribution(np.array([5, 6]), np.array([0.5, 0.5]))
        chains = [Draft.chain([5] * budget.tokens, [0.5] * budget.tokens, self.name) for budget in budgets]
        return [replace(draft, distributions=[distribution] * len(draft)) for draft in chains]


def test_what_was_drawn_asks_for_no_more_rows_than_there_are(target: LlamaModel) -> None:
    """A sampled draft is verified as a whole, so its length must respect the number of rows."""
    with Context(target, ContextParams(n_ctx=128, sequences=4, max_outputs=4 + 10)) as context:
        engine = Engine(context, drafters=[Drawing(None)], draft_n_max=8, pace=MeasuredPolicy(Costs({1: 1.0, 64: 1.1})))
        for seed in range(4):
            sampler = chooser_for(target, 0.8, seed)
            engine.add(target.tokenize(PROMPTS[seed]), sampler, 20, CancelFlag(), rule="rejection")
        while any(sequence.finish is None for sequence in engine.scheduler.active):
            engine.step()
        assert all(sequence.error is None and sequence.stats.proposed > 0 for sequence in engine.scheduler.active)


@pytest.mark.skipif(not kernels.have_exact_kernels(), reason="this build of llama.cpp was made elsewhere")
def test_drafts_that_are_always_left_out_are_known_to_earn_nothing(target: LlamaModel) -> None:
    """With streams all drafts get the shortest length, so a sequence without a draft leaves none to the others."""

    def guess(tokens: list[int], n: int) -> list[int]:
        return [5] * n if tokens[:3] == [1, 2, 3] else []

    pace = MeasuredPolicy(Costs({1: 1.0, 64: 1.1}))
    with Context(target, ContextParams(n_ctx=256, sequences=2, max_outputs=18, exact=True, streams=True)) as context:
        engine = Engine(context, drafters=[Scripted(guess)], draft_n_max=8, pace=pace)
        for prompt in ([1, 2, 3], [4, 5, 6]):
            engine.add(prompt, chooser_for(target), 100, CancelFlag())
        while any(sequence.finish is None for sequence in engine.scheduler.active):
            engine.step()
        assert all(sequence.stats.proposed == 0 for sequence in engine.scheduler.active)
    assert pace.verdicts("coupled, greedy")[0].gain < 0.1
