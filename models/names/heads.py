"""Draft heads in lists: the published ones of the catalogue's models, with their form and what their makers report, and
the head of a model in a few words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgespec.drafters.heads import HEADS
from edgespec.text.figures import size_of

MTP = "mtp"
TITLES = {MTP: "MTP block"} | {name: head.title for name, head in HEADS.items()}
PUBLISHED = (MTP, *(name for name, head in HEADS.items() if head.published))
CONVERTED = [name for name, head in HEADS.items() if head.published == "safetensors"]  # by `draft convert`
GGUF, SAFETENSORS = "gguf", "safetensors"
FORM = 'a list of draft heads, such as ["mtp", "eagle3 owner/name", {kind = "eagle3", repository = "owner/name"}]'
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_MOST_BYTES = 1 << 60
HeadPlace = Literal["in its file", "here", "not here"]


@dataclass(frozen=True, slots=True)
class PublishedHead:
    """A draft head that is published for a model.

    Attributes:
        kind: One of `PUBLISHED`.
        repository: The repository of the hub that holds the head; empty for an MTP block, which is in the model's file.
        format: "gguf" if the repository holds a file that is used as it is, "safetensors" if the head must be
            converted first; empty for an MTP block.
        size_bytes: The size of the download; 0 if unknown.
        tokens: The published number of tokens that a step of the target yields with this head; 0 if unknown.
        speedup: The published speed, relative to decoding without drafts; 0 if unknown.
        source: The page that names the head, or these figures.
    """

    kind: str
    repository: str = ""
    format: str = ""
    size_bytes: int = 0
    tokens: float = 0.0
    speedup: float = 0.0
    source: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def can_be_had(self) -> bool:
        """False for a head that is in the model's file already, whose form cannot be converted, or that was measured as
        slower than no drafts."""
        has_form = self.format == GGUF or self.kind in CONVERTED
        return bool(self.repository) and has_form and not 0 < self.speedup < 1

    def fits(self, architecture: str) -> bool:
        """Return whether the head can be downloaded, and drafts for models of this architecture; empty if it is
        unknown."""
        from edgespec.gguf_file.head_check import kind_mismatch

        return self.can_be_had and not (architecture and kind_mismatch(architecture, self.kind))

    def facts(self, size_bytes: int = 0) -> str:
        """Return the head's kind, the size of its download and the published gain in words.

        `size_bytes` is the size that the hub reports, if it was asked.
        """
        size = size_bytes or self.size_bytes
        return ", ".join(filter(None, (self.title, size_of(size) if size else "", self.gain)))

    @property
    def gain(self) -> str:
        """The published gain in words; empty if none is known."""
        if self.tokens:
            return f"published: {self.tokens:g} tokens a step"
        return f"published: {self.speedup:g} times the speed" if self.speedup else ""


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
    place: HeadPlace
    spec: str = ""
    facts: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def as_json(self) -> dict[str, object]:
        return {"kind": self.kind, "place": self.place, "spec": self.spec or None}

    def with_command(self, model: str) -> str:
        """Return the words and, for a head that is not here, the command that downloads it for this model."""
        return f"{self}: edgespec pull {model} --head" if self.place == "not here" else str(self)


def describes_head(value: object) -> bool:
    """Return whether an element of a `heads` list describes a draft head."""
    if isinstance(value, str):
        kind, _, repository = value.partition(" ")
        return _fits(kind, repository)
    if not isinstance(value, dict) or value.keys() - PublishedHead.__dataclass_fields__.keys():
        return False
    numbers = {"size_bytes": (int, _MOST_BYTES), "tokens": (float, 1000), "speedup": (float, 1000)}
    return (
        _fits(value.get("kind"), value.get("repository", ""))
        and value.get("format", GGUF) in (GGUF, SAFETENSORS)
        and isinstance(value.get("source", ""), str)
        and all(
            type(value[key]) in {int, type_} and 0 <= value[key] < most
            for key, (type_, most) in numbers.items()
            if key in value
        )
    )


def read_head(value: str | Mapping[str, Any]) -> PublishedHead:
    """Return the head that an element of a `heads` list describes (`describes_head`).

    Without a format, a repository whose name ends with "-GGUF" holds a GGUF file, and others hold safetensors.
    """
    if isinstance(value, str):
        kind, _, repository = value.partition(" ")
        value = {"kind": kind, "repository": repository}
    repository = value.get("repository", "")
    of_name = GGUF if repository.lower().endswith("-gguf") else SAFETENSORS
    return PublishedHead(**{"format": of_name if repository else ""} | dict(value))


def _fits(kind: object, repository: object) -> bool:
    if kind == MTP:
        return bool(repository == "")
    has_name = isinstance(repository, str) and _REPOSITORY.fullmatch(repository) is not None
    return has_name and kind in PUBLISHED
