"""LoRA adapters: how options name them, and which files are adapters for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import write_model
from tiny_lora import WEIGHTS, write_adapter

from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf_file.adapters import Adapter, check_adapter, parse_adapters
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model

Q = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "llama")


@pytest.fixture(scope="module")
def target(model: Path) -> Header:
    return check_model(model)


def test_an_option_has_a_name_a_file_and_a_scale(tmp_path: Path) -> None:
    assert parse_adapters(["x/style.gguf", "b=y.gguf=0.5", "z=0", "c=q=2"]) == (
        Adapter("style", Path("x/style.gguf")),
        Adapter("b", Path("y.gguf"), 0.5),
        Adapter("z", Path("z"), 0.0),
        Adapter("c", Path("q"), 2.0),
    )
    odd = tmp_path / "a=b=2"
    odd.touch()
    assert parse_adapters([f"n={odd}"])[0].name == "n"
    assert parse_adapters("a.gguf") == (Adapter("a", Path("a.gguf")),)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["=x.gguf"], "its name is missing"),
        (["a:b=x.gguf"], "colons"),
        (["x y.gguf"], "blanks"),
        (["x.gguf=nan"], "scale"),
        (["x.gguf=1e9"], "scale"),
        (["x.gguf", "y/x.gguf"], "two adapters are called x"),
        ([f"{n}.gguf" for n in range(65)], "at most 64"),
    ],
)
def test_options_that_name_no_adapter_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_adapters(texts)
    assert said in str(caught.value.what) + str(caught.value.why)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_an_adapter_is_accepted(tmp_path: Path, model: Path, target: Header, kind: str) -> None:
    header = check_adapter(write_adapter(tmp_path / "a.gguf", model, rank=32, type=kind), target)
    assert len(header.tensors) == 2 * len(WEIGHTS)
    plain = write_adapter(tmp_path / "b.gguf", model, metadata={"adapter.lora.alpha": None})
    assert check_adapter(plain, target).metadata.get("adapter.lora.alpha") is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metadata": {"general.type": "model"}}, "general.type is not adapter"),
        ({"metadata": {"adapter.type": 3}}, "adapter.type is not lora"),
        ({"metadata": {"general.architecture": "qwen2"}}, "'qwen2', not llama"),
        ({"metadata": {"adapter.lora.alpha": 8}}, "32 bits"),
        ({"metadata": {"adapter.lora.alpha": float("nan")}}, "32 bits"),
        ({"metadata": {"adapter.alora.invocation_tokens": [1, 2]}}, "aLoRA"),
        ({"weights": ()}, "no weights"),
        ({"tensors": {f"{Q}.lora_a": None}}, "only one of"),
        ({"tensors": {"blk.0.attn_norm.weight": np.zeros(64, np.float32)}}, "neither lora_a nor lora_b"),
        ({"tensors": {f"{Q}.lora_a": np.zeros((4, 32), np.float32)}}, "do not fit the weight"),
        ({"tensors": {f"{Q}.lora_b": np.zeros((64, 5), np.float32)}}, "do not fit the weight"),
        ({"tensors": {f"{Q}.lora_b": np.zeros(64, np.float32)}}, "do not fit the weight"),
        (
            {"tensors": {f"blk.9.x.lora_{part}": np.zeros((4, 4), np.float32) for part in "ab"}},
            "no matrix 'blk.9.x'",
        ),
        ({"rank": 256, "type": "Q4_0"}, "only F32"),
    ],
)
def test_other_files_are_refused_with_the_reason(
    tmp_path: Path, model: Path, target: Header, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(EdgespecError) as caught:
        check_adapter(write_adapter(tmp_path / "a.gguf", model, **given), target)
    assert said in str(caught.value.why)
    assert "a.gguf cannot be used as a LoRA adapter" in caught.value.what


def test_a_model_or_nothing_is_no_adapter(tmp_path: Path, model: Path, target: Header) -> None:
    for path in (model, tmp_path / "missing.gguf"):
        with pytest.raises(EdgespecError):
            check_adapter(path, target)


def test_embeddings_that_are_the_output_too_are_refused(tmp_path: Path) -> None:
    tied = write_model(tmp_path / "tied.gguf", "llama", tensors={"output.weight": None})
    name, n_vocab = "token_embd.weight", check_model(tied).n_vocab
    pair = {f"{name}.lora_a": np.zeros((n_vocab, 4), np.float32), f"{name}.lora_b": np.zeros((64, 4), np.float32)}
    adapter = write_adapter(tmp_path / "a.gguf", tied, weights=(), tensors=pair)
    with pytest.raises(EdgespecError, match="cannot be used"):
        check_adapter(adapter, check_model(tied))
    assert check_adapter(adapter, check_model(write_model(tmp_path / "free.gguf", "llama"))).tensors
