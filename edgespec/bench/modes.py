"""The modes of decoding that are compared, as words: "plain", "draft fixed:4", "suffix,draft auto tree:4 rejection"."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from edgespec.core.verify import VerifyRule
from edgespec.drafters.registry import REGISTRY, names_that_need
from edgespec.errors import UsageError
from edgespec.settings import (
    DRAFT_N_MAX,
    HEADS,
    MAX_LEAVES,
    SELF,
    LoadSettings,
    drafters_of,
    fixed_length,
    in_order,
)
from edgespec.validation import check_pace, check_spec_type

LENGTHS = (1, 2, 3, 4, 6, 8)
SUFFIX_LENGTHS = (4, 8)
EVERY = "all"

RULES: tuple[VerifyRule, ...] = get_args(VerifyRule)
_DRAFTERS = ", ".join(entry.spelling for entry in REGISTRY.own.values())
EXAMPLE = (
    f'a mode has drafters ({_DRAFTERS}, all), auto or fixed:K, tree:W and a verify rule: "draft fixed:4 rejection"'
)


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to decode.

    Attributes:
        spec_type: the drafters, "none" for plain decoding
        pace: the draft length: "auto" or "fixed:K"
        tree: the number of leaves; 1 for chains
        rule: the verification rule
    """

    spec_type: str = "none"
    pace: str = "auto"
    tree: int = 1
    rule: VerifyRule = "coupled"

    @property
    def name(self) -> str:
        """The canonical spelling."""
        if self.spec_type == "none":
            return "plain"
        parts = [self.spec_type, self.pace]
        parts += [f"tree:{self.tree}"] if self.tree > 1 else []
        parts += [self.rule] if self.rule != "coupled" else []
        return " ".join(parts)

    @property
    def drafters(self) -> tuple[str, ...]:
        return drafters_of(self.spec_type)

    @property
    def draft_model(self) -> str:
        """The draft model it needs: "draft" for one in a file, or a self-draft such as "self:8"; empty for none."""
        if not {"draft", *HEADS}.isdisjoint(self.drafters):
            return "draft"
        return next((name for name in self.spec_type.split(",") if name.startswith(SELF)), "")

    @property
    def n_max(self) -> int:
        """The maximum number of draft tokens."""
        return 0 if self.spec_type == "none" else fixed_length(self.pace) or DRAFT_N_MAX


PLAIN = Mode()


def parse_mode(text: str, possible: Sequence[str]) -> Mode:
    """Return the mode that `text` names. "all" means all drafters in `possible`.

    Without a drafter in `text`, the draft model drafts if it is in `possible`, otherwise the suffix drafter. Raises
    UsageError.
    """
    words = text.lower().split()
    if words == ["plain"]:
        return PLAIN
    if not words or "plain" in words:
        raise UsageError(f"invalid mode {text!r}", why="plain takes no other words" if words else "it is empty")
    found: dict[str, str] = {}
    for word in words:
        kind, value = _part(text, ",".join(possible) if word == EVERY else word)
        if kind in found:
            raise UsageError(f"invalid mode {text!r}", why=f"it has both {found[kind]} and {value}")
        found[kind] = value
    mode = Mode(found.get("spec_type", _default(possible)), found.get("pace", "auto"))
    tree, rule = int(found.get("tree", 1)), next((rule for rule in RULES if rule == found.get("rule")), mode.rule)
    if tree > 1 and rule == "block":
        raise UsageError(f"mode {text!r} is not possible", why="block verification supports chains only")
    return replace(mode, tree=tree, rule=rule)


def default_modes(possible: Sequence[str]) -> list[Mode]:
    """Return the default modes: all possible drafters together, each alone, and one of them at several lengths."""
    alone = _default(possible)
    lengths = SUFFIX_LENGTHS if alone == "suffix" else LENGTHS
    return [
        PLAIN,
        Mode(",".join(possible)),
        *(Mode(drafter) for drafter in possible),
        *(Mode(alone, f"fixed:{length}") for length in lengths),
    ]


def _default(possible: Sequence[str]) -> str:
    return next((name for name in ("draft", *HEADS) if name in possible), "suffix")


def possible_drafters(settings: LoadSettings, with_weights: Collection[str]) -> list[str]:
    """Return the drafters that "all" means: those of `auto`, without the drafters of models that are not in
    `with_weights`, and without grammar, since no measured prompt has a grammar."""
    idle = {*names_that_need("grammar", "head", "MTP block", "draft model")}.difference(with_weights)
    return [name for name in replace(settings, spec_type="auto").drafters if name not in idle]


def with_plain(modes: Iterable[Mode]) -> list[Mode]:
    """Return each mode once, with plain decoding, the baseline, first."""
    return list(dict.fromkeys([PLAIN, *modes]))


def settings_for(settings: LoadSettings, modes: Sequence[Mode]) -> LoadSettings:
    """Return the settings that make all modes possible. Raises UsageError for modes that need two draft models."""
    used = {name for mode in modes for name in mode.spec_type.split(",")} - {"none"}
    models = sorted({mode.draft_model for mode in modes} - {""})
    if len(models) > 1:
        raise UsageError(
            f"modes name the draft models {' and '.join(models)}",
            hint="measure them in separate runs: only one draft model is loaded",
        )
    spec_type = in_order(used) or "none"
    return replace(
        settings,
        spec_type=spec_type,
        spec_draft_n_max=max(mode.n_max for mode in modes),
        pace="auto",
        store=False,
        spec_tree=max(mode.tree for mode in modes),
    )


def _part(text: str, word: str) -> tuple[str, str]:
    """Return the part of a mode that a word sets, and its canonical spelling."""
    named = drafters_of(word)
    try:
        if named and all(name in REGISTRY for name in named):
            check_spec_type(word)
            return "spec_type", in_order(word.split(","))
        if word == "auto" or word.startswith("fixed:"):
            check_pace(word)
            return "pace", word if word == "auto" else f"fixed:{fixed_length(word)}"
    except UsageError as error:
        raise UsageError(f"invalid mode {text!r}", why=error.why or error.what) from error
    if word in RULES:
        return "rule", word
    if word.startswith("tree:"):
        width = word.removeprefix("tree:")
        if not (width.isascii() and width.isdigit() and 1 <= int(width) <= MAX_LEAVES):
            raise UsageError(f"invalid mode {text!r}", why=f"a tree has 1 to {MAX_LEAVES} leaves (tree:4)")
        return "tree", str(int(width))
    near = difflib.get_close_matches(word, ["plain", "auto", EVERY, *REGISTRY, *RULES], n=1)
    why = f"unknown word {word!r}" + (f", did you mean {near[0]}?" if near else "")
    raise UsageError(f"invalid mode {text!r}", why=why, hint=EXAMPLE)


@dataclass(slots=True, frozen=True)
class Contest:
    """Modes, plain decoding among them, that one load of a model can measure, with the draft model they need."""

    draft: Path | None
    modes: tuple[Mode, ...]

    def settings(self, base: LoadSettings, target: Path) -> LoadSettings:
        """Return the settings to load `target` for these modes."""
        draft = None if self.draft is None else str(self.draft)
        return settings_for(replace(base, model=str(target), draft_model=draft), self.modes)


def contests(modes: Iterable[Mode], drafts: Sequence[Path]) -> list[Contest]:
    """Return what to load for these modes: each draft model once, and if no mode needs one, only the target.

    Raises UsageError for a mode that needs a draft model if there is none.
    """
    by_model: dict[str, list[Mode]] = {}
    for mode in with_plain(modes):
        by_model.setdefault(mode.draft_model, []).append(mode)
    if "draft" in by_model and not drafts:
        raise UsageError(f"mode {by_model['draft'][0].name!r} needs a draft model", hint="pass one (`draft_model`)")
    alone = by_model.pop("", [])
    found = []
    for model, dependent in by_model.items() or [("", [])]:
        for draft in drafts if model == "draft" else [None]:
            found.append(Contest(draft, tuple(with_plain([*alone, *dependent]))))
            alone = []  # modes without a draft model are measured once
    return found
