"""The modules that an interpreter has loaded after some code."""

from __future__ import annotations

import subprocess
import sys


def loaded_after(code: str, whole_names: bool = False) -> set[str]:
    """Third-party packages, or all modules, that a fresh interpreter holds after `code`."""
    program = f"import sys\n{code}\nprint('\\nloaded:', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8", check=True)
    names = set(run.stdout.rpartition("\nloaded:")[2].split())
    return names if whole_names else {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
