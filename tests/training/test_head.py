"""A head that is written computes in llama.cpp what PyTorch computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_gguf import write_model

torch = pytest.importorskip("torch", reason="heads are trained with PyTorch (pip install 'edgespec[train]')")

from edgespec.errors import EdgespecError, ModelFileError, UsageError  # noqa: E402
from edgespec.gguf_file.header import Header, read_header  # noqa: E402
from edgespec.llama.model import Model  # noqa: E402
from edgespec.training.check import check_head  # noqa: E402
from edgespec.training.eagle3 import Eagle3  # noqa: E402
from edgespec.training.export import About, read_head, write_head  # noqa: E402
from edgespec.training.heads import Weights  # noqa: E402
from edgespec.training.target import read_target, shape_of  # noqa: E402

LAYERS = (1, 2, 3)
ABOUT = About("a head", "for a test", "apache-2.0", 100, 1.5, [0.5, 0.25])
VOCABULARY = np.arange(20, 260, 3)
TOKENS = [*range(40, 240, 9)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target.gguf", "llama", n_layers=4)


def head(header: Header) -> tuple[Eagle3, Weights]:
    parts = read_target(header, VOCABULARY)
    shape = shape_of(header, len(VOCABULARY))
    assert isinstance(shape, Eagle3)
    return shape, shape.initial(parts.teacher.output, parts.output_norm, torch.ones(3 * shape.width), seed=3)


@pytest.mark.parametrize(("type", "most"), [("F16", 0.01), ("Q8_0", 0.04), ("Q4_1", 0.06)])
def test_llama_cpp_computes_what_pytorch_does(target: Path, tmp_path: Path, type: str, most: float) -> None:
    shape, weights = head(read_header(target))
    path = tmp_path / "head.gguf"
    write_head(path, shape, weights, VOCABULARY, read_header(target), LAYERS, type, ABOUT)
    with Model(target) as model:
        assert check_head(path, shape, VOCABULARY, model, TOKENS) < most


def test_the_order_of_rows_matters(target: Path, tmp_path: Path) -> None:
    """Queries and keys are written as they are: another order of their rows, as Hugging Face has it, is found out."""
    shape, weights = head(read_header(target))
    halves = weights["blk.0.attn_k"].unflatten(0, (shape.kv_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    path = tmp_path / "head.gguf"
    write_head(path, shape, weights, VOCABULARY, read_header(target), LAYERS, "F16", ABOUT)
    right = read_head(path, shape)["blk.0.attn_k"]
    assert torch.allclose(right, weights["blk.0.attn_k"], atol=1e-2)
    assert not torch.allclose(right, halves, atol=1e-1)


def test_a_head_says_what_it_is(target: Path, tmp_path: Path) -> None:
    shape, weights = head(read_header(target))
    path = tmp_path / "head.gguf"
    write_head(path, shape, weights, VOCABULARY, read_header(target), LAYERS, "Q8_0", ABOUT)
    header = read_header(path)
    assert header.architecture == "eagle3"
    assert header.numbers("eagle3.target_layers").tolist() == [*LAYERS]
    assert header.metadata["general.license"] == "apache-2.0"
    assert header.tensors["d2t"].type == "I64"
    assert "token_embd.weight" not in header.tensors


def test_weights_that_are_no_numbers_are_not_written(target: Path, tmp_path: Path) -> None:
    shape, weights = head(read_header(target))
    weights["fc"][0, 0] = torch.nan
    with pytest.raises(EdgespecError, match=r"not numbers: fc\.weight"):
        write_head(tmp_path / "head.gguf", shape, weights, VOCABULARY, read_header(target), LAYERS, "F16", ABOUT)
    assert not [*tmp_path.iterdir()]


def test_a_type_that_heads_are_not_written_with_is_refused(target: Path, tmp_path: Path) -> None:
    shape, weights = head(read_header(target))
    with pytest.raises(UsageError, match="cannot be written as 'Q2_K'"):
        write_head(tmp_path / "head.gguf", shape, weights, VOCABULARY, read_header(target), LAYERS, "Q2_K", ABOUT)


def test_a_file_that_is_no_head_is_refused(target: Path) -> None:
    shape, _ = head(read_header(target))
    with pytest.raises(ModelFileError, match=r"has no tensor 'fc\.weight'"):
        read_head(target, shape)
