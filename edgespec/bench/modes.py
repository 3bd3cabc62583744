"""Ways of decoding that a bench compares, as words: "plain", "draft fixed:4", "draft,lookup auto tree:4 rejection"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from edgespec.core.verify import VerifyRule
from edgespec.errors import UsageError
from edgespec.settings import DRAFT_N_MAX, MAX_LEAVES, MEASURABLE, LoadSettings, check_pace, fixed_length

LENGTHS = (1, 2, 3, 4, 6, 8)
LOOKUP_LENGTHS = (4, 8)

RULES: tuple[VerifyRule, ...] = get_args(VerifyRule)
EXAMPLE = 'parts are drafters (draft, lookup), auto or fixed:K, tree:W and a verify rule: "draft fixed:4 rejection"'


@dataclass(frozen=True, slots=True)
class Mode:
    """Who guesses ("none" for plain decoding), how much, in how many branches, and how guesses are judged."""

    spec_type: str = "none"
    pace: str = "auto"
    tree: int = 1
    rule: VerifyRule = "coupled"

    @property
    def name(self) -> str:
        """The one way to write it."""
        if self.spec_type == "none":
            return "plain"
        parts = [self.spec_type, self.pace]
        parts += [f"tree:{self.tree}"] if self.tree > 1 else []
        parts += [self.rule] if self.rule != "coupled" else []
        return " ".join(parts)

    @property
    def drafters(self) -> tuple[str, ...]:
        return () if self.spec_type == "none" else tuple(self.spec_type.split(","))

    @property
    def n_max(self) -> int:
        """The most tokens it guesses at a time."""
        return 0 if self.spec_type == "none" else fixed_length(self.pace) or DRAFT_N_MAX


PLAIN = Mode()


def parse_mode(text: str, default: str) -> Mode:
    """The mode that `text` names; where it names no drafter, `default` guesses. Raises UsageError."""
    words = text.lower().split()
    if words == ["plain"]:
        return PLAIN
    if not words or "plain" in words:
        raise UsageError(f"mode {text!r} is not understood", why="plain stands alone" if words else "it is empty")
    found: dict[str, str] = {}
    for word in words:
        kind, value = _part(text, word)
        if kind in found:
            raise UsageError(f"mode {text!r} is not understood", why=f"it says {found[kind]} and {value}")
        found[kind] = value
    mode = Mode(found.get("spec_type", default), found.get("pace", "auto"))
    tree, rule = int(found.get("tree", 1)), next((rule for rule in RULES if rule == found.get("rule")), mode.rule)
    if tree > 1 and mode.spec_type == "lookup":
        raise UsageError(f"mode {text!r} is not possible", why="lookup guesses no trees")
    if tree > 1 and rule == "block":
        raise UsageError(f"mode {text!r} is not possible", why="block verification checks no trees")
    return replace(mode, tree=tree, rule=rule)


def default_modes(*, has_draft: bool) -> list[Mode]:
    """What is compared unless one says otherwise."""
    lookup = Mode("lookup")
    if not has_draft:
        return [PLAIN, lookup, *(replace(lookup, pace=f"fixed:{length}") for length in LOOKUP_LENGTHS)]
    draft = Mode("draft")
    return [PLAIN, draft, *(replace(draft, pace=f"fixed:{length}") for length in LENGTHS), lookup]


def with_plain(modes: Iterable[Mode]) -> list[Mode]:
    """Each mode once, and plain decoding, which all are compared with, first."""
    return list(dict.fromkeys([PLAIN, *modes]))


def settings_for(settings: LoadSettings, modes: Sequence[Mode], n_max: int = 0) -> LoadSettings:
    """What to load so that each of the modes can be had, and drafts of `n_max` tokens."""
    used = {drafter for mode in modes for drafter in mode.drafters}
    return replace(
        settings,
        spec_type=",".join(name for name in MEASURABLE if name in used) or "none",
        spec_draft_n_max=max(n_max, *(mode.n_max for mode in modes)),
        pace="auto",
        store=False,
        spec_tree=max(mode.tree for mode in modes),
    )


def _part(text: str, word: str) -> tuple[str, str]:
    """Which part of a mode a word is, and its canonical form."""
    names = word.split(",")
    if set(names) <= set(MEASURABLE) and len(set(names)) == len(names):
        return "spec_type", ",".join(name for name in MEASURABLE if name in names)
    if word == "auto" or word.startswith("fixed:"):
        try:
            check_pace(word)
        except UsageError as error:
            raise UsageError(f"mode {text!r} is not understood", why=error.what) from error
        return "pace", word if word == "auto" else f"fixed:{fixed_length(word)}"
    if word in RULES:
        return "rule", word
    if word.startswith("tree:"):
        width = word.removeprefix("tree:")
        if not (width.isascii() and width.isdigit() and 1 <= int(width) <= MAX_LEAVES):
            raise UsageError(f"mode {text!r} is not understood", why=f"a tree has 1 to {MAX_LEAVES} leaves (tree:4)")
        return "tree", str(int(width))
    near = difflib.get_close_matches(word, ["plain", "auto", *MEASURABLE, *RULES], n=1)
    why = f"{word!r} is no part of a mode" + (f", did you mean {near[0]}?" if near else "")
    raise UsageError(f"mode {text!r} is not understood", why=why, hint=EXAMPLE)
