"""The nodes of a cluster: each is checked, gets an actor or one per GPU, and becomes a member of a fleet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from time import sleep
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.cluster.actor import Actor, ActorReply, survey
from edgespec.cluster.library import Node, Ray, Value
from edgespec.errors import EdgespecError, GenerationError, LostError, ModelNotFoundError, UsageError
from edgespec.events import TokenEvent
from edgespec.llm.fleet import POLL_S, Arrived, started
from edgespec.llm.info import ModelInfo
from edgespec.llm.notes import Notes
from edgespec.models.names.spec import own_settings
from edgespec.runtime.worker import LoadingStoppedError
from edgespec.settings import LoadSettings, Request

LOOK_S = 1.0  # between looks for new nodes
SURVEY_S = 120.0  # for a node to report its properties
PLACED_S = 15.0  # before a note says that an actor waits for CPUs
RETRY_S = 0.5  # before an actor that restarts is asked again
PATIENCE_S = 30.0  # for another node to join, once all are lost
GRACE_S = 4.0  # for workers to save their measurements


class Nodes(Closable):
    """The members of a cluster, while nodes join and leave.

    `depend_on` has the properties on this machine that texts depend on; a node where they differ is refused, with a
    note. Missing models are downloaded with `may_download`.
    """

    def __init__(
        self, ray: Ray, settings: LoadSettings, depend_on: Mapping[str, object], *, may_download: bool
    ) -> None:
        self.notes = Notes()
        self.ray, self.depend_on = ray, dict(depend_on)
        self.settings, self._may_download = settings, may_download
        self._joined: deque[NodeMember] = deque()
        self._members: set[NodeMember] = set()
        self._names: dict[str, str] = {}
        self._refusals: list[EdgespecError] = []
        self._n_coming = 0
        self._build = ""
        self._lock = threading.Lock()
        self._alive: set[str] = set()
        self._has_looked, self.is_closed, self.is_cut_off = False, False, False
        threading.Thread(target=self._look_out, name="nodes", daemon=True).start()

    def close(self) -> None:
        """End all actors, and leave the cluster."""
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(Exception):
            closing = [member.actor.close.remote() for member in [*self._members]]
            self.ray.api.wait(closing, num_returns=len(closing), timeout=GRACE_S) if closing else None
        for member in [*self._members]:
            member.close()
        self.ray.close()

    @property
    def are_coming(self) -> bool:
        """True if a node is being prepared."""
        return bool(self._joined) or (self._n_coming > 0 and not self.is_cut_off)

    def are_expected(self, alone_s: float) -> bool:
        """True if a node may still join, after `alone_s` seconds without members."""
        return self.are_coming or (alone_s < PATIENCE_S and not self.is_cut_off)

    def joined(self) -> Sequence[NodeMember]:
        """Return the members that have become ready since the last call."""
        return [self._joined.popleft() for _ in range(len(self._joined))]

    def first(self, cancel: CancelFlag) -> Sequence[NodeMember]:
        """Wait for the first members. Raises LoadingStoppedError, or the error of a node if all were refused."""
        while not (found := self.joined()):
            if cancel.is_set():
                raise LoadingStoppedError("stopped waiting for the cluster")
            if (self._has_looked or self.is_cut_off) and not self.are_coming:
                if not self._refusals:
                    raise GenerationError("the cluster has no node with a CPU", hint="start nodes with: ray start")
                raise self._refusals[0]
            sleep(POLL_S)
        return found

    def note(self, who: str, what: str) -> None:
        """Add a note about a node, once."""
        self.notes.add(f"{who}: {what}")

    # --- new nodes ----------------------------------------------------------------------------------------------------

    def _look_out(self) -> None:
        while not self.is_closed:
            try:
                nodes = self.ray.nodes()
            except Exception as error:  # the cluster has ended, or this process has left it
                if not self.is_closed:
                    self.notes.append(f"the cluster does not answer: {_why(error)}")
                    self.is_cut_off = True
                return
            self._alive = {str(node["NodeID"]) for node in nodes}
            if self.ray.own_node not in self._alive:
                self.notes.append("this machine's own node is lost")
                self.is_cut_off = True
                return
            for node in nodes:
                if node["NodeID"] not in self._names and _size(node, "CPU") >= 1:
                    self._welcome(node)
            self._has_looked = True
            sleep(LOOK_S)

    def _welcome(self, node: Node) -> None:
        id, name = str(node["NodeID"]), f"node {node['NodeManagerAddress']}"
        if name in self._names.values():  # of another node at this address
            name = f"{name} ({id[:6]})"
        self._names[id] = name
        self._prepare(id, name, partial(self._survey, node))

    def has(self, node: str) -> bool:
        """True if a node is alive."""
        return node in self._alive and not self.is_cut_off

    def _prepare(self, node: str, name: str, work: Callable[[str], None]) -> None:
        """Prepare a node, or an actor there, in a separate thread."""
        with self._lock:
            self._n_coming += 1
        started(partial(self._prepared, node, name, work))

    def _prepared(self, node: str, name: str, work: Callable[[str], None]) -> None:
        try:
            work(name)
        except Exception as error:
            if not isinstance(error, EdgespecError):  # Ray raises many kinds
                sleep(2 * LOOK_S)  # until it is known which nodes are alive
                why = _why(error) if self.has(node) else "it has left the cluster"
                error = GenerationError("it cannot be used", why=why)
            if not self.is_closed:
                self._refusals.append(error)
                hint = f" ({error.hint})" if error.hint else ""
                self.note(name, f"not used: {error.line}{hint}")
        finally:
            with self._lock:
                self._n_coming -= 1

    def _survey(self, node: Node, name: str) -> None:
        """Check that the node gives the same texts, and start its actors."""
        id, here = node["NodeID"], metadata.version("edgespec")
        try:  # a function of Python, which exists on every node
            there = self.ray.call(id, metadata.version, "edgespec", timeout_s=SURVEY_S)
        except metadata.PackageNotFoundError as error:
            raise UsageError(f"edgespec is not installed on {name}", hint=f"version {here} is needed there") from error
        if there != here:
            raise UsageError(f"{name} has edgespec {there}", why=f"this machine has {here}", hint="install the same")
        found = self.ray.call(id, survey, self.settings, timeout_s=SURVEY_S).result()
        if found.missing and not self._may_download:
            raise ModelNotFoundError(
                f"{', '.join(found.missing)} is not on {name}",
                hint=f"edgespec pull {' '.join(found.missing)} there, or -y",
            )
        if found.missing:
            self.note(name, f"downloading {', '.join(found.missing)}")
        with self._lock:
            self._build = self._build or found.build
        if found.build != self._build:
            self.note(name, "another build of llama.cpp, or another processor: where two tokens are nearly tied, its"
                            " texts can differ")  # fmt: skip
        gpus = int(_size(node, "GPU")) if found.has_gpu and self.settings.offload[0] != 0 else 0
        cpus = float(int(_size(node, "CPU")) // max(gpus, 1))
        settings = self.settings
        if not settings.threads and 1 <= cpus < found.threads:
            settings = replace(settings, threads=int(cpus))
        for number in range(max(gpus, 1)):
            who = f"{name}, GPU {number}" if gpus > 1 else name
            actor = partial(self.ray.actor, id, Actor, settings, found.missing, cpus=cpus, gpus=min(gpus, 1))
            self._prepare(id, who, partial(self._hire, id, actor))

    def _hire(self, node: str, actor: Callable[[], Any], name: str) -> None:
        """Start an actor, which loads the model."""
        member = NodeMember(self, node, actor(), name)
        self._members.add(member)
        try:
            if not self.ray.api.wait([member.actor.ping.remote()], timeout=PLACED_S)[0]:
                self.note(name, "its actor has not started yet; other jobs of the cluster may use its CPUs")
            member.introduce()
        except BaseException:
            self.dismiss(member)
            raise
        self._joined.append(member)

    def dismiss(self, member: NodeMember) -> None:
        """End an actor."""
        self._members.discard(member)
        with suppress(Exception):
            self.ray.api.kill(member.actor)


class NodeMember:
    """An actor on a node."""

    restarts = False

    def __init__(self, nodes: Nodes, node: str, actor: Any, name: str) -> None:
        self.node, self.actor, self.name, self.info = node, actor, name, ModelInfo("")
        self.settings, self.own_settings = nodes.settings, own_settings(nodes.settings.model)
        self.texts_depend_on: Mapping[str, object] = nodes.depend_on
        self._nodes, self._ray = nodes, nodes.ray

    def close(self) -> None:
        """End the actor."""
        self._nodes.dismiss(self)

    def introduce(self) -> None:
        """Wait until the model is loaded, also while the actor restarts.

        Raises EdgespecError, also if the model differs from the one on this machine, and errors of Ray.
        """
        while True:
            try:
                told: ActorReply[tuple[dict[str, object], ModelInfo]] = self._patiently(self.actor.introduce.remote())
                depend_on, self.info = self._heard(told)
                break
            except Exception as error:
                if isinstance(error, EdgespecError) or self._ray.is_final(error) or self._nodes.is_closed:
                    raise
                sleep(RETRY_S)
        here = self._nodes.depend_on
        name = next((name for name in {**here, **depend_on} if here.get(name) != depend_on.get(name)), None)
        if name is not None:
            why = f"{name} is {depend_on.get(name)!r} there, {here.get(name)!r} here"
            raise UsageError(f"{self.name} would not give the same texts", why=why)

    def _patiently(self, asked: object) -> Any:
        """Return the reply of an actor, and wait for it as long as its node is alive."""
        while not self._ray.api.wait([asked], timeout=LOOK_S)[0]:
            if self._nodes.is_closed or not self._nodes.has(self.node):
                raise LostError("it has left the cluster")
        return self._ray.api.get(asked)

    def check_settings(self, request: Request) -> None:
        """Raise UsageError if the model does not support the settings of a request."""
        self._heard(self._ray.api.get(self.actor.check_settings.remote(request)))

    def begin(self, request: Request, put: Callable[[Arrived], None]) -> Future[None]:
        """Ask for an answer, and pass all its events to `put`."""
        begun: Future[None] = Future()

        def arrived(told: Future[ActorReply[list[TokenEvent]]]) -> None:
            if begun.cancelled():
                return
            try:
                events = self._heard(told.result())
            except EdgespecError as error:
                put(error)
            except Exception as error:
                put(LostError(f"{self.name} was lost in the middle of the answer", why=_why(error)))
            else:
                for event in events:
                    put(event)

        try:
            asked = self.actor.answer.remote(request)
            begun.add_done_callback(lambda done: self._ray.cancel(asked) if done.cancelled() else None)
            asked.future().add_done_callback(arrived)
        except Exception as error:
            put(LostError(f"{self.name} cannot be reached", why=_why(error)))
        return begun

    def recover(self, error: LostError) -> Future[None]:
        """Wait until Ray has restarted the actor, and it has loaded its model."""
        return started(self._recovered)

    def _recovered(self) -> None:
        try:
            self.introduce()
        except EdgespecError:
            raise
        except Exception as error:
            sleep(2 * LOOK_S)  # until it is known which nodes are alive
            why = "its actor has ended" if self._nodes.has(self.node) else "it has left the cluster"
            raise LostError(why) from error

    def _heard(self, told: ActorReply[Value]) -> Value:
        for note in told.notes:
            self._nodes.note(self.name, note)
        return told.result()


def _size(node: Node, resource: str) -> float:
    return float(node["Resources"].get(resource, 0))


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
