"""`edgespec draft convert`, `graft` and `trim`: drafts from files of others, tried with their target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.commands.tune import measure, show
from edgespec.cli.options.command import Call, Command
from edgespec.cli.options.common import QUIET, option
from edgespec.cli.options.generation import OFFLINE
from edgespec.cli.options.types import ModelSpec, Parsed
from edgespec.cli.setup.models import tell_stopped
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError, told_as
from edgespec.settings import MTP, LoadSettings
from edgespec.text.encodings import decoded
from edgespec.text.figures import count_of, size_of
from edgespec.training.job import TYPES

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
    """Read a number of tokens, where k stands for 1024."""
    number = text.lower().removesuffix("k")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError("use a number of tokens, such as 16000 or 16k")
    return int(number) * (1024 if text.lower().endswith("k") else 1)


TOKENS = option(
    "Model", "--tokens", type=Parsed("integer", _tokens), required=True, metavar="N",
    help="Number of tokens to keep; 16k are 16384.",
)  # fmt: skip


@click.command(cls=Command, params=[TYPE, OUT, NO_CHECK, OFFLINE, QUIET])
@click.argument("head", metavar="HEAD")
@click.argument("target", type=ModelSpec(), metavar="MODEL")
def convert(call: Call) -> None:
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

    values, out, output = call.values, call.values["out"], call.output
    target = check_model(resolve(values["target"]).path)
    folder = _published(values["head"], call)
    with output.showing_progress():
        convert_head(folder, target, out, values["type"], lambda done: output.progress("converting", done))
    head = read_header(out)
    kind = kind_of_head(head)
    output.line(f"{out}: {kind}, {count_of(head.n_params)} parameters, {size_of(out.stat().st_size)}")
    _check(call, values["target"], out, kind)


def _published(head: str, call: Call) -> Path:
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


@click.command(cls=Command, params=[OUT, NO_CHECK, QUIET])
@click.argument("base", type=ModelSpec())
@click.argument("finetune", type=ModelSpec())
def graft(call: Call) -> None:
    """Put a base model's MTP block into its fine-tune.

    Many fine-tunes lack the block for multi-token prediction that their base model has. The block of the base model
    also drafts for them. Both need the same architecture and dimensions; their quantisations may differ. Then the
    acceptance rate and the speed are measured, as 'edgespec tune' does.
    """
    from edgespec.gguf_file.model_check import check_model
    from edgespec.models.names.spec import resolve
    from edgespec.models.pair.graft import graft as put

    values, out, output = call.values, call.values["out"], call.output
    base, finetune = (check_model(resolve(values[name]).path) for name in ("base", "finetune"))
    with output.showing_progress():
        put(base, finetune, out, lambda done: output.progress("writing", done))
    output.line(f"{out}: {finetune.path.name} with the MTP block of {base.path.name}, {size_of(out.stat().st_size)}")
    _check(call, str(out), None, MTP)


@click.command(cls=Command, params=[TOKENS, TARGET, TEXTS, OUT, NO_CHECK, QUIET])
@click.argument("draft", type=ModelSpec())
def trim(call: Call) -> None:
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

    values, out, output = call.values, call.values["out"], call.output
    draft = check_draft_file(resolve(values["draft"]).path)
    if is_head(draft) and not values["target"]:
        raise UsageError(
            f"{draft.path.name} is a draft head", hint="name the model that it drafts for (--target MODEL)"
        )
    target = check_model(resolve(values["target"]).path) if values["target"] else draft
    if is_head(draft):
        check_head_fits(target, draft)
    with output.showing_progress():
        output.progress("counting tokens", None)
        counts = _counts(target.path, values["texts"], call)
        write = trim_head if is_head(draft) else cut
        write(draft, target, out, values["tokens"], counts, lambda done: output.progress("writing", done))
    total = n_draft_tokens(draft) if is_head(draft) else draft.n_vocab
    output.line(f"{out}: {values['tokens']} of {total} tokens, {size_of(out.stat().st_size)}")
    if values["target"]:
        _check(call, values["target"], out, kind_of_head(draft) or "draft")


def _counts(target: Path, texts: Sequence[Path], call: Call) -> NDArray[np.int64]:
    """Return how often each token of the target occurs in texts or, without any, in its stored answers."""
    import numpy as np

    from edgespec.datastore.answer_store import AnswerStore
    from edgespec.datastore.corpus import text_files
    from edgespec.llama.model import Model

    with Model.load_vocabulary(target) as model:
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


def _check(call: Call, model: str, draft: Path | None, drafter: str) -> None:
    """Draft with the new file for the target, and show what `edgespec tune` finds."""
    if call.values["no_check"]:
        return
    settings = LoadSettings(model, draft_model=str(draft) if draft else None, spec_type=drafter)
    show(call, measure(call, settings, CHECK_S, SamplingSettings(temperature=0.0), only_named=True))
    call.interrupts.raise_if_received()
