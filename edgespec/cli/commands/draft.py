"""`edgespec draft`: drafts made from a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Command, Option
from edgespec.cli.options.common import QUIET, Decorated, option, with_options
from edgespec.cli.options.generation import LARGEST
from edgespec.cli.options.group import Group
from edgespec.cli.options.types import Count, Integer, ModelSpec, Number
from edgespec.cli.terminal.interrupt import Interrupts
from edgespec.cli.terminal.output import Output
from edgespec.settings import LoadSettings
from edgespec.text.figures import clock, count_of, size_of

if TYPE_CHECKING:
    from edgespec.training.pipeline import Settings as TrainingSettings

OUT = click.option(
    "-o", "--output", "out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The file to write."
)


@click.group(cls=Group)
def draft() -> None:
    """Make a draft from a target, or train a draft head for it.

    'run --spec-type self:8' and 'self:Q2_K' create such drafts automatically, and keep them.
    """


@draft.command("slice")
@click.argument("model", type=ModelSpec())
@click.option(
    "-n", "--layers", cls=Option, config=False, required=True, type=Integer(1, LARGEST), metavar="N",
    help="Number of layers to keep.",
)  # fmt: skip
@OUT
@QUIET
def slice_(model: str, layers: int, out: Path, quiet: bool) -> None:
    """Write the first layers of MODEL as a separate model."""
    from edgespec.models.names.spec import resolve
    from edgespec.models.pair.slice import slice_layers

    output = Output(quiet=quiet)
    try:
        slice_layers(resolve(model).path, out, layers, lambda done: output.progress("writing", done))
    finally:
        output.end_progress()
    output.line(f"{out}: the first {layers} layers of {model}")


@draft.command()
@click.argument("model", type=ModelSpec())
@click.option("-t", "--type", "type", required=True, metavar="TYPE", help="Type of the weights, such as Q2_K or Q4_0.")
@OUT
@QUIET
def quantize(model: str, type: str, out: Path, quiet: bool) -> None:
    """Write MODEL with smaller weights."""
    from edgespec.gguf_file.model_check import check_model
    from edgespec.llama.quantize import is_quantised
    from edgespec.llama.quantize import quantize as write
    from edgespec.models.names.spec import resolve

    output = Output(quiet=quiet)
    source = resolve(model).path
    again = is_quantised(check_model(source))
    if again:
        output.note(f"{model} is quantised already: quantising twice loses quality twice, acceptable only for a draft")
    try:
        write(source, out, type, again=again, progress=lambda done: output.progress("quantising", done))
    finally:
        output.end_progress()
    output.line(f"{out}: {model} as {type.upper()}")


JUDGING_S = 60
LONGEST_DRAFT = 8  # tokens; each is a pass of the head

TRAINING = (
    option(
        "Training", "--kind", type=click.Choice(["eagle3", "eagle1", "hydra", "medusa"]), default="eagle3",
        show_default=True, help="Kind of head.",
    ),
    option(
        "Training", "--minutes", type=Number(0.01, 1e5), default=60.0, show_default="60", metavar="N",
        help="Time to train, once there are answers.",
    ),
    option(
        "Training", "--tokens", type=Count(), default="500k", show_default=True, metavar="N",
        help="Tokens of answers to learn from.",
    ),
    option(
        "Training", "--vocab", "vocabulary", type=Integer(16, LARGEST), default=8192, show_default=True, metavar="N",
        help="Tokens the head can draft: those that the target writes most often.",
    ),
    option(
        "Training", "--type", "type", default="Q8_0", show_default=True, metavar="TYPE", help="Type of the weights."
    ),
    option(
        "Training", "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
        help="Where PyTorch trains.",
    ),
    option(
        "Training", "-t", "--threads", type=Integer(0, 512), default=0, show_default="cores", metavar="N",
        help="CPU threads.",
    ),
    option(
        "Prompt", "--prompts", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="FILE",
        help="Prompts to ask first (.jsonl), texts to ask about (.txt, .md), or a folder; repeatable.",
    ),
    option("Prompt", "--my-chats", is_flag=True, help="Also ask what you asked in your own chats."),
    option(
        "Output", "-o", "--output", "out", required=True, type=click.Path(path_type=Path), metavar="FILE",
        help="The file to write.",
    ),
    option(
        "Output", "--work", type=click.Path(path_type=Path, file_okay=False), show_default="in the cache",
        metavar="FOLDER", help="Where answers and checkpoints are kept.",
    ),
    QUIET,
)  # fmt: skip


def _training_options(command: Decorated) -> Decorated:
    return with_options(command, TRAINING)


@draft.command(cls=Command, short_help="Train a draft head for a target, on what it writes itself.")
@click.argument("target", type=ModelSpec())
@_training_options
@click.pass_context
def train(ctx: click.Context, /, target: str, out: Path, quiet: bool, **values: Any) -> None:
    """Train a draft head for TARGET from scratch, and write a file for -md.

    The target answers bundled prompts and prompts that it writes itself, the head learns to predict these answers, and
    what it predicts of others is measured, as is whether it pays here. Ctrl-C stops; the same command resumes. Needs
    PyTorch.
    """
    from edgespec.models.names.spec import resolve
    from edgespec.training.card import card
    from edgespec.training.pipeline import Listener, Settings, train_head

    output = Output(quiet=quiet)
    interrupts, cancel = ctx.find_object(Interrupts) or Interrupts(), CancelFlag()
    settings = Settings(resolve(target).path, out, **values)

    def tell(progress: Any) -> None:
        left = max(0.0, settings.minutes * 60 - progress.elapsed_s)
        accepted = f", accepted {progress.acceptance}" if progress.acceptance.greedy else ""
        what = f"training: loss {progress.loss:.2f}{accepted}, {clock(left)} left"
        output.progress(what, progress.elapsed_s / (settings.minutes * 60))

    listener = Listener(output.note, output.progress, tell, cancel)
    try:
        with interrupts.cancelling(cancel):
            result = train_head(settings, listener)
    finally:
        output.end_progress()
    if result is None:
        output.note("stopped; the same command resumes")
        interrupts.raise_if_received()
        return
    out.with_suffix(".md").write_text(card(settings, result), encoding="utf-8")
    shares = ", ".join(f"{share:.0%}" for share in result.acceptance)
    output.line(f"{out}: {size_of(result.size_bytes)}, trained on {count_of(result.tokens)} tokens")
    output.line(f"Held-out answers, greedy: drafts of 1, 2, ... tokens are accepted as a whole in {shares}")
    output.line(f"Drafts of {len(result.acceptance)} tokens give {1 + sum(result.acceptance):.2f} tokens per step")
    _judge(settings, output, interrupts, cancel)
    interrupts.raise_if_received()


def _judge(settings: TrainingSettings, output: Output, interrupts: Interrupts, cancel: CancelFlag) -> None:
    """Say whether the head that was trained pays here, as `tune` does."""
    from edgespec.bench.suites import sample, shipped
    from edgespec.bench.tune import tune
    from edgespec.runtime.runtime import Runtime

    loading = LoadSettings(
        str(settings.target),
        str(settings.out),
        settings.kind,
        spec_draft_n_max=LONGEST_DRAFT,
        threads=settings.threads,
        store=False,
    )
    try:
        with Runtime(loading) as llm, interrupts.cancelling(cancel):
            found = tune(llm, sample(shipped(), 10), JUDGING_S, progress=output.progress, cancel=cancel)
    finally:
        output.end_progress()
    if found is None:
        return
    output.line(f"The verdict here: {found.verdict.why}")
    for message in found.messages:
        output.note(message)
