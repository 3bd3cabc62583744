"""Choose the layers that go to GPUs and to other machines: a requested number, or by free memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgespec.models.memory.estimate import MemoryEstimate, MemoryPlan, estimate
from edgespec.settings import Offload
from edgespec.text.figures import size_of

GPU_RESERVE_BYTES = 500_000_000  # of a GPU's memory, for its driver and its kernels' scratch


def placed(
    plan: MemoryPlan, gpu_layers: Offload, gpu_layers_draft: Offload, free_bytes: Mapping[str, int]
) -> MemoryPlan:
    """Return the plan with layers on the GPUs in `plan.devices`: the requested number, or for "auto" as many as fit.

    `free_bytes` is the free memory of each GPU by its name. A draft is placed first, completely or not at all, since
    every draft token takes a pass of it, and on one of its GPUs if possible. The target gets the remaining memory.
    A head that computes with the target's output is where this output is: llama.cpp aborts if it is on a GPU that the
    head does not use.
    """
    if plan.draft is not None and plan.draft.features and "output.weight" not in plan.draft.header.tensors:
        head = replace(plan.draft, devices=plan.devices)
        found = _placed(replace(plan, draft=head), gpu_layers, "all", free_bytes)
        return found if found.gpu_layers else replace(found, draft=replace(head, gpu_layers=0))
    return _placed(plan, gpu_layers, gpu_layers_draft, free_bytes)


def _placed(
    plan: MemoryPlan, gpu_layers: Offload, gpu_layers_draft: Offload, free_bytes: Mapping[str, int]
) -> MemoryPlan:
    plan = replace(plan, gpu_layers=_number_of(plan, gpu_layers))
    choices = [plan]
    if plan.draft is not None and gpu_layers_draft != "auto":
        choices = [replace(plan, draft=replace(plan.draft, gpu_layers=_number_of(plan.draft, gpu_layers_draft)))]
    elif plan.draft is not None:
        whole, nowhere = replace(plan.draft, gpu_layers=plan.draft.n_layers), replace(plan.draft, gpu_layers=0)
        places = dict.fromkeys([*((name,) for name in whole.devices), whole.devices])
        drafts = [replace(whole, devices=devices) for devices in places if devices and whole.n_layers]
        choices = [with_draft for draft in drafts if fits_on_gpus(with_draft := replace(plan, draft=draft), free_bytes)]
        choices = choices or [replace(plan, draft=nowhere)]
    if gpu_layers == "auto":
        choices = [replace(choice, gpu_layers=gpu_layers_that_fit(choice, free_bytes)) for choice in choices]
    return max(choices, key=lambda choice: choice.gpu_layers)


def _number_of(plan: MemoryPlan, wanted: Offload) -> int:
    """Return the requested number; 0 for "auto", which is decided later, and where there is no GPU."""
    if wanted == "auto" or not plan.devices:
        return 0
    return plan.n_layers if wanted == "all" else min(wanted, plan.n_layers)


def gpu_layers_that_fit(plan: MemoryPlan, free_bytes: Mapping[str, int]) -> int:
    """Return the largest number of the target's layers that fit on its GPUs together with the draft."""
    choices = range(1, plan.n_layers + 1 if plan.devices else 1)
    return bisect_right(
        choices, False, key=lambda layers: not fits_on_gpus(replace(plan, gpu_layers=layers), free_bytes)
    )


def fits_on_gpus(plan: MemoryPlan, free_bytes: Mapping[str, int]) -> bool:
    """Return whether the part on GPUs fits, with a reserve for the driver of each GPU."""
    needed = needed_on_gpus(plan, free_bytes)
    return all(n_bytes + GPU_RESERVE_BYTES <= free_bytes[name] for name, n_bytes in needed.items())


def needed_on_gpus(plan: MemoryPlan, free_bytes: Mapping[str, int]) -> Counter[str]:
    """Return the memory that the plan takes on each GPU.

    llama.cpp gives each GPU of a model a share of its layers by free memory, rounded up, from the first layer on. Each
    needs the buffers of a pass.
    """
    needed = Counter[str]()
    for part in (replace(plan, draft=None), plan.draft):
        if part is None or not part.gpu_layers:
            continue
        total = max(1, sum(free_bytes[name] for name in part.devices))
        expected, free = estimate(part), 0
        left_bytes = expected.layers_on_gpu
        for name in part.devices:
            free += free_bytes[name]
            left = part.gpu_layers * (total - free) // total
            after = estimate(replace(part, gpu_layers=left)).layers_on_gpu if left else 0
            needed[name] += left_bytes - after + expected.compute_on_gpu
            left_bytes = after
    return needed


def placement(plan: MemoryPlan, free_bytes: Mapping[str, int]) -> str:
    """Say how many layers are on GPUs, and how full the GPUs are."""
    draft = f", {plan.draft.gpu_layers} of {plan.draft.n_layers} of the draft's" if plan.draft else ""
    needed = needed_on_gpus(plan, free_bytes)
    used = [f"{size_of(needed[name])} of {size_of(free)} that are free on {name}" for name, free in free_bytes.items()]
    return f"{plan.gpu_layers} of {plan.n_layers} layers{draft} on the GPU: {', '.join(used)}"


RESERVE_SHARE = 0.05  # of a machine's free memory


def spread(plan: MemoryPlan, gpu_layers: Offload, free_bytes: Sequence[int], own_free_bytes: int) -> MemoryPlan:
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


def where_layers_are(plan: MemoryPlan, addresses: Sequence[str]) -> str:
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


def _layers_that_fit(plan: MemoryPlan, free_bytes: int) -> int:
    free = free_bytes * (1 - RESERVE_SHARE) - _spread_out(plan).compute_on_gpu
    return max(0, int(free // _layer_bytes(plan)))


def _layer_bytes(plan: MemoryPlan) -> float:
    return max(1.0, _spread_out(plan).layers_on_gpu / (plan.n_layers - 1))


def _spread_out(plan: MemoryPlan) -> MemoryEstimate:
    """Estimate the target alone, with all layers on one worker."""
    return estimate(replace(plan, split=(plan.n_layers - 1,), draft=None, mtp=False))
