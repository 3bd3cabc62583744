"""The cached beginning of a prompt."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Reuse = Literal["nothing", "running", "prompts", "answers"]
"""The cached tokens that a prompt may use. "nothing"; "running": prompts of running sequences; "prompts": those of
finished sequences too; "answers": also generated tokens, so that a chat continues where it ended."""

Read = tuple[int, int]
"""The start and the end of a prompt, or of the end of one, that was read at once."""

State = NDArray[np.uint8]
"""The memory of a sequence, as `Context.save` returns it."""


class Prefix(NamedTuple):
    """The first `length` tokens of a prompt, which are cached. `reads` are the reads of the whole prompt, the rest
    included."""

    length: int
    reads: list[Read]
