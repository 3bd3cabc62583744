"""Batches of answers for PyTorch: answers of similar lengths together, so that little of a batch is padding."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.training.features import AnswerSpan, Features, TrainingRow

FEWEST_ANSWER = 8  # tokens


@dataclass(slots=True)
class Batch:
    """B texts, padded at the end to L tokens, with at most A anchors each: cells at which a draft may begin.

    A draft has at most `depth` tokens. N = A + depth - 1 is the number of cells that drafts reach.
    """

    #: float[B, L, 3 D]
    inputs: Tensor
    #: int64[B, L]
    tokens: Tensor
    #: int64[B], the first anchor of each text, and their number.
    start: Tensor
    anchors: Tensor
    #: float[B, N + 1, D], the target's final states, the first one at the first anchor.
    hidden: Tensor
    #: float[B, N, 2] and int64[B, N], from the cell after the first anchor on.
    normalisers: Tensor
    best: Tensor
    #: bool[depth, B, A]: False if the draft token lies beyond the end of the text.
    is_text: Tensor

    @property
    def n_anchors(self) -> int:
        return int(self.anchors.sum())

    def to(self, device: str) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


def vocabulary_of(rows: Sequence[TrainingRow], size: int, n_vocab: int) -> NDArray[np.int64]:
    """Return the `size` ids that the target writes most often, in ascending order, filled up with the lowest others."""
    counts = Counter(token for row in rows if not row.is_held_out for token in row.answer)
    ids = sorted(range(n_vocab), key=lambda token: (-counts[token], token))
    return np.array(sorted(ids[:size]), np.int64)


def batches(
    features: Features, documents: Sequence[AnswerSpan], n_tokens: int, depth: int, seed: int | None = None
) -> Iterator[Batch]:
    """Yield all documents in batches of about `n_tokens` anchors; shuffled if there is a `seed`, else by length."""
    usable = [document for document in documents if document.n_anchors >= FEWEST_ANSWER]
    chance = random.Random(seed)
    noise = {id(document): chance.uniform(0.8, 1.25) if seed is not None else 1.0 for document in usable}
    usable.sort(key=lambda document: document.n_anchors * noise[id(document)])
    groups: list[list[AnswerSpan]] = [[]]
    for document in usable:
        widest = max(member.n_anchors for member in [document, *groups[-1]])
        if groups[-1] and widest * (len(groups[-1]) + 1) > n_tokens:
            groups.append([])
        groups[-1].append(document)
    if seed is not None:
        chance.shuffle(groups)
    for group in filter(None, groups):
        yield make_batch(features, group, depth)


def make_batch(features: Features, documents: Sequence[AnswerSpan], depth: int) -> Batch:
    """Return one batch of these documents, on the CPU."""
    anchors = torch.tensor([document.n_anchors for document in documents])
    most, longest = int(anchors.max()), max(document.length for document in documents)
    after = most + depth - 1

    def padded(array: NDArray[np.generic], length: int, skip: int | None = None) -> Tensor:
        """The rows of all documents; with `skip`, only those from `skip` cells after the first anchor."""
        out = np.zeros((len(documents), length, *array.shape[1:]), array.dtype)
        for index, document in enumerate(documents):
            first = 0 if skip is None else document.n_prompt - 1 + skip
            part = array[document.start + first : document.start + document.length][:length]
            out[index, : len(part)] = part
        return torch.from_numpy(out)

    return Batch(
        inputs=padded(features.inputs, longest).float(),
        tokens=padded(features.tokens, longest).long(),
        start=torch.tensor([document.n_prompt - 1 for document in documents]),
        anchors=anchors,
        hidden=padded(features.hidden, after + 1, 0).float(),
        normalisers=padded(features.normalisers, after, 1),
        best=padded(features.best, after, 1).long(),
        is_text=(torch.arange(most) + torch.arange(depth)[:, None])[:, None] < anchors[None, :, None],
    )
