"""Run all checks of the project; `scripts/test` runs this module in .venv.

    checks.py               ruff, mypy, and all tests except those marked `long`
    checks.py --all         the same with the `long` tests: soaks, and laws that need many samples
    checks.py --fast        ruff, and the quick tests that neither load a model nor start a program: half a minute
    checks.py PATH -k NAME  other arguments go to pytest, which then runs alone

The exit status is that of the first check that fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
# PYTHONPYCACHEPREFIX keeps compiled tests out of the tree, and keeps them at all where PYTHONDONTWRITEBYTECODE is set:
# compiling the tests takes longer than running many of them.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
    "PYTHONPYCACHEPREFIX": str(ROOT / ".venv/pycache")
}
LINTS = {"ruff check": ["ruff", "check", "."], "ruff format": ["ruff", "format", "--check", "."]}
CORES = psutil.cpu_count(logical=False) or os.cpu_count() or 1
# "worksteal" gives each worker whole files as long as there are any: the tests of a file share what they load.
QUICK = ["pytest", "--dist", "worksteal", "-n", str(CORES)]
PYTEST = ["pytest", "--dist", "worksteal", "-n", str(CORES + 1)]  # many of these tests wait for other processes
CHECKS = {
    "": {**LINTS, "mypy": ["mypy"], "pytest": [*PYTEST, "-m", "not long"]},
    "--all": {**LINTS, "mypy": ["mypy"], "pytest": PYTEST},
    "--fast": {
        **LINTS,
        "pytest": [*QUICK, "--ignore=tests/tui", "-p", "no:anyio", "-m", "not (native or cli or slow or long)"],
    },
}
DURATIONS = {
    "": "about 6 minutes on two cores; --fast takes half a minute",
    "--all": "about 10 minutes on two cores",
    "--fast": "about half a minute on two cores",
}


def main(arguments: list[str]) -> int:
    """Run the checks that the arguments name, up to the first that fails, and return its exit status."""
    started = time.monotonic()
    asked = " ".join(arguments)
    if asked in CHECKS:
        print(f"== {DURATIONS[asked]}", flush=True)
    checks = CHECKS.get(asked) or {"pytest": ["pytest", *map(_absolute, arguments)]}
    for name, command in checks.items():
        print(f"== {name}", flush=True)
        status = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=ENVIRONMENT).returncode
        if status:
            print(f"== FAILED: {name} (exit status {status})", flush=True)
            return status
    print(f"== passed: {', '.join(checks)} ({time.monotonic() - started:.0f} s)", flush=True)
    return 0


def _absolute(argument: str) -> str:
    """Make a path absolute, with or without the name of a test after `::`; return other arguments unchanged."""
    path, separator, name = argument.partition("::")
    return f"{Path(path).resolve()}{separator}{name}" if Path(path).exists() else argument


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
