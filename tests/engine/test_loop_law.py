"""The whole loop on a real model: thousands of answers have the target's distribution, under every verification rule.

The distribution of a few tokens is computed from the model itself, row by row, and compared by chi-square with what the
engine generated, many sequences at a time. Truncation to the three likeliest tokens keeps the number of outcomes small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from enumeration import surprise
from tiny_gguf import EXACT, write_model

from edgespec.cancel import CancelFlag
from edgespec.core.draft import Draft
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.drafters.base import Budget, DraftContext, Drafter
from edgespec.drafters.model import ModelDrafter
from edgespec.engine.engine import Engine
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel

SLOTS, N_ANSWERS, N_TOKENS, LEAVES = 32, 1600, 4, 3
CHAIN = SamplingSettings(temperature=1.3, top_k=3, top_p=1.0, min_p=0.0)
PROMPT = "def f"

Outcome = tuple[int, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def target(folder: Path) -> Iterator[LlamaModel]:
    with LlamaModel(write_model(folder / "target.gguf", "llama"), use_extra_bufts=False) as model:
        yield model


@pytest.fixture(scope="module")
def draft(folder: Path) -> Iterator[LlamaModel]:
    """Make a draft model that differs from the target just enough: about as many drafts are rejected as accepted."""
    with LlamaModel(write_model(folder / "draft.gguf", "llama", noise=0.2), use_extra_bufts=False) as model:
        yield model


@pytest.fixture(scope="module")
def distribution(target: LlamaModel) -> dict[Outcome, float]:
    """Return the probability of each continuation of the prompt, by decoding all of them."""
    prompt = target.tokenize(PROMPT)
    sampler = Sampler(CHAIN, 0, 0, target.n_vocab)
    found: dict[Outcome, float] = {(): 1.0}
    with Context(target, ContextParams(n_ctx=256, **EXACT)) as context:
        for _ in range(N_TOKENS):
            longer: dict[Outcome, float] = {}
            for outcome, p in found.items():
                tokens = [*prompt, *outcome]
                n = len(tokens)
                context.forget(0)
                context.decode(tokens, range(n), [(0,)] * n, [False] * (n - 1) + [True])
                after = sampler.distribution(context.logits(n - 1), tokens, n)
                longer |= {(*outcome, int(id)): p * float(q) for id, q in zip(after.ids, after.p, strict=True)}
            found = longer
    return found


def answers(target: LlamaModel, drafter: Drafter | None, rule: VerifyRule, leaves: int) -> tuple[Counter[Outcome], int]:
    """Count how often each continuation was generated, and how many draft tokens were accepted."""
    prompt = target.tokenize(PROMPT)
    written: Counter[Outcome] = Counter()
    accepted = 0
    with Context(
        target,
        ContextParams(n_ctx=64, sequences=SLOTS, max_outputs=SLOTS * N_TOKENS, branches=(leaves - 1) * SLOTS, **EXACT),
    ) as context:
        engine = Engine(
            context,
            drafters=[drafter] if drafter else [],
            draft_n_max=N_TOKENS - 1,
            tree_width=leaves,
            warn=pytest.fail,
        )
        for first in range(0, N_ANSWERS, SLOTS):
            running = [
                engine.add(
                    prompt,
                    Sampler(CHAIN, first + index, 0, target.n_vocab),
                    N_TOKENS,
                    CancelFlag(),
                    rule=rule,
                )
                for index in range(SLOTS)
            ]
            while any(sequence.finish is None for sequence in running):
                engine.step()
            for sequence in running:
                written[tuple(sequence.tokens[len(prompt) :])] += 1
                accepted += sequence.stats.accepted
                engine.finish(sequence)
    return written, accepted


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "leaves"),
    [("rejection", 1), ("rejection", LEAVES), ("block", 1), ("coupled", 1), ("coupled", LEAVES)],
)
def test_a_draft_model_leaves_the_law_as_it_is(
    target: LlamaModel, draft: LlamaModel, distribution: dict[Outcome, float], rule: VerifyRule, leaves: int
) -> None:
    with Context(
        draft, ContextParams(n_ctx=64, sequences=SLOTS, max_outputs=SLOTS * leaves, branches=leaves * SLOTS, **EXACT)
    ) as context:
        written, accepted = answers(target, ModelDrafter(context, leaves), rule, leaves)
    assert accepted > N_ANSWERS / 5
    assert surprise(written.elements(), distribution) < 1


@pytest.mark.long(but=1)
@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_guesses_that_were_not_drawn_leave_the_law_as_it_is(
    target: LlamaModel, distribution: dict[Outcome, float], rule: VerifyRule
) -> None:
    best = max(distribution, key=distribution.__getitem__)
    n_prompt = len(target.tokenize(PROMPT))

    class Likely(Drafter):
        """Drafts the likeliest continuation, which is right now and then."""

        name = "likely"

        def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
            rest = [list(best[len(s.tokens) - n_prompt :]) for s in sequences]
            chains = [tokens[: budget.tokens] for tokens, budget in zip(rest, budgets, strict=True)]
            return [Draft.chain(chain, [0.5] * len(chain), self.name) for chain in chains]

    written, accepted = answers(target, Likely(), rule, 1)
    assert accepted > N_ANSWERS / 8
    assert surprise(written.elements(), distribution) < 1
