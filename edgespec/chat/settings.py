"""The settings of a chat that can be changed while it runs, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args

from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.errors import UsageError
from edgespec.llama.compiler import settled
from edgespec.llama.constraint import constraint_text
from edgespec.models.names.catalog import SAMPLING
from edgespec.settings import CONSTRAINTS, MAX_DRAFT, MAX_LEAVES, LoadSettings, Request
from edgespec.validation import check_load_settings, check_request

NONE = "none"  # the text that clears a setting
CLEARED = ("stop", *CONSTRAINTS)
DRAFTING = ("spec_type", "pace", "spec_draft_n_max", "spec_tree")
Kind = Literal["number", "integer", "choice", "text"]
Group = Literal["sampling", "answer", "drafting"]


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings for the next answer.

    Grammars, schemas and expressions are texts, or names of files that contain them. If a drafting setting is None, the
    value that the model was loaded with applies.
    """

    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    seed: int = -1  #: -1 chooses a random seed for each answer
    max_tokens: int = -1  #: -1 is no limit
    reasoning_budget: int = -1  #: -1 is no limit
    repeat_limit: int = 0  #: 0 is no limit
    stop: tuple[str, ...] = ()
    grammar: str = ""
    json_schema: str = ""
    regex: str = ""
    verify: VerifyRule = "coupled"
    spec_type: str | None = None
    pace: str | None = None
    spec_draft_n_max: int | None = None
    spec_tree: int | None = None

    @property
    def drafting(self) -> dict[str, Any]:
        """The drafting settings that differ from those the model was loaded with, as fields of LoadSettings."""
        return {name: value for name in DRAFTING if (value := getattr(self, name)) is not None}

    def drafting_as_loaded(self) -> ChatSettings:
        """Return these settings with the drafting settings that the model was loaded with."""
        return replace(self, spec_type=None, pace=None, spec_draft_n_max=None, spec_tree=None)

    @property
    def constraints(self) -> dict[str, Any]:
        """The constraint on answers, as fields of a request. Raises UsageError if its file is gone."""
        return {kind: constraint_text(kind, getattr(self, kind)) for kind in CONSTRAINTS}

    def as_json(self) -> dict[str, Any]:
        """Return plain data, without the logit biases: they belong to one vocabulary."""
        plain = asdict(self)
        plain["stop"] = list(self.stop)
        del plain["sampling"]["logit_bias"]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> ChatSettings:
        """Return the settings from the result of `as_json`, without unknown settings of other versions."""
        known = {item.name for item in fields(cls)}
        values = {name: value for name, value in plain.items() if name in known}
        sampling = {item.name for item in fields(SamplingSettings)}
        try:
            values["sampling"] = SamplingSettings(
                **{name: value for name, value in values.get("sampling", {}).items() if name in sampling}
            )
            values["stop"] = tuple(values.get("stop", ()))
            return _checked(cls(**values))
        except (TypeError, ValueError, AttributeError, UsageError):
            return cls()


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: a field of ChatSettings, or of its sampling. The name is the long option of `run`."""

    field: str
    kind: Kind
    group: Group
    help: str
    choices: tuple[str, ...] = ()
    called: str = ""  #: the name, if it differs from the field's

    @property
    def name(self) -> str:
        return self.called or self.field.replace("_", "-")

    def value(self, settings: ChatSettings) -> Any:
        owner: Any = settings.sampling if self.group == "sampling" else settings
        return getattr(owner, self.field)

    def show(self, settings: ChatSettings) -> str:
        """Return the value as a user would type it."""
        value = self.value(settings)
        if value is None:
            return "default"
        if self.field in CLEARED:
            value = ", ".join(map(_quoted, value)) if isinstance(value, tuple) else value
            return value or NONE
        return str(value)

    def parse(self, text: str) -> Any:
        """Return the value that a text means. Raises UsageError."""
        text = text.strip()
        if self.group == "drafting" and text.lower() in ("", "as loaded", "default"):
            return None
        if self.choices and text not in self.choices:
            raise UsageError(f"{self.name} must be one of {', '.join(self.choices)}, not {text!r}")
        if self.kind in ("integer", "number"):
            try:
                return int(text) if self.kind == "integer" else float(text)
            except ValueError:
                what = "an integer" if self.kind == "integer" else "a number"
                raise UsageError(f"{self.name} must be {what}, not {text!r}") from None
        if self.field in CLEARED and text == NONE:
            text = ""
        if self.field == "stop":
            parts = filter(None, map(str.strip, text.split(",")))
            return tuple(part.replace("\\n", "\n").replace("\\t", "\t") for part in parts)
        if self.field in CONSTRAINTS:
            return settled(self.field, text)
        return text.replace(" ", "").lower() if self.group == "drafting" else text


SETTINGS = (
    Setting("temperature", "number", "sampling", "Temperature; 0 is greedy.", called="temp"),
    Setting("top_k", "integer", "sampling", "Sample from the N most likely tokens; 0 is off."),
    Setting("top_p", "number", "sampling", "Sample from the likeliest tokens up to this total probability; 1 is off."),
    Setting("min_p", "number", "sampling", "Leave out tokens less likely than this share of the best one; 0 is off."),
    Setting("typical_p", "number", "sampling", "Locally typical sampling; 1 is off."),
    Setting("top_n_sigma", "number", "sampling", "Keep tokens this many standard deviations below the best; 0 is off."),
    Setting("xtc_probability", "number", "sampling", "Chance of excluding the likeliest tokens; 0 is off."),
    Setting("xtc_threshold", "number", "sampling", "XTC excludes tokens from this probability on; above 0.5 is off."),
    Setting("repeat_penalty", "number", "sampling", "Penalty factor for repeated tokens; 1 is off."),
    Setting("repeat_last_n", "integer", "sampling", "Number of last tokens the penalties look at; -1 is all."),
    Setting("presence_penalty", "number", "sampling", "Subtract this from the logits of repeated tokens; 0 is off."),
    Setting("frequency_penalty", "number", "sampling", "The same, for each repetition; 0 is off."),
    Setting("dry_multiplier", "number", "sampling", "Penalty for continuing a repetition (DRY); 0 is off."),
    Setting("dry_base", "number", "sampling", "Factor of the DRY penalty for each repeated token."),
    Setting("dry_allowed_length", "integer", "sampling", "Repeated tokens that DRY allows."),
    Setting("dry_penalty_last_n", "integer", "sampling", "Number of last tokens that DRY looks at; -1 is all."),
    Setting("seed", "integer", "answer", "Same seed, same text; -1 is a random seed per answer."),
    Setting("max_tokens", "integer", "answer", "Maximum tokens per answer; -1 is no limit."),
    Setting("reasoning_budget", "integer", "answer", "Maximum tokens of reasoning; 0 is none, -1 is no limit."),
    Setting("repeat_limit", "integer", "answer", "End an answer that repeats itself for this many tokens; 0 is never."),
    Setting("stop", "text", "answer", "Stop before any of these texts (separated by commas)."),
    Setting("json_schema", "text", "answer", "Constrain answers to JSON that fits a schema (a file, or its text)."),
    Setting("grammar", "text", "answer", "Constrain answers to a grammar (a file, or GBNF rules)."),
    Setting("regex", "text", "answer", "Constrain whole answers to a regular expression."),
    Setting("verify", "choice", "answer", "Verification rule for drafts.", get_args(VerifyRule)),
    Setting("spec_type", "text", "drafting", "Drafters: auto, none, or names separated by commas."),
    Setting("pace", "text", "drafting", "Draft length: auto, fixed:K or off."),
    Setting("spec_draft_n_max", "integer", "drafting", f"Maximum draft tokens per step, up to {MAX_DRAFT}."),
    Setting("spec_tree", "integer", "drafting", f"Maximum branches of a draft tree, up to {MAX_LEAVES}."),
)


def setting(name: str) -> Setting:
    """Return the setting with this name or field, or the only one that begins with it. Raises UsageError."""
    wanted = name.lower().lstrip("-").replace("_", "-")
    names = {item.field.replace("_", "-"): item for item in SETTINGS} | {item.name: item for item in SETTINGS}
    if wanted in names:
        return names[wanted]
    found = [item for item in SETTINGS if item.name.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} matches several settings", hint=", ".join(item.name for item in found))
    close = [f"did you mean {meant}?" for meant in get_close_matches(wanted, names, 1)]
    raise UsageError(f"unknown setting {name!r}", hint="".join(close) or ", ".join(item.name for item in SETTINGS))


def changed(settings: ChatSettings, name: str, text: str) -> ChatSettings:
    """Return `settings` with one of them changed. A constraint replaces any other. Raises UsageError."""
    item = setting(name)
    value = item.parse(text)
    if item.field in CONSTRAINTS and value:
        none: dict[str, Any] = dict.fromkeys(CONSTRAINTS, "")
        settings = replace(settings, **none)
    if item.group != "sampling":
        return _checked(replace(settings, **{item.field: value}))
    try:
        return replace(settings, sampling=replace(settings.sampling, **{item.field: value}))
    except ValueError as error:
        raise UsageError(str(error).replace(item.field, item.name)) from error


def with_changes(settings: ChatSettings, texts: Mapping[str, str]) -> ChatSettings:
    """Return `settings` with all of these changes. Raises UsageError.

    The order of `texts` does not matter: a longer draft, for example, may be possible only after the larger maximum.
    """
    waiting = dict(texts)
    while waiting:
        refused: dict[str, UsageError] = {}
        for name, text in waiting.items():
            try:
                settings = changed(settings, name, text)
            except UsageError as error:
                refused[name] = error
        if len(refused) == len(waiting):
            raise next(iter(refused.values()))
        waiting = {name: waiting[name] for name in refused}
    return settings


def as_catalogued(settings: ChatSettings, before: Mapping[str, Any], now: Mapping[str, Any]) -> ChatSettings:
    """Return `settings` for another model: values that are the catalogue's defaults `before` become those of `now`."""

    def changes(current: object, default: object, names: Sequence[str]) -> dict[str, Any]:
        usual = {name: getattr(default, name) for name in names}
        return {
            name: now.get(name, usual[name])
            for name in names
            if getattr(current, name) == before.get(name, usual[name])
        }

    sampling = replace(settings.sampling, **changes(settings.sampling, SamplingSettings(), SAMPLING))
    return replace(settings, sampling=sampling, **changes(settings, ChatSettings(), ("repeat_limit",)))


def _checked(settings: ChatSettings) -> ChatSettings:
    """Return `settings`. Raises UsageError for values that no model accepts."""
    names = ("max_tokens", "reasoning_budget", "repeat_limit", "stop", "verify", *CONSTRAINTS)
    seed = 0 if settings.seed == -1 else settings.seed
    check_request(Request("x", seed=seed, **{name: getattr(settings, name) for name in names}), 1)
    check_load_settings(LoadSettings("", **settings.drafting))
    return settings


def _quoted(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
