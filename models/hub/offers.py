"""What a repository offers: its models, their sizes and their specs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.quants import choose, models_in, parts_of, quant_of


@dataclass(frozen=True, slots=True)
class Offer:
    """A model of a repository: its file, of a split one the first, with the size of all parts. `quant` after the
    repository's name selects it; it is empty if only the file's name does."""

    file: str
    quant: str
    n_parts: int
    size_bytes: int


def offers(sizes: Mapping[str, int]) -> list[Offer]:
    """The models among these files, whose sizes are in bytes, the smallest first.

    Those with missing parts, and of unknown size (0), cannot be downloaded and are left out.
    """
    found = []
    for file in models_in(list(sizes)):
        parts = parts_of(file)
        if all(sizes.get(part) for part in parts):
            size_bytes = sum(sizes[part] for part in parts)
            found.append(Offer(file, _quant_that_means(file, list(sizes)), len(parts), size_bytes))
    return sorted(found, key=lambda offer: (offer.size_bytes, offer.file))


def _quant_that_means(file: str, names: list[str]) -> str:
    quant = quant_of(file)
    with suppress(ModelNotFoundError):
        if quant and choose(names, quant) == file:
            return quant
    return ""
