"""The file that names MCP servers, in the form that other programs use: `{"mcpServers": {NAME: {...}}}`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from edgespec.errors import UsageError, told_as
from edgespec.files.optional_files import is_there
from edgespec.files.paths import config_dir
from edgespec.settings import shown
from edgespec.text.encodings import decoded

FILE = "mcp.json"
MOST_BYTES = 1 << 20
MOST_SERVERS = 32
KINDS = ("stdio", "http", "streamable-http", "streamableHttp")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NAME = re.compile(r"[\w.-]{1,64}\Z")

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """An MCP server: a program with its arguments, or the URL of one that runs elsewhere. `problem` is the reason why
    it cannot be used, and `ignored` names fields that have no effect here."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of what is started or asked, without the secrets in `env` and `headers`."""
        facts = [self.command, self.args, self.cwd, self.url, sorted(self.env), sorted(self.headers)]
        return sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def default_file() -> Path:
    """Return the user's file of servers, which may not exist."""
    return config_dir() / FILE


def read_servers(file: Path | None = None) -> list[ServerConfig]:
    """Return the servers of a file, by default the user's, if there is one. A server that cannot be used has a
    `problem`. Raises UsageError if the file cannot be read."""
    if file is None and not is_there(default_file()):
        return []
    file = file or default_file()
    with told_as(UsageError, f"{file} cannot be read"), file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file} is too large", why=f"a file of MCP servers may have {MOST_BYTES >> 20} MB")
    try:
        value = json.loads(decoded(data))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid JSON", why=str(error)) from error
    servers = value.get("mcpServers") if isinstance(value, dict) else None
    if not isinstance(servers, dict):
        hint = 'it has the form {"mcpServers": {"time": {"command": "mcp-server-time", "args": []}}}'
        raise UsageError(f"{file} has no object 'mcpServers'", hint=hint)
    if len(servers) > MOST_SERVERS:
        raise UsageError(f"{file} has {len(servers)} servers", why=f"at most {MOST_SERVERS} can be used")
    found = (_server(name, given) for name, given in servers.items())
    return [server for server in found if server is not None]


def _server(name: str, given: object) -> ServerConfig | None:
    """Return a server, or None if it is disabled."""
    if not _NAME.match(name):
        return ServerConfig(shown(name), problem="its name must have 1 to 64 letters, digits, '.', '-' and '_'")
    try:
        fields = _Fields(given)
        if fields.take("disabled", bool):
            return None
        kind = fields.take("type", str) or fields.take("transport", str)
        server = ServerConfig(
            name,
            fields.text("command"),
            tuple(map(expanded, fields.strings("args"))),
            fields.mapping("env"),
            fields.text("cwd") or None,
            fields.text("url"),
            fields.mapping("headers"),
        )
        if kind and kind not in KINDS:
            raise ValueError(f"its type {shown(kind)} is not supported, only stdio and http")
        if bool(server.command) == bool(server.url):
            raise ValueError("it needs either 'command' or 'url'")
        if server.url and not server.url.startswith(("http://", "https://")):
            raise ValueError(f"its url {shown(server.url)} does not begin with http:// or https://")
    except ValueError as error:
        return ServerConfig(name, problem=str(error))
    return ServerConfig(**asdict(server) | {"ignored": tuple(map(shown, fields.left))})


class _Fields:
    """The fields of a server, each of which is taken once; `left` are the others."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, dict):
            raise ValueError("it must be a JSON object")
        self.left = dict(given)

    def take(self, name: str, kind: type[Kind]) -> Kind:
        """Return a field, or an empty value if it is missing. Raises ValueError for another type."""
        value = self.left.pop(name, None)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            kinds = {str: "a text", bool: "true or false", list: "a list of texts", dict: "an object of texts"}
            raise ValueError(f"its {name} must be {kinds[kind]}")
        return value

    def text(self, name: str) -> str:
        return expanded(self.take(name, str))

    def strings(self, name: str) -> list[str]:
        values: list[str] = self.take(name, list)
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"its {name} must be a list of texts")
        return values

    def mapping(self, name: str) -> dict[str, str]:
        values: dict[str, str] = self.take(name, dict)
        if not all(isinstance(value, str) for value in values.values()):
            raise ValueError(f"its {name} must be an object of texts")
        return {key: expanded(value) for key, value in values.items()}


def expanded(text: str) -> str:
    """Return a text with ${NAME} replaced by environment variables. Raises ValueError for one that is not set."""

    def value(found: re.Match[str]) -> str:
        try:
            return os.environ[found[1]]
        except KeyError:
            raise ValueError(f"the environment variable {found[1]} is not set") from None

    return _VARIABLE.sub(value, text)
