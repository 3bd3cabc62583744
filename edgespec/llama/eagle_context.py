"""The decoding context of an EAGLE head on the CPU, with our own graphs (`eagle_graph.py`).

A pass of a head takes a millisecond or less. llama.cpp needs as long for the work around it: a graph for each number of
tokens, and a row of logits for all tokens of the target, most of which the head cannot draft. Here the graphs are kept,
and the rows have the head's own tokens. The weights are those of the model that llama.cpp has loaded; those of a
P-EAGLE head, which it cannot load, are in memory of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.batch import Batch
from edgespec.core.features import FINAL_STATE
from edgespec.core.sampling import FloatRow
from edgespec.errors import UsageError
from edgespec.gguf_file.head_check import MASK_STATE, block_length, kind_of_head, layers_read, mask_token, read_ids
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.batch import check_layers
from edgespec.llama.context import CacheFullError, CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.eagle_graph import Decoder, EagleGraphs, Graph, HeadWeights, Kept
from edgespec.llama.graph import F16, Processor, Tensors, view
from edgespec.llama.kernels import have_exact_kernels
from edgespec.llama.library import default_threads
from edgespec.llama.model import LlamaModel

CELLS_STEP = 256  # a graph reads a multiple of this number of cells
LARGE = 2**21  # numbers of a head from which several threads pay off


class EagleContext(Closable):
    """KV cache and decoding of an EAGLE head for the target that `target` decodes, as `HeadContext`.

    `reads` are the layers of the target whose inputs the head reads; `MemoryPlan.as_head` returns the parameters.
    Raises UsageError if the target does not provide these inputs, or if the head cannot be decoded here: on a GPU, with
    a quantised cache, with a scaled rotation of positions.
    """

    def __init__(self, model: LlamaModel | HeadWeights, target: Context, params: ContextParams) -> None:
        header, n_ctx, n_batch, sequences = model.header, params.n_ctx, params.n_batch, params.sequences
        if {params.cache_type_k, params.cache_type_v} != {"f16"}:
            raise UsageError("the cache of this head is not quantised")
        self._graphs = EagleGraphs.of(header, _weights(model, target.model))
        self.blocks = 1
        self.model, self.target, self.sequences, self.n_batch = model, target.model, sequences, n_batch
        self.reads: tuple[int, ...] = (FINAL_STATE,)
        if kind_of_head(header) != "eagle1":
            self.reads = layers_read(header)
            check_layers(target.model.header.architecture, target.model.n_layer, [*self.reads])
        self.n_ctx, self.max_outputs = n_ctx, max(min(params.max_outputs, n_batch), sequences + params.branches)
        threads = (params.threads or default_threads()) if model.n_params > LARGE else 1
        self.fingerprint = model.fingerprint | {"graph": "eagle", "threads": threads}
        size = -(-(n_ctx * sequences + params.scratch) // CELLS_STEP) * CELLS_STEP
        self._cells = _Cells(size, sequences + params.branches, n_ctx + n_batch)
        self._branches = list(range(sequences, sequences + params.branches))
        cache, width = Tensors(), self._graphs.row_width
        caches = [(cache.new(F16, width, size), cache.new(F16, width, size)) for _ in range(self._graphs.n_layers)]
        cache.allocate()
        self._cache: Tensors | None = cache
        for tensor in (each for pair in caches for each in pair):
            view(tensor, F16, size, width).fill(0)  # a cell that is masked still must be a number
        self._processor = Processor(threads)
        self._encoder: Callable[..., Graph] = Kept(self._graphs.encoder)
        self._decoder: Callable[..., Decoder] = Kept(partial(self._graphs.decoder, caches))
        self._ids = read_ids(header) if "d2t" in header.tensors else np.arange(self._graphs.n_rows)
        self._logits: FloatRow = np.full(max(target.model.n_vocab, self._graphs.n_rows), -np.inf, np.float32)
        self._last: Decoder | None = None
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
        graph.tokens[:], graph.positions[:], graph.cells[:] = self._embedded(batch.tokens), batch.positions, cells
        graph.inputs[:] = tokens_states
        self._cells.mask(batch, graph.mask)
        graph.rows[:] = rows or [0]
        self._processor.compute(graph.native)
        self._last, self._places = graph, {place: row for row, place in enumerate(rows)}

    def _embedded(self, tokens: Sequence[int]) -> Sequence[int] | NDArray[np.float32]:
        """Return what the graph reads for tokens: here their ids."""
        return tokens

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequence_ids: Sequence[tuple[int, ...]],
        wanted: Sequence[bool],
    ) -> None:
        """Decode tokens without states, which count as zeros. Raises what `decode_pairs` raises."""
        batch = Batch([*tokens], [*positions], [*sequence_ids], [*wanted])
        self.decode_pairs(batch, np.zeros((batch.size, self._graphs.width), np.float32))

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


def _weights(head: LlamaModel | HeadWeights, target: LlamaModel) -> Mapping[str, int | None]:
    """Return the addresses of the tensors of a head and of those that it shares with the target. Raises UsageError if
    the head cannot be decoded here."""
    if isinstance(head, HeadWeights):
        return {name.removesuffix(".weight"): tensor for name, tensor in head.tensors.items()}
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
    return weights


def _closed(*sizes: int) -> NoReturn:
    raise UsageError("this model is closed")


# --- P-EAGLE ----------------------------------------------------------------------------------------------------------

# The decoding context of a P-EAGLE head (arXiv 2602.01469), which drafts several tokens in one pass, on the CPU.
#
# A P-EAGLE head is an EAGLE-3 head with one or more layers. A draft begins with the last token of the text and the
# target's state before it. The places after it have the embedding of a mask token and a trained state, and each of them
# attends to the text and to the places before it. Their cells are removed after the pass. The target may be on a GPU.


class ParallelContext(EagleContext):
    """KV cache and decoding of `model`, a P-EAGLE head for the target that `target` decodes.

    `longest` is the number of tokens that the head was trained to draft in a pass. Raises UsageError if the target does
    not provide the inputs of its layers.
    """

    def __init__(self, model: HeadWeights, target: Context, params: ContextParams) -> None:
        super().__init__(model, target, params)
        header, self._head = model.header, model
        self.longest = block_length(header)
        self._mask, self._mask_state = mask_token(header), read_rows(header, MASK_STATE)
        self._mask_embedding = model.embeddings([self._mask])

    def close(self) -> None:
        super().close()
        self._head.close()

    def _embedded(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return float32[n, D], the embeddings of tokens."""
        found: NDArray[np.float32] = np.repeat(self._mask_embedding, len(tokens), axis=0)
        others = [place for place, token in enumerate(tokens) if token != self._mask]
        if others:
            found[others] = self._head.embeddings([tokens[place] for place in others])
        return found

    def draft(self, batch: Batch, tokens_states: NDArray[np.float32], lengths: Sequence[int]) -> list[ParallelBlock]:
        """Decode tokens, each with its state, float32[n, D], and draft after each token whose row is wanted, which is
        the last one of a text. `lengths` are the numbers of tokens of these drafts. Returns the blocks, which are valid
        until the next pass. Raises what `decode_pairs` raises."""
        ends = [place for place, wanted in enumerate(batch.wanted) if wanted]
        starts = [(batch.sequence_ids[end][0], batch.positions[end] + 1) for end in ends]
        whole = Batch([*batch.tokens], [*batch.positions], [*batch.sequence_ids], [*batch.wanted])
        blocks = []
        for end, (slot, start), n in zip(ends, starts, lengths, strict=True):
            blocks.append(ParallelBlock(self, [end, *range(whole.size, whole.size + n - 1)]))
            for place in range(n - 1):
                whole.add([self._mask], start + place, (slot,), wanted=True)
        masked = np.repeat(self._mask_state[None], whole.size - batch.size, axis=0)
        try:
            self.decode_pairs(whole, np.concatenate([tokens_states, masked]))
        finally:
            for slot, start in starts:
                self.truncate(slot, start)
        return blocks

    def decode_filler(self, start: int, wanted: Sequence[bool]) -> None:
        if not any(wanted):
            super().decode_filler(start, wanted)
            return
        states = np.zeros((1, self._graphs.width), np.float32)
        self.draft(Batch([0], [start], [(0,)], [True]), states, [self.longest])


class ParallelBlock:
    """The draft of a P-EAGLE head after one text. `places` are the indices of its rows in the pass."""

    def __init__(self, context: ParallelContext, places: list[int]) -> None:
        self._context, self._places, self.n = context, places, len(places)

    def row(self, path: Sequence[int]) -> FloatRow:
        """Return a copy of the logits float32[V] of the token after the draft tokens `path`. Only their number counts:
        each place is predicted independently."""
        return self._context.logits(self._places[len(path)]).copy()

    def confidence(self, depth: int) -> float | None:
        """Return None: the head makes no estimate."""
        return None
