"""`edgespec pull --list`: what a repository offers, with sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgespec.cli.render.rows import table
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.files.paths import free_in, models_dir
from edgespec.models.hub.absent import is_here, spec_of
from edgespec.models.hub.cache import hub_cache
from edgespec.models.hub.pulling import refuse_revision
from edgespec.models.hub.repository import look_at_offers
from edgespec.models.names.source import NAMES, HubSpec, PackageSpec, is_path, packaged_models
from edgespec.models.names.spec import sources
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    from edgespec.models.hub.listing import Offer, Repository

HEADER = ("model", "size", "files", "here")


def list_offers(specs: Sequence[str], revision: str | None, output: Output, *, as_json: bool) -> None:
    """List the models in the repositories that are named. Raises UsageError, ModelNotFoundError, DownloadError."""
    found: list[dict[str, Any]] = []
    for spec in dict.fromkeys(specs):
        if spec in NAMES or is_path(spec):
            raise UsageError(f"'{spec}' is not in a repository", why="it is a file on this machine")
        wanted = sources(spec, revision or "main")[0]
        if isinstance(wanted, PackageSpec):
            refuse_revision(spec, revision, "it is part of a package")
            _list_packaged(spec, wanted, output, found if as_json else None)
            continue
        output.progress(f"looking for {spec}", None)
        try:
            repository = look_at_offers(wanted, output.note)
        finally:
            output.end_progress()
        free = free_in(hub_cache())
        if as_json:
            found.append(_about(spec, wanted, repository, free))
            continue
        output.line(f"{repository.name}, {size_of(free)} free here")
        rows = [_row(spec_of(spec, wanted, offer), wanted, offer, free) for offer in repository.offers()]
        for line in table(HEADER, rows, right=("size", "files")):
            output.line(line)
    if as_json:
        output.json({"repositories": found})


def _list_packaged(spec: str, wanted: PackageSpec, output: Output, found: list[dict[str, Any]] | None) -> None:
    """Say in which types a model of a package can be had, into `found` where that is wanted as JSON: with the keys of a
    repository's, and as size what is downloaded."""
    models = [model for model in packaged_models() if model.name == wanted.name]
    if found is not None:
        about = [
            {"model": str(each), "quant": each.quant, "file": each.path.name, "files": 1,
             "size_bytes": each.entry.wheel_bytes, "here": each.is_here}
            for each in models
        ]  # fmt: skip
        nothing = dict.fromkeys(("repository", "revision", "commit"))
        free = free_in(models_dir())
        found.append({"spec": spec, "package": wanted.package, **nothing, "free_bytes": free, "models": about})
        return
    output.line(f"{wanted.package}, a package of {size_of(wanted.entry.wheel_bytes)}")
    for each in models:
        made = f", made of {each.packed_quant} once that is downloaded" if each.is_converted else ", as in the package"
        output.line(f"  {each}{', here' if each.is_here else ''}{made}")


def _row(name: str, wanted: HubSpec, offer: Offer, free: int) -> tuple[str, ...]:
    here = "yes" if is_here(wanted, offer) else "no space" if offer.size_bytes > free else "no"
    return name, size_of(offer.size_bytes), str(offer.n_parts), here


def _about(spec: str, wanted: HubSpec, repository: Repository, free: int) -> dict[str, Any]:
    models = [
        {"model": spec_of(spec, wanted, offer), "quant": offer.quant, "file": offer.file, "files": offer.n_parts,
         "size_bytes": offer.size_bytes, "here": is_here(wanted, offer)}
        for offer in repository.offers()
    ]  # fmt: skip
    about = {"spec": spec, "repository": repository.name, "revision": wanted.revision, "commit": repository.commit}
    return about | {"free_bytes": free, "models": models}
