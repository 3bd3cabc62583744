"""The settings of a loaded model and of a request. Each default of the program is defined here once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import Facts, facts_of, setting, typed_option, with_names
from edgespec.core.verify import VerifyRule
from edgespec.drafters.registry import REGISTRY, names_that_need

Constraint = Literal["grammar", "json_schema", "regex"]
"""The fields of a request that constrain the answer."""
CONSTRAINTS: dict[Constraint, str] = {"grammar": "grammar", "json_schema": "JSON schema", "regex": "regular expression"}
Offload = int | Literal["auto", "all"]
Switch = Literal["auto", "on", "off"]
HEADS, MTP = names_that_need("head"), "mtp"
# Drafters that load weights. `draft_model` names a draft head or a draft model.
MODEL_DRAFTERS = names_that_need("self-draft", "head", "draft model")
SELF = "self:"  # followed by a number of layers or a type of weights

LARGEST = 2**31 - 1
SEED_BITS = 53  # of random seeds: JavaScript's numbers are exact up to this size
MAX_THREADS = 512
MAX_SEQUENCES = 256
AUTO_SEQUENCES = 16  # at most, if their number is not set: more gain little, since wider passes cost more
AUTO_DRAFT = "auto"  # the best installed draft model
MAX_DRAFT = 64
DRAFT_N_MAX = 31  # default limit of draft tokens; the policy drafts as many of them as pay off
SHARED_DRAFT_TOKENS = 64  # in a pass, of all sequences; each costs a row of logits, and more do not pay off on CPUs
MOST_CACHE_RAM = 1 << 24  # MiB
MAX_LEAVES = 16  # each costs a row of logits and a sequence id


@dataclass(frozen=True, slots=True)
class CacheType:
    """A number type of the KV cache: ggml's number of the type, values per block, bytes per block."""

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
    """The models to load, and how.

    Zero in `ctx_size`, `threads` and `sequences` means that a value is chosen. Zero and None in `..._draft` fields mean
    the value of the target.
    """

    # fmt: off
    model: str
    #: the file of the projector, which reads images; None: the one in the folder of the model, if any; "none"
    mmproj: str | None = setting(None, Facts("text",
        "Projector, with which the model sees images: a GGUF file. none: see no images.",
        option="--mmproj -mm", metavar="FILE|none", shown="mmproj*.gguf in the model's folder", compared="always",
    ))
    #: the name of the chat template: one of the file, or "chatml"; None: the default one, and `tool_use` with tools
    chat_template: str | None = setting(None, Facts("text",
        "Chat template to use: the name of one in the model file ('edgespec show' lists them), or chatml.",
        metavar="NAME", shown="the model's, and its tool_use for requests with tools", advanced=True, compared="always",
    ))
    #: a file with a chat template in place of those of the model
    chat_template_file: str | None = setting(None, Facts("file",
        "Chat template to use instead of the model's, in Jinja.", metavar="FILE", advanced=True, compared="always",
    ))
    #: context of each sequence in tokens
    ctx_size: int = setting(0, Facts("integer",
        "Context size in tokens.",
        least=0, most=LARGEST, zero_chooses=True, option="-c --ctx-size",
        shown="the model's training context, at most 8192", compared="always",
    ))
    gpu_layers: Offload = setting("auto", Facts("layers",
        "Layers of the model on the GPU, counting the output layer. auto: as many as fit.",
        option="-ngl --gpu-layers", metavar="N|auto|all", compared="always",
    ))
    gpu_layers_draft: Offload = setting("auto", Facts("layers",
        "Layers of the draft model on the GPU. auto: all of them, or none if not all fit.",
        option="-ngld --gpu-layers-draft", metavar="N|auto|all", advanced=True,
    ))
    device_draft: str | None = setting(None, Facts("text",
        "Devices of the draft model.",
        option="-devd --device-draft --draft-device", metavar="NAME,...", shown="as --device", advanced=True,
    ))
    #: addresses of workers (HOST:PORT) that hold `gpu_layers` of the target
    rpc: Sequence[str] = setting((), Facts("texts",
        "Put layers of the model on the machine at this address, which runs 'edgespec rpc-worker'.",
        metavar="HOST:PORT", variable="EDGESPEC_RPC_WORKERS", advanced=True, compared="always",
    ))
    #: LoRA adapters of the target, as [NAME=]FILE[=SCALE]; the scale is the default of requests
    lora: Sequence[str] = setting((), Facts("texts",
        "LoRA adapter for the model, and its scale. 0: load it for requests that ask for it ('serve').",
        metavar="[NAME=]FILE[=SCALE]", advanced=True, compared="always",
    ))
    #: devices for these layers: names separated by commas, "auto" for all GPUs, or "none"
    device: str = setting("auto", Facts("text",
        "Devices for the layers on the GPU. auto: all GPUs. none: use no GPU.",
        option="-dev --device", metavar="NAME,...", compared="always",
    ))
    #: the number of layers, from the first one on, whose experts stay in main memory
    n_cpu_moe: int = setting(0, Facts("integer",
        "Keep the experts of the first N layers of a MoE model in main memory.",
        least=0, most=LARGEST, option="-ncmoe --n-cpu-moe", advanced=True, compared="always",
    ))
    #: keep the experts of all layers in main memory
    cpu_moe: bool = setting(False, Facts("flag",
        "Keep all experts of a MoE model in main memory.", option="-cmoe --cpu-moe", advanced=True, compared="always",
    ))
    #: copy weights into a layout that is fast, unless they take most of the memory
    repack: bool = setting(True, Facts("flag",
        "Copy weights into a layout that is fast for passes over several tokens. Without it, loading takes no time and "
        "the weights stay in their file; texts are the same.",
        option="--repack/--no-repack", advanced=True, compared="never",
    ))
    threads: int = setting(0, Facts("integer",
        "CPU threads for decoding one token.",
        least=0, most=MAX_THREADS, zero_chooses=True, option="-t --threads",
        shown="physical cores, fewer while others use them",
    ))
    threads_batch: int = setting(0, Facts("integer",
        "CPU threads for prompts and for verifying drafts.",
        least=0, most=MAX_THREADS, zero_chooses=True, option="-tb --threads-batch", shown="as --threads", advanced=True,
    ))
    flash_attention: Switch = setting("auto", Facts("choice",
        "Flash attention.",
        choices=get_args(Switch), option="-fa --flash-attn", advanced=True, compared="always",
    ))
    cache_type_k: str = setting("f16", Facts("choice",
        f"Type of the K cache: {', '.join(CACHE_TYPES)}.",
        choices=(*CACHE_TYPES,), option="-ctk --cache-type-k", metavar="TYPE", advanced=True, compared="always",
    ))
    cache_type_v: str = setting("f16", Facts("choice",
        "Type of the V cache; a quantised one needs flash attention.",
        choices=(*CACHE_TYPES,), option="-ctv --cache-type-v", metavar="TYPE", advanced=True, compared="always",
    ))
    #: MiB of main memory for prompts that lose their slot and for checkpoints of models whose memory cannot be cut;
    #: None: an eighth of the free memory, up to 8192; 0: none
    cache_ram: int | None = setting(None, Facts("integer",
        "Overflow cache for prompts in main memory. 0: none.",
        least=0, most=MOST_CACHE_RAM, metavar="MIB", shown="an eighth of the free memory, at most 8192", advanced=True,
        compared="never",
    ))
    #: None: the default draft of the model, if it has one; "auto": else the best installed one
    draft_model: str | None = setting(None, Facts("model",
        "Draft model of the same family, or a draft head made for the model. auto: the best compatible model on this "
        "machine ('edgespec pair suggest').",
        option="-md --draft-model", metavar="MODEL|auto", shown="the catalogue's draft for the model",
        section="Speculation", compared="never",
    ))
    #: drafters separated by commas, "auto" for every available one, or "none"
    spec_type: str = setting("auto", Facts("drafters",
        "Drafters to use: auto, none, or names separated by commas.",
        metavar="auto|none|DRAFTER,...", section="Speculation",
    ))
    #: maximum number of tokens of a draft; None: see `draft_n_max`
    spec_draft_n_max: int | None = setting(None, Facts("integer",
        f"Maximum draft tokens per step, up to {MAX_DRAFT}. 0: no drafting.",
        least=0, most=MAX_DRAFT, shown=str(DRAFT_N_MAX), section="Speculation",
    ))
    #: draft-length policy: "auto" (as many tokens as pay off by measured costs), "fixed:K" or "off"
    pace: str = setting("auto", Facts("pace",
        "Draft-length policy. auto: as many tokens as pay off by measured costs, or none. fixed:K: always K tokens. "
        "off: no drafts.",
        metavar="auto|fixed:K|off", section="Speculation",
    ))
    #: maximum number of leaves of a draft
    spec_tree: int = setting(1, Facts("integer",
        f"Draft trees with up to WIDTH branches, at most {MAX_LEAVES}. 1: chains.",
        least=1, most=MAX_LEAVES, metavar="WIDTH", section="Speculation", advanced=True,
    ))
    #: let the draft model continue while the target verifies; "auto": if they are on different devices
    overlap: Switch = setting("auto", Facts("choice",
        "Let the draft model work while the model verifies. auto: if they are on different devices.",
        choices=get_args(Switch), section="Speculation", advanced=True,
    ))
    #: name of the corpus for the corpus drafter
    corpus: str | None = setting(None, Facts("text",
        "Also draft from these texts ('edgespec corpus').", metavar="NAME|FILE", section="Speculation",
    ))
    #: let the suffix drafter use answers of earlier runs
    store: bool = setting(True, Facts("flag",
        "Let drafters use earlier answers, and save this answer for them ('edgespec store').",
        option="--store/--no-store", section="Speculation",
    ))
    #: decode so that drafts cannot change the text, where this costs almost nothing
    exact: bool = setting(True, Facts("flag",
        "Make the text identical with and without drafts, where this costs almost nothing: on CPUs and many GPUs. "
        "--fast uses llama.cpp's default kernels instead.",
        option="--exact/--fast", section="Speculation", compared="always",
    ))
    #: the same where it costs more: passes are padded to a class of widths
    strict: bool = setting(False, Facts("flag",
        "Make the text identical where --exact cannot. It can take more than twice the time, and the text may differ "
        "from the text without --strict.",
        section="Speculation", compared="always",
    ))
    ctx_size_draft: int = setting(0, Facts("integer",
        "Context size of the draft model.",
        least=0, most=LARGEST, zero_chooses=True, option="-cd --ctx-size-draft", shown="as --ctx-size",
        section="Speculation", advanced=True,
    ))
    threads_draft: int = setting(0, Facts("integer",
        "CPU threads of the draft model.",
        least=0, most=MAX_THREADS, zero_chooses=True, option="-td --threads-draft", shown="as --threads",
        section="Speculation", advanced=True,
    ))
    threads_batch_draft: int = setting(0, Facts("integer", least=0, most=MAX_THREADS))
    cache_type_k_draft: str | None = setting(None, Facts("choice", choices=(*CACHE_TYPES,)))
    cache_type_v_draft: str | None = setting(None, Facts("choice", choices=(*CACHE_TYPES,)))
    #: answers decoded together; 0: as many as memory allows, up to `most_sequences`
    sequences: int = setting(1, Facts("integer", least=0, most=MAX_SEQUENCES, compared="never"))
    most_sequences: int = setting(AUTO_SEQUENCES, Facts("integer", least=1, most=MAX_SEQUENCES, compared="never"))
    #: raise an error if the model does not fit into free memory, instead of running slowly or with less context
    must_fit: bool = setting(False, Facts("flag", compared="never"))
    #: let a worker process load models that make vectors and cannot generate
    embeds: bool = setting(False, Facts("flag"))
    # fmt: on

    def for_model(self, model: str) -> LoadSettings:
        """Return these settings for a model, without the adapters and the chat template of another one."""
        if model == self.model:
            return self
        return replace(self, model=model, lora=(), chat_template=None, chat_template_file=None)

    @property
    def offload(self) -> tuple[Offload, Offload]:
        """`gpu_layers` and `gpu_layers_draft`, which are 0 without a device."""
        draft = self.device if self.device_draft is None else self.device_draft
        return 0 if self.device == "none" else self.gpu_layers, 0 if draft == "none" else self.gpu_layers_draft

    @property
    def experts_on_cpu(self) -> int:
        """The number of layers whose experts stay in main memory, which may be more than there are."""
        return LARGEST if self.cpu_moe else self.n_cpu_moe

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters of `spec_type`, in the order in which they are asked."""
        if self.spec_type == "auto":
            missing = () if self.corpus else names_that_need("corpus")
            return tuple(name for name, entry in REGISTRY.items() if entry.in_auto and name not in missing)
        return drafters_of(in_order(self.spec_type.split(","))) if self.spec_type != "none" else ()

    @property
    def uses_draft(self) -> bool:
        """True if a draft model or head is used when there is one. A self-draft replaces it."""
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
        """Return the name of a drafter as written in `spec_type`."""
        return f"{SELF}{self.self_draft}" if drafter == "self" else drafter

    @property
    def self_draft(self) -> str | None:
        """The self-draft to use, if any: layers or a type of weights."""
        names = self.spec_type.split(",")
        return next((name.removeprefix(SELF) for name in names if name.startswith(SELF)), None)

    @property
    def draft_n_max(self) -> int:
        """The maximum number of tokens of a draft: the setting, else the fixed length, else the default."""
        if self.spec_draft_n_max is not None:
            return self.spec_draft_n_max
        return fixed_length(self.pace) or DRAFT_N_MAX


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a message: the content of its file."""

    data: bytes = field(repr=False)
    #: the number of characters of the message's content before it
    at: int = 0
    #: for errors
    name: str = "the image"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str
    #: ids as which `content` was generated: the prompt keeps them to match the KV cache; empty: tokenize `content`
    tokens: tuple[int, ...] = ()
    #: JSON object of other fields for the chat template, such as `tool_calls`
    extra: str = ""
    #: in the order of their places in `content`
    images: tuple[Image, ...] = ()


def moved(images: Iterable[Image], by: int) -> tuple[Image, ...]:
    """Return images for a content that has this number of characters more before them."""
    return tuple(replace(image, at=image.at + by) for image in images)


def joined(messages: Sequence[Message], between: str) -> Message:
    """Return the first message with the contents and the images of all."""
    content, images = messages[0].content, messages[0].images
    for message in messages[1:]:
        images += moved(message.images, len(content) + len(between))
        content += between + message.content
    return replace(messages[0], content=content, images=images)


def with_system(messages: Sequence[Message], system: str) -> tuple[Message, ...]:
    """Return messages with a system prompt in front, unless it is empty or they have a system message."""
    is_said = not system or any(message.role == "system" for message in messages)
    return (*messages,) if is_said else (Message("system", system), *messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """The settings of an answer that a chat can change while it runs. At most one constraint can be set."""

    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    # fmt: off
    seed: int = setting(0, Facts("integer",
        "Seed: the same seed gives the same text. -1: a random seed, which is shown.",
        least=0, most=2**64 - 1, section="Sampling", compared="never", wire="all",
    ))
    max_tokens: int = setting(-1, Facts("integer",
        "Maximum tokens to generate. -1: until the model stops or the context is full.",
        least=-1, most=LARGEST, option="-n --max-tokens", compared="always", wire="all",
    ))
    reasoning_budget: int = setting(-1, Facts("integer",
        "Maximum tokens of reasoning, after which the answer begins. 0: none. -1: no limit.",
        least=-1, most=LARGEST, advanced=True,
    ))
    #: `RepetitionDetector` finds repetitions; constrained answers do not end so
    repeat_limit: int = setting(0, Facts("integer",
        "End an answer whose last tokens, at least N, are the same few tokens over and over. 0: never.",
        least=0, most=LARGEST, shown="the model's, else 0", advanced=True,
    ))
    stop: tuple[str, ...] = setting((), Facts("stops",
        "Stop before any of these texts.", metavar="TEXT", compared="always", wire="apart",
    ))
    json_schema: str = setting("", Facts("schema",
        "Answer in JSON that matches a schema, given as text or as a file. {}: any JSON.",
        option="-j --json-schema", metavar="FILE|JSON", compared="always", wire="apart",
    ))
    #: in GBNF or llguidance's dialect of Lark
    grammar: str = setting("", Facts("constraint",
        "Answer in the language of a grammar, given as text or as a file.",
        metavar="FILE|GBNF", compared="always", wire="apart",
    ))
    regex: str = setting("", Facts("constraint",
        "Answer with text that matches all of REGEX.", metavar="REGEX", compared="always", wire="apart",
    ))
    #: "coupled" keeps the text, "rejection" and "block" its distribution
    verify: VerifyRule = setting("coupled", Facts("choice",
        "Verification rule. coupled: the same text as without drafts. rejection, block: another text from the same "
        "distribution.",
        choices=get_args(VerifyRule), section="Speculation", advanced=True, compared="always", wire="quiet",
    ))
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(AnswerSettings):
    """One answer to generate: a prompt to complete, or the messages of a chat.

    If the last message is the assistant's, it is continued. At most one of `grammar`, `json_schema` and `regex` can
    constrain the answer.
    """

    prompt: str = field(default="", kw_only=False)
    #: token ids in place of `prompt`, to which nothing is added
    prompt_tokens: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    #: token ids to emit as the answer, to measure the gain of drafting on a given text
    reference: tuple[int, ...] = ()
    #: the answer has to call one of these tools of its template's arguments
    must_call: tuple[str, ...] = ()
    #: the answer may call more than one tool
    parallel_calls: bool = True
    # fmt: off
    #: number that distinguishes samples of one prompt and seed
    sample: int = setting(0, Facts("integer", least=0, most=2**32 - 1, row=False, compared="never", wire="quiet"))
    ignore_eos: bool = setting(False, Facts("flag",
        "Continue past the model's end-of-text token.", advanced=True, compared="always", wire="all",
    ))
    #: None: report no log probabilities
    logprobs: int | None = setting(None, Facts("integer",
        "Report the log probability of each token and of the N most likely ones ('run': with --json).",
        least=0, advanced=True, compared="always", wire="apart",
    ))
    #: the same for the tokens of the prompt, which is read again for it; the end token is then reported, too
    prompt_logprobs: int | None = setting(None, Facts("integer", row=False, compared="always", wire="apart"))
    special: bool = setting(False, Facts("flag",
        "Parse special tokens in the prompt, such as <|im_end|>.",
        section="Prompt", advanced=True, compared="always", wire="quiet",
    ))
    #: tokens of the conversation dropped before the prompt, so that positions of the sampling noise continue
    left: int = setting(0, Facts("integer", least=0, most=2**62, row=False, compared="never", wire="quiet"))
    #: drafters for this answer, of those that are loaded; None: `LoadSettings.spec_type`
    spec_type: str | None = setting(None, Facts("drafters", compared="never", wire="quiet"))
    #: draft-length policy for this answer; None: `LoadSettings.pace`
    pace: str | None = setting(None, Facts("pace", compared="never", wire="quiet"))
    #: maximum number of draft tokens for this answer; None: `LoadSettings.draft_n_max`
    draft_n_max: int | None = setting(None, Facts("integer", least=0, most=MAX_DRAFT, compared="never", wire="quiet"))
    #: work around messages that the chat template rejects, with a note, instead of raising an error
    lenient: bool = setting(False, Facts("flag", row=False, compared="never", wire="quiet"))
    #: JSON object of arguments for the chat template, such as `tools` and `enable_thinking`
    template: str = setting("", Facts("text", row=False, compared="always", wire="apart"))
    #: let drafters look up the answer later
    remembered: bool = setting(True, Facts("flag", row=False, compared="never", wire="quiet"))
    #: the answer cannot end before it has this many tokens
    min_tokens: int = setting(0, Facts("integer", least=0, most=LARGEST))
    #: tokens that end the answer like the model's end tokens
    stop_token_ids: tuple[int, ...] = setting((), Facts("ids"))
    #: texts that the answer must not contain (`Ends` in `runtime/answering.py`)
    bad_words: tuple[str, ...] = setting((), Facts("texts"))
    #: adapters for this answer, by number or name, and their scales; none: the defaults of `LoadSettings.lora`
    lora: tuple[tuple[int | str, float], ...] = setting((), Facts("adapters", compared="never", wire="apart"))
    #: False: process the whole prompt, even if the KV cache holds some of it
    cache_prompt: bool = setting(True, Facts("flag", compared="never", wire="all"))
    #: keep the marks of the model in an answer to messages; by default, text is written with common marks (`PlainText`)
    raw_marks: bool = setting(False, Facts("flag", row=False, wire="quiet"))
    #: sample as for code completions (`core/infill.py`)
    infill: bool = setting(False, Facts("flag"))
    #: report in events how much of the prompt has been read (`TokenEvent.reading`)
    return_progress: bool = setting(False, Facts("flag", row=False, compared="never"))
    #: the answer ends at a line that begins with fewer blanks; the first line does not count
    n_indent: int = setting(0, Facts("integer", least=0, most=LARGEST))
    #: milliseconds from the first token, after which the answer ends with the line that is complete next; 0, -1: never
    t_max_predict_ms: int = setting(0, Facts("integer", least=-1, most=LARGEST, row=False, compared="never"))
    # fmt: on

    @property
    def constraint(self) -> tuple[Constraint, str] | None:
        """The constraint of the answer, if there is one."""
        return next(((kind, text) for kind in CONSTRAINTS if (text := getattr(self, kind))), None)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Texts to make vectors of, or documents to rank for a query. A text may be given as token ids."""

    texts: tuple[str | tuple[int, ...], ...]
    #: if given, the result for each text is a score and not a vector
    query: str | None = None
    #: cut texts that are longer than the context, instead of raising an error
    truncate: bool = False


def fixed_length(pace: str) -> int | None:
    """Return the K of "fixed:K", or None for other policies."""
    return int(pace.removeprefix("fixed:")) if pace.startswith("fixed:") else None


def in_order(names: Iterable[str]) -> str:
    """Return drafters as written in `spec_type`, in the order in which they are asked."""
    order = [*REGISTRY]
    return ",".join(sorted(names, key=lambda name: (order.index(drafter_of(name)), name)))


def drafters_of(spec_type: str) -> tuple[str, ...]:
    """Return the names of the drafters in a `spec_type`."""
    return () if spec_type == "none" else tuple(drafter_of(name) for name in spec_type.split(","))


def drafter_of(name: str) -> str:
    """Return the drafter that an item of `spec_type` names: "self" for "self:8"."""
    return name.partition(":")[0] if name.startswith(SELF) and name != SELF else name


def shown(value: object) -> str:
    """Return a value for an error message, cut if it is long."""
    try:
        text = repr(value[:40] if isinstance(value, str | list) else value)
    except (RecursionError, ValueError):  # lists in lists, or a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def schema_text(schema: object) -> object:
    """Return a JSON schema as text, other values unchanged. Raises ValueError, TypeError, RecursionError."""
    return json.dumps(schema) if isinstance(schema, Mapping | bool) else schema


def bias_pairs(biases: object) -> object:
    """Return (id, bias) pairs for a mapping, other values unchanged."""
    return tuple(biases.items()) if isinstance(biases, Mapping) else biases


def option_of(field: str, value: str = "") -> str:
    """Return what gives a field a value on the command line, such as "-c 2048"; "" if no option does."""
    if field == "prompt":
        return "--raw"
    found = (facts_of(kind).get(field) for kind in (LoadSettings, Request, SamplingSettings))
    facts = next((facts for facts in found if facts is not None and facts.help), None)
    return typed_option(field, facts, value) if facts is not None else ""


def with_options(message: str) -> str:
    """Return a message in which settings have the names of their options."""
    return with_names(message, option_of)


def random_seed() -> int:
    """Return a seed for a request that has none."""
    return secrets.randbits(SEED_BITS)
