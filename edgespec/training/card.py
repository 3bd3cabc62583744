"""What is to be known about a head, as text beside its file."""

from __future__ import annotations

from edgespec.text.figures import count_of, size_of
from edgespec.training.pipeline import LICENCE, Result, Settings

_CARD = """# {name}

A draft head ({kind}) for {target}, for speculative decoding: `edgespec run -md {file}`.
It changes no answer: what it drafts is verified by the target.

- Licence: {licence}, where the target's licence permits
- Data: {tokens} tokens in {answers} answers that the target wrote itself, greedy and at temperature 0.8, to prompts of
  {sources}. The prompts of the benchmark suites are held out.
- Training: {minutes:.0f} minutes, {seen} tokens seen ({epochs:.1f} epochs), loss {loss:.2f} nats
- File: {size}, weights {type}, a vocabulary of {vocabulary} tokens
{checked}
Accepted on held-out answers, by position in a draft:

| | {positions} |
|---|{rules}
| greedy: drafts of that length that are right as a whole | {greedy} |
| temperature 0.8: chance of a token, if those before it were accepted | {sampled} |
"""

_CHECKED = "- Logits in llama.cpp and in PyTorch differ by {:.1%} of their standard deviation\n"


def card(settings: Settings, result: Result) -> str:
    """Markdown."""
    sources = ["bundled templates (nine kinds)", "those that the target wrote itself"]
    if settings.prompts:
        sources.insert(0, "the user's files")
    if settings.my_chats:
        sources.insert(0, "the user's chats")
    return _CARD.format(
        name=settings.out.stem,
        kind=settings.kind,
        target=settings.target.stem,
        file=settings.out.name,
        licence=LICENCE,
        tokens=count_of(result.tokens),
        answers=result.answers,
        sources=" and ".join(sources),
        minutes=result.progress.elapsed_s / 60,
        seen=count_of(result.progress.tokens),
        epochs=result.progress.epoch,
        loss=result.progress.loss,
        size=size_of(result.size_bytes),
        type=settings.type,
        vocabulary=settings.vocabulary,
        checked="" if result.difference is None else _CHECKED.format(result.difference),
        positions=" | ".join(str(place) for place in range(1, len(result.acceptance) + 1)),
        rules="---|" * len(result.acceptance),
        greedy=" | ".join(f"{share:.2f}" for share in result.acceptance),
        sampled=" | ".join(f"{share:.2f}" for share in result.sampled),
    )
