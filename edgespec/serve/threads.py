"""Blocking work, each piece in a separate thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from edgespec.cancel import CancelFlag

Made = TypeVar("Made")


async def in_thread(work: Callable[[], Made], name: str, room: asyncio.Semaphore | None = None) -> Made:
    """Run `work` in a new thread of this name and return its result. With `room`, wait until there is room for one.

    asyncio's own threads are few and shared by everything that blocks. If they waited for a hung worker, no thread
    would be left for other work, and the program could not end before they do. A thread whose caller has left finishes
    its work and then frees its room; it does not keep the program from ending.
    """
    done: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
    if room is not None:
        await room.acquire()
    try:
        threading.Thread(target=_run, args=(work, done, room), name=name, daemon=True).start()
    except RuntimeError:  # there are too many
        if room is not None:
            room.release()
        raise
    return await done


async def emitted(
    work: Callable[[Callable[[Made], None]], object], name: str, cancel: CancelFlag
) -> AsyncGenerator[Made, None]:
    """Run `work` in a new thread of this name, and yield the values that it passes to its argument. At the end, and if
    the reader leaves, set `cancel` and wait until the work has ended."""
    values: asyncio.Queue[Made | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def emit(value: Made) -> None:
        loop.call_soon_threadsafe(values.put_nowait, value)

    ended = asyncio.ensure_future(in_thread(partial(work, emit), name))
    ended.add_done_callback(lambda _: values.put_nowait(None))
    try:
        while (value := await values.get()) is not None:
            yield value
        ended.result()
    finally:
        cancel.set()
        await asyncio.wait({ended})


def _run(work: Callable[[], object], done: asyncio.Future[object], room: asyncio.Semaphore | None) -> None:
    try:
        settle = partial(_settle, done, room, work(), None)
    except BaseException as error:
        settle = partial(_settle, done, room, None, error)
    with suppress(RuntimeError):  # the event loop is closed
        done.get_loop().call_soon_threadsafe(settle)


def _settle(
    done: asyncio.Future[object], room: asyncio.Semaphore | None, made: object, error: BaseException | None
) -> None:
    if room is not None:
        room.release()
    if done.done():  # the caller has left
        return
    if error is None:
        done.set_result(made)
    else:
        done.set_exception(error)
