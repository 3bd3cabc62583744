"""Shell commands that install another build of llama.cpp, in the syntax of this system's shell."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

from edgespec.files.paths import cache_dir
from edgespec.llama.kernels import ADDITIONS

LLAMA_VERSION = version("llama-cpp-python").partition("+")[0]
"""The version of llama-cpp-python, without the part that marks edgespec's own wheels."""


def exact_build() -> str:
    """Return the command that installs llama.cpp with edgespec's kernels for this CPU."""
    if not in_checkout():
        page = f"https://github.com/edgespec/edgespec/releases/expanded_assets/v{version('edgespec')}"
        return _pip(f"--find-links {page} llama-cpp-python=={LLAMA_VERSION}+edgespec.{ADDITIONS}")
    if os.name == "nt":
        return rf'Remove-Item -Recurse .venv, "{cache_dir()}\wheels"; scripts\edgespec doctor'
    return f"rm -r .venv {shlex.quote(f'{cache_dir()}/wheels')}; ./scripts/edgespec doctor"


def gpu_build(backend: str) -> str:
    """Return the command that builds llama.cpp with a GPU backend, such as "cuda"."""
    name, value = "CMAKE_ARGS", f"-DGGML_{backend.upper()}=on"
    command = _pip(f"--no-cache-dir llama-cpp-python=={LLAMA_VERSION}")
    if in_checkout():
        script = r"scripts\edgespec" if os.name == "nt" else "./scripts/edgespec"
        name, value, command = "EDGESPEC_BACKEND", backend, f"{script} doctor"
    return f'$env:{name} = "{value}"; {command}' if os.name == "nt" else f'{name}="{value}" {command}'


def in_checkout() -> bool:
    """Return whether edgespec runs in the environment that its own scripts made."""
    return (Path(sys.prefix).parent / "scripts" / "edgespec").is_file()


def _pip(arguments: str) -> str:
    python = f'& "{sys.executable}"' if os.name == "nt" else shlex.quote(sys.executable)
    return f"{python} -m pip install --force-reinstall --no-deps {arguments}"
