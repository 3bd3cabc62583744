"""Model specs: what a user types to name a model, and the file on this machine that it means."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ModelNotFoundError
from edgespec.models.cache import cached_files
from edgespec.models.quants import SeveralFitError, choose, parts_of

BUNDLED = Path(__file__).parent / "demo"
NAMES = ("demo", "demo:draft")
HOW_TO_NAME_A_MODEL = "name a file (./model.gguf), a repository (hf:owner/name:Q4_K_M) or 'demo'"

_HUB = re.compile(r"(?:hf://|hf:|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)(.*)", re.IGNORECASE)
_NAME = r"[A-Za-z0-9][\w.-]*"
_REPOSITORY = re.compile(
    rf"(?P<repository>{_NAME}/{_NAME})(?:@(?P<revision>{_NAME}))?(?::(?P<quant>{_NAME})|/(?P<file>.+))?"
)


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A model in a repository of the Hugging Face hub: its `file` there, or that of the quantisation `quant`, in
    capitals; with both empty the usual one."""

    repository: str
    file: str = ""
    quant: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision != "main" else ""
        which = f"/{self.file}" if self.file else f":{self.quant}" if self.quant else ""
        return f"hf:{self.repository}{revision}{which}"


class NotFetchedError(ModelNotFoundError):
    """A model of the hub that is not on this machine."""

    def __init__(self, spec: str, wanted: HubSpec) -> None:
        super().__init__(
            f"model '{spec}' is not on this machine", why=f"it is {wanted}", hint=f"fetch it: edgespec pull {spec}"
        )
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's file (not opened yet), the draft model that comes with it, and a name to show."""

    path: Path
    default_draft: Path | None
    name: str


def resolve(spec: str) -> ResolvedModel:
    """The file on this machine that `spec` means: `demo`, `demo:draft`, a path, a repository of the hub, or a name of
    the catalogue, whose draft comes with it if it is here.

    Raises ModelNotFoundError, and of these NotFetchedError where the file would have to be fetched first. Whether it is
    a model is not looked at here.
    """
    if spec == "demo":
        return ResolvedModel(_bundled("target.gguf"), _bundled("draft.gguf"), "demo")
    if spec == "demo:draft":
        return ResolvedModel(_bundled("draft.gguf"), None, "demo:draft")
    path = _local(spec)
    if path is not None:
        return ResolvedModel(path, None, path.name)
    wanted = hub_specs(spec)
    found = [cached(each) for each in wanted]
    if found[0] is None:
        check_unambiguous(wanted[0])
        raise NotFetchedError(spec, wanted[0])
    return ResolvedModel(found[0], next((draft for draft in found[1:] if draft), None), found[0].name)


def hub_specs(spec: str) -> list[HubSpec]:
    """What `spec` names on the hub; the drafts that the catalogue has for it follow, best first. No file and no network
    is looked at. Raises ModelNotFoundError for what can be no model, UsageError for a catalogue with errors.
    """
    prefixed = _HUB.fullmatch(spec)
    if prefixed is None and "/" not in spec:
        return _of_catalogue(spec)
    match = _REPOSITORY.fullmatch(_as_path(prefixed[1]) if prefixed else spec)
    if match is None or (match["file"] and not prefixed):
        why = "no repository is called that" if prefixed else "it is neither a file here nor a repository of the hub"
        raise ModelNotFoundError(f"model '{spec}' was not found", why=why, hint=HOW_TO_NAME_A_MODEL)
    file, revision = match["file"] or "", match["revision"] or "main"
    if file and ("\\" in file or not {"", ".", ".."}.isdisjoint(file.split("/"))):
        raise ModelNotFoundError(f"model '{spec}' was not found", why=f"{file} is no name within a repository")
    if file and not file.lower().endswith(".gguf"):
        raise ModelNotFoundError(f"model '{spec}' was not found", why=f"{file} is no GGUF file")
    return [HubSpec(match["repository"], file, (match["quant"] or "").upper(), revision)]


def _of_catalogue(spec: str) -> list[HubSpec]:
    from edgespec.models.catalog import catalogue, near

    entries, (name, _, quant) = catalogue(), spec.lower().partition(":")
    entry = entries.get(name)
    if entry is None:
        similar = [*difflib.get_close_matches(spec.lower(), NAMES, n=1), *near(name)]
        raise ModelNotFoundError(
            f"model '{spec}' was not found",
            why="it is neither a file here nor a name edgespec knows",
            hint=_did_you_mean(similar) or _similar(spec, _expand(spec)) or HOW_TO_NAME_A_MODEL,
        )
    target = HubSpec(entry.repository, quant=quant.upper() or entry.quant)
    drafts = [entries[draft] for draft in entry.drafts if draft in entries]
    return [target, *(HubSpec(draft.repository, quant=draft.quant) for draft in drafts)]


def _as_path(rest: str) -> str:
    """What follows the hub's name, with a page's address written as a path in a repository."""
    rest = rest.partition("?")[0].rstrip("/")
    page = re.fullmatch(r"([^/]+/[^/]+)/(?:blob|resolve|tree)/([^/]+)(/.+)?", rest)
    return f"{page[1]}@{page[2]}{page[3] or ''}" if page else rest


def cached(wanted: HubSpec) -> Path | None:
    """The file of it that is here, all parts of it; of a split model the first one."""
    files = cached_files(wanted.repository, wanted.revision)
    try:
        name = wanted.file or choose(list(files), wanted.quant)
    except ModelNotFoundError:
        return None
    return files[name] if all(part in files for part in parts_of(name)) else None


def check_unambiguous(wanted: HubSpec) -> None:
    """Raises ModelNotFoundError, which names them, where several files that are here have this quantisation."""
    try:
        if not wanted.file:
            choose(list(cached_files(wanted.repository, wanted.revision)), wanted.quant, where=wanted.repository)
    except SeveralFitError:
        raise
    except ModelNotFoundError:
        return


def lasting(spec: str) -> str:
    """`spec` as it means the same from any folder."""
    return str(Path(spec).expanduser().absolute()) if is_path(spec) else spec


def is_path(spec: str) -> bool:
    """Whether `spec` can only mean a file: `./x`, `/x`, `~/x`, `C:\\x`, or anything that ends in `.gguf`."""
    if _HUB.fullmatch(spec):
        return False
    starts_as_path = spec.startswith((".", "/", "\\", "~")) or re.match(r"[A-Za-z]:[\\/]", spec)
    return bool(starts_as_path) or spec.lower().endswith(".gguf")


def _local(spec: str) -> Path | None:
    """The path that `spec` is, if it is one. Raises ModelNotFoundError for a path where nothing is."""
    if _HUB.fullmatch(spec):
        return None
    path = _expand(spec)
    if _exists(spec, path):
        return path
    if is_path(spec):
        raise _missing_file(spec, path)
    return None


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
    if path.is_symlink():
        return ModelNotFoundError(
            f"model file '{spec}' was not found", why=f"it is a link to {path.readlink()}, where nothing is"
        )
    folder = path.parent
    shown = "this folder" if folder == Path() else folder
    why = f"{shown} holds no file of that name" if folder.is_dir() else f"there is no folder {folder}"
    return ModelNotFoundError(f"model file '{spec}' was not found", why=why, hint=_similar(spec, path))


def _did_you_mean(names: list[str]) -> str:
    return f"did you mean {' or '.join(map(repr, names))}?" if names else ""


def _similar(spec: str, path: Path) -> str:
    """Files beside `path` that may have been meant, as a sentence."""
    try:
        beside = sorted(
            each.name for each in path.parent.iterdir() if each.name.lower().endswith(".gguf") and each.is_file()
        )
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
