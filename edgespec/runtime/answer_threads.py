"""Answers for asyncio: tokens are generated in threads, and the event loop is never blocked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

from edgespec.cancel import CancelFlag
from edgespec.errors import UsageError
from edgespec.events import TokenEvent


class AnswerThreads:
    """Threads for the answers of one model, as many as it decodes together; more wait, in the order asked for."""

    def __init__(self, n_threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(n_threads, "edgespec")
        self._asked: set[CancelFlag] = set()

    async def stream(
        self, answer: Callable[[CancelFlag], Generator[TokenEvent, None, None]]
    ) -> AsyncGenerator[TokenEvent, None]:
        """The events of `answer(cancel)`, which is called in one of the threads.

        Closing this generator, or cancelling the task that waits for it, sets `cancel` and waits until the answer has
        ended: at most a forward pass. Raises what `answer` raises, and UsageError when closed before its turn.
        """
        loop, cancel = asyncio.get_running_loop(), CancelFlag()
        events = asyncio.Queue[TokenEvent | None]()  # None: no more of them

        def tell(event: TokenEvent | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        def generate() -> None:
            with closing(answer(cancel)) as stream:
                for event in stream:
                    tell(event)  # raises RuntimeError, and ends the answer, if the loop is gone

        def ended(_: object) -> None:
            with suppress(RuntimeError):
                tell(None)

        try:
            job = self._executor.submit(generate)
        except RuntimeError:
            raise UsageError("this model is closed") from None
        self._asked.add(cancel)
        job.add_done_callback(ended)
        try:
            while (event := await events.get()) is not None:
                yield event
            if job.cancelled():
                raise UsageError("this model is closed")
            job.result()
        finally:
            cancel.set()
            self._asked.discard(cancel)
            if not job.cancel() and not job.done():
                await asyncio.wait([asyncio.wrap_future(job)])

    def close(self) -> None:
        """Cancel the current answers and those that wait for their turn; returns when the threads have ended."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for cancel in tuple(self._asked):
            cancel.set()
        self._executor.shutdown()
