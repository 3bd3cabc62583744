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

llama.cpp packs the weights of the new file, which is written as F32 first (four bytes of disk space for each). Q8_0
blocks of the source come out bit by bit, and a width of 4, 16, ... times the old one keeps even the rounding of the
norms. Other types round once more; K-quants round so much that texts change soon.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgespec.errors import EdgespecError, ModelFileError, UsageError
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.quantize import TYPES, quantize
from edgespec.models.names.spec import resolve

# The axes of each tensor, row length last: D is the width, Q and K are all heads of queries and of keys, F is the
# feed-forward, V the vocabulary, R half a head.
LAYER = {
    **dict.fromkeys(("attn_norm", "ffn_norm"), "D"),
    "attn_q": "QD",
    **dict.fromkeys(("attn_k", "attn_v"), "KD"),
    "attn_output": "DQ",
    **dict.fromkeys(("ffn_gate", "ffn_up"), "FD"),
    "ffn_down": "DF",
}
AXES = LAYER | {"token_embd": "VD", "output_norm": "D", "output": "VD", "rope_freqs": "R"}

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama; `axes` are the lengths of those in `AXES`."""

    layers: int
    heads: int
    heads_kv: int
    axes: Mapping[str, int]

    def tensor(self, name: str) -> tuple[int, ...]:
        """numpy's shape of a tensor."""
        return tuple(self.axes[axis] for axis in AXES[_kind(name)])


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
    header = check_model(source)
    old = shape_of(header)
    block = {"F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32}.get(type, 256)  # weights that are packed together
    new = old if width in (None, old.axes["D"]) else widened(old, width, block)
    new = replace(new, layers=old.layers if layers is None else layers)
    if new.axes["D"] < old.axes["D"] or new.layers < old.layers or new.axes["D"] % block:
        raise UsageError(
            f"{new.layers} layers of {new.axes['D']} cannot be made from {old.layers} of {old.axes['D']} as {type}",
            hint=f"a model can only grow, and rows of {type} have a multiple of {block} weights",
        )
    check_destination(destination, (source,), b"GGUF")
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        whole = Path(folder) / "f32.gguf"
        _write(source, whole, old, new, scramble=scramble)
        quantize(whole, destination, type)
    return new


def shape_of(header: Header) -> Shape:
    """Return the sizes of a plain Llama. Raises ModelFileError for every other model."""
    layers, heads = header.number("block_count"), header.number("attention.head_count")
    shapes = {name: tensor.shape[::-1] for name, tensor in header.tensors.items()}
    axes: dict[str, int] = {}
    for name, shape in shapes.items():
        axes |= zip(AXES.get(_kind(name), ""), shape, strict=False)
    found = Shape(layers, heads, header.number("attention.head_count_kv", heads), axes)
    needed = {f"blk.{layer}.{kind}.weight" for layer in range(layers) for kind in LAYER} | {"token_embd.weight"}
    has_same_layers = heads > 0 and header.number("feed_forward_length") > 0  # otherwise these are lists
    is_plain = needed <= shapes.keys() and all(
        AXES.get(_kind(name)) and found.tensor(name) == shape for name, shape in shapes.items()
    )
    if header.architecture != "llama" or header.parts or not (has_same_layers and is_plain):
        raise ModelFileError(f"{header.path} cannot be inflated", why="it is not a plain Llama in one file")
    return found


def widened(old: Shape, width: int, block: int) -> Shape:
    """The shape with attention and feed-forward grown in proportion, their rows in whole blocks if possible."""
    group, head_size = old.heads // old.heads_kv, old.axes["Q"] // old.heads
    block = block if width % block == 0 or block == 256 else 1

    def grown(axis: str, step: int) -> int:
        """The multiple of `step` that is nearest to the growth in proportion, and no less than the old length."""
        length = old.axes[axis]
        return max(round(length * width / old.axes["D"] / step), -(-length // step)) * step

    attention = grown("Q", math.lcm(group * head_size, block))
    feed_forward = grown("F", 256 if width % 256 == 0 else block)
    heads = attention // head_size
    axes = {**old.axes, "D": width, "Q": attention, "K": attention // group, "F": feed_forward}
    return replace(old, heads=heads, heads_kv=heads // group, axes=axes)


def _kind(name: str) -> str:
    """The key of a tensor in `AXES`."""
    return name.removesuffix(".weight").rpartition(".")[2]


# --- the file ---------------------------------------------------------------------------------------------------------


def _write(source: Path, path: Path, old: Shape, new: Shape, *, scramble: bool) -> None:
    """Write the model as F32. At most one tensor is in memory."""
    reader = gguf.GGUFReader(source)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = ["token_embd.weight"]
    names += [f"blk.{layer}.{kind}.weight" for layer in range(new.layers) for kind in LAYER]
    names += [name for name in ("output_norm.weight", "output.weight", "rope_freqs.weight") if name in tensors]
    writer = gguf.GGUFWriter(path, "llama")
    try:
        for entry in _metadata(reader, old, new):
            writer.add_key_value(*entry)
        for name in names:
            shape = new.tensor(name)
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name in names:
            if name in tensors:
                values = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
                writer.write_tensor_data(_grown(name, values, old, new, scramble=scramble))
            else:
                writer.write_tensor_data(_added(name, new))
    finally:
        writer.close()


def _grown(name: str, values: Values, old: Shape, new: Shape, *, scramble: bool) -> Values:
    """A tensor of the source with zeros around it."""
    if scramble and name == "token_embd.weight":
        values = np.random.default_rng(0).permutation(values)
    grown = np.zeros(new.tensor(name), np.float32)
    grown[tuple(slice(n) for n in values.shape)] = values
    if name.endswith("norm.weight"):
        grown *= np.float32(math.sqrt(old.axes["D"] / new.axes["D"]))
    return grown


def _added(name: str, new: Shape) -> Values:
    """A tensor of an added layer."""
    shape = new.tensor(name)
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    if name.endswith(("attn_output.weight", "ffn_down.weight")):
        return np.zeros(shape, np.float32)
    return np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(math.sqrt(shape[1]))


def _metadata(reader: Any, old: Shape, new: Shape) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield key, value, its type and that of its elements: the source's entries, with the sizes among them replaced."""
    kinds, epsilon = gguf.GGUFValueType, "llama.attention.layer_norm_rms_epsilon"
    sizes: dict[str, int | float] = {
        "llama.embedding_length": new.axes["D"],
        "llama.block_count": new.layers,
        "llama.feed_forward_length": new.axes["F"],
        "llama.attention.head_count": new.heads,
        "llama.attention.head_count_kv": new.heads_kv,
        epsilon: float(reader.fields[epsilon].contents()) * old.axes["D"] / new.axes["D"],
    }
    if new.axes["Q"] != new.axes["D"]:
        head_size = new.axes["Q"] // new.heads
        sizes |= {"llama.attention.key_length": head_size, "llama.attention.value_length": head_size}
    for key, field in reader.fields.items():
        value = field.contents()
        is_written = not key.startswith("GGUF.") and key not in ("general.architecture", "general.alignment")
        if is_written and value != []:
            yield key, sizes.pop(key, value), field.types[0], field.types[-1] if len(field.types) > 1 else None
    for key, value in sizes.items():
        yield key, value, kinds.UINT32 if isinstance(value, int) else kinds.FLOAT32, None


# --- the command ------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="IN", help="a GGUF file, demo or demo:draft")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
    parser.add_argument("--width", type=int, metavar="D")
    parser.add_argument("--layers", type=int, metavar="L")
    parser.add_argument("--type", choices=TYPES, default="Q8_0")
    parser.add_argument("--scramble", action="store_true", help="make a model with another text")
    options = vars(parser.parse_args(arguments))
    source, output = options.pop("source"), options.pop("output")
    try:
        shape = inflate(resolve(source).path, output, **options)
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{output}: {shape.layers} layers of {shape.axes['D']}, {output.stat().st_size / 1e6:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
