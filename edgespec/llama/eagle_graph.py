"""The graphs of an EAGLE head on the CPU, after `src/models/eagle3.cpp` of llama.cpp.

The first layer reads the embedding of a token and a state. The further layers that a P-EAGLE head has are those of a
Llama.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgespec.closable import Closable
from edgespec.files.paths import file_facts
from edgespec.gguf_file.head_check import NORMS_LAYERS, NORMS_STATE, layers_read, n_draft_tokens, n_tokens, norm_epsilon
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows, stored_rows
from edgespec.llama.graph import F16, F32, I32, I64, Tensors, fill, view
from edgespec.llama.model import LlamaModel

MOST_GRAPHS, NARROW = 12, 8  # graphs of a kind that are kept, and the most tokens of all but one of them
NODES, NODES_IN_LAYER = 32, 48  # more than a graph has around its layers, and in each of them
# The parameters of ggml's rotation if positions are not scaled: the context that a head was trained with, the factors
# of positions, of YaRN and of the result, and two limits of YaRN
_UNSCALED = 0, 1.0, 0.0, 1.0, 0.0, 0.0


@dataclass(slots=True)
class Graph:
    """A graph that computes states, with its inputs and results as arrays."""

    native: int
    memory: Tensors
    inputs: NDArray[np.float32]
    states: NDArray[np.float32]


@dataclass(slots=True)
class Decoder(Graph):
    """A graph that computes logits too. `tokens` are ids, int32[n], or embeddings, float32[n, D]."""

    tokens: NDArray[np.int32] | NDArray[np.float32]
    positions: NDArray[np.int32]
    cells: NDArray[np.int64]
    rows: NDArray[np.int32]
    mask: NDArray[np.float16]
    logits: NDArray[np.float32]


Kind = TypeVar("Kind", bound=Graph)


class Kept(Generic[Kind]):
    """Makes graphs by their sizes, the number of tokens first, and keeps those used last; of wide ones, whose work
    takes much memory, only one."""

    def __init__(self, make: Callable[..., Kind]) -> None:
        self._make, self._known = make, OrderedDict[tuple[int, ...], Kind]()

    def __call__(self, *sizes: int) -> Kind:
        if sizes not in self._known:
            wide = [other for other in self._known if min(sizes[0], other[0]) > NARROW]
            for other in wide or [*self._known][: max(0, len(self._known) + 1 - MOST_GRAPHS)]:
                del self._known[other]
            self._known[sizes] = self._make(*sizes)
        self._known.move_to_end(sizes)
        return self._known[sizes]


@dataclass(frozen=True, slots=True)
class EagleGraphs:
    """The weights and sizes of a head, from which its graphs are made.

    Attributes:
        weights: The addresses of tensors, by their names without ".weight". Without "token_embd", graphs read
            embeddings in place of tokens.
        n_normed: The number of parts of the target's states that are RMS-normed separately; 0: none.
        normed_residual: The first layer adds the normed state to the result of its attention.
        normed_state: The states that a graph returns are normed by the output norm.
    """

    weights: Mapping[str, int | None]
    n_layers: int
    width: int
    n_read: int
    n_rows: int
    n_heads: int
    n_shared: int
    head_size: int
    epsilon: float
    rotated: int
    base: float
    scaling: tuple[int, float, float, float, float, float]
    n_normed: int
    normed_residual: bool
    normed_state: bool

    @classmethod
    def of(cls, header: Header, weights: Mapping[str, int | None]) -> EagleGraphs:
        kind, n_heads = header.architecture, header.head_counts("attention.head_count")[0]
        size, layers = header.head_sizes[0], layers_read(header)
        return cls(
            weights,
            n_layers=header.number("block_count"),
            width=header.number("embedding_length"),
            n_read=len(layers) * header.number("target_hidden_size"),
            n_rows=n_draft_tokens(header),
            n_heads=n_heads,
            n_shared=(header.head_counts("attention.head_count_kv") or [n_heads])[0],
            head_size=size,
            epsilon=norm_epsilon(header),
            rotated=header.number("rope.dimension_count", size),
            base=float(str(header.metadata.get(f"{kind}.rope.freq_base", 10000.0))),
            scaling=_scaling(header),
            n_normed=len(layers) if header.metadata.get(NORMS_LAYERS) else 0,
            normed_residual=bool(header.metadata.get(f"{kind}.norm_before_residual", False)),
            normed_state=bool(header.metadata.get(NORMS_STATE)),
        )

    @property
    def row_width(self) -> int:
        """The width of a row of keys or of values in a layer's cache."""
        return self.n_shared * self.head_size

    def encoder(self, n: int) -> Graph:
        """Return the graph of n states from the target's."""
        memory = Tensors()
        inputs = memory.new(F32, self.n_read, n)
        normed = inputs
        if self.n_normed:
            parts = memory.op("reshape_2d", inputs, self.n_read // self.n_normed, self.n_normed * n)
            normed = memory.op("reshape_2d", memory.op("rms_norm", parts, self.epsilon), self.n_read, n)
        if "enc.output_norm" in self.weights:
            normed = self._normed(memory, normed, "enc.output_norm")
        states = memory.op("mul_mat", self.weights["fc"], normed)
        memory.allocate()
        native = memory.graph(states)
        arrays = view(inputs, F32, n, self.n_read), view(states, F32, n, self.width)
        arrays[0].fill(0)
        return Graph(native, memory, *arrays)

    def decoder(self, caches: Sequence[tuple[int, int]], n: int, n_cells: int, n_rows: int) -> Decoder:
        """Return the graph of n tokens that read the first cells of the layers' caches, each a tensor of keys and one
        of values, and of the logits after some of them."""
        memory, weights = Tensors(NODES + NODES_IN_LAYER * self.n_layers), self.weights
        op, embeds = memory.op, "token_embd" not in weights
        inputs, tokens, positions, cells, rows, mask = (
            memory.new(*shape)
            for shape in (
                (F32, self.width, n), (F32, self.width, n) if embeds else (I32, n), (I32, n), (I64, n),
                (I32, n_rows), (F16, n_cells, n),
            )
        )  # fmt: skip
        normed = self._normed(memory, inputs, "blk.0.attn_norm_2")
        embedded = tokens if embeds else op("get_rows", weights["token_embd"], tokens)
        read = op("concat", self._normed(memory, embedded, "blk.0.attn_norm"), normed, 0)
        states, stored = normed if self.normed_residual else inputs, []
        for number, cache in enumerate(caches):
            if number:
                read = self._normed(memory, states, f"blk.{number}.attn_norm")
            query, *added = self._projected(memory, number, read, positions, n)
            stored += [op("set_rows", into, each, cells) for into, each in zip(cache, added, strict=True)]
            seen = self._attended(memory, number, query, cache, mask, n, n_cells)
            inner = op("add", seen, states)
            fed = self._normed(memory, inner, f"blk.{number}.ffn_norm")
            gate, up = (self._product(memory, f"blk.{number}.ffn_{of}", fed) for of in ("gate", "up"))
            down = self._product(memory, f"blk.{number}.ffn_down", op("swiglu_split", gate, up))
            states = op("add", down, inner)
        if self.normed_state:
            states = self._normed(memory, states, "output_norm")
            chosen = op("get_rows", states, rows)
        else:
            chosen = self._normed(memory, op("get_rows", states, rows), "output_norm")
        logits = op("mul_mat", weights["output"], chosen)
        memory.allocate()
        return Decoder(
            # Nothing but this order lets attention read what a pass stores
            memory.graph(*stored, states, logits),
            memory,
            view(inputs, F32, n, self.width),
            view(states, F32, n, self.width),
            view(tokens, F32, n, self.width) if embeds else view(tokens, I32, n),
            view(positions, I32, n),
            view(cells, I64, n),
            view(rows, I32, n_rows),
            view(mask, F16, n, n_cells),
            view(logits, F32, n_rows, self.n_rows),
        )

    def _projected(self, memory: Tensors, number: int, read: int, positions: int, n: int) -> tuple[int, int, int]:
        """Return the queries of a layer, and the rows of keys and values that it adds to its cache."""
        query, key, value = (self._product(memory, f"blk.{number}.attn_{of}", read) for of in "qkv")
        query, key = (
            self._rotated(memory, memory.op("reshape_3d", each, self.head_size, heads, n), name, positions)
            for each, heads, name in (
                (query, self.n_heads, f"blk.{number}.attn_q_norm"), (key, self.n_shared, f"blk.{number}.attn_k_norm")
            )
        )  # fmt: skip
        return query, memory.op("reshape_2d", key, self.row_width, n), value

    def _attended(
        self, memory: Tensors, number: int, query: int, cache: tuple[int, int], mask: int, n: int, n_cells: int
    ) -> int:
        row_bytes, head_bytes = 2 * self.row_width, 2 * self.head_size
        past = [
            memory.op("view_3d", each, self.head_size, n_cells, self.n_shared, row_bytes, head_bytes, 0)
            for each in cache
        ]
        by_head = memory.op("permute", query, 0, 2, 1, 3)
        seen = memory.op("flash_attn_ext", by_head, *past, mask, self.head_size**-0.5, 0.0, 0.0)
        joined = memory.op("reshape_2d", seen, self.head_size * self.n_heads, n)
        return self._product(memory, f"blk.{number}.attn_output", joined)

    def _product(self, memory: Tensors, name: str, tensor: int) -> int:
        product, bias = memory.op("mul_mat", self.weights[name], tensor), self.weights.get(f"{name}.bias")
        return product if bias is None else memory.op("add", product, bias)

    def _normed(self, memory: Tensors, tensor: int, name: str) -> int:
        return memory.op("mul", memory.op("rms_norm", tensor, self.epsilon), self.weights[name])

    def _rotated(self, memory: Tensors, tensor: int, norm: str, positions: int) -> int:
        """Return queries or keys, by head, turned by their positions, and normed before if the head has this norm."""
        if norm in self.weights:
            tensor = self._normed(memory, tensor, norm)
        factors, (n_trained, *scales) = self.weights.get("rope_freqs"), self.scaling
        return memory.op("rope_ext", tensor, positions, factors, self.rotated, 0, n_trained, self.base, *scales)


def _scaling(header: Header) -> tuple[int, float, float, float, float, float]:
    """Return how positions are scaled, as llama.cpp reads the same keys: YaRN with its usual limits."""
    rope = f"{header.architecture}.rope.scaling"
    kind, factor = header.metadata.get(f"{rope}.type", "none"), header.metadata.get(f"{rope}.factor", 1.0)
    if kind == "none":
        return _UNSCALED
    trained = header.number("rope.scaling.original_context_length", header.number("context_length"))
    return trained, 1 / float(str(factor)), float(kind == "yarn"), 1.0, 32.0, 1.0


# --- weights ----------------------------------------------------------------------------------------------------------

# The weights of a draft head that llama.cpp has no architecture for, in tensors of our own in main memory.


EMBEDDINGS = "token_embd.weight"
_NOT_LOADED = (EMBEDDINGS, "d2t")


class HeadWeights(Closable):
    """The matrices and vectors of a head's file, and the embeddings of the head or of its target.

    Embeddings stay in the file, from which the few rows of a pass are read. Raises ModelFileError, OutOfMemoryError.
    """

    is_offloaded = False

    def __init__(self, header: Header, target: LlamaModel) -> None:
        import gguf

        self.header, self.n_params, self.n_vocab = header, header.n_params, n_tokens(header)
        self.n_embd = header.number("embedding_length")
        facts = dict(zip(("file", "size", "mtime"), file_facts(header.path), strict=True))
        self.fingerprint: dict[str, object] = {**facts}
        self._embedded = header if EMBEDDINGS in header.tensors else target.header
        self._target = target
        loaded = {name: info for name, info in header.tensors.items() if name not in _NOT_LOADED}
        # Matrices are only multiplied by, so they may be interleaved; what is added or scales must not be.
        matrices, vectors = Tensors(len(loaded)), Tensors(len(loaded))
        self._memory = [matrices, vectors]
        self.tensors: dict[str, int] = {}
        for name, info in loaded.items():
            memory = vectors if len(info.shape) == 1 else matrices
            self.tensors[name] = memory.new(gguf.GGMLQuantizationType[info.type], *info.shape)
        matrices.allocate(interleaved=True)
        vectors.allocate()
        for name, tensor in self.tensors.items():
            fill(tensor, stored_rows(header, name))
        self.embeddings([0])  # an error should appear now, if their type cannot be read

    def close(self) -> None:
        """Free the weights. No graph that uses them may be computed any more."""
        self._memory.clear()

    def embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return float32[n, D]."""
        return read_rows(self._embedded, EMBEDDINGS, tokens)

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation of the target."""
        return self._target.is_end(token)
