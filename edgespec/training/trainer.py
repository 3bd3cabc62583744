"""Training of a head: until the time is up, from a checkpoint on if there is one.

Learning rates follow the clock, not a number of steps, so a run ends on time on any machine. The layer's matrices learn
by Muon, whose steps are worth more than they cost here; the norms and, slowly, the output rows, which are the target's
at the start, by AdamW.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, UsageError
from edgespec.training.batches import Batch, batches, to_device
from edgespec.training.features import Document, Features
from edgespec.training.heads import Shape, Weights
from edgespec.training.judge import Acceptance, Teacher, acceptance, loss_of

MATRIX_RATE, NORM_RATE, OUTPUT_RATE = 3e-3, 2e-3, 1e-4
DROPOUT = 0.15  # without it a head knows its 100k tokens by heart after five epochs
WARM_UP = 40  # steps
CLIP = 1.0
SAVE_EVERY_S, TELL_EVERY_S = 120.0, 2.0
JUDGED_FIRST_S, JUDGED_SHARE = 60.0, 0.05  # of the time goes into measuring acceptance on the way
FEW_JUDGED, MOST_JUDGED = 2_000, 30_000  # anchors that acceptance is measured on, on the way and in the end
SAMPLED_ROWS = 8192  # by which the scale of the inputs is known
LONGEST_STEP_S = 30.0  # of which a step that was held up counts: a laptop that slept has not trained


@dataclass(frozen=True, slots=True)
class Settings:
    """`batch_tokens` are anchors in a step, `depth` steps of a draft that the loss looks at in the end."""

    minutes: float
    batch_tokens: int = 1024
    depth: int = 4
    device: str = "cpu"
    threads: int = 0
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """Where a training stands. `loss` is a running mean in nats, `acceptance` what was measured last."""

    step: int = 0
    epoch: float = 0.0
    elapsed_s: float = 0.0
    tokens: int = 0
    loss: float = math.nan
    acceptance: Acceptance = field(default_factory=Acceptance)


Tell = Callable[[Progress], None]


def train(
    shape: Shape,
    teacher: Teacher,
    output_norm: Tensor,
    features: Features,
    settings: Settings,
    checkpoint: Path,
    tell: Tell = lambda progress: None,
    cancel: CancelFlag | None = None,
) -> tuple[Weights, Progress]:
    """The weights after the given time, on the CPU, and how the training went; sooner if `cancel` is set.

    Raises EdgespecError where the loss stops being a number or the disk is full.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = settings.device
    teacher = teacher.on(device)
    weights, progress, saved = _begun(shape, teacher, output_norm, features, checkpoint)
    weights = {name: weight.to(device).requires_grad_() for name, weight in weights.items()}
    optimizers = _optimizers(weights)
    for (optimizer, _), state in zip(optimizers, saved, strict=False):
        optimizer.load_state_dict(state)
    learned = [document for document in features.documents if not document.is_held_out]
    settings = replace(settings, depth=min(settings.depth, shape.deepest))
    judged = list(_judged(features, settings, FEW_JUDGED))
    judge_at_s = max(JUDGED_FIRST_S, progress.elapsed_s)
    budget_s = settings.minutes * 60
    saved_s = told_s = progress.elapsed_s
    todo = _endless(features, learned, settings, progress)
    while progress.elapsed_s < budget_s and not (cancel is not None and cancel.is_set()):
        started = time.monotonic()
        if progress.elapsed_s >= judge_at_s:
            progress.acceptance = _measure(weights, shape, teacher, judged, settings)
            tell(progress)
            judge_at_s = progress.elapsed_s + (time.monotonic() - started) / JUDGED_SHARE
        batch = to_device(next(todo), device)
        _set_rates(optimizers, progress.step, progress.elapsed_s / budget_s)
        depth = min(settings.depth, shape.depth(progress.elapsed_s / budget_s))
        loss = _step(weights, shape, teacher, batch, settings.device, depth, optimizers)
        if not math.isfinite(loss):
            raise EdgespecError(
                "the training has diverged: its loss is not a number any more",
                why=f"at step {progress.step}",
                hint=f"the same command resumes at the last good state, {checkpoint}",
            )
        progress.loss = loss if math.isnan(progress.loss) else 0.98 * progress.loss + 0.02 * loss
        progress.step += 1
        progress.tokens += batch.n_anchors
        progress.elapsed_s += min(time.monotonic() - started, LONGEST_STEP_S)
        if progress.elapsed_s - told_s >= TELL_EVERY_S:
            told_s = progress.elapsed_s
            tell(progress)
        if progress.elapsed_s - saved_s >= SAVE_EVERY_S:
            saved_s = progress.elapsed_s
            _save(checkpoint, shape, weights, optimizers, progress)
    if not (cancel is not None and cancel.is_set()):
        judged = list(_judged(features, settings, MOST_JUDGED))
        progress.acceptance = _measure(weights, shape, teacher, judged, settings)
    _save(checkpoint, shape, weights, optimizers, progress)
    tell(progress)
    return {name: weight.detach().cpu() for name, weight in weights.items()}, progress


def measure(shape: Shape, weights: Weights, teacher: Teacher, features: Features, settings: Settings) -> Acceptance:
    """The acceptance of these weights on the held-out answers, such as those read back from a quantised file."""
    settings = replace(settings, depth=min(settings.depth, shape.deepest))
    judged = list(_judged(features, settings, MOST_JUDGED))
    return _measure(weights, shape, teacher.on(settings.device), judged, settings)


def _step(
    weights: Weights, shape: Shape, teacher: Teacher, batch: Batch, device: str, depth: int, optimizers: Any
) -> float:
    with torch.autocast(device, torch.bfloat16):
        loss = loss_of(weights, shape, teacher, batch, depth, DROPOUT)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
    if torch.isfinite(norm):
        for optimizer, _ in optimizers:
            optimizer.step()
    for optimizer, _ in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return float(loss.detach()) if torch.isfinite(norm) else math.nan


def _optimizers(weights: Weights) -> list[tuple[Any, float]]:
    matrices = [weight for name, weight in weights.items() if weight.dim() == 2 and name != "output"]
    norms = [weight for weight in weights.values() if weight.dim() != 2]
    muon = torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    others = [(norms, NORM_RATE), ([weights["output"]], OUTPUT_RATE)]
    return [(muon, MATRIX_RATE)] + [
        (torch.optim.AdamW(some, lr=rate, betas=(0.9, 0.95), weight_decay=0.0), rate) for some, rate in others if some
    ]


def _set_rates(optimizers: list[tuple[Any, float]], step: int, done: float) -> None:
    rate = min(1.0, (step + 1) / WARM_UP) * max(0.02, 0.5 + 0.5 * math.cos(math.pi * min(1.0, done)))
    for optimizer, peak in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak * rate


def _endless(features: Features, documents: list[Document], settings: Settings, progress: Progress) -> Iterator[Batch]:
    """Batches over and over; `progress.epoch` counts."""
    total = sum(max(0, document.length - document.n_prompt - 1) for document in documents)
    round = int(progress.epoch)
    while True:
        n_batches = 0
        for batch in batches(features, documents, settings.batch_tokens, settings.depth, seed=settings.seed + round):
            n_batches += 1
            progress.epoch = round + min(1.0, n_batches * settings.batch_tokens / max(1, total))
            yield batch
        if not n_batches:
            raise UsageError("there are no answers to learn from", why="all of them are too short")
        round += 1


def _judged(features: Features, settings: Settings, most: int) -> Iterator[tuple[float, Batch]]:
    """Held-out answers as batches of at most so many anchors in all, greedy and sampled ones apart."""
    for is_sampled in (False, True):
        documents = [d for d in features.documents if d.is_held_out and bool(d.temperature) == is_sampled]
        n = 0
        for batch in batches(features, documents, settings.batch_tokens, settings.depth, seed=0):
            n += batch.n_anchors
            yield float(is_sampled), to_device(batch, settings.device)
            if n >= most / 2:
                break


def _measure(
    weights: Weights, shape: Shape, teacher: Teacher, judged: list[tuple[float, Batch]], settings: Settings
) -> Acceptance:
    with torch.autocast(settings.device, torch.bfloat16), torch.no_grad():
        return acceptance(weights, shape, teacher, judged, settings.depth)


def _begun(
    shape: Shape, teacher: Teacher, output_norm: Tensor, features: Features, checkpoint: Path
) -> tuple[Weights, Progress, list[Any]]:
    """The state of a training that was interrupted, or the beginning of one. Raises UsageError for another head's."""
    if not checkpoint.exists():
        sample = torch.from_numpy(features.inputs[:SAMPLED_ROWS].astype(np.float32))
        rms = sample.square().mean(0).sqrt()
        return shape.initial(teacher.output.cpu(), output_norm, rms), Progress(), []
    try:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        progress = Progress(**(saved["progress"] | {"acceptance": Acceptance(**saved["progress"]["acceptance"])}))
        known, weights, optimizers = saved["shape"], saved["weights"], saved["optimizers"]
    except Exception as error:  # whatever a damaged file makes PyTorch raise
        hint = "delete it to start training over"
        raise UsageError(f"{checkpoint} cannot be read", why=str(error).partition("\n")[0], hint=hint) from error
    if known != asdict(cast("Any", shape)):
        raise UsageError(f"{checkpoint} belongs to a head of another shape", hint="delete it, or use another --work")
    return weights, progress, optimizers


def _save(
    checkpoint: Path, shape: Shape, weights: Weights, optimizers: list[tuple[Any, float]], progress: Progress
) -> None:
    from edgespec.files.unfinished import becoming

    state = {
        "shape": asdict(cast("Any", shape)),
        "weights": {name: weight.detach().cpu() for name, weight in weights.items()},
        "optimizers": [optimizer.state_dict() for optimizer, _ in optimizers],
        "progress": asdict(progress),
    }
    try:
        with becoming(checkpoint) as scratch:
            torch.save(state, scratch)
    except (OSError, RuntimeError) as error:  # a full disk is a RuntimeError of PyTorch's
        raise EdgespecError(
            f"cannot write {checkpoint}", why=str(error), hint="free some space and start again"
        ) from error
