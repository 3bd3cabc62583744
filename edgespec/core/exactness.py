"""The rules of exactness, by which an answer depends on its tokens and settings only.

Drafts, other answers and earlier contents of the KV cache must not change a text. In exact arithmetic the logits of
a token depend on the tokens before it alone. In floating point they also depend on the order in which numbers are
added, and kernels choose this order by the number of tokens in a forward pass (its width) and by the order of the cells
in the KV cache. An *exact* context therefore keeps these rules:

1. **Noise.** The noise of a token is a function of seed, sample, position and token id (`core/noise.py`). A generator
   with a state would get out of step, because the number of passes depends on the drafts.
2. **Widths.** Generated tokens and drafts are decoded in narrow passes, of at most `NARROW` tokens. The kernels of an
   exact build give each token of a narrow pass the bits of a pass over this token alone. Elsewhere the widths for which
   this holds are measured (`llama/rounding.py`).
3. **Reads of prompts.** A prompt of `WIDE` tokens or more is read in wide passes, since these are several times as
   fast. The kernels of wide passes agree with each other, and so a prompt may be cut anywhere, but no piece may be
   narrow (`piece_of_read`). A shorter prompt is read in narrow passes.
4. **Reuse.** A prompt uses cached tokens of another prompt only if it would read the same tokens in passes of the same
   kind that begin at the same position (`shared_read`). Only the next turn of a chat uses generated tokens
   (`Slot.prefix`).
5. **Branches.** If the accepted path of a tree is not its first one, its tokens are decoded again: their cells lie
   after those of the first path, and the order of cells is the order of sums (`branches_decoded_again`).
6. **Streams.** Each of several sequences has a separate part of the KV cache, as if it were alone. The branches of a
   tree would have to share cells across these parts, so drafts are then chains (`allows_branches`). Prompts never share
   a pass with generated tokens or with each other (`takes_turns`).
7. **Saved states.** Restored cells must be at the same places in the cache as before, also those of sliding windows
   (`llama/window.py`).
8. **Log probabilities of a prompt.** The prompt is read from its first token, in separate passes whose widths depend on
   its length alone. All tokens of such a pass have rows of logits, because the output layer gives a row other bits if
   there are few. Before an answer begins, the end of the prompt is read again as usual (`end_of_read`).

Kernels without bounds, such as those of GPUs, break rule 2: single tokens use other kernels than several. There, one
class of widths whose rows have the same bits is measured (`engine/width_classes.py`), and every pass over generated
tokens has a width of this class: shorter passes are padded. The number of cells must not depend on the drafts either
(`rows_with_equal_cells`). Drafts are chains of one sequence. Rules 3, 4 and 7 are not kept: a prompt that is read in
other pieces may have other bits, but drafts do not change how it is read.

`tests/test_exact.py` checks the rules together.
"""

from __future__ import annotations

NARROW = 63
"""Most tokens of a pass that gives each token the bits of a pass over this token alone."""
WIDE = NARROW + 1
"""Fewest tokens of a prompt that is read in wide passes, and of each of these passes."""
SCORED = 2 * WIDE - 1
"""Most tokens of a pass that gives the log-probabilities of a prompt: in two passes, one of these would be narrow."""
LAST = 2
"""Tokens of a prompt that are always decoded: a pass over a single token counts as verification."""
CELLS = 256
"""llama.cpp attends to a multiple of this number of cells."""
LEAST_VERIFIED = 4
"""Fewest tokens of a pass that are enough to verify drafts: in a narrower pass, drafting does not pay off."""


def end_of_read(n_tokens: int, *, exact: bool) -> int:
    """Return how many tokens at the end of a prompt of `n_tokens` must be decoded even if they are cached.

    A wide read must end with a wide pass: a narrow pass over the rest would give the last row other bits.
    """
    return WIDE if exact and n_tokens >= WIDE else LAST


def shared_read(n_shared: int, n_read: int, n_prompt: int, *, exact: bool) -> int:
    """Return how many cached tokens a prompt of `n_prompt` tokens can use of a read of `n_read` tokens.

    The prompt and the read begin with the same `n_shared` tokens. None of these can be used if the prompt needs wide
    passes and the read took narrow passes, or the reverse.
    """
    if exact and (n_read >= WIDE) != (n_prompt >= WIDE):
        n_shared = 0
    return min(n_shared, n_prompt - end_of_read(n_prompt, exact=exact))


def piece_of_read(n_left: int, most: int, room: int, *, exact: bool) -> int:
    """Return how many of the `n_left` tokens of a prompt to read now: about `most`, in a pass with room for `room`.

    If fewer than WIDE tokens would remain, this piece includes them, or is cut so that WIDE tokens remain.
    """
    n = max(0, min(most, n_left))
    if not exact or not 0 < n_left - n < WIDE:
        return n
    return n_left if n_left < min(2 * WIDE, 1 + room) else n_left - WIDE


def takes_turns(n_sequences: int, *, exact: bool) -> bool:
    """Return whether prompts and generated tokens need separate passes: a common pass would be wide."""
    return exact and n_sequences > 1


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


def widest_verification(exact_to: int | None, widest: int, otherwise: int) -> int:
    """Return the most tokens of a pass that verifies drafts in an exact context.

    `exact_to` is the widest pass, up to `widest`, that gave the bits of single tokens when measured; None if nothing
    was measured. If this leaves no room for drafts, the result is `otherwise`: drafts may then change the text, and a
    note informs the user.
    """
    if exact_to is None:
        return NARROW
    return exact_to if exact_to >= min(LEAST_VERIFIED, widest) else otherwise
