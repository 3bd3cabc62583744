"""Servers that all tests of this folder share: to load a model in another process takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from serving import Serving, serving
from tiny_encoder import RANK, write_encoder
from tiny_gguf import FILL, write_model
from tiny_lora import write_adapter

from edgespec.runtime.worker import Worker
from edgespec.serve.guard import Rules
from edgespec.serve.pool import Offer
from edgespec.settings import LoadSettings, Request

TEMPLATE = (
    "{{ reasoning_effort }}/{{ enable_thinking }}{% if tools %}[{% for t in tools %}{{ t | tojson }}{% endfor %}]"
    "{% endif %}{{ mood }}{% for m in messages %}<|{{ m.role }}|>{{ m.name }}{{ m.content }}{% if m.tool_calls %}"
    "<tool_call>{{ m.tool_calls[0].function | tojson }}{% endif %}{% endfor %}"
    "{{ '<think>\n' if enable_thinking is not defined or enable_thinking }}"
)


@pytest.fixture(scope="session")
def server() -> Iterator[Serving]:
    """The demo model with drafts, small limits, and an allowed web page."""
    rules = Rules(origins=("http://page.example",), max_held=2**21)
    settings = LoadSettings("demo", threads=1, sequences=4, store=False)
    with Worker(settings) as worker, serving(worker, rules=rules, queue=16) as found:
        yield found


@pytest.fixture(scope="session")
def templated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A model of random weights that fills gaps, with two adapters that requests may ask for, and a template that reads
    tools, reasoning and other variables."""
    folder = tmp_path_factory.mktemp("templated")
    metadata = FILL | {"tokenizer.ggml.add_bos_token": True}
    file = write_model(folder / "tiny.gguf", "llama", chat_template=TEMPLATE, metadata=metadata)
    lora = tuple(
        f"{write_adapter(folder / f'{name}.gguf', file, seed=seed)}=0" for seed, name in enumerate(("one", "two"))
    )
    settings = LoadSettings(str(file), threads=1, sequences=1, store=False, lora=lora)
    with Worker(settings) as worker, serving(worker) as found:
        yield found


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An embedding model for texts of 128 tokens, with an adapter, and a reranking model."""
    folder = tmp_path_factory.mktemp("encoders")
    bert, rank = write_encoder(folder / "bert.gguf"), write_encoder(folder / "rank.gguf", pooling=RANK, n_labels=1)
    scores = LoadSettings(str(rank), threads=1, embeds=True)
    adapter = write_adapter(folder / "one.gguf", bert)
    with (
        Worker(replace(scores, model=str(bert), lora=(f"{adapter}=0",))) as worker,
        serving(worker, name="bert", others=[Offer("rank", scores, Request())], models_max=2) as found,
    ):
        yield found
