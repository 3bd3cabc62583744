"""The loop of a job: every row gets its result once, in any order, and after errors and deaths of the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any, cast

import pytest
from fake_stream import FakeStream, said
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgespec.batch import answer_rows
from edgespec.batch.job import MOST_WAITING, Job
from edgespec.batch.reading import Defaults, RowReader
from edgespec.batch.results import Meter, Results
from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, UsageError
from edgespec.llm.fleet import Fleet
from edgespec.llm.model import Model
from edgespec.llm.notes import Notes
from edgespec.requests.row import BadRow, Row
from edgespec.runtime.worker import Worker, WorkerDiedError
from edgespec.runtime.worker.restarted import RestartedWorker
from edgespec.settings import Request

DEFAULTS = Defaults(Request(max_tokens=2), seed=1, chat=False)
RESULTS = Results("fake", lambda token: bytes([token]))


def row(id: Any, prompt: str = "go", **settings: Any) -> dict[str, Any]:
    return {"id": id, "prompt": prompt, **settings}


def job(engine: Model, rows: Any, cancel: CancelFlag | None = None, **settings: Any) -> Job:
    reader = RowReader(DEFAULTS)
    return Job(engine, reader.from_values(rows), RESULTS, cancel or CancelFlag(), **settings)


def results(engine: Model, rows: Sequence[Any], **settings: Any) -> list[dict[str, Any]]:
    return [result.row for result in job(engine, rows, **settings).run()]


def ids(rows: Sequence[dict[str, Any]]) -> list[Any]:
    return [each["id"] for each in rows]


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_result_holds_what_was_asked_for_and_nothing_of_time() -> None:
    engine = FakeStream()
    (result,) = results(engine, [row("a", "hello", max_tokens=3, seed=5)])
    assert result == {
        "id": "a",
        "content": "hello 5 0..",
        "finish_reason": "length",
        "seed": 5,
        "prompt_tokens": 5,
        "tokens": 3,
        "digest": "4486c2d5a1e0",
    }


def test_an_answer_that_is_cut_off_before_it_fits_is_marked() -> None:
    free, cut = results(FakeStream(), [row("a", max_tokens=3), row("b", max_tokens=3, json_schema="{}")])
    assert (cut["finish_reason"], cut["cut_off"]) == ("length", True)
    assert "cut_off" not in free
    (several,) = results(FakeStream(), [row("c", max_tokens=3, regex="a+", n=2)])
    assert [choice["cut_off"] for choice in several["choices"]] == [True, True]
    marked = [each.is_cut_off for each in job(FakeStream(), [row("d"), row("e", regex="a+")]).run()]
    assert marked == [False, True]


def test_timings_come_when_they_are_asked_for() -> None:
    engine, reader = FakeStream(), RowReader(DEFAULTS)
    timed = Job(
        engine, reader.from_values([row("a")]), Results("fake", RESULTS.token_bytes, timings=True), CancelFlag()
    )
    (result,) = timed.run()
    assert result.row.items() >= Stats(prompt_tokens=2, generated_tokens=2, rounds=2).as_json().items()


def test_log_probabilities_come_when_they_are_asked_for() -> None:
    (result,) = results(FakeStream(), [row("a", "hi", seed=1, logprobs=1)])
    top = [{"id": 65, "text": "A", "logprob": -0.5}]
    assert result["logprobs"] == [
        {"id": 65, "text": "hi 1 0", "logprob": -0.5, "top_logprobs": top},
        {"id": 66, "text": ".", "logprob": -0.5, "top_logprobs": top},
    ]


def test_samples_of_a_prompt_are_choices_of_one_result() -> None:
    engine = FakeStream(2)
    (result,) = results(engine, [row("a", seed=5, n=3)])
    assert [(choice["index"], choice["content"]) for choice in result["choices"]] == [
        (0, "go 5 0."),
        (1, "go 5 1."),
        (2, "go 5 2."),
    ]
    assert "content" not in result
    assert result["tokens"] == 6
    assert [(request.seed, request.sample) for request in engine.requests] == [(5, 0), (5, 1), (5, 2)]


def test_what_is_wrong_with_a_row_is_its_result_and_the_others_are_answered() -> None:
    found = results(FakeStream(), [row("a"), 7, row("b", "too long"), row("c", wrong=1), row("d", "fails"), row("e")])
    by_id = {each["id"]: each for each in found}
    assert by_id[None]["error"] == {"message": "line 2 is not a JSON object", "type": "invalid_request_error"}
    assert by_id[None]["line"] == 2
    assert by_id["b"]["error"] == {"message": "the prompt is too long", "type": "invalid_request_error"}
    assert by_id["c"]["error"]["message"] == "line 4: 'wrong' is not supported"
    assert by_id["d"]["error"] == {"message": "no finite logits", "type": "server_error"}
    assert {"content", "finish_reason"} <= by_id["a"].keys() & by_id["e"].keys()
    assert len(found) == 6


def test_a_prompt_that_is_refused_is_asked_for_one_sample_only() -> None:
    engine = FakeStream(1)
    (result,) = results(engine, [row("a", "too long", n=50)])
    assert result["error"]["message"] == "the prompt is too long"
    assert len(engine.requests) < 5


# --- order and room ---------------------------------------------------------------------------------------------------


def test_results_come_as_they_are_finished_or_in_order() -> None:
    rows = [row("slow", max_tokens=50), *(row(number) for number in range(5)), 7, row("last")]
    assert ids(results(FakeStream(), rows))[-1] == "slow"
    assert ids(results(FakeStream(), rows, ordered=True)) == ["slow", 0, 1, 2, 3, 4, None, "last"]


def test_rows_are_taken_as_there_is_room() -> None:
    taken = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for taken in count(1):
            yield row(taken)

    engine = FakeStream(4, ahead=2)
    running = job(engine, endless()).run()
    assert len(list(islice(running, 10))) == 10
    running.close()
    assert taken <= 10 + 4 + 2
    assert not engine.loop.streams


def test_no_more_than_so_many_results_wait_for_an_earlier_row() -> None:
    n_taken = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal n_taken
        yield row("slow", max_tokens=2000)
        for n_taken in range(2000):
            yield row(n_taken, max_tokens=1)

    engine = FakeStream(3, ahead=2)
    running = job(engine, rows(), ordered=True).run()
    assert next(running).row["id"] == "slow"
    assert n_taken <= MOST_WAITING + 5
    assert [result.row["id"] for result in running] == list(range(2000))


def test_bad_rows_do_not_pile_up() -> None:
    engine = FakeStream()
    running = job(engine, (row(number, wrong=1) for number in range(10 * MOST_WAITING)))
    finished = running.run()
    next(finished)
    assert len(running._ready) < MOST_WAITING
    assert len(list(finished)) == 10 * MOST_WAITING - 1


@pytest.mark.slow
def test_results_do_not_wait_for_a_row_that_is_still_to_come() -> None:
    came: list[Any] = []

    def rows() -> Iterator[Row | BadRow | None]:
        for number, value in enumerate([row("a"), 7, row("b"), row("c", wrong=1)], start=1):
            yield from RowReader(DEFAULTS).from_values([value])
            for _ in range(20):
                yield None
            assert len(came) == number

    for result in Job(FakeStream(), rows(), RESULTS, CancelFlag()).run():
        came += [result.row["id"]]
    assert came == ["a", None, "b", "c"]


# --- deaths -----------------------------------------------------------------------------------------------------------


def restarted(engine: FakeStream) -> Fleet:
    """The same worker, which is started again when it dies."""
    notes = Notes()
    member = RestartedWorker(cast("Callable[[Notes], Worker]", engine.opened), CancelFlag(), notes)
    return Fleet([member], engine.room, notes=notes)


def test_a_row_that_kills_the_engine_fails_and_takes_no_other_with_it() -> None:
    engine = FakeStream(4, ahead=3)
    rows = [*(row(number) for number in range(10)), row("bad", "kills"), *(row(number) for number in range(10, 20))]
    found = results(restarted(engine), rows)
    assert sorted(map(str, ids(found))) == sorted([*map(str, range(20)), "bad"])
    (failed,) = [each for each in found if "error" in each]
    assert failed == {
        "id": "bad",
        "error": {"message": "llama.cpp crashed: it was told to", "type": "server_error"},
    }
    assert engine.n_deaths == 2


def test_notes_of_a_worker_are_those_of_the_job_also_after_a_death() -> None:
    engine = FakeStream(deaths=1)
    llm = restarted(engine)
    engine.notes.add("while it answers")
    results(llm, [row("a", "kills")])
    engine.notes.add("later")
    crash = "llama.cpp crashed: it was told to; restarting it"
    assert llm.notes.take() == ["something to know", "while it answers", crash, "later"]


def test_a_row_is_asked_once_more_after_a_death() -> None:
    engine = FakeStream(deaths=1)
    (found,) = results(restarted(engine), [row("a", "kills", seed=3)])
    assert found["content"] == "kills 3 0."


def test_tokens_of_a_lost_attempt_are_not_counted() -> None:
    engine, meter = FakeStream(2, deaths=1), Meter(0)
    rows = [row("a", max_tokens=9), row("b", max_tokens=3), row("late", "kills", max_tokens=2)]
    found = results(restarted(engine), rows, heard=meter.hear, dropped=meter.drop)
    assert engine.n_deaths == 1 and not any("error" in each for each in found)
    assert meter.n_tokens == sum(each["tokens"] for each in found) == 14


def test_samples_of_a_row_are_all_asked_again_after_a_death() -> None:
    engine = FakeStream(2, deaths=2)
    found = results(restarted(engine), [row("a", n=3, max_tokens=9), row("bad", "kills")])
    whole = next(each for each in found if each["id"] == "a")
    assert [len(choice["content"]) for choice in whole["choices"]] == [len("go 99715415805741 0") + 8] * 3
    assert whole["tokens"] == 27


def test_order_is_kept_across_deaths() -> None:
    engine = FakeStream(3, ahead=2)
    rows = [row(0, "kills"), *(row(number) for number in range(1, 9)), row(9, "kills"), row(10)]
    assert ids(results(restarted(engine), rows, ordered=True)) == list(range(11))


@pytest.mark.slow
def test_an_engine_that_dies_again_and_again_is_given_up() -> None:
    engine = FakeStream(8)
    running = job(restarted(engine), [row(number, "kills") for number in range(20)]).run()
    with pytest.raises(GenerationError, match=r"12 times without an answer in between: llama\.cpp crashed"):
        list(running)
    assert engine.n_deaths == 12


def test_some_neighbours_that_kill_the_engine_do_not_stop_the_others() -> None:
    rows = [row(number, "kills" if 5 <= number <= 10 else "go") for number in range(40)]
    found = results(restarted(FakeStream(8, ahead=8)), rows)
    assert sorted(each["id"] for each in found if "error" in each) == [5, 6, 7, 8, 9, 10]
    assert len(found) == 40


@pytest.mark.slow
def test_deaths_with_answers_in_between_are_not_counted_together() -> None:
    engine = FakeStream(1)
    rows = [row(number, "kills" if number % 2 else "go") for number in range(20)]
    found = results(restarted(engine), rows)
    assert sum("error" in each for each in found) == 10


def test_without_another_engine_the_error_is_the_callers() -> None:
    with pytest.raises(WorkerDiedError):
        results(FakeStream(), [row("a", "kills")])


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_cancelled_rows_have_no_result_and_no_further_ones_are_taken() -> None:
    cancel, engine = CancelFlag(), FakeStream(2)
    running = job(engine, [row(number, max_tokens=2 + 50 * (number > 2)) for number in range(50)], cancel).run()
    first = next(running)
    cancel.set()
    assert {result.row["finish_reason"] for result in [first, *running]} == {"length"}
    assert len(engine.requests) <= 4


def test_a_death_while_it_is_cancelled_opens_no_other_engine() -> None:
    cancel, engine = CancelFlag(), FakeStream(2)

    def heard(event: object) -> None:
        cancel.set()

    running = job(restarted(engine), [row("a"), row("b", "kills")], cancel, heard=heard)
    assert list(running.run()) == []
    assert engine.n_opened == 1


# --- distributions
# -------------------------------------------------------------------------------------------------------------

PROMPTS = ["go", "go on", "too long", "fails", "kills"]


@pytest.mark.slow
@given(
    prompts=st.lists(st.tuples(st.sampled_from(PROMPTS), st.integers(1, 6), st.integers(1, 3)), max_size=30),
    room=st.integers(1, 5),
    ahead=st.integers(0, 4),
    ordered=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_every_row_has_one_result_and_it_does_not_depend_on_who_else_is_answered(
    prompts: list[tuple[str, int, int]], room: int, ahead: int, ordered: bool, chance: random.Random
) -> None:
    assume(sum(prompt == "kills" for prompt, *_ in prompts) < 3)  # with more it is given up
    rows = [row(number, prompt, max_tokens=length, n=n) for number, (prompt, length, n) in enumerate(prompts)]
    alone = {each["id"]: each for each in results(restarted(FakeStream(1)), rows)}
    chance.shuffle(rows)
    engine = FakeStream(room, ahead=ahead)
    found = results(restarted(engine), rows, ordered=ordered)
    assert {each["id"]: each for each in found} == alone
    assert len(found) == len(rows)
    assert len(engine.loop.streams) == 1  # of the worker
    if ordered:
        assert ids(found) == [each["id"] for each in rows]


# --- from Python ------------------------------------------------------------------------------------------------------


def answered(rows: Any, **given: Any) -> Iterator[dict[str, Any]]:
    return answer_rows(FakeStream(), rows, model="fake", token_bytes=RESULTS.token_bytes, **given)


def test_from_python_rows_are_dicts_and_so_are_results() -> None:
    found = list(answered([{"prompt": "a"}, {"prompt": "b", "max_tokens": 2}], chat=False, seed=3, max_tokens=1))
    requests = [Request("a", seed=found[0]["seed"], max_tokens=1), Request("b", seed=found[1]["seed"], max_tokens=2)]
    assert [each["content"] for each in found] == [said(request) for request in requests]


def test_from_python_samples_are_for_rows_that_say_nothing_else() -> None:
    found = list(answered([row("a"), row("b", n=1)], chat=False, n=2))
    assert "choices" in found[0]
    assert "content" in found[1]
    with pytest.raises(UsageError, match="n must be"):
        answered([], chat=False, n=0)


def test_from_python_none_says_that_no_row_is_there_yet() -> None:
    came: list[Any] = []

    def rows() -> Iterator[dict[str, Any] | None]:
        yield row("a")
        while not came:
            yield None
        yield {"prompt": "b"}

    for result in answered(rows(), chat=False):
        came += [result["id"]]
    assert came == ["a", 2]


def test_from_python_settings_that_cannot_be_meant_are_refused_before_the_first_row() -> None:
    for wrong in ({"max_token": 1}, {"temperature": -1}):
        with pytest.raises(UsageError):
            answered([], chat=False, **wrong)


def test_from_python_a_generator_that_is_left_ends_the_answers() -> None:
    engine = FakeStream()
    rows = answer_rows(
        engine, ({"prompt": "a"} for _ in count()), model="fake", token_bytes=bytes, chat=False, max_tokens=1
    )
    next(rows)
    rows.close()
    assert not engine.loop.streams
