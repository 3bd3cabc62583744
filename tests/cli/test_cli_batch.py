"""`edgespec batch`: prompts, answers, failures, and jobs that are interrupted and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from cli_program import COMMAND, Finished, edgespec_alone, edgespec_here, environment, started
from fake_stream import FakeWorkers
from tiny_gguf import CHATML, write_model

from edgespec.batch.results import Meter, RowResult
from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import FailedRowsError, GenerationError
from edgespec.events import TokenEvent
from edgespec.runtime.worker.death import LoadingStoppedError
from edgespec.text.figures import clock

posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")

TINY = ["-m", "tiny.gguf", "-t", "1", "--no-store", "--pace", "off"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny.gguf", "llama", chat_template=CHATML)
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    """Workers without a process or a model; the files are real."""
    workers = FakeWorkers()
    monkeypatch.setattr("edgespec.cli.setup.job_models.Worker", workers)
    return workers


def lines_of(rows: Sequence[Any]) -> bytes:
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows).encode()


def write(home: Path, *rows: Any, name: str = "in.jsonl") -> None:
    (home / name).write_bytes(lines_of(rows))


def prompts(n: int, **settings: Any) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "prompt": f"p{number}", **settings} for number in range(n)]


def rows(data: bytes | Path) -> list[dict[str, Any]]:
    data = data.read_bytes() if isinstance(data, Path) else data
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]


def ids(data: bytes | Path) -> list[Any]:
    return [row["id"] for row in rows(data)]


def batch(home: Path, *args: str, stdin: bytes = b"", **variables: str) -> Finished:
    """Run `batch` in this process, with fake workers."""
    return edgespec_here("batch", *args, "-m", "tiny.gguf", "-n", "3", home=home, stdin=stdin, **variables)


# --- rows in, rows out ------------------------------------------------------------------------------------------------


def test_each_row_is_answered(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(5))
    done = batch(home, "in.jsonl", "-o", "out.jsonl", "--raw", "--seed", "1")
    assert (done.returncode, done.stdout) == (0, b"")
    assert sorted(ids(home / "out.jsonl")) == [f"r{number}" for number in range(5)]
    first = next(row for row in rows(home / "out.jsonl") if row["id"] == "r0")
    assert first["content"] == f"p0 {first['seed']} 0.."
    said = done.stderr.decode().splitlines()
    assert said[0] == "note: something to know"
    assert said[-1].startswith("5 rows · 15 tokens in ")
    assert said[-1].endswith(" tok/s · 1.0 tokens per step · out.jsonl")
    assert fake.engine.n_closed == 1


def test_stdin_and_stdout_will_do(home: Path, fake: FakeWorkers) -> None:
    done = batch(home, "-", "--raw", stdin=b'{"prompt": "a"}\n{"prompt": "b"}')
    assert (done.returncode, ids(done.stdout)) == (0, [1, 2])
    assert batch(home, "-", "-o", "-", "--raw", stdin=b'{"prompt": "a"}\n').returncode == 0


def test_odd_names_of_files_are_refused(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(1))
    for args in (["-o", "x" * 300], ["--grammar", "~nosuchuser/x.gbnf"]):
        done = batch(home, "in.jsonl", *args)
        assert done.returncode == 2
        assert "unexpected" not in done.stderr.decode()


def test_quiet_is_quiet(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2))
    assert batch(home, "in.jsonl", "-q").stderr == b""


def test_options_hold_for_rows_that_say_nothing_else(home: Path, fake: FakeWorkers) -> None:
    write(home, {"prompt": "a"}, {"prompt": "b", "temperature": 0.5, "regex": "a", "max_tokens": 2})
    args = ["--raw", "--temp", "0", "--stop", "x", "-j", "{}", "--logprobs", "1", "--verify", "block", "--ordered"]
    assert batch(home, "in.jsonl", *args).returncode == 0
    first, second = fake.engine.requests
    assert (first.sampling.temperature, first.stop, first.constraint) == (0, ("x",), ("json_schema", "{}"))
    assert (first.logprobs, first.verify, first.max_tokens) == (1, "block", 3)
    assert (second.sampling.temperature, second.constraint, second.max_tokens) == (0.5, ("regex", "a"), 2)


def test_samples_are_for_rows_that_say_nothing_else(home: Path, fake: FakeWorkers) -> None:
    write(home, {"prompt": "a"}, {"prompt": "b", "n": 1})
    assert batch(home, "in.jsonl", "-o", "out.jsonl", "--raw", "--samples", "2", "--ordered").returncode == 0
    first, second = rows(home / "out.jsonl")
    assert [choice["index"] for choice in first["choices"]] == [0, 1]
    assert second["content"].startswith("b ")
    other = batch(home, "in.jsonl", "-o", "out.jsonl", "--raw", "--samples", "3", "--ordered")
    assert other.returncode == 2
    assert b"n was 2, is now 3" in other.stderr


@pytest.mark.parametrize(
    ("args", "n_messages", "prompt"), [(["--chat"], 1, ""), (["--raw"], 0, "a"), ([], 1, ""), (["-s", "be"], 2, "")]
)
def test_a_prompt_is_a_question_where_there_is_a_template(
    home: Path, fake: FakeWorkers, args: list[str], n_messages: int, prompt: str
) -> None:
    write(home, {"prompt": "a"})
    assert batch(home, "in.jsonl", *args).returncode == 0
    (request,) = fake.engine.requests
    assert (len(request.messages), request.prompt) == (n_messages, prompt)


def test_without_a_template_a_prompt_is_a_text_to_go_on_from(home: Path, fake: FakeWorkers) -> None:
    write_model(home / "tiny.gguf", "llama")
    write(home, {"prompt": "a"})
    assert batch(home, "in.jsonl").returncode == 0
    assert fake.engine.requests[0].prompt == "a"


@pytest.mark.parametrize(("args", "sequences"), [([], 0), (["--parallel", "auto"], 0), (["--parallel", "7"], 7)])
def test_parallel_is_how_many_answers_there_are_at_a_time(
    home: Path, fake: FakeWorkers, args: list[str], sequences: int
) -> None:
    write(home, {"prompt": "a"})
    assert batch(home, "in.jsonl", *args).returncode == 0
    assert [settings.sequences for settings in fake.settings] == [sequences]


@pytest.mark.parametrize(
    ("n_rows", "args", "most"),
    [(1, [], 1), (3, [], 3), (3, ["--samples", "2"], 6), (3, ["--limit", "2"], 2), (40, [], 16)],
)
def test_no_more_answers_are_prepared_for_than_the_input_asks_for(
    home: Path, fake: FakeWorkers, n_rows: int, args: list[str], most: int
) -> None:
    write(home, *prompts(n_rows))
    assert batch(home, "in.jsonl", *args).returncode == 0
    assert [settings.most_sequences for settings in fake.settings] == [most]


def test_rows_that_are_done_or_bad_need_no_room(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(3))
    assert batch(home, "in.jsonl", "-o", "out.jsonl").returncode == 0
    write(home, *prompts(5), {"id": "bad"})
    assert batch(home, "in.jsonl", "-o", "out.jsonl").returncode == FailedRowsError.exit_code
    assert [settings.most_sequences for settings in fake.settings] == [3, 2]
    assert sorted(ids(home / "out.jsonl"), key=str) == ["bad", *(f"r{number}" for number in range(5))]


def test_a_pipe_may_bring_any_number_of_rows(home: Path, fake: FakeWorkers) -> None:
    assert batch(home, "-", stdin=b'{"prompt": "a"}\n').returncode == 0
    assert [settings.most_sequences for settings in fake.settings] == [16]


def test_order_limit_and_timings(home: Path, fake: FakeWorkers) -> None:
    write(home, {"id": "slow", "prompt": "a", "max_tokens": 9}, *prompts(9, max_tokens=1))
    assert ids(batch(home, "in.jsonl", "--limit", "4").stdout)[-1] == "slow"
    found = rows(batch(home, "in.jsonl", "--limit", "4", "--ordered", "--timings").stdout)
    assert [row["id"] for row in found] == ["slow", "r0", "r1", "r2"]
    assert found[0]["timings"]["predicted_n"] == 9


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["."], "cannot read ."),
        (["in.jsonl", "-o", "in.jsonl"], "with itself"),
        (["in.jsonl", "-o", "no/out.jsonl"], "there is no folder no"),
        (["in.jsonl", "--retry-errors"], "--retry-errors needs an output file"),
        (["in.jsonl", "-o", "-", "--overwrite"], "--overwrite needs an output file"),
        (["in.jsonl", "-o", "o", "--overwrite", "--retry-errors"], "leave out --retry-errors"),
        (["in.jsonl", "--parallel", "0"], "0"),
        (["in.jsonl", "--parallel", "257"], "257"),
        (["in.jsonl", "--parallel", "many"], "many"),
        (["in.jsonl", "--strict", "--parallel", "2"], "strict cannot be combined with several sequences"),
        (["in.jsonl", "--raw", "-s", "a"], "a system message needs chat mode"),
    ],
)
def test_what_cannot_be_meant_is_refused(home: Path, fake: FakeWorkers, args: list[str], reason: str) -> None:
    write(home, *prompts(1))
    done = batch(home, *args)
    assert (done.returncode, done.stdout) == (2, b"")
    assert reason in done.stderr.decode()
    assert not fake.settings


def test_a_model_that_is_not_there_leaves_nothing_behind(home: Path) -> None:
    write(home, *prompts(1))
    (home / "tiny.gguf").unlink()
    assert batch(home, "in.jsonl", "-o", "out.jsonl").returncode == 3
    assert sorted(file.name for file in home.iterdir()) == ["cache", "in.jsonl"]  # `environment` made one


# --- rows that fail ---------------------------------------------------------------------------------------------------


def test_rows_that_fail_are_reported_in_their_rows_and_by_the_exit_code(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2), "no json", {"id": "x", "prompt": "too long"}, {"id": "y", "prompt": "a", "wrong": 1})
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 6
    said = done.stderr.decode()
    assert " · 3 failed · " in said
    assert "3 of 5 rows failed; the first: line 3 is not JSON" in said
    assert "corrected lines are read again, other rows with --retry-errors" in said
    assert sum("error" in row for row in rows(home / "out.jsonl")) == 3
    again = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert again.returncode == 6
    assert "nothing to do: out.jsonl already has all 5 rows" in again.stderr.decode()
    assert "3 of 5 rows failed" in again.stderr.decode()
    assert sum("error" in row for row in rows(home / "out.jsonl")) == 3
    assert len(fake.settings) == 1  # invalid lines are reported without a model


def test_lines_that_were_fixed_are_answered_and_their_errors_go(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2), '{"id": "c", "promt": "a"}', "no json")
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 6
    assert "'promt' is not supported (meant: prompt?)" in done.stderr.decode()
    write(home, *prompts(2), {"id": "c", "prompt": "a"}, {"id": "d", "prompt": "b"})
    assert batch(home, "in.jsonl", "-o", "out.jsonl").returncode == 0
    assert ids(home / "out.jsonl") == ["r0", "r1", "c", "d"]


def test_rows_of_another_input_are_noticed(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(3))
    batch(home, "in.jsonl", "-o", "out.jsonl")
    write(home, *prompts(1), {"id": "x", "prompt": "a"})
    said = batch(home, "in.jsonl", "-o", "out.jsonl").stderr.decode()
    assert "2 rows of out.jsonl match no row of the input" in said


def test_failed_rows_are_asked_once_more_on_demand(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2), {"id": "x", "prompt": "fails"}, "no json")
    batch(home, "in.jsonl", "-o", "out.jsonl")
    write(home, *prompts(2), {"id": "x", "prompt": "works"}, {"id": "z", "prompt": "works"})
    assert batch(home, "in.jsonl", "-o", "out.jsonl", "--retry-errors").returncode == 0
    assert ids(home / "out.jsonl") == ["r0", "r1", "x", "z"]
    assert [request.messages[0].content for request in fake.engine.requests] == [
        "p0",
        "p1",
        "fails",
        "fails",
        "works",
        "works",
    ]


def test_the_output_of_other_rows_is_not_gone_on_with(home: Path, fake: FakeWorkers) -> None:
    write(home, {"prompt": "a"}, {"prompt": "b"})
    assert batch(home, "in.jsonl", "-o", "out.jsonl").returncode == 0
    before = (home / "out.jsonl").read_bytes()
    write(home, {"prompt": "a"}, {"prompt": "c"})
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 2
    assert "row 2 (line 2) has changed since it was answered" in done.stderr.decode()
    assert (home / "out.jsonl").read_bytes() == before


def test_a_constraint_that_nothing_fits_ends_it_before_anything_is_loaded(home: Path) -> None:
    write(home, *prompts(3))
    done = edgespec_alone("batch", "in.jsonl", "-o", "out.jsonl", *TINY, "--regex", r"[^\s\S]", home=home)
    assert done.returncode == 2
    assert "cannot use this regular expression: nothing can match it" in done.stderr.decode()
    assert not (home / "out.jsonl").exists()
    assert edgespec_alone("batch", "in.jsonl", "-o", "out.jsonl", *TINY, "-n", "2", home=home).returncode == 0


def test_answers_that_are_cut_off_before_they_fit_are_counted(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2), {"prompt": "cut", "json_schema": {}})
    done = batch(home, "in.jsonl", "-o", "out.jsonl", "-n", "2")
    assert done.returncode == 0
    assert '1 of these rows cut off by max_tokens (-n) before the constraint was met ("cut_off": true)' in (
        done.stderr.decode()
    )
    assert [row.get("cut_off") for row in rows(home / "out.jsonl")] == [None, None, True]


def test_a_model_that_dies_is_opened_again(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(3), {"id": "x", "prompt": "kills"})
    fake.engine.deaths = 1
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 0
    assert "note: llama.cpp crashed: it was told to; restarting it" in done.stderr.decode()
    assert done.stderr.count(b"something to know") == 1
    assert (len(fake.settings), fake.engine.n_closed, len(rows(home / "out.jsonl"))) == (2, 2, 4)


def test_a_model_that_dies_again_and_again_ends_it_and_the_same_command_goes_on(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(3), *({"id": f"k{number}", "prompt": "kills"} for number in range(20)))
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == GenerationError.exit_code
    assert "12 times without an answer" in done.stderr.decode()
    assert "the same command resumes" in done.stderr.decode()
    fake.engine.deaths = 0
    assert batch(home, "in.jsonl", "-o", "out.jsonl", "--retry-errors").returncode == 0
    assert len({*ids(home / "out.jsonl")}) == len(rows(home / "out.jsonl")) == 23


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_only_what_is_not_there_is_asked(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(6))
    batch(home, "in.jsonl", "-o", "out.jsonl", "--limit", "2")
    seeds = {row["id"]: row["seed"] for row in rows(home / "out.jsonl")}
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.stderr.decode().splitlines()[-1].startswith("4 rows")
    found = {row["id"]: row["seed"] for row in rows(home / "out.jsonl")}
    assert len(fake.engine.requests) == len(found) == 6
    assert found.items() > seeds.items()


def test_a_job_with_other_settings_does_not_go_on(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2))
    batch(home, "in.jsonl", "-o", "out.jsonl", "--limit", "1")
    done = batch(home, "in.jsonl", "-o", "out.jsonl", "--temp", "0", "-j", "{}")
    assert done.returncode == 2
    said = done.stderr.decode()
    assert "out.jsonl was made with different settings" in said
    assert 'json_schema was "", is now "{}"; temperature was 0.8, is now 0.0' in said
    assert batch(home, "in.jsonl", "-o", "out.jsonl", "--temp", "0", "--overwrite").returncode == 0
    assert len(rows(home / "out.jsonl")) == 2


def test_threads_drafts_and_the_like_may_change(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2))
    batch(home, "in.jsonl", "-o", "out.jsonl", "--limit", "1")
    args = ["--parallel", "3", "-t", "2", "--spec-type", "none", "-c", "512", "--ordered", "--timings"]
    assert batch(home, "in.jsonl", "-o", "out.jsonl", *args).returncode == 0


def test_a_file_that_no_batch_has_made_is_left_alone(home: Path, fake: FakeWorkers) -> None:
    write(home, *prompts(2))
    (home / "out.jsonl").write_text("precious\n")
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 2
    assert "it was not written by edgespec batch" in done.stderr.decode()
    assert (home / "out.jsonl").read_text() == "precious\n"


def test_an_input_without_rows_makes_an_output_without_rows(home: Path, fake: FakeWorkers) -> None:
    write(home, "")
    done = batch(home, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 0
    assert "there are no rows" in done.stderr.decode()
    assert (home / "out.jsonl").read_bytes() == b""
    assert not fake.settings


# --- progress ---------------------------------------------------------------------------------------------------------


def test_a_meter_tells_rows_failures_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("edgespec.batch.results.perf_counter", lambda: now_s)
    meter = Meter(n_before=40, n_all=100)
    meter.start()
    now_s += 5
    assert meter.progress() == ["40 of 100 rows", "0.0 rows/s", "0.0 tok/s"]
    for _ in range(9):
        meter.hear(TokenEvent(5, "a"))
        meter.add(RowResult({}, stats=(Stats(generated_tokens=6, rounds=4),)))
    meter.hear(TokenEvent(-1, "", finish_reason="stop"))
    meter.hear(GenerationError("no"))
    meter.add(RowResult({}, failure="line 3: bad"))
    now_s += 5
    assert meter.progress() == ["50 of 100 rows", "1 failed", "1.0 rows/s", "0.9 tok/s", "0:50 left"]
    assert meter.summary() == [
        "10 rows",
        "9 tokens in 10.0 s",
        "1 failed",
        "1.0 rows/s",
        "0.9 tok/s",
        "1.5 tokens per step",
    ]
    assert Meter(3).progress()[0] == "3 rows"
    assert [clock(seconds) for seconds in (5, 62, 3723)] == ["0:05", "1:02", "1:02:03"]


def test_a_terminal_shows_how_far_it_is(home: Path, fake: FakeWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.cli.terminal.output.Output.stderr_is_terminal", True)
    monkeypatch.setattr("edgespec.cli.commands.batch.SHOWN_S", -1.0)
    write(home, *prompts(3), {"prompt": "too long"}, *prompts(4)[3:])
    batch(home, "in.jsonl", "-o", "out.jsonl", "--limit", "1")
    said = batch(home, "in.jsonl", "-o", "out.jsonl", NO_COLOR="1").stderr.decode()
    assert "\r1 of 5 rows · " in said
    assert re.search(r"\r4 of 5 rows · 1 failed · [0-9.]+ rows/s · [0-9.]+ tok/s · 0:00 left", said)
    assert said.rpartition("\r")[2].lstrip().startswith("4 rows · ")
    assert "\r1 of 2 rows" in batch(home, "in.jsonl", "-o", "other.jsonl", "--limit", "2").stderr.decode()


# --- with a model -----------------------------------------------------------------------------------------------------


def test_an_answer_is_the_one_that_run_gives_for_its_seed(home: Path) -> None:
    write(home, {"id": "a", "prompt": "def f(x):", "max_tokens": 9, "temperature": 1.5}, {"id": "b", "prompt": "hi"})
    strict = [*TINY, "--strict", "--spec-type", "none", "--raw"]
    found = rows(edgespec_alone("batch", "in.jsonl", *strict, "-n", "12", "--parallel", "1", home=home).stdout)
    for row, prompt, settings in zip(
        found, ("def f(x):", "hi"), (["--temp", "1.5", "-n", "9"], ["-n", "12"]), strict=True
    ):
        ran = edgespec_alone("run", prompt, *strict, *settings, "--seed", str(row["seed"]), "--json", home=home)
        answer = json.loads(ran.stdout)
        assert row["content"] == answer["content"]
        assert (row["tokens"], row["finish_reason"]) == (len(answer["tokens"]), answer["finish_reason"])
    assert len(found) == 2


def test_what_the_engine_refuses_is_an_error_in_its_row(home: Path) -> None:
    write(
        home,
        {"id": "long", "prompt": "x " * 9000},
        {"id": "schema", "prompt": "a", "json_schema": {"type": "nonsense"}},
        {"id": "seed", "prompt": "a", "seed": -1},
        {"id": "bias", "prompt": "a", "logit_bias": {"99999": 1}},
        {"id": "role", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
        {"id": "json", "prompt": "a", "json_schema": {"enum": ["one"]}},
        {"id": "logprobs", "prompt": "a", "logprobs": 2, "n": 2, "max_tokens": 3},
    )
    done = edgespec_alone("batch", "in.jsonl", *TINY, "-c", "2048", "-n", "20", "--parallel", "3", home=home)
    assert done.returncode == 6
    found = {row["id"]: row for row in rows(done.stdout)}
    assert "the context holds 2048" in found["long"]["error"]["message"]
    assert "cannot use this JSON schema" in found["schema"]["error"]["message"]
    assert "seed must be an integer" in found["seed"]["error"]["message"]
    assert "a token id in logit_bias" in found["bias"]["error"]["message"]
    assert found["role"]["tokens"] <= 2
    assert found["json"]["content"] == '"one"'
    for choice in found["logprobs"]["choices"]:
        assert [len(token["top_logprobs"]) for token in choice["logprobs"]] == [2] * len(choice["logprobs"])
        best = choice["logprobs"][0]["top_logprobs"][0]
        assert best["text"]
        assert best["logprob"] <= 0


def test_a_row_of_openai_comes_back_as_its_object(home: Path) -> None:
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "logprobs": True, "n": 2}
    write(home, {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    (row,) = rows(edgespec_alone("batch", "in.jsonl", *TINY, home=home).stdout)
    assert (row["custom_id"], row["response"]["status_code"], row["error"]) == ("a", 200, None)
    body = row["response"]["body"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["model"] == "tiny.gguf"
    content = body["choices"][0]["logprobs"]["content"]
    assert (
        b"".join(bytes(token["bytes"]) for token in content)
        .decode("utf-8", "replace")
        .startswith(body["choices"][0]["message"]["content"].rstrip("\ufffd"))
    )


LONG = [{"id": number, "prompt": f"p{number}"} for number in range(20)]
SLOWLY = [*TINY, "--raw", "-n", "150", "--seed", "3", "--ignore-eos"]


@contextmanager
def started_with(home: Path, rows: Sequence[Any], *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """A batch that reads rows from a pipe, and does not end before the pipe is closed, as `communicate` does."""
    with started([*COMMAND, "batch", "-", "-o", "out.jsonl", *args], home, subprocess.PIPE) as program:
        write_to(program, rows)
        yield program


def write_to(program: subprocess.Popen[bytes], rows: Sequence[Any]) -> None:
    assert program.stdin is not None
    program.stdin.write(lines_of(rows))
    program.stdin.flush()


def until(holds: Callable[[], Any], program: subprocess.Popen[bytes]) -> None:
    while not holds() and program.poll() is None:
        time.sleep(0.01)
    assert program.poll() is None, "it was over too soon"


def n_rows(home: Path) -> int:
    file = home / "out.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


STRICT = [*SLOWLY, "--strict", "--spec-type", "none", "--parallel", "1"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    home = tmp_path_factory.mktemp("whole")
    write_model(home / "tiny.gguf", "llama", chat_template=CHATML)
    write(home, *LONG)
    done = edgespec_alone("batch", "in.jsonl", *STRICT, home=home)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.long(but=1)
@posix
@pytest.mark.parametrize(
    ("name", "code", "args"), [("SIGINT", 130, ["--ordered"]), ("SIGTERM", 143, []), ("SIGKILL", -9, [])]
)
def test_whatever_ends_it_the_same_command_goes_on_to_the_same_rows(
    home: Path, uninterrupted: bytes, name: str, code: int, args: Sequence[str]
) -> None:
    with started_with(home, LONG[:10], *STRICT, *args) as program:
        until(lambda: n_rows(home) >= 3, program)
        program.send_signal(getattr(signal, name))
        _, said = program.communicate(timeout=60)
    assert program.returncode == code
    assert 3 <= n_rows(home) <= 10
    if code > 0:
        assert said.decode().splitlines()[-1] == "note: the rows in out.jsonl are saved; the same command resumes"
        rows(home / "out.jsonl")
    rest = edgespec_alone("batch", "-", "-o", "out.jsonl", *STRICT, *args, home=home, stdin=lines_of(LONG))
    assert rest.returncode == 0
    assert (home / "out.jsonl").read_bytes() == uninterrupted


def test_a_job_that_ends_before_its_first_row_does_not_claim_any(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_settings: Any, _progress: Any, cancel: CancelFlag, *_: Any) -> NoReturn:
        cancel.set()
        raise LoadingStoppedError("stopped")

    monkeypatch.setattr("edgespec.cli.setup.job_models.Worker", stopped)
    write(home, *prompts(2))
    note = batch(home, "in.jsonl", "-o", "out.jsonl").stderr.decode().splitlines()[-1]
    assert note == "note: no row is saved yet; the same command starts again"


@pytest.mark.long
def test_a_slow_pipe_holds_up_neither_results_nor_ctrl_c(home: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "batch", "-", *TINY, "--raw", "-n", "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=home, env=environment(home),
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            for row in (b'{"id": "a", "prompt": "x"}\n', b'{"id": "b"}\n', b'{"id": "c", "prompt": "y"}\n'):
                program.stdin.write(row)
                program.stdin.flush()
                assert json.loads(program.stdout.readline())["id"] == json.loads(row)["id"]
            if os.name == "posix":
                program.send_signal(signal.SIGINT)
                assert program.wait(30) == 130
        finally:
            program.kill()


@pytest.mark.long
@posix
def test_a_worker_that_is_killed_costs_nothing_but_time(home: Path) -> None:
    with started_with(home, LONG[:10], *SLOWLY, "--parallel", "4") as program:
        until(lambda: n_rows(home) >= 3, program)
        for child in psutil.Process(program.pid).children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()
        write_to(program, LONG[10:])
        _, said = program.communicate(timeout=90)
    assert program.returncode == 0, said
    assert "restarting it" in said.decode()
    assert sorted(ids(home / "out.jsonl")) == list(range(20))


@posix
def test_a_job_that_is_being_written_is_not_begun_twice(home: Path) -> None:
    with started_with(home, LONG[:2], *SLOWLY) as program:
        until(lambda: n_rows(home) >= 1, program)
        other = edgespec_alone("batch", "-", "-o", "out.jsonl", *SLOWLY, home=home, stdin=lines_of(LONG))
    assert other.returncode == 2
    assert "another batch is writing to out.jsonl" in other.stderr.decode()


@pytest.mark.long
def test_a_reader_that_leaves_ends_it_as_a_failure(home: Path) -> None:
    write(home, *LONG)
    with subprocess.Popen(
        [*COMMAND, "batch", "in.jsonl", *SLOWLY, "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home,
        env=environment(home), stdin=subprocess.DEVNULL,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["tokens"] == 150
        program.stdout.close()
        assert program.wait(60) == 1
        assert program.stderr is not None
        assert b"the remaining rows are not answered: the reader of stdout has closed it" in program.stderr.read()


POISON = """
import os, sys
from edgespec.cli import main
from edgespec.llama.context import Context
from edgespec.llama.model import LlamaModel as Model
tokenize, decode, eaten = Model.tokenize, Context.decode, False
def tasting(self, text, *args, **more):
    global eaten
    eaten = eaten or "arsenic" in text
    return tokenize(self, text, *args, **more)
def dying(self, *args, **more):
    if eaten:
        os.abort()
    return decode(self, *args, **more)
Model.tokenize, Context.decode = tasting, dying  # the worker process imports this file, too
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.long
def test_a_row_that_kills_the_model_gets_an_error_and_takes_no_other_with_it(home: Path) -> None:
    (home / "poison.py").write_text(POISON)
    write(home, *({"id": n, "prompt": "with arsenic" if n == 2 else f"row {n}"} for n in range(5)))
    args = ["batch", "in.jsonl", "-o", "out.jsonl", "--parallel", "3", *TINY, "-n", "4"]
    done = subprocess.run(
        [sys.executable, "poison.py", *args], cwd=home, env=environment(home), capture_output=True, timeout=100
    )
    assert done.returncode == 6
    assert "1 of 5 rows failed" in done.stderr.decode()
    assert sorted(ids(home / "out.jsonl")) == list(range(5))
    failed = {row["id"]: row["error"]["type"] for row in rows(home / "out.jsonl") if "error" in row}
    assert failed == {2: "server_error"}


FULL = """
import resource, sys
from edgespec.cli import main
from edgespec.batch.output import OutputFile
begin = OutputFile.begin
def begin_on_a_small_disk(self):
    begin(self)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
OutputFile.begin = begin_on_a_small_disk
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.long
@posix
def test_a_full_disk_ends_it_and_the_same_command_goes_on(home: Path) -> None:
    write(home, *LONG)
    args = ["batch", "in.jsonl", "-o", "out.jsonl", *SLOWLY]
    (home / "full.py").write_text(FULL)
    done = subprocess.run(
        [sys.executable, "full.py", *args], cwd=home, env=environment(home), capture_output=True, timeout=100
    )
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "cannot write out.jsonl: File too large" in said
    assert "the same command resumes" in said
    assert 0 < len(rows(home / "out.jsonl")) < 20
    assert edgespec_alone(*args, home=home).returncode == 0
    assert sorted(ids(home / "out.jsonl")) == list(range(20))
