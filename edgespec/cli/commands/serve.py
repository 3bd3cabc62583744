"""`edgespec serve`: serve models of this machine to clients of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from edgespec import plugins
from edgespec.cli.options.command import Call, Command
from edgespec.cli.options.common import Option, advanced, flag, option
from edgespec.cli.options.generation import (
    ENDS,
    MODEL,
    SAID,
    SAMPLING,
    SPECULATION,
    SYSTEM,
    TARGET,
    load_settings,
    request,
)
from edgespec.cli.options.types import DURATION, ORIGIN, PARALLEL, Integer, ModelSpec, Number, Text
from edgespec.cli.setup.job_models import open_worker, show_notes
from edgespec.cli.setup.models import answer_as_its_own, default_model, fetch_models
from edgespec.cli.setup.server_file import Presence
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError, told_as
from edgespec.extras import check_extra
from edgespec.llm.info import ModelInfo
from edgespec.runtime.worker import LoadingStoppedError
from edgespec.settings import AUTO_DRAFT, MAX_SEQUENCES, LoadSettings
from edgespec.text.figures import counted
from edgespec.validation import check_load_settings, check_rule, is_loopback

if TYPE_CHECKING:
    from edgespec.serve.guard import Rules
    from edgespec.serve.pool import Offer, Offers

IDLE_MINUTES = 30.0  # for models that are not named by -m
NAMED = 8  # maximum number of other models that are named at the start
OPEN_FILES = 8192
COMMON = ("model", "ctx_size", "draft_model", "cache_ram")
"""The shared options that `--help` lists. The others work too, also in configuration files."""


# fmt: off
SERVER = [
    option("Server", "--host", type=Text(), default="127.0.0.1", help="Address to listen on."),
    option("Server", "--port", type=Integer(0, 65535), default=8080, help="Port to listen on. 0: any free port."),
    option(
        "Server", "--api-key", type=Text(), metavar="KEY", envvar="EDGESPEC_API_KEY",
        help="Key that clients must send; required to listen beyond this machine. EDGESPEC_API_KEY is safer: other "
        "users of this machine can see the arguments of processes.",
    ),
    option(
        "Server", "--allow-host", "hosts", type=Text(), multiple=True, metavar="NAME",
        help="Host name of this server that clients may use in addition to localhost and addresses. Repeatable.",
    ),
    option(
        "Server", "--cors", "origins", type=ORIGIN, multiple=True, metavar="ORIGIN",
        help="Allow web pages and extensions of ORIGIN to use this server: https://example.org, http://localhost:*, "
        "app://obsidian.md, vscode-webview://*, or * for all. Repeatable.",
    ),
    option(
        "Server", "--models-max", type=Integer(1, 1024), default=4,
        help="Maximum number of loaded models; the least recently used one is unloaded for another.",
    ),
    option(
        "Server", "--idle-unload", type=Number(0), metavar="MINUTES",
        show_default=f"{IDLE_MINUTES:.0f}, but never the models of -m",
        help="Unload models that were not used for this time. 0: never.",
    ),
    option(
        "Server", "--keep-alive", type=DURATION, metavar="TIME",
        help="End the server after TIME (10m, 1h30m) without a request. 'run --keep-alive' starts such servers.",
    ),
    option("Server", "--only", is_flag=True, help="Serve the models of -m, and no others of this machine."),
    option(
        "Server", "--parallel", type=PARALLEL, default=4, metavar="auto|N",
        help=f"Answers of a model to decode together, at most {MAX_SEQUENCES}. auto: up to 16, as memory allows.",
    ),
    option(
        "Server", "--queue", type=Integer(0), default=256,
        help="Requests that may wait for a model; more are refused with status 503.",
    ),
]

MODELS = Option(
    "-m", "--model", section="Model", type=ModelSpec(), metavar="MODEL", show_default="smollm2", multiple=True,
    help="Model: a GGUF file, a name of 'edgespec ls --catalog', a Hugging Face repository, or 'demo'. Repeatable: the "
    "first model is loaded at once, the others when a request names them.",
)

JSON = flag("--json", "as_json", help="Print events as lines of JSON: requests, and models loaded and unloaded.")
# fmt: on

SHARED = [SYSTEM, MODELS, *(each for each in MODEL if each is not TARGET), *SPECULATION, *SAMPLING, *ENDS]
OPTIONS = [*SERVER, *(each if each.name in COMMON else advanced(each) for each in SHARED), JSON, *SAID]


@click.command(cls=Command, params=OPTIONS)
def serve(call: Call) -> None:
    """Serve models to clients of OpenAI's and Anthropic's APIs.

    A request names its model: one of -m, or another model that 'edgespec ls' lists. Requests never download models.
    The options of 'edgespec run' for sampling and drafting (--help-all) are defaults for requests. The first Ctrl-C
    lets running answers finish, the second one aborts them.
    """
    check_extra("serve", "the server")
    values = call.values
    if not values["api_key"] and not is_loopback(values["host"]):
        raise UsageError(
            f"listening on {values['host']} needs a key",
            why="anyone on the network could use the server",
            hint="set EDGESPEC_API_KEY (or --api-key), or listen on 127.0.0.1",
        )
    with _listening(values["host"], values["port"]) as sock:  # fails before a model is loaded
        specs = list(dict.fromkeys(values["model"])) or [default_model(call)]
        alone = values["strict"] and call.is_unset("parallel")
        values["sequences"] = 1 if alone else values["parallel"]
        settings = settings_for(specs, replace(load_settings(values | {"model": specs[0]}), embeds=True))
        for each in settings:
            fetch_models(call, each)
            check_load_settings(each)
            check_rule(each, values["verify"])
        models = Offered(call, settings)
        try:
            _run(call, sock, models)
        except LoadingStoppedError:
            call.interrupts.raise_if_received()


# --- the models -----------------------------------------------------------------------------------------------------


class Offered:
    """The models of -m (`named`, by spec), and the other models of this machine, which have the settings of the first
    model without its draft model, corpus and workers. Raises UsageError if two models have the same name."""

    def __init__(self, call: Call, settings: Sequence[LoadSettings]) -> None:
        from edgespec.serve.offers import name_for

        self._call = call
        self.named: dict[str, Offer] = {}
        for each in settings:
            name = name_for(each.model)
            if any(name == other.name for other in self.named.values()):
                raise UsageError(f"two models are called {name}", why="requests could not tell them apart")
            keep_s, minutes = call.values["keep_alive"], call.values["idle_unload"]
            self.named[each.model] = self._offer(name, each, keep_s / 60 if keep_s else minutes)

    def look(self) -> Offers:
        """Return all models that requests can name now. Can be called from any thread."""
        from edgespec.serve.offers import offers_here

        return offers_here(self.named, None if self._call.values["only"] else self._another)

    def _another(self, name: str, spec: str) -> Offer:
        first, minutes = next(iter(self.named.values())).settings, self._call.values["idle_unload"]
        return self._offer(name, replace(_shared(first), model=spec), IDLE_MINUTES if minutes is None else minutes)

    def _offer(self, name: str, settings: LoadSettings, minutes: float | None) -> Offer:
        from edgespec.serve.pool import Offer

        values = self._call.values | {"model": settings.model}
        answer_as_its_own(self._call.ctx, values)
        defaults = request(values | {"system": None}, "", chat=False, seed=0)
        seed = None if values["seed"] < 0 else values["seed"]
        return Offer(name, settings, defaults, 60 * minutes if minutes else None, values["system"] or "", seed)


def settings_for(specs: Sequence[str], first: LoadSettings) -> list[LoadSettings]:
    """Return the settings for each model. A draft model, a corpus and adapters belong to the first model only, and an
    RPC worker can hold layers of one model only."""
    return [first, *(replace(_shared(first), model=spec) for spec in specs[1:])]


def _shared(first: LoadSettings) -> LoadSettings:
    return replace(first, draft_model=AUTO_DRAFT if first.draft_model else None, corpus=None, rpc=(), lora=())


# --- the server -----------------------------------------------------------------------------------------------------


def _run(call: Call, sock: socket.socket, models: Offered) -> None:
    from edgespec.serve.app import make_app
    from edgespec.serve.guard import Rules
    from edgespec.serve.http import BACKLOG, uvicorn_server
    from edgespec.serve.pool import Pool

    values, output = call.values, call.output
    named = list(models.named.values())
    with call.cancelling() as cancel, ThreadPoolExecutor(1) as threads:
        here = threads.submit(models.look)  # while the first model is loaded
        worker = open_worker(named[0].settings, output, cancel)
    url = _url(values["host"], sock)
    beyond = values["api_key"] and not is_loopback(values["host"]) and not values["hosts"]
    rules = Rules(values["api_key"] or "", None if beyond else values["hosts"], values["origins"])
    show = _shower(output, as_json=values["as_json"])

    def open_pool() -> Pool:
        limits = {"max_loaded": values["models_max"], "max_waiting": values["queue"]}

        def tell(record: Mapping[str, Any]) -> None:
            show(record)
            presence.tell(pool, record["event"])

        pool = Pool(named, models.look, output.note, tell, **limits)
        pool.lets_keep = bool(values["keep_alive"])
        pool.adopt(named[0].name, worker)
        presence.tell(pool, "ready")
        for name in plugins.added(plugins.FORMATS):
            output.note(f"the format {name} is that of the package {plugins.package_of(plugins.FORMATS, name)}")
        return pool

    def end() -> None:
        server.should_exit = True

    with (
        output.in_background(as_json=values["as_json"]),
        worker,
        Presence(url, values["api_key"] or "", values["keep_alive"], end) as presence,
    ):
        worker.check_settings(named[0].defaults)
        server = uvicorn_server(make_app(open_pool, rules, show), output.warn)
        show_notes(worker, output)
        _allow_connections()
        with _told(values["host"], values["port"]):  # another program may have taken the port meanwhile
            sock.listen(BACKLOG)  # before the line that says so: clients may connect as soon as they read it
        names = dict.fromkeys(offer.name for offer in (*named, *here.result().values()))
        example = _example(named[0].name, worker.info)
        _greet(output, url, [*names], len(named), rules, example, as_json=values["as_json"])

        def stop() -> None:
            if server.server_state.tasks:  # of requests without a whole response
                output.note("finishing running answers; Ctrl-C again aborts")
            presence.close()
            end()
            if values["as_json"]:
                output.json({"event": "stopping"})

        with call.interrupts.calling(stop):
            server.run([sock])
        if values["as_json"]:
            output.json({"event": "stopped"})


def _example(name: str, info: ModelInfo) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request for a model."""
    if not info.pooling:
        return "chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
    if info.pooling == "rank":
        return "rerank", {"model": name, "query": "Who is there?", "documents": ["Hello!"]}
    return "embeddings", {"model": name, "input": "Hello!"}


def _greet(
    output: Output,
    url: str,
    names: list[str],
    n_named: int,
    rules: Rules,
    example: tuple[str, dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Print how to use the server, with an example. The first `n_named` models of `names` are those of -m."""
    if as_json:
        output.json({"event": "ready", "url": url, "models": names[:n_named], "others": names[n_named:]})
        return
    key = " -H 'Authorization: Bearer KEY'" if rules.api_key else ""
    path, body = example
    output.line(f"{url}/v1 serves {', '.join(names[:n_named])}; try:")
    output.line(f"  curl {url}/v1/{path}{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'")
    if others := names[n_named:]:
        more = f", and {len(others) - NAMED} more (/v1/models)" if len(others) > NAMED else ""
        output.line(f"Loaded when a request names them: {', '.join(others[:NAMED])}{more}")


def _shower(output: Output, *, as_json: bool) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that shows the record of a finished request, or of a model that was loaded or unloaded."""

    def show(record: Mapping[str, Any]) -> None:
        if as_json:
            output.json(record)
            return
        if record["event"] != "request":
            if record["event"] != "died":  # a note reports that
                more = f"in {record['seconds']:.1f} s" if "seconds" in record else f"({record['why']})"
                output.note(f"{record['model']} {record['event']} {more}")
            return
        for note in record.get("notes", ()):
            output.note(note)
        if output.quiet or record["path"] in ("/health", "/metrics"):
            return
        parts = [f"{record['method']} {record['path']} {record['status']}", f"{record['seconds']:.2f} s"]
        if "tokens" in record:
            parts.append(f"{record['prompt_tokens']} + {record['tokens']} tokens")
            if record["draft_tokens"]:
                parts.append(f"{record['accepted_tokens']} of {record['draft_tokens']} draft tokens accepted")
        if "texts" in record:
            parts.append(f"{counted(record['texts'], 'text')}, {record.get('prompt_tokens', 0)} tokens")
        output.aside(" · ".join(parts))

    return show


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that is bound to this address. Raises UsageError."""
    with _told(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    with sock:
        with _told(host, port):
            if os.name == "posix":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        yield sock


def _told(host: str, port: int) -> AbstractContextManager[None]:
    """Raise UsageError for an OSError within this block."""
    return told_as(UsageError, f"cannot listen on {host}, port {port}", hint="use another --port, 0 for any free one")


def _allow_connections() -> None:
    """Raise the limit of open files, which connections are."""
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    name = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"
