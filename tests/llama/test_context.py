"""The KV cache and the one call that fills it, on the bundled draft model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from gguf import GGUFReader
from tiny_gguf import write_model

from edgespec.cancel import CancelFlag
from edgespec.errors import OutOfMemoryError, UsageError
from edgespec.llama.context import CacheFullError, CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.library import api
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo:draft").path) as model:
        yield model


@pytest.fixture
def context(model: LlamaModel) -> Iterator[Context]:
    with Context(model, ContextParams(n_ctx=256, sequences=4, max_outputs=8)) as context:
        yield context


def decode_chain(context: Context, tokens: list[int], start: int = 0, slot: int = 0) -> np.ndarray:
    """Decode a chain and return the rows after each of its tokens."""
    n = len(tokens)
    context.decode(tokens, range(start, start + n), [(slot,)] * n, [True] * n)
    return np.stack([context.logits(index) for index in range(n)]).copy()


def test_a_row_is_the_same_alone_and_in_a_chain(context: Context) -> None:
    together = decode_chain(context, [5, 6, 7], slot=0)
    one_by_one = np.concatenate([decode_chain(context, [t], start=i, slot=1) for i, t in enumerate((5, 6, 7))])
    np.testing.assert_allclose(together, one_by_one, atol=0.02)


def test_truncating_takes_the_tail_out_of_the_cache(context: Context) -> None:
    wanted = decode_chain(context, [5, 6, 7])[2]
    assert context.truncate(0, 2)
    assert context.length(0) == 2
    decode_chain(context, [900, 901], start=2)
    assert context.truncate(0, 2)
    np.testing.assert_allclose(decode_chain(context, [7], start=2)[0], wanted, atol=0.02)


def test_the_branches_of_a_tree_do_not_see_each_other(context: Context) -> None:
    decode_chain(context, [5, 6])
    context.copy(0, 1)
    # Two children of one node, each with a child of its own, in one batch.
    context.decode([7, 8, 9, 9], [2, 2, 3, 3], [(0,), (1,), (0,), (1,)], [True] * 4)
    rows = [context.logits(index).copy() for index in range(4)]
    for slot, path in ((2, [5, 6, 7, 9]), (3, [5, 6, 8, 9])):
        chain = decode_chain(context, path, slot=slot)
        np.testing.assert_allclose(rows[slot - 2], chain[2], atol=0.05)
        np.testing.assert_allclose(rows[slot], chain[3], atol=0.05)
    assert np.abs(rows[2] - rows[3]).max() > 0.05


def test_a_full_cache_says_so_and_keeps_what_it_had(model: LlamaModel) -> None:
    with Context(model, ContextParams(n_ctx=256, max_outputs=1)) as context:
        context.decode([5] * 256, range(256), [(0,)] * 256, [False] * 255 + [True])
        with pytest.raises(CacheFullError):
            context.decode([5], [256], [(0,)], [True])
        assert context.length(0) == 256


def test_a_set_flag_stops_a_decode_and_the_context_can_be_used_again(context: Context) -> None:
    wanted = decode_chain(context, [5, 6, 7])
    context.truncate(0, 0)
    cancel = CancelFlag()
    context.watch(cancel)
    cancel.set()
    with pytest.raises(CancelledError):
        decode_chain(context, [5, 6, 7])
    context.truncate(0, 0)
    cancel.clear()
    np.testing.assert_array_equal(decode_chain(context, [5, 6, 7]), wanted)


@pytest.mark.parametrize("architecture", ("llama", "qwen3", "lfm2", "qwen35", "nemotron_h"))
def test_what_flows_into_layers_is_read_of_all_tokens(tmp_path: Path, architecture: str) -> None:
    path = write_model(tmp_path / "tiny.gguf", architecture)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}
    tokens = [5, 6, 7, 8]
    with LlamaModel(path) as model, Context(model, ContextParams(n_ctx=64, threads=1, rollback=4)) as context:
        context.watch_layers([0, 1])
        context.decode(tokens, range(4), [(0,)] * 4, [False, False, False, True])
        first, second = context.layer_inputs(0).copy(), context.layer_inputs(1).copy()
        np.testing.assert_array_equal(first, tensors["token_embd.weight"][tokens])
        assert second.shape == (4, model.n_embd) and np.abs(second - first).max() > 0
        logits = context.logits(3).copy()
        if architecture not in ("llama", "qwen3"):  # the others' memory cannot be set back as often as below
            return
        context.truncate(0, 3)
        context.decode([8], [3], [(0,)], [True])
        np.testing.assert_allclose(context.layer_inputs(1)[0], second[3], atol=1e-4)
        context.watch_layers([])
        context.truncate(0, 3)
        context.decode([8], [3], [(0,)], [True])
        np.testing.assert_allclose(context.logits(0), logits, atol=1e-3)
        with pytest.raises(ValueError, match="layer 1 is not watched"):
            context.layer_inputs(1)
        with pytest.raises(UsageError, match="has the layers 0 to 1"):
            context.watch_layers([2])


def test_an_architecture_that_does_not_give_what_flows_into_layers_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "qwen2")
    with (
        LlamaModel(path) as model,
        Context(model, ContextParams(n_ctx=64)) as context,
        pytest.raises(UsageError, match="of a qwen2 model cannot be read"),
    ):
        context.watch_layers([0])


def test_hidden_states_come_beside_the_logits(context: Context) -> None:
    plain = decode_chain(context, [5, 6])[-1]
    context.truncate(0, 0)
    context.hidden_states(True)
    again = decode_chain(context, [5, 6])[-1]
    hidden = context.hidden(1)
    assert hidden.shape == (context.model.n_embd,)
    assert np.abs(hidden).max() > 0
    np.testing.assert_allclose(again, plain, atol=0.02)
    with pytest.raises(ValueError, match="rows requested"):
        context.decode([5] * 9, range(2, 11), [(0,)] * 9, [False] * 9)


def test_more_rows_than_allowed_are_refused_before_llama_cpp_aborts(context: Context) -> None:
    with pytest.raises(ValueError, match="9 rows requested, but at most 8"):
        context.decode([5] * 9, range(9), [(0,)] * 9, [True] * 9)


def test_batches_beyond_the_capacity_are_refused(context: Context) -> None:
    with pytest.raises(ValueError, match="a batch holds 1 to 512 tokens"):
        context.decode([5] * 513, range(513), [(0,)] * 513, [False] * 513)
    with pytest.raises(ValueError, match="a batch holds"):
        context.decode([], [], [], [])


def test_a_row_that_was_not_asked_for_is_refused(context: Context) -> None:
    context.decode([5, 6], [0, 1], [(0,), (0,)], [False, True])
    with pytest.raises(ValueError, match="no logits were requested"):
        context.logits(0)


def test_more_cells_than_llama_cpp_can_count_are_refused(model: LlamaModel) -> None:
    for sequences in (2, 16):  # of which it would make 0 and 256 cells
        with pytest.raises(OutOfMemoryError, match="a KV cache holds 2147483392 at most"):
            Context(model, ContextParams(n_ctx=2**32 // sequences + 1, sequences=sequences))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory cannot be limited, or is promised without end")
def test_a_context_that_cannot_be_allocated_is_refused(model: LlamaModel) -> None:
    program = f"""
import resource
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
with LlamaModel({str(model.path)!r}) as model:
    in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2 * 10**8, resource.getrlimit(resource.RLIMIT_AS)[1]))
    Context(model, ContextParams(n_ctx=2**27))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "use a smaller context (`ctx_size`)" in done.stderr
    assert "cannot create a context of 134217728 tokens for draft.gguf" in done.stderr


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "bf16", "f32"])
def test_the_cache_can_be_of_another_type(model: LlamaModel, kind: str) -> None:
    with (
        Context(model, ContextParams(n_ctx=256, max_outputs=3)) as plain,
        Context(model, ContextParams(n_ctx=256, cache_type_k=kind, cache_type_v=kind, max_outputs=3)) as context,
    ):
        want, got = (decode_chain(each, [5, 6, 7]) for each in (plain, context))
        np.testing.assert_allclose(got, want, atol=2)
        sizes = [api.llama_state_seq_get_size(each._handle, 0) for each in (plain, context)]
        # Another type takes another room or rounds differently, or else it was not passed on.
        assert sizes[0] != sizes[1] or (got != want).any()


def test_impossible_cache_types_are_refused(model: LlamaModel) -> None:
    with pytest.raises(UsageError, match="unknown KV cache type"):
        Context(model, ContextParams(n_ctx=256, cache_type_k="q3_x"))
    with pytest.raises(UsageError, match="needs flash attention"):
        Context(model, ContextParams(n_ctx=256, cache_type_v="q8_0", flash_attention="off"))


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_a_cache_type_that_cannot_hold_the_heads_is_refused(
    tmp_path: Path, flash_attention: Literal["on", "off"]
) -> None:
    with LlamaModel(write_model(tmp_path / "tiny.gguf", "llama")) as tiny:
        assert tiny.header.head_sizes == (16, 16)
        with pytest.raises(UsageError, match="32 values at a time, and the attention heads have 16"):
            Context(tiny, ContextParams(n_ctx=256, cache_type_k="q8_0", flash_attention=flash_attention))


def test_a_closed_context_refuses_to_work_and_forgets_in_peace(model: LlamaModel) -> None:
    context = Context(model, ContextParams(n_ctx=256))
    context.close()
    context.close()
    context.forget(0)
    with pytest.raises(UsageError, match="closed"):
        context.decode([5], [0], [(0,)], [True])


def test_threads_reach_the_library(model: LlamaModel) -> None:
    with Context(model, ContextParams(n_ctx=256, threads=1, threads_batch=2)) as context:
        assert api.llama_n_threads(context._handle) == 1
        assert api.llama_n_threads_batch(context._handle) == 2
