"""Work that blocks, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

Made = TypeVar("Made")


async def in_thread(work: Callable[[], Made], name: str) -> Made:
    """The result of `work`, which a thread of this name does.

    asyncio's own threads are few, and are shared by everything that blocks: some that wait for a worker which hangs
    would leave none for others, and the program would not end before they do. A thread that nobody waits for any more
    finishes its work, and keeps no program from ending.
    """
    done: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
    threading.Thread(target=_run, args=(work, done), name=name, daemon=True).start()
    try:
        return await done
    finally:
        del done  # or an error would be kept by what it has passed, and with it a body, until the next collection


def _run(work: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    try:
        settle = partial(_settle, done, work(), None)
    except BaseException as error:
        settle = partial(_settle, done, None, error)
    with suppress(RuntimeError):  # the event loop is closed
        done.get_loop().call_soon_threadsafe(settle)
    del settle, done


def _settle(done: asyncio.Future[Any], made: Any, error: BaseException | None) -> None:
    if done.done():  # nobody waits any more
        return
    if error is None:
        done.set_result(made)
    else:
        done.set_exception(error)
