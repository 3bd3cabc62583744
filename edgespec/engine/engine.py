"""The engine's step for all sequences: schedule, propose, run, verify, commit, observe.

Between steps the target's KV cache holds `tokens[:n_decoded]` of each sequence, and `n_decoded <= len(tokens) - 1`. A
step decodes `tokens[n_decoded:]` (at most a chunk of it) and the draft. Prompts, later turns of a chat and plain
decoding (an empty draft) all take this path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter

from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import DraftPolicy
from edgespec.core.sampler import NothingAllowedError, SampledToken, Sampler, of_prompt
from edgespec.core.verify import VerifyResult, VerifyRule, verify
from edgespec.drafters.base import Drafter
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.sequence import NO_SLOT, Drafting, Reuse, Scheduled, Sequence, StepOutput
from edgespec.engine.slots import Slots
from edgespec.engine.speculator import Speculator, logger
from edgespec.engine.target_runner import TargetRunner
from edgespec.errors import GenerationError, UsageError
from edgespec.llama.adapters import AdapterSet
from edgespec.llama.context import CacheFullError, CancelledError, Context
from edgespec.llama.projector import Cells


class Engine:
    """Generates for as many sequences at once as the target's context has slots.

    `watch` is called with the flag that may abort the next pass, in native code too. `Slots`, `Scheduler`,
    `TargetRunner` and `Speculator` describe the other arguments.
    """

    def __init__(
        self,
        context: Context,
        *,
        drafters: Iterable[Drafter] = (),
        draft_n_max: int = 0,
        pace: DraftPolicy | None = None,
        tree_width: int = 1,
        least_width: int = 0,
        most_rows: int | None = None,
        cache_bytes: int = 0,
        warn: Callable[[str], None] = logger.warning,
        watch: Callable[[CancelFlag | None], None] = lambda flag: None,
    ) -> None:
        self.context, self.watch = context, watch
        self.slots = Slots(context, cache_bytes)
        self.scheduler = Scheduler(self.slots, min(most_rows or context.n_batch, context.n_batch))
        self.runner = TargetRunner(self.slots, least_width)
        self.speculator = Speculator(
            self.scheduler, self.runner, drafters, n_max=draft_n_max, pace=pace, tree_width=tree_width, warn=warn
        )

    def add(
        self,
        tokens: list[int],
        sampler: Sampler,
        max_tokens: int,
        cancel: CancelFlag,
        *,
        rule: VerifyRule = "coupled",
        reuse: Reuse = "running",
        drafting: Drafting | None = None,
        images: Mapping[int, Cells] | None = None,
        adapters: AdapterSet = (),
        prompt_logprobs: int | None = None,
    ) -> Sequence:
        """Add a prompt of at least one token, at any time between steps; it waits until a slot is free.

        `drafting` overrides the engine's drafters and policy for this answer. `images` are those of the prompt, by the
        positions where they begin. `adapters` are the LoRA adapters of the target for this answer. `prompt_logprobs`
        asks for the log probabilities of the prompt's tokens; `reuse` must be "nothing" then.
        """
        sequence = Sequence([*tokens], sampler, max_tokens, cancel, rule, reuse, drafting, images or {}, adapters)
        sequence.prompt_logprobs = prompt_logprobs
        self.scheduler.add(sequence)
        self._admit()
        return sequence

    def finish(self, sequence: Sequence) -> None:
        """Free the slot of a sequence, or its place in the queue."""
        if sequence.slot != NO_SLOT:
            self.speculator.end(sequence)
        self.scheduler.remove(sequence)

    def _admit(self) -> None:
        for sequence in self.scheduler.admit():
            self.speculator.begin(sequence)

    def step(self) -> list[StepOutput]:
        """Run one forward pass for all unfinished sequences. Raises GenerationError if the native library fails."""
        self._admit()
        scheduled = self.scheduler.schedule()
        if not scheduled:
            return []
        # A flag may abort the pass only if all sequences in reach share it. Memories that cannot be rolled back lose
        # their state in an aborted pass, so there all active sequences are in reach, not only those of this pass.
        in_reach = [part.sequence for part in scheduled] if self.context.model.can_roll_back else self.scheduler.active
        flags = {sequence.cancel for sequence in in_reach}
        self.watch(flags.pop() if len(flags) == 1 else None)
        try:
            self.speculator.propose(scheduled)
            started_s = perf_counter()
            with self.speculator.overlapped(scheduled):
                self.runner.run(scheduled)
            scores = [self._score(part) for part in scheduled if part.sequence.is_scoring]
            for part in scheduled:
                if not part.is_complete:
                    self.speculator.read(part, [])
                    self._end_reading(part.sequence)
            verdicts = [(part, self._verify(part)) for part in scheduled if part.is_complete]
            outputs = [self._commit(part, verdict) for part, verdict in verdicts if verdict is not None]
            took_s = perf_counter() - started_s
            if not scores:  # which take longer than a usual read
                self.scheduler.observe(took_s)
            self.speculator.record(scheduled, took_s)
            return scores + outputs
        except CancelledError:
            self._cancel(scheduled)
        except CacheFullError:
            for part in scheduled:
                part.sequence.finish = "length"
        finally:
            for part in scheduled:
                self.runner.release(part)
        return []

    def _score(self, part: Scheduled) -> StepOutput:
        """Return the log probabilities of the prompt's tokens that come after those of this pass; the first token of a
        prompt has none."""
        sequence = part.sequence
        start, wanted = sequence.n_decoded - part.n_pending, sequence.prompt_logprobs or 0
        choices = [] if start else [SampledToken(sequence.tokens[0])]
        try:
            for index, token in enumerate(sequence.prompt[start + 1 : sequence.n_decoded + 1]):
                choices.append(of_prompt(self.context.logits(part.start + index), token, wanted))
        except ValueError as error:
            sequence.error = _no_token(error)
            sequence.finish = "error"
        sequence.n_scored += len(choices)
        return StepOutput(sequence, choices, is_prompt=True)

    def _end_reading(self, sequence: Sequence) -> None:
        """Finish a sequence whose whole prompt is in the cache, and which may not generate; after the log probabilities
        of a prompt, decode its last token again for an answer."""
        n_prompt = len(sequence.tokens)
        if sequence.n_decoded < n_prompt:
            return
        if sequence.max_tokens > 0:
            self.slots.keep(sequence, n_prompt - 1)
        else:
            sequence.finish = sequence.finish or "length"
            sequence.stats.prompt_s = perf_counter() - sequence.started_s

    def _verify(self, part: Scheduled) -> VerifyResult | None:
        """Verify a draft. Returns None if no token can be chosen: this sequence ends with an error, the others
        continue."""
        sequence = part.sequence
        try:
            return verify(
                sequence.rule,
                part.draft,
                lambda node: self.runner.logits(part, node),
                sequence.sampler,
                sequence.tokens,
                partial(self._is_end, sequence),
                sequence.round,
            )
        except UsageError as error:  # a grammar that was found to be bad only here
            sequence.error = error
        except NothingAllowedError as error:
            sequence.error = UsageError(str(error), hint="allow some of them, or leave a constraint out")
        except ValueError as error:  # a row of NaN: broken weights, or a kernel that overflowed
            sequence.error = _no_token(error)
        sequence.finish = "error"
        self.slots.keep(sequence, 0)
        return None

    def _commit(self, part: Scheduled, verdict: VerifyResult) -> StepOutput:
        sequence, stats, now_s = part.sequence, part.sequence.stats, perf_counter()
        if sequence.is_prefill:
            stats.prompt_s = now_s - sequence.started_s
            sequence.first_token_s = now_s
        first = len(sequence.tokens)
        sequence.tokens += [choice.id for choice in verdict.choices]
        part.verdict = verdict
        self.speculator.read(part, verdict.path)
        self.speculator.observe(part, verdict.path)
        self.runner.commit(part, verdict.path, first)
        stats.count_round(part.draft, verdict.path, len(verdict.choices))
        stats.generation_s = perf_counter() - sequence.first_token_s
        if self._is_end(sequence, verdict.choices[-1].id):
            sequence.finish = "stop"
        elif sequence.remaining <= 0:
            sequence.finish = "length"
        return StepOutput(sequence, verdict.choices, [part.draft.source_of(node) for node in verdict.path])

    def _is_end(self, sequence: Sequence, token: int) -> bool:
        return token in sequence.ends or self.context.model.is_end(token)

    def _cancel(self, scheduled: list[Scheduled]) -> None:
        """After an aborted pass: cut the caches back to the tokens that are certain, and finish the cancelled
        sequences."""
        for part in scheduled:
            sequence = part.sequence
            self.slots.keep(sequence, sequence.n_decoded)
            if sequence.cancel.is_set():
                sequence.finish = "cancelled"


def _no_token(error: ValueError) -> GenerationError:
    return GenerationError("cannot sample a token", why=str(error))
