"""One answer in the making, and its share of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgespec.cancel import CancelFlag
from edgespec.core.draft import Draft
from edgespec.core.policy.policy import DraftPolicy, ProposalContext
from edgespec.core.sampler import Choice, Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyResult, VerifyRule
from edgespec.drafters.base import Drafter
from edgespec.engine.prefix import Prefix, Reuse
from edgespec.errors import EdgespecError
from edgespec.events import FinishReason

NO_SLOT = -1

Status = Literal["waiting", "prefill", "decoding", "finished"]


def kind_of(rule: VerifyRule, sampling: SamplingSettings, *, is_constrained: bool = False) -> str:
    """How tokens are chosen and judged, on which it depends how many guesses are accepted."""
    greedy, constrained = ", greedy" * (sampling.temperature == 0), ", constrained" * is_constrained
    return f"{rule}{greedy}{constrained}"


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts of at most `n_max` tokens are made: by these drafters, as `pace` says."""

    drafters: tuple[Drafter, ...]
    n_max: int
    pace: DraftPolicy


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making. `tokens` is prompt and answer; `n_decoded` of them are in the KV cache of `slot`, which
    is NO_SLOT until there is a free one.

    `rule` is how drafts are judged, `kind` that and how tokens are chosen, `reuse` what of the cache it may begin with,
    `drafting` where its drafts are made in another way than others', `off` names the drafters that failed, `finish` is
    set when the sequence is over, `error` where that is why. `shares` is a sequence that reads the same prompt, and
    what of it this one waits for. `stops` are the places in the prompt where a pass is to end for a checkpoint.
    """

    tokens: list[int]
    sampler: Sampler
    max_tokens: int
    cancel: CancelFlag
    rule: VerifyRule = "coupled"
    kind: str = ""
    reuse: Reuse = "running"
    drafting: Drafting | None = None
    slot: int = NO_SLOT
    stats: Stats = field(default_factory=Stats)
    n_decoded: int = 0
    n_prompt: int = 0
    off: set[str] = field(default_factory=set)
    shares: tuple[Sequence, Prefix] | None = None
    stops: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: EdgespecError | None = None
    ends: frozenset[int] = frozenset()  # tokens that end this sequence as the model's end tokens do
    started_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def status(self) -> Status:
        """Waiting for a slot or for a prompt that another sequence decodes, reading its own, generating, or over."""
        if self.finish is not None:
            return "finished"
        if self.slot == NO_SLOT or self.shares is not None:
            return "waiting"
        return "prefill" if self.is_prefill else "decoding"

    @property
    def remaining(self) -> int:
        """How many tokens may still be generated."""
        return self.n_prompt + self.max_tokens - len(self.tokens)

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.n_prompt]

    @property
    def is_prefill(self) -> bool:
        """Whether some of the prompt is still to be decoded."""
        return len(self.tokens) == self.n_prompt

    @property
    def round(self) -> int:
        return self.stats.rounds

    @property
    def is_draft_invariant(self) -> bool:
        """Whether the text does not depend on what is guessed."""
        return self.rule == "coupled" or self.sampler.settings.temperature == 0

    @property
    def draws(self) -> bool:
        """Whether guesses are to be drawn from a distribution; a distribution of one token has nothing to draw."""
        return self.rule in ("rejection", "block") and self.sampler.settings.temperature > 0


@dataclass(slots=True)
class Scheduled:
    """A sequence's share of a forward pass: its next `n_pending` committed tokens, then the draft, from batch entry
    `start` on. It `is_complete` if the last token is among them, behind which tokens can be chosen.

    `context` is what the policy knows of it, and all that was proposed; `backed_off` names the drafters that may not
    draft. `ids` are the sequence ids of each drafted token: one for each leaf below it, the slot for the first leaf and
    `branches` for the others. `verdict` is what became of the draft.
    """

    sequence: Sequence
    n_pending: int
    is_complete: bool
    draft: Draft = field(default_factory=Draft.empty)
    context: ProposalContext = field(init=False, repr=False)
    backed_off: set[str] = field(default_factory=set)
    verdict: VerifyResult | None = None
    start: int = 0
    branches: list[int] = field(default_factory=list)
    ids: list[tuple[int, ...]] = field(default_factory=list)

    def entry(self, node: int) -> int:
        """The batch entry of a node of the draft; -1 is the last committed token."""
        return self.start + self.n_pending + node


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step gave one sequence: its next tokens, and who drafted the first of them."""

    sequence: Sequence
    choices: list[Choice]
    sources: list[str]
