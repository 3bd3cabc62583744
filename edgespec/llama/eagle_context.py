"""The decoding context of an EAGLE head on the CPU, whose graph is built here.

A pass of a head takes a millisecond or less. llama.cpp needs as long for the work around it: a graph for each number of
tokens, and a row of logits for all tokens of the target, most of which the head cannot draft. Here the graphs are kept,
and the rows have the head's own tokens. The weights are those of the model that llama.cpp has loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.batch import Batch
from edgespec.core.features import FINAL_STATE
from edgespec.core.sampling import FloatRow
from edgespec.errors import UsageError
from edgespec.gguf_file.head_check import N_LAYERS_READ, kind_of_head, layers_read, n_draft_tokens, read_ids
from edgespec.llama.batch import check_layers
from edgespec.llama.context import CacheFullError, CancelledError, Context
from edgespec.llama.graph import F16, F32, I32, I64, Processor, Tensors, view
from edgespec.llama.kernels import have_exact_kernels
from edgespec.llama.library import default_threads
from edgespec.llama.model import Model

MOST_GRAPHS, NARROW = 12, 8  # graphs of a kind that are kept, and the most tokens of all but one of them
CELLS_STEP = 256  # a graph reads a multiple of so many cells
LARGE = 2**21  # numbers of a head from which several threads pay off


class EagleContext(Closable):
    """KV cache and decoding of an EAGLE head for the target that `target` decodes, as `HeadContext`.

    `reads` are the layers of the target whose inputs the head reads; `settings` are those of `Context`, as
    `Plan.as_head` has them. Raises UsageError if the target does not provide these inputs, or if the head cannot be
    decoded here: on a GPU, with a quantised cache, with a scaled rotation of positions.
    """

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        n_ctx: int,
        sequences: int = 1,
        max_outputs: int = 1,
        threads: int = 0,
        n_batch: int = 64,
        branches: int = 0,
        scratch: int = 0,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
        **settings: Any,
    ) -> None:
        header = model.header
        if {cache_type_k, cache_type_v} != {"f16"}:
            raise UsageError("the cache of this head is not quantised")
        self._layer = _Layer.of(model, target.model)
        self.blocks = 1
        self.model, self.target, self.sequences, self.n_batch = model, target.model, sequences, n_batch
        self.reads: tuple[int, ...] = (FINAL_STATE,)
        if kind_of_head(header) == "eagle3":
            self.reads = layers_read(header)
            check_layers(target.model.header.architecture, target.model.n_layer, [*self.reads])
        self.n_ctx, self.max_outputs = n_ctx, max(min(max_outputs, n_batch), sequences + branches)
        threads = (threads or default_threads()) if model.n_params > LARGE else 1
        self.fingerprint = model.fingerprint | {"graph": "eagle", "threads": threads}
        size = -(-(n_ctx * sequences + scratch) // CELLS_STEP) * CELLS_STEP
        self._cells = _Cells(size, sequences + branches, n_ctx + n_batch)
        self._branches = list(range(sequences, sequences + branches))
        cache, width = Tensors(), self._layer.n_shared * self._layer.head_size
        self._keys, self._values = (cache.new(F16, width, size) for _ in range(2))
        cache.allocate()
        self._cache: Tensors | None = cache
        for tensor in (self._keys, self._values):
            view(tensor, F16, size, width).fill(0)  # a cell that is masked still must be a number
        self._processor = Processor(threads)
        self._encoder: Callable[..., _Graph] = _Kept(self._layer.encoder)
        self._decoder: Callable[..., _Decoder] = _Kept(partial(self._layer.decoder, self._keys, self._values))
        self._ids = read_ids(header) if "d2t" in header.tensors else np.arange(self._layer.n_rows)
        self._logits: FloatRow = np.full(max(target.model.n_vocab, self._layer.n_rows), -np.inf, np.float32)
        self._last: _Decoder | None = None
        self._places: dict[int, int] = {}
        self._watched: CancelFlag | None = None

    def close(self) -> None:
        """Free the cache and the graphs; later decodes raise UsageError."""
        self._encoder = self._decoder = _closed
        self._last = self._cache = None

    def watch(self, cancel: CancelFlag | None) -> None:
        """Let `cancel` stop decodes from now on; None stops watching."""
        self._watched = cancel

    def use_block(self, block: int) -> None:
        """Do nothing: a head has one block."""

    def cover(self, tokens: Iterable[int]) -> None:
        """Do nothing: the head has all tokens that it can draft."""

    # --- decoding -------------------------------------------------------------------------------------------------

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return float32[n, D], the states of n tokens, from float32[n, F], the inputs of the layers `reads`."""
        graph = self._encoder(len(features))
        graph.inputs[:, graph.inputs.shape[1] - features.shape[1] :] = features
        self._processor.compute(graph.native)
        return graph.states.copy()

    def decode_pairs(self, batch: Batch, tokens_states: NDArray[np.float32]) -> None:
        """Decode tokens, each with its state, float32[n, D]. Raises CacheFullError, CancelledError."""
        if self._watched is not None and self._watched.is_set():
            raise CancelledError
        rows = [place for place, wanted in enumerate(batch.wanted) if wanted]
        cells = self._cells.add(batch)
        graph = self._decoder(batch.size, self._cells.used, max(1, len(rows)))
        graph.tokens[:], graph.positions[:], graph.cells[:] = batch.tokens, batch.positions, cells
        graph.inputs[:] = tokens_states
        self._cells.mask(batch, graph.mask)
        graph.rows[:] = rows or [0]
        self._processor.compute(graph.native)
        self._last, self._places = graph, {place: row for row, place in enumerate(rows)}

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequence_ids: Sequence[tuple[int, ...]],
        wanted: Sequence[bool],
    ) -> None:
        """Decode tokens without states, which count as zeros. Raises what `decode_pairs` raises."""
        batch = Batch([*tokens], [*positions], [*sequence_ids], [*wanted])
        self.decode_pairs(batch, np.zeros((batch.size, self._layer.width), np.float32))

    def decode_filler(self, start: int, wanted: Sequence[bool]) -> None:
        n = len(wanted)
        self.decode([0] * n, range(start, start + n), [(0,)] * n, wanted)

    def logits(self, index: int) -> FloatRow:
        """Return float32[V] of batch entry `index`, -inf for tokens that cannot be drafted; valid until the next
        call."""
        assert self._last is not None
        self._logits.fill(-np.inf)  # successors were mixed in before
        self._logits[self._ids] = self._last.logits[self._places[index]]
        return self._logits

    def state(self, index: int) -> NDArray[np.float32]:
        """Return float32[D], the state with which a token drafted after entry `index` of the last batch is decoded."""
        assert self._last is not None
        state: NDArray[np.float32] = self._last.states[index].copy()
        return state

    # --- sequences ------------------------------------------------------------------------------------------------

    def length(self, sequence: int) -> int:
        """Return the number of cached positions of a sequence."""
        return self._cells.length(sequence)

    def truncate(self, sequence: int, length: int) -> bool:
        """Remove a sequence from position `length` on."""
        self._cells.remove(sequence, length)
        return True

    def forget(self, sequence: int) -> None:
        self._cells.remove(sequence, 0)

    def fork(self, source: int, length: int) -> int:
        """Return a branch that shares the first `length` positions of `source`; free it with `release`."""
        branch = self._branches.pop()
        self._cells.share(source, branch, 0, length)
        return branch

    def adopt(self, sequence: int, branch: int, start: int, end: int) -> None:
        """Replace the cells of `sequence` from position `start` on by those of `branch`, up to `end`."""
        self._cells.remove(sequence, start)
        self._cells.share(branch, sequence, start, end)

    def release(self, branches: Iterable[int]) -> None:
        """Free branches, with the cells that they do not share with others."""
        for branch in branches:
            self._cells.remove(branch, 0)
            self._branches.append(branch)


class _Cells:
    """The cells of a cache: which of them hold the positions of each sequence. Sequences may share cells.

    The positions of a sequence are consecutive, and start where it was decoded first. One token is added in most
    passes, so that few numpy functions are called for it.

    Attributes:
        used: the number of cells that a pass has to read.
    """

    def __init__(self, size: int, sequences: int, n_ctx: int) -> None:
        self._cells = np.zeros((sequences, n_ctx), np.int64)
        self._starts, self._ends = [0] * sequences, [0] * sequences
        self._n_holders = np.zeros(size, np.int32)
        self._free = list(reversed(range(size)))
        self._size, self.used = size, CELLS_STEP

    def add(self, batch: Batch) -> list[int]:
        """Return a free cell for each token of a batch, which is used from now on. Raises CacheFullError."""
        if len(self._free) < batch.size:
            raise CacheFullError
        cells = [self._free.pop() for _ in range(batch.size)]
        for cell, position, ids in zip(cells, batch.positions, batch.sequence_ids, strict=True):
            self._n_holders[cell] = len(ids)
            for id in ids:
                if self._ends[id] != position:
                    self.remove(id, 0)
                    self._starts[id] = position
                self._cells[id, position] = cell
                self._ends[id] = position + 1
        self.used = max(self.used, (max(cells) // CELLS_STEP + 1) * CELLS_STEP)
        return cells

    def mask(self, batch: Batch, mask: NDArray[np.float16]) -> None:
        """Fill float16[n, cells]: 0 for cells of a token's past, else -inf."""
        mask.fill(-np.inf)
        for row, position, ids in zip(mask, batch.positions, batch.sequence_ids, strict=True):
            row[self._cells[ids[0], self._starts[ids[0]] : position + 1]] = 0

    def length(self, sequence: int) -> int:
        return self._ends[sequence]

    def remove(self, sequence: int, start: int) -> None:
        """Remove a sequence from a position on."""
        start, end = max(start, self._starts[sequence]), self._ends[sequence]
        if start < end:
            cells = self._cells[sequence, start:end]
            self._n_holders[cells] -= 1
            self._free += cells[self._n_holders[cells] == 0].tolist()
        if start == self._starts[sequence]:
            start = self._starts[sequence] = 0
        self._ends[sequence] = min(start, end)
        if len(self._free) == self._size:
            self.used = CELLS_STEP

    def share(self, source: int, destination: int, start: int, end: int) -> None:
        """Let a sequence hold the cells of another one from position `start` to `end` too; it has none from there."""
        start, end = max(start, self._starts[source]), min(end, self._ends[source])
        if start < end:
            cells = self._cells[source, start:end]
            self._cells[destination, start:end] = cells
            self._n_holders[cells] += 1
            if self._starts[destination] == self._ends[destination]:
                self._starts[destination] = start
            self._ends[destination] = end


@dataclass(slots=True)
class _Graph:
    """A graph that computes states, with its inputs and results as arrays."""

    native: Any
    memory: Tensors
    inputs: NDArray[np.float32]
    states: NDArray[np.float32]


@dataclass(slots=True)
class _Decoder(_Graph):
    """A graph that computes logits too."""

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    cells: NDArray[np.int64]
    rows: NDArray[np.int32]
    mask: NDArray[np.float16]
    logits: NDArray[np.float32]


Graph = TypeVar("Graph", bound=_Graph)


class _Kept(Generic[Graph]):
    """Makes graphs by their sizes, the number of tokens first, and keeps those used last; of wide ones, whose work
    takes much memory, only one."""

    def __init__(self, make: Callable[..., Graph]) -> None:
        self._make, self._known = make, OrderedDict[tuple[int, ...], Graph]()

    def __call__(self, *sizes: int) -> Graph:
        if sizes not in self._known:
            wide = [other for other in self._known if min(sizes[0], other[0]) > NARROW]
            for other in wide or [*self._known][: len(self._known) + 1 - MOST_GRAPHS]:
                del self._known[other]
            self._known[sizes] = self._make(*sizes)
        self._known.move_to_end(sizes)
        return self._known[sizes]


def _closed(*sizes: int) -> NoReturn:
    raise UsageError("this model is closed")


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights and sizes of a head, after `src/models/eagle3.cpp` of llama.cpp."""

    weights: Mapping[str, Any]
    width: int
    n_read: int
    n_rows: int
    n_heads: int
    n_shared: int
    head_size: int
    epsilon: float
    rotated: int
    base: float
    normed_residual: bool

    @classmethod
    def of(cls, head: Model, target: Model) -> _Layer:
        """Return the layer of a head. Raises UsageError if it cannot be decoded here."""
        header, kind = head.header, head.header.architecture
        if head.is_offloaded or target.is_offloaded:
            raise UsageError("this head or its target is on a GPU")
        scaling = {key for key in header.metadata if key.startswith(f"{kind}.rope.scal")}
        if scaling and (len(scaling) > 1 or header.metadata.get(f"{kind}.rope.scaling.type") != "none"):
            raise UsageError("the positions of this head are scaled")
        is_tied = "output.weight" not in target.header.tensors
        if is_tied and "token_embd.weight" not in header.tensors and not have_exact_kernels():
            raise UsageError("this build may keep the embeddings of this target in another layout")
        weights = {name.removesuffix(".weight"): head.tensor(name) for name in header.tensors}
        weights |= {name: target.tensor(f"{name}.weight") for name in ("token_embd", "output") if name not in weights}
        if None in weights.values():
            raise UsageError("this build does not give the weights of a model")
        n_heads = header.head_counts("attention.head_count")[0]
        size = header.head_sizes[0]
        return cls(
            weights,
            width=header.number("embedding_length"),
            n_read=N_LAYERS_READ * header.number("target_hidden_size"),
            n_rows=n_draft_tokens(header),
            n_heads=n_heads,
            n_shared=(header.head_counts("attention.head_count_kv") or [n_heads])[0],
            head_size=size,
            epsilon=float(str(header.metadata[f"{kind}.attention.layer_norm_rms_epsilon"])),
            rotated=header.number("rope.dimension_count", size),
            base=float(str(header.metadata.get(f"{kind}.rope.freq_base", 10000.0))),
            normed_residual=bool(header.metadata.get(f"{kind}.norm_before_residual", False)),
        )

    def encoder(self, n: int) -> _Graph:
        """Return the graph of n states from the target's."""
        memory = Tensors()
        inputs = memory.new(F32, self.n_read, n)
        normed = inputs
        if "enc.output_norm" in self.weights:
            normed = self._normed(memory, inputs, "enc.output_norm")
        states = memory.op("mul_mat", self.weights["fc"], normed)
        memory.allocate()
        native = memory.graph(states)
        arrays = view(inputs, F32, n, self.n_read), view(states, F32, n, self.width)
        arrays[0].fill(0)
        return _Graph(native, memory, *arrays)

    def decoder(self, keys: Any, values: Any, n: int, n_cells: int, n_rows: int) -> _Decoder:
        """Return the graph of n tokens that read the first cells of a cache, and of the logits after some of them."""
        memory, weights = Tensors(), self.weights
        op, kv = memory.op, self.n_shared * self.head_size
        inputs, tokens, positions, cells, rows, mask = (
            memory.new(*shape)
            for shape in ((F32, self.width, n), (I32, n), (I32, n), (I64, n), (I32, n_rows), (F16, n_cells, n))
        )
        normed = self._normed(memory, inputs, "blk.0.attn_norm_2")
        embedded = self._normed(memory, op("get_rows", weights["token_embd"], tokens), "blk.0.attn_norm")
        read = op("concat", embedded, normed, 0)
        query, key, value = (op("mul_mat", weights[f"blk.0.attn_{of}"], read) for of in "qkv")
        query, key = (
            self._rotated(memory, op("reshape_3d", each, self.head_size, heads, n), positions)
            for each, heads in ((query, self.n_heads), (key, self.n_shared))
        )
        stored = [
            op("set_rows", cache, each, cells)
            for cache, each in ((keys, op("reshape_2d", key, kv, n)), (values, value))
        ]
        row_bytes, head_bytes = 2 * kv, 2 * self.head_size
        past = [
            op("view_3d", cache, self.head_size, n_cells, self.n_shared, row_bytes, head_bytes, 0)
            for cache in (keys, values)
        ]
        seen = op("flash_attn_ext", op("permute", query, 0, 2, 1, 3), *past, mask, self.head_size**-0.5, 0.0, 0.0)
        seen = op("mul_mat", weights["blk.0.attn_output"], op("reshape_2d", seen, self.head_size * self.n_heads, n))
        inner = op("add", seen, normed if self.normed_residual else inputs)
        fed = self._normed(memory, inner, "blk.0.ffn_norm")
        gate, up = (op("mul_mat", weights[f"blk.0.ffn_{of}"], fed) for of in ("gate", "up"))
        states = op("add", op("mul_mat", weights["blk.0.ffn_down"], op("swiglu_split", gate, up)), inner)
        chosen = self._normed(memory, op("get_rows", states, rows), "output_norm")
        logits = op("mul_mat", weights["output"], chosen)
        memory.allocate()
        return _Decoder(
            memory.graph(*stored, states, logits),
            memory,
            view(inputs, F32, n, self.width),
            view(states, F32, n, self.width),
            view(tokens, I32, n),
            view(positions, I32, n),
            view(cells, I64, n),
            view(rows, I32, n_rows),
            view(mask, F16, n, n_cells),
            view(logits, F32, n_rows, self.n_rows),
        )

    def _normed(self, memory: Tensors, tensor: Any, name: str) -> Any:
        return memory.op("mul", memory.op("rms_norm", tensor, self.epsilon), self.weights[name])

    def _rotated(self, memory: Tensors, tensor: Any, positions: Any) -> Any:
        factors = self.weights.get("rope_freqs")
        scaling = 1.0, 0.0, 1.0, 0.0, 0.0  # of positions that are not scaled
        return memory.op("rope_ext", tensor, positions, factors, self.rotated, 0, 0, self.base, *scaling)
