"""The coupled rule emits what plain decoding emits, whatever was drafted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.choose import Chooser
from edgespec.core.draft import Draft
from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import Verdict, verify_coupled

V = 5
END = 4


def row_after(prefix: list[int]) -> np.ndarray:
    """A toy model: logits that depend on the whole prefix."""
    return np.random.default_rng(prefix).normal(size=V).astype(np.float32) * 2


def plain(chooser: Chooser, prompt: list[int], n: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n and (len(tokens) == len(prompt) or tokens[-1] != END):
        tokens.append(chooser.choose(row_after(tokens), tokens, len(tokens)).id)
    return tokens


def verified(chooser: Chooser, prefix: list[int], draft: Draft) -> Verdict:
    paths = {-1: list(prefix)}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        paths[node] = [*paths[int(parent)], int(token)]
    return verify_coupled(
        draft, lambda node: row_after(paths[node]), chooser.choose, prefix, len(prefix), lambda choice: choice.id == END
    )


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 8))
    tokens = draw(st.lists(st.integers(0, V - 1), min_size=n, max_size=n))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(n, np.float32), "test")


@given(trees(), st.integers(0, 2**32), st.sampled_from([0.0, 0.7, 1.5]))
def test_any_tree_leaves_the_text_as_it_is(draft: Draft, seed: int, temperature: float) -> None:
    chooser = Chooser(SamplingSettings(temperature=temperature, top_k=0, top_p=1, min_p=0), seed, 0, V)
    prompt = [1, 2]
    verdict = verified(chooser, prompt, draft)
    emitted = [choice.id for choice in verdict.choices]
    assert prompt + emitted == plain(chooser, prompt, len(emitted))
    assert len(verdict.path) == len(emitted) - 1


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.9]))
def test_a_right_draft_is_accepted_whole_and_a_wrong_one_not_at_all(seed: int, temperature: float) -> None:
    chooser = Chooser(SamplingSettings(temperature=temperature, top_k=0, top_p=1, min_p=0), seed, 0, V)
    right = plain(chooser, [3], 4)[1:]
    verdict = verified(chooser, [3], Draft.chain(right, [1.0] * len(right), "right"))
    # Nothing may follow an end token, so it is emitted as the last choice and never descended into.
    assert len(verdict.path) == len(right) - (END in right)
    wrong = [(token + 1) % V for token in right]
    assert verified(chooser, [3], Draft.chain(wrong, [1.0] * len(wrong), "wrong")).path == []


def test_penalties_see_the_accepted_tokens() -> None:
    settings = SamplingSettings(temperature=0, repeat_penalty=50.0)
    chooser = Chooser(settings, 0, 0, V)
    row = np.array([5.0, 4.0, 3.0, 2.0, -9.0], np.float32)
    verdict = verify_coupled(
        Draft.chain([0, 1, 2], [1.0] * 3, "test"), lambda node: row, chooser.choose, [3], 1, lambda choice: False
    )
    assert [choice.id for choice in verdict.choices][:3] == [0, 1, 2]


def test_child_finds_the_sibling_that_was_chosen() -> None:
    draft = Draft(np.array([7, 8, 9, 8], np.int32), np.array([-1, -1, 0, 0], np.int32), np.ones(4, np.float32))
    assert [draft.child(-1, 8), draft.child(0, 8), draft.child(1, 9), draft.child(-1, 9)] == [1, 3, None, None]
