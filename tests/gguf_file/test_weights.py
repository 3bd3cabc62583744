"""Rows of weights, and the print that identifies the target of a head, in any quantisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_gguf import write_model

from edgespec.errors import ModelFileError
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.weights import is_same_target, read_rows, target_print


@pytest.mark.parametrize("type", ["F16", "Q8_0", "Q4_1", "Q4_0"])
def test_quantisations_of_a_model_are_the_same_target(tmp_path: Path, type: str) -> None:
    whole = write_model(tmp_path / "a.gguf", "llama")
    small = write_model(tmp_path / "b.gguf", "llama", type=type)
    assert is_same_target(target_print(read_header(whole)), target_print(read_header(small)))


def test_another_model_is_another_target(tmp_path: Path) -> None:
    prints = [
        target_print(read_header(write_model(tmp_path / f"{seed}.gguf", "llama", seed=seed, width=width)))
        for seed, width in ((1, 64), (2, 64), (1, 128))
    ]
    assert not any(is_same_target(prints[0], other) for other in prints[1:])


def test_a_print_of_other_length_or_without_numbers_fits_nothing() -> None:
    print = np.arange(8, dtype=np.float32)
    assert not is_same_target(print, print[:4])
    assert not is_same_target(print, print * np.nan)


def test_rows_are_read_in_the_order_asked_for(tmp_path: Path) -> None:
    header = read_header(write_model(tmp_path / "a.gguf", "llama", type="Q8_0"))
    every = read_rows(header, "token_embd.weight")
    assert every.shape == (header.n_vocab, 64)
    assert np.array_equal(read_rows(header, "token_embd.weight", [7, 2]), every[[7, 2]])
    assert read_rows(header, "output_norm.weight").shape == (64,)
    with pytest.raises(ModelFileError, match="has no tensor 'fc'"):
        read_rows(header, "fc")
