"""What a server offers: the models of its options, and the others of this machine, each with its own defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.given import request, sampling_settings
from edgespec.cli.setup.default_model import answer_as_catalogued
from edgespec.errors import UsageError
from edgespec.settings import AUTO_DRAFT, LoadSettings

if TYPE_CHECKING:
    from edgespec.serve.pool import Offer, Offers

IDLE_MINUTES = 30.0  # for models that only requests name


@dataclass(frozen=True, slots=True)
class Offered:
    """`named` are the models of -m by their specs; the settings of the first one are those of all, but for what is made
    for that one."""

    named: Mapping[str, Offer]
    offer: Callable[[str, LoadSettings, float | None], Offer]
    idle_minutes: float | None
    only: bool

    def look(self) -> Offers:
        """What can be asked for now, by every name. For any thread."""
        from edgespec.serve.shelf import offers_here

        return offers_here(self.named, None if self.only else self._another)

    def _another(self, name: str, spec: str) -> Offer:
        first = next(iter(self.named.values())).settings
        minutes = IDLE_MINUTES if self.idle_minutes is None else self.idle_minutes
        return self.offer(name, replace(_shared(first), model=spec), minutes)


def offered(ctx: click.Context, values: Mapping[str, Any], settings: Sequence[LoadSettings]) -> Offered:
    """Raises UsageError if two models have one name."""
    from edgespec.serve.pool import Offer
    from edgespec.serve.shelf import name_for

    base = request(dict(values) | {"system": None}, "", chat=False, seed=0)

    def offer(name: str, settings: LoadSettings, minutes: float | None) -> Offer:
        own = dict(values) | {"model": settings.model, "system": None}
        answer_as_catalogued(ctx, own)
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
    """How several models are loaded: a draft model or corpus that is named is made for the first one, and a worker can
    hold layers of one model only."""
    return [first, *(replace(_shared(first), model=spec) for spec in specs[1:])]


def _shared(first: LoadSettings) -> LoadSettings:
    return replace(first, draft_model=AUTO_DRAFT if first.draft_model else None, corpus=None, rpc=())
