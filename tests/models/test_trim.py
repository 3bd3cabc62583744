"""Draft models and draft heads with fewer tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tiny_gguf import EXACT, write_model
from tiny_head import write_block_drafter, write_head

import edgespec
from edgespec.errors import PairError, UsageError
from edgespec.gguf_file.head_check import check_draft_file, read_ids
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.model_check import check_model
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.model import LlamaModel
from edgespec.models.pair.trim import trim, trim_head

TEXT = "def return self.x for the class in print(1): naïve 東京\n"


def ids_of(model: Path, text: str) -> list[int]:
    with LlamaModel.load_vocabulary(model) as vocabulary:
        return vocabulary.tokenize(text)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with byte-level BPE, or with SentencePiece."""
    return write_model(tmp_path_factory.mktemp("trim") / "m.gguf", request.param, n_layers=2, type="Q8_0")


def trimmed(model: Path, out: Path, n_tokens: int, ids: Sequence[int]) -> Path:
    header = check_model(model)
    trim(header, header, out, n_tokens, np.bincount(ids, minlength=header.n_vocab))
    return out


def test_frequent_tokens_are_kept_and_every_text_can_be_spelled(model: Path, tmp_path: Path) -> None:
    n_vocab = read_header(model).n_vocab
    path = trimmed(model, tmp_path / "t.gguf", n_vocab - 20, ids_of(model, " return self"))
    header = check_model(path)
    with LlamaModel.load_vocabulary(model) as whole, LlamaModel.load_vocabulary(path) as part:
        assert part.n_vocab == n_vocab - 20
        texts = {whole.token_bytes(id) for id in whole.tokenize(" return self")}
        assert texts <= {part.token_bytes(id) for id in range(part.n_vocab)}
        assert b"".join(map(part.token_bytes, part.tokenize(TEXT))) == TEXT.encode()
        for role in ("bos", "eos"):
            old, new = getattr(whole, role), getattr(part, role)
            assert whole.token_bytes(old, special=True) == part.token_bytes(new, special=True)
        pieces = {part.token_bytes(id, special=True): id for id in range(part.n_vocab)}
        kept = [(id, pieces[whole.token_bytes(id, special=True)]) for id in whole.tokenize(" return self")]
    rows = {name: read_rows(read_header(model), name) for name in ("token_embd.weight", "output.weight")}
    for name, old in rows.items():
        new = read_rows(header, name)
        assert len(new) == n_vocab - 20
        assert all((old[before] == new[after]).all() for before, after in kept)


def test_a_trimmed_draft_agrees_with_the_model_that_it_was_made_of(model: Path, tmp_path: Path) -> None:
    """It drafts what the whole model drafts, where the text has kept tokens; the text never changes."""
    with edgespec.load(str(model), ctx_size=256, **EXACT, spec_type="none") as llm:
        plain = llm.complete("def the class for", max_tokens=32, temperature=0, ignore_eos=True)
    ids = [*ids_of(model, "def the class for"), *plain.tokens]
    path = trimmed(model, tmp_path / "t.gguf", read_header(model).n_vocab - 20, ids)
    settings: dict[str, Any] = {"spec_type": "draft", "draft_model": str(path), "pace": "fixed:3"}
    with edgespec.load(str(model), ctx_size=256, **EXACT, **settings) as llm:
        drafted = llm.complete("def the class for", max_tokens=32, temperature=0, ignore_eos=True)
    assert drafted.text == plain.text
    assert drafted.stats.accepted > 0.8 * drafted.stats.proposed > 0


def test_what_cannot_be_trimmed_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", "llama")
    header, none = check_model(model), np.zeros(read_header(model).n_vocab, np.int64)
    for n_tokens, why in ((20, "needs"), (100, "are needed to spell every text"), (len(none), "it has")):
        with pytest.raises(UsageError, match=why):
            trim(header, header, tmp_path / "t.gguf", n_tokens, none)
    with pytest.raises(UsageError, match="with itself"):
        trim(header, header, model, len(none) - 20, none)
    other = read_header(write_model(tmp_path / "o.gguf", "llama", metadata={"tokenizer.ggml.model": "rwkv"}))
    with pytest.raises(UsageError, match="'rwkv', not BPE"):
        trim(other, other, tmp_path / "t.gguf", len(none) - 20, none)
    assert not (tmp_path / "t.gguf").exists()


# --- heads ------------------------------------------------------------------------------------------------------------


def write(path: Path, kind: str, **settings: Any) -> Path:
    return write_head(path, **settings) if kind == "eagle3" else write_block_drafter(path, kind, **settings)


def drafts_with(target: Path, head: Path, kind: str) -> tuple[str, list[list[int]]]:
    """Return a text, and the drafts of a head for it."""
    drafts: list[list[int]] = []
    settings: dict[str, Any] = {"spec_type": kind, "draft_model": str(head), "pace": "fixed:3", "ctx_size": 256}
    with edgespec.load(str(target), **EXACT, **settings) as llm:
        [drafter] = llm.engine.speculator.drafters
        propose = drafter.propose

        def kept(*args: Any) -> Any:
            made = propose(*args)
            drafts.extend(draft.tokens for draft in made)
            return made

        with patch.object(drafter, "propose", kept):
            answer = llm.complete("def the class for", max_tokens=32, temperature=0, ignore_eos=True)
        return answer.text, drafts


@pytest.mark.parametrize(
    ("kind", "draft_tokens"),
    [("eagle3", None), ("eagle3", 270), ("dflash", None), ("dspark", None), ("dspark", 270)],
)
def test_a_trimmed_head_drafts_the_same_if_it_has_the_tokens(
    tmp_path: Path, kind: str, draft_tokens: int | None
) -> None:
    """A DFlash head without an output of its own gets rows of the target's."""
    target = write_model(tmp_path / "target.gguf", "llama", n_layers=4, type="Q8_0")
    n_vocab = read_header(target).n_vocab
    ids = None if draft_tokens is None else list(range(n_vocab - draft_tokens, n_vocab))
    whole = check_draft_file(write(tmp_path / "whole.gguf", kind, draft_tokens=ids))
    text, drafts = drafts_with(target, whole.path, kind)
    drafted = {token for draft in drafts for token in draft}
    assert 3 < len(drafted) < 150
    counts = np.bincount([*drafted], minlength=n_vocab)
    trim_head(whole, read_header(target), tmp_path / "part.gguf", 150, counts)
    part = check_draft_file(tmp_path / "part.gguf")
    assert drafted < set(read_ids(part).tolist()) and part.tensors["output.weight"].shape == (64, 150)
    assert drafts_with(target, part.path, kind) == (text, drafts)


def test_the_tokens_of_a_head_are_frequent_ones_and_those_of_low_ids(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target.gguf", "llama", n_layers=4)
    head, counts = read_header(write_head(tmp_path / "head.gguf")), np.zeros(read_header(target).n_vocab, np.int64)
    counts[[200, 7, 250]] = 1, 2, 3
    trim_head(head, read_header(target), tmp_path / "part.gguf", 6, counts)
    part = read_header(tmp_path / "part.gguf")
    assert read_ids(part).tolist() == [0, 1, 2, 7, 200, 250]
    rows = read_rows(head, "output.weight", [0, 1, 2, 7, 200, 250])
    assert (read_rows(part, "output.weight") == rows).all()


def test_heads_that_cannot_be_trimmed_are_refused(tmp_path: Path) -> None:
    target = check_model(write_model(tmp_path / "target.gguf", "llama", n_layers=4))
    none = np.zeros(target.n_vocab, np.int64)
    head = read_header(write_head(tmp_path / "head.gguf"))
    lattice = read_header(write_block_drafter(tmp_path / "dflash2.gguf", "dflash2"))
    with pytest.raises(UsageError, match="only EAGLE-3, DFlash and DSpark heads can be"):
        trim_head(lattice, target, tmp_path / "t.gguf", 100, none)
    with pytest.raises(UsageError, match="it drafts"):
        trim_head(head, target, tmp_path / "t.gguf", target.n_vocab, none)
    with pytest.raises(PairError, match="reads layer 3"):
        short = check_model(write_model(tmp_path / "short.gguf", "llama", n_layers=3))
        trim_head(head, short, tmp_path / "t.gguf", 100, none)
    assert not (tmp_path / "t.gguf").exists()
