"""Who may use the page: browsers of the same user on this machine, or clients with a key, and no other web page."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import pytest
from page_client import PageClient

from edgespec.page import routes, same_user
from edgespec.page.same_user import is_other_user

pytestmark = [pytest.mark.native, pytest.mark.cli]


def test_browsers_get_the_page_and_other_clients_a_line(page: PageClient) -> None:
    with page.server.client() as client:
        html = client.get("/", headers={"Accept": "text/html,*/*"})
        assert html.text.startswith("<!doctype html>")
        policy = html.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.get("/").text == "edgespec is running\n"


def test_scripts_are_scripts_whatever_the_system_says(page: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starlette.responses.guess_type", lambda name: ("text/plain", None))
    with page.server.client() as client:
        assert client.get("/page/static/main.js").headers["content-type"].startswith("text/javascript")
        assert client.get("/page/static/vendor/katex.min.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["../routes.py", "%2e%2e/routes.py", "vendor/../../routes.py", "nothing.js", ""])
def test_only_files_of_the_page_are_sent(page: PageClient, name: str) -> None:
    with page.server.client() as client:
        assert client.get(f"/page/static/{name}").status_code == 404


def test_allowed_pages_of_other_sites_do_not_get_the_chats(page: PageClient) -> None:
    other = {"Origin": "http://other.example"}
    assert page.get("chats", 403, headers=other)["error"]["code"] == "origin"
    assert page.get("chats", headers={"Origin": page.server.url})["chats"] is not None
    with page.server.client() as client:
        assert client.get("/v1/models", headers=other).status_code == 200


def test_another_user_of_the_machine_does_not_get_the_chats(page: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    if not all(table.exists() for table in same_user.TABLES):
        pytest.skip("this system does not say whose connections are")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(same_user, "ROOT", 12345)
    assert page.get("chats", 403)["error"]["code"] == "other_user"


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
OURS, THEIRS, MAPPED = "0100007F:1F90", "0100007F:C350", "0000000000000000FFFF00000100007F"


def row(local: str, remote: str, uid: int, state: str = "01", inode: int = 77) -> str:
    return (
        f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0 20 4 -1\n"
    )


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the connections of the kernel's tables, for IPv4 and IPv6."""
    files = tmp_path / "tcp", tmp_path / "tcp6"
    monkeypatch.setattr(same_user, "TABLES", files)
    monkeypatch.setattr(os, "getuid", lambda: 1)

    def write(four: str, six: str = "") -> None:
        for file, rows in zip(files, (four, six), strict=True):
            file.write_text(HEAD + rows)

    return write


SERVER = ("127.0.0.1", 8080)
CLIENT = ("127.0.0.1", 50000)


def test_connections_are_found_in_the_tables_of_the_kernel(
    tables: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(row(OURS, THEIRS, 1) + row(THEIRS, OURS, 4242), row(f"{MAPPED}:C351", f"{MAPPED}:1F90", 4242))
    assert is_other_user(CLIENT, SERVER)
    assert is_other_user(("127.0.0.1", 50001), SERVER)
    assert is_other_user(("::ffff:127.0.0.1", 50001), ("::ffff:127.0.0.1", 8080))
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert not is_other_user(CLIENT, SERVER)
    loopback = "00000000000000000000000001000000"
    tables("", row(f"{loopback}:C350", f"{loopback}:1F90", 4243))
    assert is_other_user(("::1", 50000), ("::1", 8080))


def test_a_connection_from_outside_of_the_tables_is_accepted(tables: Callable[..., None]) -> None:
    tables(row(OURS, THEIRS, 1))
    assert not is_other_user(CLIENT, SERVER)


def test_without_tables_all_connections_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_user, "TABLES", (tmp_path / "none",))
    assert not is_other_user(CLIENT, SERVER)


@pytest.mark.parametrize(
    "rows",
    [
        row(OURS, THEIRS, 1, state="08") + row(THEIRS, OURS, 0, state="05", inode=0),  # closed
        row(OURS, THEIRS, 1, state="08"),  # closed a minute ago
        "",  # reset
    ],
)
def test_a_client_that_has_closed_its_end_is_refused(tables: Callable[..., None], rows: str) -> None:
    tables(rows)
    assert is_other_user(CLIENT, SERVER)


@pytest.mark.parametrize("linger", [(0, 0), (1, 0)], ids=["closed", "reset"])
def test_a_client_that_has_gone_changes_nothing(
    page: PageClient, monkeypatch: pytest.MonkeyPatch, linger: tuple[int, int]
) -> None:
    if not all(table.exists() for table in same_user.TABLES):
        pytest.skip("this system does not say whose connections are")
    id = page.ask("Hello")["id"]
    body = json.dumps({"id": id, "action": "rename", "title": "Changed"}).encode()
    head = f"POST /page/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    found, has_come, has_gone, is_judged = list[bool](), Event(), Event(), Event()

    def judged(client: tuple[str, int], server: tuple[str, int]) -> bool:
        has_come.set()
        has_gone.wait(10)
        found.append(is_other_user(client, server))
        is_judged.set()
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(routes, "is_other_user", judged)
        with socket.create_connection(("127.0.0.1", urlsplit(page.server.url).port or 0)) as client:
            client.sendall(head + body)
            assert has_come.wait(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", *linger))
        has_gone.set()
        assert is_judged.wait(10)
    assert found == [True]
    assert page.get("chat", id=id)["title"] == "Hello"
