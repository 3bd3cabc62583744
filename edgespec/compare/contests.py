"""Which modes are compared on a file, and what must be loaded for them: one draft model at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.bench.modes import PLAIN, Mode, parse_mode, settings_for, with_plain
from edgespec.errors import UsageError
from edgespec.settings import HEADS, SELF, LoadSettings

DEFAULT_MODES = ("plain", "all auto")


@dataclass(slots=True, frozen=True)
class Contest:
    """Modes, plain decoding among them, that one load of a file can measure; `names` are the user's names."""

    draft: Path | None
    modes: tuple[Mode, ...]
    names: dict[str, str]

    def settings(self, base: LoadSettings, target: Path) -> LoadSettings:
        """How to load `target` for it."""
        draft = None if self.draft is None else str(self.draft)
        return settings_for(replace(base, model=str(target), draft_model=draft), self.modes)


def split_modes(texts: Iterable[str]) -> list[str]:
    """Modes separated by commas; in a mode "+" joins drafters."""
    return [" ".join(mode.lower().split()) for text in texts for mode in text.split(",")] or [*DEFAULT_MODES]


def contests(texts: Sequence[str], drafts: Sequence[Path], possible: Sequence[str]) -> list[Contest]:
    """What to load for these modes: each draft model once, and if no mode needs one, only the target.

    `possible` are the drafters that need no model, and "draft" if there is one. Raises UsageError.
    """
    names: dict[Mode, str] = {PLAIN: "plain"}
    for text in texts:
        names.setdefault(parse_mode(text.replace("+", ","), possible), text)
    by_model: dict[str, list[Mode]] = {}
    for mode in names:
        by_model.setdefault(_draft_model(mode), []).append(mode)
    if "draft" in by_model and not drafts:
        raise UsageError(f"mode {names[by_model['draft'][0]]!r} needs a draft model", hint="pass one (-md)")
    alone = by_model.pop("", [])
    found = []
    for model, modes in by_model.items() or [("", [])]:
        for draft in drafts if model == "draft" else [None]:
            together = with_plain([*alone, *modes])
            found.append(Contest(draft, tuple(together), {mode.name: names[mode] for mode in together}))
            alone = []  # they need no draft, so they are measured once
    return found


def _draft_model(mode: Mode) -> str:
    """The draft model it needs, if any."""
    named = mode.spec_type.split(",")
    models = [name for name in named if name.startswith(SELF)]
    return "draft" if not {"draft", *HEADS}.isdisjoint(named) else models[0] if models else ""
