"""Models of servers and cluster nodes in place of a model of this process: `--server`, `--keep-alive` and `--over`.

`--keep-alive` starts a server that ends when it was not used for a time. It is a separate process, so that it outlives
the command and its terminal, and later commands find it as any other server.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from tempfile import TemporaryFile
from time import sleep
from typing import TYPE_CHECKING, Any

from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Call, Options
from edgespec.cli.options.common import Option, option
from edgespec.cli.options.shared import MODEL, SPECULATION
from edgespec.cli.setup.models import settings_of_model
from edgespec.cli.setup.running_servers import (
    PLAIN,
    Loaded,
    RunningServer,
    lasting_settings,
    private_folder,
    server_with,
    servers,
)
from edgespec.cli.terminal.output import Output
from edgespec.core.verify import VerifyRule
from edgespec.errors import GenerationError, LostError, UsageError, told_as
from edgespec.files.paths import own_home
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings, Request

if TYPE_CHECKING:
    from edgespec.events import Progress
    from edgespec.llm.fleet import Fleet
    from edgespec.remote.loaded_model import LoadedModel
    from edgespec.remote.model import RemoteModel

VARIABLE = "EDGESPEC_API_KEY"
LOOK_S = 0.02  # between two looks for a server that starts
DRAFTING = ("spec_type", "pace", "spec_draft_n_max")
SENT = ("model", "verify", *DRAFTING)
"""The options of loading and drafting that are sent with each request."""

OVER = option(
    "Server", "--over", "over", metavar="ray[://HOST:PORT]", advanced=True,
    help="Answer on the nodes of a Ray cluster: this machine's cluster, a new one, or the cluster at an address.",
)  # fmt: skip


def server_option(help: str, *, multiple: bool = False) -> Option:
    """Return the option `--server`."""
    return option("Server", "--server", metavar="URL", multiple=multiple, help=f"{help} {VARIABLE} is its key.")


def check_options(call: Call[Options]) -> None:
    """Refuse typed options that have no effect with a server. Raises UsageError."""
    values = call.ctx.params
    idle = [
        max((*each.opts, *each.secondary_opts) if values[str(each.name)] is not False else each.secondary_opts, key=len)
        for each in call.typed_options()
        if each.section in ("Model", "Speculation") and each.name not in SENT
    ]
    if idle:
        raise UsageError(
            f"{', '.join(idle)} cannot be combined with --server",
            why="the server has loaded its model already",
            hint="these are options of 'edgespec serve'",
        )


def open_servers(
    call: Call[Options], urls: Sequence[str], load: LoadSettings, *, also: Sequence[str] = ()
) -> list[RemoteModel]:
    """Open the model of -m, one of `also`, or the first model, on each server that can be reached.

    Options that the user has not set become those of the first server. Raises EdgespecError.
    """
    from edgespec.remote.connection import base_url
    from edgespec.remote.model import RemoteModel

    drafting: dict[str, Any] = {name: getattr(load, name) for name in DRAFTING}
    settings = LoadSettings(load.model if call.is_typed("model") else "", **drafting)
    key, found, lost = _key(), list[RemoteModel](), list[LostError]()
    with ExitStack() as opened:
        for url in dict.fromkeys(map(base_url, urls)):
            try:
                found.append(opened.enter_context(RemoteModel(url, key, settings, also=also)))
            except LostError as away:
                lost.append(away)
        if not found:
            raise lost[0]
        opened.pop_all()
    for error in lost:
        call.output.note(f"{error.what}: continuing without this server")
    name = found[0].settings.model
    defaults = {name: value for name, value in found[0].own_settings.items() if call.is_unset(name)}
    call.change({"model": name} | settings_of_model(call, name) | defaults)
    return found


def opener(url: str) -> Callable[[LoadSettings, Progress | None, CancelFlag | None], RemoteModel]:
    """Return a function that opens models of a server for a chat."""
    from edgespec.remote.model import RemoteModel

    key = _key()
    return lambda settings, progress, cancel: RemoteModel(url, key, settings, cancel)


def _key() -> str:
    from edgespec.remote.connection import checked_key

    key = os.environ.get(VARIABLE, "")
    return checked_key(key, VARIABLE) if key else ""


# --- running servers of this user -------------------------------------------------------------------------------------


def model_of_server(
    call: Call[Options], settings: LoadSettings, verify: VerifyRule, keep_s: float | None, *, uses_tools: bool
) -> LoadedModel | None:
    """Return the model of a server on this machine that gives the same texts; None if it has to be loaded here.

    A server that keeps it for `keep_s` is started if there is none. A note says which is used. Raises
    ModelNotFoundError.
    """
    output = call.output
    why_not = f"texts of --verify {verify} depend on what was drafted before" if verify != "coupled" else ""
    if why_not or uses_tools:
        output.note(f"loading {settings.model}: {why_not or 'tools need a model in this process'}")
        return None
    lasting = lasting_settings(settings)
    found = server_with(lasting)
    if found is not None:
        output.note(f"using the server on port {found[0].port}, which has {found[1].name} loaded")
    elif keep_s:
        output.note(f"loading {settings.model}, to keep it loaded after the answer")
        found = _started(call, lasting, keep_s)
    else:
        output.note(f"loading {settings.model}: no server of yours has loaded it with these settings")
    return _opened(*found, settings, keep_s) if found else None


def _opened(server: RunningServer, loaded: Loaded, wanted: LoadSettings, keep_s: float | None) -> LoadedModel:
    from edgespec.remote.loaded_model import LoadedModel

    plain: dict[str, Any] = {name: value for name, value in PLAIN.items() if getattr(wanted, name) == value}
    settings = LoadSettings(loaded.name, **plain)
    info = replace(loaded.info, model=str(resolve(wanted.model).path))
    model = LoadedModel(server.url, server.key, settings, info, loaded.notes)
    if keep_s and server.kept_s not in (None, keep_s):
        model.keep(keep_s)
    return model


# --- a new server -----------------------------------------------------------------------------------------------------


def _started(call: Call[Options], settings: LoadSettings, keep_s: float) -> tuple[RunningServer, Loaded] | None:
    """Start a server with this model. If that fails, a note gives the reason."""
    failed = f"{settings.model} cannot be kept loaded"
    try:
        with call.cancelling() as cancel, call.output.showing_progress(), told_as(GenerationError, failed):
            call.output.progress(f"loading {settings.model}", None)
            with _alone(cancel):  # another call may start the same server at this moment
                return server_with(settings) or _start(settings, keep_s, cancel, failed)
    except GenerationError as error:
        call.interrupts.raise_if_received()
        call.output.note(error.line)
        return None


@contextmanager
def _alone(cancel: CancelFlag) -> Iterator[None]:
    """Wait until no other command of this user starts a server, or until `cancel` is set. Raises OSError."""
    from filelock import FileLock, Timeout

    lock = FileLock(private_folder() / "start.lock", mode=0o600)
    while not (lock.is_locked or cancel.is_set()):
        try:
            lock.acquire(timeout=LOOK_S)
        except Timeout:
            continue
    try:
        yield
    finally:
        lock.release()


def _start(settings: LoadSettings, keep_s: float, cancel: CancelFlag, failed: str) -> tuple[RunningServer, Loaded]:
    """Return the new server with its model when it is ready. Raises GenerationError, OSError."""
    key, folder = secrets.token_urlsafe(32), private_folder()
    home = own_home()
    with TemporaryFile() as said:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "edgespec",
                "serve",
                *_arguments(settings),
                f"--keep-alive={keep_s}s",
                "--no-page",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            cwd=folder.anchor,  # it keeps no folder in use, and finds no edgespec.toml, whose settings would differ
            # Other users cannot see the key there. The folder may be relative to the working folder.
            env=os.environ | {VARIABLE: key} | ({"EDGESPEC_HOME": str(home)} if home else {}),
            **_detached(),
        )
        is_ready = False
        while process.poll() is None and not (is_ready or cancel.is_set()):
            sleep(LOOK_S)
            is_ready = any(server.key == key for server in servers())
        if is_ready and (found := server_with(settings)):
            process.returncode = 0  # it continues, about which Python would warn
            return found
        process.terminate()
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    usual = "settings in config.toml change how it is loaded" if is_ready else "the server has ended"
    raise GenerationError(failed, why=lines[0].removeprefix("edgespec: ") if lines else usual)


def _detached() -> Mapping[str, Any]:
    """Return how to start a process that outlives the terminal, and that Ctrl-C there does not stop."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _arguments(settings: LoadSettings) -> Iterator[str]:
    """Yield the options of `serve` that load a model with these settings; they override configuration files."""
    yield from ("--quiet", "--only", "--port=0", f"--parallel={settings.sequences}")
    given, usual = asdict(settings), asdict(LoadSettings(""))
    for each in (each for each in (*MODEL, *SPECULATION) if each.name in given):
        value, name = given[str(each.name)], max(each.opts, key=len)
        if isinstance(value, bool):
            yield from [name] if value else each.secondary_opts
        elif each.default is not None or value != usual[str(each.name)]:  # else the value is up to the program
            yield from (f"{name}={item}" for item in (value if each.multiple else [value]))


# --- cluster nodes ----------------------------------------------------------------------------------------------------


def check_over(over: str, servers: Sequence[str], rpc: Sequence[str]) -> None:
    """Raise UsageError if the value is not a cluster, cannot be combined with other options, or Ray is missing."""
    if servers:
        raise UsageError("--over and --server cannot be combined", hint="use one of them")
    if rpc:
        why = "an RPC worker serves one program at a time, and each node runs one"
        raise UsageError("--over and --rpc cannot be combined", why=why, hint="use one of them")
    from edgespec.cluster.library import checked_address

    checked_address(over)


def open_nodes(
    over: str,
    settings: LoadSettings,
    depend_on: Mapping[str, object],
    asked: Request,
    output: Output,
    cancel: CancelFlag,
    *,
    may_download: bool,
) -> Fleet:
    """Load the model on the nodes, and return once one node has loaded it. Raises EdgespecError."""
    from edgespec.cli.setup.job_models import fleet_of
    from edgespec.cluster.library import Ray, checked_address
    from edgespec.cluster.nodes import Nodes

    with output.showing_progress():
        output.progress("joining the cluster", None)
        ray = Ray(checked_address(over))
        nodes = Nodes(ray, lasting_settings(settings), depend_on, may_download=may_download)
        try:
            if ray.is_started_here:
                output.note("this machine belongs to no Ray cluster; starting one")
            output.progress("loading the model on the nodes", None)
            found = nodes.first(cancel)
        except BaseException:
            nodes.close()
            raise
    return fleet_of(found, asked, output, kind="node", recruits=nodes, notes=nodes.notes)
