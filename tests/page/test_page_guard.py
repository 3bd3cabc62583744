"""Who may use the page: browsers of the same user on this machine, or clients with a key, and no other web page."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from page_client import PageClient

from edgespec.page import same_user
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


def test_connections_are_found_in_the_tables_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    four, six = tmp_path / "tcp", tmp_path / "tcp6"
    rest = "01 00000000:00000000 00:00000000 00000000  {uid}        0 1 1 0 20 4 30 10 -1\n"
    mine, theirs = rest.format(uid=1), rest.format(uid=4242)
    four.write_text(f"{head}   0: 0100007F:1F90 0100007F:C350 {mine}   1: 0100007F:C350 0100007F:1F90 {theirs}")
    mapped = "0000000000000000FFFF00000100007F"
    six.write_text(f"{head}   0: {mapped}:C351 {mapped}:1F90 {theirs}")
    monkeypatch.setattr(same_user, "TABLES", (four, six))
    server = ("127.0.0.1", 8080)
    assert is_other_user(("127.0.0.1", 50000), server)
    assert is_other_user(("127.0.0.1", 50001), server)
    assert not is_other_user(("127.0.0.1", 50002), server)  # not in the tables
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert not is_other_user(("127.0.0.1", 50000), server)
