"""`edgespec serve` as a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cli_program import COMMAND, environment


@contextmanager
def program(
    home: Path, *args: str, command: Sequence[str] = COMMAND, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The server, and its URL."""
    models = () if "-m" in args else ("-m", "demo")
    with subprocess.Popen(
        [*command, "serve", "--port", "0", "-t", "1", "--json", *models, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home,
        env=environment(home, **variables),
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["models"]
            yield process, ready["url"]
        finally:
            process.kill()
