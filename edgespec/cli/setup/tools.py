"""The tools of a command: the MCP servers of a file, and their calls in an answer to one prompt."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.command import Call, Options
from edgespec.cli.options.common import option
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import TokenEvent
from edgespec.settings import Message, Request

if TYPE_CHECKING:
    from edgespec.dialects.calls import ToolCall
    from edgespec.runtime.runtime import Runtime
    from edgespec.tools.results import ToolResult
    from edgespec.tools.toolbox import Toolbox

# fmt: off
MCP_CONFIG = option(
    "Tools", "--mcp-config", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    show_default="mcp.json in the folder of settings",
    help='Use tools of the MCP servers in this file: {"mcpServers": {...}}.',
)
ALLOW_TOOL = option(
    "Tools", "--allow-tool", multiple=True, metavar="NAME",
    help="Let the model call this tool, named TOOL, SERVER/TOOL or SERVER/*. Repeatable.",
)
# fmt: on


@contextmanager
def open_toolbox(file: Path | None, note: Callable[[str], None] | None = None) -> Iterator[Toolbox]:
    """Yield the tools of `--mcp-config`, or of the user's file; end their servers after the block.

    Raises UsageError if they cannot be used; with `note`, a problem of the user's file is only noted.
    """
    from edgespec.tools.config import read_servers
    from edgespec.tools.toolbox import Toolbox

    try:
        toolbox = Toolbox(read_servers(file))
    except UsageError as error:
        if note is None or file is not None:
            raise
        note(f"no tools: {error}")
        toolbox = Toolbox([])
    with toolbox:
        yield toolbox


class ToolRun:
    """An answer to one prompt with the tools that the user allows; `results` are those of its calls.

    The constructor waits for the servers. Raises UsageError if the answer cannot have these tools.
    """

    def __init__(
        self, call: Call[Options], llm: Runtime, asked: Request, toolbox: Toolbox, allowed: Sequence[str]
    ) -> None:
        from edgespec.tools.offer import ToolOffer, style_of

        self._llm, self._toolbox, self._output, self._cancel = llm, toolbox, call.output, call.cancel
        self.results: list[ToolResult] = []
        self._used = 0  # tokens of the context
        if not asked.messages:
            raise UsageError("tools need a chat", why="this prompt is completed as it is")
        if asked.constraint is not None:
            raise UsageError(f"tools and a {asked.constraint[0]} exclude each other")
        if (style := style_of(llm)) is None:
            raise UsageError(
                f"the chat template of {llm.settings.model} has no tools",
                hint="use a model whose template has them, or leave out --allow-tool",
            )
        toolbox.start()
        with call.cancelling():
            toolbox.wait(call.cancel)
        self._note()
        toolbox.allow_only(allowed)
        self._offer = ToolOffer.of(style, toolbox)
        self.request = replace(asked, template=self._offer.template)

    def events(self) -> Generator[tuple[int, TokenEvent | EdgespecError], None, None]:
        """Yield the events of all answers as those of one, with the statistics of all at its end."""
        from edgespec.tools.offer import MOST_ROUNDS

        total = Stats()
        for _ in range(MOST_ROUNDS):
            answer, text, last = yield from self._answer()
            stats = last.stats or Stats()
            total.add(stats)
            calls = self._offer.calls(answer.content) if last.finish_reason == "stop" else []
            if calls:
                self._take_calls(answer, text, calls, stats)
            if not calls or self._cancel.is_set():
                yield 0, replace(last, text="", stats=total)
                return
            if text.strip():
                yield 0, TokenEvent(-1, "\n\n")
        yield 0, TokenEvent(-1, "", finish_reason="error", stats=total)
        yield 0, GenerationError("the model calls tools without end", why=f"{MOST_ROUNDS} answers had calls")

    def _answer(self) -> Generator[tuple[int, TokenEvent], None, tuple[Message, str, TokenEvent]]:
        """Yield the events of one answer without its calls; return the answer, its text without them, and its end."""
        from edgespec.tools.offer import Shown

        shown, ids, written, text = Shown(self._offer), list[int](), list[str](), list[str]()
        last = TokenEvent(-1, "", finish_reason="error")
        with closing(self._llm.submit(self.request, self._cancel)) as events:
            for event in events:
                last = event
                written.append(event.text)
                ids += [event.id] if event.id >= 0 else []
                visible = replace(shown.push(event), finish_reason=None, stats=None, cut="")
                text.append(visible.text)
                yield 0, visible
        for rest in shown.end():
            text.append(rest.text)
            yield 0, rest
        return Message("assistant", "".join(written), () if last.cut else tuple(ids)), "".join(text), last

    def _take_calls(self, answer: Message, text: str, calls: Sequence[ToolCall], stats: Stats) -> None:
        """Run the calls of an answer, and add it and the results to the next request."""
        from edgespec.tools.offer import MOST_CALLS, called, replied

        results: list[ToolResult] = []
        self._used = stats.prompt_tokens + stats.generated_tokens
        for call in calls[:MOST_CALLS]:
            for calling in self._toolbox.run(call, "", self._cancel, self._cut):
                if calling.result is not None:
                    results.append(calling.result)
                    self._output.interject(f"{calling.tool.label} {call.arguments}: {calling.result.summary}")
            self._note()
        self.results += results
        first = len(self.results) - len(results)
        replies = (replied(result, number) for number, result in enumerate(results, first))
        sent = called(answer, text, results, self._offer.style, first)
        self.request = replace(self.request, messages=(*self.request.messages, sent, *replies))

    def _cut(self, text: str, left_out: int) -> str:
        from edgespec.tools.offer import budget
        from edgespec.tools.results import cut

        kept = cut(text, left_out, budget(self._llm.context.n_ctx, self._used), self._count)
        self._used += self._count(kept)
        return kept

    def _count(self, text: str) -> int:
        return len(self._llm.token_ids(text, add_special=False, parse_special=False))

    def _note(self) -> None:
        for note in self._toolbox.new_notes():
            self._output.note(note)

    def as_json(self) -> list[dict[str, object]]:
        """Return the calls with their results as plain data."""
        return [
            {
                "tool": each.label,
                "arguments": each.function["arguments"],
                "outcome": each.outcome,
                "result": each.text,
            }
            for each in self.results
        ]
