"""Check if one model can draft for another, from the headers of both files, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import Literal

from edgespec.drafters.translation import LEAST_OVERLAP
from edgespec.gguf_file.head_check import head_mismatch, is_head
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import NO_DRAFTS, NO_TARGETS
from edgespec.models.pair.sizes import RelativeSize, relative_size
from edgespec.models.pair.vocabulary import Vocabulary
from edgespec.text.figures import percent

Compatibility = Literal["works", "shared", "no"]

MAX_PADDING = 128  # largest difference in vocabulary size within a family, as in llama.cpp
CHAT_TEMPLATE = "tokenizer.chat_template"


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
    def summary(self) -> str:
        """The compatibility in a few words."""
        if self.verdict == "works":
            return "works"
        if self.verdict == "shared":
            return overlap_of(self.overlap)
        return f"no: {overlap_of(self.overlap) if self.overlap < LEAST_OVERLAP else self.reasons[0]}"


def check_pair(target: Header, draft: Header, vocabulary: Vocabulary | None = None) -> PairVerdict:
    """Check if `draft` can draft for `target`, both from `check_model`. Takes a moment for large vocabularies.

    `vocabulary` is the target's, if it was read before. Raises ModelFileError if the files can no longer be read.
    """
    ours = vocabulary or Vocabulary.of(target)
    theirs = _vocabulary_of(draft, ours)
    return _verdict(target, draft, ours, theirs, differing_ids(ours, theirs))


def _vocabulary_of(draft: Header, target: Vocabulary) -> Vocabulary:
    """Return the draft's vocabulary. A head without texts has the tokens of the target that it was made for."""
    return target if is_head(draft) and not draft.n_vocab else Vocabulary.of(draft)


def _verdict(target: Header, draft: Header, ours: Vocabulary, theirs: Vocabulary, differing: list[int]) -> PairVerdict:
    obstacles = [
        f"the state of a {header.architecture} model cannot be rolled back"
        for header, unable in ((target, NO_TARGETS), (draft, NO_DRAFTS))
        if header.architecture in unable
    ]
    if is_head(draft) and (mismatch := head_mismatch(target, draft)):
        obstacles.append(mismatch)
    differences = vocabulary_differences(ours, theirs, differing)
    overlap = shared_tokens(ours, theirs) if differences else 1.0
    verdict: Compatibility = "shared" if differences else "works"
    if obstacles or overlap < LEAST_OVERLAP:
        verdict = "no"
    return PairVerdict(
        verdict,
        reasons=obstacles + differences,
        overlap=overlap,
        size=relative_size(target, draft),
    )


def vocabulary_differences(target: Vocabulary, draft: Vocabulary, differing: list[int]) -> list[str]:
    """Return why the token ids of draft and target differ in meaning, given `differing_ids`; empty if they agree."""
    both = (target, draft)
    first = differing[0] if differing else None
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


def differing_ids(target: Vocabulary, draft: Vocabulary) -> list[int]:
    """Return the common ids with different texts."""
    n = min(len(target.texts), len(draft.texts))
    if target.texts[:n] == draft.texts[:n]:  # the usual case, and much faster
        return []
    return list(compress(range(n), map(ne, target.texts, draft.texts)))


def vocabulary_difference(target: Header, draft: Header) -> str:
    """Return why the token ids of two files differ in meaning, as one text; empty if they agree."""
    ours = Vocabulary.of(target)
    theirs = _vocabulary_of(draft, ours)
    return "; ".join(vocabulary_differences(ours, theirs, differing_ids(ours, theirs)))


def overlap_of(share: float) -> str:
    """Say which share of the target's tokens the draft has, too."""
    return f"vocabulary overlap {percent(share)}"


def shared_tokens(target: Vocabulary, draft: Vocabulary) -> float:
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


def pair_notes(target: Header, draft: Header) -> Iterator[str]:
    """Yield differences that are no obstacles."""
    ours, theirs = (header.metadata.get(CHAT_TEMPLATE) for header in (target, draft))
    if not ours:
        yield "the target has no chat template: prompts are completed verbatim (--raw)"
    if is_head(draft):
        return  # it reads the target's states, so that templates do not matter
    if ours and not theirs:
        yield "the draft has no chat template: it sees the target's, which may be new to it"
    elif ours and ours != theirs:
        yield "their chat templates differ: the draft sees the target's"
    n_ctx, n_ctx_draft = (header.number("context_length") for header in (target, draft))
    if n_ctx_draft < n_ctx:
        yield f"the draft was trained for {n_ctx_draft:,} tokens of context: beyond that its drafts may be worse"
