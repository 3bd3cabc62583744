"""Ray, which only this module imports: join a cluster or start one, without output on the terminal."""

from __future__ import annotations

import importlib
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, TypedDict, TypeVar
from urllib.parse import urlsplit

from edgespec.errors import GenerationError, UsageError

CLIENT_PORT = 10001  # of Ray Client
REACH_S = 10.0
OBJECT_STORE = 100 * 2**20  # bytes, for a cluster that is started here; rows and answers are small
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors that reserve no GPU still see the GPUs
}


def checked_address(over: str) -> str:
    """Return the address in the value of `--over`, "" for the cluster that this machine belongs to.

    Raises UsageError, also if Ray is not installed.
    """
    found = re.fullmatch(r"ray(?:://([\w.-]+|\[[\da-f:.]+\])(?::(\d{1,5}))?)?", over, re.IGNORECASE)
    if found is None:
        hint = "for example --over ray, or --over ray://192.168.1.2:10001"
        raise UsageError(f"{over[:200]!r} is not the address of a cluster", hint=hint)
    host, port = found.groups()
    if any(find_spec(name) is None for name in (["ray", "grpc"] if host else ["ray"])):
        what = f"--over needs Ray{' and its client' if host else ''}, which is not installed"
        package = "ray[client]" if host else "ray"
        raise UsageError(what, hint=f"{sys.executable} -m pip install '{package}>=2.50,<3'")
    return f"ray://{host}:{port or CLIENT_PORT}" if host else ""


Value = TypeVar("Value")


class Node(TypedDict):
    """A node of the cluster, as Ray describes it."""

    NodeID: str
    NodeManagerAddress: str
    Alive: bool
    Resources: dict[str, float]


class Ray:
    """The connection to a cluster. Raises GenerationError if there is no such cluster.

    Attributes:
        api: the module of Ray.
        own_node: the id of the node through which this process is connected.
    """

    def __init__(self, address: str) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        if address:
            _check_reachable(address)
        self._folder = ""
        with _own_signals(), _silence():
            logging.getLogger("ray").setLevel(logging.CRITICAL)
            self.api: Any = importlib.import_module("ray")
            # Ray would print messages of raylets to stdout, where results may be written.
            vars(importlib.import_module("ray._private.worker"))["print_to_stdstream"] = lambda *_, **__: None
            logging.getLogger("ray").setLevel(logging.CRITICAL)
            wants_own = os.environ.get("RAY_ADDRESS") == "local"
            self.is_started_here = not address and (wants_own or not self._has_joined("auto"))
            if address:
                self._has_joined(address)
            if self.is_started_here:
                # A temporary folder instead of the one that all clusters share, so that it can be removed.
                self._folder = tempfile.mkdtemp(prefix="edgespec-ray-")
                _keep_others_out()
                local = {"object_store_memory": OBJECT_STORE, "include_dashboard": False, "_temp_dir": self._folder}
                try:
                    self._init("local", **local)
                except Exception as error:
                    self.close()
                    raise GenerationError("Ray cannot be started", why=_first_line(error)) from error

        self.own_node = str(self.api.get_runtime_context().get_node_id())

    def close(self) -> None:
        """Leave the cluster; it ends if it was started here. All actors of this process end with it."""
        with suppress(Exception):
            self.api.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive."""
        return [node for node in self.api.nodes() if node["Alive"]]

    def call(self, node: str, function: Callable[..., Value], *args: object, timeout_s: float) -> Value:
        """Call a function on a node, which may be busy, and return its result. Raises its errors, and those of Ray."""
        task = self.api.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=self._at(node))
        value: Value = self.api.get(task.remote(*args), timeout=timeout_s)
        return value

    def actor(self, node: str, kind: type, *args: object, cpus: float, gpus: float) -> Any:
        """Start an actor on a node; Ray restarts it there when its process ends."""
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 0}
        return self.api.remote(kind).options(**options, scheduling_strategy=self._at(node)).remote(*args)

    def cancel(self, asked: object) -> None:
        """Cancel what was asked of an actor, if it still runs."""
        with suppress(Exception):
            self.api.cancel(asked)

    def is_final(self, error: Exception) -> bool:
        """True if an actor with this error will not be restarted."""
        return not isinstance(error, self.api.exceptions.ActorUnavailableError | self.api.exceptions.GetTimeoutError)

    def _at(self, node: str) -> object:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def _has_joined(self, address: str) -> bool:
        try:
            self._init(address)
        except ConnectionError as error:
            if address != "auto" or os.environ.get("RAY_ADDRESS"):
                what = f"cannot join the Ray cluster {os.environ['RAY_ADDRESS'] if address == 'auto' else address}"
                hint = "is this machine a node of it, and does it want a token (RAY_AUTH_MODE=token)?"
                raise GenerationError(what, why=_first_line(error), hint=hint) from error
            return False
        except Exception as error:  # Ray's are of many kinds
            raise GenerationError("cannot join the Ray cluster", why=_first_line(error)) from error
        return True

    def _init(self, address: str, **more: object) -> None:
        self.api.init(
            address=address, log_to_driver=False, configure_logging=False, logging_level=logging.CRITICAL, **more
        )


def _keep_others_out() -> None:
    """Set a token for a cluster that is started here, which only its processes know. Otherwise Ray writes a token for
    all clusters of this user into the home folder."""
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _check_reachable(address: str) -> None:
    """Raise GenerationError at once if Ray would wait long for an unreachable cluster."""
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or CLIENT_PORT), REACH_S).close()
    except OSError as error:
        hint = "Ray Client listens there if ray[client] is installed on the head; its port is usually 10001"
        raise GenerationError(f"cannot reach {address}", why=error.strerror or str(error), hint=hint) from error


@contextmanager
def _silence() -> Iterator[None]:
    """Discard stderr, to which Ray writes while it joins; errors are exceptions anyway."""
    nothing, kept = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
