"""JSON as programs send and print it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.text.strict_json import json_line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("a\n\x0b\x1c\x85\u2028\u2029é"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("a\x85\u2028\u2029"), inner),
)


@pytest.mark.slow
@given(VALUES, st.booleans())
def test_json_is_one_line_for_every_program(value: Any, is_compact: bool) -> None:
    line = json_line(value, is_compact=is_compact)
    assert line.splitlines() == [line]
    assert json.loads(line) == value


def test_json_has_no_infinity() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line(float("inf"))
