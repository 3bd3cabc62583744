"""What loading a model will take, from its header alone: an estimate of the buffers that llama.cpp would make.

Derived from llama.cpp 0c1e57098 (`llama-context.cpp`, `llama-kv-cache.cpp`, `llama-memory-recurrent.cpp`, the graphs in
`src/models/` and the allocator in `ggml-alloc.c`); scripts/check_memory.py sets it beside what llama.cpp reports.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from edgespec.figures import size_of
from edgespec.header import Header
from edgespec.models.pair import NO_TARGETS
from edgespec.settings import CACHE_TYPES

CELLS = 256  # llama.cpp rounds a cache up to so many tokens
GPU_RESERVE_BYTES = 500_000_000  # of a GPU's memory: what its driver and the scratch of its kernels take
# Bits a weight has in quantisations that most repositories offer, the scales and the larger tensors of a mix among them
QUANT_BITS = {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "Q3_K_M": 4.0, "Q2_K": 3.2}
WORTHWHILE = 0.95  # of the bits there are: another file for less than that is no remedy
_F32 = 4
_IN_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.weight)?$")


@dataclass(slots=True, frozen=True)
class Plan:
    """One model and the context it is to be loaded with, in the words of `Context`; the draft that goes with it.

    `header` is as `check_model` gives it. `gpu_layers` counts as llama.cpp does: the output first, then layers from the
    last one down.
    """

    header: Header
    n_ctx: int
    sequences: int = 1
    max_outputs: int = 1
    n_batch: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    branches: int = 0
    scratch: int = 0
    rollback: int = 0
    gpu_layers: int = 0
    draft: Plan | None = None


@dataclass(slots=True, frozen=True)
class Estimate:
    """Bytes that a plan takes, `vram` of them on a GPU.

    `weights` are mapped from the file: too many of them are read again for every token, while too much of the rest ends
    the program. `work` is what the CPU takes while it computes, which llama.cpp does not report.
    """

    weights: int
    kv: int
    compute: int
    output: int
    work: int
    own_vram: int = 0
    draft: Estimate | None = None

    @property
    def total(self) -> int:
        """All of it, with the draft's."""
        own = self.weights + self.kv + self.compute + self.output + self.work
        return own + (self.draft.total if self.draft else 0)

    @property
    def vram(self) -> int:
        """What lies on GPUs, with the draft's."""
        return self.own_vram + (self.draft.vram if self.draft else 0)

    @property
    def ram(self) -> int:
        """What lies in main memory, with the draft's."""
        return self.total - self.vram


def estimate(plan: Plan) -> Estimate:
    """What loading this would take; nothing but the header is looked at."""
    header, n_layers = plan.header, max(1, plan.header.number("block_count"))
    on_gpu = min(plan.gpu_layers, n_layers + 1)
    widths = _Widths.of(header)
    weights, weights_on_gpu = _weights(header, n_layers + 1 - on_gpu if on_gpu else n_layers + 2)
    kv = _cache(plan, widths) + _states(plan)
    compute, inputs, work = _compute(plan, widths)
    own_vram = 0
    if on_gpu:
        own_vram = weights_on_gpu + kv * (on_gpu - 1) // n_layers + compute
        compute += compute if on_gpu <= n_layers else inputs  # the CPU needs as much for the layers it has left
        work = work if on_gpu <= n_layers else 0
    return Estimate(
        weights=weights,
        kv=kv,
        compute=compute,
        output=_outputs(plan) * header.n_vocab * _F32,
        work=work,
        own_vram=own_vram,
        draft=estimate(plan.draft) if plan.draft else None,
    )


def largest_context(plan: Plan, free_bytes: int) -> int:
    """The most tokens of context with which the plan fits into main memory: a multiple of 256, and no more than the
    model was trained for; 0 where none fits."""
    trained = plan.header.number("context_length") or plan.n_ctx
    choices = range(CELLS, trained + 1, CELLS)
    fitting = bisect_right(choices, free_bytes, key=lambda n_ctx: estimate(_with_context(plan, n_ctx)).ram)
    return choices[fitting - 1] if fitting else 0


def gpu_layers_that_fit(plan: Plan, free_bytes: int) -> int:
    """The most layers that can go to a GPU with so much free memory, a reserve left to its driver."""
    choices = range(1, plan.header.number("block_count") + 2)
    room = free_bytes - GPU_RESERVE_BYTES
    return bisect_right(choices, room, key=lambda layers: estimate(replace(plan, gpu_layers=layers)).vram)


def what_would_fit(plan: Plan, free_bytes: int) -> list[str]:
    """What one can change so that the plan fits into main memory, and what it would take then: one thing at a time, or
    several at once where none alone would do. Empty where the weights alone are too much."""
    fitting = [change for change in _changes(plan, free_bytes) if change[1] <= free_bytes]
    return [f"{what}: {size_of(needed)}" for what, needed in fitting or _all_at_once(plan, free_bytes)]


def _changes(plan: Plan, free_bytes: int) -> Iterator[tuple[str, int]]:
    """What may be changed, and what main memory is needed then; some may not do."""
    quantised = [(name, estimate(cached).ram) for name in ("q8_0", "q4_0") if (cached := _with_cache(plan, name))]
    for name, needed in [choice for choice in quantised if choice[1] <= free_bytes][:1]:
        yield f"a {name} KV cache (-ctk {name} -ctv {name})", needed
    if plan.draft is not None:
        yield "no draft model (--spec-type none)", estimate(replace(plan, draft=None)).ram
    n_ctx = largest_context(plan, free_bytes)
    if 0 < n_ctx < plan.n_ctx:
        yield f"a context of {n_ctx} tokens (-c {n_ctx})", estimate(_with_context(plan, n_ctx)).ram
    now, bits = estimate(plan), 8 * plan.header.weights_bytes / max(1, plan.header.n_params)
    for quant, quant_bits in QUANT_BITS.items():
        needed = now.ram - int(now.weights * (1 - quant_bits / bits))
        if quant_bits < WORTHWHILE * bits and needed <= free_bytes:
            yield f"the same model in {quant} instead of {bits:.1f} bits a weight", needed
            return


def _all_at_once(plan: Plan, free_bytes: int) -> Iterator[tuple[str, int]]:
    """No draft, the smallest cache and the largest context that fits then, if one does."""
    alone = replace(plan, draft=None)
    quantised = _with_cache(alone, "q4_0")
    n_ctx = min(plan.n_ctx, largest_context(quantised or alone, free_bytes))
    if n_ctx:
        options = ["--spec-type none"] * bool(plan.draft) + ["-ctk q4_0 -ctv q4_0"] * bool(quantised) + [f"-c {n_ctx}"]
        yield f"all of {' '.join(options)}", estimate(_with_context(quantised or alone, n_ctx)).ram


def _with_context(plan: Plan, n_ctx: int) -> Plan:
    """A draft follows its target, unless it had a context of its own."""
    draft = plan.draft
    if draft is not None and draft.n_ctx == plan.n_ctx:
        draft = replace(draft, n_ctx=n_ctx)
    return replace(plan, n_ctx=n_ctx, draft=draft)


def _with_cache(plan: Plan, name: str) -> Plan | None:
    """The plan, and a draft that follows it, with keys and values in this type; None if they cannot be stored so."""
    if plan.flash_attention == "off" or any(size % CACHE_TYPES[name].block for size in plan.header.head_sizes):
        return None
    draft, types = plan.draft, (plan.cache_type_k, plan.cache_type_v)
    if draft is not None and (draft.cache_type_k, draft.cache_type_v) == types:
        draft = _with_cache(draft, name)
        if draft is None:
            return None
    return replace(plan, cache_type_k=name, cache_type_v=name, draft=draft)


# --- weights and caches -----------------------------------------------------------------------------------------------


def _weights(header: Header, first_on_gpu: int) -> tuple[int, int]:
    """All weights, and those on the GPU: layers from `first_on_gpu` on, of which the output counts as the last.

    Repacked ones (`CPU_REPACK`) count once: nobody reads the mapped pages that they were copied from again.
    """
    output_layer = header.number("block_count")
    total = on_gpu = 0
    for name, tensor in header.tensors.items():
        total += tensor.size_bytes
        if _layer(name, output_layer) >= first_on_gpu:
            on_gpu += tensor.size_bytes
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None and "output.weight" not in header.tensors and first_on_gpu <= output_layer:
        # The embedding stays where it is looked up, on the CPU; an output that is tied to it is a copy.
        total, on_gpu = total + embedding.size_bytes, on_gpu + embedding.size_bytes
    return total, on_gpu


def _layer(name: str, output_layer: int) -> int:
    """The layer that a tensor belongs to; -1 for the embeddings."""
    match = _IN_LAYER.match(name)
    return int(match[1]) if match else output_layer if name.startswith("output") else -1


def _cells(plan: Plan) -> int:
    """Tokens the cache has room for; sequences share it, and sliding windows save nothing (`swa_full`)."""
    return -(-(plan.n_ctx * plan.sequences + plan.scratch) // CELLS) * CELLS


def _cache(plan: Plan, widths: _Widths) -> int:
    """Keys and values of all tokens."""
    k, v = widths.cache
    return int(_cells(plan) * (k * _value_bytes(plan.cache_type_k) + v * _value_bytes(plan.cache_type_v)))


def _states(plan: Plan) -> int:
    """Of recurrent layers: the state of every sequence and its old ones, in F32 whatever the type of the cache."""
    n_layers = sum(name.endswith(("ssm_conv1d.weight", "shortconv.conv.weight")) for name in plan.header.tensors)
    return sum(_state_values(plan.header)) * _F32 * n_layers * _state_rows(plan)


def _state_rows(plan: Plan) -> int:
    keeps_old_states = plan.header.architecture not in NO_TARGETS
    rollback = min(plan.rollback, max(0, plan.n_batch - 2)) if keeps_old_states else 0
    return (plan.sequences + plan.branches) * (1 + rollback)


def _state_values(header: Header) -> tuple[int, int]:
    """How many numbers a recurrent layer keeps of a sequence: the last inputs of its convolution, and its state."""
    if kernel := header.number("shortconv.l_cache"):
        return header.number("embedding_length") * (kernel - 1), 0
    inner, state, groups = (header.number(f"ssm.{key}") for key in ("inner_size", "state_size", "group_count"))
    return max(0, header.number("ssm.conv_kernel") - 1) * (inner + 2 * groups * state), inner * state


def _outputs(plan: Plan) -> int:
    """Rows of logits that a decode may give."""
    return max(min(plan.max_outputs, plan.n_batch), plan.sequences + plan.branches)


def _value_bytes(cache_type: str) -> float:
    return CACHE_TYPES[cache_type].block_bytes / CACHE_TYPES[cache_type].block


# --- what a pass computes with ----------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Widths:
    """Numbers that a token has in the widest layer, from the shapes of the weights; `cache` in all layers together."""

    residual: int
    query: int
    key_and_value: int
    heads: int
    feed_forward: int
    cache: tuple[int, int]

    @classmethod
    def of(cls, header: Header) -> _Widths:
        rows_in: dict[str, int] = defaultdict(int)
        rows_out: dict[str, int] = defaultdict(int)
        for name, tensor in header.tensors.items():
            match = _IN_LAYER.match(name)
            if match and len(tensor.shape) > 1:
                rows_in[match[2]] = max(rows_in[match[2]], tensor.shape[0])
                rows_out[match[2]] = max(rows_out[match[2]], tensor.shape[1])
        width, used = header.number("embedding_length"), header.number("expert_used_count")
        query, value_size = rows_in["attn_output"], header.head_sizes[1]
        heads = query // value_size if value_size else 0
        if header.number("attention.key_length_mla"):
            heads = header.number("attention.head_count")
            query = heads * header.head_sizes[0]
        dense = _gated(rows_out["ffn_up"] + rows_out["ffn_gate"], rows_in["ffn_down"])
        expert = rows_out["ffn_up_exps"] + rows_out["ffn_gate_exps"] + rows_out["ffn_gate_up_exps"]
        experts = used * _gated(expert, rows_in["ffn_down_exps"])
        if width > expert:  # what the experts give does not fit where their gates were
            experts += used * width
        return cls(
            residual=width,
            query=query,
            key_and_value=rows_out["attn_k"] + rows_out["attn_v"],
            heads=heads,
            feed_forward=max(dense, experts),
            cache=_cache_widths(header),
        )


def _gated(up: int, down: int) -> int:
    """A product of two halves lies beside them; without a gate it is computed in place."""
    return up + down if up > down else up


def _cache_widths(header: Header) -> tuple[int, int]:
    """Numbers that a token adds to the caches of keys and of values, all layers together."""
    # The last layers may use the cache of earlier ones, and those that predict further tokens are not run.
    unused = header.number("attention.shared_kv_layers") + header.number("nextn_predict_layers")
    k = v = 0
    for layer in range(header.number("block_count") - unused):
        keys = header.tensors.get(f"blk.{layer}.attn_k.weight")
        if keys is not None:
            k += math.prod(keys.shape[1:])
            v += math.prod(header.tensors.get(f"blk.{layer}.attn_v.weight", keys).shape[1:])
    if not k:  # one matrix for queries, keys and values
        k, v = header.kv_values_per_token
    return (k, 0) if header.number("attention.key_length_mla") else (k, v)


def _compute(plan: Plan, widths: _Widths) -> tuple[int, int, int]:
    """The buffer that a pass of `n_batch` tokens computes in, what of it is inputs, and the CPU's scratch beside it.

    Inputs stay for the whole pass. Beside them the buffer has to hold what lives at once in the widest part of a layer,
    or the rows of logits; everything is F32, and two residuals live through all of it.
    """
    cells = _cells(plan)
    tokens = min(plan.n_ctx * plan.sequences + plan.scratch, plan.n_batch)
    flash, attends = plan.flash_attention != "off", sum(widths.cache) > 0
    residuals = 2 * widths.residual

    inputs = tokens * widths.residual * _F32
    if attends:  # who attends to whom, for full layers and for those with a window
        masks = 2 if plan.header.number("attention.sliding_window") else 1
        inputs += masks * cells * tokens * (2 if flash else _F32)

    attention = tokens * (residuals + 2 * widths.query + widths.key_and_value) * _F32
    scores = 0 if flash else cells * tokens * widths.heads * _F32
    if flash and attends:  # whose kernels take no F32 keys and values: they are copied as F16, a layer at a time
        in_f32 = [plan.cache_type_k, plan.cache_type_v].count("f32")
        attention += in_f32 * cells * widths.key_and_value  # half the width, two bytes
    # Where the queries were stays a gap that nothing of a feed-forward network fits into.
    feed_forward = tokens * (residuals + widths.query + widths.feed_forward) * _F32
    in_layers = inputs + max(attention + scores, feed_forward, _recurrence(plan, tokens))
    at_the_end = (tokens * residuals + _outputs(plan) * plan.header.n_vocab) * _F32  # where the masks are gone
    compute = max(in_layers, at_the_end)
    return compute, inputs, scores // 2  # the CPU multiplies scores with values as F16


def _recurrence(plan: Plan, tokens: int) -> int:
    """What a recurrent layer computes with: five times its inner width, states before and after."""
    inner, state = plan.header.number("ssm.inner_size"), _state_values(plan.header)[1]
    rows = plan.sequences + plan.branches + _state_rows(plan)
    return (tokens * (2 * plan.header.number("embedding_length") + 5 * inner) + rows * state) * _F32 if inner else 0
