"""How fast this machine reads weights, which limits how fast a model generates: each token reads all of them."""

from __future__ import annotations

from functools import cache
from time import perf_counter, process_time

import numpy as np

from edgespec.errors import EdgespecError
from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.llama.graph import Processor, Product
from edgespec.llama.library import build_id, default_threads

Q4_K, BLOCK_BYTES, BLOCK_WEIGHTS = 12, 144, 256  # ggml_type, and its blocks: most models are downloaded in this type
WIDTH = 4096  # weights in a row
MEASURED_BYTES = 192 << 20  # more than the caches of most processors hold
MEASURED_S = 0.3
LEAST_PRODUCTS = 3


@cache
def weights_per_s() -> float:
    """Return how many bytes of weights the processor multiplies in a second; 0 if that cannot be measured.

    It is measured at the first call, which takes about a second, and then remembered.
    """
    name = cache_name("speed", {"build": build_id(), "threads": default_threads()})
    stored = read_cache(name)
    if stored is not None:
        return float(stored)
    try:
        measured = _measured()
    except EdgespecError:  # no memory for it
        return 0.0
    write_cache(name, f"{measured:.0f}")
    return measured


def _measured() -> float:
    """Multiply a large matrix with a vector as often as there is time, and return the bytes per second.

    The time of the processor counts, not that of the clock: other programs may have delayed the threads. Raises
    OutOfMemoryError.
    """
    row_bytes = WIDTH // BLOCK_WEIGHTS * BLOCK_BYTES
    block = np.arange(BLOCK_BYTES, dtype=np.uint8)  # any weights will do
    rows = np.tile(block, (MEASURED_BYTES // row_bytes, WIDTH // BLOCK_WEIGHTS))
    threads = default_threads()
    product, vector = Product(rows, Q4_K, WIDTH, Processor(threads)), np.ones(WIDTH, np.float32)
    product(vector)  # starts the threads
    n_products, started_s, before_s = 0, perf_counter(), process_time()
    while n_products < LEAST_PRODUCTS or perf_counter() - started_s < MEASURED_S:
        product(vector)
        n_products += 1
    return n_products * rows.nbytes * threads / (process_time() - before_s)
