"""Choose the layers that go to other machines: a requested number, or shares by free memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgespec.models.memory.estimate import Estimate, Plan, estimate
from edgespec.settings import Offload

RESERVE_SHARE = 0.05  # of a machine's free memory


def spread(plan: Plan, gpu_layers: Offload, free_bytes: Sequence[int], own_free_bytes: int) -> Plan:
    """Return the plan with layers on workers, whose free memory is `free_bytes`. The output stays here.

    "auto" divides the layers among this machine and the workers by free memory, "all" puts all layers on workers, and a
    number puts this many layers there. Layers that do not fit on the workers stay here.
    """
    n_layers = plan.n_layers - 1
    rooms = [_layers_that_fit(plan, free) for free in free_bytes]
    if gpu_layers == "auto":
        here = estimate(replace(plan, split=(n_layers,)))  # the part that belongs to no layer
        own = max(0, own_free_bytes - here.ram)
        shares = _shared_out(n_layers, [*free_bytes, own])[:-1]
        left_over = max(0, n_layers - sum(min(pair) for pair in zip(shares, rooms, strict=True)))
        fits_here = int(own // _layer_bytes(plan))
        # Workers take more than their share if the remaining layers do not fit on this machine.
        wanted = n_layers - min(left_over, max(fits_here, 0))
    else:
        wanted = n_layers if gpu_layers == "all" else min(gpu_layers, n_layers)
        shares = _shared_out(wanted, free_bytes)
    split = [min(pair) for pair in zip(shares, rooms, strict=True)]
    for index, room in enumerate(rooms):
        split[index] += max(0, min(room - split[index], wanted - sum(split)))
    return replace(plan, split=tuple(split))


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


def _shared_out(n: int, shares: Sequence[int]) -> list[int]:
    """Divide `n` into whole numbers that are nearly proportional to the shares."""
    total = sum(shares)
    if not total:
        return [0] * len(shares)
    exact = [n * share / total for share in shares]
    whole = [int(each) for each in exact]
    for index in sorted(range(len(shares)), key=lambda i: whole[i] - exact[i])[: n - sum(whole)]:
        whole[index] += 1
    return whole
