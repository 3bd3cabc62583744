"""Check if a GGUF header describes a language model that this llama.cpp can run.

llama.cpp throws on many files that it cannot run, but on others it asserts, which ends the process. Files are refused
here that a user may have by mistake, those whose sizes edgespec itself relies on, and vocabularies, which are also read
without a model. Tables and rules are written from llama.cpp's `llama-model.cpp`, `llama-vocab.cpp` and `src/models/`.
The trial load (`llama/trial.py`), a child process that may crash, finds what else is wrong, such as weight
types without kernels.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgespec.drafters.heads import architectures
from edgespec.errors import ModelFileError
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.walk import AGAIN, INCOMPLETE, shown


def check_model(model: Header | str | Path, *, embeds: bool = False) -> Header:
    """Return the header of a language model that this llama.cpp can run, with all parts of a split file. With `embeds`,
    embedding models are accepted too.

    Raises ModelNotFoundError if there is no such file, ModelFileError with the reason if it cannot be run.
    """
    header = model if isinstance(model, Header) else read_header(model)
    parts = _parts(header)
    _check_kind(header, embeds=embeds)
    if parts:
        header = _joined(header, parts)
    check_vocabulary(header)
    _check_dimensions(header)
    check_scalars(header)
    return header


# --- is it a language model? ------------------------------------------------------------------------------------------


def _unusable(header: Header, why: str, hint: str = "") -> ModelFileError:
    return ModelFileError(f"{header.path} cannot be used as a language model", why=why, hint=hint)


def _broken(header: Header, why: str) -> ModelFileError:
    return ModelFileError(f"{header.path} cannot be loaded", why=why, hint=AGAIN)


def is_causal(header: Header) -> bool:
    """Return whether tokens attend only to those before them."""
    architecture = header.architecture
    return architecture not in ENCODERS and bool(header.metadata.get(f"{architecture}.attention.causal", True))


def is_embedding(header: Header) -> bool:
    """Return whether a model makes vectors or scores, and cannot generate text."""
    is_pooled = bool(header.number("pooling_type")) or not is_causal(header)
    return header.architecture in ARCHITECTURES | ENCODERS and is_pooled


def _check_kind(header: Header, *, embeds: bool) -> None:
    kind, architecture = str(header.metadata.get("general.type", "")), header.architecture
    if kind in _OTHER_FILES:
        raise _unusable(header, f"it is {_OTHER_FILES[kind]}")
    if architecture in OTHER_ARCHITECTURES:
        raise _unusable(header, f"it is {OTHER_ARCHITECTURES[architecture]}")
    if is_embedding(header) and not embeds:
        raise _unusable(header, f"it is {_EMBEDDING}")
    if not architecture:
        raise _unusable(header, "it does not name its architecture ('general.architecture' is missing)")
    if architecture not in ARCHITECTURES | ENCODERS:
        why = f"{shown(architecture)} is no architecture of this llama.cpp that generates text from left to right"
        raise _unusable(header, why, "A newer version of edgespec may know it.")
    if not header.tensors and _split_count(header) < 2:  # the first part of a split may hold none
        raise _unusable(header, "it has only a vocabulary, no weights")


def _split_count(header: Header) -> int:
    count = header.metadata.get("split.count", 0)
    return count if isinstance(count, int) else 0


def _parts(header: Header) -> tuple[Path, ...]:
    """Return the files of a split model, of which this must be the first; () for a whole model."""
    count = _split_count(header)
    if count < 2:
        return ()
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", header.path.name)
    if not match or int(match[3]) != count:
        why = f"it is one of {count} parts, but its name does not end in -00001-of-{count:05d}.gguf"
        raise _unusable(header, why, "Restore the file names under which the parts were downloaded.")
    parts = tuple(header.path.with_name(f"{match[1]}-{part + 1:05d}-of-{count:05d}.gguf") for part in range(count))
    if header.metadata.get("split.no", 0) != 0:
        raise _unusable(header, f"it is not the first of its {count} parts", f"Load {parts[0]} instead.")
    if missing := [part.name for part in parts if not part.is_file()]:
        why = f"it has {count} parts, and {len(missing)} of them cannot be found: {', '.join(missing[:4])}"
        raise ModelFileError(f"{header.path} {INCOMPLETE}", why=why, hint=f"Download them into {header.path.parent}.")
    return parts


def _joined(header: Header, parts: tuple[Path, ...]) -> Header:
    """Return the header of the first part with the tensors of all parts."""
    tensors, size_bytes = dict(header.tensors), header.size_bytes
    for number, path in enumerate(parts[1:], start=1):
        part = read_header(path)
        if part.metadata.get("split.no") != number or tensors.keys() & part.tensors.keys():
            why = f"it is not part {number}, or has the same tensors as another part"
            raise ModelFileError(f"{path} does not belong to {header.path.name}", why=why, hint=AGAIN)
        tensors |= {name: replace(tensor, part=number) for name, tensor in part.tensors.items()}
        size_bytes += part.size_bytes
    if header.metadata.get("split.tensors.count") != len(tensors):
        raise _broken(
            header, f"its parts hold {len(tensors)} tensors, not {shown(header.metadata.get('split.tensors.count'))}"
        )
    return replace(header, tensors=tensors, size_bytes=size_bytes, parts=parts)


# --- the vocabulary ---------------------------------------------------------------------------------------------------


def check_vocabulary(header: Header) -> None:
    """Raise ModelFileError for a vocabulary that llama.cpp cannot use."""
    model, n_vocab = header.metadata.get("tokenizer.ggml.model"), header.n_vocab
    if model is None or model in ("no_vocab", "none") or not n_vocab:
        raise _unusable(header, "it has no vocabulary")
    texts = header.strings("tokenizer.ggml.tokens")
    if not texts:
        raise _broken(header, "its vocabulary is not a list of strings")
    for what in ("token_type", "scores"):
        values = header.numbers(f"tokenizer.ggml.{what}")
        if f"tokenizer.ggml.{what}" in header.metadata and len(values) < n_vocab:
            raise _broken(
                header, f"its vocabulary has {n_vocab:,} tokens, but {len(values):,} {what.replace('_', ' ')}s"
            )
        if np.isnan(values).any():
            raise _broken(header, "a token's score is not a number")
    if not all(texts):
        texts = [text or b"[EMPTY_%d]" % index for index, text in enumerate(texts)]  # as llama.cpp names them
    known = set(texts)
    if len(known) < n_vocab:
        twice = next(text for text, n in Counter(texts).items() if n > 1)
        raise _broken(header, f"token {shown(twice.decode('utf-8', 'replace'))} is in its vocabulary twice")
    if model in ("llama", "plamo2", "t5", "rwkv"):
        # Without a token for each byte, llama.cpp throws, or starts again at the beginning of the text for ever (rwkv).
        written = {_unescaped(text) for text in known} if model == "rwkv" else known
        for byte in _UTF8_BYTES:
            if bytes([byte]) not in written and (model == "rwkv" or b"<0x%02X>" % byte not in written):
                raise _broken(header, f"its vocabulary cannot write every text: it has no token for the byte {byte}")
    _check_special_tokens(header, str(model))


def _check_special_tokens(header: Header, model: str) -> None:
    """Raise ModelFileError if prompts need a BOS or EOS token that the vocabulary does not have."""
    for name, default in zip(("bos", "eos"), DEFAULT_TOKENS.get(model, (None, None)), strict=True):
        id = header.metadata.get(f"tokenizer.ggml.{name}_token_id", -1)
        if not isinstance(id, int):
            raise _broken(header, f"its {name.upper()} token is {shown(id)}, not a number")
        if not 0 <= id < header.n_vocab:  # llama.cpp uses the tokenizer's default instead
            is_known = default is not None and default < header.n_vocab
            if not is_known and header.metadata.get(f"tokenizer.ggml.add_{name}_token") is True:
                raise _broken(header, f"its prompts need a {name.upper()} token, but its vocabulary has none")


def vocabulary_note(header: Header) -> str:
    """Return what the file of a model does not say about texts, and what follows; empty if it says everything.

    llama.cpp guesses what is missing. In byte-level vocabularies, which differ in both, the guesses are seldom right.
    """
    if header.metadata.get("tokenizer.ggml.model") != "gpt2":
        return ""
    effects = {
        "pre-tokenizer": "texts may be split into other tokens than in training",
        "end token": "answers may end too early, or not at all",
    }
    if "tokenizer.ggml.pre" in header.metadata:
        del effects["pre-tokenizer"]
    if any(f"tokenizer.ggml.{name}_token_id" in header.metadata for name in ("eos", "eot")):
        del effects["end token"]
    if not effects:
        return ""
    why = ", and ".join(effects.values())
    return f"{header.path.name} names no {' and no '.join(effects)}: {why}; a newer file may be better"


def _unescaped(text: bytes) -> bytes:
    """The bytes of a token of RWKV's vocabulary, which is written like a literal of Python."""
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]) if found[1] else _LETTERS.get(found[2], found[2]), text)


_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


# --- sizes and constants ----------------------------------------------------------------------------------------------


def _check_dimensions(header: Header) -> None:
    """Check the sizes that edgespec computes with. The trial load checks the others, and the shapes of all tensors."""
    n_layers = _size(header, "block_count", 1, _MAX_LAYERS)
    _size(header, "embedding_length", 1, 1 << 20)
    _size(header, "context_length", 1, (1 << 31) - 1)
    size_or_none(header, "attention.sliding_window", 0, (1 << 31) - 1)
    if size_or_none(header, "nextn_predict_layers", 0, _MAX_LAYERS) > n_layers:
        raise _broken(header, "it has more prediction layers than layers")


def _size(header: Header, key: str, low: int, high: int) -> int:
    """Return an integer of the architecture between `low` and `high`."""
    key = f"{header.architecture}.{key}"
    value = header.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        found = "missing" if value is None else shown(value)
        raise _broken(header, f"{shown(key)} is {found}, not an integer from {low:,} to {high:,}")
    return value


def size_or_none(header: Header, key: str, low: int, high: int) -> int:
    """Return an integer of the architecture between `low` and `high`; 0 if it is missing. Raises ModelFileError."""
    return _size(header, key, low, high) if f"{header.architecture}.{key}" in header.metadata else 0


def check_scalars(header: Header) -> None:
    """Raise ModelFileError for numbers of the architecture with which every row of logits would be NaN."""
    for key, value in header.metadata.items():
        if isinstance(value, float) and key.startswith(f"{header.architecture}."):
            positive = key.endswith(("epsilon", "rope.freq_base", "rope.freq_base_swa"))
            if not math.isfinite(value) or (positive and value <= 0):
                raise _broken(header, f"{shown(key)} is {shown(value)}, which is impossible")


# --- tables ---------------------------------------------------------------------------------------------------------

_MAX_LAYERS = 512

# The BOS and EOS tokens of tokenizers, where a file names none (llama-vocab.cpp)
DEFAULT_TOKENS: dict[str, tuple[int | None, int | None]] = {
    **dict.fromkeys(("llama", "plamo2"), (1, 2)),
    **dict.fromkeys(("gpt2", "hybriddna", "whitespace"), (11, 11)),
    "bert": (101, None),
    "t5": (None, 1),
}

_UTF8_BYTES = [byte for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5]  # the others never occur
# The architectures of llama.cpp 0c1e57098 (llama-arch.cpp) that write text from left to right
_LEFT_TO_RIGHT = """
    afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bitnet bloom chameleon chatglm
    codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dots1
    dots3note ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma2 gemma3 gemma3n gemma4
    glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok
    grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba kimi-k3 kimi-linear
    laguna lfm2 lfm2moe llama llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2
    minimax-m3 mistral3 mistral4 mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe olmo olmo2 olmoe openelm
    orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm qwen qwen2 qwen2moe qwen2vl qwen3 qwen35
    qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe qwen4exp refact rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker
    smollm3 spark2_5 stablelm starcoder starcoder2 step35 talkie xverse
"""
ARCHITECTURES = frozenset(_LEFT_TO_RIGHT.split())

# Architectures of llama.cpp 0c1e57098 with a state from which tokens cannot be removed, in all layers or in some
_RECURRENT = "arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7"
_HYBRID = """
    bailingmoe3 deepseek4 falcon-h1 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe minimax-01 nemotron_h
    nemotron_h_moe plamo2 qwen35 qwen35moe qwen3next qwen4exp
"""
# Hybrid ones without saved old states
_HYBRID_WITHOUT_COPIES = "falcon-h1 granitehybrid jamba kimi-linear minimax-01 plamo2 qwen3next"
NO_DRAFTS = frozenset(f"{_RECURRENT} {_HYBRID}".split())
NO_TARGETS = frozenset(f"{_RECURRENT} {_HYBRID_WITHOUT_COPIES}".split())

# Architectures of llama.cpp 0c1e57098 that make vectors. Without a KV cache, a text is read in one pass.
_IN_ONE_PASS = """
    bert eurobert gemma-embedding jina-bert-v2 jina-bert-v3 modern-bert neo-bert nomic-bert nomic-bert-moe
"""
WITHOUT_CACHE = frozenset(_IN_ONE_PASS.split())
ENCODERS = WITHOUT_CACHE | {"llama-embed"}
_EMBEDDING = "an embedding model: it makes vectors or scores ('edgespec serve'), and cannot generate text"

# Those it knows, but that cannot answer a prompt by themselves
_HEAD = "a draft head that runs on the hidden states of another model, not a complete model (`draft_model` uses it)"
_PROJECTOR = "a vision projector (mmproj), not a language model"
OTHER_ARCHITECTURES: dict[str, str] = {
    "t5encoder": "the encoder of a T5 model, which cannot generate text",
    **dict.fromkeys(architectures(), _HEAD),
    "clip": _PROJECTOR,
}
_OTHER_FILES = {  # general.type
    "adapter": "a LoRA adapter, not a language model",
    "mmproj": _PROJECTOR,
    "imatrix": "an importance matrix for quantising, not a language model",
    "controlvector": "a control vector, not a language model",
}
