"""Parts that other installed packages add: commands, drafters and formats of the server (docs/plugins.md).

A package names them in its entry points. They are looked for when all have to be listed, or for a name that edgespec
does not have itself, and imported when they are used.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

from edgespec.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS, DRAFTERS, FORMATS = "edgespec.commands", "edgespec.drafters", "edgespec.formats"

Part = TypeVar("Part")


@cache
def added(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by their names."""
    from importlib.metadata import entry_points  # takes 10 ms

    return {point.name: point for point in entry_points(group=group)}


def package_of(group: str, name: str) -> str:
    """Return the name of the package that adds a part."""
    found = added(group)[name].dist
    return "?" if found is None else str(found.name)


def load(group: str, name: str, kind: type[Part]) -> Part:
    """Import a part. Raises UsageError, which names the package, if this fails or if the part is no `kind`."""
    try:
        part = added(group)[name].load()
        why = "" if isinstance(part, kind) else f"it is a {type(part).__name__}, not a {kind.__name__}"
    except Exception as error:  # a package may raise anything when it is imported
        why = f"{type(error).__name__}: {error}"
    if why:
        what = f"{name!r} of the package {package_of(group, name)} cannot be used"
        raise UsageError(what, why=why, hint="update or uninstall the package")
    return part  # type: ignore[no-any-return]
