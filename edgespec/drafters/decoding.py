"""The decoding contexts of drafters with weights, as protocols: `edgespec/llama/` implements them, and drafters do not
import it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.sampling import FloatRow


class DraftModel(Protocol):
    """The weights of a draft model or head."""

    n_vocab: int

    @property
    def n_embd(self) -> int: ...

    def is_end(self, token: int) -> bool: ...


class DecodingContext(Protocol):
    """The KV cache of a draft model; `llama/context.py` describes the methods."""

    n_ctx: int
    n_batch: int
    max_outputs: int
    sequences: int
    fingerprint: dict[str, object]

    @property
    def model(self) -> DraftModel: ...

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequence_ids: Sequence[tuple[int, ...]],
        wanted: Sequence[bool],
    ) -> None: ...

    def decode_filler(self, start: int, wanted: Sequence[bool]) -> None: ...

    def logits(self, index: int) -> FloatRow: ...

    def length(self, sequence: int) -> int: ...

    def truncate(self, sequence: int, length: int) -> bool: ...

    def forget(self, sequence: int) -> None: ...

    def fork(self, source: int, length: int) -> int: ...

    def adopt(self, sequence: int, branch: int, start: int, end: int) -> None: ...

    def release(self, branches: Iterable[int]) -> None: ...


class HeadDecodingContext(DecodingContext, Protocol):
    """The KV cache of a draft head; `llama/head_context.py` describes the methods."""

    reads: tuple[int, ...]

    @property
    def target(self) -> DraftModel: ...

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]: ...

    def decode_pairs(self, batch: Batch, tokens_states: NDArray[np.float32]) -> None: ...

    def state(self, index: int) -> NDArray[np.float32]: ...
