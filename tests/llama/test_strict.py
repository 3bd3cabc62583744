"""Strict: the bytes of plain decoding, however kernels round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from coarse_context import CoarseContext
from tiny_gguf import EXACT, write_model

import edgespec
from edgespec.errors import UsageError
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.llama.quantize import quantize
from edgespec.llama.rounding import LARGE_BYTES, Widths, measure_widths, measured_widths

PROMPTS = ["def fibonacci(n):", "class Stack:\n    def push", "x = [" + "1, " * 150]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty home: models are measured here, but only once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model(write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama"), use_extra_bufts=False) as model:
        yield model


@pytest.mark.parametrize(("fine_from", "exact_from"), [(2, 2), (3, 3), (5, 5), (6, 6)])
def test_the_narrowest_width_that_rounds_as_wider_ones_is_found(tiny: Model, fine_from: int, exact_from: int) -> None:
    with CoarseContext(tiny, n_ctx=512, max_outputs=6, **EXACT) as context:
        context.is_coarse = lambda width, index: width < fine_from
        widths = measure_widths(context, 250, 6)
        assert context.length(0) == 0
    assert widths.exact_from == exact_from
    assert 0.3 < widths.max_difference < 0.8


def test_rows_that_depend_on_their_place_are_never_exact(tiny: Model) -> None:
    with CoarseContext(tiny, n_ctx=512, max_outputs=4, **EXACT) as context:
        context.is_coarse = lambda width, index: bool(index % 2)
        assert measure_widths(context, 250, 4).exact_from is None


def test_it_is_measured_once_for_the_same_settings(tiny: Model) -> None:
    measured = []
    for threads in (1, 1, 2):
        with Context(tiny, n_ctx=512, max_outputs=4, threads=threads) as context:
            told: list[float] = []
            measured_widths(context, 4, told.append)
            measured.append(bool(told))
    assert measured == [True, False, True]


def test_what_cannot_be_measured_is_none(tmp_path: Path, tiny: Model) -> None:
    with Context(tiny, n_ctx=16, max_outputs=4) as context:
        assert measured_widths(context, 4) is None
    with (
        Model(write_model(tmp_path / "mamba.gguf", "mamba")) as mamba,
        Context(mamba, n_ctx=512, max_outputs=4) as context,
    ):
        assert measured_widths(context, 4) is None


@pytest.mark.long(but=1)
@pytest.mark.parametrize("threads", [1, 2])
def test_strict_texts_are_equal_byte_by_byte(threads: int) -> None:
    texts = []
    for spec_type in ("none", "draft", "draft,lookup"):
        with edgespec.load("demo", spec_type=spec_type, strict=True, pace="fixed:3", threads=threads) as llm:
            ids: list[int] = []
            for temperature in (0.0, 0.8):
                for seed, prompt in enumerate(PROMPTS):
                    ids += [e.id for e in llm.generate(prompt, max_tokens=24, temperature=temperature, seed=seed)]
            texts.append(ids)
            assert (llm.stats.proposed > 0) == (spec_type != "none")
    assert all(text == texts[0] for text in texts)


@pytest.mark.long
@pytest.mark.parametrize("type", ["F32", "F16"])
def test_strict_on_weights_whose_narrow_passes_round_differently(tmp_path: Path, type: str) -> None:
    target = str(write_model(tmp_path / "target.gguf", "llama", type=type))
    draft = str(write_model(tmp_path / "draft.gguf", "llama", type=type, noise=0.05))
    texts = []
    for spec_type in ("none", "draft"):
        with edgespec.load(
            target, draft_model=draft, spec_type=spec_type, strict=True, exact=False, pace="fixed:3", threads=1
        ) as llm:
            widths: list[int] = []
            decode = llm.context.decode

            def recording(tokens: Sequence[int], *rest: Any) -> None:
                widths.append(len(tokens))  # noqa: B023 - called before the next turn
                decode(tokens, *rest)  # noqa: B023

            llm.context.decode = recording  # type: ignore[method-assign,assignment]
            texts.append([e.id for e in llm.generate("def f(x):", max_tokens=60, temperature=0.8, ignore_eos=True)])
            assert llm.engine.least_width > 1
            assert min(widths) >= llm.engine.least_width
    assert texts[0] == texts[1]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("n_max", [3, 5])
def test_strict_on_k_quants_pads_to_whole_tiles(tmp_path: Path, n_max: int) -> None:
    source = write_model(tmp_path / "f16.gguf", "llama", type="F16", width=256)
    quantize(source, tmp_path / "q4.gguf", "Q4_K_M")
    texts = []
    for spec_type in ("none", "lookup"):
        with edgespec.load(
            str(tmp_path / "q4.gguf"), spec_type=spec_type, strict=True, pace=f"fixed:{n_max}", threads=1
        ) as llm:
            prompt = "def f(x):\n    return x\n" * 3
            texts.append([e.id for e in llm.generate(prompt, max_tokens=60, temperature=0, ignore_eos=True)])
            assert not any("plainly" in note for note in llm.notes)
            assert bool(llm.stats.proposed) == (spec_type == "lookup")
    assert texts[0] == texts[1]


def test_strict_decodes_plainly_where_rows_depend_on_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.runtime.loading.measured_widths", lambda *_: Widths(4, 0.1, None, 1))
    with edgespec.load("demo", strict=True) as llm:
        assert any(note.startswith("decoding without speculation") for note in llm.notes)
        list(llm.generate(PROMPTS[0], max_tokens=8))
        assert llm.stats.proposed == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"spec_tree": 2},
        {"sequences": 2},
        {"flash_attention": "on"},
        {"cache_type_v": "q8_0"},
        {"spec_draft_n_max": 0},
        {"spec_draft_n_max": 16},
    ],
)
def test_what_strict_excludes_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        edgespec.load("demo", strict=True, **settings)


def test_strict_can_fill_the_context_and_excludes_rules_that_write_another_text() -> None:
    with edgespec.load("demo", strict=True, ctx_size=256, threads=1) as llm:
        with pytest.raises(UsageError, match="coupled"):
            llm.generate("x", verify="block")
        events = list(llm.generate("x = 1\n" * 50, ignore_eos=True))
        assert events[-1].finish_reason == "length"
        assert llm.stats.prompt_tokens + llm.stats.generated_tokens == 256


@pytest.mark.long
def test_the_longest_drafts_can_be_measured_and_be_strict() -> None:
    with edgespec.load("demo", spec_type="draft", pace="fixed:64", spec_tree=16, threads=1) as llm:
        assert llm.rounding is not None
        assert len(list(llm.generate(PROMPTS[0], max_tokens=80, ignore_eos=True))) == 81
    texts = []
    for spec_type in ("none", "draft"):
        with edgespec.load("demo", strict=True, spec_type=spec_type, pace="fixed:15", threads=1) as llm:
            texts.append([event.id for event in llm.generate(PROMPTS[0], max_tokens=40)])
    assert texts[0] == texts[1]


def test_less_of_a_large_model_is_looked_at_and_what_differs_is_found(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "size_bytes", LARGE_BYTES)
    settings: dict[str, Any] = {"n_ctx": 512, "max_outputs": 31, "threads": 1, "exact": True}
    with Context(tiny, **settings) as context:
        assert measure_widths(context, 250, 31).exact_to == 31
        assert context.decodes < 40
    with CoarseContext(tiny, **settings) as context:
        for width in (2, 3, 5, 8, 16, 31):
            context.is_coarse = partial(_rounds_its_last_row, width)
            assert measure_widths(context, 250, 31).exact_to < width


def _rounds_its_last_row(width: int, batch: int, index: int) -> bool:
    return batch == width and index == batch - 1
