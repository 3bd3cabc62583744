"""Plain data that says what to load and what to generate; every default of the program stands here once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgespec.core.sampling import SamplingSettings

Offload = int | Literal["auto", "all"]
SpecType = Literal["none", "draft"]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Which models to load, and how they are to be held in memory.

    `draft_model` None means the draft that comes with the model, if one does (the bundled target has one).
    Zero stands for "choose for me": `ctx_size` (tokens), `threads`.
    """

    model: str
    draft_model: str | None = None
    spec_type: SpecType = "draft"
    spec_draft_n_max: int = 3
    ctx_size: int = 0
    threads: int = 0
    threads_batch: int = 0
    gpu_layers: Offload = "auto"
    gpu_layers_draft: Offload = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    sequences: int = 1


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate: a prompt to go on from as it stands, or the messages of a chat.

    `max_tokens` -1 means until the model stops or the context is full. `logprobs` is how many alternatives to report
    beside each token's own log-probability; None reports nothing. `special` lets control tokens written in the prompt
    text stand for themselves. `sample` tells samples of one prompt and seed apart.
    """

    prompt: str = ""
    messages: tuple[Message, ...] = ()
    max_tokens: int = -1
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    seed: int = 0
    sample: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    special: bool = False
    ignore_eos: bool = False
