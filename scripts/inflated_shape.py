"""The sizes that an inflated Llama gets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edgespec.errors import ModelFileError, UsageError
from edgespec.gguf_file.header import Header
from edgespec.llama.quantize import TYPES

DIRECT = {"F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32}  # written here; weights in a block
LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
_MAX_WIDTH, _MAX_LAYERS = 8192, 512
_WIDTH_PER_LAYER = 64  # of models people use: between 40 and 130


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama."""

    width: int
    layers: int
    heads: int
    heads_kv: int
    head_size: int
    feed_forward: int
    vocabulary: int

    @property
    def n_params(self) -> int:
        """Parameters read for one token."""
        layer = sum(math.prod(self.tensor(f"blk.0.{kind}.weight")) for kind in LAYER)
        return self.layers * layer + self.width + self.vocabulary * self.width

    def tensor(self, name: str) -> tuple[int, ...]:
        """numpy's shape of a tensor, row length last."""
        width, heads, keys = self.width, self.heads * self.head_size, self.heads_kv * self.head_size
        match name.removesuffix(".weight").rpartition(".")[2]:
            case "token_embd" | "output":
                return (self.vocabulary, width)
            case "attn_q":
                return (heads, width)
            case "attn_k" | "attn_v":
                return (keys, width)
            case "attn_output":
                return (width, heads)
            case "ffn_gate" | "ffn_up":
                return (self.feed_forward, width)
            case "ffn_down":
                return (width, self.feed_forward)
            case "rope_freqs":
                return (self.head_size // 2,)
        return (width,)


def shape_of(header: Header) -> Shape:
    """The sizes of a plain Llama. Raises ModelFileError for every other model."""
    if header.architecture != "llama":
        raise strange(header, f"its architecture is {header.architecture!r}, and only 'llama' is known here")
    if header.parts:
        raise strange(header, "it is split into parts; join them first")
    width, heads = header.number("embedding_length"), header.number("attention.head_count")
    heads_kv = header.number("attention.head_count_kv", heads)
    if not heads or not heads_kv or not header.number("feed_forward_length"):
        raise strange(header, "its layers differ in size")
    shape = Shape(
        width=width,
        layers=header.number("block_count"),
        heads=heads,
        heads_kv=heads_kv,
        head_size=header.number("attention.key_length", width // heads),
        feed_forward=header.number("feed_forward_length"),
        vocabulary=header.n_vocab,
    )
    known = {f"blk.{layer}.{kind}.weight" for layer in range(shape.layers) for kind in LAYER}
    known |= {"token_embd.weight", "output_norm.weight"}
    if extra := header.tensors.keys() - known - {"output.weight", "rope_freqs.weight"}:
        raise strange(header, f"it is no plain Llama: it has a tensor {min(extra)!r}")
    for name in known | header.tensors.keys():
        if name not in header.tensors or header.tensors[name].shape[::-1] != shape.tensor(name):
            raise strange(header, f"tensor {name!r} is missing or has another shape than its metadata say")
    return shape


def choose_shape(old: Shape, vocabulary: int, params: float, type: str) -> Shape:
    """About `params` parameters (5 %), as wide for its layers as models are. Raises UsageError if there is none."""
    if not math.isfinite(params) or params < old.n_params * 0.95:
        raise UsageError(f"cannot make {params:,.0f} of the source's {old.n_params:,} parameters: it can only grow")
    narrowest = old.width + 32 if vocabulary > old.vocabulary else old.width
    tried = []
    for step in (256, 32) if type in DIRECT else (256,):
        for width in range(_up(narrowest, step), _MAX_WIDTH + 1, step):
            shape = widened(replace(old, vocabulary=vocabulary), width, type)
            rest = replace(shape, layers=0).n_params
            layers = round((params - rest) / (replace(shape, layers=1).n_params - rest))
            tried.append(replace(shape, layers=min(max(layers, old.layers), _MAX_LAYERS)))
        if found := [shape for shape in tried if abs(shape.n_params / params - 1) <= 0.05]:
            return min(found, key=lambda shape: abs(math.log(shape.width / shape.layers / _WIDTH_PER_LAYER)))
    nearest = min(tried, key=lambda shape: abs(shape.n_params - params))
    raise UsageError(f"no shape has about {params:,.0f} parameters", why=f"the nearest has {nearest.n_params:,}")


def widened(old: Shape, width: int, type: str) -> Shape:
    """The shape with attention and feed-forward grown in proportion, their rows in whole blocks of the type."""
    block = 256 if type not in DIRECT else 32 if width % 32 == 0 else 1
    group, attention = old.heads // old.heads_kv, old.heads * old.head_size
    unit = math.lcm(group * old.head_size, block)
    heads = _nearest(attention * width / old.width, unit, attention) // old.head_size
    unit = 256 if width % 256 == 0 else block
    feed_forward = _nearest(old.feed_forward * width / old.width, unit, old.feed_forward)
    return replace(old, width=width, heads=heads, heads_kv=heads // group, feed_forward=feed_forward)


def check_growth(old: Shape, new: Shape, type: str) -> None:
    if type not in TYPES:
        raise UsageError(f"{type!r} is no type known here", hint=f"take one of {', '.join(TYPES)}")
    for what in ("width", "layers", "vocabulary"):
        before, after = getattr(old, what), getattr(new, what)
        if after < before:
            raise UsageError(f"{what}: {after:,} is less than the source's {before:,}, which can only grow")
    if new.layers > _MAX_LAYERS:
        raise UsageError(f"layers: {new.layers:,} are more than the {_MAX_LAYERS} llama.cpp takes")
    if new.vocabulary > old.vocabulary and new.width < old.width + 32:
        raise UsageError("a larger vocabulary needs channels of its own", hint=f"give --width {old.width + 32} or more")
    block = DIRECT.get(type, 256)
    for name in ("attn_q", "attn_output", "ffn_down"):
        if new.tensor(name)[-1] % block:
            raise UsageError(
                f"{type} packs weights in blocks of {block}, which rows of {new.tensor(name)[-1]} do not fill",
                hint=f"give a width that is a multiple of {block}, or take another type",
            )


def strange(header: Header, why: str) -> ModelFileError:
    return ModelFileError(f"{header.path} cannot be inflated", why=why)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _nearest(value: float, step: int, least: int) -> int:
    """The multiple of `step` nearest to `value` and not below `least`."""
    return max(round(value / step) * step, _up(least, step))
