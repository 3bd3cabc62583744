"""The options of commands that generate text, each declared once; `given.py` turns their values into settings.

An option that configures a model or a request has the name of the field it sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, get_args

import click

from edgespec import __version__
from edgespec.cli.options.command import Option
from edgespec.cli.options.common import Decorated, flag, with_options
from edgespec.cli.options.types import (
    ConstraintText,
    DraftPolicy,
    Integer,
    Layers,
    LogitBias,
    ModelSpec,
    Number,
    SpecType,
    StopText,
    Text,
)
from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.drafters.registry import help_text
from edgespec.settings import (
    CACHE_TYPES,
    DRAFT_N_MAX,
    MAX_DRAFT,
    MAX_LEAVES,
    MAX_SEQUENCES,
    MAX_THREADS,
    MOST_CACHE_RAM,
    STRICT_DRAFT_N_MAX,
    LoadSettings,
    Request,
)

LARGEST = 2**31 - 1


def _default(settings: type, name: str) -> Any:
    """The default of a field, which is defined in `settings` only."""
    field = next(field for field in fields(settings) if field.name == name)
    return field.default_factory() if field.default is MISSING and callable(field.default_factory) else field.default


def _declare(section: str, settings: type, *names: str, **attrs: Any) -> Callable[[Decorated], Decorated]:
    """An option that sets the field `names[-1]` of `settings`."""
    attrs.setdefault("default", _default(settings, names[-1]))
    attrs.setdefault("show_default", attrs["default"] is not None and attrs["default"] != ())
    return click.option(*names, cls=Option, section=section, **attrs)


def _model(*names: str, **attrs: Any) -> Callable[[Decorated], Decorated]:
    return _declare("Model", LoadSettings, *names, **attrs)


def _speculation(*names: str, **attrs: Any) -> Callable[[Decorated], Decorated]:
    return _declare("Speculation", LoadSettings, *names, **attrs)


def _sampling(*names: str, **attrs: Any) -> Callable[[Decorated], Decorated]:
    return _declare("Sampling", SamplingSettings, *names, **attrs)


_flag = partial(flag, config=True)  # may stand in configuration files

SYSTEM = click.option(
    "-s", "--system", cls=Option, section="Prompt", type=Text(), metavar="TEXT",
    help="System prompt (chat mode).",
)  # fmt: skip

FILE = click.option(
    "-f", "--file", cls=Option, section="Prompt", config=False, metavar="FILE", multiple=True,
    type=click.Path(dir_okay=True, allow_dash=True),
    help="Append FILE (UTF-8) to the prompt; one trailing newline is dropped. The files of a folder or of a pattern "
    "(src/**/*.py) follow with their names. Repeatable.",
)  # fmt: skip

QUESTION = [
    SYSTEM,
    click.option(
        "--chat/--raw", cls=Option, section="Prompt", default=None, exclusive=True,
        show_default="chat if the model has a template",
        help="Send the prompt as a user message, or complete it verbatim.",
    ),
    _declare(
        "Prompt", Request, "--special", "special", is_flag=True,
        help="Parse special tokens written in the prompt, such as <|im_end|>.",
    ),
]  # fmt: skip

PROMPT = [FILE, *QUESTION]

TARGET = click.option(
    "-m", "--model", cls=Option, section="Model", type=ModelSpec(), metavar="MODEL", show_default="smollm2",
    help="Target model: a GGUF file, a name of the catalogue (qwen2.5-7b), a repository of the Hugging Face hub "
    "(hf:owner/name:Q4_K_M), or 'demo' for the bundled pair. EDGESPEC_DEFAULT_MODEL names another default.",
)  # fmt: skip

CTX_SIZE = _model(
    "-c", "--ctx-size", "ctx_size", type=Integer(1, LARGEST), default=None, metavar="N",
    show_default="the model's training context, at most 8192", help="Context size in tokens.",
)  # fmt: skip

GPU_LAYERS = _model(
    "-ngl", "--gpu-layers", "gpu_layers", type=Layers(), metavar="N|auto|all",
    help="Layers of the target on the GPU, counting the output layer; 'auto' is as many as fit, after the draft.",
)  # fmt: skip

GPU_LAYERS_DRAFT = _model(
    "-ngld", "--gpu-layers-draft", "gpu_layers_draft", type=Layers(), metavar="N|auto|all",
    help="Layers of the draft model on the GPU; 'auto' is all, or none if not all fit.",
)  # fmt: skip

RPC = _model(
    "--rpc", "rpc", type=Text(), multiple=True, metavar="HOST:PORT",
    envvar="EDGESPEC_RPC_WORKERS",  # EDGESPEC_RPC is a choice of the build
    help="Put layers of the target on the worker at this address ('edgespec rpc-worker'), by its free memory, or as "
    "many as -ngl says. Repeatable.",
)  # fmt: skip

CACHE_RAM = _model(
    "--cache-ram", "cache_ram", type=Integer(0, MOST_CACHE_RAM), default=None, metavar="MIB",
    show_default="an eighth of the free memory, at most 8192",
    help="Main memory as an overflow of the KV cache: what is kept there need not be processed again; 0: none.",
)  # fmt: skip

HELD = [
    _model(
        "-t", "--threads", "threads", type=Integer(1, MAX_THREADS), default=None, metavar="N",
        show_default="physical cores", help="Threads for passes over one token.",
    ),
    _model(
        "-tb", "--threads-batch", "threads_batch", type=Integer(1, MAX_THREADS), default=None, metavar="N",
        show_default="as --threads", help="Threads for prefill and for verifying drafts.",
    ),
    _model(
        "-fa", "--flash-attn", "flash_attention", type=click.Choice(["auto", "on", "off"], case_sensitive=False),
        help="Flash attention.",
    ),
    _model(
        "-ctk", "--cache-type-k", "cache_type_k", type=click.Choice(CACHE_TYPES, case_sensitive=False),
        metavar="TYPE", help=f"Type of the K cache: {', '.join(CACHE_TYPES)}.",
    ),
    _model(
        "-ctv", "--cache-type-v", "cache_type_v", type=click.Choice(CACHE_TYPES, case_sensitive=False),
        metavar="TYPE", help="Type of the V cache, as for K; a quantised one needs flash attention.",
    ),
]  # fmt: skip


def _go_offline(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    return value


OFFLINE = click.option(
    "--offline", cls=Option, section="Model", is_flag=True, is_eager=True, callback=_go_offline,
    help="Never use the network; for missing models, print the command that downloads them.",
)  # fmt: skip

FETCHING = [
    OFFLINE,
    click.option(
        "-y", "--yes", cls=Option, section="Model", config=False, is_flag=True,
        help="Download missing models without asking.",
    ),
]  # fmt: skip

MODEL = [TARGET, CTX_SIZE, GPU_LAYERS, GPU_LAYERS_DRAFT, RPC, *HELD, CACHE_RAM, *FETCHING]

DRAFT_MODEL = _speculation(
    "-md", "--draft-model", "draft_model", type=ModelSpec(), metavar="MODEL|auto",
    show_default="the target's default draft, if any",
    help=(
        "Draft model, ideally of the target's family, or a draft head made for the target. With a different "
        "vocabulary it drafts only shared tokens. auto: the best one on this machine ('edgespec pair suggest')."
    ),
)  # fmt: skip

SPEC_TYPE = _speculation(
    "--spec-type", "spec_type", type=SpecType(), metavar="auto|none|DRAFTER,...",
    help=f"Drafters to use. {help_text()}",
)  # fmt: skip

CORPUS = _speculation(
    "--corpus", "corpus", type=Text(), metavar="NAME|FILE", help="Draft from this corpus, too ('edgespec corpus').",
)  # fmt: skip

SPECULATION = [
    DRAFT_MODEL,
    SPEC_TYPE,
    _speculation(
        "--spec-draft-n-max", "spec_draft_n_max", type=Integer(0, MAX_DRAFT), metavar="N",
        show_default=f"{DRAFT_N_MAX}, {STRICT_DRAFT_N_MAX} with --strict",
        help=f"Maximum draft tokens per step, up to {MAX_DRAFT}; 0 disables drafting.",
    ),
    _speculation(
        "--pace", "pace", type=DraftPolicy(), metavar="auto|fixed:K|off",
        help=(
            "Draft-length policy. auto: as many tokens as pay off by measured costs, or none; fixed:K: always K; "
            "off: none."
        ),
    ),
    _speculation(
        "--spec-tree", "spec_tree", type=Integer(1, MAX_LEAVES), metavar="WIDTH",
        help=(
            f"Draft trees with up to WIDTH branches (at most {MAX_LEAVES}) and --spec-draft-n-max tokens, from all "
            "drafters together; 1 is chains."
        ),
    ),
    _speculation(
        "--overlap", "overlap", type=click.Choice(["auto", "on", "off"], case_sensitive=False),
        help="Let the draft model draft on while the target verifies. auto: if they are on different devices.",
    ),
    CORPUS,
    _speculation(
        "--store/--no-store", "store",
        help="Let suffix drafting use answers of earlier runs, and save this one ('edgespec store').",
    ),
    _declare(
        "Speculation", Request, "--verify", "verify", type=click.Choice(get_args(VerifyRule)),
        metavar="|".join(get_args(VerifyRule)),
        help=(
            "Verification rule. coupled: same seed, same text as plain decoding. rejection, block: different text, "
            "same distribution. typical: changes the distribution."
        ),
    ),
    _speculation(
        "--exact/--fast", "exact",
        help="Choose kernels and widths of a forward pass so that the output is identical with and without "
        "speculation, on CPUs at almost no cost; --fast takes llama.cpp's defaults instead.",
    ),
    _speculation(
        "--strict", "strict", is_flag=True,
        help=(
            "Bit-identical output with and without speculation (compare with --strict --spec-type none and the same "
            "--spec-draft-n-max). Pads passes, which can cost more than half the speed; the text may differ from the "
            "one without --strict."
        ),
    ),
    _speculation(
        "-cd", "--ctx-size-draft", "ctx_size_draft", type=Integer(1, LARGEST), default=None, metavar="N",
        show_default="as the target", help="Context size of the draft model in tokens; it drafts nothing beyond.",
    ),
    _speculation(
        "-td", "--threads-draft", "threads_draft", type=Integer(1, MAX_THREADS), default=None, metavar="N",
        show_default="as --threads", help="Threads for the draft model's passes over one token.",
    ),
    _speculation(
        "-tbd", "--threads-batch-draft", "threads_batch_draft", type=Integer(1, MAX_THREADS), default=None,
        metavar="N", show_default="as --threads-batch", help="Threads for the draft model's wider passes.",
    ),
    _speculation(
        "-ctkd", "--cache-type-k-draft", "cache_type_k_draft", metavar="TYPE", show_default="as --cache-type-k",
        type=click.Choice(CACHE_TYPES, case_sensitive=False), help="Type of the draft model's K cache.",
    ),
    _speculation(
        "-ctvd", "--cache-type-v-draft", "cache_type_v_draft", metavar="TYPE", show_default="as --cache-type-v",
        type=click.Choice(CACHE_TYPES, case_sensitive=False), help="Type of the draft model's V cache.",
    ),
]  # fmt: skip

SAMPLING = [
    _sampling(
        "--temp", "temperature", type=Number(min=0), metavar="T",
        help="Temperature; 0 is greedy.",
    ),
    _sampling(
        "--top-k", "top_k", type=Integer(min=-1), metavar="N",
        help="Sample from the N most likely tokens; 0 is off.",
    ),
    _sampling(
        "--top-p", "top_p", type=Number(0, 1, min_open=True), metavar="P",
        help="Sample from the most likely tokens up to a total probability of P; 1 is off.",
    ),
    _sampling(
        "--min-p", "min_p", type=Number(0, 1), metavar="P",
        help="Sample from tokens at least P times as likely as the best; 0 is off.",
    ),
    _sampling(
        "--typical-p", "typical_p", type=Number(0, 1, min_open=True), metavar="P",
        help="Locally typical sampling up to a total probability of P; 1 is off.",
    ),
    _sampling(
        "--repeat-penalty", "repeat_penalty", type=Number(min=0, min_open=True), metavar="X",
        help="Penalty factor for repeated tokens; 1 is off.",
    ),
    _sampling(
        "--repeat-last-n", "repeat_last_n", type=Integer(min=-1), metavar="N",
        help="Number of last tokens the penalties look at; 0 is off, -1 is all.",
    ),
    _sampling(
        "--presence-penalty", "presence_penalty", type=Number(), metavar="X",
        help="Subtract X from the logits of repeated tokens.",
    ),
    _sampling(
        "--frequency-penalty", "frequency_penalty", type=Number(), metavar="X",
        help="Subtract X from a token's logit for each repetition.",
    ),
    _sampling(
        "-l", "--logit-bias", "logit_bias", type=LogitBias(), multiple=True, metavar="ID+BIAS|ID-BIAS",
        help="Add BIAS to the logit of token ID; ID-inf bans it. Repeatable.",
    ),
    _declare(
        "Sampling", Request, "--seed", "seed", type=Integer(-1, 2**64 - 1), default=-1, metavar="N",
        show_default="random", help="Same seed, same text; -1 picks one and shows it.",
    ),
]  # fmt: skip

ENDS = [
    _declare(
        "Answer", Request, "-n", "--max-tokens", "max_tokens", type=Integer(-1, LARGEST), metavar="N",
        help="Maximum tokens to generate; -1: until the model stops or the context is full, 0 prints nothing.",
    ),
    _declare(
        "Answer", Request, "--stop", "stop", type=StopText(), multiple=True, metavar="TEXT",
        help="Stop before TEXT. Repeatable.",
    ),
    _declare(
        "Answer", Request, "--grammar", "grammar", type=ConstraintText("grammar"), metavar="FILE|GBNF",
        default=None, help="Constrain the answer to a grammar.",
    ),
    _declare(
        "Answer", Request, "-j", "--json-schema", "json_schema", type=ConstraintText("json_schema"),
        metavar="FILE|JSON", default=None,
        help="Constrain the answer to JSON that matches a schema; {} allows any JSON.",
    ),
    _declare(
        "Answer", Request, "--regex", "regex", type=ConstraintText("regex"), metavar="REGEX", default=None,
        help="Constrain the whole answer to a regular expression.",
    ),
]  # fmt: skip

ANSWER = [
    *ENDS,
    _declare(
        "Answer", Request, "--ignore-eos", "ignore_eos", is_flag=True,
        help="Continue past the model's end-of-text token.",
    ),
    click.option(
        "--samples", cls=Option, section="Answer", config=False, type=Integer(1, MAX_SEQUENCES), default=1,
        show_default=True, metavar="N", help="Generate N answers from one seed, together, processing the prompt once.",
    ),
    _declare(
        "Answer", Request, "--logprobs", "logprobs", type=Integer(min=0), metavar="N",
        help="Report each token's log probability, and those of the N most likely ('run' needs --json for it).",
    ),
]  # fmt: skip

SAID = [
    _flag("-q", "--quiet", help="No notes, progress, seed or statistics on stderr."),
    _flag("-v", "--verbose", help="Log details to stderr, with tracebacks of errors."),
    click.version_option(__version__, "-V", "--version", message="edgespec %(version)s"),
]  # fmt: skip

SHOWN = [
    _flag("--stats", help="Show three lines on stderr: speed, what speculation gained, and exactness."),
    *SAID,
]  # fmt: skip

OUTPUT = [
    _flag("--json", "as_json", help="Print one JSON object at the end instead of text."),
    _flag("--explain", help="Show on stderr where the time went, what each drafter did, and the speed it added."),
    *SHOWN,
]  # fmt: skip


def generation_options(command: Decorated) -> Decorated:
    """All the options above, in this order."""
    return with_options(command, [*PROMPT, *MODEL, *SPECULATION, *SAMPLING, *ANSWER, *OUTPUT])


def chat_options(command: Decorated) -> Decorated:
    """Those that a conversation has too."""
    return with_options(command, [SYSTEM, *MODEL, *SPECULATION, *SAMPLING, *ENDS, *SHOWN])
