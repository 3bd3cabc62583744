"""Measure edgespec and llama.cpp's own speculative decoding on the same prompt tokens, interleaved.

    python scripts/lab/bench_native.py llama-speculative-simple --model model.Q8_0.gguf
    python scripts/lab/bench_native.py llama-speculative-simple --model target.gguf --draft draft.gguf --lengths 2,4,8
    python scripts/lab/bench_native.py llama-speculative-simple --model target.gguf --draft head.gguf

docs/bench.md shows how to build llama.cpp's program from the sources of the installed llama-cpp-python. llama.cpp
decodes with ngram-simple (its defaults; n 3 m 8; n 5 m 24), ngram-mod, and at fixed lengths with the draft model
(draft-simple), the head (draft-eagle3, draft-dflash, draft-dspark; draft-mtp for an assistant) or the MTP block of the
model (draft-mtp). edgespec decodes plainly and with its default drafters, in one process that loads the model once.
Both have the same threads, context and temperature 0, and stop at the end token or after -n tokens.

The speed is tokens decoded per second of their passes, drafting, sampling and text included; loading and reading the
prompt are not counted. llama.cpp counts the pass over the last token of the prompt with the tokens, edgespec with the
prompt, and that pass's token too. llama.cpp's plain decoding is the same loop with a drafter that never finds anything.

The table goes to stdout as Markdown; Ctrl-C shows what was measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import geometric_mean, median

from edgespec.bench.measure import machine
from edgespec.bench.suites import SuitePrompt, sample, shipped
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError
from edgespec.gguf_file.head_check import is_head, kind_of_head, mtp_mismatch
from edgespec.gguf_file.header import read_header
from edgespec.llama import library
from edgespec.llama.template import ChatTemplate
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Message, Request

ENVIRON = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}  # which edgespec sets
NATIVE_PLAIN, OWN_PLAIN, OWN_AUTO = "llama.cpp plain", "edgespec plain", "edgespec auto"
SUITES = {"writing": "writing", "coding": "", "translation": "translation", "summary": "summary", "questions": "chat"}
SUITES |= {"maths": "maths", "retrieval": "summary", "edit": "code_editing", "repeat": "chat"}
KINDS = tuple(SUITES)
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

# Options of llama.cpp's program. It refuses to run without a drafter: the n-gram of 1,024 tokens never matches.
SETTINGS = {
    "plain": "--spec-type ngram-simple --spec-ngram-simple-size-n 1024 --spec-ngram-simple-size-m 1",
    "ngram-simple": "--spec-type ngram-simple",
    "ngram-simple n3 m8": "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8",
    "ngram-simple n5 m24": "--spec-type ngram-simple --spec-ngram-simple-size-n 5 --spec-ngram-simple-size-m 24",
    "ngram-mod": "--spec-type ngram-mod",
}
HEAD_TYPES = {
    "mtp": "draft-mtp",
    "assistant": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}
"""llama.cpp's names of the drafters with weights that its program runs, by ours."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` were decoded in `seconds`, at least one in each pass."""

    prompt_tokens: int
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """The answer to a prompt in one of the ways."""

    who: str
    kind: str
    item: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question, as the text and the number of tokens that both programs read."""

    item: SuitePrompt
    text: str
    request: Request
    n_tokens: int


def main() -> int:
    args = arguments()
    try:
        samples = measured(args)
    except (EdgespecError, OSError) as error:
        print(f"bench_native: {error}", file=sys.stderr)
        return 1
    print(table(samples))
    devices = machine()["gpus"] if args.gpu_layers else []
    where = ", ".join([*devices, machine()["cpu"]])
    print(f"\n{where}, {args.threads} threads of {os.cpu_count()}; {library.build_flags().strip()}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the path of llama.cpp's llama-speculative-simple")
    parser.add_argument("--model", required=True, help="the model to measure, a chat model")
    parser.add_argument("--draft", help="a draft model or a draft head for it")
    parser.add_argument("--lengths", default="2,4,8", help="lengths of its drafts in llama.cpp (default: %(default)s)")
    parser.add_argument("--per-kind", type=int, default=2, help="prompts of each of the nine kinds")
    parser.add_argument("--turns", type=int, default=3, help="how often each prompt is answered in each way")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("-t", "--threads", type=int, default=library.default_threads())
    parser.add_argument("-c", "--context", type=int, default=2048)
    layers = "layers on the GPU in both programs, also of the draft (default: none)"
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=0, help=layers)
    parser.add_argument("--native", default="", help='further arguments of llama-speculative-simple, as "-fa off"')
    return parser.parse_args()


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(args: argparse.Namespace) -> list[Sample]:
    """Answer every prompt in every way, interleaved; Ctrl-C ends this early. Raises EdgespecError."""
    model, draft = resolve(args.model).path, resolve(args.draft).path if args.draft else None
    size, threads = str(args.context), str(args.threads)
    native = [args.program, "-m", str(model), "-c", size, "-b", size, "-t", threads, "-tb", threads]
    # This program generates one token more than requested.
    native += ["-ngl", str(args.gpu_layers)]
    native += ["-n", str(args.tokens - 1), "--temp", "0", "--top-k", "1", *shlex.split(args.native)]
    settings = {name: shlex.split(options) for name, options in SETTINGS.items()}
    for way, length in product(drafts_of(model, draft), args.lengths.split(",")):
        options = [*way, "--spec-draft-n-max", length, "-td", threads, "-ngld", str(args.gpu_layers)]
        settings[f"{way[1]} K={length}"] = options
    load = LoadSettings(
        str(model),
        draft_model=str(draft) if draft else None,
        store=False,
        ctx_size=args.context,
        threads=args.threads,
        threads_batch=args.threads,
        gpu_layers=args.gpu_layers,
        gpu_layers_draft=args.gpu_layers,
    )
    samples: list[Sample] = []
    with Runtime(load) as llm:
        asked = list(read_prompts(llm, prompts(args.per_kind), args.tokens))
        ways: dict[str, Callable[[Prompt], Answer]] = {
            f"llama.cpp {name}": partial(native_answer, [*native, *options]) for name, options in settings.items()
        }
        ways |= {OWN_PLAIN: partial(own_answer, llm, "none"), OWN_AUTO: partial(own_answer, llm, "auto")}
        ways[OWN_PLAIN](asked[0])  # to warm up
        try:
            for number, (turn, prompt) in enumerate(product(range(args.turns), asked)):
                item = prompt.item
                for who in Random(number).sample([*ways], len(ways)):  # none always runs on a hotter CPU
                    print(f"turn {turn + 1} of {args.turns}: {item.id}, {who}", file=sys.stderr)
                    samples.append(Sample(who, item.category, item.id, ways[who](prompt)))
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    return samples


def drafts_of(model: Path, draft: Path | None) -> list[list[str]]:
    """Return the options with which llama.cpp's program drafts, for each draft with weights that it can run: the MTP
    block of the model, and the draft model or head."""
    found = [] if mtp_mismatch(read_header(model)) else [["--spec-type", HEAD_TYPES["mtp"]]]
    if draft is not None:
        header = read_header(draft)
        name = HEAD_TYPES.get(kind_of_head(header), "") if is_head(header) else "draft-simple"
        found += [["--spec-type", name, "-md", str(draft)]] if name else []
    return found


def prompts(per_kind: int) -> list[SuitePrompt]:
    """Return the first prompts of each kind, interleaved, so that an interrupted run has seen all kinds."""
    return sample([item for kind in KINDS for item in _kind(kind)], per_kind)


def _kind(kind: str) -> list[SuitePrompt]:
    if kind == "coding":
        return [SuitePrompt(f"coding-{n:02}", kind, text) for n, text in enumerate(CODING, start=1)]
    items = shipped([SUITES[kind]])
    if kind == "repeat":
        question = "Repeat the following text word for word, without any change:\n\n{}"
        return [SuitePrompt(f"repeat-{n:02}", kind, question.format(i.reference)) for n, i in enumerate(items, start=1)]
    if kind in ("summary", "retrieval"):
        items = [item for item in items if (item.id in FROM_PASSAGES) == (kind == "retrieval")]
    return [SuitePrompt(item.id, kind, item.prompt) for item in items]


def read_prompts(llm: Runtime, items: Sequence[SuitePrompt], tokens: int) -> Iterator[Prompt]:
    """Yield the prompts as the model's chat template writes them."""
    template = ChatTemplate(llm.model)
    for item in items:
        messages = (Message("user", item.prompt),)
        request = Request(messages=messages, max_tokens=tokens, sampling=SamplingSettings(temperature=0.0))
        text, ids = template.render(messages), llm.tokenize(request)
        if llm.model.tokenize(text, add_special=True, parse_special=True) != ids:
            raise EdgespecError(f"{item.id}: the text of the prompt is not read as the tokens of the chat template")
        yield Prompt(item, text, request, len(ids))


def native_answer(command: Sequence[str], prompt: Prompt) -> Answer:
    """Run llama.cpp's program. Raises EdgespecError if it fails or reads the prompt as other tokens."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompt.txt"
        file.write_bytes(prompt.text.encode())
        command = [*command, "-bf", str(file), "--no-escape"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRON)
    out, log = (stream.decode("utf-8", "replace").replace("\r\n", "\n") for stream in (done.stdout, done.stderr))
    if done.returncode:
        last = "\n".join(log.splitlines()[-8:])
        raise EdgespecError(f"{command[0]} ended with {done.returncode}:\n{last}\n{shlex.join(command)}")
    answer = parse_answer(out, log, prompt.text)
    if answer.prompt_tokens != prompt.n_tokens:
        counts = f"{answer.prompt_tokens} tokens, edgespec {prompt.n_tokens}"
        raise EdgespecError(f"{prompt.item.id}: llama.cpp reads the prompt as {counts}")
    return answer


def parse_answer(out: str, log: str, prompt: str) -> Answer:
    """Parse the output of llama.cpp's program. Raises EdgespecError for unexpected output."""
    times = [re.search(rf"{what} +(\d+) tokens in +([\d.]+) seconds", log) for what in ("encoded", "decoded")]
    counts = [re.search(rf"{name} *= (\d+)", log) for name in ("n_drafted", "n_accept")]
    _, begin, text = out.partition(prompt)
    if None in times or None in counts or not begin:
        raise EdgespecError(f"llama.cpp has written something unexpected:\n{out[-400:]}\n{log[-400:]}")
    (prompt_tokens, _), (tokens, seconds) = (time.groups() for time in times if time)
    drafted, accepted = (int(count[1]) for count in counts if count)
    return Answer(int(prompt_tokens), int(tokens), float(seconds), drafted, accepted, text.removesuffix(4 * "\n"))


def own_answer(llm: Runtime, spec_type: str, prompt: Prompt) -> Answer:
    """Answer with edgespec, beginning with empty caches."""
    llm.draft_with(spec_type=spec_type)
    llm.forget()
    text = "".join(event.text for event in llm.submit(prompt.request))
    stats, n_tokens = llm.stats, llm.stats.generated_tokens - 1
    return Answer(prompt.n_tokens, n_tokens, stats.generation_s, stats.proposed, stats.accepted, text)


# --- the table --------------------------------------------------------------------------------------------------------


def table(samples: Sequence[Sample]) -> str:
    """Return a Markdown table of the speed over llama.cpp's plain decoding, by kind and in the geometric mean.

    Prompts that were not answered in every way are left out. "same text" counts the prompts whose text is that of the
    same program's plain decoding.
    """
    # Plain decoding of llama.cpp comes first, edgespec's last two.
    ways = sorted({s.who for s in samples}, key=lambda who: (who.startswith("edgespec"), "plain" not in who, who))
    answered = [{sample.item for sample in samples if sample.who == who} for who in ways]
    items = set[str].intersection(*answered) if NATIVE_PLAIN in ways else set[str]()
    samples = [sample for sample in samples if sample.item in items]
    kinds = {kind: {s.item for s in samples if s.kind == kind} for kind in dict.fromkeys(s.kind for s in samples)}
    rows = []
    for who in ways if items else []:
        own = [sample for sample in samples if sample.who == who]
        ratios = {item: _rate(samples, who, item) / _rate(samples, NATIVE_PLAIN, item) for item in items}
        found = [geometric_mean(ratios[item] for item in of_kind) for of_kind in kinds.values()]
        drafted = sum(sample.answer.drafted for sample in own)
        accepted = f"{sum(sample.answer.accepted for sample in own) / drafted:.0%}" if drafted else ""
        plain = NATIVE_PLAIN if who.startswith("llama.cpp") else OWN_PLAIN
        texts = {sample.item: sample.answer.text.rstrip("\ufffd") for sample in samples if sample.who == plain}
        same = {s.item for s in own if s.answer.text.rstrip("\ufffd") == texts.get(s.item)}
        figures = [f"{ratio:.2f}" for ratio in (*found, geometric_mean(found))]
        cells = [who, *figures, accepted, f"{len(same)}/{len(items)}"]
        rows.append([f"**{cell}**" for cell in cells] if who == OWN_AUTO else cells)
    if items:
        rates = [median(_rate(samples, NATIVE_PLAIN, item) for item in of_kind) for of_kind in kinds.values()]
        rows.append(["tokens/s of 1.00", *(f"{rate:.1f}" for rate in (*rates, geometric_mean(rates))), "", ""])
    header = ["", *kinds, "mean", "accepted", "same text"]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def _rate(samples: Sequence[Sample], who: str, item: str) -> float:
    """Return the median speed of the answers to a prompt. llama.cpp also counts tokens that it has accepted after the
    end of an answer: for an equal text, the tokens of plain decoding count."""
    native = who.startswith("llama.cpp")
    plain = {s.answer.text: s.answer.tokens for s in samples if (s.who, s.item) == (NATIVE_PLAIN, item) and native}
    answers = [s.answer for s in samples if (s.who, s.item) == (who, item)]
    return median(plain.get(answer.text, answer.tokens) / answer.seconds for answer in answers)


if __name__ == "__main__":
    sys.exit(main())
