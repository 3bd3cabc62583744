"""`edgespec serve`: models of this machine for clients of OpenAI's API."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgespec.cancel import CancelFlag
from edgespec.cli.commands.batch import Parallel
from edgespec.cli.options.command import Command, Option
from edgespec.cli.options.common import Decorated, with_options
from edgespec.cli.options.generation import ENDS, LARGEST, MODEL, SAID, SAMPLING, SPECULATION
from edgespec.cli.options.given import load_settings, request
from edgespec.cli.options.types import Integer, Text
from edgespec.cli.setup.default_model import answer_as_catalogued, default_model
from edgespec.cli.setup.fetching import fetch_models
from edgespec.cli.setup.reopened import ReopenedModel
from edgespec.cli.terminal.interrupt import Interrupts
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError, told_as
from edgespec.models.names.known import short_name
from edgespec.models.names.spec import resolve
from edgespec.runtime.worker import LoadingStoppedError
from edgespec.settings import MAX_SEQUENCES, check_load_settings, check_rule

if TYPE_CHECKING:
    import uvicorn

    from edgespec.serve.guard import Rules

BACKLOG = 1024  # connections that wait to be taken
SHOWN = ("model", "ctx_size", "draft_model", "cache_ram")
"""The options of other commands that the help lists; the others work too, also in configuration files."""


def _server(*names: str, **attrs: Any) -> Callable[[Decorated], Decorated]:
    return click.option(*names, cls=Option, section="Server", config=False, **attrs)


SERVER = [
    _server("--host", type=Text(), default="127.0.0.1", show_default=True, help="Address to listen on."),
    _server(
        "--port", type=Integer(0, 65535), default=8080, show_default=True, metavar="N",
        help="Port to listen on; 0: any free one.",
    ),
    _server(
        "--api-key", type=Text(), metavar="KEY", envvar="EDGESPEC_API_KEY",
        help="Key that clients must send; needed to listen beyond this machine. Better in EDGESPEC_API_KEY, since "
        "arguments of processes can be seen by others.",
    ),
    _server(
        "--allow-host", "hosts", type=Text(), multiple=True, metavar="NAME",
        help="A name of this server that clients may use beside localhost and addresses. Repeatable.",
    ),
    _server(
        "--cors", "origins", type=Text(), multiple=True, metavar="ORIGIN",
        help="Let web pages of ORIGIN (https://example.org, * for all) use this server. Repeatable.",
    ),
    _server(
        "--parallel", type=Parallel(), default=4, metavar="auto|N", show_default=True,
        help=f"Answers to decode together, up to {MAX_SEQUENCES}; auto: up to 16, as memory allows.",
    ),
    _server(
        "--queue", type=Integer(0, LARGEST), default=256, show_default=True, metavar="N",
        help="Answers that may wait for one of these; more are refused with status 503.",
    ),
]  # fmt: skip

JSON = click.option(
    "--json", "as_json", cls=Option, section="Output", config=False, is_flag=True,
    help="Print a line of JSON for the start and for each request, on stdout.",
)  # fmt: skip


def serve_options(command: Decorated) -> Decorated:
    return with_options(command, [*SERVER, *MODEL, *SPECULATION, *SAMPLING, *ENDS, JSON, *SAID])


@click.command(cls=Command)
@serve_options
@click.pass_context
def serve(ctx: click.Context, /, **values: Any) -> None:
    """Serve a model to clients of OpenAI's API.

    Endpoints: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /apply-template, /health,
    /props, /slots, /metrics. The options of 'edgespec run' for sampling and drafting are taken too: they are what a
    request leaves open. The first Ctrl-C lets answers finish, the second one ends.
    """
    output = Output(quiet=values["quiet"])
    output.log_to_stderr(verbose=values["verbose"])
    if not values["api_key"] and not _is_loopback(values["host"]):
        raise UsageError(
            f"listening on {values['host']} needs a key",
            why="others could use this server",
            hint="set EDGESPEC_API_KEY (or --api-key), or listen on 127.0.0.1",
        )
    interrupts = ctx.find_object(Interrupts) or Interrupts()
    with _listening(values["host"], values["port"]) as sock:  # before a model is loaded for nothing
        values["model"] = values["model"] or default_model(ctx, output)
        answer_as_catalogued(ctx, values)
        fetch_models(ctx, load_settings(values), output, yes=values["yes"])
        alone = values["strict"] and ctx.get_parameter_source("parallel") is ParameterSource.DEFAULT
        settings = replace(load_settings(values), sequences=1 if alone else values["parallel"])
        check_load_settings(settings)
        check_rule(settings, values["verify"])
        try:
            _run(output, interrupts, sock, settings, values)
        except LoadingStoppedError:
            interrupts.raise_if_received()


def _run(output: Output, interrupts: Interrupts, sock: socket.socket, settings: Any, values: dict[str, Any]) -> None:
    from edgespec.serve.app import make_app
    from edgespec.serve.guard import Rules
    from edgespec.serve.pool import Pool, Served

    defaults = request(values | {"system": None}, "", chat=False, seed=0)
    cancel = CancelFlag()
    with interrupts.cancelling(cancel):
        model = ReopenedModel(settings, defaults, output, cancel)
    name = short_name(resolve(settings.model).path)
    url = _url(values["host"], sock)
    beyond = values["api_key"] and not _is_loopback(values["host"]) and not values["hosts"]
    rules = Rules(values["api_key"] or "", None if beyond else values["hosts"], values["origins"])

    def open_pool() -> Pool:
        return Pool([Served(name, model.worker, defaults, output.note)], values["queue"])

    try:
        app = make_app(open_pool, rules, _shower(output, as_json=values["as_json"]))
        server = uvicorn_server(app)
        model.show_notes()
        sock.listen(BACKLOG)  # who reads that it is there may ask
        _greet(output, url, name, rules, as_json=values["as_json"])

        def stop() -> None:
            output.note("answers in the making are finished; Ctrl-C again ends them")
            server.should_exit = True

        with interrupts.calling(stop):
            server.run([sock])
    finally:
        model.worker.close()


def uvicorn_server(app: Any) -> uvicorn.Server:
    """What speaks HTTP for an application, without a word on the terminal."""
    import uvicorn

    class Server(uvicorn.Server):
        """One that leaves signals to the program."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        backlog=BACKLOG,
    )
    return Server(config)


def _greet(output: Output, url: str, name: str, rules: Rules, *, as_json: bool) -> None:
    if as_json:
        output.json({"event": "ready", "url": url, "models": [name]})
        return
    key = " -H 'Authorization: Bearer KEY'" if rules.api_key else ""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello!"}]})
    output.line(f"{url}/v1 serves {name}; try:")
    output.line(f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'")


def _shower(output: Output, *, as_json: bool) -> Callable[[Mapping[str, Any]], None]:
    """Shows the record of a request that has ended."""

    def show(record: Mapping[str, Any]) -> None:
        if as_json:
            output.json({"event": "request"} | dict(record))
            return
        for note in record.get("notes", ()):
            output.note(note)
        if output.quiet or record["path"] in ("/health", "/metrics"):
            return
        said = [f"{record['method']} {record['path']} {record['status']}", f"{record['seconds']:.2f} s"]
        if "tokens" in record:
            said.append(f"{record['prompt_tokens']} + {record['tokens']} tokens")
            if record["draft_tokens"]:
                said.append(f"{record['accepted_tokens']} of {record['draft_tokens']} draft tokens accepted")
        output.aside(" · ".join(said))

    return show


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens. Raises UsageError."""
    what = f"cannot listen on {host}, port {port}"
    with told_as(UsageError, what, hint="use another --port, 0 for any free one"):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    with sock:
        with told_as(UsageError, what, hint="use another --port, 0 for any free one"):
            if os.name == "posix":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        yield sock


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    name = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def _is_loopback(host: str) -> bool:
    from edgespec.serve.guard import is_loopback

    return is_loopback(host)


for _param in serve.params:
    if isinstance(_param, Option) and _param.section not in ("Server", "Output"):
        _param.hidden = _param.name not in SHOWN
