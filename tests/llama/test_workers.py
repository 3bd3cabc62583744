"""Addresses of workers, and what is asked of them before llama.cpp is: every way in which something there is wrong."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from edgespec.errors import GenerationError, UsageError
from edgespec.llama import rpc
from edgespec.llama.workers import DEFAULT_PORT, MOST_WORKERS, RemoteDevice, parse_addresses, probe

HELLO, DEVICES = struct.pack("<Q4B24x", 28, 7, 0, 0, 0), struct.pack("<QI", 4, 1)
MEMORY, ALIGNMENT = struct.pack("<QQQ", 16, 5, 9), struct.pack("<QQ", 8, 32)


@contextmanager
def server(*replies: bytes, closes: bool = True) -> Iterator[str]:
    """The address of something that answers each thing it is sent with the next reply, then hangs up or is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                for reply in replies:
                    client.recv(4096)
                    client.sendall(reply)
                if not closes or not replies:
                    client.recv(4096)
                    if not closes:
                        client.recv(4096)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def refusal(address: str, ask: Callable[..., list[RemoteDevice]] = probe) -> str:
    with pytest.raises(GenerationError) as caught:
        ask(address, answer_s=0.2)
    assert address in str(caught.value)
    return str(caught.value)


def test_a_worker_says_what_it_offers() -> None:
    with server(HELLO, DEVICES, MEMORY, ALIGNMENT) as address:
        assert probe(address) == [RemoteDevice(address, 0, 5, 9, 32)]


def test_a_name_is_resolved() -> None:
    with server(HELLO, DEVICES, MEMORY, ALIGNMENT) as address:
        assert probe(address.replace("127.0.0.1", "localhost"))[0].address == address


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert f"rpc-worker --port {port}" in refusal(f"127.0.0.1:{port}")


def test_a_name_that_nobody_has() -> None:
    assert "cannot use the worker nobody.invalid:50052" in refusal("nobody.invalid:50052")


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ((struct.pack("<Q4B24x", 28, 6, 1, 0, 0),), "version 6.1.0 of the protocol, this build 7.0"),
        ((struct.pack("<Q4B24x", 28, 7, 1, 0, 0),), "version 7.1.0"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "not of this protocol"),
        ((HELLO, struct.pack("<QI", 4, 0)), "0 devices"),
        ((HELLO,), "closed the connection"),
        ((), "closed the connection"),
    ],
)
def test_something_else_there(replies: tuple[bytes, ...], words: str) -> None:
    with server(*replies) as address:
        message = refusal(address)
        assert "cannot use the worker" in message and words in message


@pytest.mark.parametrize("replies", [(), (HELLO,)])
def test_a_worker_that_serves_another_program(replies: tuple[bytes, ...]) -> None:
    with server(*replies, closes=False) as address:
        assert "one program at a time" in refusal(address)


def test_addresses_may_be_a_list_or_several() -> None:
    assert parse_addresses(["a:1, b", "10.0.0.2:3"]) == ("a:1", f"b:{DEFAULT_PORT}", "10.0.0.2:3")
    assert parse_addresses([]) == () and parse_addresses("a:1") == ("a:1",)


@pytest.mark.parametrize("text", ["a:0", "a:65536", "[::1]:5", "http://a:5", "a:b", ":5"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_addresses([text])


def test_too_many_and_twice_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "has_rpc", lambda: True)
    monkeypatch.setattr(rpc, "probe", lambda address: [RemoteDevice(address, 0, 5, 9, 32)])
    with pytest.raises(UsageError, match="twice"):
        rpc.offers(parse_addresses(["a:1", "a:1"]))
    with pytest.raises(UsageError, match=f"{MOST_WORKERS} at most"):
        rpc.offers(parse_addresses([f"a:{port}" for port in range(1, MOST_WORKERS + 2)]))


def test_a_worker_under_two_names_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "has_rpc", lambda: True)
    monkeypatch.setattr(rpc, "probe", lambda address: [RemoteDevice("127.0.0.1:7", 0, 5, 9, 32)])
    with pytest.raises(UsageError, match=r"localhost:7 is named twice: it is 127\.0\.0\.1:7"):
        rpc.offers(["127.0.0.1:7", "localhost:7"])
