"""Does llama.cpp compute the head in a file as PyTorch does?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.features import HEAD_BATCH
from edgespec.errors import EdgespecError
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.context import Context
from edgespec.llama.head_context import HeadContext
from edgespec.llama.model import Model
from edgespec.training.batches import Texts
from edgespec.training.eagle3 import Eagle3, logits, unroll
from edgespec.training.export import read_head

HEAD_SIZES = {"n_ctx": HEAD_BATCH, "n_batch": HEAD_BATCH, "max_outputs": HEAD_BATCH}
MOST_DIFFERENCE = 0.1  # of the standard deviation of logits: activations are rounded where weights are


def check_head(path: Path, shape: Eagle3, vocabulary: NDArray[np.int64], model: Model, tokens: Sequence[int]) -> float:
    """How far apart the logits of the two are on a text of 4 to 64 tokens, as a share of their standard deviation.

    Raises EdgespecError if that is too much, ModelFileError where llama.cpp does not load the file.
    """
    n = len(tokens)
    with (
        Context(model, n_ctx=n + 8, max_outputs=n, threads=1) as target,
        Model(path) as loaded,
        HeadContext(loaded, target, threads=1, **HEAD_SIZES) as head,
    ):
        target.watch_layers(head.reads)
        target.decode(tokens, range(n), [(0,)] * n, [True] * n)
        features = np.concatenate([target.layer_inputs(layer) for layer in head.reads], axis=1)
        batch = Batch.empty()
        batch.add(tokens[1 : n - 1], 0, (0,), wanted=True)
        head.decode_pairs(batch, head.encode(features[: n - 2]))
        rows, state = [head.logits(index)[vocabulary] for index in range(n - 2)], head.state(n - 3)
        head.decode_pairs(Batch([tokens[n - 1]], [n - 2], [(0,)], [True]), state[None])
        found = np.stack([*rows, head.logits(0)[vocabulary]])
    wanted = _computed(path, shape, model, tokens, features)
    difference = float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())
    if not difference <= MOST_DIFFERENCE:
        raise EdgespecError(f"{path} does not compute in llama.cpp what was trained", why=f"off by {difference:.0%}")
    return difference


def _computed(
    path: Path, shape: Eagle3, model: Model, tokens: Sequence[int], features: NDArray[np.float32]
) -> NDArray[np.float32]:
    n, weights = len(tokens), read_head(path, shape)
    embedding = torch.from_numpy(read_rows(model.header, "token_embd.weight"))
    texts = Texts(
        inputs=torch.from_numpy(features)[None],
        tokens=torch.tensor(tokens)[None],
        start=torch.tensor([0]),
        anchors=torch.tensor([n - 2]),
    )
    with torch.no_grad():
        first, second = (logits(weights, shape, state)[0] for state in unroll(weights, shape, embedding, texts, 2))
    found: NDArray[np.float32] = torch.cat([first, second[-1:]]).numpy()
    return found
