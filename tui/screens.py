"""Screens above the chat, and those that commands without arguments open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.chat.comparing import PLAIN, Comparison, side_of
from edgespec.chat.model import drafting_with
from edgespec.chat.personas import Persona, personas
from edgespec.chat.slash import is_command
from edgespec.errors import EdgespecError
from edgespec.models.names.local import local_models
from edgespec.settings import LoadSettings
from edgespec.tui.comparison import ComparisonScreen
from edgespec.tui.front import ScreenFront
from edgespec.tui.help_screen import HelpScreen
from edgespec.tui.persona_editor import PersonaEditor
from edgespec.tui.persona_picker import PersonaChoice, PersonaPicker
from edgespec.tui.picker import ModelPicker
from edgespec.tui.picker_absent import Elsewhere
from edgespec.tui.picker_layout import Picked
from edgespec.tui.remedy_screen import RemedyScreen
from edgespec.tui.settings_screen import SettingsScreen
from edgespec.tui.sidebar import ChatList, Sidebar
from edgespec.tui.toasts import toast

if TYPE_CHECKING:
    from edgespec.tui.app import ChatApp


class Screens:
    """Opens screens of `app`, and applies what is chosen there."""

    def __init__(self, app: ChatApp) -> None:
        self._app, self._session = app, app.session
        self._shows: dict[str, Callable[[], object]] = {
            "help": lambda: app.push_screen(HelpScreen()),
            "model": self._pick_model,
            "models": self._pick_model,
            "draft": self._pick_model,
            "persona": self._pick_persona,
            "set": self._show_settings,
            "list": self.toggle_chats,
            "load": self.toggle_chats,
            "search": self._search,
            "rename": lambda: app.composer.put(f"/rename {app.session.title}"),
            "system": self._change_system,
            "restart": self._restart,
            "compare": self._open_comparison,
        }

    def show(self, command: str, argument: str = "") -> bool:
        """Open the screen of a command; returns whether there is one. A server's models need none, and arguments only
        the words that models are searched for."""
        if self._session.model.server and command in ("model", "models", "draft"):
            return False
        if argument:
            if command == "models":
                self._pick_model(argument)
            return command == "models"
        if command in self._shows:
            self._shows[command]()
        return command in self._shows

    def toggle_chats(self) -> None:
        """Go to the list of chats, shown if it was hidden; from within the list, hide it."""
        sidebar = self._app.query_one(Sidebar)
        if sidebar.has_focus_within:
            self.hide_chats()
        else:
            sidebar.set_class(False, "-usual")
            sidebar.set_class(True, "-asked")
            self._app.call_after_refresh(self._app.query_one(ChatList).focus)

    def hide_chats(self) -> None:
        """Hide the list of chats, and continue to write."""
        self._app.query_one(Sidebar).remove_class("-usual", "-asked")
        self._app.composer.input.focus()

    def _search(self) -> None:
        sidebar = self._app.query_one(Sidebar)
        if not sidebar.display:
            self.toggle_chats()
        self._app.call_after_refresh(sidebar.focus_search)

    def offer_remedies(self) -> None:
        """Let the user choose how to load the model again, after a failure."""
        model = self._session.model
        if not (remedies := model.remedies()):
            return
        if model.was_cancelled:
            title = "loading was cancelled"
        else:
            title = "the model has stopped" if model.has_died else "the model could not be loaded"
        what = "\n".join([model.failure, *(["The conversation is saved."] if self._session.turns else [])])
        self._app.push_screen(RemedyScreen(title, what, remedies), self._load)

    def compare(self, comparison: Comparison, *, starts: bool = True) -> None:
        """Two answers side by side."""
        app = self._app

        def go_on(compared: Comparison | None) -> None:
            app.commands.compared = compared or app.commands.compared
            if compared is not None and compared.text and compared.text == app.composer.text and compared.is_asked:
                app.composer.input.put("")
            ScreenFront(app).redraw()
            app.jobs.idle.begin()
            self.offer_remedies()

        app.jobs.idle.stop()
        app.push_screen(ComparisonScreen(comparison, starts=starts), go_on)

    def _open_comparison(self) -> None:
        """With what is typed, or the last message."""
        self._session.model.needed()
        composer, session = self._app.composer, self._session
        text = "" if is_command(composer.text) else composer.text
        self.compare(Comparison(session, (side_of(session, ""), side_of(session, PLAIN)), text), starts=False)

    def _change_system(self) -> None:
        self._app.composer.put(f"/system {self._session.system}")
        if not self._session.system:
            self._app.say("write the system prompt of this chat after /system; Esc cancels")

    def _pick_model(self, text: str = "") -> None:
        settings, downloads = self._session.load_settings, self._app.downloads

        def load(picked: Picked | None) -> None:
            if picked is not None:
                wanted = replace(drafting_with(settings, picked.draft), model=picked.model)
                if wanted == settings and self._session.engine is not None:
                    toast(self._app, "this model is loaded already")
                else:
                    self._load(wanted, is_confirmed=picked.is_confirmed)

        draft = settings.draft_model if settings.uses_draft else "none"
        elsewhere = Elsewhere(downloads.downloads)
        self._app.push_screen(ModelPicker(settings.model, draft, local_models, elsewhere, text), load)

    def edit_persona(self, persona: Persona) -> None:
        """Edit a persona; the chat that has it takes it as it is then."""

        def take(edited: Persona | None) -> None:
            if edited is None:
                return
            toast(self._app, f"saved persona {edited.name} to {edited.file}")
            if self._session.persona == edited.name:
                self._app.run_command(f"/persona {edited.name}")

        self._app.push_screen(PersonaEditor(persona), take)

    def _pick_persona(self) -> None:
        def take(choice: PersonaChoice | None) -> None:
            if choice is None:
                return
            if choice.action == "new":
                self._app.composer.put("/persona save ")
                self._app.say("write the name of the persona after /persona save; Esc cancels")
            else:
                word = {"take": "", "edit": "edit ", "none": "none"}[choice.action]
                self._app.run_command(f"/persona {word}{choice.name}")

        found, problems = personas()
        self._app.push_screen(PersonaPicker(found, self._session.persona, problems), take)

    def _show_settings(self) -> None:
        def take(texts: dict[str, str] | None) -> None:
            try:
                for name, text in (texts or {}).items():
                    self._session.change(name, text)
            except EdgespecError as error:
                self._app.report(error)

        self._app.push_screen(SettingsScreen(self._session.settings), take)

    def _restart(self) -> None:
        remedies = self._session.model.remedies()
        if len(remedies) > 1:
            self.offer_remedies()
        else:
            self._load(remedies[0].settings if remedies else self._session.load_settings)

    def _load(self, settings: LoadSettings | None, *, is_confirmed: bool = False) -> None:
        if settings is None:
            return
        try:
            self._app.downloads.load(settings, is_confirmed=is_confirmed)
        except EdgespecError as error:  # the model in use is busy with an answer
            self._app.report(error)
