"""A training job: its settings, its progress and its result. Nothing here needs PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.cancel import CancelFlag

NGRAM = "ngram"  # not a head, but a table for token recycling
SHAPES = {  # what is trained of each kind: a class in a module of this room
    "eagle3": "eagle3.Eagle3", "eagle1": "eagle3.Eagle1", "dspark": "dflash.DSpark", "dflash": "dflash.DFlash",
    "hydra": "heads.Hydra", "medusa": "heads.Medusa",
}  # fmt: skip
KINDS = (*SHAPES, NGRAM)
TOKENS, TOKENS_OF_TABLE = 500_000, 200_000
TYPES = ("F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
LICENCE = "apache-2.0"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a training job."""

    target: Path
    #: The head's file.
    out: Path
    #: One of `KINDS`.
    kind: str = "eagle3"
    #: Training time, without the time that the answers take.
    minutes: float = 60.0
    #: Tokens of answers to learn from.
    tokens: int = TOKENS
    #: The number of tokens that the head can draft.
    vocabulary: int = 8192
    #: The longest draft of a DFlash or DSpark head.
    block: int = 4
    #: Type of the weights in the file, one of `TYPES`.
    type: str = "Q8_0"
    #: Folder for answers and checkpoints; None: a folder in the cache.
    work: Path | None = None
    #: Files with the user's own prompts or texts.
    prompts: Sequence[Path] = ()
    #: CPU threads; 0: PyTorch's and llama.cpp's defaults.
    threads: int = 0
    seed: int = 0


@dataclass(slots=True)
class Acceptance:
    """The shares of a head's drafts that the target accepts, by position in a draft, measured on held-out answers."""

    #: Share of greedy drafts whose first k tokens all are the target's own choices.
    greedy: list[float] = field(default_factory=list)
    #: Chance that token k is accepted at temperature 0.8 if the tokens before it were.
    sampled: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(f"{share:.2f}" for share in self.greedy)


@dataclass(slots=True)
class Progress:
    """The state of a training run."""

    step: int = 0
    epoch: float = 0.0
    elapsed_s: float = 0.0
    tokens: int = 0
    #: Running mean in nats.
    loss: float = math.nan
    #: The latest measurement.
    acceptance: Acceptance = field(default_factory=Acceptance)


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head that was written, and the answers that it learned from."""

    size_bytes: int
    answers: int
    tokens: int
    progress: Progress


@dataclass(slots=True)
class Listener:
    """Callbacks for the progress of a job, and the flag that cancels it."""

    #: Called once per message.
    note: Callable[[str], None] = lambda text: None
    #: Called with the name of a stage and the fraction that is done, 0 to 1.
    progress: Callable[[str, float], None] = lambda what, done: None
    #: Called with the state of the training.
    training: Callable[[Progress], None] = lambda progress: None
    cancel: CancelFlag = field(default_factory=CancelFlag)
