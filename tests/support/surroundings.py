"""The environment of all tests: the same for everybody who runs them, and in every terminal."""

from __future__ import annotations

import os
import re

# Variables that find programs, folders, packages and certificates, and those of the tests' tools. All others would let
# the width of a terminal, its colours, a language, an editor or a token for a hub decide whether tests pass.
KEPT = re.compile(
    r"((DY)?LD_LIBRARY_)?PATH|HOME|USER|LOGNAME|TMPDIR|TEMP|TMP|XDG_\w+|EDGESPEC_\w+"
    r"|SYSTEM\w+|WINDIR|COMSPEC|PATHEXT|(LOCAL)?APPDATA|USERPROFILE|HOMEDRIVE|HOMEPATH|PROGRAM\w+|NUMBER_OF_PROCESSORS"
    r"|PYTHON(PATH|HOME|PYCACHEPREFIX|DONTWRITEBYTECODE)|PYTEST_\w+|COV_\w+|PIP_\w+|(HTTPS?|ALL|NO)_PROXY"
    r"|SSL_CERT_\w+|\w+_CA_BUNDLE|OPENBLAS_\w+|OMP_\w+|(CUDA|HIP|ROCR|GGML|VK|MESA|FAKE_GPU)_\w+|LD_PRELOAD",
    re.IGNORECASE,
)
TERMINAL = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}  # of programs whose output is no terminal


def settle() -> None:
    """Give this process, and those that it starts, this environment."""
    for name in [name for name in os.environ if not KEPT.fullmatch(name)]:
        del os.environ[name]
    os.environ.update(TERMINAL)
