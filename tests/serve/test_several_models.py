"""Several models: loaded when requests name them, unloaded for others or when idle, and each alone when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from endless import CTX_SIZE, ENDLESS_BODY
from serving import Serving, serving
from tiny_encoder import write_encoder
from tiny_gguf import write_model

from edgespec.errors import OutOfMemoryError
from edgespec.runtime.worker import Worker
from edgespec.serve.offers import name_for, offers_here
from edgespec.serve.pool import Offer
from edgespec.settings import LoadSettings, Request

TEXT = "/v1/completions"
SETTINGS = LoadSettings("demo", threads=1, sequences=2, ctx_size=CTX_SIZE, store=False, spec_type="none")
pytestmark = [pytest.mark.native, pytest.mark.cli]


def offer(name: str, spec: str = "demo:draft", idle_s: float | None = None) -> Offer:
    return Offer(name, LoadSettings(**{**vars_of(SETTINGS), "model": spec}), Request(), idle_s)


def vars_of(settings: LoadSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


@contextmanager
def serving_demo(**options: Any) -> Iterator[Serving]:
    with Worker(SETTINGS) as worker, serving(worker, **options) as server:
        yield server


@pytest.fixture(scope="module")
def two() -> Iterator[Serving]:
    """A server of the demo model and of others that were not loaded before, of which two may be loaded at a time."""
    with serving_demo(others=[offer(name) for name in "abc"], models_max=2) as server:
        yield server


def states(server: Serving) -> dict[str, str]:
    with server.client() as client:
        return {model["id"]: model["status"]["value"] for model in client.get("/v1/models").json()["data"]}


def loaded(server: Serving) -> set[str]:
    return {name for name, state in states(server).items() if state == "loaded"}


def ask(server: Serving, model: str, **body: Any) -> httpx2.Response:
    with server.client() as client:
        return client.post(TEXT, json={"prompt": "def f(", "max_tokens": 2, "model": model} | body)


def events(server: Serving, *models: str) -> list[tuple[str, str]]:
    """What happened to these models."""
    found = [record for record in server.records if record["event"] != "request" and record["model"] in models]
    return [(record["event"], record["model"]) for record in found]


def pid_of(server: Serving, name: str) -> int:
    served = server.pool._places[name].served
    assert served is not None
    pid = served.worker.loop.process.pid
    assert pid is not None
    return pid


@contextmanager
def answering(server: Serving, model: str, **body: Any) -> Iterator[Iterator[str]]:
    """While a model makes a long answer: the lines of it."""
    asked = ENDLESS_BODY | {"model": model} | body
    with server.client() as client, client.stream("POST", TEXT, json=asked) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        next(lines)
        yield lines


def wait_for(server: Serving, model: str, state: str) -> None:
    while states(server)[model] != state:
        time.sleep(0.02)


def test_a_model_is_loaded_when_a_request_names_it(two: Serving) -> None:
    assert states(two)["a"] == "unloaded"
    with two.client() as client:
        assert client.get("/props", params={"model": "a"}).json()["is_sleeping"] is True
        assert client.get("/slots", params={"model": "a"}).json() == []
        assert client.get("/v1/models/a").json()["status"] == {"value": "unloaded"}
    assert ask(two, "").json()["model"] == "demo"
    with ThreadPoolExecutor(4) as threads:  # which wait for one load
        answers = list(threads.map(lambda _: ask(two, "a"), range(4)))
    assert [answer.json()["model"] for answer in answers] == ["a"] * 4
    assert events(two, "a") == [("loaded", "a")]
    assert loaded(two) == {"demo", "a"}
    with two.client() as client:
        assert client.post("/tokenize", json={"content": "x", "model": "a"}).json()["tokens"]
        assert client.get("/props", params={"model": "a"}).json()["total_slots"] == 2
        metrics = client.get("/metrics").text
    assert "edgespec:models_loaded 2" in metrics
    assert 'edgespec:model_loads_total{model="a"} 1' in metrics


@pytest.mark.long
def test_a_stream_that_waits_for_a_load_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_S", "PING_S"):
        monkeypatch.setattr(f"edgespec.serve.sse.{name}", 0.01)
    with serving_demo(others=[offer("small"), offer("broken", "nowhere")]) as server, server.client() as client:
        with client.stream("POST", TEXT, json=ENDLESS_BODY | {"model": "small", "max_tokens": 3}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[0] == ": ping"
        assert lines[-1] == "data: [DONE]"
        assert ask(server, "broken").status_code == 503
        assert client.get("/v1/models/broken").json()["status"] == {"value": "unloaded", "failed": True}


def test_the_model_that_was_not_used_for_longest_makes_room(two: Serving) -> None:
    for name in ("demo", "b", "demo", "c"):
        assert ask(two, name).status_code == 200
    assert loaded(two) == {"demo", "c"}
    with answering(two, "demo"), answering(two, "c"):
        refusal = ask(two, "b")
        assert refusal.status_code == 503
        assert refusal.headers["retry-after"]
        assert refusal.json()["error"]["code"] == "models_busy"
        with two.client() as client:  # which is no failure of this model
            assert client.get("/v1/models/b").json()["status"] == {"value": "unloaded"}
    assert events(two, "b", "c") == [("loaded", "b"), ("unloaded", "b"), ("loaded", "c")]


@pytest.mark.long
def test_an_idle_model_is_unloaded_and_loaded_again() -> None:
    with serving_demo(others=[offer("small", idle_s=0.05)]) as server:
        with answering(server, "small"):
            wait_for(server, "small", "loaded")
        wait_for(server, "small", "unloaded")
        assert ask(server, "small").status_code == 200
        assert states(server)["demo"] == "loaded"
        assert ("unloaded", "small") in events(server, "small")


@pytest.mark.long
def test_the_server_ends_while_a_model_is_unloaded_or_loaded() -> None:
    with serving_demo(others=[offer("small", idle_s=0.001), offer("other")]) as server:
        assert ask(server, "small").status_code == 200
        while ("unloaded", "small") not in events(server, "small") and states(server)["small"] == "loaded":
            pass
    with serving_demo(others=[offer("small")]) as server, server.client() as client, ThreadPoolExecutor(1) as threads:
        threads.submit(client.post, TEXT, json={"prompt": "x", "model": "small"}, timeout=0.3)
        wait_for(server, "small", "loading")  # loading continues when its client has left


@pytest.mark.long
def test_answers_of_a_model_that_is_closed_end_with_an_error(two: Serving) -> None:
    with answering(two, "demo") as lines:
        served = two.pool._places["demo"].served
        assert served is not None
        assert served.worker.loop._reader is not None
        asyncio.run_coroutine_threadsafe(served.close(), served.worker.loop._reader.event_loop).result()
        said = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert said[-1]["error"]["code"] == "engine_error"
        assert ask(two, "demo").status_code == 200


@pytest.mark.long
def test_a_worker_that_is_killed_fails_its_own_requests_alone(two: Serving) -> None:
    with answering(two, "demo", max_tokens=450) as others, answering(two, "c") as lines:
        psutil.Process(pid_of(two, "c")).kill()
        said = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert said[-1]["error"]["code"] == "engine_error"
        assert ask(two, "c").status_code == 200  # restarted while the other one answers
        assert [line for line in others if line][-1] == "data: [DONE]"
    assert events(two, "c")[-2:] == [("died", "c"), ("loaded", "c")]
    assert loaded(two) == {"demo", "c"}


@pytest.mark.skipif(os.name != "posix", reason="stops a process")
def test_a_worker_that_is_stuck_holds_up_no_other_model(two: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with two.client() as client, ThreadPoolExecutor(40) as threads:
        assert ask(two, "c").status_code == 200
        psutil.Process(pid_of(two, "c")).suspend()
        stuck = threads.submit(ask, two, "c", prompt="x" * 200_000)  # more than a pipe holds
        for path in ("/tokenize", "/apply-template"):  # more than asyncio has threads
            for _ in range(16):
                body = {"model": "c", "content": "x", "messages": [{"role": "user", "content": "x"}]}
                threads.submit(client.post, path, json=body)
        with monkeypatch.context() as soon:
            soon.setattr("edgespec.serve.native.STATE_S", 0.01)
            soon.setattr("edgespec.serve.served.FIGURES_S", 0.01)
            refused = client.get("/slots", params={"model": "c"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_reply")
            assert client.get("/metrics").status_code == 200
        for path in ("/health", "/v1/models", "/props", "/slots", "/props?model=c"):
            assert client.get(path).status_code == 200
        assert client.post("/tokenize", json={"content": "x " * 2**16}).status_code == 200
        assert ask(two, "demo").status_code == 200
        c = two.pool._places["c"].served
        assert c is not None
        c.worker.loop.silence_s = 0.2
        assert "no sign of life" in stuck.result().json()["error"]["message"]
        assert ask(two, "c").status_code == 200
    assert events(two, "c")[-2:] == [("died", "c"), ("loaded", "c")]


@pytest.mark.long
def test_short_memory_unloads_what_is_idle_and_says_what_is_not(two: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(settings: LoadSettings, **options: Any) -> Worker:
        if settings.must_fit:
            raise OutOfMemoryError("a context does not fit", why="it needs 2 GB, 1 GB are free")
        return Worker(settings, **options)

    monkeypatch.setattr("edgespec.serve.pool.Worker", worker)
    with answering(two, "demo"):
        refusal = ask(two, "b")
    assert refusal.status_code == 503
    assert refusal.headers["retry-after"]
    assert "it needs 2 GB" in refusal.json()["error"]["message"]
    assert ask(two, "b").status_code == 200
    assert loaded(two) == {"b"}


@pytest.mark.parametrize("name", ["/etc/passwd", "./demo", "../models/demo/target.gguf", "hf:owner/name", "qwen2.5-7b"])
def test_no_request_names_a_path_or_downloads_anything(server: Serving, name: str) -> None:
    assert ask(server, name).json()["error"]["code"] == "model_not_found"


def test_two_files_of_one_name_are_both_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_model(tmp_path / folder / "same.gguf", "llama")
    names = offers_here({}, lambda name, spec: Offer(name, LoadSettings(spec), Request()))
    ours = {name: Path(offer.settings.model).parent.name for name, offer in names.items() if name.endswith("same")}
    assert ours in ({"same": "a", "b/same": "b"}, {"same": "b", "a/same": "a"})


def test_the_models_of_this_machine_have_names_and_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    from edgespec.models.names.spec import resolve

    (tmp_path / "own.gguf").write_bytes(resolve("demo:draft").path.read_bytes())
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    write_encoder(tmp_path / "bert.gguf")
    named = {str(tmp_path / "own.gguf"): offer("own")}
    names = offers_here({}, offer)
    assert {"demo", "demo:draft", "own", "bert"} <= set(names)
    assert not {name for name in names if name.startswith(("/", ".", "~")) or "broken" in name}
    assert names["own"].settings.model == str(tmp_path / "own.gguf")
    only = offers_here(named, None)
    assert [*only] == ["own"]
    assert only["own"] is next(iter(named.values()))
    assert name_for(str(tmp_path / "own.gguf")) == "own"
    assert name_for("demo") == "demo"
