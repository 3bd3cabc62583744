"""pip as the client of a package index: it knows the user's indexes and mirrors, proxies and certificates."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from edgespec.files.unfinished import undoing
from edgespec.models.hub.requests import DownloadError

LOOK_S = 0.1  # between two progress updates
RETRIES = 2  # of unanswered requests: fewer than pip's usual 5, so that the user hears of a failure sooner
COMMAND = [
    sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
    "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", str(RETRIES),
]  # fmt: skip

_REASONS = {  # pip's messages, and what they mean
    "CERTIFICATE_VERIFY_FAILED|confirming the ssl certificate": "its certificate is not trusted",
    "ProxyError": "the proxy refused the connection",
    "[Tt]imed out|Timeout": "it does not respond in time",
    "Name or service not known|name resolution|nodename nor|getaddrinfo failed": "its name cannot be resolved",
    "Connection refused|actively refused": "the connection is refused",
    "unreachable": "the network cannot be reached",
    "connection broken by": "the connection broke",
}
_HINT = "pip's own settings apply: 'python -m pip config list', PIP_INDEX_URL, PIP_PROXY, PIP_CERT"


def download_wheel(
    package: str, folder: Path, received: Callable[[int], None], is_cancelled: Callable[[], bool]
) -> Path | None:
    """Download the wheel of `package` ("name==version") into `folder`; None if it was cancelled.

    `received` is called from time to time with the number of bytes received. pip itself resumes lost connections.
    Raises DownloadError, OSError.
    """
    if find_spec("pip") is None:
        raise DownloadError(
            f"{package} cannot be downloaded",
            why=f"pip is not installed for {sys.executable}",
            hint=f"install it: uv pip install --python {sys.executable} pip, or {sys.executable} -m ensurepip",
        )
    with TemporaryDirectory(prefix="pip-", dir=folder, ignore_cleanup_errors=True) as scratch:
        done, log = Path(scratch) / "done", Path(scratch) / "log"
        with log.open("ab") as said, _pip(package, done, scratch, said.fileno()) as child, undoing(child.kill):
            while child.poll() is None:
                received(_largest_bytes(Path(scratch)))
                if is_cancelled():
                    return None
                with suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_S)
        wheels = list(done.glob("*.whl"))
        if child.returncode or not wheels:
            if is_cancelled():
                return None
            raise _explained(package, log.read_text(encoding="utf-8", errors="replace"))
        received(wheels[0].stat().st_size)
        return wheels[0].replace(folder / wheels[0].name)


def _pip(package: str, done: Path, scratch: str, said: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "--dest", str(done), package],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch) | {"PYTHONIOENCODING": "utf-8"},
        start_new_session=True,  # Ctrl-C is for this process alone; Windows knows groups instead of sessions
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def _largest_bytes(folder: Path) -> int:
    """The size of the file being downloaded, wherever pip puts it first."""
    largest = 0
    with suppress(OSError):  # a file or a folder has disappeared
        for path in folder.rglob("*.whl"):
            largest = max(largest, path.stat().st_size)
    return largest


def _explained(package: str, said: str) -> DownloadError:
    """pip's message, explained for a user."""
    host = re.search(r"host='([\w.-]+)'", said) or re.search(r"indexes: \w+://(?:[^@/ ]*@)?([\w.-]+)", said)
    index = f"the package index{f' ({host[1]})' if host else ''}"
    again = "run the command again"
    if "No space left on device" in said:
        return DownloadError(f"no space left for {package}", hint=f"free some space and {again}")
    if re.search("not enough bytes were received|IncompleteRead|ProtocolError|Wheel .* is invalid", said):
        return DownloadError(f"the download of {package} was not completed", why="it was cut off", hint=again)
    if "DO NOT MATCH THE HASHES" in said:
        why = "its hash differs from the index's; it was removed"
        return DownloadError(f"what came as {package} is not that package", why=why, hint=again)
    if why := next((why for pattern, why in _REASONS.items() if re.search(pattern, said)), ""):
        return DownloadError(f"{index} cannot be reached", why=why, hint=f"is there a network? {_HINT}")
    if refused := re.search(r"located at (\S+) is not a trusted or secure host", said):
        why, hint = "pip takes nothing from it over plain http", f"PIP_TRUSTED_HOST={refused[1]} allows it"
        return DownloadError(f"the package index ({refused[1]}) is not used", why=why, hint=hint)
    if os.environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on"):
        return DownloadError(f"{package} is not on this machine", why="PIP_NO_INDEX keeps pip from using an index")
    if "No matching distribution" in said:
        return DownloadError(f"{index} has no {package} for this system", hint=_HINT)
    errors = re.findall(r"^ERROR: (.+)", said, re.MULTILINE)
    return DownloadError(f"pip cannot download {package}", why=errors[-1] if errors else "no reason given", hint=_HINT)
