"""The sampling chain keeps the same tokens, with the same probabilities, as llama.cpp's own samplers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.core.sampling import Candidates, FloatRow, SamplingSettings, apply_chain, largest
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve

OFF = SamplingSettings(temperature=1, top_k=0, top_p=1, min_p=0, typical_p=1)
LARGE = 151_936


def make_rows() -> dict[str, FloatRow]:
    """Return the rows on which samplers are compared. They are read-only, like views of native memory."""
    random = np.random.default_rng(7)
    rows = {
        "small": random.normal(0, 3, 50),
        "one token": np.array([1.5]),
        "odd size": random.normal(0, 2, 9_973),
        "flat": random.normal(0, 0.5, 2_000),
        "peaky": random.gumbel(0, 2, 32_000) + np.where(np.arange(32_000) == 77, 18, 0),
        "negative": random.normal(-20, 3, 4_096),
        "ties": np.round(random.normal(0, 2, 5_000)),
        "equal": np.zeros(600),
        "masked": np.where(random.random(5_000) < 0.9, -np.inf, random.normal(0, 2, 5_000)),
        "few left": np.where(np.arange(3_000) % 1_000 == 5, random.normal(0, 1, 3_000), -np.inf),
        "large": random.normal(2, 2.5, LARGE),
        "large peaky": random.normal(0, 2, LARGE) + 30 * (random.random(LARGE) < 2e-5),
        **real_rows(),
    }
    frozen = {name: row.astype(np.float32) for name, row in rows.items()}
    for row in frozen.values():
        row.flags.writeable = False
    return frozen


def real_rows() -> dict[str, FloatRow]:
    """Return rows of the bundled target for a line of code."""
    with LlamaModel(resolve("demo").path) as model, Context(model, ContextParams(n_ctx=256, max_outputs=64)) as context:
        tokens = model.tokenize("def __init__(self, path):\n    self.path = os.path")
        n = len(tokens)
        context.decode(tokens, range(n), [(0,)] * n, [True] * n)
        return {f"real {index}": context.logits(index).copy() for index in range(0, n, 4)}


ROWS = make_rows()
# llama.cpp's typical sampler computes 0 log 0 = NaN where a probability underflows
WITHOUT_UNDERFLOW = [name for name, row in ROWS.items() if np.ptp(row) < 80]


@pytest.mark.parametrize("k", [1, 2, 5, 40, 500, 5_000, 0, -1])
@pytest.mark.slow
def test_top_k(k: int) -> None:
    for row in ROWS.values():
        assert_like_llama(row, replace(OFF, top_k=k))


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.95, 0.999])
def test_top_p(p: float) -> None:
    for row in ROWS.values():
        assert_like_llama(row, replace(OFF, top_p=p))


@pytest.mark.parametrize("p", [0.001, 0.05, 0.5, 1.0])
def test_min_p(p: float) -> None:
    for row in ROWS.values():
        assert_like_llama(row, replace(OFF, min_p=p))


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9, 0.99])
def test_typical_p(p: float) -> None:
    for name in WITHOUT_UNDERFLOW:
        assert_like_llama(ROWS[name], replace(OFF, typical_p=p))


@pytest.mark.long(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.1, 0.8, 1.0, 2.5])
def test_temperature(temperature: float) -> None:
    for row in ROWS.values():
        assert_like_llama(row, replace(OFF, temperature=temperature))


@pytest.mark.parametrize("n", [0.0, 0.3, 1.0, 2.5, 100.0])
def test_top_n_sigma(n: float) -> None:
    for row in ROWS.values():
        assert_like_llama(row, replace(OFF, top_n_sigma=n))


@pytest.mark.parametrize("threshold", [1e-3, 0.1, 0.3, 0.5])
def test_xtc(threshold: float) -> None:
    for row in ROWS.values():
        assert_like_llama(row, replace(OFF, xtc_probability=1.0, xtc_threshold=threshold))
        assert_like_llama(row, replace(OFF, xtc_probability=1.0, xtc_threshold=threshold, top_k=20, temperature=0.7))


def test_xtc_keeps_the_least_likely_of_the_likely_tokens() -> None:
    row = np.log(np.array([0.1, 0.3, 0.02, 0.2, 0.3, 0.08], np.float32))
    for threshold, kept in ((0.09, [0, 2, 5]), (0.25, [0, 1, 2, 3, 5]), (0.35, [0, 1, 2, 3, 4, 5]), (0.0, [2])):
        chain = replace(OFF, xtc_probability=1.0, xtc_threshold=threshold)
        assert kept_ids(apply_chain(row, chain, excludes=True)) == kept, threshold
        assert kept_ids(apply_chain(row, chain)) == [0, 1, 2, 3, 4, 5]
    greedy = replace(OFF, temperature=0, xtc_probability=1.0)
    assert kept_ids(apply_chain(row, greedy, excludes=True)) == [0]
    assert kept_ids(apply_chain(row, greedy)) == [1]


@pytest.mark.parametrize("greedy", [{"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}, {"top_n_sigma": 1e-6}])
def test_the_smallest_or_largest_values_keep_the_most_likely_token(greedy: dict[str, float]) -> None:
    row = ROWS["small"]
    chain = replace(SamplingSettings(), **greedy)  # type: ignore[arg-type]
    assert kept_ids(apply_chain(row, chain)) == [int(row.argmax())]


ALL_PENALTIES = {"frequency_penalty": -0.4, "presence_penalty": 0.2, "repeat_penalty": 1.1}


@pytest.mark.long(but=4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("penalties", "last_n"),
    [
        ({"repeat_penalty": 1.3}, 64),
        ({"repeat_penalty": 0.7}, 64),
        ({"presence_penalty": 1.5}, 64),
        ({"frequency_penalty": 0.4}, 64),
        *((ALL_PENALTIES, last_n) for last_n in (0, 1, 64, -1)),
    ],
)
def test_penalties(penalties: dict[str, float], last_n: int) -> None:
    for row in ROWS.values():
        tokens = [int(id) for id in np.random.default_rng(3).integers(0, min(len(row), 60), 150)]
        assert_like_llama(row, replace(OFF, repeat_last_n=last_n, **penalties), tokens)  # type: ignore[arg-type]


def test_logit_bias() -> None:
    bias = ((0, 2.5), (3, -1.0), (3, -1.0), (17, -np.inf), (44, 8.0))
    for row in ROWS.values():
        assert_like_llama(row, replace(OFF, logit_bias=tuple(pair for pair in bias if pair[0] < len(row))))


@pytest.mark.parametrize(
    "chain",
    [
        SamplingSettings(),
        SamplingSettings(top_k=0),
        SamplingSettings(top_k=0, min_p=0),
        SamplingSettings(top_k=20, top_p=0.6, min_p=0, temperature=1.3),
        SamplingSettings(repeat_penalty=1.2, frequency_penalty=0.1, logit_bias=((2, 3.0), (9, -5.0))),
        SamplingSettings(typical_p=0.9),
        SamplingSettings(temperature=0, repeat_penalty=1.4),
        SamplingSettings(top_n_sigma=1.0, xtc_probability=1.0, xtc_threshold=0.05),
        SamplingSettings(top_p=0.0, xtc_probability=1.0),
        SamplingSettings(temperature=0, xtc_probability=1.0, xtc_threshold=0.01),
    ],
)
def test_whole_chain(chain: SamplingSettings) -> None:
    for name in ROWS if chain.typical_p == 1 else WITHOUT_UNDERFLOW:
        row = ROWS[name]
        fitting = replace(chain, logit_bias=tuple(pair for pair in chain.logit_bias if pair[0] < len(row)))
        assert_like_llama(row, fitting, [id % len(row) for id in (1, 2, 3, 2, 2, 8, 30)])


small_rows = st.one_of(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60),
    st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=60),  # ties
)
some_settings = st.builds(
    SamplingSettings,
    temperature=st.one_of(st.just(0.0), st.floats(0.05, 3)),
    top_k=st.integers(-1, 70),
    top_p=st.floats(0, 1),
    top_n_sigma=st.one_of(st.just(-1.0), st.floats(0.1, 5)),
    xtc_probability=st.sampled_from([0.0, 1.0]),
    xtc_threshold=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    typical_p=st.one_of(st.just(1.0), st.floats(0.05, 1)),
    repeat_penalty=st.floats(0.5, 2),
    repeat_last_n=st.integers(-1, 30),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, derandomize=True)
@given(values=small_rows, chain=some_settings, data=st.data())
def test_any_settings(values: list[float], chain: SamplingSettings, data: st.DataObject) -> None:
    if chain.typical_p < 1:  # llama.cpp keeps what top-n-sigma drops with a probability of 0, for which see above
        chain = replace(chain, top_n_sigma=-1.0)
    ids = st.integers(0, len(values) - 1)
    tokens = data.draw(st.lists(ids, max_size=40))
    bias = data.draw(st.lists(st.tuples(ids, st.floats(-5, 5)), max_size=4))
    assert_like_llama(np.array(values, np.float32), replace(chain, logit_bias=tuple(bias)), tokens)


@pytest.mark.parametrize("name", ["small", "ties", "masked", "equal", "large"])
@pytest.mark.parametrize("k", [1, 3, 256, 4_000, LARGE])
def test_largest_is_the_head_of_a_stable_sort(name: str, k: int) -> None:
    row = ROWS[name]
    head = np.argsort(-row, kind="stable")[:k]
    assert largest(row, k).tolist() == sorted(head[row[head] > -np.inf].tolist())


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9, 0.99])
def test_top_p_cuts_where_a_full_float64_sort_does(p: float) -> None:
    for row in ROWS.values():
        falling = -np.sort(-softmax(row))
        kept = len(apply_chain(row, replace(OFF, top_p=p)).logits)
        assert falling[:kept].sum() >= p - 2e-6
        assert falling[: kept - 1].sum() < p + 2e-6


def test_of_equal_logits_the_lower_ids_stay() -> None:
    row = np.zeros(10_000, np.float32)
    for chain in (replace(OFF, top_k=3), replace(OFF, top_p=0.00025), replace(OFF, typical_p=0.00025)):
        ids = apply_chain(row, chain).ids
        assert ids is not None
        assert ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_cut_among_equal_logits_keeps_the_lower_ids(p: float) -> None:
    row = ROWS["ties"]
    ids = kept_ids(apply_chain(row, replace(OFF, top_p=p)))
    assert ids == sorted(np.argsort(-row, kind="stable")[: len(ids)].tolist())


def test_top_p_must_be_reached_and_typical_p_exceeded() -> None:
    row = np.zeros(4, np.float32)
    for chain, kept in ((replace(OFF, top_p=0.5), 2), (replace(OFF, typical_p=0.5), 3)):
        assert len(llama_chain(row, chain, [])[0]) == kept
        assert len(kept_ids(apply_chain(row, chain))) == kept


def test_penalties_see_the_last_tokens_of_the_prefix_only() -> None:
    row = np.ones(5, np.float32)
    chain = replace(OFF, presence_penalty=1, repeat_last_n=2)
    assert apply_chain(row, chain, [0, 1, 2, 3]).logits.tolist() == [1, 1, 0, 0, 1]
    assert apply_chain(row, replace(chain, repeat_last_n=-1), [0, 1, 2, 3]).logits.tolist() == [0, 0, 0, 0, 1]
    assert apply_chain(row, replace(chain, repeat_last_n=0), [0, 1, 2, 3]).logits.tolist() == [1, 1, 1, 1, 1]


def test_banned_ids_are_out_before_the_truncation() -> None:
    row = np.array([5, 4, 3, 2], np.float32)
    assert kept_ids(apply_chain(row, replace(OFF, top_k=2), banned=[0])) == [1, 2]


def test_ids_beyond_the_row_are_ignored() -> None:
    row = np.zeros(4, np.float32)
    chain = replace(OFF, repeat_penalty=2, presence_penalty=1, logit_bias=((9, 5.0),))
    assert apply_chain(row, chain, [0, 8], banned=[7]).logits.tolist() == [-1, 0, 0, 0]


def test_greedy_leaves_one_candidate() -> None:
    row = np.array([1, 7, 7, 3], np.float32)
    assert kept_ids(apply_chain(row, replace(OFF, temperature=0))) == [1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("bad", [[np.nan] * 500, [0.0] * 499 + [np.nan], [-np.inf] * 500, [0.0] * 499 + [np.inf]])
def test_a_row_without_finite_logits_is_refused(temperature: float, top_k: int, bad: list[float]) -> None:
    with pytest.raises(ValueError, match="no finite logits"):
        apply_chain(np.array(bad, np.float32), SamplingSettings(temperature=temperature, top_k=top_k))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", np.nan),
        ("temperature", np.inf),
        ("temperature", 1e-9),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", np.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("typical_p", 0.0),
        ("xtc_probability", 1.1),
        ("xtc_threshold", -0.1),
        ("top_n_sigma", np.nan),
        ("dry_multiplier", -1.0),
        ("dry_base", np.inf),
        ("dry_allowed_length", 1.5),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", "text"),
        ("dry_sequence_breakers", (1,)),
        ("typical_p", np.nan),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", np.inf),
        ("presence_penalty", np.nan),
        ("frequency_penalty", 1e39),
        ("repeat_last_n", -2),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, np.inf),)),
        ("logit_bias", ((1, np.nan),)),
    ],
)
def test_an_error_names_the_invalid_setting(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingSettings(**{name: value})


def assert_like_llama(row: FloatRow, chain: SamplingSettings, tokens: list[int] | None = None) -> None:
    """Assert that our chain and llama.cpp's keep the same tokens, except for the choice among equal logits.

    If a cumulative sum differs from top-p or typical-p by its rounding error at most, both sides of the cut are right.
    """
    tokens = tokens or []
    before = row.copy()
    excludes = chain.uses_xtc  # for sure: the chance is 1
    ours = apply_chain(row, chain, tokens, excludes=excludes)
    assert np.array_equal(row, before), "the row was written to"
    our_ids = np.array(kept_ids(ours))
    our_logits = ours.logits[ours.logits > -np.inf]
    their_ids, their_logits = llama_chain(row, chain, tokens)
    slack = 1e-6 * max(len(row), 16) ** 0.5  # llama.cpp adds up float32 probabilities one by one
    around = (nudged(chain, by) for by in (-slack, 0, slack))
    counts = [len(kept_ids(apply_chain(row, one, tokens, excludes=excludes))) for one in around]
    assert min(counts) <= len(their_ids) <= max(counts)
    if min(counts) < max(counts):
        size = min(len(our_ids), len(their_ids))
        if chain.typical_p == 1 and size and not excludes:
            np.testing.assert_allclose(-np.sort(-our_logits)[:size], -np.sort(-their_logits)[:size], rtol=1e-5)
        return
    assert len(our_ids) == len(their_ids)
    np.testing.assert_allclose(np.sort(our_logits), np.sort(their_logits), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.sort(softmax(our_logits)), np.sort(softmax(their_logits)), atol=1e-4)
    if len(np.unique(row)) == len(row):
        theirs = dict(zip(their_ids.tolist(), their_logits.tolist(), strict=True))
        assert set(our_ids.tolist()) == set(theirs)
        np.testing.assert_allclose(our_logits, [theirs[id] for id in our_ids.tolist()], rtol=1e-5, atol=1e-6)


def nudged(chain: SamplingSettings, by: float) -> SamplingSettings:
    top_p = min(chain.top_p * (1 + by), 1.0) if chain.top_p < 1 else 1.0
    typical_p = min(chain.typical_p * (1 + by), 1 - 1e-7) if chain.typical_p < 1 else 1.0
    xtc_threshold = min(max(chain.xtc_threshold * (1 + by), 0.0), 1.0)
    sigmas = chain.top_n_sigma * (1 + 10 * by)
    return replace(chain, top_p=top_p, typical_p=typical_p, xtc_threshold=xtc_threshold, top_n_sigma=sigmas)


def kept_ids(candidates: Candidates) -> list[int]:
    ids = np.arange(len(candidates.logits)) if candidates.ids is None else candidates.ids
    return [int(id) for id in ids[candidates.logits > -np.inf]]


def softmax(logits: FloatRow) -> npt.NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum(), np.float64)


def llama_chain(row: FloatRow, chain: SamplingSettings, tokens: list[int]) -> tuple[npt.NDArray[np.int32], FloatRow]:
    """Return ids and logits after llama.cpp's samplers in the order of its common sampler, without logits of -inf."""
    data = np.zeros(len(row), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    data["id"] = np.arange(len(row))
    data["logit"] = row
    array = llama_cpp.llama_token_data_array(
        data=data.ctypes.data_as(llama_cpp.llama_token_data_p), size=len(row), selected=-1, sorted=False
    )
    with llama_samplers(chain, len(row), len(tokens)) as sampler:
        for token in tokens:
            llama_cpp.llama_sampler_accept(sampler, token)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    first = (ctypes.addressof(array.data.contents) - data.ctypes.data) // data.itemsize  # XTC cuts the beginning off
    kept = data[first : first + array.size]
    kept = kept[kept["logit"] > -np.inf]
    return kept["id"], kept["logit"]


@contextmanager
def llama_samplers(chain: SamplingSettings, n_vocab: int, n_tokens: int) -> Iterator[Any]:
    pairs = (llama_cpp.llama_logit_bias * len(chain.logit_bias))(
        *(llama_cpp.llama_logit_bias(token=token, bias=bias) for token, bias in chain.logit_bias)
    )
    last_n = n_tokens if chain.repeat_last_n < 0 else chain.repeat_last_n
    steps: list[Callable[[], Any]] = [
        lambda: llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(pairs), pairs),
        lambda: llama_cpp.llama_sampler_init_penalties(
            n_vocab, last_n, chain.repeat_penalty, chain.frequency_penalty, chain.presence_penalty
        ),
        lambda: llama_cpp.llama_sampler_init_top_n_sigma(chain.top_n_sigma),
        lambda: llama_cpp.llama_sampler_init_top_k(chain.top_k),
        lambda: llama_cpp.llama_sampler_init_typical(chain.typical_p, 1),
        lambda: llama_cpp.llama_sampler_init_top_p(chain.top_p, 1),
        lambda: llama_cpp.llama_sampler_init_min_p(chain.min_p, 1),
        lambda: llama_cpp.llama_sampler_init_xtc(chain.xtc_probability, chain.xtc_threshold, 0, 1),
        lambda: llama_cpp.llama_sampler_init_temp(chain.temperature),
    ]
    sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    try:
        for step in steps:
            llama_cpp.llama_sampler_chain_add(sampler, step())
        yield sampler
    finally:
        llama_cpp.llama_sampler_free(sampler)
