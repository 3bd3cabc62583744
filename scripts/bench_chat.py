"""Benchmark the chat: how fluid its screen is, how fast it opens and searches, and what it costs the engine.

    .venv/bin/python scripts/bench_chat.py frames open search             # no model needed
    .venv/bin/python scripts/bench_chat.py turns cost -m target.gguf      # with a model of some size

frames: gaps between the ticks of a 60 Hz clock on the screen's own loop, and the time from a key to its echo, while 100
tokens a second stream into a long chat and somebody types and scrolls. open: a chat of 2,000 messages, to its first
picture. search: 10,000 messages. turns: time to the first token of a first turn of 4,000 tokens and of the second one.
cost: tokens per second with a screen on a pseudo-terminal against piped lines, in turns (the ratio of medians).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from fake_engine import FakeEngine, drafted_events  # noqa: E402

from edgespec.chat.session import Session  # noqa: E402
from edgespec.chat.settings import ChatSettings  # noqa: E402
from edgespec.events import TokenEvent  # noqa: E402
from edgespec.history import Store, new_id  # noqa: E402
from edgespec.settings import LoadSettings  # noqa: E402
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
    parser.add_argument("what", nargs="+", choices=["frames", "open", "search", "turns", "cost"])
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("-c", "--ctx-size", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=30, help="of streaming (frames)")
    parser.add_argument("--repeat", type=int, default=5, help="pairs of runs (cost)")
    parser.add_argument("-n", "--max-tokens", type=int, default=200, help="of an answer (cost)")
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


# --- the engine -------------------------------------------------------------------------------------------------------


def measure_turns(options: argparse.Namespace) -> None:
    from edgespec.runtime.worker import Worker

    settings = LoadSettings(options.model, threads=options.threads, ctx_size=options.ctx_size, store=False)
    with Store.in_memory() as store, Session(store, Worker, settings, ChatSettings(max_tokens=16, seed=1)) as session:
        session.load()
        words = "The quick brown fox jumps over the lazy dog. "
        engine = session.engine
        assert engine is not None
        from edgespec.settings import Message

        n = 1
        while engine.count([Message("user", words * n)]) < min(4000, options.ctx_size - 400):
            n += 1 + n // 8
        first_s = until_first_token(session, words * n)
        prompt = session.last_stats.prompt_tokens if session.last_stats else 0
        second_s = until_first_token(session, "And then?")
        read = session.last_stats.prompt_tokens - session.last_stats.cached_tokens if session.last_stats else 0
    print(
        f"turns: {prompt:,} tokens, first token after {first_s:.2f} s; the second turn reads {read} and starts after "
        f"{second_s:.2f} s, {second_s / first_s:.1%} of that"
    )


def until_first_token(session: Session, text: str) -> float:
    started_s, first_s = time.perf_counter(), 0.0
    for event in session.ask(text):
        if isinstance(event, TokenEvent) and not first_s:
            first_s = time.perf_counter() - started_s
    return first_s


def measure_cost(options: argparse.Namespace) -> None:
    speeds: dict[str, list[float]] = {"plain": [], "screen": []}
    with tempfile.TemporaryDirectory() as home:
        for number in range(2 * options.repeat + 2):
            front = ("plain", "screen")[number % 2]
            speed = answered(front, f"{home}/{number}", options, seed=number // 2)
            if number >= 2:
                speeds[front].append(speed)
    plain, screen = (statistics.median(speeds[front]) for front in ("plain", "screen"))
    ratios = [b / a for a, b in zip(speeds["plain"], speeds["screen"], strict=True)]
    print(
        f"cost: {plain:.1f} tokens/s in a pipe, {screen:.1f} on a screen, ratio {screen / plain:.3f}, of pairs "
        f"{min(ratios):.3f} to {max(ratios):.3f}"
    )


def answered(front: str, home: str, options: argparse.Namespace, seed: int) -> float:
    """Tokens per second of one answer, as the store has it."""
    question = "Tell me a long story about a fox."
    args = [sys.executable, "-m", "edgespec", "tui" if front == "screen" else "chat", "-m", options.model, "-q"]
    args += ["-n", str(options.max_tokens), "--seed", str(seed), "--spec-type", "none", "-l", "2-inf"]
    args += ["-t", str(options.threads)] if options.threads else []
    environ = os.environ | {"EDGESPEC_HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    if front == "plain":
        subprocess.run(args, input=question.encode(), env=environ, stdout=subprocess.DEVNULL, check=True)
    else:
        import fcntl
        import pty
        import struct
        import termios

        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        program = subprocess.Popen([*args, question], stdin=slave, stdout=slave, stderr=slave, env=environ)
        os.close(slave)
        threading.Thread(target=drain, args=(master,), daemon=True).start()
        while not speed_of_answer(home, seed):
            time.sleep(0.5)
        os.write(master, b"\x11")
        program.wait(30)
    return speed_of_answer(home, seed)


def speed_of_answer(home: str, seed: int) -> float:
    """The speed of the last answer if it is the one with this seed, else 0."""
    with suppress(Exception), Store(Path(home) / "data" / "chats.db") as store:
        last = store.path(store.find("last").head)[-1]
        if last.answer is not None and last.answer.seed == seed and last.answer.stats:
            timings: dict[str, Any] = last.answer.stats["timings"]
            return float(timings["predicted_per_second"])
    return 0.0


def drain(master: int) -> None:
    with suppress(OSError):
        while os.read(master, 65536):
            pass


if __name__ == "__main__":
    main()
