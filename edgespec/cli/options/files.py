"""Settings from TOML files: the user's own, overridden by the project's."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError
from edgespec.files.paths import config_dir

PROJECT_FILE = "edgespec.toml"

Check = Callable[[Any, Path], Any]
"""Turns a value from the file at a path into the value to use; raises ValueError with what is wrong about it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A checked value and the file that it comes from."""

    value: Any
    file: Path


def user_file() -> Path:
    return config_dir() / "config.toml"


def working_folder() -> Path | None:
    """The working folder, None if it has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def project_file(folder: Path | None) -> Path | None:
    """The nearest `edgespec.toml` in `folder` or a folder above it."""
    if folder is None:
        return None
    candidates = (above / PROJECT_FILE for above in (folder, *folder.parents))
    return next((file for file in candidates if file.is_file()), None)


def config_files(folder: Path | None) -> list[Path]:
    """The files that apply in `folder`, the weakest first."""
    user, project = user_file(), project_file(folder)
    return [file for file in (user, project) if file is not None and file.is_file()]


def read_settings(
    files: Iterable[Path], checks: Mapping[str, Check], aliases: Mapping[str, str] | None = None
) -> dict[str, Setting]:
    """The settings of all `files`; a later file overrides an earlier one. `checks` are the valid keys. `aliases` are
    other programs' names of keys, which are rejected with the right one. Raises UsageError naming the file and the
    key."""
    settings: dict[str, Setting] = {}
    for file in files:
        for key, value in _parse(file).items():
            if key not in checks:
                raise UsageError(f"{file}: unknown setting '{key}'", hint=_near(key, checks, aliases or {}))
            try:
                settings[key] = Setting(checks[key](value, file), file)
            except ValueError as error:
                raise UsageError(f"{file}: invalid value for '{key}'", why=str(error)) from error
    return settings


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8", why=f"byte {error.start} is invalid") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not valid TOML", why=str(error)) from error


def _near(key: str, known: Iterable[str], aliases: Mapping[str, str]) -> str:
    """What was probably meant: another program's name, or a similar key."""
    spelt = key.lower().replace("_", "-")
    names = {key: key for key in known} | {alias.replace("_", "-"): key for alias, key in aliases.items()}
    near = difflib.get_close_matches(spelt, names, n=1)
    if near:
        return f"did you mean '{names[near[0]]}'?"
    return "'edgespec run --help' lists them: keys are the long option names"
