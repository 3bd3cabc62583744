"""What the model picker lists that is not here: the catalogue's models and those of the hub, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from textual.content import Content

from edgespec.chat.downloads import Downloads, Fetching, is_huge
from edgespec.errors import EdgespecError
from edgespec.models.hub.absent import (
    Absent,
    Choice,
    about_size,
    absent_models,
    choices_of,
    found_on_hub,
    free_for,
    usual_choice,
)
from edgespec.models.memory.fit import fit_of, needed_by_size, room_bytes
from edgespec.models.names.catalog import DEFAULT_QUANT
from edgespec.text.figures import size_of
from edgespec.text.printable import one_line
from edgespec.tui.download_line import state_of

GET = "get:"  # begins the keys of models that are not here; their specs follow
CATALOGUE, HUB = "heading:catalogue", "heading:hub"
LEAST_SEARCHED = 2  # letters
STOP = "stop"  # the choice that stops a download
_MUTED = "$foreground 60%"


@dataclass(slots=True)
class Elsewhere:
    """Models by their keys: `catalogue`, and `found` on the hub for the words `searched`, the last ones `wanted`.

    `trouble` is why the hub was not searched. `choices` are the sizes that each can be had in, `troubles` why they are
    not known. `room_bytes` is the memory for a model, 0 until that is known.
    """

    downloads: Downloads
    catalogue: dict[str, Absent] = field(default_factory=dict)
    found: dict[str, Absent] = field(default_factory=dict)
    wanted: str = ""
    searched: str = ""
    trouble: str = ""
    choices: dict[str, list[Choice]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    room_bytes: int = 0
    source: Callable[[], Iterable[Absent]] = absent_models
    hub: Callable[[str], list[Absent]] = found_on_hub

    def model(self, key: str) -> Absent | None:
        return self.catalogue.get(key) or self.found.get(key)

    def listed(self, text: str) -> list[str]:
        """The keys of those that pass a filter, below the headings of their sections."""
        words = text.lower().split()
        passing = [key for key, model in self.catalogue.items() if _has(model, words)]
        repositories = {self.catalogue[key].repository for key in passing}
        found = [key for key, model in self.found.items() if model.repository not in repositories]
        return [*([CATALOGUE, *passing] if passing else []), HUB, *found]

    def heading(self, key: str, text: str) -> Content:
        """The heading of a section, and what there is to say about it."""
        if key == CATALOGUE:
            return Content.assemble("\n", ("in the catalogue", f"italic {_MUTED}"))
        if len(text.strip()) < LEAST_SEARCHED:
            said = "type to search the hub, too"
        elif self.searched != text.strip():
            said = "searching the hub ..."
        elif self.trouble:
            said = self.trouble
        else:
            said = "on the hub" if self.found else "nothing else on the hub"
        return Content.assemble("\n", (one_line(said), f"italic {_MUTED}"))

    def model_lines(self, key: str) -> Content:
        model = self.model(key)
        if model is None:
            return Content("")
        name = one_line(model.repository if model.found else model.spec)
        fetching = self.fetching(key)
        if fetching is not None:
            return Content.assemble(name, "\n  ", (one_line(state_of(fetching)), "$text-accent"))
        mark, style = self._mark(needed_by_size(model.size_bytes) if model.size_bytes else 0)
        facts = " · ".join(model.facts)
        return Content.assemble(name, "\n  ", (f"{mark} ", style) if mark else "", (one_line(facts), _MUTED))

    def title(self, key: str) -> str:
        model = self.model(key)
        if model is None:
            return ""
        draft = f", with its draft {model.draft}" if model.draft else ""
        return f"Download {model.repository if model.found else model.spec}{draft}"

    def fetching(self, key: str) -> Fetching | None:
        """The download of a model, in any of its sizes, that runs or waits."""
        model = self.model(key)
        specs = [choice.spec for choice in self.choices_of(key)] + ([model.spec] if model else [])
        return next(filter(None, map(self.downloads.of, specs)), None)

    def choices_of(self, key: str) -> list[Choice]:
        """What can be chosen; until the hub has told, the usual size."""
        model = self.model(key)
        if model is None:
            return []
        return self.choices.get(key) or usual_choice(model)

    def choice(self, key: str, spec: str) -> Choice | None:
        return next((each for each in self.choices_of(key) if each.spec == spec), None)

    def preferred(self, key: str) -> str:
        """The choice that is highlighted at first: the catalogue's, the usual one, the largest that fits."""
        model, choices = self.model(key), self.choices_of(key)
        if model is None or not choices:
            return ""
        for quant in filter(None, (model.quant, DEFAULT_QUANT)):
            for choice in choices:
                if choice.label == quant:
                    return choice.spec
        fitting = [each for each in choices if needed_by_size(each.size_bytes) <= self.room_bytes]
        return (fitting or choices)[-1 if fitting else 0].spec

    def choice_lines(self, key: str, spec: str) -> Content:
        if spec == STOP:
            return Content.assemble("stop this download", "\n  ", ("what has come is kept", _MUTED))
        choice = self.choice(key, spec)
        if choice is None:
            return Content("")
        size = size_of(choice.size_bytes) if choice.is_exact else about_size(choice.size_bytes)
        needed = needed_by_size(choice.size_bytes) if choice.size_bytes else 0
        mark, style = self._mark(needed)
        fit = fit_of(needed, self.room_bytes) or "size unknown"
        here = "here · " if choice.is_here else ""
        said = (f"{mark} {fit}".strip(), style or _MUTED)
        return Content.assemble(one_line(choice.label or choice.spec), (f"  {size}", _MUTED), f"\n  {here}", said)

    def details(self, key: str, spec: str = "") -> str:
        """What there is to know before it is downloaded."""
        model, fetching = self.model(key), self.fetching(key)
        if model is None:
            return ""
        if fetching is not None:
            return f"{fetching.spec}: {state_of(fetching)}; x stops it"
        choice = self.choice(key, spec or self.preferred(key))
        known = [model.about] if model.about else []
        if model.found is not None and model.found.is_gated:
            known.append("gated: its licence must be accepted on the hub")
        if choice is None:
            known.append(self.troubles.get(key) or "its sizes are being looked up ...")
            return "; ".join(known)
        size = size_of(choice.size_bytes) if choice.is_exact else about_size(choice.size_bytes)
        known.append(f"{size or 'an unknown size'} to download, {size_of(free_for(model))} free on the disk")
        if fit := fit_of(needed_by_size(choice.size_bytes) if choice.size_bytes else 0, self.room_bytes):
            known.append(fit)
        if model.begun_bytes:
            known.append(f"{size_of(model.begun_bytes)} of it came earlier, and the download goes on from there")
        known += [self.troubles[key]] if key in self.troubles else []
        return "; ".join(known)

    def question(self, key: str, spec: str) -> str:
        """What to ask before a large download; empty if there is nothing to ask."""
        model, choice = self.model(key), self.choice(key, spec)
        if model is None or choice is None or choice.is_here:
            return ""
        free = free_for(model)
        needed = needed_by_size(choice.size_bytes)
        too_large = choice.size_bytes > 0 and 0 < self.room_bytes < needed
        if not too_large and not (choice.is_exact and is_huge(choice.size_bytes, free)):
            return ""
        size = size_of(choice.size_bytes) if choice.is_exact else about_size(choice.size_bytes)
        why = f"; {fit_of(needed, self.room_bytes)}" if too_large else ""
        return f"{size} to download, {size_of(free)} free on the disk{why}: Enter again downloads it"

    def _mark(self, needed: int) -> tuple[str, str]:
        """A sign whether it fits in memory, and its colour."""
        if not needed or not self.room_bytes:
            return "", ""
        return ("✓", "$text-success") if needed <= self.room_bytes else ("✗", "$text-error")

    # --- what threads do: nothing here is read half-written ---------------------------------------------------------

    def read(self, in_use_bytes: int) -> None:
        """Read the catalogue, and how much memory there is beside what the model in use takes."""
        self.catalogue = {GET + model.spec: model for model in self.source()}
        self.room_bytes = room_bytes(in_use_bytes)

    def search(self, words: str) -> None:
        """Search the hub; the last result stays until another one comes."""
        try:
            found, trouble = self.hub(words), ""
        except EdgespecError as error:
            found, trouble = [], str(error).replace("\n", ";")
        if self.wanted == words:
            self.found, self.trouble, self.searched = {GET + each.spec: each for each in found}, trouble, words

    def look_up(self, key: str) -> None:
        """Ask the hub for the sizes of a model."""
        model = self.model(key)
        if model is not None:
            try:
                self.choices[key] = choices_of(model)
            except EdgespecError as error:
                self.troubles[key] = str(error).replace("\n", ";")


def _has(model: Absent, words: list[str]) -> bool:
    told = f"{model.spec} {model.about} {model.repository} {model.quant}".lower()
    return all(word in told for word in words)
