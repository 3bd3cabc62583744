"""Forward passes of the target: building the batch of a step, its logits, and keeping the accepted tokens."""

from __future__ import annotations

from time import perf_counter

from edgespec.core.batch import Batch
from edgespec.core.draft import Draft
from edgespec.core.exactness import branches_decoded_again
from edgespec.core.sampling import FloatRow
from edgespec.engine.sequence import Scheduled
from edgespec.engine.slots import Slots
from edgespec.llama.context import CacheFullError
from edgespec.llama.projector import Cells, EncodingError


class TargetRunner:
    """Between steps the KV cache holds `tokens[:n_decoded]` of each sequence.

    Passes are padded to `least_width` tokens, and rows with and without drafts attend to the same number of cells; 0
    means neither.
    """

    def __init__(self, slots: Slots, least_width: int) -> None:
        self.slots, self.context, self.least_width = slots, slots.context, least_width

    def run(self, scheduled: list[Scheduled]) -> None:
        """Decode the pending tokens and the drafts of all sequences in one pass; without drafts if they have no room.

        Raises CacheFullError if not even the pending tokens have room, CancelledError, GenerationError.
        """
        self.context.adapters = scheduled[0].sequence.adapters  # the scheduler puts no others into one pass
        if scheduled[0].image is not None:
            self._read_image(scheduled[0], scheduled[0].image)
            return
        batch = Batch.empty()
        for part in sorted(scheduled, key=lambda part: part.sequence.slot):  # llama.cpp splits other orders
            part.start = batch.size
            self._append(part, batch)
        if (pad := self.least_width - batch.size) > 0:
            last = batch.tokens[-1]
            for position in range(batch.positions[-1] + 1, batch.positions[-1] + 1 + pad):
                batch.add([last], position, batch.sequence_ids[-1], wanted=batch.wanted[-1])
        started_s = perf_counter()
        try:
            self.context.decode(*batch)
        except CacheFullError:  # drafts are optional: try again without them
            if not any(part.draft for part in scheduled):
                raise
            for part in scheduled:
                self.release(part)
                part.draft = Draft.empty()
            self.run(scheduled)
            return
        took_s = perf_counter() - started_s
        for part in scheduled:
            sequence = part.sequence
            if not sequence.is_prefill:
                sequence.stats.target_s += took_s / len(scheduled)
            if not part.is_complete:
                sequence.n_decoded += part.n_pending

    def logits(self, part: Scheduled, node: int = -1) -> FloatRow:
        """Return float32[V] after a node of the draft, or after the last committed token (-1); valid until the next
        pass."""
        return self.context.logits(part.entry(node))

    def commit(self, part: Scheduled, path: list[int], first: int) -> None:
        """Keep the accepted tokens of a draft: the nodes `path`, of which the first is at position `first`.

        Accepted tokens of another branch than the first are moved into the slot. In an exact context they are decoded
        again with the next draft instead: their cells come after those of the first branch, and the order of cells
        decides the order of sums, so the bits of all later tokens would differ from those of plain decoding.
        """
        slot, length = part.sequence.slot, len(part.sequence.tokens) - 1
        astray = next((depth for depth, node in enumerate(path) if slot not in part.ids[node]), None)
        if astray is not None and branches_decoded_again(exact=self.context.exact):
            length = first + astray
        elif astray is not None:
            self.context.adopt(slot, part.ids[path[-1]][0], first + astray, first + len(path))
        self.slots.keep(part.sequence, length)

    def release(self, part: Scheduled) -> None:
        """Free the branches of a draft."""
        self.context.release(part.branches)
        part.branches = []

    def _read_image(self, part: Scheduled, image: Cells) -> None:
        sequence = part.sequence
        try:
            last = self.context.decode_image(image, sequence.n_decoded, sequence.slot, wanted=part.is_complete)
        except EncodingError as error:  # nothing was decoded, so the other answers continue
            sequence.error, sequence.finish, part.is_complete, part.n_pending = error, "error", False, 0
            return
        part.start = last + 1 - part.n_pending  # the last pass may have a part of the image only
        if not part.is_complete:
            sequence.n_decoded += part.n_pending

    def _append(self, part: Scheduled, batch: Batch) -> None:
        """Add a sequence's pending tokens and its draft to a batch; each draft token belongs to all leaves below it."""
        sequence, draft = part.sequence, part.draft
        while len(part.branches) < draft.n_leaves - 1:
            part.branches.append(self.context.fork(sequence.slot, sequence.n_decoded))
        ids = [sequence.slot, *part.branches]
        part.ids = [tuple(ids[leaf] for leaf in below) for below in draft.leaves()]
        pending = sequence.tokens[sequence.n_decoded : sequence.n_decoded + part.n_pending]
        batch.add(pending, sequence.n_decoded, tuple(ids), wanted=part.is_complete)
        if sequence.is_scoring:
            batch.wanted[-len(pending) :] = [True] * len(pending)
        for token, depth, owners in zip(draft.tokens, draft.depths(), part.ids, strict=True):
            batch.add([token], sequence.n_decoded + part.n_pending + depth, owners, wanted=True)
