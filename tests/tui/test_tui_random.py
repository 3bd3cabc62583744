"""Nothing that is typed, pasted, clicked or dragged ends the chat, and no text from outside does.

By hand for an hour, with other seeds: EDGESPEC_RANDOM_MINUTES=60 ./scripts/test tests/tui/test_tui_random.py -k random
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from random_input import HOSTILE, MARKDOWN, Action, RandomInput, Size
from talks import talk
from terminal import at_terminal, read_rest, read_until
from textual.events import Resize
from textual.geometry import Size as TerminalSize
from textual.pilot import Pilot, WaitForScreenTimeout
from tiny_gguf import CHATML, write_model
from tui_harness import send_bytes, wait_until

from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.history import Store
from edgespec.settings import LoadSettings
from edgespec.tui.app import ChatApp
from edgespec.tui.front import ScreenFront

SEED = int(os.environ.get("EDGESPEC_RANDOM_SEED", "1"))
MINUTES = float(os.environ.get("EDGESPEC_RANDOM_MINUTES", "0"))
LIMIT_S = 900 if not MINUTES else 0  # 0: none
EPISODES, ACTIONS = 6, 200  # of an episode with its own seed
CHAT_ACTIONS = 1000  # in a terminal; a chat that hangs is noticed when it does not quit
ACTION_S = 0.05  # for each action in a terminal
SHOWN = 2000  # characters of what a chat that fails has written at last
AT_ONCE = 64  # bytes that a terminal takes without waiting
PATIENCE_S = 60.0  # with a chat that does not answer
CHAT = ["chat", "-m", "tiny.gguf", "-t", "1", "-n", "20", "--tui", "--offline"]


def in_session(seed: int) -> tuple[Session, Store]:
    """A session whose chats, models and answers have hostile names and texts."""
    chance = random.Random(seed)
    store = Store.in_memory()
    for name in HOSTILE:
        chat, _ = talk(store, name, MARKDOWN, *HOSTILE)
        store.rename(chat, name)
        store.move(chat, chance.choice(HOSTILE))
    answers = [f"{chance.choice(HOSTILE)}\n{MARKDOWN}" for _ in range(20)]

    def open_engine(wanted: LoadSettings, progress: Any, cancel: Any) -> FakeEngine:
        progress("loading", 0.5)
        if chance.random() < 0.2:
            raise ValueError(chance.choice(HOSTILE))
        error = ValueError(chance.choice(HOSTILE)) if chance.random() < 0.3 else None
        return FakeEngine(*answers, round_s=chance.choice((0, 0.002)), error=error, error_after=20, settings=wanted)

    return Session(store, open_engine, LoadSettings("[b].gguf"), ChatSettings(seed=3)), store


async def send(app: ChatApp, pilot: Pilot[None], action: Action) -> None:
    """Let the app get what the terminal sends, as Textual's driver reads it."""
    if isinstance(action, Size):
        assert app._driver is not None
        app._driver._size = size = TerminalSize(action.columns, action.lines)
        app.post_message(Resize(size, size))
        return
    send_bytes(app, action)


async def episode(seed: int, n: int) -> int:
    """Do `n` random actions, and return how many there were."""
    session, store = in_session(seed)
    app, user, done = ChatApp(session), RandomInput(seed), 0
    last: list[Action] = []
    try:
        async with app.run_test(size=(80, 24), notifications=True, tooltips=True) as pilot:
            await wait_until(pilot, lambda: not app.is_busy)
            for done in range(1, n + 1):  # noqa: B007 - reported on failure
                last = [*last[-5:], user.next()]
                await send(app, pilot, last[-1])
                with suppress(WaitForScreenTimeout):  # on a busy machine
                    await pilot.pause()
                assert app.is_running and app._exception is None
    except BaseException:
        print(f"seed {seed}: ended after {done} actions, the last of them {last}")
        raise
    finally:
        store.close()
    return done


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
def test_random_input_does_not_end_the_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ScreenFront, "leave", lambda _: None)  # a click on "Quit" is no failure, and would end the run
    for name, value in {"EDGESPEC_OFFLINE": "1", "EDITOR": "true", "VISUAL": "true"}.items():
        monkeypatch.setenv(name, value)
    done, seed, until_s = 0, SEED, time.monotonic() + 60 * MINUTES
    while seed < SEED + EPISODES if not MINUTES else time.monotonic() < until_s:
        done += asyncio.run(episode(seed, ACTIONS))
        seed += 1
    print(f"{done} actions, seeds {SEED} to {seed - 1}")


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
def test_random_input_to_a_real_terminal_does_not_end_the_chat(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "llama", chat_template=CHATML)
    user, done, quits = RandomInput(SEED), 0, 0
    until_s = time.monotonic() + 60 * MINUTES
    is_over = False
    while not is_over:
        with at_terminal(tmp_path, CHAT, EDITOR="true", VISUAL="true") as (program, master):
            reader, begun, written = reading(master)
            assert begun.wait(PATIENCE_S), f"seed {SEED}: the chat did not start after {done} actions"
            last: list[Action] = []
            leaves_at = done + CHAT_ACTIONS
            while program.poll() is None and not is_over and done < leaves_at:
                last, done = [*last[-5:], user.next()], done + 1
                act(program, master, last[-1])
                is_over = time.monotonic() >= until_s if MINUTES else done >= ACTIONS
            if program.poll() is None:
                leave(program, master)
            what = f"seed {SEED}: after {done} actions, the last of them {last}"
            with patience(what):  # with 0 also after a click on "Quit": then the chat is started again
                status = program.wait(PATIENCE_S)
            reader.join(PATIENCE_S)
            assert status == 0, f"{what}\n{logged(tmp_path)}\n{''.join(written)[-SHOWN:]!r}"
            quits += done < leaves_at and not is_over
    print(f"{done} actions in a terminal, {quits} of them quit, seed {SEED}")


def reading(master: int) -> tuple[threading.Thread, threading.Event, list[str]]:
    """Read what the program writes until it ends, in a thread, which adds it to the list. The event is set when the
    program shows the model."""
    begun, written = threading.Event(), list[str]()

    def read() -> None:
        with suppress(AssertionError):
            read_until(master, "tiny")
            begun.set()
            written.append(read_rest(master))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader, begun, written


def logged(home: Path) -> str:
    """Return what chats that failed have left."""
    return "\n".join(file.read_text() for file in sorted(home.glob("state/logs/chat-*.log")))


def act(program: subprocess.Popen[bytes], master: int, action: Action) -> None:
    """Do an action, and leave the program a moment for it."""
    if isinstance(action, Size):
        size = struct.pack("HHHH", action.lines, action.columns, 0, 0)
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)
        program.send_signal(signal.SIGWINCH)
    else:
        type_in(program, master, action.encode("utf-8", "surrogatepass"))
    with suppress(subprocess.TimeoutExpired):
        program.wait(ACTION_S)


def type_in(program: subprocess.Popen[bytes], master: int, data: bytes) -> None:
    """Write to the terminal, as long as the program runs. A program that does not read is killed, and its status tells
    of it."""
    until_s = time.monotonic() + PATIENCE_S
    while data and program.poll() is None:
        if not select.select([], [master], [], 0.1)[1]:
            if time.monotonic() > until_s:
                program.kill()
            continue
        with suppress(OSError):  # the program has ended
            data = data[os.write(master, data[:AT_ONCE]) :]


def leave(program: subprocess.Popen[bytes], master: int) -> None:
    """Close the dialogs that may be open, one Escape each, and quit."""
    for key in (b"\x1b", b"\x1b", b"\x1b", b"\x1b", b"\x11"):
        type_in(program, master, key)
        with suppress(subprocess.TimeoutExpired):
            program.wait(1)


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Fail if the program does not end."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"frozen: {what}") from error
