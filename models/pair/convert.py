"""Convert published draft heads to GGUF files of llama.cpp's architectures `eagle3` and `dflash`, and P-EAGLE heads to
files of an architecture of our own.

Names of tensors and keys, the permutation and the meaning of `d2t` are those of llama.cpp's converter (`Eagle3` in
conversion/llama.py, `DFlashModel` and `DSparkModel` in conversion/qwen.py, tensor_mapping.py). EAGLE-3 heads come in
three layouts: the authors' (SafeAILab/EAGLE), whose layer is called `midlayer`; SpecForge's, which is the same with
`eagle_config`; and that of the library speculators, whose configuration is nested.

EAGLE-3.1 (arXiv 2605.09992) has a norm for the input of each layer (`fc_norm`), and decodes the next draft token with
the state after the output norm (`norm_output`), as vLLM, SGLang, TensorRT-LLM, speculators and NeMo Automodel name it.
P-EAGLE (arXiv 2602.01469) has in addition a state for the places of tokens that are not known yet (`mask_hidden`), and
often several layers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.features import rms_normed
from edgespec.errors import ModelFileError, UsageError, told_as
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.head_check import (
    DFLASH,
    EAGLE3,
    EAGLES,
    MASK_STATE,
    MASK_TOKEN,
    N_LAYERS_READ,
    NORMS_LAYERS,
    NORMS_STATE,
    PEAGLE,
    check_draft_file,
    check_head_fits,
    head_shapes,
    norm_epsilon,
)
from edgespec.gguf_file.header import Header, TensorInfo
from edgespec.gguf_file.weights import PRINT_KEY, is_copy, target_print
from edgespec.gguf_file.writing import Entry, Stored, open_file, stored, stored_ids, typed, write_file
from edgespec.models.hub.cache import repository_of

MASK = "mask_hidden.weight"  # our names of published tensors that become a part of others
NORMS = tuple(f"fc_norm.{number}.weight" for number in range(N_LAYERS_READ))
USUAL_BLOCK = 8  # tokens that P-EAGLE heads are trained to draft, if their settings do not say it
_MOST_CONFIG_BYTES = 1 << 20
_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32,
    "BOOL": np.bool_,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Published:
    """A head as it was published; `tensors` are gguf's `LocalTensor` by their names in the files."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Any]

    def values(self, name: str) -> NDArray[Any]:
        """Return a tensor as numpy has it; bfloat16 as float32."""
        tensor = self.tensors[name]
        values = np.frombuffer(tensor.mmap_bytes(), _DTYPES[tensor.dtype]).reshape(tensor.shape)
        if tensor.dtype == "BF16":  # the upper half of a float32
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


def read_published(folder: Path) -> Published:
    """Read the headers of a folder's files. Raises UsageError, ModelFileError."""
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise UsageError(
            f"{folder} is not a published draft head",
            why="there is no config.json" if folder.is_dir() else "there is no such folder",
            hint="give the folder of a downloaded repository, or the repository itself: owner/name",
        )
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for kind in ("*.bin", "*.pt") for file in folder.glob(kind))
        why = "there is no .safetensors file"
        if pickled:
            why = f"{pickled[0]} is a pickle, which can run any program when it is read; only safetensors are read"
        raise UsageError(f"{folder} cannot be converted", why=why)
    with told_as(ModelFileError, f"{folder} cannot be read"):
        if config_file.stat().st_size > _MOST_CONFIG_BYTES:
            raise ModelFileError(f"{config_file} is too large to be a configuration")
        config = _config(config_file)
        tensors = {name: tensor for file in files for name, tensor in _tensors(file).items()}
    return Published(folder, config, tensors)


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} is not JSON", why=str(error)) from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{file} is not the configuration of a model")
    inner = config.get("transformer_layer_config")  # of the library speculators
    return {**inner, **config} if isinstance(inner, dict) else config


def _tensors(file: Path) -> dict[str, Any]:
    """Return the tensors of a file. Raises ModelFileError if it is damaged, or has a type that cannot be read."""
    from gguf.utility import SafetensorsLocal

    try:
        tensors = SafetensorsLocal(file).tensors
        n_bytes = file.stat().st_size
        for name, tensor in tensors.items():
            place = tensor.data_range
            if tensor.dtype not in _DTYPES:
                raise ValueError(f"tensor {name!r} has the type {tensor.dtype}, not one of {', '.join(_DTYPES)}")
            size = math.prod(tensor.shape) * np.dtype(_DTYPES[tensor.dtype]).itemsize
            is_shape = all(isinstance(n, int) and n > 0 for n in tensor.shape)
            if not is_shape or size != place.size or not 0 < size <= n_bytes - place.offset:
                raise ValueError(f"tensor {name!r} has the wrong size")
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ModelFileError(f"{file} cannot be read", why=str(error), hint="download it again") from error
    return dict(tensors)


# --- conversion -------------------------------------------------------------------------------------------------------


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
    vocabulary: list[Entry] = [*typed({"tokenizer.ggml.model": "no_vocab"})]
    if architecture != PEAGLE:  # for llama.cpp, which loads no model without a vocabulary
        vocabulary = [entry for entry in open_file(target)[0] if _is_vocabulary(entry.key) and entry.key not in entries]
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


def _common(head: Published, target: Header) -> dict[str, object]:
    """Return the metadata that both architectures have."""
    size, rope = _head_size(head), _rope(head)
    entries: dict[str, object] = {
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


def _dflash_setting(head: Published, key: str, default: object = None) -> Any:
    nested = head.config.get("dflash_config")
    value = nested.get(key) if isinstance(nested, dict) else None
    return head.config.get(key, default) if value is None else value


def _dflash_entries(head: Published, names: Mapping[str, str], target: Header) -> dict[str, object]:
    if (head.folder / "mask_embedding.pt").exists():
        raise UsageError(f"{head.folder} cannot be converted", why="the embedding of its mask token is a pickle")
    if (kind := head.config.get("markov_head_type", "vanilla")) != "vanilla":
        raise UsageError(f"{head.folder} cannot be converted", why=f"llama.cpp has no {kind!r} Markov head")
    inputs, outputs = head.config.get("aux_hidden_state_layer_ids"), _dflash_setting(head, "target_layer_ids")
    layers = inputs or [layer + 1 for layer in outputs or ()]
    if not layers or min(layers) < 0 or max(layers) >= target.number("block_count"):
        raise UsageError(f"{head.folder} cannot be converted", why=f"it reads the layers {layers} of its target")
    entries: dict[str, object] = {
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


def _rotated(head: Published, weights: NDArray[np.generic], size: int, architecture: str) -> NDArray[np.generic]:
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


# --- EAGLE-3.1 and P-EAGLE --------------------------------------------------------------------------------------------


def eagle_entries(head: Published, names: Mapping[str, str], target: Header, *, own: bool) -> dict[str, object]:
    """Return the metadata of an EAGLE-3 head that llama.cpp's architecture has; with `own`, of a P-EAGLE head."""
    n_layers = target.number("block_count") - target.number("nextn_predict_layers")
    layers = head.config.get("eagle_aux_hidden_state_layer_ids") or head.config.get("aux_hidden_state_layer_ids")
    nested = head.config.get("eagle_config")
    if not layers and isinstance(nested, dict) and nested.get("eagle_aux_hidden_state_layer_ids"):
        # SGLang counts outputs of layers here, vLLM and llama.cpp count inputs in the keys above
        layers = [layer + 1 for layer in nested["eagle_aux_hidden_state_layer_ids"]]
    read = [int(layer) for layer in layers or (2, n_layers // 2, n_layers - 3)]
    entries: dict[str, object] = {
        "target_layers": read,
        "target_hidden_size": head.tensors[names["fc.weight"]].shape[-1] // N_LAYERS_READ,
        "norm_before_residual": bool(head.config.get("norm_before_residual", False)),
        "norm_before_fc": "enc.output_norm.weight" in names,
    }
    if len(read) != N_LAYERS_READ or min(read) < 0:
        raise UsageError(f"{head.folder} cannot be converted", why=f"it reads the layers {read}")
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


def own_entries(head: Published, names: Mapping[str, str], *, own: bool) -> dict[str, object]:
    """Return the metadata under our own keys."""
    entries: dict[str, object] = {}
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
