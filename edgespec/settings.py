"""Plain data: what to load and what to generate. Every default of the program is defined here once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.drafters.registry import REGISTRY, names_that_need

Constraint = Literal["grammar", "json_schema", "regex"]
"The fields of a request that constrain the answer."
CONSTRAINTS: dict[Constraint, str] = {"grammar": "grammar", "json_schema": "JSON schema", "regex": "regular expression"}
Offload = int | Literal["auto", "all"]
DRAFTERS = tuple(REGISTRY)
HEADS, MTP = names_that_need("head"), "mtp"
# Drafters with weights of their own. `draft_model` names a draft head or a draft model.
MODEL_DRAFTERS = names_that_need("self-draft", "head", "draft model")
SELF = "self:"  # followed by a number of layers or a type of weights
SPELLINGS = tuple(entry.spelling for entry in REGISTRY.values())

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
            missing = () if self.corpus else names_that_need("corpus")
            return tuple(name for name, entry in REGISTRY.items() if entry.in_auto and name not in missing)
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


def fixed_length(pace: str) -> int | None:
    """The K of "fixed:K", None for other policies."""
    return int(pace.removeprefix("fixed:")) if pace.startswith("fixed:") else None


def in_order(names: Iterable[str]) -> str:
    """A list of drafters as `spec_type` spells it, in the order in which they are asked."""
    return ",".join(sorted(names, key=lambda name: (DRAFTERS.index(drafter_of(name)), name)))


def drafters_of(spec_type: str) -> tuple[str, ...]:
    """The names of the drafters in a list of them."""
    return () if spec_type == "none" else tuple(drafter_of(name) for name in spec_type.split(","))


def drafter_of(name: str) -> str:
    """The drafter that an item of `spec_type` names: "self" for "self:8"."""
    return name.partition(":")[0] if name.startswith(SELF) and name != SELF else name


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
