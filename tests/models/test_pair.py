"""The results of comparing two headers agree with loading the pair."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from other_vocabulary import permute_vocabulary
from tiny_gguf import (
    ARCHITECTURES,
    HYBRID,
    model_metadata,
    model_tensors,
    write_file,
    write_model,
    write_vocabulary,
)

import edgespec
from edgespec.drafters.translation import Translation, _pieces
from edgespec.errors import PairError
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel, described
from edgespec.llama.quantize import quantize
from edgespec.models.names.local import LocalModel, local_model, local_models
from edgespec.models.names.spec import resolve
from edgespec.models.pair.check import (
    MAX_PADDING,
    PairVerdict,
    check_pair,
    read_bytes,
)
from edgespec.models.pair.suggest import (
    Suggestion,
    best,
    catalogue_drafts,
    instead,
    of_catalogue,
    suggestions,
    to_fetch,
)
from edgespec.models.pair.vocabulary import _BEGIN_WITH_BOS, _SPACES_ESCAPED, _WITHOUT_BOS, Vocabulary
from edgespec.text.figures import count_of

DEMO, DEMO_DRAFT = resolve("demo").path, resolve("demo:draft").path
NORMAL = 1

pytestmark = pytest.mark.usefixtures("home")


def write(path: Path, architecture: str = "llama", *, more: int = 0, strange: int = 0, **tokenizer: Any) -> Path:
    """Write a tiny model with `more` additional tokens; its first `strange` tokens are in no other model."""
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
    if found.reasons:
        with LlamaModel.load_vocabulary(target) as ours, LlamaModel.load_vocabulary(draft) as theirs:
            assert found.overlap == Translation.between(ours, theirs).overlap


# --- vocabularies -----------------------------------------------------------------------------------------------------


def test_the_bundled_pair_works() -> None:
    found = verdict(DEMO, DEMO_DRAFT)
    assert (found.verdict, found.reasons, found.overlap, found.why) == ("works", [], 1.0, "")
    assert found.size.times_smaller == pytest.approx(9966848 / 983520)
    assert str(found.size) == "10 times smaller than the target"
    agrees_with_the_vocabularies(found, DEMO, DEMO_DRAFT)


@pytest.mark.long
def test_other_ids_for_the_same_tokens_are_shared(tmp_path: Path) -> None:
    """A file that was written again is also read again."""
    draft = tmp_path / "permuted.gguf"
    for renamed, why in ((0.0, "vocabulary overlap 100 %"), (0.3, "vocabulary overlap 7")):
        permute_vocabulary(DEMO_DRAFT, draft, renamed=renamed)
        found = verdict(DEMO, draft)
        assert found.verdict == "shared"
        assert found.why.startswith(why)
        agrees_with_the_vocabularies(found, DEMO, draft)
    with edgespec.load("demo", spec_type="draft", draft_model=str(draft), threads=1) as llm:
        assert f"drafts only the tokens that both have ({found.why})" in llm.notes[0]


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
        assert refused.value.why == "; ".join(["vocabulary overlap 3 %", *found.reasons])
        assert found.why == "vocabulary overlap 3 %"
    else:
        with edgespec.load(str(ours), **settings) as llm:
            assert any("different vocabulary" in note for note in llm.notes) == (expected == "shared")


def test_padding_of_one_family_is_no_difference(tmp_path: Path) -> None:
    """Vocabularies that differ by 128 tokens, like those of the small and the large models of Qwen 2.5."""
    metadata = model_metadata("qwen2")
    tokens = [f"t{id}" for id in range(2128)]
    large, small = (write_file(tmp_path / f"{n}.gguf", vocabulary_of(metadata, tokens[:n]), {}) for n in (2128, 2000))
    for target, draft in ((large, small), (small, large)):
        assert check_pair(read_header(target), read_header(draft)).verdict == "works"


def vocabulary_of(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    types = [NORMAL] * len(tokens)
    return metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


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
        with LlamaModel.load_vocabulary(file) as model:
            assert (told.bos, told.eos, told.adds_bos) == (model.bos, model.eos, model.adds_bos)
            assert told.pieces() == list(_pieces(model))


@pytest.mark.parametrize("odd", [[b"\xff\xfe", "\u65e5".encode(), b"\xc4", b""], [b"a\0b", b"\xff\0", b"\0"]])
def test_texts_outside_the_alphabet_stand_for_themselves(tmp_path: Path, odd: list[bytes]) -> None:
    metadata = model_metadata("llama")
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    usual, other = (tmp_path / f"{name}.gguf" for name in ("usual", "other"))
    write_file(usual, metadata, {})
    write_file(other, metadata | {"tokenizer.ggml.tokens": [*odd, *tokens[len(odd) :]]}, {})
    wanted, found = (Vocabulary.of(read_header(file)) for file in (usual, other))
    assert found.pieces() == odd + wanted.pieces()[len(odd) :]


@pytest.mark.slow
# --- memories that cannot be rolled back ------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *HYBRID])
def test_who_can_draft_and_who_can_be_drafted_for_is_known_by_the_architecture(
    tmp_path: Path, architecture: str
) -> None:
    other, usual = write_model(tmp_path / "other.gguf", architecture), write_model(tmp_path / "usual.gguf", "llama")
    with LlamaModel(other) as model, Context(model, ContextParams(n_ctx=64, rollback=3)) as context:
        as_draft, as_target = verdict(usual, other), verdict(other, usual)
        why = f"the state of a {architecture} model cannot be rolled back"
        assert (why in as_draft.reasons) == (as_draft.verdict == "no") == (not model.can_roll_back)
        assert (why in as_target.reasons) == (as_target.verdict == "no") == (not context.rollback)
        for found in (as_draft, as_target):
            assert found.why == why if why in found.reasons else found.verdict != "no"


def test_a_draft_that_cannot_roll_back_is_refused_for_the_reason_given(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "target.gguf", "llama"), write_model(tmp_path / "draft.gguf", "mamba")
    with pytest.raises(PairError) as refused:
        edgespec.load(str(target), spec_type="draft", draft_model=str(draft), threads=1)
    assert [refused.value.why] == verdict(target, draft).reasons


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_model_is_described_by_its_own_size(tmp_path: Path) -> None:
    for n_layers in (2, 30):  # llama.cpp treats every llama of 30 layers as a model of 256M
        header = check_model(write_model(tmp_path / "model.gguf", "llama", n_layers=n_layers, type="Q8_0"))
        with LlamaModel(header) as model:
            assert described(model.header) == f"llama {count_of(header.n_params)} Q8_0"


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *HYBRID])
def test_sizes_are_counted_as_when_loaded(tmp_path: Path, architecture: str) -> None:
    header = check_model(write_model(tmp_path / "model.gguf", architecture))
    with LlamaModel(header) as model:
        assert header.n_params == model.n_params
        assert header.number("block_count") == model.n_layer  # which determines the cache


def test_the_size_of_a_draft_is_reported_against_the_rule_of_thumb(tmp_path: Path) -> None:
    wide, narrow = (write_model(tmp_path / f"{width}.gguf", "llama", width=width) for width in (128, 64))
    twin = write_model(tmp_path / "twin.gguf", "llama", width=128, seed=1)
    sizes = [verdict(target, draft).size for target, draft in ((narrow, wide), (wide, twin), (wide, wide))]
    assert [str(size) for size in sizes] == [
        "larger than the target: it would slow decoding down",
        "as large as the target: it would slow decoding down",
        "as large as the target: it would slow decoding down",
    ]
    assert all(size.slows_down for size in sizes)
    assert not verdict(wide, narrow).size.slows_down
    assert str(verdict(wide, narrow).size).startswith("only 3.")


def test_the_same_model_in_smaller_types_slows_nothing_down(tmp_path: Path) -> None:
    usual, small = tmp_path / "usual.gguf", tmp_path / "small.gguf"
    write_model(usual, "llama", width=256)
    quantize(usual, small, "Q8_0")
    size = verdict(usual, small).size
    assert str(size) == "as many parameters as the target, with smaller weights: a draft pass reads 27 % as much"
    assert not size.slows_down
    assert str(verdict(small, usual).size) == "as large as the target: it would slow decoding down"
    (found,) = suggestions(check_model(usual), [local_model(str(small))])
    assert (found.verdict, found.why) == ("works", str(size))
    assert best([found]) is None


def test_of_an_embedding_and_of_experts_a_pass_reads_what_it_uses(tmp_path: Path) -> None:
    dense, tied, experts = (
        check_model(write_model(tmp_path / f"{name}.gguf", name)) for name in ("llama", "gemma", "qwen2moe")
    )
    embedding = dense.tensors["token_embd.weight"].size_bytes
    assert read_bytes(dense) == dense.weights_bytes - embedding
    assert read_bytes(tied) == tied.weights_bytes  # its embedding is its output
    unused = sum(tensor.size_bytes for name, tensor in experts.tensors.items() if "_exps." in name) // 2  # 2 of 4
    assert read_bytes(experts) == experts.weights_bytes - unused - experts.tensors["token_embd.weight"].size_bytes


# --- in detail --------------------------------------------------------------------------------------------------------


# --- suggestions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, LocalModel]:
    """A folder with models, named by the expected result."""
    write_model(tmp_path / "target.gguf", "llama", width=256)
    write_model(tmp_path / "usual.gguf", "llama", width=64, n_layers=4)
    write_model(tmp_path / "tiny.gguf", "llama", width=32)
    write_model(tmp_path / "close.gguf", "llama", width=192)
    write(tmp_path / "shared.gguf", strange=50)
    write(tmp_path / "strange.gguf", strange=290)
    write(tmp_path / "foreign.gguf", strange=200)  # it can be used with -md
    write_model(tmp_path / "large.gguf", "llama", width=384)
    write_model(tmp_path / "recurrent.gguf", "mamba")
    write_vocabulary(tmp_path / "tokens.gguf")
    (tmp_path / "copy.gguf").write_bytes((tmp_path / "target.gguf").read_bytes())
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    return {model.path.stem: model for model in local_models() if model.path.parent == tmp_path}


@pytest.mark.slow
def test_the_best_comes_first_and_the_rest_has_reasons(family: dict[str, LocalModel]) -> None:
    target = family["target"].header
    assert target is not None
    found = {Path(each.spec).stem: each for each in suggestions(target, family.values())}
    assert list(found)[:4] == ["usual", "tiny", "close", "shared"]
    assert [found[name].verdict for name in list(found)[:4]] == ["works", "works", "works", "shared"]
    assert found["close"].why.startswith("only 1.")
    assert {name: each.why for name, each in found.items() if each.verdict == "no"} == {
        "strange": "vocabulary overlap 3 %, too little to pay off",
        "foreign": "vocabulary overlap 33 %, too little to pay off",
        "recurrent": "the state of a mamba model cannot be rolled back",
        "large": "larger than the target: it would slow decoding down",
        "copy": "as large as the target: it would slow decoding down",
        "tokens": "it has only a vocabulary, no weights",
    }
    assert [name for name, each in found.items() if each.slows_down] == ["copy", "large"]
    assert {each.label for each in found.values()} == {"works", "shared", "no", "large"}
    assert all(each.is_here for each in found.values())


@pytest.mark.slow
def test_those_nearest_to_the_rule_of_thumb_come_first(tmp_path: Path) -> None:
    target = check_model(write_model(tmp_path / "target.gguf", "llama", width=768))
    for width, n_layers in ((32, 1), (128, 3), (192, 3), (640, 2)):
        write_model(tmp_path / f"{width}.gguf", "llama", width=width, n_layers=n_layers)
    found = suggestions(target, (local_model(str(path)) for path in tmp_path.glob("[0-9]*.gguf")))
    sizes = [(Path(each.spec).stem, each.times_smaller) for each in found]
    assert [name for name, _ in sizes] == ["192", "128", "32", "640"], sizes


def test_what_can_be_done_without_a_draft_is_reported(family: dict[str, LocalModel], tmp_path: Path) -> None:
    target = family["usual"].header
    assert target is not None
    found = suggestions(target, [family["large"], family["strange"]])
    assert instead(found).startswith("no model here can draft for it, and the catalogue has none; ")
    absent = [*to_fetch(catalogue_drafts("qwen2.5-7b", tmp_path / "x.gguf"))]
    assert (
        instead([*found, *absent])
        == "no model here can draft for it; 'edgespec pull qwen2.5-0.5b' downloads one that can"
    )
    assert instead([*suggestions(target, [family["tiny"]]), *absent]) == ""


def test_what_is_taken_without_asking_works_and_is_a_good_deal_smaller(family: dict[str, LocalModel]) -> None:
    def taken(*names: str) -> Suggestion | None:
        target = family["target"].header
        assert target is not None
        return best(suggestions(target, [family[name] for name in names]))

    chosen = taken(*family)
    assert chosen is not None
    assert Path(chosen.spec).stem == "usual"
    assert taken("close", "shared", "strange", "large") is None


def test_drafts_of_the_catalogue_follow_until_they_are_here(
    family: dict[str, LocalModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    target, usual = family["target"].header, family["usual"]
    assert target is not None
    for spec, file in (
        ("qwen2.5-7b", tmp_path / "x.gguf"),
        ("./x", tmp_path / "qwen2.5-7b-instruct-q4_k_m.gguf"),
        ("./y", snapshot(tmp_path / "hub", "Qwen/Qwen2.5-7B-Instruct-GGUF") / "y.gguf"),
    ):
        assert [entry.name for entry in catalogue_drafts(spec, file)] == ["qwen2.5-0.5b", "qwen2.5-1.5b"]
    assert catalogue_drafts("demo", DEMO) == []
    entries = catalogue_drafts("qwen2.5-7b", tmp_path / "x.gguf")
    found = suggestions(target, [usual, family["large"]], entries)
    assert [(each.spec, each.is_here) for each in found[1:3]] == [("qwen2.5-0.5b", False), ("qwen2.5-1.5b", False)]
    assert found[1].why.endswith("edgespec pull qwen2.5-0.5b")
    assert best(found[1:]) is None
    folder = snapshot(tmp_path / "hub", entries[0].repository)
    folder.mkdir(parents=True)
    (folder.parent.parent / "refs").mkdir()
    (folder.parent.parent / "refs" / "main").write_text(folder.name, encoding="ascii")
    (folder / "model-q8_0.gguf").write_bytes(usual.path.read_bytes())
    assert [each.spec for each in suggestions(target, [], entries)] == ["qwen2.5-1.5b"]
    told = [(each.spec, each.is_here) for each in of_catalogue(entries)]
    assert told == [("Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0", True), ("qwen2.5-1.5b", False)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("qwen2.5-7b", ["qwen2.5-0.5b", "qwen2.5-1.5b"]),
        ("QWEN2.5-7B:q8_0", ["qwen2.5-0.5b", "qwen2.5-1.5b"]),
        ("hf:Qwen/Qwen2.5-7B-Instruct-GGUF", ["qwen2.5-0.5b", "qwen2.5-1.5b"]),
        ("someone/qwen2.5-7b-instruct-gguf:Q5_K_M", ["qwen2.5-0.5b", "qwen2.5-1.5b"]),
        ("someone/another-GGUF", []),
    ],
)
def test_the_catalogue_knows_drafts_of_what_is_not_here(spec: str, expected: list[str]) -> None:
    assert [entry.name for entry in catalogue_drafts(spec, None)] == expected


def snapshot(hub: Path, repository: str) -> Path:
    return hub / f"models--{repository.replace('/', '--')}" / "snapshots" / ("0" * 40)


# --- what it takes ----------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_for_it() -> None:
    code = f"""if True:
        import sys
        from edgespec.gguf_file.model_check import check_model
        from edgespec.models.pair.check import check_pair
        found = check_pair(check_model({str(DEMO)!r}), check_model({str(DEMO_DRAFT)!r}))
        print(found.verdict, "llama_cpp" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["works", "False"]
