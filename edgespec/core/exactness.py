"""The rules of exactness, by which an answer depends on its tokens and settings only.

Drafts, other answers and earlier contents of the KV cache must not change a text. In exact arithmetic the logits of
a token depend on the tokens before it alone. In floating point they also depend on the order in which numbers are
added. An *exact* context, on a CPU, therefore keeps these rules:

1. **Noise.** The noise of a token is a function of seed, sample, position and token id (`core/noise.py`). A generator
   with a state would get out of step, because the number of passes depends on the drafts.
2. **Kernels.** This build's kernels add the numbers of a token in one order, whatever else is in its pass, and on any
   number of threads (`llama/kernels.py`). So a draft is verified in one pass, a prompt is read in pieces of any size,
   and it continues any cached text as far as both agree. `llama/rounding.py` checks this on the loaded model.
3. **Branches.** If the accepted path of a tree is not its first one, its tokens are decoded again: their cells lie
   after those of the first path, and the order of cells is the order of sums (`branches_decoded_again`).
4. **Streams.** Each of several sequences has a separate part of the KV cache, as if it were alone. The branches of a
   tree would have to share cells across these parts, so drafts are then chains (`allows_branches`).
5. **Saved states.** Restored cells must have the same order as before, also those of sliding windows
   (`llama/window.py`).

The kernels of GPUs break rule 2: single tokens use other kernels than several. There, one class of widths whose rows
have the same bits is measured (`engine/width_classes.py`), and every pass over generated tokens has a width of this
class: shorter passes are padded. The number of cells must not depend on the drafts either (`rows_with_equal_cells`).
Drafts are chains of one sequence. A prompt that is read in other pieces may have other bits, but drafts do not change
how it is read.

`tests/test_exact.py` checks the rules together.
"""

from __future__ import annotations

SCORED = 64
"""Most tokens of a pass that gives the log probabilities of a prompt."""
CELLS = 256
"""llama.cpp attends to a multiple of this number of cells."""


def branches_decoded_again(*, exact: bool) -> bool:
    """Return whether accepted tokens that are not on the first path of a tree must be decoded again."""
    return exact


def allows_branches(n_sequences: int, *, exact: bool) -> bool:
    """Return whether drafts can be trees: branches share cells, which sequences with separate streams cannot."""
    return not exact or n_sequences == 1


def rows_with_equal_cells(start: int, least: int) -> int:
    """Return the most tokens of a padded pass that begins at position `start`.

    A pass attends to the cells in use, rounded up to a multiple of `CELLS`. Up to this width, each row attends to as
    many cells as in a pass of `least` tokens, the narrowest one, that begins with this row.
    """
    end = -(-(start + least) // CELLS) * CELLS
    return end - least + 1 - start
