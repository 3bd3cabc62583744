"""Check that the same seed gives the same text plainly and with drafts, at contexts of 50 to 4,000 tokens.

    python scripts/lab/check_texts.py smollm2                       24 prompts x temperature 0 and 0.8, 4 played chats
    python scripts/lab/check_texts.py smollm2 --prompts 200 -n 64 --chats 20
    python scripts/lab/check_texts.py smollm2 -md head.gguf --spec-type dspark

Counts the answers that are equal token by token to plain decoding with the same settings: chains of measured and of
fixed length, trees, single drafters, and several answers at a time. Then it plays random chats in each of these ways:
ask, cancel, continue, edit, regenerate and copy, the same for a seed in every mode. It counts the operations whose
tokens and log-probabilities are all equal. The exit code is 1 if anything differs although the build is exact.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.events import TokenEvent
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

ASKED = ("Summarise this:", "Repeat this:", "What does this do?", "Write a test for this:")
LENGTHS = (50, 300, 600, 1200, 2000, 4000)  # tokens of context, roughly
DRAFTERS = ("draft", "lookup", "suffix", "recycling", "lookahead", "self:8", "self:Q2_K")
MODES: dict[str, tuple[dict[str, object], dict[str, object]]] = {  # what is compared with what
    "chains, auto": ({}, {}),
    "chains of 6": ({"pace": "fixed:6"}, {}),
    "chains of 31": ({"pace": "fixed:31"}, {}),
    "trees of 6": ({"pace": "fixed:6", "spec_tree": 4}, {"spec_tree": 4}),
    **{f"{name}, chains of 6": ({"pace": "fixed:6", "spec_type": name}, {}) for name in DRAFTERS},
    "4 at a time": ({"sequences": 4, "spec_type": "none"}, {}),
    "4 at a time, auto": ({"sequences": 4}, {}),
    "16 at a time, auto": ({"sequences": 16}, {}),
}
OPERATIONS = ("ask", "ask", "cancel", "continue", "edit", "regenerate", "stop", "copy")

Token = tuple[int, float | None]
"""An id and its log-probability, which shows differences of the last bit."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--chats", type=int, default=4, help="how many chats to play, of 14 operations each")
    parser.add_argument("-n", type=int, default=32, help="tokens per answer")
    parser.add_argument("-c", type=int, default=4608, help="context size")
    parser.add_argument("-t", type=int, default=0, help="threads")
    parser.add_argument("-md", "--draft-model")
    parser.add_argument("--spec-type", default="auto", help="drafters; the ways that name one are left out")
    args = parser.parse_args()
    common: dict[str, Any] = {"store": False, "ctx_size": args.c, "threads": args.t, "draft_model": args.draft_model}
    plain: dict[str, tuple[list[Any], list[Any]]] = {}
    failed = False
    for mode, (how, beside) in MODES.items():
        named = how.get("spec_type")
        if named == "draft" and not (args.draft_model or resolve(args.model).default_draft):
            continue
        if named in DRAFTERS and args.spec_type != "auto":
            continue
        if str(beside) not in plain:
            with edgespec.load(args.model, spec_type="none", **common | beside) as llm:
                plain[str(beside)] = answers(llm, requests(llm, args)), played(llm, args)
        with edgespec.load(args.model, **common | {"spec_type": args.spec_type} | how) as llm:
            found = answers(llm, requests(llm, args)), played(llm, args)
            exact = llm.info.rounding in (0.0, None) and llm.context.exact
        counts = []
        for these, those in zip(found, plain[str(beside)], strict=True):
            equal = sum(one == other for one, other in zip(these, those, strict=True))
            counts.append(f"{equal} of {len(these)} equal")
            failed |= exact and equal < len(these)
        note = "" if exact else "   (not exact on this machine)"
        print(f"{mode:24}{counts[0]:>20}, chats: {counts[1]:>16}{note}", flush=True)
    return int(failed)


def played(llm: Runtime, args: argparse.Namespace) -> list[Any]:
    """Return the tokens that each operation of the played chats generated."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-c]*.py"))
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files[:20]]
    return [
        operation
        for seed in range(args.chats)
        for operation in Player(llm, texts, seed, n_chats=1 + seed % 3, n_context=min(700, args.c // 2)).play(14)
    ]


def requests(llm: Runtime, args: argparse.Namespace, lengths: Sequence[int] = LENGTHS) -> list[Request]:
    """Return requests of a question and real text, which is cut to one length after the other."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-h]*.py"))
    text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files[:40])
    made = []
    for number, (asked, length) in enumerate(zip(cycle(ASKED), islice(cycle(lengths), args.prompts), strict=False)):
        piece = text[number * 5000 : number * 5000 + 3 * length]
        said = f"{asked}\n\n{piece}"
        if len(llm.tokenize(asking(llm, said))) + args.n >= args.c:
            said = said[: 2 * length]
        for temperature in (0.0, 0.8):
            sampling = SamplingSettings(temperature)
            made.append(asking(llm, said, max_tokens=args.n, seed=number, sampling=sampling))
    return made


def asking(llm: Runtime, said: str, **how: Any) -> Request:
    """Return a request for an answer to this message, or for its continuation without a chat template."""
    return Request(messages=(Message("user", said),), **how) if llm.info.has_chat_template else Request(said, **how)


def answers(llm: Runtime, asked: list[Request]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in asked]
    for index, event in llm.stream(asked):
        assert isinstance(event, TokenEvent)
        found[index].append(event.id)
    return found


class Player:
    """Plays `n_chats` chats alternately. `texts` are what users say; `n_context` limits the tokens of a chat.

    A cancelled answer ends after a number of tokens that the seed chooses, so that it is the same text in every mode.
    """

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
        messages, prefix = self._chats[index], tuple[int, ...]()
        if operation in ("continue", "regenerate"):
            last = messages.pop()
            if operation == "continue":
                prefix = last.tokens[: n_kept if place < 0.3 else None]
        else:
            if operation == "edit":  # an earlier message of the user is said in another way
                users = [number for number, message in enumerate(messages) if message.role == "user"]
                del messages[users[int(place * len(users))] :]
            messages.append(Message("user", said))
        asked = [*messages, Message("assistant", self._text(prefix), prefix)] if prefix else messages
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


if __name__ == "__main__":
    sys.exit(main())
