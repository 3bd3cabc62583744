"""Try files in a child process, so that a native crash ends the child and not the program.

Two faults show only in a trial. A build of llama.cpp may crash with every quantised model (GCC 12 miscompiles its AMX
kernels); then the weight repacking that uses these kernels is disabled for the build. And a damaged file may pass every
check of its header and still trigger an assertion. Both results are cached: a build is tried once per machine, a file
once. A trial that ended for another reason (Ctrl-C, no memory) does not count and is not cached.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from edgespec import errors
from edgespec.errors import EdgespecError, GenerationError, ModelFileError, OutOfMemoryError
from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.files.paths import file_facts
from edgespec.gguf_file.head_check import check_draft_file, is_head
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.model_check import is_embedding
from edgespec.gguf_file.pooling import pooling_of
from edgespec.gguf_file.walk import shown
from edgespec.llama.context_params import ContextParams
from edgespec.llama.devices import identities
from edgespec.llama.library import build_id
from edgespec.processes.child import Child, Limits, answer, running
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    from edgespec.llama.model import LlamaModel, Placement

SelfCheck = Literal["works", "works without extra buffers", "crashes"]

CHILD = running("edgespec.llama.trial")
# The bundled draft: quantised, known to be good, loaded in milliseconds.
KNOWN_GOOD = Path(str(files("edgespec.models.demo") / "draft.gguf"))
# Below this, threads that wait for each other on a busy machine cost more than they save.
SMALL_BYTES = 500_000_000
SLOWEST_DISK, SLOWEST_COPY = 10e6, 500e6  # bytes per second
WAIT_S, DRIVER_WAIT_S = 120, 900  # a driver may compile its kernels for minutes
TOKENIZER = "reading the tokenizer"
# Characters of all lengths in UTF-8, and runs of blanks and digits
UNUSUAL = "\u20ac\u4e2d\u6587\U0001f600 \u0000\u0301\u200d\ud7ff\U0010ffff\n\n\t  1234567890 a" + " " * 300
# The largest vocabularies take a few seconds and a few hundred megabytes; what the file takes is added.
TOKENIZER_LIMITS = Limits(cpu_s=30, clock_s=120, memory_bytes=2 << 30)
_CRASHES = {
    getattr(signal, name)
    for name in ("SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS")
    if hasattr(signal, name)
}


def extra_buffers_work(
    path: Path, warn: Callable[[str], None], child: Sequence[str] = CHILD, **placement: Unpack[Placement]
) -> bool:
    """Return whether `path` may be loaded with llama.cpp's extra buffer types (repacked weights).

    A new file is tried first; `placement` are the arguments of `LlamaModel` for layers on GPUs. `warn` gets a line if
    this build has to run without repacking. Raises ModelFileError if the file crashes llama.cpp, GenerationError if a
    good file crashes it too or the file crashes it on a GPU only, or the error that rejects the file.
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
    devices = identities(placement["devices"]) if placement.get("gpu_layers") else []
    place = [*devices, bool(placement.get("n_cpu_moe"))] if devices else []
    name = cache_name("trials", {"file": file_facts(path), "build": build_id(), "place": place})
    if read_cache(name) != "works":
        if devices:
            _try_on_gpu(path, child, extra_buffers=extra_buffers, **placement)
        elif crashed := _crashed(path, child, extra_buffers=extra_buffers):
            raise ModelFileError(f"cannot load {path}", why=crashed, hint=DAMAGED)
        write_cache(name, "works")
    return extra_buffers


def try_projector(path: Path, model: Path, child: Sequence[str] = CHILD) -> None:
    """Try a projector with its model in a child process, unless that was done before. Raises ModelFileError if it
    crashes llama.cpp, or the error that rejects it."""
    name = cache_name("trials", {"file": file_facts(path), "model": file_facts(model), "build": build_id()})
    if read_cache(name) != "works":
        if crashed := _crashed(model, child, extra_buffers=False, projector=str(path)):
            raise ModelFileError(f"cannot load {path}", why=crashed, hint=DAMAGED)
        write_cache(name, "works")


def self_check(child: Sequence[str] = CHILD) -> SelfCheck:
    """Return how this build handles a quantised model that is known to be good; tried once per build and machine."""
    name = cache_name("trials", {"build": build_id(), "check": "quantised model"})
    known = read_cache(name)
    for result in ("works", "works without extra buffers", "crashes"):
        if known == result:
            return result
    try:
        found: SelfCheck = "works"
        if _crashed(KNOWN_GOOD, child, extra_buffers=True):
            never_works = _crashed(KNOWN_GOOD, child, extra_buffers=False)
            found = "crashes" if never_works else "works without extra buffers"
    except EdgespecError:  # the trial failed, which says nothing about the build
        return "works"
    write_cache(name, found)
    return found


def _try_on_gpu(path: Path, child: Sequence[str], *, extra_buffers: bool, **placement: Unpack[Placement]) -> None:
    """Try a file with layers on GPUs, and if that fails, without them, to tell a bad driver from a bad file.

    Raises GenerationError for a bad driver, ModelFileError for a bad file, and OutOfMemoryError.
    """
    try:
        why = _crashed(path, child, extra_buffers=extra_buffers, **placement)
    except (ModelFileError, GenerationError) as error:
        why = error.why or error.what
    if not why:
        return
    if crashed := _crashed(path, child, extra_buffers=extra_buffers):
        raise ModelFileError(f"cannot load {path}", why=crashed, hint=DAMAGED)
    raise GenerationError(
        f"cannot run {path.name} on the GPU",
        why=f"{why}; on the CPU the model works, so the GPU's driver is to blame, or its memory is full",
        hint="put fewer layers on the GPU (`gpu_layers=N`, or `gpu_layers=0` for none), or update its driver",
    )


def _crashed(
    path: Path, command: Sequence[str], *, extra_buffers: bool, projector: str = "", **placement: Unpack[Placement]
) -> str:
    """Load the file in a child and decode a few tokens, or read an image with a projector.

    Return how the child crashed, or an empty string.
    Raises the child's error if it rejects the file, ModelFileError if it exceeds a limit, and GenerationError,
    OutOfMemoryError or KeyboardInterrupt if it ended before it could report. The limits start again with each report
    of progress: reading a large file from a slow disk takes long, but makes progress.
    """
    wait_s = DRIVER_WAIT_S if placement.get("gpu_layers") else WAIT_S
    n_bytes = _size(path)
    read_s = n_bytes / SLOWEST_DISK
    stage, limits = "", Limits(clock_s=wait_s + read_s)
    patient = limits
    # llama.cpp maps the file before it reports progress with the weights. A system may then read all of it, and counts
    # it as memory of the process.
    of_tokenizer = Limits(
        TOKENIZER_LIMITS.cpu_s + n_bytes / SLOWEST_COPY,
        TOKENIZER_LIMITS.clock_s + read_s,
        TOKENIZER_LIMITS.memory_bytes + n_bytes,
    )

    def heard(begun: str) -> Limits:
        nonlocal stage, limits
        stage, limits = begun, of_tokenizer if TOKENIZER in begun else patient
        return limits

    question: _Question = {
        "path": str(path),
        "extra_buffers": extra_buffers,
        "projector": projector,
        "placement": placement,
    }
    with Child(command, "try a model file") as child:
        reply = child.ask(json.dumps(question).encode(), limits, heard=heard)
    if "error" in reply:
        raise getattr(errors, reply.pop("error"))(**reply)
    if "failed" not in reply:
        return ""
    if "status" not in reply:
        raise ModelFileError(f"cannot load {path}", why=_too_much(reply["failed"], limits, stage), hint=DAMAGED)
    status = reply["status"]
    if _is_crash(status):
        return f"llama.cpp crashed in a trial load{f', {stage}' if stage else ''}"
    if status == -signal.SIGINT or status == _WINDOWS_CTRL_C:
        raise KeyboardInterrupt
    if os.name == "posix" and status == -signal.SIGKILL:
        raise OutOfMemoryError(
            f"cannot load {path}",
            why="the trial process was killed, as happens when memory runs out",
            hint="use a smaller model or a smaller quantisation of it",
        )
    last_words = reply["said"] or f"it exited with code {status}"
    raise GenerationError(f"cannot run a trial load of {path} in a child process", why=last_words)


def _too_much(exceeded: str, limits: Limits, stage: str) -> str:
    doing = stage.removeprefix("while ") or "the trial load"
    if exceeded == "memory":
        return f"llama.cpp took more than {size_of(limits.memory_bytes)} of memory for {doing}"
    limit_s = limits.cpu_s if exceeded == "time" else limits.clock_s
    return f"llama.cpp did not finish {doing} within {limit_s:.0f} s"


DAMAGED = "the file is damaged in a way its header does not show; download it again"
_WINDOWS_CTRL_C = 0xC000013A


def _is_crash(code: int) -> bool:
    """Return whether a process that ended with `code` crashed."""
    if os.name == "posix":
        return -code in _CRASHES
    return code != _WINDOWS_CTRL_C and (code == 3 or code >= 0xC0000000)  # 3 is how abort() ends


def _size(path: Path) -> int:
    """Return the bytes of all parts of a model."""
    parts: Sequence[Path] = (path,)
    with suppress(EdgespecError):  # the trial says what is wrong with the file
        parts = read_header(path).files
    return sum(part.stat().st_size for part in parts)


class _Question(TypedDict):
    path: str
    extra_buffers: bool
    projector: str
    placement: Placement


def _reply(question: _Question, begin: Callable[[str], None]) -> dict[str, str]:
    """Try a file, in the child; `begin` reports each stage. Return the error that rejects the file, if there is one."""
    from edgespec.llama.context import Context
    from edgespec.llama.model import LlamaModel

    percent = -1

    def progress(fraction: float) -> None:
        nonlocal percent
        if int(100 * fraction) > percent:
            percent = int(100 * fraction)
            begin("while loading the weights")

    placement, repacks = question["placement"], question["extra_buffers"]
    try:
        header = check_draft_file(Path(question["path"]), embeds=True)
        tokenizer = f"while {TOKENIZER} ({shown(header.metadata.get('tokenizer.ggml.model', 'none'))})"
        begin(tokenizer)  # llama.cpp reads it before the weights
        with LlamaModel(header, **placement, use_extra_bufts=repacks, progress=progress) as model:
            if is_head(model.header):  # it decodes only together with its target
                return {}
            if question["projector"]:
                begin("while reading an image")
                _see(Path(question["projector"]), model)
                return {}
            begin(tokenizer)
            _tokenize(model)
            threads = 1 if model.size_bytes < SMALL_BYTES else 0
            if is_embedding(header):
                begin("while running the model")
                _embed(model, threads)
                return {}
            context = Context(model, ContextParams(n_ctx=256, threads=threads, n_batch=64))
            # Wide and narrow batches take different kernels.
            for start, width in ((0, 32), (32, 4), (36, 1)):
                begin("while running the model")
                tokens = [position % model.n_vocab for position in range(start, start + width)]
                wanted = [False] * (width - 1) + [True]
                context.decode(tokens, range(start, start + width), [(0,)] * width, wanted)
                context.logits(width - 1)
            context.close()
    except EdgespecError as error:
        return {"error": type(error).__name__, "what": error.what, "why": error.why, "hint": error.hint}
    return {}


def _see(path: Path, model: LlamaModel) -> None:
    """Read an image of one colour."""
    import numpy as np

    from edgespec.llama.projector import Projector

    with Projector(path, model, threads=1) as projector:
        picture = projector.picture(np.full((64, 96, 3), 128, np.uint8), b"")
        for cells in picture.cells.values():
            cells.rows()


def _embed(model: LlamaModel, threads: int) -> None:
    """Read texts of different lengths, as the runtime does."""
    from edgespec.llama.context import PooledContext

    n_ctx, pooling = min(64, model.n_ctx_train), pooling_of(model.header)
    params = ContextParams(pooling=pooling, n_ctx=n_ctx, n_batch=n_ctx, max_outputs=n_ctx, threads=threads)
    with PooledContext(model, params) as context:
        for width in (n_ctx, 1):
            context.read([([position % model.n_vocab for position in range(width)], 0)])


def _tokenize(model: LlamaModel) -> None:
    """Use the tokenizer in every way that the runtime does."""
    for text in ("".join(map(chr, range(256))), UNUSUAL):
        for special in (False, True):
            model.tokenize(text, add_special=special, parse_special=special)
    for token in range(model.n_vocab):
        model.token_bytes(token, special=True)
        model.token_bytes(token)


if __name__ == "__main__":
    answer(_reply, alone_s=None)
