"""Finds where an answer begins to call a tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from edgespec.dialects.calls import Schemas
from edgespec.dialects.dialect import Calls, Dialect, Messages
from edgespec.dialects.forms import parts_of


class CallStarts:
    """The beginnings of calls in a dialect.

    A mark with a special token begins a call. A mark that is text may be a part of the content, such as the name of a
    Python module: it begins a call once the name of a tool follows as in a call. Without marks, a call begins with the
    name of a tool at the beginning of the answer.

    Attributes:
        ends: The characters with which these beginnings end.
    """

    def __init__(self, dialect: Dialect, schemas: Schemas, specials: Iterable[str]) -> None:
        self._messages, self._schemas, specials = dialect.messages, schemas, [*specials]
        self._marks: dict[str, str] = {}  # and the text before them in a whole call
        self._named: re.Pattern[str] | None = None
        self._calls = calls = dialect.calls
        self.ends = set[str]()
        if calls is None or not schemas:
            return
        if self._messages is not None:
            self.ends = {self._messages.header_end[-1]}
            return
        marks = [calls.section[0]] if calls.section[0] else parts_of(calls.call[0])
        are_special = all(any(special in mark for special in specials) for mark in marks)
        self._marks = {mark: "".join(marks[:place]) for place, mark in enumerate(marks) if are_special}
        self.ends = {mark[-1] for mark in self._marks}
        if not are_special or not marks:
            self._named, end = _named(calls, schemas)
            self.ends |= {end} if end else set()

    def found(self, text: str, n_new: int, *, is_whole: bool) -> str | None:
        """Return the beginning of a call as `call_grammar` writes it, if it is complete with the last `n_new`
        characters of a text; None otherwise. The text is the end of the answer, or with `is_whole` all of it."""
        if self._messages is not None:
            return self._message(self._messages, text, n_new)
        for mark, before in self._marks.items():
            place = text.rfind(mark)
            if place >= 0 and place + len(mark) > len(text) - n_new:
                return before + text[place:]
        if self._named is None or self._calls is None:
            return None
        is_bare = not (self._calls.section[0] or self._calls.call[0])
        if is_bare and not is_whole:
            return None
        for match in [self._named.match(text)] if is_bare else self._named.finditer(text):
            if match is not None and match.end() > len(text) - n_new:
                return self._canonical(match) + text[match.end() :]
        return None

    def _canonical(self, match: re.Match[str]) -> str:
        """Return the text that a pattern has found, with the layout of the grammar."""
        calls = self._calls
        assert calls is not None
        if calls.form != "json":
            return match[0]
        mark = calls.section[0] or calls.call[0]
        key = f"{json.dumps(calls.keys[0])}: " if calls.keys[0] else ""
        return f"{mark}{match['list'] or ''}{{{key}{json.dumps(match['name'])}"

    def _message(self, form: Messages, text: str, n_new: int) -> str | None:
        """Return the header of a message that calls a tool."""
        end = text.rfind(form.header_end)
        start = text.rfind(form.start, 0, max(end, 0))
        if start < 0 or end + len(form.header_end) <= len(text) - n_new:
            return None
        kind, name = form.classify(text[start + len(form.start) : end])
        return f"{form.call.format(name)}{text[end:]}" if kind == "drop" and name in self._schemas else None


def _named(calls: Calls, schemas: Schemas) -> tuple[re.Pattern[str] | None, str]:
    """Return a pattern of the marks of a call with the name of a tool, and its last character; None without one."""
    names = f"(?P<name>{'|'.join(map(re.escape, sorted(schemas, key=len, reverse=True)))})"
    opened = r"\s*".join(re.escape(part) for mark in (calls.section[0], calls.call[0]) for part in parts_of(mark))
    if calls.form == "json":
        if calls.wrapper:
            return None, ""
        key = rf"{re.escape(json.dumps(calls.keys[0]))}\s*:\s*" if calls.keys[0] else ""
        bare = "" if opened else r"\s*(?:<\|python_tag\|>)?"
        return re.compile(rf'{opened}{bare}\s*(?P<list>\[)?\s*\{{\s*{key}"{names}"'), '"'
    after = calls.name[1] or calls.id[0]
    if not opened or not after or calls.ids:
        return None, ""
    return re.compile(rf"{opened}\s*{re.escape(calls.name[0])}{names}{re.escape(after)}"), after[-1]
