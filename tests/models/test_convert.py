"""Converted heads: llama.cpp computes what the published layout defines, and other files are refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_heads import KV_HEADS, WIDTH, Reference, config, drawn, eagle3, layer, write_head, write_safetensors
from tiny_gguf import EXACT, model_metadata, write_model

import edgespec
from edgespec.core.batch import Batch
from edgespec.errors import ModelFileError, PairError, UsageError
from edgespec.gguf_file.head_check import check_draft_file, check_head_fits, kind_of_head, layers_read, read_ids
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.eagle_context import EagleContext
from edgespec.llama.head_context import HeadContext
from edgespec.llama.model import LlamaModel
from edgespec.models.pair.convert import convert_head

IDS = [3, 9, 60, 61, 62, 70, 97, 110, 200, 256, 270, 290]
TOKENS = [40, 41, 77, 290, 12, 270, 5, 110]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("convert") / "target.gguf", "llama", n_layers=4)


def converted(folder: Path, target: Path, type: str = "F16") -> Path:
    out = folder.parent / "head.gguf"
    convert_head(folder, read_header(target), out, type)
    return out


def layouts() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The settings and the tensors of the three layouts of an EAGLE-3 head."""
    own = eagle3(IDS)
    more = {"embed_tokens.weight": (len_vocab(), WIDTH), "input_norm.weight": (3 * WIDTH,)}
    added = {name: drawn(np.random.default_rng(9), shape) for name, shape in more.items()}
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    speculators = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": config(),
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    return {
        "authors": (config(draft_vocab_size=len(IDS)), own | {"t2d": np.isin(np.arange(len_vocab()), IDS)}),
        "specforge": (config(**nested), own | added),
        "speculators": (speculators, {name.replace("midlayer.", "layers.0."): own[name] for name in own}),
    }


def len_vocab() -> int:
    return len(model_metadata("llama")["tokenizer.ggml.tokens"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "layers"), [("authors", (2, 2, 1)), ("specforge", (1, 2, 3)), ("speculators", (1, 2, 3))]
)
@pytest.mark.parametrize("kind", [HeadContext, EagleContext])
def test_a_head_computes_what_the_published_layout_defines(
    target: Path, tmp_path: Path, layout: str, layers: tuple[int, ...], kind: type[HeadContext | EagleContext]
) -> None:
    settings, tensors = layouts()[layout]
    path = converted(write_head(tmp_path / "published", settings, tensors), target)
    header = check_draft_file(path)
    check_head_fits(read_header(target), header)
    assert layers_read(header) == layers
    assert read_ids(header).tolist() == IDS
    n = len(TOKENS)
    with (
        LlamaModel(target) as model,
        Context(model, ContextParams(n_ctx=32, max_outputs=n, threads=1)) as context,
        LlamaModel(path) as loaded,
        kind(loaded, context, ContextParams(threads=1, n_ctx=32, n_batch=32, max_outputs=32)) as head,
    ):
        context.watch_layers(head.reads)
        context.decode(TOKENS, range(n), [(0,)] * n, [True] * n)
        features = np.concatenate([context.layer_inputs(each) for each in head.reads], axis=1)
        batch = Batch(TOKENS[1:], [*range(n - 1)], [(0,)] * (n - 1), [True] * (n - 1))
        head.decode_pairs(batch, head.encode(features[: n - 1]))
        found = np.stack([head.logits(index).copy() for index in range(n - 1)])
        states = np.stack([head.state(index) for index in range(n - 1)])
    embeddings = tensors.get("embed_tokens.weight", read_rows(read_header(target), "token_embd.weight"))[TOKENS[1:]]
    reference = Reference(config() | settings, tensors)
    logits, wanted = reference.run(embeddings, reference.states(features[: n - 1]))
    assert np.abs(found[:, IDS] - logits).max() < 0.02 * logits.std()
    assert np.abs(states - wanted).max() < 0.02 * wanted.std()
    assert np.isneginf(np.delete(found, IDS, axis=1)).all()
    assert ("token_embd.weight" in header.tensors) == (layout == "specforge")


def check_drafts(target: Path, path: Path) -> None:
    """Check that a file drafts for the target, and that the text stays the same."""
    texts = []
    kind = kind_of_head(check_draft_file(path))
    drafting: dict[str, Any] = {"spec_type": kind, "draft_model": str(path), "pace": "fixed:3"}
    for settings in ({"spec_type": "none"}, drafting):
        with edgespec.load(str(target), ctx_size=256, **EXACT, **settings) as llm:
            texts.append(llm.complete("def the class for", max_tokens=24, temperature=0, ignore_eos=True))
    assert texts[0].text == texts[1].text
    assert texts[1].stats.proposed > 0


def test_a_converted_head_drafts(target: Path, tmp_path: Path) -> None:
    check_drafts(
        target, converted(write_head(tmp_path / "published", *layouts()["authors"], bf16=True), target, "Q8_0")
    )


def test_a_copy_of_the_targets_embeddings_is_left_out(target: Path, tmp_path: Path) -> None:
    settings, tensors = layouts()["authors"]
    copied = {"model.embed_tokens.weight": read_rows(read_header(target), "token_embd.weight")}
    path = converted(write_head(tmp_path / "published", settings, tensors | copied, bf16=True), target)
    assert "token_embd.weight" not in read_header(path).tensors


def test_rotary_frequencies_are_scaled_as_llama_3_has_them(target: Path, tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    settings, tensors = layouts()["authors"]
    settings |= {"rope_scaling": scaling | {"original_max_position_embeddings": 128}}
    header = check_draft_file(converted(write_head(tmp_path / "published", settings, tensors), target))
    factors = read_rows(header, "rope_freqs.weight")
    # Wavelengths below 128 / 4 are kept, those above 128 are eight times as long
    assert factors[:2].tolist() == [1.0, 1.0] and factors[-2:].tolist() == [8.0, 8.0] and 1 < factors[2] < 8


def dflash(n_layers: int = 2, **more: Any) -> dict[str, Any]:
    random = np.random.default_rng(5)
    tensors = {"fc.weight": drawn(random, (WIDTH, 2 * WIDTH))}
    tensors |= {f"{name}.weight": drawn(random, (WIDTH,)) for name in ("hidden_norm", "norm")}
    for number in range(n_layers):
        tensors |= layer(f"layers.{number}.", WIDTH, number, qk_norm=True)
    return tensors | more


def test_a_dflash_draft_has_the_names_and_keys_of_llama_cpp(target: Path, tmp_path: Path) -> None:
    about = {"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 7}, "block_size": 8}
    path = converted(write_head(tmp_path / "d", config(num_hidden_layers=2) | about, dflash()), target)
    check_drafts(target, path)
    header = read_header(path)
    assert header.architecture == "dflash"
    wanted = {"block_size": 8, "block_count": 2, "target_layers": (1, 3), "attention.head_count_kv": KV_HEADS}
    assert {key: header.metadata[f"dflash.{key}"] for key in wanted} == wanted
    assert header.metadata["tokenizer.ggml.mask_token_id"] == 7
    assert header.n_vocab == len_vocab()
    assert header.tensors["fc.weight"].shape == (2 * WIDTH, WIDTH)
    assert header.tensors["blk.1.attn_q_norm.weight"].shape == (WIDTH // 4,)
    assert {name for name in header.tensors if "." not in name or not name.startswith("blk.")} == {
        "fc.weight", "output_norm.weight", "enc.output_norm.weight",
    }  # fmt: skip
    # Its rotary embeddings turn the halves of a head, as the published layout has it
    assert np.allclose(
        read_rows(header, "blk.0.attn_q.weight"), dflash()["layers.0.self_attn.q_proj.weight"], atol=0.01
    )


def test_a_dspark_draft_has_its_markov_and_confidence_heads(target: Path, tmp_path: Path) -> None:
    random, rank = np.random.default_rng(6), 32
    more = {
        "markov_head.markov_w1.weight": drawn(random, (len_vocab(), rank)),
        "markov_head.markov_w2.weight": drawn(random, (len(IDS), rank)),
        "confidence_head.proj.weight": drawn(random, (1, WIDTH + rank)),
        "confidence_head.proj.bias": drawn(random, (1,)),
        "lm_head.weight": drawn(random, (len(IDS), WIDTH)),
        "d2t": np.array(IDS) - np.arange(len(IDS)),
    }
    about = {
        "speculators_model_type": "dspark", "transformer_layer_config": config(), "mask_token_id": 3, "block_size": 7,
        "aux_hidden_state_layer_ids": [1, 3],
    }  # fmt: skip
    path = converted(write_head(tmp_path / "d", about, dflash(1, **more)), target)
    check_drafts(target, path)
    header = read_header(path)
    shapes = {name: header.tensors[name].shape for name in ("markov_w1.weight", "markov_w2.weight", "conf_proj.weight")}
    assert [*shapes.values()] == [(rank, len_vocab()), (rank, len(IDS)), (WIDTH + rank, 1)]
    assert header.tensors["conf_proj.bias"].type == "F32"
    assert header.metadata["dflash.sample_from_anchor"] is False
    assert header.metadata["dflash.has_confidence_head"] is True
    assert header.metadata["dflash.target_layers"] == (1, 3)
    assert read_ids(header).tolist() == IDS


def test_a_dflash2_draft_has_its_convolutions_and_its_selector(target: Path, tmp_path: Path) -> None:
    random, rank, kernel, group = np.random.default_rng(7), 32, 4, 8
    more = {
        f"candidate_selector.{name}_codebook": drawn(random, (len_vocab(), rank))
        for name in ("predecessor", "successor")
    }
    more["candidate_selector.hidden_projection.weight"] = drawn(random, (rank, WIDTH))
    for name in ("attention_conv", "mlp_conv"):
        more[f"layers.0.{name}.base_kernel"] = drawn(random, (2, kernel, WIDTH))
        more[f"layers.0.{name}.kernel_projection.weight"] = drawn(random, (2 * kernel * WIDTH // group, WIDTH))
    numbers = {"conv_kernel_size": kernel, "conv_group_size": group, "selector_rank": rank, "selector_top_k": 4}
    about = {"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 7, "block_size": 8, **numbers}}
    path = converted(write_head(tmp_path / "d", config() | about, dflash(1, **more)), target)
    check_drafts(target, path)
    header = read_header(path)
    assert {key: header.number(key) for key in numbers} == numbers
    assert header.tensors["selector_hidden.weight"].shape == (WIDTH, rank)
    assert header.tensors["blk.0.attn_conv_base"].type == "F32"


MEDUSA = {"0.0.linear.weight": np.ones((WIDTH, WIDTH), np.float32), "0.1.weight": np.ones((300, WIDTH), np.float32)}
EAGLE1 = layer("layers.0.", WIDTH) | {"fc.weight": np.ones((WIDTH, 2 * WIDTH), np.float32)}


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (MEDUSA, "an output matrix for each"),
        (EAGLE1, "EAGLE or EAGLE-2"),
        (layer("foo.", WIDTH), "not those of an EAGLE-3, DFlash or DSpark head"),
        (eagle3(IDS) | {"midlayer.self_attn.q_proj.bias": np.ones(WIDTH, np.float32)}, "q_proj.bias"),
    ],
)
def test_forms_that_llama_cpp_cannot_run_are_refused(target: Path, tmp_path: Path, tensors: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        converted(write_head(tmp_path / "h", config(), tensors), target)
    assert not (tmp_path / "head.gguf").exists()


def without(name: str) -> dict[str, Any]:
    return {key: values for key, values in eagle3(IDS).items() if key != name}


@pytest.mark.parametrize(
    ("changes", "tensors", "why"),
    [
        ({}, without("midlayer.mlp.up_proj.weight"), "'blk.0.ffn_up.weight' is missing"),
        ({"intermediate_size": 100}, eagle3(IDS), r"'midlayer.mlp.gate_proj.weight' has the shape \[96, 64\]"),
        ({"hidden_size": "wide"}, eagle3(IDS), "hidden_size is 'wide'"),
        ({"rope_scaling": {"rope_type": "linear"}}, eagle3(IDS), "config.json cannot be used: KeyError"),
        ({}, eagle3(IDS) | {"d2t": np.zeros(len(IDS), np.int64) - 1}, "'d2t' does not name tokens"),
        ({}, eagle3(IDS) | {"norm.weight": np.full(WIDTH, np.nan, np.float32)}, "not numbers"),
    ],
)
def test_damaged_heads_are_refused(target: Path, tmp_path: Path, changes: Any, tensors: Any, why: str) -> None:
    with pytest.raises(ModelFileError, match=why):
        converted(write_head(tmp_path / "h", config(**changes), tensors), target)
    assert not (tmp_path / "head.gguf").exists()


def test_heads_of_other_targets_are_refused(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "h", config(), eagle3(IDS))
    for architecture, width, why in (("llama", 128, "models of width 64"), ("qwen2", 64, "does not give the inputs")):
        other = write_model(tmp_path / f"{architecture}.gguf", architecture, n_layers=4, width=width)
        with pytest.raises(PairError, match=why):
            converted(folder, other)


def test_folders_that_hold_no_head_are_refused(target: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    for folder, why in ((tmp_path / "none", "no such folder"), (empty, "no config.json"), (empty, "no .safetensors")):
        with pytest.raises(UsageError, match=why):
            converted(folder, target)
        empty.mkdir(exist_ok=True)
        if "config" in why:
            (empty / "config.json").write_text("{}")
    (empty / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(UsageError, match="is a pickle"):
        converted(empty, target)
    (empty / "config.json").write_text("not JSON")
    write_safetensors(empty / "model.safetensors", eagle3(IDS))
    with pytest.raises(ModelFileError, match="not JSON"):
        converted(empty, target)


@pytest.mark.parametrize("cut", [4, 60, 1000])
def test_files_that_end_early_are_refused(target: Path, tmp_path: Path, cut: int) -> None:
    folder = write_head(tmp_path / "h", config(), eagle3(IDS))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: -cut if cut == 1000 else cut])
    with pytest.raises(ModelFileError, match="cannot be read"):
        converted(folder, target)


@pytest.mark.parametrize("setting", [{"rms_norm_eps": -1.0}, {"max_position_embeddings": 2**40}])
def test_settings_that_no_model_can_have_leave_no_file(target: Path, tmp_path: Path, setting: dict[str, Any]) -> None:
    settings, tensors = layouts()["authors"]
    with pytest.raises(ModelFileError, match=r"cannot be (used|converted)"):
        converted(write_head(tmp_path / "published", settings | setting, tensors), target)
    assert not (tmp_path / "head.gguf").exists()
