"""The speculator: asks drafters for drafts, selects what to verify, and reports the results to the policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from time import perf_counter
from typing import TypeVar

from edgespec.core.draft import Budget, Draft
from edgespec.core.exactness import rows_with_equal_cells
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy, Proposal, ProposalContext, Verified
from edgespec.drafters.base import Drafter, Outcome
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.sequence import Scheduled, Sequence
from edgespec.engine.target_runner import TargetRunner
from edgespec.llama.context import CancelledError

logger = logging.getLogger("edgespec.engine")

T = TypeVar("T")

OBSERVE_EVERY = 16  # steps between two observations of a drafter that is backed off


class Speculator:
    """Asks the drafters one after the other; the policy `pace` decides which of them, and for how many tokens.

    Without a policy each draft is as long as possible. `n_max` is the maximum of draft tokens, `tree_width` that of
    leaves. `Sequence.drafting` overrides these settings. A drafter that fails is switched off for the rest of the
    answer, and `warn` is called with a message.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: TargetRunner,
        drafters: Iterable[Drafter],
        *,
        n_max: int,
        pace: DraftPolicy | None,
        tree_width: int,
        warn: Callable[[str], None],
    ) -> None:
        self.scheduler, self.runner, self.context, self.warn = scheduler, runner, scheduler.context, warn
        self._known: dict[Drafter, None] = {}  # in the order in which they are asked
        self._observed_s = 0.0  # in this step
        self._recorded_s = 0.0  # after the last step
        self.use(drafters, n_max, pace or FixedPolicy(n_max), tree_width)

    def use(self, drafters: Iterable[Drafter], n_max: int, pace: DraftPolicy, tree_width: int) -> None:
        """Change drafters and policy, also for answers that are running."""
        self.drafters, self.n_max, self.pace, self.tree_width = [*drafters], n_max, pace, tree_width
        self._known |= dict.fromkeys(self.drafters)
        self._watch()
        for sequence in self.scheduler.active:
            if sequence.drafting is None:
                self.begin(sequence)

    def _watch(self) -> None:
        """Let the target keep the layer inputs that the drafters of all sequences read, and no others."""
        own = (drafter for sequence in self.scheduler.active for drafter in self._drafters(sequence))
        shared = self.drafters if self.n_max else ()
        layers = {layer for drafter in (*shared, *own) for layer in drafter.needs_layers}
        if layers != self.context.layers:
            self.context.watch_layers(sorted(layers))

    def _drafters(self, sequence: Sequence) -> Collection[Drafter]:
        drafters = self.drafters if sequence.drafting is None else sequence.drafting.drafters
        if self._n_max(sequence) == 0:
            return []
        if sequence.images:
            return [drafter for drafter in drafters if drafter.follows_images]
        return drafters

    def _n_max(self, sequence: Sequence) -> int:
        return self.n_max if sequence.drafting is None else sequence.drafting.n_max

    def _pace(self, sequence: Sequence) -> DraftPolicy:
        return self.pace if sequence.drafting is None else sequence.drafting.pace

    def begin(self, sequence: Sequence) -> None:
        self._known |= dict.fromkeys(self._drafters(sequence))
        self._watch()
        for drafter in self._drafters(sequence):
            self._attempt(drafter, [sequence], partial(drafter.begin, sequence))

    def end(self, sequence: Sequence) -> None:
        for drafter in self._known:
            self._attempt(drafter, [sequence], partial(drafter.end, sequence))

    def _attempt(
        self, drafter: Drafter, sequences: list[Sequence], call: Callable[[], T], *, has_passes: bool = False
    ) -> T | None:
        """Return the result of a call. If it fails, the answers continue without the drafter, and the result is None.

        A call that `has_passes` of the drafter's model raises CancelledError if a pass was cancelled, which is no
        failure.
        """
        try:
            return call()
        except Exception as error:
            if has_passes and isinstance(error, CancelledError):
                raise
            logger.debug("drafter failed", exc_info=error)
            self.warn(f"drafter {drafter.name} failed and is off for this answer ({error!r})")
            for sequence in sequences:
                sequence.off.add(drafter.name)
            return None

    # --- before the pass ------------------------------------------------------------------------------------------

    def propose(self, scheduled: list[Scheduled]) -> None:
        """Give each part the draft that the policy selects. Does nothing if no drafter was ever used."""
        if not self._known:
            return
        started_s, self._observed_s = perf_counter(), 0.0
        for part in scheduled:
            part.context = self._context(part, len(scheduled))
        # llama.cpp decodes streams with different numbers of tokens in separate passes, and cannot roll back recurrent
        # memories afterwards. So all drafts get the length of the shortest.
        is_even = self.context.streams or (not self.context.model.can_roll_back and len(scheduled) > 2)
        if is_even:
            least = min(part.context.n_max * (part.n_pending == 1) for part in scheduled)
            for part in scheduled:
                part.context.n_max = least
        for drafter in self._known:
            wanted = [(part, budget) for part in scheduled if (budget := self._budget(drafter, part)) is not None]
            if wanted:
                self._ask(drafter, wanted, scheduled)
        proposals = [proposal for part in scheduled for proposal in part.context.proposals]
        if not proposals:
            return
        self._select(scheduled)
        if is_even:
            least = min(len(part.draft) for part in scheduled)
            for part in scheduled:
                part.draft = part.draft.first(least)
        # Count the time to decide, and to record the last step, as drafting: plain decoding does not need it, and for a
        # small model it matters.
        deciding_s = self._recorded_s + perf_counter() - started_s - sum(proposal.seconds for proposal in proposals)
        for proposal in proposals:
            proposal.seconds += max(0.0, deciding_s) / len(proposals)

    def _select(self, scheduled: list[Scheduled]) -> None:
        """Let each policy select among the drafts of its sequences, within the room that is left.

        Room for sampled drafts is always reserved: they are verified as a whole.
        """
        width = sum(part.n_pending for part in scheduled)
        room = min(self.scheduler.most_rows - width, self.context.max_outputs - len(scheduled))
        kept = {part.sequence: _n_sampled(part) for part in scheduled}
        for pace, parts in self._by_pace(scheduled):
            others = sum(kept.values()) - sum(kept[part.sequence] for part in parts)
            drafts = pace.select([part.context for part in parts], width + others, room - others)
            for part, draft in zip(parts, drafts, strict=True):
                part.draft = draft
                kept[part.sequence] = len(draft)

    def _by_pace(self, scheduled: list[Scheduled]) -> Iterable[tuple[DraftPolicy, list[Scheduled]]]:
        if all(part.sequence.drafting is None for part in scheduled):
            return [(self.pace, scheduled)]
        found: dict[DraftPolicy, list[Scheduled]] = {}
        for part in scheduled:
            found.setdefault(self._pace(part.sequence), []).append(part)
        return found.items()

    def _context(self, part: Scheduled, n_parts: int) -> ProposalContext:
        sequence, n_max = part.sequence, 0
        # No draft is verified with the end of a prompt: drafts do not depend on how much of it was cached.
        if part.is_complete and not sequence.is_prefill:
            room = self.context.n_ctx - len(sequence.tokens)
            n_max = min(self._n_max(sequence), self.scheduler.most_rows - 1, sequence.remaining - 1, room)
            if self.runner.least_width:
                n_max = min(n_max, rows_with_equal_cells(sequence.n_decoded, self.runner.least_width) - 1)
        return ProposalContext(
            sequence.mode,
            n_max,
            remaining=sequence.remaining,
            depth=sequence.n_decoded,
            sequences=n_parts,
            leaves=self._leaves(part, n_parts),
            step=sequence.round,
            sampled=sequence.draws,
            invariant=sequence.is_draft_invariant,
        )

    def _budget(self, drafter: Drafter, part: Scheduled) -> Budget | None:
        sequence = part.sequence
        if part.context.n_max <= 0 or drafter not in self._drafters(sequence):
            return None
        if drafter.name in sequence.off or not drafter.can_draft(sequence):
            return None
        decide = partial(self._pace(sequence).budget, part.context, drafter.name, partial(drafter.n_unread, sequence))
        budget = self._attempt(drafter, [sequence], decide)
        if budget is None and drafter.name not in sequence.off:
            part.backed_off.add(drafter.name)
        return budget if budget is not None and budget.tokens else None

    def _ask(self, drafter: Drafter, wanted: list[tuple[Scheduled, Budget]], scheduled: list[Scheduled]) -> None:
        """Let one drafter propose drafts."""
        started_s, overlapped, sequences = perf_counter(), drafter.overlapped, [part.sequence for part, _ in wanted]
        propose = partial(self._propose, drafter, wanted, self._within_room(wanted, scheduled))
        self._attempt(drafter, sequences, propose, has_passes=True)
        for sequence in sequences:
            sequence.stats.count_draft(drafter.name, (perf_counter() - started_s) / len(wanted))
        sequences[0].stats.by_source[drafter.name].overlapped += drafter.overlapped - overlapped

    def _propose(self, drafter: Drafter, wanted: list[tuple[Scheduled, Budget]], budgets: list[Budget]) -> None:
        """Add the drafts of a drafter to the proposals. A draft that cannot be decoded is a failure in its answer."""
        started_s, passes, sequences = perf_counter(), drafter.passes, [part.sequence for part, _ in wanted]
        n_unread = [drafter.n_unread(sequence) for sequence in sequences]
        drafts = drafter.propose(sequences, budgets)
        took_s = (perf_counter() - started_s) / len(wanted)
        for (part, _), draft, budget, unread in zip(wanted, drafts, budgets, n_unread, strict=True):
            check = partial(check_draft, draft, drafter.name, budget, self.context.model.n_vocab)
            self._attempt(drafter, [part.sequence], check)
            if drafter.name not in part.sequence.off:
                proposal = Proposal(drafter.name, draft, unread, drafter.passes - passes, took_s)
                part.context.proposals.append(proposal)

    def _within_room(self, wanted: list[tuple[Scheduled, Budget]], scheduled: list[Scheduled]) -> list[Budget]:
        """Limit budgets so that all drafts fit into this pass.

        A sampled draft must fit as a whole. If some of its tokens were dropped later because of their values, the
        choice would bias the output.
        """
        room = self.scheduler.most_rows - sum(part.n_pending for part in scheduled)
        made = sum(map(_n_sampled, scheduled))
        sampled = min(room, self.context.max_outputs - len(scheduled)) - made
        return [
            Budget(
                tokens=max(0, min(budget.tokens, (sampled if part.sequence.draws else room) // len(wanted))),
                leaves=self._leaves(part, len(wanted)),
                worth=budget.worth,
            )
            for part, budget in wanted
        ]

    def _leaves(self, part: Scheduled, n_parts: int) -> int:
        """Return the maximum number of leaves of a draft; block verification checks chains only."""
        return 1 if part.sequence.rule == "block" else min(self.tree_width, 1 + self.context.free_branches // n_parts)

    # --- during the pass ------------------------------------------------------------------------------------------

    def overlapped(self, scheduled: list[Scheduled]) -> AbstractContextManager[None]:
        """Let the drafter of this draft work on the next one while the target's pass runs in this block."""
        sequence, draft = scheduled[0].sequence, scheduled[0].draft
        if len(scheduled) == 1 and draft and not draft.sources:
            for drafter in self._drafters(sequence):
                if drafter.name == draft.source and drafter.verifying(sequence, draft):
                    return self._settled(drafter, sequence)
        return nullcontext()

    @contextmanager
    def _settled(self, drafter: Drafter, sequence: Sequence) -> Iterator[None]:
        """Wait for the drafter's work at the end of the block."""
        try:
            yield
        finally:
            ended_s, is_begun = perf_counter(), None
            with suppress(CancelledError):  # the pass itself was cancelled too
                is_begun = self._attempt(drafter, [sequence], drafter.settle, has_passes=True)
            sequence.stats.count_ahead(drafter.name, perf_counter() - ended_s, is_begun=bool(is_begun))

    # --- after the pass -------------------------------------------------------------------------------------------

    def read(self, part: Scheduled, path: list[int]) -> None:
        """Give drafters the layer inputs that they need, for the tokens of this pass that stay; none for images."""
        start = part.sequence.n_decoded - (0 if part.is_complete else part.n_pending)
        if part.sequence.tokens[start] < 0:
            return
        for drafter in self._drafters(part.sequence):
            if drafter.needs_layers and all(map(self.context.gives, drafter.needs_layers)):
                rows = [*range(part.start, part.start + part.n_pending), *(part.entry(node) for node in path)]
                layers = {layer: self.context.layer_inputs(layer)[rows] for layer in drafter.needs_layers}
                self._attempt(drafter, [part.sequence], partial(drafter.read, part.sequence, start, layers))

    def observe(self, part: Scheduled, path: list[int]) -> None:
        """Show drafters the rows of the last token and of the draft; only now and then if they are backed off."""
        looking = [
            drafter
            for drafter in self._drafters(part.sequence)
            if drafter.needs_logits
            and (drafter.name not in part.backed_off or part.sequence.round % OBSERVE_EVERY == 0)
        ]
        sequence, last = part.sequence, part.sequence.n_decoded + part.n_pending - 1
        if looking and sequence.tokens[last] >= 0:
            tokens = [sequence.tokens[last], *(part.draft.tokens[node] for node in path)]
            before = max(-1, sequence.tokens[last - 1]) if last else -1  # -1 also after an image
            rows, is_remembered = partial(self.runner.logits, part), sequence.is_remembered
            outcome = Outcome(sequence, tokens, part.draft, path, rows, before, is_remembered)
            for drafter in looking:
                started_s = perf_counter()
                self._attempt(drafter, [part.sequence], partial(drafter.observe, outcome))
                took_s = perf_counter() - started_s
                self._observed_s += took_s
                own = [proposal for proposal in part.context.proposals if proposal.drafter == drafter.name]
                if own:
                    own[0].seconds += took_s
                else:
                    part.context.watched[drafter.name] = took_s

    def record(self, scheduled: list[Scheduled], took_s: float) -> None:
        """Report the time and the result of a step to the policies; steps that read prompts are not timed.

        The time that drafters needed to observe the step counts as drafting, not as a part of the pass. Does nothing if
        no drafter was ever used: the policies have nothing to decide then.
        """
        if not self._known:
            return
        started_s = perf_counter()
        took_s -= self._observed_s
        for pace, parts in self._by_pace(scheduled):
            verified = [
                Verified(part.context, part.draft, part.verdict.path, [choice.id for choice in part.verdict.choices])
                for part in parts
                if part.verdict is not None and (part.context.step or part.n_pending == 1)
            ]
            is_plain = len(verified) == len(scheduled) and all(part.n_pending == 1 for part in scheduled)
            pace.record(verified, took_s if is_plain else None)
        for part in scheduled:
            for drafter, cost in part.context.costs.items():
                part.sequence.stats.count_cost(drafter, cost)
        self._recorded_s = perf_counter() - started_s


def _n_sampled(part: Scheduled) -> int:
    """Return the number of draft tokens that were sampled from a distribution."""
    return sum(len(each.draft) for each in part.context.proposals if each.draft.is_sampled)


def check_draft(draft: Draft, drafter: str, budget: Budget, n_vocab: int) -> None:
    """Raise ValueError for a draft that cannot be decoded, or that names another drafter as its source."""
    if draft and (draft.source != drafter or draft.sources):
        raise ValueError(f"its draft has the source {draft.source!r}")
    if len(draft) > budget.tokens or any(not 0 <= token < n_vocab for token in draft.tokens):
        raise ValueError(f"it proposed {len(draft)} tokens for a budget of {budget.tokens}, or invalid token ids")
    if not all(-1 <= parent < node for node, parent in enumerate(draft.parents)):
        raise ValueError("in its tree a token comes before its parent")
    if len({len(draft), len(draft.parents), len(draft.confidence), len(draft.distributions)}) > 1:
        raise ValueError("its draft has parts of different lengths")
    if draft.n_leaves > budget.leaves:
        raise ValueError(f"its tree has more than {budget.leaves} leaves")
