"""The stages from a target to a draft head: answers, states, training, file. Each of them resumes.

PyTorch is loaded only when training begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from filelock import FileLock, Timeout

from edgespec.drafters.heads import HEADS
from edgespec.errors import UsageError, told_as
from edgespec.events import PROGRESS
from edgespec.extras import check_extra
from edgespec.files.paths import cache_dir, make_room, write_whole
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.gguf_file.weights import is_same_target, target_print
from edgespec.llama.batch import check_layers
from edgespec.llama.model import LlamaModel
from edgespec.runtime.runtime import Runtime
from edgespec.text.figures import count_of, size_of
from edgespec.training.answers import Answers, load_settings
from edgespec.training.features import default_layers, load, n_learned, read_rows, read_states, record
from edgespec.training.job import LICENCE, NGRAM, Listener, Progress, Settings, TrainedHead
from edgespec.training.ngram import write_table
from edgespec.training.prompts import Passages, from_files

PROMPT_SHARE = 1.0  # prompt tokens for each token of an answer; they take disk space too
ABOUT = "about.json"
OTHER_WORK = "choose another folder with --work"

Made = TypeVar("Made")


def train_head(settings: Settings, listener: Listener) -> TrainedHead | None:
    """Train a head, or make a table of successors, and write its file. Return None if the listener cancelled it; the
    same call resumes.

    Raises UsageError, EdgespecError, ModelFileError.
    """
    is_table = settings.kind == NGRAM
    if not is_table:
        check_extra("train", "training")
    header = check_model(settings.target)
    check_destination(settings.out, (header.path,), b"PK" if is_table else b"GGUF")
    layers = _layers(settings, header)
    work = settings.work or cache_dir() / "training" / f"{header.path.stem}-{header.path.stat().st_size}"
    _claim(work, header, layers)
    try:
        lock = FileLock(work / ".lock", blocking=False).acquire()
    except Timeout as error:
        raise UsageError(f"another training uses {work}", hint=f"wait for it, or {OTHER_WORK}") from error
    except OSError as error:
        raise UsageError(f"{work} cannot be used", why=str(error), hint=OTHER_WORK) from error
    with lock:
        if is_table:
            return _collect(work, settings, listener, lambda model: write_table(model, work, settings, listener))
        _check_room(work, header, layers, settings, listener)
        _collect(work, settings, listener, lambda model: read_states(model, work, layers, listener, settings.threads))
        return None if listener.cancel.is_set() else _train(header, layers, work, settings, listener)


def _layers(settings: Settings, header: Header) -> Sequence[int]:
    """The layers whose inputs are kept; none if llama.cpp cannot read them and the head can do without."""
    n_layers = header.number("block_count")
    layers = default_layers(n_layers)
    try:
        check_layers(header.architecture, n_layers, [*layers])
    except UsageError as error:
        if settings.kind == NGRAM or HEADS[settings.kind].reads != "layers":
            return ()
        hint = "--kind eagle1 makes a head that does not need them; llama, qwen3 and some others have them"
        raise UsageError(error.what, why=f"a head of kind {settings.kind} reads them", hint=hint) from error
    return layers


def _claim(work: Path, header: Header, layers: Sequence[int]) -> None:
    """Note in the folder to which target it belongs. Raises UsageError if it belongs to another one."""
    about, own = work / ABOUT, target_print(header)
    with told_as(UsageError, f"{work} cannot be used", hint=OTHER_WORK):
        work.mkdir(parents=True, exist_ok=True)
        if not about.exists():
            known = {"target": header.path.name, "layers": [*layers], "print": own.tolist()}
            write_whole(about, json.dumps(known))
        text = about.read_bytes()
    try:
        known = json.loads(text)
        is_own = is_same_target(own, np.array(known["print"], np.float32)) and known["layers"] == [*layers]
        target = known["target"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{about} is damaged", hint=f"delete it, or {OTHER_WORK}") from error
    if not is_own:
        raise UsageError(f"{work} holds answers of {target}", hint=OTHER_WORK)


def _check_room(work: Path, header: Header, layers: Sequence[int], settings: Settings, listener: Listener) -> None:
    """Raises UsageError if the states will not fit on the disk."""
    missing = settings.tokens - n_learned(read_rows(work))
    per_token = record(header.number("embedding_length"), len(layers)).itemsize + 8
    needed = int(max(0, missing) * (1 + PROMPT_SHARE) * per_token)
    hint = f"ask for fewer with --tokens, {OTHER_WORK}, "
    make_room(work, needed, f"what {count_of(missing)} tokens need for training", hint)
    if missing > 0:
        listener.note(f"the answers and what the target computes for them take about {size_of(needed)} in {work}")


def _collect(work: Path, settings: Settings, listener: Listener, read: Callable[[LlamaModel], Made]) -> Made | None:
    """Let the target answer, then read its answers; return the result of `read`, or None if it was cancelled before.

    Reading takes about half as long as answering. In return, answers come from the engine as everywhere else, and
    answers that were kept without their states are treated in the same way.
    """
    own, texts = from_files(settings.prompts)

    def loading(what: str, done: float) -> None:
        if what != "prompt":
            listener.progress(PROGRESS.get(what, what).format(settings.target.name), done)

    with Runtime(load_settings(settings), loading) as llm:
        Answers(llm, work, settings, own, Passages(texts)).collect(listener)
        return None if listener.cancel.is_set() else read(llm.model)


def _train(
    header: Header, layers: Sequence[int], work: Path, settings: Settings, listener: Listener
) -> TrainedHead | None:
    from edgespec.training.batches import vocabulary_of
    from edgespec.training.gguf_files import inputs_for, read_teacher, shape_of, write_head
    from edgespec.training.trainer import read_checkpoint, train

    rows, checkpoint = read_rows(work), work / f"{settings.kind}.pt"
    size, saved = min(settings.vocabulary, header.n_vocab), read_checkpoint(checkpoint)
    vocabulary = saved["vocabulary"] if saved else vocabulary_of(rows, size, header.n_vocab)
    if len(vocabulary) != size:
        raise UsageError(
            f"the head in {work} was begun with a vocabulary of {len(vocabulary)} tokens",
            hint=f"use --vocab {len(vocabulary)}, or delete {checkpoint} to start training over",
        )
    shape = shape_of(header, size, settings.kind, settings.block)
    features = inputs_for(shape, load(work, header.number("embedding_length"), len(layers)))
    weights, progress = train(shape, read_teacher(header, vocabulary), features, settings, checkpoint, listener)
    if listener.cancel.is_set():
        return None
    tokens = n_learned(rows)
    listener.progress("writing", 0.0)
    about = _about(header, settings, tokens, progress)
    write_head(settings.out, shape, weights, vocabulary, header, layers, settings.type, about)
    return TrainedHead(settings.out.stat().st_size, len(rows), tokens, progress)


def _about(header: Header, settings: Settings, tokens: int, progress: Progress) -> dict[str, object]:
    """Metadata of the head's file."""
    description = f"A draft head for {header.name}, trained on {count_of(tokens)} tokens of its own answers"
    return {
        "general.name": f"{header.name} {settings.kind}",
        "general.description": description,
        "general.license": LICENCE,
        "general.base_model.count": 1,
        "general.base_model.0.name": header.name,
        "edgespec.head.training_tokens": tokens,
        "edgespec.head.training_minutes": progress.elapsed_s / 60,
        "edgespec.head.acceptance": progress.acceptance.greedy,
    }
