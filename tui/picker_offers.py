"""The items of the model picker: models, for each the drafts from the best to the worst, and their texts."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from textual.content import Content

from edgespec.models.hub.cache import repository_of
from edgespec.models.memory.fit import fit_of, needed_by
from edgespec.models.names.known import name_of
from edgespec.models.names.local import LocalModel
from edgespec.models.names.packaged import packaged_at
from edgespec.models.names.source import NAMES
from edgespec.models.pair.suggest import Suggestion, best, instead, place
from edgespec.text.figures import count_of, size_of
from edgespec.text.printable import one_line

NO_DRAFT, OWN_DRAFT, LEFT_OUT = "none", "own", "left out"  # among the keys of drafts, where the others are files
FETCH = "fetch "  # begins the keys of drafts to download


@dataclass(slots=True)
class Offers:
    """Models by their resolved file, and by target what is known about its drafts.

    Drafts to download have keys of their own. `looked_up` are the targets whose catalogue entry was read. `model` and
    `draft` are those in use, as in `LoadSettings`. `needed_bytes` is the
    memory that models take, `room_bytes` what there is, 0 until that is known.
    """

    model: str
    draft: str | None
    models: dict[str, LocalModel] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    judged: dict[str, dict[str, Suggestion]] = field(default_factory=dict)
    looked_up: set[str] = field(default_factory=set)
    needed_bytes: dict[str, int] = field(default_factory=dict)
    room_bytes: int = 0

    def add(self, model: LocalModel) -> str:
        """Returns its key. A known file stays as it is, unless it could not be read before."""
        key = os.path.realpath(model.path)
        if key not in self.models or self.models[key].problem:
            self.models[key], self.labels[key] = model, one_line(label(model))
            self.needed_bytes[key] = needed_by(model.header) if model.header and not model.is_head else 0
        return key

    def passing(self, text: str) -> list[str]:
        """The models whose texts have all words of `text`, those that cannot be loaded last. Draft heads only draft."""
        words, models = text.lower().split(), {key: model for key, model in self.models.items() if not model.is_head}
        told = {key: f"{self.labels[key]} {_all_of(model)}".lower() for key, model in models.items()}
        found = [key for key, said in told.items() if all(word in said for word in words)]
        return sorted(found, key=lambda key: bool(self.models[key].problem))

    @property
    def in_use(self) -> LocalModel | None:
        """The loaded model, once it was read."""
        return next((model for model in self.models.values() if model.spec == self.model), None)

    # --- drafts ---------------------------------------------------------------------------------------------------

    def drafts(self, target: str) -> list[str]:
        """The list for a target: its own draft, compatible ones from the best on, unchecked ones, "none", those to
        download, and below a heading those that are left out."""
        model = self.models.get(target)
        if model is None or model.problem:
            return []
        own = self.file(target, OWN_DRAFT)
        known = {draft: found for draft, found in self._ranked(target).items() if draft != own}
        fitting = [draft for draft, found in known.items() if found.is_here and found.verdict != "no"]
        absent = [draft for draft, found in known.items() if not found.is_here]
        unfit = [draft for draft, found in known.items() if found.verdict == "no"]
        unknown = [draft for draft in self.unknown(target) if draft != own]
        heading = [LEFT_OUT] if unfit else []
        return [*([OWN_DRAFT] if model.default_draft else []), *fitting, *unknown, NO_DRAFT, *absent, *heading, *unfit]

    def preferred(self, target: str) -> str:
        """The initial choice: the draft in use, the target's own, or else the best if it is good enough to use
        unasked."""
        drafts = self.drafts(target)
        in_use = next((draft for draft in drafts if self.is_in_use(target, draft)), None)
        if in_use or OWN_DRAFT in drafts:
            return in_use or OWN_DRAFT
        found = best(self._ranked(target).values())
        return next((draft for draft in drafts if found and self.suggestion(target, draft) is found), NO_DRAFT)

    def is_in_use(self, target: str, draft: str) -> bool:
        """Whether these two are loaded."""
        if target not in self.models or self.models[target].spec != self.model:
            return False
        if self.draft is None:
            return draft == (OWN_DRAFT if self.models[target].default_draft else NO_DRAFT)
        model = self.models.get(self.file(target, draft))
        return self.draft == (model.spec if model else draft)

    def can_be_chosen(self, target: str, draft: str) -> bool:
        """Whether nothing is known against it; the one in use may stay."""
        found = self.suggestion(target, draft)
        is_fit = found is None or found.verdict != "no"
        return is_fit or self.is_in_use(target, draft)

    def file(self, target: str, draft: str) -> str:
        """The key in `models` and `judged` of a draft."""
        default = self.models[target].default_draft if draft == OWN_DRAFT else None
        return os.path.realpath(default) if default else draft

    def suggestion(self, target: str, draft: str) -> Suggestion | None:
        """What is known about a draft; None for "none", and until it is checked."""
        return self.judged.get(target, {}).get(self.file(target, draft))

    def unknown(self, target: str) -> dict[str, LocalModel]:
        """The unchecked drafts of a target."""
        model = self.models.get(target)
        if model is None or model.problem:
            return {}
        known = {target, *self.judged.get(target, {})}
        return {key: model for key, model in self.models.items() if key not in known and not model.problem}

    def _ranked(self, target: str) -> dict[str, Suggestion]:
        """A target's checked drafts, the best first."""
        return dict(sorted(self.judged.get(target, {}).items(), key=lambda item: place(item[1])))

    # --- their texts ----------------------------------------------------------------------------------------------

    def title(self, target: str) -> str:
        """How many of the models here can draft for a target."""
        model = self.models.get(target)
        if model is None or model.problem:
            return ""
        is_known = not self.unknown(target)
        here = [found.verdict != "no" for found in self._ranked(target).values() if found.is_here]
        if here and not any(here) and is_known:
            return "No compatible draft model is installed"
        if not here:
            counted = "No other model is here to" if is_known else "Which models can"
        else:
            counted = f"{sum(here)} of {len(here)} here can"
        return f"{counted} draft for {self.labels[target]}{'' if is_known else ' ...'}"

    def model_lines(self, key: str) -> Content:
        model = self.models[key]
        if model.problem:
            return _two_lines(self.labels[key], (f"cannot be used: {one_line(model.problem)}", "$text-error"))
        facts = [count_of(model.n_params), model.quantisation, size_of(model.size_bytes)]
        in_use = ["in use"] if model.spec == self.model else []
        if 0 < self.room_bytes < self.needed_bytes.get(key, 0):
            facts.append("too large for memory")
        return _two_lines(self.labels[key], (" · ".join([*in_use, *facts]), _MUTED))

    def draft_lines(self, target: str, draft: str) -> Content:
        in_use = "in use · " if self.is_in_use(target, draft) else ""
        if draft == NO_DRAFT:
            return _two_lines("no draft model", (f"{in_use}no draft model is loaded", _MUTED))
        if draft == LEFT_OUT:
            return Content.assemble("\n", ("incompatible, and why", f"italic {_MUTED}"))
        found, name = self.suggestion(target, draft), self.draft_name(target, draft)
        if found is not None and not found.is_here:
            return _two_lines(name, ("not here; Enter downloads it", _MUTED))
        model = self.models.get(self.file(target, draft))
        if model is None:
            return _two_lines(name, (f"{in_use}comes with the model", _MUTED))
        facts = (f" · {count_of(model.n_params)} {model.quantisation}", _MUTED)
        if found is None:
            return _two_lines(name, (f"{in_use}...", _MUTED))
        said = f"works: {found.why}" if found.verdict == "works" else found.why
        shown = _two_lines(name, (in_use, _MUTED), (one_line(said), _COLOURS[found.verdict]), facts)
        return shown.stylize_before(_MUTED) if found.verdict == "no" else shown

    def draft_name(self, target: str, draft: str) -> str:
        """A draft's name in the list."""
        if draft in (OWN_DRAFT, NO_DRAFT):
            return "its own draft" if draft == OWN_DRAFT else "no draft model"
        found = self.suggestion(target, draft)
        return self.labels.get(draft) or (found.spec if found else "")

    def model_details(self, key: str) -> str:
        """Everything known about a model, in a few lines."""
        model = self.models.get(key)
        if model is None:
            return ""
        if model.problem:
            return f"{_shortened(model.path)}: {model.problem}"
        context = f"context of {model.n_ctx_train:,} tokens, vocabulary of {model.n_vocab:,}"
        fit = fit_of(self.needed_bytes.get(key, 0), self.room_bytes)
        return "; ".join(filter(None, (f"{model.architecture}, {context}", fit, _shortened(model.path))))

    def draft_details(self, target: str, draft: str) -> str:
        """How compatible a draft is, or what is possible without one, in a few lines."""
        found = self.suggestion(target, draft)
        if found is None:
            if draft != NO_DRAFT:
                return ""
            is_known = target in self.looked_up and not self.unknown(target)
            said = instead(self._ranked(target).values()) if is_known else ""
            return said or "Speculative decoding then uses drafters without a model, or is off."
        if not found.is_here:
            about = found.why.removesuffix(f": {found.command}")
            return f"{about}; not here: Enter downloads it, and then loads both"
        size = [size_of(found.size_bytes)] if found.size_bytes and found.verdict != "no" else []
        return "; ".join([found.why, *(reason for reason in found.reasons if reason not in found.why), *size])


def label(model: LocalModel) -> str:
    """A model's name in a list: the catalogue's; from the hub's cache its repository and quantisation; else the file,
    whose name says more than the one in it."""
    if model.spec in NAMES:
        return model.spec
    if packaged_at(model.path):
        return name_of(model.path)
    place = repository_of(model.path)
    return name_of(model.path) if place and "/" in place[0] else model.path.stem


_MUTED = "$foreground 60%"
_COLOURS = {"works": "$text-success", "shared": "$text-warning", "no": _MUTED}


def _two_lines(name: str, *said: tuple[str, str]) -> Content:
    return Content.assemble(one_line(name), "\n  ", *said)


def _all_of(model: LocalModel) -> str:
    return f"{model.spec} {model.name} {model.architecture} {model.quantisation}".lower()


def _shortened(path: Path) -> str:
    """A path relative to the working folder or the home folder, if it is in one."""
    for start, shown in ((Path.cwd, "."), (Path.home, "~")):
        with suppress(OSError, RuntimeError, ValueError):
            return str(shown / path.relative_to(start()))
    return str(path)
