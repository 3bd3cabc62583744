"""The models of the catalogue that suit this machine: they fit into its memory, and are fast enough to talk to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edgespec.models.listing import ModelRow, catalogue_rows, usual_bytes
from edgespec.models.memory.fit import TIGHT, gpu_room_bytes, needed_by_size
from edgespec.models.names.catalog import CatalogueModel

# The best first. All of them have a free licence, and follow instructions well for their size. The number is the lowest
# speed, in tokens per second, at which a model is recommended: people read about 6, and models that think before they
# answer need more.
CANDIDATES: dict[str, float] = {
    "qwen3.6-35b-a3b": 40,
    "gemma4-26b-a4b": 8,
    "gpt-oss-20b": 20,
    "gemma4-12b": 8,
    "gemma4-e4b": 8,
    "qwen3-4b-2507": 6,
    "gemma4-e2b": 6,
    "granite4.2-3b": 6,
    "qwen2.5-1.5b": 6,
}
ROOM = 0.6  # of the free memory that a recommended model takes at most: other programs need some, and long contexts
SMALLER = 0.5  # of the size of a recommended model that the next one has at most
MOST = 2
USED = 0.75  # of the measured speed of the memory: a token also takes products without weights, and attention
TOKEN_S = 0.004  # what a token takes in addition, whatever the size of its model


@dataclass(frozen=True, slots=True)
class Machine:
    """What limits the models of this machine.

    Attributes:
        room_bytes: The free main memory.
        cores: The cores that compute, one thread each.
        weights_per_s: The bytes of weights that the processor multiplies in a second; 0 if unknown, as of the GPUs.
        gpu_bytes: The free memory of the GPUs.
    """

    room_bytes: int
    cores: int
    weights_per_s: float
    gpu_bytes: int = 0
    gpu_weights_per_s: float = 0.0

    def has_room(self, needed_bytes: int) -> bool:
        """Return whether a model that takes this much memory fits, and leaves some for others."""
        return self.holds_on_gpu(needed_bytes) or needed_bytes <= ROOM * self.room_bytes

    def holds_on_gpu(self, needed_bytes: int) -> bool:
        """Return whether all of a model fits into the memory of the GPUs."""
        return 0 < needed_bytes <= TIGHT * self.gpu_bytes

    def tokens_per_s(self, entry: CatalogueModel) -> float:
        """Estimate how fast a model generates without drafts; 0 if that is unknown."""
        size_bytes = usual_bytes(entry)
        on_gpu = self.holds_on_gpu(needed_by_size(size_bytes))
        per_s = self.gpu_weights_per_s if on_gpu else self.weights_per_s
        return 1 / (TOKEN_S + size_bytes * entry.active_share / (USED * per_s)) if size_bytes and per_s else 0.0


def this_machine(in_use_bytes: int = 0) -> Machine:
    """Measure this machine. The memory of the model in use counts as free."""
    from edgespec.llama.drivers import nvidia_bytes_per_s
    from edgespec.llama.library import available_memory_bytes, default_threads
    from edgespec.llama.speed import weights_per_s

    gpu_bytes = gpu_room_bytes()
    gpu_per_s = nvidia_bytes_per_s() if gpu_bytes else 0.0
    room_bytes = available_memory_bytes() + in_use_bytes
    return Machine(room_bytes, default_threads(), weights_per_s(), gpu_bytes, gpu_per_s)


@dataclass(frozen=True, slots=True)
class Recommended:
    """A model to recommend; `tokens_per_s` is 0 if unknown."""

    row: ModelRow
    tokens_per_s: float

    @property
    def speed(self) -> str:
        """The expected speed in words; empty if unknown."""
        return self.speed_in("tokens per second")

    def speed_in(self, unit: str) -> str:
        """The expected speed with another name of its unit; empty if unknown."""
        return f"about {max(1, round(self.tokens_per_s))} {unit}" if self.tokens_per_s else ""


def recommended(machine: Machine, rows: Iterable[ModelRow] | None = None) -> list[Recommended]:
    """Return the best model of the catalogue for a machine, then smaller and faster ones; none if the memory is too
    small for all. Raises UsageError for a catalogue with errors."""
    by_name = {row.name: row for row in (catalogue_rows() if rows is None else rows)}
    found: list[Recommended] = []
    for each in _suitable(machine, by_name):
        if not found or (
            each.row.size_bytes <= SMALLER * found[-1].row.size_bytes and each.tokens_per_s >= found[-1].tokens_per_s
        ):
            found.append(each)
    return found[:MOST]


def _suitable(machine: Machine, rows: dict[str, ModelRow]) -> Iterator[Recommended]:
    """Yield the candidates that fit and are fast enough, the best first. An unknown speed is expected to be enough."""
    for name, least_per_s in CANDIDATES.items():
        if (row := rows.get(name)) is None:
            continue
        per_s = machine.tokens_per_s(row.entry)
        drafts = [rows[draft].size_bytes for draft in row.entry.drafts[:1] if draft in rows]
        if machine.has_room(needed_by_size(row.size_bytes + sum(drafts))) and (not per_s or per_s >= least_per_s):
            yield Recommended(row, per_s)
