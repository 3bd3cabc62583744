"""The prompts of benchmarks: the built-in ones, and those in a user's file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgespec.errors import UsageError, told_as
from edgespec.text.encodings import Utf8Lines

CATEGORIES = ("chat", "code_completion", "code_editing", "summary", "translation", "maths", "writing")


@dataclass(frozen=True, slots=True)
class SuitePrompt:
    """A prompt, and a good answer to it (empty if none is known)."""

    id: str
    category: str
    prompt: str
    reference: str = ""


def shipped(categories: Iterable[str] | None = None) -> list[SuitePrompt]:
    """Return the built-in prompts of some categories, or of all. Raises UsageError for an unknown category."""
    chosen = CATEGORIES if categories is None else tuple(dict.fromkeys(categories))
    if unknown := [category for category in chosen if category not in CATEGORIES]:
        raise UsageError(f"unknown category {unknown[0]!r}", hint=f"the categories are {', '.join(CATEGORIES)}")
    folder = resources.files("edgespec.bench") / "suites"
    return [
        item for category in chosen for item in _read((folder / f"{category}.jsonl").read_bytes().splitlines(True))[0]
    ]


def read_items(path: Path) -> tuple[list[SuitePrompt], list[str]]:
    """Return the prompts of a JSONL file, and the number of each skipped line with the reason.

    A line holds `prompt`, or `turns` as in Spec-Bench, of which the first is used; `id` (`question_id`), `category` and
    `reference` may be missing.
    Raises UsageError if the file cannot be read or no line can be used.
    """
    hint = 'use a JSONL file with one object per line, such as {"prompt": "..."}'
    with told_as(UsageError, f"cannot read the prompts in {path}", hint=hint), path.open("rb") as file:
        items, problems = _read(Utf8Lines(file))
    if not items:
        why = problems[0] if problems else "the file is empty"
        raise UsageError(f"there are no prompts in {path}", why=why, hint=hint)
    return items, problems


def chosen(
    file: str | None, categories: Sequence[str], per_category: int | None, usual: int
) -> tuple[list[SuitePrompt], list[str]]:
    """Return the first prompts of each of these categories, or of all, and problems in the user's file.

    The default number per category is `usual` for built-in prompts, and no limit for a file. Raises UsageError.
    """
    if file is None:
        return sample(shipped(categories or None), per_category or usual), []
    items, problems = read_items(Path(file))
    of_these = [item for item in items if not categories or item.category in categories]
    if not of_these:
        raise UsageError(f"{file} has no prompts of category {' or '.join(categories)}")
    return sample(of_these, per_category or len(items)), problems


def sample(items: Iterable[SuitePrompt], per_category: int) -> list[SuitePrompt]:
    """Return the first prompts of each category, interleaved, so that an interrupted run has covered all categories."""
    by_category: dict[str, list[SuitePrompt]] = {}
    for item in items:
        by_category.setdefault(item.category, []).append(item)
    rounds = min(per_category, max(map(len, by_category.values()), default=0))
    return [group[place] for place in range(rounds) for group in by_category.values() if place < len(group)]


def _read(lines: Iterable[bytes]) -> tuple[list[SuitePrompt], list[str]]:
    items: dict[str, SuitePrompt] = {}
    problems = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = _item(line, f"line-{number}")
            if item.id in items:
                raise ValueError(f"duplicate id {item.id!r}")
            items[item.id] = item
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    return list(items.values()), problems


def _item(line: bytes, default_id: str) -> SuitePrompt:
    """Return the prompt in a line. Raises ValueError."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON in UTF-8") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    # A field that is null counts as missing.
    row = {key: value for key, value in row.items() if value is not None}
    turns, reference = row.get("turns"), row.get("reference", "")
    prompt = turns[0] if isinstance(turns, list) and turns else row.get("prompt", "")
    if isinstance(reference, list):  # Spec-Bench: one for each turn
        reference = next(iter(reference), "")
    return SuitePrompt(
        id=_label("id", row.get("id", row.get("question_id", default_id))),
        category=_label("category", row.get("category", "other")),
        prompt=_text("prompt", prompt),
        reference=_text("reference", reference) if reference else "",
    )


def _label(name: str, value: object) -> str:
    """Return a text that fits into a table; integers are allowed too."""
    label = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        raise ValueError(f"{name} is not printable text")
    return label


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")
    if not value.strip():
        raise ValueError(f"there is no {name}")
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"{name} contains a NUL character or half of a surrogate pair")
    return value
