"""The lists of models that /models prints."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import EdgespecError
from edgespec.gguf_file.model_check import check_model
from edgespec.models.hub.absent import Absent, absent_models, found_on_hub
from edgespec.models.memory.fit import fit_of, needed_by, needed_by_size, room_bytes
from edgespec.models.names.local import LocalModel, local_models
from edgespec.models.names.spec import resolve
from edgespec.models.pair.suggest import catalogue_drafts, instead, suggestions
from edgespec.text.figures import size_of
from edgespec.text.printable import one_line

HOW_TO = "/model MODEL loads a model, downloaded if it is not here, /draft MODEL a draft model"


def models_and_drafts(spec: str) -> list[str]:
    """Return the models here, and how they would work as drafts of the loaded model, the best first.

    Raises ModelFileError, ModelNotFoundError.
    """
    target = check_model(resolve(spec).path)
    models = list(local_models())
    lines = [_here(one) for one in models if not one.is_head]
    usable = [each for each in models if not each.problem]
    drafts = suggestions(target, usable, catalogue_drafts(spec, target.path))
    if drafts:
        lines += [f"as drafts for {spec}:", *(f"  {each.label:6}  {each.spec}: {each.why}" for each in drafts)]
    if what_else := instead(drafts):
        lines.append(what_else)
    n = len(list(absent_models()))
    return [
        *lines,
        f"/models WORDS also searches the hub, and the {n} models of the catalogue that are not here",
        HOW_TO,
    ]


def models_found(text: str, in_use_bytes: int = 0) -> list[str]:
    """Return the models that match a text, here and elsewhere, and whether they fit in memory."""
    words, room = text.lower().split(), room_bytes(in_use_bytes)
    here = [each for each in local_models() if not each.is_head and _has(words, f"{each.spec} {each.name}")]
    catalogue = [each for each in absent_models() if _has(words, f"{each.spec} {each.about} {each.repository}")]
    try:
        found, trouble = found_on_hub(text), ""
    except EdgespecError as error:
        found, trouble = [], one_line(str(error))
    listed = {each.repository for each in catalogue}
    hub = [each for each in found if each.repository not in listed]
    return [
        *_section("here", [_here(each, room) for each in here]),
        *_section("in the catalogue, not here", [_absent(each, room) for each in catalogue]),
        *_section("on the hub", [_absent(each, room) for each in hub] or ([trouble] if trouble else [])),
        HOW_TO,
    ]


def _section(heading: str, lines: Sequence[str]) -> list[str]:
    return [f"{heading}:", *(f"  {line}" for line in lines or ["none"])]


def _here(model: LocalModel, room: int = 0) -> str:
    if model.problem:
        return f"{model.spec}  {model.problem}"
    fit = fit_of(needed_by(model.header), room) if room and model.header else ""
    return "  ".join(filter(None, (model.spec, model.quantisation, size_of(model.size_bytes), fit)))


def _absent(model: Absent, room: int) -> str:
    fit = fit_of(needed_by_size(model.size_bytes), room) if model.size_bytes else ""
    return f"{model.spec}  {', '.join(filter(None, (*model.facts, fit)))}"


def _has(words: Sequence[str], text: str) -> bool:
    return all(word in text.lower() for word in words)
