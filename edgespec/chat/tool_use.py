"""Tools in a conversation: the model gets them, its calls are run if the user allows them, and it answers again."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.cancel import CancelFlag
from edgespec.chat.conversation import SHORT, Conversation
from edgespec.chat.events import Added, Notice
from edgespec.chat.saving import Recording
from edgespec.dialects.calls import ToolCall
from edgespec.history import Turn
from edgespec.history.data import turn_of
from edgespec.settings import CONSTRAINTS, Message
from edgespec.tools.offer import MOST_CALLS, MOST_ROUNDS, NO_TOOLS, ToolOffer, budget
from edgespec.tools.results import ToolResult, cut
from edgespec.tools.toolbox import Calling, Toolbox

ELSEWHERE = "a model of a server cannot call tools of this machine: it answers without them"


class ToolUse:
    """The tools in `toolbox`, as the model of a conversation may call them.

    `calls` are those of the last answer that have not run. `Conversation.offer` is the part of the tools that the model
    gets.
    """

    def __init__(self, chat: Conversation, toolbox: Toolbox) -> None:
        self.toolbox = toolbox
        self.calls: list[ToolCall] = []
        self._chat = chat
        self._reported = ""

    def start(self) -> None:
        """Start the servers if the model knows tools, without waiting for them; otherwise report why it has none."""
        model = self._chat.model
        if not self.toolbox.is_on or model.engine is None:
            return
        if model.style is None:
            self._report(ELSEWHERE if model.server else NO_TOOLS)
        else:
            self.toolbox.start()

    def restart(self) -> None:
        """Start the servers that have ended. Raises UsageError while an answer is generated."""
        self._chat.check_idle()
        self.toolbox.start()

    def offer(self, cancel: CancelFlag) -> None:
        """Wait until the tools are known, and offer them with the next answers."""
        chat = self._chat
        chat.offer, self.calls = None, []
        if not self.toolbox.is_on or chat.model.engine is None or (style := chat.model.style) is None:
            return
        if constraints := [name for kind, name in CONSTRAINTS.items() if getattr(chat.settings, kind)]:
            self._report(f"answers that a {constraints[0]} constrains cannot call tools")
            return
        self.toolbox.wait(cancel)
        chat.offer = ToolOffer.of(style, self.toolbox) if self.toolbox.tools else None

    def _report(self, reason: str) -> None:
        """Note once why the model gets no tools."""
        if reason != self._reported:
            self.toolbox.notes.append(reason)
        self._reported = reason

    def find_calls(self, recording: Recording) -> None:
        """Find the calls of an answer that has ended."""
        offer = self._chat.offer
        self.calls = offer.calls(recording.content) if offer and recording.reason == "stop" else []
        recording.calls = sorted({call.span for call in self.calls})

    def run(self, n_rounds: int, cancel: CancelFlag) -> Iterator[Calling | Added | Notice]:
        """Run the calls of the last answer and keep their results; `n_rounds` answers have called tools before."""
        calls, self.calls = self.calls, []
        for number, call in enumerate(calls):
            if n_rounds >= MOST_ROUNDS or number >= MOST_CALLS:
                most = f"{MOST_ROUNDS} answers with calls" if n_rounds >= MOST_ROUNDS else f"{MOST_CALLS} calls"
                label, text = self.toolbox.tools[call.name].label, f"Not run: the limit is {most}."
                yield Added(self._keep(ToolResult(label, call.arguments, "not run", text)))
                continue
            for calling in self.toolbox.run(call, self._chat.id, cancel, self._cut):
                yield calling
                if calling.result is not None:
                    yield Added(self._keep(calling.result))
        if n_rounds >= MOST_ROUNDS:
            text = f"stopped after {MOST_ROUNDS} answers with calls of tools; another message continues"
            yield Notice(text, "warning")

    def _keep(self, result: ToolResult) -> Turn:
        turn = turn_of(self._chat.id, self._chat.head, "tool", result.content)
        self._chat.append(turn)
        self._chat.used += self._count(result.told)
        return turn

    def _cut(self, text: str, left_out: int) -> str:
        return cut(text, left_out, budget(self._chat.context_size, self._chat.used), self._count)

    def _count(self, text: str) -> int:
        count = self._chat.model.count
        return count([Message("user", text)]) - count([SHORT])
