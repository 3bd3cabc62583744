"""Estimates of memory equal the reports of llama.cpp, and suggested changes fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from check_memory import SETTINGS, log_lines, misses, reported, reported_of_head, reported_of_texts, sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_assistant import WIDTH, write_assistant, write_gemma4
from tiny_encoder import LAST, write_encoder
from tiny_gguf import model_metadata, model_tensors, write_file, write_model
from tiny_head import write_block_drafter, write_head, write_hydra, write_peagle
from tiny_mtp import ARCHITECTURES, write_mtp

from edgespec.core.features import MOST_UNREAD
from edgespec.errors import OutOfMemoryError
from edgespec.gguf_file.head_check import check_draft_file
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.kernels import have_exact_kernels, repacked_types
from edgespec.llama.model import LlamaModel
from edgespec.llama.trial import extra_buffers_work, self_check
from edgespec.models.memory.estimate import MemoryPlan, bytes_per_token, estimate
from edgespec.models.memory.fit import QUANT_BITS, largest_context, what_would_fit
from edgespec.models.memory.placement import placed
from edgespec.models.names.spec import resolve
from edgespec.runtime import planning
from edgespec.runtime.embedding_runtime import pooled_plan
from edgespec.runtime.planning import cache_bytes, copies
from edgespec.settings import LoadSettings
from edgespec.text.figures import size_of

DEMO, DEMO_DRAFT = (check_model(resolve(name).path) for name in ("demo", "demo:draft"))
PAIR = MemoryPlan(DEMO, n_ctx=1024, draft=MemoryPlan(DEMO_DRAFT, n_ctx=1024))
# A tiny model's heads are too small to be quantised.
UNQUANTISED = {label: settings for label, settings in SETTINGS.items() if "q8_0" not in settings.values()}


def agrees(header: Header, settings: dict[str, Any]) -> None:
    assert misses(sizes(estimate(MemoryPlan(header, **settings))), reported(header.path, settings)) == []


def with_metadata(header: Header, **entries: int) -> Header:
    """Return the header with other numbers of its architecture; `attention_x` means `attention.x`."""
    named = {
        f"{header.architecture}.{key.replace('attention_', 'attention.', 1)}": value for key, value in entries.items()
    }
    return replace(header, metadata=header.metadata | named)


# --- what llama.cpp reports -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("header", [DEMO, DEMO_DRAFT], ids=["target", "draft"])
def test_the_bundled_pair_takes_what_was_estimated(header: Header, settings: dict[str, Any]) -> None:
    agrees(header, settings)


@pytest.mark.parametrize("settings", UNQUANTISED.values(), ids=UNQUANTISED)
@pytest.mark.parametrize("architecture", ["qwen2moe", "mamba", "lfm2", "qwen35", "nemotron_h"])
def test_so_do_experts_and_recurrent_models(tmp_path: Path, architecture: str, settings: dict[str, Any]) -> None:
    agrees(check_model(write_model(tmp_path / "tiny.gguf", architecture)), settings)


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert"])
def test_so_do_encoders(tmp_path: Path, architecture: str) -> None:
    path = write_encoder(tmp_path / "tiny.gguf", architecture, width=256, n_layers=6, n_ctx=2048)
    plan = pooled_plan(check_model(path, embeds=True), LoadSettings(str(path)))
    expected, found = sizes(estimate(plan)), reported_of_texts(plan)
    assert expected["weights"] == pytest.approx(found["weights"], rel=0.01)
    assert found["compute"] <= expected["compute"] <= 1.3 * found["compute"]
    assert (expected["kv"], found["kv"]) == (0, 0)


def test_a_context_of_a_causal_model_for_texts_takes_what_was_estimated() -> None:
    header = replace(DEMO, metadata=DEMO.metadata | {f"{DEMO.architecture}.pooling_type": LAST})
    plan = pooled_plan(header, LoadSettings("demo", ctx_size=4096))
    assert misses(sizes(estimate(plan)), reported_of_texts(plan)) == []


OTHERS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {  # metadata, shapes in every layer
    "phi3": (
        {"attention.sliding_window": 64},
        {"attn_qkv": (512, 256), "ffn_up": (1024, 256)},
    ),
    "deepseek2": (
        {
            "attention.head_count_kv": 1, "attention.key_length": 80, "attention.value_length": 64,
            "attention.key_length_mla": 48, "attention.value_length_mla": 32, "attention.kv_lora_rank": 64,
            "attention.q_lora_rank": 64, "rope.dimension_count": 16, "leading_dense_block_count": 6,
            "expert_count": 4, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 64,
        },
        {
            "attn_q_a": (64, 256), "attn_q_a_norm": (64,), "attn_q_b": (192, 64), "attn_kv_a_mqa": (80, 256),
            "attn_kv_a_norm": (64,), "attn_k_b": (4, 64, 32), "attn_v_b": (4, 32, 64), "attn_output": (256, 128),
        },
    ),
    "gemma4": (
        {
            "attention.key_length": 64, "attention.value_length": 64, "attention.key_length_swa": 64,
            "attention.value_length_swa": 64, "attention.sliding_window": 64, "rope.freq_base_swa": 10000.0,
            "attention.sliding_window_pattern": [True, False] * 3, "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 0, "final_logit_softcapping": 30.0, "rope.dimension_count_swa": 64,
        },
        {"attn_q_norm": (64,), "attn_k_norm": (64,), "post_attention_norm": (256,), "post_ffw_norm": (256,)},
    ),
}  # fmt: skip
UNUSED = {"phi3": ("attn_q", "attn_k", "attn_v", "ffn_gate"), "deepseek2": ("attn_q", "attn_k", "attn_v")}


def write_other(path: Path, architecture: str) -> Path:
    """A model of an architecture that resembles Llama, of 6 layers."""
    entries = model_metadata("llama", width=256, n_layers=6)
    weights = model_tensors("llama", entries)
    changes, shapes = OTHERS[architecture]
    for block in (f"blk.{layer}" for layer in range(6)):
        for name in UNUSED.get(architecture, ()):
            del weights[f"{block}.{name}.weight"]
        weights |= {f"{block}.{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    if architecture == "gemma4":
        weights["rope_freqs.weight"] = np.ones(32, np.float32)
    renamed = {key.replace("llama.", f"{architecture}."): value for key, value in entries.items()}
    own = {f"{architecture}.{key}": value for key, value in changes.items()}
    return write_file(path, renamed | own | {"general.architecture": architecture}, weights)


@pytest.mark.parametrize("settings", [UNQUANTISED["1024 tokens"], UNQUANTISED["8192 tokens"]], ids=["short", "long"])
@pytest.mark.parametrize("architecture", ["gemma3", *OTHERS])
def test_so_do_caches_of_other_kinds(tmp_path: Path, architecture: str, settings: dict[str, Any]) -> None:
    """Windows in some layers, windows that are left out, latent attention, layers without a cache."""
    path = tmp_path / "other.gguf"
    if architecture == "gemma3":
        write_model(path, architecture, width=256, n_layers=6)
    else:
        write_other(path, architecture)
    header = check_model(path)
    agrees(header, settings)
    found = reported(path, settings)["kv"]
    assert estimate(MemoryPlan(header, **settings)).kv == pytest.approx(found, abs=(1 << 20) / 100)


@pytest.mark.parametrize("flash_attention", ["off", "on"])
@pytest.mark.parametrize(
    "architecture", ["eagle3", "dflash", "dspark", "dflash2", "assistant", *ARCHITECTURES, "step35 with 3 blocks"]
)
def test_so_do_contexts_of_heads(tmp_path: Path, architecture: str, flash_attention: Any) -> None:
    settings: dict[str, Any] = {"n_ctx": 16384, "flash_attention": flash_attention, "rollback": 3}
    if architecture == "eagle3":
        target = write_model(tmp_path / "target.gguf", "llama", n_layers=4)
        head = MemoryPlan(
            check_draft_file(write_head(tmp_path / "head.gguf", has_vocabulary=False)), **settings
        ).as_head(192)
        plan = MemoryPlan(check_model(target), **settings, draft=head)
    elif architecture in ("dflash", "dspark", "dflash2"):
        target = write_model(tmp_path / "target.gguf", "llama", n_layers=4)
        head = MemoryPlan(
            check_draft_file(write_block_drafter(tmp_path / "head.gguf", architecture)), **settings
        ).as_head(192)
        plan = MemoryPlan(check_model(target), **settings, draft=head)
    elif architecture == "assistant":
        target = write_gemma4(tmp_path / "target.gguf")
        head = MemoryPlan(check_draft_file(write_assistant(tmp_path / "head.gguf")), **settings).as_head(WIDTH)
        plan = MemoryPlan(check_model(target), **settings, draft=head)
    else:
        name, _, several = architecture.partition(" with ")
        model = write_mtp(tmp_path / "mtp.gguf", name, n_blocks=3 if several else 1)
        plan = MemoryPlan(check_model(model), **settings, mtp=True)
    expected, found = estimate(plan.draft or plan.of_block), reported_of_head(plan)
    if architecture == "deepseek4":  # which keeps less than similar architectures
        assert expected.kv >= found["kv"] and expected.compute >= found["compute"]
        return
    kv = 0 if architecture == "assistant" else found["kv"]  # llama.cpp reports the target's caches
    assert expected.kv == pytest.approx(kv, abs=(1 << 20) / 100)
    assert expected.compute == pytest.approx(found["compute"], rel=0.1, abs=300_000)


def test_branches_and_scratch_count_as_a_context_makes_them() -> None:
    settings: dict[str, Any] = {"n_ctx": 1024, "sequences": 2, "branches": 3, "scratch": 300, "max_outputs": 1}
    assert estimate(MemoryPlan(DEMO, **settings)).output == 5 * DEMO.n_vocab * 4
    assert misses(sizes(estimate(MemoryPlan(DEMO, **settings))), reported(DEMO.path, settings) | {"output": 0.0}) == []


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def test_a_cache_is_rounded_up_and_shared_by_the_sequences() -> None:
    per_token = bytes_per_token(DEMO)
    assert estimate(MemoryPlan(DEMO, n_ctx=1000)).kv == 1024 * per_token
    assert estimate(MemoryPlan(DEMO, n_ctx=1000, sequences=3)).kv == 3072 * per_token
    assert estimate(MemoryPlan(DEMO, n_ctx=1024, cache_type_k="q8_0", cache_type_v="q4_0")).kv == pytest.approx(
        1024 * per_token * (34 + 18) / 128
    )


def test_a_draft_is_added() -> None:
    alone, draft = estimate(replace(PAIR, draft=None)), estimate(MemoryPlan(DEMO_DRAFT, n_ctx=1024))
    assert estimate(PAIR) == alone + draft
    assert estimate(PAIR).total == alone.total + draft.total


def test_what_a_head_has_not_read_is_kept(tmp_path: Path) -> None:
    head = check_draft_file(write_head(tmp_path / "head.gguf"))
    unread = [
        estimate(MemoryPlan(head, n_ctx=n_ctx, sequences=2, features=192)).work for n_ctx in (1024, 2048, 1_000_000)
    ]
    assert unread == [1024 * 2 * 192 * 4, 2048 * 2 * 192 * 4, MOST_UNREAD]
    target = check_model(write_model(tmp_path / "target.gguf", "llama", n_layers=4))
    draft = MemoryPlan(head, n_ctx=1024, features=192)
    both = estimate(MemoryPlan(target, n_ctx=1024, draft=draft))
    alone = estimate(MemoryPlan(target, n_ctx=1024)) + estimate(draft)
    assert both.output - alone.output == 512 * 192 * 4  # of a pass


def test_a_hydra_head_is_kept_as_q8_0(tmp_path: Path) -> None:
    head = check_draft_file(write_hydra(tmp_path / "head.gguf"))
    plan = MemoryPlan(head, n_ctx=1024)
    found = estimate(plan)
    assert (found.total, found.mapped) == (head.n_params * 34 // 32 + (299 * 64 + 299) * 4, 0)
    with_head = MemoryPlan(DEMO, n_ctx=1024, draft=plan, devices=("GPU0",))
    assert placed(with_head, "auto", "auto", {"GPU0": 1 << 40}).draft == plan  # such heads stay on the CPU


def test_a_peagle_head_is_copied_without_its_embeddings(tmp_path: Path) -> None:
    head = check_draft_file(write_peagle(tmp_path / "head.gguf"))
    plan = MemoryPlan(head, n_ctx=1024).as_head(192)
    found = estimate(plan)
    assert found.weights == head.weights_bytes - head.tensors["token_embd.weight"].size_bytes and not found.mapped
    assert found.kv == 1024 * 2 * 2 * 2 * 16 * 2  # two layers, keys and values, two heads of 16 numbers, F16
    with_head = MemoryPlan(DEMO, n_ctx=1024, draft=plan, devices=("GPU0",))
    assert placed(with_head, "auto", "auto", {"GPU0": 1 << 40}).draft == plan  # such heads stay on the CPU


def test_an_mtp_block_counts_where_it_drafts(tmp_path: Path) -> None:
    header = check_model(write_mtp(tmp_path / "mtp.gguf", "qwen35"))
    without, drafting = (estimate(MemoryPlan(header, n_ctx=1024, mtp=mtp)) for mtp in (False, True))
    block = sum(tensor.size_bytes for name, tensor in header.tensors.items() if name.startswith("blk.3."))
    assert (drafting.weights - without.weights, drafting.weights) == (block, header.weights_bytes)
    of_block = estimate(MemoryPlan(header, n_ctx=1024, mtp=True).of_block)
    assert of_block.weights == 0
    assert drafting.allocated == without.allocated + of_block.allocated + 512 * 64 * 4  # of a pass


@pytest.mark.slow
def test_what_only_fits_without_an_mtp_block_is_refused_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = check_model(write_mtp(tmp_path / "mtp.gguf", "glm4moe"))
    without, drafting = (MemoryPlan(header, n_ctx=2048, mtp=mtp) for mtp in (False, True))
    free = estimate(drafting).allocated - 1000
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: free)
    monkeypatch.setattr(planning, "supports_gpu", lambda: False)
    monkeypatch.setattr(planning, "repacks", lambda plan: False)
    assert planning.fitted(without, lambda _: None).n_ctx == 2048
    with pytest.raises(OutOfMemoryError, match="a context of 2,048 tokens does not fit"):
        planning.fitted(drafting, lambda _: None)
    assert planning.fitted(drafting, lambda _: None, may_shrink=True).n_ctx < 2048


def test_without_flash_attention_the_cpu_takes_half_of_the_scores_again() -> None:
    assert estimate(MemoryPlan(DEMO, n_ctx=1024)).work == 0
    assert estimate(MemoryPlan(DEMO, n_ctx=1024, flash_attention="off")).work == 1024 * 512 * 4 * 2  # 4 heads


def test_old_states_are_kept_where_llama_cpp_can(tmp_path: Path) -> None:
    for architecture, times in (("lfm2", 4), ("mamba", 1)):
        header = check_model(write_model(tmp_path / f"{architecture}.gguf", architecture))
        states = [estimate(MemoryPlan(header, n_ctx=1024, rollback=rollback)).kv for rollback in (0, 3)]
        attends = 1024 * bytes_per_token(header)
        assert states[1] - attends == times * (states[0] - attends) > 0


def test_layers_that_share_their_cache_have_none() -> None:
    kv = estimate(MemoryPlan(DEMO, n_ctx=1024)).kv
    shared = with_metadata(DEMO, attention_shared_kv_layers=5)
    assert estimate(MemoryPlan(shared, n_ctx=1024)).kv == kv * 5 // 10


def test_latent_attention_caches_no_values() -> None:
    latent = with_metadata(DEMO, attention_key_length_mla=32)
    assert latent.cached_values == (DEMO.cached_values[0], 0)


def test_keys_and_values_of_one_matrix_are_counted_by_the_heads(tmp_path: Path) -> None:
    """Phi-3 and the latent attention of DeepSeek have one matrix for keys and values."""
    kept: dict[str, None] = {f"blk.{layer}.attn_{name}.weight": None for layer in (0, 1) for name in "kv"}
    split, fused = (
        read_header(write_model(tmp_path / f"{len(tensors)}.gguf", "llama", tensors=tensors)) for tensors in ({}, kept)
    )
    assert fused.cached_values == split.cached_values == (64, 64)
    assert with_metadata(fused, nextn_predict_layers=1).cached_values == (32, 32)


# --- where weights lie ------------------------------------------------------------------------------------------------


@pytest.mark.long(but=3)
@pytest.mark.parametrize("architecture", ["llama", "gemma", "qwen2moe"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_repacked_weights_are_those_that_llama_cpp_reports(
    tmp_path: Path, home: Path, architecture: str, kind: str
) -> None:
    path = write_model(tmp_path / "tiny.gguf", architecture, type=kind, width=256)
    with log_lines() as lines, LlamaModel(path, use_extra_bufts=extra_buffers_work(path, print)) as model:
        types = repacked_types() if model.fingerprint["extra_buffers"] else frozenset[str]()
    found = 0.0
    for line in lines:
        if match := re.search(r"(?:REPACK|AMX|INTERLEAVED) model buffer size = +([\d.]+) MiB", line):
            found += float(match[1]) * (1 << 20)
    expected = estimate(
        MemoryPlan(model.header, n_ctx=256, repacked=types, interleaves=bool(types) and have_exact_kernels())
    )
    padded = 1 << 16 if architecture == "qwen2moe" else 0  # routers of few rows, which fill groups
    assert expected.weights - expected.mapped == pytest.approx(found, abs=(1 << 20) / 100 + padded)


def test_weights_that_take_most_of_the_memory_stay_in_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MemoryPlan(DEMO, n_ctx=1024)
    for share, repacked in ((0.7, self_check() == "works"), (0.8, False)):
        monkeypatch.setattr(planning, "total_memory_bytes", lambda share=share: int(DEMO.weights_bytes / share))
        assert planning.repacks(plan) == repacked


def test_weights_that_do_not_fit_into_free_memory_stay_in_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "self_check", lambda: "works")
    for free, repacked in ((DEMO.weights_bytes, True), (DEMO.weights_bytes - 1, False)):
        monkeypatch.setattr(planning, "available_memory_bytes", lambda free=free: free)
        assert planning.repacks(MemoryPlan(DEMO, n_ctx=1024)) is repacked


def test_weights_stay_in_their_file_by_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(planning, "have_exact_kernels", lambda: True)
    monkeypatch.setattr(planning, "self_check", lambda: "works")
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: 9 * DEMO.weights_bytes)
    for wanted in (True, False):
        plan = MemoryPlan(DEMO, n_ctx=1024, may_repack=wanted)
        assert (planning.repacks(plan), copies(plan)) == (wanted, wanted)


def test_what_is_mapped_needs_no_room() -> None:
    plan = MemoryPlan(DEMO, n_ctx=1024)
    assert estimate(plan).mapped == DEMO.weights_bytes
    assert estimate(plan).allocated == estimate(plan).ram - DEMO.weights_bytes
    repacked = estimate(replace(plan, repacked=frozenset({"Q8_0"})))
    assert (repacked.total, repacked.mapped < DEMO.weights_bytes / 50) == (estimate(plan).total, True)
    pair = replace(plan, draft=MemoryPlan(DEMO_DRAFT, n_ctx=1024))
    assert estimate(pair).mapped == DEMO.weights_bytes + DEMO_DRAFT.weights_bytes


def test_weights_are_copied_where_huge_pages_are_and_half_of_the_memory_stays_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = MemoryPlan(DEMO, n_ctx=1024)
    for platform, bounds, free, gpu_layers, wanted in (
        ("linux", True, 2 * DEMO.weights_bytes, 0, True),
        ("linux", True, 2 * DEMO.weights_bytes - 1, 0, False),
        ("linux", True, 2 * DEMO.weights_bytes, 1, False),
        ("linux", False, 2 * DEMO.weights_bytes, 0, False),
        ("darwin", True, 2 * DEMO.weights_bytes, 0, False),
    ):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.setattr("edgespec.runtime.planning.have_exact_kernels", lambda has=bounds: has)
        monkeypatch.setattr("edgespec.runtime.planning.available_memory_bytes", lambda bytes=free: bytes)
        assert copies(replace(plan, gpu_layers=gpu_layers)) is wanted


def test_copied_weights_are_the_mapped_ones(tmp_path: Path) -> None:
    rows = []
    for copied in (False, True):
        with log_lines() as lines, LlamaModel(DEMO, use_extra_bufts=False, copied=copied) as model:
            context = Context(model, ContextParams(n_ctx=64, threads=1))
            context.decode([5, 6, 7], range(3), [(0,)] * 3, [False, False, True])
            rows.append(context.logits(2).copy())
            context.close()
        assert any("CPU_Mapped" in line for line in lines) is not copied
    assert (rows[0] == rows[1]).all()


def test_layers_go_to_the_gpu_from_the_last_one_down() -> None:
    nothing, output, two, everything = (estimate(MemoryPlan(DEMO, n_ctx=1024, gpu_layers=n)) for n in (0, 1, 3, 99))
    embedding = DEMO.tensors["token_embd.weight"].size_bytes
    layers = [sum(t.size_bytes for name, t in DEMO.tensors.items() if name.startswith(f"blk.{n}.")) for n in range(10)]
    assert (nothing.vram, nothing.layers_on_gpu, nothing.compute_on_gpu) == (0, 0, 0)
    assert output.layers_on_gpu == embedding + DEMO.tensors["output_norm.weight"].size_bytes
    assert two.layers_on_gpu == output.layers_on_gpu + sum(layers[8:]) + nothing.kv * 2 // 10
    # The output is tied to the embedding, which the CPU also keeps.
    assert everything.weights == DEMO.weights_bytes + embedding
    assert everything.layers_on_gpu == output.layers_on_gpu + sum(layers) + nothing.kv
    assert (everything.mapped, two.mapped) == (embedding, embedding + sum(layers[:8]))
    assert everything.ram - everything.output < 2 * embedding
    # Weights of the remaining layers on the CPU are copied for wide passes, one at a time.
    largest = max(t.size_bytes for name, t in DEMO.tensors.items() if name.startswith("blk."))
    assert everything.compute_on_gpu == nothing.compute
    assert two.compute_on_gpu == output.compute_on_gpu == nothing.compute + largest
    for each in (nothing, output, two, everything):
        assert each.total == each.ram + each.vram


# --- what fits --------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(0, 40 * 10**6), st.integers(1, 5))
def test_the_largest_context_fits_and_none_larger_does(free_bytes: int, sequences: int) -> None:
    plan = MemoryPlan(
        DEMO, n_ctx=512, sequences=sequences, draft=MemoryPlan(DEMO_DRAFT, n_ctx=512, sequences=sequences)
    )

    def needed(n_ctx: int) -> int:
        draft = MemoryPlan(DEMO_DRAFT, n_ctx=n_ctx, sequences=sequences)
        return estimate(replace(plan, n_ctx=n_ctx, draft=draft)).ram

    n_ctx = largest_context(plan, free_bytes)
    assert n_ctx % 256 == 0
    assert n_ctx == 0 or needed(n_ctx) <= free_bytes
    assert n_ctx == DEMO.number("context_length") or needed(n_ctx + 256) > free_bytes


def test_a_draft_with_a_context_of_its_own_keeps_it() -> None:
    own = replace(PAIR, draft=MemoryPlan(DEMO_DRAFT, n_ctx=512))
    n_ctx = largest_context(own, estimate(own).ram - 1)
    assert n_ctx == 768
    assert estimate(replace(own, n_ctx=n_ctx)).ram <= estimate(own).ram - 1


def test_every_remedy_is_named_with_what_it_takes() -> None:
    free_bytes = estimate(PAIR).ram - 10**6
    remedies = what_would_fit(PAIR, free_bytes)
    draft = replace(PAIR.draft or PAIR, cache_type_k="q8_0", cache_type_v="q8_0")
    quantised = replace(PAIR, cache_type_k="q8_0", cache_type_v="q8_0", draft=draft)
    n_ctx = largest_context(PAIR, free_bytes)
    assert (
        remedies[0] == f"a q8_0 KV cache (`cache_type_k=q8_0` `cache_type_v=q8_0`): {size_of(estimate(quantised).ram)}"
    )
    without = estimate(replace(PAIR, draft=None)).ram
    assert remedies[1] == f"no draft model (`spec_type=none`): {size_of(without)}"
    assert remedies[2].startswith(f"a context of {n_ctx} tokens (`ctx_size={n_ctx}`): ")
    assert remedies[3].startswith("the same model in Q6_K instead of 8.5 bits per weight: ")
    assert len(remedies) == 4


@settings(max_examples=25)
@given(st.integers(0, 40 * 10**6))
def test_no_remedy_takes_more_than_there_is(free_bytes: int) -> None:
    for remedy in what_would_fit(replace(PAIR, sequences=4), free_bytes):
        match = re.search(r": (\d+\.\d) MB$", remedy)
        assert match
        assert float(match[1]) <= free_bytes / 1e6 + 0.05


def test_a_smaller_quantisation_is_the_largest_that_fits() -> None:
    plan = MemoryPlan(DEMO, n_ctx=1024)
    other = estimate(plan).ram - DEMO.weights_bytes
    for quant, bits in QUANT_BITS.items():
        needed = other + DEMO.weights_bytes * bits / 8.5
        *_, last = what_would_fit(plan, int(needed * 1.002))
        assert last.startswith(f"the same model in {'Q6_K' if quant == 'Q8_0' else quant} ")


def test_a_cache_is_not_quantised_where_that_cannot_be(tmp_path: Path) -> None:
    small_heads = check_model(write_model(tmp_path / "tiny.gguf", "llama"))  # of 16 values
    for plan in (
        MemoryPlan(small_heads, n_ctx=1024),
        MemoryPlan(DEMO, n_ctx=1024, flash_attention="off"),
        replace(PAIR, draft=MemoryPlan(small_heads, n_ctx=1024)),
    ):
        assert not [remedy for remedy in what_would_fit(plan, 10**12) if "KV cache" in remedy]


def test_a_smaller_cache_is_named_where_a_small_one_does_not_do() -> None:
    plan = MemoryPlan(DEMO, n_ctx=1024, sequences=16)
    q4_0 = estimate(replace(plan, cache_type_k="q4_0", cache_type_v="q4_0")).ram
    assert (
        what_would_fit(plan, q4_0)[0] == f"a q4_0 KV cache (`cache_type_k=q4_0` `cache_type_v=q4_0`): {size_of(q4_0)}"
    )


def test_where_nothing_fits_nothing_is_named() -> None:
    assert what_would_fit(PAIR, 10**6) == []
    assert largest_context(PAIR, 10**6) == 0


def test_what_slots_lose_has_a_share_of_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gib, notes = 1 << 30, list[str]()
    mapped, copied, offloaded = (
        cast(Any, SimpleNamespace(size_bytes=4 * gib, is_copied=kind == 1, is_offloaded=kind == 2)) for kind in range(3)
    )
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: 20 * gib)
    assert cache_bytes(None, [copied, offloaded], notes.append) == 20 * gib // 8
    assert cache_bytes(None, [mapped], notes.append) == 2 * gib
    assert cache_bytes(100, [mapped], notes.append) == 100 << 20
    assert cache_bytes(0, [mapped], notes.append) == 0 and not notes
    assert cache_bytes(17 << 10, [mapped], notes.append) == 16 * gib
    assert notes == ["`cache_ram=17408` is more memory than is free; using 17.2 GB for it"]
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: 100 * gib)
    assert cache_bytes(None, [], notes.append) == 8 * gib


def test_weights_that_are_too_large_are_an_error_only_where_they_must_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = MemoryPlan(check_model(write_mtp(tmp_path / "mtp.gguf", "glm4moe")), n_ctx=256)
    needed = estimate(plan)
    assert needed.mapped
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: needed.allocated + needed.mapped - 1)
    monkeypatch.setattr(planning, "supports_gpu", lambda: False)
    assert planning.fitted(plan, lambda _: None).n_ctx == 256
    with pytest.raises(OutOfMemoryError, match="does not fit into memory"):
        planning.fitted(plan, lambda _: None, must_fit=True)
