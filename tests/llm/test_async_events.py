"""Streams that coroutines read: a thread takes turns for them, and none of them holds up the others."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_stream import FakeStream

from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import TokenEvent
from edgespec.llm import stream as streams
from edgespec.llm.stream import Stream
from edgespec.settings import Request


async def text_of(stream: Stream) -> str:
    with stream:
        return "".join([event.text async for _, event in stream])


def asked(prompt: str, n: int = 5) -> Request:
    return Request(prompt, max_tokens=n, seed=1)


def test_coroutines_read_several_answers_at_the_same_time_in_order() -> None:
    model = FakeStream(n_slots=4)

    async def texts() -> list[str]:
        return await asyncio.gather(*(text_of(model.submit_all([asked(str(number), 40)])) for number in range(9)))

    assert asyncio.run(texts()) == [f"{number} 1 0" + "." * 39 for number in range(9)]


def test_an_error_of_an_answer_is_raised_and_the_stream_is_closed() -> None:
    async def read(prompt: str) -> tuple[str, bool]:
        stream = FakeStream(deaths=1).submit_all([asked(prompt)])
        with pytest.raises(EdgespecError) as caught:
            await text_of(stream)
        return str(caught.value), stream.is_closed

    assert asyncio.run(read("it fails"))[0] == "no finite logits"
    error, is_closed = asyncio.run(read("it kills"))
    assert error.startswith("llama.cpp crashed")
    assert is_closed


def test_a_coroutine_that_takes_nothing_loses_its_slot_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "UNREAD_S", 0.05)
    model = FakeStream(n_slots=2)

    async def both() -> None:
        endless = model.submit_all([asked("long", 10**9)])
        events = aiter(endless)
        await anext(events)
        other = text_of(model.submit_all([asked("other", 20)]))
        assert await other == "other 1 0" + "." * 19
        until_s = time.monotonic() + 30
        while not endless.is_closed:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.01)
        with pytest.raises(GenerationError, match="the answer was cancelled"):
            await anext(events)
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    asyncio.run(both())


def test_an_answer_of_a_stream_that_is_closed_elsewhere_was_broken_off() -> None:
    model = FakeStream()

    async def read() -> list[TokenEvent]:
        events = list[TokenEvent]()
        stream = model.submit_all([asked("long", 10**9)])
        async for _, event in stream:
            events.append(event)
            stream.close()  # as a model does that is closed
        return events

    with pytest.raises(GenerationError, match="the answer was broken off"):
        asyncio.run(read())
