"""The sampler for code completions keeps the candidates that llama.cpp's keeps."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import llama_cpp
import numpy as np
import pytest
from tiny_gguf import write_vocabulary

from edgespec.core.infill import MOST_CANDIDATES, Infill
from edgespec.core.sampling import Candidates
from edgespec.llama.model import LlamaModel

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    with LlamaModel.load_vocabulary(
        write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "v.gguf", "qwen2")
    ) as model:
        yield model


def kept_by_llama(vocabulary: LlamaModel, candidates: Candidates) -> list[int]:
    assert candidates.ids is not None
    data = np.zeros(len(candidates.ids), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    data["id"], data["logit"] = candidates.ids, candidates.logits
    array = llama_cpp.llama_token_data_array(
        data=data.ctypes.data_as(llama_cpp.llama_token_data_p), size=len(data), selected=-1, sorted=False
    )
    sampler = llama_cpp.llama_sampler_init_infill(vocabulary.vocabulary_handle)
    try:
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    finally:
        llama_cpp.llama_sampler_free(sampler)
    return sorted(map(int, data["id"][: array.size]))


def test_the_same_candidates_are_kept(vocabulary: LlamaModel) -> None:
    infill = Infill(vocabulary.token_bytes, vocabulary.is_end, vocabulary.eot)
    random, sizes, n_ended = np.random.default_rng(3), set[int](), 0
    for number in range(400):
        ids = np.sort(random.choice(vocabulary.n_vocab, random.integers(1, 40), replace=False))
        logits = random.normal(0, random.choice([0.1, 1, 3]), len(ids)).astype(np.float32)
        logits[[vocabulary.is_end(int(id)) for id in ids]] -= np.float32(number % 8)  # the end is rarely likely
        left = infill(Candidates(ids, logits))
        assert left.ids is not None
        assert [*left.ids] == kept_by_llama(vocabulary, Candidates(ids, logits)), number
        sizes.add(len(left.ids))
        n_ended += all(map(vocabulary.is_end, map(int, left.ids)))
    assert sizes >= {1, 2}
    assert 20 < n_ended < 380


def test_the_most_likely_token_is_left_if_no_token_may_end_the_answer(vocabulary: LlamaModel) -> None:
    infill = Infill(vocabulary.token_bytes, vocabulary.is_end, None)
    ids, logits = np.arange(33, 53), np.zeros(20, np.float32)
    logits[7] = 0.1
    left = infill(Candidates(ids, logits))
    assert left.ids is not None
    assert [*left.ids] == [40]
    with pytest.raises(ValueError, match="at most"):
        infill(Candidates(None, np.zeros(MOST_CANDIDATES + 1, np.float32)))
