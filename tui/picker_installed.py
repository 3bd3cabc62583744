"""The models on this machine as the model picker shows them, with the drafts of each from the best on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from textual.content import Content
from textual.widgets.option_list import Option

from edgespec.models.memory.fit import fit_of, needed_by
from edgespec.models.names.local import LocalModel
from edgespec.models.names.model_names import name_of
from edgespec.models.names.published_heads import KnownHead
from edgespec.models.names.source import packaged_at
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


@dataclass(frozen=True, slots=True)
class Offer:
    """An option of a model: a draft, or a size to download."""

    key: str
    lines: Content
    details: str
    picked: Picked


@dataclass(frozen=True, slots=True)
class About:
    """Everything about one model: a title above its offers, all facts in a line, and why it cannot be used."""

    title: str = ""
    details: str = ""
    problem: str = ""
    offers: Sequence[Offer] = ()
    preferred: str = ""  #: the key of the initial choice


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
    heads: dict[str, KnownHead] = field(default_factory=dict)  #: the draft head of each model that has one
    room_bytes: int = 0  #: the memory for a model, 0 while unknown

    def add(self, model: LocalModel) -> None:
        """Add a model. A known file is replaced only if it could not be read before."""
        key = os.path.realpath(model.path)
        if key not in self.models or self.models[key].problem:
            name = name_of(model.path, model.spec)
            self.models[key], self.labels[key] = (
                model,
                one_line(model.path.stem if Path(name).expanduser().is_absolute() else name),
            )
            self.needed_bytes[key] = needed_by(model.header) if model.header and not model.is_head else 0

    @property
    def in_use(self) -> LocalModel | None:
        """The loaded model, None until it is read."""
        return next((model for model in self.models.values() if model.spec == self.model), None)

    def rows(self, text: str = "") -> list[Option]:
        """Return the models that match all words of `text`, unusable ones last. Draft heads are not listed."""
        words, models = text.lower().split(), {key: model for key, model in self.models.items() if not model.is_head}
        known = {key: f"{self.labels[key]} {_all_of(model)}".lower() for key, model in models.items()}
        found = [key for key, facts in known.items() if all(word in facts for word in words)]
        return [Option(self._lines(key), key) for key in sorted(found, key=lambda key: bool(models[key].problem))]

    def _lines(self, key: str) -> Content:
        model = self.models[key]
        if model.problem:
            return two_lines(self.labels[key], (f"cannot be used: {one_line(model.problem)}", "$text-error"))
        facts = [count_of(model.n_params), model.quantisation, size_of(model.size_bytes)]
        in_use = ["in use"] if model.spec == self.model else []
        if 0 < self.room_bytes < self.needed_bytes[key]:
            facts.append("too large for memory")
        if head := self.heads.get(key):
            facts.append(str(head))
        return two_lines(self.labels[key], (" · ".join([*in_use, *facts]), MUTED))

    def unknown(self, target: str) -> dict[str, LocalModel]:
        """Return the models that were not checked as drafts of a target yet."""
        known = {target, *self.judged.get(target, {})}
        return {key: model for key, model in self.models.items() if key not in known and not model.problem}

    def about(self, target: str) -> About:
        """Return all that is known of a model.

        The offers are its own draft, compatible ones from the best on, unchecked ones, none, and those to download.
        """
        model = self.models.get(target)
        if model is None:
            return About()
        if model.problem:
            return About(details=f"{_shortened(model.path)}: {model.problem}", problem=model.problem)
        own = os.path.realpath(model.default_draft) if model.default_draft else ""
        in_use = self._draft_in_use(model, own)
        ranked = dict(sorted(self.judged.get(target, {}).items(), key=lambda item: place(item[1])))
        others = {draft: found for draft, found in ranked.items() if draft != own}
        here = [key for key, found in others.items() if found.is_here and (found.verdict != "no" or key == in_use)]
        absent = [key for key, found in others.items() if not found.is_here]
        unknown = [key for key in self.unknown(target) if key != own]
        drafts = [*([OWN_DRAFT] if own else []), *here, *unknown, NO_DRAFT, *absent]
        head = self.heads.get(target)
        can_fetch = head is not None and head.place == "not here" and head.spec
        to_fetch = [self._offer_of_head(model, head)] if head is not None and can_fetch else []
        chosen = best(ranked.values())
        usual = OWN_DRAFT if own else next((key for key, found in ranked.items() if found is chosen), NO_DRAFT)
        return About(
            self._title(target, list(ranked.values())),
            self._details(target, model),
            offers=[
                self._offer(target, draft, own if draft == OWN_DRAFT else draft, ranked, is_in_use=draft == in_use)
                for draft in drafts
            ]
            + to_fetch,
            preferred=in_use if in_use in drafts else usual,
        )

    def _draft_in_use(self, model: LocalModel, own: str) -> str:
        """Return the option that is in use with a model; "" if the model is not loaded."""
        if model.spec != self.model:
            return ""
        if self.draft is None:
            return OWN_DRAFT if own else NO_DRAFT
        draft = next((key for key, each in self.models.items() if each.spec == self.draft), self.draft)
        return OWN_DRAFT if draft == own else draft

    def _title(self, target: str, ranked: Sequence[Suggestion]) -> str:
        """Return how many of the models here can draft for a target."""
        is_known = not self.unknown(target)
        here = [found.verdict != "no" for found in ranked if found.is_here]
        if here and not any(here) and is_known:
            return "No compatible draft model is installed"
        if not here:
            counted = "No other model is here to" if is_known else "Which models can"
        else:
            counted = f"{sum(here)} of {len(here)} here can"
        return f"{counted} draft for {self.labels[target]}{'' if is_known else ' ...'}"

    def _details(self, target: str, model: LocalModel) -> str:
        context = f"context of {model.n_ctx_train:,} tokens, vocabulary of {model.n_vocab:,}"
        fit = fit_of(self.needed_bytes[target], self.room_bytes)
        head = f"draft head: {self.heads[target]}" if target in self.heads else ""
        return "; ".join(filter(None, (f"{model.architecture}, {context}", head, fit, _shortened(model.path))))

    def _offer_of_head(self, model: LocalModel, head: KnownHead) -> Offer:
        """Return the option to download the published head of a model."""
        spec = name_of(model.path) if packaged_at(model.path) else model.spec
        lines = two_lines(head.spec, (f"{head.title}, not here; Enter downloads it", MUTED))
        details = f"{head.facts}; not here: Enter downloads it, converts it if needed, and loads both"
        return Offer(f"{FETCH}{head.spec}", lines, details, Picked(spec, head.spec))

    def _offer(self, target: str, draft: str, key: str, ranked: dict[str, Suggestion], *, is_in_use: bool) -> Offer:
        """Return the option `draft`, whose key in `models` and `ranked` is `key`."""
        target_model, model, found = self.models[target], self.models.get(key), ranked.get(key)
        # With its name instead of its path, a packaged model gets the catalogue's settings.
        spec = name_of(target_model.path) if packaged_at(target_model.path) else target_model.spec
        in_use = ("in use · " if is_in_use else "", MUTED)
        if draft == NO_DRAFT:
            is_known = target in self.looked_up and not self.unknown(target)
            without = "Speculative decoding then uses drafters without a model, or is off."
            details = (instead(ranked.values()) if is_known else "") or without
            lines = two_lines("no draft model", in_use, ("no draft model is loaded", MUTED))
            return Offer(draft, lines, details, Picked(spec, NO_DRAFT))
        if found is not None and not found.is_here:
            why = found.why.removesuffix(f": {found.command}")
            lines = two_lines(found.spec, ("not here; Enter downloads it", MUTED))
            return Offer(
                draft,
                lines,
                f"{why}; not here: Enter downloads it, and then loads both",
                Picked(spec, draft.removeprefix(FETCH)),
            )
        name = "its own draft" if draft == OWN_DRAFT else self.labels[key]
        picked = Picked(spec, None if draft == OWN_DRAFT or model is None else model.spec)
        if model is None or found is None:
            state = "comes with the model" if model is None else "..."
            return Offer(draft, two_lines(name, in_use, (state, MUTED)), "", picked)
        why = f"works: {found.why}" if found.verdict == "works" else found.why
        facts = (f" · {count_of(model.n_params)} {model.quantisation}", MUTED)
        size = [size_of(found.size_bytes)] if found.size_bytes else []
        details = "; ".join([found.why, *(reason for reason in found.reasons if reason not in found.why), *size])
        return Offer(draft, two_lines(name, in_use, (one_line(why), _COLOURS[found.verdict]), facts), details, picked)


def two_lines(name: str, *below: tuple[str, str]) -> Content:
    return Content.assemble(one_line(name), "\n  ", *below)


def _all_of(model: LocalModel) -> str:
    return f"{model.spec} {model.name} {model.architecture} {model.quantisation}"


def _shortened(path: Path) -> str:
    """Return a path relative to the working folder or the home folder, if it is in one of them."""
    for start, shown in ((Path.cwd, "."), (Path.home, "~")):
        with suppress(OSError, RuntimeError, ValueError):
            return str(shown / path.relative_to(start()))
    return str(path)
