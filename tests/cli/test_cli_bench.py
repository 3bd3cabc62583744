"""`edgespec bench`: its modes and prompts, the files it writes, and the results of an interrupted run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_program import DEMO_ANSWERS, Finished, ctrl_c_in, edgespec_changed, edgespec_here, environment
from tiny_gguf import write_model
from tiny_head import write_head, write_hydra
from tiny_mtp import write_mtp

from edgespec.files.paths import write_whole

SHORT = ["bench", "-t", "1", "-n", "4", "--temp", "0", "--suite", "maths", "--per-category", "2"]
PROMPTS = """\
{"id": "a", "prompt": "1 + 1 ="}
not JSON

{"id": "b", "category": "sums", "prompt": "2 + 2 ="}
{"id": "a", "prompt": "again"}
"""


@pytest.fixture(scope="module")
def tiny(home: Path) -> Path:
    return write_model(home / "tiny.gguf", "llama")


def bench(home: Path, *args: str) -> Finished:
    return edgespec_here(*SHORT, *args, home=home)


def written(file: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return result


@pytest.mark.long
def test_a_disk_that_is_full_for_a_while_loses_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial results cannot be written, the final result can."""
    tried: list[int] = []

    def write_whole_later(file: Path, text: str) -> None:
        tried.append(len(json.loads(text)["samples"]))
        if not json.loads(text)["complete"]:
            raise OSError(28, "No space left on device")
        write_whole(file, text)

    monkeypatch.setattr("edgespec.cli.commands.bench.write_whole", write_whole_later)
    done = bench(home, "--mode", "draft auto", "--json", "full.json")
    assert (done.returncode, done.stderr) == (0, DEMO_ANSWERS)
    assert len(tried) > 1 and tried == sorted(tried)
    assert len(written(home / "full.json")["samples"]) == tried[-1]


def test_it_measures_the_bundled_pair_and_shows_a_table(home: Path) -> None:
    done = bench(home, "--json", "all.json")
    table, result = done.stdout.decode(), written(home / "all.json")
    assert (done.returncode, done.stderr) == (0, DEMO_ANSWERS)
    assert result["modes"] == [
        "plain", "suffix,recycling,draft auto", "suffix auto", "recycling auto", "draft auto",
        *(f"draft fixed:{k}" for k in (1, 2, 3, 4, 6, 8)),
    ]  # fmt: skip
    for mode in result["modes"]:
        assert f"\n{mode} " in table
    assert max(map(len, table.splitlines())) <= 80
    assert "\x1b" not in table
    assert {sample["item"] for sample in result["samples"]} == {"maths-01", "maths-02"}


@pytest.mark.long
def test_modes_and_temperatures_can_be_chosen(home: Path) -> None:
    args = ["demo", "--mode", "fixed:2", "--mode", "suffix", "--temp", "0.5", "--repeat", "2", "--per-category", "1"]
    done = bench(home, *args, "--json", "-")
    result = json.loads(done.stdout)
    assert result["modes"] == ["plain", "draft fixed:2", "suffix auto"]
    assert {sample["temperature"] for sample in result["samples"]} == {0.0, 0.5}
    assert len(result["samples"]) == 3 * 2 * 2


def test_a_result_keeps_the_command_without_folders_and_is_compared_with_another(home: Path) -> None:
    bench(home, "--mode", "suffix fixed:2", f"--json={home / 'typed.json'}")
    result = written(home / "typed.json")
    assert result["command"] == f"edgespec {' '.join(SHORT)} --mode 'suffix fixed:2' --json=typed.json"
    assert str(home) not in json.dumps(result)
    (home / "other.json").write_bytes((home / "typed.json").read_bytes())
    done = edgespec_here("bench", "--compare", "typed.json", "other.json", home=home)
    assert done.returncode == 0
    assert b"\nsuffix fixed:2 " in done.stdout
    assert edgespec_here("bench", "--compare", "typed.json", "c.json", home=home).returncode == 2


def test_prompts_come_from_a_file_and_its_bad_lines_are_reported(home: Path) -> None:
    (home / "prompts.jsonl").write_text(PROMPTS, "utf-8")
    args = [*SHORT[:7], "--mode", "plain", "--json", "-", "--prompts", "prompts.jsonl"]
    done = edgespec_here(*args, home=home)
    assert [(sample["category"], sample["item"]) for sample in json.loads(done.stdout)["samples"]] == [
        ("other", "a"), ("sums", "b"),
    ]  # fmt: skip
    said = done.stderr.removeprefix(DEMO_ANSWERS).decode().splitlines()
    assert [line.rpartition("prompts.jsonl: ")[2][:7] for line in said] == ["line 2:", "line 5:"]
    done = edgespec_here(*args, "--suite", "sums", home=home)
    assert [sample["item"] for sample in json.loads(done.stdout)["samples"]] == ["b"]
    done = edgespec_here(*args, "--suite", "tales", home=home)
    assert (done.returncode, done.stdout) == (2, b"")


def test_without_a_draft_it_says_so_and_measures_the_rest(home: Path, tiny: Path) -> None:
    done = bench(home, str(tiny), "--json", "-")
    assert json.loads(done.stdout)["modes"] == [
        "plain", "suffix,recycling auto", "suffix auto", "recycling auto", "suffix fixed:4", "suffix fixed:8",
    ]  # fmt: skip
    assert b"note: no draft model was given (-md)" in done.stderr


def test_settings_for_run_are_taken_as_far_as_they_concern_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "edgespec.toml").write_text('ctx-size = 512\ntemp = 0.3\nspec-type = "suffix"\n', "utf-8")
    done = edgespec_here(*SHORT, "--mode", "plain", "--json", "-", home=tmp_path, EDGESPEC_HOME=str(home))
    result = json.loads(done.stdout)
    assert (result["settings"]["ctx_size"], result["temperatures"]) == (512, [0.0])
    (tmp_path / "edgespec.toml").write_text("temperature = 0.3\n", "utf-8")
    assert edgespec_here(*SHORT, home=tmp_path, EDGESPEC_HOME=str(home)).returncode == 2


# --- heads and MTP blocks ---------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("eagle3", "suffix,recycling,eagle3"),
        ("hydra", "suffix,recycling,hydra"),
        ("mtp", "suffix,recycling,mtp"),
        ("", "suffix,recycling"),
    ],
)
def test_all_are_the_drafters_that_can_be_loaded(tmp_path: Path, kind: str, every: str) -> None:
    target = tmp_path / "target.gguf"
    write_mtp(target) if kind == "mtp" else write_model(target, "llama", n_layers=4)
    head = ["-md", str(tmp_path / "head.gguf")] if kind in ("eagle3", "hydra") else []
    if head:
        write_hydra(Path(head[1])) if kind == "hydra" else write_head(Path(head[1]), has_vocabulary=False)
    modes = ["all auto", *(["draft fixed:2"] if head else ["suffix fixed:2"])]
    asked = [option for mode in modes for option in ("--mode", mode)]
    done = bench(tmp_path, str(target), *head, *asked, "--json", "-")
    result = json.loads(done.stdout)
    assert result["modes"] == ["plain", f"{every} auto", modes[1]]
    assert not [message for message in result["messages"] if "skipped" in message]
    assert {sample["mode"] for sample in result["samples"]} == {*result["modes"]}
    assert len({(sample["item"], *sample["tokens"]) for sample in result["samples"]}) == 2
    if head:
        drafted = [sample["timings"]["draft_n"] for sample in result["samples"] if sample["mode"] == modes[1]]
        assert all(drafted)
        assert result["models"]["draft"]["name"] == "head"


# --- errors before anything is measured -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--json", "nowhere/x.json"], "nowhere/x.json cannot be written"),
        (["--json", "folder.json"], "is a directory"),
        (["--plot", "x.pdf"], ".png or .svg"),
        (["--mode", "fast"], "unknown word 'fast'"),
        (["--suite", "poems"], "poems"),
        (["--temp", "1e-9"], "temperature"),
        (["-m", "demo", "demo"], "two models were given"),
        (["-m", "tiny.gguf", "--mode", "draft fixed:2"], "mode draft fixed:2 needs a draft model"),
        (["-m", "tiny.gguf", "--mode", "hydra fixed:2"], "mode hydra fixed:2 needs a draft head"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(home: Path, tiny: Path, args: list[str], said: str) -> None:
    (home / "folder.json").mkdir(exist_ok=True)
    environment(home)
    there = set(home.iterdir())
    done = bench(home, *args)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()
    assert set(home.iterdir()) == there


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_ctrl_c_shows_and_writes_what_there_is(home: Path) -> None:
    code = ctrl_c_in("edgespec.bench.measure", "Runner.answer", call=6)  # two to warm up
    args = [*SHORT, "--mode", "suffix", "--repeat", "100", "-n", "300", "--json", "stopped.json"]
    done = edgespec_changed(code, *args, home=home)
    result = written(home / "stopped.json")
    assert done.stderr.startswith(DEMO_ANSWERS)
    assert done.returncode == 130
    assert not result["complete"]
    assert 4 <= len(result["samples"]) < 100
    assert b"\nstopped " in done.stdout
    assert b"\nsuffix auto " in done.stdout


def test_when_the_model_fails_what_there_is_is_shown_and_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.bench.measure import Runner
    from edgespec.errors import GenerationError

    real, calls = Runner.answer, iter(range(100))

    def fail_late(self: Runner, *args: Any) -> Any:
        if next(calls) == 4:
            raise GenerationError("decoding failed")
        return real(self, *args)

    monkeypatch.setattr(Runner, "answer", fail_late)
    done = bench(home, "--mode", "suffix", "--json", "failed.json")
    assert done.returncode == 1
    assert done.stderr == DEMO_ANSWERS + b"edgespec: decoding failed\n"
    assert written(home / "failed.json")["failure"] == "decoding failed"
    assert b"\nplain " in done.stdout
