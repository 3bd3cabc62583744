"""All checks of the project, stopping at the first that fails; `scripts/test` runs this in .venv."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "pytest": ["pytest", "-n", "2", "--dist", "worksteal"],  # in order: a file's tests share what they load
}


def main(pytest_arguments: list[str]) -> int:
    """Runs every check, or with arguments pytest alone with them; returns the exit status of the first that failed."""
    started = time.monotonic()
    checks = {"pytest": ["pytest", *map(_from_here, pytest_arguments)]} if pytest_arguments else CHECKS
    for name, arguments in checks.items():
        print(f"== {name}", flush=True)
        status = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT).returncode
        if status:
            print(f"== FAILED: {name} (exit status {status})", flush=True)
            return status
    print(f"== passed: {', '.join(checks)} ({time.monotonic() - started:.0f} s)", flush=True)
    return 0


def _from_here(argument: str) -> str:
    """A path, with the name of a test after `::` or without, that is valid in ROOT too; other arguments as they are."""
    path, separator, name = argument.partition("::")
    return f"{Path(path).resolve()}{separator}{name}" if Path(path).exists() else argument


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
