"""Can one model draft for another? Told from the headers of both files, before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from edgespec.drafters.translation import LEAST_OVERLAP
from edgespec.figures import percent
from edgespec.header import Header
from edgespec.models.vocabulary import Vocabulary

Verdict = Literal["works", "shared", "no"]

MAX_PADDING = 128  # tokens by which vocabularies of one family may differ in length, as in llama.cpp
USUAL_RATIO = (5, 10)  # a draft this many times smaller than its target pays best, as a rule of thumb
CTX_SIZE = 8192  # of the cache that `memory_bytes` counts, where the target was trained for as much


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """How a draft fits a target: as it is, through the tokens that both share, or not at all, and why.

    `overlap` is the share of the target's tokens that the draft has too. `memory_bytes` is what the draft takes:
    weights and a 16-bit cache.
    """

    verdict: Verdict
    reasons: list[str]
    overlap: float
    times_smaller: float
    memory_bytes: int

    @property
    def summary(self) -> str:
        """The verdict in a few words."""
        if self.verdict == "works":
            return "works"
        if self.verdict == "shared":
            return f"works through {percent(self.overlap)} shared tokens"
        if self.overlap < LEAST_OVERLAP:
            return f"no: shares {percent(self.overlap)} of the tokens"
        return f"no: {self.reasons[0]}"

    @property
    def size(self) -> str:
        """How the draft's size compares to the target's, against the rule of thumb."""
        if self.times_smaller <= 1:
            return f"{'larger than' if self.times_smaller < 1 else 'as large as'} the target: it will slow it down"
        low, high = USUAL_RATIO
        ratio = f"{self.times_smaller:.1f}" if self.times_smaller < high else f"{self.times_smaller:.0f}"
        if self.times_smaller < low:
            return f"only {ratio} times smaller than the target: {low} to {high} times pays best"
        return f"{ratio} times smaller than the target"


def check_pair(target: Header, draft: Header) -> PairVerdict:
    """Whether `draft` can guess for `target`, both as `check_model` gives them; takes a moment for large vocabularies.

    Raises ModelFileError if the files can no longer be read.
    """
    obstacles = [
        f"the memory of a {header.architecture} model cannot be rolled back"
        for header, unable in ((target, NO_TARGETS), (draft, NO_DRAFTS))
        if header.architecture in unable
    ]
    ours, theirs = Vocabulary.of(target), Vocabulary.of(draft)
    differences = vocabulary_differences(ours, theirs)
    overlap = shared_tokens(ours, theirs) if differences else 1.0
    verdict: Verdict = "shared" if differences else "works"
    if obstacles or overlap < LEAST_OVERLAP:
        verdict = "no"
    return PairVerdict(
        verdict,
        reasons=obstacles + differences,
        overlap=overlap,
        times_smaller=target.n_params / max(1, draft.n_params),
        memory_bytes=memory_bytes(draft, min(CTX_SIZE, target.number("context_length") or CTX_SIZE)),
    )


def vocabulary_differences(target: Vocabulary, draft: Vocabulary) -> list[str]:
    """Why the draft's token ids do not mean what the target's mean; empty when they do."""
    both = (target, draft)
    differing = (id for id, texts in enumerate(zip(target.texts, draft.texts, strict=False)) if texts[0] != texts[1])
    first = next(differing, None)
    same_kind = target.kind == draft.kind
    if same_kind and first is None and abs(len(target.texts) - len(draft.texts)) <= MAX_PADDING:
        starts = [f"BOS {vocabulary.bos}" if vocabulary.adds_bos else "no BOS" for vocabulary in both]
        return [] if starts[0] == starts[1] else ["they begin a text differently ({} and {})".format(*starts)]
    kinds = [f"{vocabulary.kind} of {len(vocabulary.texts)} tokens" for vocabulary in both]
    reasons = ["their vocabularies differ: {} in the target, {} in the draft".format(*kinds)]
    if first is not None:
        texts = [shown(vocabulary.texts[first]) for vocabulary in both]
        reasons.append("token {} is {} in the target, {} in the draft".format(first, *texts))
    elif same_kind:
        reasons.append(f"they begin alike, but what follows is more than the {MAX_PADDING} tokens that padding may be")
    stored = set(target.texts)
    share = len(stored & set(draft.texts)) / max(1, len(stored))
    reasons.append(f"the draft has {math.floor(1000 * share) / 10:g} % of the target's tokens")
    return reasons


def vocabulary_difference(target: Header, draft: Header) -> str:
    """The same of two files, as one text."""
    return "; ".join(vocabulary_differences(Vocabulary.of(target), Vocabulary.of(draft)))


def shared_tokens(target: Vocabulary, draft: Vocabulary) -> float:
    """The share of the target's tokens that the draft has too, by what they stand for (TLI, arXiv 2502.05202)."""
    theirs = set(draft.pieces()) - {b""}
    return sum(piece in theirs for piece in target.pieces()) / max(1, len(target.texts))


def memory_bytes(header: Header, n_ctx: int) -> int:
    """About what a model takes: weights and the 16-bit keys and values of `n_ctx` tokens."""
    return header.weights_bytes + 2 * n_ctx * sum(header.kv_values_per_token)


def shown(text: bytes) -> str:
    """A token's text in quotes, without what would upset a terminal; as bytes if it is no text."""
    try:
        quoted = repr(text.decode("utf-8"))
    except UnicodeDecodeError:
        quoted = repr(text)
    return quoted if len(quoted) <= 40 else f"{quoted[:37]}..."


# Architectures of llama.cpp 0c1e57098 with a state that tokens cannot be taken out of again, in all layers or in some
_RECURRENT = "arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7"
_HYBRID = """
    bailingmoe3 deepseek4 falcon-h1 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe minimax-01 nemotron_h
    nemotron_h_moe plamo2 qwen35 qwen35moe qwen3next qwen4exp
"""
# Hybrid ones of which it keeps no old states either
_HYBRID_WITHOUT_COPIES = "falcon-h1 granitehybrid jamba kimi-linear minimax-01 plamo2 qwen3next"
NO_DRAFTS = frozenset(f"{_RECURRENT} {_HYBRID}".split())
NO_TARGETS = frozenset(f"{_RECURRENT} {_HYBRID_WITHOUT_COPIES}".split())
