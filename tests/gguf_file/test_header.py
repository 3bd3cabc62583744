"""Reading headers: the content of valid files, and the messages for invalid ones."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from tiny_gguf import raw_entry, raw_file, raw_string, raw_tensor, write_model

from edgespec.errors import ModelFileError, ModelNotFoundError
from edgespec.gguf_file.header import GGML_TYPES
from edgespec.gguf_file.model_check import ARCHITECTURES, OTHER_ARCHITECTURES, check_model, vocabulary_note

U16, U32, F32, STRING, ARRAY, U64 = 2, 4, 6, 8, 9, 10
ARCHITECTURE = raw_entry("general.architecture", STRING, raw_string("llama"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "llama.gguf", "llama")


def refusal(path: Path) -> str:
    """Return the message for a refused file."""
    with pytest.raises(ModelFileError) as refused:
        check_model(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


# --- good files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", tiny_gguf.ARCHITECTURES)
def test_a_good_file_passes_and_tells_what_it_is(tmp_path: Path, architecture: str) -> None:
    path = write_model(tmp_path / "model.gguf", architecture, type="Q8_0")
    header = check_model(path)
    assert header.architecture == architecture
    assert header.name == f"tiny {architecture}"
    assert header.n_vocab == len(header.strings("tokenizer.ggml.tokens"))
    assert header.number("block_count") == 2
    assert header.size_bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("left_out", "note"),
    [
        ((), ""),
        (("pre",), "m.gguf names no pre-tokenizer: texts may be split"),
        (("eos_token_id",), "m.gguf names no end token: answers may end too early"),
        (("pre", "eos_token_id"), "m.gguf names no pre-tokenizer and no end token: texts may be split"),
    ],
)
def test_what_a_file_does_not_say_about_texts_is_one_note(tmp_path: Path, left_out: tuple[str, ...], note: str) -> None:
    metadata = {f"tokenizer.ggml.{name}": None for name in left_out}
    path = write_model(tmp_path / "m.gguf", "qwen2", metadata=metadata)
    found = vocabulary_note(check_model(path))
    assert found.startswith(note)
    assert bool(found) == bool(left_out)
    assert vocabulary_note(check_model(write_model(path, "gemma", metadata=metadata))) == ""


def test_tensors_are_where_the_header_says(llama: Path) -> None:
    header, expected = check_model(llama), tiny_gguf.model_tensors("llama", tiny_gguf.model_metadata("llama"))
    assert header.tensors.keys() == expected.keys()
    for name, values in expected.items():
        tensor = header.tensors[name]
        assert (tensor.shape, tensor.type) == (values.shape[::-1], "F32")
        with llama.open("rb") as file:
            file.seek(tensor.offset)
            assert file.read(tensor.size_bytes) == values.tobytes()


def test_long_arrays_are_read_on_demand(llama: Path) -> None:
    header, metadata = check_model(llama), tiny_gguf.model_metadata("llama")
    texts, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(texts, list) and isinstance(merges, list)
    assert header.strings("tokenizer.ggml.tokens") == [text.encode() for text in texts]
    assert header.strings("tokenizer.ggml.merges") == [merge.encode() for merge in merges]
    assert header.numbers("tokenizer.ggml.token_type").tolist() == metadata["tokenizer.ggml.token_type"]


def test_a_large_vocabulary(tmp_path: Path) -> None:
    n = 15_000
    path = write_model(
        tmp_path / "large.gguf",
        "llama",
        metadata={
            "tokenizer.ggml.tokens": [f"token {index}" for index in range(n)],
            "tokenizer.ggml.token_type": [1] * n,
            "tokenizer.ggml.scores": [0.5] * n,
            "tokenizer.ggml.merges": [f"a{index} b" for index in range(n)],
        },
        tensors={name: np.zeros((n, 64), np.float32) for name in ("token_embd.weight", "output.weight")},
    )
    header = check_model(path)
    assert header.n_vocab == n
    assert header.strings("tokenizer.ggml.tokens")[-1] == b"token 14999"
    assert header.length("tokenizer.ggml.merges") == n
    assert header.numbers("tokenizer.ggml.scores").sum() == n / 2


def test_heads_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    per_layer = {"openelm.attention.head_count": [4, 8], "openelm.attention.head_count_kv": [2, 0]}
    metadata = tiny_gguf.model_metadata("llama", prefix="openelm") | per_layer
    tensors = tiny_gguf.model_tensors("llama", tiny_gguf.model_metadata("llama"))
    header = check_model(tiny_gguf.write_file(tmp_path / "model.gguf", metadata, tensors))
    assert header.metadata["openelm.attention.head_count"] == (4, 8)


def test_special_tokens_may_be_missing(tmp_path: Path) -> None:
    for missing in (None, 0xFFFFFFFF):
        check_model(write_model(tmp_path / "model.gguf", "llama", metadata={"tokenizer.ggml.bos_token_id": missing}))


def test_a_split_model_counts_all_its_parts(tmp_path: Path, llama: Path) -> None:
    parts, whole = tiny_gguf.write_split(tmp_path), check_model(llama)
    header = check_model(parts[0])
    assert header.parts == tuple(parts)
    assert header.tensors.keys() == whole.tensors.keys()
    assert {tensor.part for tensor in header.tensors.values()} == {0, 1}
    assert header.size_bytes == sum(part.stat().st_size for part in parts)
    assert header.weights_bytes == whole.weights_bytes


def test_the_table_of_types_is_ggmls_own() -> None:
    import ctypes

    from llama_cpp._ggml import libggml

    libggml.ggml_type_name.restype = ctypes.c_char_p
    libggml.ggml_blck_size.restype = ctypes.c_int64
    libggml.ggml_type_size.restype = ctypes.c_size_t
    for number, (name, block_size, type_size) in GGML_TYPES.items():
        assert libggml.ggml_type_name(number).decode().upper() == name.upper()
        assert (libggml.ggml_blck_size(number), libggml.ggml_type_size(number)) == (block_size, type_size)


def test_no_architecture_is_both_good_and_bad() -> None:
    assert not ARCHITECTURES & OTHER_ARCHITECTURES.keys()


# --- no model at all --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none.gguf", "x" * 5000, "a\0b"])
def test_a_missing_file_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        check_model(tmp_path / name)


def test_a_directory_names_the_models_in_it(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)
    (tmp_path / "model.gguf").touch()
    assert "model.gguf" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


def test_a_file_without_read_permission(tmp_path: Path, llama: Path) -> None:
    path = tmp_path / "locked.gguf"
    path.write_bytes(llama.read_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "permission denied" in refusal(path)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    assert "is empty" in refusal(tmp_path / "empty.gguf")


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (struct.pack("<Q", 62) + b'{"__metadata__":{}}', "safetensors"),
        (b"PK\x03\x04\x00\x00archive/data.pkl", "PyTorch"),
        (b"<!DOCTYPE html><html><title>Login", "web page"),
        (b'{"error": "Repository not found"}', "error message"),
        (b"tjgg\x03\x00\x00\x00", "starts with 'tjgg' instead of 'GGUF'"),
        (bytes(5000), "zeros"),
        (b"hello", "instead of 'GGUF'"),
        (b"G", "instead of 'GGUF'"),
    ],
)
def test_another_kind_of_file_is_recognised(tmp_path: Path, start: bytes, named: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(start)
    assert "is not a GGUF file" in refusal(path)
    assert named in refusal(path)
    assert "'edgespec ls'" in refusal(path)


# --- damaged ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twentieth", range(20))
def test_truncated_anywhere(tmp_path: Path, llama: Path, twentieth: int) -> None:
    """Ten places in the header, ten in the data."""
    data, path = llama.read_bytes(), tmp_path / "short.gguf"
    header_end = min(tensor.offset for tensor in check_model(llama).tensors.values())
    header_cut = 5 + (header_end - 40) * twentieth // 10
    data_cut = header_end + (len(data) - header_end) * (twentieth - 10) // 10
    path.write_bytes(data[: header_cut if twentieth < 10 else data_cut])
    message = refusal(path)
    assert "incomplete" in message
    whole_size = f"should have about {len(data):,} bytes"
    assert any(named in message for named in ("the file ends", "more than fit into", whole_size))
    assert "Download it again" in message


@pytest.mark.parametrize(
    ("version", "named"),
    [
        (struct.pack("<I", 1), "version 1"),
        (struct.pack("<I", 4), "version 4"),
        (struct.pack("<I", 0), "version"),
        (struct.pack(">I", 3), "big-endian"),
    ],
)
def test_versions_that_cannot_be_read(tmp_path: Path, version: bytes, named: str) -> None:
    if named == "version":
        named = "big-endian"  # zero is read as big-endian
    assert named in refusal(raw_file(tmp_path / "model.gguf", version=version))


@pytest.mark.parametrize("count", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_counts_beyond_the_file(tmp_path: Path, count: int) -> None:
    path = tmp_path / "model.gguf"
    assert f"{count:,} tensors" in refusal(raw_file(path, n_tensors=count))
    assert f"{count:,} metadata entries" in refusal(raw_file(path, n_entries=count))
    array = raw_entry("list", ARRAY, struct.pack("<IQ", U32, count))
    assert f"{count:,} elements in 'list'" in refusal(raw_file(path, entries=[array]))
    assert "ends" in refusal(raw_file(path, entries=[raw_entry("text", STRING, struct.pack("<Q", count))]))
    strings = raw_entry("texts", ARRAY, struct.pack("<IQQ", STRING, 1, count))
    assert "ends" in refusal(raw_file(path, entries=[strings]))


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ([raw_entry("odd", 13, b"")], "'odd' has the unknown type 13"),
        ([raw_entry("odd", 0xFFFFFFFF, b"")], "unknown type"),
        ([raw_entry("odd", ARRAY, struct.pack("<IQ", ARRAY, 0))], "'odd' is an array of the unknown or nested type 9"),
        ([raw_entry("odd", ARRAY, struct.pack("<IQ", 99, 0))], "type 99"),
        ([raw_entry("", U32, struct.pack("<I", 0))], "has no name"),
        ([raw_entry("twice", U32, struct.pack("<I", 0))] * 2, "two metadata entries called 'twice'"),
        ([raw_entry("general.alignment", U32, struct.pack("<I", 0))], "alignment is 0"),
        ([raw_entry("general.alignment", U32, struct.pack("<I", 33))], "alignment is 33"),
        ([raw_entry("general.alignment", STRING, raw_string("32"))], "alignment is '32'"),
    ],
)
def test_damaged_metadata(tmp_path: Path, entries: list[bytes], named: str) -> None:
    message = refusal(raw_file(tmp_path / "model.gguf", entries=entries))
    assert "damaged" in message and named in message


LONG = b"k" * 40_000


@pytest.mark.parametrize(
    "entries",
    [
        [raw_entry(bytes(1 << 20), U32, bytes(4))],
        [raw_entry(b"\xff" * (1 << 20), U32, bytes(4))],
        [raw_entry(LONG, 13, b"")],
        [raw_entry(LONG, U32, bytes(4))] * 2,
        [raw_entry(LONG, STRING, struct.pack("<Q", 1 << 40))],
        [raw_entry(LONG, ARRAY, struct.pack("<IQ", 99, 0))],
        [raw_entry("general.alignment", STRING, raw_string("x" * (1 << 20)))],
        [raw_entry("general.architecture", STRING, raw_string("x" * (1 << 20)))],
        [ARCHITECTURE, raw_entry(b"llama." + LONG, F32, struct.pack("<f", math.nan))],
    ],
)
def test_names_and_values_of_any_length_make_no_long_message(tmp_path: Path, entries: list[bytes]) -> None:
    message = refusal(raw_file(tmp_path / "model.gguf", entries=entries))
    assert len(message) < 400 + len(str(tmp_path))


def test_a_length_that_was_changed_is_reported_with_the_place(llama: Path, tmp_path: Path) -> None:
    data = bytearray(llama.read_bytes()) + bytes(1 << 20)
    key = b"general.architecture"
    data[data.index(key) - 8 : data.index(key)] = struct.pack("<Q", 1 << 20)
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(data)
    assert "metadata entry 1 of " in (message := refusal(changed))
    assert "has a name of 1,048,576 bytes" in message


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ([raw_tensor("a", (4,)), raw_tensor("a", (4,), offset=32)], "two tensors called 'a'"),
        ([raw_tensor("a" * 64, (4,))], "name of 64 characters"),
        ([raw_tensor("a", (1, 1, 1, 1, 1))], "5 dimensions"),
        ([raw_tensor("a", (4, 0))], "invalid shape (4, 0)"),
        ([raw_tensor("a", ((1 << 64) - 4,))], "invalid shape (-4,)"),
        ([raw_tensor("a", (1 << 32, 1 << 32))], "invalid shape"),
        ([raw_tensor("a", (48,), type=8)], "rows of 48 elements, not a multiple of 32 (Q8_0)"),
        ([raw_tensor("a", (128,), type=12)], "not a multiple of 256 (Q4_K)"),
        ([raw_tensor("a", (8,), offset=1 << 40)], "'a' starts at offset 1,099,511,627,776, where 0 is expected"),
        ([raw_tensor("a", (8,), offset=(1 << 64) - 32)], "starts at offset 18,"),
        ([raw_tensor("a", (8,), offset=8)], "starts at offset 8, where 0 is expected"),
        ([raw_tensor("a", (8,), offset=32)], "starts at offset 32, where 0 is expected"),
        ([raw_tensor("a", (16,)), raw_tensor("b", (8,), offset=32)], "'b' starts at offset 32, where 64 is expected"),
    ],
)
def test_damaged_tensors(tmp_path: Path, tensors: list[bytes], named: str) -> None:
    message = refusal(raw_file(tmp_path / "model.gguf", entries=[ARCHITECTURE], tensors=tensors, data=bytes(256)))
    assert "damaged" in message and named in message


@pytest.mark.parametrize("type", [4, 5, 31, 36, 43, 1 << 31])
def test_unknown_types_of_tensors(tmp_path: Path, type: int) -> None:
    path = raw_file(tmp_path / "model.gguf", tensors=[raw_tensor("a", (32,), type)], data=bytes(256))
    assert f"'a' has type {type}, which this llama.cpp does not know" in refusal(path)


# --- split over several files -----------------------------------------------------------------------------------------


def test_missing_parts_are_named(tmp_path: Path) -> None:
    parts = tiny_gguf.write_split(tmp_path, n_parts=3)
    parts[1].unlink()
    message = refusal(parts[0])
    assert "it has 3 parts" in message and "tiny-00002-of-00003.gguf" in message
    assert "tiny-00003-of-00003.gguf" not in message


def test_only_the_first_part_is_loaded(tmp_path: Path) -> None:
    parts = tiny_gguf.write_split(tmp_path)
    with pytest.raises(ModelFileError, match="not the first of its 2 parts") as refused:
        check_model(parts[1])
    assert str(parts[0]) in str(refused.value)


def test_a_renamed_part(tmp_path: Path) -> None:
    first = tiny_gguf.write_split(tmp_path)[0]
    assert "does not end in -00001-of-00002.gguf" in refusal(first.rename(tmp_path / "model.gguf"))


def test_a_part_of_another_model(tmp_path: Path) -> None:
    parts = tiny_gguf.write_split(tmp_path)
    parts[1].write_bytes(parts[0].read_bytes())
    with pytest.raises(ModelFileError, match=r"00002.*does not belong to tiny-00001"):
        check_model(parts[0])


def test_a_damaged_part(tmp_path: Path) -> None:
    parts = tiny_gguf.write_split(tmp_path)
    parts[1].write_bytes(parts[1].read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match=r"tiny-00002-of-00002.gguf is incomplete"):
        check_model(parts[0])


# --- not a language model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": None}, "does not name its architecture"),
        ({"general.architecture": "llama9"}, "'llama9' is no architecture of this llama.cpp that generates text"),
        ({"general.architecture": "bert"}, "an embedding model"),
        ({"general.architecture": "t5"}, "that generates text from left to right"),
        ({"general.architecture": "clip"}, "a vision projector (mmproj), not a language model"),
        ({"general.architecture": "llada"}, "that generates text from left to right"),
        ({"general.architecture": "eagle3"}, "a draft head"),
        ({"general.architecture": "edgespec-hydra"}, "a draft head"),
        ({"general.architecture": "wavtokenizer-dec"}, "that generates text from left to right"),
        ({"general.type": "adapter"}, "a LoRA adapter"),
        ({"general.type": "mmproj"}, "a vision projector (mmproj), not a language model"),
        ({"general.type": "imatrix"}, "an importance matrix"),
        ({"llama.attention.causal": False}, "an embedding model"),
        ({"llama.pooling_type": 3}, "an embedding model"),
        ({"tokenizer.ggml.model": "none"}, "no vocabulary"),
        ({"tokenizer.ggml.model": None}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
    ],
)
def test_files_that_are_no_language_model(
    tmp_path: Path, metadata: dict[str, tiny_gguf.Value | None], named: str
) -> None:
    message = refusal(write_model(tmp_path / "model.gguf", "llama", metadata=metadata))
    assert "cannot be used as a language model" in message and named in message


def test_a_vocabulary_without_weights(tmp_path: Path) -> None:
    assert "only a vocabulary, no weights" in refusal(tiny_gguf.write_vocabulary(tmp_path / "vocabulary.gguf"))


def test_an_embedding_model(tmp_path: Path) -> None:
    path = tiny_gguf.write_embedding_model(tmp_path / "bert.gguf")
    assert "makes vectors or scores" in refusal(path)
    assert check_model(path, embeds=True).architecture == "bert"


# --- what llama.cpp would assert on, divide by or loop over -----------------------------------------------------------


BOS, EOS = {"tokenizer.ggml.add_bos_token": True}, {"tokenizer.ggml.add_eos_token": True}


@pytest.mark.parametrize(
    "metadata",
    [
        {"tokenizer.ggml.eos_token_id": 100_000},
        {"tokenizer.ggml.bos_token_id": 0xFFFFFFFF, **BOS},
        {"llama.activation_sparsity_scale": [1.6448, float("-inf")]},
    ],
)
def test_oddities_of_real_files_are_let_through(tmp_path: Path, metadata: dict[str, tiny_gguf.Value | None]) -> None:
    assert check_model(tiny_gguf.write_model(tmp_path / "odd.gguf", "llama", metadata=metadata)).n_vocab


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.block_count": None}, "'llama.block_count' is missing, not an integer"),
        ({"llama.block_count": 0}, "'llama.block_count' is 0"),
        ({"llama.block_count": 513}, "'llama.block_count' is 513"),
        ({"llama.block_count": 2.0}, "'llama.block_count' is 2.0, not an integer"),
        ({"llama.block_count": "two"}, "'llama.block_count' is 'two', not an integer"),
        ({"llama.block_count": True}, "'llama.block_count' is True, not an integer"),
        ({"llama.embedding_length": 0}, "'llama.embedding_length' is 0"),
        ({"llama.context_length": 0}, "'llama.context_length' is 0"),
        ({"llama.context_length": 0xFFFFFFFF}, "'llama.context_length' is 4294967295"),
        ({"llama.rope.freq_base": 0.0}, "'llama.rope.freq_base' is 0.0"),
        ({"llama.rope.scaling.factor": math.nan}, "'llama.rope.scaling.factor' is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": -1e-5}, "layer_norm_rms_epsilon' is -"),
        ({"llama.attention.layer_norm_rms_epsilon": math.inf}, "layer_norm_rms_epsilon' is inf"),
        ({"llama.nextn_predict_layers": 3}, "more prediction layers than layers"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 token types"),
        ({"tokenizer.ggml.scores": [0.0]}, "1 scores"),
        ({"tokenizer.ggml.bos_token_id": "<s>"}, "BOS token is '<s>'"),
        ({"tokenizer.ggml.model": "bert", "tokenizer.ggml.eos_token_id": 300_000, **EOS}, "need a EOS token"),
        ({"tokenizer.ggml.tokens": [1, 2, 3]}, "not a list of strings"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, metadata: dict[str, tiny_gguf.Value | None], named: str) -> None:
    message = refusal(write_model(tmp_path / "model.gguf", "llama", metadata=metadata))
    assert "cannot be loaded" in message and named in message


def test_tokens_that_stand_twice(tmp_path: Path) -> None:
    tokens = tiny_gguf.model_metadata("llama")["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    path = write_model(tmp_path / "model.gguf", "llama", metadata={"tokenizer.ggml.tokens": [*tokens[:-1], "def"]})
    assert "token 'def' is in its vocabulary twice" in refusal(path)


def test_empty_tokens_are_as_good_as_any(tmp_path: Path) -> None:
    tokens = tiny_gguf.model_metadata("llama")["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    check_model(
        write_model(tmp_path / "model.gguf", "llama", metadata={"tokenizer.ggml.tokens": ["", "", *tokens[2:]]})
    )


def test_a_vocabulary_that_cannot_write_every_byte(tmp_path: Path) -> None:
    tokens = tiny_gguf.model_metadata("gemma")["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    broken = [token.replace("<0xC3>", "not a byte") for token in tokens]
    path = write_model(tmp_path / "model.gguf", "gemma", metadata={"tokenizer.ggml.tokens": broken})
    assert "no token for the byte 195" in refusal(path)


def test_scores_that_are_no_numbers(tmp_path: Path) -> None:
    scores = tiny_gguf.model_metadata("gemma")["tokenizer.ggml.scores"]
    assert isinstance(scores, list)
    path = write_model(tmp_path / "model.gguf", "gemma", metadata={"tokenizer.ggml.scores": [*scores[1:], math.nan]})
    assert "score is not a number" in refusal(path)
