"""Try files in a child process, so that a native crash ends the child and not the program.

Two faults only show when tried. A build of llama.cpp may crash with every quantised model (GCC 12 miscompiles its AMX
kernels); then the weight repacking that uses them is disabled for this build. And a damaged file may pass every check
of its header and still trigger an assertion. Both results are cached: a build is tried once per machine, a file once. A
trial that ended for another reason (Ctrl-C, no memory) does not count and is not cached.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Literal

from edgespec import errors
from edgespec.errors import EdgespecError, GenerationError, ModelFileError, OutOfMemoryError
from edgespec.files.paths import cache_dir, read_cache, write_cache
from edgespec.gguf_file.head_check import is_head
from edgespec.llama.library import build_id

SelfCheck = Literal["works", "works without extra buffers", "crashes"]

REFUSED = 3
# -P: a file numpy.py in the folder edgespec is called from must not pass for numpy.
CHILD = (sys.executable, "-P", "-m", "edgespec.llama.trial")
# The bundled draft: quantised, known to be good, loaded in milliseconds.
KNOWN_GOOD = Path(str(files("edgespec.models.demo") / "draft.gguf"))
# Below this, threads that wait for each other on a busy machine cost more than they save.
SMALL_BYTES = 500_000_000
SLOWEST_DISK = 10e6  # bytes per second
_CRASHES = {
    getattr(signal, name)
    for name in ("SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS")
    if hasattr(signal, name)
}


def extra_buffers_work(
    path: Path, warn: Callable[[str], None], child: Sequence[str] = CHILD, *, gpu_layers: int = 0
) -> bool:
    """Whether `path` may be loaded with llama.cpp's extra buffer types (repacked weights).

    Tries the file the first time it is seen. `warn` gets one line when this build has to run without repacking. Raises
    ModelFileError when the file crashes llama.cpp, GenerationError when a known good one does too, and the error with
    which the file is rejected.
    """
    check = self_check(child)
    if check == "crashes":
        raise GenerationError(
            "this build of llama.cpp crashes on this machine",
            why="it crashed on a model that is known to be good",
            hint="it may have been built for another processor: reinstall llama-cpp-python, built on this machine",
        )
    extra_buffers = check == "works"
    if not extra_buffers:
        warn(
            "this build of llama.cpp crashes with repacked weights on this machine (GCC 12 is known to miscompile "
            "its AMX code): repacking is disabled, which costs speed; rebuild with clang or GCC 13"
        )
    stat = path.stat()
    key = {"file": str(path.resolve()), "size": stat.st_size, "mtime": stat.st_mtime_ns, "build": build_id()}
    if _recall(key) != "works":
        if not _survives(path, child, extra_buffers=extra_buffers, gpu_layers=gpu_layers):
            raise ModelFileError(
                f"cannot load {path}",
                why="llama.cpp crashed in a trial load",
                hint="the file is damaged in a way its header does not show; download it again",
            )
        if not _remember(key, "works"):
            warn(f"the safety check cannot be cached in {cache_dir()}; starts will be slower")
    return extra_buffers


def self_check(child: Sequence[str] = CHILD) -> SelfCheck:
    """How this build handles a quantised model that is known to be good; tried once per build and machine."""
    key: dict[str, object] = {"build": build_id(), "check": "quantised model"}
    known = _recall(key)
    for answer in ("works", "works without extra buffers", "crashes"):
        if known == answer:
            return answer
    try:
        found: SelfCheck = "works"
        if not _survives(KNOWN_GOOD, child, extra_buffers=True):
            without = _survives(KNOWN_GOOD, child, extra_buffers=False)
            found = "works without extra buffers" if without else "crashes"
    except EdgespecError:  # it could not be tried, which says nothing about the build
        return "works"
    _remember(key, found)
    return found


def _survives(path: Path, child: Sequence[str], *, extra_buffers: bool, gpu_layers: int = 0) -> bool:
    """Load the file in a child and decode a few tokens; False when the child crashes.

    Raises the child's error when it rejects the file, and GenerationError, OutOfMemoryError or KeyboardInterrupt when
    it ended before it could report.
    """
    command = [*child, str(path), "1" if extra_buffers else "0", str(gpu_layers)]
    patience_s = 120 + path.stat().st_size / SLOWEST_DISK
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=patience_s,
        )
    except subprocess.TimeoutExpired:
        raise ModelFileError(
            f"cannot load {path}",
            why=f"llama.cpp did not finish the trial load within {patience_s:.0f} s",
            hint="the file is damaged in a way its header does not show; download it again",
        ) from None
    code, reply = done.returncode, done.stdout.strip().splitlines()
    if code == 0:
        return True
    if code == REFUSED and reply:
        refusal = json.loads(reply[-1])
        raise getattr(errors, refusal.pop("error"))(**refusal)
    if _is_crash(code):
        return False
    if code == -signal.SIGINT or code == _WINDOWS_CTRL_C:
        raise KeyboardInterrupt
    if os.name == "posix" and code == -signal.SIGKILL:
        raise OutOfMemoryError(
            f"cannot load {path}",
            why="the trial process was killed, as happens when memory runs out",
            hint="use a smaller model or a smaller quantisation of it",
        )
    last_words = done.stderr.strip().splitlines()[-1:] or [f"it exited with code {code}"]
    raise GenerationError(f"cannot run a trial load of {path} in a child process", why=last_words[0])


_WINDOWS_CTRL_C = 0xC000013A


def _is_crash(code: int) -> bool:
    """Whether a process that ended with `code` crashed."""
    if os.name == "posix":
        return -code in _CRASHES
    return code != _WINDOWS_CTRL_C and (code == 3 or code >= 0xC0000000)  # 3 is how abort() ends


def _child(path: str, extra_buffers: str, gpu_layers: str) -> int:
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is a result, not an incident to report
    from edgespec.llama.context import Context
    from edgespec.llama.model import Model

    try:
        with Model(path, gpu_layers=int(gpu_layers), use_extra_bufts=extra_buffers == "1") as model:
            if is_head(model.header):  # which decodes beside its target only
                return 0
            threads = 1 if model.size_bytes < SMALL_BYTES else 0
            context = Context(model, n_ctx=256, max_outputs=1, threads=threads, n_batch=64)
            model.tokenize("".join(map(chr, range(256))), add_special=True, parse_special=True)
            # Wide and narrow batches take different kernels.
            for start, width in ((0, 32), (32, 4), (36, 1)):
                tokens = [position % model.n_vocab for position in range(start, start + width)]
                wanted = [False] * (width - 1) + [True]
                context.decode(tokens, range(start, start + width), [(0,)] * width, wanted)
                context.logits(width - 1)
            context.close()
    except EdgespecError as error:
        print(json.dumps({"error": type(error).__name__, "what": error.what, "why": error.why, "hint": error.hint}))
        return REFUSED
    return 0


def _cache_name(key: dict[str, object]) -> str:
    return f"trials/{sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]}.json"


def _recall(key: dict[str, object]) -> str | None:
    return read_cache(_cache_name(key))


def _remember(key: dict[str, object], found: str) -> bool:
    return write_cache(_cache_name(key), found)


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
