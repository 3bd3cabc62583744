"""The actor on a node: its answers are those of a worker, also after a worker has died."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psutil
import pytest
from endless import CTX_SIZE, ENDLESS

from edgespec.cluster.actor import Actor, Survey, survey
from edgespec.errors import LostError, ModelNotFoundError, UsageError
from edgespec.events import TokenEvent
from edgespec.gguf_file.model_check import check_model
from edgespec.models.names.spec import resolve
from edgespec.models.text_facts import text_facts
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Request

DEMO = LoadSettings("demo", threads=1, sequences=2, store=False, ctx_size=CTX_SIZE)
ASKED = [Request(f"def f{number}(", max_tokens=12, seed=number, logprobs=1) for number in range(4)]


def plain(events: list[TokenEvent]) -> list[TokenEvent]:
    """Without what depends on time."""
    return [replace(event, stats=None, from_draft=False, source="", round=0, proposed=0) for event in events]


def test_answers_are_those_of_a_worker_and_survive_its_death() -> None:
    with Worker(DEMO) as worker:
        wanted = [plain(list(worker.submit(request))) for request in ASKED]

    async def asked() -> None:
        actor, before = Actor(DEMO), set(psutil.Process().children())
        try:
            depend_on, info = (await actor.introduce()).result()
            assert (depend_on, info.sequences) == (text_facts(check_model(resolve("demo").path), DEMO), 2)
            told = await asyncio.gather(*map(actor.answer, ASKED))
            assert [plain(each.result()) for each in told] == wanted
            with pytest.raises(UsageError):
                (await actor.answer(Request("x", max_tokens=-5))).result()

            long = asyncio.create_task(actor.answer(ENDLESS))
            await actor.ping()
            for process in set(psutil.Process().children()) - before:
                if "--multiprocessing-fork" in process.cmdline():
                    process.kill()
            while not (later := await actor.check_settings(ASKED[0])).notes:
                await asyncio.sleep(0.1)
            assert [note for note in later.notes if note.endswith("; restarting it")]
            long.cancel()
            assert plain((await actor.answer(ASKED[0])).result()) == wanted[0]
        finally:
            await actor.close()

    asyncio.run(asked())


def test_a_node_tells_what_it_lacks() -> None:
    found: Survey = survey(DEMO).result()
    assert found.missing == ()
    assert "llama-cpp-python" in found.build
    assert survey(replace(DEMO, model="hf:nobody/nothing:Q4_K_M", draft_model="auto")).result().missing == (
        "hf:nobody/nothing:Q4_K_M",
    )
    with pytest.raises(ModelNotFoundError):
        survey(replace(DEMO, model="/nowhere/model.gguf")).result()


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_the_end_of_a_member_not_of_the_row() -> None:
    async def asked() -> None:
        actor = Actor(replace(DEMO, model="/nowhere/model.gguf"))
        with pytest.raises(ModelNotFoundError):
            (await actor.introduce()).result()
        with pytest.raises(LostError, match="nowhere"):
            (await actor.answer(ASKED[0])).result()
        await actor.close()

    asyncio.run(asked())
