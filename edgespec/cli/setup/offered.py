"""The models that a server offers: those of -m and the others of this machine, each with its own defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.cli.call import Call
from edgespec.cli.options.given import request, sampling_settings
from edgespec.cli.setup.default_model import answer_as_catalogued
from edgespec.errors import UsageError
from edgespec.settings import AUTO_DRAFT, LoadSettings

if TYPE_CHECKING:
    from edgespec.serve.pool import Offer, Offers

IDLE_MINUTES = 30.0  # for models that are not named by -m


@dataclass(frozen=True, slots=True)
class Offered:
    """The models of -m (`named`, by spec), and the settings for other models of this machine: those of the first model,
    without its draft model, corpus and workers."""

    named: Mapping[str, Offer]
    offer: Callable[[str, LoadSettings, float | None], Offer]
    idle_minutes: float | None
    only: bool

    def look(self) -> Offers:
        """Return all models that requests can name now. Can be called from any thread."""
        from edgespec.serve.shelf import offers_here

        return offers_here(self.named, None if self.only else self._another)

    def _another(self, name: str, spec: str) -> Offer:
        first = next(iter(self.named.values())).settings
        minutes = IDLE_MINUTES if self.idle_minutes is None else self.idle_minutes
        return self.offer(name, replace(_shared(first), model=spec), minutes)


def offered(call: Call, settings: Sequence[LoadSettings]) -> Offered:
    """Return the models to offer. Raises UsageError if two models have the same name."""
    from edgespec.serve.pool import Offer
    from edgespec.serve.shelf import name_for

    values = call.values
    base = request(values | {"system": None}, "", chat=False, seed=0)

    def offer(name: str, settings: LoadSettings, minutes: float | None) -> Offer:
        own = values | {"model": settings.model, "system": None}
        answer_as_catalogued(call.ctx, own)
        defaults = replace(base, sampling=sampling_settings(own))
        return Offer(name, settings, defaults, 60 * minutes if minutes else None)

    named: dict[str, Offer] = {}
    for each in settings:
        name = name_for(each.model)
        if any(name == other.name for other in named.values()):
            raise UsageError(f"two models are called {name}", why="requests could not tell them apart")
        named[each.model] = offer(name, each, values["idle_unload"])
    return Offered(named, offer, values["idle_unload"], values["only"])


def settings_for(specs: Sequence[str], first: LoadSettings) -> list[LoadSettings]:
    """Return the settings for each model. A draft model or corpus belongs to the first model only, and an RPC worker
    can hold layers of one model only."""
    return [first, *(replace(_shared(first), model=spec) for spec in specs[1:])]


def _shared(first: LoadSettings) -> LoadSettings:
    return replace(first, draft_model=AUTO_DRAFT if first.draft_model else None, corpus=None, rpc=())
