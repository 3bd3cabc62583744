"""Products of a matrix and a vector by ggml's kernels."""

import gc

import numpy as np
import pytest

from edgespec.llama.product import Product


@pytest.mark.parametrize("shape", [(100, 64), (3, 20)], ids=["Q8_0", "F16, as rows are no whole number of blocks"])
def test_a_product_is_that_of_numpy_but_for_rounding(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    matrix, vectors = (random.standard_normal(size).astype(np.float32) for size in (shape, (2, shape[1])))
    product = Product(matrix, 1)
    first, second = map(product, vectors)
    assert np.abs(first - matrix @ vectors[0]).max() < 0.03 * np.abs(matrix).sum(axis=1).max()
    assert np.abs(second - matrix @ vectors[1]).max() < 0.03 * np.abs(matrix).sum(axis=1).max()


def test_matrices_are_independent_and_freed() -> None:
    products = [Product(np.full((4, 32), value, np.float32), 1) for value in (1.0, 2.0)]
    ones = np.ones(32, np.float32)
    assert [product(ones)[0] for product in products] == pytest.approx([32, 64], rel=0.01)
    result = products.pop()(ones)
    gc.collect()
    assert result[3] == pytest.approx(64, rel=0.01)


def test_a_large_matrix_uses_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.llama.product.LARGE", 0)
    assert Product(np.ones((64, 64), np.float32), 2)(np.ones(64, np.float32)) == pytest.approx(
        np.full(64, 64), rel=0.01
    )
