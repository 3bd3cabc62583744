"""The beginning of a prompt that a KV cache holds already."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Reuse = Literal["nothing", "running", "prompts", "answers"]
"""The part of the cache that a prompt may use: nothing; prompts of running sequences; those of finished sequences, too;
also generated tokens, which is how a chat continues."""

Read = tuple[int, int]
"""A prompt, or the end of one, that was read at once: from where to where."""

State = NDArray[np.uint8]
"""What `Context.save` gives."""


class Prefix(NamedTuple):
    """The first `length` tokens of a prompt, which a cache holds; `reads` are those of the whole prompt then."""

    length: int
    reads: list[Read]
