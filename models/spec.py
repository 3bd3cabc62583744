"""Model specs: what a user types to name a model, and the file that it means."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ModelNotFoundError

BUNDLED = Path(__file__).parent / "demo"
NAMES = ("demo", "demo:draft")
HUB_PREFIXES = ("hf:", "hf.co/", "huggingface.co/", "http:", "https:")
HOW_TO_NAME_A_MODEL = "name a GGUF file such as ./model.gguf, or 'demo' for the bundled pair"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's file (not opened yet), the draft model that comes with it, and a name to show."""

    path: Path
    default_draft: Path | None
    name: str


def resolve(spec: str) -> ResolvedModel:
    """Find the model that `spec` names: `demo`, `demo:draft` or a path. Raises ModelNotFoundError.

    Whether the file is a model is not looked at here.
    """
    if spec == "demo":
        return ResolvedModel(_bundled("target.gguf"), _bundled("draft.gguf"), "demo")
    if spec == "demo:draft":
        return ResolvedModel(_bundled("draft.gguf"), None, "demo:draft")
    if spec.lower().startswith(HUB_PREFIXES):
        raise ModelNotFoundError(
            f"model '{spec}' was not found",
            why="only local files are supported so far, nothing is downloaded",
            hint="download the GGUF file yourself and give its path",
        )
    path = _expand(spec)
    if _exists(spec, path):
        return ResolvedModel(path, None, path.name)
    if is_path(spec):
        raise _missing_file(spec, path)
    raise ModelNotFoundError(
        f"model '{spec}' was not found",
        why="it is neither a file here nor a name edgespec knows, and only local files are supported so far",
        hint=_near_name(spec) or _similar(spec, path) or HOW_TO_NAME_A_MODEL,
    )


def lasting(spec: str) -> str:
    """`spec` as it means the same from any folder."""
    return str(Path(spec).expanduser().absolute()) if is_path(spec) else spec


def is_path(spec: str) -> bool:
    """Whether `spec` can only mean a file: `./x`, `/x`, `~/x`, `C:\\x`, or anything that ends in `.gguf`."""
    if spec.lower().startswith(HUB_PREFIXES):
        return False
    starts_as_path = spec.startswith((".", "/", "\\", "~")) or re.match(r"[A-Za-z]:[\\/]", spec)
    return bool(starts_as_path) or spec.lower().endswith(".gguf")


def _bundled(file: str) -> Path:
    path = BUNDLED / file
    if not path.is_file():
        raise ModelNotFoundError(
            "the bundled pair is not installed", why=f"{path} is missing", hint="install edgespec again, or use -m FILE"
        )
    return path


def _expand(spec: str) -> Path:
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise ModelNotFoundError(f"model '{spec}' was not found", why=str(error)) from error


def _exists(spec: str, path: Path) -> bool:
    if not spec:
        raise ModelNotFoundError("the name of the model is empty", hint=HOW_TO_NAME_A_MODEL)
    try:
        path.stat()  # unlike Path.exists, tells what is not there from what may not be seen
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ModelNotFoundError(f"model '{spec}' cannot be reached", why=error.strerror or str(error)) from error
    except ValueError as error:
        raise ModelNotFoundError(f"model {spec!r} was not found", why=str(error)) from error
    return True


def _missing_file(spec: str, path: Path) -> ModelNotFoundError:
    folder = path.parent
    shown = "this folder" if folder == Path() else folder
    why = f"{shown} holds no file of that name" if folder.is_dir() else f"there is no folder {folder}"
    return ModelNotFoundError(f"model file '{spec}' was not found", why=why, hint=_similar(spec, path))


def _near_name(spec: str) -> str:
    near = difflib.get_close_matches(spec.lower(), NAMES, n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def _similar(spec: str, path: Path) -> str:
    """Files beside `path` that may have been meant, as a sentence."""
    try:
        beside = sorted(entry.name for entry in path.parent.iterdir() if entry.name.lower().endswith(".gguf"))
    except OSError:
        return ""
    by_lower_case = {name.lower(): name for name in beside}
    wanted = path.name.lower() if path.name.lower().endswith(".gguf") else f"{path.name.lower()}.gguf"
    near = [by_lower_case[name] for name in difflib.get_close_matches(wanted, by_lower_case, n=3)]
    folder = spec[: len(spec) - len(path.name)] if spec.endswith(path.name) else ""
    if near:
        return "did you mean " + " or ".join(f"{folder}{name}" for name in near) + "?"
    if beside:
        return "GGUF files there: " + ", ".join(beside[:5]) + (" ..." if len(beside) > 5 else "")
    return ""
