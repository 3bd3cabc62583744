"""The chat command for personas."""

from __future__ import annotations

from dataclasses import replace

from edgespec.chat.front import Front
from edgespec.chat.personas import Persona, differing, file_of, folder, persona, personas, save
from edgespec.chat.session import Session
from edgespec.errors import UsageError
from edgespec.models.names.spec import catalogued_settings
from edgespec.text.figures import counted
from edgespec.text.printable import one_line


class PersonaCommands:
    session: Session
    front: Front

    def do_persona(self, argument: str) -> None:
        """`/persona`: list personas; `/persona NAME`, `none`, `save NAME`, `edit NAME`."""
        word, _, name = argument.partition(" ")
        name = name.strip() or self.session.persona
        if not argument:
            self._list_personas()
        elif word not in ("save", "edit"):
            self.take_persona(None if argument == "none" else persona(argument))
        elif not name:
            raise UsageError(f"/persona {word} needs a name", hint=f"/persona {word} NAME; /persona lists the personas")
        elif word == "save":
            self._save_persona(name)
        else:
            self._edit_persona(persona(name))

    def take_persona(self, chosen: Persona | None) -> None:
        """Use this persona from the next message on, or no persona. Raises UsageError."""
        session = self.session
        if chosen is None and not session.persona:
            raise UsageError("this chat has no persona")
        session.take_persona(chosen)
        if chosen is None:
            self.front.say("no persona: your own system prompt and settings apply again")
            return
        sets = ", ".join(f"{name} {one_line(text)}" for name, text in chosen.settings.items())
        later = ", from the next answer on; the whole chat is processed again once" if session.turns else ""
        self.front.say(f"persona {chosen.name}{f' ({sets})' if sets else ''}{later}")
        if chosen.model and chosen.model != session.load_settings.model:
            if session.model.server:
                self.front.say(f"its model {chosen.model} is ignored: this chat uses a model of a server", "warning")
            else:
                self.front.load(replace(session.load_settings, model=chosen.model, draft_model=None))

    def _list_personas(self) -> None:
        found, problems = personas()
        width = max(len(each.name) for each in found) if found else 0
        now = self.session.persona
        lines = [
            f"{'*' if each.name == now else ' '} {each.name:{width}}  {one_line(each.description)}" for each in found
        ]
        hints = ["/persona NAME chooses one, /persona none removes it, /persona save NAME makes one from this chat"]
        self.front.say("\n".join([*lines, *hints, f"files: {folder()}"]))
        if problems:
            self.front.say("\n".join(["cannot be used:", *problems]), "warning")

    def _edit_persona(self, chosen: Persona) -> None:
        """Let the user edit a persona; the chat that has the persona uses the new version."""

        def take(changed: Persona) -> None:
            if self.session.persona == changed.name:
                self.take_persona(changed)
            else:
                self.front.say(f"saved persona {changed.name} to {changed.file}")

        self.front.edit_persona(chosen, take)

    def _save_persona(self, name: str) -> None:
        session = self.session
        file = file_of(name)
        before = session.taken_persona if name == session.persona else None
        if file.exists() and before is None:
            raise UsageError(f"there is a persona {name} already", hint=f"/persona edit {name} changes it")
        settings = differing(session.settings, catalogued_settings(session.load_settings.model))
        if not session.system and not settings:
            what = "there is nothing to save: this chat has no system prompt, and its settings are the defaults"
            raise UsageError(
                what, hint=f"/system TEXT sets a prompt, /set NAME VALUE a setting; then /persona save {name}"
            )
        description, model = (before.description, before.model) if before else ("", "")
        saved = replace(Persona(name, description, session.system, settings, model), file=file)
        save(saved)
        session.take_persona(saved)
        parts = [
            *(["the system prompt"] if session.system else []),
            *([counted(len(settings), "setting")] if settings else []),
        ]
        self.front.say(f"saved persona {name} to {file}: {' and '.join(parts)} of this chat")
        if not session.system:
            self.front.say(f"it has no system prompt; /system TEXT sets one, and /persona save {name} adds it")
