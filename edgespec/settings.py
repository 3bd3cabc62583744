"""Plain data: what to load and what to generate. Every default of the program is defined here once."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.errors import UsageError

Constraint = Literal["grammar", "json_schema", "regex"]
"The fields of a request that constrain the answer."
CONSTRAINTS: dict[Constraint, str] = {"grammar": "grammar", "json_schema": "JSON schema", "regex": "regular expression"}
Offload = int | Literal["auto", "all"]
# The cheap ones are asked first. A draft head and a draft model are both what `draft_model` names.
HEADS, MTP = ("medusa", "hydra", "eagle1", "eagle3"), "mtp"
DRAFTERS = ("grammar", "lookup", "suffix", "recycling", "lookahead", "corpus", "self", MTP, *HEADS, "draft")
MODEL_DRAFTERS = ("self", *HEADS, "draft")
SELF = "self:"  # and what the draft is to be: a number of layers or a type of weights
SPELLINGS = tuple(f"{SELF}N" if name == "self" else name for name in DRAFTERS)

MAX_THREADS = 512
MAX_SEQUENCES = 256
AUTO_DRAFT = "auto"  # the best draft model of this machine
MAX_DRAFT = 64
MAX_STRICT_DRAFT = 15
# Default limit of a draft's tokens: the policy finds out how many pay off. --strict pads every pass for them.
DRAFT_N_MAX, STRICT_DRAFT_N_MAX = 31, 3
SHARED_DRAFT_TOKENS = 64  # of all sequences in a pass; each costs a row of logits, and more do not pay off on CPUs
MOST_CACHE_RAM = 1 << 24  # MiB
MAX_LEAVES = 16  # each costs a row of logits and a sequence id


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
    """Which models to load, and how.

    `draft_model` None means the default draft of the model, if it has one (the bundled target does), "auto" then also
    the best one on this machine. `spec_type` is "none", drafters separated by commas, or "auto": every available one.
    `corpus` is the one that the drafter of this name uses. `spec_draft_n_max` is the maximum number of tokens (None:
    see `draft_n_max`) and `spec_tree` the maximum number of leaves of a draft. `overlap` lets a draft model draft on
    while the target verifies: "auto" if they are on different devices. `pace` is the draft-length policy: "auto" (as
    many tokens as pay off by measured costs), "fixed:K" (always K) or "off" (none). `exact` selects the kernels and
    widths of a pass with which the output is identical with and without drafting, where this build has them; `strict`
    pads passes where it has not, and `measure_rounding` measures how far the output may differ otherwise. `store` lets
    the suffix drafter use answers of earlier runs. `sequences` is the number of answers decoded together, each with a
    context of `ctx_size` tokens. `rpc` are addresses of workers (HOST:PORT), which hold `gpu_layers` of the target.
    With `must_fit` a model too large for the free memory is an error, not slow and not loaded with less context.
    `cache_ram` is how many MiB of main memory may hold what the KV cache loses: prompts that lose their slot, and
    checkpoints of models whose memory cannot be cut (None: an eighth of the free memory, up to 8192; 0: none). Zero
    means "choose for me": `ctx_size`, `threads`, `sequences`; `..._draft`: it and None mean "as for the target".
    """

    model: str
    draft_model: str | None = None
    spec_type: str = "auto"
    spec_draft_n_max: int | None = None
    pace: str = "auto"
    spec_tree: int = 1
    overlap: Literal["auto", "on", "off"] = "auto"
    exact: bool = True
    strict: bool = False
    measure_rounding: bool = False
    store: bool = True
    corpus: str | None = None
    ctx_size: int = 0
    ctx_size_draft: int = 0
    threads: int = 0
    threads_draft: int = 0
    threads_batch: int = 0
    threads_batch_draft: int = 0
    gpu_layers: Offload = "auto"
    gpu_layers_draft: Offload = "auto"
    rpc: Sequence[str] = ()
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    cache_type_k_draft: str | None = None
    cache_type_v_draft: str | None = None
    flash_attention: Literal["auto", "on", "off"] = "auto"
    sequences: int = 1
    must_fit: bool = False
    cache_ram: int | None = None

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters that `spec_type` names, in the order in which they are asked."""
        if self.spec_type == "auto":
            return ("grammar", "suffix", "recycling", *(["corpus"] if self.corpus else []), MTP, *HEADS, "draft")
        return drafters_of(in_order(self.spec_type.split(","))) if self.spec_type != "none" else ()

    @property
    def uses_draft(self) -> bool:
        """Whether a draft model or head is used if there is one; a self-draft takes its place."""
        return not {*HEADS, "draft"}.isdisjoint(self.drafters) and self.draft_n_max > 0 and self.self_draft is None

    @property
    def with_draft(self) -> str:
        """A `spec_type` that includes a draft model."""
        return self.spec_type if not {*HEADS, "draft"}.isdisjoint(self.drafters) else "auto"

    @property
    def without_draft(self) -> str:
        """A `spec_type` of the drafters that need no draft model."""
        left_out = (*MODEL_DRAFTERS, MTP) if self.spec_type == "auto" else MODEL_DRAFTERS
        return ",".join(name for name in self.drafters if name not in left_out) or "none"

    def spelling(self, drafter: str) -> str:
        """A drafter as `spec_type` spells it."""
        return f"{SELF}{self.self_draft}" if drafter == "self" else drafter

    @property
    def self_draft(self) -> str | None:
        """The self-draft to use, if any: layers or a type of weights."""
        names = self.spec_type.split(",")
        return next((name.removeprefix(SELF) for name in names if name.startswith(SELF)), None)

    @property
    def draft_n_max(self) -> int:
        """The maximum number of tokens of a draft: as set, or as a fixed length requires, or the default."""
        if self.spec_draft_n_max is not None:
            return self.spec_draft_n_max
        return fixed_length(self.pace) or (STRICT_DRAFT_N_MAX if self.strict else DRAFT_N_MAX)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `tokens` are the ids that `content` was generated as: they go into the prompt
    unchanged, so that the next turn finds them in the KV cache. Empty if the content is to be tokenized. `extra` is a
    JSON object of what the chat template reads besides, such as `tool_calls`."""

    role: str
    content: str
    tokens: tuple[int, ...] = ()
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate: a prompt to complete verbatim, or the messages of a chat. If the last message is the
    assistant's, it is continued.

    `max_tokens` -1 means until the model stops or the context is full. `logprobs` is the number of alternatives to
    report beside each token's own log probability; None reports nothing. `special` parses special tokens written in the
    prompt text. `sample` distinguishes samples of one prompt and seed. `verify` is the verification rule: with
    "coupled" drafts never change the text, with "rejection" and "block" they keep its distribution, "typical" changes
    that. One of `grammar` (GBNF, or llguidance's dialect of Lark), `json_schema` and `regex` can constrain the whole
    answer. `reference` are token ids to force as the answer: measures the gain of drafting on a given text. `left`
    counts the tokens of the conversation that were dropped before the prompt, so that sampling noise continues where it
    was. `spec_type`, `pace` and `draft_n_max` are what they are in LoadSettings (`spec_draft_n_max` there) for this
    answer, within what is loaded; None: as for all answers. `lenient` works around messages that the chat template
    rejects, with a note, instead of raising an error. `template` is a JSON object of the chat template's arguments,
    such as `tools` and `enable_thinking`. `remembered` lets drafters look the answer up later.
    """

    prompt: str = ""
    messages: tuple[Message, ...] = ()
    max_tokens: int = -1
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    seed: int = 0
    sample: int = 0
    verify: VerifyRule = "coupled"
    reference: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    special: bool = False
    ignore_eos: bool = False
    grammar: str = ""
    json_schema: str = ""
    regex: str = ""
    left: int = 0
    spec_type: str | None = None
    pace: str | None = None
    draft_n_max: int | None = None
    lenient: bool = False
    template: str = ""
    remembered: bool = True
    min_tokens: int = 0  # the answer cannot end before it has this many tokens
    stop_token_ids: tuple[int, ...] = ()  # tokens that end the answer as the model's end tokens do
    bad_words: tuple[str, ...] = ()  # texts that the answer does not contain (`runtime/ends.py`)
    cache_prompt: bool = True  # False: the whole prompt is read, even if the KV cache holds some of it

    @property
    def constraint(self) -> tuple[Constraint, str] | None:
        """The constraint of the answer, if there is one."""
        return next(((kind, text) for kind in CONSTRAINTS if (text := getattr(self, kind))), None)


def check_load_settings(settings: LoadSettings) -> None:
    """Refuse invalid combinations before anything is loaded. Raises UsageError."""
    check_pace(settings.pace)
    if settings.spec_draft_n_max is not None:
        _check_integer("spec_draft_n_max", settings.spec_draft_n_max, 0, MAX_DRAFT)
    length = fixed_length(settings.pace)
    if length is not None and length > settings.draft_n_max:
        raise UsageError(f"pace fixed:{length} needs --spec-draft-n-max {length} or more, not {settings.draft_n_max}")
    for name, least, most in (
        ("spec_tree", 1, MAX_LEAVES),
        ("ctx_size", 0, 2**31 - 1),
        ("ctx_size_draft", 0, 2**31 - 1),
        ("threads", 0, MAX_THREADS),
        ("threads_draft", 0, MAX_THREADS),
        ("threads_batch", 0, MAX_THREADS),
        ("threads_batch_draft", 0, MAX_THREADS),
        ("sequences", 0, MAX_SEQUENCES),
    ):
        _check_integer(name, getattr(settings, name), least, most)
    if settings.cache_ram is not None:
        _check_integer("cache_ram", settings.cache_ram, 0, MOST_CACHE_RAM)
    types = tuple(CACHE_TYPES)
    for name, choices in (
        ("flash_attention", ("auto", "on", "off")),
        ("overlap", ("auto", "on", "off")),
        ("cache_type_k", types),
        ("cache_type_v", types),
        ("cache_type_k_draft", (None, *types)),
        ("cache_type_v_draft", (None, *types)),
    ):
        _check_choice(name, getattr(settings, name), choices)
    check_spec_type(settings.spec_type)
    for name in ("gpu_layers", "gpu_layers_draft"):
        if getattr(settings, name) not in ("auto", "all"):
            _check_integer(name, getattr(settings, name), 0, 2**31 - 1)
    if settings.strict:
        for excluded, setting, why in (
            (settings.draft_n_max == 0, "--spec-draft-n-max 0", "passes are padded for drafts; use --spec-type none"),
            (settings.spec_tree > 1, "a tree (--spec-tree)", "branches leave the cache in another order"),
            (settings.sequences > 1, "several sequences", "passes are padded for one sequence"),
            (settings.flash_attention == "on", "flash attention", "it rounds differently at different widths"),
            (
                settings.cache_type_v not in ("f32", "f16", "bf16"),
                "a quantised V cache (-ctv)",
                "it needs flash attention, which rounds differently at different widths",
            ),
            (
                settings.draft_n_max > MAX_STRICT_DRAFT,
                f"drafts of more than {MAX_STRICT_DRAFT} tokens (--spec-draft-n-max)",
                "their passes would have to be padded too far",
            ),
        ):
            if excluded:
                raise UsageError(f"strict cannot be combined with {setting}", why=why)


def check_rule(settings: LoadSettings, rule: VerifyRule) -> None:
    """Refuse a verification rule that the loaded settings exclude. Raises UsageError."""
    if settings.strict and rule != "coupled":
        raise UsageError(
            f"strict cannot be combined with verify {rule}", why="only the coupled rule preserves the text"
        )


def fixed_length(pace: str) -> int | None:
    """The K of "fixed:K", None for other policies."""
    return int(pace.removeprefix("fixed:")) if pace.startswith("fixed:") else None


def check_pace(pace: object) -> None:
    """Raises UsageError unless it is "auto", "off", or "fixed:" with a number of tokens."""
    if pace in ("auto", "off"):
        return
    kind, _, length = pace.partition(":") if isinstance(pace, str) else ("", "", "")
    is_fixed = kind == "fixed" and length.isascii() and length.isdigit() and len(length) < 4
    if not is_fixed or not 1 <= int(length) <= MAX_DRAFT:
        raise UsageError(f"pace must be auto, off, or fixed:K with K from 1 to {MAX_DRAFT}, not {shown(pace)}")


def in_order(names: Iterable[str]) -> str:
    """A list of drafters as `spec_type` spells it, in the order in which they are asked."""
    return ",".join(sorted(names, key=lambda name: (DRAFTERS.index(_drafter(name)), name)))


def drafters_of(spec_type: str) -> tuple[str, ...]:
    """The names of the drafters in a list of them."""
    return () if spec_type == "none" else tuple(_drafter(name) for name in spec_type.split(","))


def _drafter(name: str) -> str:
    return name.partition(":")[0] if name.startswith(SELF) and name != SELF else name


def check_spec_type(spec_type: object) -> None:
    """Raises UsageError unless it is "auto", "none" or a list of drafters."""
    if spec_type in ("auto", "none"):
        return
    names = spec_type.split(",") if isinstance(spec_type, str) else []
    drafters = [_drafter(name) for name in names]
    unknown = [name for name, drafter in zip(names, drafters, strict=True) if drafter not in DRAFTERS]
    if unknown and unknown[0] not in ("auto", "none"):
        raise UsageError(
            f"spec_type: unknown drafter {shown(unknown[0])}", hint=f"choose from auto, none, {', '.join(SPELLINGS)}"
        )
    if not names or unknown or "self" in names or len(set(drafters)) != len(names):
        raise UsageError(
            f"spec_type must be auto, none, or some of {','.join(SPELLINGS)}, not {shown(spec_type)}",
            hint="each drafter can be named once, and auto and none cannot be combined with others; self:8 uses 8 "
            "layers, self:Q2_K smaller weights",
        )
    if {"draft", "self"} <= set(drafters):
        raise UsageError(
            "spec_type names two draft models", why="draft and self are one draft model each", hint="leave one out"
        )


def check_request(request: Request, n_vocab: int) -> None:
    """Refuse invalid combinations before anything is generated. Raises UsageError."""
    _check_integer("max_tokens", request.max_tokens, -1, 2**31 - 1)
    _check_integer("seed", request.seed, 0, 2**64 - 1)
    _check_integer("sample", request.sample, 0, 2**32 - 1)
    _check_integer("left", request.left, 0, 2**62)
    for token in (token for message in request.messages for token in message.tokens):
        _check_integer("a token id in a message", token, 0, n_vocab - 1)
    _check_choice("verify", request.verify, get_args(VerifyRule))
    check_spec_type("auto" if request.spec_type is None else request.spec_type)
    check_pace("auto" if request.pace is None else request.pace)
    if request.draft_n_max is not None:
        _check_integer("draft_n_max", request.draft_n_max, 0, MAX_DRAFT)
    if request.logprobs is not None:
        _check_integer("logprobs", request.logprobs, 0, n_vocab)
    if not isinstance(request.stop, tuple | list) or not all(isinstance(stop, str) and stop for stop in request.stop):
        raise UsageError("stop must be a tuple of non-empty strings")
    for name in CONSTRAINTS:
        if not isinstance(getattr(request, name), str):
            raise UsageError(f"{name} must be a string, not {shown(getattr(request, name))}")
    constraints = [name for name in CONSTRAINTS if getattr(request, name)]
    if len(constraints) > 1:
        raise UsageError(f"{constraints[0]} and {constraints[1]} cannot be combined", hint="use one of them")
    if constraints and (request.ignore_eos or request.reference):
        excluded = "ignore_eos" if request.ignore_eos else "a reference answer"
        raise UsageError(
            f"{constraints[0]} and {excluded} cannot be combined",
            why=f"the {CONSTRAINTS[constraints[0]]} determines where an answer ends",
        )
    for token in request.reference:
        _check_integer("a token id in reference", token, 0, n_vocab - 1)
    if request.reference and request.verify != "coupled":
        raise UsageError(f"reference answers cannot be verified by {request.verify}", hint="use the coupled rule")
    for token, _ in request.sampling.logit_bias:
        _check_integer("a token id in logit_bias", token, 0, n_vocab - 1)
    said = [text for message in request.messages for text in (message.role, message.content, message.extra)]
    for text in (request.prompt, request.template, *said):
        if not isinstance(text, str):
            raise UsageError(f"a prompt or message must be a string, not {shown(text)}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError("the prompt is not valid text", why=str(error)) from error


def shown(value: object) -> str:
    """A value in a message, not all of it if it is long."""
    try:
        text = repr(value[:40] if isinstance(value, str | list) else value)
    except (RecursionError, ValueError):  # lists in lists, or a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def schema_text(schema: object) -> object:
    """A JSON schema as text; what is none stays what it is. Raises ValueError, TypeError, RecursionError."""
    return json.dumps(schema) if isinstance(schema, Mapping | bool) else schema


def bias_pairs(biases: object) -> object:
    """(id, bias) pairs; what is no mapping stays what it is."""
    return tuple(biases.items()) if isinstance(biases, Mapping) else biases


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(map(str, filter(None, choices)))}, not {shown(value)}")


def _check_integer(name: str, value: object, least: int, most: int) -> None:
    try:
        number = operator.index(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise UsageError(f"{name} must be an integer from {least} to {most}, not {shown(value)}")
