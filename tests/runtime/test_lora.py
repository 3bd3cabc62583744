"""LoRA adapters of a model: what they change, and that drafts, other answers and the cache do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import EXACT, model_metadata, model_tensors, write_model
from tiny_lora import changes, write_adapter

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.datastore.answer_store import store_dir
from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf_file.adapters import check_adapter
from edgespec.gguf_file.model_check import check_model
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Message, Request

pytestmark = pytest.mark.native
ASKED = Request("def f(", max_tokens=24, seed=3, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, a draft for it, two adapters, and the model with the first adapter in its weights."""
    folder = tmp_path_factory.mktemp("lora")
    model = write_model(folder / "tiny.gguf", "llama")
    weights = model_tensors("llama", model_metadata("llama"))
    merged = {name: (weights[name] + change).astype(np.float32) for name, change in changes(model, scale=0.5).items()}
    return {
        "model": model,
        "draft": write_model(folder / "draft.gguf", "llama", noise=0.1),
        "merged": write_model(folder / "merged.gguf", "llama", tensors=merged),
        "one": write_adapter(folder / "one.gguf", model),
        "two": write_adapter(folder / "two.gguf", model, seed=1, rank=3, type="F16"),
    }


def loaded(files: dict[str, Path], *lora: str, **settings: Any) -> Runtime:
    named = tuple(f"{name}={files[name]}{scale}" for name, _, scale in (text.partition("|") for text in lora))
    usual: dict[str, Any] = {"threads": 1, "store": False, "spec_type": "draft,suffix", "pace": "fixed:3"}
    usual["draft_model"] = str(files["draft"])
    return edgespec.load(str(files["model"]), lora=named, **usual | settings)


@pytest.fixture(scope="module")
def llm(files: dict[str, Path]) -> Iterator[Runtime]:
    with loaded(files, "one|=0.5", "two|=0", sequences=3) as runtime:
        yield runtime


def answered(llm: Runtime, request: Request) -> list[int]:
    return [event.id for event in llm.submit(request) if not event.is_last]


def logprobs(llm: Runtime, request: Request) -> list[float]:
    return [event.logprob for event in llm.submit(request) if event.logprob is not None]


SETS: dict[str, tuple[tuple[int | str, float], ...]] = {
    "default": (),
    "none": ((0, 0.0),),
    "two": (("two", 1.0),),
    "both": ((0, -0.3), ("two", 0.7)),
}


def test_an_adapter_is_what_it_adds_to_the_weights(files: dict[str, Path], llm: Runtime) -> None:
    asked = replace(ASKED, sampling=SamplingSettings(temperature=0), spec_type="none")
    known = {}
    for name in ("merged", "model"):
        with edgespec.load(str(files[name]), spec_type="none", store=False, **EXACT) as other:
            known[name] = logprobs(other, asked)
    for name, lora in (("merged", ()), ("model", ((0, 0.0),)), ("model", ((1, 0.0),))):
        assert np.allclose(logprobs(llm, replace(asked, lora=lora)), known[name], atol=0.02)
    assert not np.allclose(known["merged"], known["model"], atol=0.5)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_and_the_cache_do_not_change_texts(llm: Runtime, name: str, temperature: float) -> None:
    assert llm.info.exact
    assert llm.info.rounding == 0.0
    asked = replace(ASKED, lora=SETS[name], sampling=SamplingSettings(temperature=temperature))
    llm.forget()
    plain = answered(llm, replace(asked, spec_type="none"))
    assert answered(llm, asked) == plain
    llm.forget()
    assert answered(llm, asked) == plain
    others = [answered(llm, replace(asked, lora=lora, spec_type="none")) for lora in SETS.values()]
    assert others.count(plain) == 1


def test_answers_together_are_the_answers_alone(llm: Runtime) -> None:
    requests = [replace(ASKED, prompt=f"def {name}(", lora=lora) for name, lora in SETS.items()]
    alone = [answered(llm, request) for request in requests]
    llm.forget()
    together: list[list[int]] = [[] for _ in requests]
    for number, event in llm.stream(requests):
        assert not isinstance(event, EdgespecError)
        together[number] += [] if event.is_last else [event.id]
    assert together == alone


def test_a_chat_keeps_its_cache_and_no_other_adapter_uses_it(llm: Runtime) -> None:
    llm.forget()
    asked = Request(
        messages=(Message("user", "Tell me about rivers. " * 20),), max_tokens=4, lora=SETS["two"], lenient=True
    )
    for lora, is_cached in ((SETS["two"], False), (SETS["none"], False), ((), False), (SETS["two"], True)):
        *_, last = llm.submit(replace(asked, lora=lora))
        assert last.stats is not None
        assert (last.stats.cached_tokens > 100) == is_cached


def test_a_recurrent_model_has_adapters_too(tmp_path: Path) -> None:
    model = write_model(tmp_path / "mamba.gguf", "mamba")
    adapter = write_adapter(tmp_path / "a.gguf", model, weights=("blk.0.ssm_in.weight", "blk.1.ssm_out.weight"))
    with edgespec.load(str(model), lora=[str(adapter)], threads=1, store=False) as llm:
        assert answered(llm, ASKED) != answered(llm, replace(ASKED, lora=((0, 0.0),)))
        assert answered(llm, ASKED) == answered(llm, replace(ASKED, lora=(("a", 1.0),)))


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ((("three", 1.0),), "not loaded: 'three'"),
        (((2, 1.0),), "not loaded: 2"),
        (((-1, 1.0),), "not loaded: -1"),
        (((0, 1.0), ("one", 0.5)), "twice"),
        (((0, float("nan")),), "scale"),
        (((0, 1e9),), "scale"),
    ],
)
def test_sets_that_cannot_be_are_refused(llm: Runtime, lora: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        [*llm.submit(replace(ASKED, lora=lora))]
    with pytest.raises(UsageError, match=said):
        llm.check_settings(replace(ASKED, lora=lora))


def test_at_most_two_adapters_are_combined(files: dict[str, Path], tmp_path: Path) -> None:
    three = write_adapter(tmp_path / "three.gguf", files["model"], seed=2)
    with pytest.raises(UsageError, match="3 adapters"):
        loaded(files | {"three": three}, "one|", "two|", "three|")
    with (
        loaded(files | {"three": three}, "one|", "two|", "three|=0") as llm,
        pytest.raises(UsageError, match="3 adapt"),
    ):
        llm.check_settings(replace(ASKED, lora=((0, 1.0), (1, 1.0), (2, 1.0))))


def test_measurements_and_stores_are_those_of_the_adapters(files: dict[str, Path], home: Path) -> None:
    asked = replace(ASKED, max_tokens=40)
    fingerprints, stores = [], []
    for lora in ([], ["one|=0.5"], ["one|=0.25"], ["two|"]):
        with loaded(files, *lora, store=True) as llm:
            answered(llm, asked)
            answered(llm, replace(asked, lora=(("one", 0.1),) if "one|=0.5" in lora else ()))
            fingerprints.append(llm.context.fingerprint)
        stores.append({file.name for file in store_dir().glob("*.corpus")} if store_dir().exists() else set())
    assert all(fingerprints.count(each) == 1 for each in fingerprints)
    assert [len(each) for each in stores] == [1, 2, 3, 4]


def test_the_memory_of_adapters_is_counted(files: dict[str, Path]) -> None:
    header = check_model(files["model"])
    adapter = check_adapter(files["one"], header)
    without, counted = (
        estimate(MemoryPlan(header, n_ctx=512)),
        estimate(MemoryPlan(header, n_ctx=512, adapters=(adapter,))),
    )
    assert counted.weights - without.weights == adapter.weights_bytes
    assert counted.allocated - without.allocated >= adapter.weights_bytes
    on_gpu = estimate(MemoryPlan(header, n_ctx=512, adapters=(adapter,), gpu_layers=3))
    assert (
        on_gpu.layers_on_gpu - estimate(MemoryPlan(header, n_ctx=512, gpu_layers=3)).layers_on_gpu
        == adapter.weights_bytes
    )


def test_a_worker_has_adapters(files: dict[str, Path], llm: Runtime) -> None:
    lora = (f"one={files['one']}=0.5", f"two={files['two']}=0")
    with Worker(LoadSettings(str(files["model"]), lora=lora, threads=1, store=False, spec_type="none")) as worker:
        assert worker.info.adapters == {"one": 0.5, "two": 0.0}
        for given in SETS.values():
            asked = replace(ASKED, lora=given)
            assert [event.id for event in worker.submit(asked) if not event.is_last] == answered(llm, asked)
    with pytest.raises(EdgespecError, match="cannot be used as a LoRA adapter"):
        Worker(LoadSettings(str(files["model"]), lora=(str(files["draft"]),)))
