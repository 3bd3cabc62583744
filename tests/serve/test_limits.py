"""Clients that are slow, stuck, or send too much: each gets an error or is cut off, and none holds up others."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from serving import Serving, serving

from edgespec.llm.stream import AsyncEvents, Stream, StreamReader
from edgespec.requests.bad_input import BadInputError
from edgespec.requests.fields import Fields
from edgespec.requests.messages import chat_messages
from edgespec.runtime.worker import Worker
from edgespec.serve.bodies import SMALL
from edgespec.serve.http import IDLE_S
from edgespec.settings import LoadSettings, Request

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PLAIN = {"spec_type": "none"}
pytestmark = [pytest.mark.native, pytest.mark.cli]


def connected(server: Serving, *, window: int = 0) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.socket()
    if window:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.settimeout(60)
    sock.connect((host, int(port)))
    return sock


def sent(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return HEAD + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def all_of(sock: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    while part := sock.recv(2**16):
        parts.append(part)
    return b"".join(parts)


def is_well(server: Serving) -> bool:
    with server.client() as client:
        return client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_hundreds_of_idle_connections_keep_nobody_waiting(server: Serving) -> None:
    idle = [connected(server) for _ in range(300)]
    try:
        assert is_well(server)
    finally:
        for sock in idle:
            sock.close()


@pytest.mark.parametrize("sent_first", [b"", b"POST /v1/comp", sent({"prompt": "x", "max_tokens": 1}) + b"GET /hea"])
def test_a_connection_that_sends_no_whole_head_is_closed(
    server: Serving, monkeypatch: pytest.MonkeyPatch, sent_first: bytes
) -> None:
    monkeypatch.setattr("edgespec.serve.http.REQUEST_S", 0.2)
    with connected(server) as sock:
        sock.sendall(sent_first)
        try:
            found = all_of(sock)
        except ConnectionResetError:
            return
        assert found.count(b"HTTP/1.1") == sent_first.startswith(HEAD)


def test_a_connection_stays_open_between_requests(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of clients keep connections for up to five minutes."""
    assert IDLE_S > 300
    with connected(server) as sock:
        monkeypatch.setattr("edgespec.serve.http.REQUEST_S", 0.05)
        for _ in range(2):
            sock.sendall(sent({"prompt": "x", "max_tokens": 1}))
            answer = b""
            while not answer.endswith(b"}"):
                part = sock.recv(2**16)
                assert part, "closed"
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
            assert select.select([sock], [], [], 0.3)[0] == []  # a closed one could be read


def test_a_body_that_trickles_in_is_refused(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bodies.STALL_S", "guard.DRAIN_S"):
        monkeypatch.setattr(f"edgespec.serve.{name}", 0.1)
    with connected(server) as sock:
        sock.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"prompt"')
        assert all_of(sock).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_of_100_mb_is_refused_and_its_sender_can_read_why(server: Serving, chunked: bool) -> None:
    part = b"x" * 2**20
    with connected(server) as sock:
        length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (100 * len(part))
        sock.sendall(HEAD + length + b"\r\n\r\n")
        for _ in range(100):  # as clients do that read nothing before they have sent it
            sock.sendall(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        sock.sendall(b"0\r\n\r\n" if chunked else b"")
        assert all_of(sock).startswith(b"HTTP/1.1 " + (b"503" if chunked else b"413"))


def test_uploads_that_have_stalled_make_room_for_others(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = [connected(server) for _ in range(3)]
    try:
        for sock in stalled:
            sock.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 700_000)
        assert is_well(server)
        monkeypatch.setattr("edgespec.serve.bodies.BEHIND_S", 0.0)
        with server.client() as client:
            body = {"prompt": "x", "max_tokens": 1, "user": "u" * 1_000_000}
            assert client.post("/v1/completions", json=body).status_code == 200
        ended, _, _ = select.select(stalled, [], [], 30)
        assert {sock.recv(12) for sock in ended} == {b"HTTP/1.1 408"}
    finally:
        for sock in stalled:
            sock.close()


def test_bodies_that_are_held_have_a_limit_together(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.serve.bodies.BEHIND_S", float("inf"))  # none makes room
    rest = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    for _ in range(2):  # the second time none of the first is held any more
        opened = [connected(server) for _ in range(3)]
        try:
            for sock in opened:  # two of them fit
                sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (1_000_000 + len(rest)) + b" " * 1_000_000)
            refused, _, _ = select.select(opened, [], [], 30)
            assert [sock.recv(12) for sock in refused] == [b"HTTP/1.1 503"]
            for sock in set(opened) - set(refused):
                sock.sendall(rest)
                assert sock.recv(12) == b"HTTP/1.1 200"
        finally:
            for sock in opened:
                sock.close()


def test_a_reader_that_stops_reading_is_cut_off(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.serve.http.READ_S", 0.2)
    with connected(server, window=4096) as sock:
        body = {"prompt": "x", "logprobs": 20, "max_tokens": 900, "n": 16, "stream": True, "ignore_eos": True} | PLAIN
        sock.sendall(sent(body))
        while not server.served.n_open:
            time.sleep(0.01)
        while server.served.n_open:  # the answer is cancelled, although the client is still there
            time.sleep(0.05)
    assert server.records[-1].get("tokens", 0) < 16 * 900
    assert is_well(server)


@pytest.mark.long
def test_an_answer_that_nobody_reads_gives_its_slot_to_others(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.llm.stream.MOST_UNREAD", 100)
    streams, read = list[Stream](), StreamReader.read

    def noted(reader: StreamReader, stream: Stream) -> AsyncEvents:
        streams.append(stream)
        return read(reader, stream)

    monkeypatch.setattr(StreamReader, "read", noted)
    with connected(server, window=4096) as sock:
        body = {"prompt": "x", "logprobs": 20, "max_tokens": 900, "n": 16, "stream": True, "ignore_eos": True} | PLAIN
        sock.sendall(sent(body))
        while not streams:
            time.sleep(0.01)
        while not streams[0].is_closed:  # its connection is open
            time.sleep(0.05)
        assert is_well(server)
    while server.served.n_open:
        time.sleep(0.01)
    assert server.records[-1].get("tokens", 0) < 16 * 900


def test_a_large_body_is_not_read_on_the_event_loop(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(given: Any, *more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return chat_messages(given, *more)

    monkeypatch.setattr("edgespec.serve.openai.chat_messages", noted)
    with server.client() as client:
        for size in (1, SMALL):
            body = {"messages": [{"role": "user", "content": "x" * size}], "max_tokens": 1}
            status = client.post("/v1/chat/completions", json=body).status_code
            assert status == (400 if size == SMALL else 200)  # it does not fit into the context
    assert len({*threads}) == 2
    assert threads[1] == "reads a request"


@pytest.mark.parametrize("field", [{"logit_bias": {str(id): 1 for id in range(2**14 + 1)}}, {"stop": ["x"] * 300}])
def test_fields_of_too_many_entries_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match=r"may have [0-9,]+ entries, not") as refused:
        Fields(field).request(Request())
    assert refused.value.where in field


def test_prompts_have_a_limit_together(server: Serving) -> None:
    with server.client() as client:
        answer = client.post("/v1/completions", json={"prompt": "x" * (2**20 + 1), "n": 64})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"


@pytest.mark.skipif(os.name != "posix", reason="stops a process")
@pytest.mark.long
def test_the_server_ends_although_its_worker_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the worker's silence is noticed; the client is cut off."""
    monkeypatch.setattr("edgespec.serve.http.FINISH_S", 0.2)
    monkeypatch.setattr("edgespec.runtime.worker.pipes.GRACE_S", 0.2)
    with (
        Worker(LoadSettings("demo", threads=1, store=False, spec_type="none")) as worker,
        ThreadPoolExecutor(1) as pool,
    ):
        with serving(worker) as server:
            psutil.Process(worker.loop.process.pid).suspend()
            with server.client() as client:
                answer = pool.submit(client.post, "/v1/completions", json={"prompt": "x"})
                while not server.served.n_open:
                    time.sleep(0.01)
        assert answer.exception() is not None


def test_a_client_that_closes_its_half_has_left(server: Serving) -> None:
    with connected(server) as sock:
        sock.sendall(sent({"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        sock.shutdown(socket.SHUT_WR)
        all_of(sock)
    while server.served.n_open:
        time.sleep(0.01)
    assert is_well(server)
