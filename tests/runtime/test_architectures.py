"""Every architecture the tests can write answers, with a draft and without, and says the same either way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import ARCHITECTURES, CHATML, HYBRID, RECURRENT, write_model, write_split

import edgespec
from edgespec.events import TokenEvent
from edgespec.settings import Message

PROMPT = "def f(x):\n    return"
N_TOKENS = 64  # twice the sliding window of the tiny gemma3


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def text_of(events: Iterator[TokenEvent]) -> str:
    return "".join(event.text for event in events)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_draft_changes_nothing_but_the_number_of_passes(folder: Path, architecture: str) -> None:
    target = str(write_model(folder / f"{architecture}.gguf", architecture))
    draft = str(write_model(folder / f"{architecture}-draft.gguf", architecture, noise=0.05))
    with (
        edgespec.load(target, spec_type="none", threads=1) as plain,
        edgespec.load(target, draft_model=draft, spec_type="draft", pace="fixed:3", threads=1) as drafting,
    ):
        for temperature in (0.0, 0.8):
            settings: dict[str, Any] = {"max_tokens": N_TOKENS, "ignore_eos": True} | {
                "temperature": temperature,
                "seed": 3,
            }
            assert text_of(drafting.generate(PROMPT, **settings)) == text_of(plain.generate(PROMPT, **settings))
            assert plain.stats.generated_tokens == drafting.stats.generated_tokens == N_TOKENS
            assert plain.stats.proposed == 0
            if architecture in RECURRENT:
                assert drafting.stats.proposed == 0
            else:
                assert drafting.stats.accepted > 0
                assert drafting.stats.rounds < plain.stats.rounds


@pytest.mark.parametrize("architecture", RECURRENT)
def test_a_model_without_rollback_says_that_it_decodes_plainly(folder: Path, architecture: str) -> None:
    target = str(write_model(folder / f"{architecture}.gguf", architecture))
    draft = str(write_model(folder / f"{architecture}-draft.gguf", architecture, noise=0.05))
    with edgespec.load(target, spec_type="draft", draft_model=draft, pace="fixed:3", threads=1) as llm:
        assert any("decoding without speculation" in note and architecture in note for note in llm.notes)
    with edgespec.load(target, threads=1) as llm:
        assert not any("plainly" in note for note in llm.notes)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("type", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", ["llama", *HYBRID])
def test_other_types_of_weights(folder: Path, architecture: str, type: str) -> None:
    file = write_model(folder / f"{architecture}-{type}.gguf", architecture, type=type)
    with edgespec.load(str(file), threads=1) as llm:
        assert text_of(llm.generate(PROMPT, max_tokens=8, ignore_eos=True))
        assert llm.stats.generated_tokens == 8


def test_a_model_in_parts_answers_like_the_whole(folder: Path) -> None:
    parts = write_split(folder, "llama")
    with (
        edgespec.load(str(parts[0]), threads=1) as split,
        edgespec.load(str(write_model(folder / "whole.gguf", "llama")), threads=1) as whole,
    ):
        assert text_of(split.generate(PROMPT, max_tokens=16)) == text_of(whole.generate(PROMPT, max_tokens=16))


def test_a_chat_template_in_the_file_is_used(folder: Path) -> None:
    plain = str(write_model(folder / "plain.gguf", "qwen2"))
    chatty = str(write_model(folder / "chatty.gguf", "qwen2", chat_template=CHATML))
    with edgespec.load(plain, threads=1) as without, edgespec.load(chatty, threads=1) as llm:
        assert not without.info.has_chat_template
        assert llm.info.has_chat_template
        turn = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        chat = text_of(llm.chat([Message("user", "hello")], max_tokens=8, seed=1))
        assert chat == text_of(without.generate(turn, max_tokens=8, seed=1, special=True))
