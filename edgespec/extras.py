"""The parts of edgespec that need further packages, which `pip install 'edgespec[NAME]'` installs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from edgespec.errors import UsageError

MODULES = {
    "serve": ("starlette", "uvicorn"),
    "tui": ("textual",),
    "documents": ("pypdf", "mammoth", "markdownify", "bs4", "justhtml"),
    "mcp": ("mcp",),
    "train": ("torch",),
    "plot": ("matplotlib",),
}


def is_installed(extra: str) -> bool:
    """Return whether all modules of an extra can be imported."""
    return not _missing(extra)


def check_extra(extra: str, what: str) -> None:
    """Raise UsageError if a module of an extra is missing. `what` needs it, such as "the server"."""
    if missing := _missing(extra):
        raise UsageError(
            f"{what} needs packages that are not installed",
            why=f"there is no {missing[0]}",
            hint=f"{sys.executable} -m pip install 'edgespec[{extra}]'",
        )


def _missing(extra: str) -> list[str]:
    return [module for module in MODULES[extra] if find_spec(module) is None]
