"""`edgespec draft`: drafts made from a model, trained draft heads, and tables for token recycling."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.commands.tune import measure, show
from edgespec.cli.options.command import Call, Options, command, value_of
from edgespec.cli.options.common import QUIET, option
from edgespec.cli.options.group import Group
from edgespec.cli.options.shared import OFFLINE
from edgespec.cli.options.types import Integer, ModelSpec, Number, Parsed
from edgespec.cli.setup.models import tell_stopped
from edgespec.cli.terminal.output import Output
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError, told_as
from edgespec.files.paths import models_dir
from edgespec.settings import MTP, LoadSettings
from edgespec.text.encodings import decoded
from edgespec.text.figures import clock, count_of, size_of
from edgespec.training.job import KINDS, NGRAM, TOKENS, TOKENS_OF_TABLE, TYPES, Listener, Progress, Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHECK_S = 20

OUT = option(
    "Output", "-o", "--output", "out", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="The file to write.",
)  # fmt: skip
NO_CHECK = option(
    "Output", "--no-check", is_flag=True,
    help="Only write the file: do not measure its acceptance rate and speed with the target.",
)  # fmt: skip
TYPE = option("Output", "--type", type=click.Choice(TYPES), default="Q8_0", help="Type of weights.")
TEXTS = option(
    "Model", "--texts", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="PATH",
    help="Texts whose tokens are kept, files or folders, in place of the target's stored answers. Repeatable.",
)  # fmt: skip
TARGET = option("Model", "--target", type=ModelSpec(), metavar="MODEL", help="The target to draft for.")


def _tokens(text: str) -> int:
    """Return the number of tokens in a text: 16k is 16 * 1024. Raises ValueError."""
    number = text.lower().removesuffix("k")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError("use a number of tokens, such as 16000 or 16k")
    return int(number) * (1024 if text.lower().endswith("k") else 1)


KEPT = option(
    "Model", "--tokens", type=Parsed("integer", _tokens), required=True, metavar="N",
    help="Number of tokens to keep; 16k are 16384.",
)  # fmt: skip


@click.group(cls=Group)
def draft() -> None:
    """Make a draft from a model, or train a draft head for it."""


@draft.command("self", short_help="Write a draft made of a model's first layers, or of smaller weights.")
@click.argument("model", type=ModelSpec())
@click.argument("what", metavar="LAYERS|TYPE")
@OUT
@QUIET
def self_(model: str, what: str, out: Path, quiet: bool) -> None:
    """Write the first LAYERS layers of MODEL, or MODEL with weights of TYPE, such as Q2_K.

    'edgespec run --spec-type self:8' and 'self:Q2_K' make and keep such drafts automatically.
    """
    from edgespec.gguf_file.model_check import check_model
    from edgespec.llama.quantize import lossy_types, quantize
    from edgespec.models.names.spec import resolve
    from edgespec.models.pair.self_draft import slice_layers

    output, source = Output(quiet=quiet), resolve(model).path
    with output.showing_progress():
        if what.isdecimal():
            slice_layers(source, out, int(what), lambda done: output.progress("writing", done))
        else:
            again = bool(lossy_types(check_model(source)))
            if again:
                output.note(f"{model} is quantised already, and loses quality again: acceptable only for a draft")
            quantize(source, out, what, again=again, progress=lambda done: output.progress("quantising", done))
    output.line(f"{out}: {f'the first {what} layers of {model}' if what.isdecimal() else f'{model} as {what.upper()}'}")


ONLY_HEADS = ("minutes", "vocabulary", "type")  # options that a table does not use


# fmt: off
@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    target: str = value_of(click.Argument(["target"], type=ModelSpec(), metavar="MODEL"))
    kind: str = value_of(option(
        "Training", "--kind", type=click.Choice(KINDS), default="eagle3",
        help="Kind of head; ngram: a table for --spec-type recycling.",
    ))
    minutes: float = value_of(option(
        "Training", "--minutes", type=Number(0.01, 1e5), default=60.0, show_default="60", metavar="N",
        help="Time to train, after the answers have been generated.",
    ))
    tokens: int | None = value_of(option(
        "Training", "--tokens", type=Integer(1), show_default=f"{TOKENS}, of ngram {TOKENS_OF_TABLE}", metavar="N",
        help="Tokens of answers to learn from.",
    ))
    vocabulary: int = value_of(option(
        "Training", "--vocab", "vocabulary", type=Integer(16), default=8192,
        help="Number of tokens that the head can draft: the most frequent ones.",
    ))
    block: int = value_of(option(
        "Training", "--block", type=Integer(2, 63), default=4, help="Longest draft of a dspark or dflash head.",
    ))
    type: str = value_of(option(
        "Training", "--type", type=click.Choice(TYPES), default="Q8_0", help="Type of weights.",
    ))
    threads: int = value_of(option(
        "Training", "-t", "--threads", type=Integer(0, 512), default=0, show_default="cores", help="CPU threads.",
    ))
    prompts: tuple[Path, ...] = value_of(option(
        "Prompt", "--prompts", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="FILE",
        help="Prompts to start with (.jsonl), texts to ask about (.txt, .md), or a folder. Repeatable.",
    ))
    out: Path = value_of(OUT)
    work: Path | None = value_of(option(
        "Output", "--work", type=click.Path(path_type=Path, file_okay=False), show_default="in the cache",
        metavar="FOLDER", help="Folder for answers and checkpoints.",
    ))
# fmt: on


@command(TrainOptions, QUIET, group=draft, short_help="Train a draft head for a model on the model's own answers.")
def train(call: Call[TrainOptions]) -> None:
    """Train a draft head for MODEL from scratch, and write a file for -md.

    The model answers bundled prompts and prompts that it writes itself. The head learns to predict these answers. Then
    its acceptance rate is measured. Ctrl-C stops, and the same command resumes. Needs PyTorch.

    --kind ngram counts instead of training, and does not need PyTorch. No option takes its file: token recycling reads
    it if it is next to the model, or in edgespec's folder of models ('edgespec doctor' shows where).
    """
    from edgespec.training.pipeline import train_head

    settings, output = _training(call), call.output

    def show_step(progress: Progress) -> None:
        budget_s = settings.minutes * 60
        done_s = min(progress.elapsed_s, budget_s)  # the last step may end later
        accepted = f", accepted {progress.acceptance}" if progress.acceptance.greedy else ""
        what = f"training: loss {progress.loss:.2f}{accepted}, {clock(budget_s - done_s)} left"
        output.progress(what, done_s / budget_s)

    with output.showing_progress(), call.cancelling() as cancel:
        result = train_head(settings, Listener(output.note, output.progress, show_step, cancel))
    if result is None:
        output.note("stopped; the same command resumes")
        call.interrupts.raise_if_received()
        return
    greedy, out, is_table = result.progress.acceptance.greedy, settings.out, settings.kind == NGRAM
    output.line(f"{out}: {size_of(result.size_bytes)}, trained on {count_of(result.tokens)} tokens")
    shares = ", ".join(f"{share:.0%}" for share in greedy)
    output.line(f"Drafts of 1, 2, ... tokens for held-out answers are accepted completely in {shares}")
    output.line(f"Drafts of {len(greedy)} tokens give {1 + sum(greedy):.2f} tokens per step")
    if is_table and out.resolve().parent not in (models_dir().resolve(), settings.target.resolve().parent):
        output.line(f"Move it to {models_dir()} or to the folder of the model, where recycling finds it")
    drafter = ["--spec-type", "recycling"] if is_table else ["-md", str(out), "--spec-type", settings.kind]
    tune = shlex.join(["edgespec", "tune", call.options.target, *drafter])
    output.line(f"Measure its speedup on this machine with: {tune}")


def _training(call: Call[TrainOptions]) -> Settings:
    """Return the settings of the job. Raises UsageError for options that its kind does not use."""
    from edgespec.datastore.successor_store import SUFFIX
    from edgespec.gguf_file.head_check import BLOCK_DRAFTERS
    from edgespec.models.names.spec import resolve

    options, is_table = call.options, call.options.kind == NGRAM
    unused = (*(ONLY_HEADS if is_table else ()), *(() if options.kind in BLOCK_DRAFTERS else ("block",)))
    for typed in call.typed_options():
        if typed.name in unused:
            raise UsageError(f"--kind {options.kind} does not use {typed.opts[0]}", hint="leave it out")
    if is_table and options.out.suffix != SUFFIX:
        raise UsageError(f"{options.out} does not end with {SUFFIX}", why="recycling would not find it")
    return Settings(
        resolve(options.target).path,
        options.out,
        kind=options.kind,
        minutes=options.minutes,
        tokens=options.tokens or (TOKENS_OF_TABLE if is_table else TOKENS),
        vocabulary=options.vocabulary,
        block=options.block,
        type=options.type,
        work=options.work,
        prompts=options.prompts,
        threads=options.threads,
    )


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    head: str = value_of(click.Argument(["head"], metavar="HEAD"))
    target: str = value_of(click.Argument(["target"], type=ModelSpec(), metavar="MODEL"))
    type: str = value_of(TYPE)
    out: Path = value_of(OUT)
    no_check: bool = value_of(NO_CHECK)


@command(ConvertOptions, OFFLINE, QUIET, group=draft)
def convert(call: Call[ConvertOptions]) -> None:
    """Convert a published draft head to a file for MODEL.

    HEAD is a folder, or a repository of the hub (owner/name), with config.json and .safetensors files: an EAGLE-3,
    EAGLE-3.1 or P-EAGLE head of its authors, of SpecForge, NeMo or speculators, a DFlash or a DSpark draft. Then the
    acceptance rate and the speed are measured, as 'edgespec tune' does.
    """
    from edgespec.gguf_file.head_check import kind_of_head
    from edgespec.gguf_file.header import read_header
    from edgespec.gguf_file.model_check import check_model
    from edgespec.models.names.spec import resolve
    from edgespec.models.pair.convert import convert_head

    options, out, output = call.options, call.options.out, call.output
    target = check_model(resolve(options.target).path)
    folder = _published(options.head, call)
    with output.showing_progress():
        convert_head(folder, target, out, options.type, lambda done: output.progress("converting", done))
    head = read_header(out)
    kind = kind_of_head(head)
    output.line(f"{out}: {kind}, {count_of(head.n_params)} parameters, {size_of(out.stat().st_size)}")
    if not options.no_check:
        _check(call, options.target, out, kind)


def _published(head: str, call: Call[Options]) -> Path:
    """Return the folder of a published head, which is downloaded if it is a repository."""
    from edgespec.models.hub.pulling import fetch_head
    from edgespec.models.names.source import is_path

    folder = Path(head)
    if folder.is_dir() or is_path(head):
        return folder
    with call.output.showing_progress(), call.cancelling() as cancel:
        item = fetch_head(head, call.output, cancel)
    tell_stopped([item], call.output)
    call.interrupts.raise_if_received()
    return item.path or folder


@dataclass(frozen=True, kw_only=True)
class GraftOptions(Options):
    base: str = value_of(click.Argument(["base"], type=ModelSpec()))
    finetune: str = value_of(click.Argument(["finetune"], type=ModelSpec()))
    out: Path = value_of(OUT)
    no_check: bool = value_of(NO_CHECK)


@command(GraftOptions, QUIET, group=draft)
def graft(call: Call[GraftOptions]) -> None:
    """Put a base model's MTP block into its fine-tune.

    Many fine-tunes lack the block for multi-token prediction that their base model has. The block of the base model
    also drafts for them. Both need the same architecture and dimensions; their quantisations may differ. Then the
    acceptance rate and the speed are measured, as 'edgespec tune' does.
    """
    from edgespec.gguf_file.model_check import check_model
    from edgespec.models.names.spec import resolve
    from edgespec.models.pair.graft import graft as put

    options, out, output = call.options, call.options.out, call.output
    base, finetune = (check_model(resolve(name).path) for name in (options.base, options.finetune))
    with output.showing_progress():
        put(base, finetune, out, lambda done: output.progress("writing", done))
    output.line(f"{out}: {finetune.path.name} with the MTP block of {base.path.name}, {size_of(out.stat().st_size)}")
    if not options.no_check:
        _check(call, str(out), None, MTP)


@dataclass(frozen=True, kw_only=True)
class TrimOptions(Options):
    draft: str = value_of(click.Argument(["draft"], type=ModelSpec()))
    tokens: int = value_of(KEPT)
    target: str | None = value_of(TARGET)
    texts: tuple[Path, ...] = value_of(TEXTS)
    out: Path = value_of(OUT)
    no_check: bool = value_of(NO_CHECK)


@command(TrimOptions, QUIET, group=draft)
def trim(call: Call[TrimOptions]) -> None:
    """Write a draft model or head with fewer tokens.

    Its passes are faster. Kept are the tokens that are frequent in the target's stored answers, and those with the
    lowest ids. The target verifies the drafts, so no text changes. With --target, which a head needs, the acceptance
    rate and the speed are measured, as 'edgespec tune' does.
    """
    from edgespec.gguf_file.head_check import (
        check_draft_file,
        check_head_fits,
        is_head,
        kind_of_head,
        n_draft_tokens,
    )
    from edgespec.gguf_file.model_check import check_model
    from edgespec.models.names.spec import resolve
    from edgespec.models.pair.trim import trim as cut
    from edgespec.models.pair.trim import trim_head

    options, out, output = call.options, call.options.out, call.output
    draft = check_draft_file(resolve(options.draft).path)
    if is_head(draft) and not options.target:
        raise UsageError(
            f"{draft.path.name} is a draft head", hint="name the model that it drafts for (--target MODEL)"
        )
    target = check_model(resolve(options.target).path) if options.target else draft
    if is_head(draft):
        check_head_fits(target, draft)
    with output.showing_progress():
        output.progress("counting tokens", None)
        counts = _counts(target.path, options.texts, call)
        write = trim_head if is_head(draft) else cut
        write(draft, target, out, options.tokens, counts, lambda done: output.progress("writing", done))
    total = n_draft_tokens(draft) if is_head(draft) else draft.n_vocab
    output.line(f"{out}: {options.tokens} of {total} tokens, {size_of(out.stat().st_size)}")
    if options.target and not options.no_check:
        _check(call, options.target, out, kind_of_head(draft) or "draft")


def _counts(target: Path, texts: Sequence[Path], call: Call[Options]) -> NDArray[np.int64]:
    """Return how often each token of the target occurs in texts or, without any, in its stored answers."""
    import numpy as np

    from edgespec.datastore.answer_store import AnswerStore
    from edgespec.datastore.corpus import text_files
    from edgespec.llama.model import LlamaModel

    with LlamaModel.load_vocabulary(target) as model:
        counts = np.zeros(model.n_vocab, np.int64)
        for file in text_files(texts):
            with told_as(UsageError, f"{file} cannot be read"):
                ids = model.tokenize(decoded(file.read_bytes(), "replace"))
                counts += np.bincount(np.array(ids, np.int64), minlength=model.n_vocab)
        if not texts:
            counts += AnswerStore(model.vocabulary_id, target.name, call.output.note).counts(model.n_vocab)
    if not counts.any():
        call.output.note("no text was counted: the tokens with the lowest ids are kept")
    return counts


def _check(call: Call[Options], model: str, draft: Path | None, drafter: str) -> None:
    """Draft with the new file for the target, and show what `edgespec tune` finds."""
    settings = LoadSettings(model, draft_model=str(draft) if draft else None, spec_type=drafter)
    show(call, measure(call, settings, CHECK_S, SamplingSettings(temperature=0.0), only_named=True))
    call.interrupts.raise_if_received()
