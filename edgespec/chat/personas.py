"""Personas: named system prompts with settings and optionally a model, in TOML files of the user's configuration.

description = "Explains things to a beginner."
system = "You explain everything in small steps ..."
temp = 0.3
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.chat.settings import NONE, SETTINGS, ChatSettings, setting, with_changes
from edgespec.errors import UsageError, told_as
from edgespec.files.optional_files import files_in, is_there
from edgespec.files.paths import config_dir, write_whole
from edgespec.settings import CONSTRAINTS
from edgespec.text.encodings import decoded

TEXTS = ("description", "system", "model")  # fields that are not settings
RESERVED = (NONE, "save")  # words of the command
LONGEST = 40  # characters of a name
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Persona:
    """A persona. `settings` are texts by the names of `/set`; `file` is None for a bundled persona."""

    name: str
    description: str = ""
    system: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    file: Path | None = field(default=None, compare=False)

    def applied(self, settings: ChatSettings, but: Collection[str] = ()) -> ChatSettings:
        """Return `settings` with those of the persona, except for the fields `but`. Raises UsageError."""
        if any(name in but for name in CONSTRAINTS):  # a constraint replaces any other
            but = {*but, *CONSTRAINTS}
        return with_changes(settings, {n: text for n, text in self.settings.items() if setting(n).field not in but})

    def removed(self, settings: ChatSettings, before: ChatSettings) -> ChatSettings:
        """Return `settings` with the persona's values as they were `before`; values changed since then stay."""
        ours = self.applied(before)
        items = map(setting, self.settings)
        return with_changes(
            settings, {item.name: item.show(before) for item in items if item.value(settings) == item.value(ours)}
        )


BUNDLED = (
    Persona(
        "brief",
        "Answers in as few words as possible.",
        "Answer in as few words as possible: one sentence if it will do, no introduction, no summary. "
        "If you do not know the answer, say so.",
    ),
    Persona(
        "coder",
        "Writes and explains code.",
        "You are an experienced programmer. Give working code first, in one block with its language named, then at "
        "most a few sentences on what matters. Use only functions that exist. If the task is unclear, state what you "
        "assume.",
        {"temp": "0.2"},
    ),
    Persona(
        "editor",
        "Improves the language of a text.",
        "You are a copy editor. Correct the text that the user sends: grammar, spelling and clumsy sentences. Keep its "
        "language, meaning, tone and formatting. Answer with the corrected text alone.",
        {"temp": "0.3"},
    ),
    Persona(
        "translator",
        "Translates into English, and English into the language you name.",
        "You are a translator. Translate what the user sends into the language that they name; if they name none, "
        "translate it into English. Keep meaning, tone and formatting. Answer with the translation alone.",
        {"temp": "0.2"},
    ),
)


def folder() -> Path:
    return config_dir() / "personas"


def file_of(name: str) -> Path:
    """Return the file of the user's persona of this name. Raises UsageError if the name is not allowed."""
    if not re.fullmatch(r"\w[\w-]*", name) or len(name) > LONGEST or name.lower() in RESERVED:
        why = f"{name} is a word of the command" if name.lower() in RESERVED else ""
        hint = f"use letters, digits, - and _, up to {LONGEST} of them"
        raise UsageError(f"{name!r} cannot be the name of a persona", why=why, hint=hint)
    return folder() / f"{name}.toml"


def persona(name: str) -> Persona:
    """Return the user's persona of this name, or the bundled one. Raises UsageError."""
    file = file_of(name)
    if is_there(file):
        return read(file)
    bundled = next((each for each in BUNDLED if each.name == name), None)
    if bundled is None:
        names = sorted({each.name for each in BUNDLED} | {file.stem for file in _files()})
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise UsageError(f"there is no persona {name!r}", hint=hint)
    return bundled


def personas() -> tuple[list[Persona], list[str]]:
    """Return all personas by name, and the problems of files that cannot be used.

    A persona of the user replaces a bundled persona of the same name.
    """
    by_name = {each.name: each for each in BUNDLED}
    problems: list[str] = []
    for file in _files():
        by_name.pop(file.stem, None)  # if the file is broken, the bundled persona is not meant either
        try:
            by_name[file.stem] = read(file_of(file.stem))
        except UsageError as error:
            problems.append(str(error))
    return [by_name[name] for name in sorted(by_name)], problems


def read(file: Path) -> Persona:
    """Read a persona. Raises UsageError with the line of a mistake."""
    with told_as(UsageError, f"{file} cannot be read"), file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file} is too large for a persona")
    try:
        return parsed(file.stem, decoded(data), file)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{file}, line {line}: this is not UTF-8", why=f"byte {error.start} is invalid") from None


def parsed(name: str, text: str, file: Path | None = None) -> Persona:
    """Parse a persona from TOML. Raises UsageError with the line of a mistake."""
    where = str(file or name)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        match = re.fullmatch(r"(.*) \(at (.*)\)", str(error))
        what, place = match.groups() if match else (str(error), "end")
        raise UsageError(f"{where}, {place}: {what}") from None
    texts = dict.fromkeys(TEXTS, "")
    settings: dict[str, str] = {}
    for key, value in values.items():
        try:
            if key in texts:
                if not isinstance(value, str):
                    raise UsageError(f"{key} must be a text")
                texts[key] = value.strip()
            else:
                item = setting(key)
                if key not in (item.name, item.field):
                    raise UsageError(f"unknown setting {key!r}", hint=f"did you mean {item.name}?")
                settings[item.name] = _as_text(key, value)
                with_changes(ChatSettings(), settings)
        except UsageError as error:
            line = _line_of(key, text)
            raise error.reworded(what=f"{where}, line {line}: {error.what}") from None
    return Persona(name, texts["description"], texts["system"], settings, texts["model"], file)


def as_toml(each: Persona) -> str:
    """Return the content of the persona's file."""
    lines = [f"{key} = {_quoted(value)}\n" for key in TEXTS if (value := getattr(each, key))]
    for name, value in each.settings.items():
        is_text = setting(name).facts.kind not in ("integer", "number")
        lines.append(f"{name} = {_quoted(value) if is_text else value}\n")
    return "".join(lines)


def save(each: Persona) -> Path:
    """Write the persona's file, and return it; an existing file is kept as NAME.toml.bak. Raises UsageError."""
    file = file_of(each.name)
    with told_as(UsageError, f"{file} cannot be written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            write_whole(file.with_name(f"{file.name}.bak"), file.read_bytes())
        write_whole(file, as_toml(each))
    return file


def differing(settings: ChatSettings, catalogued: Mapping[str, object]) -> dict[str, str]:
    """Return the settings that are neither the program's defaults nor the catalogue's for a model."""
    default = ChatSettings()
    return {
        item.name: item.show(settings)
        for item in SETTINGS
        if item.value(settings) not in (item.value(default), catalogued.get(item.field))
    }


def _files() -> list[Path]:
    return [file for file in files_in(folder(), "*.toml") if is_there(file)]


def _as_text(key: str, value: object) -> str:
    """Return a value as text for `/set`. Raises UsageError."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        if any("," in item for item in value):
            raise UsageError(f"a text of {key} cannot contain a comma")
        return ", ".join(value) or NONE
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{key} must be a number or a text")
    return str(value)


def _line_of(key: str, text: str) -> int:
    """Return the number of the line that sets a key."""
    match = re.search(rf"^[ \t\[]*[\"']?{re.escape(key)}\b", text, re.MULTILINE)
    return text[: match.start() if match else 0].count("\n") + 1


def _quoted(text: str) -> str:
    """Return a TOML string; several lines stay readable if possible."""
    if "\n" in text and "'''" not in text and all(c.isprintable() or c in "\n\t" for c in text):
        return f"'''\n{text}'''" if not text.endswith("'") else json.dumps(text, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
