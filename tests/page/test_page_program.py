"""The page of the program `edgespec serve`: its options, its key, and the history that it shares."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import httpx2
import pytest
from cli_program import edgespec_here
from serve_program import program

pytestmark = [pytest.mark.cli, pytest.mark.native, pytest.mark.slow]
HTML = {"Accept": "text/html"}


def test_without_the_page_there_are_no_chats(tmp_path: Path) -> None:
    with program(tmp_path, "--no-page", "--only") as (_, url):
        assert httpx2.get(url, headers=HTML).text == "edgespec is running\n"
        assert httpx2.get(f"{url}/page/chats").status_code == 404


def test_a_key_protects_the_chats_and_not_the_files_of_the_page(tmp_path: Path) -> None:
    with program(tmp_path, "--only", EDGESPEC_API_KEY="secret") as (_, url):
        assert httpx2.get(url, headers=HTML).text.startswith("<!doctype html>")
        assert httpx2.get(f"{url}/page/chats").status_code == 401
        with_key = {"Authorization": "Bearer secret"}
        assert httpx2.get(f"{url}/page/chats", headers=with_key).json() == {"chats": [], "hits": []}
        body = {"chat": None, "text": "Hello", "settings": {"max-tokens": "4"}}
        httpx2.post(f"{url}/page/answer", json=body, headers=with_key, timeout=60)
    listed = edgespec_here("history", "list", "--json", home=tmp_path).stdout.decode()
    assert "Hello" in listed


def test_open_opens_the_page_in_a_browser(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser.py"
    browser.write_text(f"import sys; open({str(opened)!r}, 'w').write(sys.argv[1])")
    command = f"{shlex.quote(sys.executable)} {browser} %s"
    with program(tmp_path, "--open", "--only", BROWSER=command) as (_, url):
        for _ in range(100):
            if opened.exists() and opened.read_text():
                break
            time.sleep(0.05)
        assert opened.read_text() == url


def test_tools_of_a_file_are_those_of_the_page(tmp_path: Path) -> None:
    done = edgespec_here("serve", "-m", "demo", "--port", "0", "--mcp-config", "missing.json", home=tmp_path)
    assert done.returncode
    assert "missing.json" in done.stderr.decode()
    (tmp_path / "tools.json").write_text(json.dumps({"mcpServers": {"one": {"command": "false", "extra": 1}}}))
    with program(tmp_path, "--only", "--mcp-config", "tools.json") as (_, url):
        assert httpx2.get(f"{url}/page/state").json()["tools"] == ["one"]


def test_a_server_beyond_this_machine_has_the_page_only_if_asked(tmp_path: Path) -> None:
    for args, status in (([], 404), (["--page"], 200)):
        with program(tmp_path, "--only", "--host", "0.0.0.0", *args, EDGESPEC_API_KEY="secret") as (_, url):
            here = url.replace("0.0.0.0", "127.0.0.1")
            found = httpx2.get(f"{here}/page/chats", headers={"Authorization": "Bearer secret"})
            assert found.status_code == status
