"""A Hugging Face hub on the loopback address, as far as huggingface_hub and edgespec use one, with faults on demand.

with FakeHub() as hub:
    hub.add("owner/name", {"model-Q4_K_M.gguf": b"..."})
    edgespec("pull", "hf:owner/name", home=home, **hub.environment(home))
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from cli_program import Finished, edgespec, edgespec_here
from huggingface_hub import close_session, constants

from edgespec.models.hub import requests as hub_requests
from edgespec.models.names.source import BUNDLED

PIECE = 4096
PAGE = b"<html>please log in to this network</html>"
_OF_OTHERS = re.compile("HF_|HUGGING|TRANSFORMERS_|[A-Z]+_PROXY$", re.IGNORECASE)
CATALOGUE = """
[demo-pair]
repository = "owner/demo-GGUF"
quant = "Q8_0"
drafts = ["demo-draft"]

[demo-draft]
repository = "owner/draft-GGUF"
quant = "Q8_0"
"""


@dataclass
class Faults:
    """The faults of the hub. A number of requests counts down; `None` and 0 are for never."""

    cut_after: int | None = None  # bytes of a file, after which the connection is closed
    cuts: int = 1 << 30  # how often that happens
    resets: bool = False  # it is not closed, but reset
    stall_after: int | None = None  # bytes of a file, after which nothing comes any more
    stalls: int = 1 << 30
    busy: int = 0  # requests that are answered with `busy_status`
    busy_status: int = 503
    retry_after: str = ""
    gated: bool = False  # to who sends no token, and to who sends another than `granted`
    granted: str = "Bearer hf_granted"
    unauthorized: bool = False  # 401 to all, as for what is private or not there
    bad_token: bool = False
    forbidden: str = ""  # 403 with this message
    other_content: bool = False  # of the right length
    no_ranges: bool = False
    too_much: int = 0  # bytes more than there are
    login_page: bool = False  # sent in place of files
    other_range: bool = False  # than was asked for
    siblings: Any = None  # reported in place of the true ones
    not_json: bool = False
    no_lfs: bool = False  # git keeps all files itself


@dataclass
class Repository:
    files: dict[str, bytes]
    commit: str
    branches: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    """A request: the address, the range if it is for one part, and the token that was sent with it."""

    method: str
    path: str
    range: str
    token: str
    sent_bytes: int = 0


@contextmanager
def hub_with_demo_pair(home: Path) -> Iterator[FakeHub]:
    """A hub with the bundled pair, which the user's catalogue in `home` knows as demo-pair and its draft demo-draft."""
    (home / "config").mkdir()
    (home / "config" / "models.toml").write_text(CATALOGUE, encoding="utf-8")
    with FakeHub() as hub:
        hub.add("owner/demo-GGUF", {"demo-Q8_0.gguf": (BUNDLED / "target.gguf").read_bytes()})
        hub.add("owner/draft-GGUF", {"draft-Q8_0.gguf": (BUNDLED / "draft.gguf").read_bytes()})
        yield hub


def lead_to(hub: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process use the hub, with `home` as HF_HOME's folder, and shorten its waits."""
    for name, value in hub.environment(home).items():
        monkeypatch.setenv(name, value)
    # what huggingface_hub has read already, when it was imported
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 30)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "hf" / "token"))
    for name in ("FIRST_WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(hub_requests, name, 0.01)
    for name in ("FETCHING_S", "LOOKING_S"):
        monkeypatch.setattr(hub_requests, name, 0.05)
    close_session()  # it has read its settings too


def edgespec_with(hub: FakeHub, *args: str, home: Path, stdin: bytes = b"", **variables: str) -> Finished:
    """Run the program in this process with the hub as its own; other `variables` than the terminal's need a process,
    because huggingface_hub reads them when it is imported."""
    if variables.keys() - {"COLUMNS"}:
        return edgespec(*args, home=home, stdin=stdin, **hub.environment(home, **variables))
    with pytest.MonkeyPatch.context() as patch:
        lead_to(hub, home, patch)
        try:
            return edgespec_here(*args, home=home, stdin=stdin, **variables)
        finally:
            close_session()


class FakeHub:
    """The hub, from `with` on. Another address, `storage`, gives the files out, as the real one's does.

    Meanwhile this process, and what it starts, knows nothing of the user's own settings and token.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        self.repositories: dict[str, Repository] = {}
        self.about: dict[str, dict[str, Any]] = {}  # facts about a repository, in addition to its name
        self.requests: list[Request] = []
        self.released = threading.Event()  # ends stalls
        self._servers = [_Server(self), _Server(self)]
        self._put_away: dict[str, str] = {}
        self.endpoint, self.storage = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self) -> FakeHub:
        self._put_away = {name: value for name, value in os.environ.items() if _OF_OTHERS.match(name)}
        for name in self._put_away:
            del os.environ[name]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        os.environ.update(self._put_away)

    def add(self, name: str, files: dict[str, bytes]) -> Repository:
        """A repository, or a new commit of one on its main branch."""
        content = "".join(f"{file}{hashlib.sha256(data).hexdigest()}" for file, data in files.items())
        self.repositories[name] = Repository(files, hashlib.sha1(content.encode()).hexdigest())
        return self.repositories[name]

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """The variables that send a program to this hub, and make its waits short."""
        variables = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
        return variables | {"NO_PROXY": "127.0.0.1"} | more

    @property
    def file_requests(self) -> list[Request]:
        """Those that asked for content."""
        return [request for request in self.requests if request.path.startswith("/storage/")]

    @property
    def sent_bytes(self) -> int:
        """Of files, not of anything else."""
        return sum(request.sent_bytes for request in self.file_requests)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: FakeHub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed in the middle are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_CONNECT(self) -> None:
        """As a proxy, which this one is not."""
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        hub, address = self.server.hub, urlsplit(self.path)
        self.seen = Request(
            self.command, self.path, self.headers.get("Range", ""), self.headers.get("Authorization", "")
        )
        hub.requests.append(self.seen)
        if "agent-harnesses" in self.path:
            self._refuse(404)
        elif hub.faults.busy > 0:
            hub.faults.busy -= 1
            more = {"Retry-After": hub.faults.retry_after} if hub.faults.retry_after else {}
            self._refuse(hub.faults.busy_status, **more)
        elif address.path == "/api/models":
            self._search(parse_qs(address.query).get("search", [""])[0])
        elif found := re.fullmatch("/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", address.path):
            self._list(found[1], unquote(found[2] or "main"))
        elif found := re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", address.path):
            self._resolve(found[1], unquote(found[2]), unquote(found[3]))
        elif found := re.fullmatch("/storage/([0-9a-f]+)", address.path):
            self._send_file(found[1])
        else:
            self._refuse(404)

    def _search(self, words: str) -> None:
        hub = self.server.hub
        names = [name for name in hub.repositories if words.lower() in name.lower()]
        if hub.faults.not_json:
            self._send(200, PAGE, {"Content-Type": "text/html"})
        else:
            self._json([{"id": name, **hub.about.get(name, {})} for name in names])

    def _list(self, name: str, revision: str) -> None:
        if self.server.hub.faults.not_json:
            self._send(200, PAGE, {"Content-Type": "text/html"})
        elif repository := self._repository(name, revision):
            lfs = not self.server.hub.faults.no_lfs
            true = [_sibling(file, data, lfs=lfs) for file, data in repository.files.items()]
            siblings = true if self.server.hub.faults.siblings is None else self.server.hub.faults.siblings
            about = {"gguf": self.server.hub.about.get(name, {}).get("gguf")}
            self._json({"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, **about})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        """Leads to the storage, as the hub does for large files; what is known of them comes along."""
        faults = self.server.hub.faults
        repository = self._repository(name, revision)
        if repository is None:
            return
        if faults.gated and self.seen.token != faults.granted:
            self._refuse(403 if self.seen.token else 401, "GatedRepo")
        elif faults.forbidden:
            self._refuse(403, message=faults.forbidden)
        elif file not in repository.files:
            self._refuse(404, "EntryNotFound")
        else:
            data = repository.files[file]
            about = {"X-Repo-Commit": repository.commit, "X-Linked-Etag": f'"{_sha256(data)}"'}
            about |= {"X-Linked-Size": str(len(data)), "ETag": f'"{_sha256(data)}"'}
            self._send(302, b"", about | {"Location": f"{self.server.hub.storage}/storage/{_sha256(data)}"})

    def _repository(self, name: str, revision: str) -> Repository | None:
        hub = self.server.hub
        repository = hub.repositories.get(name)
        if hub.faults.bad_token and self.seen.token:
            self._refuse(401, message="Invalid credentials in Authorization header")
        elif repository is None or hub.faults.unauthorized:
            self._refuse(401, "RepoNotFound", message="Invalid username or password.")
        elif revision not in ("main", repository.commit, *repository.branches):
            self._refuse(404, "RevisionNotFound")
        else:
            return repository
        return None

    def _send_file(self, sha256: str) -> None:
        hub, faults = self.server.hub, self.server.hub.faults
        if faults.login_page:
            self._send(200, PAGE, {"Content-Type": "text/html"})
            return
        contents = [data for repository in hub.repositories.values() for data in repository.files.values()]
        data = next(data for data in contents if _sha256(data) == sha256)
        if faults.other_content:
            data = bytes(byte ^ 1 for byte in data)
        asked = re.fullmatch(r"bytes=(\d+)-", self.seen.range)
        start = int(asked[1]) - faults.other_range if asked and not faults.no_ranges else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start + faults.too_much))
        self.send_header("ETag", f'"{sha256[:32]}"')  # the storage names files differently
        self.end_headers()
        self._write(data[start:] + b"\0" * faults.too_much)

    def _write(self, body: bytes) -> None:
        hub, faults = self.server.hub, self.server.hub.faults
        cut = faults.cut_after if faults.cuts > 0 else None
        stall = faults.stall_after if faults.stalls > 0 else None
        end = min(each for each in (cut, stall, len(body)) if each is not None)
        for at in range(0, end, PIECE):
            piece = body[at : min(at + PIECE, end)]
            self.seen.sent_bytes += len(piece)  # before the client can have it, and the test can look
            self.wfile.write(piece)
        if end == len(body):
            return
        if end == stall:
            faults.stalls -= 1
            hub.released.wait(60)
        else:
            faults.cuts -= 1
            if faults.resets:
                self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str = "", message: str = "", **headers: str) -> None:
        more = {"X-Error-Code": code} if code else {}
        more |= {"X-Error-Message": message} if message else {}
        more |= {name.replace("_", "-"): value for name, value in headers.items()}
        self._send(status, json.dumps({"error": message or code}).encode(), more | {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sibling(file: str, data: bytes, *, lfs: bool) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    about: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": blob}
    if lfs and file.endswith(".gguf"):
        about["lfs"] = {"sha256": _sha256(data), "size": len(data), "pointerSize": 134}
    return about


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
