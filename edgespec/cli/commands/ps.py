"""`edgespec ps`: the models that running servers of the user have loaded."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.common import JSON_LINES, QUIET
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, GenerationError, LostError

if TYPE_CHECKING:
    from edgespec.cli.setup.running_servers import RunningServer

END_S, LOOK_S = 20.0, 0.05  # for a server to end, and between two looks


@click.command(context_settings=HELP_NAMES)
@click.option("--stop", is_flag=True, help="Unload the models that 'run --keep-alive' keeps loaded.")
@JSON_LINES
@QUIET
def ps(stop: bool, as_json: bool, quiet: bool) -> None:
    """List loaded models: those of your running servers ('edgespec serve') and those that 'run --keep-alive' keeps."""
    from edgespec.cli.setup.running_servers import servers

    output, found, failures = Output(quiet=quiet), servers(), list[EdgespecError]()
    if stop:
        kept = [server for server in found if server.kept_s is not None]
        found = [server for server in kept if _is_stopped(server, failures)]
    rows = [(model.name, server.url, _stays(server)) for server in found for model in server.models]
    if as_json:
        for server in found:
            for model in server.models:
                shown = {"model": model.name, "file": model.info.model, "url": server.url, "pid": server.pid}
                output.json(shown | {"keep_alive_s": server.kept_s, "stopped": stop})
    elif not rows and not failures:
        output.note("no model is kept loaded" if stop else "no server of yours has a model loaded")
    elif stop and rows:
        output.note(f"stopped: {', '.join(name for name, _, _ in rows)}")
    elif rows:
        output.table(("model", "server", "stays loaded"), rows)
    for failure in failures:
        output.error(failure.line, hint=failure.hint)
    if failures:
        click.get_current_context().exit(failures[0].exit_code)


def _stays(server: RunningServer) -> str:
    if server.kept_s is None:
        return "until the server is stopped"
    return f"for {server.kept_s / 60:.3g} min after an answer"


def _is_stopped(server: RunningServer, failures: list[EdgespecError]) -> bool:
    """Stop a server, and return whether it has ended; else add the reason to `failures`, so that others are stopped."""
    try:
        _stop(server)
    except EdgespecError as failure:
        failures.append(failure)
        return False
    return True


def _stop(server: RunningServer) -> None:
    """Stop a server, and wait until it has ended. Raises EdgespecError, also if it is answering."""
    from edgespec.cli.setup.running_servers import servers
    from edgespec.remote.connection import Connection

    until_s = monotonic() + END_S
    try:
        with Connection(server.url, server.key) as connection:
            for model in server.models:
                connection.reply("/api/generate", {"model": model.name, "keep_alive": 0}, END_S)
        while any(each.url == server.url for each in servers()):
            if monotonic() > until_s:
                raise LostError(f"{server.url} does not end")
            sleep(LOOK_S)
    except LostError as error:
        if any(each.url == server.url for each in servers()):  # else it has ended by itself
            raise GenerationError(error.what, why=error.why, hint=f"end its process: {server.pid}") from error
