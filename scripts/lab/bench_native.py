"""Measure edgespec and llama.cpp's own speculative decoding on the same prompt tokens, interleaved.

    python scripts/lab/bench_native.py --model SmolLM2-135M-Instruct.Q8_0.gguf --samples q8_0.jsonl
    python scripts/lab/bench_native.py --model target.gguf --draft draft.gguf --lengths 2,4,8

The first call builds llama-speculative-simple from the sources that pyproject.toml pins, with the flags of the
project's own build but without its additions (about 8 minutes on two cores). llama.cpp decodes with ngram-simple (its
defaults; n 3 m 8; n 5 m 24), ngram-mod, and with a draft model draft-simple at fixed lengths; edgespec decodes plainly
and with its default drafters, in one process that loads the model once. Both have the same threads, context and
temperature 0, and stop at the end token or after -n tokens.

The speed is tokens decoded per second of their passes, drafting, sampling and text included; loading and reading the
prompt are not counted. llama.cpp counts the pass over the last token of the prompt with the tokens, edgespec with the
prompt, and that pass's token too. llama.cpp's plain decoding is the same loop with a drafter that never finds anything.

The table goes to stdout as Markdown. With --samples each answer is saved, and the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median

from native_llama import SETTINGS, SPECULATIVE, CommandError, Native, build, draft_settings

from edgespec.bench.machine import machine
from edgespec.bench.suites import Item, shipped
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError
from edgespec.llama import library
from edgespec.llama.template import ChatTemplate
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Message, Request

NATIVE_PLAIN, OWN_PLAIN, OWN_AUTO = "llama.cpp plain", "edgespec plain", "edgespec auto"
SUITES = {"writing": "writing", "translation": "translation", "questions": "chat", "maths": "maths"}
SUITES |= {"edit": "code_editing", "summary": "summary", "retrieval": "summary", "repeat": "chat"}
FROM_PASSAGES = ("summary-02", "summary-06", "summary-09")  # questions about a passage, not summaries
CODING = (
    "Write a Python function that reads a CSV file with the columns date, product and amount, and returns the total "
    "amount of each product in each month. Add a docstring and an example of its use.",
    "Write a C function that removes all duplicate elements from a sorted array of integers in place and returns the "
    "new length. Then explain how it works and what its time complexity is.",
    "I need an HTML page with a form for a name, an e-mail address and a message, and some CSS that centres the form "
    "and makes it look good on a phone. Give me the whole file.",
    "Write a Python class for a bank account with deposit, withdraw and transfer, which raises an error if there is "
    "not enough money. Then write unit tests for it with pytest.",
)
KINDS = ("writing", "coding", "translation", "summary", "questions", "maths", "retrieval", "edit", "repeat")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of `tokens` tokens, decoded in `seconds`."""

    who: str
    kind: str
    item: str
    turn: int
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question, as the text and the number of tokens that both programs read."""

    item: Item
    text: str
    request: Request
    n_tokens: int


def main() -> int:
    args = arguments()
    try:
        samples = measured(args)
    except (EdgespecError, CommandError, ValueError, OSError) as error:
        print(f"bench_native: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(samples)))
    print(f"\n{machine()['cpu']}, {args.threads} threads of {os.cpu_count()}; {library.build_flags().strip()}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model to measure, a chat model")
    parser.add_argument("--draft", help="a draft model for it")
    parser.add_argument("--lengths", default="2,4,8", help="lengths of its drafts in llama.cpp (default: %(default)s)")
    parser.add_argument("--per-kind", type=int, default=2, help="prompts of each of the nine kinds")
    parser.add_argument("--turns", type=int, default=3, help="how often each prompt is answered in each way")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("-t", "--threads", type=int, default=library.default_threads())
    parser.add_argument("-c", "--context", type=int, default=2048)
    parser.add_argument("--native", default="", help='further arguments of llama-speculative-simple, as "-fa off"')
    parser.add_argument("--samples", type=Path, metavar="FILE", help="save each answer here (JSON lines), and resume")
    return parser.parse_args()


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(args: argparse.Namespace) -> list[Sample]:
    """Answer every prompt in every way, interleaved; Ctrl-C ends this early. Raises CommandError, EdgespecError."""
    model, draft = resolve(args.model).path, resolve(args.draft).path if args.draft else None
    programs, _ = build(SPECULATIVE)
    native = Native(programs, model, args.threads, args.context, tuple(shlex.split(args.native)))
    lengths = [int(length) for length in args.lengths.split(",")]
    ways = {**SETTINGS, **(draft_settings(draft, lengths, args.threads) if draft else {})}
    load = LoadSettings(
        str(model),
        draft_model=str(draft) if draft else None,
        store=False,
        ctx_size=args.context,
        threads=args.threads,
        threads_batch=args.threads,
    )
    samples = saved(args.samples)
    done = {(sample.who, sample.item, sample.turn) for sample in samples}
    with Runtime(load) as llm:
        asked = list(read_prompts(llm, prompts(args.per_kind), args.tokens))
        answers: dict[str, Callable[[Prompt, int], Sample]] = {
            f"llama.cpp {name}": native_answer(native, f"llama.cpp {name}", setting, args.tokens)
            for name, setting in ways.items()
        }
        answers[OWN_PLAIN] = own_answer(llm, OWN_PLAIN, "none")
        answers[OWN_AUTO] = own_answer(llm, OWN_AUTO, "auto")
        answers[OWN_PLAIN](asked[0], 0)  # to warm up
        try:
            for turn in range(args.turns):
                for prompt, who in in_turn(asked, list(answers), turn):
                    if (who, prompt.item.id, turn) in done:
                        continue
                    print(f"turn {turn + 1} of {args.turns}: {prompt.item.id}, {who}", file=sys.stderr)
                    samples.append(answers[who](prompt, turn))
                    if args.samples:
                        with args.samples.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(asdict(samples[-1])) + "\n")
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    return samples


def saved(file: Path | None) -> list[Sample]:
    if file is None or not file.exists():
        return []
    return [Sample(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def prompts(per_kind: int) -> list[Item]:
    """Return the first prompts of each kind, interleaved, so that an interrupted run has seen all kinds."""
    kinds = [_kind(kind)[:per_kind] for kind in KINDS]
    return [items[place] for place in range(max(map(len, kinds))) for items in kinds if place < len(items)]


def _kind(kind: str) -> list[Item]:
    if kind == "coding":
        return [Item(f"coding-{n:02}", kind, (text,)) for n, text in enumerate(CODING, start=1)]
    items = shipped([SUITES[kind]])
    if kind == "repeat":
        question = "Repeat the following text word for word, without any change:\n\n{}"
        return [Item(f"repeat-{n:02}", kind, (question.format(i.reference),)) for n, i in enumerate(items, start=1)]
    if kind in ("summary", "retrieval"):
        items = [item for item in items if (item.id in FROM_PASSAGES) == (kind == "retrieval")]
    return [Item(item.id, kind, item.turns) for item in items]


def in_turn(asked: Sequence[Prompt], ways: Sequence[str], turn: int) -> Iterator[tuple[Prompt, str]]:
    """Yield each prompt in each way. Which way is first moves on by one, so that none always runs on a hotter CPU."""
    for number, prompt in enumerate(asked):
        first = (number + turn * len(asked)) % len(ways)
        for who in [*ways[first:], *ways[:first]]:
            yield prompt, who


def read_prompts(llm: Runtime, items: Sequence[Item], tokens: int) -> Iterator[Prompt]:
    """Yield the prompts as the model's chat template writes them."""
    template = ChatTemplate(llm.model)
    for item in items:
        messages = (Message("user", item.prompt),)
        request = Request(messages=messages, max_tokens=tokens, sampling=SamplingSettings(temperature=0.0))
        text, ids = template.render(messages), llm.tokenize(request)
        if llm.model.tokenize(text, add_special=True, parse_special=True) != ids:
            raise CommandError(f"{item.id}: the text of the prompt is not read as the tokens of the chat template")
        yield Prompt(item, text, request, len(ids))


def native_answer(native: Native, who: str, setting: Sequence[str], tokens: int) -> Callable[[Prompt, int], Sample]:
    def answer(prompt: Prompt, turn: int) -> Sample:
        made, item = native.answer(prompt.text, tokens, setting), prompt.item
        if made.prompt_tokens != prompt.n_tokens:
            counts = f"{made.prompt_tokens} tokens, edgespec {prompt.n_tokens}"
            raise CommandError(f"{item.id}: llama.cpp reads the prompt as {counts}")
        counts_made = (made.tokens, made.seconds, made.drafted, made.accepted)
        return Sample(who, item.category, item.id, turn, *counts_made, made.text)

    return answer


def own_answer(llm: Runtime, who: str, spec_type: str) -> Callable[[Prompt, int], Sample]:
    def answer(prompt: Prompt, turn: int) -> Sample:
        llm.draft_with(spec_type=spec_type)
        llm.forget()
        text, item = "".join(event.text for event in llm.submit(prompt.request)), prompt.item
        stats = llm.stats
        counts = (stats.generated_tokens - 1, stats.generation_s, stats.proposed, stats.accepted)
        return Sample(who, item.category, item.id, turn, *counts, text)

    return answer


# --- the table --------------------------------------------------------------------------------------------------------


def table(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield the lines of a Markdown table: the speed over llama.cpp's plain decoding by kind and in the geometric mean.

    Prompts that were not answered in every way are left out. "same text" counts the prompts whose text is that of the
    same program's plain decoding.
    """
    ways = list(dict.fromkeys(sample.who for sample in samples))
    answered = [{sample.item for sample in samples if sample.who == who} for who in ways]
    items = set[str].intersection(*answered) if NATIVE_PLAIN in ways else set[str]()
    kinds = list(dict.fromkeys(sample.kind for sample in samples if sample.item in items))
    header = ["", *kinds, "mean", "accepted", "same text"]
    yield from (_line(header), _line(["---", *["---:"] * (len(header) - 1)]))
    for who in ways if items else []:
        own = [sample for sample in samples if sample.who == who and sample.item in items]
        ratios = {item: _rate(samples, who, item) / _rate(samples, NATIVE_PLAIN, item) for item in items}
        found = [geometric_mean(ratios[item] for item in {s.item for s in own if s.kind == kind}) for kind in kinds]
        drafted = sum(sample.drafted for sample in own)
        accepted = f"{sum(sample.accepted for sample in own) / drafted:.0%}" if drafted else ""
        plain = NATIVE_PLAIN if who.startswith("llama.cpp") else OWN_PLAIN
        texts = {sample.item: sample.text for sample in samples if sample.who == plain}
        same = {s.item for s in own if s.text.rstrip("\ufffd") == texts.get(s.item, "").rstrip("\ufffd")}
        figures = [f"{ratio:.2f}" for ratio in (*found, geometric_mean(found))]
        cells = [who, *figures, accepted, f"{len(same)}/{len(items)}"]
        yield _line([f"**{cell}**" for cell in cells] if who == OWN_AUTO else cells)
    if items:
        rates = [
            median(_rate(samples, NATIVE_PLAIN, s.item) for s in samples if s.kind == kind and s.item in items)
            for kind in kinds
        ]
        yield _line(["tokens/s of 1.00", *(f"{rate:.1f}" for rate in (*rates, geometric_mean(rates))), "", ""])


def _rate(samples: Sequence[Sample], who: str, item: str) -> float:
    """The median speed of the answers to a prompt. llama.cpp counts tokens that it has accepted beyond the end of an
    answer too: for an equal text, the tokens of plain decoding count."""
    native = who.startswith("llama.cpp")
    plain = {s.text: s.tokens for s in samples if (s.who, s.item) == (NATIVE_PLAIN, item) and native}
    return median(plain.get(s.text, s.tokens) / s.seconds for s in samples if (s.who, s.item) == (who, item))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
