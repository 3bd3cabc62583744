"""Check if a GGUF file is a draft head that this llama.cpp can run, and if it belongs to a target.

llama.cpp's `src/models/eagle3.cpp` and `dflash.cpp` would assert on many files that are refused here, which ends the
process. The trial load cannot find these files, since a head decodes only together with its target.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgespec.drafters.heads import HEADS, Head, architectures
from edgespec.errors import ModelFileError, PairError
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.model_check import check_model, check_scalars, check_vocabulary, size_or_none
from edgespec.gguf_file.walk import AGAIN
from edgespec.gguf_file.weights import PRINT_KEY, is_same_target, target_print

EAGLE3, PEAGLE, DFLASH, ASSISTANT = (HEADS[name].architecture for name in ("eagle3", "peagle", "dflash", "assistant"))
HEAD_ARCHITECTURES, NETWORKS, EAGLES = architectures(), architectures("networks"), architectures("eagle")
OWN_ARCHITECTURES = tuple(name for name in HEAD_ARCHITECTURES if name.startswith("edgespec-"))  # not in llama.cpp
# Kinds of heads that draft a whole block of tokens in one pass
BLOCK_DRAFTERS = tuple(name for name, head in HEADS.items() if head.form == "block")
MARKOV, LATTICE = HEADS["dspark"].mark, "selector_hidden.weight"  # the tensors that only DSpark and DFlash2 have
BIASES = "markov_w2.weight"
ORDERING = "masked_embd_ordering"  # in assistants of Gemma 4 E2B and E4B; llama.cpp does not read it
MASK_TOKEN = "tokenizer.ggml.mask_token_id"
MASK_STATE = "mask_state.weight"  # of a P-EAGLE head: the state of a place whose token is not known yet
MOST_BLOCK = 64  # tokens of a block, so that it fits into a pass
SCALINGS = ("none", "linear", "yarn")  # of positions, in our own graph of a P-EAGLE head
# Our key of an `eagle3` that reads the final state in place of three layers' inputs (EAGLE-1), and its only value
READS, FINAL_STATE = HEADS["eagle1"].mark, "final_state"
# Our keys of an `eagle3` in the form EAGLE-3.1 (arXiv 2605.09992), true or false: the input of each layer is RMS-normed
# before `fc`, and the next draft token is decoded with the state after the output norm, not before it
NORMS_LAYERS, NORMS_STATE = "edgespec.head.norm_layers", "edgespec.head.norm_state"
N_LAYERS_READ = 3
MOST_NETWORKS = 16
_NOT_WEIGHTS = frozenset(("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"))  # no kernel multiplies by them
_MMAP_ALIGNMENT = 32
# Those whose graphs in llama.cpp 0c1e57098 keep `t_layer_inp` (src/models); tests run llama and qwen3
_GIVE_LAYERS = """
    bailingmoe3 deepseek4 gemma4 gpt-oss hunyuan_vl lfm2 lfm2moe llama mimo2 minimax-01 minimax-m2 nanbeige nemotron_h
    nemotron_h_moe qwen3 qwen35 qwen35moe qwen3moe qwen3next
"""
GIVE_LAYERS = frozenset(_GIVE_LAYERS.split())
# Those that have a graph of one MTP block (`graph_mtp` in src/models), or of the first of several
_MTP_ARCHITECTURES = """
    bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe hy_v3 mimo2 nemotron_h_moe qwen35 qwen35moe
    qwen3next step35
"""
MTP_ARCHITECTURES = frozenset(_MTP_ARCHITECTURES.split())
_SEVERAL_BLOCKS = frozenset(("hy_v3", "mimo2", "step35"))
# Those whose blocks give a state that was normed, and is multiplied by the output as it is
_GIVE_NORMED_STATE = frozenset(
    ["bailingmoe3", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy_v3", "nemotron_h_moe", "qwen35", "qwen35moe"]
)
# The tensors of the block that these graphs need
_NEEDED_IN_BLOCK = {"deepseek2": ("attn_q_a", "attn_k_b", "ffn_gate_inp"), "mimo2": ("attn_qkv", "ffn_gate")}
# Those of which llama.cpp asks more of the final state than there is
_WITHOUT_FINAL_STATE = ("deepseek4", "qwen4exp")


def check_draft_file(draft: Header | str | Path, *, embeds: bool = False) -> Header:
    """Return the header of a draft model or of a draft head; with `embeds` also that of an embedding model. Raises
    ModelNotFoundError, ModelFileError."""
    header = draft if isinstance(draft, Header) else read_header(draft)
    if not is_head(header):
        return check_model(header, embeds=embeds)
    if header.architecture in NETWORKS:
        _check_networks(header)
        return header
    if header.n_vocab:  # else its tokens are known to be the target's
        check_vocabulary(header)
    checks = {DFLASH: _check_block_drafter, ASSISTANT: _check_assistant, PEAGLE: _check_parallel}
    checks.get(header.architecture, _check_eagle)(header)
    _check_attention(header, header.number("embedding_length"))
    check_scalars(header)
    _check_weights(header)
    for norm in (name for name in header.tensors if name.endswith(("norm.weight", "norm_2.weight"))):
        if not np.isfinite(_values(header, norm, "F32", np.float32)).all():
            raise _broken(header, f"tensor {norm!r} holds values that are not numbers")
    if "d2t" in header.tensors:
        _check_ids(header)
    return header


def _check_eagle(header: Header) -> None:
    width, target_width = header.number("embedding_length"), header.number("target_hidden_size")
    layers = layers_read(header)
    if header.number("block_count") != 1 or width < 1 or target_width < 1:
        raise _broken(header, "it has to have one layer, a width and its target's width")
    if len(layers) != N_LAYERS_READ or min(layers) < 0:
        raise _broken(header, f"it has to read {N_LAYERS_READ} layers of its target, not {layers}")
    if header.metadata.get(READS, FINAL_STATE) != FINAL_STATE:
        raise _broken(header, f"what it reads ({READS}) is unknown")
    if kind_of_head(header) == "eagle1" and N_LAYERS_READ * target_width < width:
        raise _broken(header, f"it has to read {width} numbers of its target, not {N_LAYERS_READ * target_width}")
    _check_shapes(header)


def _check_parallel(header: Header) -> None:
    width, target_width, layers = header.number("embedding_length"), width_of_target(header), layers_read(header)
    if not 0 < header.number("block_count") <= MOST_NETWORKS or width < 1 or target_width < 1:
        raise _broken(header, f"it has to have 1 to {MOST_NETWORKS} layers, a width and its target's width")
    if len(layers) != N_LAYERS_READ or min(layers) < 0:
        raise _broken(header, f"it has to read {N_LAYERS_READ} layers of its target, not {layers}")
    if not 0 < block_length(header) <= MOST_BLOCK:
        raise _broken(header, f"it drafts {block_length(header)} tokens in a pass, not 1 to {MOST_BLOCK}")
    if not 0 <= mask_token(header) < n_tokens(header):
        raise _broken(header, f"its vocabulary has no mask token ({MASK_TOKEN})")
    if (scaling := header.metadata.get(f"{PEAGLE}.rope.scaling.type", "none")) not in SCALINGS:
        raise _broken(header, f"its positions are scaled by {scaling!r}")
    factor = header.metadata.get(f"{PEAGLE}.rope.scaling.factor", 0)
    if scaling != "none" and not (isinstance(factor, int | float) and factor > 0):
        raise _broken(header, f"its positions are scaled by a factor of {factor!r}")
    _check_shared_heads(header)
    _check_shapes(header)
    for name in ("rope_freqs.weight", MASK_STATE):
        if name in header.tensors and not np.isfinite(_values(header, name, "F32", np.float32)).all():
            raise _broken(header, f"tensor {name!r} holds values that are not numbers")


def _check_shared_heads(header: Header) -> None:
    """Raise ModelFileError if attention heads have keys and values of other sizes, or cannot share them."""
    size, value_size = header.head_sizes
    if not size or size != value_size:
        raise _broken(header, f"its attention heads have keys of {size} and values of {value_size} numbers")
    heads, kv_heads = (header.head_counts(f"attention.head_count{of}") for of in ("", "_kv"))
    if not heads or not kv_heads or any(n % max(1, of) for n, of in zip(heads, kv_heads, strict=False)):
        raise _broken(header, "its attention heads cannot share its keys and values equally")


def _check_block_drafter(header: Header) -> None:
    width, n_layers = header.number("embedding_length"), header.number("block_count")
    if header.number("hyper_connection.count"):
        raise _broken(header, "its layers are those of DeepSeek-V4, which edgespec does not draft with yet")
    if not 0 < n_layers <= MOST_NETWORKS or width < 1:
        raise _broken(header, f"it has to have 1 to {MOST_NETWORKS} layers and a width")
    if not 1 < block_length(header) <= MOST_BLOCK:
        raise _broken(header, f"it drafts blocks of {block_length(header)} tokens, not of 2 to {MOST_BLOCK}")
    if not layers_read(header) or min(layers_read(header)) < 0:
        raise _broken(header, "it does not name the layers of its target that it reads")
    if not 0 <= mask_token(header) < n_tokens(header):
        raise _broken(header, f"its vocabulary has no mask token ({MASK_TOKEN})")
    _check_shared_heads(header)
    if MARKOV in header.tensors and f"{DFLASH}.block_size" not in header.metadata:
        raise _broken(header, "it does not say how long its blocks are")
    if LATTICE in header.tensors:
        rank, k, group = (header.number(key) for key in ("selector_rank", "selector_top_k", "conv_group_size"))
        if min(rank, k, group, header.number("conv_kernel_size")) < 1 or width % group or width < k * (k + 1):
            raise _broken(header, "the sizes of its convolutions and of its selector do not fit its width")
    _check_shapes(header)


def _check_assistant(header: Header) -> None:
    width, target_width, layers = header.number("embedding_length"), width_of_target(header), _layers_of(header)
    if not 0 < len(layers) <= MOST_NETWORKS or header.number("nextn_predict_layers") != len(layers) or width < 1:
        raise _broken(header, f"it has to have 1 to {MOST_NETWORKS} layers with attention, and a width")
    if target_width < 1 or target_width == width:
        raise _broken(header, f"its target's width is {target_width}, where llama.cpp needs another one than its own")
    heads, n_ffs = map(header.head_counts, ("attention.head_count", "feed_forward_length"))
    if min(len(heads), len(n_ffs)) < len(layers):
        raise _broken(header, "it does not describe all of its layers")
    for layer, n in zip(layers, heads, strict=False):
        if not layer.kv_heads or n % layer.kv_heads or not layer.size:
            raise _broken(header, "its attention heads cannot share its target's keys and values equally")
    _check_shapes(header)


class _Layer(NamedTuple):
    """The keys and values of a layer of a Gemma 4, or of those that a layer of its assistant reads."""

    has_window: bool
    kv_heads: int
    size: int  # of a key and of a value; 0: they differ


def _layers_of(header: Header) -> list[_Layer]:
    """Return the layers of a Gemma 4 or of its assistant; none if the file does not describe them all."""
    counts = header.head_counts("attention.head_count_kv") or header.head_counts("attention.head_count")
    windows = header.numbers(f"{header.architecture}.attention.sliding_window_pattern")
    if not len(windows) == len(counts) == header.number("block_count"):
        return []
    usual = header.head_sizes
    narrow = tuple(header.number(f"attention.{what}_length_swa") for what in ("key", "value"))
    layers = []
    for has_window, n in zip(windows, counts, strict=True):
        key, value = narrow if has_window else usual
        layers.append(_Layer(bool(has_window), n, key if key == value else 0))
    return layers


def head_shapes(header: Header) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the tensors of a head need, according to the metadata.

    A tensor that may be missing is included if the head has it.
    """
    needed = {"enc.output_norm.weight"} if header.metadata.get(f"{header.architecture}.norm_before_fc") else set()
    if n_draft_tokens(header) != n_tokens(header):
        needed.add("output.weight")
    if LATTICE in header.tensors:
        needed |= {"selector_predecessor.weight", "selector_successor.weight"}
    if header.architecture == ASSISTANT and not all(layer.has_window for layer in _layers_of(header)):
        needed.add("rope_freqs.weight")
    head, shared = _head_of(header), _sizes(header)
    sizes = _sizes_of_assistant if head.form == "assistant" else _sizes_of_layer
    return head.shapes(
        header.number("block_count"),
        lambda layer: shared | sizes(header, layer),
        lambda name: name in header.tensors or name in needed,
    )


def _sizes(header: Header) -> dict[str, int]:
    """Return the numbers behind the words of `drafters/heads.py` that are the same for all layers."""
    width, (size, value_size) = header.number("embedding_length"), header.head_sizes
    heads = header.head_counts("attention.head_count") or [0]
    n_shared = (header.head_counts("attention.head_count_kv") or heads)[0]
    read = width if header.architecture == DFLASH else header.number("target_hidden_size")
    markov = header.tensors.get(MARKOV)
    return {
        "width": width,
        "target": width_of_target(header),
        "both": 2 * width_of_target(header),
        "read": len(layers_read(header)) * read,
        "head": size,
        "queries": heads[0] * size,
        "keys": n_shared * size,
        "values": n_shared * value_size,
        "ffn": header.number("feed_forward_length"),
        "pairs": header.number("rope.dimension_count", size) // 2,
        "tokens": n_tokens(header),
        "drafts": n_draft_tokens(header),
        "rank": markov.shape[0] if markov is not None and markov.shape else 0,
        "lattice": header.number("selector_rank"),
    }


def _sizes_of_layer(header: Header, layer: int) -> dict[str, int]:
    head = _head_of(header)
    # The first layer of an EAGLE head reads a token in addition to a state, and the networks of Hydra heads all tokens
    # before theirs.
    n_inputs = {"eagle": 2 if layer == 0 else 1, "networks": layer + 2 if "embd_norm.weight" in head.tensors else 1}
    return {"inputs": n_inputs.get(head.form, 1) * header.number("embedding_length")}


def _sizes_of_assistant(header: Header, number: int) -> dict[str, int]:
    layers, heads, n_ffs = _layers_of(header), *map(header.head_counts, ("attention.head_count", "feed_forward_length"))
    size = layers[number].size
    pairs = next((layer.size // 2 for layer in layers if not layer.has_window), 0)
    return {"head": size, "queries": heads[number] * size, "ffn": n_ffs[number], "pairs": pairs}


def _check_attention(header: Header, width: int) -> None:
    """Raise ModelFileError for sizes of attention heads that llama.cpp's graph would assert on."""
    n_heads = max(1, header.number("attention.head_count"))
    key_length = size_or_none(header, "attention.key_length", 1, 1 << 16)
    size_or_none(header, "attention.value_length", 1, 1 << 16)
    n_rot = size_or_none(header, "rope.dimension_count", 1, 1 << 16)
    if not key_length and width % n_heads:
        raise _broken(header, f"a width of {width} cannot be shared by {n_heads} attention heads")
    if n_rot % 2 or n_rot > (key_length or width // n_heads):
        raise _broken(header, f"{n_rot} rotary dimensions do not fit its attention heads")


def _check_weights(header: Header) -> None:
    """Check types and places of tensors. Raises ModelFileError."""
    for name, tensor in header.tensors.items():
        if tensor.type in _NOT_WEIGHTS and name not in ("d2t", ORDERING):
            raise _broken(header, f"tensor {name!r} has type {tensor.type}, which is not a weight type")
        if tensor.type != "F32" and name.endswith(("norm.weight", "norm_2.weight", ".bias")):
            raise _broken(header, f"tensor {name!r} has type {tensor.type}; llama.cpp scales and adds in F32 only")
        if tensor.offset % _MMAP_ALIGNMENT:
            why = f"tensor {name!r} is not aligned to {_MMAP_ALIGNMENT} bytes (alignment {header.alignment})"
            raise _broken(header, why)


def _check_networks(header: Header) -> None:
    width, n_networks = header.number("embedding_length"), header.number("block_count")
    if not 0 < n_networks <= MOST_NETWORKS or width < 1 or header.number("target_hidden_size") != width:
        raise _broken(header, f"it has to have 1 to {MOST_NETWORKS} networks, of its target's width")
    _check_shapes(header)
    _check_ids(header)


def _check_shapes(header: Header) -> None:
    for name, shape in head_shapes(header).items():
        tensor = header.tensors.get(name)
        if tensor is None or tensor.shape != shape:
            found = "is missing" if tensor is None else f"has the shape {tensor.shape}"
            raise _broken(header, f"tensor {name!r} {found}, where {shape} is needed")


def read_ids(head: Header) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return int64[V'], the target's token for each row of the output."""
    return _values(head, "d2t", "I64", np.int64)


def _check_ids(header: Header) -> None:
    """Raise ModelFileError if the tokens that the head can draft are not in the target's vocabulary."""
    ids = read_ids(header)
    if len(ids) != n_draft_tokens(header) or ids.min() < 0 or ids.max() >= n_tokens(header):
        raise _broken(header, "its list of draft tokens ('d2t') does not fit its vocabulary")


def mtp_mismatch(header: Header) -> str:
    """Return why a model cannot draft with its MTP block; empty if it can."""
    n_blocks = header.number("nextn_predict_layers")
    if not n_blocks:
        return "it has no MTP block"
    if header.architecture not in MTP_ARCHITECTURES:
        return f"llama.cpp does not draft with the MTP blocks of a {header.architecture} model"
    if header.architecture == "qwen3next":
        return "the state of a qwen3next model cannot be rolled back"
    if n_blocks > 1 and header.architecture not in _SEVERAL_BLOCKS:
        return f"it has {n_blocks} MTP blocks, and llama.cpp runs one of a {header.architecture} model"
    block = f"blk.{header.number('block_count') - n_blocks}"
    if f"{block}.nextn.eh_proj.weight" not in header.tensors:
        return "this file was converted without its MTP block"
    needed = _NEEDED_IN_BLOCK.get(header.architecture, ())
    if missing := [name for name in needed if f"{block}.{name}.weight" not in header.tensors]:
        return f"llama.cpp does not run an MTP block without {missing[0]} of a {header.architecture} model"
    return ""


def n_chained(header: Header) -> int:
    """Return the number of MTP blocks that can draft one token each, after each other: 1 for most models."""
    if header.architecture not in _SEVERAL_BLOCKS:
        return 1
    n_blocks = header.number("nextn_predict_layers")
    first = header.number("block_count") - n_blocks
    here = (f"blk.{first + block}.nextn.eh_proj.weight" in header.tensors for block in range(n_blocks))
    return max(1, sum(takewhile(bool, here)))


def output_of_block(header: Header) -> str:
    """Return the tensor that all MTP blocks multiply their states by, if that is all that llama.cpp does with the
    states; otherwise an empty name."""
    if mtp_mismatch(header) or header.architecture not in _GIVE_NORMED_STATE:
        return ""
    first = header.number("block_count") - header.number("nextn_predict_layers")
    own = (f"blk.{first + block}.nextn.shared_head_head" for block in range(n_chained(header)))
    shared = next((name for name in ("output", "token_embd") if f"{name}.weight" in header.tensors), "")
    used = {name if f"{name}.weight" in header.tensors else shared for name in own}
    name = used.pop()
    return "" if used or f"{name}.scale" in header.tensors else f"{name}.weight"


def n_tokens(head: Header) -> int:
    """Return the size of the target's vocabulary, whose texts the head may lack."""
    return head.n_vocab or head.number("vocab_size")


def n_draft_tokens(head: Header) -> int:
    """Return the number of tokens that the head can draft."""
    tensor = head.tensors.get("d2t")
    return tensor.shape[0] if tensor is not None and tensor.shape else n_tokens(head)


def kind_of_head(header: Header) -> str:
    """Return the drafter of the head, one of `settings.HEADS`; empty for a model."""
    marks = {"", *header.tensors, *header.metadata}
    kinds = [head for head in HEADS.values() if head.architecture == header.architecture and head.mark in marks]
    return max(kinds, key=lambda head: bool(head.mark)).name if kinds else ""


def _head_of(header: Header) -> Head:
    return HEADS[kind_of_head(header)]


def is_head(header: Header) -> bool:
    return bool(kind_of_head(header))


def may_be_head(path: Path) -> bool:
    """Return whether the first key of a file, by convention its architecture, can be that of a head.

    Unlike `read_header`, this takes no time for large vocabularies, so a folder with many models can be searched.
    """
    try:
        with path.open("rb") as file:
            start = file.read(128)
    except OSError:
        return False
    return start.startswith(b"GGUF") and any(name.encode() in start for name in HEAD_ARCHITECTURES)


def layers_read(header: Header) -> tuple[int, ...]:
    """Return the layers of the target whose inputs the head reads; 0 is the first."""
    return tuple(int(layer) for layer in header.numbers(f"{header.architecture}.target_layers"))


def norm_epsilon(header: Header) -> float:
    """Return the number that a head's RMS norms add to the mean square."""
    return float(str(header.metadata.get(f"{header.architecture}.attention.layer_norm_rms_epsilon", 1e-5)))


def n_features(header: Header) -> int:
    """Return how many numbers of the target a head reads for each token."""
    return (len(layers_read(header)) if _head_of(header).reads == "layers" else 1) * width_of_target(header)


def width_of_target(head: Header) -> int:
    """Return the width of the states that the head reads."""
    if head.architecture == ASSISTANT:
        return head.number("embedding_length_out")
    same = head.architecture == DFLASH or kind_of_head(head) == "eagle1"
    return head.number("embedding_length" if same else "target_hidden_size")


def block_length(header: Header) -> int:
    """Return the number of tokens in the blocks of a block drafter or of a P-EAGLE head: the last token of the text,
    and mask tokens."""
    return header.number("block_size", 16)


def mask_token(header: Header) -> int:
    """Return the token that fills the places of tokens to be drafted; -1 if the file names none."""
    token = header.metadata.get(MASK_TOKEN)
    return token if isinstance(token, int) else -1


def kind_mismatch(architecture: str, kind: str) -> str:
    """Return why no head of a kind can draft for models of an architecture; empty if heads of this kind can."""
    if kind == "assistant" and architecture != "gemma4":
        return f"it is an assistant of a gemma4 model, and this is a {architecture} model"
    reads_layers = HEADS[kind].reads == "layers"
    if reads_layers and architecture not in GIVE_LAYERS:
        missing = f"llama.cpp does not give the inputs of layers of a {architecture} model"
        return f"{missing}, which an eagle1 head does without (draft train --kind eagle1)"
    if not reads_layers and architecture in _WITHOUT_FINAL_STATE:
        return f"llama.cpp does not give the final state of a {architecture} model"
    return ""


def head_mismatch(target: Header, head: Header) -> str:
    """Return why the head cannot draft for this target; empty if it can."""
    kind, width, head_width = kind_of_head(head), target.number("embedding_length"), width_of_target(head)
    if why := kind_mismatch(target.architecture, kind):
        return why
    if kind == "assistant" and (why := _assistant_mismatch(target, head)):
        return why
    if head_width != width:
        return f"it is a head for models of width {head_width:,}, and this one has {width:,}"
    if n_tokens(head) != target.n_vocab:
        return f"it is a head for {n_tokens(head):,} tokens, and this model has {target.n_vocab:,}"
    if HEADS[kind].reads == "layers" and max(layers_read(head)) >= target.number("block_count"):
        return f"it reads layer {max(layers_read(head))}, and this model has {target.number('block_count')}"
    has_embeddings = "token_embd.weight" in head.tensors or head.number("embedding_length") == width
    if head.architecture in EAGLES and kind != "eagle1" and not has_embeddings:
        return "it has no token embeddings, and the target's are of another width"
    trained_on = head.numbers(PRINT_KEY).astype(np.float32)
    if len(trained_on) and not is_same_target(trained_on, target_print(target)):
        return f"it was trained on another model ({head.metadata.get('general.base_model.0.name', 'unnamed')})"
    return ""


def _assistant_mismatch(target: Header, head: Header) -> str:
    """Return why an assistant cannot read the caches of this target's last two layers; empty if it can."""
    layers, windows = _layers_of(target), [header.number("attention.sliding_window") for header in (target, head)]
    if len(layers) < 2 or not layers[-2].has_window or layers[-1].has_window:
        return "the last two layers of this model are not one with a sliding window and one without"
    if any(layer != layers[-2 if layer.has_window else -1] for layer in _layers_of(head)) or windows[0] != windows[1]:
        return "it was made for keys and values of other sizes than those of this model"
    return ""


def check_head_fits(target: Header, head: Header) -> None:
    """Raise PairError if the head was made for another model."""
    if why := head_mismatch(target, head):
        raise PairError(
            f"{head.path.name} cannot draft for {target.path.name}",
            why=why,
            hint="use a head made for this model, a draft model, or none (`spec_type=none`)",
        )


def _values(header: Header, name: str, type: str, dtype: type[np.generic]) -> np.ndarray:
    tensor = header.tensors[name]
    if tensor.type != type or len(tensor.shape) != 1:
        raise _broken(header, f"tensor {name!r} is {tensor.type}{list(tensor.shape)}, not a list of {type}")
    return np.fromfile(header.path, dtype, tensor.shape[0], offset=tensor.offset)


def _broken(header: Header, why: str) -> ModelFileError:
    return ModelFileError(f"{header.path} cannot be used as a draft head", why=why, hint=AGAIN)
