"""Limits of reasoning: the mark at its end comes after as many tokens, with and without drafts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_gguf import write_model

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.dialects.by_name import FUNCTIONARY, GEMMA_4, HARMONY, SOLAR
from edgespec.dialects.dialect import THINK, Dialect
from edgespec.runtime.reasoning import Frame, Reasoning
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request
from edgespec.text.thinking import CLOSE, OPEN

THOUGHTS = st.text("a< thinké/>😀\n", max_size=12).map(str.encode)
END = f"\n{CLOSE}\n\n"
ASKED = Request("Why?\n<think>\n", max_tokens=24, seed=5, ignore_eos=True)
OPENED = "{{ messages[0].content }}{{ '" + OPEN + "\\n' }}"


def constraint(dialect: Dialect, most: int | None, *, is_open: bool, content: bytes | None = None) -> Reasoning:
    """A constraint of answers to a prompt of two tokens, in which each byte is a token."""
    frame = Frame.of(dialect, calls=False)
    assert frame is not None
    after = None if content is None else lambda place: Exactly(content, place)
    asked = (2, 256, lambda text: [*text.encode()], lambda id: bytes([id]))
    return Reasoning(frame, most, *asked, is_open=is_open, ends=[0], after=after)


class Exactly:
    """Allows one content only, and the byte 0 after it."""

    is_narrow = True

    def __init__(self, content: bytes, start: int) -> None:
        self._content, self._start = content + b"\0", start

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        allowed = np.zeros(256, np.bool_)
        allowed[self.forced(tokens)[:1]] = True
        return allowed

    def forced(self, tokens: Sequence[int]) -> list[int]:
        said = bytes(tokens[self._start :])
        return [*self._content[len(said) :]] if self._content.startswith(said) else []


def answer_of(limit: Reasoning, wanted: bytes, chance: random.Random) -> bytes:
    """The answer of a model that writes `wanted` where it may, otherwise what it must. Between its tokens it asks about
    other texts, as drafts do."""
    tokens, left = [1, 2], [*wanted]
    while len(tokens) < 400:
        allowed, forced = limit.allowed(tokens), limit.forced(tokens)
        assert allowed is None or allowed.any()
        if left and (allowed is None or allowed[left[0]]):
            token = left.pop(0)
        else:
            token = int(np.flatnonzero(allowed)[0]) if allowed is not None else 0
        assert not forced or token == forced[0] or allowed is None or allowed.sum() > 1
        if token == 0:
            break
        other = [*tokens[: chance.randint(2, len(tokens))], *chance.choice((b"x", b"</think>{", b"<think>", b"{"))]
        limit.allowed(other)
        limit.forced(other)
        tokens.append(token)
    return bytes(tokens[2:])


JSON = b"{}"
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("dialect", "is_open", "most", "wanted", "answer"),
    [
        (Dialect(THINK), True, None, "hm</think>", "hm</think>\n\n{}"),
        (Dialect(THINK), True, None, "{}</think>\n\n", "{}</think>\n\n{}"),
        (Dialect(THINK), True, 3, "hm\0", "hm\1\n</think>\n\n{}"),  # it may not end within reasoning
        (Dialect(THINK), True, 3, "hm hm hm", "hm \n</think>\n\n{}"),
        (Dialect(THINK), True, 0, "hm hm hm", "\n</think>\n\n{}"),
        (Dialect(THINK), False, None, "<think>hm</think>", "<think>hm</think>\n\n{}"),
        (Dialect(THINK), False, 3, "<think>hm hm", "<think>hm \n</think>\n\n{}"),
        (Dialect(THINK), False, None, "{}", "{}"),
        (Dialect(THINK), False, 0, "<think>hm</think>", "{}"),
        (GEMMA_4, False, None, "<|channel>thoughthm<channel|>", "<|channel>thoughthm<channel|>\n\n{}"),
        (SOLAR, True, None, "hm<|end|>", "hm<|end|>\n\n<|begin|>assistant<|content|>{}"),
        (HARMONY, False, None, FINAL, FINAL + "{}"),
        (
            HARMONY,
            False,
            None,
            "<|channel|>analysis<|message|>hm<|end|>",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" + FINAL + "{}",
        ),
        (HARMONY, True, 2, "hm hm", "hm<|end|><|start|>assistant" + FINAL + "{}"),
        (HARMONY, False, 0, "<|channel|>analysis", FINAL + "{}"),
        (FUNCTIONARY, False, None, "all\n", "all\n{}"),
    ],
)
def test_a_constraint_holds_after_reasoning(
    dialect: Dialect, is_open: bool, most: int | None, wanted: str, answer: str
) -> None:
    for seed in range(5):
        limit = constraint(dialect, most, is_open=is_open, content=JSON)
        assert answer_of(limit, wanted.encode(), random.Random(seed)).decode() == answer


def with_budget(most: int, wanted: bytes, *, is_open: bool) -> bytes:
    """The bytes of an answer that a model which wants to write `wanted` gives; each byte is a token."""
    budget = constraint(Dialect(THINK), most, is_open=is_open)
    tokens, left = [1, 2], [*wanted]
    while True:
        allowed, forced = budget.allowed(tokens), budget.forced(tokens)
        assert (allowed is None) == (not forced)
        if allowed is not None:
            assert [*allowed.nonzero()[0]] == forced[:1]
        if not forced and not left:
            return bytes(tokens[2:])
        tokens.append(forced[0] if forced else left.pop(0))


@given(st.integers(0, 20), THOUGHTS, st.booleans(), st.booleans())
def test_only_reasoning_that_is_too_long_is_ended(most: int, said: bytes, is_open: bool, is_marked: bool) -> None:
    wanted = said if is_open or not is_marked else OPEN.encode() + said
    text = with_budget(most, wanted, is_open=is_open)
    begun, mark = 0 if is_open else len(OPEN), CLOSE.encode()
    if not is_open and not wanted.lstrip().startswith(OPEN.encode()):
        assert text == wanted
    elif text == wanted:
        assert mark in wanted[begun:][: most + len(mark)] or len(wanted[begun:]) < most + len(mark)
    elif is_open or is_marked:
        kept, end, rest = text[begun:].partition(END.encode())
        assert (end, kept + rest) == (END.encode(), wanted[begun:])
        assert most <= len(kept) <= most + len(mark)
        assert mark not in kept
        if len(kept) < most + len(mark):
            kept.decode()
            assert not kept.endswith((b"<", b"</", b"</think"))


# --- with models ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", spec_type="draft,suffix,grammar", pace="fixed:3", store=False, threads=1) as runtime:
        yield runtime


def answered(llm: Runtime, request: Request) -> list[int]:
    return [event.id for event in llm.submit(request) if not event.is_last]


@pytest.mark.native
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_do_not_change_where_reasoning_ends(llm: Runtime, temperature: float) -> None:
    asked = replace(ASKED, sampling=SamplingSettings(temperature=temperature))
    whole, end = answered(llm, asked), llm.model.tokenize(END, parse_special=True)
    for most in (0, 3, 7, 24):  # not after the <, which may begin a mark
        limited = replace(asked, reasoning_budget=most)
        *tokens, last = llm.submit(limited)
        ids = [event.id for event in tokens]
        assert ids == answered(llm, replace(limited, spec_type="none"))
        assert ids[: most + len(end)] == (whole[:most] + end)[:24]
        assert last.stats is not None
        assert last.stats.accepted > 0
    assert answered(llm, replace(asked, reasoning_budget=7, bad_words=("</think>",)))[7 : 7 + len(end)] == end


@pytest.mark.native
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_other_rules_end_reasoning_too(llm: Runtime, rule: VerifyRule) -> None:
    end = llm.model.tokenize(END, parse_special=True)
    asked = replace(ASKED, reasoning_budget=5, verify=rule, sampling=SamplingSettings(temperature=0.8))
    assert answered(llm, asked)[5 : 5 + len(end)] == end


@pytest.mark.native
def test_text_without_reasoning_is_not_limited(llm: Runtime) -> None:
    asked = replace(ASKED, prompt="def f(")
    assert answered(llm, replace(asked, reasoning_budget=3)) == answered(llm, asked)


@pytest.mark.native
@pytest.mark.parametrize("is_switched", [False, True])
def test_no_reasoning_is_asked_of_the_template_or_ended_at_once(tmp_path: Path, is_switched: bool) -> None:
    template = OPENED if not is_switched else f"{{% if enable_thinking is defined %}}x{{% else %}}{OPENED}{{% endif %}}"
    file = write_model(tmp_path / "tiny.gguf", "llama", chat_template=template)
    with edgespec.load(str(file), store=False, threads=1) as llm:
        asked = Request(messages=(Message("user", "Hi"),), max_tokens=30, reasoning_budget=0, ignore_eos=True)
        end, ids = llm.model.tokenize(END, parse_special=True), answered(llm, asked)
        assert llm.prompts.render(asked) == ("x" if is_switched else f"Hi{OPEN}\n")
        assert (ids[: len(end)] == end) is not is_switched
        if not is_switched:
            later = (*asked.messages, Message("assistant", f"{OPEN}\nabc"))
            limited = replace(asked, messages=later, reasoning_budget=len(llm.model.tokenize("abc")) + 2)
            ids = answered(llm, limited)
            assert end in [ids[start : start + len(end)] for start in range(2, 7)]  # a character may be completed
