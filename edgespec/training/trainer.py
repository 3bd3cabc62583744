"""Training of a head until the time is up, from a checkpoint if there is one.

Learning rates follow the clock, not a number of steps, so a run ends on time on any machine. Muon trains the layer's
matrices: its steps take longer, but are worth it here. AdamW trains the norms, rows of tokens and, slowly, the output
rows, which begin as the target's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from torch import Tensor

from edgespec.errors import EdgespecError, UsageError
from edgespec.files.unfinished import becoming
from edgespec.training.batches import Batch, batches
from edgespec.training.features import SAMPLED, Features
from edgespec.training.gguf_files import Teacher
from edgespec.training.heads import Shape, Weights
from edgespec.training.job import Acceptance, Listener, Progress, Settings

MATRIX_RATE, NORM_RATE, OUTPUT_RATE = 3e-3, 2e-3, 1e-4
TABLES = ("markov_w1", "markov_w2", "conf_proj")  # not made for Muon: they have a row per token, or one row only
DROPOUT = 0.15  # without dropout, a head memorises its 100k tokens in five epochs
DECAY = 0.8  # weight of a step of a draft in the loss, relative to the step before, as in the EAGLE-3 paper
WARM_UP = 40  # steps
CLIP = 1.0
SAVE_EVERY_S, TELL_EVERY_S = 120.0, 2.0
JUDGED_FIRST_S, JUDGED_SHARE = 60.0, 0.05  # share of the time to spend on measuring acceptance during training
FEW_JUDGED, MOST_JUDGED = 2_000, 30_000  # anchors to measure acceptance on, during training and at its end
SAMPLED_ROWS = 8192  # to estimate the scale of the inputs
LONGEST_STEP_S = 30.0  # a longer step counts as this long: the laptop was suspended

Checkpoint = dict[str, Any]


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the state of an interrupted training, with its `vocabulary`. Raises UsageError for a damaged file."""
    if not path.exists():
        return None
    try:
        saved: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        saved["progress"]["acceptance"] = Acceptance(**saved["progress"]["acceptance"])
        return saved | {"progress": Progress(**saved["progress"]), "vocabulary": saved["vocabulary"].numpy()}
    except Exception as error:  # PyTorch raises many kinds of error for damaged files
        hint = "delete it to start training over"
        raise UsageError(f"{path} cannot be read", why=str(error).partition("\n")[0], hint=hint) from error


def train(
    shape: Shape, teacher: Teacher, features: Features, settings: Settings, checkpoint: Path, listener: Listener
) -> tuple[Weights, Progress]:
    """Return the weights, on the CPU, and the progress when the time is up or the listener cancels.

    Raises EdgespecError if the loss is no longer a number or the disk is full.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = teacher.to(device)
    saved = read_checkpoint(checkpoint)
    progress = saved["progress"] if saved else Progress()
    weights = saved["weights"] if saved else _initial(shape, teacher, features)
    weights = {name: weight.to(device).float().requires_grad_() for name, weight in weights.items()}
    steps, first_step = optimizers(weights), progress.step

    def measure(most: int) -> None:
        judged = _judged(features, shape, most, device)
        with torch.autocast(device, torch.bfloat16), torch.no_grad():
            progress.acceptance = acceptance(weights, shape, teacher, judged, shape.deepest)

    def save() -> None:
        _save(checkpoint, weights, progress, teacher.vocabulary)

    budget_s, upcoming = settings.minutes * 60, _endless(features, shape, settings.seed, progress)
    saved_s = told_s = progress.elapsed_s
    measure_at_s = max(JUDGED_FIRST_S, progress.elapsed_s)
    while progress.elapsed_s < budget_s and not listener.cancel.is_set():
        started = time.monotonic()
        if progress.elapsed_s >= measure_at_s:
            measure(FEW_JUDGED)
            measure_at_s = progress.elapsed_s + (time.monotonic() - started) / JUDGED_SHARE
        batch, done = next(upcoming).to(device), progress.elapsed_s / budget_s
        set_rates(steps, progress.step - first_step, done)
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(weights, shape, teacher, batch, shape.depth(done), DROPOUT)
        _step(loss, weights, steps, progress, checkpoint)
        progress.tokens += batch.n_anchors
        progress.elapsed_s += min(time.monotonic() - started, LONGEST_STEP_S)
        if progress.elapsed_s - told_s >= TELL_EVERY_S:
            told_s = progress.elapsed_s
            listener.training(progress)
        if progress.elapsed_s - saved_s >= SAVE_EVERY_S:
            saved_s = progress.elapsed_s
            save()
    if not listener.cancel.is_set():
        measure(MOST_JUDGED)
    save()
    listener.training(progress)
    return {name: weight.detach().cpu() for name, weight in weights.items()}, progress


def _initial(shape: Shape, teacher: Teacher, features: Features) -> Weights:
    sample = torch.from_numpy(features.inputs[:SAMPLED_ROWS].astype(np.float32))
    return shape.initial(teacher.output.cpu(), teacher.output_norm.cpu(), sample.square().mean(0).sqrt())


def _step(
    loss: Tensor,
    weights: Weights,
    optimizers: list[tuple[torch.optim.Optimizer, float]],
    progress: Progress,
    checkpoint: Path,
) -> None:
    """Take a step, and count it. Raises EdgespecError, before any weight changes, if the loss has diverged."""
    value = take_step(loss, weights, optimizers)
    if not math.isfinite(value):
        raise EdgespecError(
            "the training has diverged: its loss is not a number any more",
            why=f"at step {progress.step}",
            hint=f"the same command resumes from the last good state, {checkpoint}",
        )
    progress.loss = value if math.isnan(progress.loss) else 0.98 * progress.loss + 0.02 * value
    progress.step += 1


def take_step(loss: Tensor, weights: Weights, optimizers: list[tuple[torch.optim.Optimizer, float]]) -> float:
    """Change the weights by one step of the optimizers, and return the loss.

    If the loss has diverged, return a value that is not finite, and change nothing.
    """
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
    value = float(loss.detach())
    if not (math.isfinite(value) and torch.isfinite(norm)):
        return math.nan
    for optimizer, _ in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return value


def optimizers(weights: Weights, output_rate: float = OUTPUT_RATE) -> list[tuple[torch.optim.Optimizer, float]]:
    """Each optimizer with its highest learning rate."""
    output, tables = [weights["output"]], [weights[name] for name in TABLES if name in weights]
    norms = [weight for weight in weights.values() if weight.dim() != 2]
    matrices = [weight for name, weight in weights.items() if weight.dim() == 2 and name not in ("output", *TABLES)]
    muon = torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    others = [(norms + tables, NORM_RATE), (output, output_rate)]
    return [(muon, MATRIX_RATE)] + [
        (torch.optim.AdamW(some, lr=rate, betas=(0.9, 0.95), weight_decay=0.0), rate) for some, rate in others if some
    ]


def set_rates(optimizers: list[tuple[torch.optim.Optimizer, float]], step: int, done: float) -> None:
    """Set the learning rates after `step` steps since the start or the last resumption."""
    rate = min(1.0, (step + 1) / WARM_UP) * max(0.02, 0.5 + 0.5 * math.cos(math.pi * min(1.0, done)))
    for optimizer, highest in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = highest * rate


def _endless(features: Features, shape: Shape, seed: int, progress: Progress) -> Iterator[Batch]:
    """Batches of the answers to learn from, again and again; `progress.epoch` counts."""
    documents = [document for document in features.documents if not document.is_held_out]
    total = sum(max(0, document.n_anchors) for document in documents)
    epoch = int(progress.epoch)
    while True:
        n_batches = 0
        for batch in batches(features, documents, shape.step_anchors, shape.deepest, seed=seed + epoch):
            n_batches += 1
            progress.epoch = epoch + min(1.0, n_batches * shape.step_anchors / max(1, total))
            yield batch
        if not n_batches:
            raise UsageError("there are no answers to learn from", why="all of them are too short")
        epoch += 1


def _judged(features: Features, shape: Shape, most: int, device: str) -> Iterator[tuple[float, Batch]]:
    """Held-out answers in batches of about `most` anchors in all: first the greedy answers, then the sampled ones."""
    for is_sampled in (False, True):
        documents = [d for d in features.documents if d.is_held_out and bool(d.temperature) == is_sampled]
        n = 0
        for batch in batches(features, documents, shape.step_anchors, shape.deepest, seed=0):
            n += batch.n_anchors
            yield float(is_sampled), batch.to(device)
            if n >= most / 2:
                break


def _save(checkpoint: Path, weights: Weights, progress: Progress, vocabulary: Tensor) -> None:
    """Write a file small enough to keep: the moments of the optimizers, four times as large, are soon found again."""
    state = {
        "weights": {name: weight.detach().half().cpu() for name, weight in weights.items()},
        "progress": asdict(progress),
        "vocabulary": vocabulary.cpu(),
    }
    try:
        with becoming(checkpoint) as scratch:
            torch.save(state, scratch)
    except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError if the disk is full
        raise EdgespecError(
            f"cannot write {checkpoint}", why=str(error), hint="free some space and start again"
        ) from error


# --- loss and acceptance ----------------------------------------------------------------------------------------------


def loss_of(weights: Weights, shape: Shape, teacher: Teacher, batch: Batch, depth: int, dropout: float = 0.0) -> Tensor:
    """Return the cross-entropy in nats with the target's distribution over the head's vocabulary: a mean over anchors
    and, with falling weights, over the steps of a draft. That of the head's own confidence is added."""
    wanted = _distribution(teacher, batch)
    mass = wanted.sum(-1)
    total, weight = torch.zeros((), device=wanted.device), 0.0
    n_anchors = batch.is_text.shape[2]
    for step, drafted in enumerate(shape.drafts(weights, teacher.embedding, batch, depth, dropout)):
        rows, cells = drafted.logits.float(), slice(step, step + n_anchors)
        entropy = mass[:, cells] * rows.logsumexp(-1) - (wanted[:, cells] * rows).sum(-1)
        if drafted.confidence is not None:
            is_right = teacher.vocabulary[rows.argmax(-1)] == batch.best[:, cells]
            entropy = entropy + F.binary_cross_entropy_with_logits(
                drafted.confidence.float(), is_right.float(), reduction="none"
            )
        judged = batch.is_text[step]
        total = total + DECAY**step * (entropy * judged).sum() / judged.sum().clamp(min=1)
        weight += DECAY**step
    return total / weight


def acceptance(
    weights: Weights, shape: Shape, teacher: Teacher, batches: Iterable[tuple[float, Batch]], depth: int
) -> Acceptance:
    """Measure on batches, each with the temperature of its answers. Call without gradients."""
    accepted, judged = torch.zeros(2, depth), torch.zeros(2, depth)  # of greedy and of sampled answers
    for temperature, batch in batches:
        n_anchors, is_sampled = batch.is_text.shape[2], int(temperature > 0)
        wanted = _distribution(teacher, batch, SAMPLED)
        is_right = torch.ones_like(batch.is_text[0])
        for step, drafted in enumerate(shape.drafts(weights, teacher.embedding, batch, depth)):
            rows, cells = drafted.logits.float(), slice(step, step + n_anchors)
            if is_sampled:
                share = torch.minimum((rows / SAMPLED).softmax(-1), wanted[:, cells]).sum(-1)
            else:
                is_right &= teacher.vocabulary[rows.argmax(-1)] == batch.best[:, cells]
                share = is_right.float()
            accepted[is_sampled, step] += (share * batch.is_text[step]).sum().cpu()
            judged[is_sampled, step] += batch.is_text[step].sum().cpu()
    return Acceptance(*(accepted / judged.clamp(min=1)).tolist())


def _distribution(teacher: Teacher, batch: Batch, temperature: float = 1.0) -> Tensor:
    """The target's probabilities of the tokens in the head's vocabulary; with the tokens left out, they sum to 1."""
    normaliser = batch.normalisers[..., 1 if temperature != 1.0 else 0, None]
    # Logits of 16 bits would be rounded to steps of a sixteenth and more
    with torch.no_grad(), torch.autocast(batch.hidden.device.type, enabled=False):
        rows = F.linear(batch.hidden[:, 1:], teacher.output)
        return (rows / temperature - normaliser).exp_().clamp_(max=1.0)
