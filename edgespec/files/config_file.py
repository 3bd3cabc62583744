"""Files of settings in TOML: reading them, and changing settings in the user's file without losing its comments."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from edgespec.errors import UsageError, told_as
from edgespec.files.paths import config_dir, write_whole
from edgespec.text.encodings import decoded


def user_file() -> Path:
    return config_dir() / "config.toml"


def read_settings(file: Path) -> dict[str, object]:
    """Return the settings in a file. Raises UsageError."""
    return _parsed(file, _text_of(file))


def change_settings(changes: Mapping[str, object]) -> Path:
    """Change settings in the user's file, which is returned; None removes a setting. Raises UsageError."""
    import tomlkit

    file = user_file()
    with told_as(UsageError, f"{file} cannot be read"):
        text = _text_of(file) if file.exists() else ""
    _parsed(file, text)
    document = tomlkit.parse(text)
    for key, value in changes.items():
        if value is not None:
            document[key] = value
        elif key in document:
            del document[key]
    with told_as(UsageError, f"{file} cannot be written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file.resolve(), tomlkit.dumps(document))  # where a link points to, so that the link stays
    return file


def _text_of(file: Path) -> str:
    try:
        with told_as(UsageError, f"{file} cannot be read"):
            return decoded(file.read_bytes())
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8", why=f"byte {error.start} is invalid") from error


def _parsed(file: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not valid TOML", why=str(error)) from error
