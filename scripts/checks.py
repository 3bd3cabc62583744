"""All checks of the project, stopping at the first that fails; `scripts/test` runs this in .venv.

--fast leaves out mypy and the tests that load models, start the program or are slow: half a minute on two cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Compiled tests are kept, also where PYTHONDONTWRITEBYTECODE keeps such files out of the tree: to compile them takes
# longer than to run many of them.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
    "PYTHONPYCACHEPREFIX": str(ROOT / ".venv/pycache")
}
LINTS = {"ruff check": ["ruff", "check", "."], "ruff format": ["ruff", "format", "--check", "."]}
PYTEST = ["pytest", "-n", "auto", "--dist", "worksteal"]  # in order: a file's tests share what they load
ALL = {**LINTS, "mypy": ["mypy"], "pytest": PYTEST}
FAST = {
    **LINTS,
    "pytest": [*PYTEST, "--ignore=tests/tui", "-p", "no:anyio", "-m", "not native and not cli and not slow"],
}


def main(arguments: list[str]) -> int:
    """Run every check, or the fast ones, or pytest alone with its arguments; returns the first exit status but 0."""
    started = time.monotonic()
    if arguments == ["--fast"]:
        checks = FAST
    else:
        checks = {"pytest": ["pytest", *map(_from_here, arguments)]} if arguments else ALL
    for name, command in checks.items():
        print(f"== {name}", flush=True)
        status = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=ENVIRONMENT).returncode
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
