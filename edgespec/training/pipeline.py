"""From a target to a draft head: answers with their features, vocabulary, training, file, check. Every stage resumes.

PyTorch is loaded only when training begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.errors import UsageError
from edgespec.files.paths import cache_dir, free_in, write_whole
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.gguf_file.target_print import is_same_target, target_print
from edgespec.history import Store
from edgespec.llama.features import check_layers
from edgespec.llama.model import Model
from edgespec.text.figures import count_of, size_of
from edgespec.training.answers import Answers
from edgespec.training.features import Writer, bytes_per_token, default_layers, load, n_learned, read_rows
from edgespec.training.prompts import Passages, Prompt, from_chats, from_path

if TYPE_CHECKING:
    from edgespec.training.export import About
    from edgespec.training.trainer import Progress

KINDS = ("eagle3", "eagle1", "hydra", "medusa")
DEVICES = ("auto", "cpu", "cuda")
PROMPT_SHARE = 1.0  # prompt tokens for each token of an answer, which take disk too
ABOUT = "about.json"
LICENCE = "apache-2.0"
CHECKED_TOKENS = 24
INSTALL = "pip install 'edgespec[train]', or in a clone: .venv/bin/pip install torch"


@dataclass(frozen=True, slots=True)
class Settings:
    """What to train, from what, for how long. `work` None is a folder in the cache; `tokens` are those of answers."""

    target: Path
    out: Path
    kind: str = "eagle3"
    minutes: float = 60.0
    tokens: int = 500_000
    vocabulary: int = 8192
    type: str = "Q8_0"
    work: Path | None = None
    prompts: Sequence[Path] = ()
    my_chats: bool = False
    device: str = "auto"
    threads: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A head that was written: its size, the last state of training, the acceptance of what is in the file, and how
    far llama.cpp's logits are from PyTorch's: a share of their standard deviation, None for a kind of our own."""

    path: Path
    size_bytes: int
    answers: int
    tokens: int
    progress: Progress
    acceptance: Sequence[float]
    sampled: Sequence[float]
    difference: float | None


@dataclass(slots=True)
class Listener:
    """Hears of what is done: `note` once, `progress` how far a stage is (0 to 1), `training` its state."""

    note: Callable[[str], None] = lambda text: None
    progress: Callable[[str, float], None] = lambda what, done: None
    training: Callable[[Progress], None] = lambda progress: None
    cancel: CancelFlag = field(default_factory=CancelFlag)


def train_head(settings: Settings, listener: Listener) -> Result | None:
    """None if it was cancelled: the same call resumes. Raises UsageError, EdgespecError, ModelFileError."""
    header = check_model(settings.target)
    _check(settings, header)
    layers = _layers(settings, header)
    work = settings.work or default_work(header)
    _claim(work, header, layers, settings.seed)
    _check_room(work, header, layers, settings, listener)
    with (
        _alone(work),
        Model(header, copied=True, progress=lambda done: listener.progress("loading", done)) as model,
    ):
        _collect(model, layers, work, settings, listener)
        if listener.cancel.is_set():
            return None
        return _train(model, layers, work, settings, listener)


def default_work(header: Header) -> Path:
    """Where the answers of a target are kept."""
    stat = header.path.stat()
    return cache_dir() / "training" / f"{header.path.stem}-{stat.st_size}"


def _check(settings: Settings, header: Header) -> None:
    if find_spec("torch") is None:
        raise UsageError("training needs PyTorch, which is not installed", hint=INSTALL)
    from edgespec.training.export import check_type

    check_type(settings.type)
    if settings.kind not in KINDS:
        raise UsageError(f"there is no head of kind {settings.kind!r}", hint=f"one of: {', '.join(KINDS)}")
    check_destination(settings.out, (header.path,), b"GGUF")
    if settings.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("PyTorch finds no CUDA device", hint="use --device cpu, or a PyTorch built for CUDA")


def _layers(settings: Settings, header: Header) -> Sequence[int]:
    """Whose inputs are kept: none where the target does not give them. Raises UsageError for a head that needs them."""
    layers = default_layers(header.number("block_count"))
    try:
        check_layers(header.architecture, header.number("block_count"), [*layers])
    except UsageError as error:
        if settings.kind != "eagle3":
            return ()
        hint = "--kind eagle1 makes a head that does without them; llama, qwen3 and some others give them"
        raise UsageError(error.what, why="an eagle3 head reads them", hint=hint) from error
    return layers


def _claim(work: Path, header: Header, layers: Sequence[int], seed: int) -> None:
    """Say whose folder it is. Raises UsageError where it is another target's."""
    about, mine = work / ABOUT, target_print(header)
    try:
        work.mkdir(parents=True, exist_ok=True)
        if not about.exists():
            values = {"target": header.path.name, "layers": [*layers], "print": mine.tolist()}
            write_whole(about, json.dumps(values))
        kept = json.loads(about.read_text(encoding="utf-8"))
        theirs, known = np.array(kept["print"], np.float32), (kept["target"], kept["layers"])
    except OSError as error:
        raise UsageError(
            f"{work} cannot be used", why=error.strerror or str(error), hint="choose another --work"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{about} is damaged", hint="choose another --work, or delete this one") from error
    if not is_same_target(mine, theirs) or known[1] != [*layers]:
        raise UsageError(f"{work} holds answers of {known[0]}", hint="choose another folder with --work")


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Raises UsageError where another run uses the folder."""
    lock = FileLock(work / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UsageError(f"another training uses {work}", hint="wait for it, or choose another --work") from error
    try:
        yield
    finally:
        lock.release()


def _check_room(work: Path, header: Header, layers: Sequence[int], settings: Settings, listener: Listener) -> None:
    missing = settings.tokens - n_learned(read_rows(work))
    per_token = bytes_per_token(header.number("embedding_length"), len(layers))
    needed = int(max(0, missing) * (1 + PROMPT_SHARE) * per_token)
    if needed > free_in(work):
        raise UsageError(
            f"there is no room for {count_of(missing)} tokens in {work}",
            why=f"they take about {size_of(needed)}, and {size_of(free_in(work))} are free",
            hint="ask for fewer with --tokens, or choose another folder with --work",
        )
    if missing > 0:
        listener.note(f"answers with what the target sees take about {size_of(needed)} in {work}")


def _collect(model: Model, layers: Sequence[int], work: Path, settings: Settings, listener: Listener) -> None:
    passages, own = Passages(), list[Prompt]()
    for path in settings.prompts:
        own += from_path(path, passages)
    if settings.my_chats:
        with closing(Store()) as store:
            own += from_chats(store)
    with Writer(work, model.n_embd, len(layers)) as writer:
        Answers(
            model,
            writer,
            layers,
            settings.tokens,
            own,
            passages,
            threads=settings.threads,
            seed=settings.seed,
            progress=listener.progress,
            cancel=listener.cancel,
        ).collect()


def _train(model: Model, layers: Sequence[int], work: Path, settings: Settings, listener: Listener) -> Result | None:
    import torch

    from edgespec.training import trainer
    from edgespec.training.check import check_head
    from edgespec.training.eagle3 import Eagle3
    from edgespec.training.export import read_head, write_head
    from edgespec.training.target import read_target, seen_by, shape_of

    header, rows = model.header, read_rows(work)
    vocabulary = _vocabulary(work, settings, model.n_vocab)
    shape, parts = shape_of(header, len(vocabulary), settings.kind), read_target(header, vocabulary)
    features = seen_by(shape, load(work, model.n_embd, len(layers)))
    device = settings.device if settings.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    training = trainer.Settings(settings.minutes, device=device, threads=settings.threads, seed=settings.seed)
    weights, progress = trainer.train(
        shape,
        parts.teacher,
        parts.output_norm,
        features,
        training,
        _checkpoint(work, settings),
        listener.training,
        listener.cancel,
    )
    if listener.cancel.is_set():
        return None
    about = _about(header, settings, n_learned(rows), progress)
    listener.progress("writing", 0.0)
    write_head(settings.out, shape, weights, vocabulary, header, layers, settings.type, about)
    written = trainer.measure(shape, read_head(settings.out, shape), parts.teacher, features, training)
    text = (rows[0].prompt + rows[0].answer)[:CHECKED_TOKENS]
    return Result(
        path=settings.out,
        size_bytes=settings.out.stat().st_size,
        answers=len(rows),
        tokens=n_learned(rows),
        progress=progress,
        acceptance=written.greedy,
        sampled=written.sampled,
        difference=check_head(settings.out, shape, vocabulary, model, text) if isinstance(shape, Eagle3) else None,
    )


def _checkpoint(work: Path, settings: Settings) -> Path:
    return work / f"{settings.kind}.pt"


def _vocabulary(work: Path, settings: Settings, n_vocab: int) -> NDArray[np.int64]:
    """Chosen when training begins, and kept as long as there is a checkpoint that was trained with it."""
    from edgespec.training.batches import vocabulary_of

    size, checkpoint = min(settings.vocabulary, n_vocab), _checkpoint(work, settings)
    file = checkpoint.with_suffix(".npy")
    if checkpoint.exists() and file.exists():
        kept: NDArray[np.int64] = np.load(file)
        if len(kept) == size:
            return kept
        raise UsageError(
            f"the head in {work} was begun with a vocabulary of {len(kept)} tokens",
            hint=f"use --vocab {len(kept)}, or delete {checkpoint} to start training over",
        )
    chosen = vocabulary_of(read_rows(work), size, n_vocab)
    np.save(file, chosen)
    return chosen


def _about(header: Header, settings: Settings, tokens: int, progress: Progress) -> About:
    from edgespec.training.export import About

    return About(
        name=f"{header.name} {settings.kind}",
        description=f"A draft head for {header.name}, trained on {count_of(tokens)} tokens of its own answers",
        licence=LICENCE,
        tokens=tokens,
        minutes=progress.elapsed_s / 60,
        acceptance=progress.acceptance.greedy,
    )
