"""Which loaded drafters draft, and how: for all answers, and for a request with other settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edgespec.core import exactness
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy
from edgespec.drafters.base import Drafter
from edgespec.engine.calibrate import CostModelCache
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import Drafting
from edgespec.errors import UsageError
from edgespec.settings import DRAFT_N_MAX, HEADS, LoadSettings, Request, fixed_length
from edgespec.validation import check_load_settings


class LoadedDrafters:
    """The drafters of a model by their names, in the order in which they are asked.

    Attributes:
        settings: how they draft now. Trees have at most the number of leaves that was loaded.
    """

    def __init__(
        self,
        settings: LoadSettings,
        drafters: Mapping[str, Drafter],
        engine: Engine,
        tuning: CostModelCache,
        leaves: int,
        note: Callable[[str], None],
    ) -> None:
        self._drafters, self._engine, self._tuning, self._note = drafters, engine, tuning, note
        self.settings = self._loaded = settings
        self._leaves = leaves
        self.use(settings)

    @property
    def _known_as(self) -> set[str]:
        """The names of the loaded drafters; "draft" also means a draft head."""
        return {*self._drafters} | ({"draft"} if not self._drafters.keys().isdisjoint(HEADS) else set())

    def changed(self, changes: Mapping[str, Any]) -> LoadSettings:
        """Return the settings with some changes. Raises UsageError if they exceed what is loaded."""
        wanted = replace(self.settings, **{"spec_draft_n_max": self.settings.draft_n_max, **changes})
        check_load_settings(wanted)
        if wanted.draft_n_max > self._loaded.draft_n_max:
            raise UsageError(
                f"drafts of {wanted.draft_n_max} tokens do not fit", hint="load the model with --spec-draft-n-max"
            )
        missing = [name for name in wanted.drafters if name not in self._known_as]
        if wanted.self_draft is not None and wanted.self_draft != self._loaded.self_draft:
            missing = [wanted.spelling("self")]
        if changes.get("spec_type", "auto") != "auto" and missing:
            raise UsageError(
                f"drafter {missing[0]} is not loaded",
                why=f"loaded: {', '.join(map(self._loaded.spelling, self._drafters)) or 'no drafter'}",
                hint="load the model with it (--spec-type, -md)",
            )
        if "spec_tree" in changes and wanted.spec_tree > self._leaves:
            raise UsageError(f"trees of {wanted.spec_tree} leaves do not fit", hint="load the model with --spec-tree")
        return wanted

    def use(self, settings: LoadSettings) -> None:
        """Use these settings, which `changed` returned, from now on."""
        drafting = self._drafting(settings)
        if isinstance(drafting.pace, MeasuredPolicy):
            drafting.pace.longest = drafting.n_max
        n_max, most = settings.draft_n_max, self._engine.scheduler.most_rows
        if drafting.drafters and n_max >= most and n_max > DRAFT_N_MAX:
            is_measured = most < exactness.NARROW
            why = "wider passes round differently on this machine" if is_measured else "--exact has no wider passes"
            self._note(f"drafts are at most {most - 1} tokens: {why} (--fast allows them)")
        self.settings = settings
        leaves = min(settings.spec_tree, self._leaves)
        self._engine.speculator.use(drafting.drafters, drafting.n_max, drafting.pace, leaves)

    def of(self, request: Request) -> Drafting | None:
        """Return how to draft for a request; None: as for all answers. Raises UsageError."""
        asked = {"spec_type": request.spec_type, "pace": request.pace, "spec_draft_n_max": request.draft_n_max}
        changes = {name: value for name, value in asked.items() if value is not None}
        if not changes:
            return None
        try:
            return self._drafting(self.changed(changes))
        except UsageError as error:  # in the words of the request
            about, what = error.what.partition(" ")[0], error.what.replace("--spec-draft-n-max", "draft_n_max")
            if about != "pace":
                what = f"{'spec_type' if about == 'drafter' else 'draft_n_max'}: {what}"
            raise UsageError(what, why=error.why, hint=error.hint) from None

    def _drafting(self, settings: LoadSettings) -> Drafting:
        wanted = settings.drafters
        names = [name for name in self._drafters if name in wanted or (name in HEADS and "draft" in wanted)]
        most = min(self._engine.context.rollback, self._engine.scheduler.most_rows - 1) if names else 0
        n_max, pace = min(settings.draft_n_max, most), self._pace(names, settings)
        return Drafting(tuple(self._drafters[name] for name in names), n_max, pace)

    def _pace(self, names: list[str], settings: LoadSettings) -> DraftPolicy:
        if settings.pace != "auto" or not names:
            return FixedPolicy(fixed_length(settings.pace) or 0)
        measured = self._tuning.pace(names, min(settings.spec_tree, self._leaves))
        measured.longest = measured.longest or min(self._loaded.draft_n_max, self._engine.scheduler.most_rows - 1)
        return measured
