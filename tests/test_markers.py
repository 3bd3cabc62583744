"""The names by which tests are marked: a name that has gone would let a test run where it should not."""

from __future__ import annotations

from importlib import import_module

import pytest
from markers import CALLS


@pytest.mark.parametrize("name", CALLS)
def test_each_name_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(import_module(module), attribute))
