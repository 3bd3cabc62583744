"""A draft with fewer tokens, so that a pass of it multiplies by fewer rows of the output (VocabTrim, arXiv 2506.22694).

A smaller draft model is a complete model: its embeddings, output and tokenizer keep the same tokens. Drafting
translates between the vocabularies as it does for every draft that has another one (`drafters/translation.py`): a token
of the text that was left out is read as several that were kept.

A smaller draft head still reads all tokens. Its output has fewer rows, and a list (`d2t`) says which tokens they are.
Many published heads have no output matrix; then the rows are those of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters.heads import HEADS
from edgespec.drafters.translation import LEAST_OVERLAP
from edgespec.errors import UsageError
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.head_check import (
    DFLASH,
    EAGLE3,
    LATTICE,
    check_head_fits,
    kind_of_head,
    n_draft_tokens,
    read_ids,
)
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.writing import Entry, Stored, open_file, stored_ids, write_file
from edgespec.models.pair.vocabulary import Vocabulary

_TOKENIZERS = ("gpt2", "llama", "gemma4")  # the others have no merges or scores that can be left out
_NORMAL, _UNUSED = 1, 5
_BY_TOKEN = ("token_embd.weight", "output.weight", "output.bias", "per_layer_token_embd.weight")
_LISTS = ("tokens", "scores", "token_type")

Ids = NDArray[np.int64]


def trim(
    draft: Header,
    target: Header,
    out: Path,
    n_tokens: int,
    counts: Ids,
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Write the model `draft` with `n_tokens` tokens.

    Kept are the tokens without which not every text can be spelled, and then those with the highest `counts`, int64[V]
    by the target's ids; among equals those with the lowest ids, which were merged first. Raises UsageError,
    ModelFileError, and EdgespecError if the file cannot be written.
    """
    model = str(draft.metadata.get("tokenizer.ggml.model", ""))
    if model not in _TOKENIZERS:
        raise UsageError(f"{draft.path.name} cannot be trimmed", why=f"its tokenizer is {model!r}, not BPE")
    least = int(LEAST_OVERLAP * target.n_vocab) + 1
    if not least <= n_tokens < draft.n_vocab:
        raise UsageError(
            f"{draft.path.name} cannot be trimmed to {n_tokens:,} tokens",
            why=f"it has {draft.n_vocab:,}, and a draft for {target.path.name} needs {least:,}",
        )
    check_destination(out, draft.files, b"GGUF")
    kept = _kept(Vocabulary.of(draft), n_tokens, _in_draft(counts, Vocabulary.of(target), Vocabulary.of(draft)))
    entries, tensors = open_file(draft)
    rows = {name: (tensor[0][kept], tensor[1]) for name, tensor in tensors.items() if name in _BY_TOKEN}
    write_file(out, draft.architecture, _metadata(entries, draft, kept), tensors | rows, progress)


def trim_head(
    head: Header,
    target: Header,
    out: Path,
    n_tokens: int,
    counts: Ids,
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Write a draft head that drafts `n_tokens` tokens: those with the highest `counts`, int64[V], and among equals
    those with the lowest ids.

    Raises UsageError, ModelFileError, PairError, and EdgespecError if the file cannot be written.
    """
    if head.architecture not in (EAGLE3, DFLASH) or LATTICE in head.tensors:
        why = "only EAGLE-3, DFlash and DSpark heads can be"
        raise UsageError(f"{head.path.name} cannot be trimmed", why=why)
    check_head_fits(target, head)
    if not 0 < n_tokens < n_draft_tokens(head):
        raise UsageError(
            f"{head.path.name} cannot be trimmed to {n_tokens:,} tokens",
            why=f"it drafts {n_draft_tokens(head):,}",
            hint="use fewer --tokens",
        )
    check_destination(out, [*head.files, *target.files], b"GGUF")
    ids = read_ids(head) if "d2t" in head.tensors else np.arange(n_draft_tokens(head))
    kept = np.sort(np.lexsort((ids, -counts[ids]))[:n_tokens])
    entries, tensors = open_file(head)
    own = tensors | {"output.weight": _output(head, target, tensors)}
    rows = {name: own[name] for name in HEADS[kind_of_head(head)].by_draft_token if name in own}
    trimmed = {name: (values[kept], kind) for name, (values, kind) in rows.items()} | {"d2t": stored_ids(ids[kept])}
    write_file(out, head.architecture, entries, tensors | trimmed, progress)


def _output(head: Header, target: Header, tensors: Mapping[str, Stored]) -> Stored:
    """Return the output of a head, which may be its embeddings or the target's output, as llama.cpp chooses it."""
    if "output.weight" in tensors:
        return tensors["output.weight"]
    if head.architecture == DFLASH and "token_embd.weight" in tensors:
        return tensors["token_embd.weight"]
    theirs = open_file(target)[1]
    if "output.scale" in theirs:
        raise UsageError(f"{head.path.name} cannot be trimmed", why="the output of its target has a separate scale")
    return theirs.get("output.weight", theirs["token_embd.weight"])


def _in_draft(counts: Ids, target: Vocabulary, draft: Vocabulary) -> Ids:
    """Return the counts by the draft's ids, of the tokens that both have."""
    theirs = {piece: id for id, piece in enumerate(draft.pieces()) if piece}
    found = np.zeros(len(draft.texts), np.int64)
    pieces = target.pieces()
    for id in np.flatnonzero(counts):
        if pieces[id] in theirs:
            found[theirs[pieces[id]]] += counts[id]
    return found


def _kept(vocabulary: Vocabulary, n_tokens: int, counts: Ids) -> Ids:
    """Return the ids of the tokens to keep, in their order. Raises UsageError if more are needed."""
    n_vocab = len(vocabulary.texts)
    types = vocabulary.types if len(vocabulary.types) else np.full(n_vocab, _NORMAL)
    is_byte = np.array([len(piece) == 1 for piece in vocabulary.pieces()])
    is_needed = is_byte | ~np.isin(types, (_NORMAL, _UNUSED))
    if is_needed.sum() > n_tokens:
        raise UsageError(f"{n_tokens:,} tokens are too few", why=f"{is_needed.sum():,} are needed to spell every text")
    order = np.lexsort((np.arange(n_vocab), -counts, types == _UNUSED, ~is_needed))
    kept: Ids = np.sort(order[:n_tokens])
    return kept


def _metadata(entries: Iterable[Entry], draft: Header, kept: Ids) -> Iterator[Entry]:
    """Yield the entries of the smaller vocabulary."""
    new = {int(old): id for id, old in enumerate(kept)}
    prefix = "tokenizer.ggml."
    texts = {text.decode("utf-8", "replace") for text in map(draft.strings(f"{prefix}tokens").__getitem__, kept)}
    for name, value, kind, element in entries:
        key = name.removeprefix(prefix)
        if key in _LISTS:
            value = [value[id] for id in kept]
        elif key == "merges":
            value = [merge for merge in value if _is_within(merge, texts)]
        elif key.endswith("token_id"):
            if value not in new:
                continue
            value = new[value]
        elif key.endswith("token_ids"):
            value = [new[id] for id in value if id in new]
        elif name == f"{draft.architecture}.vocab_size":
            value = len(kept)
        yield Entry(name, value, kind, element)


def _is_within(merge: str, texts: set[str]) -> bool:
    """Return whether both parts of a merge and its result are kept: llama.cpp would spell another result in bytes."""
    first, _, second = merge.partition(" ")
    return first in texts and second in texts and first + second in texts
