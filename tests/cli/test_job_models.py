"""Models for jobs that lose their workers."""

from __future__ import annotations

from typing import cast

import pytest
from fake_stream import FakeStream

from edgespec.cancel import CancelFlag
from edgespec.errors import GenerationError
from edgespec.llama.workers import WorkerUnreachableError
from edgespec.llm.notes import Notes
from edgespec.runtime.worker import Worker, WorkerDiedError, restarted
from edgespec.runtime.worker.restarted import RestartedWorker
from edgespec.settings import LoadSettings

AWAY = WorkerUnreachableError("cannot reach a worker: a:1")


class Refusing:
    """Opens a worker that fails to load again this number of times."""

    def __init__(self) -> None:
        self.n_refusals, self.worker = 0, FakeStream()
        self.error: Exception | None = None

    def __call__(self, notes: Notes) -> Worker:
        if self.error is not None:
            raise self.error
        if self.n_refusals:
            self.n_refusals -= 1
            raise AWAY
        return cast("Worker", self.worker.opened(notes))


def lost(monkeypatch: pytest.MonkeyPatch, n_refusals: int, *rpc: str) -> None:
    """Lose a worker that fails to load again this number of times, and wait for it."""
    monkeypatch.setattr(restarted, "RETRY_S", 0.0)
    refusing = Refusing()
    monkeypatch.setattr(FakeStream, "settings", LoadSettings("demo", rpc=rpc))
    notes = Notes()
    member = RestartedWorker(refusing, CancelFlag(), notes)
    refusing.n_refusals = n_refusals
    try:
        member.recover(WorkerDiedError("it crashed")).result(timeout=60)
        assert not refusing.n_refusals
        assert [*notes] == ["something to know", "it crashed; restarting it"]
    finally:
        member.close()


def test_lost_workers_of_other_machines_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lost(monkeypatch, 3, "a:1")


def test_but_not_for_ever_nor_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GenerationError):
        lost(monkeypatch, 3)
    monkeypatch.setattr(restarted, "PATIENCE_S", -1.0)
    with pytest.raises(GenerationError):
        lost(monkeypatch, 3, "a:1")


def test_an_unexpected_error_of_a_restart_is_reported() -> None:
    refusing = Refusing()
    member = RestartedWorker(refusing, CancelFlag(), Notes())
    try:
        refusing.error = OSError("the screen is gone")
        with pytest.raises(GenerationError, match="the screen is gone"):
            member.recover(WorkerDiedError("it crashed")).result(timeout=60)
    finally:
        member.close()
