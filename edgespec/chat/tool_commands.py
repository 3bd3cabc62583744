"""The commands on tools: they list them, take permissions back, start servers again, and show results."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten

from edgespec.chat.session import Session
from edgespec.errors import UsageError
from edgespec.text.figures import counted
from edgespec.text.printable import one_line
from edgespec.tools.config import default_file
from edgespec.tools.results import ToolResult
from edgespec.tools.server import Server

SHOWN = 70  # characters of a description
PERMISSIONS = {"always": "allowed always", "chat": "allowed in this chat", None: "asks first"}
HOW_TO = "/tools ask NAME takes a permission back, /tools off and on, /tools restart starts the servers again"


class ToolCommands:
    """Commands on the tools of `session`."""

    session: Session

    def do_tools(self, argument: str) -> Iterator[str]:
        """`/tools`: list servers and tools; `/tools ask NAME`, `/tools on`, `/tools off`, `/tools restart`."""
        session, toolbox = self.session, self.session.toolbox
        word, _, name = argument.partition(" ")
        if not toolbox.servers:
            raise UsageError(
                "there are no MCP servers", hint=f"name them in {default_file()}, or use --mcp-config FILE"
            )
        if word == "ask" and name:
            tool = toolbox.find(name.strip())
            was_allowed = toolbox.ask_again(tool, session.chat_id)
            yield f"{tool.label} asks first from now on" if was_allowed else f"{tool.label} asks first already"
        elif word in ("on", "off"):
            toolbox.is_on = word == "on"
            later = " from the next message on; the whole chat is processed again once" if session.turns else ""
            yield f"tools are {word}{later}"
        elif word == "restart":
            session.restart_tools()
            yield "the servers that had ended are starting"
        elif argument:
            raise UsageError(f"/tools does not know {argument!r}", hint=HOW_TO)
        else:
            yield from self._tool_lines()

    def _tool_lines(self) -> Iterator[str]:
        toolbox = self.session.toolbox
        if not toolbox.is_on:
            yield "tools are off: /tools on"
        elif self.session.engine is not None and self.session.model.style is None:
            yield "this model does not know tools, and answers without them"
        toolbox.collect()
        for server in toolbox.servers:
            tools = [tool for tool in toolbox.tools.values() if tool.server is server]
            yield f"{server.config.name}: {_state(server, len(tools))}"
            for tool in tools:
                asks = PERMISSIONS[toolbox.permission(tool, self.session.chat_id)]
                about = shorten(one_line(tool.description), SHOWN, placeholder=" …")
                yield f"  {tool.name}  ({asks})  {about}".rstrip()
        yield HOW_TO

    def do_result(self, number: str) -> Iterator[str]:
        """`/result`: the last call of a tool with its whole result; `/result N`: call N of the chat."""
        results = [ToolResult.of(turn.content) for turn in self.session.turns if turn.role == "tool"]
        if not results:
            raise UsageError("no tool was called in this chat yet")
        if number and not (number.isdecimal() and 1 <= int(number) <= len(results)):
            raise UsageError(f"choose a number from 1 to {len(results)}")
        result = results[int(number or len(results)) - 1]
        yield f"{result.label}: {result.summary}"
        yield result.shown_arguments
        yield result.text


def _state(server: Server, n_tools: int) -> str:
    if server.state == "failed":
        return f"failed: {one_line(server.problem)}"
    return f"{server.state}, {counted(n_tools, 'tool')}"
