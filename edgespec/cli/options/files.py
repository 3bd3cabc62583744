"""Settings from TOML files: the user's own file, overridden by the project's."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError, told_as
from edgespec.files.paths import config_dir

PROJECT_FILE = "edgespec.toml"

Check = Callable[[Any, Path], Any]
"""Turns a value from the file at a path into the value to use; raises ValueError with the reason if it is invalid."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A checked value and the file that sets it."""

    value: Any
    file: Path


def user_file() -> Path:
    return config_dir() / "config.toml"


def working_folder() -> Path | None:
    """Return the working folder, or None if it has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def project_file(folder: Path | None) -> Path | None:
    """Return the nearest `edgespec.toml` in `folder` or a folder above it."""
    candidates = (above / PROJECT_FILE for above in (folder, *folder.parents)) if folder else ()
    return next((file for file in candidates if file.is_file()), None)


def config_files(folder: Path | None) -> list[Path]:
    """Return the files that apply in `folder`; later ones override earlier ones."""
    return [file for file in (user_file(), project_file(folder)) if file is not None and file.is_file()]


def read_settings(files: Iterable[Path], checks: Mapping[str, Check], aliases: Mapping[str, str]) -> dict[str, Setting]:
    """Return the settings of all `files`; a later file overrides an earlier one.

    `checks` has the valid keys. `aliases` maps other programs' names to keys: they are rejected with a hint. Raises
    UsageError naming the file and the key.
    """
    settings: dict[str, Setting] = {}
    for file in files:
        for key, value in _parse(file).items():
            if key not in checks:
                raise UsageError(f"{file}: unknown setting '{key}'", hint=_hint(key, checks, aliases))
            try:
                settings[key] = Setting(checks[key](value, file), file)
            except ValueError as error:
                raise UsageError(f"{file}: invalid value for '{key}'", why=str(error)) from error
    return settings


def _parse(file: Path) -> dict[str, Any]:
    try:
        with told_as(UsageError, f"{file} cannot be read"):
            return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8", why=f"byte {error.start} is invalid") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not valid TOML", why=str(error)) from error


def _hint(key: str, known: Iterable[str], aliases: Mapping[str, str]) -> str:
    names = {name: name for name in known} | {alias.replace("_", "-"): name for alias, name in aliases.items()}
    near = difflib.get_close_matches(key.lower().replace("_", "-"), names, n=1)
    if near:
        return f"did you mean '{names[near[0]]}'?"
    return "'edgespec run --help-all' lists the options: keys are their long names"
