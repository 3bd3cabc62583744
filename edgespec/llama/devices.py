"""The devices that a user names (`--device`), and what measurements on them depend on."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import UsageError
from edgespec.llama.drivers import driver_of
from edgespec.llama.library import gpu_names, gpus


def chosen(names: str) -> tuple[str, ...]:
    """Return the names of the devices in a list such as "CUDA0,CUDA1"; empty for "auto", and for "none".

    Raises UsageError for a device that llama.cpp does not see.
    """
    if names in ("auto", "none"):
        return ()
    known = {name.lower(): name for name in gpu_names()}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name.lower() not in known:
            there = ", ".join(known.values())
            raise UsageError(
                f"there is no device {name!r}",
                why=f"llama.cpp sees {there}" if there else "llama.cpp sees no device that layers can be offloaded to",
                hint="'edgespec run --list-devices' lists the devices; 'edgespec doctor' says why one may be missing",
            )
    return tuple(dict.fromkeys(known[name.lower()] for name in wanted))


def listing() -> str:
    """Return the devices as llama.cpp's programs list them."""
    lines = [
        f"  {device.name}: {device.description} ({device.total_bytes >> 20} MiB, {device.free_bytes >> 20} MiB free)"
        for device in gpus([*gpu_names()])
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"])])


def identities(names: Sequence[str]) -> list[list[str]]:
    """Return facts that distinguish the devices with these names: measurements on one need not hold for another.

    The build of their backend is a part of `build_id`.
    """
    return [[gpu.name, gpu.description, gpu.backend, driver_of(gpu.description, gpu.backend)] for gpu in gpus(names)]
