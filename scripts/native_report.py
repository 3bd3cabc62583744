"""What edgespec and llama.cpp's own program have measured beside each other, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import geometric_mean, median

from rich.console import Group, RenderableType

from edgespec.bench.tables import Figures, Lines, stacked

NATIVE, OWN = "llama.cpp", "edgespec"
NATIVE_PLAIN, OWN_PLAIN, OWN_AUTO = f"{NATIVE} plain", f"{OWN} plain", f"{OWN} auto"


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. `tokens` were made in `seconds`, each of their passes included and no other."""

    who: str
    kind: str
    item: str
    turn: int
    prompt_tokens: int
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """What one contestant reached: times the speed of native plain decoding by kind, and in their geometric mean."""

    who: str
    by_kind: dict[str, float]
    mean: float
    acceptance: float | None
    same_text: int
    answers: int


class Report:
    """The figures of `samples`. Prompts that not every contestant has answered yet are left out."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples: dict[str, dict[str, list[Sample]]] = {}
        for sample in samples:
            self._samples.setdefault(sample.who, {}).setdefault(sample.item, []).append(sample)
        answered = [set(items) for items in self._samples.values()]
        items = set[str].intersection(*answered) if NATIVE_PLAIN in self._samples else set[str]()
        self.items = [item for item in self._samples.get(NATIVE_PLAIN, {}) if item in items]
        self.kinds: dict[str, list[str]] = {}
        for item in self.items:
            self.kinds.setdefault(self._samples[NATIVE_PLAIN][item][0].kind, []).append(item)
        self.rows = [self._row(who) for who in self._samples] if self.items else []

    def rate(self, who: str, item: str) -> float:
        """Tokens a second, the median of the turns."""
        samples = self._samples[who][item]
        # llama.cpp counts what it has accepted behind the end token too: an equal text has as many as plain decoding's.
        native = self._samples[NATIVE_PLAIN][item] if who.startswith(NATIVE) else []
        plain = {sample.text: sample.tokens for sample in native}
        return median(plain.get(sample.text, sample.tokens) / sample.seconds for sample in samples)

    def plain_rates(self) -> list[float]:
        """Native plain decoding, tokens a second by kind."""
        return [geometric_mean(self.rate(NATIVE_PLAIN, item) for item in items) for items in self.kinds.values()]

    @property
    def best(self) -> Row | None:
        """The native setting that is the fastest in the mean, chosen after the fact."""
        return max((row for row in self.rows if row.who.startswith(NATIVE)), key=lambda row: row.mean, default=None)

    def gain(self, over: Row) -> tuple[float, str, float]:
        """How many times as fast as `over` edgespec is: in the mean, and in which kind least."""
        auto = next(row for row in self.rows if row.who == OWN_AUTO)
        ratios = {kind: speed / over.by_kind[kind] for kind, speed in auto.by_kind.items()}
        least = min(ratios, key=lambda kind: ratios[kind])
        return geometric_mean(ratios.values()), least, ratios[least]

    def partings(self) -> list[str]:
        """Where the plain texts of both programs part."""
        found = []
        for item in self.items if OWN_PLAIN in self._samples else []:
            ours, native = self._text(OWN_PLAIN, item), self._text(NATIVE_PLAIN, item)
            if not _same(ours, native):
                equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, native, strict=False)))
                found.append(f"{item} after {equal} characters")
        return found

    def _text(self, who: str, item: str) -> str:
        return self._samples[who][item][0].text

    def _row(self, who: str) -> Row:
        ratios = {item: self.rate(who, item) / self.rate(NATIVE_PLAIN, item) for item in self.items}
        by_kind = {kind: geometric_mean(ratios[item] for item in items) for kind, items in self.kinds.items()}
        samples = [sample for item in self.items for sample in self._samples[who][item]]
        drafted = sum(sample.drafted for sample in samples)
        plain = OWN_PLAIN if who.startswith(OWN) and OWN_PLAIN in self._samples else NATIVE_PLAIN
        same = sum(_same(sample.text, self._text(plain, sample.item)) for sample in samples)
        acceptance = sum(sample.accepted for sample in samples) / drafted if drafted else None
        return Row(who, by_kind, geometric_mean(by_kind.values()), acceptance, same, len(samples))


def tables(report: Report, facts: Sequence[tuple[str, str]]) -> RenderableType:
    """For a terminal."""
    parts: list[RenderableType] = [Lines(facts)]
    for title, header, rows, bold in _tables(report):
        parts.append(Figures(title, header, rows, bold))
    return stacked([*parts, Lines([("", line) for line in _lines(report)])]) if report.rows else Group(*parts)


def markdown(report: Report, facts: Sequence[tuple[str, str]], command: str) -> str:
    """For docs/performance.md."""
    parts = [f"    {command}\n", "\n".join(f"- {name}: {value}" for name, value in facts) + "\n"]
    for title, header, rows, bold in _tables(report):
        lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
        lines = [[f"**{cell}**" for cell in row] if n - 2 in bold else list(row) for n, row in enumerate(lines)]
        parts += [f"{title}:\n", "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"]
    return "\n".join([*parts, *_lines(report)]) + "\n"


def _tables(report: Report) -> list[tuple[str, list[str], list[list[str]], list[int]]]:
    if not report.rows:
        return []
    speeds = [
        [
            row.who,
            *(f"{row.by_kind[kind]:.2f}" for kind in report.kinds),
            f"{row.mean:.2f}",
            "" if row.acceptance is None else f"{row.acceptance:.0%}",
            f"{row.same_text}/{row.answers}",
        ]
        for row in report.rows
    ]
    rates = report.plain_rates()
    speeds.append(["tokens/s of 1.00", *(f"{rate:.1f}" for rate in rates), f"{geometric_mean(rates):.1f}", "", ""])
    own = [number for number, row in enumerate(report.rows) if row.who == OWN_AUTO]
    header = ["", *report.kinds, "mean", "accepted", "same text"]
    found = [(f"Times as fast as {NATIVE_PLAIN}", header, speeds, own)]
    if own:
        gains = [(row, *report.gain(row)) for row in report.rows if row.who != OWN_AUTO]
        cells = [[row.who, f"{mean:.2f}", f"{least:.2f}", kind] for row, mean, kind, least in gains]
        best = [number for number, (row, *_) in enumerate(gains) if row is report.best]
        found.append((f"{OWN_AUTO} over each of them", ["", "mean", "least", "in"], cells, best))
    return found


def _lines(report: Report) -> list[str]:
    lines, best, partings = [], report.best, report.partings()
    if best is not None and any(row.who == OWN_AUTO for row in report.rows):
        mean, *_ = report.gain(best)
        lines.append(f"Best native setting, chosen after the fact: {best.who}; {OWN_AUTO} is {mean:.2f} times as fast.")
    if any(row.who == OWN_PLAIN for row in report.rows):
        equal = f"{len(report.items) - len(partings)} of {len(report.items)}"
        others = f"; the others part: {', '.join(partings)}" if partings else ""
        lines.append(f"Plain texts of both programs are equal for {equal} prompts{others}.")
    return lines


def _same(a: str, b: str) -> bool:
    """Whether two texts are equal but for half a character at their ends."""
    return a.rstrip("\ufffd") == b.rstrip("\ufffd")
