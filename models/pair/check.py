"""Check if one model can draft for another, and at what cost, from the headers of both files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import Literal

from edgespec.drafters.translation import LEAST_OVERLAP
from edgespec.gguf_file.head_check import NETWORKS, head_mismatch, is_head
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import NO_DRAFTS, NO_TARGETS
from edgespec.models.pair.vocabulary import Vocabulary
from edgespec.text.figures import percent

Compatibility = Literal["works", "shared", "no"]

MAX_PADDING = 128  # largest difference in vocabulary size within a family, as in llama.cpp
USUAL_RATIO = (5, 10)  # a draft this many times smaller than its target works best, as a rule of thumb
_F32 = 4


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The compatibility of a draft: it works, it works with the tokens that both have ("shared"), or it does not.

    Attributes:
        reasons: All obstacles and limits.
        overlap: The share of the target's tokens that the draft has, too.
        size: The relative size. A compatible draft may still slow its target down.
    """

    verdict: Compatibility
    reasons: list[str]
    overlap: float
    size: RelativeSize

    @property
    def why(self) -> str:
        """The first obstacle or limit in a few words; the overlap, if that is the obstacle."""
        is_too_little = self.verdict == "shared" or self.overlap < LEAST_OVERLAP
        return overlap_of(self.overlap) if is_too_little else "".join(self.reasons[:1])


def check_pair(target: Header, draft: Header, vocabulary: Vocabulary | None = None) -> PairVerdict:
    """Check if `draft` can draft for `target`, both from `check_model`. Takes a moment for large vocabularies.

    `vocabulary` is the target's, if it was read before. Raises ModelFileError if the files can no longer be read.
    """
    ours = vocabulary or Vocabulary.of(target)
    theirs = _vocabulary_of(draft, ours)
    obstacles = [
        f"the state of a {header.architecture} model cannot be rolled back"
        for header, unable in ((target, NO_TARGETS), (draft, NO_DRAFTS))
        if header.architecture in unable
    ]
    if is_head(draft) and (mismatch := head_mismatch(target, draft)):
        obstacles.append(mismatch)
    differences = _differences(ours, theirs)
    overlap = _overlap(ours, theirs) if differences else 1.0
    verdict: Compatibility = "shared" if differences else "works"
    if obstacles or overlap < LEAST_OVERLAP:
        verdict = "no"
    return PairVerdict(verdict, obstacles + differences, overlap, relative_size(target, draft))


def _vocabulary_of(draft: Header, target: Vocabulary) -> Vocabulary:
    """Return the draft's vocabulary. A head without texts has the tokens of the target that it was made for."""
    return target if is_head(draft) and not draft.n_vocab else Vocabulary.of(draft)


def _differences(target: Vocabulary, draft: Vocabulary) -> list[str]:
    """Return why the token ids of draft and target differ in meaning; empty if they agree."""
    both, first = (target, draft), None
    n = min(len(target.texts), len(draft.texts))
    if target.texts[:n] != draft.texts[:n]:  # first, since this is much faster
        first = next(compress(range(n), map(ne, target.texts, draft.texts)))
    same_kind = target.kind == draft.kind
    if same_kind and first is None and abs(len(target.texts) - len(draft.texts)) <= MAX_PADDING:
        starts = [f"BOS {vocabulary.bos}" if vocabulary.adds_bos else "no BOS" for vocabulary in both]
        differ = "they add different tokens at the start of a text ({} and {})"
        return [] if starts[0] == starts[1] else [differ.format(*starts)]
    kinds = [f"{vocabulary.kind} of {len(vocabulary.texts)} tokens" for vocabulary in both]
    reasons = ["their vocabularies differ: {} in the target, {} in the draft".format(*kinds)]
    if first is not None:
        texts = [shown(vocabulary.texts[first]) for vocabulary in both]
        reasons.append("token {} is {} in the target, {} in the draft".format(first, *texts))
    elif same_kind:
        reasons.append(f"they start alike, but one has more than {MAX_PADDING} additional tokens")
    return reasons


def vocabulary_difference(target: Header, draft: Header) -> str:
    """Return why the token ids of two files differ in meaning, as one text; empty if they agree."""
    ours = Vocabulary.of(target)
    return "; ".join(_differences(ours, _vocabulary_of(draft, ours)))


def overlap_of(share: float) -> str:
    """Say which share of the target's tokens the draft has, too."""
    return f"vocabulary overlap {percent(share)}"


def _overlap(target: Vocabulary, draft: Vocabulary) -> float:
    """Return the share of the target's tokens that the draft has, too, by their bytes (TLI, arXiv 2502.05202)."""
    theirs = {*draft.pieces()} - {b""}
    return sum(map(theirs.__contains__, target.pieces())) / max(1, len(target.texts))


def shown(text: bytes) -> str:
    """Return a token's text in quotes, safe for a terminal; as bytes if it is not text."""
    try:
        quoted = repr(text.decode("utf-8"))
    except UnicodeDecodeError:
        quoted = repr(text)
    return quoted if len(quoted) <= 40 else f"{quoted[:37]}..."


@dataclass(frozen=True, slots=True)
class RelativeSize:
    """A draft's size relative to its target's; `str()` compares it with the rule of thumb.

    `times_smaller` counts parameters; `cost_ratio` is the approximate cost of a draft token in passes of the target, by
    the weights that both read.
    """

    times_smaller: float
    cost_ratio: float

    @property
    def slows_down(self) -> bool:
        """True if the draft is larger, or as large without smaller weights: it costs more than it can gain."""
        return self.times_smaller < 1 or (self.times_smaller == 1 and self.cost_ratio >= 1)

    def __str__(self) -> str:
        if self.slows_down:
            relation = "larger than" if self.times_smaller < 1 else "as large as"
            return f"{relation} the target: it would slow decoding down"
        if self.times_smaller == 1:
            return (
                "as many parameters as the target, with smaller weights: a draft pass reads "
                f"{percent(self.cost_ratio)} as much"
            )
        low, high = USUAL_RATIO
        ratio = f"{self.times_smaller:.1f}" if self.times_smaller < high else f"{self.times_smaller:.0f}"
        if self.times_smaller < low:
            return f"only {ratio} times smaller than the target: {low} to {high} times is best"
        return f"{ratio} times smaller than the target"


def relative_size(target: Header, draft: Header) -> RelativeSize:
    """Return the size of `draft` relative to `target`; vocabularies are ignored."""
    return RelativeSize(target.n_params / max(1, draft.n_params), read_bytes(draft) / max(1, read_bytes(target)))


def read_bytes(header: Header) -> int:
    """Return the approximate bytes of the weights that a pass over one token reads.

    It reads only active experts, and hardly any of the embedding unless that is the output, too. Of a Hydra or Medusa
    head it reads one network, which numpy multiplies in F32.
    """
    if header.architecture in NETWORKS:
        networks = sum(math.prod(tensor.shape) for name, tensor in header.tensors.items() if name.startswith("head."))
        return _F32 * (header.n_params - networks + networks // header.number("block_count", 1))
    used, n_experts = header.number("expert_used_count"), header.number("expert_count")
    has_output = "output.weight" in header.tensors
    n_bytes = 0
    for name, tensor in header.tensors.items():
        if "_exps." in name and 0 < used < n_experts:
            n_bytes += tensor.size_bytes * used // n_experts
        elif name != "per_layer_token_embd.weight" and not (name == "token_embd.weight" and has_output):
            n_bytes += tensor.size_bytes
    return n_bytes
