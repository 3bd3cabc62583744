"""Which nodes of a cluster are used, and what is said of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.cancel import CancelFlag
from edgespec.cluster import nodes as module
from edgespec.cluster.actor import ActorReply, Survey
from edgespec.cluster.nodes import Nodes
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, LostError, ModelNotFoundError, UsageError
from edgespec.events import TokenEvent
from edgespec.llm.fleet import Fleet
from edgespec.llm.info import ModelInfo
from edgespec.runtime.worker import LoadingStoppedError
from edgespec.settings import LoadSettings, Request

HERE = {"model": "demo.gguf", "model digest": "abc"}
SURVEY = Survey("build 1", 8, False, ())


class UnavailableError(Exception):
    """An actor is being restarted."""


@dataclass(eq=False)
class Node:
    """A node of the fake cluster. `dies` is the number of answers before its actor ends."""

    id: str
    cpus: float = 8
    gpus: float = 0
    version: str | None = version("edgespec")
    survey: Survey | EdgespecError = SURVEY
    depend_on: Mapping[str, Any] = field(default_factory=lambda: HERE)
    is_alive: bool = True
    dies: int = 10_000
    n_answers: int = 0


class FakeActor:
    """An actor: every method has a `remote`, whose result is a future."""

    def __init__(self, node: Node, settings: LoadSettings) -> None:
        self._node, self.settings, self.is_killed = node, settings, False

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> Any:
            done: Future[Any] = Future()
            try:
                done.set_result(getattr(self, f"do_{name}")(*args))
            except Exception as error:
                done.set_exception(error)
            return SimpleNamespace(future=lambda: done)

        return SimpleNamespace(remote=remote)

    def do_ping(self) -> None: ...

    def do_close(self) -> None: ...

    def do_introduce(self) -> ActorReply[tuple[Mapping[str, object], ModelInfo]]:
        if not self._node.is_alive or self.is_killed:
            raise RuntimeError("The actor died\nits node has died")
        return ActorReply((self._node.depend_on, ModelInfo("tiny", sequences=2)), notes=("slow disk",))

    def do_answer(self, request: Request) -> ActorReply[list[TokenEvent]]:
        self._node.n_answers += 1
        if self._node.n_answers > self._node.dies:
            self._node.is_alive = False
            raise UnavailableError("connection refused")
        return ActorReply([TokenEvent(1, request.prompt), TokenEvent(-1, "", finish_reason="stop", stats=Stats())])


class FakeRay:
    """As much of `edgespec.cluster.library.Ray` as is used."""

    def __init__(self, *found: Node) -> None:
        self.has_own = True
        self.found, self.actors, self.own_node = list(found), list[FakeActor](), "own"
        self.api = SimpleNamespace(
            wait=lambda refs, **_: (refs, []), get=lambda ref: ref.future().result(), kill=self._kill
        )

    def _kill(self, actor: FakeActor) -> None:
        actor.is_killed = True

    def nodes(self) -> list[dict[str, Any]]:
        own = {"NodeID": self.own_node, "NodeManagerAddress": "own", "Resources": {}}
        return [own] * self.has_own + [
            {"NodeID": node.id, "NodeManagerAddress": node.id, "Resources": {"CPU": node.cpus, "GPU": node.gpus}}
            for node in self.found
            if node.is_alive
        ]

    def call(self, node: str, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        found = self._node(node)
        if function.__name__ == "version":
            if found.version is None:
                raise PackageNotFoundError("edgespec")
            return found.version
        return ActorReply(found.survey)

    def actor(self, node: str, kind: type, settings: LoadSettings, missing: Any, *, cpus: float, gpus: float) -> Any:
        self.actors.append(FakeActor(self._node(node), settings))
        return self.actors[-1]

    def cancel(self, asked: Any) -> None: ...

    def is_final(self, error: Exception) -> bool:
        return not isinstance(error, UnavailableError)

    def close(self) -> None: ...

    def _node(self, id: str) -> Node:
        return next(node for node in self.found if node.id == id)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    before = threading.active_count()
    yield
    deadline_s = time.monotonic() + 10  # the threads of closed nodes notice within a poll
    while threading.active_count() > before + 1:
        assert time.monotonic() < deadline_s, threading.enumerate()
        time.sleep(0.01)


def opened(ray: FakeRay, settings: LoadSettings | None = None, *, may_download: bool = False) -> Nodes:
    return Nodes(ray, settings or LoadSettings("demo"), HERE, may_download=may_download)  # type: ignore[arg-type]


def fleet(nodes: Nodes) -> Fleet:
    return Fleet(nodes.first(CancelFlag()), kind="node", recruits=nodes, notes=nodes.notes)


def first(nodes: Nodes) -> list[str]:
    """The names of the members that all nodes make."""
    found = [*nodes.first(CancelFlag())]
    while nodes.are_coming or not (nodes._has_looked or nodes.is_cut_off):
        found += nodes.joined()
    return sorted(member.name for member in [*found, *nodes.joined()])


@pytest.mark.parametrize(
    ("node", "kind", "told"),
    [
        (Node("b", version="0.1"), UsageError, "node b has edgespec 0.1"),
        (Node("b", version=None), UsageError, "edgespec is not installed on node b"),
        (Node("b", survey=ModelNotFoundError("x.gguf was not found")), ModelNotFoundError, "x.gguf was not found"),
        (Node("b", survey=replace(SURVEY, missing=("tiny",))), ModelNotFoundError, "tiny is not on node b"),
        (Node("b", depend_on=HERE | {"model digest": "xyz"}), UsageError, "model digest is 'xyz' there, 'abc' here"),
        (Node("b", cpus=0), GenerationError, "no node with a CPU"),
    ],
)
def test_a_node_that_cannot_give_the_same_texts_is_not_used(node: Node, kind: type, told: str) -> None:
    with opened(FakeRay(node)) as nodes, pytest.raises(kind, match=told):
        nodes.first(CancelFlag())
    node.is_alive = True
    with opened(FakeRay(Node("a"), node)) as nodes:
        assert first(nodes) == ["node a"]
        assert all(note.endswith(": slow disk") or note.startswith("node b: not used: ") for note in nodes.notes)


def test_missing_models_are_downloaded_where_that_is_allowed_and_said() -> None:
    node = Node("a", survey=replace(SURVEY, missing=("tiny",)))
    with opened(FakeRay(node), may_download=True) as nodes:
        assert first(nodes) == ["node a"]
        assert "node a: downloading tiny" in nodes.notes


def test_another_build_is_said() -> None:
    with opened(FakeRay(Node("a"), Node("b", survey=replace(SURVEY, build="build 2")))) as nodes:
        assert first(nodes) == ["node a", "node b"]
        assert [note for note in nodes.notes if "another build of llama.cpp" in note]


@pytest.mark.parametrize(
    ("node", "threads", "names", "each"),
    [
        (Node("a"), 0, ["node a"], 0),
        (Node("a", cpus=2), 0, ["node a"], 2),
        (Node("a", cpus=2), 5, ["node a"], 5),
        (Node("a", gpus=2), 0, ["node a"], 0),
        (Node("a", gpus=2, survey=replace(SURVEY, has_gpu=True)), 0, ["node a, GPU 0", "node a, GPU 1"], 4),
    ],
)
def test_a_node_gets_one_actor_or_one_for_each_gpu(node: Node, threads: int, names: list[str], each: int) -> None:
    ray = FakeRay(node)
    with opened(ray, LoadSettings("demo", threads=threads)) as nodes:
        assert first(nodes) == names
    assert {actor.settings.threads for actor in ray.actors} == {each}
    assert all(actor.is_killed for actor in ray.actors)


def test_rows_of_a_node_that_leaves_go_to_one_that_joins() -> None:
    ray = FakeRay(Node("a", dies=5))
    with (
        opened(ray) as nodes,
        fleet(nodes) as engine,
    ):

        def b_joins_when_a_is_lost() -> None:
            if "node a is lost (it has left the cluster)" in engine.notes and len(ray.found) == 1:
                ray.found.append(Node("b"))

        engine.tell = b_joins_when_a_is_lost
        found = {}
        for index, event in engine.stream(Request(prompt=str(number)) for number in range(30)):
            if isinstance(event, TokenEvent) and not event.is_last:
                found[index] = event.text
        assert found == {number: str(number) for number in range(30)}
        assert [node.id for node in ray.found if node.is_alive] == ["b"]


def test_without_its_own_node_a_job_ends() -> None:
    ray = FakeRay(Node("a", dies=5))
    with (
        opened(ray) as nodes,
        fleet(nodes) as engine,
    ):
        ray.has_own = False
        with pytest.raises(LostError, match="every node is lost"):
            list(engine.stream(Request(prompt=str(number)) for number in range(30)))
        assert "this machine's own node is lost" in engine.notes


def test_waiting_for_nodes_can_be_stopped() -> None:
    cancel = CancelFlag()
    cancel.set()
    with opened(FakeRay()) as nodes, pytest.raises(LoadingStoppedError):
        nodes.first(cancel)
