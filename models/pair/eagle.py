"""Published EAGLE-3 heads, with the norms of EAGLE-3.1 and the mask of P-EAGLE, as their files need them.

EAGLE-3.1 (arXiv 2605.09992) has a norm for the input of each layer (`fc_norm`), and decodes the next draft token with
the state after the output norm (`norm_output`), as vLLM, SGLang, TensorRT-LLM, speculators and NeMo Automodel name it.
P-EAGLE (arXiv 2602.01469) has in addition a state for the places of tokens that are not known yet (`mask_hidden`), and
often several layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.features import rms_normed
from edgespec.errors import ModelFileError, UsageError
from edgespec.gguf_file.head_check import EAGLE3, MASK_TOKEN, N_LAYERS_READ, NORMS_LAYERS, NORMS_STATE, PEAGLE
from edgespec.gguf_file.header import Header
from edgespec.models.pair.published import Published

MASK = "mask_hidden.weight"  # our names of published tensors that become a part of others
NORMS = tuple(f"fc_norm.{number}.weight" for number in range(N_LAYERS_READ))
USUAL_BLOCK = 8  # tokens that P-EAGLE heads are trained to draft, if their settings do not say it


def eagle_entries(head: Published, names: Mapping[str, str], target: Header, *, own: bool) -> dict[str, Any]:
    """Return the metadata of an EAGLE-3 head that llama.cpp's architecture has; with `own`, of a P-EAGLE head."""
    n_layers = target.number("block_count") - target.number("nextn_predict_layers")
    layers = head.config.get("eagle_aux_hidden_state_layer_ids") or head.config.get("aux_hidden_state_layer_ids")
    nested = head.config.get("eagle_config")
    if not layers and isinstance(nested, dict) and nested.get("eagle_aux_hidden_state_layer_ids"):
        # SGLang counts outputs of layers here, vLLM and llama.cpp count inputs in the keys above
        layers = [layer + 1 for layer in nested["eagle_aux_hidden_state_layer_ids"]]
    entries: dict[str, Any] = {
        "target_layers": [int(layer) for layer in layers or (2, n_layers // 2, n_layers - 3)],
        "target_hidden_size": head.tensors[names["fc.weight"]].shape[-1] // N_LAYERS_READ,
        "norm_before_residual": bool(head.config.get("norm_before_residual", False)),
        "norm_before_fc": "enc.output_norm.weight" in names,
    }
    if len(entries["target_layers"]) != N_LAYERS_READ or min(entries["target_layers"]) < 0:
        raise UsageError(f"{head.folder} cannot be converted", why=f"it reads the layers {entries['target_layers']}")
    if not own and (n := head.config.get("num_hidden_layers", 1)) != 1:
        raise UsageError(
            f"{head.folder} cannot be converted",
            why=f"it has {n} layers, and llama.cpp's {EAGLE3} has one; P-EAGLE heads may have more, with 'mask_hidden'",
        )
    if own:
        if "sliding_attention" in (head.config.get("layer_types") or ())[: head.config.get("num_hidden_layers", 1)]:
            why = "some of its layers have a sliding window, which our graph of P-EAGLE heads has not"
            raise UsageError(f"{head.folder} cannot be converted", why=why)
        entries["block_size"] = _block_length(head)
    return entries


def own_entries(head: Published, names: Mapping[str, str], *, own: bool) -> dict[str, Any]:
    """Return the metadata under our own keys."""
    entries: dict[str, Any] = {}
    if names.keys() & {*NORMS} or _setting(head, "fc_norm"):
        entries[NORMS_LAYERS] = True
        if "enc.output_norm.weight" in names:
            why = "it norms both each layer that it reads ('fc_norm') and all of them together ('input_norm')"
            raise UsageError(f"{head.folder} cannot be converted", why=why)
    if own:
        entries[MASK_TOKEN] = _mask_token(head)
    elif _setting(head, "norm_output"):
        entries[NORMS_STATE] = True
    return entries


def folded(
    head: Published, names: Mapping[str, str], architecture: str, epsilon: float
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return the matrix `fc`, float32[D, F], with the scales of the norms of the layers in its columns, and the state
    of a masked place, float32[D], if the head has one. Raises ModelFileError for tensors that are missing or have the
    wrong size."""
    matrix: NDArray[np.float32] = head.values(names["fc.weight"]).astype(np.float32)
    n_read = matrix.shape[-1]
    is_normed = bool(names.keys() & {*NORMS} or _setting(head, "fc_norm"))
    if is_normed:
        scales = [_vector(head, names, name, n_read // N_LAYERS_READ) for name in NORMS]
        matrix = matrix * np.concatenate(scales)
    if architecture != PEAGLE:
        return matrix, None
    masked = _vector(head, names, MASK, n_read)
    if is_normed:
        masked = rms_normed(masked.reshape(N_LAYERS_READ, -1), epsilon).reshape(-1)
    if "enc.output_norm.weight" in names:
        masked = rms_normed(masked, epsilon) * _vector(head, names, "enc.output_norm.weight", n_read)
    return matrix, matrix @ masked


def _vector(head: Published, names: Mapping[str, str], name: str, size: int) -> NDArray[np.float32]:
    found = head.values(names[name]).astype(np.float32).reshape(-1) if name in names else None
    if found is None or len(found) != size:
        told = "is missing" if found is None else f"has {len(found)} numbers, where {size} are needed"
        why = f"its tensor {names.get(name, name.removesuffix('.weight'))!r} {told}"
        raise ModelFileError(f"{head.folder} cannot be converted", why=why)
    return found


def _setting(head: Published, key: str) -> Any:
    """Return a setting, which is in `eagle_config` in some heads."""
    nested = head.config.get("eagle_config")
    return head.config.get(key) or (nested.get(key) if isinstance(nested, dict) else None)


def _mask_token(head: Published) -> int:
    """Return the token whose embedding a masked place has."""
    nested = head.config.get("dflash_config")
    found = [head.config.get(key) for key in ("ptd_token_id", "pard_token", "mask_token_id")]
    found.append(nested.get("mask_token_id") if isinstance(nested, dict) else None)
    for token in found:
        if token is not None:
            return int(token)
    why = "its config.json names no mask token ('mask_token_id', 'ptd_token_id' or 'pard_token')"
    raise UsageError(f"{head.folder} cannot be converted", why=why)


def _block_length(head: Published) -> int:
    """Return how many tokens a P-EAGLE head was trained to draft in a pass."""
    about = head.config.get("speculators_config") or {}
    methods = [method.get("speculative_tokens") for method in about.get("proposal_methods") or ()]
    known = (head.config.get("num_depths"), head.config.get("para_num"), *methods)
    return int(next((n for n in known if n), USUAL_BLOCK))
