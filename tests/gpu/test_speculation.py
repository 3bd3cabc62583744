"""Drafting with layers on a GPU gives the text of plain decoding there, in every combination that can be asked for.

Kernels of GPUs round differently for each width of a pass. So one of the texts may change, but not in its first tokens,
and an error in the KV cache would change them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gpu import needs_gpu
from serving import serving
from tiny_gguf import EXACT
from tiny_head import write_bigram, write_head

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Request

pytestmark = [needs_gpu, pytest.mark.timeout(600)]  # a software device compiles its shaders at first

PROMPTS = ["def fibonacci(n):", "import os\nimport", "class Stack:\n    def push", "for key, value in"]
GREEDY = SamplingSettings(temperature=0.0)
REQUESTS = [Request(prompt, max_tokens=24, sampling=GREEDY, ignore_eos=True, remembered=False) for prompt in PROMPTS]
ON_GPU: dict[str, Any] = {
    "gpu_layers": "all",
    "gpu_layers_draft": "all",
    "store": False,
    "ctx_size": 512,
    "exact": False,
}
DRAFT: dict[str, Any] = ON_GPU | {"spec_type": "draft", "pace": "fixed:3"}
WAYS: dict[str, dict[str, Any]] = {
    "chain": DRAFT,
    "long chain": DRAFT | {"pace": "fixed:7"},
    "tree": DRAFT | {"spec_tree": 4},
    "draft on the CPU": DRAFT | {"gpu_layers_draft": 0},
    "target on the CPU": DRAFT | {"gpu_layers": 0},
    "half of the target": DRAFT | {"gpu_layers": 2},
    "overlap": DRAFT | {"gpu_layers_draft": 0, "overlap": "on"},
    "overlap on one device": DRAFT | {"overlap": "on"},
    "self": DRAFT | {"spec_type": "self:8"},
    "8-bit cache": DRAFT | {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    "exact": DRAFT | {"exact": True},
    "auto": ON_GPU,
}
OF_TARGET = ("gpu_layers", "cache_type_k", "cache_type_v", "exact")  # what plain decoding depends on


def texts(llm: Runtime) -> list[list[int]]:
    return [[event.id for event in llm.submit(request)] for request in REQUESTS]


def check(found: list[list[int]], expected: list[list[int]]) -> None:
    assert [text[:8] for text in found] == [text[:8] for text in expected]
    assert sum(map(list.__ne__, found, expected)) <= 1, (found, expected)


@cache
def plain(**target: Any) -> list[list[int]]:
    with edgespec.load("demo", **ON_GPU | target, spec_type="none") as llm:
        assert llm.model.is_offloaded == (target.get("gpu_layers") != 0)
        return texts(llm)


@pytest.mark.parametrize("way", WAYS)
def test_text_of_plain_decoding(home: Path, way: str) -> None:
    own = {name: WAYS[way][name] for name in OF_TARGET if name in WAYS[way]}
    with edgespec.load("demo", **WAYS[way]) as llm:
        check(texts(llm), plain(**own))
        assert way == "auto" or llm.stats.accepted > 0


@pytest.fixture(scope="module")
def bigram(home: Path) -> Path:
    return write_bigram(home / "bigram.gguf")


@pytest.mark.parametrize("layers", ["all", 2])
@pytest.mark.parametrize("tree", [1, 4])
def test_draft_heads(bigram: Path, tmp_path: Path, tree: int, layers: int) -> None:
    head = write_head(tmp_path / "head.gguf", knows_bigrams=True)
    here: dict[str, Any] = EXACT | {"gpu_layers": layers, "gpu_layers_draft": layers, "store": False, "exact": False}
    with edgespec.load(str(bigram), spec_type="none", **here) as llm:
        expected = texts(llm)
    how: dict[str, Any] = {"draft_model": str(head), "spec_type": "eagle3", "pace": "fixed:3", "spec_tree": tree}
    with edgespec.load(str(bigram), **how, **here) as llm:
        check(texts(llm), expected)
        assert llm.stats.acceptance_rate > 0.7


def check_beginnings(texts: Iterable[str]) -> None:
    """Check that texts begin with the tokens of plain decoding. Answers that are decoded together attend to a cache
    with the cells of all, so that more of them change than by drafting."""
    with LlamaModel.load_vocabulary(resolve("demo").path) as model:
        expected = [model.detokenize(tokens[:8]).decode("utf-8", "replace") for tokens in plain(gpu_layers="all")]
    assert [text[: len(begin)] for text, begin in zip(texts, expected, strict=True)] == expected


def test_a_batch_of_several_at_a_time(home: Path) -> None:
    rows = [{"prompt": prompt, "max_tokens": 24} for prompt in PROMPTS]
    with edgespec.load("demo", sequences=3, **DRAFT) as llm:
        found = [*llm.batch(rows, chat=False, temperature=0.0, ordered=True)]
    check_beginnings(row["content"] for row in found)


def test_a_server_with_several_clients(home: Path) -> None:
    def asked(prompt: str) -> str:
        body = {"model": "demo", "prompt": prompt, "max_tokens": 24, "temperature": 0}
        return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    with (
        Worker(LoadSettings("demo", sequences=3, **DRAFT)) as worker,
        serving(worker) as server,
        server.client() as client,
        ThreadPoolExecutor(len(PROMPTS)) as clients,
    ):
        check_beginnings(clients.map(asked, PROMPTS))
