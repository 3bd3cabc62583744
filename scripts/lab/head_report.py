"""The parts of `device_report.py` about draft heads: whether texts and drafts are right, and what drafts cost.

Texts and drafts are checked with tiny files of random weights, one for each kind of head: what they write has no
meaning, but a mistake in a head's graph, in its cache or in verification shows in them as in large ones. Costs are
measured with models that have the shapes of published ones, and random weights too.

Drafts are compared with those of llama.cpp's own program, token by token. Both decode the same prompt greedily with
drafts of the same length. llama.cpp's llama-speculative-simple logs its drafts with `-v`. Drafts after the same number
of tokens of the same text are compared.

In two ways edgespec drafts otherwise on purpose, which is undone for the comparison. llama.cpp gives an MTP block a
cell for the first token of a text, with zeros for the state before it; blocks are trained without such a cell
(DeepSeek-V3, arXiv 2412.19437, section 2.2), and edgespec leaves it out. And of several blocks, every eighth draft is
the first one's alone in edgespec.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bench_shapes
import numpy as np
from bench_native import ENVIRON, drafts_of
from bench_shapes import Figures
from check_texts import MODES, answers, requests
from numpy.typing import NDArray
from shapes import SHAPES

import edgespec
from edgespec.bench.summary import CostCurve
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.chained import ChainedDrafter
from edgespec.drafters.head import HeadDrafter
from edgespec.drafters.states import Features
from edgespec.errors import EdgespecError
from edgespec.llama.library import gpus
from edgespec.llm.info import ModelInfo
from edgespec.runtime.runtime import Runtime
from edgespec.settings import MTP, Request
from edgespec.text.figures import counted, size_of

SUPPORT = Path(__file__).parents[2] / "tests/support"
WIDTHS = tuple(range(1, 9))
TEXT_MODES = ("chains, auto", "chains of 6", "trees of 6")  # of check_texts.py
LENGTHS = (50, 150, 300)  # tokens of context, roughly
PAYING = (1, 2, 3, 5, 7)  # draft lengths for which the acceptance rate is shown that pays off
DRAFT_LENGTHS = (3, 5)  # of the drafts that are compared with llama.cpp's
PROMPTS = tuple("def the class for x in the list: return the one, or print it. " * times for times in (1, 3, 8))
N_CTX, ANSWER = 1024, 40
#: An F32 cache without flash attention: rounding then hardly ever decides about a draft token.
PRECISE: dict[str, object] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off", "threads": 1}


@dataclass(slots=True)
class Pair:
    """A tiny target and its head; None: the MTP block in the file of the target."""

    kind: str
    about: str
    target: Path
    head: Path | None


@dataclass(slots=True)
class Checked:
    """The results of the checks of one pair.

    Attributes:
        exact: how exact passes with drafts are on this device
        texts: by mode, how many texts are equal to plain decoding's, and how many there are
        native: the comparison with llama.cpp's program; None if that does not run the head, or `why` it failed
    """

    pair: Pair
    exact: str = ""
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)
    native: Agreement | None = None
    why: str = ""

    @property
    def is_equal(self) -> bool:
        return all(equal == count for equal, count in self.texts.values())


def tiny_pairs(folder: Path) -> Iterator[Pair]:
    """Yield a tiny target with each kind of head."""
    sys.path.insert(0, str(SUPPORT))
    from tiny_assistant import write_assistant, write_gemma4
    from tiny_gguf import CHATML, write_model
    from tiny_head import write_block_drafter, write_head, write_networks, write_peagle
    from tiny_mtp import write_mtp

    llama = write_model(folder / "llama.gguf", "llama", n_layers=4, chat_template=CHATML)
    qwen35 = write_model(folder / "qwen35.gguf", "qwen35", n_layers=4, chat_template=CHATML)
    n_vocab = edgespec.gguf_file.model_check.check_model(llama).n_vocab
    yield Pair("eagle3", "llama", llama, write_head(folder / "eagle3.gguf"))
    eagle1 = write_head(folder / "eagle1.gguf", reads_state=True, n_vocab=n_vocab)
    yield Pair("eagle1", "llama", llama, eagle1)
    yield Pair("peagle", "llama", llama, write_peagle(folder / "peagle.gguf"))
    for kind in ("dflash", "dspark", "dflash2"):
        yield Pair(kind, "llama", llama, write_block_drafter(folder / f"{kind}.gguf", kind))
    hybrid = write_block_drafter(folder / "hybrid.gguf", "dflash", architecture="qwen35")
    yield Pair("dflash", "qwen35", qwen35, hybrid)
    for kind in ("hydra", "medusa"):
        yield Pair(kind, "llama", llama, write_networks(folder / f"{kind}.gguf", kind, n_vocab=n_vocab))
    for architecture in ("qwen35", "glm4moe", "deepseek2", "nemotron_h_moe"):
        yield Pair("mtp", architecture, write_mtp(folder / f"mtp-{architecture}.gguf", architecture), None)
    yield Pair("mtp", "mimo2, 3 blocks", write_mtp(folder / "mtp-mimo2.gguf", "mimo2", n_blocks=3), None)
    assistant = write_assistant(folder / "assistant.gguf")
    yield Pair("assistant", "gemma4", write_gemma4(folder / "gemma4.gguf"), assistant)


def checked(pair: Pair, program: str | None) -> Checked:
    """Compare texts with those of plain decoding, and drafts with those of llama.cpp's program."""
    found = Checked(pair)
    args = argparse.Namespace(prompts=len(LENGTHS), n=ANSWER, c=N_CTX)
    layers = "all" if gpus() else 0
    common: dict[str, Any] = {"store": False, "ctx_size": N_CTX, "gpu_layers": layers, "gpu_layers_draft": layers}
    drafting: dict[str, Any] = {"spec_type": kind_of(pair), "draft_model": str(pair.head) if pair.head else None}
    plain: dict[str, list[list[int]]] = {}
    try:
        for mode in TEXT_MODES:
            how, beside = MODES[mode]
            if str(beside) not in plain:
                with edgespec.load(str(pair.target), spec_type="none", **common | beside) as llm:
                    plain[str(beside)] = answers(llm, requests(llm, args, LENGTHS))
            with edgespec.load(str(pair.target), **common | drafting | how) as llm:
                texts = answers(llm, requests(llm, args, LENGTHS))
                about = llm.info
            equal = sum(one == other for one, other in zip(texts, plain[str(beside)], strict=True))
            found.texts[mode] = equal, len(texts)
        found.exact = described(about)
        if program is not None:
            found.native = drafts_compared(pair, program, common | drafting)
    except EdgespecError as error:
        found.why = error.line
    return found


def kind_of(pair: Pair) -> str:
    """Return the drafter of a pair as `--spec-type` takes it."""
    return "dflash" if pair.kind == "dflash2" else pair.kind


def described(info: ModelInfo) -> str:
    """Return how exact passes are, from what a loaded model says about itself."""
    if info.width_class:
        return "passes of {} to {} tokens".format(*info.width_class)
    return "all widths" if info.exact else f"no: {info.rounding:.1g} apart" if info.rounding else "unknown"


def drafts_compared(pair: Pair, program: str, settings: dict[str, Any]) -> Agreement | None:
    """Compare drafts with those of llama.cpp's program; None if it does not run this head."""
    options = drafts_of(pair.target, pair.head)
    if not options:
        return None
    found = Agreement()
    for length in DRAFT_LENGTHS:
        with edgespec.load(str(pair.target), **settings | PRECISE | {"pace": f"fixed:{length}"}) as llm:
            for prompt in PROMPTS:
                found += agreement(llm, program, pair.target, options[-1], prompt, length, ANSWER)
    return found


# --- the sections -----------------------------------------------------------------------------------------------------


def of_heads(found: Sequence[Checked], program: str | None) -> Iterator[str]:
    """Yield the section about texts and drafts."""
    yield "## Texts and drafts of each kind of head\n"
    yield (
        f"Tiny models with random weights. Each gave {2 * len(LENGTHS)} answers of {ANSWER} tokens, half of them at "
        f"temperature 0 and half at 0.8, to prompts of {min(LENGTHS)} to {max(LENGTHS)} tokens: plainly, and with "
        "drafts of its head. Columns count answers whose tokens are all those of plain decoding. All must be, unless "
        "passes are not exact on this device (column 'equal bits')."
    )  # fmt: skip
    if program:
        yield (
            f'\n"llama.cpp" counts drafts of {" and ".join(map(str, DRAFT_LENGTHS))} tokens that are the same, token '
            "by token, as those of llama.cpp's own program for the same text at temperature 0. Single differences come "
            "from rounding; many are a mistake in one of the two programs. A dash: the program has no such drafter; "
            "'not logged': it does not log the drafts of this head. MTP blocks were given llama.cpp's cell for the "
            "first token of a text, which edgespec leaves out otherwise (scripts/lab/head_report.py)."
        )
    else:
        yield "\nSkipped: drafts were not compared with llama.cpp's program, since none was given (--native)."
    yield ""
    rows = [["head", "target", "equal bits", *TEXT_MODES, "llama.cpp"]]
    for each in found:
        texts = [
            f"{each.texts[mode][0]} of {each.texts[mode][1]}" if mode in each.texts else "-" for mode in TEXT_MODES
        ]
        native = "-" if each.native is None else f"{each.native.equal} of {each.native.compared}"
        if each.native is not None and not each.native.compared:
            native = "not logged"
        rows.append([each.pair.kind, each.pair.about, each.exact or "-", *texts, native])
    yield from table(rows)
    failed = [each for each in found if each.why]
    yield from (f"\n{each.pair.kind} ({each.pair.about}) failed: {each.why}" for each in failed)


def measured(names: Sequence[str], repeat: int, gpu_layers: Any) -> dict[str, Figures]:
    """Measure models of these shapes."""
    found = {}
    for name in names:
        print(f"head_report: measuring {name}", file=sys.stderr)
        found[name] = bench_shapes.measured(SHAPES[name], WIDTHS, repeat, gpu_layers=gpu_layers)
    return found


def pays_from(figures: Figures, cost: float, length: int) -> str:
    """Return the acceptance rate from which drafts of a length pay off, if a draft token costs `cost` passes."""
    costs = {width: max(1.0, figures.ratio(width)) for width in WIDTHS}
    rate = CostCurve(figures.passes_s[1], costs, None).break_even(length, length * cost)
    return "never" if rate is None else f"{100 * rate:.0f} %"


def of_shapes(found: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the section about costs."""
    yield "## What passes and drafts cost\n"
    yield (
        "Models with the shapes of published ones and random weights of the types of Q4_K_M, as far as they have them. "
        "t(n) is the time of a pass of the target over n tokens in units of t(1). A draft token costs a pass of the "
        "head in the same unit: with its whole output, or with the rows of 32,768 tokens (\"trimmed\", on CPUs only). "
        "The memory is the main memory of the process."
    )  # fmt: skip
    yield ""
    rows = [["model", "file", "load, s", "memory", "t(1), ms", *(f"t({width})" for width in WIDTHS[1:])]]
    for name, each in found.items():
        sizes = [size_of(each.size_bytes), f"{each.loaded_s:.1f}", size_of(each.memory_bytes)]
        rows.append(
            [name, *sizes, f"{1000 * each.passes_s[1]:.2f}", *(f"{each.ratio(width):.2f}" for width in WIDTHS[1:])]
        )
    yield from table(rows)
    yield "\nAnd from which acceptance rate drafts of K tokens pay off, if nothing else takes time:\n"
    rows = [["model", "head", "cost of a draft token", *(f"K = {length}" for length in PAYING)]]
    for name, each in found.items():
        for way, cost in each.drafts.items():
            rows.append([name, way, f"{cost:.3f}", *(pays_from(each, cost, length) for length in PAYING)])
    yield from table(rows)


def of_overlap() -> Iterator[str]:
    """Yield the section about a draft model that drafts while the target verifies."""
    yield "## Overlap of target and draft model\n"
    if not gpus():
        yield (
            "Skipped: only a draft model on another device than its target drafts ahead, and there is no GPU. Heads "
            "never do: they need the states that the target is computing."
        )
        return
    settings: dict[str, Any] = {
        "spec_type": "draft", "pace": "fixed:4", "gpu_layers": "all", "gpu_layers_draft": 0, "store": False,
    }  # fmt: skip
    rows = [["overlap", "tokens/s", "drafts made ahead", "of these used"]]
    for overlap in ("off", "on"):
        with edgespec.load("demo", overlap=overlap, **settings) as llm:
            for _ in range(2):  # the first answer warms up
                llm.forget()
                llm.complete(PROMPTS[0], max_tokens=128, temperature=0.0, ignore_eos=True)
            source = llm.stats.by_source["draft"]
            rows.append([overlap, f"{llm.stats.tokens_per_s:.0f}", str(source.ahead), str(source.overlapped)])
    yield "The bundled pair, the target on the GPU and the draft model on the CPU, drafts of four tokens:\n"
    yield from table(rows)


def conclusions(found: Sequence[Checked], shapes: Mapping[str, Figures], program: str | None) -> Iterator[str]:
    """Yield what follows from texts, drafts and costs, a line for each conclusion."""
    yield from _of_texts(found)
    yield from _of_drafts(found, program)
    for name, each in shapes.items():
        for way, cost in each.drafts.items():
            rate = pays_from(each, cost, 1)
            pays = "never pay off" if rate == "never" else f"pay off if more than {rate} are accepted"
            yield f"{name}, {way}: drafts of one token {pays}"
    for checked_ in found:
        if checked_.why:
            yield f"{checked_.pair.kind} ({checked_.pair.about}) could not be checked"


def _of_texts(found: Sequence[Checked]) -> Iterator[str]:
    wrong = [each for each in found if not each.is_equal and each.exact == "all widths"]
    for each in wrong:
        yield f"texts with {each.pair.kind} ({each.pair.about}) differ although passes are exact: a mistake to report"
    rounded = [each for each in found if not each.is_equal and each not in wrong and each.texts]
    if rounded:
        names = ", ".join(f"{each.pair.kind} ({each.pair.about})" for each in rounded)
        yield f"texts with {names} differ, and passes are not exact on this device: rounding can explain that"
    right = [each for each in found if each.is_equal and each.texts]
    if right and not wrong and not rounded:
        yield f"all texts with {counted(len(right), 'head')} are those of plain decoding"


def _of_drafts(found: Sequence[Checked], program: str | None) -> Iterator[str]:
    compared_ = [each for each in found if each.native is not None and each.native.compared]
    for each in compared_:
        assert each.native is not None
        if each.native.equal < each.native.compared:
            share = each.native.equal / each.native.compared
            verdict = "rounding can explain that" if share > 0.9 else "the two programs compute something else"
            yield f"{each.pair.kind} ({each.pair.about}): {share:.0%} of the drafts are llama.cpp's, {verdict}"
    if program and compared_ and all(each.native and each.native.equal == each.native.compared for each in compared_):
        total = sum(each.native.compared for each in compared_ if each.native)
        yield f"all {total} drafts of {counted(len(compared_), 'head')} are the same as llama.cpp's, token by token"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, whose first row is the header."""
    rule = ["---", "---", *["---:"] * (len(rows[0]) - 2)]
    return (f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


# --- drafts of llama.cpp's program ------------------------------------------------------------------------------------


CANDIDATE = re.compile(r"draft candidate +0, pos +(\d+): +(\d+) ")
ACCEPTED = re.compile(r"accepted (\d+)/\d+ draft tokens, the last target token is: \((\d+)\)")
OPTIONS = "-fa off -ctk f32 -ctv f32 -ctkd f32 -ctvd f32 --ignore-eos -t 1 -v"  # as `PRECISE`; and the log has drafts
TIMEOUT_S = 300

Drafts = dict[int, list[int]]
"""Drafts by the number of tokens before them, those of the prompt included."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The numbers of drafts at the same places that were compared, and that were equal."""

    compared: int = 0
    equal: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.compared + other.compared, self.equal + other.equal)


def agreement(
    llm: Runtime, program: str, model: Path, options: Sequence[str], prompt: str, length: int, n_tokens: int
) -> Agreement:
    """Compare the drafts for one prompt. `llm` drafts with one drafter and `fixed:length`; `options` make the program
    draft with the same head. Raises EdgespecError if the program fails."""
    ids = llm.model.tokenize(prompt, add_special=True, parse_special=True)
    with as_llama_cpp() if llm.settings.spec_type == MTP else nullcontext():
        own, answer = own_drafts(llm, ids, n_tokens)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompt.txt"
        file.write_bytes(prompt.encode())
        command = [program, "-m", str(model), *options, "--spec-draft-n-max", str(length), "-bf", str(file)]
        command += ["--no-escape", "-c", str(llm.context.n_ctx), "-n", str(n_tokens), "--temp", "0", "--top-k", "1"]
        command += OPTIONS.split()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRON, timeout=TIMEOUT_S, check=False
        )
    log = (done.stderr + done.stdout).decode("utf-8", "replace")
    if done.returncode:
        raise EdgespecError(f"{Path(program).name} ended with {done.returncode}", why=last_error(log))
    native, tokens = parse_drafts(log, len(ids))
    end = len(ids) + common(answer, tokens)
    return compared(own, native, length, end)


def compared(own: Drafts, native: Drafts, length: int, end: int) -> Agreement:
    """Compare whole drafts of this length at places before `end`, where the texts begin to differ."""
    places = [at for at in own.keys() & native.keys() if at <= end]
    pairs = [(own[at], native[at]) for at in places if len(own[at]) == len(native[at]) == length]
    return Agreement(len(pairs), sum(ours == theirs for ours, theirs in pairs))


def parse_drafts(log: str, n_prompt: int) -> tuple[Drafts, list[int | None]]:
    """Return the drafts in a log of llama.cpp's program, and the tokens of its answer; None where the log lacks one,
    after a draft that a recurrent memory had to verify again."""
    drafts: Drafts = {}
    answer: list[int | None] = []
    draft: list[int] = []
    for line in log.splitlines():
        if found := CANDIDATE.search(line):
            place, token = int(found[1]), int(found[2])
            draft = [*draft, token] if place else [token]
        elif found := ACCEPTED.search(line):
            n_accepted = int(found[1])
            if draft:
                drafts[n_prompt + len(answer)] = draft
            known = [*draft, *[None] * n_accepted][:n_accepted]
            answer += [*known, int(found[2])]
            draft = []
    return drafts, answer


def own_drafts(llm: Runtime, ids: Sequence[int], n_tokens: int) -> tuple[Drafts, list[int]]:
    """Return the drafts and the answer of edgespec."""
    llm.forget()
    request = Request(
        prompt_tokens=tuple(ids), max_tokens=n_tokens, sampling=SamplingSettings(temperature=0.0), ignore_eos=True
    )
    with spied(llm) as drafts:
        answer = [event.id for event in llm.submit(request) if event.id >= 0]
    return drafts, answer


@contextmanager
def as_llama_cpp() -> Iterator[None]:
    """Let MTP blocks draft as llama.cpp's do within this block: cell P holds token P with the state before it."""
    rows, drop = Features.rows, Features.drop

    def shifted_rows(features: Features, start: int, n: int) -> NDArray[np.float32]:
        if start:
            return rows(features, start - 1, n)
        known = rows(features, 0, max(1, n - 1))
        return np.concatenate([np.zeros_like(known[:1]), known[: n - 1]])

    def shifted_drop(features: Features, end: int) -> None:
        drop(features, max(0, end - 1))

    with (
        patch.object(HeadDrafter, "_text", lambda drafter, sequence: sequence.tokens),
        patch.object(ChainedDrafter, "_chains", lambda drafter, growing: True),
        patch.object(Features, "rows", shifted_rows),
        patch.object(Features, "drop", shifted_drop),
    ):
        yield


@contextmanager
def spied(llm: Runtime) -> Iterator[Drafts]:
    """Collect the drafts of the only drafter within this block."""
    [drafter] = llm.engine.speculator.drafters
    propose, found = drafter.propose, Drafts()

    def observed(sequences: Sequence[Any], budgets: Sequence[Any]) -> list[Any]:
        made = propose(sequences, budgets)
        for sequence, draft in zip(sequences, made, strict=True):
            found[len(sequence.tokens)] = [*draft.tokens]
        return made

    drafter.propose = observed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        drafter.propose = propose  # type: ignore[method-assign]


def common(own: Sequence[int], native: Sequence[int | None]) -> int:
    """Return how many tokens the answers have in common at their beginning."""
    for number, (ours, theirs) in enumerate(zip(own, native, strict=False)):
        if theirs is not None and ours != theirs:
            return number
    return min(len(own), len(native))


def last_error(log: str) -> str:
    """Return the last line of a log that is about an error, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "failed" in line.lower() or "assert" in line.lower()]
    return (errors or lines or ["no output"])[-1][:200]
