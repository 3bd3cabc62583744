"""Make a trained Llama larger without changing what it says: benchmark pairs of any size without a download.

    python scripts/lab/inflate_gguf.py demo -o target.gguf --width 1792 --layers 23     # 0.9 billion parameters
    python scripts/lab/inflate_gguf.py demo:draft -o draft.gguf --width 768 --layers 3 --type F16

The source is a GGUF file of the architecture `llama`, or `demo` or `demo:draft` for the bundled ones. Except for
rounding, the logits stay the same:

- **Width** from d to D: every matrix gets rows and columns of zeros, so the new channels of the residual stream stay
  zero. RMSNorm divides by the root of a mean, now over D values: its weights are multiplied by sqrt(d/D), its epsilon
  by d/D, which undoes that exactly. New attention heads have the size of the old ones, come after them and share keys
  and values in the same ratio, so the old heads find theirs; the feed-forward rows grow with the width.
- **Layers** are added after the old ones. Their weights are random (of unit gain, so that nothing overflows) except
  for the two output projections, `attn_output` and `ffn_down`: those are zero, so the residual stream passes.
- With `--scramble`, the embeddings are in random order: the model takes every token for another, and as a draft is
  confident and wrong.

Q8_0 blocks of the source are copied bit by bit, and a width of 4, 16, ... times the old one keeps even the rounding of
the norms. Other types round once more; K-quants, made by llama.cpp from F16, round so much that texts change soon.
Costs are counted in the parameters read for one token: all matrices but the embedding table.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgespec.errors import EdgespecError, ModelFileError, UsageError
from edgespec.files.unfinished import becoming, check_destination
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.quantize import TYPES, quantize
from edgespec.models.names.spec import resolve

DIRECT = {"F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32}  # types that are written here; weights in a block
LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")

Values = NDArray[np.float32]


def inflate(
    source: Path,
    destination: Path,
    *,
    width: int | None = None,
    layers: int | None = None,
    type: str = "Q8_0",
    scramble: bool = False,
) -> Shape:
    """Write `source` to `destination` with this width and number of layers; what is not given stays. `destination`
    appears when it is complete. Returns the new shape.

    Raises UsageError, ModelNotFoundError, ModelFileError.
    """
    header, type = check_model(source), type.upper()
    old = shape_of(header)
    new = old if width is None or width == old.width else widened(old, width, type)
    new = replace(new, layers=old.layers if layers is None else layers)
    check_growth(old, new, type)
    check_destination(destination, (source,), b"GGUF")
    with becoming(destination) as unfinished:
        if type in DIRECT:
            _write(source, unfinished, old, new, type, scramble=scramble)
        else:
            with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
                whole = Path(folder) / "f16.gguf"
                _write(source, whole, old, new, "F16", scramble=scramble)
                quantize(whole, unfinished, type)
    return new


# --- the file ---------------------------------------------------------------------------------------------------------


def _write(source: Path, path: Path, old: Shape, new: Shape, type: str, *, scramble: bool) -> None:
    """Write tensor by tensor: in memory are at most one of them, and one of each kind for the added layers, which are
    all the same."""
    reader = gguf.GGUFReader(source)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    eps = float(reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()) * old.width / new.width
    names = ["token_embd.weight"]
    names += [f"blk.{layer}.{kind}.weight" for layer in range(new.layers) for kind in LAYER]
    names += [name for name in ("output_norm.weight", "output.weight", "rope_freqs.weight") if name in tensors]
    kinds = {name: gguf.GGMLQuantizationType[type if len(new.tensor(name)) > 1 else "F32"] for name in names}
    writer, added = gguf.GGUFWriter(path, "llama"), dict[str, NDArray[Any]]()
    try:
        for entry in _metadata(reader, new, eps, type):
            writer.add_key_value(*entry)
        for name, kind in kinds.items():
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            size_bytes = math.prod(new.tensor(name)) // block * block_bytes
            writer.add_tensor_info(name, new.tensor(name), np.dtype(np.float32), size_bytes, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, kind in kinds.items():
            suffix = name.partition(".")[2].partition(".")[2]
            if name in tensors:
                values = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
                data = gguf.quants.quantize(_grown(name, values, old, new, scramble=scramble), kind)
            elif suffix in added:
                data = added[suffix]
            else:
                data = added[suffix] = gguf.quants.quantize(_added(name, new), kind)
            writer.write_tensor_data(data)
    finally:
        writer.close()


def _grown(name: str, values: Values, old: Shape, new: Shape, *, scramble: bool) -> Values:
    """A tensor of the source with zeros around it."""
    if scramble and name == "token_embd.weight":
        values = np.random.default_rng(0).permutation(values)
    grown = np.zeros(new.tensor(name), np.float32)
    grown[tuple(slice(n) for n in values.shape)] = values
    if name.endswith("norm.weight"):
        grown *= np.float32(math.sqrt(old.width / new.width))
    return grown


def _added(name: str, new: Shape) -> Values:
    """A tensor of an added layer."""
    shape = new.tensor(name)
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    if name.endswith(("attn_output.weight", "ffn_down.weight")):
        return np.zeros(shape, np.float32)
    return np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(math.sqrt(shape[1]))


def _metadata(reader: Any, new: Shape, eps: float, type: str) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield key, value, its type and that of its elements: the source's entries, with the sizes among them replaced."""
    kinds = gguf.GGUFValueType
    sizes: dict[str, int | float] = {
        "llama.embedding_length": new.width,
        "llama.block_count": new.layers,
        "llama.feed_forward_length": new.feed_forward,
        "llama.attention.head_count": new.heads,
        "llama.attention.head_count_kv": new.heads_kv,
        "llama.attention.layer_norm_rms_epsilon": eps,
        "general.file_type": TYPES[type],
    }
    if new.heads * new.head_size != new.width:
        sizes |= {"llama.attention.key_length": new.head_size, "llama.attention.value_length": new.head_size}
    for key, field in reader.fields.items():
        value = field.contents()
        is_written = not key.startswith("GGUF.") and key not in ("general.architecture", "general.alignment")
        if is_written and value != []:
            yield key, sizes.pop(key, value), field.types[0], field.types[-1] if len(field.types) > 1 else None
    for key, value in sizes.items():
        yield key, value, kinds.UINT32 if isinstance(value, int) else kinds.FLOAT32, None


# --- shapes -----------------------------------------------------------------------------------------------------------


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
        shapes = {
            **dict.fromkeys(("token_embd", "output"), (self.vocabulary, width)),
            "attn_q": (heads, width),
            **dict.fromkeys(("attn_k", "attn_v"), (keys, width)),
            "attn_output": (width, heads),
            **dict.fromkeys(("ffn_gate", "ffn_up"), (self.feed_forward, width)),
            "ffn_down": (width, self.feed_forward),
            "rope_freqs": (self.head_size // 2,),
        }
        return shapes.get(name.removesuffix(".weight").rpartition(".")[2], (width,))


def shape_of(header: Header) -> Shape:
    """Return the sizes of a plain Llama. Raises ModelFileError for every other model."""

    def refused(why: str) -> ModelFileError:
        return ModelFileError(f"{header.path} cannot be inflated", why=why)

    width, heads = header.number("embedding_length"), header.number("attention.head_count")
    heads_kv = header.number("attention.head_count_kv", heads)
    if header.architecture != "llama":
        raise refused(f"its architecture is {header.architecture!r}, and only 'llama' is supported")
    if header.parts or not (heads and heads_kv and header.number("feed_forward_length")):
        raise refused("it is split into parts, or its layers differ in size")
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
    sizes = {name: tensor.shape[::-1] for name, tensor in header.tensors.items()}
    strange = {name for name in known | sizes.keys() if sizes.get(name) != shape.tensor(name)}
    strange |= sizes.keys() - known - {"output.weight", "rope_freqs.weight"}
    if strange:
        raise refused(f"the tensor {min(strange)!r} is not that of a plain Llama")
    return shape


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
    """Raise UsageError if `new` cannot be written as `type`."""
    if type not in TYPES:
        raise UsageError(f"unknown type {type!r}", hint=f"use one of {', '.join(TYPES)}")
    if new.width < old.width or new.layers < old.layers:
        raise UsageError(
            f"{new.layers} layers of {new.width} cannot be made from {old.layers} of {old.width}",
            why="a model can only grow",
        )
    block = DIRECT.get(type, 256)
    if rows := [size for name in ("attn_q", "attn_output", "ffn_down") if (size := new.tensor(name)[-1]) % block]:
        raise UsageError(
            f"{type} packs weights in blocks of {block}, which rows of {rows[0]} do not fill",
            hint=f"give a width that is a multiple of {block}, or another type",
        )


def _nearest(value: float, step: int, least: int) -> int:
    """The multiple of `step` nearest to `value` and not below `least`."""
    return max(round(value / step) * step, -(-least // step) * step)


# --- the command ------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="IN", help="a GGUF file, demo or demo:draft")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
    parser.add_argument("--width", type=int, metavar="D")
    parser.add_argument("--layers", type=int, metavar="L")
    parser.add_argument("--type", default="Q8_0", help=f"{', '.join(TYPES)} (default: Q8_0)")
    parser.add_argument("--scramble", action="store_true", help="make a model with another text")
    options = vars(parser.parse_args(arguments))
    source, output = options.pop("source"), options.pop("output")
    try:
        shape = inflate(resolve(source).path, output, **options)
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    size = f"{shape.n_params:,} parameters a token, {output.stat().st_size / 1e6:,.0f} MB"
    print(f"{output}: {shape.layers} layers of {shape.width}, {size}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
