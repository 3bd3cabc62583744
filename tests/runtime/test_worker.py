"""A model in a worker process: the same answers and errors, cancelled in time, and an explanation when it dies."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_program import environment
from endless import CTX_SIZE, ENDLESS, TOO_LONG
from tiny_gguf import CHATML, write_model

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, ModelNotFoundError, OutOfMemoryError, PairError, UsageError
from edgespec.events import TokenEvent
from edgespec.llm.info import ModelInfo
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import LoadingStoppedError, NoReplyError, Remedy, Worker, WorkerDiedError, remedies
from edgespec.runtime.worker.child import PING, PONG
from edgespec.runtime.worker.death import explained
from edgespec.settings import LoadSettings, Message, Request

DEMO = LoadSettings("demo", spec_type="draft", pace="fixed:3", threads=1, ctx_size=CTX_SIZE)
SHORT = replace(ENDLESS, max_tokens=4)

linux = pytest.mark.skipif(sys.platform != "linux", reason="numbers of signals differ")
posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(DEMO) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair() -> Iterator[Worker]:
    """A worker that decodes two answers together."""
    with Worker(replace(DEMO, sequences=2)) as opened:
        yield opened


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes long prompts and endless answers."""
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "llama", chat_template=CHATML, n_ctx=80_000)


def test_a_worker_of_a_name_completes_and_answers() -> None:
    with Worker("demo") as worker:
        assert worker.settings == LoadSettings("demo")
        assert worker.complete("def f(", max_tokens=4, ignore_eos=True).stats.generated_tokens == 4
        assert repr(worker) == "<Worker of demo>"


class Told:
    """Hears the progress that a worker reports, and passes it on to `hear`."""

    def __init__(self) -> None:
        self.progress: list[tuple[str, float]] = []
        self.hear: Callable[[str, float], object] = lambda what, done: None

    def __call__(self, what: str, done: float) -> None:
        self.progress.append((what, done))
        self.hear(what, done)


@pytest.fixture(scope="module")
def reader(tiny: Path) -> Iterator[tuple[Worker, Told]]:
    """A worker that reads long prompts, and its progress."""
    told = Told()
    with Worker(
        LoadSettings(str(tiny), ctx_size=90_000, threads=1, spec_type="lookup", pace="fixed:3"), told
    ) as opened:
        yield opened, told


def processes() -> set[int | None]:
    """The workers there are."""
    return {process.pid for process in multiprocessing.active_children()}


def is_whole(events: list[TokenEvent]) -> bool:
    return len(events) == 5 and events[-1].finish_reason == "length"


# --- the same as in process -------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_events_as_in_process(worker: Worker) -> None:
    request = replace(ENDLESS, max_tokens=60, seed=7, logprobs=2, stop=("never comes",))
    with Runtime(DEMO) as runtime:
        *wanted, last = runtime.submit(request)
        assert worker.info == runtime.info
    *events, end = worker.submit(request)
    assert events == wanted
    assert {event.source for event in events} == {"", "draft"}
    assert last.stats is not None
    assert end.stats is not None
    assert replace(end, stats=None) == replace(last, stats=None)
    assert end.stats.accepted_histogram == last.stats.accepted_histogram
    assert worker.stats == end.stats


def test_tokens_come_while_the_answer_is_made(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = worker.loop._events

    def counting(rows: list[Any]) -> Any:
        sizes.append(len(rows))
        return original(rows)

    monkeypatch.setattr(worker.loop, "_events", counting)
    list(worker.submit(replace(ENDLESS, prompt="while True:\n", max_tokens=200)))  # which is not in the cache
    assert sum(sizes) == 201
    assert len(sizes) > 3
    assert sizes[0] == 1  # nothing came before it that it could share a message with


def test_a_stream_takes_requests_while_others_are_answered(pair: Worker) -> None:
    taken: list[int] = []

    def requests() -> Iterator[Request]:
        for number in range(12):
            taken.append(number)
            prompt = TOO_LONG if number == 5 else SHORT.prompt
            yield replace(SHORT, prompt=prompt, seed=number, max_tokens=4 + number)

    assert pair.info.sequences == 2
    ended: dict[int, TokenEvent] = {}
    errors: dict[int, EdgespecError] = {}
    n_tokens: Counter[int] = Counter()
    n_taken_at_first = 0
    for index, event in pair.stream(requests()):
        n_taken_at_first = n_taken_at_first or len(taken)
        if isinstance(event, EdgespecError):
            errors[index] = event
        elif event.finish_reason is not None:
            ended[index] = event
        else:
            n_tokens[index] += 1
    assert n_taken_at_first < len(taken) == 12
    assert errors[5].what.startswith("the prompt has")
    assert {**n_tokens} == {number: 4 + number for number in range(12) if number != 5}
    assert {*ended} == {*n_tokens}
    assert all(event.finish_reason == "length" for event in ended.values())
    assert is_whole(list(pair.submit(SHORT)))


def test_a_stream_does_not_wait_for_a_request_that_is_still_to_come(pair: Worker) -> None:
    ended: list[int] = []

    def requests() -> Iterator[Request | None]:
        """Three, each of which comes when the one before is answered."""
        for number in range(3):
            while len(ended) < number:
                yield None
            yield SHORT

    for index, event in pair.stream(requests()):
        assert isinstance(event, TokenEvent)
        if event.finish_reason:
            ended.append(index)
    assert ended == [0, 1, 2]


def test_a_stream_that_is_cancelled_takes_no_more(pair: Worker) -> None:
    cancel = CancelFlag()
    asked = 0

    def requests() -> Iterator[Request]:
        nonlocal asked
        while True:
            asked += 1
            yield ENDLESS

    ends = []
    for _, event in pair.stream(requests(), cancel):
        cancel.set()
        assert isinstance(event, TokenEvent)
        ends += [event.finish_reason] if event.finish_reason else []
    assert {*ends} == {"cancelled"}
    assert asked <= 6
    stream = pair.stream(requests())
    next(stream)
    stream.close()
    assert list(pair.stream([])) == []
    assert is_whole(list(pair.submit(SHORT)))


def test_prompts_are_counted_and_tokens_shown(worker: Worker) -> None:
    messages = [Message("user", "What does os.walk do?")]
    tokens = worker.tokenize(Request(messages=tuple(messages)))
    assert worker.count(messages) == len(tokens)
    assert "os.walk" in "".join(map(worker.token_text, tokens))


def test_a_conversation_goes_on_from_the_cache_unless_it_is_forgotten(worker: Worker) -> None:
    request = Request(messages=(Message("user", "What does os.walk do?"),), max_tokens=2)
    for forget in (False, True):
        list(worker.submit(request))
        if forget:
            worker.forget()
        list(worker.submit(request))
        assert (worker.stats.cached_tokens == 0) is forget


def test_progress_is_told_while_loading_and_while_a_long_prompt_is_read(reader: tuple[Worker, Told]) -> None:
    worker, told = reader
    assert ("loading", 1.0) in told.progress
    list(worker.submit(Request("x = 1\n" * 500, max_tokens=2)))
    assert [what for what, done in told.progress if 0.4 < done < 1 and what == "prompt"]
    n_before = len(told.progress)
    list(worker.stream([replace(SHORT, max_tokens=20)] * 6))
    assert len(told.progress) - n_before <= 6  # nothing is told at each step while prompts wait for a slot


def test_drafting_changes_here_and_there(worker: Worker) -> None:
    before = worker.settings
    try:
        worker.draft_with(pace="off", spec_draft_n_max=2)
        assert worker.settings == replace(before, pace="off", spec_draft_n_max=2)
        assert worker.info.pace == "off"
        list(worker.submit(SHORT))
        assert worker.stats.proposed == 0
        with pytest.raises(UsageError, match="do not fit") as refused:
            worker.draft_with(spec_draft_n_max=50)
        assert "`spec_draft_n_max`" in refused.value.hint
        assert worker.settings.spec_draft_n_max == 2
    finally:
        worker.draft_with(pace=before.pace, spec_draft_n_max=before.draft_n_max)


def test_verdicts_of_the_pace_come_over_and_closing_saves_what_was_learnt() -> None:
    def saved() -> set[tuple[Path, int]]:
        return {(file, file.stat().st_mtime_ns) for file in Path(os.environ["EDGESPEC_HOME"]).glob("cache/pace/*.json")}

    request = replace(ENDLESS, max_tokens=60)
    before = saved()
    with Worker(replace(DEMO, pace="auto")) as worker:
        list(worker.submit(request))
        assert [verdict.drafter for verdict in worker.pace_verdicts(request)] == ["draft"]
        log_file = worker.loop.log_file
        assert log_file.exists()
    assert saved() - before
    assert not log_file.exists()


def test_notes_of_loading_and_of_answers_are_kept(reader: tuple[Worker, Told]) -> None:
    worker, _ = reader
    assert worker.notes[0].startswith("the model was trained for")
    list(worker.submit(replace(SHORT, ignore_eos=False, json_schema='{"type": "string", "format": "path"}')))
    assert [note for note in worker.notes if "is ignored: it is unknown" in note]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (LoadSettings("qwen2.5-coder-7b"), ModelNotFoundError),  # its error has another constructor
        (LoadSettings("demo", ctx_size=2**30), OutOfMemoryError),
        (LoadSettings("demo", threads=-1), UsageError),
        (LoadSettings("demo", draft_model="tiny", spec_type="draft"), PairError),
    ],
)
def test_what_loading_fails_of_is_raised_as_in_process(settings: LoadSettings, kind: type, tiny: Path) -> None:
    if settings.draft_model:
        settings = replace(settings, draft_model=str(tiny))
    with pytest.raises(kind) as wanted:
        Runtime(settings)
    others = processes()
    with pytest.raises(kind) as raised:
        Worker(settings)
    assert type(raised.value) is type(wanted.value)
    if kind is not OutOfMemoryError:  # its message contains the free memory
        assert str(raised.value) == str(wanted.value)
    assert processes() == others


def test_a_request_that_cannot_be_meant_is_refused_before_the_first_event(worker: Worker) -> None:
    with pytest.raises(UsageError, match=r"prompt has \d+ tokens, the context holds") as refused:
        next(worker.submit(Request(TOO_LONG)))
    assert "shorten it" in refused.value.hint
    assert is_whole(list(worker.submit(SHORT)))


def test_other_errors_come_over_too(worker: Worker) -> None:
    with pytest.raises(TypeError, match="not supported between"):
        worker.token_text("x")  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="pickle"):
        worker.submit(Request(prompt=lambda: "x"))  # type: ignore[arg-type]
    assert is_whole(list(worker.submit(SHORT)))


def test_while_it_answers_it_can_be_asked_and_not_changed(worker: Worker) -> None:
    messages = [Message("user", "What does os.walk do?")]
    n_tokens = worker.count(messages)
    with closing(worker.submit(ENDLESS)) as events:
        next(events)
        for change in (worker.forget, worker.draft_with):
            with pytest.raises(UsageError, match="is already generating"):
                change()
        assert worker.count(messages) == n_tokens
        with pytest.raises(UsageError, match="the context holds"):
            next(worker.submit(Request(TOO_LONG)))
        assert worker.info.drafters == ("draft",)
        assert worker.is_alive
        assert not next(events).is_last


def test_of_two_answers_one_waits_for_the_slot_of_the_other(worker: Worker) -> None:
    first, second = worker.submit(SHORT), worker.submit(replace(SHORT, prompt="import"))
    next(first)
    assert is_whole(list(second))
    assert len(list(first)) == 4
    assert is_whole(list(worker.submit(SHORT)))


def test_answers_that_were_asked_for_together_are_not_mixed_up(worker: Worker) -> None:
    requests = SHORT, replace(SHORT, prompt="import")
    wanted = [[event.id for event in worker.submit(request)] for request in requests]
    answers = [worker.submit(request) for request in requests]
    assert [[event.id for event in answer] for answer in answers] == wanted
    assert wanted[0] != wanted[1]


def test_threads_that_ask_at_once_take_turns(worker: Worker) -> None:
    texts: list[str] = []

    def ask(token: int) -> None:
        texts.extend(worker.token_text(token) for _ in range(20))

    threads = [threading.Thread(target=ask, args=(token,)) for token in (70, 71, 72)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == sorted(20 * [worker.token_text(token) for token in (70, 71, 72)])


def test_what_is_closed_is_closed_and_what_the_child_logged_is_logged_here(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "edgespec"):
        worker = Worker(DEMO)
    assert [record for record in caplog.records if record.name == "edgespec.llama" and "vocab" in record.message]
    events = worker.submit(ENDLESS)
    next(events)
    worker.close()
    assert not list(events)
    assert not worker.is_alive
    assert worker.info.ctx_size == CTX_SIZE
    with pytest.raises(UsageError, match="this model is closed"):
        worker.submit(SHORT)
    worker.close()
    assert capfd.readouterr() == ("", "")


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_cancelling_stops_in_the_middle_of_a_long_prompt(
    reader: tuple[Worker, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, told = reader
    worker.forget()
    cancel = CancelFlag()
    monkeypatch.setattr(told, "hear", lambda what, done: cancel.set())
    [end] = worker.submit(Request(messages=(Message("user", "x = 1\n" * 12_000),), max_tokens=1), cancel)
    assert end.finish_reason == "cancelled"
    assert worker.stats.generated_tokens == 0
    (slot,) = worker.slots()
    assert 0 < slot["n_tokens"] < worker.stats.prompt_tokens / 2


def test_a_cancelled_answer_is_whole_up_to_there(worker: Worker) -> None:
    cancel = CancelFlag()
    events = []
    for event in worker.submit(ENDLESS, cancel):
        events.append(event)
        cancel.set()
    assert events[-1].finish_reason == "cancelled"
    assert events[-1].stats is not None
    assert len(events) - 1 == events[-1].stats.generated_tokens < ENDLESS.max_tokens
    # A flag of the past is not one of the next answer.
    assert is_whole(list(worker.submit(SHORT)))


def test_a_flag_that_is_set_beforehand_counts(worker: Worker) -> None:
    cancel = CancelFlag()
    cancel.set()
    assert list(worker.submit(ENDLESS, cancel))[-1].finish_reason == "cancelled"


def test_a_template_process_that_is_stopped_holds_up_no_other_answer(worker: Worker) -> None:
    chat = Request(messages=(Message("user", "What does os.walk do?"),), max_tokens=1)
    list(worker.submit(chat))
    [templates] = [
        process
        for process in psutil.Process(worker.loop.process.pid).children(recursive=True)
        if "edgespec.llama.rendering" in process.cmdline()
    ]
    templates.suspend()
    try:
        with worker.submit(replace(chat, messages=(Message("user", "And os.stat?"),))):
            assert is_whole(list(worker.submit(SHORT)))
    finally:
        templates.resume()
    assert len(list(worker.submit(chat))) == 2


def test_walking_away_from_an_answer_frees_its_place(worker: Worker) -> None:
    for _ in range(3):
        next(worker.submit(ENDLESS))
        assert is_whole(list(worker.submit(SHORT)))
    assert worker.stats.generated_tokens == 4


def test_loading_can_be_stopped() -> None:
    cancel, others = CancelFlag(), processes()
    with pytest.raises(LoadingStoppedError, match="loading demo was cancelled"):
        Worker(DEMO, lambda what, done: cancel.set(), cancel)
    assert processes() == others


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_a_closed_worker_leaves_no_file_descriptors() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - Path.iterdir would hold one more

    Worker(DEMO).close()  # starts what all workers share
    before = descriptors()
    gc.disable()
    try:
        worker = Worker(DEMO)
        worker.close()
        assert descriptors() == before
    finally:
        gc.enable()


# --- death ------------------------------------------------------------------------------------------------------------


@posix
@pytest.mark.long(but=1)  # how each signal is explained is tested below
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SIGKILL", "the model process was killed: by the system because memory ran out, or by hand"),
        ("SIGABRT", "llama.cpp aborted: an internal check failed"),
        ("SIGSEGV", "llama.cpp crashed: it accessed invalid memory"),
        ("SIGBUS", "llama.cpp crashed: the model file may have been changed"),
        ("SIGTERM", r"the model process has ended: it received SIGTERM"),
    ],
)
def test_death_in_an_answer_is_explained(name: str, told: str) -> None:
    with Worker(DEMO) as worker:
        events = worker.submit(ENDLESS)
        assert next(events).id >= 0
        assert worker.loop.process.pid is not None
        os.kill(worker.loop.process.pid, getattr(signal, name))
        with pytest.raises(WorkerDiedError, match=told) as death:
            list(events)
        assert death.value.hint.startswith("restart it")
        assert death.value.out_of_memory == (name == "SIGKILL")
        assert not worker.is_alive
        for ask in (worker.forget, lambda: worker.submit(SHORT), lambda: worker.count([])):
            with pytest.raises(WorkerDiedError, match=told):
                ask()
        assert worker.info.ctx_size == CTX_SIZE
    with pytest.raises(UsageError, match="closed"):
        worker.forget()


@posix
def test_last_words_are_the_reason_and_not_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Worker(DEMO) as worker, pytest.raises(WorkerDiedError, match=r"llama\.cpp aborted: .*vector"):
        worker.call("model.token_bytes", 2**31 - 1)
    assert capfd.readouterr() == ("", "")


@posix
def test_death_while_nobody_asks_is_found_at_the_next_question() -> None:
    with Worker(DEMO) as worker:
        worker.loop.process.kill()
        worker.loop.process.join()
        assert not worker.is_alive
        answer = worker.submit(SHORT)
        assert next(answer).finish_reason == "error"
        with pytest.raises(WorkerDiedError, match="was killed"):
            next(answer)


@posix
def test_a_process_that_is_stopped_blocks_nobody_and_is_ended_and_the_reason_told() -> None:
    with Worker(DEMO) as worker:
        events = worker.submit(ENDLESS)
        next(events)
        psutil.Process(worker.loop.process.pid).suspend()
        with worker.submit(Request("x" * 10**6)), pytest.raises(NoReplyError):  # more than a pipe holds
            worker.within(0.01).slots()
        assert worker.is_alive
        worker.loop.silence_s = 0.2
        with pytest.raises(WorkerDiedError, match="stopped or hung, and gave no sign of life") as death:
            list(events)
        assert death.value.hint.startswith("restart it")
        assert not worker.is_alive
        with pytest.raises(WorkerDiedError, match="no sign of life"):
            worker.count([])


def test_a_process_that_computes_for_long_is_not_ended(
    reader: tuple[Worker, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers pings while it reads a long prompt."""
    worker, _ = reader
    worker.forget()
    kinds: list[str] = []
    hear = worker.loop._replies.recv

    def noting() -> Any:
        message = hear()
        kinds.append(message[0])
        return message

    monkeypatch.setattr(worker.loop._replies, "recv", noting)
    with worker.submit(Request("x = 1\n" * 8000, max_tokens=1)) as answer:
        while PONG not in kinds:
            worker.loop._send((PING, 0))
            worker.loop.wait(answer.stream)
    assert "events" not in kinds


def test_a_worker_that_nobody_has_any_more_ends() -> None:
    worker = Worker(DEMO)
    child = psutil.Process(worker.loop.process.pid)
    del worker
    gc.collect()
    assert psutil.wait_procs([child], timeout=30)[1] == []


@posix
def test_death_while_loading_is_raised() -> None:
    others = processes()

    def kill(what: str, done: float) -> None:
        for pid in filter(None, processes() - others):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(WorkerDiedError, match="was killed"):
        Worker(DEMO, kill)
    assert processes() == others


def test_a_failed_assertion_of_the_library_is_quoted() -> None:
    said = ["loading", "ggml.c:1234: GGML_ASSERT(n > 0) failed", "(gdb was not found)"]
    assert explained(-signal.SIGABRT, said).why == "ggml.c:1234: GGML_ASSERT(n > 0) failed"


@pytest.mark.parametrize(
    ("code", "said", "told", "out_of_memory"),
    [
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory ran out", True),
        (1, "MemoryError", "memory ran out", True),
        (-6, "  what():  vector::_M_range_check", "aborted: vector::_M_range_check", False),
        (-signal.SIGSEGV, "", "crashed: it accessed invalid memory", False),
        pytest.param(-7, "", "crashed: the model file may have been changed", False, marks=linux),  # SIGBUS there
        (-signal.SIGTERM, "", "has ended: it received SIGTERM", False),
        (None, "", "has ended", False),
        (1, "ImportError: no libgomp", "has ended: ImportError: no libgomp", False),
        (0, "", "has ended: it exited with code 0", False),
        (0xC0000005, "", "accessed invalid memory", False),
        (0xC0000409, "", "aborted", False),
        (0xC0000017, "", "memory ran out", True),
    ],
)
def test_other_ends_are_explained_too(code: int | None, said: str, told: str, out_of_memory: bool) -> None:
    death = explained(code, ["", said])
    assert told in str(death)
    assert death.out_of_memory is out_of_memory


# --- the parent's death and its terminal ------------------------------------------------------------------------------

PARENT = f"""
import signal, sys, threading, time
from edgespec.settings import LoadSettings, Request
from edgespec.runtime.worker import Worker
def at(stage): print(stage, flush=True); time.sleep(60)
settings = LoadSettings("demo", threads=1, ctx_size={CTX_SIZE})
worker = Worker(settings, lambda *_: at("loading")) if "loading" in sys.argv else Worker(settings)
if "idle" in sys.argv: at("idle")
for event in worker.submit(Request("def", max_tokens={ENDLESS.max_tokens}, ignore_eos=True)):
    if "answering" in sys.argv: print("answering", flush=True)
"""


@contextmanager
def parent(code: str, *args: str, home: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program with a worker, in a separate session."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=home, env=environment(home, **variables), start_new_session=True,
    ) as program:  # fmt: skip
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.long(but=1)
@posix
@pytest.mark.parametrize("stage", ["loading", "idle", "answering"])
def test_no_process_outlives_a_killed_parent(stage: str, home: Path) -> None:
    with parent(PARENT, stage, home=home) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == f"{stage}\n".encode()
        started = psutil.Process(program.pid).children(recursive=True)
        assert len(started) >= 2  # the worker, and the resource tracker of multiprocessing
        program.kill()
        assert psutil.wait_procs(started, timeout=30)[1] == []


def trial_under(pid: int) -> tuple[psutil.Process, psutil.Process]:
    """A worker below that process that tries a file out, once there is one, and the process it does so in."""
    while True:
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                worker = process.parent()
                if worker is not None and "edgespec.llama.trial" in process.cmdline():
                    process.suspend()
                    return worker, process
        time.sleep(0.01)


def is_ended(process: psutil.Process) -> bool:
    """True if another process ends this one, which does not end by itself."""
    for _ in range(300):
        with suppress(psutil.NoSuchProcess):
            process.suspend()  # the system resumes processes without a parent
        if psutil.wait_procs([process], timeout=0.1)[0]:
            return True
    process.kill()
    return False


@pytest.mark.long  # as with a killed worker below
@posix
def test_what_the_worker_had_started_goes_with_the_parent(tmp_path: Path) -> None:
    """With a new home, so that files are tried out."""
    with parent(PARENT, "idle", home=tmp_path, EDGESPEC_HOME=str(tmp_path / "new")) as program:
        _, trial = trial_under(program.pid)
        program.kill()
        assert is_ended(trial)


@posix
def test_what_the_worker_had_started_goes_with_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    trials = []

    def kill() -> None:
        worker, trial = trial_under(os.getpid())
        trials.append(trial)
        worker.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerDiedError, match="was killed"):
        Worker(DEMO)
    killer.join()
    assert is_ended(trials[0])


CTRL_C = """
import os, signal, sys, threading
from edgespec.settings import LoadSettings, Request
from edgespec.runtime.worker import Worker
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append("SIGINT"))
signal.signal(signal.SIGHUP, lambda *_: heard.append("SIGHUP"))
ready = threading.Event()
def press():
    while not ready.wait(0.005):
        os.killpg(0, signal.SIGINT)
        os.killpg(0, signal.SIGHUP)
class NoFile:
    def __getattr__(self, name): return getattr(sys.__stderr__, name)
    def fileno(self): return -1  # as a Textual screen has it
sys.stderr = NoFile()
threading.Thread(target=press).start()
with Worker(LoadSettings("demo", threads=1, ctx_size=2048)) as worker:  # which llama.cpp warns of
    events = list(worker.submit(Request("def", max_tokens=20, ignore_eos=True)))
    ready.set()
print(events[-1].finish_reason, *sorted({*heard}))
"""


@posix
def test_ctrl_c_and_a_closed_terminal_are_the_parents_to_hear(home: Path) -> None:
    """From the first moment of the child on; and nothing in the current folder passes for a module."""
    for module in ("socket", "pickle", "numpy"):
        (home / f"{module}.py").write_text("raise SystemExit('imported from the current folder')", encoding="utf-8")
    with parent(f"import sys; sys.path.remove('')\n{CTRL_C}", home=home) as program:
        out, said = program.communicate(timeout=100)
    assert (out, said, program.returncode) == (b"length SIGHUP SIGINT\n", b"", 0)


# --- starting again ---------------------------------------------------------------------------------------------------


def labels(found: list[Remedy]) -> list[str]:
    return [remedy.label for remedy in found]


def test_remedies_ask_for_less() -> None:
    settings = LoadSettings("demo", threads=1, store=False, gpu_layers=9)
    found = remedies(settings, ModelInfo("", ctx_size=1024, draft_model="draft.gguf", offloaded=True))
    assert labels(found) == [
        "Load again",
        "Use half the context (512 tokens)",
        "Load no draft model",
        "Put 4 layers on the GPU",
    ]
    same, shorter, plainer, fewer = (remedy.settings for remedy in found)
    assert same == settings
    assert shorter == replace(settings, ctx_size=512)
    assert plainer == replace(settings, spec_type="grammar,suffix,recycling")
    assert fewer == replace(settings, gpu_layers=4)


def test_remedies_that_are_none_are_left_out() -> None:
    settings = LoadSettings("demo", ctx_size=1023, strict=True, spec_type="none")
    assert labels(remedies(settings, ModelInfo("", ctx_size=1023))) == ["Load again"]
    chosen = LoadSettings("x", draft_model="y", spec_type="lookup,self:2")
    [_, plainer] = remedies(chosen, ModelInfo(""))
    assert plainer.settings == replace(chosen, draft_model=None, spec_type="lookup")
    assert labels(remedies(LoadSettings("x", gpu_layers="all", strict=True), ModelInfo("", offloaded=True)))[1:] == [
        "Put no layers on the GPU"
    ]


@pytest.mark.parametrize("error", [OutOfMemoryError("no room"), explained(-9, [])])
def test_where_memory_ran_out_less_comes_first(error: Exception) -> None:
    found = remedies(LoadSettings("demo"), ModelInfo("", ctx_size=1024), error=error)
    assert labels(found)[0] == "Use half the context (512 tokens)"
    assert labels(found)[-1] == "Load again"


@pytest.mark.long
def test_every_remedy_of_the_bundled_pair_can_be_loaded() -> None:
    with Runtime(DEMO) as runtime:
        found = remedies(runtime.settings, runtime.info)
    assert len(found) == 3
    for remedy in found:
        with Runtime(remedy.settings) as runtime:
            assert is_whole(list(runtime.submit(SHORT)))
