"""Who drafts for which sequence, how much of it is verified, and what the policy learns from what was accepted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import ParamSpec

from edgespec.core.draft import Draft
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy, Plan, ProposalContext
from edgespec.drafters.base import Budget, Drafter, Outcome
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.sequence import Scheduled, Sequence, StepOutput
from edgespec.engine.target_runner import TargetRunner
from edgespec.llama.context import CancelledError

logger = logging.getLogger("edgespec.engine")

P = ParamSpec("P")

OBSERVE_EVERY = 16  # steps, for a drafter that rests


class Speculator:
    """Drafters are asked in turn, and `pace` says which and for how much; without one every draft is as long as it may
    be. `n_max` is the most tokens of a draft, `tree_width` the most leaves. A drafter that fails is off for the rest of
    the answer, of which `warn` hears."""

    def __init__(
        self,
        scheduler: Scheduler,
        drafters: Iterable[Drafter],
        *,
        n_max: int,
        pace: DraftPolicy | None,
        tree_width: int,
        warn: Callable[[str], None],
    ) -> None:
        self.scheduler, self.context, self.warn = scheduler, scheduler.context, warn
        self.use(drafters, n_max, pace or FixedPolicy(n_max), tree_width)

    def use(self, drafters: Iterable[Drafter], n_max: int, pace: DraftPolicy, tree_width: int) -> None:
        """Draft in another way from now on, also for answers that have begun."""
        self.drafters, self.n_max, self.pace, self.tree_width = [*drafters], n_max, pace, tree_width
        layers = {layer for drafter in self.drafters for layer in drafter.needs_layers}
        if layers != self.context.layers:
            self.context.watch_layers(sorted(layers))
        for sequence in self.scheduler.active:
            self.begin(sequence)

    def begin(self, sequence: Sequence) -> None:
        for drafter in self.drafters:
            self._tell(drafter, sequence, drafter.begin, sequence)

    def end(self, sequence: Sequence) -> None:
        for drafter in self.drafters:
            self._tell(drafter, sequence, drafter.end, sequence)

    def _tell(
        self, drafter: Drafter, sequence: Sequence, what: Callable[P, None], *args: P.args, **options: P.kwargs
    ) -> None:
        try:
            what(*args, **options)
        except Exception as error:
            self._switch_off(drafter, [sequence], error)

    # --- before the pass ------------------------------------------------------------------------------------------

    def propose(self, scheduled: list[Scheduled]) -> None:
        """Give each part the best draft that the policy wants and that fits into the batch."""
        for part in scheduled:
            names = [drafter.name for drafter in self.drafters if drafter.can_draft(part.sequence)]
            part.awake = self.pace.awake(part.sequence.kind, names)
        wanting = [part for part in scheduled if part.awake and self._room(part) > 0]
        for drafter in self.drafters if wanting else ():
            plans = [
                (part, plan)
                for part in wanting
                if drafter.name in part.awake
                and drafter.name not in part.sequence.off
                and (plan := self._plan(drafter, part, len(scheduled))) is not None
            ]
            if plans:
                self._ask(drafter, plans, scheduled)
        if len(scheduled) > 1:
            self._share_width(scheduled)
        if self.context.streams or (not self.context.model.can_roll_back and len(scheduled) > 2):
            # Streams of different lengths take passes of their own, and recurrent memories cannot be set back then.
            least = min(len(part.draft) if part.n_pending == 1 else 0 for part in scheduled)
            for part in scheduled:
                _shorten(part, least)

    def _room(self, part: Scheduled) -> int:
        """How many tokens can be guessed now: none while the prompt is decoded, else what has room."""
        sequence = part.sequence
        if (sequence.is_prefill and part.n_pending > 1) or not part.is_complete:
            return 0
        room = self.context.n_ctx - len(sequence.tokens)
        return min(self.n_max, self.scheduler.most_rows - 1, sequence.remaining - 1, room)

    def _plan(self, drafter: Drafter, part: Scheduled, n_parts: int) -> Plan | None:
        sequence = part.sequence
        turn = ProposalContext(
            sequence.kind,
            drafter.name,
            self._room(part),
            remaining=sequence.remaining,
            depth=sequence.n_decoded,
            sequences=n_parts,
            n_unread=lambda: drafter.n_unread(sequence),
            drawn=sequence.draws,
            settled=sequence.is_draft_invariant,
            best=part.value,
            leaves=self._leaves(part, n_parts),
            round=sequence.round,
        )
        try:
            return self.pace.plan(turn)
        except Exception as error:
            self._switch_off(drafter, [sequence], error)
            return None

    def _ask(self, drafter: Drafter, plans: list[tuple[Scheduled, Plan]], scheduled: list[Scheduled]) -> None:
        """Let one drafter guess; whatever it does, the answers go on without it."""
        started_s, passes = perf_counter(), drafter.passes
        asked = [part.sequence for part, _ in plans]
        n_vocab = self.context.model.n_vocab
        took_s = 0.0
        try:
            budgets = self._budgets(plans, scheduled)
            drafts = drafter.propose(asked, budgets)
            took_s = (perf_counter() - started_s) / len(plans)
            for (part, plan), draft, budget in zip(plans, drafts, budgets, strict=True):
                try:
                    check_draft(draft, budget, n_vocab)
                except ValueError as error:
                    self._switch_off(drafter, [part.sequence], error)
                    continue
                plan.spent(drafter.passes - passes, took_s)
                _take(part, plan, draft, budget.leaves)
        except CancelledError:
            raise
        except Exception as error:
            self._switch_off(drafter, asked, error)
        took_s = took_s or (perf_counter() - started_s) / len(plans)
        for part, plan in plans:
            part.sequence.stats.count_draft(drafter.name, took_s, plan.price(took_s))

    def _budgets(self, plans: list[tuple[Scheduled, Plan]], scheduled: list[Scheduled]) -> list[Budget]:
        drafted = sum(len(part.draft) for part in scheduled)
        room = self.scheduler.most_rows - sum(part.n_pending for part in scheduled) - drafted
        # What was drawn is verified as a whole, or else what it is would tell whether it is.
        drawn_room = min(room, max(0, self.context.max_outputs - len(scheduled) - drafted))
        return [
            Budget(
                min(plan.tokens, (drawn_room if part.sequence.draws else room) // len(plans)),
                self._leaves(part, len(plans)),
                worth=plan.worth,
            )
            for part, plan in plans
        ]

    def _leaves(self, part: Scheduled, n_parts: int) -> int:
        """How many leaves a draft may have; block verification checks chains."""
        return 1 if part.sequence.rule == "block" else min(self.tree_width, 1 + self.context.free_branches // n_parts)

    def _share_width(self, scheduled: list[Scheduled]) -> None:
        """Cut drafts to what pays in this pass: what a token of one costs depends on the others."""
        guessing = [part for part in scheduled if part.draft]
        if not guessing:
            return
        offers = [(part.plans[part.draft.source], part.draft) for part in guessing]
        width, depth = sum(part.n_pending for part in scheduled), scheduled[0].sequence.n_decoded
        room = min(self.scheduler.most_rows - width, self.context.max_outputs - len(scheduled))
        for part, draft in zip(guessing, self.pace.allocate_verify_budget(offers, width, depth, room), strict=True):
            part.draft = draft
            if not draft:
                part.drop()

    def _switch_off(self, drafter: Drafter, sequences: list[Sequence], error: Exception) -> None:
        logger.debug("drafter failed", exc_info=error)
        self.warn(f"drafter {drafter.name} failed and is off for this answer ({error!r})")
        for sequence in sequences:
            sequence.off.add(drafter.name)

    # --- after the pass -------------------------------------------------------------------------------------------

    def read(self, part: Scheduled, path: list[int]) -> None:
        """Give drafters what flowed into the layers that they need, at the tokens of this pass that stay."""
        start = part.sequence.n_decoded - (0 if part.is_complete else part.n_pending)
        rows = [*range(part.start, part.start + part.n_pending), *(part.entry(node) for node in path)]
        for drafter in self.drafters:
            if drafter.needs_layers:
                layers = {layer: self.context.layer_inputs(layer)[rows] for layer in drafter.needs_layers}
                self._tell(drafter, part.sequence, drafter.read, part.sequence, start, layers)

    def accepted(self, part: Scheduled, path: list[int], runner: TargetRunner) -> None:
        """Tell the drafters' plans how much of what each had guessed was accepted, and let drafters look at the rows of
        the last token and of what was accepted; now and then if they rest."""
        by_source: dict[str, list[int]] = {}
        for node in range(len(part.draft)):
            by_source.setdefault(part.draft.source_of(node), []).append(node)
        for name, nodes in by_source.items():
            if name in part.plans:
                if part.draft.sources:
                    part.plans[name].share(part.draft, nodes)
                part.plans[name].judged(len({*nodes} & {*path}))
                part.sequence.stats.count_cost(name, part.plans[name].wider)
        looking = [
            drafter
            for drafter in self.drafters
            if drafter.needs_logits and (drafter.name in part.awake or part.sequence.round % OBSERVE_EVERY == 0)
        ]
        if looking:
            last = part.sequence.tokens[part.sequence.n_decoded + part.n_pending - 1]
            tokens, nodes = [last, *(part.draft.tokens[node] for node in path)], [-1, *path]
            outcome = Outcome(part.sequence, tokens, lambda index: runner.logits(part, nodes[index]))
            for drafter in looking:
                self._tell(drafter, part.sequence, drafter.observe, outcome)

    def observe(self, scheduled: list[Scheduled], outputs: list[StepOutput], least_width: int, took_s: float) -> None:
        """Tell the policy what a step took and brought; what prompts take is none of its business."""
        if len(outputs) < len(scheduled) or any(part.n_pending > 1 for part in scheduled):
            return
        width = max(least_width, sum(1 + len(part.draft) for part in scheduled))
        self.pace.observe_pass(width, took_s, scheduled[0].sequence.n_decoded)
        for part, output in zip(scheduled, outputs, strict=True):
            emitted = [choice.id for choice in output.choices]
            self.pace.observe_round(part.sequence.kind, emitted, width, part.sequence.n_decoded, len(scheduled))


def _take(part: Scheduled, plan: Plan, guessed: Draft, leaves: int) -> None:
    """Verify what is worth most: what a drafter has guessed, what others have, or some of both."""
    settled = plan.settle(guessed)
    if not guessed:
        return
    part.plans[guessed.source] = plan
    if settled and plan.value > part.value:
        part.draft, part.value = settled, plan.value
    if part.whole and leaves > 1 and not part.sequence.draws:
        guessed = part.whole.merged(guessed).within(leaves)
        both, value = plan.merge(guessed)
        if value > part.value:
            part.draft, part.value = both, value
    part.whole = guessed


def _shorten(part: Scheduled, n: int) -> None:
    """Verify no more than the first `n` tokens; what was drafted in vain is for the policy to know."""
    if len(part.draft) > n:
        plan, part.draft = part.plans[part.draft.source], part.draft.first(n)
        plan.shorten(part.draft)
        if not n:
            part.drop()


def check_draft(draft: Draft, budget: Budget, n_vocab: int) -> None:
    """Raises ValueError for a draft that cannot be decoded."""
    if len(draft) > budget.tokens or any(not 0 <= token < n_vocab for token in draft.tokens):
        raise ValueError(f"it proposed {len(draft)} tokens for a budget of {budget.tokens}, or invalid token ids")
    if not all(-1 <= parent < node for node, parent in enumerate(draft.parents)):
        raise ValueError("in its tree a token comes before its parent")
    if len({len(draft), len(draft.parents), len(draft.confidence), len(draft.distributions)}) > 1:
        raise ValueError("its draft has parts of different lengths")
    if draft.n_leaves > budget.leaves:
        raise ValueError(f"its tree has more than {budget.leaves} leaves")
