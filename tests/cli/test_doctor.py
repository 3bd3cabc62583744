"""`edgespec doctor`: what it tells about a machine, a build and a model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_program import edgespec
from click.testing import CliRunner, Result
from terminal import at_terminal, read_rest
from tiny_gguf import write_model

from edgespec import __version__
from edgespec.cli.commands.doctor import doctor
from edgespec.cli.render.machine_rows import SELF_CHECK
from edgespec.cli.setup.gpus import Gpu, how_to_use
from edgespec.errors import ModelFileError
from edgespec.llama import trial

MACHINE = [
    "edgespec", "llama-cpp-python", "Python", "library", "packages", "system", "build CPU", "BLAS", "CPU", "GPU",
    "self-check", "threads", "memory", "terminal", "config", "cache", "data", "settings", "hub cache", "hub", "advice",
]  # fmt: skip
MODEL = ["model", "file", "architecture", "weights", "vocabulary", "chat template", "context", "parameters", "KV cache"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", width=256, type="Q8_0")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_to_improve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice in this process depends on the test alone, and not on the machine that runs the test."""
    monkeypatch.setattr("edgespec.cli.setup.machine_report.processor_flags", set)
    monkeypatch.setattr("edgespec.cli.setup.gpus.gpus_here", list)
    monkeypatch.setattr("edgespec.models.hub.repository.free_bytes", lambda: 5_000_000_000)


def labels(text: str) -> list[str]:
    """The first column of a report, up to its table; several pieces of advice count as one."""
    lines = text.partition("\nrounding")[0].splitlines()
    found = (re.sub(r"^advice \d+", "advice", line[:18].strip()) for line in lines)
    return list(dict.fromkeys(filter(None, found)))


def told(text: str) -> str:
    """A report without its line breaks."""
    return " ".join(text.split())


def run(*args: str) -> Result:
    return CliRunner().invoke(doctor, args, catch_exceptions=False)


def facts(*args: str) -> dict[str, Any]:
    result = run("--json", *args)
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# --- the machine ------------------------------------------------------------------------------------------------------


def test_without_a_model_it_tells_about_the_machine(tmp_path: Path) -> None:
    done = edgespec("doctor", home=tmp_path)
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    # A machine may have more devices and backends than a CPU, and then no line that says what it lacks.
    found = [label for label in labels(text) if label in MACHINE]
    assert found == [label for label in MACHINE if label not in ("GPU", "BLAS") or label in found]
    assert f"edgespec          {__version__}\n" in text
    assert re.search(r"^self-check        quantised models work", text, re.MULTILINE)
    assert re.search(r"^threads +[1-9]\d* by default \(-t\); \d+ physical and \d+ logical", text, re.MULTILINE)


def test_a_report_is_plain_text_of_80_columns(home: Path, tiny: Path) -> None:
    text = run(str(tiny)).stdout
    assert re.search(r"[^\n\x20-\x7e]", text.replace(str(home), "")) is None
    # Only what has no space in it, such as a long path, and commands to be copied may be longer.
    commands = [advice["command"] for advice in facts()["advice"]]
    long = [line for line in text.splitlines() if len(line) > 80 and line.strip() not in commands]
    assert [line for line in long if " " in line[18:]] == []
    assert not re.search(r" $", text, re.MULTILINE)


def test_json_says_the_same(home: Path) -> None:
    found = facts()
    assert found["edgespec"] == __version__
    assert found["model"] is None
    assert found["self_check"] in SELF_CHECK
    assert 1 <= found["threads"] <= found["logical_cores"]
    assert 0 < found["memory_available_bytes"] <= found["memory_total_bytes"]
    assert "CPU" in found["build"]
    assert [device["kind"] for device in found["devices"]].count("CPU") == 1
    assert found["folders"]["cache"] == {"path": str(home / "home" / "cache"), "writable": True}


def test_a_folder_that_cannot_be_written_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, where a folder should be")
    done = edgespec("doctor", home=tmp_path, EDGESPEC_HOME=str(tmp_path / "home"))
    assert done.returncode == 0
    assert done.stdout.decode().count("(not writable)") == 3
    assert "the data folder is not writable: conversations and answers cannot be saved;" in told(done.stdout.decode())


@pytest.mark.parametrize(
    ("found", "said", "code"),
    [
        (
            "works without extra buffers",
            "repacking is disabled (GCC 12 miscompiles AMX code): slower than necessary;",
            0,
        ),
        ("crashes", "advice quantised models crash: no such model can be loaded", 1),
    ],
)
def test_a_build_that_crashes_is_pointed_out(
    found: str, said: str, code: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "self_check", lambda: found)
    result = run()
    assert result.exit_code == code
    assert said in told(result.stdout)
    monkeypatch.setattr("edgespec.cli.setup.gpus.sys.prefix", str(home))  # not a checkout's own environment
    assert "pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python==" in run().stdout


def test_a_gpu_that_this_build_does_not_use_is_reported_with_the_line_that_fixes_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.setup.gpus.gpus_here", lambda: [Gpu("RTX 4090", "cuda")])
    monkeypatch.setattr("edgespec.llama.library.supports_gpu", lambda: False)
    text = run().stdout
    assert "GPU               none in this build, but there is one: RTX 4090\n" in text
    assert f"\n{' ' * 18}{how_to_use(Gpu('RTX 4090', 'cuda'))}\n" in text
    monkeypatch.setattr("edgespec.cli.setup.gpus.sys.prefix", str(home))  # not a checkout's own environment
    assert "DGGML_CUDA=on" in how_to_use(Gpu("RTX 4090", "cuda"))


@pytest.mark.parametrize(
    ("has", "uses", "unused", "cost"),
    [
        ({"sse3", "avx2"}, "SSE3 = 1", "AVX2", "prefill and draft verification are slower than necessary"),
        ({"avx2", "amx_int8"}, "AVX2 = 1", "AMX_INT8", "a build with it needs clang or GCC 13.3"),
        ({"avx2"}, "AVX2 = 1", "", ""),
    ],
)
def test_instructions_that_this_build_leaves_unused_are_reported(
    has: set[str], uses: str, unused: str, cost: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.setup.machine_report.processor_flags", lambda: has)
    monkeypatch.setattr("edgespec.llama.library.build_flags", lambda: f"CPU : {uses} | ")
    monkeypatch.setattr(trial, "self_check", lambda: "works")
    advice = facts()["advice"]
    assert len(advice) == bool(unused)
    if advice:
        assert f"does not use {unused}, which" in advice[0]["problem"]
        assert cost in advice[0]["cost"]
        assert "llama" in advice[0]["command"] or "scripts" in advice[0]["command"]


def test_several_pieces_of_advice_are_numbered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.cli.setup.machine_report.processor_flags", lambda: {"amx_int8"})
    monkeypatch.setattr("edgespec.llama.library.build_flags", lambda: "CPU : AVX2 = 1 | ")
    monkeypatch.setattr(trial, "self_check", lambda: "crashes")
    text = told(run().stdout)
    assert "advice 1 quantised models crash: " in text
    assert "advice 2 this build does not use AMX_INT8" in text


def test_a_token_is_reported_and_never_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hf_secret@mirror.example/hub")
    text = told(run().stdout)
    assert "hub offline (HF_HUB_OFFLINE): no downloads, token in HF_TOKEN, at https://mirror.example/hub" in text
    assert "hf_secret" not in text + run("--json").stdout


def test_a_token_file_is_looked_for_where_huggingface_hub_keeps_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "elsewhere" / "hub"))
    assert facts()["hub"]["token"] == ""
    (home / "hf").mkdir()
    (home / "hf" / "token").write_text("hf_secret")
    assert facts()["hub"]["token"] == str(home / "hf" / "token")
    assert "hf_secret" not in run().stdout


def test_a_hub_cache_that_is_not_there_yet_is_no_fault(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "none" / "hub"))
    assert re.search(r"hub cache +\S+none.hub, does not exist yet, \d+\.\d [GMk]B free", " ".join(run().stdout.split()))
    (home / "none").write_text("a file, where a folder should be")
    text = told(run().stdout)
    assert "(not writable)" in text
    assert "the hub cache is not writable: no model can be downloaded; set HF_HOME to another place" in text


def test_a_hub_cache_with_hardly_any_room_is_pointed_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.models.hub.repository.free_bytes", lambda: 5_000_000)
    text = told(run().stdout)
    assert "only 5.0 MB are free on the disk of the hub cache: most models are larger;" in text
    assert "edgespec ls --sort size" in text
    monkeypatch.setattr("edgespec.models.hub.repository.free_bytes", lambda: 5_000_000_000)
    assert "are free on the disk of the hub cache" not in told(run().stdout)


def test_downloads_that_are_not_complete_are_counted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    blobs = home / "hub" / "models--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    for number, said in ((1, "1 repository (1 download incomplete)"), (2, "1 repository (2 downloads incomplete)")):
        (blobs / f"{str(number) * 64}.incomplete").write_bytes(b"x")
        assert said in told(run().stdout)


def test_settings_are_named_and_their_values_are_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_SYSTEM", "my secret")
    text = run().stdout
    assert "EDGESPEC_SYSTEM" in text
    assert "my secret" not in text + run("--json").stdout


def test_a_terminal_gets_colours_and_a_pipe_none(tmp_path: Path) -> None:
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        with at_terminal(tmp_path, ["doctor", "-q"], **variables) as (program, master):
            text = read_rest(master)
            assert program.wait(60) == 0
        # Green or, if this build runs them without repacked weights, yellow
        assert bool(re.search("\x1b\\[3[23]mquantised models work", text)) == coloured
        assert ("\x1b" in text) == coloured
    assert b"\x1b" not in edgespec("doctor", home=tmp_path).stdout


# --- a model ----------------------------------------------------------------------------------------------------------


def test_with_a_model_it_tells_what_it_is_and_how_it_rounds(tiny: Path, tmp_path: Path) -> None:
    done = edgespec("doctor", str(tiny), home=tmp_path)
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert labels(text)[-len(MODEL) :] == MODEL
    assert "architecture      llama, 2 layers, width 256\n" in text
    assert re.search(r"^rounding +largest logit difference", text, re.MULTILINE)
    table = text.partition("after 512 tokens\n")[2].partition("\n\n")[0]
    widths = [int(line.split()[0]) for line in table.splitlines()]
    assert widths == sorted(widths) and widths[0] == 2 and widths[-1] == 32
    assert {len(line.split()) for line in table.splitlines()} == {3}
    assert re.search(r"\nafter 64  +rows .*\n(.*\n)*\nafter 512  +rows ", text)


def test_json_holds_the_model_and_its_rounding(home: Path, tiny: Path) -> None:
    model = facts(str(tiny))["model"]
    assert (model["path"], model["size_bytes"]) == (str(tiny), tiny.stat().st_size)
    assert (model["architecture"], model["layers"], model["width"], model["ctx_trained"]) == ("llama", 2, 256, 2048)
    assert list(model["bytes_by_type"]) == ["Q8_0", "F32"]
    assert model["can_roll_back"]
    assert [rounding["n_past"] for rounding in model["rounding"]] == [64, 512]
    for rounding in model["rounding"]:
        assert len(rounding["differences"]) == len(rounding["widths"])
        assert rounding["summary"].startswith("rows ")


def test_a_short_context_is_measured_as_far_as_it_goes(home: Path, tmp_path: Path) -> None:
    short = write_model(tmp_path / "short.gguf", "llama", n_ctx=256)
    assert [rounding["n_past"] for rounding in facts(str(short))["model"]["rounding"]] == [64]
    shortest = write_model(tmp_path / "shortest.gguf", "llama", n_ctx=64)
    assert "too short to measure" in run(str(shortest)).stdout


def test_a_model_without_rollback_is_told_apart(home: Path, tmp_path: Path) -> None:
    mamba = write_model(tmp_path / "mamba.gguf", "mamba")
    result = run(str(mamba))
    assert result.exit_code == 0
    assert "KV cache          cannot be rolled back" in result.stdout
    assert "after 64 tokens" not in result.stdout


# --- no model ---------------------------------------------------------------------------------------------------------


def test_a_broken_model_ends_with_code_3_after_the_machine(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    done = edgespec("doctor", "broken.gguf", home=tmp_path)
    assert done.returncode == ModelFileError.exit_code == 3
    assert "self-check" in labels(done.stdout.decode())
    assert "model" not in labels(done.stdout.decode())
    assert done.stderr.startswith(b"edgespec: broken.gguf")
    assert b"Traceback" not in done.stderr


def test_in_json_the_machine_is_reported_with_what_is_wrong_with_the_model(tmp_path: Path) -> None:
    (tmp_path / "there.gguf").write_bytes(b"")
    done = edgespec("doctor", "--json", "there.gguf", home=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["edgespec"]) == (3, __version__)
    assert set(found["model"]) == {"path", "error"}
    assert "is empty" in found["model"]["error"]
    assert found["model"]["error"].splitlines()[0] in done.stderr.decode()


def test_a_missing_model_ends_with_code_3_before_anything_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "there.gguf").write_bytes(b"")
    for args in ([], ["--json"]):
        done = edgespec("doctor", *args, "their.gguf", home=tmp_path)
        assert (done.returncode, done.stdout) == (3, b"")
        assert b"did you mean there.gguf?" in done.stderr
