"""How much rows depend on the width of a batch: that it is measured rightly, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from coarse_context import CoarseContext
from tiny_gguf import write_model

from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.llama.rounding import ROWS, WIDTHS, Rounding, measure_rounding

COARSE_FROM = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama")
    with Model(path, use_extra_bufts=False) as model:
        yield model


def test_each_width_is_compared_with_plain_decoding(model: Model) -> None:
    shown: list[float] = []
    with Context(model, n_ctx=256, max_outputs=32, threads=1) as context:
        rounding = measure_rounding(context, 40, progress=shown.append)
        assert context.length(0) == 0
    assert rounding.widths == WIDTHS
    assert rounding.from_width_1[0] == rounding.from_width_2[1] == 0
    assert rounding.from_width_1[1] == rounding.from_width_2[0]
    # Rounding is small: rows that were mixed up or out of place would differ by as much as rows do.
    assert max(rounding.from_width_1 + rounding.from_width_2) < 0.3
    assert (rounding.n_past, rounding.n_rows, len(rounding.gaps)) == (40, ROWS, ROWS)
    assert list(rounding.gaps) == sorted(rounding.gaps)
    assert shown == sorted(shown)
    assert shown[-1] == pytest.approx(1.0)


def test_widths_that_round_differently_are_found(model: Model) -> None:
    with CoarseContext(model, n_ctx=256, max_outputs=32, threads=1) as context:
        context.is_coarse = lambda width, index: width >= COARSE_FROM
        rounding = measure_rounding(context, 40)
    for width, difference in zip(rounding.widths, rounding.from_width_1, strict=True):
        assert (difference > 0.35) == (width >= COARSE_FROM), width
    assert rounding.max_difference == pytest.approx(0.5, abs=0.15)
    assert any(rounding.changed_choices)
    assert rounding.n_close >= max(rounding.changed_choices)
    assert "from width 8 on " in rounding.summary()


def test_no_width_beyond_the_widest_is_tried(model: Model) -> None:
    with Context(model, n_ctx=256, max_outputs=4, threads=1) as context:
        rounding = measure_rounding(context, 10, widest=4)
    assert rounding.widths == (1, 2, 3, 4)


def test_what_cannot_be_measured_is_refused(model: Model, tmp_path: Path) -> None:
    with Context(model, n_ctx=256, max_outputs=8, threads=1) as context:
        with pytest.raises(ValueError, match="do not fit into a context of 256"):
            measure_rounding(context, 256 - ROWS + 1, widest=8)
        with pytest.raises(ValueError, match="the context allows 8"):
            measure_rounding(context, 10)
    with (
        Model(write_model(tmp_path / "mamba.gguf", "mamba")) as mamba,
        Context(mamba, n_ctx=256, max_outputs=8, threads=1) as context,
        pytest.raises(ValueError, match="cannot be rolled back"),
    ):
        measure_rounding(context, 10, widest=8)


@pytest.mark.parametrize(
    ("from_width_1", "from_width_2", "summary"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), "rows are bit-identical for widths 1 to 4"),
        (
            (0, 0, 0, 0.17),
            (0, 0, 0, 0.17),
            "rows are bit-identical for widths 1 to 3, from width 4 on they differ by up to 0.17 logits",
        ),
        (
            (0, 0.05, 0.05, 0.05),
            (0.05, 0, 0, 0),
            "rows of width 1 differ from wider ones by up to 0.05 logits, widths 2 to 4 are bit-identical",
        ),
        (
            (0, 0.05, 0.05, 0.2),
            (0.05, 0, 0, 0.16),
            "rows of width 1 differ from wider ones by up to 0.2 logits, widths 2 to 3 are bit-identical, "
            "from width 4 on rows differ from those of width 2 by up to 0.16",
        ),
        (
            (0, 0.05, 0.06, 0.2),
            (0.05, 0, 0.01, 0.16),
            "rows of width 1 differ from wider ones by up to 0.2 logits, "
            "from width 3 on rows differ from those of width 2 by up to 0.16",
        ),
    ],
)
def test_the_summary_names_the_widths_that_agree(
    from_width_1: tuple[float, ...], from_width_2: tuple[float, ...], summary: str
) -> None:
    rounding = Rounding(64, (1, 2, 3, 4), from_width_1, from_width_2, (0, 0, 0, 0), (0.1, 0.5))
    assert rounding.summary() == summary


def test_close_rows_are_those_that_twice_the_difference_could_change() -> None:
    rounding = Rounding(64, (1, 2), (0, 0.05), (0.05, 0), (0, 0), (0.02, 0.09, 0.11, 3.0))
    assert rounding.n_close == 2
