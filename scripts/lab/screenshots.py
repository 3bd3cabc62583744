"""Make the screenshots of the documentation from real answers of a model.

.venv/bin/python scripts/lab/screenshots.py docs/chat -m SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.core.sampling import SamplingSettings
from edgespec.history import Store
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings
from edgespec.tui.app import ChatApp
from edgespec.tui.comparison import ComparisonScreen

SIZE = (110, 30)
QUESTIONS = (
    "What is the capital of France?",
    "Name three fruits.",
    "Write a Python function that tells whether a number is even.",
    "Write the same function again, with type hints.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(options.folder, options.model))


async def draw(folder: Path, model: str) -> None:
    loads = LoadSettings(model, store=False)
    settings = ChatSettings(SamplingSettings(temperature=0), seed=1, max_tokens=200)
    with tempfile.TemporaryDirectory() as home, Store(Path(home) / "chats.db") as store:
        session = Session(store, Worker, loads, settings)
        app = ChatApp(session)
        async with app.run_test(size=SIZE) as pilot:
            await idle(app, pilot)
            for question in QUESTIONS[:-1]:
                session.new()
                await ask(app, pilot, question)
            await ask(app, pilot, QUESTIONS[-1])
            app.action_call("list")
            await pilot.pause(0.3)
            app.composer.input.focus()
            await pilot.pause(0.3)
            save(app, folder / "chat.svg")
            app.action_call("tokens")
            await pilot.pause(0.5)
            save(app, folder / "tokens.svg")
            app.action_call("compare")
            await pilot.pause(0.3)
            while not isinstance(app.screen, ComparisonScreen) or not app.screen.check_action("keep", (1,)):
                await pilot.pause(0.05)
            await pilot.pause(0.3)
            save(app, folder / "compare.svg")
        session.close()


async def ask(app: ChatApp, pilot: Pilot[None], text: str) -> None:
    app.composer.put(text)
    await pilot.press("enter")
    await idle(app, pilot)


async def idle(app: ChatApp, pilot: Pilot[None]) -> None:
    while app.is_busy:
        await pilot.pause(0.05)
    await pilot.pause(0.3)


def save(app: ChatApp, file: Path) -> None:
    file.write_text(app.export_screenshot(title="edgespec chat"), encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
