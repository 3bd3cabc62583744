"""Which hidden states of the target draft heads read, and how much at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEAD_BATCH = 64
"""Tokens of a head's pass, unless more sequences share it. All are outputs, with a row of logits each."""
MOST_UNREAD = 2**29
"""Bytes of hidden states kept until a head reads them, of all sequences together."""
MOST_EMBEDDINGS = 4096
"""Tokens whose target embedding a Hydra head keeps as float32."""
TRIMMED_ROWS = 2**15
"""Tokens that an MTP block on the CPU can draft, if the vocabulary has at least twice as many; those of the text are
added."""
# A head names the layers whose inputs it reads. These names are used in place of a layer's number:
LAST_OUTPUT = -1
"""The state that an MTP block or the assistant of a Gemma 4 reads: the output of the last layer, in most models after
the final norm."""
FINAL_STATE = -2
"""The output of the final norm. Available from all models, in passes in which every token has a row of logits."""


def rms_normed(states: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    """Return states, float32[..., D], divided by their root mean square."""
    scales = 1 / np.sqrt(np.mean(states**2, axis=-1, keepdims=True) + epsilon)
    normed: NDArray[np.float32] = (states * scales).astype(np.float32)
    return normed
