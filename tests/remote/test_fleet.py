"""Rows on several servers: each gets its answer once, also if servers fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from serving import serving
from stand_in import StandIn, stand_in

from edgespec.batch.job import Job
from edgespec.batch.reading import Defaults, RowReader
from edgespec.batch.results import Results
from edgespec.cancel import CancelFlag
from edgespec.errors import LostError, UsageError
from edgespec.llm import fleet as module
from edgespec.llm.fleet import Fleet
from edgespec.remote.model import RemoteModel, token_bytes
from edgespec.requests.openai import TokenBytes
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Request

ROWS = [{"id": number, "prompt": f"row {number} of many"} for number in range(30)]
pytestmark = pytest.mark.cli


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.remote.model.PROBE_S", 0.02)


@contextmanager
def fleet(*servers: StandIn, room: int = 0) -> Iterator[Fleet]:
    with Fleet([RemoteModel(server.url) for server in servers], room) as found:
        yield found


@contextmanager
def stand_ins(n: int) -> Iterator[list[StandIn]]:
    with ExitStack() as stack:
        yield [stack.enter_context(stand_in()) for _ in range(n)]


def results(
    engine: Any,
    rows: Sequence[dict[str, Any]] = ROWS,
    *,
    token_bytes: TokenBytes = lambda token: b"",
    cancel: CancelFlag | None = None,
    ordered: bool = False,
    each: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    reader = RowReader(Defaults(Request(max_tokens=12), seed=1, chat=False))
    job = Job(
        engine,
        reader.from_lines((number, json.dumps(row).encode()) for number, row in enumerate(rows, 1)),
        Results("demo", token_bytes),
        cancel or CancelFlag(),
        ordered=ordered,
    )
    found = []
    for result in job.run():
        found.append(result.row)
        each(result.row)
    return found


def contents(rows: Sequence[dict[str, Any]]) -> dict[Any, Any]:
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row.get("content", row.get("error")) for row in rows}


ALL = {row["id"]: f"{row['prompt']} and so on" for row in ROWS}


@pytest.mark.long
def test_rows_are_those_of_this_machine() -> None:
    rows: list[dict[str, Any]] = [
        *({"id": number, "prompt": f"def f{number}("} for number in range(8)),
        {"id": "n", "prompt": "x", "n": 3, "logprobs": 2, "temperature": 1.5},
        {"id": "wrong", "prompt": "x", "grammar": "nonsense"},
        {"id": "long", "prompt": "word " * 3000},
        {"id": "chat", "messages": [{"role": "user", "content": "Hello"}], "regex": "[ab]{3}"},
        {
            "custom_id": "openai",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": "Hello"}], "logprobs": True, "top_logprobs": 1},
        },
    ]
    settings = LoadSettings("demo", threads=1, sequences=2, store=False)
    with Worker(settings) as first, Worker(settings) as second:
        pieces = {id: first.token_bytes([id])[0] for id in range(8000)}
        here = results(first, rows, token_bytes=pieces.__getitem__, ordered=True)
        with serving(first) as one, serving(second) as two:
            engines = [RemoteModel(one.url), RemoteModel(two.url)]
            with Fleet(engines) as servers:
                there = results(servers, rows, token_bytes=partial(token_bytes, engines), ordered=True)
        answered = [sum(record["path"].endswith("completions") for record in each.records) for each in (one, two)]
    for row in (*here, *there):  # a server says it in other words
        row.pop("error", None) if row.get("id") in ("wrong", "long") else None
    assert here == there
    assert min(answered) > 1


def test_a_server_that_is_lost_gives_its_rows_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD_S", 0.0)
    with stand_ins(2) as servers, fleet(*servers) as engine:
        servers[0].fails += ["lost"] * 10_000
        servers[0].is_gone = True
        assert contents(results(engine)) == ALL
        assert [*engine.notes] == [f"{servers[0].url} is lost; its rows go to the others"]


def test_a_server_that_was_lost_for_a_moment_gets_its_rows_again() -> None:
    with stand_ins(1) as [server], fleet(server) as engine:
        server.fails += ["lost"]
        rows = results(engine)
        assert contents(rows) == ALL
        assert all(row["tokens"] == len(row["content"].split(" ")) for row in rows)  # as its figures say
        assert [*engine.notes] == []


def test_when_every_server_is_lost_the_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD_S", 0.1)
    with stand_ins(2) as servers, fleet(*servers) as engine:
        done: list[dict[str, Any]] = []

        def bury(row: dict[str, Any]) -> None:
            done.append(row)
            for server in servers if len(done) == 5 else ():
                server.is_gone = True
                server.fails += ["lost"] * 10_000

        with pytest.raises(LostError, match="every server is lost"):
            results(engine, each=bury)
        assert contents(done).items() <= ALL.items()
        for server in servers:
            server.is_gone = False
            server.fails.clear()
        assert contents(results(engine)) == ALL  # once they are back


def test_a_row_at_which_the_engine_fails_is_retried_alone_and_spoils_no_other() -> None:
    with stand_ins(2) as servers, fleet(*servers) as engine:
        servers[0].fails += ["engine", "late"]
        for server in servers:
            server.poison = "row 7 "
        found = contents(results(engine))
        assert found.pop(7) == {"message": "the model process was killed", "type": "server_error"}
        assert found == {id: content for id, content in ALL.items() if id != 7}
        assert sum("row 7 " in body["prompt"] for server in servers for body in server.bodies) == 2


def test_a_row_that_ends_servers_is_found() -> None:
    with stand_ins(2) as servers, fleet(*servers) as engine:
        for server in servers:
            server.deadly = "row 7 "
        found = contents(results(engine))
    assert found.pop(7)["message"].startswith(("http", "cannot reach"))
    assert found == {id: content for id, content in ALL.items() if id != 7}


def test_busy_servers_are_waited_for() -> None:
    with stand_ins(2) as servers, fleet(*servers) as engine:
        for server in servers:
            server.fails += ["busy"] * 20
        assert contents(results(engine, ordered=True)) == ALL


def test_a_cancelled_job_ends() -> None:
    cancel = CancelFlag()
    with stand_ins(1) as [server], fleet(server) as engine:
        found = results(engine, cancel=cancel, each=lambda row: cancel.set())
        assert 0 < len(found) < len(ROWS)


def test_servers_must_have_the_same_model() -> None:
    with stand_ins(2) as servers, RemoteModel(servers[0].url) as one, RemoteModel(servers[1].url) as two:
        two.texts_depend_on = {"model digest": "abc", "model": "target.gguf"}
        with pytest.raises(UsageError, match=r"would not give the same texts: model: 'other' and 'target.gguf'"):
            Fleet([one, two])
