"""`edgespec doctor`: what a bug report needs to know about this machine, this build and a model."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec import __version__
from edgespec.cli.output import Output
from edgespec.cli.types import ModelSpec

if TYPE_CHECKING:
    from edgespec.header import Header
    from edgespec.llama.model import Model
    from edgespec.rounding import Rounding

Facts = dict[str, Any]

SELF_CHECK = {
    "works": "quantised models work",
    "works without extra buffers": (
        "quantised models crash with repacked weights, which are switched off: slower than need be "
        "(GCC 12 miscompiles AMX code; build llama-cpp-python again with clang or GCC 13)"
    ),
    "crashes": "quantised models crash: install llama-cpp-python again, built on this machine",
}
# A short prefix, and one past the 512 tokens from which flash attention splits the work in another way
PREFIXES = (64, 512)
_LABEL, _COLUMNS = 18, 80


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False, type=ModelSpec())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", is_flag=True, help="Log to stderr what happens, and show where errors come from.")
@click.pass_context
def doctor(ctx: click.Context, /, model: str | None, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Check this machine, this build and a model.

    Shows versions, devices and threads, whether this build of llama.cpp survives quantised models, and for MODEL (a
    GGUF file, or 'demo') what it is and how much its answers depend on rounding: whether the same tokens get the same
    logits when they are decoded several at a time. The output is meant to be pasted into a bug report.
    """
    output = Output(quiet=quiet)
    output.log_to_stderr(verbose=verbose)

    def show(lines: Iterable[str]) -> None:
        """Write lines as soon as they are known: what comes after them may fail."""
        for line in () if as_json else lines:
            output.line(line)

    path = _find(model) if model is not None else None
    output.progress("loading llama.cpp", 0)
    facts = _machine() | {"model": None}
    show(_machine_lines(facts))
    if path is not None:
        facts["model"] = _examine(path, output, show)
    if as_json:
        output.json(facts)
    if facts["self_check"] == "crashes":
        ctx.exit(1)


def _find(spec: str) -> Path:
    from edgespec.models.spec import resolve

    return resolve(spec).path


# --- the machine ------------------------------------------------------------------------------------------------------


def _machine() -> Facts:
    import psutil

    from edgespec.llama import library
    from edgespec.llama.context import available_memory_bytes
    from edgespec.llama.trial import self_check
    from edgespec.paths import cache_dir, config_dir, data_dir

    return {
        "edgespec": __version__,
        "llama_cpp_python": version("llama-cpp-python"),
        "library": str(library.library_path()),
        "python": f"{platform.python_version()} {platform.python_implementation()}",
        "executable": sys.executable,
        "system": platform.platform(),
        "machine": platform.machine(),
        "build": _backends(library.build_flags()),
        "devices": [asdict(device) for device in library.devices()],
        "gpu_offload": library.supports_gpu(),
        "threads": library.default_threads(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "memory_total_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": available_memory_bytes(),
        "self_check": self_check(),
        "folders": {
            name: {"path": str(folder), "writable": _is_writable(folder)}
            for name, folder in (("config", config_dir()), ("cache", cache_dir()), ("data", data_dir()))
        },
    }


def _backends(flags: str) -> dict[str, dict[str, str]]:
    """`CPU : AVX = 1 | AVX2 = 1 | ` by backend and flag."""
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


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or the folder itself where it is not there yet."""
    there = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent)), folder)
    return there.is_dir() and os.access(there, os.W_OK)


def _machine_lines(facts: Facts) -> Iterator[str]:
    yield from _row("edgespec", facts["edgespec"])
    yield from _row("llama-cpp-python", facts["llama_cpp_python"])
    yield from _row("library", _shown(facts["library"]))
    yield from _row("Python", facts["python"])
    yield from _row("interpreter", _shown(facts["executable"]))
    yield from _row("system", f"{facts['system']}, {facts['machine']}")
    for name, flags in facts["build"].items():
        shown = (flag if value == "1" else f"{flag}={value}" for flag, value in flags.items() if value != "0")
        yield from _row(f"build {name}", " ".join(shown))
    for device in facts["devices"]:
        memory = ""
        if "GPU" in device["kind"] and device["total_bytes"]:
            memory = f", {_size(device['free_bytes'])} of {_size(device['total_bytes'])} free"
        yield from _row(device["kind"], f"{device['description']}{memory}")
    if not facts["gpu_offload"]:
        other = [name for name in facts["build"] if name != "CPU"]
        yield from _row("GPU", f"{', '.join(other)} in this build, but no device" if other else "none in this build")
    yield from _row(
        "threads",
        f"{facts['threads']} by default, of {facts['logical_cores']} logical and "
        f"{facts['physical_cores'] or 'an unknown number of'} physical cores"
        + (
            f", {facts['usable_cores']} of them for this process"
            if facts["usable_cores"] != facts["logical_cores"]
            else ""
        ),
    )
    available, total = _size(facts["memory_available_bytes"]), _size(facts["memory_total_bytes"])
    yield from _row("memory", f"{available} of {total} free")
    for name, folder in facts["folders"].items():
        yield from _row(name, _shown(folder["path"]) + ("" if folder["writable"] else " (cannot be written)"))
    yield from _row("self-check", SELF_CHECK[facts["self_check"]])


# --- the model --------------------------------------------------------------------------------------------------------


def _examine(path: Path, output: Output, show: Callable[[Iterable[str]], None]) -> Facts:
    """What MODEL is and how it rounds. Raises ModelNotFoundError, ModelFileError, OutOfMemoryError, GenerationError."""
    from edgespec.llama.library import default_threads
    from edgespec.llama.model import Model
    from edgespec.llama.trial import extra_buffers_work
    from edgespec.model_check import check_model

    facts = _header_facts(check_model(path))
    show(_header_lines(facts))
    # Whether repacking is off stands above, as the self-check's result.
    extra_buffers = extra_buffers_work(path, lambda _: None)
    with Model(
        path, use_extra_bufts=extra_buffers, progress=lambda done: output.progress(f"loading {path.name}", done)
    ) as model:
        facts |= _model_facts(model)
        show(_model_lines(facts))
        facts["rounding"] = []
        facts["threads"] = default_threads()
        if model.can_roll_back:
            roundings = _measure(model, output)
            facts["rounding"] = [asdict(r) | {"n_close": r.n_close, "summary": r.summary()} for r in roundings]
            show(_rounding_lines(roundings, facts["threads"]))
    return facts


def _header_facts(header: Header) -> Facts:
    bytes_by_type: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_by_type[tensor.type] += tensor.size_bytes
    return {
        "path": str(header.path.absolute()),
        "size_bytes": header.size_bytes,
        "name": header.name,
        "architecture": header.architecture,
        "layers": header.number("block_count"),
        "width": header.number("embedding_length"),
        "bytes_by_type": dict(bytes_by_type.most_common()),
        "n_vocab": header.n_vocab,
        "tokenizer": str(header.metadata.get("tokenizer.ggml.model", "unknown")),
        "ctx_trained": header.number("context_length"),
        "chat_template": "tokenizer.chat_template" in header.metadata,
    }


def _model_facts(model: Model) -> Facts:
    return {
        "description": model.description,
        "parameters": model.n_params,
        "can_roll_back": model.can_roll_back,
        "drafts": "trees" if model.can_roll_back else "chains" if _keeps_states(model) else "none",
        "kv_bytes_per_token": 2 * sum(model.header.kv_values_per_token),
        "notes": list(model.notes),
    }


def _keeps_states(model: Model) -> bool:
    """Whether a recurrent memory can be set back by a few tokens."""
    from edgespec.llama.context import Context

    with Context(model, n_ctx=32, rollback=3) as context:
        return context.rollback > 0


def _header_lines(facts: Facts) -> Iterator[str]:
    total = sum(facts["bytes_by_type"].values()) or 1
    types = (f"{name} {100 * size / total:.1f} %" for name, size in facts["bytes_by_type"].items())
    yield ""
    yield from _row("model", facts["name"])
    yield from _row("file", f"{_shown(facts['path'])}, {_size(facts['size_bytes'])}")
    yield from _row("architecture", f"{facts['architecture']}, {facts['layers']} layers, width {facts['width']}")
    yield from _row("weights", f"{', '.join(types)} of {_size(total)}")
    yield from _row("vocabulary", f"{facts['n_vocab']} tokens, tokenizer {facts['tokenizer']}")
    yield from _row("chat template", "yes" if facts["chat_template"] else "none")
    yield from _row("context", f"trained for {facts['ctx_trained']} tokens")


def _model_lines(facts: Facts) -> Iterator[str]:
    yield from _row("parameters", f"{facts['parameters'] / 1e6:,.1f} million")
    if facts["drafts"] == "chains":
        yield from _row("KV cache", "can be set back by a few tokens: drafts are chains; rounding is not measured")
    elif facts["can_roll_back"]:
        yield from _row("KV cache", f"{facts['kv_bytes_per_token'] / 1e3:,.1f} kB a token of context (F16)")
    else:
        yield from _row("KV cache", "cannot be rolled back: this model is decoded plainly, without drafts")
    for note in facts["notes"]:
        yield from _row("note", note)


def _measure(model: Model, output: Output) -> list[Rounding]:
    from edgespec.llama.context import Context
    from edgespec.rounding import ROWS, WIDTHS, measure_rounding

    prefixes = [n_past for n_past in PREFIXES if n_past + ROWS <= model.n_ctx_train]
    if not prefixes:
        return []
    with Context(model, n_ctx=prefixes[-1] + ROWS, max_outputs=WIDTHS[-1]) as context:
        roundings: list[Rounding] = []
        for n_past in prefixes:

            def tell(part: float) -> None:
                output.progress("measuring rounding", (len(roundings) + part) / len(prefixes))

            roundings.append(measure_rounding(context, n_past, progress=tell))
        return roundings


def _rounding_lines(roundings: list[Rounding], threads: int) -> Iterator[str]:
    yield ""
    if not roundings:
        yield from _row("rounding", "the context is too short to measure it")
        return
    yield "rounding: the largest difference of a logit when the same tokens are decoded"
    on = f"{threads} thread{'' if threads == 1 else 's'}"
    yield f"several at a time (the width) instead of one by one; {roundings[0].n_rows} rows, {on}"
    yield ""
    yield f"{'width':>7}" + "".join(f"{f'after {r.n_past} tokens':>20}" for r in roundings)
    for index, width in enumerate(roundings[0].widths):
        yield f"{width:>7}" + "".join(f"{_difference(r.from_width_1[index]):>20}" for r in roundings)
    for r in roundings:
        yield ""
        consequence = ""
        if r.max_difference:
            consequence = (
                f": texts may differ from plain decoding where the best two tokens are closer than twice that "
                f"({r.n_close} of these {r.n_rows} rows; another token became the best in {max(r.changed_choices)})"
            )
        yield from _row(f"after {r.n_past}", r.summary() + consequence)


def _difference(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.0e}" if value else "0"


# --- layout -----------------------------------------------------------------------------------------------------------


def _row(label: str, text: str) -> list[str]:
    """A label and its text beside it, wrapped to the usual width; paths stay whole."""
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shown(path: str) -> str:
    """A path without the user's name, which need not stand in a bug report."""
    try:
        return str(Path("~") / Path(path).relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return path


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"
