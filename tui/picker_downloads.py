"""Models that are not on this machine as the model picker shows them: the catalogue's, and those of the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from textual.content import Content
from textual.widgets.option_list import Option

from edgespec.chat.downloads import Downloads, Fetching
from edgespec.errors import EdgespecError
from edgespec.models.hub.downloadable import (
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
from edgespec.tui.picker_installed import MUTED, About, Offer, Picked, two_lines

GET = "get:"  # prefix of the keys; a model's spec follows
CATALOGUE, HUB = "heading:catalogue", "heading:hub"
LEAST_SEARCHED = 2  # letters


@dataclass(slots=True)
class Elsewhere:
    """The models that can be downloaded, by their keys. Threads replace its fields, never parts of them."""

    downloads: Downloads
    catalogue: dict[str, Absent] = field(default_factory=dict)
    found: dict[str, Absent] = field(default_factory=dict)  #: the models that the hub found
    wanted: str = ""  #: the words of the last search that was started
    searched: str = ""  #: the words that `found` is for
    trouble: str = ""  #: why the hub could not be searched
    choices: dict[str, list[Choice]] = field(default_factory=dict)  #: the sizes of each model
    troubles: dict[str, str] = field(default_factory=dict)  #: why sizes are not known
    room_bytes: int = 0  #: the memory for a model, 0 while unknown
    source: Callable[[], Iterable[Absent]] = absent_models
    hub: Callable[[str], list[Absent]] = found_on_hub

    def has(self, key: str) -> bool:
        return key in self.catalogue or key in self.found

    def model(self, key: str) -> Absent:
        return self.catalogue.get(key) or self.found[key]

    def rows(self, text: str) -> list[Option]:
        """Return the models that match `text`, below the headings of their sections."""
        words = text.lower().split()
        passing = {key: model for key, model in self.catalogue.items() if _has(model, words)}
        repositories = {model.repository for model in passing.values()}
        found = [key for key, model in self.found.items() if model.repository not in repositories]
        in_catalogue = [_heading(CATALOGUE, "in the catalogue"), *map(self._row, passing)] if passing else []
        return [*in_catalogue, _heading(HUB, self._state_of_search(text.strip())), *map(self._row, found)]

    def _state_of_search(self, text: str) -> str:
        if len(text) < LEAST_SEARCHED:
            return "type to search the hub, too"
        if self.searched != text:
            return "searching the hub ..."
        return self.trouble or ("on the hub" if self.found else "nothing else on the hub")

    def _row(self, key: str) -> Option:
        model, fetching = self.model(key), self.fetching(key)
        name = model.repository if model.is_found else model.spec
        if fetching is not None:
            return Option(two_lines(name, (one_line(state_of(fetching)), "$text-accent")), key)
        mark, style = self._mark(_needed(model))
        return Option(
            two_lines(name, (f"{mark} " if mark else "", style), (one_line(" · ".join(model.facts)), MUTED)), key
        )

    def fetching(self, key: str) -> Fetching | None:
        """Return the running or waiting download of a model, in any size; None for models here."""
        specs = [*(choice.spec for choice in self._sizes(key)), self.model(key).spec] if self.has(key) else []
        return next(filter(None, map(self.downloads.of, specs)), None)

    def about(self, key: str) -> About:
        """Return all that is known of a model, with the sizes to choose from."""
        model, fetching = self.model(key), self.fetching(key)
        draft = f", with its draft {model.draft}" if model.draft else ""
        title = f"Download {model.repository if model.is_found else model.spec}{draft}"
        if fetching is not None:
            details = f"{fetching.spec}: {state_of(fetching)}; x stops it"
            return About(title, details, problem="this model is being downloaded already")
        offers = [
            Offer(each.spec, self._lines(each), self._details(key, each), Picked(each.spec, None))
            for each in self._sizes(key)
        ]
        preferred = self._preferred(key)
        details = next((offer.details for offer in offers if offer.key == preferred), self._details(key, None))
        return About(title, details, offers=offers, preferred=preferred)

    def _sizes(self, key: str) -> list[Choice]:
        """Return the sizes to choose from; the usual size until the hub has answered."""
        return self.choices.get(key) or usual_choice(self.model(key))

    def _preferred(self, key: str) -> str:
        """Return the initial choice: the catalogue's size, the usual one, or the largest that fits."""
        choices = self._sizes(key)
        for quant in filter(None, (self.model(key).quant, DEFAULT_QUANT)):
            for choice in choices:
                if choice.quant == quant:
                    return choice.spec
        fitting = [each for each in choices if needed_by_size(each.size_bytes) <= self.room_bytes]
        return [*choices[:1], *fitting][-1].spec if choices else ""

    def _lines(self, choice: Choice) -> Content:
        mark, style = self._mark(_needed(choice))
        fit = f"{mark} {fit_of(_needed(choice), self.room_bytes) or 'size unknown'}".strip()
        here = "here · " if choice.is_here else ""
        name = one_line(choice.quant or choice.file or choice.spec)
        return Content.assemble(name, (f"  {_size(choice)}", MUTED), f"\n  {here}", (fit, style or MUTED))

    def _details(self, key: str, choice: Choice | None) -> str:
        """Return all facts about a model and one of its sizes, None if they are not known."""
        model, trouble = self.model(key), self.troubles.get(key, "")
        gated = "gated: its licence must be accepted on the hub" if model.is_gated else ""
        if choice is None:
            return "; ".join(filter(None, (model.about, gated, trouble or "its sizes are being looked up ...")))
        size = f"{_size(choice) or 'an unknown size'} to download, {size_of(free_for(model))} free on the disk"
        begun = f"{size_of(model.begun_bytes)} are here already, and the download resumes from there"
        fit = fit_of(_needed(choice), self.room_bytes)
        return "; ".join(filter(None, (model.about, gated, size, fit, begun if model.begun_bytes else "", trouble)))

    def _mark(self, needed: int) -> tuple[str, str]:
        """Return a sign that shows whether a model fits in memory, and its colour."""
        if not needed or not self.room_bytes:
            return "", ""
        return ("✓", "$text-success") if needed <= self.room_bytes else ("✗", "$text-error")

    # --- in threads -----------------------------------------------------------------------------------------------

    def read(self, in_use_bytes: int) -> None:
        """Read the catalogue, and the free memory; the model in use, of this size, would be unloaded."""
        self.catalogue = {GET + model.spec: model for model in self.source()}
        self.room_bytes = room_bytes(in_use_bytes)

    def search(self, words: str) -> None:
        """Search the hub; the last result stays until the next one arrives."""
        try:
            found, trouble = self.hub(words), ""
        except EdgespecError as error:
            found, trouble = [], str(error).replace("\n", ";")
        if self.wanted == words:
            self.found, self.trouble, self.searched = {GET + each.spec: each for each in found}, trouble, words

    def look_up(self, key: str) -> None:
        """Ask the hub for the sizes of a model."""
        try:
            self.choices[key] = choices_of(self.model(key))
        except EdgespecError as error:
            self.troubles[key] = str(error).replace("\n", ";")


def _heading(key: str, words: str) -> Option:
    return Option(Content.assemble("\n", (one_line(words), f"italic {MUTED}")), key, disabled=True)


def _needed(model: Absent | Choice) -> int:
    """Return the memory that a model takes; 0 if unknown."""
    return needed_by_size(model.size_bytes) if model.size_bytes else 0


def _size(choice: Choice) -> str:
    return size_of(choice.size_bytes) if choice.is_exact else about_size(choice.size_bytes)


def _has(model: Absent, words: list[str]) -> bool:
    facts = f"{model.spec} {model.about} {model.repository} {model.quant}".lower()
    return all(word in facts for word in words)
