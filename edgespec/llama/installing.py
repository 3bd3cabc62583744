"""Shell commands that install another build of llama.cpp, in the syntax of this system's shell."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

from edgespec.llama.kernels import ADDITIONS

LLAMA_VERSION = version("llama-cpp-python").partition("+")[0]
"""The version of llama-cpp-python, without the part that marks edgespec's own wheels."""


def exact_build() -> str:
    """Return the command that installs llama.cpp with edgespec's kernels for this CPU."""
    home = checkout()
    if home is None:
        page = f"https://github.com/edgespec/edgespec/releases/expanded_assets/v{version('edgespec')}"
        return _pip(f"--find-links {page} llama-cpp-python=={LLAMA_VERSION}+edgespec.{ADDITIONS}")
    if os.name == "nt":
        return f'Remove-Item -Recurse "{home / ".venv"}"; {_script(home)} doctor'
    return f"rm -r {shlex.quote(str(home / '.venv'))} && {_script(home)} doctor"


def gpu_build(backend: str) -> str:
    """Return the command that builds llama.cpp with a GPU backend, such as "cuda"."""
    name, value = "CMAKE_ARGS", f"-DGGML_{backend.upper()}=on"
    command = _pip(f"--no-cache-dir llama-cpp-python=={LLAMA_VERSION}")
    if home := checkout():
        name, value, command = "EDGESPEC_BACKEND", backend, f"{_script(home)} doctor"
    return f'$env:{name} = "{value}"; {command}' if os.name == "nt" else f'{name}="{value}" {command}'


def checkout() -> Path | None:
    """Return the folder of the checkout whose own scripts made the environment that edgespec runs in, or None."""
    home = Path(sys.prefix).parent
    return home if (home / "scripts" / "edgespec").is_file() else None


def _script(home: Path) -> str:
    script = home / "scripts" / "edgespec"
    return f'& "{script}.cmd"' if os.name == "nt" else shlex.quote(str(script))


def _pip(arguments: str) -> str:
    python = f'& "{sys.executable}"' if os.name == "nt" else shlex.quote(sys.executable)
    return f"{python} -m pip install --force-reinstall --no-deps {arguments}"
