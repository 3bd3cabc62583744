"""Play random chats: ask, cancel, continue, edit, regenerate and copy, the same for a seed in every mode.

`scripts/lab/check_texts.py` and the tests play the same chats with and without drafts and compare the answers bit by
bit. A cancelled answer ends after a number of tokens that the seed chooses, so that it is the same text in every mode.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from edgespec.core.sampling import SamplingSettings
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

Token = tuple[int, float | None]
"""An id and its log-probability, which shows differences of the last bit."""

OPERATIONS = ("ask", "ask", "cancel", "continue", "edit", "regenerate", "stop", "copy")


class Player:
    """Plays `n_chats` chats alternately. `texts` are what users say; `n_context` limits the tokens of a chat."""

    def __init__(
        self, llm: Runtime, texts: Sequence[str], seed: int, *, n_chats: int = 2, n_context: int = 700
    ) -> None:
        self._llm, self._texts, self._n_most = llm, texts, n_context
        self._random = random.Random(seed)
        self._chats: list[list[Message]] = [[] for _ in range(n_chats)]  # messages of user and assistant in turn

    def play(self, n_operations: int) -> list[tuple[str, list[Token]]]:
        """Each operation with the tokens that it generated."""
        return [self._play(self._random.choice(OPERATIONS)) for _ in range(n_operations)]

    def _play(self, operation: str) -> tuple[str, list[Token]]:
        chance = self._random
        index = chance.randrange(len(self._chats))
        n, seed, temperature = chance.randint(4, 60), chance.randrange(100), chance.choice((0.0, 0.0, 0.8))
        n_cancel, said = chance.randint(1, 40), self._said()
        place, n_kept = chance.random(), chance.randint(1, 40)
        if operation == "copy":
            self._chats[index] = [*self._chats[chance.randrange(len(self._chats))]]
            operation = "ask"
        if not self._chats[index] or self._llm.count(self._chats[index]) > self._n_most:
            self._chats[index], operation = [], "ask"
        messages, begun = self._chats[index], Message("assistant", "")
        if operation == "edit":  # an earlier message of the user is said in another way
            users = [number for number, message in enumerate(messages) if message.role == "user"]
            del messages[users[int(place * len(users))] :]
        elif operation in ("continue", "regenerate"):
            begun = messages.pop()
            kept = begun.tokens[: n_kept if operation == "continue" and place < 0.3 else None]
            begun = Message("assistant", self._text(kept), kept)
        if operation not in ("continue", "regenerate"):
            messages.append(Message("user", said))
        prefix = begun.tokens if operation == "continue" else ()
        asked = [*messages, begun] if prefix else messages
        request = Request(
            messages=tuple(asked),
            max_tokens=n,
            seed=seed,
            sampling=SamplingSettings(temperature),
            stop=(" the", "\n\n") if operation == "stop" else (),
            logprobs=0,
        )
        found = self._answered(request, n_cancel if operation == "cancel" else n)
        ids = prefix + tuple(id for id, _ in found)
        messages.append(Message("assistant", self._text(ids), ids))
        return operation, found

    def _answered(self, request: Request, most: int) -> list[Token]:
        found: list[Token] = []
        with self._llm.submit(request) as events:
            for event in events:
                if event.id >= 0:
                    found.append((event.id, event.logprob))
                if len(found) == most < request.max_tokens:
                    break
        return found

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(self._llm.prompts.token_bytes([*ids])).decode("utf-8", "replace")

    def _said(self) -> str:
        text = self._random.choice(self._texts)
        start = self._random.randrange(max(1, len(text) - 500))
        return text[start : start + self._random.choice((10, 60, 200, 260, 400))]
