"""Measures the chat without a model: how fluid its screen is, how fast it opens and finds; and with one, a restart.

    .venv/bin/python scripts/bench_chat.py frames open search
    .venv/bin/python scripts/bench_chat.py restart -m smollm2

frames: gaps between the ticks of a 60 Hz clock on the screen's own loop, and the time from a key to its echo, while 100
tokens a second stream into a long chat and somebody types and scrolls. open: a chat of 2,000 messages, to its first
picture. search: 10,000 messages. restart: the first token of the next answer in a chat of 3,000 tokens that another
process began, with and without what that kept of its KV cache.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from fake_engine import FakeEngine, drafted_events  # noqa: E402

from edgespec.chat.session import Session  # noqa: E402
from edgespec.chat.settings import ChatSettings  # noqa: E402
from edgespec.chat.states import ChatStates, states_folder  # noqa: E402
from edgespec.events import TokenEvent  # noqa: E402
from edgespec.history import Store, new_id  # noqa: E402
from edgespec.runtime.worker import Worker  # noqa: E402
from edgespec.settings import LoadSettings, Message  # noqa: E402
from edgespec.tui.app import ChatApp  # noqa: E402
from edgespec.tui.turn_view import TurnView  # noqa: E402

TICK_S = 1 / 60
TEXT = """## A heading

Some words that make a paragraph of usual length, with *emphasis*, `code` and a [link](https://example.org) in it, so
that there is something to lay out.

- a list
- of several items
- as models like them

```python
def walk(top):
    for name in os.listdir(top):
        yield os.path.join(top, name)
```

| a | table |
|---|---|
| 1 | 2 |

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("what", nargs="+", choices=["frames", "open", "search", "restart"])
    parser.add_argument("--seconds", type=float, default=30, help="of streaming (frames)")
    parser.add_argument("-m", "--model", default="demo", help="of restart")
    options = parser.parse_args()
    for what in options.what:
        globals()[f"measure_{what}"](options)


# --- the screen -------------------------------------------------------------------------------------------------------


def measure_frames(options: argparse.Namespace) -> None:
    texts = islice(cycle(event.text for event in drafted_events(TEXT)), int(options.seconds * 100))
    tokens = [TokenEvent(number, text, round=number) for number, text in enumerate(texts)]

    async def drive() -> tuple[list[float], list[float]]:
        with Store.in_memory() as store:
            chat = filled(store, 200)
            session = Session(store, lambda *_: FakeEngine(tokens, round_s=0.0098), LoadSettings("demo"))
            session.open(chat)
            app = ChatApp(session)
            gaps: list[float] = []
            echoes: list[float] = []
            async with app.run_test(size=(120, 40)) as pilot:
                while app.jobs.is_busy:
                    await pilot.pause(0.05)
                last_s = [time.perf_counter()]

                def tick() -> None:
                    now_s = time.perf_counter()
                    gaps.append(now_s - last_s[0])
                    last_s[0] = now_s

                app.set_interval(TICK_S, tick)
                app.jobs.send("go")
                await pilot.pause(1)
                gaps.clear()
                number = 0
                while app.jobs.is_busy:
                    number += 1
                    if number % 20 == 0:
                        app.transcript.scroll_relative(y=-5 if number % 40 else 5, animate=False)
                    written, started_s = app.composer.text, time.perf_counter()
                    app.simulate_key("x" if len(written) < 40 else "backspace")
                    while app.composer.text == written:
                        await asyncio.sleep(0.001)
                    echoes.append(time.perf_counter() - started_s)
                    await asyncio.sleep(0.1)
            return gaps, echoes

    gaps, echoes = asyncio.run(drive())
    print(f"frames: {len(gaps)} ticks in {options.seconds:.0f} s of 100 tokens/s")
    print(f"  gap     median {ms(gaps, 50)}, 95 % {ms(gaps, 95)}, 99 % {ms(gaps, 99)}, most {max(gaps) * 1e3:.0f} ms")
    print(f"  a key   median {ms(echoes, 50)}, 95 % {ms(echoes, 95)}, most {max(echoes) * 1e3:.0f} ms")


def measure_open(options: argparse.Namespace) -> None:
    async def drive(chat: str, store: Store) -> float:
        app = ChatApp(Session(store, lambda *_: FakeEngine(), LoadSettings("demo")))
        async with app.run_test(size=(120, 40)) as pilot:
            while app.jobs.is_busy:
                await pilot.pause(0.05)
            started_s = time.perf_counter()
            app.session.open(chat)
            await app.redraw()
            while not any(view.region for view in app.transcript.query(TurnView)):  # laid out, so drawn next
                await asyncio.sleep(0.001)
            app.screen._compositor.render_strips()
            return time.perf_counter() - started_s

    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "chats.db") as store:
        chat = filled(store, 2000)
        times = [asyncio.run(drive(chat, store)) for _ in range(5)]
    print(
        f"open: a chat of 2,000 messages, median {statistics.median(times) * 1e3:.0f} ms, most {max(times) * 1e3:.0f}"
    )


def measure_search(options: argparse.Namespace) -> None:
    print("search: 10,000 messages")
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "chats.db") as store:
        for number in range(50):
            filled(store, 200, f"chat {number}")
        for query in ("paragraph", "emphasis several", "walk(top", "nothing like it", "ragr"):
            times = []
            for _ in range(9):
                started_s = time.perf_counter()
                hits = store.search(query)
                times.append(time.perf_counter() - started_s)
            print(f"search: {query!r}, {len(hits)} hits, median {ms(times, 50)}, most {max(times) * 1e3:.0f} ms")


def measure_restart(options: argparse.Namespace) -> None:
    os.environ["EDGESPEC_HOME"] = home = tempfile.mkdtemp()
    settings, chat = LoadSettings(options.model, ctx_size=4096), ChatSettings(seed=1, max_tokens=16)
    times: dict[bool, list[float]] = {True: [], False: []}
    texts: dict[bool, set[str]] = {True: set(), False: set()}

    def opened(store: Store, *, keeps: bool) -> Session:
        session = Session(store, Worker, settings, chat, states=ChatStates(None if keeps else 0))
        session.load()
        return session

    with Store(Path(home) / "chats.db") as store:
        with opened(store, keeps=True) as session:
            words = " ".join(f"{number} boats left the harbour." for number in range(1, 400))
            while session.model.count([Message("user", words)]) > 2900:
                words = words[: len(words) * 9 // 10]
            list(session.ask(words))
            head, n_tokens = session.turns[-1].key, session.used
        (file,) = states_folder().iterdir()
        size = file.stat().st_size
        for keeps in (True, False) * 3:
            with opened(store, keeps=keeps) as session:
                session.open("last")
                started_s = time.perf_counter()
                events = session.ask("How many boats were there?")
                first = next(event for event in events if isinstance(event, TokenEvent))
                times[keeps].append(time.perf_counter() - started_s)
                texts[keeps].add(first.text + "".join(one.text for one in events if isinstance(one, TokenEvent)))
                store.set_head(str(session.chat), head)
    with_it, without = (statistics.median(times[keeps]) for keeps in (True, False))
    print(f"restart: a chat of {n_tokens} tokens, first token of the next answer")
    print(f"  {with_it:.2f} s with what was kept, {without:.2f} s without: {without / with_it:.0f} times as fast")
    same = "the same texts" if len(texts[True] | texts[False]) == 1 else f"texts {texts}"
    print(f"  {size / n_tokens / 1e3:.1f} MB for 1,000 tokens; {same}")


def filled(store: Store, n: int, title: str = "long") -> str:
    """A chat of so many messages."""
    chat, parent = new_id(), None
    store.create(chat, title=title)
    for number in range(n):
        role = ("user", "assistant")[number % 2]
        content = f"message {number}\n\n{TEXT}" if number % 2 else f"Question {number} about words?"
        parent = store.append(chat, parent, role, content).key
    return chat


def ms(times: Sequence[float], percent: int) -> str:
    return f"{sorted(times)[min(len(times) - 1, len(times) * percent // 100)] * 1e3:.0f} ms"


if __name__ == "__main__":
    main()
