"""What `doctor` prints about a machine and a build."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from edgespec.cli.render.rows import Row
from edgespec.cli.setup.machine_report import Facts
from edgespec.models.names.known import with_tilde
from edgespec.text.figures import size_of

SELF_CHECK = {
    "works": Row("self-check", "quantised models work", "green"),
    "works without extra buffers": Row("self-check", "quantised models work, without repacked weights", "yellow"),
    "crashes": Row("self-check", "quantised models crash", "red"),
}


def machine_rows(facts: Facts) -> Iterator[Row]:
    yield from _program(facts)
    yield Row()
    yield from _build(facts)
    yield Row()
    yield from _machine(facts)
    yield Row()
    yield from _places(facts)
    yield Row()
    yield from _advice(facts)


def _program(facts: Facts) -> Iterator[Row]:
    yield Row("edgespec", facts["edgespec"])
    yield Row("llama-cpp-python", facts["llama_cpp_python"])
    yield Row("Python", f"{facts['python']}, {_shown(facts['executable'])}")
    yield Row("library", _shown(facts["library"].removeprefix(f"{sys.prefix}{os.sep}")))
    yield Row("packages", ", ".join(f"{name}=={version}" for name, version in facts["libraries"].items()))
    yield Row("system", f"{facts['system']}, {facts['machine']}")


def _build(facts: Facts) -> Iterator[Row]:
    for name, flags in facts["build"].items():
        used = (flag if value == "1" else f"{flag}={value}" for flag, value in flags.items() if value != "0")
        yield Row(f"build {name}", " ".join(used))
    if not any(device["name"] == "BLAS" for device in facts["devices"]):
        yield Row("BLAS", "none in this build; it would only speed up long prompts")
    for device in facts["devices"]:
        memory = ""
        if "GPU" in device["kind"] and device["total_bytes"]:
            memory = f", {size_of(device['free_bytes'])} of {size_of(device['total_bytes'])} free"
        yield Row(device["kind"], f"{device['description']}{memory}")
    if not facts["gpu_offload"]:
        backends = ", ".join(name for name in facts["build"] if name != "CPU")
        found = ", ".join(dict.fromkeys(gpu["name"] for gpu in facts["gpus"]))
        in_build = f"{backends} in this build, but no device" if backends else "none in this build"
        here = f"but there is one: {found}" if found else "and none was found here"
        yield Row("GPU", f"{in_build}, {here}", "yellow" if found else "")
    yield Row("RPC", "in this build (--rpc, rpc-worker)" if facts["rpc"] else "none in this build")
    yield SELF_CHECK[facts["self_check"]]


def _machine(facts: Facts) -> Iterator[Row]:
    logical, physical, usable = facts["logical_cores"], facts["physical_cores"], facts["usable_cores"]
    cores = f"{physical or 'an unknown number of'} physical and {logical} logical cores"
    limited = f", {usable} of them available to this process" if usable != logical else ""
    yield Row("threads", f"{facts['threads']} by default (-t); {cores}{limited}")
    available, total = size_of(facts["memory_available_bytes"]), size_of(facts["memory_total_bytes"])
    yield Row("memory", f"{available} of {total} free")
    terminal = facts["terminal"]
    parts = [terminal["program"], terminal["term"] or "no TERM", f"{terminal['columns']} x {terminal['lines']}"]
    parts += [terminal["encoding"], terminal["colours"], "NO_COLOR" if terminal["no_color"] else ""]
    parts += ["" if terminal["stdout_is_terminal"] else "stdout is not a terminal"]
    yield Row("terminal", ", ".join(filter(None, parts)))


def _places(facts: Facts) -> Iterator[Row]:
    for name, folder in facts["folders"].items():
        yield _place(name, folder["path"], writable=folder["writable"])
    settings = facts["settings"]
    yield Row("settings", ", ".join([*map(_shown, settings["files"]), *settings["variables"]]) or "none")
    hub = facts["hub"]
    repositories = "1 repository" if hub["repositories"] == 1 else f"{hub['repositories']} repositories"
    downloads = "1 download" if hub["unfinished"] == 1 else f"{hub['unfinished']} downloads"
    begun = f" ({downloads} incomplete)" if hub["unfinished"] else ""
    there = f"{repositories}{begun}" if hub["is_there"] else "does not exist yet"
    more = f", {there}, {size_of(hub['free_bytes'])} free"
    yield _place("hub cache", hub["cache"], writable=hub["writable"], more=more)
    state = f"offline ({hub['offline_by']}): no downloads" if hub["offline"] else "downloads are allowed"
    token = f"token in {_shown(hub['token'])}" if hub["token"] else "no token"
    at = f"at {hub['endpoint']}" if hub["endpoint"] else ""
    yield Row("hub", ", ".join(filter(None, [state, token, at])), "yellow" if hub["offline"] else "")


def _place(label: str, path: str, *, writable: bool, more: str = "") -> Row:
    return Row(label, f"{_shown(path)}{'' if writable else ' (not writable)'}{more}", "" if writable else "yellow")


def _advice(facts: Facts) -> Iterator[Row]:
    if not facts["advice"]:
        yield Row("advice", "no problems found", "green")
    for number, advice in enumerate(facts["advice"], start=1):
        label = f"advice {number}" if len(facts["advice"]) > 1 else "advice"
        yield Row(label, f"{advice['problem']}: {advice['cost']}", "yellow")
        if advice["command"]:
            yield Row("", advice["command"], as_is=True)


def _shown(path: str) -> str:
    """A path without the user's name, which a bug report does not need."""
    return with_tilde(Path(path)) if Path(path).is_absolute() else path
