"""DRY penalizes the same tokens as much as llama.cpp's sampler does, with breakers that lie anywhere in the tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from rows import OFF

from edgespec.core.dry import Dry
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.llama.breakers import REMEMBERED, BreakerFinder
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve

USUAL = ("\n", ":", '"', "*")
BREAKERS = {
    "usual": USUAL,
    "none": (),
    "long": ("self.path", "return", "def __init__(", "é", "in range(", "\n    "),
    "longer than llama.cpp reads": ("x" * 39 + "\n\n",),
}
DRY = replace(OFF, dry_multiplier=0.8, dry_penalty_last_n=-1)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo").path) as model:
        yield model


def histories(model: LlamaModel) -> list[list[int]]:
    """Return texts with repetitions: of code, and of few tokens at random."""
    random = np.random.default_rng(11)
    lines = (
        "    def __init__(self, path):",
        "        self.path = os.path.join(path, 'é')",
        "        return range(3)",
        "",
    )
    code = model.tokenize("\n".join(lines) * 3)
    few = model.tokenize("self.path = path: return\n    in range(")
    return [
        [],
        [few[0]],
        code,
        *(code[:n] for n in range(len(code) - 40, len(code))),
        *([few[i] for i in random.integers(0, n, 200)] for n in (1, 2, 3, len(few))),
        [7] * 500,
    ]


@pytest.mark.parametrize("name", BREAKERS)
@pytest.mark.parametrize(
    ("base", "allowed", "last_n"),
    [
        (1.75, 2, -1),
        (1.75, 2, 64),
        (1.0, 1, -1),
        (1.2, 0, 30),
        (4.0, 5, -1),
        (1.0000005, 2, -1),
        (0.5, 2, -1),
        (2, 2, 0),
    ],
)
def test_penalties_are_those_of_llama_cpp(model: LlamaModel, name: str, base: float, allowed: int, last_n: int) -> None:
    settings = replace(
        DRY,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=BREAKERS[name],
    )
    breakers = BreakerFinder(model).of(settings)
    row = np.random.default_rng(1).normal(0, 3, model.n_vocab).astype(np.float32)
    n_penalized = 0
    for tokens in histories(model):
        ours = Sampler(settings, 0, 0, model.n_vocab, breakers=breakers).adjusted(row, tokens)
        np.testing.assert_allclose(ours, native(model, settings, row, tokens), rtol=1e-6, atol=1e-5)
        n_penalized += int((ours != row).sum())
    assert (n_penalized > 0) is settings.uses_dry


def test_a_breaker_ends_a_repetition(model: LlamaModel) -> None:
    tokens = model.tokenize("a b c d\na b c")
    [expected] = model.tokenize("a b c d")[-1:]
    for breakers, is_penalized in ((("z",), True), (("b",), False), (("\n",), True)):
        settings = replace(DRY, dry_sequence_breakers=breakers)
        ids, _ = Dry(settings, BreakerFinder(model).of(settings)).penalties(tokens)
        assert (expected in ids.tolist()) is is_penalized, breakers


def test_longer_repetitions_cost_more_and_earlier_ones_count() -> None:
    dry = Dry(replace(DRY, dry_base=2), {})
    ids, penalty = dry.penalties([1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3])
    assert dict(zip(ids.tolist(), penalty.tolist(), strict=True)) == pytest.approx({8: 0.8, 9: 1.6})
    short = Dry(replace(DRY, dry_base=2, dry_penalty_last_n=6), {})
    assert short.penalties([1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3])[0].tolist() == [8]


def test_a_prefix_that_changes_is_read_again() -> None:
    """Drafts are tried and dropped, so a sampler is asked about many prefixes in any order."""
    random = np.random.default_rng(2)
    text = [int(id) for id in random.integers(0, 4, 3_000)]
    one = Dry(DRY, {})
    for _ in range(200):
        n = int(random.integers(2_000, 3_000))
        prefix = text[:n] + [int(id) for id in random.integers(0, 4, random.integers(0, 5))]
        ours, fresh = one.penalties(prefix), Dry(DRY, {}).penalties(prefix)
        assert np.array_equal(ours[0], fresh[0])
        assert np.array_equal(ours[1], fresh[1])


def test_images_are_no_part_of_a_repetition() -> None:
    assert Dry(DRY, {}).penalties([1, 2, 3, 9, 1, -5, -5, 2, 3])[0].tolist() == [9]


def test_ids_beyond_the_row_of_a_draft_are_ignored() -> None:
    row = np.zeros(5, np.float32)
    assert Sampler(DRY, 0, 0, 10).adjusted(row, [1, 2, 9, 1, 2, 4, 1, 2]).tolist() == pytest.approx([0, 0, 0, 0, -0.8])


def test_breakers_are_searched_once_and_only_for_dry(model: LlamaModel) -> None:
    finder = BreakerFinder(model)
    assert finder.of(OFF) == {}
    assert not finder.must_search(OFF)
    assert finder.must_search(DRY)
    found = finder.of(DRY)
    assert not finder.must_search(DRY)
    assert finder.of(DRY) is found
    for number in range(REMEMBERED):
        finder.of(replace(DRY, dry_sequence_breakers=(f"{number}",)))
    assert finder.must_search(DRY)


def native(
    model: LlamaModel, settings: SamplingSettings, row: npt.NDArray[np.float32], tokens: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Return the row after llama.cpp's sampler."""
    data = np.zeros(len(row), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    data["id"], data["logit"] = np.arange(len(row)), row
    array = llama_cpp.llama_token_data_array(
        data=data.ctypes.data_as(llama_cpp.llama_token_data_p), size=len(row), selected=-1, sorted=False
    )
    texts = [text.encode() for text in settings.dry_sequence_breakers]
    sampler = llama_cpp.llama_sampler_init_dry(
        model.vocabulary_handle,
        settings.dry_multiplier,
        settings.dry_base,
        settings.dry_allowed_length,
        settings.dry_penalty_last_n if settings.dry_penalty_last_n >= 0 else max(1, len(tokens)),
        (ctypes.c_char_p * len(texts))(*texts),
        len(texts),
    )
    try:
        for token in tokens:
            llama_cpp.llama_sampler_accept(sampler, token)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    finally:
        llama_cpp.llama_sampler_free(sampler)
    logits = np.zeros(len(row), np.float32)
    logits[data["id"]] = data["logit"]
    return logits
