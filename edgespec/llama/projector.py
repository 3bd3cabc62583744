"""The projector of a model that can see: it turns images into rows that the model reads in place of tokens.

llama.cpp's library mtmd does this. Its binding is imported only here, and only when an image is to be read: a build of
llama-cpp-python may lack the library.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from edgespec.closable import Closable
from edgespec.core.images import image_ids
from edgespec.errors import GenerationError, ImageError, ModelFileError, UsageError
from edgespec.files.images import pixels_of
from edgespec.llama.library import _log, complaints, first_complaint, gpus
from edgespec.llama.model import LlamaModel

MOST_BYTES = 256 << 20  # of images that are kept, in case the next prompt has them too
PIXEL_BYTES = 12 * 32 * 32  # about: the pixels of one cell, as floats
_MARKER = b"<image>"
_TEXT = 0  # of mtmd_input_chunk_type


class EncodingError(GenerationError):
    """The projector failed; nothing was decoded."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image as a part of a prompt: ids of text around it, and of its cells. A large image may have several runs of
    cells; `cells` has them by their places in `tokens`."""

    tokens: list[int]
    cells: dict[int, Cells]

    @property
    def n_bytes(self) -> int:
        """An estimate of the memory that it takes."""
        return sum(cells.n_bytes for cells in self.cells.values())


class Cells:
    """The cells of the KV cache that an image takes, or a part of an image.

    Attributes:
        n: The number of cells.
        n_positions: The number of positions until the text after it: fewer than cells with M-RoPE.
        is_whole: True if its cells attend to each other, also to later ones, and therefore need a common pass.
    """

    def __init__(self, projector: Projector, chunk: int) -> None:
        mtmd = _mtmd()
        self._projector, self._chunk = projector, mtmd.mtmd_input_chunk_copy(chunk)
        self._free = weakref.finalize(self, mtmd.mtmd_input_chunk_free, self._chunk)
        self._rows: NDArray[np.float32] | None = None
        self.n = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        self.n_positions = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
        self.is_whole = bool(mtmd.mtmd_decode_use_non_causal(projector.handle, chunk))
        self._places = self._relative() if projector.has_mrope else None

    @property
    def n_bytes(self) -> int:
        # mtmd keeps the pixels, in the size that the projector reads, until the rows are computed.
        return self.n * (4 * self._projector.width if self._rows is not None else PIXEL_BYTES)

    def rows(self) -> NDArray[np.float32]:
        """Return float32[n, D], which are computed only once. Raises EncodingError."""
        if self._rows is None:
            self._rows = self._projector.encode(self._chunk, self.n)
            self._free()
        return self._rows

    def positions(self, first: int) -> NDArray[np.int32]:
        """Return the positions of the cells if the first one has the position `first`: int32[4, n] with M-RoPE, else
        int32[1, n]."""
        if self._places is None:
            return np.arange(first, first + self.n, dtype=np.int32)[np.newaxis]
        relative, moves = self._places
        return relative + np.int32(first) * moves

    def _relative(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the positions of the first position 0, and how much each grows with the first position."""
        mtmd = _mtmd()
        image = mtmd.mtmd_input_chunk_get_tokens_image(self._chunk)

        def places(first: int) -> NDArray[np.int32]:
            found = (mtmd.mtmd_image_tokens_get_decoder_pos(image, first, index) for index in range(self.n))
            return np.array([(at.t, at.y, at.x, at.z) for at in found], np.int32).T  # in the order that llama.cpp reads

        relative = places(0)
        return relative, places(1) - relative


class Projector(Closable):
    """The projector in a file, for one model. Raises UsageError if this build of llama.cpp has none, ModelFileError if
    the file does not fit the model."""

    def __init__(self, path: Path, model: LlamaModel, threads: int) -> None:
        mtmd = _mtmd()
        self.path, self._model, self._handle = path, model, None
        self.width, self.has_mrope = model.n_embd_inp, model.has_mrope
        params = mtmd.mtmd_context_params_default()
        used = gpus(model.gpus) if model.gpus else []
        params.use_gpu = bool(used)
        params.device = used[0].handle if used else None
        params.n_threads, params.print_timings, params.warmup = threads, False, False
        params.media_marker = _MARKER
        with complaints() as lines:
            self._handle = mtmd.mtmd_init_from_file(os.fsencode(path), model.handle, params)
        if not self._handle or not mtmd.mtmd_support_vision(self._handle):
            why = "it reads no images" if self._handle else first_complaint(lines)
            self.close()
            hint = "download the projector of this very model, and name it with `mmproj`"
            raise ModelFileError(f"{path} cannot be the projector of {model.path.name}", why=why, hint=hint)
        stat = path.stat()
        # All that the rows of an image depend on, in addition to its pixels and the context.
        facts = (path.resolve(), stat.st_size, stat.st_mtime_ns, model.gpus, threads)
        self._key = sha256(repr(facts).encode()).digest()
        self._using, self._encoding = threading.Lock(), threading.Lock()
        self._pictures: OrderedDict[bytes, Picture] = OrderedDict()

    @property
    def handle(self) -> int:
        """The native projector. Raises UsageError if it is closed."""
        if self._handle is None:
            raise UsageError("this model is closed")
        return int(self._handle)

    def close(self) -> None:
        """Free the weights; images that are not encoded yet can no longer be."""
        if self._handle is not None:
            _mtmd().mtmd_free(self._handle)
            self._handle = None

    def read(self, data: bytes, name: str) -> Picture:
        """Return an image as a part of a prompt, from the content of its file. Raises UsageError."""
        digest = sha256(data).digest()
        with self._using:
            if digest in self._pictures:
                self._pictures.move_to_end(digest)
                return self._pictures[digest]
            picture = self.picture(pixels_of(data, name), digest, name)
            self._pictures[digest] = picture
            while len(self._pictures) > 1 and sum(each.n_bytes for each in self._pictures.values()) > MOST_BYTES:
                self._pictures.popitem(last=False)
            return picture

    def picture(self, pixels: NDArray[np.uint8], digest: bytes, name: str = "the image") -> Picture:
        """Return an image, uint8[height, width, 3], as a part of a prompt; `digest` identifies it.

        Raises UsageError, and ModelFileError if the projector does not fit the model.
        """
        mtmd = _mtmd()
        height, width, _ = pixels.shape
        pixels = np.ascontiguousarray(pixels)
        bitmap = mtmd.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            text = mtmd.mtmd_input_text(_MARKER, len(_MARKER), False, True)
            with complaints() as lines:
                code = mtmd.mtmd_tokenize(self.handle, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1)
            if code:
                raise ImageError(f"{name} cannot be read", why=first_complaint(lines))
            tokens, cells = list[int](), dict[int, Cells]()
            for index in range(mtmd.mtmd_input_chunks_size(chunks)):
                chunk = mtmd.mtmd_input_chunks_get(chunks, index)
                if mtmd.mtmd_input_chunk_get_type(chunk) == _TEXT:
                    tokens += self._text(chunk)
                else:
                    part = cells[len(tokens)] = Cells(self, chunk)
                    tokens += image_ids(b"%s%s%d" % (self._key, digest, index), part.n)
            return Picture(tokens, cells)
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def _text(self, chunk: int) -> list[int]:
        n = ctypes.c_size_t()
        found = _mtmd().mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        tokens = [int(token) for token in found[: n.value]]
        if min(tokens, default=0) < 0:
            why = f"{self._model.path.name} lacks a token that it puts next to images"
            raise ModelFileError(f"{self.path} does not fit the model", why=why)
        return tokens

    def encode(self, chunk: int, n: int) -> NDArray[np.float32]:
        """Return the rows of an image, float32[n, D]. Raises EncodingError."""
        mtmd = _mtmd()
        with self._encoding, complaints() as lines:
            if mtmd.mtmd_encode_chunk(self.handle, chunk):
                raise EncodingError("the projector failed", why=first_complaint(lines))
            rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self.handle), (n, self.width))
            return np.array(rows, np.float32)


@cache
def _mtmd() -> ModuleType:
    """Return the binding of mtmd. Raises UsageError if this build lacks the library."""
    try:
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise UsageError(
            "this build of llama-cpp-python cannot read images",
            why="it was compiled without the library mtmd",
            hint="install the build of edgespec (docs/install.md), or compile it without -DLLAVA_BUILD=OFF",
        ) from error
    mtmd_cpp.mtmd_helper_log_set(_log, None)
    binding: ModuleType = mtmd_cpp
    return binding
