"""The table of all drafters. A new drafter needs an entry here, a draft head one in `heads.py`, a drafter of another
package one in that package (`edgespec/plugins.py`).

Settings, help texts, the loader, the benchmark's modes and the colours on the screen read this table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from edgespec import plugins
from edgespec.drafters.heads import HEADS
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.core.index.context_index import ContextIndex
    from edgespec.drafters.base import Drafter
    from edgespec.drafters.successors import Successors
    from edgespec.drafters.suffix import Answers

Needs = Literal["nothing", "grammar", "corpus", "draft model", "self-draft", "head", "MTP block"]


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects from which drafters without weights are made."""

    successors: Successors
    answers: Answers | None = None
    corpus: ContextIndex | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The facts about a drafter that are known before it is loaded."""

    name: str
    #: Completes the sentence "NAME: ..." in the help of --spec-type.
    help: str
    #: The thing without which it cannot draft.
    needs: Needs = "nothing"
    #: Makes the drafter; None if it has weights, which the runtime opens.
    make: Callable[[Parts], Drafter] | None = None
    #: True if `--spec-type auto` uses it when it is available.
    in_auto: bool = True
    #: True if its drafts can be trees.
    drafts_trees: bool = True
    #: The colour of its tokens on the screen. Each of edgespec's drafters has another one.
    colour: str = "#94a3b8"
    #: The text style of its tokens where there are few colours or none, as with NO_COLOR.
    face: str = "italic"

    @property
    def spelling(self) -> str:
        """The name as `--spec-type` takes it."""
        return f"{self.name}:N" if self.needs == "self-draft" else self.name


def _new(drafter: str, *args: object, **settings: object) -> Drafter:
    """Make a drafter of the class "module.Class". The class is imported here, because every start of the program reads
    this table, and few starts need a drafter."""
    module, _, name = drafter.partition(".")
    made: Drafter = getattr(import_module(f"edgespec.drafters.{module}"), name)(*args, **settings)
    return made


_HEAD_COLOURS = ("#0ea5e9", "#ef4444", "#eab308", "#6366f1", "#10b981", "#8b5cf6", "#a855f7", "#ec4899")

# In the order in which drafters are asked: cheap ones first.
_ENTRIES = (
    Entry(
        "grammar",
        "tokens that a grammar or schema leaves no choice about",
        needs="grammar",
        make=lambda parts: _new("walk.GrammarDrafter"),
        drafts_trees=False,
        colour="#06b6d4",
    ),
    Entry(
        "lookup",
        "like suffix, but only from the prompt and the answer",
        make=lambda parts: _new("suffix.SuffixDrafter", name="lookup"),
        in_auto=False,
        colour="#f43f5e",
        face="italic underline",
    ),
    Entry(
        "suffix",
        "text that followed the same last tokens earlier",
        make=lambda parts: _new("suffix.SuffixDrafter", parts.answers),
        colour="#f59e0b",
        face="bold",
    ),
    Entry(
        "recycling",
        "tokens that the target found likely after the last two tokens",
        make=lambda parts: _new("successors.RecyclingDrafter", parts.successors),
        colour="#d946ef",
        face="bold underline",
    ),
    Entry(
        "lookahead",
        "tokens that the target predicted after the tokens of the last draft",
        make=lambda parts: _new("lookahead.LookaheadDrafter"),
        in_auto=False,
        colour="#f97316",
    ),
    Entry(
        "corpus",
        "your own texts (--corpus)",
        needs="corpus",
        make=lambda parts: _new("walk.CorpusDrafter", parts.corpus),
        colour="#3b82f6",
        face="bold italic underline",
    ),
    Entry(
        "self",
        "a draft model made from the target's first 8 layers (self:8), or with smaller weights (self:Q2_K)",
        needs="self-draft",
        in_auto=False,
        colour="#84cc16",
        face="bold italic",
    ),
    Entry("mtp", "the target's own block for multi-token prediction", needs="MTP block", colour="#14b8a6"),
    *(
        Entry(head.name, head.help, needs="head", colour=colour)
        for head, colour in zip(HEADS.values(), _HEAD_COLOURS, strict=True)
    ),
    Entry("draft", "the draft model (-md)", needs="draft model", colour="#22c55e", face="underline"),
)


class Registry(Mapping[str, Entry]):
    """All drafters by their names: edgespec's own, then those of other packages, which are looked for when all are
    listed or when a name is not one of edgespec's own. Those need no weights."""

    def __init__(self, own: Mapping[str, Entry]) -> None:
        self.own = own

    def __getitem__(self, name: str) -> Entry:
        """Raises KeyError, and UsageError for a drafter that cannot be used."""
        return self.own[name] if name in self.own else _added(name)

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self._others

    def __len__(self) -> int:
        return len(self.own) + len(self._others)

    @cached_property
    def _others(self) -> tuple[str, ...]:
        """The usable drafters of other packages; for the others there is a warning."""
        names = []
        for name in plugins.added(plugins.DRAFTERS):
            try:
                names += [name] if name not in self.own and _added(name) else []
            except UsageError as error:
                logging.getLogger("edgespec").warning("the drafter %s", error.line)
        return tuple(names)


def made(name: str, parts: Parts) -> Drafter | None:
    """Return a new drafter; None for one with weights, which the runtime opens. Raises UsageError for a drafter of
    another package that cannot be made."""
    entry = REGISTRY[name]
    if entry.make is None or name in REGISTRY.own:
        return entry.make and entry.make(parts)
    try:
        return entry.make(parts)
    except Exception as error:  # a package may raise anything
        what = f"{name!r} of the package {plugins.package_of(plugins.DRAFTERS, name)} cannot be used"
        raise UsageError(
            what, why=f"{type(error).__name__}: {error}", hint=f"leave {name} out of `spec_type`"
        ) from error


def _added(name: str) -> Entry:
    """Return the entry of another package. Raises KeyError, UsageError."""
    if name not in plugins.added(plugins.DRAFTERS):
        raise KeyError(name)
    entry = plugins.load(plugins.DRAFTERS, name, Entry)
    if entry.name != name or entry.make is None:
        package = plugins.package_of(plugins.DRAFTERS, name)
        why = "its entry has another name" if entry.name != name else "its entry does not say how it is made"
        raise UsageError(f"{name!r} of the package {package} cannot be used", why=why)
    return entry


REGISTRY = Registry({entry.name: entry for entry in _ENTRIES})


def names_that_need(*needs: Needs) -> tuple[str, ...]:
    """Return edgespec's own drafters that need one of these, in the order in which they are asked."""
    return tuple(name for name, entry in REGISTRY.own.items() if entry.needs in needs)


def help_of_others() -> str:
    """Return a sentence about each drafter of another package."""
    others = {name: entry for name, entry in REGISTRY.items() if name not in REGISTRY.own}
    packages = {name: plugins.package_of(plugins.DRAFTERS, name) for name in others}
    return " ".join(f"{name}: {entry.help} (of the package {packages[name]})." for name, entry in others.items())


def help_text() -> str:
    """Return a sentence about each of edgespec's own drafters, and about "auto"."""
    sentences = [f"{name}: {entry.help}." for name, entry in REGISTRY.own.items()]
    left_out = [name for name, entry in REGISTRY.own.items() if not entry.in_auto]
    return f"{' '.join(sentences)} auto: every available drafter but {', '.join(left_out[:-1])} and {left_out[-1]}."
