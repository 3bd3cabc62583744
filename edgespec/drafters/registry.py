"""The table of all drafters; a new drafter needs an entry here.

Settings, help texts, the loader, the benchmark's modes and the colours on the screen read this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

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
    #: The style of its tokens on the screen, also visible without colours.
    style: str = "italic $text-success"

    @property
    def spelling(self) -> str:
        """The name as `--spec-type` takes it."""
        return f"{self.name}:N" if self.needs == "self-draft" else self.name


def _new(drafter: str, *args: Any, **settings: Any) -> Drafter:
    """Make a drafter of the class "module.Class". The class is imported here, because every start of the program reads
    this table, and few starts need a drafter."""
    module, _, name = drafter.partition(".")
    made: Drafter = getattr(import_module(f"edgespec.drafters.{module}"), name)(*args, **settings)
    return made


# In the order in which drafters are asked: cheap ones first.
_ENTRIES = (
    Entry(
        "grammar",
        "tokens that a grammar or schema leaves no choice about",
        needs="grammar",
        make=lambda parts: _new("walk.GrammarDrafter"),
        drafts_trees=False,
    ),
    Entry(
        "lookup",
        "like suffix, but only from the prompt and the answer",
        make=lambda parts: _new("suffix.SuffixDrafter", name="lookup"),
        in_auto=False,
        style="italic underline $text-secondary",
    ),
    Entry(
        "suffix",
        "text that followed the same last tokens earlier",
        make=lambda parts: _new("suffix.SuffixDrafter", parts.answers),
        style="bold $text-warning",
    ),
    Entry(
        "recycling",
        "tokens that the target found likely after the last two tokens",
        make=lambda parts: _new("successors.RecyclingDrafter", parts.successors),
        style="bold underline $text-accent",
    ),
    Entry(
        "lookahead",
        "tokens that the target predicted after the tokens of the last draft",
        make=lambda parts: _new("lookahead.LookaheadDrafter"),
        in_auto=False,
    ),
    Entry(
        "corpus",
        "your own texts (--corpus)",
        needs="corpus",
        make=lambda parts: _new("walk.CorpusDrafter", parts.corpus),
        style="reverse $text-primary",
    ),
    Entry(
        "self",
        "a draft model made from the target's first 8 layers (self:8), or with smaller weights (self:Q2_K)",
        needs="self-draft",
        in_auto=False,
        style="bold italic $text-error",
    ),
    Entry("mtp", "the target's own block for multi-token prediction", needs="MTP block"),
    Entry("assistant", "the assistant of a Gemma 4, which reads the target's cache (-md ASSISTANT.gguf)", needs="head"),
    Entry("medusa", "a Medusa draft head (-md HEAD.gguf)", needs="head"),
    Entry("hydra", "a Hydra draft head", needs="head"),
    Entry("eagle1", "an EAGLE-1 draft head", needs="head"),
    Entry("eagle3", "an EAGLE-3 draft head", needs="head"),
    Entry("peagle", "a P-EAGLE draft head, which drafts several tokens in one pass", needs="head"),
    Entry("dflash", "a DFlash or DFlash2 draft head, which drafts a block of tokens in one pass", needs="head"),
    Entry("dspark", "a DSpark draft head, which does too", needs="head"),
    Entry("draft", "the draft model (-md)", needs="draft model", style="underline $text-success"),
)

REGISTRY = {entry.name: entry for entry in _ENTRIES}


def names_that_need(*needs: Needs) -> tuple[str, ...]:
    """Return the drafters that need one of these, in the order in which they are asked."""
    return tuple(name for name, entry in REGISTRY.items() if entry.needs in needs)


def help_text() -> str:
    """Return a sentence about each drafter, and about "auto"."""
    sentences = [f"{name}: {entry.help}." for name, entry in REGISTRY.items()]
    left_out = [name for name, entry in REGISTRY.items() if not entry.in_auto]
    return f"{' '.join(sentences)} auto: every available drafter but {', '.join(left_out[:-1])} and {left_out[-1]}."
