"""The one list of models: the files of this machine, incomplete downloads, the catalogue, and results of the hub.

`edgespec ls`, `/models` and the model picker take their rows from here, and only format them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from edgespec.errors import ModelNotFoundError, UsageError
from edgespec.models.hub.cache import cached_repositories, is_offline, partial_bytes, partial_files
from edgespec.models.hub.quants import quant_of
from edgespec.models.hub.repository import DownloadChoice, choices_in, look_up, shown_size
from edgespec.models.hub.requests import DownloadError, check_endpoint, headers, host, http_error, reason, session
from edgespec.models.memory.fit import QUANT_BITS, needed_by, needed_by_size
from edgespec.models.names.catalog import CatalogueModel, catalogue
from edgespec.models.names.heads import KnownHead
from edgespec.models.names.local import LocalModel, local_models
from edgespec.models.names.model_names import file_of, name_of
from edgespec.models.names.source import HubSpec, PackageSpec, files_here
from edgespec.models.names.spec import sources
from edgespec.models.pair.known_heads import KnownHeads, head_of_entry
from edgespec.text.figures import count_of, size_of
from edgespec.text.printable import one_line

Kind = Literal["model", "head", "embedding", "unusable", "incomplete", "catalogue", "hub"]
ORDER: tuple[Kind, ...] = get_args(Kind)

NO_ENTRY = CatalogueModel("")
BITS = QUANT_BITS | {"Q4_K_XL": 4.9, "Q6_K_XL": 7.4}
ABOVE_NAME = 1.1  # names give fewer parameters than there are: they round down, or leave out the embeddings
_PARAMS = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)([bm])(?![a-z\d])")
MOST_RESULTS = 20
SEARCH_S = 10.0  # without data from the hub
_PROPERTIES = ["downloads", "likes", "gated", "pipeline_tag", "gguf"]
_TEXT_TASKS = ("any-to-any", "conversational", "image-text-to-text", "text-generation", "text2text-generation")


@dataclass(frozen=True)
class ModelRow:
    """A model in a list.

    Attributes:
        spec: The spec that loads the model, or downloads it.
        name: The shortest name of the model; for a file without one its path.
        kind: "unusable" is a file that cannot be loaded, "catalogue" an entry of the catalogue, here or not, and "hub"
            a repository that the hub found.
        model: The facts in the header of a file; None for other rows.
        entry: The entry of the catalogue; for a result of the hub its repository and architecture, for a file empty.
        size_bytes: The size, also of the download; 0 if unknown.
        is_exact: False for a size that is estimated from the model's name.
        head: The model's draft head.
        problem: Why a file cannot be loaded.
        files: The files here.
        is_here: False for a model that must be downloaded first.
        begun_bytes: The size of the part that an earlier download left.
        counts: The parameters, downloads and likes of a repository, as far as the hub reports them.
    """

    spec: str
    name: str
    kind: Kind
    model: LocalModel | None = None
    entry: CatalogueModel = NO_ENTRY
    size_bytes: int = 0
    is_exact: bool = True
    head: KnownHead | None = None
    problem: str = ""
    files: tuple[Path, ...] = ()
    is_here: bool = True
    begun_bytes: int = 0
    is_gated: bool = False
    counts: tuple[str, ...] = ()

    @property
    def quant(self) -> str:
        """The quantisation; of a model that is not here the one to download."""
        return self.model.quantisation if self.model is not None else self.entry.quant

    @property
    def order(self) -> int:
        """The place in all lists: what can answer first, what must be downloaded last."""
        return ORDER.index(self.kind)

    @property
    def label(self) -> str:
        """The name in one line, without folders."""
        is_path = self.model is not None and Path(self.name).expanduser().is_absolute()
        return one_line(self.model.path.stem if self.model is not None and is_path else self.name)

    @property
    def size(self) -> str:
        """The size in words; empty if unknown."""
        return shown_size(self.size_bytes, is_exact=self.is_exact)

    @property
    def facts(self) -> list[str]:
        """Short facts about the model, the same in all lists."""
        if self.model is not None:
            facts = [count_of(self.model.n_params), self.quant, self.size]
        elif self.kind == "hub":
            facts = ["gated" if self.is_gated else "", *self.counts]
        else:
            facts = [self.size, self.entry.about]
        begun = f"{size_of(self.begun_bytes)} here" if self.begun_bytes else ""
        return list(filter(None, [begun, *facts, str(self.head or "")]))

    @cached_property
    def needed_bytes(self) -> int:
        """The memory that the model takes; 0 if unknown, and for a draft head."""
        if self.model is not None:
            return needed_by(self.model.header) if self.model.header and self.kind != "head" else 0
        return needed_by_size(self.size_bytes)

    def has(self, text: str) -> bool:
        """Return whether the row has all words of a text."""
        of_file = [self.model.path, self.model.name, self.model.architecture] if self.model is not None else []
        facts = [self.name, *of_file, self.entry.source, self.entry.about, self.quant, self.head or ""]
        words = " ".join(map(str, facts)).lower()
        return all(word in words for word in text.lower().split())


# --- on this machine --------------------------------------------------------------------------------------------------


def rows_here(*, embeds: bool = False, reading: Callable[[str], object] = lambda name: None) -> list[ModelRow]:
    """Return the models of this machine with their draft heads.

    `embeds` as in `local_models`. `reading` is called with the name of each file after it was read.
    """
    models = []
    for model in local_models(embeds=embeds):
        reading(model.path.name)
        models.append(model)
    return sorted(with_heads(map(row_of, models)), key=lambda row: row.order)


def row_of(model: LocalModel) -> ModelRow:
    """Return the row of a file, without its draft head: `with_heads` looks for it among all files."""
    kind: Kind = "head" if model.is_head else "embedding" if model.is_embedding else "model"
    kind, problem = "unusable" if model.problem else kind, model.problem
    files = (model.header.parts if model.header else ()) or (model.path,)
    name = name_of(model.path, model.spec)
    return ModelRow(model.spec, name, kind, model, size_bytes=model.size_bytes, problem=problem, files=files)


def with_heads(rows: Iterable[ModelRow]) -> list[ModelRow]:
    """Return the rows of files with their draft heads."""
    rows = list(rows)
    heads = KnownHeads(row.model for row in rows if row.model is not None)
    return [replace(row, head=heads.of(row.model)) if row.model is not None else row for row in rows]


def incomplete() -> list[ModelRow]:
    """Return a row for each file of an incomplete download."""
    rows = []
    for repository in cached_repositories():
        for path in partial_files(repository):
            with suppress(OSError):  # completed meanwhile
                size_bytes, problem = path.stat().st_size, "incomplete download"
                row = ModelRow(
                    repository, repository, "incomplete", size_bytes=size_bytes, problem=problem, files=(path,)
                )
                rows.append(row)
    return rows


# --- in the catalogue -------------------------------------------------------------------------------------------------


def catalogue_rows(*, absent: bool = False) -> Iterator[ModelRow]:
    """Yield the models of the catalogue, with `absent` only those that are not here.

    Raises UsageError for a catalogue with errors.
    """
    for entry in catalogue().values():
        is_here = file_of(entry) is not None
        if is_here and absent:
            continue
        yield ModelRow(
            entry.name,
            entry.name,
            "catalogue",
            entry=entry,
            size_bytes=entry.wheel_bytes or usual_bytes(entry),
            is_exact=bool(entry.package),
            head=head_of_entry(entry),
            files=tuple(files_here(entry)),
            is_here=is_here,
            begun_bytes=partial_bytes(entry.repository) if entry.repository else 0,
        )


def rows_to_download() -> list[ModelRow]:
    """Return the models of the catalogue that are not here; none while the user's file has errors."""
    with suppress(UsageError):
        return list(catalogue_rows(absent=True))
    return []


def quants_here(row: ModelRow) -> list[str]:
    """Return the quantisations of a model that are on this machine."""
    return sorted({quant_of(path.name) or path.name for path in row.files})


def usual_bytes(entry: CatalogueModel) -> int:
    """Estimate the size of a model's file: the catalogue's, or else the number of parameters in its name times their
    bits; 0 without both."""
    if entry.size_bytes and not entry.package:
        return entry.size_bytes
    match = _PARAMS.search(entry.name) or _PARAMS.search(entry.about.lower())
    bits = BITS.get(entry.quant.removeprefix("UD-"))
    if match is None or bits is None:
        return 0
    n_params = float(match[1]) * (1e9 if match[2] == "b" else 1e6)
    return round(n_params * ABOVE_NAME * bits / 8)


def sizes_of(row: ModelRow) -> list[DownloadChoice]:
    """Return what can be downloaded of a model, as the hub lists it. Raises DownloadError, ModelNotFoundError."""
    wanted = sources(row.spec)[0]
    return usual_sizes(row) if isinstance(wanted, PackageSpec) else choices_in(look_up(wanted), row.spec, wanted)


def usual_sizes(row: ModelRow) -> list[DownloadChoice]:
    """Return what the catalogue says about the sizes of a model; nothing for a repository that the hub found."""
    return [] if row.kind == "hub" else [DownloadChoice(row.spec, row.quant, row.size_bytes, row.is_exact)]


# --- on the hub -------------------------------------------------------------------------------------------------------


def rows_of_hub(words: str) -> list[ModelRow]:
    """Return the repositories with GGUF files of models that write text, the most downloaded first.

    Raises DownloadError.
    """
    if is_offline():
        raise DownloadError("offline: the hub is not searched")
    check_endpoint()
    client = session()
    from huggingface_hub import constants

    params: dict[str, str | int | list[str]] = {
        "search": words,
        "filter": "gguf",
        "sort": "downloads",
        "limit": MOST_RESULTS,
        "expand": _PROPERTIES,
    }
    try:  # not `HfApi.list_models`, which would wait for ever
        answer = client.get(f"{constants.ENDPOINT}/api/models", params=params, headers=headers(), timeout=SEARCH_S)
        answer.raise_for_status()
        return [_row_of_hub(each) for each in answer.json() if _writes_text(each)]
    except http_error() as error:
        raise DownloadError(reason(error)) from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise DownloadError(f"{host()} does not respond like a model hub") from error


def _writes_text(result: dict[str, object]) -> bool:
    """Return whether the hub found a model that writes text, under a name that is a spec."""
    name = str(result["id"])
    with suppress(ModelNotFoundError):
        task = result.get("pipeline_tag") or _TEXT_TASKS[0]
        return task in _TEXT_TASKS and sources(f"hf:{name}") == [HubSpec(name)]
    return False


def _row_of_hub(result: dict[str, Any]) -> ModelRow:
    name, gguf = str(result["id"]), result.get("gguf") or {}
    counts = [f"{_short(int(result.get(what) or 0))} {what}" for what in ("downloads", "likes")]
    return ModelRow(
        f"hf:{name}",
        name,
        "hub",
        entry=CatalogueModel("", name, quant="", about=str(gguf.get("architecture") or "")),
        is_here=False,
        begun_bytes=partial_bytes(name),
        is_gated=bool(result.get("gated")),
        counts=(count_of(int(gguf["total"])) if gguf.get("total") else "", *counts),
    )


def _short(n: int) -> str:
    return str(n) if n < 1000 else f"{n / 1e3:.0f}k" if n < 1e6 else f"{n / 1e6:.1f}M"
