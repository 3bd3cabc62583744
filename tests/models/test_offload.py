"""The number of layers on GPUs: the requested number, or as many as fit with the draft and the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import write_model

import edgespec
from edgespec.errors import OutOfMemoryError
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.library import Device
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.models.memory.placement import (
    GPU_RESERVE_BYTES,
    fits_on_gpus,
    gpu_layers_that_fit,
    needed_on_gpus,
    placed,
    placement,
)
from edgespec.models.names.spec import resolve
from edgespec.runtime import planning
from edgespec.settings import Offload
from edgespec.text.figures import size_of

DEMO, DEMO_DRAFT = (check_model(resolve(name).path) for name in ("demo", "demo:draft"))
ALONE = MemoryPlan(DEMO, n_ctx=1024)
PAIR = replace(ALONE, draft=MemoryPlan(DEMO_DRAFT, n_ctx=1024))
ALL, ALL_OF_DRAFT = ALONE.n_layers, MemoryPlan(DEMO_DRAFT, n_ctx=1024).n_layers
PLENTY = [10**12]


def needed(plan: MemoryPlan) -> int:
    """Return the memory that a GPU needs for a plan."""
    return estimate(plan).vram + GPU_RESERVE_BYTES


def gpus_with(free_bytes: Sequence[int]) -> dict[str, int]:
    return {f"GPU{number}": free for number, free in enumerate(free_bytes)}


def on(plan: MemoryPlan, target: Sequence[str], draft: Sequence[str] = ()) -> MemoryPlan:
    """Return the plan with layers on these devices."""
    on_draft = plan.draft and replace(plan.draft, devices=tuple(draft or target))
    return replace(plan, devices=tuple(target), draft=on_draft)


def layers(
    plan: MemoryPlan, free_bytes: Sequence[int], target: Offload = "auto", draft: Offload = "auto"
) -> tuple[int, int]:
    """Return the layers of the target and of the draft on the GPUs."""
    gpus = gpus_with(free_bytes)
    found = placed(on(plan, [*gpus]), target, draft, gpus)
    return found.gpu_layers, found.draft.gpu_layers if found.draft else 0


def test_all_layers_go_where_all_fit() -> None:
    assert layers(ALONE, PLENTY) == (ALL, 0)
    assert layers(PAIR, PLENTY) == (ALL, ALL_OF_DRAFT)
    assert layers(ALONE, [needed(replace(ALONE, gpu_layers=ALL))]) == (ALL, 0)


def test_none_goes_where_nothing_fits() -> None:
    for free_bytes in ([0], [GPU_RESERVE_BYTES], [0, 0]):
        assert layers(PAIR, free_bytes) == (0, 0)
    assert layers(ALONE, [needed(replace(ALONE, gpu_layers=1)) - 1]) == (0, 0)


@pytest.mark.parametrize("n_layers", range(1, ALL))
def test_a_part_goes_where_a_part_fits(n_layers: int) -> None:
    free = needed(replace(ALONE, gpu_layers=n_layers))
    assert layers(ALONE, [free]) == (n_layers, 0)
    assert layers(ALONE, [free - 1]) == (n_layers - 1, 0)


@settings(max_examples=25)
@given(st.integers(0, 2 * 10**9), st.integers(256, 100_000), st.booleans())
def test_one_layer_more_would_not_fit(free: int, n_ctx: int, in_a_pair: bool) -> None:
    plan = replace(PAIR if in_a_pair else ALONE, n_ctx=n_ctx)
    plan, gpus = on(plan, ["GPU0"]), {"GPU0": free}
    found = gpu_layers_that_fit(plan, gpus)
    assert found == 0 or fits_on_gpus(replace(plan, gpu_layers=found), gpus)
    assert found == ALL or not fits_on_gpus(replace(plan, gpu_layers=found + 1), gpus)


def test_the_cache_takes_its_room() -> None:
    free = [needed(replace(ALONE, gpu_layers=ALL))]
    longer, smaller = replace(ALONE, n_ctx=4096), replace(ALONE, n_ctx=4096, cache_type_k="q4_0", cache_type_v="q4_0")
    assert 0 < layers(longer, free)[0] < layers(smaller, free)[0] < ALL


def test_the_draft_goes_first_and_whole_and_takes_its_room() -> None:
    assert PAIR.draft is not None
    with_draft = replace(PAIR, draft=replace(PAIR.draft, gpu_layers=ALL_OF_DRAFT))
    assert layers(PAIR, [needed(with_draft)]) == (0, ALL_OF_DRAFT)
    assert layers(PAIR, [needed(with_draft) - 1]) == (0, 0)
    six = needed(replace(with_draft, gpu_layers=6))
    assert layers(PAIR, [six]) == (6, ALL_OF_DRAFT)
    assert layers(ALONE, [six])[0] > 6
    # If the draft must stay on the CPU, the target uses its room.
    assert layers(PAIR, [six], draft=0) == layers(ALONE, [six])


def test_what_is_asked_for_is_done_and_counted() -> None:
    assert layers(PAIR, [0], 3, 2) == (3, 2)
    assert layers(PAIR, [0], "all", "all") == (ALL, ALL_OF_DRAFT)
    assert layers(PAIR, PLENTY, 99, 99) == (ALL, ALL_OF_DRAFT)
    assert layers(PAIR, PLENTY, 0, 0) == (0, 0)
    assert PAIR.draft is not None
    free = needed(replace(PAIR, gpu_layers=4, draft=replace(PAIR.draft, gpu_layers=ALL_OF_DRAFT)))
    assert layers(PAIR, [free], 4, "auto") == (4, ALL_OF_DRAFT)
    assert layers(PAIR, [free], 5, "auto") == (5, 0)
    assert layers(PAIR, [free], "auto", 1)[0] >= 4


def test_without_a_gpu_all_stays_where_it_is() -> None:
    assert layers(PAIR, [], "all", 3) == (0, 0)


@settings(max_examples=25)
@given(st.lists(st.integers(GPU_RESERVE_BYTES, 2 * 10**9), min_size=2, max_size=4), st.integers(256, 100_000))
def test_on_several_gpus_each_share_fits(free_bytes: list[int], n_ctx: int) -> None:
    gpus = gpus_with(free_bytes)
    plan = on(replace(ALONE, n_ctx=n_ctx), [*gpus])
    found = replace(plan, gpu_layers=gpu_layers_that_fit(plan, gpus))
    shares, expected = needed_on_gpus(found, gpus), estimate(found)
    assert all(n_bytes + GPU_RESERVE_BYTES <= gpus[name] for name, n_bytes in shares.items())
    assert sum(shares.values()) == expected.layers_on_gpu + len(shares) * expected.compute_on_gpu
    assert found.gpu_layers <= gpu_layers_that_fit(on(plan, ["GPU0"]), {"GPU0": sum(free_bytes)})


@pytest.mark.parametrize("free_bytes", [(1, 1), (3, 1), (1, 3), (1, 1, 1), (5, 1, 4)])
@pytest.mark.parametrize("gpu_layers", [1, 2, ALL - 1, ALL])
def test_layers_are_shared_out_as_llama_cpp_does_it(free_bytes: tuple[int, ...], gpu_layers: int) -> None:
    gpus = gpus_with(free_bytes)
    plan = on(replace(ALONE, gpu_layers=gpu_layers), [*gpus])
    cached = estimate(replace(plan, gpu_layers=0)).kv // (ALL - 1)
    expected = dict.fromkeys(gpus, estimate(plan).compute_on_gpu)
    for number in range(gpu_layers):  # `load_tensors` in llama-model.cpp
        share = number / gpu_layers
        name = next(name for i, name in enumerate(gpus) if share < sum(free_bytes[: i + 1]) / sum(free_bytes))
        layer = ALL - gpu_layers + number
        names = ("output",) if layer == ALL - 1 else (f"blk.{layer}.",)
        expected[name] += sum(each.size_bytes for key, each in DEMO.tensors.items() if key.startswith(names))
        expected[name] += cached if layer < ALL - 1 else 0
        if layer == ALL - 1 and "output.weight" not in DEMO.tensors:
            expected[name] += DEMO.tensors["token_embd.weight"].size_bytes
    assert needed_on_gpus(plan, gpus) == expected


def test_a_draft_is_on_one_gpu_if_it_fits_on_one() -> None:
    pair, plenty = on(PAIR, ["GPU0", "GPU1"]), gpus_with([10**12, 10**12])
    found = placed(pair, "auto", "auto", plenty)
    assert found.draft is not None
    assert (found.devices, found.draft.devices) == (("GPU0", "GPU1"), ("GPU0",))
    assert (found.gpu_layers, found.draft.gpu_layers) == (ALL, ALL_OF_DRAFT)
    # A number is spread over all of them, as llama.cpp does it.
    spread = placed(pair, "auto", ALL_OF_DRAFT, plenty)
    assert spread.draft is not None
    assert spread.draft.devices == ("GPU0", "GPU1")


def test_a_draft_goes_where_it_leaves_the_target_most_room() -> None:
    pair = on(PAIR, ["GPU0"], ["GPU0", "GPU1"])
    free = needed(replace(ALONE, gpu_layers=ALL))
    found = placed(pair, "auto", "auto", gpus_with([free, 10**12]))
    assert found.draft is not None
    assert (found.gpu_layers, found.draft.gpu_layers, found.draft.devices) == (ALL, ALL_OF_DRAFT, ("GPU1",))


def test_each_device_holds_what_is_put_on_it() -> None:
    whole = on(replace(PAIR, gpu_layers=ALL), ["GPU0"], ["GPU1"])
    assert whole.draft is not None
    whole = replace(whole, draft=replace(whole.draft, gpu_layers=ALL_OF_DRAFT))
    target, draft = estimate(replace(whole, draft=None)).vram, estimate(whole.draft).vram  # type: ignore[arg-type]
    gpus = gpus_with([target + GPU_RESERVE_BYTES, draft + GPU_RESERVE_BYTES])
    assert needed_on_gpus(whole, gpus) == {"GPU0": target, "GPU1": draft}
    assert fits_on_gpus(whole, gpus)
    for name in gpus:
        assert not fits_on_gpus(whole, gpus | {name: gpus[name] - 1})
    together = on(whole, ["GPU0"])
    assert needed_on_gpus(together, gpus) == {"GPU0": target + draft}


@pytest.mark.parametrize("n_cpu_moe", [1, 2])
def test_experts_in_main_memory_need_no_room_on_the_gpu(n_cpu_moe: int, tmp_path: Path) -> None:
    header = check_model(write_model(tmp_path / "moe.gguf", "qwen2moe", width=256))
    assert header.number("block_count") == 2
    whole = MemoryPlan(header, n_ctx=1024, gpu_layers=99)
    kept = estimate(replace(whole, n_cpu_moe=n_cpu_moe))
    experts = [tensor.size_bytes for name, tensor in header.tensors.items() if "_exps." in name]
    n_bytes = sum(experts) * n_cpu_moe // 2
    assert estimate(whole).layers_on_gpu - kept.layers_on_gpu == n_bytes > 0
    assert kept.mapped - estimate(whole).mapped == n_bytes
    # A wide pass copies the weights of one kind to the GPU, as of layers that are in main memory.
    assert kept.compute_on_gpu - estimate(whole).compute_on_gpu == max(experts)


# --- on this machine --------------------------------------------------------------------------------------------------


def gpu(free_bytes: int) -> Device:
    return Device("GPU0", "a GPU", "GPU", free_bytes, 2 * free_bytes)


def fitted(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int, *wanted: Offload, **settings: Any
) -> tuple[MemoryPlan, str]:
    """Return the plan on a machine with such a GPU, and the notes."""
    monkeypatch.setattr(planning, "supports_gpu", lambda: True)
    monkeypatch.setattr(planning, "gpus", lambda names: [gpu(free_bytes)])
    notes: list[str] = []
    return planning.fitted(PAIR, notes.append, *wanted, **settings), "; ".join(notes)


def test_what_goes_to_the_gpu_is_said_unless_it_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, said = fitted(monkeypatch, 10**12)
    assert (plan.gpu_layers, said) == (ALL, "")
    free = needed(replace(PAIR, gpu_layers=6, draft=replace(ALONE, header=DEMO_DRAFT, gpu_layers=99)))
    plan, said = fitted(monkeypatch, free)
    assert plan.gpu_layers == 6
    assert said == placement(plan, {"GPU0": free})
    assert said.startswith(f"6 of {ALL} layers, {ALL_OF_DRAFT} of {ALL_OF_DRAFT} of the draft's on the GPU: ")
    assert said.endswith(f" of {size_of(free)} that are free on GPU0")
    assert fitted(monkeypatch, free, 2, 0)[1] == ""


def test_what_is_on_the_gpu_needs_no_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    least = estimate(planning._repacked(PAIR)).allocated
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: int(least * 0.95))
    assert fitted(monkeypatch, 10**12)[0].n_ctx == 1024
    with pytest.raises(OutOfMemoryError, match="a context of 1,024 tokens does not fit"):
        fitted(monkeypatch, 0)
    plan, said = fitted(monkeypatch, 0, may_shrink=True)
    assert plan.n_ctx < 1024
    assert f"using {plan.n_ctx}" in said


def test_sequences_share_what_the_gpu_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "supports_gpu", lambda: True)
    whole = replace(ALONE, gpu_layers=ALL)
    one, two = (needed(replace(whole, sequences=n, max_outputs=n)) for n in (1, 2))
    for further, wanted in ((0, 1), (8, 5), (100, 16)):
        free = one + further * (two - one)
        monkeypatch.setattr(planning, "gpus", lambda names, free=free: [gpu(free)])
        assert planning.sequences_that_fit(ALONE) == wanted
        # With this number the layers do not change.
        assert layers(replace(ALONE, sequences=wanted, max_outputs=wanted), [free]) == (ALL, 0)


def test_a_gpu_that_lacks_memory_for_what_is_requested_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        fitted(monkeypatch, 10**6, ALL, 0)
    assert caught.value.what == "the layers do not fit on GPU0"
    assert caught.value.why.endswith(f"there, {size_of(10**6)} are free")
    assert caught.value.hint.startswith("`gpu_layers=0` `gpu_layers_draft=0` fits (auto chooses it)")
    # The reserve of a GPU is not counted: its driver may need less.
    free = estimate(replace(ALONE, gpu_layers=ALL)).vram
    assert fitted(monkeypatch, free, ALL, 0)[0].gpu_layers == ALL


def test_a_gpu_that_is_not_there_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "supports_gpu", lambda: False)
    with edgespec.load("demo", threads=1, gpu_layers="all") as llm:
        assert llm.info.gpu_layers == 0
        assert llm.notes.count("this build of llama.cpp has no usable GPU: all layers stay on the CPU") == 1
    with edgespec.load("demo", threads=1) as llm:
        assert not any("GPU" in note for note in llm.notes)


@pytest.mark.parametrize(
    ("kind", "wanted", "names", "n_layers"),
    [
        ("GPU", "auto", (), ALL),
        ("integrated GPU", "auto", (), 0),
        ("integrated GPU", "all", (), ALL),
        ("integrated GPU", 3, (), 3),
        ("integrated GPU", "auto", ("Vulkan0",), ALL),
    ],
)
def test_an_integrated_gpu_is_used_only_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, kind: str, wanted: Offload, names: tuple[str, ...], n_layers: int
) -> None:
    found = replace(gpu(10**10), kind=kind)
    monkeypatch.setattr(planning, "supports_gpu", lambda: True)
    monkeypatch.setattr(planning, "gpus", lambda names: [found])
    names = tuple(found.name for _ in names)
    assert planning.fitted(replace(ALONE, devices=names), pytest.fail, wanted, 0).gpu_layers == n_layers
