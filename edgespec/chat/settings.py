"""The settings of a chat that can be changed while it runs, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import Facts, SettingError, facts_of, long_name, with_names
from edgespec.errors import UsageError, did_you_mean
from edgespec.llama.compiler import settled
from edgespec.llama.constraint import constraint_text, is_text
from edgespec.models.names.catalog import SAMPLING
from edgespec.models.names.catalog import SETTINGS as CATALOGUED
from edgespec.settings import CONSTRAINTS, LARGEST, AnswerSettings, LoadSettings, Request, option_of
from edgespec.validation import check_load_settings, check_request

NONE = "none"  # the text that clears a setting
DRAFTING = ("spec_type", "pace", "spec_draft_n_max", "spec_tree")  # of `LoadSettings`
Group = Literal["sampling", "answer", "drafting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings(AnswerSettings):
    """Settings for the next answer.

    Grammars, schemas and expressions are texts, or names of files that contain them. If a drafting setting is None, the
    value that the model was loaded with applies.
    """

    seed: int = -1  #: -1 chooses a random seed for each answer
    spec_type: str | None = None
    pace: str | None = None
    spec_draft_n_max: int | None = None
    spec_tree: int | None = None

    @classmethod
    def of(cls, answer: AnswerSettings) -> ChatSettings:
        """Return the settings of a chat whose answers have these settings."""
        return cls(**{item.name: getattr(answer, item.name) for item in fields(AnswerSettings)})

    @property
    def drafting(self) -> dict[str, Any]:
        """The drafting settings that differ from those the model was loaded with, as fields of LoadSettings."""
        return {name: value for name in DRAFTING if (value := getattr(self, name)) is not None}

    def drafting_as_loaded(self) -> ChatSettings:
        """Return these settings with the drafting settings that the model was loaded with."""
        return replace(self, spec_type=None, pace=None, spec_draft_n_max=None, spec_tree=None)

    def of_answers(self) -> dict[str, Any]:
        """Return the settings of answers but the seed, as fields of a request."""
        return {item.name: getattr(self, item.name) for item in fields(AnswerSettings) if item.name != "seed"}

    @property
    def constraints(self) -> dict[str, Any]:
        """The constraint on answers, as fields of a request. Raises UsageError if its file is gone."""
        return {kind: constraint_text(kind, getattr(self, kind)) for kind in CONSTRAINTS}

    def as_json(self) -> dict[str, Any]:
        """Return plain data, without the logit biases: they belong to one vocabulary."""
        plain: dict[str, Any] = asdict(self)
        plain |= {name: [*value] for name, value in plain.items() if isinstance(value, tuple)}
        del plain["sampling"]["logit_bias"]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> ChatSettings:
        """Return the settings from the result of `as_json`, without unknown settings of other versions."""
        known = {item.name for item in fields(cls)}
        values = {name: value for name, value in plain.items() if name in known}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        sampling = {item.name for item in fields(SamplingSettings)}
        try:
            values["sampling"] = SamplingSettings(
                **{name: value for name, value in values.get("sampling", {}).items() if name in sampling}
            )
            return _checked(cls(**values))
        except (TypeError, ValueError, AttributeError, UsageError):
            return cls()


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: a field of ChatSettings, or of its sampling. The name is the long option of `run`."""

    field: str
    group: Group
    facts: Facts

    @property
    def name(self) -> str:
        return long_name(self.field, self.facts)

    @property
    def help(self) -> str:
        """What the setting does, and how several texts are written."""
        return f"{self.facts.help} Commas separate texts." if self.facts.kind == "stops" else self.facts.help

    def value(self, settings: ChatSettings) -> object:
        owner: SamplingSettings | ChatSettings = settings.sampling if self.group == "sampling" else settings
        return getattr(owner, self.field)

    def show(self, settings: ChatSettings) -> str:
        """Return the value as a user would type it."""
        value = self.value(settings)
        if value is None:
            return "default"
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            value = ", ".join(map(_quoted, value))
        return str(value) or NONE

    def names_file(self, text: str) -> bool:
        """Return whether a text is the name of a file, which has the constraint."""
        text = text.strip()
        return self.field in CONSTRAINTS and text not in ("", NONE) and not is_text(self.field, text)

    def parse(self, text: str) -> object:
        """Return the value that a text means. Raises UsageError."""
        text, kind, choices = text.strip(), self.facts.kind, self.facts.choices
        if self.group == "drafting" and text.lower() in ("", "as loaded", "default"):
            return None
        if kind == "flag":
            choices = (*_FLAGS,)
        if choices and text not in choices:
            raise UsageError(f"{self.name} must be one of {', '.join(choices)}, not {text!r}")
        if kind in ("integer", "number"):
            try:
                return int(text) if kind == "integer" else float(text)
            except ValueError:
                what = "an integer" if kind == "integer" else "a number"
                raise UsageError(f"{self.name} must be {what}, not {text!r}") from None
        if kind in ("text", "texts", "stops", "constraint", "schema") and text == NONE:
            text = ""
        if kind in ("texts", "stops"):
            parts = filter(None, map(str.strip, text.split(",")))
            return tuple(part.replace("\\n", "\n").replace("\\t", "\t") for part in parts)
        if self.field in CONSTRAINTS:
            return settled(self.field, text)
        if kind == "flag":
            return _FLAGS[text]
        return text.replace(" ", "").lower() if self.group == "drafting" else text


def _settings(group: Group, owner: type, names: Sequence[str] = ()) -> list[Setting]:
    """Return the settings of a dataclass, or those with `names`, except for kinds that cannot be typed into a chat."""
    facts = facts_of(owner)
    return [Setting(name, group, facts[name]) for name in names or facts if facts[name].kind not in _NOT_TYPED]


_FLAGS = {"on": True, "off": False}
_NOT_TYPED = ("breakers", "ids", "biases", "adapters")
SETTINGS = (
    *_settings("sampling", SamplingSettings),
    *_settings("answer", AnswerSettings),
    *_settings("drafting", LoadSettings, DRAFTING),
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
    hint = did_you_mean(wanted, names) or ", ".join(item.name for item in SETTINGS)
    raise UsageError(f"unknown setting {name!r}", hint=hint)


def in_chats(message: str) -> str:
    """Return a message in which settings have the names that they have in a chat: those of commands, and options for
    settings that only the start of a chat can set."""
    at_start: list[str] = []

    def name(field: str, value: str) -> str:
        if field == "draft_model" or (field == "spec_type" and value == NONE):
            return f"/draft {value}".rstrip()
        if field == "prompt":
            return f"edgespec run {option_of(field)}"
        item = next((each for each in SETTINGS if each.field == field), None)
        if item is not None and (item.group != "drafting" or (value and field != "spec_type")):
            return f"/set {item.name} {value}".rstrip()
        option = option_of(field, value)
        at_start.extend(option.split()[:1])
        return option

    shown, options = with_names(message, name), [*dict.fromkeys(at_start)]
    if not options:
        return shown
    are = "are options" if len(options) > 1 else "is an option"
    return (
        f"{shown}; {', '.join(options[:-1])}{' and ' if len(options) > 1 else ''}{options[-1]} {are} of 'edgespec chat'"
    )


def changed(settings: ChatSettings, name: str, text: str) -> ChatSettings:
    """Return `settings` with one of them changed. A constraint replaces any other. Raises UsageError."""
    return with_changes(settings, {name: text})


def with_changes(settings: ChatSettings, texts: Mapping[str, str]) -> ChatSettings:
    """Return `settings` with all of these changes, whose order does not matter. A constraint replaces any other.

    Raises UsageError.
    """
    values = {item: item.parse(text) for item, text in ((setting(name), text) for name, text in texts.items())}
    sampling: dict[str, Any] = {item.field: value for item, value in values.items() if item.group == "sampling"}
    others: dict[str, Any] = {item.field: value for item, value in values.items() if item.group != "sampling"}
    constraints = [name for name, value in others.items() if name in CONSTRAINTS and value]
    if constraints:
        others |= {name: "" for name in CONSTRAINTS if name != constraints[-1]}
    try:
        return _checked(replace(settings, sampling=replace(settings.sampling, **sampling), **others))
    except SettingError as error:
        raise UsageError(f"{setting(error.field).name} must be {error.must}", field=error.field) from error


def as_catalogued(settings: ChatSettings, before: Mapping[str, Any], now: Mapping[str, Any]) -> ChatSettings:
    """Return `settings` for another model: values that are the catalogue's defaults `before` become those of `now`."""

    def changes(current: object, default: object, names: Sequence[str]) -> dict[str, Any]:
        usual = {name: getattr(default, name) for name in names}
        return {
            name: now.get(name, usual[name])
            for name in names
            if getattr(current, name) == before.get(name, usual[name])
        }

    of_answers = [name for name in CATALOGUED if name in facts_of(AnswerSettings)]
    sampling = replace(settings.sampling, **changes(settings.sampling, SamplingSettings(), SAMPLING))
    return replace(settings, sampling=sampling, **changes(settings, ChatSettings(), of_answers))


def _checked(settings: ChatSettings) -> ChatSettings:
    """Return `settings`. Raises UsageError for values that no model accepts."""
    seed = 0 if settings.seed == -1 else settings.seed
    check_request(Request("x", seed=seed, **settings.of_answers()), LARGEST)
    check_load_settings(LoadSettings("", **settings.drafting))
    return settings


def _quoted(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
