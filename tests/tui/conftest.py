"""Makes the tests of the screen quick: Textual's pilot waits for messages, not for an idle processor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import textual.app
import textual.pilot
import textual.screen
from textual._compositor import Compositor
from textual._context import active_app

from edgespec.tui import app as chat_app

ROUNDS = 2  # without a message: the handling of one may post another a moment later
FRAME_S = 0.1  # time between two frames; most of the time of a test goes into drawing


class Waiting:
    """True while the pilot waits: the screen is then laid out, but not rendered."""

    is_on = False


async def wait_for_messages(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Wait until no widget of the current screen has a message left, but no longer than `max_sleep`.

    Textual waits until the process has used almost no processor time for 20 ms, at each key twice. With threads that
    generate an answer, or other tests on the machine, this takes up to a second.
    """
    app, loop = active_app.get(), asyncio.get_running_loop()
    deadline_s, n_quiet = loop.time() + max_sleep, 0
    while n_quiet < ROUNDS and loop.time() < deadline_s:
        await asyncio.sleep(0)
        widgets = [app, *app.screen_stack, *app.screen.walk_children()] if app.screen_stack else [app]
        n_quiet = n_quiet + 1 if all(widget._message_queue.empty() for widget in widgets) else 0
        screen = app.screen if app.screen_stack else None
        if n_quiet and screen and (screen._layout_required or screen._scroll_required or screen._callbacks):
            Waiting.is_on = True
            screen._on_timer_update()  # lay out now: this may post messages
            Waiting.is_on = False
    await asyncio.sleep(0.001)


_render_update = Compositor.render_update


def render_unless_waiting(compositor: Compositor, *args: Any, **options: Any) -> Any:
    """Render the changes, except while the pilot waits: then the next frame renders them."""
    return None if Waiting.is_on else _render_update(compositor, *args, **options)


@pytest.fixture(autouse=True, scope="session")
def pilot_waits_for_messages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textual.app, "wait_for_idle", wait_for_messages)
        patch.setattr(textual.pilot, "wait_for_idle", wait_for_messages)
        patch.setattr(textual.screen, "UPDATE_PERIOD", FRAME_S)
        patch.setattr(Compositor, "render_update", render_unless_waiting)
        patch.setattr(chat_app, "FETCHED_EVERY_S", 0.02)
        yield
