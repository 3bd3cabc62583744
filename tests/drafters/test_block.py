"""Block drafters: what they read and draft, and that the text never changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import EXACT, write_model
from tiny_head import write_bigram, write_block_drafter

import edgespec
from edgespec.core.draft import Draft
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.base import Drafter
from edgespec.errors import ModelFileError
from edgespec.gguf_file.head_check import check_draft_file, kind_of_head
from edgespec.settings import Message, Request

KINDS = ["dflash", "dspark", "dflash2"]
PROMPT = "def the class for x in the list: return the one, or print it"


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bigram(tmp_path_factory.mktemp("blocks") / "bigram.gguf")


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_block_drafter(
        tmp_path_factory.mktemp("blocks") / "knowing.gguf", "dspark", knows_bigrams=True, has_vocabulary=False
    )


def load(target: Path, head: Path | None, **settings: object) -> edgespec.LLM:
    chosen: dict[str, object] = {"spec_type": "none"}
    if head is not None:
        kind = kind_of_head(check_draft_file(head))
        chosen = {"spec_type": kind, "draft_model": str(head), "pace": "fixed:4"}
    return edgespec.load(str(target), **{"ctx_size": 512, **EXACT, **chosen, **settings})


def texts(llm: edgespec.LLM, prompts: list[str], temperature: float = 0.0, **settings: Any) -> list[list[int]]:
    found = []
    for seed, prompt in enumerate(prompts):
        sampling = SamplingSettings(temperature=temperature)
        request = Request(prompt=prompt, max_tokens=40, sampling=sampling, seed=seed, ignore_eos=True, **settings)
        found.append([event.id for event in llm.submit(request) if event.id >= 0])
    return found


class Spied:
    """Keeps the drafts of a drafter."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafts: list[Draft] = []
        self._propose = drafter.propose
        drafter.propose = self.propose  # type: ignore[method-assign,assignment]

    def propose(self, *given: Any) -> list[Draft]:
        found = self._propose(*given)
        self.drafts += found
        return found


@pytest.mark.long(but=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tree", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "lfm2", "qwen35", "nemotron_h"])
def test_texts_stay_what_they_are(tmp_path: Path, architecture: str, kind: str, tree: int, temperature: float) -> None:
    target = write_model(tmp_path / "target.gguf", architecture, n_layers=4)
    head = write_block_drafter(tmp_path / "head.gguf", kind, architecture=architecture)
    prompts = [PROMPT * times for times in (1, 3, 8)]
    with load(target, None) as plain, load(target, head, spec_tree=tree) as llm:
        assert texts(llm, prompts, temperature) == texts(plain, prompts, temperature)
        assert llm.stats.proposed > 40


@pytest.mark.parametrize("tree", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_head_that_predicts_as_the_target_is_accepted(
    bigram: Path, knowing: Path, tree: int, temperature: float
) -> None:
    """With noise, the drafted tokens are seldom the ones that llama.cpp assumed for the next place."""
    with load(bigram, None) as plain, load(bigram, knowing, spec_tree=tree) as llm:
        assert texts(llm, [PROMPT], temperature) == texts(plain, [PROMPT], temperature)
        assert llm.stats.acceptance_rate > (0.95 if tree == 1 else 0.6)  # in a tree, some branches must be wrong
        assert llm.stats.tokens_per_round > 3


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_it_drafts_under_the_other_rules(bigram: Path, knowing: Path, verify: str) -> None:
    with load(bigram, knowing) as llm:
        texts(llm, [PROMPT], 0.9, verify=verify)
        assert llm.stats.acceptance_rate > 0.9


def test_several_sequences_and_long_prompts_are_read(bigram: Path, knowing: Path) -> None:
    """Prompts take several batches of the target and of the head, and begin alike or not: the head has not seen the
    beginning of a copied prompt."""
    requests = [
        Request(prompt=f"{times} {PROMPT * times}", max_tokens=30, ignore_eos=True) for times in (1, 25, 4, 2, 3)
    ]
    with load(bigram, knowing, sequences=4, ctx_size=2048) as llm:
        answers: dict[int, list[edgespec.TokenEvent]] = {}
        for index, event in llm.stream(iter(requests)):
            assert isinstance(event, edgespec.TokenEvent)
            answers.setdefault(index, []).append(event)
    with load(bigram, None, ctx_size=2048) as plain:
        for index, request in enumerate(requests):
            stats = answers[index][-1].stats
            assert stats is not None
            assert stats.acceptance_rate > 0.9
            assert [event.id for event in plain.submit(request)] == [event.id for event in answers[index]]


def test_a_continued_chat_reads_what_is_new(bigram: Path, knowing: Path) -> None:
    messages = [Message("user", PROMPT)]
    with load(bigram, knowing, ctx_size=2048) as llm:
        for turn in range(3):
            answer = llm.complete(messages, max_tokens=30, ignore_eos=True)
            assert answer.stats.acceptance_rate > 0.9
            assert (answer.stats.cached_tokens > 0) == (turn > 0)
            messages += [Message("assistant", answer.text, tuple(answer.tokens)), Message("user", "and then?")]


def test_a_context_that_is_nearly_full_gets_shorter_drafts(bigram: Path, knowing: Path) -> None:
    with load(bigram, None, ctx_size=64) as plain, load(bigram, knowing, ctx_size=64) as llm:
        answers = [[event.id for event in each.generate("def", ignore_eos=True)] for each in (plain, llm)]
    assert answers[0] == answers[1]
    assert len(answers[0]) > 50
    assert [*llm.notes] == ["the context of 64 tokens is full"]


def test_it_drafts_only_the_tokens_that_it_knows(tmp_path: Path, bigram: Path) -> None:
    known = list(range(40, 200))
    for kind in KINDS:
        head = write_block_drafter(tmp_path / f"{kind}.gguf", kind, draft_tokens=known)
        with load(bigram, head, spec_tree=4) as llm:
            (drafter,) = llm.engine.speculator.drafters
            spied = Spied(drafter)
            texts(llm, [PROMPT])
        assert {token for draft in spied.drafts for token in draft.tokens} <= {*known}
        assert len(spied.drafts) > 5


def test_the_confidence_of_the_head_counts(bigram: Path, tmp_path: Path) -> None:
    expected = []
    for bias in (-4.0, 4.0):
        tensors = {"conf_proj.weight": np.zeros((1, 72), np.float32), "conf_proj.bias": np.array([bias], np.float32)}
        head = write_block_drafter(tmp_path / f"{bias}.gguf", "dspark", tensors=tensors)
        with load(bigram, head) as llm:
            spied = Spied(llm.engine.speculator.drafters[0])
            texts(llm, [PROMPT])
        expected.append(spied.drafts[0].confidence[0])
    ratio = np.sqrt((1 + np.exp(4)) / (1 + np.exp(-4)))  # of the two estimates of the heads
    assert expected[1] / expected[0] == pytest.approx(ratio, rel=1e-3)


def test_passes_of_a_block_drafter_without_texts_are_timed(bigram: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        with load(bigram, write_block_drafter(tmp_path / f"{kind}.gguf", kind)) as llm:
            assert llm.measure_costs([1, 2], repeat=1)["step"]["dspark" if kind == "dspark" else "dflash"] > 0


@pytest.mark.parametrize(
    ("kind", "metadata", "tensors", "why"),
    [
        ("dflash", {"dflash.hyper_connection.count": 4}, {}, "DeepSeek-V4"),
        ("dflash", {"dflash.block_count": 0}, {}, "1 to 16 layers"),
        ("dflash", {"dflash.block_size": 1}, {}, "blocks of 1 tokens"),
        ("dflash", {"dflash.block_size": 100}, {}, "blocks of 100 tokens"),
        ("dflash", {"dflash.target_layers": None}, {}, "does not name the layers"),
        ("dflash", {"tokenizer.ggml.mask_token_id": None}, {}, "no mask token"),
        ("dflash", {"tokenizer.ggml.mask_token_id": 9999}, {}, "no mask token"),
        ("dflash", {"dflash.attention.value_length": 32}, {}, "keys of 16 and values of 32"),
        ("dflash", {"dflash.attention.head_count_kv": 3}, {}, "equally"),
        ("dflash", {"dflash.rope.dimension_count": 400}, {}, "400 rotary dimensions"),
        ("dflash", {}, {"fc.weight": None}, "is missing"),
        ("dflash", {}, {"blk.1.ffn_down.weight": None}, "is missing"),
        ("dflash", {"dflash.attention.head_count": 2}, {}, "'blk.0.attn_q.weight' has the shape"),
        ("dflash", {}, {"blk.1.attn_q_norm.weight": None}, "is missing"),
        ("dflash", {}, {"enc.output_norm.weight": np.full(64, np.nan, np.float32)}, "not numbers"),
        ("dflash", {}, {"output.weight": np.zeros((7, 64), np.float32)}, "has the shape"),
        ("dspark", {"dflash.block_size": None}, {}, "how long its blocks are"),
        ("dspark", {}, {"markov_w2.weight": None}, "is missing"),
        ("dspark", {}, {"markov_w2.weight": np.zeros((299, 9), np.float32)}, "has the shape"),
        ("dflash2", {"dflash.selector_top_k": 40}, {}, "do not fit its width"),
        ("dflash2", {"dflash.conv_group_size": 15}, {}, "do not fit its width"),
        ("dflash2", {}, {"selector_successor.weight": None}, "is missing"),
    ],
)
def test_a_broken_head_is_refused(
    tmp_path: Path, kind: str, metadata: dict[str, Any], tensors: dict[str, Any], why: str
) -> None:
    with pytest.raises(ModelFileError, match=why):
        check_draft_file(write_block_drafter(tmp_path / "head.gguf", kind, metadata=metadata, tensors=tensors))
