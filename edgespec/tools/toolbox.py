"""The tools of all servers, as the model knows them, and calls that the user allows first."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.dialects.calls import NAME, ToolCall
from edgespec.errors import UsageError
from edgespec.extras import check_extra
from edgespec.text.figures import counted
from edgespec.text.printable import one_line
from edgespec.tools.config import ServerConfig
from edgespec.tools.permissions import Permissions
from edgespec.tools.results import DENIED, STOPPED, Outcome, ToolResult, readable
from edgespec.tools.server import Reply, ToolDescription, ToolServer

LOOK_S = 0.05

Decision = Literal["once", "chat", "always", "deny"]
Cut = Callable[[str, int], str]
"""A function that shortens a text, at whose end this number of characters is missing already."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its server, its name there, its name for the model, and the schema of its arguments."""

    server: ToolServer
    own: str
    name: str
    description: str
    parameters: dict[str, object]

    @property
    def label(self) -> str:
        """The name for the user: "SERVER/TOOL"."""
        return f"{self.server.config.name}/{self.own}"

    @property
    def any_of_server(self) -> str:
        """The name for all tools of the server: "SERVER/*"."""
        return f"{self.server.config.name}/*"

    @property
    def function(self) -> dict[str, object]:
        """The tool as chat templates expect it: an object of OpenAI's API."""
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": about}


@dataclass(slots=True, eq=False)
class Calling:
    """A call of a tool as it proceeds: the user is asked, it runs, it is done. A front end shows it, and answers the
    question with `decide`."""

    tool: Tool
    arguments: str
    state: Literal["asking", "running", "done"] = "asking"
    result: ToolResult | None = None
    _decision: Decision | None = None
    _decided: threading.Event = field(default_factory=threading.Event)

    def decide(self, decision: Decision) -> None:
        """Allow or deny the call; the first decision counts."""
        self._decision = self._decision or decision
        self._decided.set()

    def decision(self, cancel: CancelFlag) -> Decision | None:
        """Wait for the decision, and return it; None if `cancel` is set before."""
        while not self._decided.wait(LOOK_S):
            if cancel.is_set():
                return None
        return self._decision


class Toolbox(Closable):
    """The tools of some servers, which start in the background.

    Attributes:
        tools: The tools by their names for the model. They stay while a server fails, since other tools would mean
            another prompt.
        notes: Messages for the user.
        is_on: The model gets the tools.
    """

    def __init__(self, configs: Sequence[ServerConfig], permissions: Permissions | None = None) -> None:
        if configs:
            check_extra("mcp", "a server of tools")
        self.servers = [ToolServer(config) for config in configs]
        self.permissions = permissions or Permissions()
        self.tools: dict[str, Tool] = {}
        self.notes = [_ignored(config) for config in configs if config.ignored]
        self.is_on = bool(configs)
        self._for_chat: set[tuple[str, str]] = set()  # chats and the labels of tools that are allowed in them
        self._reported: set[ToolServer] = set()

    def shared(self) -> Toolbox:
        """Return the same tools for another conversation at the same time, which can be off or on there."""
        other = copy(self)
        other.tools, other.notes = {}, []
        return other

    def start(self) -> None:
        """Start the servers that do not run, without waiting until they are ready."""
        if all(server.state in ("starting", "ready") for server in self.servers):
            return
        self.tools = {}
        self._reported.clear()
        for server in self.servers:
            server.start()

    @property
    def is_starting(self) -> bool:
        return self.is_on and any(server.state == "starting" for server in self.servers)

    def wait(self, cancel: CancelFlag) -> None:
        """Wait until each server is ready or has failed; each failure becomes a note, once."""
        for server in self.servers:
            server.wait(cancel)
        self.collect()
        self._note_failures()

    def close(self) -> None:
        """End the servers."""
        for server in self.servers:
            server.leave()
        for server in self.servers:
            server.close()

    @property
    def functions(self) -> list[dict[str, object]]:
        return [tool.function for tool in self.tools.values()]

    @property
    def schemas(self) -> dict[str, dict[str, object]]:
        return {tool.name: tool.parameters for tool in self.tools.values()}

    def find(self, name: str) -> Tool:
        """Return the tool with a name for the model or a label. Raises UsageError."""
        for tool in self.tools.values():
            if name in (tool.name, tool.label):
                return tool
        raise UsageError(f"there is no tool {name!r}", hint=", ".join(self.tools) or "no server has tools")

    def allow_only(self, names: Collection[str]) -> None:
        """Keep only the tools with these names or labels, or of a server ("SERVER/*"), and allow them without a chat.
        Raises UsageError for a name without a tool."""
        tools = self.tools.values()
        kept = {self.find(name).name for name in names if not any(name == tool.any_of_server for tool in tools)}
        kept |= {tool.name for tool in tools if tool.any_of_server in names}
        self.tools = {name: tool for name, tool in self.tools.items() if name in kept}
        self._for_chat |= {("", tool.label) for tool in self.tools.values()}

    # --- calls --------------------------------------------------------------------------------------------------------

    def permission(self, tool: Tool, chat: str) -> Decision | None:
        """Return for how long a tool is allowed in a chat, None if the user has to be asked."""
        if self.permissions.allows(tool.server.config, tool.own):
            return "always"
        return "chat" if (chat, tool.label) in self._for_chat else None

    def ask_again(self, tool: Tool, chat: str) -> bool:
        """Take back the permission of a tool; return False if there was none. Raises UsageError."""
        was_allowed = (chat, tool.label) in self._for_chat
        self._for_chat.discard((chat, tool.label))
        return self.permissions.ask_again(tool.server.config, tool.own) or was_allowed

    def run(self, call: ToolCall, chat: str, cancel: CancelFlag, cut_off: Cut) -> Iterator[Calling]:
        """Run a call of the model if the user allows it. Yield it when its state changes, at last with its result."""
        calling = Calling(self.tools[call.name], call.arguments)
        decision = None if cancel.is_set() else self.permission(calling.tool, chat)
        if decision is None and not cancel.is_set():
            yield calling
            decision = calling.decision(cancel)
        if decision == "chat":
            self._for_chat.add((chat, calling.tool.label))
        elif decision == "always":
            self._allow_always(calling.tool, chat)
        if decision in (None, "deny"):
            yield self._done(calling, "stopped" if decision is None else "denied")
            return
        calling.state = "running"
        yield calling
        reply = calling.tool.server.call(calling.tool.own, json.loads(call.arguments), cancel)
        self._note_failures()
        yield self._replied(calling, reply, cut_off)

    def _allow_always(self, tool: Tool, chat: str) -> None:
        """Save a permission; if it cannot be saved, it holds for this chat."""
        try:
            self.permissions.allow(tool.server.config, tool.own)
        except UsageError as error:
            self._for_chat.add((chat, tool.label))
            self.notes.append(f"{error}: it holds for this chat")

    def _replied(self, calling: Calling, reply: Reply, cut_off: Cut) -> Calling:
        if reply.how == "cancelled":
            return self._done(calling, "stopped")
        text = cut_off(readable(reply.text), reply.left_out)
        return self._done(calling, "error" if reply.is_error else "ok", text)

    @staticmethod
    def _done(calling: Calling, outcome: Outcome, text: str = "") -> Calling:
        text = {"denied": DENIED, "stopped": STOPPED}.get(outcome, text)
        calling.state = "done"
        calling.result = ToolResult(calling.tool.label, calling.arguments, outcome, text)
        return calling

    # --- servers ------------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Name the tools once no server is starting: each by its own name, or with its server before it if two servers
        have a tool of this name."""
        if self.tools or self.is_starting:
            return
        found: dict[str, tuple[ToolServer, ToolDescription]] = {}
        for server in self.servers:
            for about in server.tools:
                label = f"{server.config.name}/{about['name']}"
                if about["problem"] or not NAME.match(about["name"]):
                    why = about["problem"] or "its name is not one that a model can call"
                    self.notes.append(f"the tool {one_line(label)} is left out: {why}")
                else:
                    found.setdefault(label, (server, about))
        names = Counter(about["name"] for _, about in found.values())
        for server, about in found.values():
            own, of = about["name"], server.config.name
            choices = [*([own] if names[own] == 1 else []), f"{of}_{own}", f"{of}/{own}"]
            name = next(name for name in choices if name not in self.tools)
            self.tools[name] = Tool(server, own, name, readable(about["description"]), about["parameters"])

    def _note_failures(self) -> None:
        for server in self.servers:
            if server.state == "failed" and server not in self._reported:
                self._reported.add(server)
                self.notes.append(f"the MCP server {server.config.name} has failed: {one_line(server.problem)}")

    def new_notes(self) -> list[str]:
        """Return the notes since the last call."""
        notes, self.notes = self.notes, []
        return notes


def _ignored(config: ServerConfig) -> str:
    n_fields = counted(len(config.ignored), "field")
    return f"the MCP server {config.name} has {n_fields} without effect here: {', '.join(config.ignored)}"
