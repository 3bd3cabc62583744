"""`edgespec doctor`: facts and advice about this machine, this build and a model, for a bug report."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from edgespec.cli.options.common import JSON, MODEL_TOO, QUIET, VERBOSE
from edgespec.cli.options.given import one_model
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.render.rows import Row, write_rows
from edgespec.cli.setup.machine import Facts, machine_facts
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError
from edgespec.models.names.known import with_tilde
from edgespec.text.figures import size_of

LABEL, COLUMNS = 18, 80  # fits into any terminal and bug report
SELF_CHECK = {
    "works": "quantised models work",
    "works without extra buffers": "quantised models work, without repacked weights",
    "crashes": "quantised models crash",
}


@click.command(context_settings=HELP_NAMES)
@click.argument("model", required=False, type=ModelSpec(), metavar="[MODEL]")
@MODEL_TOO
@JSON
@QUIET
@VERBOSE
@click.pass_context
def doctor(
    ctx: click.Context, /, model: str | None, model_too: str | None, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Check this machine, this build and a model.

    Shows versions, the build of llama.cpp and whether it runs quantised models, devices, memory and folders, and gives
    advice. MODEL (a GGUF file, or a name as shown by 'edgespec ls') is loaded, to check that it works and whether
    speculation is exact with it. The output is meant for bug reports: it contains no tokens and no values of settings.
    Exit code 1 if quantised models crash, 3 if MODEL cannot be loaded.
    """
    from edgespec.cli.setup.model_facts import model_facts
    from edgespec.models.names.spec import resolve

    output = Output(quiet=quiet, verbose=verbose)
    spec = one_model(model, model_too)
    path = resolve(spec).path if spec is not None else None
    failure: EdgespecError | None = None
    with output.showing_progress():
        output.progress("checking this machine", None)
        facts = machine_facts()
        if path is not None:
            try:
                facts["model"] = model_facts(path, output.progress)
            except EdgespecError as error:
                failure, facts["model"] = error, {"path": str(path), "error": str(error)}
    if as_json:
        output.json(facts)
    else:
        write_rows(output, _rows(facts), indent=LABEL, columns=COLUMNS)
    if failure is not None:
        raise failure
    if facts["self_check"] == "crashes":
        ctx.exit(1)


def _rows(facts: Facts) -> Iterator[Row]:
    for section in (_program, _build, _machine, _places):
        yield from section(facts)
        yield Row()
    if not facts["advice"]:
        yield Row("advice", "no problems found")
    for number, advice in enumerate(facts["advice"], start=1):
        label = f"advice {number}" if len(facts["advice"]) > 1 else "advice"
        yield Row(label, f"{advice['problem']}: {advice['cost']}")
        if advice["command"]:
            yield Row("", advice["command"], as_is=True)
    if "model" in facts:
        yield Row()
        yield from _model(facts["model"])


def _program(facts: Facts) -> Iterator[Row]:
    yield Row("edgespec", facts["edgespec"])
    yield Row("llama-cpp-python", facts["llama_cpp_python"])
    yield Row("Python", f"{facts['python']}, {_private(facts['executable'])}")
    yield Row("library", _private(facts["library"].removeprefix(f"{sys.prefix}{os.sep}")))
    yield Row("packages", ", ".join(f"{name}=={version}" for name, version in facts["libraries"].items()))
    yield Row("system", f"{facts['system']}, {facts['machine']}")


def _build(facts: Facts) -> Iterator[Row]:
    for name, flags in facts["build"].items():
        used = (flag if value == "1" else f"{flag}={value}" for flag, value in flags.items() if value != "0")
        yield Row(f"build {name}", " ".join(used))
    for device in facts["devices"]:
        memory = ""
        if "GPU" in device["kind"] and device["total_bytes"]:
            memory = f", {size_of(device['free_bytes'])} of {size_of(device['total_bytes'])} free"
        yield Row(device["kind"], f"{device['description']}{memory}")
    if not facts["gpu_offload"]:
        found = ", ".join(dict.fromkeys(gpu["name"] for gpu in facts["gpus"]))
        here = f"not used by this build: {found}" if found else "none found, and none used by this build"
        yield Row("GPU", here)
    yield Row("RPC", "in this build (--rpc, rpc-worker)" if facts["rpc"] else "not in this build")
    yield Row("self-check", SELF_CHECK[facts["self_check"]])


def _machine(facts: Facts) -> Iterator[Row]:
    logical, physical, usable = facts["logical_cores"], facts["physical_cores"], facts["usable_cores"]
    cores = f"{physical or 'an unknown number of'} physical and {logical} logical cores"
    limited = f", {usable} of them available to this process" if usable != logical else ""
    yield Row("threads", f"{facts['threads']} by default (-t); {cores}{limited}")
    available, total = size_of(facts["memory_available_bytes"]), size_of(facts["memory_total_bytes"])
    yield Row("memory", f"{available} of {total} free")
    terminal = facts["terminal"]
    parts = [terminal["program"], terminal["term"] or "no TERM", f"{terminal['columns']} x {terminal['lines']}"]
    yield Row("terminal", ", ".join(filter(None, [*parts, terminal["encoding"]])))


def _places(facts: Facts) -> Iterator[Row]:
    for name, folder in facts["folders"].items():
        yield _place(name, folder["path"], writable=folder["writable"])
    settings = facts["settings"]
    yield Row("settings", ", ".join([*map(_private, settings["files"]), *settings["variables"]]) or "none")
    hub = facts["hub"]
    more = f", {size_of(hub['free_bytes'])} free"
    yield _place("hub cache", hub["cache"], writable=hub["writable"], more=more)
    state = "offline: no downloads" if hub["offline"] else "downloads are allowed"
    token = f"token in {_private(hub['token'])}" if hub["token"] else "no token"
    at = f"at {hub['endpoint']}" if hub["endpoint"] else ""
    yield Row("hub", ", ".join(filter(None, [state, token, at])))


def _model(facts: Facts) -> Iterator[Row]:
    yield Row("model", _private(facts["path"]))
    if "error" in facts:
        yield Row("", "cannot be loaded")
        return
    yield Row("architecture", f"{facts['architecture']}, {facts['layers']} layers, {size_of(facts['size_bytes'])}")
    yield Row("weights", ", ".join(facts["weight_types"]))
    yield Row("kernels", facts["kernels"])
    yield Row("rounding", facts["rounding"])
    for note in facts["notes"]:
        yield Row("note", note)


def _place(label: str, path: str, *, writable: bool, more: str = "") -> Row:
    return Row(label, f"{_private(path)}{'' if writable else ' (not writable)'}{more}")


def _private(path: str) -> str:
    """Return a path without the user's name, which a bug report does not need."""
    return with_tilde(Path(path)) if Path(path).is_absolute() else path
