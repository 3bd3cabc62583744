"""Does llama.cpp compute the head in a file as PyTorch does?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.core.features import HEAD_BATCH
from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.batch import Batch
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
    layers = [int(layer) for layer in read_header(path).numbers("eagle3.target_layers")]
    n = len(tokens)
    with Context(model, n_ctx=n + 8, max_outputs=n, threads=1) as context:
        context.watch_layers(layers)
        context.decode(tokens, range(n), [(0,)] * n, [False] * (n - 1) + [True])
        inputs = np.concatenate([context.layer_inputs(layer) for layer in layers], axis=1)
        with Model(path) as drafting, HeadContext(drafting, context, threads=1, **HEAD_SIZES) as head:
            batch = Batch.empty()
            batch.add(tokens[1 : n - 1], 0, (0,), wanted=True)
            head.decode_pairs(batch, head.encode(inputs[: n - 2]))
            rows = [head.logits(index)[vocabulary] for index in range(batch.size)]
            head.decode_pairs(Batch([tokens[n - 1]], [n - 2], [(0,)], [True]), head.state(batch.size - 1)[None])
            rows.append(head.logits(0)[vocabulary])
    found = np.stack(rows)
    wanted = _computed(path, shape, model, tokens, inputs)
    difference = float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())
    if not difference <= MOST_DIFFERENCE:
        raise EdgespecError(f"{path} does not compute in llama.cpp what was trained", why=f"off by {difference:.0%}")
    return difference


def _computed(
    path: Path, shape: Eagle3, model: Model, tokens: Sequence[int], inputs: NDArray[np.float32]
) -> NDArray[np.float32]:
    n, weights = len(tokens), read_head(path, shape)
    embedding = torch.from_numpy(read_rows(model.header, "token_embd.weight"))
    texts = Texts(
        inputs=torch.from_numpy(inputs)[None],
        tokens=torch.tensor(tokens)[None],
        start=torch.tensor([0]),
        anchors=torch.tensor([n - 2]),
    )
    with torch.no_grad():
        first, second = (logits(weights, shape, state)[0] for state in unroll(weights, shape, embedding, texts, 2))
    found: NDArray[np.float32] = torch.cat([first, second[-1:]]).numpy()
    return found
