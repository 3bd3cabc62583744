"""`edgespec rpc-worker`: run layers of models for another machine."""

from __future__ import annotations

import os
import signal
import socket
import threading
from dataclasses import dataclass
from errno import EADDRINUSE
from pathlib import Path

import click

from edgespec.cli.options.command import Call, Options, command, value_of
from edgespec.cli.options.common import QUIET, option
from edgespec.cli.options.types import Integer, Text
from edgespec.cli.terminal.interrupt import SIGNALS
from edgespec.errors import GenerationError, UsageError, told_as
from edgespec.settings import MAX_THREADS
from edgespec.text.figures import size_of


# fmt: off
@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    host: str = value_of(option(
        "Server", "--host", type=Text(), default="127.0.0.1", help="IPv4 address to listen on.",
    ))
    port: int = value_of(option("Server", "--port", type=Integer(1, 65535), default=50052, help="Port."))
    threads: int | None = value_of(option(
        "Server", "-t", "--threads", type=Integer(1, MAX_THREADS), show_default="physical cores", help="CPU threads.",
    ))
    cache: Path | None = value_of(option(
        "Server", "--cache", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
        help="Keep received tensors of 10 MiB and more in FOLDER, so that clients need not send them again.",
    ))
# fmt: on


@command(WorkerOptions, QUIET, name="rpc-worker")
def rpc_worker(call: Call[WorkerOptions]) -> None:
    """Run layers of a model for 'edgespec run --rpc HOST:PORT' on another machine.

    A worker serves one program at a time, of the same version of edgespec. There is no encryption and no password, so
    never listen on an open network: listen on 127.0.0.1, and connect through an SSH or WireGuard tunnel.
    """
    output, host, port, cache = call.output, call.options.host, call.options.port, call.options.cache
    address = _check(host, port)
    from edgespec.llama import rpc
    from edgespec.llama.library import default_threads, offered_devices

    if not rpc.has_rpc():
        raise UsageError("this build of llama.cpp has no RPC backend", hint="build it with -DGGML_RPC=on in CMAKE_ARGS")
    if cache is not None:
        with told_as(UsageError, f"cannot keep weights in {cache}"):
            cache.mkdir(parents=True, exist_ok=True)
    if not address.startswith("127."):
        output.note(
            f"listening on {host}: clients that reach this port can use and crash this process, and read its data"
        )
    devices = offered_devices()
    n_threads = call.options.threads or default_threads()
    for device in devices:
        memory = f"{size_of(device.free_bytes)} of {size_of(device.total_bytes)} free"
        output.note(f"{device.name} ({device.description}): {memory}")
    output.note(f"listening on {address}:{port} with {n_threads} threads; Ctrl-C stops")

    def serve() -> None:
        if os.name == "posix":  # a signal in this thread would interrupt llama.cpp, not end the program
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        rpc.serve(address, port, [device.handle for device in devices], n_threads, str(cache) if cache else None)

    server = threading.Thread(target=serve, name="server", daemon=True)
    server.start()
    server.join()
    raise GenerationError(f"cannot serve on {address}:{port}", why="llama.cpp gave up listening")


def _check(host: str, port: int) -> str:
    """Return the numeric address of the host. Raises UsageError if the port cannot be used."""
    try:
        address = str(socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        socket.create_server((address, port)).close()
    except OSError as error:
        hint = "--host is an IPv4 address or a name of this machine"
        if error.errno == EADDRINUSE:
            hint = "another worker may be running there: choose another port (--port)"
        raise UsageError(f"cannot listen on {host}:{port}", why=error.strerror or str(error), hint=hint) from error
    return address
