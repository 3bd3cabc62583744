"""Tiny models with a block for multi-token prediction behind their layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_gguf import Value, Weights, model_metadata, model_tensors, write_file

ARCHITECTURES = ("qwen35", "qwen35moe", "glm4moe")
WIDTH, N_EXPERTS, N_FF = 64, 4, 64


def write_mtp(path: Path, architecture: str = "qwen35", *, knows_bigrams: bool = False) -> Path:
    """A model of three layers and an MTP block: a random one, or one that predicts as those layers do, which add
    nothing then."""
    like = "llama" if architecture == "glm4moe" else "qwen35"
    entries: dict[str, Value] = model_metadata(like, n_layers=4, prefix=architecture)
    weights = model_tensors(like, model_metadata(like, n_layers=4))
    entries[f"{architecture}.nextn_predict_layers"] = 1
    random = np.random.default_rng(1)

    def matrix(name: str, *shape: int) -> None:
        weights[name] = (random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    for layer in range(4) if architecture.endswith("moe") else ():
        block = f"blk.{layer}"
        if like == "llama":
            weights[f"{block}.post_attention_norm.weight"] = weights.pop(f"{block}.ffn_norm.weight")
        if architecture == "glm4moe" and layer == 0:
            continue
        for name in ("gate", "up", "down"):
            del weights[f"{block}.ffn_{name}.weight"]
        matrix(f"{block}.ffn_gate_inp.weight", N_EXPERTS, WIDTH)
        for name in ("gate", "up"):
            matrix(f"{block}.ffn_{name}_exps.weight", N_EXPERTS, N_FF, WIDTH)
            matrix(f"{block}.ffn_{name}_shexp.weight", N_FF, WIDTH)
        matrix(f"{block}.ffn_down_exps.weight", N_EXPERTS, WIDTH, N_FF)
        matrix(f"{block}.ffn_down_shexp.weight", WIDTH, N_FF)
        if architecture == "glm4moe":
            weights[f"{block}.exp_probs_b.bias"] = np.zeros(N_EXPERTS, np.float32)
        else:
            weights[f"{block}.ffn_gate_inp_shexp.weight"] = np.ones(WIDTH, np.float32)
    if architecture.endswith("moe"):
        counts = {"expert_count": N_EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": N_FF}
        more = {"expert_shared_count": 1, "leading_dense_block_count": 1, "expert_shared_feed_forward_length": N_FF}
        entries |= {f"{architecture}.{key}": value for key, value in (counts | more).items()}
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        weights[f"blk.3.nextn.{norm}.weight"] = np.ones(WIDTH, np.float32)
    matrix("blk.3.nextn.eh_proj.weight", WIDTH, 2 * WIDTH)
    if knows_bigrams:
        _know_bigrams(weights)
    return write_file(path, entries, weights)


def _know_bigrams(weights: dict[str, Weights]) -> None:
    """Let what layers would add be nothing, and the block take the token alone."""
    for name in weights:
        if any(part in name for part in ("ffn_down", "ssm_out", "attn_output")):
            weights[name] = np.zeros_like(weights[name])
    token = np.hstack([np.eye(WIDTH), np.zeros((WIDTH, WIDTH))])
    weights["blk.3.nextn.eh_proj.weight"] = token.astype(np.float32)
    weights["blk.3.nextn.shared_head_norm.weight"] = weights["output_norm.weight"]
