"""Same seed, same text: a pass over several tokens gives each of them the bits of a separate pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from check_texts import Player
from inflate_gguf import main as inflate

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.core.draft import Draft
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.base import Budget, DraftContext, Drafter
from edgespec.engine.engine import Engine
from edgespec.engine.width_classes import WIDEST, measure_classes
from edgespec.events import TokenEvent
from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.llama.rounding import Widths, measure_widths
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

# Flash attention divides 512 cells or more among threads: test contexts on both sides of this limit.
LONG = "def walk(top):\n    for name in sorted(names):\n        yield join(top, name)\n" * 30
SQUARES = "".join(
    f"def square_{n}(values):\n    return [value * {n} for value in values if value > {n * n}]\n" for n in range(60)
)
PROMPTS = ["import os, sys, re", LONG, LONG + "class Stack:\n    def push(self, item):\n"]

pytestmark = pytest.mark.skipif(not kernels.have_exact_kernels(), reason="this build of llama.cpp was made elsewhere")


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo").path) as model:
        yield model


@pytest.mark.long(but=1)
@pytest.mark.parametrize("attention", ["on", "off"])
@pytest.mark.parametrize("n_past", [250, 600])
def test_tokens_are_decoded_together_as_each_would_be_alone(target: LlamaModel, attention: Any, n_past: int) -> None:
    with Context(target, ContextParams(n_ctx=768, max_outputs=100, flash_attention=attention, exact=True)) as context:
        widths = measure_widths(context, n_past, 100)
    assert (widths.exact_to, widths.max_difference) == (100, 0.0)


@pytest.fixture
def stock() -> Iterator[LlamaModel]:
    """The model with llama.cpp's own kernels."""
    with kernels.kernels_of_llama_cpp(), LlamaModel(resolve("demo").path, use_extra_bufts=False) as model:
        yield model


@pytest.mark.long
def test_llama_cpp_s_own_kernels_are_another_matter(stock: LlamaModel) -> None:
    with Context(stock, ContextParams(n_ctx=768, max_outputs=63, flash_attention="on")) as context:
        assert measure_widths(context, 600, 63).max_difference > 0


def test_single_rows_of_llama_cpp_s_flash_attention_are_a_class_of_their_own(stock: LlamaModel) -> None:
    """From 512 cells on it divides the cells of a single row among the threads, so one depth is not enough."""
    with Context(stock, ContextParams(n_ctx=512, max_outputs=WIDEST, flash_attention="on", threads=2)) as context:
        assert measure_classes(context, (192,)).ranges[0][1] > 1


def test_branches_are_exact_with_flash_attention(target: LlamaModel) -> None:
    with Context(
        target, ContextParams(n_ctx=512, max_outputs=31, flash_attention="on", branches=3, exact=True)
    ) as context:
        assert measure_widths(context, 250, 31).exact_to == 31


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    "type",
    ["Q4_0", "Q4_K_M", *(pytest.param(t, marks=pytest.mark.long) for t in ("F16", "Q5_0", "BF16", "Q2_K", "IQ4_NL"))],
)
def test_weights_of_other_types_are_exact_too(tmp_path: Path, type: str) -> None:
    path = tmp_path / "model.gguf"
    inflate(["demo", "-o", str(path), "--width", "256", "--type", type])
    with edgespec.load(str(path), spec_type="suffix", store=False, ctx_size=512) as llm:
        assert llm.info.rounding == 0.0


@pytest.mark.long(but=1)
@pytest.mark.parametrize("tree", [1, 4])
def test_drafts_leave_texts_beyond_512_tokens_bit_for_bit(tree: int) -> None:
    texts, drafting = [], list[dict[str, Any]]([{"spec_type": "none"}, {}, {"pace": "fixed:30"}])
    for settings in drafting:
        with edgespec.load("demo", spec_tree=tree, store=False, ctx_size=2048, threads=1, **settings) as llm:
            texts.append([answer(llm, PROMPTS[2], temperature) for temperature in (0.0, 0.8)])
            assert llm.info.rounding in (0.0, None)
    assert texts[1:] == texts[:1] * 2


def test_what_shares_a_pass_changes_no_text() -> None:
    requests = [
        Request(prompt=prompt + f"# {number}\n", max_tokens=10, sampling=SamplingSettings(0.8), seed=number)
        for number, prompt in enumerate([*PROMPTS, LONG, "x = [", LONG])
    ] + [Request(prompt=LONG, max_tokens=10, sampling=SamplingSettings(0.8), seed=1, sample=n) for n in range(3)]
    texts = []
    for settings in ({"spec_type": "none"}, {"sequences": 4, "spec_type": "none"}, {"sequences": 4}):
        with edgespec.load("demo", store=False, ctx_size=2048, threads=1, **settings) as llm:
            found: dict[int, list[int]] = {}
            for index, event in llm.stream(requests):
                assert isinstance(event, TokenEvent)
                found.setdefault(index, []).append(event.id)
            texts.append(found)
    assert texts[1:] == texts[:1] * 2


def test_an_answer_is_the_same_when_its_prompt_is_in_the_cache() -> None:
    with edgespec.load("demo", store=False, ctx_size=2048, threads=1) as llm:
        message = [Message("user", LONG)]
        first, again = ([event.id for event in llm.chat(message, max_tokens=30, seed=3)] for _ in range(2))
        assert llm.stats.cached_tokens == llm.stats.prompt_tokens - 1
    assert first == again


def test_a_prompt_may_continue_any_text_in_the_cache() -> None:
    """Also the generated tokens of another request, and from any token of a long prompt or a short one."""
    with edgespec.load("demo", store=False, ctx_size=2048, threads=1) as llm:
        ends = [LONG[:n] for n in (40, 500, 777, 1300)] + [LONG + answer_of(llm, LONG)]
        alone = []
        for prompt in ends:
            llm.forget()
            alone.append(bits_of(llm, prompt))
            assert not llm.stats.cached_tokens
        for _ in range(2):
            assert [bits_of(llm, prompt) for prompt in reversed(ends)] == alone[::-1]
            assert llm.stats.cached_tokens


def answer_of(llm: Runtime, prompt: str) -> str:
    return "".join(event.text for event in llm.generate(prompt, max_tokens=30, temperature=0.0, ignore_eos=True))


def bits_of(llm: Runtime, prompt: str) -> list[tuple[int, float | None]]:
    events = llm.generate(prompt, max_tokens=6, temperature=0.8, seed=3, ignore_eos=True, logprobs=0)
    return [(event.id, event.logprob) for event in events]


def test_a_later_message_is_answered_the_same_again_too() -> None:
    """Its prompt continues generated tokens and is short."""
    with edgespec.load("demo", store=False, ctx_size=2048, threads=1) as llm:
        turns = [Message("user", LONG)]
        turns += [Message("assistant", "".join(event.text for event in llm.chat(turns, max_tokens=30, seed=3)))]
        turns += [Message("user", "x")]
        answers = []
        for _ in range(3):
            answers.append([event.id for event in llm.chat(turns, max_tokens=30, seed=3)])
            cached = llm.stats.cached_tokens
        assert cached == llm.stats.prompt_tokens - 1
    assert answers[1:] == answers[:1] * 2


def said(llm: Runtime, turns: list[Message]) -> tuple[list[tuple[int, float | None]], Message]:
    """Return an answer bit for bit, and the message for the next prompt."""
    events = list(llm.chat(turns, max_tokens=30, temperature=0.8, seed=3, ignore_eos=True, logprobs=0))
    ids = tuple(event.id for event in events if event.id >= 0)
    message = Message("assistant", "".join(event.text for event in events), ids)
    return [(event.id, event.logprob) for event in events], message


def test_a_chat_with_trees_is_the_same_after_an_answer_that_ended_in_the_middle_of_a_draft() -> None:
    """With this seed, a long message follows an answer that was stopped after a token of a second branch."""
    played, ways = [], list[dict[str, Any]]([{"spec_type": "none"}, {"pace": "fixed:9"}])
    for drafting in ways:
        with edgespec.load("demo", spec_tree=4, store=False, ctx_size=1024, threads=1, **drafting) as llm:
            played.append(Player(llm, [SQUARES], seed=1, n_chats=1).play(3))
    assert played[0] == played[1]


def test_another_conversation_in_the_cache_changes_no_text() -> None:
    """Two short prompts with an answer between them must not count as one long prompt that was read at once."""
    short = [Message("user", "x = [1, 2")]
    long = [Message("user", "x = [1, 2" + ", 3" * 50)]
    with edgespec.load("demo", spec_type="none", ctx_size=2048, threads=1) as llm:
        alone, _ = said(llm, long)
        _, answer = said(llm, short)
        said(llm, [*short, answer, Message("user", "y = " + "(0), " * 20)])
        assert llm.stats.cached_tokens > 0
        again, _ = said(llm, long)
        assert again == alone


def test_a_turn_is_answered_as_before_when_two_turns_were_taken_back() -> None:
    with edgespec.load("demo", spec_type="none", ctx_size=2048, threads=1) as llm:
        turns, answers = [Message("user", "def f(x):")], []
        for question in ("x", "y = " + "(0), " * 30, "z"):
            found, message = said(llm, turns)
            answers.append(found)
            turns += [message, Message("user", question)]
        for n in (2, 1):
            again, _ = said(llm, turns[: 2 * n - 1])
            assert again == answers[n - 1]
            assert llm.stats.cached_tokens > 0


class SecondBranch(Drafter):
    """Drafts a wrong token first, and the right tokens on a second branch."""

    name = "second"

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        start = len(sequences[0].tokens)
        right = self.text[start : start + budgets[0].tokens - 1]
        tokens, n = [(right[0] + 1) % 256, *right], 1 + len(right)
        return [Draft(tokens, [-1, -1, *range(1, n - 1)], [0.5] * n, [None] * n, self.name)]


def test_a_second_branch_that_was_accepted_leaves_the_bits_of_later_tokens(target: LlamaModel) -> None:
    sampler = Sampler(SamplingSettings(temperature=0), 0, 0, target.n_vocab, banned=target.end_tokens)
    prompt, rows = target.tokenize("class Stack:\n    def push"), []
    text: list[int] = []
    for branches in (0, 1):
        with Context(
            target, ContextParams(n_ctx=256, max_outputs=9, branches=branches, flash_attention="on", exact=True)
        ) as context:
            engine = Engine(context, drafters=[SecondBranch(text)] * branches, draft_n_max=8, tree_width=2)
            answer = engine.add(prompt, sampler, 40, CancelFlag())
            while len(answer.tokens) < len(prompt) + 17:
                engine.step()
            answer.finish = "stop"
            assert (answer.n_decoded < len(prompt) + 16) == bool(branches)
            engine.finish(answer)
            text, n_decoded = answer.tokens, answer.n_decoded
            n_left = len(text) - n_decoded
            context.decode(text[n_decoded:], range(n_decoded, len(text)), [(0,)] * n_left, [True] * n_left)
            rows.append(context.logits(n_left - 1).copy())
    assert (rows[0] == rows[1]).all()


def test_seventy_answers_at_a_time_are_those_given_alone() -> None:
    requests = [Request(f"x{number} = ", max_tokens=3, seed=number, ignore_eos=True) for number in range(70)]
    texts = []
    for sequences in (70, 1):
        with edgespec.load("demo", spec_type="none", sequences=sequences, ctx_size=64, threads=1) as llm:
            found: dict[int, list[int]] = {}
            for index, event in llm.stream(requests):
                assert isinstance(event, TokenEvent)
                found.setdefault(index, []).append(event.id)
            texts.append(found)
    assert texts[0] == texts[1]


def test_an_attention_that_somebody_asked_for_is_left_alone() -> None:
    with edgespec.load("demo", flash_attention="off", ctx_size=2**16, spec_type="none") as llm:
        assert llm.context.fingerprint["flash_attention"] == "off"


def test_a_fast_context_keeps_no_rules() -> None:
    with edgespec.load("demo", exact=False, store=False) as llm:
        assert not llm.context.exact
        assert llm.engine.scheduler.most_rows == llm.context.n_batch
        assert llm.info.rounding is None


def answer(llm: Runtime, prompt: str, temperature: float) -> list[int]:
    return [event.id for event in llm.generate(prompt, max_tokens=40, temperature=temperature, seed=7)]


def test_a_build_that_cannot_be_exact_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.runtime.planning.is_exact", lambda *_, **__: False)
    assert notes_of_inexactness() == {"default": 1, "plain": 0, "strict": 0, "fast": 0}


def test_a_build_by_others_says_so_without_drafts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("loading", "planning", "guarantee"):
        monkeypatch.setattr(f"edgespec.runtime.{module}.have_exact_kernels", lambda: False)
    assert notes_of_inexactness("need a processor with AVX2") == {"default": 1, "plain": 1, "strict": 0, "fast": 0}
    monkeypatch.setattr("edgespec.runtime.guarantee.is_own_build", lambda: False)
    assert notes_of_inexactness("lacks edgespec's kernels") == {"default": 1, "plain": 1, "strict": 0, "fast": 0}


def notes_of_inexactness(why: str = "") -> dict[str, int]:
    """Return the number of notes that drafts may change a text, and say `why`, by the settings of exactness."""
    said = {}
    settings: dict[str, dict[str, Any]] = {
        "default": {},
        "plain": {"spec_type": "none"},
        "strict": {"strict": True},
        "fast": {"exact": False},
    }
    for name, how in settings.items():
        with edgespec.load("demo", store=False, threads=1, **how) as llm:
            notes = [note for note in llm.notes if "the same seed may give another text" in note]
            said[name] = len([note for note in notes if why in note])
    return said


@pytest.mark.long(but=2)
@pytest.mark.parametrize("cache_type", ["q8_0", "iq4_nl"])
@pytest.mark.parametrize("attention", ["on", "off"])
def test_quantised_keys_are_exact_too(target: LlamaModel, cache_type: str, attention: Any) -> None:
    with Context(
        target,
        ContextParams(
            n_ctx=512, max_outputs=31, flash_attention=attention, cache_type_k=cache_type, exact=True, threads=1
        ),
    ) as context:
        assert measure_widths(context, 250, 31).max_difference == 0.0


def test_drafts_may_have_64_tokens() -> None:
    with edgespec.load("demo", spec_type="suffix", spec_draft_n_max=64, store=False, threads=1) as llm:
        assert llm.engine.speculator.n_max == 64
        assert answer(llm, PROMPTS[1], 0.0)


def test_the_longest_draft_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_widths", lambda *_: Widths(63, 0.0, 40))
    with edgespec.load("demo", spec_type="suffix", spec_draft_n_max=63, store=False, threads=1) as llm:
        note = "drafts are at most 39 tokens: wider passes round differently"
        assert [each for each in llm.notes if note in each]
