"""The commands of a chat. The table `COMMANDS` is what runs, completes, lists and explains them, on all front ends."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from textwrap import shorten

from edgespec.chat import store_commands as store
from edgespec.chat.attachments import read_named, without_files
from edgespec.chat.comparing import AnswerComparison, Side, racing_sides, sides_and_text
from edgespec.chat.controls import Controls, index_of
from edgespec.chat.model import drafting_with
from edgespec.chat.personas import differing
from edgespec.chat.session import Session
from edgespec.chat.settings import SETTINGS, in_chats, setting
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.config_file import change_settings
from edgespec.gguf_file.model_check import check_model
from edgespec.models.listing import ModelRow, rows_here, rows_to_download
from edgespec.models.names.spec import own_settings, resolve
from edgespec.models.pair.suggest import catalogue_drafts, instead, suggestions
from edgespec.settings import LoadSettings
from edgespec.text.code_blocks import CodeBlock, code_blocks
from edgespec.text.figures import counted, percent
from edgespec.text.printable import one_line
from edgespec.text.thinking import is_open, split, without_thinking
from edgespec.tools.config import default_file
from edgespec.tools.results import ToolResult
from edgespec.tools.server import ToolServer

HOW_TO = "/model MODEL loads a model, downloaded if it is not here, /draft MODEL a draft model"
TOOLS_HOW_TO = "/tools ask NAME takes a permission back, /tools off and on, /tools restart starts the servers again"
PERMISSIONS = {"always": "allowed always", "chat": "allowed in this chat", None: "asks first"}
LEAVING = ("exit", "quit", "bye", ":q")
DESCRIPTION = 70  # characters of the description of a tool


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A chat command. `function` gets what follows the name, and may yield lines to show.

    On the screen, `key` runs it without arguments. If it `waits`, an answer must end first. `arguments` returns what
    may follow the name, for completion.
    """

    name: str
    usage: str
    help: str
    function: Callable[[Controls, str], Iterable[str] | None]
    key: str = ""
    aliases: tuple[str, ...] = ()
    waits: bool = False
    arguments: Callable[[Session], Iterable[str]] = lambda session: ()

    @property
    def title(self) -> str:
        return f"/{self.name} {self.usage}".rstrip()

    def run(self, controls: Controls, argument: str = "") -> None:
        """Run the command, and show its lines. Raises EdgespecError."""
        if text := "\n".join(self.function(controls, argument) or ()):
            controls.front.say(text)


def run_line(controls: Controls, line: str) -> None:
    """Run a line that begins with a slash. Raises EdgespecError."""
    name, argument = name_and_argument(line)
    find(name).run(controls, argument)


def completions(session: Session, line: str) -> list[str]:
    """Return the lines that begin with this one: names of commands, or a command with one of its arguments."""
    if not is_command(line):
        return []
    name, space, argument = line.removeprefix("/").partition(" ")
    if not space:
        return [f"/{command.name}" for command in COMMANDS if command.name.startswith(name)]
    command = next((command for command in COMMANDS if command.name == name), None)
    try:
        offers = command.arguments(session) if command is not None else ()
        return [f"/{name} {offer}" for offer in offers if offer.startswith(argument)]
    except EdgespecError:
        return []


def is_command(text: str) -> bool:
    """Return whether a line is a command. Two slashes begin a message that begins with a slash."""
    return text.startswith("/") and not text.startswith("//")


def leaves(text: str) -> bool:
    """Return whether a message is one of the words with which people leave other programs."""
    return text.strip().lower() in LEAVING


def name_and_argument(line: str) -> tuple[str, str]:
    """Split a line that begins with a slash; the name ends with a space or a newline."""
    name, *argument = re.split(r"\s+", line.strip().removeprefix("/"), maxsplit=1)
    return name, "".join(argument)


def find(name: str) -> ChatCommand:
    """Return the command with this name, or the only one that begins with it. Raises UsageError."""
    name = name.lower()
    for command in COMMANDS:
        if name in (command.name, *command.aliases):
            return command
    matches = [command for command in COMMANDS if name and command.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    near = [c.name for c in matches] or difflib.get_close_matches(name, [c.name for c in COMMANDS], n=1)
    hint = "did you mean " + " or ".join(f"/{other}" for other in near) + "?" if near else "/help lists the commands"
    raise UsageError(f"there is no command /{name}", hint=hint)


# --- the model and its settings -------------------------------------------------------------------------------------


def _model(controls: Controls, spec: str) -> Iterator[str]:
    """`/model`: show the model; `/model MODEL`: load another one; `/model save`: use it in new chats, too."""
    session, info = controls.session, controls.session.model.info
    if spec == "save":
        yield _save_model(controls)
        return
    if spec:
        controls.front.load(replace(session.load_settings.for_model(spec), draft_model=None))
        return
    where = f" of {session.model.server}" if session.model.server else ""
    yield f"model {session.load_settings.model}{where}" + ("" if session.model.engine else " (not loaded)")
    if info.model:
        yield f"{info.description}, context of {info.ctx_size:,} tokens"
        yield f"draft model {info.draft_model or 'none'}"
        yield f"drafters: {', '.join(info.drafters) or 'none'}, draft length (pace): {info.pace}"


def _save_model(controls: Controls) -> str:
    """Make the loaded model the default, with its draft model and drafters. Raises UsageError."""
    session = controls.session
    if session.model.server:
        raise UsageError("a model of a server cannot be the default", hint="--server and -m choose it at the start")
    session.model.needed()
    names, settings = session.model.as_json(), session.load_settings
    spec_type = settings.spec_type if settings.spec_type != LoadSettings("").spec_type else None
    changes = {"model": names["model"], "draft-model": names["draft_model"], "spec-type": spec_type}
    return f"new chats use {settings.model}: saved in {change_settings(changes)}"


def _models(controls: Controls, words: str) -> Iterator[str]:
    """`/models`: models here, and how they would work as drafts; `/models WORDS`: also those of the catalogue."""
    session = controls.session
    spec = session.load_settings.model
    if server := session.model.server:
        yield f"models of {server}:"
        yield from (f"{'*' if name == spec else ' '} {name}" for name in session.model.info.models)
        yield "/model MODEL chooses one"
    elif words:
        yield from _model_lines(row for row in [*rows_here(), *rows_to_download()] if row.has(words))
        yield HOW_TO
    else:
        yield from models_and_drafts(spec)


def _draft(controls: Controls, spec: str) -> Iterator[str]:
    if not spec:
        yield f"draft model {controls.session.model.info.draft_model or 'none'}"
    elif controls.session.model.server:
        raise UsageError("the server chooses the draft model")
    else:
        controls.front.load(drafting_with(controls.session.load_settings, spec))


def _restart(controls: Controls, number: str) -> None:
    """`/restart`: load the model again as it was; `/restart N`: after a failure, load with other settings."""
    offers = controls.session.model.remedies()
    controls.front.load(offers[index_of(number, len(offers))].settings if number else controls.session.model.wanted)


def _system(controls: Controls, text: str) -> Iterator[str]:
    session = controls.session
    if not text:
        yield f"system prompt: {session.chat.system}" if session.chat.system else "no system prompt"
        yield "/system TEXT sets it for this chat, /system none removes it"
        return
    session.chat.set_system("" if text == "none" else text)
    later = " from the next answer on; the whole chat is processed again once" if session.chat.turns else ""
    yield f"system prompt {'set' if session.chat.system else 'removed'}{later}"


def _set(controls: Controls, argument: str) -> Iterator[str]:
    """`/set`: list; `/set NAME`, `/set NAME VALUE`: show, change; `/set save`: use these settings in new chats."""
    session = controls.session
    if argument == "save":
        yield _save_settings(controls)
        return
    name, _, text = re.sub(r"^([\w-]+)=", r"\1 ", argument).partition(" ")
    if not name:
        width = max(len(item.name) for item in SETTINGS)
        yield from (f"{item.name:{width}}  {item.show(session.chat.settings)}" for item in SETTINGS)
        return
    item, before = setting(name), session.chat.settings
    if text:
        session.chat.change({item.name: text})
    yield f"{item.name} {item.show(session.chat.settings)}" + ("" if text else f": {item.help}")
    for other in SETTINGS:
        if other is not item and other.value(before) != other.value(session.chat.settings):
            yield f"{other.name} {other.show(session.chat.settings)}, replaced by this setting"


def _save_settings(controls: Controls) -> str:
    """Make the settings of this chat the defaults. Raises UsageError."""
    session = controls.session
    saved = differing(session.chat.settings, own_settings(session.load_settings.model))
    changes: dict[str, object] = {}
    for item in SETTINGS:
        value = item.value(session.chat.settings)
        if item.name in saved:
            changes[item.name] = list(value) if isinstance(value, tuple) else value
        elif item.group != "drafting":  # without a value here, the file's own value was used to load the model
            changes[item.name] = None
    summary = ", ".join(f"{name} {one_line(text)}" for name, text in saved.items()) or "the defaults of the model"
    return f"new chats use {summary}: saved in {change_settings(changes)}"


def _stats(controls: Controls, _: str) -> Iterator[str]:
    session = controls.session
    if not session.chat.last_answer.stats.get("timings"):
        raise UsageError("there is no answer in this chat yet")
    stats = Stats.from_json(session.chat.last_answer.stats)
    speed = f"{stats.tokens_per_s:.1f} tokens/s, " if stats.generated_tokens > 1 else ""
    cached = f"{stats.cached_tokens:,} from the KV cache"
    yield f"prompt {stats.prompt_tokens:,} tokens, {cached}, {stats.prompt_s:.2f} s"
    yield f"answer {stats.generated_tokens:,} tokens, {speed}{stats.generation_s:.2f} s"
    yield f"context {session.chat.used:,} of {session.chat.context_size:,} tokens"
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


def models_and_drafts(spec: str) -> list[str]:
    """Return the models here, and how they would work as drafts of the loaded model, the best first.

    Raises ModelFileError, ModelNotFoundError.
    """
    target = check_model(resolve(spec).path)
    rows = rows_here()
    lines = list(_model_lines(rows))
    usable = (row.model for row in rows if row.model is not None and not row.problem)
    drafts = suggestions(target, usable, catalogue_drafts(spec, target.path))
    if drafts:
        lines += [f"as drafts for {spec}:", *(f"  {each.label:6}  {each.spec}: {each.why}" for each in drafts)]
    if what_else := instead(drafts):
        lines.append(in_chats(what_else))
    n = len(rows_to_download())
    return [
        *lines,
        f"/models WORDS also lists models of the catalogue ({n} are not here)",
        HOW_TO,
    ]


def _model_lines(rows: Iterable[ModelRow]) -> Iterator[str]:
    """Yield a line for each model; draft heads cannot answer."""
    for row in rows:
        if row.kind != "head":
            facts = [in_chats(row.problem)] if row.problem else row.facts
            yield "  ".join([row.name, *facts, *([] if row.is_here else ["to download"])])


# --- the conversation -----------------------------------------------------------------------------------------------


def _regen(controls: Controls, number: str) -> None:
    index = index_of(number, len(controls.session.chat.turns)) if number else None
    controls.front.answer(lambda cancel: controls.session.regenerate(cancel, index))


def _edit(controls: Controls, argument: str) -> None:
    """`/edit`, `/edit N`: put a message into the input field; `/edit TEXT`, `/edit N TEXT`: replace it."""
    session = controls.session
    first, _, rest = argument.partition(" ")
    if first.isdigit():
        index, text = index_of(first, len(session.chat.turns)), rest.strip()
    else:
        users = [index for index, turn in enumerate(session.chat.turns) if turn.role == "user"]
        if not users:
            raise UsageError("there is nothing to edit yet")
        index, text = users[-1], argument
    if not text:
        controls.front.put(f"/edit {index + 1} {without_files(session.chat.turns[index].content)[1]}")
    elif session.chat.turns[index].role == "user":
        controls.front.answer(lambda cancel: session.edit(index, text, cancel))
    else:
        session.edit(index, text)
        controls.front.redraw()


def _undo(controls: Controls, _: str) -> None:
    text = controls.session.chat.undo()
    controls.front.redraw()
    controls.front.put(text)


def _fork(controls: Controls, _: str) -> Iterator[str]:
    chat = controls.session.chat.fork()
    controls.front.redraw()
    yield f"continuing in the new chat {chat}; the old one is unchanged"


def _branches(controls: Controls, number: str) -> Iterator[str]:
    branches = controls.session.chat.branches()
    if number:
        controls.session.chat.switch(branches[index_of(number, len(branches))].leaf)
        controls.front.redraw()
        return
    if not branches:
        raise UsageError("this conversation has no branches yet")
    for place, branch in enumerate(branches, 1):
        yield f"{'*' if branch.is_current else ' '} {place}  {branch.n_turns} messages  {branch.preview}"
    yield "/branches N switches to one"


def _copy(controls: Controls, what: str) -> None:
    """`/copy`: the last answer; `/copy N`: message N; `/copy code`: the last code block of the last answer."""
    word, _, number = what.partition(" ")
    turns = controls.session.chat.turns
    if word == "code":
        controls.front.copy(_code_block(controls, number.strip()).code)
    else:
        turn = turns[index_of(what, len(turns))] if what else controls.last_answer()
        is_result = turn.role == "tool"
        controls.front.copy(ToolResult.of(turn.content).text if is_result else without_thinking(turn.said))


def _save(controls: Controls, what: str) -> None:
    """`/save`, `/save N`, `/save FILE`, `/save N FILE`: save a code block of the last answer."""
    number, _, name = what.partition(" ") if what.partition(" ")[0].isdecimal() else ("", "", what)
    controls.save_code(_code_block(controls, number), name.strip())


def _code_block(controls: Controls, number: str) -> CodeBlock:
    """Return a code block of the last answer, by default the last one. Raises UsageError."""
    if not (blocks := code_blocks(without_thinking(controls.last_answer().content))):
        raise UsageError("the last answer has no code block")
    return blocks[index_of(number, len(blocks)) if number else -1]


def _file(controls: Controls, argument: str) -> None:
    """`/file`: list attachments; `/file PATH...`: attach; `/file none`, `/file none N`: remove all, or number N."""
    word, _, number = argument.partition(" ")
    session = controls.session
    if word == "none":
        session.chat.detach(number.strip())
    elif argument:
        controls.front.read(partial(read_named, argument), controls.attach)
        return
    elif not session.chat.attached:
        hint = "/file PATH... attaches files: report.pdf 1-20, src/*.py, 'my notes.txt', a folder"
        raise UsageError("nothing is attached", hint=hint)
    controls.front.show_files()


def _thought(controls: Controls, _: str) -> Iterator[str]:
    reasoning = [text for kind, text in split(controls.last_answer().content) if kind == "thinking"]
    yield "".join(reasoning) or "the last answer has no reasoning"


def _answer(controls: Controls, _: str) -> None:
    """`/answer`: end the reasoning of an answer that was stopped; the screen ends that of a running one."""
    if not is_open(controls.last_answer().content):
        raise UsageError("the last answer does not end in its reasoning")
    controls.front.answer(partial(controls.session.go_on, ends_reasoning=True))


def _compare(controls: Controls, argument: str) -> None:
    """`/compare`: two answers to the last message; `sides_and_text` explains the other forms."""
    controls.session.model.needed()
    sides, text = sides_and_text(controls.session, argument)
    _compare_sides(controls, sides, text, "compare")


def _race(controls: Controls, text: str) -> None:
    """`/race`: the last message answered with and without drafting; `/race PROMPT`: another one."""
    controls.session.model.needed()
    _compare_sides(controls, racing_sides(controls.session), text, "race")


def _compare_sides(controls: Controls, sides: tuple[Side, Side], text: str, command: str) -> None:
    if not text and not controls.session.chat.turns:
        raise UsageError("there is no message to compare answers to", hint=f"/{command} PROMPT")
    controls.compare(AnswerComparison(controls.session, sides, text))


def _keep(controls: Controls, number: str) -> None:
    if controls.compared is None:
        raise UsageError("there are no compared answers", hint="run /compare first")
    controls.compared.keep(index_of(number, len(controls.compared.lanes)))
    controls.front.redraw()


# --- tools ----------------------------------------------------------------------------------------------------------


def _tools(controls: Controls, argument: str) -> Iterator[str]:
    """`/tools`: list servers and tools; `/tools ask NAME`, `/tools on`, `/tools off`, `/tools restart`."""
    session, toolbox = controls.session, controls.session.tools.toolbox
    word, _, name = argument.partition(" ")
    if not toolbox.servers:
        raise UsageError("there are no MCP servers", hint=f"name them in {default_file()}, or use --mcp-config FILE")
    if word == "ask" and name:
        tool = toolbox.find(name.strip())
        was_allowed = toolbox.ask_again(tool, session.chat.id)
        yield f"{tool.label} asks first from now on" if was_allowed else f"{tool.label} asks first already"
    elif word in ("on", "off"):
        toolbox.is_on = word == "on"
        later = " from the next message on; the whole chat is processed again once" if session.chat.turns else ""
        yield f"tools are {word}{later}"
    elif word == "restart":
        session.tools.restart()
        yield "the servers that had ended are starting"
    elif argument:
        raise UsageError(f"/tools does not know {argument!r}", hint=TOOLS_HOW_TO)
    else:
        yield from _tool_lines(controls)


def _tool_lines(controls: Controls) -> Iterator[str]:
    toolbox = controls.session.tools.toolbox
    if not toolbox.is_on:
        yield "tools are off: /tools on"
    elif controls.session.model.engine is not None and controls.session.model.style is None:
        yield "this model does not know tools, and answers without them"
    toolbox.collect()
    for server in toolbox.servers:
        tools = [tool for tool in toolbox.tools.values() if tool.server is server]
        yield f"{server.config.name}: {_state(server, len(tools))}"
        for tool in tools:
            asks = PERMISSIONS[toolbox.permission(tool, controls.session.chat.id)]
            about = shorten(one_line(tool.description), DESCRIPTION, placeholder=" …")
            yield f"  {tool.name}  ({asks})  {about}".rstrip()
    yield TOOLS_HOW_TO


def _result(controls: Controls, number: str) -> Iterator[str]:
    """`/result`: the last call of a tool with its whole result; `/result N`: call N of the chat."""
    results = [ToolResult.of(turn.content) for turn in controls.session.chat.turns if turn.role == "tool"]
    if not results:
        raise UsageError("no tool was called in this chat yet")
    result = results[index_of(number, len(results)) if number else -1]
    yield f"{result.label}: {result.summary}"
    yield result.shown_arguments
    yield result.text


def _state(server: ToolServer, n_tools: int) -> str:
    if server.state == "failed":
        return f"failed: {one_line(server.problem)}"
    return f"{server.state}, {counted(n_tools, 'tool')}"


# --- all commands ---------------------------------------------------------------------------------------------------


def _help(controls: Controls, name: str) -> Iterator[str]:
    if name:
        command = find(name.removeprefix("/"))
        yield from (command.title, command.help)
        return
    width = max(len(command.title) for command in COMMANDS)
    yield from (f"{command.title:{width}}  {command.help}" for command in COMMANDS)


# fmt: off
COMMANDS = (
    ChatCommand("help", "[COMMAND]", "List the commands, or explain one.", _help, "f1"),
    ChatCommand("model", "[MODEL|save]",
            "Load another model, downloading it if necessary, or show the current one; "
            "/model save keeps it for new chats.",
            _model, "ctrl+l"),
    ChatCommand("models", "[WORDS]", "List models here and in the catalogue, and compatible draft models.", _models),
    ChatCommand("draft", "[MODEL|auto|none]",
            "Load another draft model, the best one on this machine (auto, as --draft-model auto), or none.", _draft),
    ChatCommand("system", "[TEXT|none]", "Show or set the system prompt of this chat.", _system),
    ChatCommand("persona", "[NAME|none]",
            "Choose a persona; /persona save NAME saves one.", store.persona, "f6", waits=True),
    ChatCommand("set", "[NAME [VALUE]|save]",
            "Show or change settings for the next message; /set save keeps them for new chats.", _set, "ctrl+s"),
    ChatCommand("stats", "", "Show speed and acceptance rate of the last answer.", _stats, "ctrl+t"),
    ChatCommand("tokens", "",
            "Show or hide which drafter proposed each token.",
            lambda controls, _: controls.front.show_tokens(), "ctrl+o"),
    ChatCommand("tools", "[ask NAME|on|off|restart]",
            "List MCP servers and tools, or ask again before a tool runs.", _tools),
    ChatCommand("result", "[N]", "Show the last call of a tool, or call N, with its whole result.", _result),
    ChatCommand("thought", "", "Show the reasoning of the last answer.", _thought),
    ChatCommand("answer", "", "End the reasoning, and let the model answer now.", _answer, "f7"),
    ChatCommand("compare", "[[A |] B --] [PROMPT]",
            "Compare two answers: A (by default current settings) and B (temp=0, MODEL; by default without drafting).",
            _compare, "f4", waits=True),
    ChatCommand("race", "[PROMPT]",
            "Answer a message with and without drafting, and show both side by side at their speeds.",
            _race, waits=True),
    ChatCommand("keep", "1|2", "Keep one of two compared answers and continue.", _keep, waits=True),
    ChatCommand("regen", "[N]", "Regenerate the last answer, or answer N.", _regen, "ctrl+r", waits=True),
    ChatCommand("continue", "",
            "Resume an answer that was stopped.",
            lambda controls, _: controls.front.answer(controls.session.go_on), waits=True),
    ChatCommand("edit", "[N] [TEXT]", "Edit a message, and get a new answer.", _edit, "f3", waits=True),
    ChatCommand("editor", "",
            "Write the message in your text editor ($VISUAL or $EDITOR).",
            lambda controls, _: controls.front.open_editor()),
    ChatCommand("undo", "", "Remove the last message and its answer.", _undo, "f9", waits=True),
    ChatCommand("fork", "", "Copy this conversation into a new chat.", _fork, "f5", waits=True),
    ChatCommand("branches", "[N]", "List the branches of this chat, or switch to one.", _branches, waits=True),
    ChatCommand("clear", "", "Start a new chat; this one is saved.", store.clear, "ctrl+n", ("new",), waits=True),
    ChatCommand("list", "[WORDS]", "List recent chats, or chats that contain these words.", store.list_chats, "ctrl+b"),
    ChatCommand("load", "N|ID|last", "Open a chat.", store.load, waits=True, arguments=store.chat_ids),
    ChatCommand("search", "WORDS", "Search all chats.", store.search, "ctrl+g"),
    ChatCommand("rename", "TITLE", "Rename this chat.", store.rename, "f2"),
    ChatCommand("pin", "", "Pin this chat above the others, or unpin it.", store.pin),
    ChatCommand("folder", "[NAME|none]", "Move this chat into a folder, or list the folders.", store.folder),
    ChatCommand("restart", "[N]",
            "Reload the model, or after a failure reload it with other settings (N).", _restart, waits=True),
    ChatCommand("delete", "ID...", "Delete chats permanently.", store.delete, waits=True),
    ChatCommand("export", "[md|jsonl|FILE]",
            "Export this chat to a file, by default in the current folder.", store.export, "f8"),
    ChatCommand("copy", "[N|code [N]]", "Copy the last answer, message N, or a code block.", _copy, "f12"),
    ChatCommand("save", "[N] [FILE]",
            "Save a code block of the last answer to a file, by default in the current folder.", _save),
    ChatCommand("file", "[PATH... [1-20]|none]",
            "Attach documents, text or images to a message, or list or remove them.", _file),
    ChatCommand("bye", "", "Quit.", lambda controls, _: controls.front.leave(), "ctrl+q", aliases=("exit", "quit")),
)
# fmt: on
