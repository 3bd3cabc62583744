"""A sequence: one running answer, and its share of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.core.draft import Draft
from edgespec.core.policy.policy import DraftPolicy, ProposalContext
from edgespec.core.sampler import SampledToken, Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyResult, VerifyRule
from edgespec.drafters.base import Drafter
from edgespec.errors import EdgespecError
from edgespec.events import FinishReason
from edgespec.llama.adapters import AdapterSet
from edgespec.llama.projector import Cells

NO_SLOT = -1

Reuse = Literal["nothing", "running", "all"]
"""The cached tokens that a prompt may use: none, those of running sequences, or all."""

State = NDArray[np.uint8]
"""The memory of a sequence, as `Context.save` returns it."""


def mode_of(
    rule: VerifyRule, sampling: SamplingSettings, *, is_constrained: bool = False, adapters: AdapterSet = ()
) -> str:
    """Return the mode of verification and sampling; acceptance rates are measured separately for each mode."""
    greedy, constrained = ", greedy" * (sampling.temperature == 0), ", constrained" * is_constrained
    lora = f", lora {'+'.join(str(number) for number, _ in adapters)}" if adapters else ""
    return f"{rule}{greedy}{constrained}{lora}"


@dataclass(frozen=True, slots=True)
class Drafting:
    """The drafters of a sequence, the maximum length of its drafts, and the draft-length policy."""

    drafters: tuple[Drafter, ...]
    n_max: int
    pace: DraftPolicy


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its answer."""

    #: The tokens of the prompt and of the answer so far.
    tokens: list[int]
    sampler: Sampler
    max_tokens: int
    cancel: CancelFlag
    #: The rule by which drafts are verified.
    rule: VerifyRule = "coupled"
    #: The cached tokens that the prompt may use.
    reuse: Reuse = "running"
    #: Overrides the engine's drafters and policy for this sequence; None: the engine's.
    drafting: Drafting | None = None
    #: The images of the prompt, by the positions where they begin.
    images: Mapping[int, Cells] = field(default_factory=dict)
    #: The LoRA adapters of the target for this sequence.
    adapters: AdapterSet = ()
    #: The number of alternatives to report with the log probability of each token of the prompt; None: report none.
    prompt_logprobs: int | None = None
    #: The number of tokens of the prompt that were reported.
    n_scored: int = 0
    #: False if nothing of the answer may be saved.
    is_remembered: bool = True
    #: The slot of the KV cache; NO_SLOT while the sequence waits for one.
    slot: int = NO_SLOT
    stats: Stats = field(default_factory=Stats)
    #: The number of `tokens` that are in the KV cache.
    n_decoded: int = 0
    n_prompt: int = 0
    #: The names of drafters that failed and are off for this answer.
    off: set[str] = field(default_factory=set)
    #: Another sequence that reads the same prompt, and the number of tokens for which this sequence waits.
    shares: tuple[Sequence, int] | None = None
    #: Positions in the prompt where a pass must end, because a checkpoint is made there.
    stops: list[int] = field(default_factory=list)
    #: Set when the sequence is finished.
    finish: FinishReason | None = None
    #: The error that finished the sequence.
    error: EdgespecError | None = None
    #: Tokens that end this sequence, in addition to the model's end tokens.
    ends: frozenset[int] = frozenset()
    started_s: float = 0.0
    first_token_s: float = 0.0
    #: The mode of verification and sampling (`mode_of`). Rule and sampler must not change later.
    mode: str = field(init=False)

    def __post_init__(self) -> None:
        constraint = self.sampler.constraint
        is_constrained = constraint is not None and constraint.is_narrow
        settings = self.sampler.settings
        self.mode = mode_of(self.rule, settings, is_constrained=is_constrained, adapters=self.adapters)

    @property
    def remaining(self) -> int:
        """The number of tokens that may still be generated."""
        return self.n_prompt + self.max_tokens - len(self.tokens)

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.n_prompt]

    @property
    def is_prefill(self) -> bool:
        """True until the whole prompt is decoded."""
        return len(self.tokens) == self.n_prompt

    @property
    def is_scoring(self) -> bool:
        """True while the prompt is read for the log probabilities of its tokens."""
        return self.prompt_logprobs is not None and self.n_scored < self.n_prompt

    @property
    def is_at_image(self) -> bool:
        """True if the next token to decode is the first of an image."""
        return self.n_decoded in self.images

    def part_at(self, position: int) -> tuple[int, int]:
        """Return the start and the end of the part of the prompt at this position: an image, or text between images."""
        if not self.images:
            return 0, len(self.tokens)
        bounds = {0, len(self.tokens)} | {at for start, image in self.images.items() for at in (start, start + image.n)}
        return max(at for at in bounds if at <= position), min(at for at in bounds if at > position)

    @property
    def round(self) -> int:
        return self.stats.rounds

    @property
    def is_draft_invariant(self) -> bool:
        """True if the text does not depend on the drafts."""
        return self.rule == "coupled" or self.sampler.settings.temperature == 0

    @property
    def draws(self) -> bool:
        """True if drafters must sample from their distributions; greedy decoding has nothing to sample."""
        return self.rule in ("rejection", "block") and self.sampler.settings.temperature > 0


@dataclass(slots=True)
class Scheduled:
    """A sequence's share of a forward pass: its next `n_pending` committed tokens, then the draft."""

    sequence: Sequence
    n_pending: int
    #: True if the last committed token is in this pass, so that the next token can be chosen after it.
    is_complete: bool
    draft: Draft = field(default_factory=Draft.empty)
    #: The facts on which the draft-length policy decides, and all proposals.
    context: ProposalContext = field(init=False, repr=False)
    #: The names of drafters that the policy has switched off for now.
    backed_off: set[str] = field(default_factory=set)
    #: The result of verifying the draft.
    verdict: VerifyResult | None = None
    #: The batch entry of the first pending token.
    start: int = 0
    #: The sequence ids of all leaves of the draft but the first one, which has the id of the slot.
    branches: list[int] = field(default_factory=list)
    #: For each draft token, the sequence ids of the leaves below it.
    ids: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def image(self) -> Cells | None:
        """The image that the pending tokens are; None if they are text."""
        return self.sequence.images.get(self.sequence.n_decoded)

    def entry(self, node: int) -> int:
        """Return the batch entry of a node of the draft; -1 is the last committed token."""
        return self.start + self.n_pending + node


class StepOutput(NamedTuple):
    """The result of a step for one sequence: its next tokens, and the drafters of those that were drafted. Or tokens of
    the prompt, with what the model predicted there."""

    sequence: Sequence
    choices: list[SampledToken]
    sources: Seq[str] = ()
    is_prompt: bool = False
