"""A model that is loaded again after its process died."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.cancel import CancelFlag
from edgespec.cli.setup import job_models
from edgespec.cli.setup.job_models import ReopenedModel
from edgespec.cli.terminal.output import Output
from edgespec.errors import GenerationError
from edgespec.model.notes import Notes
from edgespec.settings import LoadSettings, Request

AWAY = GenerationError("cannot reach the worker a:1", why="Connection refused")


class FakeWorker:
    n_refusals = 0
    notes = Notes()

    def __init__(self, *_: Any) -> None:
        if FakeWorker.n_refusals:
            FakeWorker.n_refusals -= 1
            raise AWAY

    def check_settings(self, asked: Request) -> None: ...

    def close(self) -> None: ...


def lost(monkeypatch: pytest.MonkeyPatch, n_refusals: int, **settings: Any) -> ReopenedModel:
    """Return a model that fails to load again this number of times."""
    monkeypatch.setattr(job_models, "Worker", FakeWorker)
    monkeypatch.setattr(job_models, "RETRY_S", 0.0)
    FakeWorker.n_refusals = 0
    model = ReopenedModel(LoadSettings("demo", **settings), Request("x"), Output(quiet=True), CancelFlag())
    FakeWorker.n_refusals = n_refusals
    return model


def test_lost_workers_of_other_machines_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lost(monkeypatch, 3, rpc=("a:1",)).reopen(AWAY)
    assert FakeWorker.n_refusals == 0


def test_but_not_for_ever_nor_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GenerationError):
        lost(monkeypatch, 3).reopen(AWAY)
    monkeypatch.setattr(job_models, "PATIENCE_S", -1.0)
    with pytest.raises(GenerationError):
        lost(monkeypatch, 3, rpc=("a:1",)).reopen(AWAY)
