"""The parameters of a decoding context."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.settings import Switch


@dataclass(slots=True, frozen=True, kw_only=True)
class ContextParams:
    """The size and the computation of a context. `models.memory.estimate.MemoryPlan` adds the place of the model."""

    #: The tokens of each sequence.
    n_ctx: int
    sequences: int = 1
    #: The most rows that one decode of drafts may ask for.
    max_outputs: int = 1
    #: The most rows of a decode that scores a prompt.
    n_scored: int = 0
    #: The most tokens of a decode.
    n_batch: int = 512
    #: The threads of narrow and of wide passes; 0: as many as the machine has cores, and as many as in narrow ones.
    threads: int = 0
    threads_batch: int = 0
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: Switch = "auto"
    #: Further sequences for trees.
    branches: int = 0
    #: Tokens that have room in addition to `n_ctx` for each sequence.
    scratch: int = 0
    #: The tokens of a decode that a recurrent model should be able to remove again.
    rollback: int = 0
    #: True if passes must give each token the logits of a single-token pass (`kernels`).
    exact: bool = False
    #: True if each sequence has a separate cache; then there are no branches.
    streams: bool = False
    #: The pooling of a context for texts (`PooledContext`); None: a context for answers.
    pooling: int | None = None
