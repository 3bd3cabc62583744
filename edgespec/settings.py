"""Settings as plain data: what to load and what to generate. Each default is defined here, and only here."""

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
    """A format for the numbers in a KV cache."""

    #: ggml's number of the format.
    ggml_type: int
    #: Values in a block.
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
    """Which models to load, and how. In numbers of threads and sizes, 0 means that the program chooses; in settings
    that end in `_draft`, 0 and None mean "as for the target"."""

    #: The target: a file, a name of the catalogue, a repository of the hub, or "demo".
    model: str
    #: A draft model or head. None: the default draft of the target, if it has one; "auto": else the best one here.
    draft_model: str | None = None
    #: Drafters separated by commas, "none", or "auto" for all available ones.
    spec_type: str = "auto"
    #: The most tokens of a draft; None: see `draft_n_max`.
    spec_draft_n_max: int | None = None
    #: Draft-length policy: "auto" (as many tokens as pay off by measured costs), "fixed:K" (always K) or "off".
    pace: str = "auto"
    #: The most leaves of a draft; 1 means chains.
    spec_tree: int = 1
    #: Whether a draft model drafts while the target verifies; "auto": if they are on different devices.
    overlap: Literal["auto", "on", "off"] = "auto"
    #: Choose kernels and widths of passes with which the text is the same with and without drafts.
    exact: bool = True
    #: Pad passes so that the text is the same with and without drafts, on every machine.
    strict: bool = False
    #: Measure by how much logits depend on the width of a pass, also if `exact` is off.
    measure_rounding: bool = False
    #: Let the suffix drafter read answers of earlier runs, and save new ones.
    store: bool = True
    #: The corpus that the corpus drafter searches.
    corpus: str | None = None
    #: Tokens of context for each answer.
    ctx_size: int = 0
    ctx_size_draft: int = 0
    #: Threads of passes over one token.
    threads: int = 0
    threads_draft: int = 0
    #: Threads of wider passes; 0: as `threads`.
    threads_batch: int = 0
    threads_batch_draft: int = 0
    #: Layers on the GPU or, with `rpc`, on workers.
    gpu_layers: Offload = "auto"
    gpu_layers_draft: Offload = "auto"
    #: Addresses of workers on other machines (HOST:PORT).
    rpc: Sequence[str] = ()
    #: How keys and values are stored in the KV cache, by a name in `CACHE_TYPES`.
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    cache_type_k_draft: str | None = None
    cache_type_v_draft: str | None = None
    flash_attention: Literal["auto", "on", "off"] = "auto"
    #: Answers that are generated at the same time.
    sequences: int = 1
    #: Raise an error for a model that does not fit into memory, instead of loading it with less context or slowly.
    must_fit: bool = False
    #: MiB of main memory for prompts that lose their slot, and for checkpoints of models whose memory cannot be cut.
    #: None: an eighth of the free memory, at most 8192.
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
    """One message of a conversation."""

    #: "system", "user", "assistant", or another role that the chat template knows.
    role: str
    content: str
    #: The ids that `content` was generated as. They go into the prompt unchanged, so that the next turn finds them in
    #: the KV cache. Empty: the content is tokenized.
    tokens: tuple[int, ...] = ()
    #: A JSON object of other fields that the chat template reads, such as `tool_calls`.
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate: a prompt to complete verbatim, or the messages of a chat. An assistant's message at the
    end is continued."""

    prompt: str = ""
    messages: tuple[Message, ...] = ()
    #: -1: until the model stops or the context is full.
    max_tokens: int = -1
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    seed: int = 0
    #: Distinguishes several answers to one prompt with the same seed.
    sample: int = 0
    #: The verification rule. With "coupled" drafts never change the text, with "rejection" and "block" they keep its
    #: distribution, "typical" changes it.
    verify: VerifyRule = "coupled"
    #: Token ids to force as the answer, which measures the gain of drafting on a given text.
    reference: tuple[int, ...] = ()
    #: Texts before which the answer ends.
    stop: tuple[str, ...] = ()
    #: Alternatives to report next to the log-probability of each token; None reports nothing.
    logprobs: int | None = None
    #: Parse special tokens that are written in the text of the prompt.
    special: bool = False
    #: Continue after the end tokens of the model.
    ignore_eos: bool = False
    #: A GBNF grammar, or llguidance's dialect of Lark, for the whole answer. Excludes the next two.
    grammar: str = ""
    #: A JSON schema for the whole answer.
    json_schema: str = ""
    #: A regular expression for the whole answer.
    regex: str = ""
    #: Tokens of the conversation that were dropped before the prompt: the sampling noise continues after them.
    left: int = 0
    #: As in `LoadSettings`, for this answer, among the loaded drafters. None: as for all answers.
    spec_type: str | None = None
    pace: str | None = None
    #: `spec_draft_n_max` for this answer.
    draft_n_max: int | None = None
    #: Change messages that the chat template rejects, with a note, instead of raising an error.
    lenient: bool = False
    #: A JSON object of arguments for the chat template, such as `tools` and `enable_thinking`.
    template: str = ""
    #: Let drafters search this answer later.
    remembered: bool = True
    #: The answer does not end before it has this many tokens.
    min_tokens: int = 0
    #: Tokens that end the answer like the end tokens of the model.
    stop_token_ids: tuple[int, ...] = ()
    #: Texts that the answer does not contain (`runtime/ends.py`).
    bad_words: tuple[str, ...] = ()
    #: False: read the whole prompt, even if the KV cache holds some of it.
    cache_prompt: bool = True

    @property
    def constraint(self) -> tuple[Constraint, str] | None:
        """The constraint of the answer, if there is one."""
        return next(((kind, text) for kind in CONSTRAINTS if (text := getattr(self, kind))), None)


def fixed_length(pace: str) -> int | None:
    """Return the K of "fixed:K", None for other policies."""
    return int(pace.removeprefix("fixed:")) if pace.startswith("fixed:") else None


def in_order(names: Iterable[str]) -> str:
    """Return a list of drafters as `spec_type` spells it, in the order in which they are asked."""
    return ",".join(sorted(names, key=lambda name: (DRAFTERS.index(drafter_of(name)), name)))


def drafters_of(spec_type: str) -> tuple[str, ...]:
    """Return the names of the drafters that a `spec_type` lists."""
    return () if spec_type == "none" else tuple(drafter_of(name) for name in spec_type.split(","))


def drafter_of(name: str) -> str:
    """Return the drafter that an item of `spec_type` names: "self" for "self:8"."""
    return name.partition(":")[0] if name.startswith(SELF) and name != SELF else name


def shown(value: object) -> str:
    """Return a value as text for a message, shortened if it is long."""
    try:
        text = repr(value[:40] if isinstance(value, str | list) else value)
    except (RecursionError, ValueError):  # lists in lists, or a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def schema_text(schema: object) -> object:
    """Return a JSON schema as text, and other values unchanged. Raises ValueError, TypeError, RecursionError."""
    return json.dumps(schema) if isinstance(schema, Mapping | bool) else schema


def bias_pairs(biases: object) -> object:
    """Return the (id, bias) pairs of a mapping, and other values unchanged."""
    return tuple(biases.items()) if isinstance(biases, Mapping) else biases
