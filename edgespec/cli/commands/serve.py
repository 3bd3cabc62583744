"""`edgespec serve`: serve models of this machine to clients of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import json
import os
import socket
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec import plugins
from edgespec.cli.options import shared
from edgespec.cli.options.command import Call, Options, command, settings_of, value_of
from edgespec.cli.options.common import Option, advanced, advanced_except, flag, option
from edgespec.cli.options.types import DURATION, ORIGIN, PARALLEL, Integer, ModelSpec, Number, Text
from edgespec.cli.setup.job_models import open_worker
from edgespec.cli.setup.models import default_model, fetch_models, settings_of_model, show_notes
from edgespec.cli.setup.running_servers import Presence
from edgespec.cli.setup.tools import MCP_CONFIG, open_toolbox
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError, told_as
from edgespec.extras import check_extra
from edgespec.llm.info import ModelInfo
from edgespec.runtime.worker import LoadingStoppedError, Worker
from edgespec.settings import AUTO_DRAFT, MAX_SEQUENCES, LoadSettings, Request
from edgespec.text.figures import counted
from edgespec.validation import check_load_settings, check_rule, is_loopback

if TYPE_CHECKING:
    from edgespec.serve.app import Route
    from edgespec.serve.guard import Rules
    from edgespec.serve.pool import Offer, Offers, Pool

IDLE_MINUTES = 30.0  # for models that are not named by -m
NAMED = 8  # maximum number of other models that are named at the start
OPEN_FILES = 8192
Record = Mapping[str, Any]  # of a finished request, or of a model that was loaded or unloaded
COMMON = ("model", "ctx_size", "draft_model", "cache_ram")
"""The shared options that `--help` lists. The others work too, also in configuration files."""


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    host: str = value_of(option("Server", "--host", type=Text(), default="127.0.0.1", help="Address to listen on."))
    port: int = value_of(option(
        "Server", "--port", type=Integer(0, 65535), default=8080, help="Port to listen on. 0: any free port.",
    ))
    api_key: str | None = value_of(option(
        "Server", "--api-key", type=Text(), metavar="KEY", envvar="EDGESPEC_API_KEY",
        help="Key that clients must send; required to listen beyond this machine. EDGESPEC_API_KEY is safer: other "
        "users of this machine can see the arguments of processes.",
    ))
    hosts: tuple[str, ...] = value_of(option(
        "Server", "--allow-host", "hosts", type=Text(), multiple=True, metavar="NAME",
        help="Host name of this server that clients may use in addition to localhost and addresses. Repeatable.",
    ))
    origins: tuple[str, ...] = value_of(option(
        "Server", "--cors", "origins", type=ORIGIN, multiple=True, metavar="ORIGIN",
        help="Allow web pages and extensions of ORIGIN to use this server: https://example.org, http://localhost:*, "
        "app://obsidian.md, vscode-webview://*, or * for all. Repeatable.",
    ))
    models_max: int = value_of(option(
        "Server", "--models-max", type=Integer(1, 1024), default=4,
        help="Maximum number of loaded models; the least recently used one is unloaded for another.",
    ))
    idle_unload: float | None = value_of(option(
        "Server", "--idle-unload", type=Number(0), metavar="MINUTES",
        show_default=f"{IDLE_MINUTES:.0f}, but never the models of -m",
        help="Unload models that were not used for this time. 0: never.",
    ))
    keep_alive: float | None = value_of(option(
        "Server", "--keep-alive", type=DURATION, metavar="TIME",
        help="End the server after TIME (10m, 1h30m) without a request. 'run --keep-alive' starts such servers.",
    ))
    only: bool = value_of(option(
        "Server", "--only", is_flag=True, help="Serve the models of -m, and no others of this machine.",
    ))
    parallel: int = value_of(option(
        "Server", "--parallel", type=PARALLEL, default=4, metavar="auto|N",
        help=f"Answers of a model to decode together, at most {MAX_SEQUENCES}. auto: up to 16, as memory allows.",
    ))
    queue: int = value_of(option(
        "Server", "--queue", type=Integer(0), default=256,
        help="Requests that may wait for a model; more are refused with status 503.",
    ))
    page: bool | None = value_of(option(
        "Server", "--page/--no-page", default=None, show_default="only on this machine",
        help="Serve a page for browsers with your chats, which every client with the key can read and change.",
    ))
    opens: bool = value_of(option("Server", "--open", "opens", is_flag=True, help="Open the page in a browser."))
    mcp_config: Path | None = value_of(advanced(MCP_CONFIG))
    system: str | None = value_of(advanced(shared.SYSTEM))
    model: tuple[str, ...] = value_of(Option(
        "-m", "--model", section="Model", type=ModelSpec(), metavar="MODEL", show_default="smollm2", multiple=True,
        help="Model: a GGUF file, a name of 'edgespec ls --catalog', a Hugging Face repository, or 'demo'. "
        "Repeatable: the first model is loaded at once, the others when a request names them.",
    ))
    load: LoadSettings = settings_of(
        LoadSettings, advanced_except(COMMON, *shared.OF_MODEL, *shared.SPECULATION)
    )
    yes: bool = value_of(advanced(shared.YES))
    answer: Request = settings_of(Request, advanced_except((), *shared.SAMPLING, *shared.ENDS))
    as_json: bool = value_of(flag(
        "--json", "as_json", help="Print events as lines of JSON: requests, and models loaded and unloaded.",
    ))
# fmt: on


@command(ServeOptions, shared.QUIET, shared.VERBOSE)
def serve(call: Call[ServeOptions]) -> None:
    """Serve models to clients of OpenAI's and Anthropic's APIs.

    A request names its model: one of -m, or another model that 'edgespec ls' lists. Requests never download models.
    The options of 'edgespec run' for sampling and drafting (--help-all) are defaults for requests. The first Ctrl-C
    lets running answers finish, the second one aborts them.
    """
    check_extra("serve", "the server")
    options = call.options
    if not options.api_key and not is_loopback(options.host):
        raise UsageError(
            f"listening on {options.host} needs a key",
            why="anyone on the network could use the server",
            hint="set EDGESPEC_API_KEY (or --api-key), or listen on 127.0.0.1",
        )
    with _listening(options.host, options.port) as sock:  # fails before a model is loaded
        specs = list(dict.fromkeys(options.model)) or [default_model(call)]
        sequences = 1 if options.load.strict and call.is_unset("parallel") else options.parallel
        first = replace(options.load, model=specs[0], sequences=sequences, embeds=True)
        settings = settings_for(specs, first)
        for each in settings:
            fetch_models(call, each, yes=options.yes)
            check_load_settings(each)
            check_rule(each, options.answer.verify)
        models = Offered(call, settings)
        try:
            with _page(call) as routes:
                _run(call, sock, models, routes)
        except LoadingStoppedError:
            call.interrupts.raise_if_received()


# --- the models -----------------------------------------------------------------------------------------------------


class Offered:
    """The models of -m (`named`, by spec), and the other models of this machine, which have the settings of the first
    model without its draft model, corpus and workers. Raises UsageError if two models have the same name."""

    def __init__(self, call: Call[ServeOptions], settings: Sequence[LoadSettings]) -> None:
        from edgespec.serve.offers import name_for

        self._call = call
        self.named: dict[str, Offer] = {}
        for each in settings:
            name = name_for(each.model)
            if any(name == other.name for other in self.named.values()):
                raise UsageError(f"two models are called {name}", why="requests could not tell them apart")
            keep_s, minutes = call.options.keep_alive, call.options.idle_unload
            self.named[each.model] = self._offer(name, each, keep_s / 60 if keep_s else minutes)

    def look(self) -> Offers:
        """Return all models that requests can name now. Can be called from any thread."""
        from edgespec.serve.offers import offers_here

        return offers_here(self.named, None if self._call.options.only else self._another)

    def _another(self, name: str, spec: str) -> Offer:
        first, minutes = next(iter(self.named.values())).settings, self._call.options.idle_unload
        return self._offer(name, replace(_shared(first), model=spec), IDLE_MINUTES if minutes is None else minutes)

    def _offer(self, name: str, settings: LoadSettings, minutes: float | None) -> Offer:
        from edgespec.serve.pool import Offer

        options = self._call.options_with(settings_of_model(self._call, settings.model))
        seed = None if options.answer.seed < 0 else options.answer.seed
        defaults = replace(shared.with_texts(options.answer), seed=0)
        return Offer(name, settings, defaults, 60 * minutes if minutes else None, options.system or "", seed)


def settings_for(specs: Sequence[str], first: LoadSettings) -> list[LoadSettings]:
    """Return the settings for each model. A draft model, a corpus and adapters belong to the first model only, and an
    RPC worker can hold layers of one model only."""
    return [first, *(replace(_shared(first), model=spec) for spec in specs[1:])]


def _shared(first: LoadSettings) -> LoadSettings:
    return replace(first, draft_model=AUTO_DRAFT if first.draft_model else None, corpus=None, rpc=(), lora=())


# --- the server -----------------------------------------------------------------------------------------------------


@contextmanager
def _page(call: Call[ServeOptions]) -> Iterator[Sequence[Route]]:
    """Yield the endpoints of the page, or none. Its chats can call tools of --mcp-config, and on a server for this
    machine only those of the user's file, too."""
    options = call.options
    is_here = is_loopback(options.host)
    if not (is_here if options.page is None else options.page):
        yield []
        return
    from edgespec.page.chats import Chats
    from edgespec.page.routes import Page
    from edgespec.tools.toolbox import Toolbox

    has_tools = options.mcp_config is not None or is_here
    tools = open_toolbox(options.mcp_config, call.output.note) if has_tools else nullcontext(Toolbox([]))
    with tools as toolbox, Chats(toolbox, call.output.note) as chats:
        yield Page(chats, has_key=bool(options.api_key)).routes()


def _run(call: Call[ServeOptions], sock: socket.socket, models: Offered, routes: Sequence[Route]) -> None:
    from edgespec.serve.app import make_app
    from edgespec.serve.guard import Rules
    from edgespec.serve.http import BACKLOG, uvicorn_server

    options, output = call.options, call.output
    named = list(models.named.values())
    with call.cancelling() as cancel, ThreadPoolExecutor(1) as threads:
        here = threads.submit(models.look)  # while the first model is loaded
        worker = open_worker(named[0].settings, output, cancel)
    url = _url(options.host, sock)
    beyond = options.api_key and not is_loopback(options.host) and not options.hosts
    rules = Rules(options.api_key or "", None if beyond else options.hosts, options.origins)
    show = _shower(output, as_json=options.as_json)

    def end() -> None:
        server.should_exit = True

    with (
        output.in_background(as_json=options.as_json),
        worker,
        Presence(url, options.api_key or "", options.keep_alive, end) as presence,
    ):
        worker.check_settings(named[0].defaults)
        open_pool = partial(_open_pool, call, models, worker, presence, show)
        server = uvicorn_server(make_app(open_pool, rules, show, routes), output.warn)
        show_notes(worker, output)
        _allow_connections()
        with _told(options.host, options.port):  # another program may have taken the port meanwhile
            sock.listen(BACKLOG)  # before the line that says so: clients may connect as soon as they read it
        names = dict.fromkeys(offer.name for offer in (*named, *here.result().values()))
        example = _example(named[0].name, worker.info)

        def stop() -> None:
            if server.server_state.tasks:  # of requests without a whole response
                output.note("finishing running answers; Ctrl-C again aborts")
            presence.close()
            end()
            if options.as_json:
                output.json({"event": "stopping"})

        with call.interrupts.calling(stop):  # before the address is printed: the next key may be Ctrl-C
            _greet(output, url, [*names], len(named), rules, example, as_json=options.as_json, has_page=bool(routes))
            if options.opens and routes:
                webbrowser.open(url)
            server.run([sock])
        if options.as_json:
            output.json({"event": "stopped"})


def _open_pool(
    call: Call[ServeOptions], models: Offered, worker: Worker, presence: Presence, show: Callable[[Record], None]
) -> Pool:
    """Return the pool of models, of which the first is loaded, and tell other commands of this user about it."""
    from edgespec.serve.pool import Pool

    def tell(record: Record) -> None:
        show(record)
        presence.tell(pool, record["event"])

    options, note = call.options, call.output.note
    limits = {"max_loaded": options.models_max, "max_waiting": options.queue}
    pool = Pool([*models.named.values()], models.look, note, tell, **limits)
    pool.lets_keep = bool(options.keep_alive)
    pool.adopt(next(iter(models.named.values())).name, worker)
    presence.tell(pool, "ready")
    for name in plugins.added(plugins.FORMATS):
        note(f"the format {name} is that of the package {plugins.package_of(plugins.FORMATS, name)}")
    return pool


def _example(name: str, info: ModelInfo) -> tuple[str, dict[str, object]]:
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
    example: tuple[str, dict[str, object]],
    *,
    as_json: bool,
    has_page: bool,
) -> None:
    """Print how to use the server, with an example. The first `n_named` models of `names` are those of -m."""
    if as_json:
        output.json({"event": "ready", "url": url, "models": names[:n_named], "others": names[n_named:]})
        return
    key = " -H 'Authorization: Bearer KEY'" if rules.api_key else ""
    path, body = example
    if has_page:
        output.line(f"Chat in a browser: {url}")
    output.line(f"{url}/v1 serves {', '.join(names[:n_named])}; try:")
    output.line(f"  curl {url}/v1/{path}{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'")
    if others := names[n_named:]:
        more = f", and {len(others) - NAMED} more (/v1/models)" if len(others) > NAMED else ""
        output.line(f"Loaded when a request names them: {', '.join(others[:NAMED])}{more}")


def _shower(output: Output, *, as_json: bool) -> Callable[[Record], None]:
    """Return a function that shows the record of a finished request, or of a model that was loaded or unloaded."""

    def show(record: Record) -> None:
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
        is_of_page = record["method"] == "GET" and record["path"].startswith("/page/")  # dozens, for each start of it
        if output.quiet or is_of_page or record["path"] in ("/health", "/metrics"):
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
