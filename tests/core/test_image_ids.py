"""Images as runs of negative ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.images import FIRST, has_images, image_ids, whole

PARTS = st.lists(st.one_of(st.integers(1, 9), st.integers(-9, -1)), min_size=1, max_size=6)  # of text, and of images


def tokens_of(parts: list[int]) -> tuple[list[int], list[int]]:
    """Return tokens, and the places where parts begin."""
    tokens, starts = list[int](), list[int]()
    for number, size in enumerate(parts):
        is_more_text = bool(starts) and size > 0 and parts[number - 1] > 0
        starts += [] if is_more_text else [len(tokens)]
        tokens += range(size) if size > 0 else image_ids(b"%d" % number, -size)
    return tokens, starts


def test_ids_depend_on_the_key_alone() -> None:
    ids = image_ids(b"a cat", 100)
    assert ids == image_ids(b"a cat", 100)
    assert image_ids(b"a cat", 7) == ids[:7]
    assert not {*ids} & {*image_ids(b"a dog", 100)}
    assert all(-(2**31) <= token < 0 for token in ids)
    assert [token >= FIRST for token in ids] == [True] + [False] * 99


@given(PARTS)
def test_tokens_say_whether_there_are_images(parts: list[int]) -> None:
    tokens, _ = tokens_of(parts)
    assert has_images(tokens) == any(size < 0 for size in parts)


@given(PARTS)
def test_no_prefix_ends_within_an_image(parts: list[int]) -> None:
    tokens, starts = tokens_of(parts)
    for length in range(len(tokens) + 1):
        cut = whole(tokens, length)
        is_within_image = 0 < length < len(tokens) and tokens[length] < 0 and length not in starts
        assert cut == (max(start for start in starts if start < length) if is_within_image else length)
