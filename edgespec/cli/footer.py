"""The statistics of an answer as a user reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.core.stats import Stats
from edgespec.core.verify import CHANGES_LAW, VerifyRule
from edgespec.figures import percent, rate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgespec.core.auto_pace import PaceVerdict


def footer(
    stats: Stats,
    *,
    details: bool,
    verify: VerifyRule,
    drafters: Sequence[str],
    rounding: float | None,
    pace: Sequence[PaceVerdict],
) -> list[str]:
    """Lines about an answer: one, or with `details` a few more; `rounding` is None if it was not measured."""
    parts = [f"{rate(stats.tokens_per_s)} tok/s"] if stats.generated_tokens > 1 else []
    parts.append(_count(stats.generated_tokens, "token"))
    if stats.proposed:
        parts.append(f"{percent(stats.acceptance_rate)} of drafts accepted")
        parts.append(f"{stats.tokens_per_round:.1f} tokens a round")
    if verify in CHANGES_LAW:
        parts.append(f"{verify} acceptance: changes the distribution")
    lines = [" · ".join(parts)]
    if details:
        lines += _details(stats)
        if not drafters:
            lines.append("drafts: none; a draft model (-md) or --spec-type suffix would guess ahead")
        lines += [line for verdict in pace for line in _reasons(verdict)]
        if rounding is not None:
            lines.append(_ties(stats, rounding))
    return lines


def _reasons(verdict: PaceVerdict) -> list[str]:
    """Why a drafter guesses or rests."""
    what = "rests" if verdict.rests else "guesses"
    widths = ", ".join(f"{width} in {cost:.2g}" for width, cost in verdict.widths.items())
    return [
        f"pace: {verdict.drafter} {what}; a guess is worth {verdict.gain:.2g} tokens, making it takes the time of "
        f"{verdict.cost:.2g}",
        f"pace: a pass of the target over 1 token takes 1, {widths}; a guessed token takes {verdict.step:.2g}",
    ]


def _ties(stats: Stats, rounding: float) -> str:
    if not rounding:
        return "rounding: none seen, these widths of a pass give the same logits"
    measured = f"rounding: up to {rounding:.2g} logits between widths"
    if stats.near_ties is None:
        return f"{measured}; what it could have turned is known under --verify coupled only"
    return f"{measured} could have turned {stats.near_ties} of {_count(stats.generated_tokens, 'token')}"


def _details(stats: Stats) -> list[str]:
    prompt = f"prompt: {_count(stats.prompt_tokens, 'token')} in {stats.prompt_s:.2f} s"
    if stats.prompt_s:
        prompt += f", {rate(stats.prompt_tokens_per_s)} tok/s"
    if stats.cached_tokens:
        prompt += f", {stats.cached_tokens} of them remembered"
    lines = [
        prompt,
        f"answer: {_count(stats.rounds, 'round')} in {stats.generation_s:.2f} s, "
        f"target {stats.target_s:.2f} s, drafting {stats.draft_s:.2f} s, other {stats.other_s:.2f} s",
    ]
    if stats.proposed:
        lines.append(f"drafts: {stats.accepted} of {stats.proposed} tokens accepted; by position {_positions(stats)}")
        lines.append(f"rounds by tokens accepted: {_histogram(stats.accepted_histogram)}")
        verified = {name: counts for name, counts in stats.by_source.items() if counts.proposed}
        if len(verified) > 1:
            sources = (
                f"{name} {counts.accepted} of {counts.proposed} in {_count(counts.rounds, 'round')}"
                for name, counts in verified.items()
            )
            lines.append(f"drafts by source: {', '.join(sources)}")
    return lines


def explanation(stats: Stats, pace: Sequence[PaceVerdict]) -> RenderableType:
    """What each drafter did in an answer, and what that earned."""
    from edgespec.bench.tables import Figures

    rests = {verdict.drafter: verdict.rests for verdict in pace}
    rows = []
    for name, counts in stats.by_source.items():
        gained = stats.gained_per_s(name)
        rows.append(
            [
                name,
                str(counts.asked),
                str(counts.proposed),
                str(counts.accepted),
                f"{counts.seconds * 1e3:.1f}",
                "" if gained is None else f"{gained:+.1f}",
                {True: "rests", False: "guesses", None: ""}[rests.get(name)],
            ]
        )
    title = f"{rate(stats.tokens_per_s)} tok/s; what each drafter did, and what it added or cost"
    return Figures(title, ["", "asked", "verified", "accepted", "ms", "tok/s", "now"], rows)


def _positions(stats: Stats) -> str:
    """How often the first, second, ... token of a draft was accepted."""
    pairs = zip(stats.accepted_per_pos, stats.proposed_per_pos, strict=True)
    return ", ".join(percent(accepted / proposed) for accepted, proposed in pairs if proposed)


def _histogram(counts: Sequence[int]) -> str:
    return ", ".join(f"{accepted}: {rounds}" for accepted, rounds in enumerate(counts))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
