"""A draft model: a small model of the same vocabulary guesses a chain, token by token.

It chooses with the target's noise (the coupled rule) and through the request's whole sampling chain, on its own path.
Each token is decoded once: its KV cache keeps what was accepted, only the rejected tail is removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.draft import Draft
from edgespec.drafters.base import Guessable
from edgespec.llama.context import Context


class ModelDrafter:
    """`context` holds the draft model, with as many sequences as the target's and a row for each."""

    name = "draft"

    def __init__(self, context: Context) -> None:
        self.context = context
        # What the draft's cache holds of each slot; the next turn of a chat finds it there.
        self._decoded: list[list[int]] = [[] for _ in range(context.sequences)]

    def propose(self, sequences: Sequence[Guessable], budgets: Sequence[int]) -> list[Draft]:
        chains: list[list[int]] = [[] for _ in sequences]
        confidences: list[list[float]] = [[] for _ in sequences]
        rooms = [self._room(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        growing = [index for index, room in enumerate(rooms) if room > 0]
        for index in growing:
            self._rewind(sequences[index])
        while growing:
            rows = self._decode_pending([(sequences[i].slot, sequences[i].tokens + chains[i]) for i in growing])
            for index, row in zip(growing, rows, strict=True):
                sequence, chain = sequences[index], chains[index]
                position = len(sequence.tokens) + len(chain)
                token, confidence = sequence.chooser.propose(
                    self.context.logits(row), sequence.tokens + chain, position
                )
                chain.append(token)
                confidences[index].append(confidence)
            growing = [i for i in growing if len(chains[i]) < rooms[i] and not self.context.model.is_end(chains[i][-1])]
        return [Draft.chain(chain, known, self.name) for chain, known in zip(chains, confidences, strict=True)]

    def _rewind(self, sequence: Guessable) -> None:
        """Take out of the cache what the sequence did not become; its last token is always left to decode."""
        decoded = self._decoded[sequence.slot]
        agreed = _common_prefix(decoded, sequence.tokens[:-1])
        if agreed < len(decoded):
            self.context.truncate(sequence.slot, agreed)
            del decoded[agreed:]

    def _room(self, sequence: Guessable, budget: int) -> int:
        """How far this chain may grow before the draft's own context is full."""
        return min(budget, self.context.n_ctx - len(sequence.tokens))

    def _decode_pending(self, paths: list[tuple[int, list[int]]]) -> list[int]:
        """Decode what each slot's path has beyond its cache, in as few batches as fit; batch index of each last row."""
        pending = [(slot, path[len(self._decoded[slot]) :]) for slot, path in paths]
        # Long catch-ups (a prompt) go first and alone; the last token of every path goes in one batch with the rest.
        for slot, tokens in pending:
            while len(tokens) > max(1, self.context.n_batch // len(pending)):
                chunk = tokens[: min(self.context.n_batch, len(tokens) - 1)]
                self._decode([(slot, chunk)], wanted=False)
                del tokens[: len(chunk)]
        return self._decode(pending, wanted=True)

    def _decode(self, parts: list[tuple[int, list[int]]], *, wanted: bool) -> list[int]:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[tuple[int, ...]] = []
        rows: list[bool] = []
        last: list[int] = []
        for slot, part in parts:
            start = len(self._decoded[slot])
            tokens += part
            positions += range(start, start + len(part))
            slots += [(slot,)] * len(part)
            rows += [False] * (len(part) - 1) + [wanted]
            last.append(len(tokens) - 1)
        try:
            self.context.decode(tokens, positions, slots, rows)
        except Exception:
            # What an interrupted decode left behind is unknown: back to what is.
            for slot, _ in parts:
                self.context.truncate(slot, len(self._decoded[slot]))
            raise
        for slot, part in parts:
            self._decoded[slot] += part
        return last


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(index for index in range(length) if left[index] != right[index])
