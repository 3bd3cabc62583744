"""`edgespec rpc-worker`: this machine's memory and compute for models that run elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from errno import EADDRINUSE
from pathlib import Path

import click

from edgespec.cli.options.command import Command
from edgespec.cli.options.common import QUIET, option
from edgespec.cli.options.types import Integer, Text
from edgespec.cli.terminal.interrupt import SIGNALS
from edgespec.cli.terminal.output import Output
from edgespec.errors import GenerationError, UsageError, told_as
from edgespec.settings import MAX_THREADS
from edgespec.text.figures import size_of

CAME, WENT = "Accepted client connection", "Client connection closed"  # what llama.cpp says
VISIT_S = 1.0  # clients connect a few times to ask before they stay


@click.command("rpc-worker", cls=Command)
@option("Server", "--host", type=Text(), default="127.0.0.1", show_default=True, help="IPv4 address to listen on.")
@option("Server", "--port", type=Integer(1, 65535), default=50052, show_default=True, metavar="N", help="Port.")
@option(
    "Server", "-t", "--threads", type=Integer(1, MAX_THREADS), metavar="N", show_default="physical cores",
    help="CPU threads.",
)  # fmt: skip
@option(
    "Server", "--cache", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Keep received weights in FOLDER, so that the next client need not send those of 10 MiB and more again.",
)  # fmt: skip
@QUIET
def rpc_worker(host: str, port: int, threads: int | None, cache: Path | None, quiet: bool) -> None:
    """Serve this machine's memory and compute to 'edgespec run --rpc HOST:PORT' on another one.

    One program at a time can use a worker, of the same version of edgespec. There is no encryption and no password:
    never listen on an open network. Listen on 127.0.0.1 and lead there with an SSH or WireGuard tunnel.
    """
    output = Output(quiet=quiet)
    output.log_to_stderr(verbose=False)
    address = _check(host, port)
    from edgespec.llama import kernels, rpc
    from edgespec.llama.library import default_threads, offered_devices

    if not rpc.has_rpc():
        raise UsageError("this build of llama.cpp has no RPC backend", hint="EDGESPEC_RPC=1 ./scripts/edgespec")
    if cache is not None:
        with told_as(UsageError, f"cannot keep weights in {cache}"):
            cache.mkdir(parents=True, exist_ok=True)
    if not address.startswith("127."):
        output.note(f"listening on {host}: whoever reaches this port can use and crash this process, and read its data")
    handles, devices = offered_devices()
    # Those of the exact mode, for all types of weights: a client cannot say which it wants.
    kernels.use(kernels.exact_bounds({"IQ4_NL"}))
    n_threads = threads or default_threads()
    for device in devices:
        memory = f"{size_of(device.free_bytes)} of {size_of(device.total_bytes)} free"
        output.note(f"{device.name} ({device.description}): {memory}")
    output.note(f"listening on {address}:{port} with {n_threads} threads; Ctrl-C ends")
    _tell_clients(output)

    def serve() -> None:
        if os.name == "posix":  # a signal here would end llama.cpp's waiting, not the program
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        rpc.serve(address, port, handles, n_threads, str(cache) if cache else None)

    server = threading.Thread(target=serve, name="server", daemon=True)
    server.start()
    server.join()
    raise GenerationError(f"cannot serve on {address}:{port}", why="llama.cpp gave up listening")


def _check(host: str, port: int) -> str:
    """The numeric address, if one can listen there. Raises UsageError."""
    try:
        address = str(socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            if os.name == "posix":  # as llama.cpp does
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((address, port))
            trial.listen(1)
    except OSError as error:
        hint = "--host is an IPv4 address or a name of this machine"
        if error.errno == EADDRINUSE:
            hint = "another worker may be running there: choose another port (--port)"
        raise UsageError(f"cannot listen on {host}:{port}", why=error.strerror or str(error), hint=hint) from error
    return address


def _tell_clients(output: Output) -> None:
    """Show in our words what llama.cpp writes to stdout about clients that stay."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    os.dup2(writer, 1)
    os.close(writer)

    def tell() -> None:
        stays = threading.Event()
        timer = threading.Timer(0, stays.clear)

        def say() -> None:
            stays.set()
            output.note("a client uses this worker")

        with os.fdopen(reader, encoding="utf-8", errors="replace") as lines:
            for line in map(str.strip, lines):
                if line == CAME:
                    timer = threading.Timer(VISIT_S, say)
                    timer.start()
                elif line == WENT:
                    timer.cancel()
                    if stays.is_set():
                        stays.clear()
                        output.note("the client has gone: ready for the next one")

    threading.Thread(target=tell, name="clients", daemon=True).start()
