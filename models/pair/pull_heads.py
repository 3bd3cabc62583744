"""The published draft heads that `edgespec pull` offers: which one can be had, its download, and its conversion to a
file that is found near its model."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.paths import models_dir
from edgespec.gguf_file.head_check import check_draft_file, check_head_fits
from edgespec.gguf_file.model_check import check_model
from edgespec.models.hub.cache import cached_files
from edgespec.models.hub.pulling import Display, PendingDownload, announce, check_space, fetch_items
from edgespec.models.hub.quants import quant_of
from edgespec.models.hub.repository import Download, plan, plan_gguf_head, plan_head
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.catalog import CatalogueModel, catalogue
from edgespec.models.names.heads import GGUF, MTP, KnownHead, PublishedHead
from edgespec.models.names.local import LocalModel, read_model
from edgespec.models.names.model_names import entry_from, entry_of
from edgespec.models.names.source import HubSpec
from edgespec.models.pair.known_heads import head_of

TYPE = "Q8_0"  # of the weights of converted heads


def known_head(item: PendingDownload) -> KnownHead | None:
    """Return the head that a planned model has already: in its file, or here. Of a model that is not here, only the
    catalogue says what is in its file."""
    if (model := _model_of(item)) is not None:
        found = head_of(model)
        return found if found is not None and found.place != "not here" else None
    entry = _entry_of(item)
    if entry is None:
        return None
    for head in entry.heads:
        if head.kind == MTP:
            return KnownHead(MTP, "in its file")
        is_elsewhere = head.repository != entry.repository  # in the model's own, other files are models
        if is_elsewhere and (file := _file_of(head)):
            return KnownHead(head.kind, "here", str(file))
    return None


def published_head(item: PendingDownload, display: Display) -> PendingDownload | None:
    """Return the best published head that can be had for a planned model, planned as its draft; None without one.

    Heads in the model's own repository, which `offered_draft` offers, are left out, and so are heads of kinds that do
    not work for the model. A head that is not on the hub any more, or not in the expected form, is passed over.
    """
    entry, model = _entry_of(item), _model_of(item)
    download = item.download
    architecture = download.architecture if isinstance(download, Download) else ""
    if model is not None:
        architecture = model.architecture
    own = download.wanted.repository.lower() if isinstance(download, Download) else ""
    for head in entry.heads if entry is not None else ():
        if head.fits(architecture) and head.repository.lower() != own:
            try:
                return _planned(head, item, display)
            except DownloadError as error:
                display.note(f"no draft head is offered: {error.line}")
                return None
            except EdgespecError:  # it is gone, or has another form
                continue
    return None


def head_called(repository: str, model: Path) -> PublishedHead | None:
    """Return the head that the catalogue names for a model's file, by its repository; None for others."""
    with suppress(UsageError):
        entry = entry_of(model, catalogue())
        heads = entry.heads if entry is not None else ()
        return next((head for head in heads if head.can_be_had and head.repository == repository), None)
    return None


def fetch_published(
    head: PublishedHead, item: PendingDownload, display: Display, cancel: CancelFlag
) -> PendingDownload:
    """Download a published head for a model that is here, and convert or check it. Returns the head's item, whose
    `stopped` is set if the download was cancelled. Raises EdgespecError."""
    draft = _planned(head, item, display)
    if draft.error is None:
        announce(draft, display)
        fetch_items([draft], display, cancel)
        finish_head(draft, display)
    if draft.error is not None:
        raise draft.error
    return draft


def _planned(head: PublishedHead, item: PendingDownload, display: Display) -> PendingDownload:
    """Return the head as an item whose download is planned. Raises EdgespecError."""
    wanted = HubSpec(head.repository)
    display.progress(f"looking for {head.repository}", None)
    try:
        if head.format == GGUF:
            quant = quant_of(item.download.files[0].name) if isinstance(item.download, Download) else ""
            has_models = any(entry.repository == head.repository for entry in catalogue().values())
            wanted = plan_gguf_head(wanted, quant, display.note, has_models=has_models)
            download = plan(wanted, display.note)
        else:
            download = plan_head(wanted, display.note)
    finally:
        display.end_progress()
    draft = PendingDownload(head.repository, wanted, targets=[item], head=head, download=download)
    draft.was_here, draft.path = download.is_here, download.path
    try:
        check_space([download])
    except EdgespecError as error:
        draft.error = error
    return draft


def finish_head(item: PendingDownload, display: Display) -> None:
    """Convert a downloaded head for its model, or check the file of one that needs no conversion. A failure is kept in
    `error`; the path of the item is then that of the head's file."""
    target = next((each.path for each in item.targets if each.path is not None and each.is_done), None)
    if item.head is None or not item.is_done or item.error is not None or target is None or item.path is None:
        return
    try:
        header = check_model(target)
        if item.head.format == GGUF:
            check_head_fits(header, check_draft_file(item.path))
        else:
            item.path = _converted(item.head, item.path.parent, target, display)
    except EdgespecError as error:
        without = f"{item.targets[0].spec} can be used without it"
        error.hint = f"{error.hint}; {without}" if error.hint else without
        item.error = error
    finally:
        display.end_progress()


def _entry_of(item: PendingDownload) -> CatalogueModel | None:
    """Return the catalogue's entry of an item. Raises UsageError for a catalogue with errors."""
    entries = catalogue()
    if item.wanted is not None:
        return entry_from(item.wanted, entries)
    return entry_of(item.path, entries) if item.path is not None else None


def _model_of(item: PendingDownload) -> LocalModel | None:
    """Return the model of an item if it is here and can be read."""
    if item.path is None or not item.was_here:
        return None
    model = next(read_model(item.path, str(item.path)), None)
    return model if model is not None and not model.problem else None


def _file_of(head: PublishedHead) -> Path | None:
    """Return the GGUF file of a published head if it is here."""
    if head.format == GGUF:
        return next(iter(cached_files(head.repository).values()), None)
    return place if (place := _place_of(head)).is_file() else None


def _place_of(head: PublishedHead) -> Path:
    """Return the place of the file that is made of a published head."""
    return models_dir() / f"{head.repository.replace('/', '-')}-{TYPE}.gguf"


def _converted(head: PublishedHead, folder: Path, target: Path, display: Display) -> Path:
    """Return the file that was made of a published head, in edgespec's folder of models. Raises EdgespecError."""
    from edgespec.models.pair.convert import convert_head

    out = _place_of(head)
    with told_as(UsageError, f"cannot write {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
    convert_head(folder, check_model(target), out, TYPE, lambda done: display.progress("converting", done))
    return out
