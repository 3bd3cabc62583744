"""The models on this machine as the model picker shows them, with the drafts of each from the best on."""

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
from edgespec.models.names.source import NAMES, packaged_at
from edgespec.models.pair.suggest import Suggestion, best, instead, place
from edgespec.text.figures import count_of, size_of
from edgespec.text.printable import one_line

NO_DRAFT, OWN_DRAFT = "none", "own"  # options that are not keys of draft models
FETCH = "fetch "  # prefix of the keys of drafts that must be downloaded
MUTED = "$foreground 60%"
_COLOURS = {"works": "$text-success", "shared": "$text-warning", "no": MUTED}


@dataclass(frozen=True, slots=True)
class Picked:
    """The choice, as in `LoadSettings`: `draft` is None for the model's default draft, or "none"."""

    model: str
    draft: str | None


@dataclass(slots=True)
class Here:
    """The models on this machine. A key is the resolved path of a model's file."""

    model: str  #: the model in use
    draft: str | None  #: its draft, as in `LoadSettings`
    models: dict[str, LocalModel] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    judged: dict[str, dict[str, Suggestion]] = field(default_factory=dict)  #: by target, what is known of its drafts
    looked_up: set[str] = field(default_factory=set)  #: targets whose catalogue entry was read
    needed_bytes: dict[str, int] = field(default_factory=dict)  #: the memory that each model needs
    room_bytes: int = 0  #: the memory for a model, 0 while unknown

    def add(self, model: LocalModel) -> None:
        """Add a model. A known file is replaced only if it could not be read before."""
        key = os.path.realpath(model.path)
        if key not in self.models or self.models[key].problem:
            self.models[key], self.labels[key] = model, one_line(label(model))
            self.needed_bytes[key] = needed_by(model.header) if model.header and not model.is_head else 0

    def listed(self, text: str) -> list[str]:
        """Return the models that match all words of `text`, unusable ones last. Draft heads are not listed."""
        words, models = text.lower().split(), {key: model for key, model in self.models.items() if not model.is_head}
        known = {key: f"{self.labels[key]} {_all_of(model)}".lower() for key, model in models.items()}
        found = [key for key, facts in known.items() if all(word in facts for word in words)]
        return sorted(found, key=lambda key: bool(self.models[key].problem))

    @property
    def in_use(self) -> LocalModel | None:
        """The loaded model, None until it is read."""
        return next((model for model in self.models.values() if model.spec == self.model), None)

    # --- drafts ---------------------------------------------------------------------------------------------------

    def options(self, target: str) -> list[str]:
        """Return the drafts of a target: its own, compatible ones from the best on, unchecked ones, none, and those to
        download."""
        model = self.models.get(target)
        if model is None or model.problem:
            return []
        own = self._file(target, OWN_DRAFT)
        known = {draft: found for draft, found in self._ranked(target).items() if draft != own}
        fitting = [draft for draft, found in known.items() if found.is_here and self._may_draft(target, draft)]
        absent = [draft for draft, found in known.items() if not found.is_here]
        unknown = [draft for draft in self.unknown(target) if draft != own]
        return [*([OWN_DRAFT] if model.default_draft else []), *fitting, *unknown, NO_DRAFT, *absent]

    def preferred(self, target: str) -> str:
        """Return the initial choice: the draft in use, the target's own, else the best if it is good enough."""
        drafts = self.options(target)
        in_use = next((draft for draft in drafts if self._is_in_use(target, draft)), None)
        if in_use or OWN_DRAFT in drafts:
            return in_use or OWN_DRAFT
        found = best(self._ranked(target).values())
        return next((draft for draft in drafts if found and self._suggestion(target, draft) is found), NO_DRAFT)

    def picked(self, target: str, draft: str) -> Picked:
        """Return the choice of a target with a draft."""
        model = self.models[target]
        # With its name instead of its path, a packaged model gets the catalogue's settings.
        spec = name_of(model.path) if packaged_at(model.path) else model.spec
        if draft in (OWN_DRAFT, NO_DRAFT):
            return Picked(spec, None if draft == OWN_DRAFT else NO_DRAFT)
        found = self.models.get(draft)
        return Picked(spec, found.spec if found else draft.removeprefix(FETCH))

    def unknown(self, target: str) -> dict[str, LocalModel]:
        """Return the models that were not checked as drafts of a target yet."""
        model = self.models.get(target)
        if model is None or model.problem:
            return {}
        known = {target, *self.judged.get(target, {})}
        return {key: model for key, model in self.models.items() if key not in known and not model.problem}

    def _is_in_use(self, target: str, draft: str) -> bool:
        if target not in self.models or self.models[target].spec != self.model:
            return False
        if self.draft is None:
            return draft == (OWN_DRAFT if self.models[target].default_draft else NO_DRAFT)
        model = self.models.get(self._file(target, draft))
        return self.draft == (model.spec if model else draft)

    def _may_draft(self, target: str, draft: str) -> bool:
        """Return whether a draft is compatible; the draft in use may stay."""
        found = self._suggestion(target, draft)
        return found is None or found.verdict != "no" or self._is_in_use(target, draft)

    def _file(self, target: str, draft: str) -> str:
        """Return the key of a draft in `models` and `judged`."""
        default = self.models[target].default_draft if draft == OWN_DRAFT else None
        return os.path.realpath(default) if default else draft

    def _suggestion(self, target: str, draft: str) -> Suggestion | None:
        return self.judged.get(target, {}).get(self._file(target, draft))

    def _ranked(self, target: str) -> dict[str, Suggestion]:
        """Return the checked drafts of a target, the best first."""
        return dict(sorted(self.judged.get(target, {}).items(), key=lambda item: place(item[1])))

    # --- texts ----------------------------------------------------------------------------------------------------

    def title(self, target: str) -> str:
        """Return how many of the models here can draft for a target."""
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
        """Return the lines of a model in the list."""
        model = self.models[key]
        if model.problem:
            return two_lines(self.labels[key], (f"cannot be used: {one_line(model.problem)}", "$text-error"))
        facts = [count_of(model.n_params), model.quantisation, size_of(model.size_bytes)]
        in_use = ["in use"] if model.spec == self.model else []
        if 0 < self.room_bytes < self.needed_bytes.get(key, 0):
            facts.append("too large for memory")
        return two_lines(self.labels[key], (" · ".join([*in_use, *facts]), MUTED))

    def option_lines(self, target: str, draft: str) -> Content:
        """Return the lines of a draft in the list."""
        in_use = "in use · " if self._is_in_use(target, draft) else ""
        if draft == NO_DRAFT:
            return two_lines("no draft model", (f"{in_use}no draft model is loaded", MUTED))
        found = self._suggestion(target, draft)
        name = "its own draft" if draft == OWN_DRAFT else self.labels.get(draft) or (found.spec if found else "")
        if found is not None and not found.is_here:
            return two_lines(name, ("not here; Enter downloads it", MUTED))
        model = self.models.get(self._file(target, draft))
        if model is None or found is None:
            return two_lines(name, (f"{in_use}{'comes with the model' if model is None else '...'}", MUTED))
        why = f"works: {found.why}" if found.verdict == "works" else found.why
        facts = (f" · {count_of(model.n_params)} {model.quantisation}", MUTED)
        return two_lines(name, (in_use, MUTED), (one_line(why), _COLOURS[found.verdict]), facts)

    def details(self, target: str, draft: str = "") -> str:
        """Return all facts about a draft, or without `draft` about a model."""
        model = self.models.get(target)
        if model is None:
            return ""
        if model.problem:
            return f"{_shortened(model.path)}: {model.problem}"
        if not draft:
            context = f"context of {model.n_ctx_train:,} tokens, vocabulary of {model.n_vocab:,}"
            fit = fit_of(self.needed_bytes.get(target, 0), self.room_bytes)
            return "; ".join(filter(None, (f"{model.architecture}, {context}", fit, _shortened(model.path))))
        found = self._suggestion(target, draft)
        if found is None:
            is_known = draft == NO_DRAFT and target in self.looked_up and not self.unknown(target)
            others = instead(self._ranked(target).values()) if is_known else ""
            return others or "Speculative decoding then uses drafters without a model, or is off." * (draft == NO_DRAFT)
        if not found.is_here:
            return f"{found.why.removesuffix(f': {found.command}')}; not here: Enter downloads it, and then loads both"
        size = [size_of(found.size_bytes)] if found.size_bytes else []
        return "; ".join([found.why, *(reason for reason in found.reasons if reason not in found.why), *size])


def label(model: LocalModel) -> str:
    """Return the catalogue's name of a model, or for a file in the hub's cache its repository and quantisation, else
    the name of the file."""
    if model.spec in NAMES:
        return model.spec
    if packaged_at(model.path):
        return name_of(model.path)
    found = repository_of(model.path)
    return name_of(model.path) if found and "/" in found[0] else model.path.stem


def two_lines(name: str, *below: tuple[str, str]) -> Content:
    return Content.assemble(one_line(name), "\n  ", *below)


def _all_of(model: LocalModel) -> str:
    return f"{model.spec} {model.name} {model.architecture} {model.quantisation}".lower()


def _shortened(path: Path) -> str:
    """Return a path relative to the working folder or the home folder, if it is in one of them."""
    for start, shown in ((Path.cwd, "."), (Path.home, "~")):
        with suppress(OSError, RuntimeError, ValueError):
            return str(shown / path.relative_to(start()))
    return str(path)
