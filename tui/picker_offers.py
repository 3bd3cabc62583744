"""What a model picker offers: models, for each the drafts from the best to the worst, and how all of them are put."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from textual.content import Content

from edgespec.header import Header
from edgespec.models.local import LocalModel
from edgespec.models.pair import USUAL_RATIO, PairVerdict
from edgespec.models.spec import NAMES
from edgespec.printable import one_line

NO_DRAFT, OWN_DRAFT = "none", "own"  # among the keys of drafts, where the others are files


@dataclass(slots=True)
class Offers:
    """Models by the file they are, links followed, and verdicts by the files of a target and a draft.

    `model` and `draft` are what is in use, as `LoadSettings` has them.
    """

    model: str
    draft: str | None
    models: dict[str, LocalModel] = field(default_factory=dict)
    verdicts: dict[tuple[str, str], PairVerdict] = field(default_factory=dict)

    def add(self, model: LocalModel) -> str:
        """Its key. A file that is known stays as it is, unless it could not be read before."""
        key = os.path.realpath(model.path)
        if key not in self.models or self.models[key].problem:
            self.models[key] = model
        return key

    def passing(self, text: str) -> list[str]:
        """The models that have all words of `text` in what is said of them, those that cannot be loaded last."""
        words = text.lower().split()
        found = [key for key, model in self.models.items() if all(word in _all_of(model) for word in words)]
        return sorted(found, key=lambda key: bool(self.models[key].problem))

    # --- drafts ---------------------------------------------------------------------------------------------------

    def drafts(self, target: str) -> list[str]:
        """What can be chosen for a target: its own, then what fits best; after "none" what is too large or unfit."""
        model = self.models.get(target)
        if model is None or model.problem:
            return []
        own = self._own_file(target)
        found = [key for key, model in self.models.items() if key not in (target, own) and not model.problem]
        found.sort(key=lambda key: self._order(target, key))
        place = sum(self._order(target, key)[0] < _NONE for key in found)
        return [*([OWN_DRAFT] if own else []), *found[:place], NO_DRAFT, *found[place:]]

    def preferred(self, target: str) -> str:
        """What to begin with: what is in use, the target's own draft, or else the one that fits best."""
        drafts = self.drafts(target)
        if target in self.models and self.models[target].spec == self.model:
            if self.draft == NO_DRAFT:
                return NO_DRAFT
            for key in drafts:
                if key in self.models and self.models[key].spec == self.draft:
                    return key
            return OWN_DRAFT if OWN_DRAFT in drafts else NO_DRAFT
        best = drafts[0] if drafts else NO_DRAFT
        return best if best == OWN_DRAFT or self._order(target, best)[0] < _UNKNOWN else NO_DRAFT

    def file(self, target: str, draft: str) -> str:
        """The key in `models` and `verdicts` of a draft."""
        return self._own_file(target) if draft == OWN_DRAFT else draft

    def verdict(self, target: str, draft: str) -> PairVerdict | None:
        return self.verdicts.get((target, self.file(target, draft)))

    def unknown(self, target: str) -> Iterator[tuple[str, Header]]:
        """The drafts of a target of which it is not known yet how they fit."""
        for draft in self.drafts(target):
            file = self.file(target, draft)
            header = self.models[file].header if file in self.models else None
            if header is not None and (target, file) not in self.verdicts:
                yield file, header

    def _own_file(self, target: str) -> str:
        default = self.models[target].default_draft
        return os.path.realpath(default) if default else ""

    def _order(self, target: str, draft: str) -> tuple[int, float]:
        verdict = self.verdicts.get((target, draft))
        if verdict is None:
            return (_UNKNOWN, 0.0)
        if verdict.verdict == "no":
            return (_UNFIT, 0.0)
        rank = (_LARGER if verdict.times_smaller <= 1 else 0) + (verdict.verdict == "shared")
        return rank, abs(math.log(verdict.times_smaller / math.sqrt(math.prod(USUAL_RATIO))))

    # --- how they are put -----------------------------------------------------------------------------------------

    def model_lines(self, key: str) -> Content:
        model = self.models[key]
        if model.problem:
            return _two_lines(label(model), "", (f"cannot be used: {one_line(model.problem)}", "$text-error"))
        facts = f"{_count(model.n_params)} · {model.quantisation} · {_bytes(model.size_bytes)}"
        return _two_lines(label(model), "in use" if model.spec == self.model else "", (facts, _MUTED))

    def draft_lines(self, target: str, draft: str) -> Content:
        if draft == NO_DRAFT:
            return _two_lines("no draft model", "", ("nothing else is loaded", _MUTED))
        model, verdict = self.models.get(self.file(target, draft)), self.verdict(target, draft)
        if model is None:
            return _two_lines("its own draft", "", ("comes with the model", _MUTED))
        name = "its own draft" if draft == OWN_DRAFT else label(model)
        mark = f"{_count(model.n_params)} {model.quantisation}"
        if verdict is None:
            return _two_lines(name, mark, ("...", _MUTED))
        said = [(verdict.summary, _COLOURS[verdict.verdict])]
        if verdict.verdict != "no" and verdict.times_smaller <= 1:
            said.append((f" · {'larger' if verdict.times_smaller < 1 else 'as large'}", "$text-warning"))
        elif verdict.verdict != "no":
            said.append((f" · {verdict.times_smaller:.2g}x smaller", _MUTED))
        return _two_lines(name, mark, *said)

    def model_details(self, key: str) -> str:
        """All that is known of a model, in a few lines."""
        model = self.models.get(key)
        if model is None:
            return ""
        if model.problem:
            return f"{_shortened(model.path)}: {model.problem}"
        context = f"{model.n_ctx_train:,} tokens of context, {model.n_vocab:,} in its vocabulary"
        return f"{model.architecture}, {context}; {_shortened(model.path)}"

    def draft_details(self, target: str, draft: str) -> str:
        """All that is known of how a draft fits, in a few lines."""
        verdict = self.verdict(target, draft)
        if verdict is None:
            return "The model guesses for itself, or not at all." if draft == NO_DRAFT else ""
        if verdict.verdict == "no":
            return "; ".join(verdict.reasons)
        return "; ".join([*verdict.reasons, verdict.size, f"takes about {_bytes(verdict.memory_bytes)}"])


def label(model: LocalModel) -> str:
    """What a model is called in a list: file names tell more than the names in the files."""
    return model.spec if model.spec in NAMES else model.path.stem


_UNKNOWN, _NONE, _LARGER, _UNFIT = 2, 3, 4, 6  # ranks among drafts: those that work have 0, through shared tokens 1
_MUTED = "$foreground 60%"
_COLOURS = {"works": "$text-success", "shared": "$text-warning", "no": "$text-error"}


def _two_lines(name: str, mark: str, *said: tuple[str, str]) -> Content:
    return Content.assemble(one_line(name), (f"  {mark}" if mark else "", _MUTED), "\n  ", *said)


def _all_of(model: LocalModel) -> str:
    return f"{model.spec} {model.name} {model.architecture} {model.quantisation}".lower()


def _shortened(path: Path) -> str:
    """A path from the working folder or the home folder on, if it lies there."""
    for start, shown in ((Path.cwd, "."), (Path.home, "~")):
        with suppress(OSError, RuntimeError, ValueError):
            return str(shown / path.relative_to(start()))
    return str(path)


def _count(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M" if n >= 1e7 else f"{n / 1e6:.1f}M"


def _bytes(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB" if n >= 1e7 else f"{n / 1e6:.1f} MB"
