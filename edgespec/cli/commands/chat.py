"""`edgespec chat`: a conversation, full-screen or in the plain terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from click.core import ParameterSource

from edgespec.cli.options import shared
from edgespec.cli.options.command import Call, Options, command, settings_of, value_of
from edgespec.cli.options.common import Option, advanced_except, option
from edgespec.cli.options.types import Integer, Text
from edgespec.cli.setup.documents import read_files
from edgespec.cli.setup.first_model import model_to_talk_to
from edgespec.cli.setup.models import (
    PERSONA,
    fetch_models,
    named_persona,
    note_model_as_prompt,
    settings_of_model,
)
from edgespec.cli.setup.servers import check_options, open_servers, opener, server_option
from edgespec.cli.setup.tools import MCP_CONFIG, open_toolbox
from edgespec.cli.terminal.interrupt import leave
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import read_prompt, read_stdin
from edgespec.errors import EdgespecError, UsageError
from edgespec.extras import check_extra, is_installed
from edgespec.files.optional_files import report
from edgespec.settings import MOST_CACHE_RAM, AnswerSettings, LoadSettings

if TYPE_CHECKING:
    from edgespec.chat.attachments import Attachment
    from edgespec.chat.events import Opener
    from edgespec.chat.session import Session
    from edgespec.history import Store
    from edgespec.tools.toolbox import Toolbox
    from edgespec.tui.app import ChatApp

LOOK_S = 1.0  # between checks that the terminal still exists
PATIENCE_S = 5.0  # for a screen to close by itself

COMMON = ("draft_model", "spec_type", "strict")
"""The options for speculative decoding that `--help` lists."""


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ChatOptions(Options):
    message: str | None = value_of(click.Argument(["message"], required=False, type=Text()))
    resume: str | None = value_of(option(
        "Prompt", "-r", "--resume", metavar="CHAT",
        help="Resume a chat: its id, a prefix of the id, or 'last' ('edgespec history list').",
    ))
    file: tuple[str, ...] = value_of(option(
        "Prompt", "-f", "--file", metavar="FILE", multiple=True,
        help="Attach a file to the first message: text, PDF, DOCX, HTML or CSV, pages of it ('a.pdf 1-20'), a folder "
        "or a pattern (src/**/*.py). Repeatable.",
    ))
    persona: str | None = value_of(PERSONA)
    mcp_config: Path | None = value_of(MCP_CONFIG)
    server: str | None = value_of(server_option(
        "Chat with a model of this server ('edgespec serve') instead; -m chooses the model."
    ))
    system: str | None = value_of(shared.SYSTEM)
    load: LoadSettings = settings_of(LoadSettings, [*shared.MODEL, *advanced_except(COMMON, *shared.SPECULATION)])
    yes: bool = value_of(shared.YES)
    answer: AnswerSettings = settings_of(AnswerSettings, [*shared.SAMPLING, *shared.ENDS])
    cache_disk: int | None = value_of(Option(
        "--cache-disk", section="Model", type=Integer(0, MOST_CACHE_RAM), default=None, metavar="MIB",
        show_default="a tenth of the free disk, at most 4096", advanced=True,
        help="Disk space for the KV cache of chats, which lets resumed chats start faster. 0: none.",
    ))
    markdown: bool = value_of(shared.MARKDOWN)
    stats: bool = value_of(shared.STATS)
    tui: bool | None = value_of(Option(
        "--tui/--plain", default=None, show_default="--tui if the terminal supports it",
        help="Full-screen, or plain lines for pipes and screen readers.",
    ))
    history: bool = value_of(Option(
        "--history/--no-history", default=True, help="Save the conversation on this machine.",
    ))
# fmt: on


@command(ChatOptions, shared.QUIET, shared.VERBOSE)
def chat(call: Call[ChatOptions]) -> None:
    """Chat with a model.

    MESSAGE is the first message. Conversations are saved on this machine ('edgespec history'). /help lists the
    commands. Ctrl-C stops an answer, Ctrl-D quits.

    Piped input is attached to MESSAGE: git diff | edgespec chat 'Explain this'. Without MESSAGE, each piped line is a
    message, and so is a block between lines of three double quotes.
    """
    options = call.options
    notes: list[str] = []  # shown later: now they would disturb the screen
    if options.tui:
        check_extra("tui", "the full-screen chat")
    if shows_screen := options.tui or (options.tui is None and _can_show_a_screen()):
        logging.getLogger("edgespec").handlers[:] = [_Noting(notes)]
    if options.server:
        check_options(call)
    persona = named_persona(call, options.persona)
    message, attached = _first_message(call)
    with ExitStack() as stack:
        store = stack.enter_context(_store(notes, keeps=options.history))
        toolbox = stack.enter_context(open_toolbox(options.mcp_config, notes.append))
        session = _session(call, store, toolbox, notes)
        if persona is not None:
            session.chat.begin_as(persona, call.typed_names())
        session.chat.attached = attached
        try:
            exit_code = _front(call, session, message, shows_screen=shows_screen)
        finally:
            session.close()
            if session.chat.store_error is not None:
                _rescue(session, call.output)
    if exit_code:
        call.ctx.exit(exit_code)


def _session(call: Call[ChatOptions], store: Store, toolbox: Toolbox, notes: list[str]) -> Session:
    """Return a new conversation, or the one to resume, with a model of this machine or of a server."""
    from edgespec.chat.session import Session
    from edgespec.chat.settings import ChatSettings
    from edgespec.chat.states import ChatStates
    from edgespec.runtime.worker import Worker

    resume, url = call.options.resume, call.options.server
    resumed = store.chat_settings(store.find(resume).id) if resume else {}
    open_engine: Opener = Worker
    if url:
        [engine] = open_servers(call, [url], call.options.load, also=[str(resumed.get("model"))])
        engine.close()  # the session opens it again whenever it needs it
        server, settings, open_engine = engine.url, engine.settings, opener(engine.url)
    else:
        server, settings = "", _local_model(call, resumed)
    options = call.options
    chat_settings = ChatSettings.of(options.answer)
    cache_disk = options.cache_disk if options.history else 0
    states = ChatStates(None if cache_disk is None else cache_disk << 20)
    if store.unwritable is not None:
        why = store.unwritable.why
        notes.append(f"this chat is not saved yet ({why}): it is kept in memory, and saved as soon as possible")
    session = Session(store, open_engine, settings, chat_settings, options.system or "", notes, server, states, toolbox)
    if resume:
        _resume(call, session, resume)
    return session


def _local_model(call: Call[ChatOptions], resumed: Mapping[str, object]) -> LoadSettings:
    """Return which model of this machine to load, downloaded if necessary."""
    note_model_as_prompt(call.output, call.options.message, call.options.load.model)
    model = _model_of(call, resumed)
    call.change({"model": model} | settings_of_model(call, model))
    settings = fetch_models(call, call.options.load, yes=call.options.yes)
    return settings if call.options.history else replace(settings, store=False)  # keep no answers for drafting


def _first_message(call: Call[ChatOptions]) -> tuple[str | None, list[Attachment]]:
    """Return the first message, if there is one, and its attachments: files, and piped input if there is a message too.
    Raises UsageError."""
    from edgespec.chat.attachments import STDIN, attachment, joined

    def note(text: str) -> None:
        call.output.aside(f"note: {text}")

    message = call.options.message
    attached: list[Attachment] = []
    for names in call.options.file:
        attached = joined(attached, read_files(call, names))
    if message == "-":
        message = read_prompt("-", (), note, partial(read_files, call))
    elif message is not None and sys.stdin is not None and not sys.stdin.isatty():
        piped = b""
        with suppress(OSError):  # as after nohup
            piped = read_stdin(note)
        if piped.strip():
            attached.append(attachment(STDIN, piped))
    return message, attached


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


def _front(call: Call[ChatOptions], session: Session, message: str | None, *, shows_screen: bool) -> int:
    """Run the conversation. Return the exit code: that of the first error in a chat without a user, such as one with
    piped input."""
    if shows_screen:
        _show_screen(call, session, message)
        return 0
    from edgespec.cli.plain_chat import Repl

    options = call.options
    if options.tui is None and [*map(_is_terminal, (sys.stdin, sys.stdout, sys.stderr))] == [True, True, False]:
        call.output.say("The chat is shown in plain lines: the full screen is drawn on stderr, which is no terminal.")
    if options.tui is None and _is_terminal(sys.stdin) and not is_installed("tui"):
        call.output.say("The chat is shown in plain lines: pip install 'edgespec[tui]' adds the full screen.")
    repl = Repl(
        call,
        session,
        details=options.stats,
        remembers=options.history,
        yes=options.yes,
        draws=options.markdown,
        for_reader=options.tui is False,
    )
    return repl.run(message)


def _model_of(call: Call[ChatOptions], resumed: Mapping[str, object]) -> str:
    """Return the chosen model. A resumed chat uses its own model, with its draft model, if they still exist, unless
    another one was asked for this time: a configured model is for new chats."""
    from edgespec.models.names.spec import resolve

    options, spec = call.options, resumed.get("model")
    is_configured = call.ctx.get_parameter_source("model") is ParameterSource.DEFAULT_MAP and not options.persona
    if options.load.model and not (is_configured and isinstance(spec, str)):
        return options.load.model
    if isinstance(spec, str):
        try:
            resolve(spec)
        except EdgespecError as error:
            call.output.note(f"{error.what}: continuing this chat with another model")
        else:
            if options.load.draft_model is None and isinstance(resumed.get("draft_model"), str):
                call.change({"draft_model": resumed["draft_model"]})
            return spec
    return options.load.model or model_to_talk_to(call, options.load, yes=options.yes)


def _resume(call: Call[ChatOptions], session: Session, name: str) -> None:
    """Open a chat with its saved settings, except for options that were typed."""
    asked = session.chat.settings
    session.chat.open(name)
    typed = call.typed_names()
    sampling = {item.name: getattr(asked.sampling, item.name) for item in fields(asked.sampling) if item.name in typed}
    others = {item.name: getattr(asked, item.name) for item in fields(asked) if item.name in typed}
    kept = session.chat.settings
    session.chat.settings = replace(kept, sampling=replace(kept.sampling, **sampling), **others)
    if "system" in typed:
        session.chat.set_system(call.options.system or "")


def _rescue(session: Session, output: Output) -> None:
    """Write a conversation that could not be saved to a separate file. Raises EdgespecError to report it."""
    from edgespec.chat.transcript import rescue

    error, file = session.chat.store_error, rescue(session.chat)
    if file is None:
        raise EdgespecError("the chat could not be saved anywhere", why=str(error))
    output.error(str(error))
    raise EdgespecError(
        "the chat could not be saved", hint=f"it is in {file}: import it with 'edgespec history import'"
    )


def _show_screen(call: Call[ChatOptions], session: Session, message: str | None) -> None:
    if not _can_show_a_screen():
        raise UsageError("the full-screen chat needs a terminal", hint="edgespec chat --plain works in pipes, too")
    from edgespec.tui.app import ChatApp
    from edgespec.tui.base_app import failed
    from edgespec.tui.terminal import asked_terminal

    theme, draws_pictures = asked_terminal()
    app = ChatApp(session, message=message, theme=theme, draws_pictures=draws_pictures)
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


def _can_show_a_screen() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on stderr
    return all(map(_is_terminal, streams)) and os.environ.get("TERM") != "dumb" and is_installed("tui")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
