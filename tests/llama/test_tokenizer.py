"""The tokenizer: bytes survive it, and control tokens written in a text stay text unless asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bad_files
import pytest
import tiny_encoder
import tiny_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import ModelFileError
from edgespec.llama.model import LlamaModel

BYTE_LEVEL, SENTENCE_PIECE = "qwen2", "gemma"


@pytest.fixture(scope="module", params=[BYTE_LEVEL, SENTENCE_PIECE])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    with LlamaModel(tiny_gguf.write_model(path, request.param)) as model:
        yield model


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    with LlamaModel(tiny_gguf.write_model(tmp_path_factory.mktemp("models") / "qwen2.gguf", BYTE_LEVEL)) as model:
        yield model


def bytes_of(model: LlamaModel, ids: list[int]) -> bytes:
    return b"".join(model.token_bytes(id) for id in ids)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_comes_back_byte_for_byte(byte_level: LlamaModel, text: str) -> None:
    assert bytes_of(byte_level, byte_level.tokenize(text, add_special=False, parse_special=False)) == text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x",
        "Grüße, 世界 🎉",
        "tab\tand\r\nline",
        "a",
        "0123456789" * 50,
        "e\u0301",
        "\u200b\ufeff",
    ],
)
def test_texts_come_back_byte_for_byte(model: LlamaModel, text: str) -> None:
    assert bytes_of(model, model.tokenize(text, add_special=False, parse_special=False)) == text.encode()


def test_an_empty_text_has_no_tokens(model: LlamaModel) -> None:
    assert model.tokenize("", add_special=False, parse_special=False) == []


def test_a_text_longer_than_the_estimate(byte_level: LlamaModel) -> None:
    text = "return " * 20_000
    assert bytes_of(byte_level, byte_level.tokenize(text, add_special=False, parse_special=False)) == text.encode()


def test_merges_are_applied(byte_level: LlamaModel) -> None:
    ids = byte_level.tokenize("def the return", add_special=False, parse_special=False)
    assert [byte_level.token_bytes(id) for id in ids] == [b"def", b" the", b" ", b"return"]


def test_one_byte_is_one_token_where_nothing_merges(byte_level: LlamaModel) -> None:
    """The first 256 tokens of the tiny vocabulary are the bytes."""
    assert [byte_level.token_bytes(id) for id in range(256)] == [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize(
    ("architecture", "control"),
    [
        (BYTE_LEVEL, "<|im_start|>"),
        (BYTE_LEVEL, "<|im_end|>"),
        (SENTENCE_PIECE, "<end_of_turn>"),
        (SENTENCE_PIECE, "</s>"),
    ],
)
def test_control_tokens_stay_text_unless_parsed(tmp_path: Path, architecture: str, control: str) -> None:
    with LlamaModel(tiny_gguf.write_model(tmp_path / "model.gguf", architecture)) as model:
        as_text = model.tokenize(control, add_special=False, parse_special=False)
        assert len(as_text) > 1
        assert bytes_of(model, as_text) == control.encode()
        assert not any(model.is_control(id) for id in as_text)
        (parsed,) = model.tokenize(control, add_special=False, parse_special=True)
        assert model.is_control(parsed)
        assert model.token_bytes(parsed) == b""
        assert model.token_bytes(parsed, special=True) == control.encode()


def test_what_a_model_wants_around_a_prompt_is_added(tmp_path: Path) -> None:
    with LlamaModel(tiny_gguf.write_model(tmp_path / "gemma.gguf", SENTENCE_PIECE)) as model:
        plain = model.tokenize("hello", add_special=False, parse_special=False)
        assert model.tokenize("hello", add_special=True, parse_special=False) == [1, *plain]


@pytest.mark.parametrize("text", ["<s>hello", "<s>", "<s>hello</s>", "hello</s>"])
def test_a_text_that_has_the_tokens_around_a_prompt_gets_no_second_ones(tmp_path: Path, text: str) -> None:
    path = tiny_gguf.write_model(
        tmp_path / "gemma.gguf", SENTENCE_PIECE, metadata={"tokenizer.ggml.add_eos_token": True}
    )
    with LlamaModel(path) as model:
        ids = model.tokenize(text, add_special=True, parse_special=True)
        assert (ids[0], ids[-1]) == (model.bos, model.eos)
        assert (ids.count(1), ids.count(2)) == (1, 1)
        inner = text.removeprefix("<s>").removesuffix("</s>")
        assert ids[1:-1] == model.tokenize(inner)


def test_a_text_of_an_encoder_begins_and_ends_once(tmp_path: Path) -> None:
    with LlamaModel.load_vocabulary(tiny_encoder.write_encoder(tmp_path / "bert.gguf")) as model:
        once = model.tokenize("the", add_special=True, parse_special=True)
        assert model.tokenize("[CLS]the[SEP]", add_special=True, parse_special=True) == once
        assert (once[0], once[-1]) == (model.bos, model.sep)


def test_end_of_generation_tokens_are_known(byte_level: LlamaModel) -> None:
    ends = {byte_level.token_bytes(id, special=True) for id in byte_level.end_tokens}
    assert ends == {b"<|im_end|>", b"<|endoftext|>"}


def test_a_vocabulary_that_llama_cpp_would_never_finish_with_is_refused(tmp_path: Path) -> None:
    """Some files are read for their vocabulary alone, without a trial load."""
    bad_files.endless_tokenizer(tmp_path / "endless.gguf")
    with pytest.raises(ModelFileError, match="no token for the byte 0"):
        LlamaModel.load_vocabulary(tmp_path / "endless.gguf")


def test_rwkv_writes_its_tokens_as_escapes(tmp_path: Path) -> None:
    tokens = [f"\\x{byte:02x}" for byte in range(256)] + ["hello", "\\xe4\\xb8\\xad", "\\n\\n", "\\\\"]
    entries = tiny_gguf.model_metadata(BYTE_LEVEL) | {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
    }
    path = tiny_gguf.write_file(tmp_path / "rwkv.gguf", entries, {})
    with LlamaModel.load_vocabulary(path) as model:
        assert model.tokenize("hello中\n\n\\é") == [256, 257, 258, 259, 0xC3, 0xA9]


def test_a_vocabulary_without_weights_can_be_loaded(tmp_path: Path) -> None:
    path = tiny_gguf.write_vocabulary(tmp_path / "vocabulary.gguf", BYTE_LEVEL)
    with LlamaModel.load_vocabulary(path) as model:
        assert bytes_of(model, model.tokenize("def f(x):", add_special=False, parse_special=False)) == b"def f(x):"


@pytest.mark.parametrize(
    "text", ["", "plain", "<|im_end|>", "<|im_end", "<|im_end|", "a<|im_start|>b", "<bos>", "<unk>"]
)
def test_control_texts_are_those_that_are_read_only_on_request(model: LlamaModel, text: str) -> None:
    is_read = model.tokenize(text, parse_special=True) != model.tokenize(text)
    assert model.control_texts.any_in(text) == is_read
