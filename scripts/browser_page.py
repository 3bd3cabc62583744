"""Runs a JavaScript module in a page of headless Chromium, which has another origin than the server under test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue

from supervised import CommandError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGE = b"""<!doctype html><meta charset="utf-8"><script type="module">
const lines = [];
console.log = (...what) => lines.push(what.map((one) => typeof one === "string" ? one : JSON.stringify(one)).join(" "));
const end = (status) => fetch(`/end/${status}`, { method: "POST", body: lines.join("\\n") });
import("/module.js").then(() => end(0), (error) => { lines.push(String(error.stack)); return end(1); });
</script>"""


def browser() -> str | None:
    """The program of Chromium, if it is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Pages:
    """A web server whose page runs `module`. The output of the module and a status arrive in `ended`."""

    def __init__(self) -> None:
        self.module, self.ended = b"", Queue[tuple[str, int]]()
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_module = self.path == "/module.js"
                self._answer(pages.module if is_module else PAGE, "text/javascript" if is_module else "text/html")

            def do_POST(self) -> None:
                said = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(b"", "text/plain")
                pages.ended.put((said, int(self.path.rpartition("/")[2])))

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve the page within this block."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()

    def run(self, module: bytes, timeout_s: float) -> tuple[str, int]:
        """Return the output of a module, and 0 unless it failed. Raises CommandError."""
        program = browser()
        if program is None:
            raise CommandError(f"there is no {' or '.join(BROWSERS)} here")
        self.module = module
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            options = ["--headless", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
            if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium has no sandbox for root
                options.append("--no-sandbox")
            process = subprocess.Popen(
                [program, *options, self.origin], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                return self.ended.get(timeout=timeout_s)
            except Empty as error:
                raise CommandError(f"the page has not ended within {timeout_s:.0f} seconds") from error
            finally:
                process.terminate()
                process.wait()
