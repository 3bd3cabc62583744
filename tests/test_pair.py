"""What is told of a pair from two headers is what loading it says and does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from other_vocabulary import permute_vocabulary
from tiny_gguf import ARCHITECTURES, HYBRID, model_metadata, model_tensors, write_file, write_model

import edgespec
from edgespec.drafters.translation import Translation, _pieces
from edgespec.errors import PairError
from edgespec.header import read_header
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.model_check import check_model
from edgespec.models.pair import (
    MAX_PADDING,
    PairVerdict,
    check_pair,
    memory_bytes,
)
from edgespec.models.spec import resolve
from edgespec.models.vocabulary import _BEGIN_WITH_BOS, _SPACES_ESCAPED, _WITHOUT_BOS, Vocabulary

DEMO, DEMO_DRAFT = resolve("demo").path, resolve("demo:draft").path
NORMAL = 1

pytestmark = pytest.mark.usefixtures("home")


def write(path: Path, architecture: str = "llama", *, more: int = 0, strange: int = 0, **tokenizer: Any) -> Path:
    """A tiny model with `more` tokens after the usual ones, and so many of the first ones that nobody else has."""
    metadata = model_metadata(architecture)
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    types: Any = metadata["tokenizer.ggml.token_type"]
    tokens = [f"\u0378{id}" if id < strange else text for id, text in enumerate(tokens)]
    metadata |= {
        "tokenizer.ggml.tokens": tokens + [f"<pad{n}>" for n in range(more)],
        "tokenizer.ggml.token_type": types + [NORMAL] * more,
    }
    if "tokenizer.ggml.scores" in metadata:
        metadata["tokenizer.ggml.scores"] = [0.0] * (len(tokens) + more)
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    return write_file(path, metadata, model_tensors(architecture, metadata))


def verdict(target: Path, draft: Path) -> PairVerdict:
    return check_pair(check_model(target), check_model(draft))


def agrees_with_the_vocabularies(found: PairVerdict, target: Path, draft: Path) -> None:
    with Model(target) as ours, Model(draft) as theirs:
        if found.reasons:
            assert found.overlap == Translation.between(ours, theirs).overlap


# --- vocabularies -----------------------------------------------------------------------------------------------------


def test_the_bundled_pair_works() -> None:
    found = verdict(DEMO, DEMO_DRAFT)
    assert (found.verdict, found.reasons, found.overlap, found.summary) == ("works", [], 1.0, "works")
    assert found.times_smaller == pytest.approx(9966848 / 983520)
    assert found.size == "10 times smaller than the target"
    agrees_with_the_vocabularies(found, DEMO, DEMO_DRAFT)


@pytest.mark.parametrize(("renamed", "summary"), [(0.0, "works through 100 % shared tokens"), (0.3, "works through 7")])
def test_other_ids_for_the_same_tokens_are_shared(tmp_path: Path, renamed: float, summary: str) -> None:
    draft = tmp_path / "permuted.gguf"
    permute_vocabulary(DEMO_DRAFT, draft, renamed=renamed)
    found = verdict(DEMO, draft)
    assert found.verdict == "shared"
    assert found.summary.startswith(summary)
    agrees_with_the_vocabularies(found, DEMO, draft)
    with edgespec.load("demo", spec_type="draft", draft_model=str(draft), threads=1) as llm:
        shared = found.summary.removeprefix("works through ").removesuffix(" shared tokens")
        assert f"it guesses the {shared} of the target's tokens it shares" in llm.notes[0]


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        ({}, {}, "works"),
        ({"more": MAX_PADDING}, {}, "works"),
        ({}, {"more": MAX_PADDING}, "works"),
        ({"more": MAX_PADDING + 1}, {}, "shared"),
        ({}, {"more": MAX_PADDING + 1}, "shared"),
        ({}, {"strange": 100}, "shared"),
        ({}, {"strange": 290}, "no"),
        ({}, {"add_bos_token": True}, "shared"),
        ({"architecture": "gemma"}, {}, "shared"),
        ({}, {"architecture": "gemma"}, "shared"),
    ],
)
def test_verdicts_are_those_of_loading(
    tmp_path: Path, target: dict[str, Any], draft: dict[str, Any], expected: str
) -> None:
    ours, theirs = write(tmp_path / "target.gguf", **target), write(tmp_path / "draft.gguf", **draft)
    found = verdict(ours, theirs)
    assert found.verdict == expected
    agrees_with_the_vocabularies(found, ours, theirs)
    settings: dict[str, Any] = {"spec_type": "draft", "draft_model": str(theirs), "threads": 1, "ctx_size": 64}
    if expected == "no":
        with pytest.raises(PairError) as refused:
            edgespec.load(str(ours), **settings)
        assert refused.value.why == "; ".join(found.reasons)
        assert found.summary == "no: shares 3 % of the tokens"
    else:
        with edgespec.load(str(ours), **settings) as llm:
            assert any("another vocabulary" in note for note in llm.notes) == (expected == "shared")


RULES = sorted((_BEGIN_WITH_BOS | _WITHOUT_BOS | _SPACES_ESCAPED) - {"gemma4"})


@pytest.mark.parametrize(
    ("architecture", "tokenizer"),
    [
        *(("llama", {"pre": rule}) for rule in (*RULES, "qwen2", "gpt-2", "deepseek-v3", "smollm")),
        ("llama", {"model": "gemma4"}),
        ("llama", {"model": "hybriddna"}),
        ("gemma", {"model": "llama"}),
        ("gemma", {"model": "plamo2"}),
    ],
)
def test_tokens_stand_for_what_llama_says(tmp_path: Path, architecture: str, tokenizer: dict[str, str]) -> None:
    metadata = model_metadata(architecture) | {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    if tokenizer.get("pre") in _SPACES_ESCAPED or tokenizer.get("model") == "gemma4":
        tokens: Any = metadata["tokenizer.ggml.tokens"]
        metadata["tokenizer.ggml.tokens"] = ["▁x" if text == "Ġx" else text for text in tokens]
    for unsaid in ((), ("add_bos_token",), ("add_bos_token", "bos_token_id", "eos_token_id")):
        said = {key: value for key, value in metadata.items() if key.removeprefix("tokenizer.ggml.") not in unsaid}
        file = write_file(tmp_path / "vocabulary.gguf", said, {})
        told = Vocabulary.of(read_header(file))
        with Model.load_vocabulary(file) as model:
            assert (told.bos, told.eos, told.adds_bos) == (model.bos, model.eos, model.adds_bos)
            assert told.pieces() == list(_pieces(model))


# --- memories that cannot be rolled back ------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *HYBRID])
def test_who_can_draft_and_who_can_be_drafted_for_is_known_by_the_architecture(
    tmp_path: Path, architecture: str
) -> None:
    other, usual = write_model(tmp_path / "other.gguf", architecture), write_model(tmp_path / "usual.gguf", "llama")
    with Model(other) as model, Context(model, n_ctx=64, rollback=3) as context:
        as_draft, as_target = verdict(usual, other), verdict(other, usual)
        why = f"the memory of a {architecture} model cannot be rolled back"
        assert (why in as_draft.reasons) == (as_draft.verdict == "no") == (not model.can_roll_back)
        assert (why in as_target.reasons) == (as_target.verdict == "no") == (not context.rollback)
        for found in (as_draft, as_target):
            assert found.summary == f"no: {why}" if why in found.reasons else found.summary.startswith("works")


def test_a_draft_that_cannot_roll_back_is_refused_for_the_reason_given(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "target.gguf", "llama"), write_model(tmp_path / "draft.gguf", "mamba")
    with pytest.raises(PairError) as refused:
        edgespec.load(str(target), spec_type="draft", draft_model=str(draft), threads=1)
    assert [refused.value.why] == verdict(target, draft).reasons


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *HYBRID])
def test_sizes_are_counted_as_when_loaded(tmp_path: Path, architecture: str) -> None:
    header = check_model(write_model(tmp_path / "model.gguf", architecture))
    with Model(header) as model:
        assert header.n_params == model.n_params
        assert header.number("block_count") == model.n_layer  # by which the cache is counted
    assert memory_bytes(header, 100) - memory_bytes(header, 0) == 200 * sum(header.kv_values_per_token)


def test_the_size_of_a_draft_is_told_against_the_rule_of_thumb(tmp_path: Path) -> None:
    wide, narrow = (write_model(tmp_path / f"{width}.gguf", "llama", width=width) for width in (128, 64))
    assert verdict(narrow, wide).size == "larger than the target: it will slow it down"
    assert verdict(wide, wide).size == "as large as the target: it will slow it down"
    assert verdict(wide, narrow).size.startswith("only 3.")
    assert verdict(wide, narrow).memory_bytes < verdict(narrow, wide).memory_bytes


def test_nothing_is_loaded_for_it() -> None:
    code = f"""if True:
        import sys
        from edgespec.model_check import check_model
        from edgespec.models.pair import check_pair
        found = check_pair(check_model({str(DEMO)!r}), check_model({str(DEMO_DRAFT)!r}))
        print(found.verdict, "llama_cpp" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["works", "False"]
