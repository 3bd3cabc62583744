"""The kept features as batches for PyTorch: answers of like lengths together, so that little of a batch is padding."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.training.features import Document, Features, Row

FEWEST_ANSWER = 8  # tokens


@dataclass(slots=True)
class Texts:
    """A batch. `inputs` float[B, L, 3 D] and `tokens` int64[B, L] are padded at the end; the anchors of text b, cells
    where a draft may begin, are those from `start[b]` on, `anchors[b]` of them."""

    inputs: Tensor
    tokens: Tensor
    start: Tensor
    anchors: Tensor


@dataclass(slots=True)
class Batch:
    """Texts with what the target says at the cell after each anchor and the `depth - 1` that follow: normalisers at
    temperatures 1 and .8 [B, A + depth - 1, 2], and its own choices int64[B, A + depth - 1]. Its final states
    `hidden` [B, A + depth, D] begin at the anchors themselves. `is_text` bool[depth, B, A]: whose step is judged."""

    texts: Texts
    hidden: Tensor
    normalisers: Tensor
    best: Tensor
    is_text: Tensor

    @property
    def n_anchors(self) -> int:
        return int(self.texts.anchors.sum())


def vocabulary_of(rows: Sequence[Row], size: int, n_vocab: int) -> NDArray[np.int64]:
    """The ids that the target writes most often, ascending; the lowest ids where it writes fewer than `size`."""
    counts = Counter(token for row in rows if not row.is_held_out for token in row.answer)
    frequent = [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][:size]
    known = set(frequent)
    filling = (token for token in range(n_vocab) if token not in known)
    frequent += [token for token, _ in zip(filling, range(size - len(frequent)), strict=False)]
    return np.array(sorted(frequent), np.int64)


def anchors_of(document: Document) -> int:
    """Cells from which the token after next is part of the answer; the first one is that of the last prompt token."""
    return document.length - document.n_prompt - 1


def batches(
    features: Features, documents: Sequence[Document], n_tokens: int, depth: int, seed: int | None = None
) -> Iterator[Batch]:
    """The documents once, in batches of about `n_tokens` anchors; shuffled by `seed`, with None in order of length."""
    usable = [document for document in documents if anchors_of(document) >= FEWEST_ANSWER]
    drawn = random.Random(seed)
    noise = {id(document): drawn.uniform(0.8, 1.25) if seed is not None else 1.0 for document in usable}
    usable.sort(key=lambda document: anchors_of(document) * noise[id(document)])
    groups: list[list[Document]] = [[]]
    for document in usable:
        widest = max([anchors_of(document), *map(anchors_of, groups[-1])])
        if groups[-1] and widest * (len(groups[-1]) + 1) > n_tokens:
            groups.append([])
        groups[-1].append(document)
    if seed is not None:
        drawn.shuffle(groups)
    for group in groups:
        if group:
            yield make_batch(features, group, depth)


def make_batch(features: Features, documents: Sequence[Document], depth: int) -> Batch:
    """One batch of these documents, on the CPU."""
    n_anchors = [anchors_of(document) for document in documents]
    most, longest = max(n_anchors), max(document.length for document in documents)
    after = most + depth - 1

    def padded(array: NDArray[np.generic], length: int, skip: int = 0, prompt: bool = True) -> Tensor:
        out = np.zeros((len(documents), length, *array.shape[1:]), array.dtype)
        for index, document in enumerate(documents):
            start = document.start if prompt else document.start + document.n_prompt - 1
            part = array[start + skip : document.start + document.length][:length]
            out[index, : len(part)] = part
        return torch.from_numpy(out)

    texts = Texts(
        inputs=padded(features.inputs, longest).float(),
        tokens=padded(features.tokens, longest).long(),
        start=torch.tensor([document.n_prompt - 1 for document in documents]),
        anchors=torch.tensor(n_anchors),
    )
    place = torch.arange(most)[None, None] + torch.arange(depth)[:, None, None]
    return Batch(
        texts,
        hidden=padded(features.hidden, after + 1, prompt=False).float(),
        normalisers=padded(features.normalisers, after, 1, prompt=False),
        best=padded(features.best, after, 1, prompt=False).long(),
        is_text=place < torch.tensor(n_anchors)[None, :, None],
    )


def to_device(batch: Batch, device: str) -> Batch:
    """The same batch on another device."""
    texts = Texts(*(getattr(batch.texts, name).to(device) for name in Texts.__slots__))
    rest = (getattr(batch, name).to(device) for name in ("hidden", "normalisers", "best", "is_text"))
    return Batch(texts, *rest)
