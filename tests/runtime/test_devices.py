"""Devices by name: what is loaded where, and that the answer is the same everywhere."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from check_memory import log_lines
from gpu import needs_gpu, needs_two_gpus, visible_gpus
from tiny_gguf import write_model
from tiny_head import write_bigram, write_head

import edgespec
from edgespec.errors import UsageError
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.models.memory.estimate import MemoryPlan
from edgespec.models.memory.placement import needed_on_gpus
from edgespec.models.names.spec import resolve
from edgespec.runtime.planning import fitted, open_model

# The first pass of each width compiles its shaders, which takes a software driver up to minutes.
pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.timeout(900)]

N_TOKENS = 12
EVERYWHERE: dict[str, Any] = {"gpu_layers": "all", "gpu_layers_draft": "all", "store": False, "threads": 1}


def devices(places: str) -> str:
    """Return names of devices for "0", "1" or "01", the numbers of visible GPUs, or "none"."""
    return places if places == "none" else ",".join(visible_gpus()[int(place)] for place in places)


def text(model: str | Path, **settings: Any) -> tuple[str, edgespec.Runtime]:
    """Return the first tokens of an answer, and the closed runtime that gave it."""
    with edgespec.load(str(model), **EVERYWHERE | settings) as llm:
        return llm.complete("The meaning of", max_tokens=N_TOKENS, temperature=0).text, llm


@cache
def plain(model: str | Path = "demo") -> str:
    return text(model, device="none", spec_type="none")[0]


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="there is no device 'CUDA7'") as caught:
        edgespec.load("demo", device="CUDA7")
    assert (", ".join(visible_gpus()) or "no device") in str(caught.value)
    with pytest.raises(UsageError, match="there is no device 'CUDA7'"):
        edgespec.load("demo", device_draft="CUDA7")
    for empty in ("", "  ", 1):
        with pytest.raises(UsageError, match="device must be auto, none, or names of devices"):
            edgespec.load("demo", device=empty)  # type: ignore[arg-type]


def test_without_a_device_nothing_is_offloaded() -> None:
    with edgespec.load("demo", device="none", **EVERYWHERE) as llm:
        assert (llm.info.gpu_layers, llm.info.devices) == (0, ())
        assert "devices" not in llm.context.fingerprint
        assert not any("GPU" in note for note in llm.notes)


@needs_two_gpus
@pytest.mark.parametrize("draft", ["0", "1", "01", "none"])
@pytest.mark.parametrize("target", ["0", "1", "01", "none"])
def test_target_and_draft_answer_alike_on_all_devices(target: str, draft: str) -> None:
    found, llm = text(
        "demo", device=devices(target), device_draft=devices(draft), spec_type="draft", pace="fixed:3", overlap="off"
    )
    assert found == plain()
    assert llm.draft is not None
    for model, places in ((llm.model, target), (llm.draft, draft)):
        assert model.gpus == (() if places == "none" else tuple(visible_gpus()[int(place)] for place in places))
        assert [name for name, *_ in model.fingerprint.get("devices", [])] == [*model.gpus]  # type: ignore[attr-defined]


@needs_two_gpus
def test_by_default_all_devices_hold_the_target_and_one_the_draft() -> None:
    both = ",".join(visible_gpus()[:2])
    found, llm = text("demo", device=both, gpu_layers="auto", gpu_layers_draft="auto", pace="fixed:3")
    assert found == plain()
    assert llm.draft is not None
    assert (",".join(llm.model.gpus), len(llm.draft.gpus)) == (both, 1)
    assert not any("on the GPU" in note for note in llm.notes)  # no layer is left out


@needs_two_gpus
@pytest.mark.parametrize("overlap", ["auto", "off"])
def test_a_draft_on_another_device_may_draft_ahead(overlap: str) -> None:
    with edgespec.load(
        "demo", device=devices("0"), device_draft=devices("1"), spec_type="draft", pace="fixed:3",
        **EVERYWHERE | {"overlap": overlap},
    ) as llm:  # fmt: skip
        is_ahead = type(llm.engine.speculator.drafters[0]).__name__ == "OverlappedDrafter"
        assert is_ahead == (overlap == "auto")


@needs_two_gpus
@pytest.mark.parametrize("own_output", [True, False])
@pytest.mark.parametrize(("target", "draft"), [("0", "1"), ("01", "0"), ("0", "none"), ("none", "0")])
def test_a_head_works_beside_the_target_and_elsewhere(
    target: str, draft: str, own_output: bool, tmp_path: Path
) -> None:
    model = write_bigram(tmp_path / "target.gguf")
    head = write_head(tmp_path / "head.gguf", tensors={} if own_output else {"output.weight": None})
    found, llm = text(model, draft_model=str(head), device=devices(target), device_draft=devices(draft), pace="fixed:3")
    assert found == plain(model)
    assert llm.draft is not None
    # llama.cpp aborts if a head uses the target's output on a GPU that the head is not on.
    place = draft if own_output else target
    assert llm.draft.gpus == tuple(filter(None, devices(place).replace("none", "").split(",")))


@needs_gpu
@pytest.mark.parametrize("n_cpu_moe", [0, 1, 2])
def test_experts_stay_in_main_memory(n_cpu_moe: int, tmp_path: Path) -> None:
    model = write_model(tmp_path / "moe.gguf", "qwen2moe", width=256)
    settings: dict[str, Any] = {"device": devices("0"), "spec_type": "none", "n_cpu_moe": n_cpu_moe}
    assert text(model, **settings)[0] == text(model, **settings | {"cpu_moe": True})[0] == plain(model)
    with edgespec.load(str(model), **EVERYWHERE | settings) as llm:
        assert llm.model.devices == {devices("0"), *(["CPU"] if n_cpu_moe else [])}


def reported(device: str, lines: list[str]) -> float:
    """Return the bytes of all buffers that llama.cpp reports for a device."""
    sizes = (re.search(rf"{device} .*buffer size = +([\d.]+) MiB", line) for line in lines)
    return sum(float(size[1]) * (1 << 20) for size in sizes if size)


@needs_gpu
@pytest.mark.parametrize("gpu_layers", [5, 99])
@pytest.mark.parametrize("n_cpu_moe", [0, 1])
def test_a_device_takes_as_much_memory_as_planned(gpu_layers: int, n_cpu_moe: int, tmp_path: Path) -> None:
    path = write_model(tmp_path / "moe.gguf", "qwen2moe", width=512) if n_cpu_moe else resolve("demo").path
    device = devices("0")
    plan = MemoryPlan(check_model(path), n_ctx=4096, devices=(device,), n_cpu_moe=n_cpu_moe)
    plan = fitted(plan, print, gpu_layers)
    with (
        log_lines() as lines,
        open_model(plan, print, lambda done: None) as model,
        Context(model, replace(plan, threads=1)),
    ):
        assert needed_on_gpus(plan, {device: 1})[device] == pytest.approx(reported(device, lines), rel=0.2)


@needs_two_gpus
def test_each_of_two_devices_takes_its_share_of_the_layers() -> None:
    names = tuple(visible_gpus()[:2])
    with log_lines() as lines:
        text("demo", device=",".join(names), spec_type="none")
    shares = [reported(name, [line for line in lines if "model buffer" in line]) for name in names]
    assert min(shares) > 0.3 * sum(shares)


@needs_two_gpus
def test_two_devices_take_as_much_memory_as_planned() -> None:
    names = tuple(visible_gpus()[:2])
    plan = fitted(MemoryPlan(check_model(resolve("demo").path), n_ctx=8192, devices=names), print, "all")
    with (
        log_lines() as lines,
        open_model(plan, print, lambda done: None) as model,
        Context(model, replace(plan, threads=1)),
    ):
        needed = needed_on_gpus(plan, dict.fromkeys(names, 1))
        assert needed == {name: pytest.approx(reported(name, lines), rel=0.1) for name in names}
