"""Work in threads: errors are raised in the caller, and a thread whose caller has left keeps its room."""

from __future__ import annotations

import asyncio
import threading

import pytest

from edgespec.serve.threads import in_thread


def test_what_work_returns_or_raises_comes_back() -> None:
    assert asyncio.run(in_thread(lambda: threading.current_thread().name, "here")) == "here"
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(lambda: 1 // 0, "here"))


def test_a_thread_keeps_its_room_after_its_caller_has_left() -> None:
    may_end = threading.Event()

    async def ask() -> None:
        room = asyncio.Semaphore(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await in_thread(may_end.wait, "slow", room)
        assert room.locked()
        may_end.set()
        assert await in_thread(lambda: "done", "next", room) == "done"
        assert not room.locked()

    asyncio.run(ask())


def test_a_thread_that_never_ends_keeps_no_event_loop_from_ending() -> None:
    may_end = threading.Event()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await in_thread(may_end.wait, "slow")

    asyncio.run(leave())  # returns
    may_end.set()
