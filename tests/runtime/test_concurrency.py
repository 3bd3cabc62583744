"""Several readers of one model: they share its steps and its cache, and none notices the others in its text."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from endless import CTX_SIZE, ENDLESS, TOO_LONG

from edgespec.cancel import CancelFlag
from edgespec.engine.sequence import Scheduled, Sequence
from edgespec.errors import GenerationError, UsageError
from edgespec.events import Completion, TokenEvent
from edgespec.llama.context import Context
from edgespec.llama.grammar import GrammarConstraint
from edgespec.llm.stream import Loop, Stream
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import Worker, WorkerDiedError
from edgespec.settings import LoadSettings, Message, Request

SETTINGS = LoadSettings("demo", sequences=4, ctx_size=CTX_SIZE, store=False, threads=1)
SYSTEM = Message("system", "You answer questions about the Python library. " * 8)
PROMPTS = ["def fibonacci(n):", "import os\n", "class Stack:\n", "x = [", "for line in", "while True:"]


@pytest.fixture(scope="module")
def llm(home: object) -> Iterator[Runtime]:
    with Runtime(SETTINGS) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def worker(home: object) -> Iterator[Worker]:
    with Worker(SETTINGS) as opened:
        yield opened


def request(number: int, max_tokens: int = 8) -> Request:
    return Request(PROMPTS[number % len(PROMPTS)], max_tokens=max_tokens, seed=number, ignore_eos=True)


def ids(events: Iterator[TokenEvent]) -> list[int]:
    return [event.id for event in events]


def in_threads(*tasks: Callable[[], object]) -> None:
    """All at once; the first exception is raised."""
    errors: list[BaseException] = []

    def run(task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


# --- the cache --------------------------------------------------------------------------------------------------------


def said(llm: Runtime, messages: list[Message]) -> tuple[list[tuple[int, float | None]], Message]:
    """An answer bit for bit, and the message that it is in the next prompt."""
    events = list(llm.chat(messages, max_tokens=8, temperature=0.8, seed=3, ignore_eos=True, logprobs=0))
    tokens = tuple(event.id for event in events if event.id >= 0)
    return [(event.id, event.logprob) for event in events], Message("assistant", "", tokens)


def test_chats_in_turns_decode_only_what_is_new_and_say_what_each_would_alone(llm: Runtime) -> None:
    questions = [["What is os.walk?", "And os.listdir?", "x" * 200], ["What is a list?", "y = (0), " * 30, "z"]]
    alone = []
    with Runtime(replace(SETTINGS, sequences=1)) as one:
        for asked in questions:
            one.forget()
            chat = [SYSTEM]
            for question in asked:
                found, message = said(one, [*chat, Message("user", question)])
                alone.append(found)
                chat += [Message("user", question), message]
    chats, together = ([SYSTEM], [SYSTEM]), list[list[tuple[int, float | None]]]()
    for turn in range(3):
        for chat, asked in zip(chats, questions, strict=True):
            before = llm.count(chat) if turn else 0
            found, message = said(llm, [*chat, Message("user", asked[turn])])
            together.append(found)
            chat += [Message("user", asked[turn]), message]
            assert llm.stats.cached_tokens >= before - 4
    assert together == [alone[n] for n in (0, 3, 1, 4, 2, 5)]


def test_a_first_message_is_answered_the_same_whatever_is_in_the_cache(llm: Runtime) -> None:
    message = [SYSTEM, Message("user", "What does shutil.copytree do?")]
    llm.forget()
    wanted, _ = said(llm, message)
    others = [[SYSTEM, Message("user", question)] for question in ("a", "b" * 150, "What does shutil")]
    for other in others:
        said(llm, other)
    found, _ = said(llm, message)
    assert found == wanted
    assert llm.stats.cached_tokens > 0


def test_prompts_that_are_completed_verbatim_share_what_they_begin_with(llm: Runtime) -> None:
    llm.forget()
    beginning = "import os, sys, re\n" * 20
    wanted = [ids(llm.generate(beginning + end, max_tokens=8, seed=1, ignore_eos=True)) for end in ("def f", "class")]
    assert llm.stats.cached_tokens > llm.stats.prompt_tokens // 2
    llm.forget()
    assert ids(llm.generate(beginning + "class", max_tokens=8, seed=1, ignore_eos=True)) == wanted[1]


# --- sharing steps ----------------------------------------------------------------------------------------------------


def test_answers_of_several_threads_share_steps_and_are_those_of_each_alone(llm: Runtime) -> None:
    requests = [request(number, 30) for number in range(6)]
    wanted = [ids(llm.submit(each)) for each in requests]
    found: dict[int, list[TokenEvent]] = {}
    started = threading.Barrier(len(requests))

    def ask(number: int) -> None:
        started.wait()
        found[number] = list(llm.submit(requests[number]))

    decodes = llm.context.decodes
    in_threads(*((lambda number=number: ask(number)) for number in range(6)))
    assert [ids(iter(found[number])) for number in range(6)] == wanted
    rounds = [events[-1].stats.rounds for events in found.values() if events[-1].stats]
    assert llm.context.decodes - decodes < sum(rounds)


def test_answers_for_asyncio_share_steps(llm: Runtime) -> None:
    async def both() -> list[Completion]:
        return await asyncio.gather(
            *(llm.acomplete(PROMPTS[number], max_tokens=30, seed=number, ignore_eos=True) for number in range(3))
        )

    wanted = [llm.complete(PROMPTS[number], max_tokens=30, seed=number, ignore_eos=True) for number in range(3)]
    assert [answer.tokens for answer in asyncio.run(both())] == [answer.tokens for answer in wanted]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("exact", [True, False])
def test_a_long_prompt_holds_an_answer_up_for_one_pass_at_a_time(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Request("import os, sys\n" * 180, max_tokens=6, seed=1, ignore_eos=True)
    with Runtime(replace(SETTINGS, exact=exact, spec_type="suffix", pace="fixed:2")) as llm:
        scheduler = llm.engine.scheduler
        schedule, passes = scheduler.schedule, list[list[tuple[bool, int]]]()

        def watched() -> list[Scheduled]:
            scheduled = schedule()
            passes.append([(part.sequence.is_prefill, part.n_pending) for part in scheduled])
            return scheduled

        wanted = [ids(llm.submit(replace(ENDLESS, max_tokens=60))), ids(llm.submit(long))]
        llm.forget()
        answer = llm.submit(replace(ENDLESS, max_tokens=60))
        found = [next(answer).id for _ in range(10)]
        monkeypatch.setattr(scheduler, "schedule", watched)
        late = ids(llm.submit(long))
        found += ids(answer)
        assert llm.context.exact == exact
        if exact:
            assert [found, late] == wanted
    read = [sum(n for is_prompt, n in each if is_prompt) for each in passes]
    assert sum(read) > 800
    assert max(read) < 200
    held_up = [all(is_prompt for is_prompt, _ in each) for each in passes]
    assert not any(all(both) for both in pairwise(held_up))
    assert any(held_up) == exact


def test_two_answers_in_one_thread_go_on_together(llm: Runtime) -> None:
    first, second = (llm.generate(prompt, max_tokens=20, seed=1, ignore_eos=True) for prompt in PROMPTS[:2])
    wanted = [ids(llm.generate(prompt, max_tokens=20, seed=1, ignore_eos=True)) for prompt in PROMPTS[:2]]
    found: list[list[int]] = [[], []]
    for _ in range(21):
        found[0].append(next(first).id)
        found[1].append(next(second).id)
    assert found == wanted


# --- waiting and cancelling -------------------------------------------------------------------------------------------


@pytest.mark.native
@pytest.mark.parametrize("name", ["llm", "worker"])
def test_of_running_and_waiting_answers_each_can_be_cancelled(name: str, request: pytest.FixtureRequest) -> None:
    model: Runtime | Worker = request.getfixturevalue(name)
    flags = [CancelFlag() for _ in range(7)]
    answers = [model.submit(replace(ENDLESS, seed=number), flag) for number, flag in enumerate(flags)]
    assert not next(answers[0]).is_last
    flags[5].set()  # waits for a slot
    assert [event.finish_reason for event in answers[5]] == ["cancelled"]
    flags[1].set()
    assert [*answers[1]][-1].finish_reason == "cancelled"
    answers[6].close()
    answers[2].close()
    assert [*answers[2]] == [*answers[6]] == []
    assert not next(answers[4]).is_last  # it has a slot now
    assert not next(answers[0]).is_last
    for answer in answers:
        answer.close()
    assert Completion.of(model.submit(replace(ENDLESS, max_tokens=4))).finish_reason == "length"


def n_alive() -> int:
    """Streams and sequences that anything still knows, those of other tests among them."""
    gc.collect()
    return sum(isinstance(thing, Stream | Sequence) for thing in gc.get_objects())


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["llm", "worker"])
def test_hundreds_of_answers_with_cancels_lose_no_slot(name: str, request: pytest.FixtureRequest) -> None:
    model: Runtime | Worker = request.getfixturevalue(name)
    ended: list[str | None] = []
    list(model.submit(Request(PROMPTS[0], max_tokens=4)))  # drafters remember the last sequence
    n_before = n_alive()

    def client(number: int) -> None:
        chance = random.Random(number)
        for turn in range(12):
            flag = CancelFlag()
            prompt = chance.choice(PROMPTS) + "x = 1\n" * chance.randint(0, 15)
            asked = Request(prompt, max_tokens=chance.randint(0, 3), seed=turn, ignore_eos=True)
            with model.submit(asked, flag) as answer:
                what = chance.random()
                if what < 0.1:
                    flag.set()
                elif what < 0.2:
                    continue  # its reader leaves
                events = list(answer)
                ended.append(events[-1].finish_reason)
                assert len(events) - 1 == asked.max_tokens or what < 0.1

    in_threads(*((lambda number=number: client(number)) for number in range(5)))
    assert len(ended) > 36
    assert {*ended} == {"length", "cancelled"}
    assert Completion.of(model.submit(replace(ENDLESS, max_tokens=4))).finish_reason == "length"
    assert not model.loop.streams
    assert n_alive() <= n_before
    if isinstance(model, Runtime):
        assert not model.engine.scheduler.active and not model.engine.scheduler.waiting
        assert all(slot.running is None for slot in model.engine.slots.all)


def test_closing_the_model_ends_answers_of_other_threads() -> None:
    model = Runtime(replace(SETTINGS, sequences=2))
    begun = threading.Semaphore(0)
    found: list[list[TokenEvent]] = []

    def ask(number: int) -> None:
        events: list[TokenEvent] = []
        for event in model.submit(replace(ENDLESS, seed=number)):
            events.append(event)
            begun.release()
        found.append(events)

    def close() -> None:
        for _ in range(2):
            begun.acquire()
        model.close()

    in_threads(close, *((lambda number=number: ask(number)) for number in range(3)))
    assert len(found) == 3
    assert not any(event.is_last for events in found for event in events)
    with pytest.raises(UsageError, match="closed"):
        model.submit(ENDLESS).__next__()


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_step_that_fails_ends_the_answers_in_it(llm: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [llm.submit(replace(ENDLESS, seed=number)) for number in range(5)]
    for answer in answers[:4]:
        next(answer)

    def broken(*_: object) -> None:
        raise GenerationError("decoding failed")

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", broken)
        for answer in answers[:4]:
            with pytest.raises(GenerationError, match="decoding failed"):
                list(answer)
    assert not next(answers[4]).is_last  # it had no slot then
    answers[4].close()
    assert llm.complete(PROMPTS[0], max_tokens=4, ignore_eos=True).finish_reason == "length"


def fail_once(*_: object) -> None:
    """In place of a context's `decode`, in a worker."""
    for context in [thing for thing in gc.get_objects() if isinstance(thing, Context)]:
        vars(context).pop("decode", None)
    raise GenerationError("decoding failed")


def test_a_step_that_fails_in_the_worker_ends_the_answers_in_it_and_no_others(worker: Worker) -> None:
    answers = [worker.submit(replace(ENDLESS, seed=number)) for number in range(6)]
    for answer in answers[:4]:
        next(answer)
    worker.call("context.__setattr__", "decode", fail_once)
    for answer in answers[:4]:
        with pytest.raises(GenerationError, match="decoding failed"):
            list(answer)
    for answer in answers[4:]:
        assert not next(answer).is_last  # it had no slot then
        answer.close()
    assert Completion.of(worker.submit(request(1, 4))).finish_reason == "length"
    stream = worker.stream([replace(ENDLESS, seed=number) for number in range(3)])
    next(stream)
    worker.call("context.__setattr__", "decode", fail_once)
    with pytest.raises(GenerationError, match="decoding failed"):
        list(stream)
    assert Completion.of(worker.submit(request(1, 4))).finish_reason == "length"


def test_an_answer_of_no_tokens_waits_for_no_slot(llm: Runtime) -> None:
    others = [llm.submit(replace(ENDLESS, seed=number)) for number in range(4)]
    for other in others:
        assert not next(other).is_last
    (end,) = llm.submit(replace(request(1, 0), cache_prompt=False))  # otherwise the prompt is read into the KV cache
    assert end.finish_reason == "length" and end.stats and end.stats.prompt_tokens > 0
    assert not any(next(other).is_last for other in others)
    for other in others:
        other.close()


def test_a_grammar_that_fails_behind_the_last_token_ends_as_at_any_other_limit(
    llm: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = GrammarConstraint.allowed

    def allowed(self: GrammarConstraint, tokens: list[int]) -> Any:
        if len(tokens) - self._start >= 5:
            raise UsageError("this expression failed")
        return whole(self, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(GrammarConstraint, "allowed", allowed)
        patch.setattr(llm.engine.speculator, "drafters", [])
        other, constrained = llm.submit(request(0, 20)), llm.submit(Request("def f", max_tokens=5, regex="[a-z]+"))
        assert len(list(other)) == 21
        assert [event.finish_reason for event in constrained][-1] == "length"


def test_a_reader_whose_leaving_fails_lets_others_lead() -> None:
    class Broken(Loop):
        is_broken = True
        n_settled = 0

        def add(self, stream: Stream, number: int, what: Any, cancel: CancelFlag) -> None:
            pass

        def turn(self) -> None:
            pass

        def settle(self) -> None:
            self.n_settled += 1
            if self.is_broken:
                raise KeyboardInterrupt

    loop = Broken()
    with pytest.raises(KeyboardInterrupt):
        Stream(loop).close()
    loop.is_broken = False
    reader = Stream(loop)
    reader.add(0, None, CancelFlag())
    in_threads(lambda: loop.wait(reader))
    assert loop.n_settled == 2


def test_what_is_refused_is_refused_alone(llm: Runtime, worker: Worker) -> None:
    for model in (llm, worker):
        good = model.submit(request(1))
        for bad in (Request(TOO_LONG), Request("x", max_tokens=-5), Request("x", regex="[0-9")):
            with pytest.raises(UsageError):
                list(model.submit(bad))
        assert len(list(good)) == 9


def test_over_the_worker_answers_are_those_of_each_alone(worker: Worker, llm: Runtime) -> None:
    requests = [request(number, 30) for number in range(6)]
    wanted = [ids(llm.submit(each)) for each in requests]
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        found[number] = ids(worker.submit(requests[number]))
        assert worker.count([SYSTEM]) > 10

    in_threads(*((lambda number=number: ask(number)) for number in range(6)))
    assert [found[number] for number in range(6)] == wanted


def test_a_stream_and_single_answers_go_on_together(worker: Worker) -> None:
    requests = [request(number) for number in range(20)]
    with closing(worker.stream(requests)) as stream:
        events = [next(stream)]
        assert len(list(worker.submit(request(3)))) == 9
        events += stream
    assert len(events) == 20 * 9


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_death_is_told_to_every_reader() -> None:
    with Worker(SETTINGS) as worker:
        answers = [worker.submit(replace(ENDLESS, seed=number)) for number in range(6)]
        next(answers[0])
        assert worker.loop.process.pid is not None
        os.kill(worker.loop.process.pid, signal.SIGKILL)
        deaths: list[WorkerDiedError] = []

        def read(number: int) -> None:
            try:
                list(answers[number])
            except WorkerDiedError as error:
                deaths.append(error)

        in_threads(*((lambda number=number: read(number)) for number in range(6)))
        assert len(deaths) == 6
        with pytest.raises(WorkerDiedError):
            worker.submit(ENDLESS)
