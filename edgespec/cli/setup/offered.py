"""The models that a server offers: those of -m and the others of this machine, each with its own defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.cli.call import Call
from edgespec.cli.options.given import request, sampling_settings
from edgespec.cli.setup.default_model import answer_as_catalogued
from edgespec.errors import UsageError
from edgespec.settings import AUTO_DRAFT, LoadSettings

if TYPE_CHECKING:
    from edgespec.serve.pool import Offer, Offers

IDLE_MINUTES = 30.0  # for models that are not named by -m


class Offered:
    """The models of -m (`named`, by spec), and the other models of this machine, which have the settings of the first
    model without its draft model, corpus and workers. Raises UsageError if two models have the same name."""

    def __init__(self, call: Call, settings: Sequence[LoadSettings]) -> None:
        from edgespec.serve.shelf import name_for

        self._call = call
        self._defaults = request(call.values | {"system": None}, "", chat=False, seed=0)
        self.named: dict[str, Offer] = {}
        for each in settings:
            name = name_for(each.model)
            if any(name == other.name for other in self.named.values()):
                raise UsageError(f"two models are called {name}", why="requests could not tell them apart")
            self.named[each.model] = self._offer(name, each, call.values["idle_unload"])

    def look(self) -> Offers:
        """Return all models that requests can name now. Can be called from any thread."""
        from edgespec.serve.shelf import offers_here

        return offers_here(self.named, None if self._call.values["only"] else self._another)

    def _another(self, name: str, spec: str) -> Offer:
        first, minutes = next(iter(self.named.values())).settings, self._call.values["idle_unload"]
        return self._offer(name, replace(_shared(first), model=spec), IDLE_MINUTES if minutes is None else minutes)

    def _offer(self, name: str, settings: LoadSettings, minutes: float | None) -> Offer:
        from edgespec.serve.pool import Offer

        values = self._call.values | {"model": settings.model, "system": None}
        answer_as_catalogued(self._call.ctx, values)
        defaults = replace(self._defaults, sampling=sampling_settings(values))
        return Offer(name, settings, defaults, 60 * minutes if minutes else None)


def settings_for(specs: Sequence[str], first: LoadSettings) -> list[LoadSettings]:
    """Return the settings for each model. A draft model or corpus belongs to the first model only, and an RPC worker
    can hold layers of one model only."""
    return [first, *(replace(_shared(first), model=spec) for spec in specs[1:])]


def _shared(first: LoadSettings) -> LoadSettings:
    return replace(first, draft_model=AUTO_DRAFT if first.draft_model else None, corpus=None, rpc=())
