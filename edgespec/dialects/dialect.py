"""How a model writes an answer: the marks around its reasoning, its content and its calls of tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Marks = tuple[str, str]
"""The texts before and after a part of an answer."""

Kind = Literal["thinking", "answer", "drop"]
"""What a message of an answer is; "drop" if it is not shown."""

NO_MARKS: Marks = ("", "")
THINK: Marks = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Calls:
    """How calls are written. Blanks around marks do not count.

    Attributes:
        form: "json": an object with the name and the arguments; "named": the name, then the arguments as JSON;
            "tagged": the name, then each argument between marks; "python": a call in Python; "gemma": the name, then an
            object in the notation of Gemma 4.
        section: The marks around all calls of an answer.
        call: The marks around each call.
        name: The marks around the name, if it is not in JSON.
        keys: In JSON, the names of the fields with the name, the arguments and the id; without a first one, the name of
            the tool is the field of its arguments.
        wrapper: In JSON, the field whose value has the fields, if there is one.
        id: The marks around the id of a call that is not in JSON, after the name.
        key: The marks around the name of an argument.
        value: The marks around the value of an argument.
        has_lines: Line breaks may separate the marks from the value; otherwise they belong to it.
        short_ids: Ids have nine characters.
        ids: The ids that the model expects, with the `name` of the tool and the `number` of the call in the chat.
        between: The text between two calls in JSON without marks around each.
    """

    form: Literal["json", "named", "tagged", "python", "gemma"]
    section: Marks = NO_MARKS
    call: Marks = NO_MARKS
    name: Marks = NO_MARKS
    keys: tuple[str, str, str] = ("name", "arguments", "")
    wrapper: str = ""
    id: Marks = NO_MARKS
    key: Marks = NO_MARKS
    value: Marks = NO_MARKS
    has_lines: bool = False
    short_ids: bool = False
    ids: str = ""
    between: str = ""


HERMES = Calls("json", call=("<tool_call>", "</tool_call>"))
"""The form of calls that is described to models whose template has none."""


@dataclass(frozen=True, slots=True)
class Messages:
    """An answer of several messages.

    Attributes:
        start: Begins a message. The prompt has the first one.
        header_end: Ends the header of a message.
        ends: The marks that end a message.
        answer: The header of a message for the user.
        thought: The header of a message with reasoning; "" if there are none.
        call: The header of a message that calls a tool, with `{}` for its name.
        classify: Returns what a message with this header is, and the tool that it calls.
    """

    start: str
    header_end: str
    ends: tuple[str, ...]
    classify: Callable[[str], tuple[Kind, str]]
    answer: str
    thought: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model writes an answer.

    Attributes:
        reasoning: The marks around reasoning; None if there are none. The first is empty if only the prompt has it.
        content: The marks around the content.
        calls: None if the template does not know calls.
        is_assumed: The template shows no marks of reasoning; those that most models have are looked for.
        reads_text: The template finds the reasoning of an earlier answer in its content, as `<think>` text.
        switch: The variable of the template that switches reasoning on and off; "" if there is none.
        opening: What the template writes after the mark that opens reasoning.
        silent: Other marks, which are no part of the content.
        messages: The form of an answer that is several messages.
        reasoning_field: The field of a message with the reasoning of an earlier answer; "" if the template reads none.
    """

    reasoning: Marks | None = None
    content: Marks = NO_MARKS
    calls: Calls | None = None
    reasoning_field: str = ""
    reads_text: bool = False
    switch: str = ""
    opening: str = ""
    is_assumed: bool = False
    silent: tuple[str, ...] = ()
    messages: Messages | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks. Those that are control tokens have no text in an answer otherwise."""
        calls, messages = self.calls, self.messages
        found = [*(self.reasoning or ()), *self.content, *self.silent]
        if calls is not None:
            found += [*calls.section, *calls.call, *calls.name, *calls.id, *calls.key, *calls.value]
        if messages is not None:
            found += [messages.start, messages.header_end, *messages.ends]
            found += [messages.answer, messages.thought, messages.call]
        return tuple(filter(None, found))

    def opened(self, prompt: str, begun: str = "") -> str | None:
        """Return what a prompt has begun of the answer's reasoning; None if the answer does not begin inside of it. For
        an answer of several messages, return the beginning of the first one. `begun` is a text that follows the prompt,
        which the answer continues."""
        if self.messages is not None:
            text, start = prompt + self.continued(prompt, begun), self.messages.start
            return text[text.rindex(start) :] if start in text else ""
        start, end = self.reasoning or NO_MARKS
        _, mark, opened = prompt.rpartition(start) if start else ("", "", "")
        # Otherwise the mark is a part of a message.
        is_open = bool(mark) and opened.strip() in ("", self.opening)
        if begun:
            is_inside = (is_open or (bool(start) and begun.startswith(start))) and end not in self.continued(
                prompt, begun
            )
            return "" if is_inside else None
        return opened if is_open else None

    def continued(self, prompt: str, begun: str) -> str:
        """Return a begun answer as it follows a prompt that may have opened its reasoning: without the mark that the
        prompt has, or after the end of this reasoning."""
        if not begun:
            return ""
        opened = self.opened(prompt)
        if (form := self.messages) is not None:
            header = f"{form.thought}{form.header_end}"
            if not form.thought or not (opened or "").endswith(header):
                return begun
            return begun.removeprefix(header) if begun.startswith(header) else f"{form.ends[0]}{form.start}{begun}"
        if opened is None or self.reasoning is None:
            return begun
        start, end = self.reasoning
        return begun.removeprefix(start).removeprefix(opened) if begun.startswith(start) else f"{end}\n\n{begun}"
