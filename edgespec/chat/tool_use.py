"""Tools in a conversation: the model gets them, its calls are run if the user allows them, and it answers again."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.cancel import CancelFlag
from edgespec.chat.answerer import Added, Notice
from edgespec.chat.conversation import SHORT, Conversation
from edgespec.chat.model import ChatModel
from edgespec.chat.saving import Recording
from edgespec.chat.settings import ChatSettings
from edgespec.dialects.calls import ToolCall
from edgespec.history import Store, Turn
from edgespec.history.data import turn_of
from edgespec.settings import CONSTRAINTS, Message
from edgespec.tools.offer import MOST_CALLS, MOST_ROUNDS, NO_TOOLS, Offer, budget
from edgespec.tools.results import ToolResult, cut
from edgespec.tools.toolbox import Calling, Toolbox

ELSEWHERE = "a model of a server cannot call tools of this machine: it answers without them"


class ToolUse(Conversation):
    """A conversation whose model may call the tools in `toolbox`.

    `offer` is what the model gets of them, None without tools. `calls` are those of the last answer that have not run.
    """

    def __init__(
        self, model: ChatModel, store: Store, settings: ChatSettings, system: str, toolbox: Toolbox | None
    ) -> None:
        self.toolbox = toolbox or Toolbox([])
        self.calls: list[ToolCall] = []
        self._reported = ""
        super().__init__(model, store, settings, system)

    @property
    def chat_id(self) -> str:
        """The id of the open chat, also before it is saved."""
        return self._id

    def reading(self, done: float) -> str:
        return "starting tools" if self.toolbox.is_starting else super().reading(done)

    def start_tools(self) -> None:
        """Start the servers if the model knows tools, without waiting for them; otherwise report why it has none."""
        if not self.toolbox.is_on or self.engine is None:
            return
        if self.model.style is None:
            self._report(ELSEWHERE if self.model.server else NO_TOOLS)
        else:
            self.toolbox.start()

    def restart_tools(self) -> None:
        """Start the servers that have ended. Raises UsageError while an answer is generated."""
        self._check_idle()
        self.toolbox.start()

    def offer_tools(self, cancel: CancelFlag) -> None:
        """Wait until the tools are known, and offer them with the next answers."""
        self.offer, self.calls = None, []
        if not self.toolbox.is_on or self.engine is None or (style := self.model.style) is None:
            return
        if constraints := [name for kind, name in CONSTRAINTS.items() if getattr(self.settings, kind)]:
            self._report(f"answers that a {constraints[0]} constrains cannot call tools")
            return
        self.toolbox.wait(cancel)
        self.offer = Offer.of(style, self.toolbox) if self.toolbox.tools else None

    def _report(self, reason: str) -> None:
        """Note once why the model gets no tools."""
        if reason != self._reported:
            self.toolbox.notes.append(reason)
        self._reported = reason

    def _find_calls(self, recording: Recording) -> None:
        """Find the calls of an answer that has ended."""
        self.calls = self.offer.calls(recording.content) if self.offer and recording.reason == "stop" else []
        recording.calls = sorted({call.span for call in self.calls})

    def _run_calls(self, n_rounds: int, cancel: CancelFlag) -> Iterator[Calling | Added | Notice]:
        """Run the calls of the last answer and keep their results; `n_rounds` answers have called tools before."""
        calls, self.calls = self.calls, []
        for number, call in enumerate(calls):
            if n_rounds >= MOST_ROUNDS or number >= MOST_CALLS:
                most = f"{MOST_ROUNDS} answers with calls" if n_rounds >= MOST_ROUNDS else f"{MOST_CALLS} calls"
                result = ToolResult(
                    self.toolbox.tools[call.name].label, call.arguments, "not run", f"Not run: the limit is {most}."
                )
                yield Added(self._keep_result(result))
                continue
            for calling in self.toolbox.run(call, self._id, cancel, self._cut):
                yield calling
                if calling.result is not None:
                    yield Added(self._keep_result(calling.result))
        if n_rounds >= MOST_ROUNDS:
            said = f"stopped after {MOST_ROUNDS} answers with calls of tools; another message continues"
            yield Notice(said, "warning")

    def _keep_result(self, result: ToolResult) -> Turn:
        turn = turn_of(self._id, self._head, "tool", result.content)
        self._keep(turn)
        self.used += self._count(result.told)
        return turn

    def _cut(self, text: str, left_out: int) -> str:
        return cut(text, left_out, budget(self.context_size, self.used), self._count)

    def _count(self, text: str) -> int:
        return self.model.count([Message("user", text)]) - self.model.count([SHORT])
