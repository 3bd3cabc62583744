"""`edgespec doctor`: facts and advice about this machine, this build and a model, for a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import click

from edgespec import __version__
from edgespec.cli.options.common import QUIET, VERBOSE
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.render.rows import Row, write_rows
from edgespec.cli.setup.machine import Advice, build_advice, build_of, gpus_here
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError
from edgespec.models.names.known import with_tilde
from edgespec.text.figures import size_of

LABEL, COLUMNS = 18, 80  # fits into any terminal and bug report
LIBRARIES = ("huggingface_hub", "llguidance", "numpy", "textual")
MEASURED_CONTEXT = 512  # tokens; enough to measure rounding, and small enough to fit beside other programs
SELF_CHECK = {
    "works": "quantised models work",
    "works without extra buffers": "quantised models work, without repacked weights",
    "crashes": "quantised models crash",
}


@click.command(context_settings=HELP_NAMES)
@click.argument("model", required=False, type=ModelSpec(), metavar="[MODEL]")
@QUIET
@VERBOSE
@click.pass_context
def doctor(ctx: click.Context, /, model: str | None, quiet: bool, verbose: bool) -> None:
    """Check this machine, this build and a model.

    Shows versions, the build of llama.cpp and whether it runs quantised models, devices, memory and folders, and gives
    advice. MODEL (a GGUF file, or a name as shown by 'edgespec ls') is loaded, to check that it works and whether
    speculation is exact with it. The output is meant for bug reports: it contains no tokens and no values of settings.
    Exit code 1 if quantised models crash, 3 if MODEL cannot be loaded.
    """
    from edgespec.llama.trial import self_check
    from edgespec.models.names.spec import resolve

    output = Output(quiet=quiet, verbose=verbose)
    path = resolve(model).path if model is not None else None
    failure: EdgespecError | None = None
    with output.showing_progress():
        output.progress("checking this machine", None)
        rows = list(_machine_rows(found := self_check()))
        if path is not None:
            rows += [Row(), Row("model", _private(path))]
            try:
                rows += _model_rows(path, output.progress)
            except EdgespecError as error:
                failure = error
                rows.append(Row("", "cannot be loaded"))
    write_rows(output, rows, indent=LABEL, columns=COLUMNS)
    if failure is not None:
        raise failure
    if found == "crashes":
        ctx.exit(1)


def _machine_rows(self_check: str) -> Iterator[Row]:
    from edgespec.llama import library

    build, gpus = build_of(library.build_flags()), gpus_here()
    yield from _program()
    yield Row()
    for name, flags in build.items():
        used = (flag if value == "1" else f"{flag}={value}" for flag, value in flags.items() if value != "0")
        yield Row(f"build {name}", " ".join(used))
    for device in library.devices():
        memory = ""
        if "GPU" in device.kind and device.total_bytes:
            memory = f", {size_of(device.free_bytes)} of {size_of(device.total_bytes)} free"
        yield Row(device.kind, f"{device.description}{memory}")
    if not library.supports_gpu():
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        yield Row("GPU", f"not used by this build: {names}" if names else "none found, and none used by this build")
    yield from _resources(self_check)
    yield Row()
    unwritable = list[Advice]()
    yield from _places(unwritable)
    yield Row()
    advice = [*build_advice(self_check, [] if library.supports_gpu() else gpus, build), *unwritable]
    if not advice:
        yield Row("advice", "no problems found")
    for number, each in enumerate(advice, start=1):
        yield Row(f"advice {number}" if len(advice) > 1 else "advice", each.problem)
        if each.command:
            yield Row("", each.command, as_is=True)


def _program() -> Iterator[Row]:
    from edgespec.llama.library import library_path

    yield Row("edgespec", __version__)
    yield Row("llama-cpp-python", version("llama-cpp-python"))
    python = f"{platform.python_version()} {platform.python_implementation()}"
    yield Row("Python", f"{python}, {_private(Path(sys.executable))}")
    yield Row("library", _private(Path(str(library_path()).removeprefix(f"{sys.prefix}{os.sep}"))))
    yield Row("packages", ", ".join(f"{name}=={version(name)}" for name in LIBRARIES))
    yield Row("system", f"{platform.platform()}, {platform.machine()}")


def _resources(self_check: str) -> Iterator[Row]:
    import psutil

    from edgespec.llama.library import available_memory_bytes, default_threads
    from edgespec.llama.rpc import has_rpc

    yield Row("RPC", "in this build (--rpc, rpc-worker)" if has_rpc() else "not in this build")
    yield Row("self-check", SELF_CHECK[self_check])
    yield Row()
    logical, physical = psutil.cpu_count(), psutil.cpu_count(logical=False)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    cores = f"{physical or 'an unknown number of'} physical and {logical} logical cores"
    limited = f", {usable} of them available to this process" if usable != logical else ""
    yield Row("threads", f"{default_threads()} by default (-t); {cores}{limited}")
    yield Row("memory", f"{size_of(available_memory_bytes())} of {size_of(psutil.virtual_memory().total)} free")
    size = shutil.get_terminal_size()
    parts = [os.environ.get("TERM_PROGRAM", ""), os.environ.get("TERM") or "no TERM", f"{size.columns} x {size.lines}"]
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    yield Row("terminal", ", ".join(filter(None, [*parts, encoding])))


def _places(unwritable: list[Advice]) -> Iterator[Row]:
    """Yield the folders and settings. Advice about folders that are not writable is added to `unwritable`."""
    from edgespec.cli.options.files import config_files, working_folder
    from edgespec.files.paths import cache_dir, config_dir, data_dir, free_in, is_writable
    from edgespec.models.hub.cache import hub_cache, is_offline, token_file
    from edgespec.models.hub.requests import shown

    def place(label: str, folder: Path, cost: str, variable: str = "EDGESPEC_HOME", more: str = "") -> Row:
        if is_writable(folder):
            return Row(label, f"{_private(folder)}{more}")
        if cost:
            name = label if label == "hub cache" else f"{label} folder"
            unwritable.append(Advice(f"the {name} is not writable: {cost}; set {variable} to another place"))
        return Row(label, f"{_private(folder)} (not writable){more}")

    yield place("config", config_dir(), "")
    yield place("cache", cache_dir(), "measurements are not saved")
    yield place("data", data_dir(), "conversations and answers cannot be saved")
    variables = sorted(name for name in os.environ if name.startswith("EDGESPEC_"))
    yield Row("settings", ", ".join([*map(_private, config_files(working_folder())), *variables]) or "none")
    free = f", {size_of(free_in(hub_cache()))} free"
    yield place("hub cache", hub_cache(), "no model can be downloaded", "HF_HOME", more=free)
    token = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name, "").strip()), "")
    with suppress(OSError):  # its place, never its value
        token = token or (_private(token_file()) if token_file().stat().st_size else "")
    endpoint = os.environ.get("HF_ENDPOINT", "")
    yield Row(
        "hub",
        ("offline: no downloads" if is_offline() else "downloads are allowed")
        + (f", token in {token}" if token else ", no token")
        + (f", at {shown(endpoint) or 'HF_ENDPOINT, which is not a web address'}" if endpoint else ""),
    )


def _model_rows(path: Path, progress: Callable[[str, float], None]) -> Iterator[Row]:
    """Check a model's header, load the model in a child process and here, and measure how its passes round.

    Raises ModelNotFoundError, ModelFileError, OutOfMemoryError, GenerationError.
    """
    from edgespec.core.exactness import NARROW
    from edgespec.gguf_file.model_check import check_model
    from edgespec.llama.context import Context
    from edgespec.llama.kernels import have_bounds
    from edgespec.llama.rounding import measured_widths
    from edgespec.models.memory.estimate import Plan
    from edgespec.models.memory.fit import usual_context, wanted_attention, with_room
    from edgespec.runtime.fitting import can_be_exact, fitted, open_model
    from edgespec.settings import LoadSettings

    header, exact, usual, notes = check_model(path), can_be_exact(), LoadSettings(str(path)), list[str]()
    attention = wanted_attention(header, usual, usual.cache_type_v, exact=exact)
    n_ctx = min(usual_context(header), MEASURED_CONTEXT)
    plan = Plan(header, n_ctx=n_ctx, max_outputs=NARROW, flash_attention=attention, exact=exact)
    plan = fitted(with_room(plan, usual), notes.append)
    with (
        open_model(plan, notes.append, lambda done: progress(f"loading {path.name}", done)) as model,
        Context(model, **plan.context) as context,
    ):
        widths = measured_widths(context, NARROW, lambda done: progress("measuring rounding", done))
    layers, size = header.number("block_count"), size_of(header.size_bytes)
    yield Row("architecture", f"{header.architecture}, {layers} layers, {size}")
    yield Row("weights", ", ".join(sorted(header.weight_types)))
    mode = "exact mode" if exact else f"no exact mode {'on a GPU' if have_bounds() else 'in this build of llama.cpp'}"
    repacked = ", ".join(sorted(header.weight_types & plan.repacked))
    yield Row("kernels", f"{mode}, {f'{repacked} weights' if repacked else 'weights not'} repacked")
    if widths is None:
        why = "not measured: the context is too short, or the model's state cannot be rolled back"
    elif widths.exact_to >= widths.widest:
        why = f"exact: decoding up to {widths.widest} tokens at once gives the same logits as one at a time"
    else:
        why = f"exact for up to {widths.exact_to} tokens at once; " if widths.exact_to > 1 else ""
        why += f"decoding several tokens at once changes logits by up to {widths.max_difference:.2g}, so texts may "
        why += "differ from plain decoding where two tokens are almost equally likely"
    yield Row("rounding", why)
    for note in notes:
        yield Row("note", note)


def _private(path: Path) -> str:
    """Return a path without the user's name, which a bug report does not need."""
    return with_tilde(path) if path.is_absolute() else str(path)
