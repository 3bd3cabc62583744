"""Plain data that says what to load and what to generate; every default of the program stands here once."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Literal, get_args

from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError

Offload = int | Literal["auto", "all"]
SpecType = Literal["none", "draft"]

MAX_THREADS = 512
MAX_SEQUENCES = 256
MAX_DRAFT = 64


@dataclass(frozen=True, slots=True)
class CacheType:
    """How numbers of a KV cache are stored: ggml's number of the type, values per block, bytes per block."""

    ggml_type: int
    block: int
    block_bytes: int


CACHE_TYPES = {
    "f32": CacheType(0, 1, 4),
    "f16": CacheType(1, 1, 2),
    "bf16": CacheType(30, 1, 2),
    "q8_0": CacheType(8, 32, 34),
    "q5_1": CacheType(7, 32, 24),
    "q5_0": CacheType(6, 32, 22),
    "q4_1": CacheType(3, 32, 20),
    "q4_0": CacheType(2, 32, 18),
    "iq4_nl": CacheType(20, 32, 18),
}


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


def check_load_settings(settings: LoadSettings) -> None:
    """Refuse what cannot be meant before anything is loaded. Raises UsageError."""
    for name, least, most in (
        ("spec_draft_n_max", 0, MAX_DRAFT),
        ("ctx_size", 0, 2**31 - 1),
        ("threads", 0, MAX_THREADS),
        ("threads_batch", 0, MAX_THREADS),
        ("sequences", 1, MAX_SEQUENCES),
    ):
        _check_integer(name, getattr(settings, name), least, most)
    for name, choices in (
        ("spec_type", get_args(SpecType)),
        ("flash_attention", ("auto", "on", "off")),
        ("cache_type_k", tuple(CACHE_TYPES)),
        ("cache_type_v", tuple(CACHE_TYPES)),
    ):
        if getattr(settings, name) not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}, not {getattr(settings, name)!r}")
    for name in ("gpu_layers", "gpu_layers_draft"):
        if getattr(settings, name) not in ("auto", "all"):
            _check_integer(name, getattr(settings, name), 0, 2**31 - 1)


def check_request(request: Request, n_vocab: int) -> None:
    """Refuse what cannot be meant before anything is generated. Raises UsageError."""
    _check_integer("max_tokens", request.max_tokens, -1, 2**31 - 1)
    _check_integer("seed", request.seed, 0, 2**64 - 1)
    _check_integer("sample", request.sample, 0, 2**32 - 1)
    if request.logprobs is not None:
        _check_integer("logprobs", request.logprobs, 0, n_vocab)
    if not isinstance(request.stop, tuple | list) or not all(isinstance(stop, str) and stop for stop in request.stop):
        raise UsageError("stop must be a tuple of texts, none of them empty")
    for token, _ in request.sampling.logit_bias:
        _check_integer("a token id in logit_bias", token, 0, n_vocab - 1)
    for text in (request.prompt, *(text for message in request.messages for text in (message.role, message.content))):
        if not isinstance(text, str):
            raise UsageError(f"a prompt or message must be a text, not {text!r}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError("the prompt is no valid text", why=str(error)) from error


def _check_integer(name: str, value: object, least: int, most: int) -> None:
    try:
        number = operator.index(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
