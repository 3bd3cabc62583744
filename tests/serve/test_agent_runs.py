"""Runs of coding agents on thinking models: several answers with calls of tools, whose reasoning comes back.

The requests are shaped as recorded ones, and the models say given texts through the real routes, readers and chat
templates. Within a task, each prompt continues the one before it, so that nothing is processed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

import pytest
from coding_agents import AGENTS, Agent, Read
from families import FAMILIES, Family, Turn
from scripted import ScriptedWorker, write_marked
from serving import Serving, serving

from edgespec.runtime.worker import Worker

pytestmark = [pytest.mark.native, pytest.mark.cli]

CONTENT = 'def f(x):\n\treturn x < 2 and "é\\n"\n'
TURNS = (
    Turn("The file is new.", "I will write it.", (("write", {"path": "a.py", "content": CONTENT, "lines": 2}),)),
    Turn("Now both files.\nFirst a.py.", "", (("read", {"path": "a.py"}), ("read", {"path": "b.py"}))),
    Turn("All is done.", "I have written a.py."),
)
LATER = Turn("There is no more.", "Nothing.")
RESULTS = ("Wrote 2 lines.", CONTENT + "(end)")


class Scripted:
    """A server whose model says the texts in `script`."""

    def __init__(self, server: Serving, worker: ScriptedWorker, family: Family, script: list[str]) -> None:
        self.server, self.worker, self.family, self.script = server, worker, family, script

    def answer(self, agent: Agent, text: str, *, stream: bool) -> tuple[Read, str]:
        """Return the answer to the agent's next request, in which the model says `text`, and its prompt."""
        self.script.append(text)
        with self.server.client(headers=agent.headers) as client:
            response = client.post(agent.path, json=agent.body() | {"stream": stream})
        assert response.status_code == 200, response.text
        lines = response.text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return agent.read(agent.whole(events) if stream else response.json()), self.worker.prompts[-1]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    family, script = FAMILIES[request.param], list[str]()
    file = tmp_path_factory.mktemp("family") / "model.gguf"
    write_marked(file, family.template, family.control, family.added)
    worker = ScriptedWorker(file, lambda _: script.pop(0))
    with serving(cast("Worker", worker)) as server:
        yield Scripted(server, worker, family, script)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", AGENTS)
def test_a_run_keeps_reasoning_and_calls(model: Scripted, name: str, stream: bool) -> None:
    agent, family = AGENTS[name](), model.family
    turns = [Turn(turn.thought, turn.text, turn.calls[: family.n_calls]) for turn in TURNS]
    agent.ask("Write a.py, and show it.")
    expected, n_before = "", 0
    for turn in turns:
        read, prompt = model.answer(agent, family.written(turn, n_before), stream=stream)
        assert (read.thought, read.text) == (turn.thought if agent.shows_reasoning else "", turn.text)
        assert [(name, given) for _, name, given in read.calls] == [*turn.calls]
        assert read.ended == agent.ends[not turn.calls]
        assert not expected or prompt == expected
        if turn.calls:
            results = RESULTS[: len(turn.calls)]
            agent.reply([(id, result) for (id, *_), result in zip(read.calls, results, strict=True)])
            expected = prompt + family.shown(turn, n_before) + family.results(turn, results, n_before)
        n_before += len(turn.calls)

    agent.ask("What else?")
    read, prompt = model.answer(agent, family.written(LATER, n_before), stream=stream)
    assert (read.text, read.calls, read.ended) == (LATER.text, [], agent.ends[1])
    assert not any(turn.thought in prompt for turn in turns)
    said = ("a coding agent.", "The folder", "show it.", turns[0].text, "Wrote 2", turns[-1].text, "What else?")
    places = [prompt.index(text) for text in said if text != turns[0].text or family.sent is None]
    assert places == sorted(places)
    assert "[write][read]" in prompt
