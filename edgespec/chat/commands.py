"""The commands of a chat, for the plain terminal and the screen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from edgespec.chat.attachments import Read, attachment, described, joined, read_named, without_files
from edgespec.chat.comparing import Comparison, sides_and_text
from edgespec.chat.model import drafting_with
from edgespec.chat.personas import differing
from edgespec.chat.settings import SETTINGS, setting
from edgespec.chat.slash import COMMANDS, find, name_and_argument
from edgespec.chat.store_commands import StoreCommands
from edgespec.chat.tool_commands import ToolCommands
from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.files.config_file import change_settings
from edgespec.gguf_file.model_check import check_model
from edgespec.history import Turn
from edgespec.models.hub.downloadable import Absent, absent_models
from edgespec.models.names.local import LocalModel, local_models
from edgespec.models.names.published_heads import KnownHead
from edgespec.models.names.spec import own_settings, resolve
from edgespec.models.pair.known_heads import KnownHeads
from edgespec.models.pair.suggest import catalogue_drafts, instead, suggestions
from edgespec.settings import LoadSettings
from edgespec.text.code_blocks import CodeBlock, code_blocks
from edgespec.text.figures import counted, percent, size_of
from edgespec.text.printable import one_line
from edgespec.text.thinking import is_open, split, without_thinking
from edgespec.tools.results import ToolResult

HOW_TO = "/model MODEL loads a model, downloaded if it is not here, /draft MODEL a draft model"


class Commands(ToolCommands, StoreCommands):
    """Runs commands on a session for a front end. A command that fails raises EdgespecError.

    A command is a method `do_NAME`, which may yield lines to show. `compared` is the last comparison.
    """

    compared: Comparison | None = None

    def run(self, line: str) -> None:
        """Run a line that begins with a slash."""
        name, argument = name_and_argument(line)
        lines = getattr(self, f"do_{find(name).name}")(argument)
        if said := "\n".join(lines or ()):
            self.front.say(said)

    # --- the model ------------------------------------------------------------------------------------------------

    def do_model(self, spec: str) -> Iterator[str]:
        """`/model`: show the model; `/model MODEL`: load another one; `/model save`: use it in new chats, too."""
        session, info = self.session, self.session.model.info
        if spec == "save":
            yield self._save_model()
            return
        if spec:
            self.front.load(replace(session.load_settings.for_model(spec), draft_model=None))
            return
        where = f" of {session.model.server}" if session.model.server else ""
        yield f"model {session.load_settings.model}{where}" + ("" if session.engine else " (not loaded)")
        if info.model:
            yield f"{info.description}, context of {info.ctx_size:,} tokens"
            yield f"draft model {info.draft_model or 'none'}"
            yield f"drafters: {', '.join(info.drafters) or 'none'}, draft length (pace): {info.pace}"

    def _save_model(self) -> str:
        """Make the loaded model the default, with its draft model and drafters. Raises UsageError."""
        session = self.session
        if session.model.server:
            raise UsageError("a model of a server cannot be the default", hint="--server and -m choose it at the start")
        session.model.needed()
        names, settings = session.model.as_json(), session.load_settings
        spec_type = settings.spec_type if settings.spec_type != LoadSettings("").spec_type else None
        changes = {"model": names["model"], "draft-model": names["draft_model"], "spec-type": spec_type}
        return f"new chats use {settings.model}: saved in {change_settings(changes)}"

    def do_models(self, words: str) -> Iterator[str]:
        """`/models`: models here, and how they would work as drafts; `/models WORDS`: also those of the catalogue."""
        session = self.session
        spec = session.load_settings.model
        if server := session.model.server:
            yield f"models of {server}:"
            yield from (f"{'*' if name == spec else ' '} {name}" for name in session.model.info.models)
            yield "/model MODEL chooses one"
        elif words:
            lines = [*_all_here(list(local_models())), *map(_absent, absent_models())]
            yield from (line for line in lines if all(word in line.lower() for word in words.lower().split()))
            yield HOW_TO
        else:
            yield from models_and_drafts(spec)

    def do_draft(self, spec: str) -> Iterator[str]:
        if not spec:
            yield f"draft model {self.session.model.info.draft_model or 'none'}"
        elif self.session.model.server:
            raise UsageError("the server chooses the draft model")
        else:
            self.front.load(drafting_with(self.session.load_settings, None if spec == "auto" else spec))

    def do_restart(self, number: str) -> None:
        """`/restart`: load the model again as it was; `/restart N`: after a failure, load with other settings."""
        offers = self.session.model.remedies()
        self.front.load(offers[_number(number, len(offers))].settings if number else self.session.model.wanted)

    def remedies(self) -> str:
        """Return what `/restart` can do after a failure, as a list."""
        offers = self.session.model.remedies()
        lines = [f"{place}  {offer.label}" for place, offer in enumerate(offers, 1)]
        return "\n".join([*lines, "/restart N loads with these settings, /restart with those of before"])

    def do_system(self, text: str) -> Iterator[str]:
        session = self.session
        if not text:
            yield f"system prompt: {session.system}" if session.system else "no system prompt"
            yield "/system TEXT sets it for this chat, /system none removes it"
            return
        session.set_system("" if text == "none" else text)
        later = " from the next answer on; the whole chat is processed again once" if session.turns else ""
        yield f"system prompt {'set' if session.system else 'removed'}{later}"

    def do_set(self, argument: str) -> Iterator[str]:
        """`/set`: list; `/set NAME`, `/set NAME VALUE`: show, change; `/set save`: use these settings in new chats."""
        session = self.session
        if argument == "save":
            yield self._save_settings()
            return
        name, _, text = re.sub(r"^([\w-]+)=", r"\1 ", argument).partition(" ")
        if not name:
            width = max(len(item.name) for item in SETTINGS)
            yield from (f"{item.name:{width}}  {item.show(session.settings)}" for item in SETTINGS)
            return
        item, before = setting(name), session.settings
        if text:
            session.change({item.name: text})
        yield f"{item.name} {item.show(session.settings)}" + ("" if text else f": {item.help}")
        for other in SETTINGS:
            if other is not item and other.value(before) != other.value(session.settings):
                yield f"{other.name} {other.show(session.settings)}, replaced by this setting"

    def _save_settings(self) -> str:
        """Make the settings of this chat the defaults. Raises UsageError."""
        session = self.session
        saved = differing(session.settings, own_settings(session.load_settings.model))
        changes: dict[str, Any] = {}
        for item in SETTINGS:
            value = item.value(session.settings)
            if item.name in saved:
                changes[item.name] = list(value) if isinstance(value, tuple) else value
            elif item.group != "drafting":  # without a value here, the file's own value was used to load the model
                changes[item.name] = None
        said = ", ".join(f"{name} {one_line(text)}" for name, text in saved.items()) or "the defaults of the model"
        return f"new chats use {said}: saved in {change_settings(changes)}"

    def do_stats(self, _: str) -> Iterator[str]:
        session = self.session
        if not session.last_answer.stats.get("timings"):
            raise UsageError("there is no answer in this chat yet")
        stats = Stats.from_json(session.last_answer.stats)
        speed = f"{stats.tokens_per_s:.1f} tokens/s, " if stats.generated_tokens > 1 else ""
        cached = f"{stats.cached_tokens:,} from the KV cache"
        yield f"prompt {stats.prompt_tokens:,} tokens, {cached}, {stats.prompt_s:.2f} s"
        yield f"answer {stats.generated_tokens:,} tokens, {speed}{stats.generation_s:.2f} s"
        yield f"context {session.used:,} of {session.context_size:,} tokens"
        if stats.proposed:
            accepted = f"{stats.accepted:,} of {stats.proposed:,} draft tokens accepted"
            yield f"{accepted} ({percent(stats.acceptance_rate)}), {stats.tokens_per_round:.2f} tokens per step"
        for name, counts in stats.by_source.items():
            if counts.proposed:
                yield f"  {name}: {counts.accepted:,} of {counts.proposed:,}"
        for verdict in session.verdicts():
            what = "backed off" if verdict.rests else "active"
            gain, cost = f"{verdict.gain:.2g} expected tokens per draft", f"cost {verdict.cost:.2g} of a pass"
            yield f"{verdict.drafter}: {what} ({gain}, {cost})"

    def do_thought(self, _: str) -> Iterator[str]:
        thought = [text for kind, text in split(self._last_answer().content) if kind == "thinking"]
        yield "".join(thought) or "the last answer has no reasoning"

    def do_answer(self, _: str) -> None:
        """`/answer`: end the reasoning of an answer that was stopped; the screen ends that of a running one."""
        if not is_open(self._last_answer().content):
            raise UsageError("the last answer does not end in its reasoning")
        self.front.answer(partial(self.session.go_on, ends_reasoning=True))

    def do_compare(self, argument: str) -> None:
        """`/compare`: two answers to the last message; `sides_and_text` explains the other forms."""
        self.session.model.needed()
        sides, text = sides_and_text(self.session, argument)
        if not text and not self.session.turns:
            raise UsageError("there is no message to compare answers to", hint="/compare PROMPT")
        self.compare(Comparison(self.session, sides, text))

    def compare(self, comparison: Comparison) -> None:
        self.compared = comparison
        self.front.compare(comparison)

    def do_keep(self, number: str) -> None:
        if self.compared is None:
            raise UsageError("there are no compared answers", hint="run /compare first")
        self.compared.keep(_number(number, len(self.compared.lanes)))
        self.front.redraw()

    def do_tokens(self, _: str) -> None:
        self.front.show_tokens()

    # --- attached files -------------------------------------------------------------------------------------------

    def do_file(self, argument: str) -> None:
        """`/file`: list attachments; `/file PATH...`: attach; `/file none`, `/file none N`: remove all, or number N."""
        word, _, number = argument.partition(" ")
        session = self.session
        if word == "none":
            session.detach(number.strip())
        elif argument:
            self.front.read(partial(read_named, argument), self.attach)
            return
        elif not session.attached:
            hint = "/file PATH... attaches files: report.pdf 1-20, src/*.py, 'my notes.txt', a folder"
            raise UsageError("nothing is attached", hint=hint)
        self.front.show_files()

    def attach(self, read: Read) -> None:
        """Attach files that were read. Raises UsageError."""
        added, left_out = read
        self.session.attached = joined(self.session.attached, added)
        if left_out:
            self.front.say("\n".join(["not attached:", *left_out]), "warning")
        self.front.show_files()

    def attach_text(self, text: str) -> None:
        """Attach a pasted text as a new file. Raises UsageError."""
        attached = self.session.attached
        names = {file.name for file in attached}
        name = next(name for number in count(1) if (name := f"pasted-{number}.txt") not in names)
        self.attach(([attachment(name, text.encode("utf-8", "replace"))], []))

    def files(self) -> str:
        """Return the attachments with sizes and token counts."""
        session, files = self.session, self.session.attached
        if not files:
            return "nothing is attached"
        lines = [
            f"{n:3}  {file.name}  ({described([file], session.counts.count(file))})" for n, file in enumerate(files, 1)
        ]
        total = f"{counted(len(files), 'file')}, {described(files, session.counts.total(files))}"
        ends = [f"{total}, for your next message; /file none removes", session.trouble()]
        return "\n".join(filter(None, [*lines, *ends]))

    # --- the conversation -----------------------------------------------------------------------------------------

    def do_regen(self, number: str) -> None:
        index = _number(number, len(self.session.turns)) if number else None
        self.front.answer(lambda cancel: self.session.regenerate(cancel, index))

    def do_continue(self, _: str) -> None:
        self.front.answer(self.session.go_on)

    def do_edit(self, argument: str) -> None:
        """`/edit`, `/edit N`: put a message into the input field; `/edit TEXT`, `/edit N TEXT`: replace it."""
        session = self.session
        first, _, rest = argument.partition(" ")
        if first.isdigit():
            index, text = _number(first, len(session.turns)), rest.strip()
        else:
            users = [index for index, turn in enumerate(session.turns) if turn.role == "user"]
            if not users:
                raise UsageError("there is nothing to edit yet")
            index, text = users[-1], argument
        if not text:
            self.front.put(f"/edit {index + 1} {without_files(session.turns[index].content)[1]}")
        elif session.turns[index].role == "user":
            self.front.answer(lambda cancel: session.edit(index, text, cancel))
        else:
            session.edit(index, text)
            self.front.redraw()

    def do_editor(self, _: str) -> None:
        self.front.open_editor()

    def do_undo(self, _: str) -> None:
        text = self.session.undo()
        self.front.redraw()
        self.front.put(text)

    def do_fork(self, _: str) -> Iterator[str]:
        chat = self.session.fork()
        self.front.redraw()
        yield f"continuing in the new chat {chat}; the old one is unchanged"

    def do_branches(self, number: str) -> Iterator[str]:
        branches = self.session.branches()
        if number:
            self.session.switch(branches[_number(number, len(branches))].leaf)
            self.front.redraw()
            return
        if not branches:
            raise UsageError("this conversation has no branches yet")
        for place, branch in enumerate(branches, 1):
            yield f"{'*' if branch.is_current else ' '} {place}  {branch.n_turns} messages  {branch.preview}"
        yield "/branches N switches to one"

    def do_copy(self, what: str) -> None:
        """`/copy`: the last answer; `/copy N`: message N; `/copy code`: the last code block of the last answer."""
        word, _, number = what.partition(" ")
        turns = self.session.turns
        if word == "code":
            self.front.copy(self._code_block(number.strip()).code)
        else:
            turn = turns[_number(what, len(turns))] if what else self._last_answer()
            is_result = turn.role == "tool"
            self.front.copy(ToolResult.of(turn.content).text if is_result else without_thinking(turn.said))

    def do_save(self, what: str) -> None:
        """`/save`, `/save N`, `/save FILE`, `/save N FILE`: save a code block of the last answer."""
        number, _, name = what.partition(" ") if what.partition(" ")[0].isdecimal() else ("", "", what)
        self.save_code(self._code_block(number), name.strip())

    def save_code(self, block: CodeBlock, name: str = "") -> None:
        """Write code to a new file, by default in the current folder. Raises UsageError."""
        self.write("save", name, "code", block.suffix, block.code + "\n")

    def _code_block(self, number: str) -> CodeBlock:
        """Return a code block of the last answer, by default the last one. Raises UsageError."""
        if not (blocks := code_blocks(without_thinking(self._last_answer().content))):
            raise UsageError("the last answer has no code block")
        return blocks[_number(number, len(blocks)) if number else -1]

    def _last_answer(self) -> Turn:
        for turn in reversed(self.session.turns):
            if turn.role == "assistant":
                return turn
        raise UsageError("the answer is not finished" if self.session.is_answering else "there is no answer yet")

    def do_help(self, name: str) -> Iterator[str]:
        if name:
            command = find(name.removeprefix("/"))
            yield from (command.title, command.help)
            return
        width = max(len(command.title) for command in COMMANDS)
        yield from (f"{command.title:{width}}  {command.help}" for command in COMMANDS)

    def do_bye(self, _: str) -> None:
        self.front.leave()


def _number(text: str, most: int) -> int:
    """Return the index, from 0, for a number from 1 to `most`. Raises UsageError."""
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise UsageError(f"choose a number from 1 to {most}" if most else "there is nothing to choose from")
    return int(text) - 1


def models_and_drafts(spec: str) -> list[str]:
    """Return the models here, and how they would work as drafts of the loaded model, the best first.

    Raises ModelFileError, ModelNotFoundError.
    """
    target = check_model(resolve(spec).path)
    models = list(local_models())
    lines = _all_here(models)
    usable = [each for each in models if not each.problem]
    drafts = suggestions(target, usable, catalogue_drafts(spec, target.path))
    if drafts:
        lines += [f"as drafts for {spec}:", *(f"  {each.label:6}  {each.spec}: {each.why}" for each in drafts)]
    if what_else := instead(drafts):
        lines.append(what_else)
    n = len(list(absent_models()))
    return [
        *lines,
        f"/models WORDS also lists models of the catalogue ({n} are not here)",
        HOW_TO,
    ]


def _all_here(models: Sequence[LocalModel]) -> list[str]:
    """Return a line for each model that can answer."""
    heads = KnownHeads(models)
    return [_here(model, heads.of(model)) for model in models if not model.is_head]


def _here(model: LocalModel, head: KnownHead | None) -> str:
    if model.problem:
        return f"{model.spec}  {model.problem}"
    return "  ".join(filter(None, (model.spec, model.quantisation, size_of(model.size_bytes), str(head or ""))))


def _absent(model: Absent) -> str:
    return f"{model.spec}  {', '.join(model.facts)}, to download"
