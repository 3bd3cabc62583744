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


class StatesContext(DecodingContext, Protocol):
    """The KV cache of a head that reads the target's states."""

    reads: tuple[int, ...]

    @property
    def target(self) -> DraftModel: ...


class HeadDecodingContext(StatesContext, Protocol):
    """The KV cache of a draft head; `llama/head_context.py` describes the methods."""

    blocks: int

    def use_block(self, block: int) -> None: ...

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]: ...

    def decode_pairs(self, batch: Batch, tokens_states: NDArray[np.float32]) -> None: ...

    def state(self, index: int) -> NDArray[np.float32]: ...

    def cover(self, tokens: Iterable[int]) -> None: ...


class DraftBlock(Protocol):
    """The draft of a block drafter after one text; `llama/block_context.py` describes the methods."""

    n: int

    def row(self, path: Sequence[int]) -> FloatRow: ...

    def confidence(self, depth: int) -> float | None: ...


class OnePassContext(StatesContext, Protocol):
    """The KV cache of a head that drafts up to `longest` tokens in one pass."""

    longest: int


class ParallelDecodingContext(OnePassContext, HeadDecodingContext, Protocol):
    """The KV cache of a P-EAGLE head; `llama/eagle_context.py` describes the methods."""

    def draft(
        self, batch: Batch, tokens_states: NDArray[np.float32], lengths: Sequence[int]
    ) -> Sequence[DraftBlock]: ...


class BlockDecodingContext(OnePassContext, Protocol):
    """The KV cache of a block drafter; `llama/block_context.py` describes the methods."""

    def read_states(self, batch: Batch, features: NDArray[np.float32]) -> None: ...

    def draft(self, lasts: Sequence[tuple[int, int, int]], n: int) -> Sequence[DraftBlock]: ...
