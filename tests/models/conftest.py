"""Tests of names, downloads, pairs and memory load only models that they wrote themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.llama import trial


@pytest.fixture(scope="module", autouse=True)  # a package is the whole run where folders have no __init__.py
def no_trials_of_written_models() -> Iterator[None]:
    """Leave out the trial load of models that tests have just written: each takes a process and half a second."""
    crashed = trial._crashed

    def known_good_only(path: Path, *args: Any, **more: Any) -> str:
        return crashed(path, *args, **more) if path == trial.KNOWN_GOOD else ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_crashed", known_good_only)
        yield
