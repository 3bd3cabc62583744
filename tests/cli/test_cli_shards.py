"""`batch --shard` and `--merge`: the same rows as one job, or an error that names what does not match."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from cli_program import Finished, edgespec_here, environment
from fake_stream import FakeWorkers
from tiny_gguf import CHATML, write_model

from edgespec.batch import merge
from edgespec.batch.input import Shard
from edgespec.batch.output import OutputFile

BODY = {"messages": [{"role": "user", "content": "p"}]}
ROWS: list[Any] = [
    *({"id": f"r{number}", "prompt": f"p{number}"} for number in range(12)),
    "no JSON",
    {"prompt": "without an id", "n": 2},
    {"id": "r3", "prompt": "a duplicate"},
    {"id": "odd", "prompt": "p", "nosuch": 1},
    {"id": "one that fails", "prompt": "it fails"},
    {"custom_id": "o", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
    {"custom_id": "o2", "method": "GET", "url": "/v1/chat/completions", "body": BODY},
    "[]",
    "",
    {"id": 22, "prompt": '\u2028 ", "input_line": 3}'},
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("edgespec.cli.setup.job_models.Worker", FakeWorkers())
    write_model(tmp_path / "tiny.gguf", "llama", chat_template=CHATML)
    write(tmp_path, ROWS)
    return tmp_path


def write(home: Path, rows: Sequence[Any]) -> None:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
    (home / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def batch(home: Path, *args: str, source: str = "in.jsonl", stdin: bytes = b"") -> Finished:
    return edgespec_here("batch", source, *args, "-m", "tiny.gguf", "-n", "3", home=home, stdin=stdin)


def shards(home: Path, *args: str, n: int = 3) -> list[str]:
    """Return the outputs of all shards."""
    names = [f"part{index}" for index in range(n)]
    for index, name in enumerate(names):
        assert batch(home, "-o", name, "--shard", f"{index}/{n}", *args).returncode in (0, 6)
    return names


def merged(home: Path, parts: Sequence[str], *args: str, into: str = "merged") -> Finished:
    return edgespec_here("batch", "--merge", *parts, "-o", into, *args, home=home)


def refusal(home: Path, parts: Sequence[str], *args: str, into: str = "merged") -> str:
    """Return why shards cannot be merged, and check that nothing has changed."""
    before = {file: file.read_bytes() for file in home.iterdir() if file.is_file() and file.suffix != ".lock"}
    done = merged(home, parts, *args, into=into)
    assert done.returncode == 2
    assert {file: file.read_bytes() for file in home.iterdir() if file.is_file() and file.suffix != ".lock"} == before
    return done.stderr.decode()


def test_an_id_is_in_one_shard_which_stays_the_same() -> None:
    for id in ("a", "", "ä\ud800", 5, -1):
        assert [Shard(index, 7).holds(id) for index in range(7)].count(True) == 1
    assert [index for index in range(100) if Shard(index, 100).holds("r1")] == [58]


@pytest.mark.parametrize("args", [[], ["--ordered"]])
def test_merged_shards_are_what_one_job_writes(home: Path, args: list[str]) -> None:
    assert batch(home, "-o", "one", "--seed", "0", "--ordered").returncode == 6
    done = merged(home, list(reversed(shards(home, *args))))
    assert done.returncode == 6  # as one job
    assert "21 rows of 3 shards · merged\n" in done.stderr.decode()
    assert (home / "merged").read_bytes() == (home / "one").read_bytes()
    assert (home / "merged.job.json").read_bytes() == (home / "one.job.json").read_bytes()
    assert all((home / f"part{index}").stat().st_size for index in range(3))


def test_few_shards_are_open_at_a_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[BinaryIO]()

    def watched(part: merge._Part) -> BinaryIO:
        assert sum(not file.closed for file in opened) < 2
        opened.append(part.path.open("rb"))
        return opened[-1]

    assert batch(home, "-o", "one", "--seed", "0", "--ordered").returncode == 6
    parts = shards(home, n=5)
    monkeypatch.setattr(merge, "MOST_OPEN", 2)
    monkeypatch.setattr(merge, "_opened", watched)
    assert merged(home, parts).returncode == 6
    assert (home / "merged").read_bytes() == (home / "one").read_bytes()
    assert all(file.closed for file in opened)


def test_a_merged_file_is_resumed_as_any_other(home: Path) -> None:
    merged(home, shards(home))
    write(home, [{"id": "odd", "prompt": "p"} if each == ROWS[15] else each for each in ROWS])
    assert batch(home, "-o", "merged").returncode == 6
    rows = [json.loads(line) for line in (home / "merged").read_text().splitlines()]
    assert [row["id"] for row in rows if row.get("content")].count("odd") == 1
    assert len(rows) == 21
    other = batch(home, "-o", "merged", "--temp", "0")
    assert "temperature was 0.8, is now 0" in other.stderr.decode()


def test_a_shard_of_a_pipe_will_do(home: Path) -> None:
    parts = shards(home)
    done = batch(home, "-o", "piped", "--shard", "1/3", source="-", stdin=(home / "in.jsonl").read_bytes())
    assert done.returncode in (0, 6)
    assert merged(home, [parts[0], "piped", parts[2]]).returncode == 6


def test_rows_that_are_added_later_are_answered_by_their_shards(home: Path) -> None:
    shards(home)
    write(home, [*ROWS, {"id": "new", "prompt": "p"}])
    done = merged(home, shards(home))
    assert "22 rows of 3 shards" in done.stderr.decode()
    assert json.loads((home / "merged").read_text().splitlines()[-1])["id"] == "new"


# --- errors -----------------------------------------------------------------------------------------------------------


def test_missing_and_double_shards_are_named(home: Path) -> None:
    parts = shards(home)
    assert "each shard is needed once: 0/3 is missing, 2/3 is missing" in refusal(home, [parts[1]])
    assert "each shard is needed once: 1/3 is given twice" in refusal(home, [*parts, parts[1]])
    assert "cannot merge nothing: there is no such file" in refusal(home, [*parts, "nothing"])
    assert (
        "part0 and other are of different jobs: number of shards is 3 in part0, 4 in other"
        in (
            batch(home, "-o", "other", "--shard", "0/4"),
            refusal(home, [*parts, "other"]),
        )[1]
    )


def test_other_settings_are_named_with_both_values(home: Path) -> None:
    parts = shards(home)
    batch(home, "-o", "part2", "--shard", "2/3", "--overwrite", "--temp", "0", "--seed", "9")
    said = refusal(home, parts)
    assert "part0 and part2 are of different jobs: " in said
    assert "seed is 0 in part0, 9 in part2; " in " ".join(said.split())
    assert "temperature is 0.8 in part0, 0.0 in part2" in " ".join(said.split())


def test_another_input_is_noticed(home: Path) -> None:
    parts = shards(home)
    write(home, [*ROWS, {"id": "new", "prompt": "p"}])
    batch(home, "-o", "part1", "--shard", "1/3")
    said = refusal(home, parts)
    assert "part0 and part1 are of different jobs: input is " in said
    assert "; lines is 22 in part0, 23 in part1" in " ".join(said.split())


def test_a_shard_that_was_stopped_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputFile, "finish", lambda self, inventory: None)
    parts = shards(home)
    assert "is not finished\n  run its command again" in refusal(home, parts)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda lines: lines[:-1], "part0: it has 5 rows, and shard 0/3 of the input 6"),
        (lambda lines: [*lines, lines[1]], "of the input has another result in part0"),
        (lambda lines: [*lines, b'{"id": 1, "input_line": 99}\n'], "its line 7 is not a result of this input"),
        (lambda lines: [*lines, b'{"id": 1}\n'], "its line 7 is not a result of this input"),
        (lambda lines: [*lines, lines[1][:-3]], "its line 7 is not a result of this input"),
    ],
)
def test_rows_that_are_missing_double_or_damaged_are_named(
    home: Path, damage: Callable[[list[bytes]], list[bytes]], reason: str
) -> None:
    parts = shards(home)
    file = home / "part0"
    file.write_bytes(b"".join(damage(file.read_bytes().splitlines(keepends=True))))
    assert reason in refusal(home, parts)


def test_files_that_are_not_of_shards_are_refused(home: Path) -> None:
    parts = shards(home)
    batch(home, "-o", "plain")
    assert "cannot merge plain: it is not the output of a shard (--shard)" in refusal(home, [*parts, "plain"])
    assert "in.jsonl.job.json in its folder is missing or damaged" in refusal(home, [*parts, "in.jsonl"])
    said = batch(home, "-o", "part0").stderr.decode()
    assert 'shard was "0/3", is now null' in said


def test_a_file_that_is_there_is_replaced_on_demand_and_never_a_part(home: Path) -> None:
    parts = shards(home)
    (home / "merged").write_text("precious\n")
    assert "merged exists" in refusal(home, parts)
    assert "cannot merge part1 into itself" in refusal(home, parts, "--overwrite", into="part1")
    assert merged(home, parts, "--overwrite").returncode == 6
    assert "precious" not in (home / "merged").read_text()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["in.jsonl", "--shard", "0/2"], "--shard needs an output file"),
        (["in.jsonl", "-o", "o", "--shard", "4/4"], "'4/4' is not i/n, such as 0/4 to 3/4"),
        (["in.jsonl", "-o", "o", "--shard", "1"], "'1' is not i/n, such as 0/4"),
        (["in.jsonl", "-o", "o", "--shard", "0/0"], "'0/0' is not i/n"),
        (["in.jsonl", "in.jsonl", "-o", "o"], "batch reads one input, not 2"),
        (["--merge", "in.jsonl"], "--merge needs an output file"),
        (["--merge", "in.jsonl", "-o", "o", "-n", "3", "--shard", "0/2"], "--shard cannot be combined with --merge"),
    ],
)
def test_what_cannot_be_meant_is_refused(home: Path, args: list[str], reason: str) -> None:
    done = edgespec_here("batch", *args, home=home)
    assert done.returncode == 2
    assert reason in done.stderr.decode()


FULL = """
import resource, signal, sys
from edgespec.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files")
def test_a_full_disk_leaves_everything_as_it_was(home: Path) -> None:
    parts = shards(home)
    before = sorted(file.name for file in home.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", FULL, "batch", "--merge", *parts, "-o", "merged"],
        cwd=home, env=environment(home), capture_output=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot write merged: File too large\n  the parts are unchanged" in done.stderr.decode()
    assert sorted(file.name for file in home.iterdir() if file.name != "merged.job.lock") == before
