"""The output of an MTP block for some tokens: its logits, and what a block drafts with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_mtp import write_mtp

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.gguf_file.head_check import output_of_block
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.weights import read_rows
from edgespec.llama import head_context
from edgespec.llama.graph import Processor
from edgespec.llama.head_context import TrimmedOutput
from edgespec.runtime import drafting
from edgespec.settings import Request

ROWS, N_VOCAB = 64, 299
TRIMMED = ("qwen35", "qwen35moe", "glm4moe", "deepseek2", "deepseek32", "glm-dsa", "bailingmoe3", "nemotron_h_moe")
PROMPT = "def the class for x in the list: return the one, or print it"


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (head_context, drafting):
        monkeypatch.setattr(module, "TRIMMED_ROWS", ROWS)


def output(path: Path, counts: np.ndarray) -> tuple[TrimmedOutput, np.ndarray]:
    """Return a trimmed output, and the whole matrix."""
    header = read_header(write_mtp(path))
    name = output_of_block(header)
    return TrimmedOutput(header, name, counts, Processor(1)), read_rows(header, name)


def test_it_has_the_logits_of_frequent_tokens_and_then_of_low_ids(tmp_path: Path) -> None:
    counts = np.zeros(N_VOCAB, np.int64)
    counts[[200, 250]] = 3, 1
    trimmed, matrix = output(tmp_path / "mtp.gguf", counts)
    state = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    logits = trimmed(state)
    kept = [*range(ROWS - 2), 200, 250]
    assert np.flatnonzero(np.isfinite(logits)).tolist() == kept
    assert np.allclose(logits[kept], matrix[kept] @ state, atol=1e-3)


def test_tokens_of_a_text_are_added_and_replace_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_context, "MOST_ADDED", 3)
    trimmed, matrix = output(tmp_path / "mtp.gguf", np.zeros(N_VOCAB, np.int64))
    state = np.ones(64, np.float32)
    for tokens, added in (
        ([5, 100, 100], [100]),
        ([-1, 200, 290], [100, 200, 290]),
        ([150, N_VOCAB], [150, 200, 290]),
        ([290, 280, 270], [270, 280, 290]),  # one of this text is not dropped for another one
    ):
        trimmed.cover(tokens)
        logits = trimmed(state)
        assert np.flatnonzero(np.isfinite(logits)).tolist() == [*range(ROWS), *added]
        assert np.allclose(logits[added], matrix[added] @ state, atol=1e-3)


def answer(target: Path, **settings: object) -> tuple[list[int], edgespec.Stats]:
    chosen = {"spec_type": "mtp", "pace": "fixed:3", "ctx_size": 512, "threads": 1, "store": False, **settings}
    with edgespec.load(str(target), **chosen) as llm:  # type: ignore[arg-type]
        request = Request(prompt=PROMPT, max_tokens=60, sampling=SamplingSettings(temperature=0), ignore_eos=True)
        return [event.id for event in llm.submit(request) if event.id >= 0], llm.stats


@pytest.mark.parametrize("architecture", TRIMMED)
def test_a_block_drafts_the_tokens_that_it_has(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the model writes, if its answers are known; and if not, what is in the prompt and of low ids."""
    target = write_mtp(tmp_path / "mtp.gguf", architecture, knows_bigrams=True)
    text, _ = answer(target, spec_type="none")
    found, few = answer(target)
    written = np.bincount(text, minlength=N_VOCAB)
    monkeypatch.setattr(drafting, "token_counts", lambda *_: written)
    again, most = answer(target)
    assert found == again == text
    assert few.proposed > 0
    assert most.acceptance_rate > max(0.9, few.acceptance_rate)


def test_other_blocks_keep_the_whole_output(tmp_path: Path) -> None:
    for architecture in ("mimo2", "step35", "deepseek4", "cohere2moe"):
        assert not output_of_block(read_header(write_mtp(tmp_path / f"{architecture}.gguf", architecture)))


def test_stored_answers_choose_the_tokens_without_suffix_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    target = write_mtp(tmp_path / "mtp.gguf", knows_bigrams=True)
    _, unknown = answer(target, store=True)
    text, _ = answer(target, spec_type="suffix,mtp", store=True)
    found, known = answer(target, store=True)
    assert found == text
    assert known.acceptance_rate > max(0.9, unknown.acceptance_rate)
