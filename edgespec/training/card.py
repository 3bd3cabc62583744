"""A model card for a head: a Markdown file next to it."""

from __future__ import annotations

from edgespec.text.figures import count_of, size_of
from edgespec.training.job import LICENCE, Result, Settings

_CARD = """# {name}

A draft head ({kind}) for {target}, for speculative decoding: `edgespec run -md {file}`.
It changes no answer: what it drafts is verified by the target.

- Licence: {licence}, if the target's licence permits
- Data: {tokens} tokens in {answers} answers that the target wrote itself, greedy and at temperature 0.8, to prompts
  from {sources}. The prompts of the benchmark suites are held out.
- Training: {minutes:.0f} minutes, {seen} tokens seen ({epochs:.1f} epochs), loss {loss:.2f} nats
- File: {size}, weights {type}, a vocabulary of {vocabulary} tokens

Accepted on held-out answers, by position in a draft:

| | {positions} |
|---|{rules}
| greedy: drafts of that length that are right as a whole | {greedy} |
| temperature 0.8: chance of a token, if those before it were accepted | {sampled} |
"""


def card(settings: Settings, result: Result) -> str:
    """Return the card as Markdown."""
    asked = {"the user's chats": settings.my_chats, "the user's files": bool(settings.prompts)}
    sources = [name for name, is_used in asked.items() if is_used]
    progress, accepted = result.progress, result.progress.acceptance
    return _CARD.format(
        name=settings.out.stem,
        kind=settings.kind,
        target=settings.target.stem,
        file=settings.out.name,
        licence=LICENCE,
        tokens=count_of(result.tokens),
        answers=result.answers,
        sources=" and ".join([*sources, "bundled templates (nine kinds)", "the target itself"]),
        minutes=progress.elapsed_s / 60,
        seen=count_of(progress.tokens),
        epochs=progress.epoch,
        loss=progress.loss,
        size=size_of(result.size_bytes),
        type=settings.type,
        vocabulary=settings.vocabulary,
        positions=" | ".join(str(place) for place in range(1, len(accepted.greedy) + 1)),
        rules="---|" * len(accepted.greedy),
        greedy=" | ".join(f"{share:.2f}" for share in accepted.greedy),
        sampled=" | ".join(f"{share:.2f}" for share in accepted.sampled),
    )
