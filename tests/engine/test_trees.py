"""Draft trees: grown best-first, verified in one target pass, and never visible in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import EXACT, write_model

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.core.candidates import DraftCandidate, draft_candidates
from edgespec.core.draft import Draft
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.drafters.base import Budget, DraftContext, Drafter
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.tree import ROOT, Tree
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import Sequence as Answer
from edgespec.events import TokenEvent
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.settings import Request

PROMPTS = ["def fibonacci(n):", "import os\nimport", "class Stack:\n    def push", "for key, value in"]
N_MAX, LEAVES = 8, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def target(folder: Path) -> Iterator[LlamaModel]:
    """An F32 model: its rounding is too small to change any choice in these texts."""
    with LlamaModel(write_model(folder / "target.gguf", "llama"), use_extra_bufts=False) as model:
        yield model


@pytest.fixture(scope="module")
def small(folder: Path) -> Iterator[LlamaModel]:
    with LlamaModel(write_model(folder / "draft.gguf", "llama", noise=0.08), use_extra_bufts=False) as model:
        yield model


# --- growing ----------------------------------------------------------------------------------------------------------


def grown(rows: dict[tuple[int, ...], list[float]], budget: Budget, width: int = 3) -> tuple[Tree, int]:
    """Grow a tree over a toy drafter with a list of confidences after each path; returns also how many paths were
    expanded."""
    tree = Tree(budget)

    def candidates(path: list[int]) -> list[DraftCandidate]:
        return [DraftCandidate(token, p) for token, p in enumerate(rows.get(tuple(path), [0.5, 0.25]))]

    tree.add(ROOT, candidates([]))
    asked = 1
    while frontier := tree.frontier(width):
        for node in frontier:
            tree.add(node, candidates(tree.path(node)))
            asked += 1
    return tree, asked


def paths(draft: Draft) -> list[list[int]]:
    found: list[list[int]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


def test_a_sure_drafter_makes_a_chain_and_an_unsure_one_a_bush() -> None:
    sure = {(0,) * n: [0.95, 0.03] for n in range(6)}
    chain, asked = grown(sure, Budget(4, 4))
    assert paths(chain.draft("toy")) == [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]
    assert asked == 5  # at the end the second best first token came next
    bush, asked = grown({(): [0.4, 0.3, 0.25]}, Budget(4, 4))
    assert paths(bush.draft("toy")) == [[0], [0, 0], [1], [2]]


@st.composite
def confidences(draw: st.DrawFn) -> dict[tuple[int, ...], list[float]]:
    def sorted_row() -> list[float]:
        return sorted(draw(st.lists(st.floats(0.01, 0.99), min_size=3, max_size=3)), reverse=True)

    prefixes = [(), *((a,) for a in range(3)), *((a, b) for a in range(3) for b in range(3))]
    return {prefix: sorted_row() for prefix in prefixes}


@given(confidences(), st.integers(1, 8), st.integers(1, 5))
@pytest.mark.slow
def test_no_other_tree_of_that_size_reaches_further(
    rows: dict[tuple[int, ...], list[float]], n_tokens: int, leaves: int
) -> None:
    tree, _ = grown(rows, Budget(n_tokens, leaves))
    draft = tree.draft("toy")
    found = paths(draft)
    assert len(draft) <= n_tokens
    assert len({leaf for below in draft.leaves() for leaf in below}) <= leaves
    assert len(draft) - len(set(draft.parents) - {ROOT}) <= leaves

    def reach(path: list[int]) -> float:
        return float(np.prod([rows.get(tuple(path[:i]), [0.5, 0.25])[token] for i, token in enumerate(path)]))

    if leaves >= n_tokens:  # only the size limits it: every path that was left out is less likely than those in it
        least = min(reach(path) for path in found)
        one_more = [[*path, token] for path in [[], *found] for token in range(3)]
        left_out = [p for p in one_more if p not in found and p[-1] < len(rows.get(tuple(p[:-1]), [0.5, 0.25]))]
        assert all(reach(path) <= least + 1e-9 for path in left_out)


def test_the_likeliest_path_comes_first() -> None:
    tree, _ = grown({(): [0.5, 0.45], (0,): [0.9, 0.05], (1,): [0.2, 0.1]}, Budget(4, 3))
    draft = tree.draft("toy")
    assert paths(draft)[:2] == [[0], [0, 0]]
    assert draft.leaves()[0] == [0]


# --- in the engine ----------------------------------------------------------------------------------------------------


class Knowing(Drafter):
    """Hides the true continuation on a random branch of a random tree, to a random depth."""

    name = "knowing"

    def __init__(self, truth: dict[int, list[int]], seed: int) -> None:
        self.truth, self.random = truth, np.random.default_rng(seed)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._tree(s, budget) for s, budget in zip(sequences, budgets, strict=True)]

    def _tree(self, sequence: DraftContext, budget: Budget) -> Draft:
        right = self.truth[sequence.slot][len(sequence.tokens) :]
        tokens: list[int] = []
        parents: list[int] = []
        on_path, node = {ROOT: 0}, ROOT
        while len(tokens) < budget.tokens:
            parent = int(self.random.integers(-1, len(tokens)))
            token = int(self.random.integers(0, 256))
            depth = on_path.get(parent)
            if depth is not None and depth < len(right) and self.random.random() < 0.7:
                token = right[depth]
            siblings = [t for t, p in zip(tokens, parents, strict=True) if p == parent]
            added = parents.count(parent) > 0
            n_leaves = len(tokens) - len(set(parents) - {ROOT})
            if token in siblings or (added and n_leaves == budget.leaves):
                if self.random.random() < 0.1:
                    break
                continue
            node = len(tokens)
            if depth is not None and depth < len(right) and token == right[depth]:
                on_path[node] = depth + 1
            tokens.append(token)
            parents.append(parent)
        return Draft(tokens, parents, [0.5] * len(tokens), [None] * len(tokens), self.name)


def make(target: LlamaModel, drafter: object = None, *, slots: int = 1, n_ctx: int = 512) -> Engine:
    context = Context(
        target,
        ContextParams(
            n_ctx=n_ctx, sequences=slots, max_outputs=slots * (1 + N_MAX), branches=(LEAVES - 1) * slots, **EXACT
        ),
    )
    drafters = [drafter] if drafter is not None else []
    return Engine(context, drafters=drafters, draft_n_max=N_MAX, tree_width=LEAVES, warn=pytest.fail)  # type: ignore[arg-type]


def start(
    engine: Engine, prompt: str, n: int = 40, temperature: float = 0.0, seed: int = 1, rule: VerifyRule = "coupled"
) -> Answer:
    model = engine.context.model
    sampler = Sampler(SamplingSettings(temperature=temperature), seed, 0, model.n_vocab, banned=model.end_tokens)
    return engine.add(model.tokenize(prompt), sampler, n, CancelFlag(), rule=rule)


def finish(engine: Engine, *answers: Answer) -> None:
    while any(answer.finish is None for answer in answers):
        engine.step()
        assert engine.context.free_branches == (LEAVES - 1) * engine.context.sequences
        for answer in answers:
            assert engine.context.length(answer.slot) == answer.n_decoded
    for answer in answers:
        engine.finish(answer)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_branch_is_right_the_text_is_the_same(target: LlamaModel, temperature: float, seed: int) -> None:
    plain = make(target)
    answers = [start(plain, prompt, temperature=temperature, seed=seed) for prompt in PROMPTS[:1]]
    finish(plain, *answers)
    truth = {0: answers[0].tokens}
    engine = make(target, Knowing(truth, seed))
    got = start(engine, PROMPTS[0], temperature=temperature, seed=seed)
    finish(engine, got)
    assert got.tokens == truth[0]
    assert got.stats.accepted > got.stats.rounds / 2
    assert got.stats.accepted < got.stats.proposed
    for each in (plain, engine):
        each.context.close()


def test_the_cache_holds_the_accepted_path_and_nothing_else(target: LlamaModel) -> None:
    """After many trees, the next row equals the row of a fresh decode of the same tokens, up to the rounding of
    kernels."""
    plain = make(target)
    want = start(plain, PROMPTS[2])
    finish(plain, want)
    engine = make(target, Knowing({0: want.tokens}, 5))
    got = start(engine, PROMPTS[2], n=30)
    finish(engine, got)
    tokens = want.tokens[: got.n_decoded]
    rows = []
    for context in (plain.context, engine.context):
        if context is plain.context:
            context.forget(0)
            n = len(tokens)
            context.decode(tokens, range(n), [(0,)] * n, [False] * n)
        context.decode([got.tokens[-1]], [len(tokens)], [(0,)], [True])
        rows.append(context.logits(0).copy())
    assert np.abs(rows[0] - rows[1]).max() < 1e-3
    for each in (plain, engine):
        each.context.close()


def test_sequences_with_trees_do_not_mix(target: LlamaModel) -> None:
    plain = make(target, slots=3)
    want = [start(plain, prompt, temperature=0.8, seed=seed) for seed, prompt in enumerate(PROMPTS[:3])]
    finish(plain, *want)
    engine = make(target, Knowing({answer.slot: answer.tokens for answer in want}, 7), slots=3)
    got = [start(engine, prompt, temperature=0.8, seed=seed) for seed, prompt in enumerate(PROMPTS[:3])]
    finish(engine, *got)
    assert [answer.tokens for answer in got] == [answer.tokens for answer in want]
    assert all(answer.stats.accepted > 0 for answer in got)
    for each in (plain, engine):
        each.context.close()


# --- with a draft model -----------------------------------------------------------------------------------------------


class TreeDrafter(ModelDrafter):
    context: Context


def tree_drafter(model: LlamaModel, slots: int = 1) -> TreeDrafter:
    context = Context(
        model,
        ContextParams(n_ctx=512, sequences=slots, max_outputs=LEAVES * slots, branches=LEAVES * slots, **EXACT),
    )
    return TreeDrafter(context, LEAVES)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_tree_of_the_draft_model_leaves_every_text_as_it_is(
    target: LlamaModel, small: LlamaModel, temperature: float
) -> None:
    drafter = tree_drafter(small)
    plain, engine = make(target), make(target, drafter)
    shapes = set()
    for seed, prompt in enumerate(PROMPTS):
        want, got = (start(each, prompt, 60, temperature, seed) for each in (plain, engine))
        finish(plain, want)
        while got.finish is None:
            before = got.stats.rounds, list(got.stats.proposed_per_pos)
            engine.step()
            gained = np.array(got.stats.proposed_per_pos, int)
            gained[: len(before[1])] -= np.array(before[1], int)
            shapes.add(tuple(gained[gained > 0]))
        engine.finish(got)
        assert got.tokens == want.tokens
        assert got.stats.accepted > 0
    assert len(shapes) > 5  # the shape of a tree depends on the confidence of the draft model
    assert drafter.context.free_branches == LEAVES - sum(len(slot.branches) for slot in drafter._slots)
    for context in (plain.context, engine.context, drafter.context):
        context.close()


def test_a_tree_finds_more_than_a_chain_of_the_same_size(target: LlamaModel, small: LlamaModel) -> None:
    accepted = []
    for width in (1, LEAVES):
        drafter = tree_drafter(small)
        drafter.width = width
        engine = make(target, drafter)
        engine.speculator.tree_width = width
        answers = []
        for seed, prompt in enumerate(PROMPTS):
            answers.append(start(engine, prompt, 80, 0.8, seed))
            finish(engine, answers[-1])
        accepted.append(sum(a.stats.accepted for a in answers) / sum(a.stats.rounds for a in answers))
        for context in (engine.context, drafter.context):
            context.close()
    assert accepted[1] > accepted[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_token_of_a_tree_is_decoded_once(
    target: LlamaModel, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that drafts for itself is always right, so no token of the accepted path may be decoded again."""
    drafter = tree_drafter(target)
    decoded: list[tuple[int, int]] = []
    decode = drafter.context.decode

    def recording(tokens: Sequence[int], positions: Sequence[int], *rest: Any) -> None:
        decoded.extend(zip(positions, tokens, strict=True))
        decode(tokens, positions, *rest)

    monkeypatch.setattr(drafter.context, "decode", recording)
    engine = make(target, drafter)
    answer = start(engine, PROMPTS[0], temperature=temperature)
    finish(engine, answer)
    on_path = [pair for pair in decoded if pair[1] == answer.tokens[pair[0]]]
    assert len(on_path) == len(set(on_path))
    assert answer.stats.tokens_per_round > 3
    for context in (engine.context, drafter.context):
        context.close()


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_other_rules_run_over_a_draft_model(target: LlamaModel, small: LlamaModel, rule: VerifyRule) -> None:
    drafter = tree_drafter(small)
    engine = make(target, drafter)
    first = start(engine, PROMPTS[0], 60, 0.8, 3, rule)
    finish(engine, first)
    again = start(engine, PROMPTS[0], 60, 0.8, 3, rule)
    finish(engine, again)
    assert again.tokens == first.tokens  # the same seed gives the same text
    assert first.stats.accepted > 0
    assert len(first.tokens) == first.n_prompt + 60
    for context in (engine.context, drafter.context):
        context.close()


def test_at_temperature_0_all_exact_rules_agree(target: LlamaModel, small: LlamaModel) -> None:
    texts = []
    for rule in ("coupled", "rejection", "block"):
        drafter = tree_drafter(small)
        engine = make(target, drafter)
        answer = start(engine, PROMPTS[1], rule=rule)
        finish(engine, answer)
        texts.append(answer.tokens)
        for context in (engine.context, drafter.context):
            context.close()
    assert all(left == right for left, right in pairwise(texts))


def test_samples_of_one_prompt_share_its_cache_and_differ(
    target: LlamaModel, small: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(target, tree_drafter(small, 4), slots=4)
    model = engine.context.model
    prompt = model.tokenize("import os\nimport sys\n" * 10 + "def")
    answers = [
        engine.add(prompt, Sampler(SamplingSettings(temperature=1.0), 3, sample, model.n_vocab), 16, CancelFlag())
        for sample in range(4)
    ]
    n_tokens = []
    decode = engine.context.decode

    def recording(tokens: Sequence[int], *rest: Any) -> None:
        n_tokens.append(len(tokens))
        decode(tokens, *rest)

    monkeypatch.setattr(engine.context, "decode", recording)
    while any(answer.finish is None for answer in answers):
        engine.step()
    assert n_tokens[0] == len(prompt)
    assert max(n_tokens[1:]) <= 4 * (1 + N_MAX)
    texts = {tuple(answer.tokens) for answer in answers}
    assert len(texts) == 4
    assert [answer.stats.cached_tokens for answer in answers] == [0, *[len(prompt) - 1] * 3]
    alone = make(target)
    for sample in (0, 2):
        answer = alone.add(
            prompt, Sampler(SamplingSettings(temperature=1.0), 3, sample, model.n_vocab), 16, CancelFlag()
        )
        finish(alone, answer)
        assert tuple(answer.tokens) in texts
    for context in (engine.context, alone.context):
        context.close()


def test_a_sample_whose_sibling_was_cancelled_goes_on_alone(target: LlamaModel) -> None:
    engine = make(target, slots=2, n_ctx=1024)
    model = engine.context.model
    prompt = model.tokenize("x = 1\n" * 200)
    cancel = CancelFlag()
    first, second = (
        engine.add(prompt, Sampler(SamplingSettings(temperature=1.0), 3, sample, model.n_vocab), 8, flag)
        for sample, flag in ((0, cancel), (1, CancelFlag()))
    )
    engine.step()
    assert 0 < first.n_decoded < len(prompt) and second.n_decoded == 0
    cancel.set()
    while second.finish is None:
        engine.step()
    assert first.finish == "cancelled"
    assert second.stats.generated_tokens == 8 or second.finish == "stop"
    engine.context.close()


# --- where drafts end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_nothing_follows_an_end_token_on_any_branch(target: LlamaModel, rule: VerifyRule) -> None:
    assert target.eos is not None
    end: int = target.eos

    class Ending(Drafter):
        name = "ending"

        def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
            parents = [-1, 0, -1, 2, 3] if budgets[0].leaves > 1 else [-1, 0, 1, 2, 3]
            tokens = [11, 12, end, 13, 14] if budgets[0].leaves > 1 else [end, 11, 12, 13, 14]
            return [Draft(tokens, parents, [0.5] * 5, [None] * 5, self.name)]

    engine = make(target, Ending())
    first, bias = (SamplingSettings(temperature=0.5, logit_bias=((token, 100.0),)) for token in (66, end))
    sequence = engine.add([65], Sampler(first, 0, 0, target.n_vocab), 20, CancelFlag(), rule=rule)
    engine.step()  # without a draft, since it reads the prompt
    sequence.sampler = Sampler(bias, 0, 0, target.n_vocab)
    [emission] = engine.step()
    assert [choice.id for choice in emission.choices] == [end]
    assert (sequence.finish, sequence.stats.accepted, len(emission.sources)) == ("stop", 1, 1)
    assert engine.context.length(sequence.slot) == sequence.n_decoded == 2
    assert engine.context.free_branches == LEAVES - 1
    engine.context.close()


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_trees_shrink_until_the_context_is_full(target: LlamaModel, small: LlamaModel, rule: VerifyRule) -> None:
    drafter = tree_drafter(small)
    engine = make(target, drafter, n_ctx=256)
    answer = start(engine, "x = 1\n" * 30, 10**6, 0.8, 2, rule)
    finish(engine, answer)
    assert answer.finish == "length"
    assert len(answer.tokens) == 256
    for context in (engine.context, drafter.context):
        context.close()


def test_a_draft_model_with_less_context_stops_guessing_there(target: LlamaModel, small: LlamaModel) -> None:
    drafter = TreeDrafter(Context(small, ContextParams(n_ctx=64, max_outputs=1, **EXACT)))
    plain, engine = make(target), make(target, drafter)
    want, got = (start(each, PROMPTS[0], 120) for each in (plain, engine))
    finish(plain, want)
    finish(engine, got)
    assert got.tokens == want.tokens
    assert 0 < got.stats.proposed < 64 * N_MAX
    for context in (plain.context, engine.context, drafter.context):
        context.close()


@pytest.mark.parametrize(
    "draft",
    [
        Draft([1, 2, 3], [-1, -1, -1], [0.5] * 3, [None] * 3, "bad"),  # more leaves than the budget
        Draft([1, 2], [1, -1], [0.5] * 2, [None] * 2, "bad"),  # a child before its parent
        Draft([1, 2], [-1, 0], [0.5], [None] * 2, "bad"),
        Draft([1] * (N_MAX + 1), list(range(-1, N_MAX)), [0.5] * (N_MAX + 1), [None] * (N_MAX + 1), "bad"),
    ],
)
def test_a_draft_that_cannot_be_decoded_switches_its_drafter_off(target: LlamaModel, draft: Draft) -> None:
    class Bad(Drafter):
        name = "bad"

        def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
            return [draft for _ in sequences]

    warnings: list[str] = []
    plain, engine = make(target), make(target, Bad())
    engine.speculator.warn, engine.speculator.tree_width = warnings.append, 2
    want, got = (start(each, PROMPTS[0], 10) for each in (plain, engine))
    finish(plain, want)
    finish(engine, got)
    assert got.tokens == want.tokens
    assert len(warnings) == 1
    for each in (plain, engine):
        each.context.close()


def test_a_cancelled_tree_leaves_a_usable_context(target: LlamaModel, small: LlamaModel) -> None:
    drafter = tree_drafter(small)
    engine = make(target, drafter)
    want = start(engine, PROMPTS[0], 30)
    finish(engine, want)
    cancel = CancelFlag()
    sampler = want.sampler
    again = engine.add(target.tokenize(PROMPTS[0]), sampler, 30, CancelFlag())
    engine.step()
    for context in (engine.context, drafter.context):  # both are aborted in the middle of a pass
        context.watch(cancel)
        cancel.set()
        before = len(again.tokens)
        engine.step()
        assert len(again.tokens) == before
        assert engine.context.free_branches == LEAVES - 1
        cancel.clear()
        context.watch(None)
    while again.finish is None:
        engine.step()
    assert again.tokens == want.tokens
    for context in (engine.context, drafter.context):
        context.close()


def test_every_node_of_every_draft_is_drawn_with_noise_of_its_own(
    target: LlamaModel, small: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the token sampled in one branch would depend on the other branches of the tree."""
    drawn: list[tuple[int, int | None]] = []

    def recording(*args: Any) -> list[DraftCandidate]:
        drawn.append((args[3], args[5]))
        return draft_candidates(*args)

    monkeypatch.setattr("edgespec.drafters.growing.draft_candidates", recording)
    drafter = tree_drafter(small)
    engine = make(target, drafter)
    finish(engine, start(engine, PROMPTS[0], 60, 0.8, 3, "rejection"))
    assert None not in [number for _, number in drawn]
    assert len(drawn) == len(set(drawn)) > 60
    for context in (engine.context, drafter.context):
        context.close()


@pytest.mark.long(but=1)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_sequences_that_end_give_their_branches_back(rule: VerifyRule) -> None:
    """The sequences share a pool of branches, and some end while others continue."""
    requests = [
        Request(prompt=prompt, max_tokens=n, seed=n, ignore_eos=True, verify=rule)
        for prompt in PROMPTS
        for n in (3, 24, 7, 15)
    ]
    with edgespec.load(
        "demo", spec_type="draft", exact=False, sequences=4, spec_tree=16, pace="fixed:48", threads=1, ctx_size=256
    ) as llm:
        counts = [0] * len(requests)
        for index, event in llm.stream(requests):
            assert isinstance(event, TokenEvent)
            counts[index] += event.id >= 0
        assert counts == [request.max_tokens for request in requests]
        assert not llm.notes


def test_samples_share_a_prompt_though_the_first_one_ends_at_once(target: LlamaModel) -> None:
    engine = make(target, slots=3)
    prompt = target.tokenize("import os\nimport sys\n" * 6)
    answers = [
        engine.add(prompt, Sampler(SamplingSettings(temperature=1.0), 3, sample, target.n_vocab), n, CancelFlag())
        for sample, n in enumerate((0, 4, 4))
    ]
    while any(answer.finish is None for answer in answers):
        engine.step()
    assert [answer.stats.cached_tokens for answer in answers] == [0, 0, len(prompt) - 1]
    engine.context.close()
