"""Inflated models: the same logits and texts at a higher cost, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from inflate_gguf import inflate, main, shape_of
from numpy.typing import NDArray
from tiny_gguf import write_model, write_split

import edgespec
from edgespec.errors import ModelFileError, ModelNotFoundError, UsageError
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve

TARGET, DRAFT = resolve("demo").path, resolve("demo:draft").path
# The draft is nowhere in two minds about these: the best token leads by 0.2 or more, the first prompt's by 1.2.
PROMPTS = ["try:\n    import", "x = [", "assert"]
N = 24

LogProbabilities = NDArray[np.float64]


def greedy(path: Path) -> tuple[list[list[int]], LogProbabilities]:
    """Return the ids of each prompt's answer, and the distribution of each id, float64[prompts x N, V]."""
    texts, rows = [], []
    exact: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
    with LlamaModel(path) as model, Context(model, ContextParams(n_ctx=512, threads=1, **exact)) as context:
        for prompt in PROMPTS:
            context.forget(0)
            pending, answer = model.tokenize(prompt, add_special=True), list[int]()
            for _ in range(N):
                start, last = context.length(0), len(pending) - 1
                context.decode(pending, range(start, start + last + 1), [(0,)] * (last + 1), [False] * last + [True])
                logits = context.logits(last).astype(np.float64)
                rows.append(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
                pending = [int(np.argmax(logits))]
                answer += pending
            texts.append(answer)
    return texts, np.array(rows)


def types_of(path: Path) -> set[str]:
    """The types of a file's matrices."""
    return {tensor.type for tensor in read_header(path).tensors.values() if len(tensor.shape) > 1}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose output is not its embedding."""
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "llama")


# --- the same text ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("type", "width", "tolerance"),
    [("F32", 256, 1e-4), ("F32", 384, 1e-4), ("F16", 256, 0.03), ("Q8_0", 256, 0.1), ("Q8_0", 384, 0.1)],
)
def test_a_wider_and_deeper_model_says_the_same(tmp_path: Path, type: str, width: int, tolerance: float) -> None:
    plain, inflated = DRAFT, tmp_path / "inflated.gguf"
    if type != "Q8_0":
        plain = tmp_path / "plain.gguf"
        inflate(DRAFT, plain, type=type)
    shape = inflate(DRAFT, inflated, width=width, layers=4, type=type)
    assert types_of(plain) == types_of(inflated) == {type}
    assert (shape.axes["D"], shape.layers) == (width, 4)
    (texts, rows), (inflated_texts, inflated_rows) = greedy(plain), greedy(inflated)
    assert inflated_texts == texts
    assert np.abs(inflated_rows - rows).max() < tolerance


@pytest.mark.parametrize("width", [160, 256])
def test_so_does_one_with_an_output_of_its_own_and_other_sizes(tmp_path: Path, tiny: Path, width: int) -> None:
    inflated = tmp_path / "inflated.gguf"
    shape = inflate(tiny, inflated, width=width, layers=4, type="F32")
    assert shape.heads > 4 and shape.heads == 2 * shape.heads_kv
    (texts, rows), (inflated_texts, inflated_rows) = greedy(tiny), greedy(inflated)
    assert inflated_texts == texts
    assert np.abs(inflated_rows - rows).max() < 1e-3


def test_weights_in_q8_0_come_out_bit_by_bit_each_time(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source.gguf", "llama", type="Q8_0")
    for name in ("one.gguf", "two.gguf"):
        inflate(source, tmp_path / name, width=256, layers=3)
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
    old, new = (
        {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors} for path in (source, tmp_path / "one.gguf")
    )
    matrices = [tensor for tensor in old.values() if tensor.tensor_type == gguf.GGMLQuantizationType.Q8_0]
    assert matrices
    for tensor in matrices:
        n_rows, n_bytes = tensor.data.shape
        grown = new[tensor.name].data
        assert np.array_equal(grown[:n_rows, :n_bytes], tensor.data), tensor.name
        assert not grown[n_rows:].any() and not grown[:, n_bytes:].any(), tensor.name
    for projection in ("attn_output", "ffn_down"):
        assert not new[f"blk.2.{projection}.weight"].data.any()


@pytest.mark.long
def test_everything_but_the_sizes_is_kept(tmp_path: Path) -> None:
    inflate(TARGET, tmp_path / "inflated.gguf", width=512, layers=11)
    old, new = check_model(TARGET), check_model(tmp_path / "inflated.gguf")
    changed = {key for key in old.metadata if old.metadata[key] != new.metadata.get(key)}
    arrays = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}  # moved in the file
    assert changed - arrays == {
        "llama.embedding_length",
        "llama.block_count",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.layer_norm_rms_epsilon",
    }
    assert new.metadata.keys() == old.metadata.keys() | {"general.quantization_version"}
    assert (new.number("attention.head_count"), new.number("attention.head_count_kv")) == (8, 4)
    for key in arrays:
        assert new.strings(key) == old.strings(key)
        assert np.array_equal(new.numbers(key), old.numbers(key))


# --- sizes and types --------------------------------------------------------------------------------------------------


def test_the_shape_is_that_of_the_file(tmp_path: Path, tiny: Path) -> None:
    shape = inflate(tiny, tmp_path / "inflated.gguf", width=256, layers=4)
    assert shape == shape_of(check_model(tmp_path / "inflated.gguf"))


def test_k_quants_are_made_by_llama_cpp_and_fill_every_matrix(tmp_path: Path) -> None:
    inflate(DRAFT, tmp_path / "inflated.gguf", width=256, type="Q4_K_M")
    assert types_of(tmp_path / "inflated.gguf") == {"Q4_K", "Q6_K"}
    assert [path.name for path in tmp_path.iterdir()] == ["inflated.gguf"]
    texts, _ = greedy(tmp_path / "inflated.gguf")
    assert texts[0] == greedy(DRAFT)[0][0]  # the others are closer calls than 4 bits can settle


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"width": 64}, "can only grow"),
        ({"layers": 1}, "can only grow"),
        ({"width": 100}, "multiple of 32"),
        ({"width": 128, "type": "Q4_K_M"}, "multiple of 256"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, sizes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        inflate(DRAFT, tmp_path / "inflated.gguf", **sizes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("architecture", ["qwen2", "gemma3", "qwen2moe", "mamba"])
def test_other_architectures_are_refused(tmp_path: Path, architecture: str) -> None:
    source = write_model(tmp_path / "source.gguf", architecture)
    with pytest.raises(ModelFileError, match="not a plain Llama"):
        inflate(source, tmp_path / "inflated.gguf", width=128)


def test_llamas_of_another_kind_are_refused(tmp_path: Path) -> None:
    biased = write_model(tmp_path / "a.gguf", "llama", tensors={"blk.0.attn_q.bias": np.zeros(64, np.float32)})
    uneven = write_model(tmp_path / "b.gguf", "llama", metadata={"llama.feed_forward_length": [128, 128]})
    for source in (biased, uneven, write_split(tmp_path)[0]):
        with pytest.raises(ModelFileError, match="not a plain Llama"):
            inflate(source, tmp_path / "inflated.gguf", width=128)


def test_places_that_cannot_be_written_are_refused(tmp_path: Path, tiny: Path) -> None:
    before = tiny.read_bytes()
    for destination in (tmp_path, tmp_path / "missing" / "x.gguf", tiny):
        with pytest.raises(UsageError, match=r"cannot (over)?write"):
            inflate(tiny, destination, width=128)
    assert tiny.read_bytes() == before


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K_M"])
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    written = []

    def interrupt(writer: Any, data: Any, original: Callable[..., None] = gguf.GGUFWriter.write_tensor_data) -> None:
        original(writer, data)
        written.append(data)
        if len(written) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", interrupt)
    with pytest.raises(KeyboardInterrupt):
        inflate(tiny, tmp_path / "inflated.gguf", width=256, type=type)
    assert not list(tmp_path.iterdir())


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_command_makes_a_draft_that_is_sure_and_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scrambled.gguf"
    assert main(["demo:draft", "-o", str(path), "--width", "128", "--layers", "3", "--scramble"]) == 0
    told = capsys.readouterr().out
    assert "3 layers of 128" in told and f"{path.stat().st_size / 1e6:,.0f} MB" in told
    with edgespec.load("demo", spec_type="draft", draft_model=str(path), pace="fixed:3", threads=1) as llm:
        for _ in llm.generate("import os\n", max_tokens=32, temperature=0.0, ignore_eos=True):
            pass
        assert llm.stats.proposed > 75
        assert llm.stats.acceptance_rate < 0.04


def test_the_command_refuses_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo:draft", "-o", str(tmp_path / "x.gguf"), "--width", "32"]) == UsageError.exit_code
    assert "can only grow" in capsys.readouterr().err
    assert main(["nothing.gguf", "-o", str(tmp_path / "x.gguf")]) == ModelNotFoundError.exit_code
    for arguments in (["demo"], ["demo", "-o", str(tmp_path / "x.gguf"), "--type", "Q9_X"]):
        with pytest.raises(SystemExit):
            main(arguments)
