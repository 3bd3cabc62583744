"""Tiny models with blocks for multi-token prediction after their layers, in all architectures that draft with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_gguf import Value, Weights, model_metadata, model_tensors, write_file

ARCHITECTURES = (
    "qwen35", "qwen35moe", "glm4moe", "deepseek2", "deepseek32", "glm-dsa", "deepseek4", "bailingmoe3", "cohere2moe",
    "nemotron_h_moe", "hy_v3", "mimo2", "step35",
)  # fmt: skip
SEVERAL = ("hy_v3", "mimo2", "step35")  # these may have several blocks
LAYERS, WIDTH, HEADS, HEAD, N_EXPERTS, N_FF = 3, 64, 4, 16, 4, 64
LATENT, NOPE = 32, 16  # latent attention: the width of what is cached, and what of a head has no position
INDEXER, WIDE_HEAD, STREAMS = 64, 128, 4  # DeepSeek's sparse attention, and its fourth version
_LATENT_ATTENTION = ("deepseek2", "deepseek32", "glm-dsa", "bailingmoe3")
_INDEXED = ("deepseek32", "glm-dsa")


def write_mtp(
    path: Path,
    architecture: str = "qwen35",
    *,
    knows_bigrams: bool = False,
    n_blocks: int = 1,
    n_knowing: int | None = None,
) -> Path:
    """A model of three layers and one MTP block or several: a random one, or one whose first `n_knowing` blocks (all)
    predict as those layers do, which add nothing then."""
    like = "qwen35" if architecture.startswith("qwen35") else "llama"
    n_layers = LAYERS + n_blocks
    tensors = _Tensors(architecture, model_tensors(like, model_metadata(like, n_layers=n_layers)))
    for layer in range(n_layers):
        tensors.add_attention(layer)
        tensors.add_feed_forward(layer)
    for layer in range(LAYERS, n_layers):
        tensors.add_nextn(f"blk.{layer}")
    if architecture == "deepseek4":
        tensors.matrix("output_hc_fn.weight", STREAMS, STREAMS * WIDTH)
        tensors.fill("output_hc_base.weight", 0.0, STREAMS)
        tensors.fill("output_hc_scale.weight", 1.0, 1)
    if knows_bigrams:
        tensors.know_bigrams(LAYERS + (n_blocks if n_knowing is None else n_knowing))
    entries = model_metadata(like, n_layers=n_layers, prefix=architecture)
    own = {f"{architecture}.{key}": value for key, value in _metadata(architecture, n_layers, n_blocks).items()}
    return write_file(path, entries | own, tensors.weights)


class _Tensors:
    """Those of a Llama or a Qwen 3.5, which become those of another architecture."""

    def __init__(self, architecture: str, weights: dict[str, Weights]) -> None:
        self.architecture, self.weights = architecture, weights
        self.random = np.random.default_rng(1)

    def matrix(self, name: str, *shape: int) -> None:
        self.weights[name] = (self.random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    def fill(self, name: str, value: float, *shape: int) -> None:
        self.weights[name] = np.full(shape, value, np.float32)

    def remove(self, block: str, *names: str) -> None:
        for name in names:
            del self.weights[f"{block}.{name}.weight"]

    def rename(self, old: str, new: str) -> None:
        self.weights[new] = self.weights.pop(old)

    # --- attention ------------------------------------------------------------------------------------------------

    def add_attention(self, layer: int) -> None:
        block, is_recurrent = f"blk.{layer}", layer in (0, 2)
        match self.architecture:
            case "bailingmoe3" if is_recurrent:
                self._add_delta_attention(block)
            case "deepseek2" | "deepseek32" | "glm-dsa" | "bailingmoe3":
                self._add_latent_attention(block)
            case "deepseek4":
                self._add_compressed_attention(block, {0: 4, 1: 128}.get(layer, 0))
            case "nemotron_h_moe" if layer == 0:
                self._add_mamba(block)
            case "nemotron_h_moe" if layer == 2:
                self.remove(block, "attn_q", "attn_k", "attn_v", "attn_output")
            case "hy_v3":
                for name in "qk":
                    self.fill(f"{block}.attn_{name}_norm.weight", 1.0, HEAD)
            case "mimo2":
                parts = [self.weights.pop(f"{block}.attn_{name}.weight") for name in "qkv"]
                self.weights[f"{block}.attn_qkv.weight"] = np.concatenate(parts)

    def _add_latent_attention(self, block: str) -> None:
        self.remove(block, "attn_q", "attn_k", "attn_v")
        self._add_latent_query(block, HEADS * (NOPE + HEAD))
        self.matrix(f"{block}.attn_kv_a_mqa.weight", LATENT + HEAD, WIDTH)
        self.fill(f"{block}.attn_kv_a_norm.weight", 1.0, LATENT)
        self.matrix(f"{block}.attn_k_b.weight", HEADS, LATENT, NOPE)
        self.matrix(f"{block}.attn_v_b.weight", HEADS, HEAD, LATENT)
        if self.architecture in _INDEXED:
            self.fill(f"{block}.indexer.k_norm.weight", 1.0, INDEXER)
            self.fill(f"{block}.indexer.k_norm.bias", 0.0, INDEXER)
            self.matrix(f"{block}.indexer.attn_k.weight", INDEXER, WIDTH)
            self._add_indexer(block)
        if self.architecture == "bailingmoe3":
            self.matrix(f"{block}.attn_gate.weight", HEADS, WIDTH)

    def _add_latent_query(self, block: str, n_out: int) -> None:
        self.matrix(f"{block}.attn_q_a.weight", LATENT, WIDTH)
        self.fill(f"{block}.attn_q_a_norm.weight", 1.0, LATENT)
        self.matrix(f"{block}.attn_q_b.weight", n_out, LATENT)

    def _add_indexer(self, block: str) -> None:
        self.matrix(f"{block}.indexer.proj.weight", 2, WIDTH)
        self.matrix(f"{block}.indexer.attn_q_b.weight", 2 * INDEXER, LATENT)

    def _add_delta_attention(self, block: str) -> None:
        for name in "qkv":
            self.matrix(f"{block}.attn_{name}.weight", WIDTH, WIDTH)
            self.matrix(f"{block}.ssm_conv1d_{name}.weight", WIDTH, 1, 4)
        for name in ("f_a", "g_a"):
            self.matrix(f"{block}.ssm_{name}.weight", WIDTH, WIDTH)
        self.matrix(f"{block}.ssm_beta.weight", HEADS, WIDTH)
        self.fill(f"{block}.ssm_a", 1.0, HEADS, 1)
        self.fill(f"{block}.ssm_dt.bias", 0.0, WIDTH)
        self.fill(f"{block}.ssm_norm.weight", 1.0, HEAD)

    def _add_compressed_attention(self, block: str, ratio: int) -> None:
        self.remove(block, "attn_q", "attn_k", "attn_v", "attn_output")
        self.fill(f"{block}.attn_sinks.weight", 0.0, HEADS)
        self._add_latent_query(block, HEADS * WIDE_HEAD)
        self.matrix(f"{block}.attn_kv.weight", WIDE_HEAD, WIDTH)
        self.fill(f"{block}.attn_kv_a_norm.weight", 1.0, WIDE_HEAD)
        self.matrix(f"{block}.attn_output_a.weight", 2 * LATENT, HEADS * WIDE_HEAD // 2)
        self.matrix(f"{block}.attn_output_b.weight", WIDTH, 2 * LATENT)
        for name in ("attn", "ffn"):
            self.matrix(f"{block}.hc_{name}_fn.weight", (2 + STREAMS) * STREAMS, STREAMS * WIDTH)
            self.fill(f"{block}.hc_{name}_base.weight", 0.0, (2 + STREAMS) * STREAMS)
            self.fill(f"{block}.hc_{name}_scale.weight", 1.0, 3)
        if ratio:
            self._add_compressor(f"{block}.attn_compressor", WIDE_HEAD, ratio)
        if ratio == 4:
            self._add_compressor(f"{block}.indexer_compressor", INDEXER, ratio)
            self._add_indexer(block)

    def _add_compressor(self, name: str, head: int, ratio: int) -> None:
        width = head * (2 if ratio == 4 else 1)
        for part in ("kv", "gate"):
            self.matrix(f"{name}_{part}.weight", width, WIDTH)
        self.matrix(f"{name}_ape.weight", ratio, width)
        self.fill(f"{name}_norm.weight", 1.0, head)

    def _add_mamba(self, block: str) -> None:
        self.remove(block, "attn_q", "attn_k", "attn_v", "attn_output")
        inner, n_heads = 2 * WIDTH, 8
        n_conv = inner + 2 * HEAD
        self.matrix(f"{block}.ssm_in.weight", inner + n_conv + n_heads, WIDTH)
        self.matrix(f"{block}.ssm_conv1d.weight", n_conv, 4)
        self.fill(f"{block}.ssm_conv1d.bias", 0.0, n_conv)
        self.fill(f"{block}.ssm_dt.bias", -2.0, n_heads)
        self.fill(f"{block}.ssm_a", -1.0, n_heads, 1)
        self.fill(f"{block}.ssm_d", 1.0, n_heads, 1)
        self.fill(f"{block}.ssm_norm.weight", 1.0, 1, inner)
        self.matrix(f"{block}.ssm_out.weight", WIDTH, inner)

    # --- feed-forward networks ------------------------------------------------------------------------------------

    def add_feed_forward(self, layer: int) -> None:
        block = f"blk.{layer}"
        match self.architecture:
            case "qwen35" | "mimo2":
                return
            case "glm4moe":
                self.rename(f"{block}.ffn_norm.weight", f"{block}.post_attention_norm.weight")
            case "cohere2moe":
                self.remove(block, "ffn_norm")
            case "nemotron_h_moe" if layer < LAYERS:
                self.remove(block, "ffn_norm")
            case "nemotron_h_moe":
                self.rename(f"{block}.ffn_norm.weight", f"{block}.post_attention_norm.weight")
        if layer or self.architecture in ("qwen35moe", "deepseek4", "nemotron_h_moe"):
            self.remove(block, "ffn_gate", "ffn_up", "ffn_down")
            if self.architecture != "nemotron_h_moe" or layer >= 2:
                self._add_experts(block)

    def _add_experts(self, block: str) -> None:
        self.matrix(f"{block}.ffn_gate_inp.weight", N_EXPERTS, WIDTH)
        for name in ("up",) if self.architecture == "nemotron_h_moe" else ("gate", "up"):
            self.matrix(f"{block}.ffn_{name}_exps.weight", N_EXPERTS, N_FF, WIDTH)
            self.matrix(f"{block}.ffn_{name}_shexp.weight", N_FF, WIDTH)
        self.matrix(f"{block}.ffn_down_exps.weight", N_EXPERTS, WIDTH, N_FF)
        self.matrix(f"{block}.ffn_down_shexp.weight", WIDTH, N_FF)
        match self.architecture:
            case "qwen35moe":
                self.fill(f"{block}.ffn_gate_inp_shexp.weight", 1.0, WIDTH)
            case "hy_v3":
                self.fill(f"{block}.exp_probs_b", 0.0, N_EXPERTS)
            case architecture if architecture != "cohere2moe":
                self.fill(f"{block}.exp_probs_b.bias", 0.0, N_EXPERTS)

    # --- blocks ---------------------------------------------------------------------------------------------------

    def add_nextn(self, block: str) -> None:
        for norm in ("enorm", "hnorm"):
            self.fill(f"{block}.nextn.{norm}.weight", 1.0, WIDTH)
        self.fill(self._last_norm(block), 1.0, WIDTH)
        self.matrix(f"{block}.nextn.eh_proj.weight", WIDTH, 2 * WIDTH)

    def _last_norm(self, block: str) -> str:
        name = "layer_output_norm" if self.architecture == "bailingmoe3" else "nextn.shared_head_norm"
        return f"{block}.{name}.weight"

    def know_bigrams(self, end: int) -> None:
        """Let what layers would add be nothing, and a block take the token alone; blocks from layer `end` on take its
        opposite. Embeddings have the mean 0, so that both kinds of norms do the same."""
        embedding = self.weights["token_embd.weight"]
        self.weights["token_embd.weight"] = embedding - embedding.mean(axis=1, keepdims=True)
        for name in self.weights:
            if any(part in name for part in ("ffn_down", "ssm_out", "attn_output")):
                self.weights[name] = np.zeros_like(self.weights[name])
            if name.endswith("eh_proj.weight"):
                sign = 1 if int(name.split(".")[1]) < end else -1
                self.weights[name] = np.hstack([sign * np.eye(WIDTH), np.zeros((WIDTH, WIDTH))]).astype(np.float32)
                self.weights[self._last_norm(name[: name.index(".nextn")])] = self.weights["output_norm.weight"]


def _metadata(architecture: str, n_layers: int, n_blocks: int) -> dict[str, Value]:
    """The metadata that such a model has in addition to those of a Llama or a Qwen 3.5."""
    entries: dict[str, Value] = {"nextn_predict_layers": n_blocks}
    if architecture != "qwen35":
        entries |= {"expert_feed_forward_length": N_FF}
    if architecture not in ("qwen35", "mimo2"):
        entries |= {"expert_count": N_EXPERTS, "expert_used_count": 2, "expert_shared_count": 1}
        entries |= {"expert_shared_feed_forward_length": N_FF, "leading_dense_block_count": 1}
    if architecture in _LATENT_ATTENTION:
        entries |= {"attention.head_count_kv": 1, "attention.q_lora_rank": LATENT, "attention.kv_lora_rank": LATENT}
        entries |= {"attention.key_length": LATENT + HEAD, "attention.value_length": LATENT}
        entries |= {"attention.key_length_mla": NOPE + HEAD, "attention.value_length_mla": HEAD}
        entries |= {"rope.dimension_count": HEAD, "expert_gating_func": 2, "expert_weights_scale": 1.0}
    if architecture in (*_INDEXED, "deepseek4"):
        entries |= {"attention.indexer.head_count": 2, "attention.indexer.key_length": INDEXER}
        entries |= {"attention.indexer.top_k": 2048}
    match architecture:
        case "cohere2moe" | "mimo2" | "step35":
            pattern = [True] * 2 + [False] * (n_layers - 2)
            entries |= {"attention.sliding_window": 2048, "attention.sliding_window_pattern": pattern}
            entries |= {"attention.key_length": HEAD, "attention.value_length": HEAD, "logit_scale": 1.0}
        case "bailingmoe3":
            entries |= {"attention.head_count_kv": [0, 1, 0, 1], "ssm.conv_kernel": 4}
            entries |= {"kda.head_dim": HEAD, "kda.gate_lower_bound": -5.0}
        case "nemotron_h_moe":
            entries |= {"attention.head_count_kv": [0, 2, 0, 2], "feed_forward_length": [0, 0, N_FF, N_FF]}
            entries |= {"attention.layer_norm_epsilon": 1e-5, "ssm.conv_kernel": 4, "ssm.inner_size": 2 * WIDTH}
            entries |= {"ssm.state_size": HEAD, "ssm.time_step_rank": 8, "ssm.group_count": 1}
        case "deepseek4":
            entries |= {"attention.head_count_kv": 1, "attention.q_lora_rank": LATENT, "rope.dimension_count": HEAD}
            entries |= {"attention.key_length": WIDE_HEAD, "attention.value_length": WIDE_HEAD}
            entries |= {"attention.sliding_window": 2048, "attention.compress_ratios": [4, 128, 0, 0]}
            entries |= {"attention.compress_rope_freq_base": 10000.0, "hash_layer_count": 0}
            entries |= {"attention.output_group_count": 2, "attention.output_lora_rank": LATENT}
            entries |= {"hyper_connection.count": STREAMS, "hyper_connection.sinkhorn_iterations": 3}
            entries |= {"hyper_connection.epsilon": 1e-6, "swiglu_clamp_exp": 10.0, "expert_gating_func": 4}
            entries |= {"expert_weights_scale": 1.0, "expert_weights_norm": True}
    return entries
