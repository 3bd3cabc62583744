"""The Python interface: its names and types, whole answers, and answers for asyncio."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import MISSING, fields, replace
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from endless import CTX_SIZE, TOO_LONG
from loaded import loaded_after

import edgespec
from edgespec import CancelFlag, Completion, LoadSettings, Message, Request, Runtime, SamplingSettings, TokenEvent
from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.llm.options import AnswerOptions
from edgespec.llm.stream import Answer, Loop, Stream

PROMPT = "def fibonacci(n):"
QUESTION = {"role": "user", "content": "What does shutil.copytree do?"}
# They may be of another type, too.
WIDER = ("stop", "bad_words", "must_call", "json_schema", "logit_bias", "dry_sequence_breakers")


@pytest.fixture(scope="module")
def llm(home: object) -> Iterator[Runtime]:
    with edgespec.load("demo", spec_type="draft", pace="fixed:3", threads=1, ctx_size=CTX_SIZE) as runtime:
        yield runtime


# --- names and types --------------------------------------------------------------------------------------------------


def test_load_has_the_fields_of_load_settings() -> None:
    def parameters(function: object) -> list[tuple[object, ...]]:
        assert callable(function)
        return [(p.name, p.annotation, p.default) for p in inspect.signature(function).parameters.values()]

    assert parameters(edgespec.load) == parameters(LoadSettings)


def test_answer_options_are_the_fields_of_request_and_sampling_settings() -> None:
    wanted = get_type_hints(Request) | get_type_hints(SamplingSettings)
    del wanted["prompt"], wanted["prompt_tokens"], wanted["messages"]
    options = get_type_hints(AnswerOptions)
    assert options.keys() == {*wanted, "add_system_prompt"}
    for name, kind in wanted.items():
        assert kind in get_args(options[name]) if name in WIDER else options[name] == kind
    assert not AnswerOptions.__required_keys__
    for owner in (Request, SamplingSettings):
        for field in fields(owner):
            assert field.default is not MISSING or field.default_factory is not MISSING


def test_options_of_a_batch_are_checked(llm: Runtime) -> None:
    with pytest.raises(UsageError, match="'max_token' is not supported"):
        llm.batch([], max_token=3)
    with pytest.raises(UsageError, match="max_tokens must be an integer"):
        llm.batch([], max_tokens="3")


def test_the_exports_are_what_the_modules_define() -> None:
    for name in edgespec.__all__:
        assert name in dir(edgespec)
        assert getattr(edgespec, name) is not None
    tree = ast.parse(inspect.getsource(edgespec))
    [for_types] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for node in for_types.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {*edgespec.__all__} == seen | {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Runtme'"):
        edgespec.__getattr__("Runtme")


def test_naming_an_error_or_a_message_loads_no_llama() -> None:
    assert "numpy" not in loaded_after("import edgespec; edgespec.UsageError; edgespec.CancelFlag; dir(edgespec)")
    assert "llama_cpp" not in loaded_after("from edgespec import Message, Request, Worker")


# --- whole answers ----------------------------------------------------------------------------------------------------


def test_a_completion_is_what_the_events_say(llm: Runtime) -> None:
    *tokens, last = llm.generate(PROMPT, max_tokens=16, seed=7, logprobs=2)
    assert last.is_last
    assert last.id == -1
    assert not any(token.is_last for token in tokens)
    got = llm.complete(PROMPT, max_tokens=16, seed=7, logprobs=2)
    assert got.text == "".join(event.text for event in (*tokens, last))
    assert got.tokens == tuple(token.id for token in tokens)
    assert got.finish_reason == last.finish_reason
    assert len(got.logprobs) == len(got.top_logprobs) == len(got.tokens)
    assert all(pairs[0][1] >= logprob for pairs, logprob in zip(got.top_logprobs, got.logprobs, strict=True))
    assert got.stats is llm.stats
    assert got.stats.generated_tokens == 16


def test_an_answer_keeps_its_own_statistics(llm: Runtime) -> None:
    first = llm.complete(PROMPT, max_tokens=4, ignore_eos=True)
    second = llm.complete(PROMPT, max_tokens=9, ignore_eos=True)
    assert (first.stats.generated_tokens, second.stats.generated_tokens) == (4, 9)
    assert llm.stats is second.stats
    assert not first.logprobs
    assert not first.top_logprobs


@pytest.mark.filterwarnings("ignore:the model ended the text at once")
def test_a_text_is_completed_and_messages_are_answered(llm: Runtime) -> None:
    assert llm.complete(PROMPT, max_tokens=8).text == text(llm.generate(PROMPT, max_tokens=8))
    for messages in ([QUESTION], [Message("user", QUESTION["content"])]):
        assert llm.complete(messages, max_tokens=8).text == text(llm.chat([QUESTION], max_tokens=8))
    assert llm.complete(QUESTION["content"], max_tokens=8).text != llm.complete([QUESTION], max_tokens=8).text


def test_a_cut_answer_and_a_cancelled_one_say_so(llm: Runtime) -> None:
    whole = llm.complete("import os\n", max_tokens=40, temperature=0)
    cut = llm.complete("import os\n", max_tokens=40, temperature=0, stop=[whole.text[12:17]])
    assert (cut.finish_reason, cut.cut, whole.cut) == ("stop", True, False)
    assert cut.text == whole.text[: whole.text.index(whole.text[12:17])]
    cancel = CancelFlag()
    cancel.set()
    assert llm.complete(PROMPT, max_tokens=40, cancel=cancel).finish_reason == "cancelled"


def test_an_answer_without_an_end_is_none() -> None:
    with pytest.raises(UsageError, match="this model is closed"):
        Completion.of([TokenEvent(3, "a")])
    with pytest.raises(UsageError, match="this model is closed"):
        Completion.of([])


def test_single_sampling_settings_take_precedence(llm: Runtime) -> None:
    warm = SamplingSettings(temperature=1.5, top_k=3)
    want = llm.complete(PROMPT, max_tokens=12, temperature=0.9, top_k=3)
    assert llm.complete(PROMPT, max_tokens=12, sampling=warm, temperature=0.9) == replace(want, stats=llm.stats)
    assert llm.complete(PROMPT, max_tokens=12, sampling=warm).tokens != want.tokens


def test_several_texts_may_be_one(llm: Runtime) -> None:
    whole = llm.complete("import os\n", max_tokens=40, temperature=0)
    cut = llm.complete("import os\n", max_tokens=40, temperature=0, stop=whole.text[12:17])
    assert cut.cut
    assert cut.text == whole.text[: whole.text.index(whole.text[12:17])]
    for options in ({"bad_words": "import"}, {"dry_sequence_breakers": "import"}):
        of_list: Any = {name: [text] for name, text in options.items()}
        of_text: Any = options
        warm = llm.complete(PROMPT, max_tokens=24, dry_multiplier=2.0, **of_text)
        assert warm.tokens == llm.complete(PROMPT, max_tokens=24, dry_multiplier=2.0, **of_list).tokens
    with pytest.raises(UsageError, match="stop must be texts that are not empty"):
        llm.complete(PROMPT, stop="")


def test_an_answer_of_a_chat_has_what_a_completion_has(llm: Runtime) -> None:
    want = llm.complete([QUESTION], max_tokens=16, seed=3)
    read = llm.chat([QUESTION], max_tokens=16, seed=3)
    assert repr(read) == "<Answer: print() waits for its text>"  # it does not wait itself
    assert next(read).text
    assert repr(read).endswith("...>")
    assert text(read) != want.text
    unread = llm.chat([QUESTION], max_tokens=16, seed=3)
    for answer in (read, unread):
        assert str(answer) == answer.text == answer.content == want.text
        assert (answer.tokens, answer.finish_reason) == (want.tokens, want.finish_reason)
        assert answer.stats.generated_tokens == want.stats.generated_tokens
        assert answer.completion == replace(want, stats=answer.stats)
        assert repr(answer) == f"<Answer: {want.text!r}>"
    assert repr(want) == f"Completion({want.text!r}, finish_reason={want.finish_reason!r})"


def test_an_answer_continues_its_chat(llm: Runtime) -> None:
    first = llm.chat([QUESTION], max_tokens=12)
    messages = [QUESTION, first.message, {"role": "user", "content": "And rmtree?"}]
    assert first.message == {"role": "assistant", "content": str(first)} == first.completion.message
    assert llm.chat(messages, max_tokens=12).stats.cached_tokens > first.stats.prompt_tokens - 4


def test_a_closed_answer_has_the_text_until_then(llm: Runtime) -> None:
    answer = llm.chat([QUESTION], ignore_eos=True)
    begun = next(answer).text + next(answer).text
    answer.close()
    assert str(answer) == answer.text == begun
    with pytest.raises(UsageError, match="closed before its end"):
        assert answer.stats


def test_a_text_without_a_continuation_is_a_warning_once(home: object) -> None:
    with edgespec.load("demo", spec_type="none", threads=1) as llm:
        at_once: Any = {"logit_bias": dict.fromkeys(llm.model.end_tokens, 1000.0)}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert llm.complete([QUESTION], **at_once).text == ""
            assert llm.complete(PROMPT, max_tokens=0).text == ""
            assert llm.complete(PROMPT, max_tokens=8).text
        with pytest.warns(UserWarning, match=r"chat\(\) asks a question") as warned:
            assert llm.complete("What does os.walk do?", **at_once).text == ""
            assert asyncio.run(llm.acomplete("What does os.walk do?", **at_once)).text == ""
        assert [warning.filename for warning in warned] == [__file__]
        assert [note for note in llm.notes if "chat()" in note] == [str(warned[0].message)]


REASONED = "<think>\nIt is **2**?\n</think>\n\nIt is *4*."


class Saying(Loop):
    """Answers with a text."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self._said = said

    def add(self, stream: Stream, number: int, what: Any, cancel: CancelFlag) -> None:
        stream.put(number, TokenEvent(5, self._said))
        stream.put(number, TokenEvent(-1, "", finish_reason="stop", stats=Stats()))

    def turn(self) -> None: ...
    def settle(self) -> None: ...


def said(text: str, *, is_chat: bool = True) -> Answer:
    stream = Stream(Saying(text))
    stream.add(0, None)
    return Answer(stream, is_chat=is_chat)


def test_reasoning_is_beside_the_text() -> None:
    for answer in (said(REASONED), said(REASONED).completion):
        assert (str(answer), answer.content, answer.reasoning) == (REASONED, "It is *4*.", "It is **2**?")
        assert answer.message["content"] == REASONED  # the chat template decides what of it is sent
    assert said("It is *4*.").reasoning == ""


def test_a_notebook_shows_the_answer_of_a_chat_as_markdown() -> None:
    assert said("It is *4*.")._repr_markdown_() == "It is *4*."
    folded = "<details>\n<summary>Thinking</summary>\n\nIt is **2**?\n\n</details>\n\nIt is *4*."
    assert said(REASONED)._repr_markdown_() == folded
    code = said("def __init__(self):\n    pass", is_chat=False)
    assert code._repr_markdown_() is None
    shown = list[str]()
    code._repr_pretty_(SimpleNamespace(text=shown.append), cycle=False)
    assert shown == [code.text]


def text(events: Iterator[TokenEvent]) -> str:
    return "".join(event.text for event in events)


# --- asyncio ----------------------------------------------------------------------------------------------------------


def test_asyncio_gives_the_same_answers(llm: Runtime) -> None:
    async def answers() -> tuple[list[TokenEvent], list[TokenEvent], Completion, Completion]:
        tokens = [token async for token in llm.agenerate(PROMPT, max_tokens=12)]
        chat = [token async for token in llm.achat([QUESTION], max_tokens=12)]
        return (
            tokens,
            chat,
            *await asyncio.gather(  # at the same time: one waits for the other
                llm.acomplete(PROMPT, max_tokens=12), llm.acomplete([QUESTION], max_tokens=12)
            ),
        )

    tokens, chat, completed, answered = asyncio.run(answers())
    want, want_chat = llm.complete(PROMPT, max_tokens=12), llm.complete([QUESTION], max_tokens=12)
    assert [token.id for token in tokens] == [*want.tokens, -1]
    assert completed.text == want.text
    assert "".join(token.text for token in chat) == answered.text == want_chat.text


def test_an_answer_that_was_read_has_no_more_tokens(llm: Runtime) -> None:
    async def read_again(answer: Answer) -> list[TokenEvent]:
        return [token async for token in answer]

    answer = llm.chat([QUESTION], max_tokens=4)
    assert len(asyncio.run(read_again(answer))) == 5
    assert str(answer) == llm.complete([QUESTION], max_tokens=4).text
    assert asyncio.run(read_again(answer)) == [*answer] == []


def test_asyncio_raises_what_the_answer_raises(llm: Runtime) -> None:
    with pytest.raises(UsageError, match="the context holds"):
        asyncio.run(llm.acomplete(TOO_LONG))
    with pytest.raises(UsageError, match="unknown setting temprature"):
        llm.agenerate(PROMPT, temprature=1)  # type: ignore[call-arg]
    assert llm.complete(PROMPT, max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_an_unknown_keyword_is_reported_with_the_nearest_known_one(llm: Runtime) -> None:
    with pytest.raises(UsageError, match="unknown setting ctx_sise") as caught:
        edgespec.load("demo", ctx_sise=512)  # type: ignore[call-arg]
    assert (caught.value.field, caught.value.hint) == ("ctx_sise", "did you mean ctx_size?")
    with pytest.raises(UsageError, match="unknown setting xyz") as caught:
        edgespec.load("demo", xyz=1)  # type: ignore[call-arg]
    assert caught.value.hint == "the settings are the fields of edgespec.LoadSettings"
    with pytest.raises(UsageError, match="unknown setting temprature") as caught:
        llm.complete(PROMPT, temprature=1)  # type: ignore[call-arg]
    assert caught.value.hint == "did you mean temperature?"


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens within a forward pass."""
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_leaving_an_asynchronous_answer_ends_it(llm: Runtime) -> None:
    async def leave() -> None:
        async with aclosing(llm.agenerate(PROMPT, ignore_eos=True)) as tokens:
            async for _ in tokens:
                break

    asyncio.run(leave())
    until(lambda: not llm.engine.scheduler.active)
    assert llm.stats.generated_tokens < CTX_SIZE // 2
    assert llm.complete(PROMPT, max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_a_cancelled_task_ends_its_answer_and_no_other(llm: Runtime) -> None:
    async def cancelled() -> Completion:
        tasks = [asyncio.create_task(llm.acomplete(PROMPT, max_tokens=n, ignore_eos=True)) for n in (900, 800, 4)]
        await asyncio.sleep(0)
        for task in tasks[:2]:  # one is being answered, or will be; the others wait for it
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return await tasks[2]

    assert len(asyncio.run(cancelled()).tokens) == 4


def test_closing_the_model_ends_asynchronous_answers() -> None:
    async def close() -> Sequence[Any]:
        llm = edgespec.load("demo", spec_type="none", threads=1)
        events = llm.agenerate(PROMPT, ignore_eos=True)
        await anext(events)
        waiting = asyncio.create_task(llm.acomplete(PROMPT, ignore_eos=True))
        await asyncio.sleep(0)
        llm.close()

        async def rest() -> list[TokenEvent]:
            return [event async for event in events]

        return await asyncio.gather(rest(), waiting, llm.acomplete(PROMPT), return_exceptions=True)

    assert all("closed" in str(each) for each in asyncio.run(close()))


def test_an_answer_ends_when_its_event_loop_is_gone(llm: Runtime) -> None:
    events = llm.agenerate(PROMPT, ignore_eos=True)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(anext(events)).id >= 0
    loop.close()
    until(lambda: not llm.engine.scheduler.active)
    assert llm.stats.generated_tokens < CTX_SIZE // 2
    del events
    gc.collect()


class SlowLoop(Loop):
    """Answers after a turn that takes until `may_end` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end, self._asked = threading.Event(), list[Stream]()

    def add(self, stream: Stream, number: int, what: Any, cancel: CancelFlag) -> None:
        self._asked.append(stream)

    def turn(self) -> None:
        assert self.may_end.wait(60)  # a native call
        for stream in self._asked:
            stream.put(0, TokenEvent(-1, "", finish_reason="stop", stats=Stats()))
        self._asked.clear()

    def settle(self) -> None: ...


def test_the_event_loop_runs_while_the_model_does() -> None:
    async def both() -> list[int]:
        loop = SlowLoop()
        stream = Stream(loop)
        stream.add(0, None, CancelFlag())
        asyncio.get_running_loop().call_soon(loop.may_end.set)
        return [index async for index, _ in stream]

    assert asyncio.run(both()) == [0]
