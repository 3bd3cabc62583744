"""A decoding context: the KV cache of one model, and the one call that fills it.

Sequences share one unified cache, so that a token can belong to several of them (a tree), or have a stream each, which
computes as if each were alone. Batches, output rows, cancel flags and return codes are handled only here.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, process_time

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.batch import Batch
from edgespec.core.features import FINAL_STATE, LAST_OUTPUT
from edgespec.errors import GenerationError, OutOfMemoryError, UsageError
from edgespec.gguf_file.pooling import RANK
from edgespec.llama.adapters import Adapters
from edgespec.llama.batch import NativeBatch, check_layers, inputs, row, states, switch, switch_states
from edgespec.llama.context_params import ContextParams
from edgespec.llama.library import IS_SET, api, complaints, default_threads, first_complaint
from edgespec.llama.model import LlamaModel
from edgespec.llama.projector import Cells
from edgespec.llama.sequences import Sequences
from edgespec.llama.threads import WIDE, ThreadChoice, attach_threads, free_threads, idle_s
from edgespec.settings import CACHE_TYPES, CacheType

MOST_CELLS = 2**31 - 2**8  # sizes are rounded up to a multiple of 256
_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP
_FLASH = {"auto": -1, "off": 0, "on": 1}


class CacheFullError(Exception):
    """The KV cache has no room for the batch; nothing was decoded."""


class CancelledError(Exception):
    """The cancel flag stopped a decode; the sequences of its batch must be truncated."""


class Context(Sequences, Closable):
    """The KV cache and decoding of one model.

    `other` is the target's context, for a draft head that shares its weights; with the same model, the context has the
    graph of the model's MTP block. Raises UsageError, OutOfMemoryError.

    If no number of threads is given, passes of an exact context have fewer while other programs use the cores
    (`ThreadChoice`). Elsewhere llama.cpp's kernels may round differently with another number.

    Attributes:
        threads_now: The number of threads of the last pass.
        on_threads: Called before a pass that has another number of threads than the last one.
        adapters: The set of the model's LoRA adapters that the next decode uses.
        default_adapters: This set at first.
    """

    def __init__(
        self,
        model: LlamaModel,
        params: ContextParams,
        *,
        other: Context | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        super().__init__()
        self.model, self.params = model, params
        self.n_ctx, self.n_batch, self.sequences = params.n_ctx, params.n_batch, params.sequences
        self.exact, self.streams = params.exact, params.streams
        self.max_outputs = max(min(params.max_outputs, self.n_batch), self.sequences + params.branches)
        self._most_rows = max(self.max_outputs, min(params.n_scored, self.n_batch))
        self._branches = list(range(self.sequences, self.sequences + params.branches))
        self.threads = self.threads_now = params.threads or default_threads()
        self.threads_batch = params.threads_batch or self.threads
        chooses = self.exact and not (params.threads or params.threads_batch or model.is_offloaded)
        self._choice = ThreadChoice(self.threads, idle_s) if chooses and self.threads > 1 else None
        self.on_threads: Callable[[int], None] = lambda threads: None
        self.decodes, self.decode_s = 0, 0.0
        self._adapters = adapters
        self.adapters = self.default_adapters = adapters.default if adapters else ()
        is_mtp = other is not None and other.model is model
        self.can_roll_back = is_mtp or model.can_roll_back  # MTP blocks have attention, even in recurrent models
        self.fingerprint = model.fingerprint | {
            "threads": self.threads,
            "threads_batch": self.threads_batch,
            "cache": [params.cache_type_k, params.cache_type_v],
            "flash_attention": params.flash_attention,
            "exact": self.exact,
            "streams": self.streams,
        }
        if adapters:
            self.fingerprint["adapters"] = adapters.facts
        self._idle = CancelFlag()
        self._native = self._opened(other, is_mtp=is_mtp)
        self._pool = attach_threads(self._native, max(self.threads, self.threads_batch))
        self._rollback = int(api.llama_n_rs_seq(self._native))
        has_windows = model.sliding_window > 0
        self._has_windows = has_windows and model.can_roll_back
        self.can_save = model.can_roll_back or not (has_windows and self.exact)
        self._batch = NativeBatch(self.n_batch, self.sequences + params.branches)
        self.layers: set[int] = set()
        self._logits_type, self._hidden_type = ctypes.c_float * model.n_vocab, ctypes.c_float * model.n_embd

    def _opened(self, other: Context | None, *, is_mtp: bool) -> int:
        """Return a new native context. Raises UsageError, OutOfMemoryError."""
        model, params = self.model, self.params
        type_k, type_v = (
            _cache_type(name, head_size)
            for name, head_size in zip((params.cache_type_k, params.cache_type_v), model.header.head_sizes, strict=True)
        )
        if not _FLASH[params.flash_attention] and type_v.block > 1:
            raise UsageError(
                f"a {params.cache_type_v} V cache needs flash attention", hint="leave flash attention on, or use f16"
            )
        cells = params.n_ctx * params.sequences + params.scratch
        # `planning` checks the memory, since it knows all that is loaded. But llama.cpp counts cells in 32 bits, and
        # would silently make a small cache if asked for more.
        if cells > MOST_CELLS:
            raise OutOfMemoryError(
                f"a context of {cells} tokens does not fit",
                why=f"a KV cache holds {MOST_CELLS} at most",
                hint="use a smaller context (`ctx_size`)",
            )
        native = api.llama_context_default_params()
        native.n_ctx = cells
        native.n_batch = native.n_ubatch = params.n_batch
        native.n_seq_max = params.sequences + params.branches
        native.n_outputs_max = self._most_rows
        native.n_threads, native.n_threads_batch = self.threads, self.threads_batch
        native.type_k, native.type_v = type_k.ggml_type, type_v.ggml_type
        native.flash_attn_type = _FLASH[params.flash_attention]
        native.kv_unified = not params.streams
        native.swa_full = model.sliding_window > 0
        native.n_rs_seq = 0 if self.can_roll_back else min(params.rollback, max(0, params.n_batch - 2))
        native.no_perf = True
        native.ctx_other = other and other._handle
        native.ctx_type = _MTP if is_mtp else 0
        if params.pooling is not None:
            native.embeddings, native.pooling_type = True, params.pooling
        native.abort_callback = IS_SET
        native.abort_callback_data = ctypes.addressof(self._idle.buffer)
        with complaints() as lines:
            opened: int | None = api.llama_init_from_model(model.handle, native)
        if not opened:
            raise OutOfMemoryError(
                f"cannot create a context of {cells} tokens for {model.path.name}",
                why=first_complaint(lines),
                hint=", or ".join(filter(None, ("use a smaller context (`ctx_size`)", model.fewer_layers))),
            )
        return opened

    def close(self) -> None:
        """Free the cache; later calls raise UsageError, but `forget` does nothing."""
        if self._native is not None:
            api.llama_free(self._native)
            free_threads(self._pool)
            self._native = None

    @property
    def _handle(self) -> int:
        if self._native is None:
            raise UsageError("this model is closed")
        return self._native

    # --- decoding -------------------------------------------------------------------------------------------------

    def watch(self, cancel: CancelFlag | None) -> None:
        """Let `cancel` stop decodes from now on, natively and without the interpreter lock; None stops watching."""
        self._watched = cancel or self._idle
        api.llama_set_abort_callback(self._handle, IS_SET, ctypes.addressof(self._watched.buffer))

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequence_ids: Sequence[tuple[int, ...]],
        wanted: Sequence[bool],
    ) -> None:
        """Decode one batch of at most `n_batch` tokens.

        Each token has an id, a position and sequences; at most `max_outputs` or `n_scored` tokens are `wanted` with
        their row of logits. Raises CacheFullError (nothing decoded), CancelledError (truncate every sequence of the
        batch), GenerationError.
        """
        if FINAL_STATE in self.layers and all(wanted) != self._batch.all_outputs:
            self.hidden_states(all(wanted))
        outputs = self._batch.fill(tokens, self._placed(positions, sequence_ids), sequence_ids, wanted)
        if outputs > self._most_rows:
            raise ValueError(f"{outputs} rows requested, but at most {self._most_rows} were reserved")
        starts = self._kept_starts(positions, sequence_ids) if self._rollback else {}
        self._decode(self._batch.native, starts)

    def decode_image(self, image: Cells, start: int, sequence: int, *, wanted: bool) -> int:
        """Decode an image, whose first token has the index `start`; `wanted` asks for the row of logits after it.

        The pieces are always the same: of `n_batch` tokens from the start of the image. Returns the batch entry of its
        last token. Raises as `decode`.
        """
        if image.is_whole and image.n > self.n_batch:
            raise GenerationError(
                f"the image has {image.n} tokens, and this model must read it in one pass of at most {self.n_batch}"
            )
        if self._batch.all_outputs:
            self.hidden_states(on=False)
        rows = image.rows()
        self._positions.add(sequence, start, image.n, image.n_positions)
        positions = image.positions(self._positions.position(sequence, start))
        if image.is_whole:
            api.llama_set_causal_attn(self._handle, False)
        try:
            for at in range(0, image.n, self.n_batch):
                end = min(at + self.n_batch, image.n)
                is_last = end == image.n
                batch = self._batch.of_rows(rows[at:end], positions[:, at:end], sequence, wanted=wanted and is_last)
                self._decode(batch, {sequence: start + at})
        except CacheFullError:
            if not self.truncate(sequence, start):
                self._unknown.add(sequence)
            raise
        finally:
            if image.is_whole:
                api.llama_set_causal_attn(self._handle, True)
        return end - at - 1

    def _placed(self, indexes: Sequence[int], sequence_ids: Sequence[tuple[int, ...]]) -> Sequence[int]:
        """Return the positions of tokens with these indexes."""
        if not self._positions:
            return indexes
        return [self._positions.position(ids[0], index) for ids, index in zip(sequence_ids, indexes, strict=True)]

    def _decode(self, batch: ctypes.Structure, starts: dict[int, int]) -> None:
        """Decode a native batch; `starts` are the tokens from which a recurrent memory can then be cut. Raises as
        `decode`."""
        if self._adapters:
            self._adapters.use(self._handle, self.adapters)
        choice, is_compared = self._choice, batch.n_tokens < WIDE
        if choice is not None:
            self._use_threads(choice.threads if is_compared else choice.begin_wide(perf_counter()))
        started_s, started_cpu_s = perf_counter(), process_time()
        code = api.llama_decode(self._handle, batch)
        if self.model.is_offloaded:
            api.llama_synchronize(self._handle)
        ended_s = perf_counter()
        self.decode_s += ended_s - started_s
        self.decodes += 1
        if choice is not None and code == 0:
            times = ended_s - started_s, process_time() - started_cpu_s, ended_s
            if is_compared:
                choice.record(batch.n_tokens, *times)
            else:
                choice.record_wide(*times)
        self._last_start = starts if code == 0 and self._rollback else {}
        if code == 0:
            return
        if code == 1:
            raise CacheFullError
        if not self.can_roll_back:
            # llama.cpp removes tokens as if their states had been written: all sequences are unknown now.
            self._unknown.update(range(self._batch.sequences.shape[1]))
        if code == 2:
            raise CancelledError
        raise GenerationError("decoding failed", why=f"llama.cpp returned {code}", hint="run with -v to see its log")

    def _use_threads(self, threads: int) -> None:
        if threads != self.threads_now:
            self.threads_now = threads
            api.llama_set_n_threads(self._handle, threads, threads)
            self.on_threads(threads)

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Let all passes in this block have all threads, so that their times can be compared."""
        choice, self._choice = self._choice, None
        try:
            if choice is not None:
                self._use_threads(self.threads)
            yield
        finally:
            self._choice = choice

    def decode_filler(self, start: int, wanted: Sequence[bool]) -> None:
        """Decode arbitrary tokens of sequence 0 from `start` on, to measure the time. Raises as `decode`."""
        n, filler = len(wanted), self.model.tokenize("a")[-1:] or [0]
        self.decode(filler * n, range(start, start + n), [(0,)] * n, wanted)

    def logits(self, index: int) -> NDArray[np.float32]:
        """Return float32[V] of batch entry `index`, a view that is valid until the next decode."""
        return row(api.llama_get_logits_ith(self._handle, index), self._logits_type)

    def hidden(self, index: int) -> NDArray[np.float32]:
        """Return float32[D], the normed hidden state of a batch entry; only while `hidden_states` are on."""
        return row(api.llama_get_embeddings_ith(self._handle, index), self._hidden_type)

    def hidden_states(self, on: bool) -> None:
        """Switch hidden states on or off. While on, every token of a batch is an output and counts as one."""
        self._batch.all_outputs = on
        api.llama_set_embeddings(self._handle, on)

    def watch_layers(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers only, from the next decode on. Raises UsageError if that is unsupported."""
        if numbers := [layer for layer in layers if layer not in (LAST_OUTPUT, FINAL_STATE)]:
            check_layers(self.model.header.architecture, self.model.n_layer, numbers)
        for layer in self.layers.symmetric_difference(layers):
            if layer == FINAL_STATE:
                self.hidden_states(on=False)
            elif layer == LAST_OUTPUT:
                switch_states(self._handle, on=layer in layers, wanted_only=False)
            else:
                switch(self._handle, layer, on=layer in layers)
        self.layers = {*layers}

    def gives(self, layer: int) -> bool:
        """Return whether the last decode kept the inputs of this layer."""
        return layer in self.layers and (layer != FINAL_STATE or self._batch.all_outputs)

    def layer_inputs(self, layer: int) -> NDArray[np.float32]:
        """Return the inputs of a watched layer before its norm, float32[n, D], for the n tokens of the last decode.

        Layer 0 is the first; `LAST_OUTPUT` means the last layer's output. Valid until the next decode.
        """
        if layer not in self.layers:
            raise ValueError(f"layer {layer} is not watched")
        api.llama_synchronize(self._handle)
        n_tokens, n_embd = self._batch.native.n_tokens, self.model.n_embd
        if layer == FINAL_STATE:
            return np.stack([self.hidden(index) for index in range(n_tokens)])
        if layer == LAST_OUTPUT:
            return states(self._handle, n_tokens, self.model.n_embd_out)
        return inputs(self._handle, layer, n_tokens, n_embd)

    def _kept_starts(self, positions: Sequence[int], sequence_ids: Sequence[tuple[int, ...]]) -> dict[int, int]:
        """Return the position where each sequence began in this decode: a recurrent memory can be rolled back this far,
        once.

        Empty after a decode of three or more sequences with different numbers of tokens: llama.cpp decodes these one
        after the other and moves cells in between, but not their old states, so a rollback would silently restore wrong
        states. It would also do so for an earlier decode.
        """
        starts: dict[int, int] = {}
        lengths: Counter[int] = Counter()
        for (sequence, *_), position in zip(sequence_ids, positions, strict=True):
            starts.setdefault(sequence, position)
            lengths[sequence] += 1
        return starts if len(starts) < 3 or len(set(lengths.values())) == 1 else {}


def _cache_type(name: str, head_size: int) -> CacheType:
    """Return the cache type with this name. Raises UsageError if it cannot store heads of this size."""
    cache_type = CACHE_TYPES.get(name)
    if cache_type is None:
        raise UsageError(f"unknown KV cache type {name}", hint=f"one of: {', '.join(CACHE_TYPES)}")
    if head_size % cache_type.block:
        raise UsageError(
            f"a {name} KV cache does not fit this model",
            why=f"it stores {cache_type.block} values at a time, and the attention heads have {head_size}",
            hint="use f16",
        )
    return cache_type


# --- contexts for texts -----------------------------------------------------------------------------------------------

# A context that reads texts and gives one vector or score for each.


Part = tuple[Sequence[int], int]
"""Tokens of a text, and the position of the first of them."""


class PooledContext(Context):
    """A context whose parameters have a pooling (`gguf_file/pooling.py`). Each sequence and each branch can read a
    text."""

    def __init__(self, model: LlamaModel, params: ContextParams, *, adapters: Adapters | None = None) -> None:
        super().__init__(model, params, adapters=adapters)
        self.n_texts = self.sequences + len(self._branches)
        n_values = api.llama_model_n_cls_out(model.handle) if params.pooling == RANK else model.n_embd_out
        self._pooled_type = ctypes.c_float * n_values

    def read(self, parts: Sequence[Part], ends: bool = True) -> list[NDArray[np.float32]]:
        """Read parts of different texts in one pass. If the texts end with them, return the row of each, and forget
        the texts. Raises as `decode`."""
        batch = Batch.empty()
        for sequence, (tokens, position) in enumerate(parts):
            batch.add(tokens, position, (sequence,), wanted=True)
        # Every token must be an output. Switching that off before the end would save time, but llama.cpp's graph for
        # LFM2 then has more operations than its buffers were made for.
        self.decode(batch.tokens, batch.positions, batch.sequence_ids, [True] * batch.size)
        if not ends:
            return []
        rows = [self._pooled(sequence) for sequence in range(len(parts))]
        self.clear()
        return rows

    def clear(self) -> None:
        """Forget all texts."""
        for sequence in range(self.n_texts):
            self.forget(sequence)

    def _pooled(self, sequence: int) -> NDArray[np.float32]:
        return row(api.llama_get_embeddings_seq(self._handle, sequence), self._pooled_type).copy()
