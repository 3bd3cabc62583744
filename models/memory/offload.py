"""Which layers go to GPUs: a requested number, or as many as fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from edgespec.models.memory.estimate import Plan, estimate
from edgespec.settings import Offload
from edgespec.text.figures import size_of

GPU_RESERVE_BYTES = 500_000_000  # of a GPU's memory, for its driver and its kernels' scratch


def placed(plan: Plan, gpu_layers: Offload, gpu_layers_draft: Offload, free_bytes: Sequence[int]) -> Plan:
    """The plan with layers on GPUs that have so much free memory each: the requested number, or "auto" as many as fit.

    A draft comes first, completely or not at all, as every draft token takes a pass of it; the target gets what is
    left.
    """
    if not free_bytes:
        return replace(plan, gpu_layers=0, draft=replace(plan.draft, gpu_layers=0) if plan.draft else None)
    plan = replace(plan, gpu_layers=_number_of(plan, gpu_layers))
    if plan.draft is not None:
        whole = gpu_layers_draft == "auto"
        draft = replace(plan.draft, gpu_layers=_number_of(plan.draft, "all" if whole else gpu_layers_draft))
        if whole and not fits_on_gpus(replace(plan, draft=draft), free_bytes):
            draft = replace(draft, gpu_layers=0)
        plan = replace(plan, draft=draft)
    return replace(plan, gpu_layers=gpu_layers_that_fit(plan, free_bytes)) if gpu_layers == "auto" else plan


def _number_of(plan: Plan, wanted: Offload) -> int:
    """The number that is requested; none yet for "auto"."""
    return plan.n_layers if wanted == "all" else 0 if wanted == "auto" else min(wanted, plan.n_layers)


def gpu_layers_that_fit(plan: Plan, free_bytes: Sequence[int]) -> int:
    """The most layers of the target that fit on GPUs with so much free memory each, beside the draft."""
    choices = range(1, plan.n_layers + 1)
    return bisect_right(
        choices, False, key=lambda layers: not fits_on_gpus(replace(plan, gpu_layers=layers), free_bytes)
    )


def fits_on_gpus(plan: Plan, free_bytes: Sequence[int]) -> bool:
    """Whether the part on GPUs fits, leaving a reserve to each driver.

    llama.cpp gives each a share of the layers by its free memory. The per-GPU buffers are hardest to fit into the
    smallest one; with several GPUs, its share may be rounded up by a layer.
    """
    expected, smallest, total = estimate(plan), min(free_bytes), sum(free_bytes)
    n_layers = max(1, plan.gpu_layers + (plan.draft.gpu_layers if plan.draft else 0))
    rounded = expected.layers_on_gpu // n_layers if len(free_bytes) > 1 else 0
    beside = expected.compute_on_gpu + GPU_RESERVE_BYTES + rounded
    return beside <= smallest and expected.layers_on_gpu * smallest <= (smallest - beside) * total


def placement(plan: Plan, free_bytes: Sequence[int]) -> str:
    """The part on GPUs, and how full they are then."""
    draft = f", {plan.draft.gpu_layers} of {plan.draft.n_layers} of the draft's" if plan.draft else ""
    layers = f"{plan.gpu_layers} of {plan.n_layers} layers{draft} on the GPU"
    expected = estimate(plan)
    vram = expected.layers_on_gpu + expected.compute_on_gpu * len(free_bytes)
    return f"{layers}: {size_of(vram)} of {size_of(sum(free_bytes))} that are free"
