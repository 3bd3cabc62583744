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
from edgespec.core.exactness import CELLS, rows_with_equal_cells
from edgespec.engine.width_classes import WIDEST, WidthClasses, measure_classes, measured_classes
from edgespec.errors import UsageError
from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.llama.quantize import quantize
from edgespec.llama.rounding import measure_widths

PROMPTS = ["def fibonacci(n):", "class Stack:\n    def push", "x = [" + "1, " * 150]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty home: models are measured here, but only once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    with LlamaModel(
        write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama"), use_extra_bufts=False
    ) as model:
        yield model


SINGLE = tuple((width, width) for width in range(1, WIDEST + 1))


@pytest.mark.parametrize(
    ("coarse", "ranges"),
    [
        ((1,), ((1, 1), (2, 16))),
        ((1, 3, 4), ((1, 1), (2, 2), (3, 4), (5, 16))),
        ((1, 16), ((1, 1), (2, 15), (16, 16))),
    ],
)
def test_neighbouring_widths_with_the_same_bits_are_a_class(
    tiny: LlamaModel, coarse: tuple[int, ...], ranges: tuple[tuple[int, int], ...]
) -> None:
    with CoarseContext(tiny, ContextParams(n_ctx=512, max_outputs=WIDEST, **EXACT)) as context:
        context.is_coarse = lambda width, index: width in coarse
        classes = measure_classes(context, (192,))
        assert context.length(0) == 0
    assert classes.ranges == ranges and classes.depth == 192
    assert len(classes.seconds) == WIDEST and min(classes.seconds) > 0
    assert 0.3 < classes.max_difference < 0.8


def test_small_batches_read_the_same_text(tiny: LlamaModel) -> None:
    found = []
    for n_batch in (128, 512):
        with Context(tiny, ContextParams(n_ctx=512, max_outputs=WIDEST, n_batch=n_batch, **EXACT)) as context:
            read: list[int] = []
            decode = context.decode

            def spy(tokens: Sequence[int], positions: Sequence[int], *rest: Any) -> None:
                read.extend(positions)  # noqa: B023 - called before the next turn
                decode(tokens, positions, *rest)  # noqa: B023

            context.decode = spy  # type: ignore[method-assign,assignment]
            measure_classes(context, (192, 448))
            found.append({*read})
    assert found[0] == found[1] == {*range(448 + 2 * WIDEST - 2)}


def test_rows_that_depend_on_their_place_are_in_no_class(tiny: LlamaModel) -> None:
    with CoarseContext(tiny, ContextParams(n_ctx=512, max_outputs=WIDEST, **EXACT)) as context:
        context.is_coarse = lambda width, index: index == width - 1
        assert measure_classes(context, (192,)).ranges == SINGLE


def test_a_class_must_hold_at_every_depth(tiny: LlamaModel) -> None:
    with CoarseContext(tiny, ContextParams(n_ctx=1536, max_outputs=WIDEST, **EXACT)) as context:
        context.is_coarse = lambda width, index: width == 1 or (width > 8 and context.length(0) > 1000)
        assert measure_classes(context, (192, 1280)).ranges == ((1, 1), (2, 8), (9, 16))


def test_the_class_that_generates_fastest_is_used_if_its_plain_passes_cost_little() -> None:
    seconds = (1.0, 1.02, 1.05, 1.1, *(1.6 + 0.1 * width for width in range(12)))
    classes = WidthClasses(((1, 1), (2, 2), (3, 4), (5, 8), (9, 16)), seconds, 192, 0.1)
    assert (classes.best(1.1), classes.best(), classes.cost(5)) == ((3, 4), (3, 4), 1.6)
    assert classes.best(1.04) is None
    memory_bound = WidthClasses(classes.ranges, (1.0,) * 16, 192, 0.1)
    assert memory_bound.best() == (9, 16)
    assert WidthClasses(SINGLE[:1], (1.0,), 192, 0.1).best() is None


def test_it_is_measured_once_for_the_same_settings(tiny: LlamaModel) -> None:
    measured, found = [], []
    for threads in (1, 1, 2):
        with Context(tiny, ContextParams(n_ctx=512, max_outputs=WIDEST, threads=threads)) as context:
            told: list[float] = []
            found.append(measured_classes(context, told.append))
            measured.append(bool(told))
    assert measured == [True, False, True]
    assert found[0] == found[1]


def test_what_cannot_be_measured_is_none(tmp_path: Path, tiny: LlamaModel) -> None:
    with Context(tiny, ContextParams(n_ctx=16, max_outputs=4)) as context:
        assert measured_classes(context) is None
    with (
        LlamaModel(write_model(tmp_path / "mamba.gguf", "mamba")) as mamba,
        Context(mamba, ContextParams(n_ctx=512, max_outputs=WIDEST)) as context,
    ):
        assert measured_classes(context) is None


@pytest.mark.parametrize("least", [1, 3, 5])
def test_rows_of_drafts_attend_to_as_many_cells_as_rows_of_padded_plain_passes(least: int) -> None:
    def cells(start: int, width: int) -> int:
        return -(-(start + max(width, least)) // CELLS) * CELLS

    for start in range(600):
        most = rows_with_equal_cells(start, least)
        assert most >= 1
        for width in range(1, min(most, 16) + 1):
            assert {cells(start, width)} == {cells(row, 1) for row in range(start, start + width)}
        wider = {cells(row, 1) for row in range(start, start + most + 1)} | {cells(start, most + 1)}
        assert len(wider) > 1  # not a token less than possible


@pytest.mark.long(but=1)
@pytest.mark.parametrize("threads", [1, 2])
def test_strict_texts_are_equal_byte_by_byte(threads: int) -> None:
    texts = []
    for spec_type in ("none", "draft", "draft,lookup"):
        with edgespec.load(
            "demo", spec_type=spec_type, strict=True, exact=False, pace="fixed:3", threads=threads
        ) as llm:
            ids: list[int] = []
            for temperature in (0.0, 0.8):
                for seed, prompt in enumerate(PROMPTS):
                    ids += [e.id for e in llm.generate(prompt, max_tokens=24, temperature=temperature, seed=seed)]
            texts.append(ids)
            assert (llm.stats.proposed > 0) == (spec_type != "none")
    assert all(text == texts[0] for text in texts)


@pytest.mark.long
def test_strict_with_kernels_that_round_narrow_passes_differently(tmp_path: Path) -> None:
    target = str(write_model(tmp_path / "target.gguf", "llama"))
    draft = str(write_model(tmp_path / "draft.gguf", "llama", noise=0.05))
    texts = []
    for spec_type in ("none", "draft"):
        with (
            kernels.kernels_of_llama_cpp(),
            edgespec.load(
                target, draft_model=draft, spec_type=spec_type, strict=True, exact=False, pace="fixed:3", threads=1
            ) as llm,
        ):
            widths: list[int] = []
            decode = llm.context.decode

            def recording(tokens: Sequence[int], *rest: Any) -> None:
                widths.append(len(tokens))  # noqa: B023 - called before the next turn
                decode(tokens, *rest)  # noqa: B023

            llm.context.decode = recording  # type: ignore[method-assign,assignment]
            texts.append([e.id for e in llm.generate("def f(x):", max_tokens=60, temperature=0.8, ignore_eos=True)])
            assert llm.engine.runner.least_width > 1
            assert min(widths) >= llm.engine.runner.least_width
    assert texts[0] == texts[1]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("n_max", [3, 5])
def test_strict_on_k_quants_pads_to_whole_tiles(tmp_path: Path, n_max: int) -> None:
    source = write_model(tmp_path / "f16.gguf", "llama", type="F16", width=256)
    quantize(source, tmp_path / "q4.gguf", "Q4_K_M")
    texts = []
    for spec_type in ("none", "lookup"):
        with edgespec.load(
            str(tmp_path / "q4.gguf"), spec_type=spec_type, strict=True, exact=False, pace=f"fixed:{n_max}", threads=1
        ) as llm:
            prompt = "def f(x):\n    return x\n" * 3
            texts.append([e.id for e in llm.generate(prompt, max_tokens=60, temperature=0, ignore_eos=True)])
            assert not any("plainly" in note for note in llm.notes)
            assert bool(llm.stats.proposed) == (spec_type == "lookup")
    assert texts[0] == texts[1]


def test_strict_decodes_plainly_where_rows_depend_on_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = WidthClasses(SINGLE, (1.0,) * WIDEST, 192, 0.1)
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_classes", lambda *_: found)
    with edgespec.load("demo", strict=True, exact=False) as llm:
        assert any(note.startswith("decoding without speculation") for note in llm.notes)
        list(llm.generate(PROMPTS[0], max_tokens=8))
        assert llm.stats.proposed == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"spec_tree": 2},
        {"sequences": 2},
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
        assert llm.info.rounding is not None
        assert len(list(llm.generate(PROMPTS[0], max_tokens=80, ignore_eos=True))) == 81
    texts = []
    for spec_type in ("none", "draft"):
        with edgespec.load("demo", strict=True, spec_type=spec_type, pace="fixed:15", threads=1) as llm:
            texts.append([event.id for event in llm.generate(PROMPTS[0], max_tokens=40)])
    assert texts[0] == texts[1]


def test_a_width_that_differs_is_found_with_few_passes(tiny: LlamaModel) -> None:
    settings: dict[str, Any] = {"n_ctx": 512, "max_outputs": 31, "threads": 1, "exact": True}
    with Context(tiny, ContextParams(**settings)) as context:
        assert measure_widths(context, 250, 31).exact_to == 31
        assert context.decodes < 40
    with CoarseContext(tiny, ContextParams(**settings)) as context:
        for width in (2, 3, 5, 8, 16, 31):
            context.is_coarse = partial(_rounds_its_last_row, width)
            assert measure_widths(context, 250, 31).exact_to < width


def _rounds_its_last_row(width: int, batch: int, index: int) -> bool:
    return batch == width and index == batch - 1
