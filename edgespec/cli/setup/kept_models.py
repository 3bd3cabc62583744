"""Models of servers on this machine in place of a model that is loaded now: `--server auto` and `--keep-alive`.

`--keep-alive` starts a server that ends when it was not used for a time. It is a process of its own, so that it
outlives the command and its terminal, and later commands find it as any other server.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from tempfile import TemporaryFile
from time import sleep
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Call
from edgespec.cli.options.generation import MODEL, SPECULATION
from edgespec.cli.setup.running_servers import PLAIN, Loaded, Nearby, private_folder, server_with, servers
from edgespec.cli.setup.servers import VARIABLE, lasting_settings
from edgespec.errors import GenerationError, told_as
from edgespec.files.paths import own_home
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings

if TYPE_CHECKING:
    from edgespec.remote.loaded_model import LoadedModel

LOOK_S = 0.02  # between two looks for a server that starts


def model_of_server(call: Call, settings: LoadSettings) -> LoadedModel | None:
    """Return the model of a server on this machine that gives the same texts; None if it has to be loaded here.

    With --keep-alive a server is started if there is none. A note says which is used. Raises ModelNotFoundError.
    """
    keep_s, output, verify = call.values["keep_alive"], call.output, call.values["verify"]
    why_not = f"texts of --verify {verify} depend on what was drafted before" if verify != "coupled" else ""
    if why_not or call.values["allow_tool"]:
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


def _opened(server: Nearby, loaded: Loaded, wanted: LoadSettings, keep_s: float | None) -> LoadedModel:
    from edgespec.remote.loaded_model import LoadedModel

    plain: dict[str, Any] = {name: value for name, value in PLAIN.items() if getattr(wanted, name) == value}
    settings = LoadSettings(loaded.name, **plain)
    info = replace(loaded.info, model=str(resolve(wanted.model).path))
    model = LoadedModel(server.url, server.key, settings, info, loaded.notes)
    if keep_s and server.kept_s not in (None, keep_s):
        model.keep(keep_s)
    return model


# --- a new server -----------------------------------------------------------------------------------------------------


def _started(call: Call, settings: LoadSettings, keep_s: float) -> tuple[Nearby, Loaded] | None:
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


def _start(settings: LoadSettings, keep_s: float, cancel: CancelFlag, failed: str) -> tuple[Nearby, Loaded]:
    """Return the new server with its model when it is ready. Raises GenerationError, OSError."""
    key, folder = secrets.token_urlsafe(32), private_folder()
    home = own_home()
    with TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edgespec", "serve", *_arguments(settings), f"--keep-alive={keep_s}s"],
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
    for option in (option for option in (*MODEL, *SPECULATION) if option.name in given):
        value, name = given[str(option.name)], max(option.opts, key=len)
        if isinstance(value, bool):
            yield from [name] if value else option.secondary_opts
        elif option.default is not None or value != usual[str(option.name)]:  # else the value is up to the program
            yield from (f"{name}={each}" for each in (value if option.multiple else [value]))
