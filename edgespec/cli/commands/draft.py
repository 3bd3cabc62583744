"""`edgespec draft`: drafts made from a model, trained draft heads, and tables for token recycling."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from edgespec.cli.commands.draft_making import OUT, convert, graft, trim
from edgespec.cli.options.command import Call, Command
from edgespec.cli.options.common import QUIET, option
from edgespec.cli.options.group import Group
from edgespec.cli.options.types import Integer, ModelSpec, Number
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.files.paths import models_dir
from edgespec.text.figures import clock, count_of, size_of
from edgespec.training.job import KINDS, NGRAM, TOKENS, TOKENS_OF_TABLE, TYPES, Listener, Progress, Settings


@click.group(cls=Group)
def draft() -> None:
    """Make a draft from a model, or train a draft head for it."""


for command in (convert, graft, trim):
    draft.add_command(command)


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
TRAINING = [
    option(
        "Training", "--kind", type=click.Choice(KINDS), default="eagle3",
        help="Kind of head; ngram: a table for --spec-type recycling.",
    ),
    option(
        "Training", "--minutes", type=Number(0.01, 1e5), default=60.0, show_default="60", metavar="N",
        help="Time to train, after the answers have been generated.",
    ),
    option(
        "Training", "--tokens", type=Integer(1), show_default=f"{TOKENS}, of ngram {TOKENS_OF_TABLE}", metavar="N",
        help="Tokens of answers to learn from.",
    ),
    option(
        "Training", "--vocab", "vocabulary", type=Integer(16), default=8192,
        help="Number of tokens that the head can draft: the most frequent ones.",
    ),
    option(
        "Training", "--block", type=Integer(2, 63), default=4, help="Longest draft of a dspark or dflash head.",
    ),
    option("Training", "--type", type=click.Choice(TYPES), default="Q8_0", help="Type of weights."),
    option("Training", "-t", "--threads", type=Integer(0, 512), default=0, show_default="cores", help="CPU threads."),
    option(
        "Prompt", "--prompts", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="FILE",
        help="Prompts to start with (.jsonl), texts to ask about (.txt, .md), or a folder. Repeatable.",
    ),
    OUT,
    option(
        "Output", "--work", type=click.Path(path_type=Path, file_okay=False), show_default="in the cache",
        metavar="FOLDER", help="Folder for answers and checkpoints.",
    ),
    QUIET,
]
# fmt: on


@draft.command(cls=Command, params=TRAINING, short_help="Train a draft head for a model on the model's own answers.")
@click.argument("target", type=ModelSpec(), metavar="MODEL")
def train(call: Call) -> None:
    """Train a draft head for MODEL from scratch, and write a file for -md.

    The model answers bundled prompts and prompts that it writes itself. The head learns to predict these answers. Then
    its acceptance rate is measured. Ctrl-C stops, and the same command resumes. Needs PyTorch.

    --kind ngram counts instead of training, and does not need PyTorch. No option takes its file: token recycling reads
    it if it is next to the model, or in edgespec's folder of models ('edgespec doctor' shows where).
    """
    from edgespec.datastore.successor_store import SUFFIX
    from edgespec.gguf_file.head_check import BLOCK_DRAFTERS
    from edgespec.models.names.spec import resolve
    from edgespec.training.pipeline import train_head

    output, out = call.output, call.values["out"]
    given = {name: value for name, value in call.values.items() if name != "quiet"}
    is_table = given["kind"] == NGRAM
    unused = (*(ONLY_HEADS if is_table else ()), *(() if given["kind"] in BLOCK_DRAFTERS else ("block",)))
    for typed in call.typed_options():
        if typed.name in unused:
            raise UsageError(f"--kind {given['kind']} does not use {typed.opts[0]}", hint="leave it out")
    if is_table and out.suffix != SUFFIX:
        raise UsageError(f"{out} does not end with {SUFFIX}", why="recycling would not find it")
    given["tokens"] = given["tokens"] or (TOKENS_OF_TABLE if is_table else TOKENS)
    settings = Settings(**given | {"target": resolve(given["target"]).path})

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
    greedy = result.progress.acceptance.greedy
    output.line(f"{out}: {size_of(result.size_bytes)}, trained on {count_of(result.tokens)} tokens")
    shares = ", ".join(f"{share:.0%}" for share in greedy)
    output.line(f"Drafts of 1, 2, ... tokens for held-out answers are accepted completely in {shares}")
    output.line(f"Drafts of {len(greedy)} tokens give {1 + sum(greedy):.2f} tokens per step")
    if is_table and out.resolve().parent not in (models_dir().resolve(), settings.target.resolve().parent):
        output.line(f"Move it to {models_dir()} or to the folder of the model, where recycling finds it")
    drafter = ["--spec-type", "recycling"] if is_table else ["-md", str(out), "--spec-type", settings.kind]
    tune = shlex.join(["edgespec", "tune", call.values["target"], *drafter])
    output.line(f"Measure its speedup on this machine with: {tune}")
