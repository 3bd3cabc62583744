"""Products of a matrix and a vector by ggml's kernels."""

import gc

import numpy as np
import pytest

from edgespec.llama.graph import Processor, Product


@pytest.mark.parametrize("shape", [(100, 64), (3, 20)], ids=["Q8_0", "F16, as rows are no whole number of blocks"])
def test_a_product_is_that_of_numpy_but_for_rounding(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    matrix, vectors = (random.standard_normal(size).astype(np.float32) for size in (shape, (2, shape[1])))
    product = Product.of(matrix, Processor(1))
    first, second = map(product, vectors)
    assert np.abs(first - matrix @ vectors[0]).max() < 0.03 * np.abs(matrix).sum(axis=1).max()
    assert np.abs(second - matrix @ vectors[1]).max() < 0.03 * np.abs(matrix).sum(axis=1).max()


@pytest.mark.slow
def test_matrices_are_independent_and_freed() -> None:
    processor = Processor(1)
    products = [Product.of(np.full((4, 32), value, np.float32), processor) for value in (1.0, 2.0)]
    ones = np.ones(32, np.float32)
    assert [product(ones)[0] for product in products] == pytest.approx([32, 64], rel=0.01)
    result = products.pop()(ones)
    gc.collect()
    assert result[3] == pytest.approx(64, rel=0.01)


@pytest.mark.parametrize("threads", [1, 2])
def test_several_threads_compute_the_same(threads: int) -> None:
    random = np.random.default_rng(2)
    matrix, vector = random.standard_normal((300, 256)).astype(np.float32), np.ones(256, np.float32)
    assert np.array_equal(Product.of(matrix, Processor(threads))(vector), Product.of(matrix, Processor(1))(vector))
