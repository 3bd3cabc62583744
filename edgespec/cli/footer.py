"""The statistics of an answer, as `run` and `chat` show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.llm.info import ModelInfo
from edgespec.settings import with_options
from edgespec.text.figures import counted, faster, percent, rate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgespec.core.policy.policy import PolicyVerdict


def footer(
    stats: Stats,
    info: ModelInfo,
    *,
    details: bool,
    verify: VerifyRule,
    pace: Sequence[PolicyVerdict],
) -> list[str]:
    """Return one line about an answer, or three with `details`."""
    speed = [f"{rate(stats.tokens_per_s)} tok/s"] if stats.generated_tokens > 1 else []
    made = counted(stats.generated_tokens, "token")
    if not details:
        accepted = [f"{percent(stats.acceptance_rate)} of drafts accepted"] if stats.proposed else []
        accepted += filter(None, [faster(stats.speedup, stats.generated_tokens), _repeated(stats)])
        return [" · ".join([*speed, made, *accepted])]
    first = [f"first token after {stats.prompt_s:.2f} s"] if stats.prompt_s else []
    return [
        " · ".join([made, *speed, *first]),
        f"speculative decoding: {_earned(stats, info.drafters)}",
        " · ".join(filter(None, [_decided(pace, info.pace), exactness(stats, info, verify)])),
    ]


def exactness(stats: Stats, info: ModelInfo, verify: VerifyRule) -> str:
    """Return how this answer compares with plain decoding with the same seed."""
    if not stats.proposed:
        return "plain decoding"
    if verify != "coupled":
        return f"same distribution as plain decoding, but another text (--verify {verify})"
    if info.width_class:
        least, most = info.width_class
        measured = f"measured up to {info.measured_depth or 0:,} tokens"
        return f"output identical with and without speculation (passes of {least} to {most} tokens, {measured})"
    if info.rounding == 0.0:
        return "output identical with and without speculation on this machine"
    how = with_options(info.made_exact_by)
    return "same text as plain decoding up to rounding" + (f"; {how} makes it exact" if how else "")


def _repeated(stats: Stats) -> str:
    n = stats.repeated_tokens
    return f"the answer repeats itself ({n} tokens)" if n else ""


def _earned(stats: Stats, drafters: Sequence[str]) -> str:
    if not drafters:
        return "off; --spec-type auto, or a draft model (-md), turns it on"
    if not stats.proposed:
        return "no token was drafted"
    parts = [f"acceptance rate {percent(stats.acceptance_rate)}", f"{stats.tokens_per_round:.1f} tokens per step"]
    if (speedup := stats.speedup) is not None:
        parts.append(f"speed-up {speedup:.2f}x")
    return " · ".join(filter(None, [*parts, *_overlapped(stats), _repeated(stats)]))


def _overlapped(stats: Stats) -> Iterator[str]:
    """Yield how many drafts made during passes of the target could be used."""
    ahead = sum(source.ahead for source in stats.by_source.values())
    if ahead:
        yield f"{sum(source.overlapped for source in stats.by_source.values())} of {ahead} drafts made ahead were used"


def _decided(pace: Sequence[PolicyVerdict], setting: str) -> str:
    """Return the draft-length policy's decision about each drafter."""
    active = ", ".join(verdict.drafter for verdict in pace if not verdict.rests)
    backed_off = ", ".join(verdict.drafter for verdict in pace if verdict.rests)
    if pace:
        parts = [f"{state}: {names}" for state, names in (("active", active), ("backed off", backed_off)) if names]
        return "; ".join(parts)
    return "" if setting == "auto" else f"draft length {setting}"


def explanation(stats: Stats, pace: Sequence[PolicyVerdict]) -> tuple[RenderableType, list[str]]:
    """Return a table of what each drafter did and gained, and lines about where the time of an answer went, and why
    each drafter was used."""
    from edgespec.bench.tables import Figures

    states = {verdict.drafter: "backed off" if verdict.rests else "active" for verdict in pace}
    rows = []
    for name, counts in stats.by_source.items():
        gained = stats.gained_per_s(name)
        figures = [str(counts.asked), str(counts.proposed), str(counts.accepted), f"{counts.seconds * 1e3:.1f}"]
        rows.append([name, *figures, "" if gained is None else f"{gained:+.1f}", states.get(name, "")])
    title = f"{rate(stats.tokens_per_s)} tok/s; what each drafter did, and how much speed it added or cost"
    table = Figures(title, ["", "asked", "verified", "accepted", "ms", "tok/s", "now"], rows)
    return table, [*_details(stats), *_reasons(pace)]


def _details(stats: Stats) -> list[str]:
    prompt = f"prompt: {counted(stats.prompt_tokens, 'token')} in {stats.prompt_s:.2f} s"
    if stats.prompt_s:
        prompt += f", {rate(stats.prompt_tokens_per_s)} tok/s"
    if stats.cached_tokens:
        prompt += f", {stats.cached_tokens} of them from the cache"
    lines = [
        prompt,
        f"answer: {counted(stats.rounds, 'step')} in {stats.generation_s:.2f} s, "
        f"target {stats.target_s:.2f} s, drafting {stats.draft_s:.2f} s, other {stats.other_s:.2f} s",
    ]
    if stats.proposed:
        lines.append(f"drafts: {stats.accepted} of {stats.proposed} tokens accepted; by position {_positions(stats)}")
        lines += [f"overlap: {said}" for said in _overlapped(stats)]
    return lines


def _reasons(pace: Sequence[PolicyVerdict]) -> Iterator[str]:
    """Yield the expected gain and the cost of drafts, in tokens and in passes of the target over one token."""
    for verdict in pace:
        state = "backed off" if verdict.rests else "active"
        yield (
            f"{verdict.drafter}: {state} ({verdict.gain:.2g} expected tokens per draft, cost {verdict.cost:.2g} of a "
            f"pass, {verdict.step:.2g} for each token)"
        )
    if pace:
        widths = ", ".join(f"{width} in {cost:.2g}" for width, cost in pace[0].widths.items())
        yield f"passes of the target: 1 token in 1, {widths}"


def _positions(stats: Stats) -> str:
    """Return how often the first, second, ... token of a draft was accepted."""
    pairs = zip(stats.accepted_per_pos, stats.proposed_per_pos, strict=True)
    return ", ".join(percent(accepted / proposed) for accepted, proposed in pairs if proposed)
