"""Record the full-screen chat with a real model, for the pictures of the documentation.

    python scripts/lab/record_chat.py               docs/chat/race.svg, which moves, and compare.svg, its end
    python scripts/lab/record_chat.py --stills      docs/chat/chat.svg and tokens.svg

The chat runs as in a terminal: somebody types, the model answers, and what the screen shows is kept with its times. The
picture plays it at the same speed, and nothing is left out. The model answers at temperature 0 with one thread, so that
other programs on the machine disturb it less, and does not know the answers of earlier chats.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from screen_svg import Screen, picture, row_of

from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.core.sampling import SamplingSettings
from edgespec.history import Store
from edgespec.models.names.spec import own_settings
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings
from edgespec.tui.app import ChatApp
from edgespec.tui.comparison import ComparisonScreen

DOCS = Path(__file__).resolve().parents[2] / "docs" / "chat"
OTHERS = ("What is the capital of France?", "Name three primary colours.")
QUESTION = "Write a Python dictionary that maps the names of the twelve months to their numbers."
CHANGE = "Write the same dictionary again, and call it `numbers`."
STOP = "\n\n"  # after the code: a small model explains it badly

MOVING, STILL = (100, 28), (138, 32)  # columns and lines
SCREEN_S = 0.06  # between two looks at the screen
KEY_S = 0.03  # between two keys
READING_S, END_S = 1.5, 5.0  # for an answer, and for the end
PATIENCE_S = 120.0


class Recorder:
    """Types into a chat as a user does, and keeps what its screen shows while it `records`."""

    def __init__(self, app: ChatApp) -> None:
        self.app, self.screens = app, list[Screen]()
        self._begun_s: float | None = None

    def look(self) -> Screen:
        """Return what the screen shows now."""
        strips = self.app.screen._compositor.render_strips()
        time_s = perf_counter() - (self._begun_s or perf_counter())
        return Screen(time_s, tuple(row_of(strip, self.background) for strip in strips))

    @property
    def background(self) -> str:
        return self.app.screen.styles.background.hex.lower()

    @contextmanager
    def records(self) -> Iterator[None]:
        """Keep each other screen that is shown within this block."""
        self._begun_s = perf_counter()
        looking = asyncio.create_task(self._look_again())
        try:
            yield
        finally:
            looking.cancel()

    async def _look_again(self) -> None:
        while True:
            screen = self.look()
            is_new = not self.screens or screen.rows != self.screens[-1].rows
            if is_new and len(screen.rows) == self.app.size.height:  # a screen that opens is not laid out at once
                self.screens.append(screen)
            await asyncio.sleep(SCREEN_S)

    async def send(self, text: str) -> None:
        """Type a message or a command, and send it."""
        for character in text:
            self.app.composer.input.insert(character)
            await asyncio.sleep(KEY_S)
        await asyncio.sleep(READING_S / 3)
        self.app.simulate_key("enter")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.02)

    async def ask(self, text: str) -> None:
        """Send a message, and wait for the answer."""
        n_turns = len(self.app.session.chat.turns)
        await self.send(text)
        await self.until(lambda: len(self.app.session.chat.turns) == n_turns + 2 and not self.app.is_busy)

    async def race(self, text: str) -> None:
        """Let the model answer with and without drafts, and wait for the verdict."""
        await self.send(f"/race {text}")
        await self.until(lambda: isinstance(self.app.screen, ComparisonScreen))
        screen = self.app.screen
        assert isinstance(screen, ComparisonScreen)
        await self.until(lambda: screen.is_over)


async def moving(recorder: Recorder, folder: Path) -> None:
    """A question, and a race."""
    with recorder.records():
        await recorder.ask(QUESTION)
        await asyncio.sleep(READING_S)
        await recorder.race(CHANGE)
        await asyncio.sleep(END_S)
        end_s = recorder.look().time_s
    for name, screens in (("race", recorder.screens), ("compare", recorder.screens[-1:])):
        svg = picture(screens, end_s, MOVING[0], recorder.background, "edgespec chat")
        write(folder / f"{name}.svg", svg)


async def stills(recorder: Recorder, folder: Path) -> None:
    """A chat, and its tokens."""

    async def still(name: str) -> None:
        await asyncio.sleep(READING_S)
        screen = Screen(0.0, recorder.look().rows)
        write(folder / name, picture([screen], 1.0, STILL[0], recorder.background, "edgespec chat"))

    app = recorder.app
    for question in OTHERS:
        await recorder.ask(question)
        app.run_command("/clear")
    await recorder.ask(QUESTION)
    await recorder.ask(CHANGE)
    app.query_one("#sidebar").add_class("-usual")
    await still("chat.svg")
    app.run_command("/tokens")
    await still("tokens.svg")


def write(file: Path, svg: str) -> None:
    file.write_text(svg, encoding="utf-8")
    print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")


async def record(
    session: Session, size: tuple[int, int], play: Callable[[Recorder, Path], Awaitable[None]], folder: Path
) -> None:
    """Play a chat on a screen of this size, and write its pictures."""
    app = ChatApp(session)
    async with app.run_test(size=size, notifications=True):
        recorder = Recorder(app)
        await recorder.until(lambda: not app.is_busy)
        if session.model.engine is None:
            raise SystemExit(str(session.model.failure))
        await play(recorder, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--stills", action="store_true", help="the pictures that do not move")
    parser.add_argument("-o", "--output", type=Path, default=DOCS, help="folder of the pictures")
    args = parser.parse_args()
    size, play = (STILL, stills) if args.stills else (MOVING, moving)
    settings = ChatSettings(seed=1, sampling=SamplingSettings(temperature=0.0), stop=(STOP,))
    loads = LoadSettings(args.model, threads=1, store=False)
    system = str(own_settings(args.model).get("system", ""))
    with (
        TemporaryDirectory() as chats,
        Store(Path(chats) / "chats.db") as store,
        Session(store, Worker, loads, settings, system) as session,
    ):
        asyncio.run(record(session, size, play, args.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
