"""A model's draft head in a few words, and the head that is published for a model of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from edgespec.gguf_file.head_check import kind_mismatch
from edgespec.models.names.catalog import Entry
from edgespec.models.names.heads import MTP, TITLES, PublishedHead

Place = Literal["in its file", "here", "not here"]


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The best draft head of a model. `str()` returns it in a few words, such as "eagle3 not here".

    Attributes:
        kind: The drafter that uses it, such as "eagle3", or "mtp".
        spec: The file of a head that is here, or the repository of one that is published; empty for an MTP block, and
            for a head in the repository of its model.
        facts: The catalogue's description of a published head.
    """

    kind: str
    place: Place
    spec: str = ""
    facts: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "place": self.place, "spec": self.spec or None}

    def with_command(self, model: str) -> str:
        """Return the words and, for a head that is not here, the command that downloads it for this model."""
        return f"{self}: edgespec pull {model} --head" if self.place == "not here" else str(self)


def published_for(entry: Entry | None, architecture: str = "") -> KnownHead | None:
    """Return the best published head of a catalogue entry: an MTP block in its file, or one that `pull` can bring.

    Without an architecture, all kinds are expected to work.
    """
    for head in entry.heads if entry is not None else ():
        if head.kind == MTP and not architecture:
            return KnownHead(MTP, "in its file")
        if is_usable(head, architecture):
            repository = "" if entry is not None and head.repository == entry.repository else head.repository
            return KnownHead(head.kind, "not here", repository, head.facts())
    return None


def is_usable(head: PublishedHead, architecture: str) -> bool:
    """Return whether a head can be downloaded, and drafts for models of this architecture; empty if it is unknown."""
    return head.can_be_had and not (architecture and kind_mismatch(architecture, head.kind))
