"""`edgespec doctor`: facts and advice about this machine, this build and a model, for a bug report."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from edgespec import __version__
from edgespec.cli.options.common import QUIET, VERBOSE
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.optional_files import DENIED
from edgespec.llama.machine import HIDING, Gpu, gpus_here, why_unused
from edgespec.models.names.model_names import with_tilde
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    from edgespec.llama.context import Context

LIBRARIES = ("huggingface_hub", "llguidance", "numpy", "textual")
MEASURED_WIDTH = 64  # tokens of the widest pass whose rounding is measured
MEASURED_CONTEXT = 512  # tokens; enough to measure rounding, and small enough to fit next to other programs
SELF_CHECK = {
    "works": "quantised models work",
    "works without extra buffers": "quantised models work, without repacked weights",
    "crashes": "quantised models crash",
}


INSTRUCTIONS = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni",
                "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8"}  # fmt: skip
"""Instruction sets by llama.cpp's name, with Linux's name."""

Build = Mapping[str, Mapping[str, str]]  # the flags of each backend
Rows = Iterator[tuple[str, str]]


class Advice(NamedTuple):
    """A problem with its cost, and the command that solves it, if there is one."""

    problem: str
    command: str = ""


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
        rows = list(_machine_rows(ctx, found := self_check()))
        if path is not None:
            rows += [("", ""), ("model", _private(path))]
            try:
                rows += _model_rows(path, output.progress)
            except EdgespecError as error:
                failure = error
                rows.append(("", "cannot be loaded"))
    output.facts(rows)
    if failure is not None:
        raise failure
    if found == "crashes":
        ctx.exit(1)


def _machine_rows(ctx: click.Context, self_check: str) -> Rows:
    from edgespec.llama import library

    build, gpus = build_of(library.build_flags()), gpus_here()
    yield from _program()
    yield "", ""
    for name, flags in build.items():
        used = (flag if value == "1" else f"{flag}={value}" for flag, value in flags.items() if value != "0")
        yield f"build {name}", " ".join(used)
    yield from _device_rows()
    if library.has_discrete_gpu():
        gpus = []  # all are taken to be used
    elif library.supports_gpu():
        gpus = [gpu for gpu in gpus if gpu.backend == "cuda"]  # the visible one is integrated, and not NVIDIA's
    if gpus or not library.supports_gpu():
        yield "GPU", _unused(gpus)
    yield from _resources(self_check)
    yield "", ""
    unwritable = list[Advice]()
    yield from _places(unwritable)
    yield "", ""
    advice = [*build_advice(self_check, gpus, build), *unwritable, *_config_advice(ctx)]
    if not advice:
        yield "advice", "no problems found"
    for number, each in enumerate(advice, start=1):
        yield f"advice {number}" if len(advice) > 1 else "advice", each.problem
        if each.command:
            yield "", each.command.replace(" ", "\xa0")  # a line to copy


def _device_rows() -> Rows:
    from edgespec.llama import library
    from edgespec.llama.drivers import driver_of

    for device in library.devices():
        said = [device.description]
        if "GPU" in device.kind:
            said = [f"{device.name}: {device.description}"]
            if device.total_bytes:
                said.append(f"{size_of(device.free_bytes)} of {size_of(device.total_bytes)} free")
            if driver := driver_of(device.description, device.backend):
                said.append(f"driver {driver}")
            if device.is_integrated:
                said.append("used if asked for (-ngl all)")
        yield device.kind, ", ".join(said)


def _unused(gpus: Sequence[Gpu]) -> str:
    """Say which GPUs this build does not use, and which of its backends have no device."""
    from edgespec.llama.library import gpu_backends

    names, backends = _names(gpus), gpu_backends()
    why = f"{', '.join(backends)} in this build, without a device: {why_unused(backends[0])[0]}" if backends else ""
    if not names:
        return f"none found; {why}" if why else "none found, and none used by this build"
    return f"{names}, not used; {why}" if why else f"not used by this build: {names}"


def _names(gpus: Sequence[Gpu]) -> str:
    return ", ".join(dict.fromkeys(gpu.name for gpu in gpus))


def _program() -> Rows:
    from edgespec.llama.kernels import described_build
    from edgespec.llama.library import library_path

    yield "edgespec", __version__
    yield "llama.cpp", described_build()
    python = f"{platform.python_version()} {platform.python_implementation()}"
    yield "Python", f"{python}, {_private(Path(sys.executable))}"
    yield "library", _private(Path(str(library_path()).removeprefix(f"{sys.prefix}{os.sep}")))
    yield "packages", ", ".join(f"{name}=={version(name)}" for name in LIBRARIES)
    yield "system", f"{platform.platform()}, {platform.machine()}"


def _resources(self_check: str) -> Rows:
    import psutil

    from edgespec.llama.library import available_memory_bytes, default_threads
    from edgespec.llama.rpc import has_rpc

    yield "RPC", "in this build (--rpc, rpc-worker)" if has_rpc() else "not in this build"
    yield "self-check", SELF_CHECK[self_check]
    yield "", ""
    logical, physical = psutil.cpu_count(), psutil.cpu_count(logical=False)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    cores = f"{physical or 'an unknown number of'} physical and {logical} logical cores"
    limited = f", {usable} of them available to this process" if usable != logical else ""
    yield "threads", f"{default_threads()} by default (-t); {cores}{limited}"
    yield "memory", f"{size_of(available_memory_bytes())} of {size_of(psutil.virtual_memory().total)} free"
    size = shutil.get_terminal_size()
    parts = [os.environ.get("TERM_PROGRAM", ""), os.environ.get("TERM") or "no TERM", f"{size.columns} x {size.lines}"]
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    yield "terminal", ", ".join(filter(None, [*parts, encoding]))


def _places(unwritable: list[Advice]) -> Rows:
    """Yield the folders and settings. Advice about folders that are not writable is added to `unwritable`."""
    from edgespec.cli.options.command import config_files
    from edgespec.files.optional_files import unusable, why_unusable
    from edgespec.files.paths import cache_dir, config_dir, data_dir, free_in, is_writable, state_dir
    from edgespec.models.hub.cache import hub_cache, is_offline, token_file
    from edgespec.models.hub.requests import shown

    folders = {"config": config_dir(), "cache": cache_dir(), "data": data_dir(), "state": state_dir()}
    for label, folder in folders.items():
        why = why_unusable(folder)
        yield label, f"{_private(folder)}{f' ({why})' if why else ''}"
    for path, why, cost in unusable():
        unwritable.append(Advice(f"{_private(path)} cannot be used ({why}): {cost}; {_remedy(path, why)}"))
    variables = sorted(name for name in os.environ if name.startswith("EDGESPEC_"))
    yield "settings", ", ".join([*map(_private, config_files()), *variables]) or "none"
    is_hub_writable = is_writable(hub_cache())
    said = f", {size_of(free_in(hub_cache()))} free" if is_hub_writable else " (not writable)"
    yield "hub cache", f"{_private(hub_cache())}{said}"
    if not is_hub_writable:
        cost = "no model can be downloaded; set HF_HOME to another place"
        unwritable.append(Advice(f"the hub cache is not writable: {cost}"))
    token = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name, "").strip()), "")
    with suppress(OSError):  # its place, never its value
        token = token or (_private(token_file()) if token_file().stat().st_size else "")
    endpoint = os.environ.get("HF_ENDPOINT", "")
    at = f", at {shown(endpoint) or 'HF_ENDPOINT, which is not a web address'}" if endpoint else ""
    allowed = "offline: no downloads" if is_offline() else "downloads are allowed"
    yield "hub", f"{allowed}, {f'token in {token}' if token else 'no token'}{at}"


def _config_advice(ctx: click.Context) -> Iterator[Advice]:
    """Yield advice about files of the configuration with mistakes, without what is in them."""
    from edgespec.chat.personas import personas
    from edgespec.cli.options.command import configured
    from edgespec.models.names.catalog import catalogue
    from edgespec.tools.config import read_servers

    for read, command in ((lambda: configured(ctx), "edgespec config"), (catalogue, "edgespec ls --catalog"),
                          (read_servers, "edgespec chat")):  # fmt: skip
        try:
            read()
        except UsageError as error:
            yield Advice(f"{error.what}: commands that need this file end; '{command}' says more")
    if problems := personas()[1]:
        yield Advice(f"personas that cannot be used: {len(problems)}; 'edgespec config' lists them")


def _remedy(path: Path, why: str) -> str:
    """Return what to do about one of edgespec's folders or files."""
    if why != DENIED:
        return "move it away, or set EDGESPEC_HOME to another folder"
    with suppress(OSError, AttributeError):  # Windows has no such function
        if path.stat().st_uid != os.getuid():
            return "it belongs to another user: give it to yours (chown), or set EDGESPEC_HOME to another folder"
    return "give your user its permissions (chmod -R u+rwX), or set EDGESPEC_HOME to another folder"


def _model_rows(path: Path, progress: Callable[[str, float], None]) -> Rows:
    """Check a model's header, load the model in a child process and here, and measure how its passes round.

    Raises ModelNotFoundError, ModelFileError, OutOfMemoryError, GenerationError.
    """
    from edgespec.gguf_file.model_check import check_model
    from edgespec.llama.context import Context
    from edgespec.llama.kernels import have_exact_kernels
    from edgespec.models.memory.estimate import MemoryPlan
    from edgespec.models.memory.fit import usual_context, wanted_attention
    from edgespec.runtime.planning import fitted, open_model, uses_gpu
    from edgespec.settings import LoadSettings

    header, usual, notes = check_model(path), LoadSettings(str(path)), list[str]()

    plan = MemoryPlan(header, n_ctx=usual_context(header), max_outputs=MEASURED_WIDTH)
    on_gpu = uses_gpu(plan, "auto", "auto")
    if not on_gpu:
        exact, n_ctx = have_exact_kernels(), min(plan.n_ctx, MEASURED_CONTEXT)
        plan = replace(plan, n_ctx=n_ctx, flash_attention=wanted_attention(usual, exact=exact), exact=exact)
    plan = fitted(plan, notes.append, "auto" if on_gpu else 0)
    with (
        open_model(plan, notes.append, lambda done: progress(f"loading {path.name}", done)) as model,
        Context(model, plan) as context,
    ):
        rounding = _of_classes if model.is_on_gpu else _of_widths
        found = rounding(context, lambda done: progress("measuring rounding", done))
    layers, size = header.number("block_count"), size_of(header.size_bytes)
    yield "architecture", f"{header.architecture}, {layers} layers, {size}"
    yield "weights", ", ".join(sorted(header.weight_types))
    where = f"{plan.gpu_layers} of {plan.n_layers} layers on a GPU" if plan.gpu_layers else "on the CPU"
    mode = where if plan.gpu_layers else "exact mode" if plan.exact else "no exact mode in this build of llama.cpp"
    repacked = ", ".join(sorted(header.weight_types & plan.repacked))
    yield "kernels", f"{mode}, {f'{repacked} weights' if repacked else 'weights not'} repacked"
    yield "rounding", found or "not measured: the context is too short, or the model's state cannot be rolled back"
    for note in notes:
        yield "note", note


def _of_widths(context: Context, progress: Callable[[float], None]) -> str:
    """Measure which passes give the logits of single tokens. Return the result in words, "" if that is impossible."""
    from edgespec.llama.rounding import measured_widths

    widths = measured_widths(context, MEASURED_WIDTH, progress)
    if widths is None:
        return ""
    if widths.exact_to >= widths.widest:
        return f"exact: decoding up to {widths.widest} tokens at once gives the same logits as one at a time"
    return (
        (f"exact for up to {widths.exact_to} tokens at once; " if widths.exact_to > 1 else "")
        + f"decoding several tokens at once changes logits by up to {widths.max_difference:.2g}, so texts may "
        "differ from plain decoding where two tokens are almost equally likely"
    )


def _of_classes(context: Context, progress: Callable[[float], None]) -> str:
    """Measure which passes give the same logits. Return the result in words, "" if that is impossible."""
    from edgespec.engine.width_classes import measured_classes
    from edgespec.runtime.guarantee import MOST_COST

    classes = measured_classes(context, progress)
    if classes is None:
        return ""
    widths = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in classes.ranges)
    said = (
        f"passes of these numbers of tokens give the same logits, measured at up to {classes.depth:,} tokens: {widths}"
    )
    best = classes.best(MOST_COST) or classes.best()
    if best is None:
        return f"{said}; texts may differ from plain decoding where two tokens are almost equally likely"
    cost = f"{classes.cost(best[0]):.2f} times the time of a pass over one token"
    use = "are exact" if classes.best(MOST_COST) else "can be exact (--strict)"
    return f"{said}; texts {use} with passes of {best[0]}-{best[1]}, at {cost}"


def _private(path: Path) -> str:
    """Return a path without the user's name, which a bug report does not need."""
    return with_tilde(path) if path.is_absolute() else str(path)


# --- advice -----------------------------------------------------------------------------------------------------------


def processor_flags() -> set[str]:
    """Return Linux's names of the processor's instruction sets; empty on other systems."""
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", cpu, re.MULTILINE)
    return set(found[1].split()) if found else set()


def build_of(flags: str) -> dict[str, dict[str, str]]:
    """Parse `CPU : AVX = 1 | AVX2 = 1 | ` into flags by backend."""
    backends: dict[str, dict[str, str]] = {}
    backend: dict[str, str] = {}
    for part in flags.split("|"):
        name, found, flag = part.rpartition(" : ")
        if found:
            backend = backends.setdefault(name.strip(), {})
        key, _, value = flag.partition("=")
        if key.strip():
            backend[key.strip()] = value.strip()
    return backends


def build_advice(self_check: str, gpus: Sequence[Gpu], build: Build) -> Iterator[Advice]:
    """Yield advice about the build of llama.cpp. `gpus` are those that it does not use."""
    from edgespec.llama import library
    from edgespec.llama.backends import VARIANT, variant_name
    from edgespec.llama.kernels import exact_build, gpu_build, is_own_build

    # The command installs a build for the CPU: not instead of a GPU build, and a portable one is such a build already.
    command, variants = "" if library.supports_gpu() or library.CPU_LIBRARY else exact_build(), ""
    if library.CPU_LIBRARY:
        used = variant_name(library.CPU_LIBRARY)
        variants = f"; {VARIANT} selects another CPU variant than {used} (docs/install.md)"
    if self_check == "crashes":
        yield Advice(f"quantised models crash: no such model can be loaded{variants}", command)
    if self_check == "works without extra buffers":
        why = "quantised models crash with repacked weights; repacking is disabled (GCC 12 miscompiles AMX code)"
        builds = variants or "; clang and GCC 13.3 compile a correct build"
        yield Advice(f"{why}: slower than necessary{builds}", command)
    backends = [] if library.supports_gpu() else library.gpu_backends()
    is_hidden = any(HIDING.get(backend) in os.environ for backend in backends)
    if backends and (gpus or is_hidden):
        for why, remedy in map(why_unused, backends):
            yield Advice(f"this build sees no GPU, so everything runs on the CPU: {why}; {remedy}")
    elif gpus:
        cost = "everything runs on the CPU; docs/install.md describes GPU builds"
        yield Advice(f"this build does not use the GPU ({_names(gpus)}): {cost}", gpu_build(gpus[0].backend))
    if not is_own_build() and not library.has_discrete_gpu():
        cost = "text may differ from plain decoding up to rounding, and drafts cost more"
        yield Advice(f"this build of llama.cpp lacks edgespec's kernels: {cost}", exact_build())
    has = set[str]() if library.CPU_LIBRARY else processor_flags()  # of the portable variants the best one is in use
    flags = build.get("CPU", {})
    if unused := [name for name, flag in INSTRUCTIONS.items() if flag in has and flags.get(name) != "1"]:
        cost = "prefill and draft verification are slower than necessary"
        if unused == ["AMX_INT8"]:  # the build leaves it out if the compiler is known to miscompile it
            cost += "; a build with it needs clang or GCC 13.3"
        names = ", ".join(unused)
        yield Advice(f"this build does not use {names}, which the processor supports: {cost}", command)
