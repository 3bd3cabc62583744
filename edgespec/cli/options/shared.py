"""The options of commands that generate text, each declared once, and the settings that their values make.

An option that configures a model or a request has the name of the field that it sets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar, cast

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
from edgespec.drafters.registry import help_of_others, help_text
from edgespec.errors import UsageError
from edgespec.llama.constraint import constraint_text
from edgespec.settings import (
    CONSTRAINTS,
    LARGEST,
    MAX_SEQUENCES,
    AnswerSettings,
    Constraint,
    LoadSettings,
    Request,
)

Settings = TypeVar("Settings")
AUTO = "auto"


def _breakers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the breakers that were given, if any, with newlines for `\\n`; "none" is no breaker."""
    return tuple(text.replace("\\n", "\n") for text in value if text != "none") if value else None


def _attributes(field: str, facts: Facts) -> dict[str, object]:
    """Return what the kind of a setting means for its option."""
    match facts.kind:
        case "integer":
            least = -1 if facts.least is None else int(facts.least)  # -1 switches off what has no limit
            least = 1 if facts.zero_chooses else least
            return {"type": Integer(least, LARGEST if facts.most is None else int(facts.most))}
        case "number":
            return {"type": Number(facts.least, facts.most, min_open=facts.is_open)}
        case "flag":
            return {} if "/" in facts.option else {"is_flag": True}
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
        case "model":
            return {"type": ModelSpec()}
        case "file":
            return {"type": FileName()}
        case "layers":
            return {"type": LAYERS}
        case "drafters":
            return {"type": SPEC_TYPE}
        case "pace":
            return {"type": PACE}
        case _:
            return {"type": Text()}


class DraftersOption(Option):
    """An option whose help describes all drafters. Those of other packages are looked for when the help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy(self)
        shown.help = f"{self.help} {help_of_others()}".rstrip()
        return super(DraftersOption, shown).get_help_record(ctx)


def _option(section: str, field: str, facts: Facts) -> Option:
    """Return the option of a declared setting."""
    attrs: dict[str, Any] = {"default": facts.default} | _attributes(field, facts)
    if facts.shown:
        attrs |= {"default": None, "show_default": facts.shown}
    if facts.metavar:
        attrs["metavar"] = facts.metavar
    if facts.variable:
        attrs["envvar"] = facts.variable
    more = [help_text()] if facts.kind == "drafters" else ["Repeatable."] if attrs.get("multiple") else []
    names = (*option_names(field, facts), field)
    section = facts.section or section
    kind = DraftersOption if facts.kind == "drafters" else Option
    return kind(*names, section=section, help=" ".join([facts.help, *more]), advanced=facts.advanced, **attrs)


def _options(section: str, settings: type) -> dict[str, Option]:
    """Return the options of the declared settings that have a help text, by their fields."""
    return {field: _option(section, field, facts) for field, facts in facts_of(settings).items() if facts.help}


LOADING = _options("Model", LoadSettings)
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

CHAT_OR_RAW = Option(
    "--chat/--raw", section="Prompt", default=None,
    show_default="--chat if the model has a chat template",
    help="Send the prompt as a chat message, or complete it verbatim.",
)

SPECIAL = _ANSWERS["special"]

TARGET = Option(
    "-m", "--model", section="Model", type=ModelSpec(), metavar="MODEL", show_default="smollm2",
    help="Model: a GGUF file, a name of 'edgespec ls --catalog' (qwen2.5-7b), a Hugging Face repository "
    "(hf:owner/name:Q4_K_M), or 'demo', a tiny bundled model. EDGESPEC_DEFAULT_MODEL changes the default.",
)

def _list_devices(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from edgespec.llama.devices import listing

        click.echo(listing())
        ctx.exit()


LIST_DEVICES = option(
    "Model", "--list-devices", is_flag=True, is_eager=True, expose_value=False, callback=_list_devices,
    help="List the devices that layers can be put on, with their memory, and exit.",
)


def _go_offline(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    return value


OFFLINE = Option(
    "--offline", section="Model", is_flag=True, is_eager=True, callback=_go_offline, help="Never use the network.",
)


YES = option("Model", "-y", "--yes", is_flag=True, help="Download missing models without asking.")

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

OF_MODEL = [*(each for each in LOADING.values() if each.section == "Model"), OFFLINE]
OF_MODEL.insert(OF_MODEL.index(LOADING["device"]) + 1, LIST_DEVICES)
MODEL = [TARGET, *OF_MODEL]
HELD = [
    each for each in OF_MODEL
    if each in (LIST_DEVICES, OFFLINE) or each.name in (
        "device", "n_cpu_moe", "cpu_moe", "repack", "threads", "threads_batch", "flash_attention", "cache_type_k",
        "cache_type_v",
    )
]
"""The options for the place and the form of a model in memory, for commands that measure it."""

SPECULATION = [each for each in LOADING.values() if each.section == "Speculation"]
SPECULATION.insert(SPECULATION.index(LOADING["exact"]), _ANSWERS["verify"])

SAMPLING = [
    *_options("Sampling", SamplingSettings).values(),
    Option(
        *("--seed", "seed"), section="Sampling", type=Integer(-1, 2**64 - 1), default=-1, show_default="random",
        help=facts_of(Request)["seed"].help,
    ),
]

ENDS = [_ANSWERS[field] for field in facts_of(AnswerSettings) if _ANSWERS[field].section == "Answer"]

ANSWER = [*ENDS, *(each for each in _ANSWERS.values() if each.section == "Answer" and each not in ENDS)]

SAMPLES = option("Answer", "--samples", type=Integer(1, MAX_SEQUENCES), default=1, help="Generate N different answers.")

MARKDOWN = Option(
    "--markdown/--no-markdown", default=True,
    help="Draw the Markdown of answers on a terminal, or print the text of the model. Pipes always get the text.",
)
AS_JSON = flag("--json", "as_json", config=True, help="Print one JSON object at the end instead of text.")
EXPLAIN = flag("--explain", config=True, help="Show on stderr where the time went and what each drafter gained.")
STATS = flag("--stats", config=True, help="Show speed, what drafts gained, and exactness in three lines on stderr.")
QUIET = flag("-q", "--quiet", config=True, help="No notes, progress, seed or statistics on stderr.")
VERBOSE = flag("-v", "--verbose", config=True, help="Log details to stderr, with tracebacks of errors.")
# fmt: on

CONFIGURABLE = [
    each
    for each in (
        *(SYSTEM, CHAT_OR_RAW, SPECIAL, SERVER, *MODEL, KEEP_ALIVE),
        *(*SPECULATION, *SAMPLING, *ANSWER, MARKDOWN, AS_JSON, EXPLAIN, STATS, QUIET, VERBOSE),
    )
    if each.config
]
"""The options of `run` that configuration files may set. Other commands know them without loading `run`."""


# --- settings from values ---------------------------------------------------------------------------------------------


def settings_from(kind: type[Settings], values: Mapping[str, Any], ctx: click.Context) -> Settings:
    """Return settings made of the values of options, which have the names of the fields. A field whose option has no
    value, or None, keeps its default. Raises UsageError.

    The model is "" if none is named. The seed is negative if it should be random.
    """
    made: dict[str, Any] = {
        name: value for name, facts in facts_of(kind).items() if facts.help and (value := values.get(name)) is not None
    }
    if issubclass(kind, LoadSettings):
        named = values.get("model")
        made["model"] = named if isinstance(named, str) else ""  # `serve` names several models
    if issubclass(kind, AnswerSettings):
        made |= {"sampling": settings_from(SamplingSettings, values, ctx)} | constraints(values, ctx)
    try:
        return kind(**made)
    except SettingError as error:
        raise UsageError(str(error), field=error.field) from error


def constraints(values: Mapping[str, object], ctx: click.Context) -> dict[Constraint, str]:
    """Return the constraints of answers: the command line overrides the environment, which overrides files."""
    given = {kind: str(text) for kind in CONSTRAINTS if (text := values.get(kind))}
    sources = {kind: ctx.get_parameter_source(kind) for kind in given}
    order = (click.ParameterSource.COMMANDLINE, click.ParameterSource.ENVIRONMENT, click.ParameterSource.DEFAULT_MAP)
    nearest = next((source for source in order if source in sources.values()), None)
    return {kind: given[kind] if kind in given and sources[kind] is nearest else "" for kind in CONSTRAINTS}


def with_texts(request: Request) -> Request:
    """Return a request with the text of its constraint, which may be in a file. Raises UsageError."""
    if request.constraint is None:
        return request
    kind, text = request.constraint
    texts: dict[str, Any] = {kind: constraint_text(kind, text)}
    return replace(request, **texts)
