"""A head that is written computes in llama.cpp what PyTorch computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafted import Text
from tiny_gguf import write_model

torch = pytest.importorskip("torch", reason="heads are trained with PyTorch (pip install 'edgespec[train]')")

from edgespec.core.batch import Batch as Cells  # noqa: E402
from edgespec.core.draft import Budget  # noqa: E402
from edgespec.core.features import FINAL_STATE, HEAD_BATCH  # noqa: E402
from edgespec.core.sampler import Sampler  # noqa: E402
from edgespec.core.sampling import SamplingSettings  # noqa: E402
from edgespec.drafters.successors import Successors  # noqa: E402
from edgespec.errors import EdgespecError  # noqa: E402
from edgespec.gguf_file.head_check import check_draft_file  # noqa: E402
from edgespec.gguf_file.header import Header, read_header  # noqa: E402
from edgespec.gguf_file.weights import read_rows  # noqa: E402
from edgespec.llama.block_context import BlockContext  # noqa: E402
from edgespec.llama.context import Context  # noqa: E402
from edgespec.llama.context_params import ContextParams  # noqa: E402
from edgespec.llama.head_context import HeadContext  # noqa: E402
from edgespec.llama.model import LlamaModel  # noqa: E402
from edgespec.runtime.drafting import network_drafter  # noqa: E402
from edgespec.training.batches import Batch  # noqa: E402
from edgespec.training.dflash import DFlash  # noqa: E402
from edgespec.training.eagle3 import Eagle3, logits, unroll  # noqa: E402
from edgespec.training.gguf_files import read_teacher, shape_of, write_head  # noqa: E402
from edgespec.training.heads import Shape, Weights  # noqa: E402

LAYERS = (1, 2, 3)
ABOUT = {"general.license": "apache-2.0", "edgespec.head.acceptance": [0.5, 0.25]}
VOCABULARY = np.arange(20, 260, 3)
TOKENS = [*range(40, 240, 9)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target.gguf", "llama", n_layers=4)


def head(header: Header, kind: str = "eagle3") -> tuple[Eagle3, Weights]:
    teacher = read_teacher(header, VOCABULARY)
    shape = shape_of(header, len(VOCABULARY), kind)
    assert isinstance(shape, Eagle3)
    n_read = shape.width if kind == "eagle1" else shape.n_read
    return shape, shape.initial(teacher.output, teacher.output_norm, torch.ones(n_read), seed=3)


def read_head(path: Path, shape: Shape) -> Weights:
    """The weights of a file, rounded as its type has it."""
    header = read_header(path)
    return {name: torch.from_numpy(read_rows(header, f"{name}.weight")) for name in shape.tensors()}


def a_batch(tokens: list[int], n_anchors: int, **given: Any) -> Batch:
    """A batch of one text whose drafts begin at its first token."""
    missing = torch.zeros(1, n_anchors + 2, 2)
    values = {"inputs": torch.zeros(1, len(tokens), 0), "hidden": missing, **given}
    is_text = torch.ones(3, 1, n_anchors, dtype=torch.bool)
    anchors = torch.tensor([n_anchors])
    known = {"tokens": torch.tensor([tokens]), "start": torch.tensor([0]), "anchors": anchors, "is_text": is_text}
    return Batch(normalisers=missing, best=missing[..., 0], **known, **values)


def difference(path: Path, shape: Eagle3, model: LlamaModel) -> float:
    """How far llama.cpp's logits of a head are from PyTorch's, as a share of their standard deviation: of drafts of one
    token at each place of a text, and of the second token at its end."""
    n = len(TOKENS)
    with (
        Context(model, ContextParams(n_ctx=n + 8, max_outputs=n, threads=1)) as target,
        LlamaModel(path) as loaded,
        HeadContext(
            loaded, target, ContextParams(threads=1, n_ctx=HEAD_BATCH, n_batch=HEAD_BATCH, max_outputs=HEAD_BATCH)
        ) as head,
    ):
        target.watch_layers(head.reads)
        target.decode(TOKENS, range(n), [(0,)] * n, [True] * n)
        features = np.concatenate([target.layer_inputs(layer) for layer in head.reads], axis=1)
        batch = Cells.empty()
        batch.add(TOKENS[1 : n - 1], 0, (0,), wanted=True)
        head.decode_pairs(batch, head.encode(features[: n - 2]))
        rows, state = [head.logits(index)[VOCABULARY] for index in range(n - 2)], head.state(n - 3)
        head.decode_pairs(Cells([TOKENS[n - 1]], [n - 2], [(0,)], [True]), state[None])
        found = np.stack([*rows, head.logits(0)[VOCABULARY]])
    weights, embedding = read_head(path, shape), torch.from_numpy(read_rows(model.header, "token_embd.weight"))
    text = a_batch(TOKENS, n - 2, inputs=torch.from_numpy(features)[None])
    with torch.no_grad():
        first, second = (logits(weights, shape, state)[0] for state in unroll(weights, shape, embedding, text, 2))
    wanted = torch.cat([first, second[-1:]]).numpy()
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())


@pytest.mark.parametrize(("type", "most"), [("F16", 0.01), ("Q8_0", 0.04), ("Q4_1", 0.06)])
def test_llama_cpp_computes_what_pytorch_does(target: Path, tmp_path: Path, type: str, most: float) -> None:
    shape, weights = head(read_header(target))
    path = tmp_path / "head.gguf"
    write_head(path, shape, weights, VOCABULARY, read_header(target), LAYERS, type, ABOUT)
    with LlamaModel(target) as model:
        assert difference(path, shape, model) < most


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
@pytest.mark.parametrize(("type", "most"), [("F16", 0.01), ("Q8_0", 0.04)])
def test_a_block_of_llama_cpp_is_what_pytorch_computes(
    target: Path, tmp_path: Path, kind: str, type: str, most: float
) -> None:
    """The logits, and the estimates of DSpark, of a block after a text, whatever its length."""
    header, path, n, block = read_header(target), tmp_path / "head.gguf", len(TOKENS), 5
    teacher, shape = read_teacher(header, VOCABULARY), shape_of(header, len(VOCABULARY), kind, block)
    assert isinstance(shape, DFlash)
    shape = replace(shape, layers=2)
    weights = shape.initial(teacher.output, teacher.output_norm, torch.ones(shape.n_read), seed=3)
    zeros = {
        name: 0.3 * torch.randn(of.shape, generator=torch.manual_seed(4))
        for name, of in weights.items()
        if not of.any()
    }
    write_head(path, shape, weights | zeros, VOCABULARY, header, LAYERS, type, ABOUT)
    params = ContextParams(n_ctx=HEAD_BATCH, n_batch=HEAD_BATCH, max_outputs=HEAD_BATCH, threads=1)
    with (
        LlamaModel(target) as model,
        Context(model, ContextParams(n_ctx=n, max_outputs=n, threads=1)) as context,
        LlamaModel(check_draft_file(path).path) as loaded,
        BlockContext(loaded, context, params) as head,
    ):
        context.watch_layers(head.reads)
        context.decode(TOKENS, range(n), [(0,)] * n, [True] * n)
        features = np.concatenate([context.layer_inputs(layer) for layer in head.reads], axis=1)
        batch = Cells.empty()
        batch.add(TOKENS[:-1], 0, (0,), wanted=False)
        head.read_states(batch, features[:-1])
        [long], drafted = head.draft([(0, TOKENS[-1], n - 1)], block), list[int]()
        for _ in range(block):
            drafted.append(int(long.row(drafted).argmax()))
        found = np.stack([long.row(drafted[:place])[VOCABULARY] for place in range(block)])
        estimates = [long.confidence(place) for place in range(block)]
        [short] = head.draft([(0, TOKENS[-1], n - 1)], 2)
        start = np.stack([short.row(drafted[:place])[VOCABULARY] for place in range(2)])
    text = a_batch([*TOKENS, *drafted], 1, inputs=torch.from_numpy(np.pad(features, ((0, block), (0, 0))))[None])
    text.start[:] = n - 2  # the anchor is the token before the last one, whose features are known
    with torch.no_grad():
        steps = [*shape.drafts(read_head(path, shape), teacher.embedding.float(), text, block)]
    wanted = np.stack([step.logits[0, 0].numpy() for step in steps])
    assert np.sqrt(np.mean((found - wanted) ** 2)) < most * wanted.std()
    assert np.allclose(start, found[:2], atol=1e-3)
    if kind == "dspark":
        wanted = np.array([step.confidence.sigmoid().item() for step in steps if step.confidence is not None])
        assert np.allclose(np.array(estimates), wanted, atol=most / 4) and np.ptp(wanted) > most


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_an_eagle1_head_reads_the_final_state_of_any_target(tmp_path: Path, architecture: str) -> None:
    target, path = write_model(tmp_path / "target.gguf", architecture, n_layers=4), tmp_path / "head.gguf"
    shape, weights = head(read_header(target), "eagle1")
    write_head(path, shape, weights, VOCABULARY, read_header(target), (), "Q8_0", ABOUT)
    with LlamaModel(target) as model:
        assert difference(path, shape, model) < 0.04
    header = read_header(path)
    assert (header.architecture, header.metadata["edgespec.head.reads"]) == ("eagle3", "final_state")
    assert header.tensors["fc.weight"].shape == (96, 64)


@pytest.mark.parametrize("kind", ["hydra", "medusa"])
def test_networks_draft_what_pytorch_predicts(target: Path, tmp_path: Path, kind: str) -> None:
    header, path = read_header(target), tmp_path / "head.gguf"
    teacher, shape = read_teacher(header, VOCABULARY), shape_of(header, len(VOCABULARY), kind)
    weights = shape.initial(teacher.output, teacher.output_norm, torch.ones(0), seed=3)
    weights |= {f"head.{k}.down": torch.randn((64, 64), generator=torch.manual_seed(k)) for k in range(3)}
    write_head(path, shape, weights, VOCABULARY, header, (), "Q8_0", ABOUT)
    sampler = Sampler(SamplingSettings(temperature=0), 0, 0, header.n_vocab)
    text, state = Text([7, 100], sampler=sampler), np.random.default_rng(5).standard_normal((1, 64)).astype(np.float32)
    with LlamaModel(target) as model:
        drafter = network_drafter(check_draft_file(path), model, 1, Successors(header.n_vocab))
    drafter.begin(text)
    drafter.read(text, 0, {FINAL_STATE: state})
    [draft] = drafter.propose([text], [Budget(3)])
    batch = a_batch([*text.tokens, *draft.tokens], 1, hidden=torch.from_numpy(state)[None].expand(1, 4, 64))
    predicted = shape.drafts(read_head(path, shape), teacher.embedding.float(), batch, 3)
    assert draft.tokens == [int(VOCABULARY[rows.logits[0, 0].argmax()]) for rows in predicted]


def test_the_order_of_rows_matters(target: Path, tmp_path: Path) -> None:
    """Queries and keys are written as they are: another order of their rows, as Hugging Face has it, is found out."""
    shape, weights = head(read_header(target))
    halves = weights["blk.0.attn_k"].unflatten(0, (shape.kv_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    path = tmp_path / "head.gguf"
    write_head(path, shape, weights, VOCABULARY, read_header(target), LAYERS, "F16", ABOUT)
    right = read_head(path, shape)["blk.0.attn_k"]
    assert torch.allclose(right, weights["blk.0.attn_k"], atol=1e-2)
    assert not torch.allclose(right, halves, atol=1e-1)


def test_a_head_says_what_it_is(target: Path, tmp_path: Path) -> None:
    shape, weights = head(read_header(target))
    path = tmp_path / "head.gguf"
    write_head(path, shape, weights, VOCABULARY, read_header(target), LAYERS, "Q8_0", ABOUT)
    header = read_header(path)
    assert header.architecture == "eagle3"
    assert header.numbers("eagle3.target_layers").tolist() == [*LAYERS]
    assert header.metadata["general.license"] == "apache-2.0"
    assert header.tensors["d2t"].type == "I64"
    assert "token_embd.weight" not in header.tensors


def test_weights_that_are_no_numbers_are_not_written(target: Path, tmp_path: Path) -> None:
    shape, weights = head(read_header(target))
    weights["fc"][0, 0] = torch.nan
    with pytest.raises(EdgespecError, match=r"not numbers: fc\.weight"):
        write_head(tmp_path / "head.gguf", shape, weights, VOCABULARY, read_header(target), LAYERS, "F16", ABOUT)
    assert not [*tmp_path.iterdir()]
