"""The guarantee that drafts do not change a text: by the kernels, by padded passes, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

import edgespec
from edgespec.core.exactness import CELLS
from edgespec.engine.width_classes import WIDEST, WidthClasses
from edgespec.llama.context import Context
from edgespec.llama.rounding import Widths
from edgespec.runtime.guarantee import Guarantee
from edgespec.settings import LoadSettings

RANGES = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16))
CHEAP = WidthClasses(RANGES, tuple(1 + width / 50 for width in range(WIDEST)), 3840, 0.1)
DEAR = WidthClasses(RANGES, tuple(1.0 + width / 5 for width in range(WIDEST)), 3840, 0.1)
NONE = WidthClasses(tuple((width, width) for width in range(1, WIDEST + 1)), (1.0,) * WIDEST, 3840, 0.1)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.runtime.guarantee.have_exact_kernels", lambda: True)
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_widths", lambda *_: Widths(32, 0.0, 32))


def guarantee(
    monkeypatch: pytest.MonkeyPatch,
    classes: WidthClasses | None,
    *,
    gpu_layers: int = 9,
    drafts: bool = True,
    can_roll_back: bool = True,
    **how: Any,
) -> Guarantee:
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_classes", lambda *_: classes)
    settings = LoadSettings("m", **how)
    exact = settings.exact and not gpu_layers
    model = SimpleNamespace(gpu_layers=gpu_layers, is_on_gpu=gpu_layers == 9, can_roll_back=can_roll_back)
    context = SimpleNamespace(model=model, exact=exact, n_batch=512, max_outputs=63)
    return Guarantee(cast(Context, context), settings, lambda *_: None, drafts=drafts)


def test_passes_on_a_gpu_are_padded_if_that_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    for drafts in (False, True):
        found = guarantee(monkeypatch, CHEAP, drafts=drafts)
        assert (found.width_class, found.least_width, found.most_rows) == ((5, 8), 5, 8)
        assert (found.rounding, found.way_out, found.warning) == (0.0, "", "")


@pytest.mark.parametrize(
    ("classes", "how", "warning", "way_out"),
    [
        (DEAR, {}, "exact passes would be 1.40 times as slow on this GPU: ", "`strict=True`"),
        (NONE, {}, "this GPU rounds differently for each number of tokens in a pass: ", ""),
        (None, {}, "how this GPU rounds cannot be measured, ", ""),
        (CHEAP, {"sequences": 4}, "answers that are generated together on a GPU are not exact: ", ""),
        (CHEAP, {"spec_tree": 4}, "trees on a GPU are not exact: ", ""),
        (CHEAP, {"gpu_layers": 5}, "a model with layers on a GPU and on the CPU is not exact: ", "`strict=True`"),
        (CHEAP, {"exact": False}, "", ""),
    ],
)
def test_passes_on_a_gpu_are_not_padded_otherwise_and_this_is_said(
    monkeypatch: pytest.MonkeyPatch, classes: WidthClasses | None, how: dict[str, Any], warning: str, way_out: str
) -> None:
    found = guarantee(monkeypatch, classes, **how)
    assert (found.width_class, found.least_width, found.most_rows) == (None, 0, 512)
    assert found.warning.startswith(warning) and bool(found.warning) == bool(warning)
    assert found.way_out == way_out
    assert found.rounding != 0.0


@pytest.mark.parametrize("gpu_layers", [0, 5, 9])
def test_strict_pads_at_any_cost(monkeypatch: pytest.MonkeyPatch, gpu_layers: int) -> None:
    found = guarantee(monkeypatch, DEAR, gpu_layers=gpu_layers, strict=True, exact=False)
    assert (found.width_class, found.warning, found.way_out) == ((3, 4), "", "")


def test_strict_has_nothing_to_pad_where_kernels_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    for drafts in (False, True):
        found = guarantee(monkeypatch, DEAR, gpu_layers=0, drafts=drafts, strict=True)
        assert (found.width_class, found.least_width, found.most_rows, found.rounding) == (None, 0, 512, 0.0)
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_widths", lambda *_: Widths(32, 0.1, 1))
    assert guarantee(monkeypatch, DEAR, gpu_layers=0, strict=True).width_class == (3, 4)


def test_no_way_out_is_named_where_none_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_widths", lambda *_: None)
    assert guarantee(monkeypatch, None, gpu_layers=0).way_out == ""  # the context is too short to be measured
    monkeypatch.setattr("edgespec.runtime.guarantee.have_exact_kernels", lambda: False)
    for how in ({"sequences": 4}, {"spec_tree": 4}, {"can_roll_back": False}):
        assert guarantee(monkeypatch, None, gpu_layers=0, exact=False, **how).way_out == ""


def test_on_a_cpu_the_kernels_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = guarantee(monkeypatch, None, gpu_layers=0)
    assert (exact.least_width, exact.most_rows, exact.rounding, exact.way_out, exact.warning) == (0, 512, 0.0, "", "")
    fast = guarantee(monkeypatch, None, gpu_layers=0, exact=False)
    assert (fast.most_rows, fast.rounding, fast.way_out, fast.warning) == (512, None, "leaving out `exact=False`", "")
    monkeypatch.setattr("edgespec.runtime.guarantee.have_exact_kernels", lambda: False)
    assert guarantee(monkeypatch, None, gpu_layers=0, exact=False).way_out == "`strict=True`"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The first position and the number of tokens of each pass whose tokens all have a row."""
    found: list[tuple[int, int]] = []
    decode = Context.decode

    def spy(
        context: Context,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequence_ids: Sequence[tuple[int, ...]],
        wanted: Sequence[bool],
    ) -> None:
        decode(context, tokens, positions, sequence_ids, wanted)
        if all(wanted):
            found.append((positions[0], len(tokens)))

    monkeypatch.setattr(Context, "decode", spy)
    return found


def test_each_pass_of_a_class_has_a_width_and_cells_of_its_own(
    monkeypatch: pytest.MonkeyPatch, passes: list[tuple[int, int]], tmp_path: Any
) -> None:
    """Drafts are cut where a row would attend to other cells than in plain decoding: at each multiple of 256."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_classes", lambda *_: DEAR)
    strict: dict[str, Any] = {"strict": True, "exact": False, "pace": "fixed:3", "store": False, "threads": 1}
    texts, drafted = [], []
    for spec_type in ("none", "suffix"):
        with edgespec.load("demo", **strict, spec_type=spec_type) as llm:
            passes.clear()
            texts.append([e.id for e in llm.generate("1, 2, 3, " * 60, max_tokens=300, temperature=0, ignore_eos=True)])
            drafted.append(llm.stats.proposed)
            used = [(start, width) for start, width in passes if start >= llm.stats.prompt_tokens]
        assert {width for _, width in used} <= {3, 4} and len(used) > 50
        for (start, width), (following, _) in pairwise(used):
            cells = {-(-(row + 3) // CELLS) for row in range(start, following)}
            assert cells == {-(-(start + width) // CELLS)}
    assert texts[0] == texts[1]
    assert drafted[0] == 0 < drafted[1]
