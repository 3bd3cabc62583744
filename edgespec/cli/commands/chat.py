"""`edgespec chat`: a conversation, full-screen or in the plain terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from edgespec.cli.options.command import Call, Command
from edgespec.cli.options.common import Option, advanced, option
from edgespec.cli.options.generation import CHAT, constraints, load_settings, sampling_settings
from edgespec.cli.options.types import Integer, Text
from edgespec.cli.setup.documents import read_files
from edgespec.cli.setup.models import (
    PERSONA,
    answer_as_its_own,
    default_model,
    fetch_models,
    named_persona,
    note_model_as_prompt,
)
from edgespec.cli.setup.servers import check_options, open_servers, opener, server_option
from edgespec.cli.setup.tools import MCP_CONFIG, open_toolbox
from edgespec.cli.terminal.interrupt import leave
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import read_prompt, read_stdin
from edgespec.core.setting import facts_of
from edgespec.errors import EdgespecError, UsageError
from edgespec.extras import check_extra, is_installed
from edgespec.files.optional_files import report
from edgespec.settings import MOST_CACHE_RAM, AnswerSettings

if TYPE_CHECKING:
    from edgespec.chat.answerer import Opener
    from edgespec.chat.attachments import Attachment
    from edgespec.chat.session import Session
    from edgespec.chat.settings import ChatSettings
    from edgespec.history import Store
    from edgespec.settings import LoadSettings
    from edgespec.tui.app import ChatApp

LOOK_S = 1.0  # between checks that the terminal still exists
PATIENCE_S = 5.0  # for a screen to close by itself

COMMON = ("draft_model", "spec_type", "strict")
"""The options for speculative decoding that `--help` lists."""

# fmt: off
OPTIONS = [
    option(
        "Prompt", "-r", "--resume", metavar="CHAT",
        help="Resume a chat: its id, a prefix of the id, or 'last' ('edgespec history list').",
    ),
    option(
        "Prompt", "-f", "--file", metavar="FILE", multiple=True,
        help="Attach a file to the first message: text, PDF, DOCX, HTML or CSV, pages of it ('a.pdf 1-20'), a folder "
        "or a pattern (src/**/*.py). Repeatable.",
    ),
    PERSONA,
    MCP_CONFIG,
    server_option("Chat with a model of this server ('edgespec serve') instead; -m chooses the model."),
    *(each if each.section != "Speculation" or each.name in COMMON else advanced(each) for each in CHAT),
    Option(
        "--cache-disk", section="Model", type=Integer(0, MOST_CACHE_RAM), default=None, metavar="MIB",
        show_default="a tenth of the free disk, at most 4096", advanced=True,
        help="Disk space for the KV cache of chats, which lets resumed chats start faster. 0: none.",
    ),
    Option(
        "--tui/--plain", default=None, show_default="--tui if the terminal supports it",
        help="Full-screen, or plain lines for pipes and screen readers.",
    ),
    Option("--history/--no-history", default=True, help="Save the conversation on this machine."),
]
# fmt: on


@click.command(cls=Command, params=OPTIONS)
@click.argument("message", required=False, type=Text())
def chat(call: Call) -> None:
    """Chat with a model.

    MESSAGE is the first message. Conversations are saved on this machine ('edgespec history'). /help lists the
    commands. Ctrl-C stops an answer, Ctrl-D quits.

    Piped input is attached to MESSAGE: git diff | edgespec chat 'Explain this'. Without MESSAGE, each piped line is a
    message, and so is a block between lines of three double quotes.
    """
    from edgespec.chat.session import Session
    from edgespec.chat.states import ChatStates
    from edgespec.runtime.worker import Worker

    values, output = call.values, call.output
    notes: list[str] = []  # shown later: now they would disturb the screen
    if values["tui"]:
        check_extra("tui", "the full-screen chat")
    if shows_screen := values["tui"] or (values["tui"] is None and _can_show_a_screen()):
        logging.getLogger("edgespec").handlers[:] = [_Noting(notes)]
    check_options(call)
    persona = named_persona(call)
    attached = _attached(call)
    with ExitStack() as stack:
        store = stack.enter_context(_store(notes, keeps=values["history"]))
        resumed = store.chat_settings(store.find(values["resume"]).id) if values["resume"] else {}
        open_engine: Opener
        if values["server"]:
            [engine] = open_servers(call, [values["server"]], also=[str(resumed.get("model"))])
            engine.close()  # the session opens it again whenever it needs it
            server, settings, open_engine = engine.url, engine.settings, opener(engine.url)
        else:
            open_engine = Worker
            server, settings = "", _local_model(call, resumed)
        chat_settings, system = _chat_settings(values), values["system"] or ""
        cache_disk = values["cache_disk"] if values["history"] else 0
        states = ChatStates(None if cache_disk is None else cache_disk << 20)
        toolbox = stack.enter_context(open_toolbox(call, notes.append))
        if store.unwritable is not None:
            why = store.unwritable.why
            notes.append(f"this chat is not saved yet ({why}): it is kept in memory, and saved as soon as possible")
        session = Session(store, open_engine, settings, chat_settings, system, notes, server, states, toolbox)
        if values["resume"]:
            _resume(call, session)
        if persona is not None:
            session.chat.begin_as(persona, call.typed_names())
        session.chat.attached = attached
        try:
            exit_code = _front(call, session, shows_screen=shows_screen)
        finally:
            session.close()
            if session.chat.store_error is not None:
                _rescue(session, output)
    if exit_code:
        call.ctx.exit(exit_code)


def _local_model(call: Call, resumed: Mapping[str, Any]) -> LoadSettings:
    """Return which model of this machine to load, downloaded if necessary."""
    values = call.values
    note_model_as_prompt(call.output, values["message"], values["model"])
    if values["model"] is None:
        values["model"] = _model_of(call, resumed)
    answer_as_its_own(call.ctx, values)
    settings = fetch_models(call, load_settings(values))
    return settings if values["history"] else replace(settings, store=False)  # keep no answers for drafting


def _attached(call: Call) -> list[Attachment]:
    """Return the attachments of the first message: files, and piped input if there is a message too. Raises
    UsageError."""
    from edgespec.chat.attachments import STDIN, attachment, joined

    values, output = call.values, call.output
    attached: list[Attachment] = []
    for names in values["file"]:
        attached = joined(attached, read_files(call, names))
    if values["message"] == "-":
        values["message"] = read_prompt("-", (), lambda said: output.aside(f"note: {said}"), partial(read_files, call))
    elif values["message"] is not None and sys.stdin is not None and not sys.stdin.isatty():
        piped = b""
        with suppress(OSError):  # as after nohup
            piped = read_stdin(lambda said: output.aside(f"note: {said}"))
        if piped.strip():
            attached.append(attachment(STDIN, piped))
    return attached


def _store(notes: list[str], *, keeps: bool) -> Store:
    """Return the store of conversations, one in memory if the file cannot be opened. Raises StoreError."""
    from edgespec.history import Store, StoreError, default_file
    from edgespec.history.data import UnreadableError

    try:
        return Store(note=notes.append) if keeps else Store.in_memory()
    except UnreadableError as error:
        report(default_file(), error.cause)
        return Store.in_memory()
    except StoreError as error:
        hint = "; ".join(filter(None, [error.hint, "--no-history chats without saving anything"]))
        raise error.reworded(hint=hint) from error


class _Noting(logging.Handler):
    """Adds warnings to `notes`: on stderr they would disturb the screen."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes
        self.addFilter(lambda record: record.name != "edgespec.llama")  # llama.cpp's messages

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append(record.getMessage())


def _front(call: Call, session: Session, *, shows_screen: bool) -> int:
    """Run the conversation. Return the exit code: that of the first error in a chat without a user, such as one with
    piped input."""
    values = call.values
    if shows_screen:
        _show_screen(call, session)
        return 0
    from edgespec.cli.plain_chat import Repl

    if values["tui"] is None and [*map(_is_terminal, (sys.stdin, sys.stdout, sys.stderr))] == [True, True, False]:
        call.output.say("The chat is shown in plain lines: the full screen is drawn on stderr, which is no terminal.")
    if values["tui"] is None and _is_terminal(sys.stdin) and not is_installed("tui"):
        call.output.say("The chat is shown in plain lines: pip install 'edgespec[tui]' adds the full screen.")
    return Repl(call, session).run()


def _model_of(call: Call, resumed: Mapping[str, Any]) -> str:
    """Return the model of a resumed chat, and use its draft model, if they still exist; else the default model."""
    from edgespec.models.names.spec import resolve

    spec = resumed.get("model")
    if isinstance(spec, str):
        try:
            resolve(spec)
        except EdgespecError as error:
            call.output.note(f"{error.what}: continuing this chat with another model")
            return default_model(call, or_demo=True)
        if call.values["draft_model"] is None and isinstance(resumed.get("draft_model"), str):
            call.values["draft_model"] = resumed["draft_model"]
        return spec
    return default_model(call, or_demo=True)


def _resume(call: Call, session: Session) -> None:
    """Open a chat with its saved settings, except for options that were typed."""
    asked = session.chat.settings
    session.chat.open(call.values["resume"])
    typed = call.typed_names()
    sampling = {item.name: getattr(asked.sampling, item.name) for item in fields(asked.sampling) if item.name in typed}
    others = {item.name: getattr(asked, item.name) for item in fields(asked) if item.name in typed}
    kept = session.chat.settings
    session.chat.settings = replace(kept, sampling=replace(kept.sampling, **sampling), **others)
    if "system" in typed:
        session.chat.set_system(call.values["system"])


def _rescue(session: Session, output: Output) -> None:
    """Write a conversation that could not be saved to a separate file. Raises EdgespecError to report it."""
    from edgespec.chat.transcript import to_jsonl, with_system
    from edgespec.files.paths import write_whole

    error = session.chat.store_error
    text = to_jsonl(session.chat.info(), with_system(session.chat.system, session.chat.turns))
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        file = folder / f"edgespec-chat-{session.chat.info().id}.jsonl"
        try:
            write_whole(file, text)
        except OSError:
            continue
        output.error(str(error))
        raise EdgespecError(
            "the chat could not be saved", hint=f"it is in {file}: import it with 'edgespec history import'"
        )
    raise EdgespecError("the chat could not be saved anywhere", why=str(error))


def _show_screen(call: Call, session: Session) -> None:
    if not _can_show_a_screen():
        raise UsageError("the full-screen chat needs a terminal", hint="edgespec chat --plain works in pipes, too")
    from edgespec.tui.app import ChatApp
    from edgespec.tui.base_app import failed
    from edgespec.tui.terminal import suitable_theme

    app = ChatApp(session, message=call.values["message"], theme=suitable_theme())
    asked = threading.Event()
    ended = threading.Event()
    threading.Thread(target=_watch, args=(app, asked, ended), name="terminal", daemon=True).start()
    with call.interrupts.calling(asked.set):
        app.run()
    ended.set()
    call.interrupts.raise_if_received()
    if app.failure is not None:
        raise failed(app.failure, _way_on(session))
    if app.return_code:
        raise EdgespecError("the full-screen chat failed", hint="use edgespec chat --plain instead")


def _way_on(session: Session) -> str:
    """Return how the user continues after the screen has failed."""
    if not session.store.file:
        return "'edgespec chat --plain' works without the screen"
    resumed = f" -r {session.chat.saved_id}" if session.chat.saved_id else ""
    return f"'edgespec chat{resumed}' continues with your draft; --plain needs no screen"


def _watch(app: ChatApp, asked: threading.Event, ended: threading.Event) -> None:
    """Leave when a signal asks for it, or when the terminal is gone, which is not always signalled.

    Without a terminal, drawing the screen may block forever: then the process ends without restoring the terminal.
    """
    while not asked.wait(LOOK_S) and os.isatty(0):
        if ended.is_set():
            return
    app.leave_soon()
    if not ended.wait(PATIENCE_S):
        app.keep_unsent()
        app.jobs.close()
        app.session.close()
        leave(getattr(signal, "SIGHUP", signal.SIGTERM))


def _chat_settings(values: Mapping[str, Any]) -> ChatSettings:
    from edgespec.chat.settings import ChatSettings

    others: dict[str, Any] = {name: values[name] for name in facts_of(AnswerSettings) if values[name] is not None}
    others.update(constraints(values).items())
    return ChatSettings(sampling=sampling_settings(values), **others)


def _can_show_a_screen() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on stderr
    return all(map(_is_terminal, streams)) and os.environ.get("TERM") != "dumb" and is_installed("tui")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
