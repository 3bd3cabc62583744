"""edgespec beside llama.cpp's own speculative decoding: the same prompt tokens, prompt by prompt, in turns.

    python scripts/bench_native.py --model SmolLM2-135M-Instruct.Q8_0.gguf --json q8_0.json --markdown q8_0.md
    python scripts/bench_native.py --model target.gguf --draft draft.gguf --lengths 2,4,8

llama-speculative-simple and llama-bench are built once from the sources that pyproject.toml pins, with the flags of the
project's own build but without its additions (about 8 minutes on two cores). It decodes with ngram-simple (its
defaults; n 3 m 8; n 5 m 24), ngram-mod, and with a draft draft-simple at fixed lengths; edgespec decodes plainly and
with what it chooses by itself (`auto`), in one process that has loaded the model once. Both have the same threads,
context and temperature 0, and stop at the end token or after -n tokens.

Counted are tokens decoded and the seconds of their passes, drafting, sampling and text included; loading and reading
the prompt are not. llama.cpp counts the pass over the last token of the prompt with the tokens, edgespec with the
prompt, and that pass's token too. Its plain decoding is the same loop with a drafter that never finds anything.

Samples are kept in the file of --json after every answer, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from native_llama import BENCH, SETTINGS, SPECULATIVE, Native, build, draft_settings
from native_prompts import prompts
from native_report import NATIVE, OWN_AUTO, OWN_PLAIN, Report, Sample, markdown, tables
from rich.console import Console
from supervised import CommandError, Progress

from edgespec.bench.machine import machine
from edgespec.bench.suites import Item
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, UsageError
from edgespec.llama import library
from edgespec.llama.template import ChatTemplate
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Message, Request

ANNOUNCED = Console(stderr=True, highlight=False)
STARTED = time.monotonic()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked, as the text and the ids that both programs read."""

    item: Item
    text: str
    request: Request
    n_tokens: int


class Session:
    """The samples of one measurement, kept in a file if there is one. Raises UsageError for a file of another."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings
        self.samples: list[Sample] = []
        self.facts: list[tuple[str, str]] = []
        if path is not None and path.exists():
            self._load(path)

    def has(self, who: str, item: str, turn: int) -> bool:
        return any((sample.who, sample.item, sample.turn) == (who, item, turn) for sample in self.samples)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.save()

    def save(self) -> None:
        if self._path is None:
            return
        part = self._path.with_name(self._path.name + ".part")
        kept = {
            "settings": self._settings,
            "facts": self.facts,
            "samples": [asdict(sample) for sample in self.samples],
        }
        part.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        part.replace(self._path)

    def _load(self, path: Path) -> None:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            settings, samples = kept["settings"], [Sample(**sample) for sample in kept["samples"]]
            self.facts = [(name, value) for name, value in kept["facts"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} holds no samples of this program", hint="name another file") from error
        if settings != self._settings:
            different = [name for name, value in self._settings.items() if settings.get(name) != value]
            raise UsageError(
                f"{path} was measured with other settings ({', '.join(different)})", hint="name another file"
            )
        self.samples = samples


def main() -> int:
    args = arguments()
    try:
        return measure(args)
    except KeyboardInterrupt:  # while the programs were built
        ANNOUNCED.print("interrupted; the next call goes on")
        return 130
    except (EdgespecError, CommandError, ValueError, OSError) as error:
        ANNOUNCED.print(f"bench_native: {error}", markup=False)
        return 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model to measure, a chat model")
    parser.add_argument("--draft", help="a draft model for it")
    parser.add_argument("--lengths", default="2,4,8", help="lengths of its drafts in llama.cpp (default: %(default)s)")
    parser.add_argument("--per-kind", type=int, default=2, help="prompts of each of the nine kinds")
    parser.add_argument("--turns", type=int, default=3, help="how often each is answered by everyone")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("-t", "--threads", type=int, default=library.default_threads())
    parser.add_argument("-c", "--context", type=int, default=2048)
    parser.add_argument("--native", default="", help='further arguments of llama-speculative-simple, as "-fa off"')
    parser.add_argument("--json", type=Path, help="keep the samples here, and go on with those that are here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> int:
    model, draft = resolve(args.model).path, resolve(args.draft).path if args.draft else None
    programs, flags = build(SPECULATIVE, BENCH)
    files = {"model": file_of(model), "draft": file_of(draft) if draft else None, "build": programs.parent.parent.name}
    choices = {name: vars(args)[name] for name in ("lengths", "per_kind", "tokens", "threads", "context", "native")}
    session = Session(args.json, {**files, **choices})
    native = Native(programs, model, args.threads, args.context, tuple(shlex.split(args.native)))
    interrupted = False
    try:
        if not session.facts:
            session.facts = facts(native, args, flags)
            session.save()
        run(session, native, args, draft)
    except KeyboardInterrupt:
        interrupted = True
    report = Report(session.samples)
    Console().print(tables(report, session.facts))
    if args.markdown and report.rows:
        args.markdown.write_text(markdown(report, session.facts, command()), encoding="utf-8")
    if interrupted:
        ANNOUNCED.print("interrupted" + (f"; the same command goes on from {args.json}" if args.json else ""))
    return 130 if interrupted else 0


def file_of(model: Path) -> str:
    """Which file it is, without the folder, which names its user."""
    return f"{model.name}, {model.stat().st_size} bytes"


def facts(native: Native, args: argparse.Namespace, flags: str) -> list[tuple[str, str]]:
    """What the figures depend on."""
    speed = native.rates(3)
    return [
        ("CPU", f"{machine()['cpu']}, {args.threads} threads of {os.cpu_count()}"),
        ("native build", flags),
        ("our build", library.build_flags().strip()),
        ("asked", f"{args.per_kind} prompts of each kind, T 0, at most {args.tokens} tokens, context {args.context}"),
        ("llama-bench", f"reads 512 tokens at {speed['read']:.1f}/s, writes 128 at {speed['write']:.1f}/s"),
        *([("native arguments", args.native)] if args.native else []),
    ]


def run(session: Session, native: Native, args: argparse.Namespace, draft: Path | None) -> None:
    """Every prompt by everyone, in turns. Raises CommandError where prompts are not read as the same tokens."""
    lengths = [int(length) for length in args.lengths.split(",")]
    drafting = draft_settings(draft, lengths, args.threads) if draft else {}
    load = LoadSettings(
        str(native.model),
        draft_model=str(draft) if draft else None,
        store=False,
        ctx_size=args.context,
        threads=args.threads,
        threads_batch=args.threads,
    )
    with Runtime(load) as llm:
        asked = list(read_prompts(llm, prompts(args.per_kind), args.tokens))
        answers: dict[str, Callable[[Prompt, int], Sample]] = {
            f"{NATIVE} {name}": native_answer(native, f"{NATIVE} {name}", setting, args.tokens)
            for name, setting in {**SETTINGS, **drafting}.items()
        }
        answers[OWN_PLAIN] = own_answer(llm, OWN_PLAIN, "none")
        answers[OWN_AUTO] = own_answer(llm, OWN_AUTO, "auto")
        answers[OWN_PLAIN](asked[0], 0)  # the first pages of the weights, and what is measured once
        turns = range(args.turns)
        todo = [(turn, prompt, who) for turn in turns for prompt, who in in_turn(asked, list(answers), turn)]
        progress = Progress("measuring")
        done = sum(session.has(who, prompt.item.id, turn) for turn, prompt, who in todo)
        try:
            for turn, prompt, who in todo:
                if not session.has(who, prompt.item.id, turn):
                    progress.show(STARTED, f"{done}/{len(todo)}  {prompt.item.id}, {who}")
                    session.add(answers[who](prompt, turn))
                    done += 1
        finally:
            progress.end()


def in_turn(asked: list[Prompt], everyone: list[str], turn: int) -> Iterator[tuple[Prompt, str]]:
    """Nobody is always the first or always behind the same neighbour's heat: who begins moves on by one."""
    for number, prompt in enumerate(asked):
        first = (number + turn * len(asked)) % len(everyone)
        for who in [*everyone[first:], *everyone[:first]]:
            yield prompt, who


def read_prompts(llm: Runtime, items: list[Item], tokens: int) -> Iterator[Prompt]:
    """The prompts as the model's chat template writes them."""
    template = ChatTemplate(llm.model)
    for item in items:
        messages = (Message("user", item.prompt),)
        request = Request(messages=messages, max_tokens=tokens, sampling=SamplingSettings(temperature=0.0))
        text, ids = template.render(messages), llm.tokenize(request)
        if llm.model.tokenize(text, add_special=True, parse_special=True) != ids:
            raise CommandError(f"{item.id}: the text of the prompt is not read as the tokens of the chat template")
        yield Prompt(item, text, request, len(ids))


def native_answer(native: Native, who: str, setting: tuple[str, ...], tokens: int) -> Callable[[Prompt, int], Sample]:
    def answer(prompt: Prompt, turn: int) -> Sample:
        made = native.answer(prompt.text, tokens, setting)
        if made.prompt_tokens != prompt.n_tokens:
            counts = f"{made.prompt_tokens} tokens, edgespec {prompt.n_tokens}"
            raise CommandError(f"{prompt.item.id}: llama.cpp reads the prompt as {counts}")
        counts_made = (made.prompt_tokens, made.tokens, made.seconds, made.drafted, made.accepted)
        return Sample(who, prompt.item.category, prompt.item.id, turn, *counts_made, made.text)

    return answer


def own_answer(llm: Runtime, who: str, spec_type: str) -> Callable[[Prompt, int], Sample]:
    def answer(prompt: Prompt, turn: int) -> Sample:
        llm.draft_with(spec_type=spec_type)
        llm.forget()
        text = "".join(event.text for event in llm.submit(prompt.request))
        stats = llm.stats
        counts = (prompt.n_tokens, stats.generated_tokens - 1, stats.generation_s, stats.proposed, stats.accepted)
        return Sample(who, prompt.item.category, prompt.item.id, turn, *counts, text)

    return answer


def command() -> str:
    """What was called, without the folders, which name their user."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", "scripts/bench_native.py", *words])


if __name__ == "__main__":
    sys.exit(main())
