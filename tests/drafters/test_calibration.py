"""Raw estimates are calibrated on accepted and rejected tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgespec
from edgespec.drafters.calibration import MEMORY, Calibration
from edgespec.drafters.model import ModelDrafter
from edgespec.runtime.runtime import Runtime

PROMPTS = ["def fibonacci(n):", "class Queue:\n", "What does os.walk do?", "result = "]


def test_without_observations_the_estimate_is_unchanged() -> None:
    assert Calibration().probability(0.3) == pytest.approx(0.3)


def test_observations_outweigh_the_estimate() -> None:
    calibration = Calibration()
    for _ in range(60):
        calibration.observe(0.3, True)
    assert calibration.probability(0.3) > 0.9
    assert calibration.probability(0.9) == pytest.approx(0.9)


def test_calibration_learns_the_share_of_accepted_tokens() -> None:
    random = np.random.default_rng(0)
    calibration = Calibration()
    for raw in random.uniform(0.02, 0.98, 20_000):
        calibration.observe(raw, bool(random.random() < raw**2))
    for raw in (0.1, 0.5, 0.9):
        assert calibration.probability(raw) == pytest.approx(raw**2, abs=0.15)


def test_calibration_follows_a_text_that_changes() -> None:
    calibration = Calibration()
    for right in [True] * 10_000 + [False] * int(2 * MEMORY):
        calibration.observe(0.5, right)
    assert calibration.probability(0.5) < 0.3


@pytest.mark.slow
@given(st.floats(1e-6, 1 - 1e-6), st.lists(st.tuples(st.floats(1e-6, 1 - 1e-6), st.booleans()), max_size=30))
def test_it_stays_a_probability(raw: float, seen: list[tuple[float, bool]]) -> None:
    calibration = Calibration()
    for estimate, right in seen:
        calibration.observe(estimate, right)
    assert 0 < calibration.probability(raw) < 1


# --- in the draft model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", spec_type="draft", spec_tree=4, pace="fixed:6", threads=1) as runtime:
        yield runtime


def confidences(llm: Runtime, **settings: object) -> list[tuple[float, bool]]:
    """Return the calibrated confidence of each first draft token of a step, and whether it was accepted."""
    [drafter] = llm.engine.speculator.drafters
    found: list[tuple[float, bool]] = []
    propose = drafter.propose

    def recording(sequences, budgets):  # type: ignore[no-untyped-def]
        drafts = propose(sequences, budgets)
        pending.extend((len(sequences[0].tokens), draft.tokens[0], draft.confidence[0]) for draft in drafts if draft)
        return drafts

    drafter.propose = recording  # type: ignore[method-assign]
    try:
        for seed, prompt in enumerate(PROMPTS):
            pending: list[tuple[int, int, float]] = []
            ids = [event.id for event in llm.generate(prompt, max_tokens=80, seed=seed, ignore_eos=True, **settings)]  # type: ignore[arg-type]
            n_prompt = llm.stats.prompt_tokens
            found += [
                (confidence, ids[at - n_prompt] == token)
                for at, token, confidence in pending
                if at - n_prompt < len(ids)
            ]
    finally:
        drafter.propose = propose  # type: ignore[method-assign]
    return found


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_confidences_come_near_to_the_acceptance_rate(llm: Runtime, temperature: float) -> None:
    confidences(llm, temperature=temperature)
    found = confidences(llm, temperature=temperature)
    expected, right = (np.mean([pair[side] for pair in found]) for side in (0, 1))
    assert expected == pytest.approx(right, abs=0.12)


def test_nothing_is_learned_where_the_text_depends_on_the_drafts(llm: Runtime) -> None:
    [drafter] = llm.engine.speculator.drafters
    assert isinstance(drafter, ModelDrafter)
    texts = []
    for _ in range(2):
        before = drafter.state()
        texts.append([e.id for e in llm.generate(PROMPTS[0], max_tokens=60, temperature=0.8, verify="rejection")])
        assert before == drafter.state()
    assert texts[0] == texts[1]
