"""The endpoint /plain: {"model": "...", "ask": "..."} is answered with {"answer": "..."}, or with a stream of parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgespec.requests.bad_input import wrong
from edgespec.requests.fields import Fields
from edgespec.serve.chat import Call, Format, Piece, Writer
from edgespec.serve.openai import chat_of
from edgespec.serve.served import Served


def read(body: Mapping[str, object], model: Served) -> Call:
    """Read a body. Raises BadInputError for one without a question."""
    question = body.get("ask")
    if not isinstance(question, str) or not question:
        raise wrong("ask", "be a question", question)
    fields = {name: value for name, value in body.items() if name not in ("ask", "messages")}
    return chat_of(Fields(fields | {"messages": [{"role": "user", "content": question}]}), model)


class PlainWriter(Writer):
    """Writes the text of an answer."""

    names = {"messages": "ask"}  # noqa: RUF012 - the class only reads it

    def whole(self) -> dict[str, str]:
        return {"answer": "".join(self.answers[0].texts)}

    def chunks(self, piece: Piece) -> Iterator[dict[str, object]]:
        if piece.text:
            yield {"part": piece.text}


FORMAT = Format(("/plain",), read, PlainWriter)
