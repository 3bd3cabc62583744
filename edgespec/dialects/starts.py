"""Finds where an answer begins to call a tool."""

from __future__ import annotations

import json
import re

from edgespec.dialects.calls import Schemas
from edgespec.dialects.dialect import Dialect, Messages
from edgespec.dialects.forms import parts_of


class CallStarts:
    """The beginnings of calls in a dialect.

    Attributes:
        ends: The characters with which these beginnings end.
    """

    def __init__(self, dialect: Dialect, schemas: Schemas) -> None:
        self._messages, self._schemas = dialect.messages, schemas
        self._bare: re.Pattern[str] | None = None
        self._marks: dict[str, str] = {}  # and what stands before them in a whole call
        self.ends = set[str]()
        calls = dialect.calls
        if calls is None:
            return
        if self._messages is not None:
            self.ends = {self._messages.header_end[-1]}
        else:
            parts = [calls.section[0]] if calls.section[0] else parts_of(calls.call[0])
            self._marks = {part: "".join(parts[:place]) for place, part in enumerate(parts)}
            if not parts and calls.form == "json" and calls.keys[0] and not calls.wrapper:
                key = re.escape(json.dumps(calls.keys[0]))
                self._bare = re.compile(rf'\s*(?:<\|python_tag\|>)?\s*\{{\s*{key}\s*:\s*("[\w.:/-]+")')
            self.ends = {mark[-1] for mark in self._marks} or {'"'}
        self._name_key = calls.keys[0]

    def found(self, text: str, n_new: int, *, is_whole: bool) -> str | None:
        """Return the beginning of a call as `call_grammar` writes it, if it is complete with the last `n_new`
        characters of a text; None otherwise. The text is the end of the answer, or with `is_whole` all of it."""
        if self._messages is not None:
            return self._message(self._messages, text, n_new)
        for mark, before in self._marks.items():
            place = text.rfind(mark)
            if place >= 0 and place + len(mark) > len(text) - n_new:
                return before + text[place:]
        if self._bare is not None and is_whole and (found := self._bare.match(text)) is not None:
            is_known = json.loads(found[1]) in self._schemas
            if is_known and found.end() > len(text) - n_new:
                return f"{{{json.dumps(self._name_key)}: {found[1]}{text[found.end() :]}"
        return None

    def _message(self, form: Messages, text: str, n_new: int) -> str | None:
        """Return the header of a message that calls a tool."""
        end = text.rfind(form.header_end)
        start = text.rfind(form.start, 0, max(end, 0))
        if start < 0 or end + len(form.header_end) <= len(text) - n_new:
            return None
        kind, name = form.classify(text[start + len(form.start) : end])
        return f"{form.call.format(name)}{text[end:]}" if kind == "drop" and name in self._schemas else None
