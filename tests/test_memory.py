"""What is told of memory before loading is what llama.cpp reports, and what is said to fit does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from check_memory import SETTINGS, misses, reported, sizes
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import write_model

from edgespec.figures import size_of
from edgespec.header import Header
from edgespec.model_check import check_model
from edgespec.models.memory import (
    GPU_RESERVE_BYTES,
    QUANT_BITS,
    Plan,
    estimate,
    gpu_layers_that_fit,
    largest_context,
    what_would_fit,
)
from edgespec.models.spec import resolve

DEMO, DEMO_DRAFT = (check_model(resolve(name).path) for name in ("demo", "demo:draft"))
PAIR = Plan(DEMO, n_ctx=1024, draft=Plan(DEMO_DRAFT, n_ctx=1024))
ALL = DEMO.number("block_count") + 1
# A tiny model's heads are too small to be quantised.
UNQUANTISED = {label: settings for label, settings in SETTINGS.items() if "q8_0" not in settings.values()}


def agrees(header: Header, settings: dict[str, Any]) -> None:
    assert misses(sizes(estimate(Plan(header, **settings))), reported(header.path, settings)) == []


def with_metadata(header: Header, **entries: int) -> Header:
    """The header with other numbers of its architecture; `attention_x` stands for `attention.x`."""
    named = {f"{header.architecture}.{key.replace('_', '.', 1)}": value for key, value in entries.items()}
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


def test_branches_and_scratch_count_as_a_context_makes_them() -> None:
    settings: dict[str, Any] = {"n_ctx": 1024, "sequences": 2, "branches": 3, "scratch": 300, "max_outputs": 1}
    assert estimate(Plan(DEMO, **settings)).output == 5 * DEMO.n_vocab * 4
    assert misses(sizes(estimate(Plan(DEMO, **settings))), reported(DEMO.path, settings) | {"output": 0.0}) == []


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def test_a_cache_is_rounded_up_and_shared_by_the_sequences() -> None:
    per_token = 2 * sum(DEMO.kv_values_per_token)
    assert estimate(Plan(DEMO, n_ctx=1000)).kv == 1024 * per_token
    assert estimate(Plan(DEMO, n_ctx=1000, sequences=3)).kv == 3072 * per_token
    assert estimate(Plan(DEMO, n_ctx=1024, cache_type_k="q8_0", cache_type_v="q4_0")).kv == pytest.approx(
        1024 * per_token * (34 + 18) / 128
    )


def test_a_draft_is_added() -> None:
    alone, draft = estimate(replace(PAIR, draft=None)), estimate(Plan(DEMO_DRAFT, n_ctx=1024))
    assert estimate(PAIR).total == alone.total + draft.total
    assert estimate(PAIR).draft == draft


def test_without_flash_attention_the_cpu_takes_half_of_the_scores_again() -> None:
    assert estimate(Plan(DEMO, n_ctx=1024)).work == 0
    assert estimate(Plan(DEMO, n_ctx=1024, flash_attention="off")).work == 1024 * 512 * 4 * 2  # 4 heads


def test_old_states_are_kept_where_llama_cpp_can(tmp_path: Path) -> None:
    for architecture, times in (("lfm2", 4), ("mamba", 1)):
        header = check_model(write_model(tmp_path / f"{architecture}.gguf", architecture))
        states = [estimate(Plan(header, n_ctx=1024, rollback=rollback)).kv for rollback in (0, 3)]
        attends = 1024 * 2 * sum(header.kv_values_per_token)
        assert states[1] - attends == times * (states[0] - attends) > 0


def test_layers_that_share_their_cache_have_none() -> None:
    kv = estimate(Plan(DEMO, n_ctx=1024)).kv
    shared = with_metadata(DEMO, attention_shared_kv_layers=5)
    assert estimate(Plan(shared, n_ctx=1024)).kv == kv * 5 // 10


def test_latent_attention_caches_no_values(tmp_path: Path) -> None:
    latent = with_metadata(DEMO, attention_key_length_mla=32)
    assert estimate(Plan(latent, n_ctx=1024)).kv == 1024 * 2 * DEMO.kv_values_per_token[0]


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def test_layers_go_to_the_gpu_from_the_last_one_down() -> None:
    nothing, output, two, everything = (estimate(Plan(DEMO, n_ctx=1024, gpu_layers=n)) for n in (0, 1, 3, 99))
    embedding = DEMO.tensors["token_embd.weight"].size_bytes
    layers = [sum(t.size_bytes for name, t in DEMO.tensors.items() if name.startswith(f"blk.{n}.")) for n in range(10)]
    assert nothing.vram == 0
    assert output.vram == embedding + DEMO.tensors["output_norm.weight"].size_bytes + nothing.compute
    assert two.vram == output.vram + sum(layers[8:]) + nothing.kv * 2 // 10
    # The output is tied to the embedding, which the CPU keeps too.
    assert everything.weights == DEMO.weights_bytes + embedding
    assert everything.vram == output.vram + sum(layers) + nothing.kv
    assert everything.ram - everything.output < 2 * embedding


@given(st.integers(0, 2 * 10**9))
def test_as_many_layers_go_to_a_gpu_as_fit(free_bytes: int) -> None:
    plan = Plan(DEMO, n_ctx=1024)
    layers = gpu_layers_that_fit(plan, free_bytes)
    room = free_bytes - GPU_RESERVE_BYTES
    assert layers == 0 or estimate(replace(plan, gpu_layers=layers)).vram <= room
    assert layers == ALL or estimate(replace(plan, gpu_layers=layers + 1)).vram > room


# --- what fits --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 40 * 10**6), st.integers(1, 5))
def test_the_largest_context_fits_and_none_larger_does(free_bytes: int, sequences: int) -> None:
    plan = Plan(DEMO, n_ctx=512, sequences=sequences, draft=Plan(DEMO_DRAFT, n_ctx=512, sequences=sequences))

    def needed(n_ctx: int) -> int:
        draft = Plan(DEMO_DRAFT, n_ctx=n_ctx, sequences=sequences)
        return estimate(replace(plan, n_ctx=n_ctx, draft=draft)).ram

    n_ctx = largest_context(plan, free_bytes)
    assert n_ctx % 256 == 0
    assert n_ctx == 0 or needed(n_ctx) <= free_bytes
    assert n_ctx == DEMO.number("context_length") or needed(n_ctx + 256) > free_bytes


def test_a_draft_with_a_context_of_its_own_keeps_it() -> None:
    own = replace(PAIR, draft=Plan(DEMO_DRAFT, n_ctx=512))
    n_ctx = largest_context(own, estimate(own).ram - 1)
    assert n_ctx == 768
    assert estimate(replace(own, n_ctx=n_ctx)).ram <= estimate(own).ram - 1


def test_every_remedy_is_named_with_what_it_takes() -> None:
    free_bytes = estimate(PAIR).ram - 10**6
    remedies = what_would_fit(PAIR, free_bytes)
    draft = replace(PAIR.draft or PAIR, cache_type_k="q8_0", cache_type_v="q8_0")
    quantised = replace(PAIR, cache_type_k="q8_0", cache_type_v="q8_0", draft=draft)
    n_ctx = largest_context(PAIR, free_bytes)
    assert remedies[0] == f"a q8_0 KV cache (-ctk q8_0 -ctv q8_0): {size_of(estimate(quantised).ram)}"
    without = estimate(replace(PAIR, draft=None)).ram
    assert remedies[1] == f"no draft model (--spec-type none): {size_of(without)}"
    assert remedies[2].startswith(f"a context of {n_ctx} tokens (-c {n_ctx}): ")
    assert remedies[3].startswith("the same model in Q6_K instead of 8.5 bits a weight: ")
    assert len(remedies) == 4


@given(st.integers(0, 40 * 10**6))
def test_no_remedy_takes_more_than_there_is(free_bytes: int) -> None:
    for remedy in what_would_fit(replace(PAIR, sequences=4), free_bytes):
        match = re.search(r": (\d+\.\d) MB$", remedy)
        assert match
        assert float(match[1]) <= free_bytes / 1e6 + 0.05


def test_a_smaller_quantisation_is_the_largest_that_fits() -> None:
    plan = Plan(DEMO, n_ctx=1024)
    other = estimate(plan).ram - DEMO.weights_bytes
    for quant, bits in QUANT_BITS.items():
        needed = other + DEMO.weights_bytes * bits / 8.5
        *_, last = what_would_fit(plan, int(needed * 1.002))
        assert last.startswith(f"the same model in {'Q6_K' if quant == 'Q8_0' else quant} ")


def test_a_cache_is_not_quantised_where_that_cannot_be(tmp_path: Path) -> None:
    small_heads = check_model(write_model(tmp_path / "tiny.gguf", "llama"))  # of 16 values
    for plan in (
        Plan(small_heads, n_ctx=1024),
        Plan(DEMO, n_ctx=1024, flash_attention="off"),
        replace(PAIR, draft=Plan(small_heads, n_ctx=1024)),
    ):
        assert not [remedy for remedy in what_would_fit(plan, 10**12) if "KV cache" in remedy]


def test_a_smaller_cache_is_named_where_a_small_one_does_not_do() -> None:
    plan = Plan(DEMO, n_ctx=1024, sequences=16)
    q4_0 = estimate(replace(plan, cache_type_k="q4_0", cache_type_v="q4_0")).ram
    assert what_would_fit(plan, q4_0)[0] == f"a q4_0 KV cache (-ctk q4_0 -ctv q4_0): {size_of(q4_0)}"


def test_where_nothing_alone_does_all_of_it_is_named() -> None:
    least = replace(PAIR, draft=None, n_ctx=256, cache_type_k="q4_0", cache_type_v="q4_0")
    free_bytes = estimate(least).ram
    (remedy,) = what_would_fit(PAIR, free_bytes)
    assert remedy == f"all of --spec-type none -ctk q4_0 -ctv q4_0 -c 256: {size_of(free_bytes)}"


def test_where_nothing_fits_nothing_is_named() -> None:
    assert what_would_fit(PAIR, 10**6) == []
    assert largest_context(PAIR, 10**6) == 0
