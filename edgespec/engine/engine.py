"""Sequences and rounds: guess, decode everything in one target pass, verify, commit.

Between rounds the target's KV cache holds `tokens[:n_decoded]` of each sequence, and `n_decoded <= len(tokens) - 1`.
A round decodes `tokens[n_decoded:]` (at most a chunk of it) plus the draft; prompts, further turns and plain decoding
(the empty draft) are all this one path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from time import perf_counter

from edgespec.cancel import CancelFlag
from edgespec.core.choose import Choice, Chooser
from edgespec.core.draft import Draft
from edgespec.core.policy.pace import FixedPace, Pace, Plan, Turn
from edgespec.core.prefix import common_prefix
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import Verdict, VerifyRule, verify
from edgespec.drafters.base import Budget, Drafter
from edgespec.errors import GenerationError, UsageError
from edgespec.events import FinishReason
from edgespec.llama.context import Batch, CacheFullError, CancelledError, Context
from edgespec.llama.kernels import NARROW

logger = logging.getLogger("edgespec.engine.engine")

LEAST_SHARED = 16  # tokens of a prompt that are worth waiting for
WIDE = NARROW + 1  # tokens of a pass from which on an exact context reads prompts
LOOK_EVERY = 16  # rounds, for a drafter that rests


def kind_of(rule: VerifyRule, sampling: SamplingSettings, *, is_constrained: bool = False) -> str:
    """How tokens are chosen and judged, on which it depends how many guesses are accepted."""
    greedy, constrained = ", greedy" * (sampling.temperature == 0), ", constrained" * is_constrained
    return f"{rule}{greedy}{constrained}"


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making. `tokens` is prompt and answer; `n_decoded` of them are in the KV cache of `slot`.

    `rule` is how drafts are judged, `kind` that and how tokens are chosen, `off` names the drafters that failed,
    `finish` is set when the sequence is over, `error` where that is why. `shares` is another sequence and how many
    tokens of its prompt this one begins with and waits for.
    """

    slot: int
    tokens: list[int]
    chooser: Chooser
    max_tokens: int
    cancel: CancelFlag
    rule: VerifyRule = "coupled"
    kind: str = ""
    stats: Stats = field(default_factory=Stats)
    n_decoded: int = 0
    n_prompt: int = 0
    off: set[str] = field(default_factory=set)
    shares: tuple[Sequence, int] | None = None
    finish: FinishReason | None = None
    error: GenerationError | None = None
    started_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def remaining(self) -> int:
        """How many tokens may still be generated."""
        return self.n_prompt + self.max_tokens - len(self.tokens)

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.n_prompt]

    @property
    def is_reading(self) -> bool:
        """Whether some of the prompt is still to be decoded."""
        return len(self.tokens) == self.n_prompt

    @property
    def round(self) -> int:
        return self.stats.rounds

    @property
    def is_settled(self) -> bool:
        """Whether the text does not depend on what is guessed."""
        return self.rule == "coupled" or self.chooser.settings.temperature == 0

    @property
    def draws(self) -> bool:
        """Whether guesses are to be drawn from a law; a law of one token has nothing to draw."""
        return self.rule in ("rejection", "block") and self.chooser.settings.temperature > 0


@dataclass(frozen=True, slots=True)
class Emission:
    """What one round gave one sequence: its next tokens, and who guessed the first of them."""

    sequence: Sequence
    choices: list[Choice]
    sources: list[str]


@dataclass(slots=True)
class _Part:
    """A sequence's share of a batch: its next `n_pending` committed tokens, then the draft, from entry `start` on.

    `ids` are the sequence ids of each drafted token: one for each leaf below it, the slot for the first leaf and
    `branches` for the others. `awake` names the drafters that the pace thinks about, `plans` are those of who guessed,
    by name, `value` is what the draft is worth, `whole` what it was chosen from.
    """

    sequence: Sequence
    n_pending: int
    draft: Draft = field(default_factory=Draft.empty)
    whole: Draft = field(default_factory=Draft.empty)
    awake: Collection[str] = ()
    plans: dict[str, Plan] = field(default_factory=dict)
    value: float = 0.0
    start: int = 0
    branches: list[int] = field(default_factory=list)
    ids: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.sequence.n_decoded + self.n_pending == len(self.sequence.tokens)

    def take(self, plan: Plan, guessed: Draft, leaves: int) -> None:
        """Verify what is worth most: what a drafter has guessed, what others have, or some of both."""
        settled = plan.settle(guessed)
        if not guessed:
            return
        self.plans[guessed.source] = plan
        if settled and plan.value > self.value:
            self.draft, self.value = settled, plan.value
        if self.whole and leaves > 1 and not self.sequence.draws:
            guessed = self.whole.merged(guessed).within(leaves)
            both, value = plan.merge(guessed)
            if value > self.value:
                self.draft, self.value = both, value
        self.whole = guessed

    def shorten(self, n: int) -> None:
        """Verify no more than the first `n` tokens; what was drafted in vain is for the pace to know."""
        if len(self.draft) > n:
            plan, self.draft = self.plans[self.draft.source], self.draft.first(n)
            plan.shorten(self.draft)
            if not n:
                self.drop()

    def drop(self) -> None:
        """Verify nothing."""
        self.draft, self.plans = Draft.empty(), {}

    def judge(self, path: list[int]) -> None:
        """Tell the drafters' plans how much of what each had guessed was accepted."""
        by_source: dict[str, list[int]] = {}
        for node in range(len(self.draft)):
            by_source.setdefault(self.draft.source_of(node), []).append(node)
        for name, nodes in by_source.items():
            if name in self.plans:
                if self.draft.sources:
                    self.plans[name].share(self.draft, nodes)
                self.plans[name].judged(len({*nodes} & {*path}))
                self.sequence.stats.count_cost(name, self.plans[name].wider)


class Engine:
    """Rounds over as many sequences as the target's context holds.

    Drafters are asked in turn, and `pace` says which and for how much; without one every draft is as long as it may be.
    `draft_n_max` is the most tokens of a draft, `tree_width` the most leaves. Passes are padded to `least_width`
    tokens, those that verify drafts have at most `most_rows`. In an exact context a token's logits depend on its own
    sequence alone: what is generated never shares a pass with prompts, and these none with each other.
    """

    def __init__(
        self,
        context: Context,
        *,
        drafters: Iterable[Drafter] = (),
        draft_n_max: int = 0,
        pace: Pace | None = None,
        tree_width: int = 1,
        least_width: int = 1,
        most_rows: int | None = None,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        self.context, self.drafters, self.warn = context, list(drafters), warn
        self.draft_n_max, self.tree_width = draft_n_max, tree_width
        self.pace = pace or FixedPace(draft_n_max)
        self.least_width, self.most_rows = least_width, min(most_rows or context.n_batch, context.n_batch)
        self._free = list(range(context.sequences))
        self.active: list[Sequence] = []

    @property
    def has_room(self) -> bool:
        """Whether another sequence can be started."""
        return bool(self._free)

    def start(
        self,
        tokens: list[int],
        chooser: Chooser,
        max_tokens: int,
        cancel: CancelFlag,
        *,
        rule: VerifyRule = "coupled",
        n_decoded: int = 0,
    ) -> Sequence:
        """Admit a prompt of at least one token. `n_decoded` tokens of it are in the cache of the free slot already."""
        room = self.context.n_ctx - len(tokens)
        kind = kind_of(rule, chooser.settings, is_constrained=chooser.constraint is not None)
        sequence = Sequence(self._free.pop(0), list(tokens), chooser, min(max_tokens, room), cancel, rule, kind)
        sequence.n_prompt = len(tokens)
        self._keep(sequence, min(n_decoded, len(tokens) - 1))
        sequence.shares = self._sharing(sequence)
        sequence.stats.prompt_tokens, sequence.stats.cached_tokens = len(tokens), sequence.n_decoded
        sequence.started_s = sequence.first_token_s = perf_counter()
        if sequence.max_tokens <= 0:
            sequence.finish = "length"
        self.active.append(sequence)
        return sequence

    def end(self, sequence: Sequence) -> None:
        """Give the slot back. The target's cache of it stays until the slot is used again."""
        if self.context.exact and sequence.finish in ("stop", "length"):
            self._catch_up(sequence)
        self.active.remove(sequence)
        self._free.insert(0, sequence.slot)

    def round(self) -> list[Emission]:
        """One target pass for all unfinished sequences. Raises GenerationError when the native library fails."""
        for sequence in self.active:
            if sequence.cancel.is_set() and sequence.finish is None:
                sequence.finish = "cancelled"
        sequences = [sequence for sequence in self.active if sequence.finish is None and not self._waits(sequence)]
        if not sequences:
            return []
        parts = self._share_out(sequences)
        try:
            self._propose(parts)
            started_s = perf_counter()
            self._decode(parts)
            verdicts = [(part, self._verify(part)) for part in parts if part.is_complete]
            emissions = [self._commit(part, verdict) for part, verdict in verdicts if verdict is not None]
            self._observe(parts, emissions, perf_counter() - started_s)
            return emissions
        except CancelledError:
            self._cancel(sequences)
        except CacheFullError:
            for sequence in sequences:
                sequence.finish = "length"
        finally:
            for part in parts:
                self.context.release(part.branches)
        return []

    def _catch_up(self, sequence: Sequence) -> None:
        """Decode what a finished answer has taken over from a second branch: in a next prompt, with which it would be
        read, it might come in a wide pass."""
        start, end = sequence.n_decoded, len(sequence.tokens) - 1
        if sequence.n_prompt <= start < end:
            tokens, ids = sequence.tokens[start:end], [(sequence.slot,)] * (end - start)
            try:
                self.context.decode(tokens, range(start, end), ids, [False] * (end - start - 1) + [True])
                sequence.n_decoded = end
            except (CancelledError, CacheFullError, GenerationError):  # the answer itself is whole
                self._keep(sequence, start)

    # --- prompts --------------------------------------------------------------------------------------------------

    def _sharing(self, sequence: Sequence) -> tuple[Sequence, int] | None:
        """The unfinished one of the sequences before it that begins with the same tokens, as a sample of one prompt."""
        if not self.context.model.can_roll_back:
            return None
        before = self.active[: self.active.index(sequence)] if sequence in self.active else self.active
        going_on = [other for other in before if other.finish is None]
        lengths = (
            (other, self.reusable(common_prefix(other.prompt, sequence.prompt), other.n_prompt, sequence.n_prompt))
            for other in going_on
        )
        other, length = max(lengths, key=lambda pair: pair[1], default=(sequence, 0))
        return (other, length) if length >= max(LEAST_SHARED, sequence.n_decoded + 1) else None

    def _waits(self, sequence: Sequence) -> bool:
        """Whether a prompt is still to be decoded by the sequence that shares it; takes it over once it is there."""
        if sequence.shares is None:
            return False
        other, length = sequence.shares
        if other.finish is None and other.n_decoded < length:
            return True
        if other.n_decoded < length:  # it ended too soon: perhaps another one has the same prompt
            sequence.shares = self._sharing(sequence)
            return sequence.shares is not None
        sequence.shares = None
        if other in self.active:
            self.context.forget(sequence.slot)
            self.context.copy(other.slot, sequence.slot, 0, length)
            sequence.n_decoded = sequence.stats.cached_tokens = length
        return False

    def _share_out(self, sequences: list[Sequence]) -> list[_Part]:
        """What of each sequence goes into the next batch: those with little to decode first, long prompts fill up."""
        sequences = sorted(sequences, key=lambda s: len(s.tokens) - s.n_decoded)
        room = self.context.n_batch
        if self.context.exact and len(sequences) > 1:
            reading = [sequence for sequence in sequences if sequence.is_reading]
            sequences, room = (reading[:1], room) if reading else (sequences, self.most_rows)
        parts = []
        for sequence in sequences:
            n_left = len(sequence.tokens) - sequence.n_decoded
            n_pending = min(room, n_left)
            if self.context.exact and sequence.is_reading and 0 < n_left - n_pending < WIDE:
                n_pending = n_left - WIDE  # so that the end of the prompt is read as the rest of it
            if n_pending:
                parts.append(_Part(sequence, n_pending))
                room -= n_pending
        return parts

    def reusable(self, n_shared: int, n_other: int, n_prompt: int) -> int:
        """How many of the first `n_shared` tokens of a prompt need not be decoded again where another prompt was that
        begins with them; `n_other` and `n_prompt` are their lengths.

        In an exact context they have to be the same bits: prompts are read in wide passes, with kernels that agree
        among themselves, or in a narrow one if they are short.
        """
        if not self.context.exact:
            return min(n_shared, n_prompt - 1)
        if (n_prompt < WIDE) != (n_other < WIDE):
            return 0
        return min(n_shared, n_prompt - (WIDE if n_prompt >= WIDE else 1))

    # --- propose --------------------------------------------------------------------------------------------------

    def _propose(self, parts: list[_Part]) -> None:
        """Give each part the best draft that the pace wants and that fits into the batch."""
        for part in parts:
            names = [drafter.name for drafter in self.drafters if drafter.can_guess(part.sequence)]
            part.awake = self.pace.awake(part.sequence.kind, names)
        wanting = [part for part in parts if part.awake and self._room(part) > 0]
        for drafter in self.drafters if wanting else ():
            plans = [
                (part, plan)
                for part in wanting
                if drafter.name in part.awake
                and drafter.name not in part.sequence.off
                and (plan := self._plan(drafter, part, parts)) is not None
            ]
            if plans:
                self._ask(drafter, plans, parts)
        if len(parts) > 1:
            self._share_width(parts)
        if self.context.streams or (not self.context.model.can_roll_back and len(parts) > 2):
            # Streams of different lengths take passes of their own, and recurrent memories cannot be set back then.
            least = min(len(part.draft) if part.n_pending == 1 else 0 for part in parts)
            for part in parts:
                part.shorten(least)

    def _share_width(self, parts: list[_Part]) -> None:
        """Cut drafts to what pays in this pass: what a token of one costs depends on the others."""
        guessing = [part for part in parts if part.draft]
        if not guessing:
            return
        offers = [(part.plans[part.draft.source], part.draft) for part in guessing]
        width, depth = sum(part.n_pending for part in parts), parts[0].sequence.n_decoded
        room = min(self.most_rows - width, self.context.max_outputs - len(parts))
        for part, draft in zip(guessing, self.pace.share_width(offers, width, depth, room), strict=True):
            part.draft = draft
            if not draft:
                part.drop()

    def _room(self, part: _Part) -> int:
        """How many tokens can be guessed now: none while the prompt is decoded, else what has room."""
        sequence = part.sequence
        if (sequence.is_reading and part.n_pending > 1) or not part.is_complete:
            return 0
        room = self.context.n_ctx - len(sequence.tokens)
        return min(self.draft_n_max, self.most_rows - 1, sequence.remaining - 1, room)

    def _plan(self, drafter: Drafter, part: _Part, parts: list[_Part]) -> Plan | None:
        sequence = part.sequence
        turn = Turn(
            sequence.kind,
            drafter.name,
            self._room(part),
            remaining=sequence.remaining,
            depth=sequence.n_decoded,
            sequences=len(parts),
            lag=lambda: drafter.lag(sequence),
            drawn=sequence.draws,
            settled=sequence.is_settled,
            best=part.value,
            leaves=self._leaves(part, len(parts)),
            round=sequence.round,
        )
        try:
            return self.pace.plan(turn)
        except Exception as error:
            self._switch_off(drafter, [part], error)
            return None

    def _ask(self, drafter: Drafter, plans: list[tuple[_Part, Plan]], parts: list[_Part]) -> None:
        """Let one drafter guess; whatever it does, the answers go on without it."""
        started_s, passes = perf_counter(), drafter.passes
        asked = [part for part, _ in plans]
        n_vocab = self.context.model.n_vocab
        took_s = 0.0
        try:
            budgets = self._budgets(plans, parts)
            drafts = drafter.propose([part.sequence for part in asked], budgets)
            took_s = (perf_counter() - started_s) / len(plans)
            for (part, plan), draft, budget in zip(plans, drafts, budgets, strict=True):
                try:
                    check_draft(draft, budget, n_vocab)
                except ValueError as error:
                    self._switch_off(drafter, [part], error)
                    continue
                plan.spent(drafter.passes - passes, took_s)
                part.take(plan, draft, budget.leaves)
        except CancelledError:
            raise
        except Exception as error:
            self._switch_off(drafter, asked, error)
        took_s = took_s or (perf_counter() - started_s) / len(plans)
        for part, plan in plans:
            part.sequence.stats.count_guess(drafter.name, took_s, plan.price(took_s))

    def _budgets(self, plans: list[tuple[_Part, Plan]], parts: list[_Part]) -> list[Budget]:
        drafted = sum(len(part.draft) for part in parts)
        room = self.most_rows - sum(part.n_pending for part in parts) - drafted
        # What was drawn is verified as a whole, or else what it is would tell whether it is.
        drawn_room = min(room, max(0, self.context.max_outputs - len(parts) - drafted))
        return [
            Budget(
                min(plan.tokens, (drawn_room if part.sequence.draws else room) // len(plans)),
                self._leaves(part, len(plans)),
                worth=plan.worth,
            )
            for part, plan in plans
        ]

    def _leaves(self, part: _Part, n_parts: int) -> int:
        """How many leaves a draft may have; block verification checks chains."""
        return 1 if part.sequence.rule == "block" else min(self.tree_width, 1 + self.context.free_branches // n_parts)

    def _switch_off(self, drafter: Drafter, parts: list[_Part], error: Exception) -> None:
        logger.debug("drafter failed", exc_info=error)
        self.warn(f"drafter {drafter.name} failed and is off for this answer ({error!r})")
        for part in parts:
            part.sequence.off.add(drafter.name)

    # --- decode ---------------------------------------------------------------------------------------------------

    def _decode(self, parts: list[_Part]) -> None:
        """One target pass over all parts. Raises CacheFullError when not even their committed tokens have room."""
        batch = Batch.empty()
        for part in parts:
            part.start = batch.size
            self._add(part, batch)
        if batch.size < self.least_width:
            pad, last = self.least_width - batch.size, batch.tokens[-1]
            for position in range(batch.positions[-1] + 1, batch.positions[-1] + 1 + pad):
                batch.add([last], position, batch.sequence_ids[-1], wanted=batch.wanted[-1])
        started_s = perf_counter()
        try:
            self.context.decode(*batch)
        except CacheFullError:
            if not any(part.draft for part in parts):
                raise
            for part in parts:
                self.context.release(part.branches)
                part.drop()
                part.branches = []
            self._decode(parts)
            return
        for part in parts:
            sequence = part.sequence
            if not sequence.is_reading:
                sequence.stats.target_s += (perf_counter() - started_s) / len(parts)
            if not part.is_complete:
                sequence.n_decoded += part.n_pending

    def _add(self, part: _Part, batch: Batch) -> None:
        """A part's committed tokens and its draft, each drafted token in the sequences of all leaves below it."""
        sequence, draft = part.sequence, part.draft
        leaves = draft.leaves()
        while len(part.branches) < draft.n_leaves - 1:
            part.branches.append(self.context.fork(sequence.slot, sequence.n_decoded))
        ids = [sequence.slot, *part.branches]
        part.ids = [tuple(ids[leaf] for leaf in below) for below in leaves]
        pending = sequence.tokens[sequence.n_decoded : sequence.n_decoded + part.n_pending]
        batch.add(pending, sequence.n_decoded, tuple(ids), wanted=part.is_complete)
        for token, depth, owners in zip(draft.tokens, draft.depths(), part.ids, strict=True):
            batch.add([token], sequence.n_decoded + part.n_pending + depth, owners, wanted=True)

    # --- verify and commit ----------------------------------------------------------------------------------------

    def _verify(self, part: _Part) -> Verdict | None:
        """What of a draft stays; None where nothing can be chosen, which ends this sequence and no other."""
        sequence = part.sequence
        last = part.start + part.n_pending - 1
        try:
            return verify(
                sequence.rule,
                part.draft,
                lambda node: self.context.logits(last + 1 + node),
                sequence.chooser,
                sequence.tokens,
                self.context.model.is_end,
                sequence.round,
            )
        except UsageError as error:  # a grammar that nobody could tell from a good one
            sequence.error = GenerationError(error.what, why=error.why)
        except ValueError as error:  # a row of NaN: broken weights, or a kernel that overflowed
            sequence.error = GenerationError("cannot sample a token", why=str(error))
        sequence.finish = "error"
        self._keep(sequence, 0)
        return None

    def _commit(self, part: _Part, verdict: Verdict) -> Emission:
        sequence, stats, now_s = part.sequence, part.sequence.stats, perf_counter()
        if sequence.is_reading:
            stats.prompt_s = now_s - sequence.started_s
            sequence.first_token_s = now_s
        first = len(sequence.tokens)
        sequence.tokens += [choice.id for choice in verdict.choices]
        self._show(part, verdict.path)
        self._keep(sequence, self._adopt(part, verdict.path, first))
        stats.count_round(part.draft, verdict.path, len(verdict.choices))
        part.judge(verdict.path)
        known = [choice.near_tie for choice in verdict.choices if choice.near_tie is not None]
        if known:
            stats.near_ties = (stats.near_ties or 0) + sum(known)
        stats.generation_s = perf_counter() - sequence.first_token_s
        if self.context.model.is_end(verdict.choices[-1].id):
            sequence.finish = "stop"
        elif sequence.remaining <= 0:
            sequence.finish = "length"
        return Emission(sequence, verdict.choices, [part.draft.source_of(node) for node in verdict.path])

    def _show(self, part: _Part, path: list[int]) -> None:
        """Let drafters look at the rows of the last token and of what was accepted; now and then if they rest."""
        looking = [
            drafter
            for drafter in self.drafters
            if drafter.looks and (drafter.name in part.awake or part.sequence.round % LOOK_EVERY == 0)
        ]
        if not looking:
            return
        last = part.start + part.n_pending - 1
        tokens = [
            part.sequence.tokens[part.sequence.n_decoded + part.n_pending - 1],
            *(part.draft.tokens[node] for node in path),
        ]
        for token, row in zip(tokens, [last, *(last + 1 + node for node in path)], strict=True):
            logits = self.context.logits(row)
            for drafter in looking:
                drafter.see(token, logits)

    def _observe(self, parts: list[_Part], emissions: list[Emission], took_s: float) -> None:
        """Tell the pace what a round took and brought; what prompts take is none of its business."""
        if len(emissions) < len(parts) or any(part.n_pending > 1 for part in parts):
            return
        width = max(self.least_width, sum(1 + len(part.draft) for part in parts))
        self.pace.observe_pass(width, took_s, parts[0].sequence.n_decoded)
        for part, emission in zip(parts, emissions, strict=True):
            emitted = [choice.id for choice in emission.choices]
            self.pace.observe_round(part.sequence.kind, emitted, width, part.sequence.n_decoded, len(parts))

    def _adopt(self, part: _Part, path: list[int], first: int) -> int:
        """How much of the sequence is in its slot now that `path`, which begins at position `first`, was accepted.

        What lies on another branch is taken over; but in an exact context it is decoded again beside the next draft:
        its cells lie behind those of the first branch, and the order of cells is the order of sums.
        """
        slot, length = part.sequence.slot, len(part.sequence.tokens) - 1
        astray = next((depth for depth, node in enumerate(path) if slot not in part.ids[node]), None)
        if astray is None:
            return length
        if self.context.exact:
            return first + astray
        self.context.adopt(slot, part.ids[path[-1]][0], first + astray, first + len(path))
        return length

    def _cancel(self, sequences: list[Sequence]) -> None:
        """After an aborted decode: back to what is known to be in the cache, and say who asked to stop."""
        for sequence in sequences:
            self._keep(sequence, sequence.n_decoded)
            if sequence.cancel.is_set():
                sequence.finish = "cancelled"

    def _keep(self, sequence: Sequence, length: int) -> None:
        """Cut the slot's cache to `length` tokens, or to none when this memory cannot be cut."""
        if self.context.truncate(sequence.slot, length):
            sequence.n_decoded = length
        else:
            self.context.forget(sequence.slot)
            sequence.n_decoded = 0


def check_draft(draft: Draft, budget: Budget, n_vocab: int) -> None:
    """Raises ValueError for a draft that cannot be decoded."""
    if len(draft) > budget.tokens or any(not 0 <= token < n_vocab for token in draft.tokens):
        raise ValueError(f"it proposed {len(draft)} tokens for a budget of {budget.tokens}, or invalid token ids")
    if not all(-1 <= parent < node for node, parent in enumerate(draft.parents)):
        raise ValueError("in its tree a token comes before its parent")
    if len({len(draft), len(draft.parents), len(draft.confidence), len(draft.laws)}) > 1:
        raise ValueError("its draft has parts of different lengths")
    if draft.n_leaves > budget.leaves:
        raise ValueError(f"its tree has more than {budget.leaves} leaves")
