"""The memory that loading a model takes, from its header alone: an estimate of llama.cpp's buffers.

Derived from llama.cpp 0c1e57098 (`llama-context.cpp`, `llama-kv-cache.cpp`, `llama-memory-recurrent.cpp`, the graphs in
`src/models/` and the allocator in `ggml-alloc.c`); tests/support/check_memory.py compares it with llama.cpp's reports.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import Any

from edgespec.core.exactness import CELLS
from edgespec.core.features import HEAD_BATCH, MOST_EMBEDDINGS, MOST_UNREAD, TRIMMED_ROWS
from edgespec.gguf_file.head_check import (
    ASSISTANT,
    BIASES,
    MTP_ARCHITECTURES,
    NETWORKS,
    OWN_ARCHITECTURES,
    n_chained,
    n_features,
    n_tokens,
    output_of_block,
)
from edgespec.gguf_file.header import EXPERTS, Header, TensorInfo
from edgespec.gguf_file.model_check import NO_DRAFTS, NO_TARGETS, WITHOUT_CACHE
from edgespec.llama.context_params import ContextParams
from edgespec.settings import CACHE_TYPES, MAX_SEQUENCES

WITHOUT_WINDOWS = ("phi3", "phimoe")  # architectures whose files have a window that llama.cpp ignores
KEPT_TOKENS, KEPT_GRAPHS, GRAPH_BYTES = 64, 8, 1 << 19  # of narrow passes of usual widths (scripts/llama/graphs.h)
KEPT_BY_HEAD = 96  # tokens of the narrow graphs that a head on the CPU keeps (`llama/eagle_graph.py`)
PROJECTOR_BYTES = 256 << 20  # an assumption: the scratch depends on the projector and on the size of the image
_F32 = 4
_EXPERTS = re.compile(EXPERTS)
_IN_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.weight)?$")


@dataclass(slots=True, frozen=True)
class MemoryPlan(ContextParams):
    """One model, the parameters of its context, and its draft.

    Attributes:
        header: The result of `check_model` or `check_draft_file`.
        gpu_layers: Layers on GPUs, counted as in llama.cpp: the output first, then layers from the last one down.
        devices: The names of the GPUs that these layers are spread over.
        n_cpu_moe: The number of layers, from the first one on, whose experts stay in main memory.
        split: The number of layers on each device of a worker, which the estimate treats as GPUs.
        repacked: The weight types that the build repacks.
        interleaves: It interleaves them, which includes the embeddings.
        may_repack: False if the settings say that no weights are repacked.
        mtp: True if the MTP block is loaded, which has a separate context (`of_block`).
        blocks: The number of MTP blocks that draft one token each; each has as many of the sequences.
        features: The number of floats that a draft head reads of a token.
        projector: The size in bytes of the projector's file, which reads images.
        adapters: The headers of LoRA adapters.
    """

    header: Header
    gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    n_cpu_moe: int = 0
    split: tuple[int, ...] = ()
    repacked: frozenset[str] = frozenset()
    interleaves: bool = False
    may_repack: bool = True
    draft: MemoryPlan | None = None
    mtp: bool = False
    blocks: int = 1
    features: int = 0
    projector: int = 0
    adapters: tuple[Header, ...] = ()

    @property
    def vector(self) -> int:
        """The values of a vector for each token, in addition to its logits."""
        return 0 if self.pooling is None else self.header.number("embedding_length")

    @property
    def can_stream(self) -> bool:
        """True if sequences may have separate caches: without branches, which share a cache, and recurrent states."""
        return self.exact and not self.branches and self.header.architecture not in NO_DRAFTS

    @property
    def stores_scores(self) -> bool:
        """True without flash attention, which stores no scores."""
        return self.flash_attention == "off"

    @property
    def n_layers(self) -> int:
        """The number of layers that can be on a GPU, including the output."""
        return 0 if self.header.architecture in OWN_ARCHITECTURES else max(1, self.header.number("block_count")) + 1

    @property
    def of_block(self) -> MemoryPlan:
        """The context that the MTP block drafts in. Its weights are the model's."""
        n_layers, n_blocks = (self.header.number(key) for key in ("block_count", "nextn_predict_layers"))
        first, architecture = n_layers - n_blocks, self.header.architecture
        tensors = {
            f"blk.{int(match[1]) - first}.{match[2]}.weight": replace(tensor, size_bytes=0)
            for name, tensor in self.header.tensors.items()
            if (match := _IN_LAYER.match(name)) and int(match[1]) >= first
        }
        sizes: dict[str, Any] = {f"{architecture}.block_count": n_blocks, f"{architecture}.nextn_predict_layers": 0}
        sizes |= {f"{architecture}.attention.sliding_window": 0}  # one mask, whichever it is
        for key, value in self.header.metadata.items():
            if isinstance(value, tuple) and len(value) == n_layers:
                sizes[key] = value[first:]
        branches, chained = self.branches + self.sequences if self.branches else 0, n_chained(self.header)
        if self.sequences * chained + branches > MAX_SEQUENCES:
            chained = 1
        features = self.header.number("embedding_length") * self.header.number("hyper_connection.count", 1)
        return replace(
            self.as_head(features, chained),
            header=replace(self.header, tensors=tensors, metadata=self.header.metadata | sizes),
            sequences=self.sequences * chained,
            blocks=chained,
            branches=branches,
            gpu_layers=n_blocks + 1 if self.gpu_layers > 1 else 0,
            scratch=0,
            rollback=0,
            streams=False,
            draft=None,
            mtp=False,
            projector=0,
            adapters=(),
        )

    def as_head(self, features: int, drafted: int = 1) -> MemoryPlan:
        """The plan of a draft head's context: every token of its passes gives a row, and each sequence has at least one
        and `drafted` tokens."""
        n_batch = max(HEAD_BATCH, (1 + drafted) * self.sequences)
        return replace(self, n_batch=n_batch, max_outputs=n_batch, features=features)


@dataclass(slots=True, frozen=True)
class MemoryEstimate:
    """Bytes that a plan takes, including its drafts.

    Attributes:
        work: Scratch of the CPU, graphs that are kept, and the target's states that a draft head keeps; llama.cpp
            reports none of them.
        mapped: Weights in the mapped file: without room for them they are read from the disk again and again.
        layers_on_gpu: Weights and caches, distributed over the GPUs; `compute_on_gpu` is on each GPU.
    """

    weights: int
    kv: int
    compute: int
    output: int
    work: int
    mapped: int
    layers_on_gpu: int = 0
    compute_on_gpu: int = 0

    def __add__(self, other: MemoryEstimate) -> MemoryEstimate:
        return MemoryEstimate(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(MemoryEstimate))
        )

    @property
    def vram(self) -> int:
        """GPU memory, if there is one GPU."""
        return self.layers_on_gpu + self.compute_on_gpu

    @property
    def total(self) -> int:
        """All memory, with one GPU or none."""
        return self.weights + self.kv + self.compute + self.output + self.work

    @property
    def ram(self) -> int:
        """Main memory."""
        return self.total - self.vram

    @property
    def allocated(self) -> int:
        """The main memory that must be free: for everything except the mapped weights."""
        return self.ram - self.mapped


def estimate(plan: MemoryPlan) -> MemoryEstimate:
    """Estimate the memory that loading a plan takes, from the headers alone."""
    header, n_layers = plan.header, plan.n_layers - 1
    if header.architecture in OWN_ARCHITECTURES:
        return _of_networks(plan) if header.architecture in NETWORKS else _of_parallel(plan)
    heads = [head for head in (plan.draft, plan.of_block if plan.mtp else None) if head is not None]
    on_gpu = min(sum(plan.split) + 1 if any(plan.split) else plan.gpu_layers, n_layers + 1)
    widths = _Widths.of(header)
    weights, weights_on_gpu, mapped, largest_elsewhere = _weights(
        plan, n_layers + 1 - on_gpu if on_gpu else n_layers + 2
    )
    kv = _cache(plan) + _states(plan)
    compute, inputs, work = _compute(plan, widths)
    compute_on_gpu = compute if any(plan.split) else 0
    if plan.gpu_layers > n_layers and not largest_elsewhere:
        compute_on_gpu, compute, work = compute, compute + inputs, 0
    elif plan.gpu_layers:
        # Wide passes go through the GPU everywhere: weights of the other layers are copied there, one after the other.
        compute_on_gpu = compute + largest_elsewhere
        compute += compute_on_gpu  # the CPU needs as much for its own layers
    of_projector = plan.projector + PROJECTOR_BYTES if plan.projector else 0
    also = _kept_by_head(plan) + _kept_graphs(plan) + _trimmed(plan)
    own = MemoryEstimate(
        weights=weights,
        kv=kv,
        compute=compute,
        output=(_outputs(plan) * (n_tokens(header) + plan.vector) + plan.n_batch * sum(head.features for head in heads))
        * _F32,
        work=work + also + (0 if plan.gpu_layers else of_projector),
        mapped=mapped,
        layers_on_gpu=weights_on_gpu + kv * (on_gpu - 1) // n_layers if on_gpu else 0,
        compute_on_gpu=compute_on_gpu + (of_projector if plan.gpu_layers else 0),
    )
    return sum(map(estimate, heads), start=own)


def _kept_by_head(plan: MemoryPlan) -> int:
    """Return the bytes of the target's states that a head will read later, and of a matrix that a DSpark head needs as
    F16 in addition."""
    biases = plan.header.tensors.get(BIASES)
    states = plan.n_ctx * plan.sequences * plan.features * _F32
    return min(MOST_UNREAD, states) + (2 * math.prod(biases.shape) if biases else 0)


def _kept_graphs(plan: MemoryPlan) -> int:
    """Return the bytes of the graphs, with their logits, that a context on the CPU keeps if it verifies drafts."""
    if plan.gpu_layers or plan.stores_scores or plan.pooling is not None or plan.max_outputs <= plan.sequences:
        return 0
    return KEPT_GRAPHS * GRAPH_BYTES + KEPT_TOKENS * n_tokens(plan.header) * _F32


def _trimmed(plan: MemoryPlan) -> int:
    """Return the bytes of the part of the output that an MTP block on the CPU multiplies by."""
    tensor = plan.header.tensors.get(output_of_block(plan.header)) if plan.mtp and not plan.gpu_layers else None
    if tensor is None or tensor.shape[1] < 2 * TRIMMED_ROWS:
        return 0
    return tensor.size_bytes // tensor.shape[1] * TRIMMED_ROWS


def _of_networks(plan: MemoryPlan) -> MemoryEstimate:
    """Estimate a head of networks: Q8_0 weights, some of the target's embeddings, and a row of logits."""
    weights, output = plan.header.n_params * 34 // 32, n_tokens(plan.header) * _F32
    embeddings = min(MOST_EMBEDDINGS, n_tokens(plan.header)) * plan.header.number("embedding_length")
    return MemoryEstimate(weights=weights, kv=0, compute=0, output=output, work=embeddings * _F32, mapped=0)


def _of_parallel(plan: MemoryPlan) -> MemoryEstimate:
    """Estimate a P-EAGLE head in our own graphs: its weights are copied, its embeddings read from the file.

    Each value of a pass has memory of its own (`llama/eagle_graph.py`). A wide graph and several narrow ones are kept.
    """
    header, widths = plan.header, _Widths.of(plan.header)
    weights = sum(tensor.size_bytes for name, tensor in header.tensors.items() if name != "token_embd.weight")
    tokens, n_rows = plan.n_batch + KEPT_BY_HEAD, header.tensors["output.weight"].shape[1]
    in_layer = 8 * widths.residual + 3 * widths.query + 2 * widths.key_and_value + widths.feed_forward
    values = header.number("block_count") * in_layer + 10 * widths.residual + 3 * n_features(header)
    compute = tokens * (values * _F32 + _cells(plan) * 2) + KEPT_BY_HEAD * n_rows * _F32
    return MemoryEstimate(
        weights=weights,
        kv=int(_cells(plan) * bytes_per_token(header)),
        compute=compute,
        output=n_tokens(header) * _F32,
        work=_kept_by_head(plan) + plan.n_batch * plan.features * _F32,
        mapped=0,
    )


# --- weights and caches -----------------------------------------------------------------------------------------------


def _weights(plan: MemoryPlan, first_on_gpu: int) -> tuple[int, int, int, int]:
    """Return the bytes of all weights, of those on GPUs and in the mapped file, and of the largest one elsewhere.

    Layers from `first_on_gpu` are on GPUs, except for experts that the plan keeps in main memory; the output is the
    last layer. Repacked weights count once: the mapped pages of the originals are not read again.
    """
    header, output_layer = plan.header, plan.header.number("block_count")
    total = on_gpu = mapped = largest = 0
    is_left_out = not plan.mtp and header.architecture in MTP_ARCHITECTURES
    first_unused = output_layer - (header.number("nextn_predict_layers") if is_left_out else 0)
    for name, tensor in header.tensors.items():
        layer = _layer(name, output_layer)
        if first_unused <= layer < output_layer:
            continue
        is_repacked = _is_repacked(tensor, plan) and (layer >= 0 or (plan.interleaves and name == "token_embd.weight"))
        size = int(tensor.size_bytes * (_LARGER.get(tensor.type, 1) if is_repacked and plan.interleaves else 1))
        total += size
        is_kept = (layer == output_layer and any(plan.split)) or (layer < plan.n_cpu_moe and _EXPERTS.search(name))
        if layer >= first_on_gpu and not is_kept:
            on_gpu += tensor.size_bytes
            continue
        if layer >= 0:
            largest = max(largest, size)
        if not is_repacked:
            mapped += size
    for name, tensor in (pair for adapter in plan.adapters for pair in adapter.tensors.items()):
        total += tensor.size_bytes
        on_gpu += tensor.size_bytes if _layer(name, output_layer) >= first_on_gpu else 0
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None and "output.weight" not in header.tensors:
        # The embedding stays mapped for look-ups. If it is the output, too, it is copied to a GPU, or repacked.
        if first_on_gpu <= output_layer and not any(plan.split):
            total, on_gpu = total + embedding.size_bytes, on_gpu + embedding.size_bytes
        elif _is_repacked(embedding, plan) and not plan.interleaves:
            mapped -= embedding.size_bytes
    return total, on_gpu, mapped, largest


_LARGER = {
    "Q3_K": 114 / 110, "Q4_K": 148 / 144, "Q5_K": 180 / 176, "IQ4_XS": 138 / 136, "IQ1_M": 58 / 56, "TQ1_0": 66 / 54
}  # fmt: skip
"""How much larger interleaved weights are: some scales of three or six bits take four or eight, and digits with a base
of three take two bits."""


def _is_repacked(tensor: TensorInfo, plan: MemoryPlan) -> bool:
    is_matrix = tensor.type in plan.repacked and len(tensor.shape) > 1
    return is_matrix and (plan.interleaves or tensor.shape[1] % 8 == 0)


def _layer(name: str, output_layer: int) -> int:
    """Return the layer of a tensor; -1 for the embeddings."""
    match = _IN_LAYER.match(name)
    return int(match[1]) if match else output_layer if name.startswith("output") else -1


def _cells(plan: MemoryPlan) -> int:
    """Return the number of tokens in the cache; sliding windows save nothing (`swa_full`)."""
    return _attended(plan) * (plan.sequences if plan.streams else 1)


def _attended(plan: MemoryPlan) -> int:
    """Return the tokens that a pass attends to: those of all sequences that share a cache, or of one stream."""
    shared = plan.n_ctx if plan.streams else plan.n_ctx * plan.sequences + plan.scratch
    return -(-shared // CELLS) * CELLS


def _cache(plan: MemoryPlan) -> int:
    """Return the bytes of the keys and values of all tokens."""
    if plan.header.architecture in WITHOUT_CACHE:
        return 0
    return int(_cells(plan) * bytes_per_token(plan.header, plan.cache_type_k, plan.cache_type_v))


def bytes_per_token(header: Header, cache_type_k: str = "f16", cache_type_v: str = "f16") -> float:
    """Return the bytes of a token in caches of these types."""
    types = (CACHE_TYPES[cache_type_k], CACHE_TYPES[cache_type_v])
    return sum(n * type.block_bytes / type.block for n, type in zip(header.cached_values, types, strict=True))


def _states(plan: MemoryPlan) -> int:
    """Return the bytes of all recurrent states, old states included. They are F32 with any cache type."""
    n_layers = sum(name.endswith(("ssm_conv1d.weight", "shortconv.conv.weight")) for name in plan.header.tensors)
    return sum(_state_values(plan.header)) * _F32 * n_layers * _state_rows(plan)


def _state_rows(plan: MemoryPlan) -> int:
    keeps_old_states = plan.header.architecture not in NO_TARGETS
    rollback = min(plan.rollback, max(0, plan.n_batch - 2)) if keeps_old_states else 0
    return (plan.sequences + plan.branches) * (1 + rollback)


def _state_values(header: Header) -> tuple[int, int]:
    """Return the values of a sequence in a recurrent layer: last inputs of the convolution, and the state."""
    if kernel := header.number("shortconv.l_cache"):
        return header.number("embedding_length") * (kernel - 1), 0
    inner, state, groups = (header.number(f"ssm.{key}") for key in ("inner_size", "state_size", "group_count"))
    return max(0, header.number("ssm.conv_kernel") - 1) * (inner + 2 * groups * state), inner * state


def _outputs(plan: MemoryPlan) -> int:
    """Return the rows of logits of one decode."""
    most = min(max(plan.max_outputs, plan.n_scored), plan.n_batch, plan.n_ctx * plan.sequences)
    return max(most, plan.sequences + plan.branches)


# --- compute buffers -------------------------------------------------------------------------------------------------


def _compute(plan: MemoryPlan, widths: _Widths) -> tuple[int, int, int]:
    """Return the compute buffer of a pass of `n_batch` tokens, the inputs in it, and the CPU's additional scratch.

    Inputs and two residuals exist for the whole pass. The buffer also holds the values of the widest part of a layer,
    or the rows of logits. Everything is F32.
    """
    cells = _attended(plan)
    tokens = min(plan.n_ctx * plan.sequences + plan.scratch, plan.n_batch)
    flash, attends = not plan.stores_scores, any(plan.header.cached_values) or plan.header.architecture == ASSISTANT
    residuals = 2 * widths.residual

    inputs = tokens * widths.residual * _F32
    if attends:  # the attention masks, for full layers and for those with a window
        windows = plan.header.number("attention.sliding_window") and plan.header.architecture not in WITHOUT_WINDOWS
        masks = 2 if windows else 1
        inputs += masks * cells * tokens * (2 if flash else _F32)

    attention = tokens * (residuals + 2 * widths.query + widths.key_and_value) * _F32
    scores = _scores(plan, widths)
    if flash and attends:  # its kernels take no F32 keys and values: each layer's are copied as F16
        in_f32 = [plan.cache_type_k, plan.cache_type_v].count("f32")
        attention += in_f32 * cells * widths.key_and_value  # half the width, two bytes
    # The queries leave a gap that no buffer of a feed-forward network fits into.
    feed_forward = tokens * (residuals + widths.query + widths.feed_forward) * _F32
    adapted = tokens * max((each.shape[1] for one in plan.adapters for each in one.tensors.values()), default=0) * _F32
    in_layers = inputs + adapted + max(attention + scores, feed_forward, _recurrence(plan, tokens))
    logits = 0 if plan.header.architecture in WITHOUT_CACHE else _outputs(plan) * n_tokens(plan.header)
    at_the_end = (tokens * residuals + logits) * _F32  # after the masks are gone
    # A head's rows of logits, one for each token, do not fit into the space that its only layer needed.
    compute = in_layers + at_the_end if plan.features else max(in_layers, at_the_end)
    return compute, inputs, scores // 2  # the CPU multiplies scores with values as F16


def _scores(plan: MemoryPlan, widths: _Widths) -> int:
    """Return the bytes of attention scores without flash attention."""
    tokens = min(plan.n_ctx * plan.sequences + plan.scratch, plan.n_batch)
    return _attended(plan) * tokens * widths.heads * _F32 if plan.stores_scores else 0


def _recurrence(plan: MemoryPlan, tokens: int) -> int:
    """Return the buffers of a recurrent layer: five times its inner width, and the states before and after."""
    inner, state = plan.header.number("ssm.inner_size"), _state_values(plan.header)[1]
    rows = plan.sequences + plan.branches + _state_rows(plan)
    return (tokens * (2 * plan.header.number("embedding_length") + 5 * inner) + rows * state) * _F32 if inner else 0


# --- values per token -------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Widths:
    """The widest layer's values per token, from the shapes of the weights."""

    residual: int
    query: int
    key_and_value: int
    heads: int
    feed_forward: int

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
        if width > expert:  # the experts' output does not fit into the place of their gates
            experts += used * width
        return cls(
            residual=width,
            query=query,
            key_and_value=rows_out["attn_k"] + rows_out["attn_v"],
            heads=heads,
            feed_forward=max(dense, experts),
        )


def _gated(up: int, down: int) -> int:
    """Return the buffer of a feed-forward network: a gated product needs an additional buffer."""
    return up + down if up > down else up
