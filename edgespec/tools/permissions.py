"""Tools that the user has allowed for good, in a file."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from edgespec.errors import UsageError, told_as
from edgespec.files.paths import data_dir, write_whole
from edgespec.tools.config import ServerConfig

log = logging.getLogger(__name__)


class Permissions:
    """The allowed tools of each server, as `{SERVER: {"server": DIGEST, "tools": [NAME]}}`.

    A permission ends when the definition of the server changes: another program may have taken its name. The file is
    read each time, since other programs may have changed it.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or data_dir() / "allowed_tools.json"

    def allows(self, server: ServerConfig, tool: str) -> bool:
        return tool in self._tools(self._read(), server)

    def allow(self, server: ServerConfig, tool: str) -> None:
        """Allow a tool from now on. Raises UsageError if the file cannot be written."""
        known = self._read()
        tools = sorted({*self._tools(known, server), tool})
        self._write(known | {server.name: {"server": server.digest, "tools": tools}})

    def ask_again(self, server: ServerConfig, tool: str) -> bool:
        """Take a permission back; return False if there was none. Raises UsageError if the file cannot be written."""
        known = self._read()
        tools = self._tools(known, server)
        if tool not in tools:
            return False
        left = {"server": server.digest, "tools": [name for name in tools if name != tool]}
        self._write(known | {server.name: left})
        return True

    @staticmethod
    def _tools(known: dict[str, object], server: ServerConfig) -> list[str]:
        entry = known.get(server.name)
        if not isinstance(entry, dict) or entry.get("server") != server.digest:
            return []
        tools = entry.get("tools")
        return [tool for tool in tools if isinstance(tool, str)] if isinstance(tools, list) else []

    def _read(self) -> dict[str, object]:
        """Return the content of the file; a damaged file allows nothing."""
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, so each tool is asked for: %s", self.file, error)
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: dict[str, object]) -> None:
        with told_as(UsageError, f"the permission cannot be saved in {self.file}"):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, json.dumps(known, indent=1) + "\n")
