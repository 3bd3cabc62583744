"""The conditions of a measurement: the machine, the build of llama.cpp and the model files, without paths."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import psutil

from edgespec import __version__
from edgespec.gguf_file.header import Header
from edgespec.llama import library
from edgespec.llama.model import described
from edgespec.models.names.known import short_name


@dataclass(slots=True, kw_only=True)
class Conditions:
    """How and where a result was measured, to compare it with another one. `started` is a time in ISO 8601."""

    command: str
    started: str
    edgespec: str
    machine: dict[str, Any]
    build: dict[str, Any]
    settings: dict[str, Any]


def conditions(command: str, started: str) -> dict[str, Any]:
    """Return the fields of `Conditions` but the settings."""
    facts = {"edgespec": __version__, "machine": machine(), "build": build()}
    return {"command": command, "started": started, **facts}


def machine() -> dict[str, Any]:
    """Return the processor and the system, with the memory in bytes."""
    devices = library.devices()
    return {
        "cpu": next((device.description for device in devices if device.kind == "CPU"), platform.machine()),
        "gpus": [device.description for device in devices if "GPU" in device.kind],
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def build() -> dict[str, Any]:
    """Return the version of llama-cpp-python, and llama.cpp's line of instruction sets and options."""
    return {"llama_cpp_python": version("llama-cpp-python"), "flags": library.build_flags()}


def model_facts(header: Header) -> dict[str, Any]:
    """Return the name and size of a model file, and what is in it."""
    path = header.path
    return {
        "name": short_name(path),
        "file": path.name,
        "bytes": path.stat().st_size,
        "description": described(header),
        "parameters": header.n_params,
    }


def without_folders(text: str) -> str:
    """Return a message without the folders of absolute paths in it: they contain the name of the user."""
    return re.sub(r"(?<![\w.~/\\])(?:[A-Za-z]:)?[/\\](?:[^\s/\\]+[/\\])+", "", text)
