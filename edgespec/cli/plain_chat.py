"""The plain front end of a chat: lines in, lines out, for terminals, pipes and screen readers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent, shorten

import click

from edgespec.cancel import CancelFlag
from edgespec.chat.attachments import Read, described, without_files
from edgespec.chat.commands import completions, is_command, leaves, run_line
from edgespec.chat.comparing import AnswerComparison
from edgespec.chat.controls import Controls
from edgespec.chat.events import Added, ChatEvents, Level, Notice
from edgespec.chat.paths import pasted_files
from edgespec.chat.programs import copy_natively, edited, osc52
from edgespec.chat.session import AGAINST_LOOPS, Session
from edgespec.chat.settings import in_chats
from edgespec.cli.footer import footer
from edgespec.cli.options.command import Call, Options
from edgespec.cli.setup.models import fetch_models
from edgespec.cli.terminal.interrupt import Interrupted
from edgespec.cli.terminal.line_editor import LineEditor, inputs_of, piped_line
from edgespec.cli.terminal.output import ShownAnswer
from edgespec.core.stats import Stats
from edgespec.documents.reader import Said
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import PROGRESS
from edgespec.history import AnswerRecord, Turn
from edgespec.models.names.model_names import short_name
from edgespec.settings import CONSTRAINTS, LoadSettings
from edgespec.text.figures import counted
from edgespec.text.printable import one_line
from edgespec.text.thinking import ThinkingStream, split
from edgespec.tools.results import ToolResult, shown_arguments
from edgespec.tools.toolbox import Calling, Decision

QUESTION = "Allow it once (y), in this chat (c), always (a) or not (n)?"
DECISIONS: dict[str, Decision] = {"y": "once", "c": "chat", "a": "always", "n": "deny"}
SHOWN = 120  # characters of a system prompt


class Repl:
    """Reads messages and commands until the input ends.

    Each answer is followed by its statistics, with `details` in three lines. `remembers` saves typed lines for the next
    start, and `yes` downloads missing models without asking. `draws` draws the Markdown of answers on a terminal,
    `for_reader` in a way that screen readers can read out.
    """

    def __init__(
        self,
        call: Call[Options],
        session: Session,
        *,
        details: bool,
        remembers: bool,
        yes: bool,
        draws: bool = True,
        for_reader: bool = False,
    ) -> None:
        self._call, self.session, self.output, self._interrupts = call, session, call.output, call.interrupts
        self._details, self._yes, self._draws, self._for_reader = details, yes, draws, for_reader
        self.controls = Controls(session, self)
        self._left = self._shows_tokens = False
        self._exit_code = 0  # of the first error
        self._next: str | None = None
        self._seen: str | None = None  # the key of the last message that was shown
        self._marks = ""  # the drafter of the text being shown
        self._answer: ShownAnswer | None = None  # the one that is being shown
        interactive = sys.stdin is not None and sys.stdin.isatty()
        self._editor = LineEditor(lambda line: completions(session, line), remembers=remembers) if interactive else None
        self._calls = ToolCalls(call, asks=interactive)

    def run(self, message: str | None) -> int:
        """Run the conversation, which begins with `message` if there is one. Return the exit code: that of the first
        error if no user is there, as with piped input."""
        self.load(self.session.load_settings)
        if self.session.chat.turns:
            self.redraw()
        elif self.session.chat.system:
            self._show_system()
        if self.session.chat.attached and self._editor is not None:
            self.show_files()
        if self._editor is not None:
            self.output.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D quits")
        try:
            if message:
                self._do(message)
            inputs = inputs_of(self._line)
            while not self._left and (text := next(inputs, None)) is not None:
                self._do(text)
        finally:
            if self._editor is not None:
                self._editor.save()
        return self._exit_code if self._editor is None else 0

    def _do(self, text: str) -> None:
        """Run one message or command. Errors are reported, and the conversation continues."""
        try:
            if self._editor is not None and pasted_files(text):
                run_line(self.controls, f"/file {text}")
            elif is_command(text):
                run_line(self.controls, text)
            elif self._editor is not None and leaves(text):
                self.leave()
            else:
                if self.session.model.waits_for_workers:
                    self.load(self.session.load_settings)
                    if self.session.model.engine is None:
                        return
                self.answer(lambda cancel: self.session.ask(text.removeprefix("/"), cancel))
        except EdgespecError as error:
            self._show_error(error)
        self._show_notes()
        if self.session.chat.store_error is not None:
            self.output.note(f"not saved yet: {self.session.chat.store_error}")
        self._interrupts.resume()

    def _show_error(self, error: EdgespecError) -> None:
        self._exit_code = self._exit_code or error.exit_code
        self.output.error(in_chats(str(error)), trace=True)
        if self.session.model.waits_for_workers:
            self.output.note("the next message loads the model again")
        elif (
            self.session.model.engine is None and self.session.model.remedies() and not self.session.model.was_cancelled
        ):
            self.say(self.controls.remedies())

    def _new_answer(self, *, draws: bool = True) -> ShownAnswer:
        is_text = not any(getattr(self.session.chat.settings, key) for key in CONSTRAINTS)
        return self.output.new_answer(draws=draws and self._draws and is_text, for_reader=self._for_reader)

    # --- the interface for commands ---------------------------------------------------------------------------------

    def say(self, text: str, level: Level = "info") -> None:
        if level == "info":
            self.output.say(text)
        else:
            self.output.note(text)

    def answer(self, start: Callable[[CancelFlag], ChatEvents]) -> None:
        """Show an answer as it streams."""
        cancel = CancelFlag()
        thinking, n_thought, answered = ThinkingStream(), 0, False
        stats: Stats | None = None
        finish: str | None = None
        try:
            with self._interrupts.calling(cancel.set):
                events = start(cancel)
                if self.session.tools.toolbox.is_starting:
                    self.output.progress("starting tools", None)
                thinking.push(self.session.begun)  # the part of a continued answer that is shown already
                for event in events:
                    if isinstance(event, Notice):
                        hint = f": Ctrl-C stops it, {AGAINST_LOOPS}" if event.about == "loop" else ""
                        (self._answer or self.output).interject(event.text + hint)
                        continue
                    if isinstance(event, Calling):
                        self._end_part()
                        self._calls.show(event, cancel)
                        continue
                    if isinstance(event, Added):
                        thinking, answered = ThinkingStream(), False
                        self._end_part()
                        continue
                    stats, finish = event.stats or stats, event.finish_reason
                    parts = thinking.push(event.text) + (thinking.end() if event.finish_reason else [])
                    for kind, text in parts:
                        if kind == "thinking":
                            n_thought += 1
                            self.output.progress(f"thinking, {n_thought} tokens", None)
                        else:
                            # Blank lines after the reasoning are not part of the answer.
                            text = text if answered or not n_thought else text.lstrip("\n")
                            answered = answered or bool(text)
                            self._add(self._marked(event.source, text) if self._shows_tokens else text)
        finally:
            self.output.end_progress()
            self._end_part()
            if n_thought:
                self.output.note(f"thought for {n_thought} tokens; /thought shows the text")
        self._seen = self._head()
        self._account(stats)
        self._note_end(finish)

    def _note_end(self, finish: str | None) -> None:
        """Note a limit that ended the answer. Raises GenerationError for a constrained answer that is cut off."""
        asked = [name for key, name in CONSTRAINTS.items() if getattr(self.session.chat.settings, key)]
        if asked and finish == "length":
            hint = "/continue resumes it, /set max-tokens -1 removes the limit"
            raise GenerationError(f"the answer is cut off and may not fit the {asked[0]}", hint=hint)
        last = self.session.chat.turns[-1].answer if self.session.chat.turns else None
        if finish in ("length", "repetition") and last is not None:
            self.output.note(_end_note(last))

    def _add(self, text: str) -> None:
        """Show more of an answer."""
        if self._answer is None:
            self._answer = self._new_answer(draws=not self._shows_tokens)
        self._answer.add(text)

    def _end_part(self) -> None:
        """End the line of an answer."""
        if self._shows_tokens:
            self._add(self._marked("", ""))
        if self._answer is not None:
            self._answer.end()
            self._answer = None

    def redraw(self) -> None:
        """Show the title and the last messages."""
        session = self.session
        if not session.chat.turns:
            self.output.note("a new conversation")
            self._show_system()
            return
        title = session.chat.title or session.chat.saved_id
        self.output.note(f'chat "{title}" ({len(session.chat.turns)} messages)', as_is=True)
        self._show_system()
        if n_left := sum(turn.role != "system" for turn in session.chat.turns[: session.chat.first_sent]):
            self.output.note(f"{counted(n_left, 'older message')} no longer sent, because the context was full")
        for turn in session.chat.turns[-2:]:
            if self._editor is not None and self._head() != self._seen:  # a pipe gets only answers
                self._show_turn(turn)
        self._seen = self._head()

    def put(self, text: str) -> None:
        if self._editor is None:
            self.output.line(text)
        elif not self._editor.put(text):
            self._next = edited(text)

    def open_editor(self) -> None:
        if self._editor is None:
            raise UsageError("an editor needs a terminal")
        self._next = edited("")

    def copy(self, text: str) -> None:
        sent = self.output.control(osc52(text))
        if not copy_natively(text) and not sent:
            raise UsageError("there is no clipboard", hint="/export FILE writes the chat to a file")
        self.output.note(f"{len(text)} characters copied")

    def load(self, settings: LoadSettings) -> None:
        """Load a model, and show its notes. Raises EdgespecError if there is no user who could choose another model."""
        cancel, system = CancelFlag(), self.session.chat.system
        try:
            if not self.session.model.server:
                settings = fetch_models(self._call, settings, yes=self._yes, ask=self._agrees)
            with self._interrupts.calling(cancel.set):
                self.session.load(settings, lambda what, done: self._progress(settings, what, done), cancel)
        except (Interrupted, EdgespecError) as error:
            if self._editor is None:
                raise
            if isinstance(error, EdgespecError):  # not a Ctrl-C during a download
                self._show_error(error)
            self._interrupts.resume()
            return
        finally:
            self.output.end_progress()
        info = self.session.model.info
        if self._editor is not None:
            draft = f", draft {short_name(Path(info.draft_model))}" if info.draft_model else ""
            self.output.note(f"{info.description}, context of {info.ctx_size} tokens{draft}")
        if self.session.chat.system != system:
            self._show_system()
        self._show_notes()

    def _agrees(self, question: str) -> bool:
        """Ask whether to download something; Ctrl-C means no."""
        try:
            with self._interrupts.prompting():
                return click.confirm(question, default=True, err=True)
        except click.Abort:
            return False

    def compare(self, comparison: AnswerComparison) -> None:
        cancel, begun = CancelFlag(), list[int]()

        def heard(side: int) -> None:
            if side not in begun:
                self.output.end_answer()
                begun.append(side)
                self.output.line(f"{side + 1}: {comparison.sides[side].title}")
            self.output.answer(comparison.lanes[side].events[-1].text)

        try:
            with self._interrupts.calling(cancel.set):
                comparison.run(cancel, heard, lambda what, done: self._progress(self.session.load_settings, what, done))
        finally:
            self.output.end_answer()
            self.output.end_progress()
        self._interrupts.resume()
        self.output.line(comparison.verdict())
        if all(lane.key for lane in comparison.lanes):
            own = "keeps its own answer; /keep 1 or /keep 2 chooses one of these"
            first = "continues from answer 1; /keep 2 chooses the other answer"
            self.output.note(f"the chat {own if comparison.had else first}")

    def read(self, read: Callable[[Said, CancelFlag], Read], take: Callable[[Read], None]) -> None:
        cancel = CancelFlag()
        with self._interrupts.calling(cancel.set), self.output.showing_progress():
            files = read(lambda what: self.output.progress(f"reading {what}", None), cancel)
        take(files)

    def show_files(self) -> None:
        (self.output.note if self._editor is None else self.output.say)(self.controls.files())  # a pipe gets answers

    def show_tokens(self) -> None:
        self._shows_tokens = not self._shows_tokens
        if self._shows_tokens:
            self.output.note("brackets mark drafted text and its drafter, here and in new answers: [draft:so]")
            self._show_tokens()
        else:
            self.output.note("new answers are shown without marks")

    def leave(self) -> None:
        self._left = True

    # --- showing --------------------------------------------------------------------------------------------------

    def _progress(self, settings: LoadSettings, what: str, done: float) -> None:
        if what == "prompt":
            self.output.progress(self.session.reading(done), None)
        else:
            self.output.progress(PROGRESS[what].format(settings.model), done)

    def _show_notes(self) -> None:
        for notice in self.session.new_notes():
            self.output.note(notice.text)

    def _account(self, stats: Stats | None) -> None:
        if stats is None or not (self._details or (self._editor is not None and not self.output.quiet)):
            return
        session, details = self.session, self._details
        verdicts = session.verdicts() if details else ()
        for line in footer(
            stats, session.model.info, details=details, verify=session.chat.settings.verify, pace=verdicts
        ):
            self.output.aside(line)

    def _show_system(self) -> None:
        if (system := one_line(self.session.chat.system)) or self.session.chat.persona:
            of = f" ({self.session.chat.persona})" if self.session.chat.persona else ""
            self.output.note(
                f"system prompt{of}: {shorten(system, SHOWN, placeholder=' …')} (/system shows and changes it)"
            )

    def _show_turn(self, turn: Turn) -> None:
        if turn.role == "tool":
            result = ToolResult.of(turn.content)
            self.output.note(f"{result.label or 'a tool'}: {result.summary}; /result shows it")
            return
        files, content = without_files(turn.content) if turn.role == "user" else ([], turn.said)
        parts = split(content)
        text = "".join(text for kind, text in parts if kind == "answer")
        if turn.role == "assistant":
            self.output.line(f"{turn.role}:")
            answer = self._new_answer()
            answer.add(text)
            answer.end()
        else:
            self.output.line(f"{turn.role}: {text}")
        for file in files:
            self.output.note(f"attached: {file.name} ({described([file], self.session.chat.counts.count(file))})")
        if turn.answer is not None and turn.answer.end:
            self.output.note(_end_note(turn.answer))

    def _show_tokens(self) -> None:
        last = next((turn for turn in reversed(self.session.chat.turns) if turn.role == "assistant"), None)
        for piece in self.session.store.pieces(last.key) if last is not None else ():
            self.output.answer(self._marked(piece.source, piece.text))
        self.output.answer(self._marked("", ""))
        self.output.end_answer()

    def _marked(self, source: str, text: str) -> str:
        """Return a part of an answer, with brackets where the drafter changes."""
        if source != self._marks:
            text = ("]" if self._marks else "") + (f"[{source}:" if source else "") + text
            self._marks = source
        return text

    def _head(self) -> str | None:
        return self.session.chat.turns[-1].key if self.session.chat.turns else None

    # --- reading --------------------------------------------------------------------------------------------------

    def _line(self, prompt: str) -> str | None:
        """Return the next line, or None at the end."""
        if self._next is not None:
            line, self._next = self._next, None
            return line.rstrip("\n")
        if self._editor is None:
            return piped_line()
        self.session.states.begin_idle(self.session.model)
        try:
            return self._typed_line(self._editor, prompt)
        finally:
            self.session.states.end_idle()

    def _typed_line(self, editor: LineEditor, prompt: str) -> str | None:
        while True:
            try:
                with self._interrupts.prompting():
                    return editor.read(prompt)
            except KeyboardInterrupt:
                self.output.line("")
                self.output.note("Ctrl-D quits")
            except EOFError:
                self.output.line("")
                return None


def _end_note(answer: AnswerRecord) -> str:
    """Return how an incomplete answer ended, and what continues it."""
    hint = "-c gives a larger one" if answer.is_full else "/continue resumes it"
    return f"the answer was {answer.end}; {hint}"


class ToolCalls:
    """Shows calls while they proceed. Without a user who can be asked, calls are denied."""

    def __init__(self, call: Call[Options], *, asks: bool) -> None:
        self._output, self._interrupts, self._asks = call.output, call.interrupts, asks

    def show(self, calling: Calling, cancel: CancelFlag) -> None:
        """Show the state of a call, and ask whether it may run; Ctrl-C then stops the answer."""
        output, label = self._output, calling.tool.label
        if calling.result is not None:
            output.end_progress()
            output.aside(f"{label}: {calling.result.summary}; /result shows it")
        elif calling.state == "running":
            output.progress(f"{label} is running", None)
        else:
            output.aside(f"the model calls {label} with")
            output.aside(indent(shown_arguments(calling.arguments), "  ") or "  no arguments")
            self._ask(calling, cancel)

    def _ask(self, calling: Calling, cancel: CancelFlag) -> None:
        if not self._asks:
            self._output.note(
                "denied: without a terminal no one can be asked; a chat on a terminal can allow it always"
            )
            calling.decide("deny")
            return
        try:
            with self._interrupts.prompting():
                given = click.prompt(QUESTION, type=click.Choice([*DECISIONS]), show_choices=False, err=True)
            calling.decide(DECISIONS[given])
        except click.Abort:
            cancel.set()
