"""What several test files need: a place of their own for what the program remembers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_memory_of_other_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the user's own runs measured changes nothing here, and what is measured here nothing for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(tmp_path_factory.mktemp("edgespec")))
        yield


@pytest.fixture(scope="session", autouse=True)
def hears_of_signals() -> None:
    """What a shell runs in the background ignores Ctrl-C, what nohup runs ignores SIGHUP, and so does what these start:
    tests that send them would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is remembered about a file's models is forgotten with them."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(folder))
        yield folder
