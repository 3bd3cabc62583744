"""The offer at the first start: the best models of the catalogue for this machine, and the small one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from edgespec.cli.terminal.output import Output
from edgespec.files.paths import free_in
from edgespec.models.hub.cache import hub_cache
from edgespec.models.hub.pulling import PendingDownload, missing_bytes, plan_item, with_assistants
from edgespec.models.hub.requests import DownloadError, check_endpoint
from edgespec.models.listing import catalogue_rows
from edgespec.models.memory.fit import needed_by_size
from edgespec.models.recommend import Machine, Recommended, recommended, this_machine
from edgespec.text.figures import counted, size_of
from edgespec.text.printable import wrapped

if TYPE_CHECKING:
    from edgespec.models.listing import ModelRow

LOOK_S = 6.0  # for the hub to answer before there is no offer
WIDEST = 100  # columns
INDENT = 4
ROWS_OF_QUESTION = 2
AT_FIRST = "the best for this machine"
AFTER_IT = "smaller and faster"
SMALL = "tiny and quick, but often wrong"

Plan = Callable[[str], list[PendingDownload]]  # the downloads that a model needs, not planned yet


@dataclass(frozen=True, slots=True)
class Choice:
    """A model to choose: its name, what is special about it, its long name, and what it takes and gives."""

    name: str
    merit: str
    about: str
    facts: str


def choose_model(output: Output, small: str, plan: Plan) -> str:
    """Let the user choose the first model: the best ones for this machine, or the `small` one of the package index.

    Returns its name; empty if there is no choice, because the hub does not answer or nothing larger fits. Raises
    UsageError for a catalogue with errors, and Abort if the user ends the input.
    """
    with output.showing_progress():
        output.progress("looking for models that suit this machine", None)
        machine, rows = this_machine(), list(catalogue_rows())
        free_bytes = free_in(hub_cache())
        best = recommended(machine, rows)
        fitting = recommended(machine, [row for row in rows if row.is_here or row.size_bytes <= free_bytes])
        choices = _choices(machine, fitting, plan)
    if best[:1] != fitting[:1]:
        wanted = f"it needs {best[0].row.size} on the disk, and {size_of(free_bytes)} are free"
        output.note(f"{best[0].row.name} would suit this machine, but {wanted}")
    if not choices:
        if fitting:
            output.note("larger models suit this machine ('edgespec ls --catalog'), but the hub does not answer now")
        return ""
    choices.append(_small_choice(machine, next(row for row in rows if row.name == small)))
    output.explain(_shown(choices, machine))
    return _answer(output, [choice.name for choice in choices])


def _choices(machine: Machine, found: Sequence[Recommended], plan: Plan) -> list[Choice]:
    """Return the models that the hub has, with the sizes that it reports."""
    try:
        check_endpoint()
    except DownloadError:
        return []
    plans: dict[str, list[PendingDownload]] = {}

    def look(name: str) -> None:
        items = plan(name)
        for item in items:
            plan_item(item, _Silence())
        plans[name] = with_assistants(items, _Silence())

    threads = [Thread(target=look, args=(each.row.name,), daemon=True) for each in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LOOK_S)
    choices = list[Choice]()
    for each in found:
        items = plans.get(each.row.name, [])
        possible = [item for item in items if item.download is not None and item.error is None]
        size_bytes = sum(item.download.size_bytes for item in possible if item.download is not None)
        if not items or items[0] not in possible or not machine.has_room(needed_by_size(size_bytes)):
            continue
        to_load = missing_bytes(possible)
        size = f"{size_of(to_load)} to download" if to_load else "here already"
        with_draft = " with its draft" if to_load and len(possible) > 1 else ""
        choices.append(_choice(each, AFTER_IT if choices else AT_FIRST, f"{size}{with_draft}"))
    return choices


def _small_choice(machine: Machine, row: ModelRow) -> Choice:
    found = Recommended(row, machine.tokens_per_s(row.entry))
    return _choice(found, SMALL, f"{row.size} to download")


def _choice(found: Recommended, merit: str, size: str) -> Choice:
    entry = found.row.entry
    facts = ", ".join(filter(None, (size, entry.licence, found.speed)))
    return Choice(entry.name, merit, entry.about.removesuffix(", small and quick"), facts)


def _shown(choices: Sequence[Choice], machine: Machine) -> str:
    """Return the choices as lines that also make sense when they are read aloud; on a small terminal the shortest ones,
    so that all of them are seen at once."""
    columns, rows = shutil.get_terminal_size()
    columns = max(min(WIDEST, columns), INDENT + 20)
    memory = [f"{size_of(machine.room_bytes)} of free memory"]
    memory += [f"{size_of(machine.gpu_bytes)} on the GPU"] if machine.gpu_bytes else []
    has = " and ".join([", ".join(memory), counted(machine.cores, "core")])
    lines = [f"No model is chosen yet. This machine has {has}.", ""]
    for number, each in enumerate(choices, start=1):
        lines += [f"{number:>2}. {each.name}, {each.merit}", f"{'':{INDENT}}{each.about}, {each.facts}"]
    lines += ["", "Your choice becomes the default model. -m names another one; 'edgespec ls --catalog' lists them."]
    shown = _wrapped(lines, columns)
    if len(shown.splitlines()) + ROWS_OF_QUESTION <= rows:
        return shown
    return _wrapped(
        [f"{number:>2}. {each.name}: {each.facts}" for number, each in enumerate(choices, start=1)], columns
    )


def _wrapped(lines: Sequence[str], columns: int) -> str:
    return "\n".join(wrapped(line, columns, INDENT if line.startswith(" ") else 0) for line in lines)


def _answer(output: Output, names: Sequence[str]) -> str:
    """Return the name that the user chooses by its number or its name; Enter chooses the first one."""
    numbers = {str(number): name for number, name in enumerate(names, start=1)}
    while True:
        typed = output.ask(f"Which one? (1 to {len(names)}, Enter takes 1)").lower()
        if chosen := numbers.get(typed or "1") or (typed if typed in names else ""):
            return chosen
        output.explain(f"'{typed}' is none of them: enter a number from 1 to {len(names)}.")


class _Silence:
    """Shows nothing of what is planned."""

    def note(self, text: str) -> None: ...

    def progress(self, what: str, done: float | None) -> None: ...

    def end_progress(self) -> None: ...
