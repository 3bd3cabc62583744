"""The front end of the commands on the screen: the screens that they open."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import SuspendNotSupported

from edgespec.cancel import CancelFlag
from edgespec.chat.commands import COMMANDS, is_command
from edgespec.chat.comparing import PLAIN, AnswerComparison, Side, racing_sides, side_of
from edgespec.chat.events import ChatEvents
from edgespec.chat.model import drafting_with
from edgespec.chat.personas import personas
from edgespec.chat.programs import edited
from edgespec.chat.settings import SETTINGS, in_chats, setting
from edgespec.errors import UsageError
from edgespec.models.names.local import local_models
from edgespec.settings import LoadSettings
from edgespec.text.printable import one_line
from edgespec.tui.base_app import BaseApp
from edgespec.tui.chat_jobs import ChatJobs
from edgespec.tui.comparison import ComparisonScreen
from edgespec.tui.dialogs import ChoiceScreen, ListEntry
from edgespec.tui.download_line import DownloadLine
from edgespec.tui.files import Files
from edgespec.tui.picker import ModelPicker
from edgespec.tui.picker_rows import Elsewhere, Picked
from edgespec.tui.sidebar import ChatList, Sidebar

NEW = "+"  # the choice that makes a new persona
SAVE = "save"  # the choice that saves the settings
KEYS = (
    ("Enter", "Send the message; during an answer, let it wait."),
    ("Ctrl+J", "Start a new line."),
    ("Esc", "Stop the answer, close a screen, cancel a command."),
    ("Up, Down", "Browse your earlier messages; Up in the empty field takes back a message that waits."),
    ("Ctrl+X Ctrl+E", "Write the message in your text editor."),
    ("Tab", "Complete a command; move to the next part of the screen."),
    (
        "Shift+Tab",
        "Select messages: E edits, C copies, R regenerates, Enter unfolds, Left and Right switch versions, 1-9 copy "
        "code blocks, S saves them; Tab or Esc returns to the input field.",
    ),
    (
        "Chats",
        "In the list: Enter opens, N new, R rename, P pin, F folder, D delete, Space marks several to delete, / "
        "searches, Ctrl+B hides it.",
    ),
    ("End", "Scroll to the newest message."),
    ("N, Shift+N", "After a search, on a message: the next and the previous match; F3 and Shift+F3 do the same."),
    ("Ctrl+C", "Stop the answer; else clear the field (Up brings the text back); twice: quit."),
    ("Ctrl+Z", "Undo; in the empty field: suspend the program (fg continues it)."),
    ("Ctrl+P", "Search all commands, and change the theme."),
)


class ScreenFront:
    """The `Front` of the screen. Commands without arguments may open a screen instead (`show`)."""

    def __init__(self, app: BaseApp, jobs: ChatJobs, files: Files) -> None:
        self._app, self._session = app, app.session
        self._jobs, self._files = jobs, files
        self.say, self.copy, self.read = app.say, app.copy_to_clipboard, files.read
        self._screens: dict[str, Callable[[], object]] = {
            "help": self._show_help,
            "model": self._pick_model,
            "models": self._pick_model,
            "draft": self._pick_model,
            "persona": self._pick_persona,
            "set": self._pick_setting,
            "list": self._toggle_chats,
            "load": self._toggle_chats,
            "search": self._search,
            "rename": lambda: app.composer.put(f"/rename {app.session.chat.title}"),
            "system": self._change_system,
            "restart": self._restart,
            "compare": lambda: self._compare_as_typed((side_of(app.session, ""), side_of(app.session, PLAIN))),
            "race": lambda: self._compare_as_typed(racing_sides(app.session)),
        }

    def show(self, command: str, argument: str = "") -> bool:
        """Open the screen of a command; returns False if the command has none."""
        if self._session.model.server and command in ("model", "models", "draft"):
            return False
        if argument and command == "models":
            self._pick_model(argument)
            return True
        if command == "answer" and self._app.is_answering:
            self._jobs.end_reasoning()
            return True
        if argument or command not in self._screens:
            return False
        self._screens[command]()
        return True

    # --- `Front` --------------------------------------------------------------------------------------------------

    def answer(self, start: Callable[[CancelFlag], ChatEvents]) -> None:
        self._jobs.answer(start)
        self._app.composer.input.focus()

    def redraw(self) -> None:
        self._app.call_later(self._app.redraw)
        if not self._app.screen.has_class("-wide"):  # the list covers the messages
            self._app.query_one(Sidebar).remove_class("-asked")
        self._app.composer.input.focus()  # the focused widget may be removed

    def put(self, text: str) -> None:
        self._app.composer.put(text)

    def open_editor(self) -> None:
        """Change the text of the field in an editor; generating an answer continues meanwhile."""
        changed: str | UsageError | None
        try:
            with self._app.suspend():
                try:
                    changed = edited(self._app.composer.text)
                except UsageError as error:  # one that leaves the block would leave the screen suspended
                    changed = error
        except SuspendNotSupported:
            raise UsageError("this terminal cannot be used by an editor") from None
        if isinstance(changed, UsageError):
            raise changed
        if changed is not None:
            self._app.composer.put(changed)

    def load(self, settings: LoadSettings) -> None:
        self._app.query_one(DownloadLine).load(settings)

    def compare(self, comparison: AnswerComparison) -> None:
        screen = ComparisonScreen(comparison)

        def close(_: None) -> None:
            self._jobs.end_comparison()
            if comparison.is_asked and comparison.text == self._app.composer.text:
                self._app.composer.input.put("")
            self.redraw()
            self._session.states.begin_idle(self._session.model)
            if self._session.model.failure:
                self._restart()

        self._session.states.end_idle()
        self._app.push_screen(screen, close)
        self._jobs.begin_comparison(screen)

    def show_files(self) -> None:
        self._files.show()
        self._app.composer.input.focus()

    def show_tokens(self) -> None:
        transcript = self._app.transcript
        transcript.show_tokens = not transcript.show_tokens
        if not self._session.chat.turns:  # nothing else shows that the key worked
            self._app.toast(
                f"new answers are shown {'with' if transcript.show_tokens else 'without'} the drafter of each token"
            )

    def leave(self) -> None:
        self._app.exit()

    # --- the list of chats ----------------------------------------------------------------------------------------

    def _toggle_chats(self) -> None:
        """Focus the list of chats, shown if it was hidden; from within the list, hide it."""
        sidebar = self._app.query_one(Sidebar)
        if sidebar.has_focus_within:
            self.hide_chats()
        else:
            sidebar.set_class(False, "-usual")
            sidebar.set_class(True, "-asked")
            self._app.call_after_refresh(self._app.query_one(ChatList).focus)

    def hide_chats(self) -> None:
        """Hide the list of chats, and focus the field."""
        self._app.query_one(Sidebar).remove_class("-usual", "-asked")
        self._app.composer.input.focus()

    def _search(self) -> None:
        sidebar = self._app.query_one(Sidebar)
        if not sidebar.display:
            self._toggle_chats()
        self._app.call_after_refresh(sidebar.action_search)

    # --- screens above the chat -----------------------------------------------------------------------------------

    def _show_help(self) -> None:
        """List commands and keys; a command that the user chooses, or text, is put into the field."""
        keys = [ListEntry("", name, about) for name, about in KEYS]
        commands = [ListEntry(each.name, f"{each.title}  {_key(each.key)}".rstrip(), each.help) for each in COMMANDS]

        def take(name: str | None) -> None:
            if name:
                self._app.composer.put(f"/{name} ")

        text = "Enter puts a command into the field. End goes to the keys, at the end of the list."
        help = ChoiceScreen("commands and keys", text, [*commands, *keys], typed=self._app.composer.input.insert)
        self._app.push_screen(help, take)

    def _restart(self) -> None:
        """Load the model again; after a failure, let the user choose how."""
        model = self._session.model
        remedies = model.remedies()
        if not remedies or (model.was_cancelled and len(remedies) == 1):
            self._load(model.wanted)
            return
        title = "loading was cancelled" if model.was_cancelled else "no model is loaded"
        is_saved = ["The conversation is saved."] if self._session.chat.turns else []
        what = "\n".join([in_chats(str(model.failure)), *is_saved])
        choices = [ListEntry(str(index), remedy.label) for index, remedy in enumerate(remedies)]
        self._app.push_screen(
            ChoiceScreen(title, what, choices, is_error=True),
            lambda key: self._load(remedies[int(key)].settings) if key is not None else None,
        )

    def _compare_as_typed(self, sides: tuple[Side, Side]) -> None:
        """Compare answers to the text in the field, or to the last message."""
        session, typed = self._session, self._app.composer.text
        text = "" if is_command(typed) else typed
        self._app.controls.compare(AnswerComparison(session, sides, text))

    def _change_system(self) -> None:
        self._app.composer.put(f"/system {self._session.chat.system}")
        if not self._session.chat.system:
            self._app.say("write the system prompt of this chat after /system; Esc cancels")

    def _pick_model(self, text: str = "") -> None:
        settings, downloads = self._session.load_settings, self._app.query_one(DownloadLine).downloads

        def load(picked: Picked | None) -> None:
            if picked is None:
                return
            target = drafting_with(settings, picked.draft).for_model(picked.model)
            if target == settings and self._session.model.engine is not None:
                self._app.toast("this model is loaded already")
            else:
                self._load(target)

        draft = settings.draft_model if settings.uses_draft else "none"
        picker = ModelPicker(settings.model, draft, local_models, Elsewhere(downloads), text)
        self._app.push_screen(picker, load)

    def _pick_persona(self) -> None:
        all_personas, problems = personas()
        session = self._session
        choices = [ListEntry("none", "none", "No persona: your own system prompt and settings.")]
        choices += [ListEntry(f"={each.name}", each.name, each.description or each.system) for each in all_personas]
        if session.chat.persona and all(each.name != session.chat.persona for each in all_personas):
            choices.append(
                ListEntry(f"={session.chat.persona}", session.chat.persona, "its file is gone or cannot be used")
            )
        choices.append(ListEntry(NEW, "New from this chat …", "Save its system prompt and settings."))

        def take(key: str | None) -> None:
            if key == NEW:
                self._app.composer.put("/persona save ")
                self._app.say("write the name of the persona after /persona save; Esc cancels")
            elif key is not None:
                self._app.run_command(f"/persona {key.removeprefix('=')}")

        text = "\n".join(["cannot be used:", *problems]) if problems else ""
        current = f"={session.chat.persona}" if session.chat.persona else "none"
        self._app.push_screen(ChoiceScreen("personas", text, choices, current), take)

    def _pick_setting(self) -> None:
        """Let the user choose a setting, and put the command that changes it into the field."""
        settings = self._session.chat.settings

        def take(name: str | None) -> None:
            if name == SAVE:
                self._app.run_command("/set save")
            elif name is not None:
                self._app.composer.put(f"/set {name} {setting(name).show(settings)}")

        choices = [
            ListEntry(item.name, f"{item.name}  {one_line(item.show(settings))}", item.help) for item in SETTINGS
        ]
        choices.append(ListEntry(SAVE, "Save for new chats", "Write these settings to config.toml."))
        self._app.push_screen(ChoiceScreen("settings of the next message", "", choices), take)

    def _load(self, settings: LoadSettings) -> None:
        with self._app.reporting():  # an answer may be being generated
            self.load(settings)


def _key(key: str) -> str:
    """Return the name of a key as it is written on keyboards."""
    return "+".join(part.capitalize() for part in key.split("+"))
