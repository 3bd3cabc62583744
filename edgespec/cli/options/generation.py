"""The options of commands that generate text, each declared once, and the settings that their values make.

An option that configures a model or a request has the name of the field that it sets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

import click

from edgespec.cli.options.common import Option, flag, option
from edgespec.cli.options.types import (
    DURATION,
    LAYERS,
    LOGIT_BIAS,
    PACE,
    SPEC_TYPE,
    ConstraintText,
    FileName,
    Integer,
    ModelSpec,
    Number,
    StopText,
    Text,
)
from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import Facts, SettingError, facts_of, option_names
from edgespec.drafters.registry import help_text
from edgespec.errors import UsageError
from edgespec.llama.constraint import constraint_text
from edgespec.settings import (
    CACHE_TYPES,
    CONSTRAINTS,
    LARGEST,
    MAX_SEQUENCES,
    AnswerSettings,
    Constraint,
    Image,
    LoadSettings,
    Message,
    Request,
)


def _breakers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the breakers that were given, if any, with newlines for `\\n`; "none" is no breaker."""
    return tuple(text.replace("\\n", "\n") for text in value if text != "none") if value else None


class _Loading:
    """Declares options of a section; each sets the field of LoadSettings with the same name, and has its default, and
    what its kind means unless it has a `type`."""

    def __init__(self, section: str) -> None:
        self.section = section

    def __call__(self, names: str, help: str, *, shown: str = "", **attrs: Any) -> Option:
        """`shown` describes the default in the help, if the settings choose it: the option's own value is then None,
        and 0, which asks the settings to choose, is no value of the option."""
        name = names.split()[-1].lstrip("-").replace("-", "_")
        facts = facts_of(LoadSettings)[name]
        if shown:
            attrs |= {"default": None, "show_default": shown}
            if facts.kind == "integer" and facts.default == 0:
                facts = replace(facts, least=1)
        if "type" not in attrs and "/" not in names:
            attrs |= _attributes(name, facts)
        return Option(*names.split(), section=self.section, help=help, **{"default": facts.default, **attrs})


_model, _speculation = _Loading("Model"), _Loading("Speculation")


def _attributes(field: str, facts: Facts) -> dict[str, Any]:
    """Return what the kind of a setting means for its option."""
    match facts.kind:
        case "integer":
            least = -1 if facts.least is None else int(facts.least)  # -1 switches off what has no limit
            return {"type": Integer(least, LARGEST if facts.most is None else int(facts.most))}
        case "number":
            return {"type": Number(facts.least, facts.most, min_open=facts.is_open)}
        case "flag":
            return {"is_flag": True}
        case "choice":
            return {"type": click.Choice(facts.choices, case_sensitive=False)}
        case "texts":
            return {"type": Text(), "multiple": True}
        case "stops":
            return {"type": StopText(), "multiple": True}
        case "breakers":
            return {"type": Text(), "multiple": True, "callback": _breakers}
        case "biases":
            return {"type": LOGIT_BIAS, "multiple": True}
        case "constraint" | "schema":
            return {"type": ConstraintText(cast("Constraint", field)), "default": None}
        case "drafters":
            return {"type": SPEC_TYPE}
        case "pace":
            return {"type": PACE}
        case _:
            return {"type": Text()}


def _option(section: str, settings: type, field: str, *, more: str = "") -> Option:
    """Return the option that sets a field of `settings`, as the field is declared. Its help ends with `more`."""
    facts = facts_of(settings)[field]
    attrs: dict[str, Any] = {"default": facts.default} | _attributes(field, facts)
    if facts.shown:
        attrs |= {"default": None, "show_default": facts.shown}
    if facts.metavar:
        attrs["metavar"] = facts.metavar
    help = " ".join(filter(None, (facts.help, more, "Repeatable." if attrs.get("multiple") else "")))
    names = (*option_names(field, facts), field)
    return Option(*names, section=facts.section or section, help=help, advanced=facts.advanced, **attrs)


def _options(section: str, settings: type) -> dict[str, Option]:
    """Return the options of the declared settings that have a help text, by their fields."""
    return {field: _option(section, settings, field) for field, facts in facts_of(settings).items() if facts.help}


_ANSWERS = _options("Answer", Request)

# fmt: off
SYSTEM = Option("-s", "--system", section="Prompt", type=Text(), metavar="TEXT",
    help="System prompt. The default is the model's own, if it has one; an empty TEXT leaves it out.",
)

FILE = option(
    "Prompt", "-f", "--file", metavar="FILE", multiple=True, type=click.Path(dir_okay=True, allow_dash=True),
    help="Append a file to the prompt: text, PDF, DOCX, HTML or CSV, pages of it ('a.pdf 1-20'), or the files of a "
    "folder or pattern (src/**/*.py), or show the model an image. Repeatable.",
)

QUESTION = [
    SYSTEM,
    Option(
        "--chat/--raw", section="Prompt", default=None,
        show_default="--chat if the model has a chat template",
        help="Send the prompt as a chat message, or complete it verbatim.",
    ),
    _ANSWERS["special"],
]

TARGET = Option(
    "-m", "--model", section="Model", type=ModelSpec(), metavar="MODEL", show_default="smollm2",
    help="Model: a GGUF file, a name of 'edgespec ls --catalog' (qwen2.5-7b), a Hugging Face repository "
    "(hf:owner/name:Q4_K_M), or 'demo', a tiny bundled model. EDGESPEC_DEFAULT_MODEL changes the default.",
)

TARGET_NAME = click.Argument(["target"], metavar="[MODEL]", required=False, type=ModelSpec())

CTX_SIZE = _model("-c --ctx-size", "Context size in tokens.", shown="the model's training context, at most 8192")

GPU_LAYERS = _model(
    "-ngl --gpu-layers", "Layers of the model on the GPU, counting the output layer. auto: as many as fit.",
    type=LAYERS, metavar="N|auto|all",
)

GPU_LAYERS_DRAFT = _model(
    "-ngld --gpu-layers-draft", "Layers of the draft model on the GPU. auto: all of them, or none if not all fit.",
    type=LAYERS, metavar="N|auto|all", advanced=True,
)

DEVICE_DRAFT = _model(
    "-devd --device-draft --draft-device device_draft", "Devices of the draft model.", shown="as --device", type=Text(),
    metavar="NAME,...", advanced=True,
)


def _list_devices(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from edgespec.llama.devices import listing

        click.echo(listing())
        ctx.exit()


HELD = [
    _model(
        "-dev --device", "Devices for the layers on the GPU. auto: all GPUs. none: use no GPU.", type=Text(),
        metavar="NAME,...",
    ),
    option(
        "Model", "--list-devices", is_flag=True, is_eager=True, expose_value=False, callback=_list_devices,
        help="List the devices that layers can be put on, with their memory, and exit.",
    ),
    _model(
        "-ncmoe --n-cpu-moe", "Keep the experts of the first N layers of a MoE model in main memory.", advanced=True,
    ),
    _model("-cmoe --cpu-moe", "Keep all experts of a MoE model in main memory.", advanced=True),
    _model(
        "--repack/--no-repack repack",
        "Copy weights into a layout that is fast for passes over several tokens. Without it, loading takes no time and "
        "the weights stay in their file; texts are the same.",
        advanced=True,
    ),
    _model("-t --threads", "CPU threads for decoding one token.", shown="physical cores, fewer while others use them"),
    _model(
        "-tb --threads-batch", "CPU threads for prompts and for verifying drafts.", shown="as --threads", advanced=True,
    ),
    _model("-fa --flash-attn flash_attention", "Flash attention.", advanced=True),
    _model("-ctk --cache-type-k", f"Type of the K cache: {', '.join(CACHE_TYPES)}.", metavar="TYPE", advanced=True),
    _model(
        "-ctv --cache-type-v", "Type of the V cache; a quantised one needs flash attention.", metavar="TYPE",
        advanced=True,
    ),
]


def _go_offline(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    return value


OFFLINE = Option(
    "--offline", section="Model", is_flag=True, is_eager=True, callback=_go_offline, help="Never use the network.",
)


FETCHING = [OFFLINE, option("Model", "-y", "--yes", is_flag=True, help="Download missing models without asking.")]

AUTO = "auto"
SERVER = Option(
    "--server", section="Server", type=Text(), metavar="auto|URL",
    help="auto: use a running server of yours that has loaded the same model with the same settings, if there is one. "
    "URL: use a model of this server ('edgespec serve'). EDGESPEC_API_KEY is its key.",
)

KEEP_ALIVE = Option(
    "--keep-alive", section="Model", type=DURATION, metavar="TIME",
    help="Keep the model loaded for TIME (10m, 1h30m) after the answer. The next calls with --keep-alive or --server "
    "auto use it. 'edgespec ps' lists such models.",
)

MODEL = [
    TARGET,
    _model(
        "-mm --mmproj", "Projector, with which the model sees images: a GGUF file. none: see no images.", type=Text(),
        metavar="FILE|none", shown="mmproj*.gguf in the model's folder",
    ),
    _model(
        "--chat-template",
        "Chat template to use: the name of one in the model file ('edgespec show' lists them), or chatml.",
        type=Text(), metavar="NAME", shown="the model's, and its tool_use for requests with tools", advanced=True,
    ),
    _model(
        "--chat-template-file", "Chat template to use instead of the model's, in Jinja.", type=FileName(),
        metavar="FILE", advanced=True,
    ),
    CTX_SIZE,
    GPU_LAYERS,
    GPU_LAYERS_DRAFT,
    DEVICE_DRAFT,
    _model(
        "--rpc",
        "Put layers of the model on the machine at this address, which runs 'edgespec rpc-worker'. Repeatable.",
        type=Text(), metavar="HOST:PORT", multiple=True, envvar="EDGESPEC_RPC_WORKERS", advanced=True,
    ),
    _model(
        "--lora",
        "LoRA adapter for the model, and its scale. 0: load it for requests that ask for it ('serve'). Repeatable.",
        type=Text(), metavar="[NAME=]FILE[=SCALE]", multiple=True, advanced=True,
    ),
    *HELD,
    _model(
        "--cache-ram", "Overflow cache for prompts in main memory. 0: none.", metavar="MIB",
        shown="an eighth of the free memory, at most 8192", advanced=True,
    ),
    *FETCHING,
]

DRAFT_MODEL = _speculation(
    "-md --draft-model",
    "Draft model of the same family, or a draft head made for the model. auto: the best compatible model on this "
    "machine ('edgespec pair suggest').",
    type=ModelSpec(), metavar="MODEL|auto", shown="the catalogue's draft for the model",
)

CORPUS = _speculation("--corpus", "Also draft from these texts ('edgespec corpus').", type=Text(), metavar="NAME|FILE")

SPECULATION = [
    DRAFT_MODEL,
    _option("Speculation", LoadSettings, "spec_type", more=help_text()),
    *(_option("Speculation", LoadSettings, field) for field in ("spec_draft_n_max", "pace", "spec_tree")),
    _speculation(
        "--overlap", "Let the draft model work while the model verifies. auto: if they are on different devices.",
        advanced=True,
    ),
    CORPUS,
    _speculation(
        "--store/--no-store store",
        "Let drafters use earlier answers, and save this answer for them ('edgespec store').",
    ),
    _ANSWERS["verify"],
    _speculation(
        "--exact/--fast exact",
        "Make the text identical with and without drafts, where this costs almost nothing: on CPUs and many GPUs. "
        "--fast uses llama.cpp's default kernels instead.",
    ),
    _speculation(
        "--strict",
        "Make the text identical where --exact cannot. It can take more than twice the time, and the text may differ "
        "from the text without --strict.",
    ),
    _speculation("-cd --ctx-size-draft", "Context size of the draft model.", shown="as --ctx-size", advanced=True),
    _speculation("-td --threads-draft", "CPU threads of the draft model.", shown="as --threads", advanced=True),
]

SAMPLING = [
    *_options("Sampling", SamplingSettings).values(),
    Option(
        *("--seed", "seed"), section="Sampling", type=Integer(-1, 2**64 - 1), default=-1, show_default="random",
        help=facts_of(Request)["seed"].help,
    ),
]

ENDS = [_ANSWERS[field] for field in facts_of(AnswerSettings) if _ANSWERS[field].section == "Answer"]

ANSWER = [
    *ENDS,
    *(each for each in _ANSWERS.values() if each.section == "Answer" and each not in ENDS),
    option("Answer", "--samples", type=Integer(1, MAX_SEQUENCES), default=1, help="Generate N different answers."),
]

SAID = [
    flag("-q", "--quiet", config=True, help="No notes, progress, seed or statistics on stderr."),
    flag("-v", "--verbose", config=True, help="Log details to stderr, with tracebacks of errors."),
]

SHOWN = [
    flag("--stats", config=True, help="Show speed, what drafts gained, and exactness in three lines on stderr."),
    *SAID,
]

OUTPUT = [
    flag("--json", "as_json", config=True, help="Print one JSON object at the end instead of text."),
    flag("--explain", config=True, help="Show on stderr where the time went and what each drafter gained."),
    *SHOWN,
]
# fmt: on

RUN = [FILE, *QUESTION, SERVER, *MODEL, KEEP_ALIVE, *SPECULATION, *SAMPLING, *ANSWER, *OUTPUT]
"""The options of `run`; configuration files may set those with `config`."""

CHAT = [SYSTEM, *MODEL, *SPECULATION, *SAMPLING, *ENDS, *SHOWN]
"""The options that a conversation shares with `run`."""


# --- settings from values ---------------------------------------------------------------------------------------------


def load_settings(values: Mapping[str, Any]) -> LoadSettings:
    """Return what to load, from the values of the options by name."""
    return LoadSettings(**_given(LoadSettings, values))


def request(values: Mapping[str, Any], prompt: str, images: Sequence[Image] = (), *, chat: bool, seed: int) -> Request:
    """Return what to generate for `prompt`, a user message or a text to complete. Raises UsageError."""
    if images and not chat:
        why = "--raw was asked for" if values["chat"] is False else "this model has no chat template"
        raise UsageError("images need a chat", why=why)
    system = values["system"]
    turns = [Message("system", system)] if system else []
    texts: dict[str, Any] = {kind: constraint_text(kind, given) for kind, given in constraints(values).items()}
    what = {
        "prompt": "" if chat else prompt,
        "messages": (*turns, Message("user", prompt, images=tuple(images))) if chat else (),
    }
    how = {"sampling": sampling_settings(values), "seed": seed}
    # Drafting is set when loading, for all answers.
    given = {name: value for name, value in _given(Request, values).items() if name not in _given(LoadSettings, values)}
    return Request(**given | texts | what | how)


def constraints(values: Mapping[str, Any]) -> dict[Constraint, str]:
    """Return the constraints of answers: the command line overrides the environment, which overrides files."""
    ctx = click.get_current_context(silent=True)
    given = {kind: values[kind] for kind in CONSTRAINTS if values[kind]}
    sources = {kind: ctx.get_parameter_source(kind) if ctx else None for kind in given}
    order = (click.ParameterSource.COMMANDLINE, click.ParameterSource.ENVIRONMENT, click.ParameterSource.DEFAULT_MAP)
    nearest = next((source for source in order if source in sources.values()), None)
    return {kind: given[kind] if kind in given and sources[kind] is nearest else "" for kind in CONSTRAINTS}


def sampling_settings(values: Mapping[str, Any]) -> SamplingSettings:
    """Return how to sample. Raises UsageError."""
    try:
        return SamplingSettings(**_given(SamplingSettings, values))
    except SettingError as error:
        raise UsageError(str(error), field=error.field) from error


def _given(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that name a field of `settings`; None keeps the field's default."""
    names = {field.name for field in fields(settings)}
    return {name: value for name, value in values.items() if name in names and value is not None}
