"""The chat command for personas."""

from __future__ import annotations

from dataclasses import replace

from edgespec.chat.front import Front
from edgespec.chat.personas import Persona, differing, file_of, folder, persona, personas, save
from edgespec.chat.session import Session
from edgespec.errors import UsageError
from edgespec.models.names.spec import catalogued_settings
from edgespec.text.printable import one_line


class PersonaCommands:
    session: Session
    front: Front

    def do_persona(self, argument: str) -> None:
        """`/persona`: list them; `NAME`, `none`, `save NAME`, `edit NAME`."""
        word, _, name = argument.partition(" ")
        name = name.strip()
        if not argument:
            self._list_personas()
        elif word == "save":
            self._save_persona(name or self.session.persona)
        elif word == "edit":
            self.front.edit_persona(persona(name or self.session.persona or _missing()))
        else:
            self.take_persona(None if argument == "none" else persona(argument))

    def take_persona(self, chosen: Persona | None) -> None:
        """Answer as this persona from the next message on, or as none. Raises UsageError."""
        session = self.session
        if chosen is None and not session.persona:
            raise UsageError("this chat has no persona")
        session.take_persona(chosen)
        if chosen is None:
            self.front.say("no persona any more: system prompt and settings are as they were without it")
            return
        sets = ", ".join(f"{name} {one_line(text)}" for name, text in chosen.settings.items())
        later = ", from the next answer on; the whole chat is processed again once" if session.turns else ""
        self.front.say(f"persona {chosen.name}{f' ({sets})' if sets else ''}{later}")
        if chosen.model and chosen.model != session.load_settings.model:
            if session.model.server:
                self.front.say(f"its model {chosen.model} was left out: this chat's is on a server", "warning")
            else:
                self.front.load(replace(session.load_settings, model=chosen.model, draft_model=None))

    def _list_personas(self) -> None:
        found, problems = personas()
        width = max(len(each.name) for each in found) if found else 0
        now = self.session.persona
        lines = [
            f"{'*' if each.name == now else ' '} {each.name:{width}}  {one_line(each.description)}" for each in found
        ]
        hints = ["/persona NAME chooses one, /persona none goes back, /persona save NAME makes one from this chat"]
        self.front.say("\n".join([*lines, *hints, f"files: {folder()}"]))
        if problems:
            self.front.say("\n".join(["cannot be used:", *problems]), "warning")

    def _save_persona(self, name: str) -> None:
        session = self.session
        file = file_of(name or _missing())
        before = session.taken_persona if name == session.persona else None
        if file.exists() and before is None:
            raise UsageError(f"there is a persona {name} already", hint=f"/persona edit {name} changes it")
        settings = differing(session.settings, catalogued_settings(session.load_settings.model))
        description, model = (before.description, before.model) if before else ("", "")
        saved = replace(Persona(name, description, session.system, settings, model), file=file)
        save(saved)
        session.take_persona(saved)
        self.front.say(f"saved persona {name} to {file}: the system prompt and {len(settings)} settings of this chat")


def _missing() -> str:
    raise UsageError("which persona?", hint="/persona lists them")
