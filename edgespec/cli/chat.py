"""`edgespec chat` and `edgespec tui`: a conversation, in the plain terminal or on a screen of its own."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgespec.cli.command import Command, Option
from edgespec.cli.interrupt import Interrupts, leave
from edgespec.cli.options import chat_options, load_settings, sampling_settings
from edgespec.cli.output import Output
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.tui.app import ChatApp

LOOK_S = 1.0  # between looks whether there still is a terminal
PATIENCE_S = 5.0  # for a screen to leave by itself
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _options(command: Decorated) -> Decorated:
    for option in (
        click.argument("message", required=False),
        click.option(
            "-r", "--resume", cls=Option, section="Prompt", config=False, metavar="CHAT",
            help="Go on with a chat: its id, the beginning of one, or 'last' ('edgespec history list').",
        ),
        click.option(
            "--history/--no-history", cls=Option, section="Prompt", default=True, show_default=True,
            help="Keep this conversation on disk, or nowhere.",
        ),
        chat_options,
    )[::-1]:  # fmt: skip
        command = option(command)
    return command


@click.command(cls=Command)
@click.option(
    "--tui/--plain", cls=Option, section="Output", default=None, show_default="the screen, where the terminal can",
    help="A screen of its own, or plain lines, which do everything too and suit pipes and screen readers.",
)  # fmt: skip
@_options
@click.pass_context
def chat(ctx: click.Context, /, tui: bool | None, **values: Any) -> None:
    """Talk with a model.

    MESSAGE is the first one. Conversations are kept on this machine ('edgespec history'), an answer while it is made.
    /help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves. What is piped in is one message a line, or a block
    between lines of three double quotes.
    """
    converse(ctx, tui=_can_show_a_screen() if tui is None else tui, values=values)


@click.command(cls=Command)
@_options
@click.pass_context
def tui(ctx: click.Context, /, **values: Any) -> None:
    """Talk with a model on a screen of its own ('edgespec chat --tui')."""
    converse(ctx, tui=True, values=values)


def converse(ctx: click.Context, *, tui: bool, values: dict[str, Any]) -> None:
    """Open the store and the session, and hand both to a front end."""
    output = Output(quiet=values["quiet"])
    output.log_to_stderr(verbose=values["verbose"])
    if values["model"] is None:
        values["model"] = "demo"
        output.note("no model given (-m MODEL), so the bundled demo answers")
    loads, settings = load_settings(values), _chat_settings(values)

    from edgespec.chat import Session
    from edgespec.store import Store
    from edgespec.worker import Worker

    with ExitStack() as stack:
        store = Store(note=output.note) if values["history"] else Store.in_memory()
        stack.enter_context(store)
        session = Session(store, Worker, loads, settings, values["system"] or "")
        stack.enter_context(session)
        if values["resume"]:
            session.open(values["resume"])
        interrupts = ctx.find_object(Interrupts) or Interrupts()
        if tui:
            _show_screen(session, interrupts, values["message"])
            return
        from edgespec.cli.repl import Repl

        failed = Repl(session, output, interrupts, details=values["stats"]).run(values["message"])
    if failed:
        ctx.exit(1)


def _show_screen(session: Any, interrupts: Interrupts, message: str | None) -> None:
    if not _can_show_a_screen():
        raise UsageError("a screen needs a terminal", hint="edgespec chat --plain works in pipes too")
    from edgespec.tui.app import ChatApp

    logging.getLogger("edgespec").handlers[:] = [logging.NullHandler()]  # lines on stderr would tear the screen
    app = ChatApp(session, message=message)
    asked = threading.Event()
    ended = threading.Event()
    threading.Thread(target=_watch, args=(app, asked, ended), name="terminal", daemon=True).start()
    with interrupts.calling(asked.set):
        app.run()
    ended.set()
    interrupts.raise_if_received()


def _watch(app: ChatApp, asked: threading.Event, ended: threading.Event) -> None:
    """Leave when a signal asked for it, or when the terminal is gone, which does not always say so.

    Then what draws the screen may wait for ever for its output to be taken: the process is ended without it.
    """
    while not asked.wait(LOOK_S) and os.isatty(0):
        if ended.is_set():
            return
    app.leave_soon()
    if not ended.wait(PATIENCE_S):
        app.jobs.close()
        app.session.close()
        leave(getattr(signal, "SIGHUP", signal.SIGTERM))


def _chat_settings(values: Mapping[str, Any]) -> Any:
    from edgespec.chat_settings import ChatSettings

    return ChatSettings(
        sampling=sampling_settings(values),
        seed=values["seed"],
        max_tokens=values["max_tokens"],
        stop=tuple(values["stop"]),
        verify=values["verify"],
    )


def _can_show_a_screen() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # the screen is drawn on the last one
    return all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"
