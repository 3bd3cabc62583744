"""Model specs: the names that users type, and the files on this machine that they refer to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.cache import cached_files
from edgespec.models.hub.quants import SeveralFitError, choose, parts_of, spelt
from edgespec.models.packages.wheels import PackageSpec, packaged

if TYPE_CHECKING:
    from edgespec.models.names.catalog import Entry

BUNDLED = Path(__file__).parents[1] / "demo"
NAMES = ("demo", "demo:draft")
HOW_TO_NAME_A_MODEL = "use a file (./model.gguf), a repository (hf:owner/name:Q4_K_M) or 'demo'"

_HUB = re.compile(
    r"(?:hf://|hf:|(?P<web>(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/))(?P<rest>.*)", re.IGNORECASE
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_NAME = r"[A-Za-z0-9][\w.-]*"
_BRANCH_OF_HUB = r"refs/(?:pr/\d+|convert/\w+)"  # the hub creates these, and allows no other slash within a revision
_REVISION = rf"{_BRANCH_OF_HUB}|[^/:@]+"
_REPOSITORY = re.compile(
    rf"(?P<repository>{_NAME}/{_NAME})(?:@(?P<revision>{_REVISION}))?(?::(?P<quant>{_NAME})|/(?P<file>.+))?"
)
_PAGE = re.compile(rf"([^/]+/[^/]+)/(?:blob|resolve|tree)/({_REVISION})(/.+)?")


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A model in a repository of the Hugging Face hub: its `file` there, or that of the quantisation `quant`, as
    `spelt`; with both empty the default one. `str()` returns an equivalent spec."""

    repository: str
    file: str = ""
    quant: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        is_plain = re.fullmatch(_BRANCH_OF_HUB, self.revision, re.ASCII)
        escaped = self.revision if is_plain else quote(self.revision, safe="")
        revision = f"@{escaped}" if self.revision != "main" else ""
        which = f"/{self.file}" if self.file else f":{self.quant}" if self.quant else ""
        return f"hf:{self.repository}{revision}{which}"


Source = HubSpec | PackageSpec


class NotFetchedError(ModelNotFoundError):
    """A model of the hub or of a package that is not on this machine."""

    def __init__(self, spec: str, wanted: Source) -> None:
        if isinstance(wanted, PackageSpec):
            why = f"it is in the package {wanted.package}"
        else:
            why = "" if wanted.repository in spec else f"it is {wanted}"
        super().__init__(f"model '{spec}' is not on this machine", why=why, hint=f"download it: edgespec pull {spec}")
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's file (not opened yet), its default draft model, and a name to show. `missing_draft` is the catalogue's
    name of the best draft for it if none of them is here, else empty."""

    path: Path
    default_draft: Path | None
    name: str
    missing_draft: str = ""


def resolve(spec: str) -> ResolvedModel:
    """The file on this machine that `spec` means: `demo`, `demo:draft`, a path, a repository of the hub, or a name of
    the catalogue, whose draft is included if it is here.

    Raises ModelNotFoundError, including NotFetchedError if the file must be downloaded first. The file is not opened.
    """
    if spec == "demo":
        return ResolvedModel(_bundled("target.gguf"), _bundled("draft.gguf"), "demo")
    if spec == "demo:draft":
        return ResolvedModel(_bundled("draft.gguf"), None, "demo:draft")
    path = _local(spec)
    if path is not None:
        return ResolvedModel(path, None, path.name)
    wanted = sources(spec)
    found = [cached(each) for each in wanted]
    if found[0] is None:
        if isinstance(wanted[0], HubSpec):
            check_unambiguous(wanted[0])
        raise NotFetchedError(spec, wanted[0])
    draft = next(filter(None, found[1:]), None)
    missing_draft = _best_draft(spec) if wanted[1:] and draft is None else ""
    return ResolvedModel(found[0], draft, found[0].name, missing_draft)


def sources(spec: str, revision: str = "main") -> list[Source]:
    """What `spec` names on the hub, at `revision` if it names none, or on the package index; then the catalogue's
    drafts for it, best first. Reads no model and no network.

    Raises ModelNotFoundError for an impossible spec, UsageError for a catalogue with errors.
    """
    prefixed = _HUB.fullmatch(spec)
    if prefixed is None and _ADDRESS.match(spec):
        raise _foreign_address(spec)
    if (prefixed["rest"] if prefixed else spec).endswith(":"):
        raise ModelNotFoundError(
            f"model '{spec}' was not found",
            why="the ':' is followed by nothing",
            hint="leave it out, or add a quantisation, such as :Q4_K_M",
        )
    if prefixed is None and "/" not in spec:
        return _of_catalogue(spec, revision)
    is_address = prefixed is not None and prefixed["web"] is not None
    match = _REPOSITORY.fullmatch(_path_of(prefixed["rest"], is_address=is_address) if prefixed else spec)
    if match is None or (match["file"] and not prefixed):
        why = (
            "there is no repository of that name"
            if prefixed
            else "it is neither a file here nor a repository on the hub"
        )
        raise ModelNotFoundError(f"model '{spec}' was not found", why=why, hint=HOW_TO_NAME_A_MODEL)
    file = unquote(match["file"] or "") if is_address else match["file"] or ""
    revision = unquote(match["revision"]) if match["revision"] else revision
    why = ""
    if not stays_within(revision):
        why = f"{revision!r} is not a valid revision"
    elif file and not stays_within(file):
        why = f"{file!r} is not a valid file name in a repository"
    elif file and not file.lower().endswith(".gguf"):
        why = f"{file} is not a GGUF file"
    if why:
        hint = "write a slash within a revision as %2F" if match["revision"] else ""
        raise ModelNotFoundError(f"model '{spec}' was not found", why=why, hint=hint)
    return [HubSpec(match["repository"], file, spelt(match["quant"] or ""), revision)]


def stays_within(name: str) -> bool:
    """Whether a path from an untrusted name stays within its folder, on any system."""
    inside = {"", ".", ".."}.isdisjoint(name.split("/"))
    return inside and "\\" not in name and not PureWindowsPath(name).anchor and name.isprintable()


def _of_catalogue(spec: str, revision: str) -> list[Source]:
    from edgespec.models.names.catalog import catalogue
    from edgespec.models.names.meant import hint_for_name

    entries, (name, _, quant) = catalogue(), spec.lower().partition(":")
    entry = entries.get(name)
    if entry is None:
        raise ModelNotFoundError(
            f"model '{spec}' was not found",
            why="it is neither a file here nor a catalogue name",
            hint=hint_for_name(spec),
        )
    drafts = [entries[draft] for draft in entry.drafts if draft in entries]
    return [_source_of(entry, quant, revision), *map(_source_of, drafts)]


def _source_of(entry: Entry, quant: str = "", revision: str = "main") -> Source:
    if entry.package:
        return packaged(entry, quant)
    return HubSpec(entry.repository, quant=spelt(quant) or entry.quant, revision=revision)


def _best_draft(spec: str) -> str:
    """The name of the catalogue's first draft for a name of it."""
    from edgespec.models.names.catalog import find

    entry = find(spec.partition(":")[0])
    return entry.drafts[0] if entry and entry.drafts else ""


def _foreign_address(spec: str) -> ModelNotFoundError:
    what = f"model '{spec}' was not found"
    if spec.lower().startswith("file:"):
        from urllib.request import url2pathname

        path = url2pathname(urlsplit(spec).path)
        return ModelNotFoundError(what, why="a file is given by its path", hint=f"did you mean {path}?")
    return ModelNotFoundError(
        what,
        why="only addresses of the hub are supported, such as https://huggingface.co/owner/name",
        hint="download the file with another program, and give its path",
    )


def _path_of(rest: str, *, is_address: bool) -> str:
    """What follows the hub's name, with a page's address converted to a path in a repository."""
    path = (re.split("[?#]", rest)[0] if is_address else rest).rstrip("/")
    page = _PAGE.fullmatch(path) if is_address else None
    return f"{page[1]}@{page[2]}{page[3] or ''}" if page else path


def cached(wanted: Source) -> Path | None:
    """Its file that is here, all parts of it; of a split model the first one."""
    if isinstance(wanted, PackageSpec):
        return wanted.path if wanted.is_here else None
    files = cached_files(wanted.repository, wanted.revision)
    try:
        name = wanted.file or choose(list(files), wanted.quant)
    except ModelNotFoundError:
        return None
    parts = parts_of(name)
    return files[parts[0]] if all(part in files for part in parts) else None


def check_unambiguous(wanted: HubSpec) -> None:
    """Raises ModelNotFoundError with their names if several files here have this quantisation."""
    try:
        if not wanted.file:
            choose(list(cached_files(wanted.repository, wanted.revision)), wanted.quant, where=wanted.repository)
    except SeveralFitError:
        raise
    except ModelNotFoundError:
        return


def catalogued(spec: str) -> Entry | None:
    """The catalogue entry that a spec names, if any. Raises UsageError as `catalogue` does."""
    from edgespec.models.names.catalog import find

    return None if spec in NAMES or is_path(spec) else find(spec.partition(":")[0])


def catalogued_settings(spec: str) -> dict[str, str | float]:
    """The catalogue's defaults for a model. Raises UsageError as `catalogue` does."""
    entry = catalogued(spec)
    return entry.settings if entry else {}


def lasting(spec: str) -> str:
    """`spec` in a form that means the same from any folder."""
    return str(Path(spec).expanduser().absolute()) if is_path(spec) else spec


def is_path(spec: str) -> bool:
    """Whether `spec` can only be a file: `./x`, `/x`, `~/x`, `C:\\x`, or anything that ends in `.gguf`."""
    if _is_address(spec):
        return False
    starts_as_path = spec.startswith((".", "/", "\\", "~")) or re.match(r"[A-Za-z]:[\\/]", spec)
    return bool(starts_as_path) or spec.lower().endswith(".gguf")


def _is_address(spec: str) -> bool:
    """Whether it is a web address, of the hub or of another site."""
    return _HUB.fullmatch(spec) is not None or _ADDRESS.match(spec) is not None


def _local(spec: str) -> Path | None:
    """The path that `spec` is, if it is one. Raises ModelNotFoundError for a path without a file."""
    if _is_address(spec):
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
            "the bundled pair is not installed", why=f"{path} is missing", hint="reinstall edgespec, or use -m FILE"
        )
    return path


def _expand(spec: str) -> Path:
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise ModelNotFoundError(f"model '{spec}' was not found", why=str(error)) from error


def _exists(spec: str, path: Path) -> bool:
    if not spec:
        raise ModelNotFoundError("the model name is empty", hint=HOW_TO_NAME_A_MODEL)
    try:
        path.stat()  # unlike Path.exists, distinguishes missing from inaccessible files
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ModelNotFoundError(f"model '{spec}' cannot be reached", why=error.strerror or str(error)) from error
    except ValueError as error:
        raise ModelNotFoundError(f"model {spec!r} was not found", why=str(error)) from error
    return True


def _missing_file(spec: str, path: Path) -> ModelNotFoundError:
    if path.is_symlink():
        return ModelNotFoundError(f"model file '{spec}' was not found", why=f"it is a broken link to {path.readlink()}")
    from edgespec.models.names.meant import hint_for_file

    folder = path.parent
    shown = "the working folder" if folder == Path() else folder
    why = f"{shown} has no file of that name" if folder.is_dir() else f"there is no folder {folder}"
    hint = hint_for_file(spec, path)
    in_repository = _REPOSITORY.fullmatch(spec)
    if in_repository and in_repository["file"] and not Path(path.parts[0]).exists():
        hint = f"did you mean hf:{spec}?"
    return ModelNotFoundError(f"model file '{spec}' was not found", why=why, hint=hint)
