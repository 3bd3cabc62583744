"""Choose the layers that go to GPUs and to other machines: a requested number, or by free memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from edgespec.models.memory.estimate import Estimate, Plan, estimate
from edgespec.settings import Offload
from edgespec.text.figures import size_of

GPU_RESERVE_BYTES = 500_000_000  # of a GPU's memory, for its driver and its kernels' scratch


def placed(plan: Plan, gpu_layers: Offload, gpu_layers_draft: Offload, free_bytes: Sequence[int]) -> Plan:
    """Return the plan with layers on GPUs: the requested number, or for "auto" as many as fit.

    `free_bytes` is the free memory of each GPU. A draft is placed first, completely or not at all, since every draft
    token takes a pass of it. The target gets the remaining memory.
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
    """Return the requested number; 0 for "auto", which is decided later."""
    return plan.n_layers if wanted == "all" else 0 if wanted == "auto" else min(wanted, plan.n_layers)


def gpu_layers_that_fit(plan: Plan, free_bytes: Sequence[int]) -> int:
    """Return the largest number of the target's layers that fit on these GPUs together with the draft."""
    choices = range(1, plan.n_layers + 1)
    return bisect_right(
        choices, False, key=lambda layers: not fits_on_gpus(replace(plan, gpu_layers=layers), free_bytes)
    )


def fits_on_gpus(plan: Plan, free_bytes: Sequence[int]) -> bool:
    """Return whether the part on GPUs fits, with a reserve for the driver of each GPU.

    llama.cpp gives each GPU a share of the layers by its free memory. The buffers that each GPU needs are hardest to
    fit into the smallest GPU. With several GPUs, its share may be rounded up by a layer.
    """
    expected, smallest, total = estimate(plan), min(free_bytes), sum(free_bytes)
    n_layers = max(1, plan.gpu_layers + (plan.draft.gpu_layers if plan.draft else 0))
    rounded = expected.layers_on_gpu // n_layers if len(free_bytes) > 1 else 0
    fixed = expected.compute_on_gpu + GPU_RESERVE_BYTES + rounded
    return fixed <= smallest and expected.layers_on_gpu * smallest <= (smallest - fixed) * total


def placement(plan: Plan, free_bytes: Sequence[int]) -> str:
    """Say how many layers are on GPUs, and how full the GPUs are."""
    draft = f", {plan.draft.gpu_layers} of {plan.draft.n_layers} of the draft's" if plan.draft else ""
    layers = f"{plan.gpu_layers} of {plan.n_layers} layers{draft} on the GPU"
    expected = estimate(plan)
    vram = expected.layers_on_gpu + expected.compute_on_gpu * len(free_bytes)
    return f"{layers}: {size_of(vram)} of {size_of(sum(free_bytes))} that are free"


RESERVE_SHARE = 0.05  # of a machine's free memory


def spread(plan: Plan, gpu_layers: Offload, free_bytes: Sequence[int], own_free_bytes: int) -> Plan:
    """Return the plan with layers on workers, whose free memory is `free_bytes`. The output stays here.

    "auto" divides the layers among this machine and the workers by free memory, "all" puts all layers on workers, and a
    number puts this many layers there. Layers that do not fit on the workers stay here.
    """
    n_layers, free = plan.n_layers - 1, [float(each) for each in free_bytes]
    rooms = [_layers_that_fit(plan, each) for each in free_bytes]
    if gpu_layers == "auto":  # this machine takes part, with what is left after the part that belongs to no layer
        free.append(max(0, own_free_bytes - estimate(replace(plan, split=(n_layers,))).ram))
        rooms.append(int(free[-1] // _layer_bytes(plan)))
    split = [0] * len(free)
    for _ in range(min(gpu_layers, n_layers) if isinstance(gpu_layers, int) else n_layers):
        takers = [index for index, room in enumerate(rooms) if split[index] < room]
        if not takers:
            break
        # The next layer goes to the machine that is furthest behind its share (the method of Sainte-Laguë).
        split[max(takers, key=lambda index: free[index] / (2 * split[index] + 1))] += 1
    return replace(plan, split=tuple(split[: len(free_bytes)]))


def where_layers_are(plan: Plan, addresses: Sequence[str]) -> str:
    """Say which layers are on which machine, in the order of a pass."""
    at = plan.n_layers - 1 - sum(plan.split)
    places = [f"{_span(0, at)} here"] if at else []
    for address, n in zip(addresses, plan.split, strict=True):
        if n:
            places.append(f"{_span(at, n)} on {address}")
        at += n
    return f"layers {', '.join(places)}; the output here"


def _span(first: int, n: int) -> str:
    return str(first) if n == 1 else f"{first}-{first + n - 1}"


def _layers_that_fit(plan: Plan, free_bytes: int) -> int:
    free = free_bytes * (1 - RESERVE_SHARE) - _spread_out(plan).compute_on_gpu
    return max(0, int(free // _layer_bytes(plan)))


def _layer_bytes(plan: Plan) -> float:
    return max(1.0, _spread_out(plan).layers_on_gpu / (plan.n_layers - 1))


def _spread_out(plan: Plan) -> Estimate:
    """Estimate the target alone, with all layers on one worker."""
    return estimate(replace(plan, split=(plan.n_layers - 1,), draft=None, mtp=False))
