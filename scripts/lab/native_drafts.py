"""Compare the drafts of a head in edgespec with those in llama.cpp's own program, token by token.

Both decode the same prompt greedily with drafts of the same length. llama.cpp's llama-speculative-simple logs its
drafts with `-v`. Drafts after the same number of tokens of the same text are compared.

In two ways edgespec drafts otherwise on purpose, which is undone for the comparison. llama.cpp gives an MTP block a
cell for the first token of a text, with zeros for the state before it; blocks are trained without such a cell
(DeepSeek-V3, arXiv 2412.19437, section 2.2), and edgespec leaves it out. And of several blocks, every eighth draft is
the first one's alone in edgespec.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.chained import ChainedDrafter
from edgespec.drafters.head import HeadDrafter
from edgespec.drafters.states import Features
from edgespec.errors import EdgespecError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import MTP, Request

CANDIDATE = re.compile(r"draft candidate +0, pos +(\d+): +(\d+) ")
ACCEPTED = re.compile(r"accepted (\d+)/\d+ draft tokens, the last target token is: \((\d+)\)")
ENVIRON = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}  # which edgespec sets
TIMEOUT_S = 300

Drafts = dict[int, list[int]]
"""Drafts by the number of tokens before them, those of the prompt included."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many drafts at the same places were compared, and how many were equal."""

    compared: int = 0
    equal: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.compared + other.compared, self.equal + other.equal)


def agreement(
    llm: Runtime, program: str, model: Path, options: Sequence[str], prompt: str, length: int, n_tokens: int
) -> Agreement:
    """Compare the drafts for one prompt. `llm` drafts with one drafter and `fixed:length`; `options` make the program
    draft with the same head. Raises EdgespecError if the program fails."""
    ids = llm.model.tokenize(prompt, add_special=True, parse_special=True)
    with as_llama_cpp() if llm.settings.spec_type == MTP else nullcontext():
        own, answer = own_drafts(llm, ids, n_tokens)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompt.txt"
        file.write_bytes(prompt.encode())
        command = [program, "-m", str(model), *options, "--spec-draft-n-max", str(length), "-bf", str(file)]
        command += ["--no-escape", "-c", str(llm.context.n_ctx), "-n", str(n_tokens), "--temp", "0", "--top-k", "1"]
        command += [
            "-fa",
            "off",
            "-ctk",
            "f32",
            "-ctv",
            "f32",
            "-ctkd",
            "f32",
            "-ctvd",
            "f32",
            "--ignore-eos",
            "-t",
            "1",
            "-v",
        ]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRON, timeout=TIMEOUT_S, check=False
        )
    log = (done.stderr + done.stdout).decode("utf-8", "replace")
    if done.returncode:
        raise EdgespecError(f"{Path(program).name} ended with {done.returncode}", why=last_error(log))
    native, tokens = parse_drafts(log, len(ids))
    end = len(ids) + common(answer, tokens)
    return compared(own, native, length, end)


def compared(own: Drafts, native: Drafts, length: int, end: int) -> Agreement:
    """Compare whole drafts of this length at places before `end`, where the texts begin to differ."""
    places = [at for at in own.keys() & native.keys() if at <= end]
    pairs = [(own[at], native[at]) for at in places if len(own[at]) == len(native[at]) == length]
    return Agreement(len(pairs), sum(ours == theirs for ours, theirs in pairs))


def parse_drafts(log: str, n_prompt: int) -> tuple[Drafts, list[int | None]]:
    """Return the drafts in a log of llama.cpp's program, and the tokens of its answer; None where the log lacks one,
    after a draft that a recurrent memory had to verify again."""
    drafts: Drafts = {}
    answer: list[int | None] = []
    draft: list[int] = []
    for line in log.splitlines():
        if found := CANDIDATE.search(line):
            place, token = int(found[1]), int(found[2])
            draft = [*draft, token] if place else [token]
        elif found := ACCEPTED.search(line):
            n_accepted = int(found[1])
            if draft:
                drafts[n_prompt + len(answer)] = draft
            known = [*draft, *[None] * n_accepted][:n_accepted]
            answer += [*known, int(found[2])]
            draft = []
    return drafts, answer


def own_drafts(llm: Runtime, ids: Sequence[int], n_tokens: int) -> tuple[Drafts, list[int]]:
    """Return the drafts and the answer of edgespec."""
    llm.forget()
    request = Request(
        prompt_tokens=tuple(ids), max_tokens=n_tokens, sampling=SamplingSettings(temperature=0.0), ignore_eos=True
    )
    with spied(llm) as drafts:
        answer = [event.id for event in llm.submit(request) if event.id >= 0]
    return drafts, answer


@contextmanager
def as_llama_cpp() -> Iterator[None]:
    """Let MTP blocks draft as llama.cpp's do within this block: cell P holds token P with the state before it."""
    rows, drop = Features.rows, Features.drop

    def shifted_rows(features: Features, start: int, n: int) -> NDArray[np.float32]:
        if start:
            return rows(features, start - 1, n)
        known = rows(features, 0, max(1, n - 1))
        return np.concatenate([np.zeros_like(known[:1]), known[: n - 1]])

    def shifted_drop(features: Features, end: int) -> None:
        drop(features, max(0, end - 1))

    with (
        patch.object(HeadDrafter, "_text", lambda drafter, sequence: sequence.tokens),
        patch.object(ChainedDrafter, "_chains", lambda drafter, growing: True),
        patch.object(Features, "rows", shifted_rows),
        patch.object(Features, "drop", shifted_drop),
    ):
        yield


@contextmanager
def spied(llm: Runtime) -> Iterator[Drafts]:
    """Collect the drafts of the only drafter within this block."""
    [drafter] = llm.engine.speculator.drafters
    propose, found = drafter.propose, Drafts()

    def observed(sequences: Sequence[Any], budgets: Sequence[Any]) -> list[Any]:
        made = propose(sequences, budgets)
        for sequence, draft in zip(sequences, made, strict=True):
            found[len(sequence.tokens)] = [*draft.tokens]
        return made

    drafter.propose = observed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        drafter.propose = propose  # type: ignore[method-assign]


def common(own: Sequence[int], native: Sequence[int | None]) -> int:
    """Return how many tokens the answers have in common at their beginning."""
    for number, (ours, theirs) in enumerate(zip(own, native, strict=False)):
        if theirs is not None and ours != theirs:
            return number
    return min(len(own), len(native))


def last_error(log: str) -> str:
    """Return the last line of a log that is about an error, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "failed" in line.lower() or "assert" in line.lower()]
    return (errors or lines or ["no output"])[-1][:200]
