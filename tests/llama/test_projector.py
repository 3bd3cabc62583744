"""Images are read as llama.cpp's own loop reads them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_projector import SEEING, picture, write_projector, write_seeing

from edgespec.errors import ModelFileError, UsageError
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.llama.projector import Projector, _mtmd
from edgespec.llama.trial import try_projector

BEFORE, AFTER = "def look(", "): return self"


@pytest.fixture(scope="module", params=[*SEEING])
def seeing(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LlamaModel, Projector]]:
    path = write_seeing(tmp_path_factory.mktemp(request.param), request.param)
    with LlamaModel(path) as model, Projector(path.with_name("mmproj-F32.gguf"), model, threads=1) as projector:
        yield model, projector


def context_of(model: LlamaModel) -> Context:
    return Context(model, ContextParams(n_ctx=512, n_batch=32, threads=1, exact=True, flash_attention="on"))


def test_logits_after_an_image_are_those_of_llama_cpp(seeing: tuple[LlamaModel, Projector]) -> None:
    model, projector = seeing
    with context_of(model) as ours, context_of(model) as theirs:
        read = projector.read(picture(), "a.png")
        assert np.array_equal(row_after(ours, read.tokens, read.cells), row_of_helper(theirs, projector))


def test_cells_are_the_only_negative_ids_and_images_have_their_own(seeing: tuple[LlamaModel, Projector]) -> None:
    _, projector = seeing
    one, same, other = (projector.read(picture(seed), "a.png") for seed in (1, 1, 2))
    assert one is same
    assert sum(token < 0 for token in one.tokens) == sum(cells.n for cells in one.cells.values()) > 0
    cells = {token for token in other.tokens if token < 0}
    assert cells.isdisjoint(one.tokens)


def test_a_state_after_an_image_can_be_saved_cut_and_restored(seeing: tuple[LlamaModel, Projector]) -> None:
    model, projector = seeing
    read = projector.read(picture(), "a.png")
    before = model.tokenize(BEFORE)
    with context_of(model) as context:
        row = row_after(context, read.tokens, read.cells)
        n_all = context.length(0)
        assert n_all == len(before) + len(read.tokens) + len(model.tokenize(AFTER))
        state = context.save(0)
        n_seen = len(before) + len(read.tokens)
        for length in (n_seen, len(before)):
            assert context.truncate(0, length)
            assert context.length(0) == length
        assert context.restore(0, state)
        assert context.truncate(0, n_seen)
        assert np.array_equal(decoded(context, model.tokenize(AFTER), n_seen), row)


def row_after(context: Context, tokens: list[int], cells: dict[int, Any]) -> NDArray[np.float32]:
    """Read text, the image and text; return the logits at the end."""
    before, after = (context.model.tokenize(text) for text in (BEFORE, AFTER))
    decoded(context, before, 0)
    at = 0
    while at < len(tokens):
        if at in cells:
            context.decode_image(cells[at], len(before) + at, 0, wanted=False)
            at += cells[at].n
        else:
            decoded(context, tokens[at : at + 1], len(before) + at)
            at += 1
    return decoded(context, after, len(before) + len(tokens))


def decoded(context: Context, tokens: list[int], start: int) -> NDArray[np.float32]:
    n = len(tokens)
    context.decode(tokens, range(start, start + n), [(0,)] * n, [False] * (n - 1) + [True])
    return context.logits(n - 1).copy()


def row_of_helper(context: Context, projector: Projector) -> NDArray[np.float32]:
    """The same through `mtmd_helper_eval_chunks`."""
    mtmd = _mtmd()
    from edgespec.files.images import pixels_of

    pixels = np.ascontiguousarray(pixels_of(picture()))
    data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmap = mtmd.mtmd_bitmap_init(pixels.shape[1], pixels.shape[0], data)
    chunks, prompt = mtmd.mtmd_input_chunks_init(), f"{BEFORE}<image>{AFTER}".encode()
    text = mtmd.mtmd_input_text(prompt, len(prompt), False, True)
    assert mtmd.mtmd_tokenize(projector.handle, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1) == 0
    past = ctypes.c_int32(0)
    code = mtmd.mtmd_helper_eval_chunks(
        projector.handle, context._handle, chunks, 0, 0, context.n_batch, True, ctypes.byref(past)
    )
    assert code == 0
    row = context.logits(-1).copy()
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    return row


def test_the_projector_of_another_model_is_refused(tmp_path: Path) -> None:
    path = write_seeing(tmp_path, "llama")
    wide = write_projector(tmp_path / "wide.gguf", "mlp", text_width=96)
    with (
        LlamaModel(path) as model,
        pytest.raises(ModelFileError, match=r"cannot be the projector of tiny.gguf.*n_embd = 64"),
    ):
        Projector(wide, model, threads=1)


@pytest.mark.slow
def test_a_projector_that_crashes_ends_a_child(tmp_path: Path) -> None:
    path = write_seeing(tmp_path, "llama")
    try_projector(path.with_name("mmproj-F32.gguf"), path)
    broken = write_projector(tmp_path / "broken.gguf", "mlp", image_size=128)  # has no embeddings of most places
    with pytest.raises(ModelFileError, match=r"llama.cpp crashed in a trial load, while reading an image"):
        try_projector(broken, path)


def test_a_build_without_mtmd_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _mtmd()
    monkeypatch.delattr(sys.modules["llama_cpp"], "mtmd_cpp")
    monkeypatch.delitem(sys.modules, "llama_cpp.mtmd_cpp")
    monkeypatch.setenv("MTMD_CPP_LIB", str(tmp_path))
    _mtmd.cache_clear()
    with pytest.raises(UsageError, match="cannot read images: it was compiled without the library mtmd"):
        _mtmd()
