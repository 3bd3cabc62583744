"""Convert published draft heads to GGUF files of llama.cpp's architectures `eagle3` and `dflash`, and P-EAGLE heads to
files of an architecture of our own.

Names of tensors and keys, the permutation and the meaning of `d2t` are those of llama.cpp's converter (`Eagle3` in
conversion/llama.py, `DFlashModel` and `DSparkModel` in conversion/qwen.py, tensor_mapping.py). EAGLE-3 heads come in
three layouts: the authors' (SafeAILab/EAGLE), whose layer is called `midlayer`; SpecForge's, which is the same with
`eagle_config`; and that of the library speculators, whose configuration is nested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError, UsageError
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.head_check import (
    DFLASH,
    EAGLE3,
    EAGLES,
    MASK_STATE,
    MASK_TOKEN,
    PEAGLE,
    check_draft_file,
    check_head_fits,
    head_shapes,
    norm_epsilon,
)
from edgespec.gguf_file.header import Header, TensorInfo
from edgespec.gguf_file.weights import PRINT_KEY, is_copy, target_print
from edgespec.gguf_file.writing import Stored, open_file, stored, stored_ids, typed, write_file
from edgespec.models.hub.cache import repository_of
from edgespec.models.pair.eagle import MASK, NORMS, eagle_entries, folded, own_entries
from edgespec.models.pair.published import Published, read_published

_NAMES = {
    "embed_tokens": "token_embd", "lm_head": "output", "norm": "output_norm", "fc": "fc",
    "input_norm": "enc.output_norm", "hidden_norm": "enc.output_norm", "mask_hidden": "mask_hidden",
    "fc_norm.0": "fc_norm.0", "fc_norm.1": "fc_norm.1", "fc_norm.2": "fc_norm.2", "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2", "confidence_head.proj": "conf_proj",
    "candidate_selector.predecessor_codebook": "selector_predecessor",
    "candidate_selector.successor_codebook": "selector_successor",
    "candidate_selector.hidden_projection": "selector_hidden",
}  # fmt: skip
_NAMES_IN_LAYER = {
    "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection": "attn_conv_proj", "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}  # fmt: skip
_IDS = ("d2t", "t2d")
_FOLDED = (MASK, *NORMS)  # into other tensors of the file
_OTHER_FORMS = {  # a part of a tensor's name -> why it cannot be converted
    r"hydra": "Hydra heads are published as pickles, with an output matrix for each network, which no Hydra file of "
    "edgespec has",
    r"^(medusa_head\.|heads\.)?\d+\.(\d+\.)?linear\.": "a published Medusa head has an output matrix for each of its "
    "networks, each as large as the target's; a Medusa file of edgespec has one for all",
    r"^(model\.)?fc\.weight$": "it is an EAGLE or EAGLE-2 head: its layer reads the sum of embedding and "
    "state without a norm, for which llama.cpp has no graph",
}


def convert_head(
    folder: Path, target: Header, out: Path, type: str, progress: Callable[[float], None] = lambda done: None
) -> None:
    """Write the head in `folder` as a file for `target`, with weights of `type`.

    Raises UsageError, ModelFileError, PairError, and EdgespecError if the file cannot be written.
    """
    head = read_published(folder)
    names = _names(head)
    check_destination(out, [], b"GGUF")
    architecture = PEAGLE if MASK in names else EAGLE3 if "blk.0.attn_norm_2.weight" in names else DFLASH
    try:
        own = _common(head, target)
        if architecture == DFLASH:
            own |= _dflash_entries(head, names, target)
            ours = {}
        else:
            own |= eagle_entries(head, names, target, own=architecture == PEAGLE)
            ours = own_entries(head, names, own=architecture == PEAGLE)
        factors = _llama3_factors(head)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{folder / 'config.json'} cannot be used", why=repr(error)) from error
    entries = {f"{architecture}.{key}": value for key, value in own.items()} | ours
    repository = repository_of(folder / "config.json")  # the folder of a download is named after a commit
    entries |= {
        "general.name": repository[0].rpartition("/")[2] if repository else folder.resolve().name,
        "general.base_model.count": 1,
        "general.base_model.0.name": target.name,
        PRINT_KEY: target_print(target).tolist(),
    }
    if architecture == DFLASH and (mask := _dflash_setting(head, "mask_token_id")) is not None:
        entries[MASK_TOKEN] = int(mask)
    planned = _planned(head, names, architecture, entries)
    check_head_fits(target, planned)
    _check_shapes(head, names, planned, target)
    vocabulary: list[tuple[Any, ...]] = [*typed({"tokenizer.ggml.model": "no_vocab"})]
    if architecture != PEAGLE:  # for llama.cpp, which loads no model without a vocabulary
        vocabulary = [entry for entry in open_file(target)[0] if _is_vocabulary(entry[0]) and entry[0] not in entries]
    tensors = _stored(head, names, planned, target, type, progress)
    if factors is not None:
        tensors["rope_freqs.weight"] = stored(factors, "F32")
    write_file(out, architecture, [*typed(entries), *vocabulary], tensors)
    try:
        check_draft_file(out)
    except ModelFileError as error:
        out.unlink()
        raise ModelFileError(f"{folder} cannot be converted", why=error.why) from error


def _planned(head: Published, names: dict[str, str], architecture: str, entries: Mapping[str, Any]) -> Header:
    """Return the header that the file will have."""
    metadata = {key: tuple(value) if isinstance(value, list) else value for key, value in entries.items()}
    ids = {"d2t": "d2t"} if "d2t" in head.tensors else {}
    tensors = {
        ours: TensorInfo(tuple(head.tensors[name].shape[::-1]), "", 0, 0)
        for ours, name in (names | ids).items()
        if ours not in _FOLDED
    }
    if architecture == PEAGLE:
        tensors[MASK_STATE] = TensorInfo((int(entries[f"{PEAGLE}.embedding_length"]),), "", 0, 0)
    return Header(head.folder, {**metadata, "general.architecture": architecture}, tensors, 32, 0)


def _is_vocabulary(key: str) -> bool:
    return key.startswith("tokenizer.") and "chat_template" not in key


def _names(head: Published) -> dict[str, str]:
    """Return the published name of each tensor of the file. Raises UsageError for heads of another form."""
    names: dict[str, str] = {}
    unknown = []
    for name in head.tensors:
        ours = _our_name(name.removeprefix("model.").replace("midlayer.", "layers.0."))
        if ours:
            names[ours] = name
        elif name.removeprefix("model.") not in _IDS:
            unknown.append(name)
    is_eagle3 = "blk.0.attn_norm_2.weight" in names
    if is_eagle3:  # the engines of others have this norm in each layer, but use it in the first
        names = {ours: name for ours, name in names.items() if "attn_norm_2" not in ours or ours.startswith("blk.0.")}
    else:
        unknown += [name for ours, name in names.items() if ours in _FOLDED or _is_bias(ours)]
    if "fc.weight" not in names or not (is_eagle3 or "enc.output_norm.weight" in names):
        forms = (why for form, why in _OTHER_FORMS.items() if any(re.search(form, name) for name in head.tensors))
        why = next(forms, "its tensors are not those of an EAGLE-3, DFlash or DSpark head")
        raise UsageError(
            f"{head.folder} cannot be converted", why=why, hint="'edgespec draft train' trains other heads"
        )
    if unknown:
        raise UsageError(
            f"{head.folder} cannot be converted",
            why=f"llama.cpp's {EAGLE3 if is_eagle3 else DFLASH} has nothing like its tensor {unknown[0]!r}",
        )
    return names


def _is_bias(ours: str) -> bool:
    return ours.endswith(".bias") and ours != "conf_proj.bias"


def _our_name(name: str) -> str:
    """Return the name in a GGUF file, empty for another tensor."""
    layer = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
    stem, _, end = (layer[2] if layer else name).rpartition(".")
    if end not in ("weight", "bias"):  # parameters without a module
        stem, end = (layer[2] if layer else name), "" if name.endswith("base_kernel") else "weight"
    ours = (_NAMES_IN_LAYER if layer else _NAMES).get(stem)
    if ours is None or (end == "bias" and ours != "conf_proj" and (not layer or "norm" in ours)):
        return ""
    return f"{f'blk.{layer[1]}.' if layer else ''}{ours}{end and f'.{end}'}"


# --- metadata ---------------------------------------------------------------------------------------------------------


def _number(head: Published, key: str, default: int = 0) -> int:
    value = head.config.get(key) or default
    if not isinstance(value, int) or not 0 < value < 2**32:
        raise ModelFileError(f"{head.folder / 'config.json'} cannot be used", why=f"{key} is {value!r}")
    return value


def _head_size(head: Published) -> int:
    return _number(head, "head_dim", _number(head, "hidden_size") // _number(head, "num_attention_heads"))


def _common(head: Published, target: Header) -> dict[str, Any]:
    """Return the metadata that both architectures have."""
    size, rope = _head_size(head), _rope(head)
    entries: dict[str, Any] = {
        "context_length": _number(head, "max_position_embeddings", target.number("context_length") or 2048),
        "embedding_length": _number(head, "hidden_size"),
        "block_count": _number(head, "num_hidden_layers", 1),
        "feed_forward_length": _number(head, "intermediate_size"),
        "attention.head_count": _number(head, "num_attention_heads"),
        "attention.head_count_kv": _number(head, "num_key_value_heads", _number(head, "num_attention_heads")),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": float(head.config.get("rms_norm_eps", 1e-6)),
        "rope.dimension_count": int(size * float(rope.get("partial_rotary_factor", 1.0))),
        "rope.freq_base": _rope_base(head),
        "vocab_size": target.n_vocab,
    }
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in ("linear", "yarn"):
        entries |= {"rope.scaling.type": str(kind), "rope.scaling.factor": float(rope["factor"])}
        if kind == "yarn":
            entries["rope.scaling.original_context_length"] = int(rope["original_max_position_embeddings"])
    elif kind not in ("default", "llama3"):
        raise UsageError(f"{head.folder} cannot be converted", why=f"its rotary embeddings are scaled by {kind!r}")
    return entries


def _rope(head: Published) -> dict[str, Any]:
    """Return the rotary settings; newer versions of transformers call them `rope_parameters`."""
    rope = head.config.get("rope_parameters") or head.config.get("rope_scaling")
    return rope if isinstance(rope, dict) else {}


def _rope_base(head: Published) -> float:
    return float(_rope(head).get("rope_theta") or head.config.get("rope_theta") or 10000.0)


def _dflash_setting(head: Published, key: str, default: Any = None) -> Any:
    nested = head.config.get("dflash_config")
    value = nested.get(key) if isinstance(nested, dict) else None
    return head.config.get(key, default) if value is None else value


def _dflash_entries(head: Published, names: Mapping[str, str], target: Header) -> dict[str, Any]:
    if (head.folder / "mask_embedding.pt").exists():
        raise UsageError(f"{head.folder} cannot be converted", why="the embedding of its mask token is a pickle")
    if (kind := head.config.get("markov_head_type", "vanilla")) != "vanilla":
        raise UsageError(f"{head.folder} cannot be converted", why=f"llama.cpp has no {kind!r} Markov head")
    inputs, outputs = head.config.get("aux_hidden_state_layer_ids"), _dflash_setting(head, "target_layer_ids")
    layers = inputs or [layer + 1 for layer in outputs or ()]
    if not layers or min(layers) < 0 or max(layers) >= target.number("block_count"):
        raise UsageError(f"{head.folder} cannot be converted", why=f"it reads the layers {layers} of its target")
    entries: dict[str, Any] = {
        "block_size": int(_dflash_setting(head, "block_size", 16)),
        "target_layers": [int(layer) for layer in layers],
    }
    causal = head.config.get("is_causal", _dflash_setting(head, "causal"))
    if causal is not None:
        entries["attention.causal"] = bool(causal)
    if "markov_w1.weight" in names:
        # The block of a draft in the form of an EAGLE-3 head begins with a token that it does not predict
        is_lineage = "transformer_layer_config" not in head.config and inputs is None
        entries["sample_from_anchor"] = bool(head.config.get("sample_from_anchor", is_lineage))
        entries["has_confidence_head"] = "conf_proj.weight" in names
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if (value := _dflash_setting(head, key)) is not None:
            entries[key] = int(value)
    numbers = {"logit_scale": "output_multiplier", "final_logit_softcapping": "final_logit_softcapping"}
    for key, theirs in (numbers | {"embedding_scale": "input_embedding_scale"}).items():
        if value := _dflash_setting(head, theirs):
            entries[key] = float(value)
    window, everywhere = _dflash_setting(head, "swa_window_size"), bool(_dflash_setting(head, "use_swa", False))
    window = window or head.config.get("sliding_window")
    if window and (everywhere or head.config.get("use_sliding_window")):
        kinds = head.config.get("layer_types") or []
        entries["attention.sliding_window"] = int(window)
        n_layers = _number(head, "num_hidden_layers", 1)
        entries["attention.sliding_window_pattern"] = (
            [True] * n_layers if everywhere else [kind == "sliding_attention" for kind in kinds]
        )
    if f"{target.architecture}.rope.dimension_sections" in target.metadata:  # the draft only has positions in time
        entries["rope.dimension_sections"] = [_head_size(head) // 2, 0, 0, 0]
    return entries


# --- tensors ----------------------------------------------------------------------------------------------------------


def _check_shapes(head: Published, names: Mapping[str, str], planned: Header, target: Header) -> None:
    """Raise ModelFileError for tensors that are missing or have another shape than the configuration says."""
    shapes = head_shapes(planned)
    if planned.architecture in EAGLES:
        for ours in planned.tensors.keys() - shapes.keys() - {"d2t"}:
            what = f"llama.cpp's {EAGLE3}" if planned.architecture == EAGLE3 else "a P-EAGLE head"
            raise UsageError(
                f"{head.folder} cannot be converted", why=f"{what} has nothing like its tensor {names[ours]!r}"
            )
    for ours, shape in shapes.items():
        tensor = planned.tensors.get(ours)
        if tensor is None or tensor.shape != shape:
            found = "is missing" if tensor is None else f"has the shape {list(tensor.shape[::-1])}"
            raise ModelFileError(
                f"{head.folder} is not a head for {target.path.name}",
                why=f"its tensor {names.get(ours, ours)!r} {found}, where {list(shape[::-1])} is needed",
            )


def _stored(
    head: Published,
    names: Mapping[str, str],
    planned: Header,
    target: Header,
    type: str,
    progress: Callable[[float], None],
) -> dict[str, Stored]:
    """Return the tensors of the file. Raises ModelFileError for weights that are not numbers, and wrong ids."""
    size, architecture = planned.head_sizes[0], planned.architecture
    tensors: dict[str, Stored] = {}
    for ours, name in names.items():
        values = head.values(name)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{head.folder} cannot be converted", why=f"{name} has values that are not numbers")
        part = ours.split(".")[-2]
        if ours in _FOLDED:
            continue
        if ours == "fc.weight" and architecture in EAGLES:
            values, masked = folded(head, names, architecture, norm_epsilon(planned))
            if masked is not None:
                tensors[MASK_STATE] = stored(masked, "F32")
        # The embeddings of a P-EAGLE head are trained, and similar to the target's
        if ours == "token_embd.weight" and architecture != PEAGLE and is_copy(values, target):
            continue  # llama.cpp then uses the target's own embeddings
        if ours == "token_embd.weight" and architecture == DFLASH and "output.weight" not in names:
            continue  # otherwise llama.cpp would use them as the output too
        if part in ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm"):
            values = _rotated(head, values, size, architecture)
        tensors[ours] = stored(values, "F32" if ours.endswith("conv_base") else type)
        progress(len(tensors) / len(names))
    if "d2t" in head.tensors:
        offsets = head.values("d2t").astype(np.int64)
        ids = offsets + np.arange(len(offsets))
        if ids.min() < 0 or ids.max() >= target.n_vocab or len(np.unique(ids)) < len(ids):
            raise ModelFileError(f"{head.folder} cannot be converted", why="its list 'd2t' does not name tokens")
        tensors["d2t"] = stored_ids(ids)
    return tensors


def _rotated(head: Published, weights: NDArray[Any], size: int, architecture: str) -> NDArray[Any]:
    """Order the rows of each attention head as the architecture's rotary embeddings expect.

    `eagle3` and our own graph rotate neighbouring rows, transformers the two halves of a head, as `dflash` does. Drafts
    with `rope_is_neox_style` = false have neighbouring rows.
    """
    if architecture in EAGLES:
        pairs = weights.reshape(-1, 2, size // 2, *weights.shape[1:])
    elif head.config.get("rope_is_neox_style", True):
        return weights
    else:
        pairs = weights.reshape(-1, size // 2, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _llama3_factors(head: Published) -> NDArray[np.float32] | None:
    """Return what Llama 3 divides the frequencies by, float32[size / 2] (`generate_extra_tensors` of llama.cpp); None
    for another scaling."""
    rope = _rope(head)
    if (rope.get("rope_type") or rope.get("type")) != "llama3":
        return None
    size = _head_size(head)
    wavelengths = 2 * math.pi * _rope_base(head) ** (np.arange(0, size, 2) / size)
    factor, context = float(rope.get("factor", 8.0)), float(rope.get("original_max_position_embeddings", 8192))
    low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
