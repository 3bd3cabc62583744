"""Make a trained Llama cost more without saying anything else: benchmark pairs of any size without a download.

    python scripts/inflate_gguf.py demo -o target.gguf --params 0.9e9                    Q8_0, width and layers chosen
    python scripts/inflate_gguf.py demo -o target.gguf --params 0.9e9 --type Q4_K_M --vocab 151936
    python scripts/inflate_gguf.py demo:draft -o draft.gguf --width 768 --layers 3
    python scripts/inflate_gguf.py --pair bench            targets in three types, drafts of 1/10 and 1/30 of their cost

The source is a GGUF file of the architecture `llama`, or `demo` or `demo:draft` for the bundled ones. With rounding
aside, the logits stay what they were:

- **Width** from d to D: every matrix gets rows and columns of zeros, so the new channels of the residual stream stay
  zero. RMSNorm divides by the root of a mean, now over D values: its weights are multiplied by sqrt(d/D), its epsilon
  by d/D, which undoes that exactly. New attention heads have the size of the old ones, stand behind them and share keys
  and values in the same ratio, so the old heads find theirs; the feed-forward rows grow with the width.
- **Layers** are added behind the old ones. Their weights are random (of unit gain, so that nothing overflows) except
  for the two output projections, `attn_output` and `ffn_down`: those are zero, and the residual stream passes.
- **Vocabulary**: the new tokens, `<|unused_8192|>` and so on, are of the type `unused`, so that no text is ever cut
  into them. They must never win, nor take probability from the others at any temperature. The output row of a token
  that seldom wins, copied, would do neither: where that token does win its copies come too, and there are many. So the
  last channel of the new width is set apart. All embeddings hold a small constant there that no layer reads or writes,
  the final norm makes it 1 / (RMS of the stream), and the output rows of the new tokens hold -4,096 there. The square
  of the constant is taken off epsilon, so that the norms do not notice it. Where the embedding serves as output too,
  this adds the same small amount to all old logits.

- **Scrambled** (`--scramble`), the embeddings stand in random order: the model takes every token for another, and as a
  draft is confident and wrong.

Q8_0 blocks of the source come out bit by bit, and a width of 4, 16, ... times the old one keeps even the rounding of
the norms. Other types round once more; K-quants, made by llama.cpp from F16, so much that texts change soon.
Costs are counted in the parameters read for one token: all matrices but the embedding table.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from inflated_shape import DIRECT, LAYER, Shape, check_growth, choose_shape, shape_of, widened
from numpy.typing import NDArray

from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.quantize import TYPES, quantize
from edgespec.models.names.spec import resolve

QWEN_VOCABULARY = 151_936
TARGET = {"params": 0.9e9}
# The drafts are wide for their few layers, because each layer costs time besides that of its parameters. On one thread
# of an x86 server their passes take about 1/10, 1/26 and 1/28 of the Q8_0 target's time.
PAIR: dict[str, tuple[str, dict[str, Any]]] = {
    "target-f16.gguf": ("demo", TARGET | {"type": "F16"}),
    "target-q8_0.gguf": ("demo", TARGET | {"type": "Q8_0"}),
    "target-q4_k_m.gguf": ("demo", TARGET | {"type": "Q4_K_M"}),
    "draft-10.gguf": ("demo:draft", {"width": 1280, "layers": 4}),
    "draft-30.gguf": ("demo:draft", {"width": 768, "layers": 3}),
    "draft-useless.gguf": ("demo:draft", {"width": 768, "layers": 3, "scramble": True}),
    "target-q8_0-v152k.gguf": ("demo", TARGET | {"vocabulary": QWEN_VOCABULARY}),
    "draft-30-v152k.gguf": ("demo:draft", {"width": 160, "layers": 2, "vocabulary": QWEN_VOCABULARY}),
}

Values = NDArray[np.float32]
_NORMAL, _UNUSED = 1, 5  # gguf's token types
_LOW = -4096.0  # far below what tokens get, and far from the end of F16's range


def inflate(
    source: Path,
    destination: Path,
    *,
    params: float | None = None,
    width: int | None = None,
    layers: int | None = None,
    vocabulary: int | None = None,
    type: str = "Q8_0",
    scramble: bool = False,
) -> Shape:
    """Write `source` to `destination` with about `params` parameters, or with `width` and `layers`; what is not given
    stays. `destination` appears when it is complete. Returns the new shape.

    Raises UsageError, ModelNotFoundError, ModelFileError.
    """
    header, type = check_model(source), type.upper()
    old = shape_of(header)
    new = replace(old, vocabulary=old.vocabulary if vocabulary is None else vocabulary)
    if params is not None:
        new = choose_shape(old, new.vocabulary, params, type)
    elif width is not None and width > old.width:
        new = widened(new, width, type)
    new = replace(new, width=new.width if width is None else width, layers=new.layers if layers is None else layers)
    check_growth(old, new, type)
    if not destination.parent.is_dir():
        raise UsageError(f"cannot write {destination}", why=f"there is no folder {destination.parent}")
    if destination.is_dir() or (destination.exists() and destination.samefile(source)):
        raise UsageError(f"cannot write {destination}", why="it is the source or a folder", hint="name another file")
    unfinished = destination.with_name(f"{destination.name}.{os.getpid()}.inflated")
    try:
        _write(source, unfinished, old, new, type if type in DIRECT else "F16", scramble=scramble)
        if type in DIRECT:
            unfinished.replace(destination)
        else:
            quantize(unfinished, destination, type)
    finally:
        unfinished.unlink(missing_ok=True)
    return new


# --- the file ---------------------------------------------------------------------------------------------------------


def _write(source: Path, path: Path, old: Shape, new: Shape, type: str, *, scramble: bool) -> None:
    """Tensor by tensor, so that no more than one is in memory, and one layer of those added, which are all the same."""
    reader = gguf.GGUFReader(source)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    eps = float(reader.fields["llama.attention.layer_norm_rms_epsilon"].contents())
    growth = _Growth(old, new, eps, is_tied="output.weight" not in tensors, scramble=scramble)
    names = ["token_embd.weight"]
    names += [f"blk.{layer}.{kind}.weight" for layer in range(new.layers) for kind in LAYER]
    names += [name for name in ("output_norm.weight", "output.weight", "rope_freqs.weight") if name in tensors]
    kinds = {name: gguf.GGMLQuantizationType[type if len(new.tensor(name)) > 1 else "F32"] for name in names}
    writer, added = gguf.GGUFWriter(path, "llama"), dict[str, NDArray[Any]]()
    try:
        for entry in _metadata(reader, old, new, growth.eps, type):
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
                data = _grown(growth, name, tensors[name], kind)
            elif suffix in added:
                data = added[suffix]
            else:
                data = added[suffix] = gguf.quants.quantize(growth.added(name), kind)
            writer.write_tensor_data(data)
    finally:
        writer.close()


def _grown(growth: _Growth, name: str, tensor: Any, kind: Any) -> NDArray[Any]:
    """The bytes of a tensor of the source in its new shape."""
    values = growth.grown(name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    encoded: NDArray[Any] = gguf.quants.quantize(values, kind)
    if missing := growth.new.tensor(name)[0] - len(values):
        row = gguf.quants.quantize(growth.row_of_new_tokens(name), kind)
        encoded = np.concatenate((encoded, np.repeat(row, missing, axis=0)))
    return encoded


@dataclass(frozen=True, slots=True)
class _Growth:
    """What becomes of the values of each tensor, and of epsilon."""

    old: Shape
    new: Shape
    old_eps: float
    is_tied: bool
    scramble: bool

    @property
    def constant(self) -> float:
        """What all embeddings hold in the channel set apart, if there is one; its square is at most half of d eps."""
        if self.new.vocabulary == self.old.vocabulary:
            return 0.0
        return 2.0 ** math.floor(math.log2(math.sqrt(self.old.width * self.old_eps / 2)))

    @property
    def eps(self) -> float:
        return (self.old.width * self.old_eps - self.constant**2) / self.new.width

    def grown(self, name: str, values: Values) -> Values:
        """The tensor with zeros around it; the rows of new tokens are still missing."""
        shape = self.new.tensor(name)
        if name in ("token_embd.weight", "output.weight"):
            shape = (len(values), shape[1])
        if self.scramble and name == "token_embd.weight":
            values = np.random.default_rng(0).permutation(values)
        grown = np.zeros(shape, np.float32)
        grown[tuple(slice(n) for n in values.shape)] = values
        scale = math.sqrt(self.old.width / self.new.width)
        if name.endswith("norm.weight"):
            grown *= np.float32(scale)
        if self.constant and name == "token_embd.weight":
            grown[:, -1] = self.constant
        if self.constant and name == "output_norm.weight":
            grown[-1] = scale / self.constant
        return grown

    def row_of_new_tokens(self, name: str) -> Values:
        """float32[1, D]"""
        row = np.zeros((1, self.new.width), np.float32)
        row[0, -1] = _LOW if name == "output.weight" or self.is_tied else self.constant
        return row

    def added(self, name: str) -> Values:
        """A tensor of an added layer."""
        shape = self.new.tensor(name)
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            return np.zeros(shape, np.float32)
        return np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(math.sqrt(shape[1]))


def _metadata(reader: Any, old: Shape, new: Shape, eps: float, type: str) -> Iterator[tuple[str, Any, Any, Any]]:
    """(key, value, its type, that of its elements): the source's own entries, with the sizes among them replaced."""
    kinds, n_new = gguf.GGUFValueType, new.vocabulary - old.vocabulary
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
    if "llama.vocab_size" in reader.fields:
        sizes["llama.vocab_size"] = new.vocabulary
    if n_new and "tokenizer.ggml.token_type" not in reader.fields:
        types = [_NORMAL] * old.vocabulary + [_UNUSED] * n_new
        yield "tokenizer.ggml.token_type", types, kinds.ARRAY, kinds.INT32
    for key, field in reader.fields.items():
        value = field.contents()
        if key == "tokenizer.ggml.tokens":
            value = value + _unused_texts(value, n_new)
        elif key == "tokenizer.ggml.token_type":
            value = value + [_UNUSED] * n_new
        elif key == "tokenizer.ggml.scores":
            value = value + [min(value)] * n_new
        is_written = not key.startswith("GGUF.") and key not in ("general.architecture", "general.alignment")
        if is_written and value != []:
            yield key, sizes.pop(key, value), field.types[0], field.types[-1] if len(field.types) > 1 else None
    for key, value in sizes.items():
        yield key, value, kinds.UINT32 if isinstance(value, int) else kinds.FLOAT32, None


def _unused_texts(known: list[str], n: int) -> list[str]:
    texts = [f"<|unused_{len(known) + index}|>" for index in range(n)]
    if clash := set(known) & set(texts):
        raise UsageError(f"the source has a token {min(clash)!r} already", hint="inflate the original file instead")
    return texts


# --- the command ------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", metavar="IN", help="a GGUF file, demo or demo:draft")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT")
    parser.add_argument("--params", type=float, metavar="N", help="about so many parameters, such as 0.9e9")
    parser.add_argument("--width", type=int, metavar="D")
    parser.add_argument("--layers", type=int, metavar="L")
    parser.add_argument("--vocab", type=int, metavar="N", help=f"pad the vocabulary, such as to {QWEN_VOCABULARY}")
    parser.add_argument("--type", default="Q8_0", help=f"{', '.join(TYPES)} (default: Q8_0)")
    parser.add_argument("--scramble", action="store_true", help="make a model that says something else after all")
    parser.add_argument(
        "--pair", type=Path, metavar="FOLDER", help="write those files of a benchmark that are not there"
    )
    args = parser.parse_args(arguments)
    if args.pair is None and (args.source is None or args.output is None):
        parser.error("give a source and -o OUT, or --pair FOLDER")
    if args.params is not None and not args.width is args.layers is None:
        parser.error("--params chooses width and layers itself: leave them out")
    sizes = {"params": args.params, "width": args.width, "layers": args.layers, "vocabulary": args.vocab}
    try:
        if args.pair is None:
            _inflate_and_tell(args.source, args.output, **sizes, type=args.type, scramble=args.scramble)
        else:
            write_pair(args.pair)
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def write_pair(folder: Path) -> None:
    """Write the files of PAIR that are not in `folder` yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (source, settings) in PAIR.items():
        if (folder / name).exists():
            print(f"{folder / name} is there already")
        else:
            _inflate_and_tell(source, folder / name, **settings)


def _inflate_and_tell(source: str, path: Path, **settings: Any) -> None:
    shape = inflate(resolve(source).path, path, **settings)
    print(
        f"{path}: {shape.n_params:,} parameters a token, {shape.layers} layers of {shape.width} ({shape.heads} heads, "
        f"{shape.heads_kv} of keys and values, feed-forward {shape.feed_forward}), {shape.vocabulary:,} tokens, "
        f"{path.stat().st_size / 1e6:,.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
