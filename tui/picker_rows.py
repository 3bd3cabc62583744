"""The rows of the model picker: models on this machine with their drafts, and models to download with their sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from textual.content import Content
from textual.widgets.option_list import Option

from edgespec.chat.downloads import Downloads, Fetching
from edgespec.chat.settings import in_chats
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import free_in, models_dir
from edgespec.models.hub.cache import hub_cache
from edgespec.models.hub.repository import DownloadChoice
from edgespec.models.listing import ModelRow, row_of, rows_of_hub, rows_to_download, sizes_of, usual_sizes
from edgespec.models.memory.fit import fit_of, needed_by_size, room_bytes
from edgespec.models.names.catalog import DEFAULT_QUANT
from edgespec.models.names.heads import KnownHead
from edgespec.models.names.local import LocalModel
from edgespec.models.names.model_names import short_spec
from edgespec.models.names.source import packaged_at
from edgespec.models.pair.suggest import Suggestion, best, instead, place
from edgespec.models.recommend import Machine, Recommended, recommended, this_machine
from edgespec.text.figures import count_of, size_of
from edgespec.text.printable import one_line
from edgespec.tui.download_line import state_of

NO_DRAFT, OWN_DRAFT = "none", "own"  # options that are not keys of draft models
FETCH = "fetch "  # prefix of the keys of drafts that must be downloaded
GET = "get:"  # prefix of the keys of models that must be downloaded; a model's spec follows
BEST, CATALOGUE, HUB = "heading:best", "heading:catalogue", "heading:hub"
LEAST_SEARCHED = 2  # letters
MUTED = "$foreground 60%"
_COLOURS = {"works": "$text-success", "shared": "$text-warning", "no": MUTED}


@dataclass(frozen=True, slots=True)
class Picked:
    """The choice, as in `LoadSettings`: `draft` is None for the model's default draft, or "none"."""

    model: str
    draft: str | None


@dataclass(frozen=True, slots=True)
class ModelOption:
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
    offers: Sequence[ModelOption] = ()
    preferred: str = ""  #: the key of the initial choice


# --- on this machine --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Here:
    """The models on this machine. A key is the resolved path of a model's file."""

    model: str  #: the model in use
    draft: str | None  #: its draft, as in `LoadSettings`
    rows: dict[str, ModelRow] = field(default_factory=dict)
    models: dict[str, LocalModel] = field(default_factory=dict)
    judged: dict[str, dict[str, Suggestion]] = field(default_factory=dict)  #: by target, what is known of its drafts
    looked_up: set[str] = field(default_factory=set)  #: targets whose catalogue entry was read
    room_bytes: int = 0  #: the memory for a model, 0 while unknown

    def add(self, model: LocalModel) -> None:
        """Add a model. A known file is replaced only if it could not be read before."""
        key = os.path.realpath(model.path)
        if key not in self.models or self.models[key].problem:
            self.models[key], self.rows[key] = model, row_of(model)

    def add_heads(self, heads: Iterable[tuple[str, KnownHead | None]]) -> None:
        """Add the draft heads of models, by their keys."""
        self.rows |= {key: replace(self.rows[key], head=head) for key, head in heads if key in self.rows}

    def judge(self, target: str, draft: str, verdict: Suggestion) -> None:
        """Take what is known of a draft for a target."""
        self.judged.setdefault(target, {})[draft] = verdict

    @property
    def in_use(self) -> LocalModel | None:
        """The loaded model, None until it is read."""
        return next((model for model in self.models.values() if model.spec == self.model), None)

    @property
    def listed(self) -> dict[str, ModelRow]:
        """The rows that are shown: all but those of draft heads."""
        return {key: row for key, row in self.rows.items() if row.kind != "head"}

    def options(self, text: str = "") -> list[Option]:
        """Return the listed models that match all words of `text`, unusable ones last."""
        rows = {key: row for key, row in self.listed.items() if row.has(text)}
        return [Option(self._lines(rows[key]), key) for key in sorted(rows, key=lambda key: rows[key].order)]

    def _lines(self, row: ModelRow) -> Content:
        if row.problem:
            return two_lines(row.label, (f"cannot be used: {in_chats(one_line(row.problem))}", "$text-error"))
        in_use = ["in use"] if row.spec == self.model else []
        too_large = ["too large for memory"] if 0 < self.room_bytes < row.needed_bytes else []
        return two_lines(row.label, (" · ".join([*in_use, *row.facts, *too_large]), MUTED))

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
            problem = in_chats(model.problem)
            return About(details=f"{short_spec(str(model.path))}: {problem}", problem=problem)
        own = os.path.realpath(model.default_draft) if model.default_draft else ""
        in_use = self._draft_in_use(model, own)
        ranked = dict(sorted(self.judged.get(target, {}).items(), key=lambda item: place(item[1])))
        others = {draft: verdict for draft, verdict in ranked.items() if draft != own}
        here = [key for key, each in others.items() if each.is_here and (each.verdict != "no" or key == in_use)]
        absent = [key for key, each in others.items() if not each.is_here]
        unknown = [key for key in self.unknown(target) if key != own]
        drafts = [*([OWN_DRAFT] if own else []), *here, *unknown, NO_DRAFT, *absent]
        offers = [
            self._offer(target, draft, own if draft == OWN_DRAFT else draft, ranked, is_in_use=draft == in_use)
            for draft in drafts
        ]
        head = self.rows[target].head
        if head is not None and head.place == "not here" and head.spec:
            offers.append(_offer_of_head(model, head))
        chosen = best(ranked.values())
        usual = OWN_DRAFT if own else next((key for key, each in ranked.items() if each is chosen), NO_DRAFT)
        return About(
            self._title(target, list(ranked.values())),
            self._details(target, model),
            offers=offers,
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
        here = [each.verdict != "no" for each in ranked if each.is_here]
        if here and not any(here) and is_known:
            return "No compatible draft model is installed"
        if not here:
            count = "No other model is here to" if is_known else "Which models can"
        else:
            count = f"{sum(here)} of {len(here)} here can"
        return f"{count} draft for {self.rows[target].label}{'' if is_known else ' ...'}"

    def _details(self, target: str, model: LocalModel) -> str:
        row = self.rows[target]
        context = f"context of {model.n_ctx_train:,} tokens, vocabulary of {model.n_vocab:,}"
        head = f"draft head: {row.head}" if row.head else ""
        fit = fit_of(row.needed_bytes, self.room_bytes)
        return "; ".join(filter(None, (f"{model.architecture}, {context}", head, fit, short_spec(str(model.path)))))

    def _offer(
        self, target: str, draft: str, key: str, ranked: dict[str, Suggestion], *, is_in_use: bool
    ) -> ModelOption:
        """Return the option `draft`, whose key in `models` and `ranked` is `key`."""
        spec, model, verdict = _spec_of(self.models[target]), self.models.get(key), ranked.get(key)
        in_use = ("in use · " if is_in_use else "", MUTED)
        if draft == NO_DRAFT:
            is_known = target in self.looked_up and not self.unknown(target)
            without = "Speculative decoding then uses drafters without a model, or is off."
            details = (in_chats(instead(ranked.values())) if is_known else "") or without
            lines = two_lines("no draft model", in_use, ("no draft model is loaded", MUTED))
            return ModelOption(draft, lines, details, Picked(spec, NO_DRAFT))
        if verdict is not None and not verdict.is_here:
            why = verdict.why.removesuffix(f": {verdict.command}")
            lines = two_lines(verdict.spec, ("not here; Enter downloads it", MUTED))
            details = f"{why}; not here: Enter downloads it, and then loads both"
            return ModelOption(draft, lines, details, Picked(spec, draft.removeprefix(FETCH)))
        name = "its own draft" if draft == OWN_DRAFT else self.rows[key].label
        picked = Picked(spec, None if draft == OWN_DRAFT or model is None else model.spec)
        if model is None or verdict is None:
            state = "comes with the model" if model is None else "..."
            return ModelOption(draft, two_lines(name, in_use, (state, MUTED)), "", picked)
        why = f"works: {verdict.why}" if verdict.verdict == "works" else verdict.why
        facts = (f" · {count_of(model.n_params)} {model.quantisation}", MUTED)
        size = [size_of(verdict.size_bytes)] if verdict.size_bytes else []
        details = "; ".join([verdict.why, *(each for each in verdict.reasons if each not in verdict.why), *size])
        lines = two_lines(name, in_use, (one_line(why), _COLOURS[verdict.verdict]), facts)
        return ModelOption(draft, lines, details, picked)


def _spec_of(model: LocalModel) -> str:
    """Return the spec to load: a packaged model is loaded by its name, so that it gets the catalogue's settings."""
    package = packaged_at(model.path)
    return str(package) if package else model.spec


def _offer_of_head(model: LocalModel, head: KnownHead) -> ModelOption:
    """Return the option to download the published head of a model."""
    lines = two_lines(head.spec, (f"{head.title}, not here; Enter downloads it", MUTED))
    details = f"{head.facts}; not here: Enter downloads it, converts it if needed, and loads both"
    return ModelOption(f"{FETCH}{head.spec}", lines, details, Picked(_spec_of(model), head.spec))


# --- to download ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Elsewhere:
    """The models that can be downloaded, by their keys. Threads replace its fields, never parts of them."""

    downloads: Downloads
    catalogue: dict[str, ModelRow] = field(default_factory=dict)
    results: dict[str, ModelRow] = field(default_factory=dict)  #: the models that the hub found
    wanted: str = ""  #: the words of the last search that was started
    searched: str = ""  #: the words that `results` is for
    trouble: str = ""  #: why the hub could not be searched
    choices: dict[str, list[DownloadChoice]] = field(default_factory=dict)  #: the sizes of each model
    troubles: dict[str, str] = field(default_factory=dict)  #: why sizes are not known
    room_bytes: int = 0  #: the memory for a model, 0 while unknown
    machine: Machine | None = None  #: what limits the speed of models, None while unknown
    best: dict[str, Recommended] = field(default_factory=dict)  #: the models for this machine, the best first
    source: Callable[[], Iterable[ModelRow]] = rows_to_download
    hub: Callable[[str], list[ModelRow]] = rows_of_hub

    def has(self, key: str) -> bool:
        return key in self.catalogue or key in self.results

    def row(self, key: str) -> ModelRow:
        return self.catalogue.get(key) or self.results[key]

    def options(self, text: str) -> list[Option]:
        """Return the models that match `text`, below the headings of their sections."""
        passing = {key: row for key, row in self.catalogue.items() if row.has(text)}
        repositories = {row.entry.repository for row in passing.values()}
        results = [key for key, row in self.results.items() if row.entry.repository not in repositories]
        best = [key for key in self.best if key in passing]
        others = [key for key in passing if key not in best]
        options = []
        for heading, words, keys in (
            (BEST, "best for this machine", best),
            (CATALOGUE, "in the catalogue", others),
        ):
            options += [_heading(heading, words), *map(self._option, keys)] if keys else []
        return [*options, _heading(HUB, self._state_of_search(text.strip())), *map(self._option, results)]

    def _state_of_search(self, text: str) -> str:
        if len(text) < LEAST_SEARCHED:
            return "type to search the hub, too"
        if self.searched != text:
            return "searching the hub ..."
        return self.trouble or ("on the hub" if self.results else "nothing else on the hub")

    def _option(self, key: str) -> Option:
        row, fetching = self.row(key), self.fetching(key)
        if fetching is not None:
            return Option(two_lines(row.name, (one_line(state_of(fetching)), "$text-accent")), key)
        mark, style = self._mark(row.needed_bytes)
        facts = list(row.facts)
        if key in self.best:
            facts.insert(1, self.best[key].speed_in("tok/s"))
        below = one_line(" · ".join(filter(None, facts)))
        return Option(two_lines(row.name, (f"{mark} " if mark else "", style), (below, MUTED)), key)

    def fetching(self, key: str) -> Fetching | None:
        """Return the running or waiting download of a model, in any size; None for models here."""
        specs = [*(choice.spec for choice in self._sizes(key)), self.row(key).spec] if self.has(key) else []
        return next(filter(None, map(self.downloads.of, specs)), None)

    def about(self, key: str) -> About:
        """Return all that is known of a model, with the sizes to choose from."""
        row, fetching = self.row(key), self.fetching(key)
        draft = f", with its draft {row.entry.drafts[0]}" if row.entry.drafts else ""
        title = f"Download {row.name}{draft}"
        if fetching is not None:
            details = f"{fetching.spec}: {state_of(fetching)}; x stops it"
            return About(title, details, problem="this model is being downloaded already")
        offers = [
            ModelOption(each.spec, self._lines(each), self._details(key, each), Picked(each.spec, None))
            for each in self._sizes(key)
        ]
        preferred = self._preferred(key)
        details = next((offer.details for offer in offers if offer.key == preferred), self._details(key, None))
        return About(title, details, offers=offers, preferred=preferred)

    def _sizes(self, key: str) -> list[DownloadChoice]:
        """Return the sizes to choose from; the usual size until the hub has answered."""
        return self.choices.get(key) or usual_sizes(self.row(key))

    def _preferred(self, key: str) -> str:
        """Return the initial choice: the catalogue's size, the usual one, or the largest that fits."""
        choices = self._sizes(key)
        for quant in filter(None, (self.row(key).quant, DEFAULT_QUANT)):
            for choice in choices:
                if choice.quant == quant:
                    return choice.spec
        fitting = [each for each in choices if needed_by_size(each.size_bytes) <= self.room_bytes]
        return [*choices[:1], *fitting][-1].spec if choices else ""

    def _lines(self, choice: DownloadChoice) -> Content:
        needed = needed_by_size(choice.size_bytes)
        mark, style = self._mark(needed)
        fit = f"{mark} {fit_of(needed, self.room_bytes) or 'size unknown'}".strip()
        here = "here · " if choice.is_here else ""
        name = one_line(choice.quant or choice.file or choice.spec)
        return Content.assemble(name, (f"  {choice.size}", MUTED), f"\n  {here}", (fit, style or MUTED))

    def _details(self, key: str, choice: DownloadChoice | None) -> str:
        """Return all facts about a model and one of its sizes, None if they are not known."""
        row, trouble = self.row(key), self.troubles.get(key, "")
        gated = "gated: its licence must be accepted on the hub" if row.is_gated else ""
        if choice is None:
            return "; ".join(filter(None, (row.entry.about, gated, trouble or "its sizes are being looked up ...")))
        free_bytes = free_in(hub_cache() if row.entry.repository else models_dir())
        size = f"{choice.size or 'an unknown size'} to download, {size_of(free_bytes)} free on the disk"
        begun = f"{size_of(row.begun_bytes)} are here already, and the download resumes from there"
        fit = fit_of(needed_by_size(choice.size_bytes), self.room_bytes)
        speed = self._speed(row, choice)
        begun = begun if row.begun_bytes else ""
        facts = (row.entry.about, row.entry.licence, gated, size, fit, speed, begun, trouble)
        return "; ".join(filter(None, facts))

    def _speed(self, row: ModelRow, choice: DownloadChoice) -> str:
        """Return the expected speed of a model in one of its sizes, in words; empty if it is unknown."""
        if self.machine is None or choice.quant != row.quant or not 0 < row.needed_bytes <= self.room_bytes:
            return ""
        return Recommended(row, self.machine.tokens_per_s(row.entry)).speed

    def _mark(self, needed: int) -> tuple[str, str]:
        """Return a sign that shows whether a model fits in memory, and its colour."""
        if not needed or not self.room_bytes:
            return "", ""
        return ("✓", "$text-success") if needed <= self.room_bytes else ("✗", "$text-error")

    # --- in threads -----------------------------------------------------------------------------------------------

    def read(self, in_use_bytes: int) -> None:
        """Read the catalogue, and the free memory; the model in use, of this size, would be unloaded."""
        self.catalogue = {GET + row.spec: row for row in self.source()}
        self.room_bytes = room_bytes(in_use_bytes)

    def recommend(self, in_use_bytes: int) -> None:
        """Measure this machine, and find the best models for it; none if the best one is here already."""
        self.machine = this_machine(in_use_bytes)
        with suppress(UsageError):
            found = {GET + each.row.spec: each for each in recommended(self.machine)}
            self.best = found if next(iter(found), "") in self.catalogue else {}

    def search(self, words: str) -> None:
        """Search the hub; the last result stays until the next one arrives."""
        try:
            results, trouble = self.hub(words), ""
        except EdgespecError as error:
            results, trouble = [], str(error).replace("\n", ";")
        if self.wanted == words:
            self.results, self.trouble, self.searched = {GET + row.spec: row for row in results}, trouble, words

    def look_up(self, key: str) -> None:
        """Ask the hub for the sizes of a model."""
        try:
            self.choices[key] = sizes_of(self.row(key))
        except EdgespecError as error:
            self.troubles[key] = str(error).replace("\n", ";")


# --- words ------------------------------------------------------------------------------------------------------------


def two_lines(name: str, *below: tuple[str, str]) -> Content:
    return Content.assemble(one_line(name), "\n  ", *below)


def _heading(key: str, words: str) -> Option:
    return Option(Content.assemble("\n", (one_line(words), f"italic {MUTED}")), key, disabled=True)
