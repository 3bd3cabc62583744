"""The layers on workers: shares by free memory, or the requested number, and no more than fit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.gguf_file.model_check import check_model
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.models.memory.placement import spread, where_layers_are
from edgespec.models.names.spec import resolve
from edgespec.settings import Offload

PLAN = MemoryPlan(check_model(resolve("demo").path), n_ctx=1024)
LAYERS = PLAN.n_layers - 1
PLENTY = 10**12


def test_machines_with_the_same_memory_get_the_same_number_of_layers() -> None:
    split = spread(PLAN, "auto", [PLENTY], PLENTY).split
    assert abs(split[0] - LAYERS / 2) <= 0.5
    assert spread(PLAN, "auto", [PLENTY, PLENTY], 0).split == (LAYERS - LAYERS // 2, LAYERS // 2)


def test_what_is_asked_for() -> None:
    assert spread(PLAN, "all", [PLENTY], PLENTY).split == (LAYERS,)
    assert spread(PLAN, 1, [PLENTY, 3 * PLENTY], PLENTY).split == (0, 1)
    assert spread(PLAN, 0, [PLENTY], PLENTY).split == (0,)


def test_what_this_machine_cannot_hold_goes_to_those_that_can() -> None:
    assert spread(PLAN, "auto", [PLENTY], 0).split == (LAYERS,)
    whole = estimate(replace(PLAN, split=(LAYERS,))).vram
    short, other = spread(PLAN, "auto", [whole // 2, PLENTY], 0).split
    assert short + other == LAYERS and other > 0


@settings(max_examples=25)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=4), st.integers(0, 10**9), st.sampled_from(["auto", "all"]))
def test_no_worker_gets_more_than_it_holds(free: list[int], own: int, wanted: Offload) -> None:
    found = spread(PLAN, wanted, free, own)
    assert len(found.split) == len(free) and 0 <= sum(found.split) <= LAYERS
    layer = estimate(replace(PLAN, split=(LAYERS,))).layers_on_gpu / LAYERS
    for layers, room in zip(found.split, free, strict=True):
        assert layers * layer <= room


def test_the_output_and_the_rest_stay_here() -> None:
    alone, split = estimate(PLAN), estimate(replace(PLAN, split=(LAYERS,)))
    output = sum(
        tensor.size_bytes for name, tensor in PLAN.header.tensors.items() if name.startswith(("output", "token"))
    )
    assert split.weights == alone.weights and split.mapped == output
    assert split.layers_on_gpu == alone.weights - output + alone.kv


def test_where_they_are() -> None:
    plan = replace(PLAN, split=(0, 1, LAYERS - 2))
    shown = where_layers_are(plan, ["a:1", "b:2", "c:3"])
    last = f"2-{LAYERS - 1}" if LAYERS > 3 else "2"
    assert shown == f"layers 0 here, 1 on b:2, {last} on c:3; the output here"
