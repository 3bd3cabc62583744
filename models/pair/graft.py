"""Put the MTP block of a base model into a fine-tune of it that was trained or converted without the block.

The block reads the output of the last layer and the token embeddings, which a fine-tune changes little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from edgespec.errors import PairError
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.head_check import mtp_mismatch
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import is_same_target, target_print
from edgespec.gguf_file.writing import Entry, open_file, write_file

_BY_TOKEN = ("token_embd.weight", "output.weight")  # a fine-tune may have more tokens


def graft(base: Header, tuned: Header, out: Path, progress: Callable[[float], None] = lambda done: None) -> None:
    """Write the model `tuned` with the MTP block of `base`.

    Raises PairError, UsageError, and EdgespecError if the file cannot be written.
    """
    if why := _mismatch(base, tuned):
        raise PairError(f"{tuned.path.name} cannot get the MTP block of {base.path.name}", why=why)
    check_destination(out, [*base.files, *tuned.files], b"GGUF")
    entries, tensors = open_file(tuned)
    base_entries, base_tensors = open_file(base)
    added = {name: tensor for name, tensor in base_tensors.items() if _is_in_block(base, name)}
    write_file(out, tuned.architecture, _metadata(entries, base_entries, tuned, base), tensors | added, progress)


def _depth(header: Header) -> int:
    """Return the number of layers, without those of MTP blocks."""
    return header.number("block_count") - header.number("nextn_predict_layers")


def _is_in_block(header: Header, name: str) -> bool:
    kind, _, rest = name.partition(".")
    return kind == "blk" and int(rest.partition(".")[0]) >= _depth(header)


def _mismatch(base: Header, tuned: Header) -> str:
    """Return why the block of `base` does not fit `tuned`; empty if it does."""
    if why := mtp_mismatch(base):
        return why
    if base.architecture != tuned.architecture:
        return f"one is a {base.architecture} model, the other a {tuned.architecture} model"
    if any(_is_in_block(tuned, name) for name in tuned.tensors):
        return "it has a block of its own"
    if _depth(base) != _depth(tuned):
        return f"one has {_depth(base)} layers, the other {_depth(tuned)}"
    for name, tensor in base.tensors.items():
        found = tuned.tensors.get(name)
        wanted = tensor.shape
        if _is_in_block(base, name):
            is_by_token = name.endswith(("nextn.embed_tokens.weight", "nextn.shared_head_head.weight"))
            if is_by_token and wanted[1] != tuned.n_vocab:
                return f"the block has {wanted[1]:,} tokens, the fine-tune {tuned.n_vocab:,}"
        elif found is not None and found.shape != wanted and (name not in _BY_TOKEN or found.shape[0] != wanted[0]):
            return f"{name} has the shape {found.shape} instead of {wanted}"
        elif found is None and name != "output.weight":
            return f"it has no {name}"
    n_vocab = min(base.n_vocab, tuned.n_vocab)
    if not is_same_target(target_print(base, n_vocab), target_print(tuned, n_vocab)):
        return "their token embeddings are not alike, so it is no fine-tune of this model"
    return ""


def _metadata(entries: Iterable[Entry], base_entries: Iterable[Entry], tuned: Header, base: Header) -> Iterator[Entry]:
    """Yield the entries of the fine-tune; those that count layers, and that describe the block, are the base's."""
    arch, depth = tuned.architecture, _depth(tuned)
    known = {name: (value, kind, element) for name, value, kind, element in base_entries}
    counts = (f"{arch}.block_count", f"{arch}.nextn_predict_layers")
    for name, value, kind, element in entries:
        if name in counts:
            continue
        if element is not None and name.startswith(f"{arch}.") and len(value) == depth and name in known:
            value = [*value, *known[name][0][depth:]]
        yield Entry(name, value, kind, element)
    for name in counts:
        yield Entry(name, *known[name])
