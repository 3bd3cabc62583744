"""Products of a matrix and a vector by ggml's kernels, for networks that are too small to be a model of llama.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.gguf_file.writing import stored
from edgespec.llama.graph import F32, Processor, Tensors, fill, view


class Product:
    """A matrix [M, D], stored in a type of ggml; calling it with float32[D] returns the product float32[M].

    `data` are its rows, uint8[M, bytes of a row], of D = `width` numbers in the type `kind`.
    """

    def __init__(self, data: NDArray[Any], kind: int, width: int, processor: Processor) -> None:
        rows = len(data)
        self._weights, self._graph, self._processor = Tensors(), Tensors(), processor
        weights = self._weights.new(kind, width, rows)
        self._weights.allocate(interleaved=True)
        fill(weights, data)
        vector = self._graph.new(F32, width)
        product = self._graph.op("mul_mat", weights, vector)
        self._graph.allocate()
        self._native = self._graph.graph(product)
        self._vector, self._product = view(vector, F32, width), view(product, F32, rows)

    @classmethod
    def of(cls, matrix: NDArray[np.float32], processor: Processor) -> Product:
        """Return the product with a matrix float32[M, D], kept as Q8_0.

        This takes a quarter of the memory, whose bandwidth limits the speed.
        """
        data, kind = stored(matrix, "Q8_0")
        return cls(data, kind, matrix.shape[1], processor)

    def __call__(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        self._vector[:] = vector
        self._processor.compute(self._native)
        return self._product.copy()
