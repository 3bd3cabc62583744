"""P-EAGLE heads: what their drafts are made of, and files that are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import EXACT, write_model
from tiny_head import write_peagle

import edgespec
from edgespec.core.batch import Batch
from edgespec.core.draft import Budget, Draft
from edgespec.drafters.base import DraftContext
from edgespec.errors import ModelFileError, PairError, UsageError
from edgespec.gguf_file.head_check import check_draft_file
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.eagle_context import ParallelContext
from edgespec.llama.eagle_graph import HeadWeights
from edgespec.llama.model import LlamaModel

PROMPT = "def the class for x in the list: return the one, or print it"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("parallel") / "target.gguf", "llama", n_layers=4)


def load(target: Path, head: Path, **settings: Any) -> edgespec.LLM:
    how = {"spec_type": "peagle", "draft_model": str(head), "pace": "fixed:4", "ctx_size": 512}
    return edgespec.load(str(target), **EXACT | how | settings)


def rows_after(model: LlamaModel, head: Path, text: list[int], n: int) -> np.ndarray[Any, Any]:
    """The rows of a draft after a text that the target and the head read anew: float32[n, V]."""
    with (
        Context(model, ContextParams(n_ctx=512, n_batch=256, max_outputs=256, threads=1)) as context,
        ParallelContext(
            HeadWeights(check_draft_file(head), model),
            context,
            ContextParams(n_ctx=512, n_batch=512, max_outputs=64, threads=1),
        ) as own,
    ):
        context.watch_layers(own.reads)
        context.decode(text, range(len(text)), [(0,)] * len(text), [True] * len(text))
        features = np.concatenate([context.layer_inputs(layer) for layer in own.reads], axis=1)[:-1]
        batch = Batch.empty()
        batch.add(text[1:], 0, (0,), wanted=True)
        (block,) = own.draft(batch, own.encode(features), [n])
        return np.stack([block.row([0] * place) for place in range(n)])


@pytest.mark.parametrize("settings", [{}, {"n_batch": 8}], ids=["one pass", "several passes"])
def test_each_draft_is_that_of_the_text_before_it(
    target: Path, tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was accepted, rejected and read in between. Wide texts are read before the pass of the draft."""
    head = write_peagle(tmp_path / "head.gguf", draft_tokens=[*range(3, 290, 2)])
    made: list[tuple[list[int], list[int]]] = []
    if settings:
        monkeypatch.setattr("edgespec.models.memory.estimate.HEAD_BATCH", settings["n_batch"])
    with load(target, head) as llm:
        drafter = llm._loaded.drafters.by_name["peagle"]
        propose = drafter.propose

        def spy(sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
            drafts: list[Draft] = propose(sequences, budgets)
            made.extend(([*each.tokens], [*draft.tokens]) for each, draft in zip(sequences, drafts, strict=True))
            return drafts

        drafter.propose = spy
        answer = llm.complete(PROMPT, max_tokens=30, temperature=0, ignore_eos=True)
        llm.complete(f"{PROMPT} {answer.text} then", max_tokens=8, temperature=0, ignore_eos=True)
        assert [draft for _, draft in made if len(draft) == 4]
    with LlamaModel(target) as model:
        for text, draft in made[::3]:
            rows = rows_after(model, head, text, 4)
            assert draft == rows.argmax(axis=1)[: len(draft)].tolist()


@pytest.mark.parametrize("tree", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_stay_what_they_are(target: Path, tmp_path: Path, tree: int, temperature: float) -> None:
    head = write_peagle(tmp_path / "head.gguf")
    request: dict[str, Any] = {"max_tokens": 40, "temperature": temperature, "seed": 3, "ignore_eos": True}
    found = []
    for settings in ({"spec_type": "none", "draft_model": None}, {"spec_tree": tree}):
        with load(target, head, **settings) as llm:
            found.append([llm.complete(PROMPT * times, **request).text for times in (1, 4)])
            assert "spec_tree" not in settings or llm.stats.proposed > 40
    assert found[0] == found[1]


def test_the_cache_of_a_head_has_one_type(target: Path, tmp_path: Path) -> None:
    with load(target, write_peagle(tmp_path / "head.gguf"), cache_type_k_draft="q8_0") as llm:
        llm.complete(PROMPT, max_tokens=8, ignore_eos=True)
        assert llm.stats.proposed > 0
        assert [note for note in llm.notes if "KV cache of a P-EAGLE head is always f16" in note]


def test_a_text_up_to_the_end_of_the_context_is_drafted(target: Path, tmp_path: Path) -> None:
    with load(target, write_peagle(tmp_path / "head.gguf"), ctx_size=64) as llm:
        answer = llm.complete(PROMPT, ignore_eos=True)
        assert answer.stats.proposed > 0 and answer.finish_reason == "length"


def test_without_a_head_the_error_says_where_to_get_one(target: Path) -> None:
    with pytest.raises(UsageError) as caught:
        edgespec.load(str(target), spec_type="peagle", **EXACT)
    assert "'edgespec draft convert OWNER/NAME" in caught.value.hint


@pytest.mark.parametrize(
    ("metadata", "tensors", "why"),
    [
        ({"edgespec-peagle.block_count": 0}, {}, "1 to 16 layers"),
        ({"edgespec-peagle.block_count": 3}, {}, "'blk.2.attn_norm.weight' is missing"),
        ({"edgespec-peagle.block_size": 65}, {}, "it drafts 65 tokens in a pass, not 1 to 64"),
        ({"edgespec-peagle.target_layers": [1, 2]}, {}, "it has to read 3 layers of its target, not (1, 2)"),
        ({"edgespec-peagle.attention.head_count_kv": 3}, {}, "cannot share its keys and values equally"),
        ({"edgespec-peagle.attention.value_length": 8}, {}, "keys of 16 and values of 8 numbers"),
        ({"edgespec-peagle.rope.dimension_count": 18}, {}, "18 rotary dimensions"),
        ({"edgespec-peagle.rope.scaling.type": "longrope"}, {}, "its positions are scaled by 'longrope'"),
        ({"edgespec-peagle.rope.scaling.type": "yarn", "edgespec-peagle.rope.scaling.factor": 0.0}, {}, "of 0.0"),
        ({"tokenizer.ggml.mask_token_id": None}, {}, "no mask token"),
        ({}, {"mask_state.weight": np.full(64, np.inf, np.float32)}, "'mask_state.weight' holds values that are not"),
        ({}, {"mask_state.weight": np.ones((64, 1), np.float32)}, "'mask_state.weight' has the shape (1, 64)"),
        ({}, {"rope_freqs.weight": np.ones(4, np.float32)}, "where (8,) is needed"),
        ({}, {"blk.1.attn_q.bias": np.ones(32, np.float32)}, "where (64,) is needed"),
        ({}, {"blk.1.attn_q.bias": np.ones(64, np.float16)}, "adds in F32 only"),
        ({}, {"blk.1.attn_k_norm.weight": np.ones(64, np.float32)}, "where (16,) is needed"),
        ({}, {"output.weight": None}, "'output.weight' is missing"),
        ({}, {"d2t": np.arange(299) + 1}, "does not fit its vocabulary"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, metadata: Any, tensors: Any, why: str) -> None:
    with pytest.raises(ModelFileError, match=re.escape(why)):
        check_draft_file(write_peagle(tmp_path / "head.gguf", metadata=metadata, tensors=tensors))


def test_heads_for_other_targets_are_refused(tmp_path: Path) -> None:
    head = write_peagle(tmp_path / "head.gguf")
    for architecture, width, why in (("llama", 128, "models of width 64"), ("qwen2", 64, "does not give the inputs")):
        other = write_model(tmp_path / f"{architecture}.gguf", architecture, n_layers=4, width=width)
        with pytest.raises(PairError, match=why):
            load(other, head)


def test_embeddings_are_read_from_the_file(target: Path, tmp_path: Path) -> None:
    path = write_peagle(tmp_path / "head.gguf")
    with LlamaModel(target) as model:
        weights = HeadWeights(check_draft_file(path), model)
        assert np.array_equal(
            weights.embeddings([9, 3, 9]), read_rows(read_header(path), "token_embd.weight", [9, 3, 9])
        )
        assert "token_embd.weight" not in weights.tensors
