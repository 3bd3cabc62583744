"""The ways to make one vector or score of the states of a text's tokens, as the header of a file describes them."""

from __future__ import annotations

from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import is_causal

MEAN, CLS, LAST, RANK = 1, 2, 3, 4  # llama.cpp's numbers
NAMES = {MEAN: "mean", CLS: "cls", LAST: "last", RANK: "rank"}
_HEAD = ("cls.weight", "cls.output.weight")


def pooling_of(header: Header) -> int:
    """Return the pooling of an embedding model or a reranker.

    If the file names none, it is a score for models with a classification head. For others it is the last token if
    attention is causal, or else the mean.
    """
    given = header.number("pooling_type")
    return given if given in NAMES else RANK if has_head(header) else LAST if is_causal(header) else MEAN


def has_head(header: Header) -> bool:
    """Return whether a model has the classification head of a reranker."""
    return any(name in header.tensors for name in _HEAD)


def reads_whole(header: Header) -> bool:
    """Return whether a text must be read in one pass."""
    return not is_causal(header) or pooling_of(header) in (MEAN, CLS)
