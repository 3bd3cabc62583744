"""Trying files out: a build that crashes, a file that crashes, and what is remembered of both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from textwrap import indent

import pytest
from tiny_gguf import Value, write_model

from edgespec.errors import GenerationError, ModelFileError, ModelNotFoundError, OutOfMemoryError
from edgespec.gguf_file.model_check import check_model
from edgespec.llama import trial
from edgespec.llama.model import Placement
from edgespec.llama.trial import KNOWN_GOOD, extra_buffers_work, self_check
from edgespec.models.names.spec import resolve
from edgespec.processes import child
from edgespec.processes.child import Limits, Meter

# A child that answers each question with `reply` after its own lines. It notes the files, and can crash and report.
CHILD = """
import json, os, signal, sys
from pathlib import Path
def crash():
    os.abort() if os.name == "nt" else os.kill(os.getpid(), signal.SIGILL)
def begin(stage):
    print(json.dumps({{"progress": stage}}), flush=True)
print("{{}}", flush=True)
for line in sys.stdin:
    question, reply = json.loads(line), {{}}
    file, extra_buffers = Path(question["path"]).name, question["extra_buffers"]
    with open({starts!r}, "a", encoding="utf-8") as starts:
        print(file, int(extra_buffers), file=starts)
{lines}
    print(json.dumps(reply), flush=True)
"""
CRASHES_WITH_EXTRA_BUFFERS = "if extra_buffers: crash()"
NEVER_CRASHES = ""


class Build:
    """A stand-in for the child process: a real process that ends as its lines say."""

    def __init__(self, folder: Path, lines: str) -> None:
        self._starts = folder / "starts.txt"
        script = folder / "child.py"
        script.write_text(CHILD.format(starts=str(self._starts), lines=indent(lines, "    ")), encoding="utf-8")
        self.command = (sys.executable, "-I", "-S", str(script))

    def starts(self) -> list[str]:
        """Which files were tried since the last look, with (1) or without (0) extra buffers."""
        try:
            lines = self._starts.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        self._starts.unlink()
        return lines


MakeBuild = Callable[[str], Build]


@pytest.fixture
def make_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBuild:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    return lambda lines: Build(tmp_path, lines)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def no_warning(text: str) -> None:
    raise AssertionError(f"unexpected warning: {text}")


# --- the build --------------------------------------------------------------------------------------------------------


def test_a_build_that_survives_keeps_its_extra_buffers(make_build: MakeBuild, model: Path) -> None:
    build = make_build(NEVER_CRASHES)
    assert extra_buffers_work(model, no_warning, build.command)
    assert build.starts() == ["draft.gguf 1", "model.gguf 1"]


def test_a_build_that_dies_with_extra_buffers_runs_without_and_warns_once(make_build: MakeBuild, model: Path) -> None:
    build, warnings = make_build(CRASHES_WITH_EXTRA_BUFFERS), list[str]()
    assert not extra_buffers_work(model, warnings.append, build.command)
    assert build.starts() == ["draft.gguf 1", "draft.gguf 0", "model.gguf 0"]
    assert len(warnings) == 1
    assert "repacking is disabled" in warnings[0]
    assert self_check(build.command) == "works without extra buffers"


@pytest.mark.parametrize("lines", [NEVER_CRASHES, CRASHES_WITH_EXTRA_BUFFERS])
def test_what_was_found_is_remembered(lines: str, make_build: MakeBuild, model: Path) -> None:
    build = make_build(lines)
    first = extra_buffers_work(model, lambda _: None, build.command)
    assert build.starts()
    assert extra_buffers_work(model, lambda _: None, build.command) is first
    assert build.starts() == []


def test_a_new_build_is_asked_again(make_build: MakeBuild, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra_buffers_work(model, lambda _: None, make_build(CRASHES_WITH_EXTRA_BUFFERS).command)
    mended = make_build(NEVER_CRASHES)
    mended.starts()
    monkeypatch.setattr(trial, "build_id", lambda: "a build made with another compiler")
    assert extra_buffers_work(model, no_warning, mended.command)
    assert mended.starts() == ["draft.gguf 1", "model.gguf 1"]


def test_a_build_that_dies_of_everything_is_blamed_and_not_the_file(make_build: MakeBuild, model: Path) -> None:
    build = make_build("crash()")
    for starts in (["draft.gguf 1", "draft.gguf 0"], []):
        with pytest.raises(GenerationError, match=r"this build of llama\.cpp crashes"):
            extra_buffers_work(model, no_warning, build.command)
        assert build.starts() == starts


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_file_that_llama_cpp_dies_of_is_refused_and_the_others_keep_their_extra_buffers(
    make_build: MakeBuild, model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    build = make_build("if file == 'model.gguf': crash()")
    with pytest.raises(ModelFileError, match=r"llama\.cpp crashed in a trial load") as raised:
        extra_buffers_work(model, no_warning, build.command)
    assert str(model) in raised.value.what
    assert raised.value.hint
    assert extra_buffers_work(other, no_warning, build.command)


def test_a_file_that_changed_is_tried_again(make_build: MakeBuild, model: Path) -> None:
    build = make_build(NEVER_CRASHES)
    extra_buffers_work(model, no_warning, build.command)
    build.starts()
    model.write_bytes(b"GGUF, longer")
    extra_buffers_work(model, no_warning, build.command)
    assert build.starts() == ["model.gguf 1"]


@pytest.mark.parametrize("kind", [ModelFileError, ModelNotFoundError, OutOfMemoryError])
def test_the_reason_of_a_child_that_refuses_is_passed_on(
    kind: type[ModelFileError], make_build: MakeBuild, model: Path
) -> None:
    build = make_build(
        f"said = dict(error='{kind.__name__}', what='cannot', why='too odd \u00e4', hint='try another')\n"
        f"if file == 'model.gguf': reply = said"
    )
    for _ in range(2):
        with pytest.raises(kind) as raised:
            extra_buffers_work(model, no_warning, build.command)
        assert (raised.value.what, raised.value.why, raised.value.hint) == ("cannot", "too odd ä", "try another")
    assert build.starts() == ["draft.gguf 1", "model.gguf 1", "model.gguf 1"]


# --- limits -----------------------------------------------------------------------------------------------------------

BEGINS = "if file == 'model.gguf': begin('while reading the tokenizer (rwkv)')\n"
SPINS = BEGINS + "while file == 'model.gguf': pass"
GROWS = "import time\nlot = []\n" + BEGINS + "while 'model' in file: time.sleep(0.001); lot.append(b'x' * 1_000_000)"
SLEEPS = "import time\n" + BEGINS + "while file == 'model.gguf': time.sleep(1)"


@pytest.mark.parametrize(
    ("lines", "limits", "why"),
    [
        (SPINS, Limits(0.1, inf, inf), "llama.cpp did not finish reading the tokenizer (rwkv) within 0 s"),
        (GROWS, Limits(inf, inf, 1e8), "llama.cpp took more than 100.0 MB of memory for reading the tokenizer (rwkv)"),
        (SLEEPS, Limits(inf, 0.1, inf), "llama.cpp did not finish reading the tokenizer (rwkv) within 0 s"),
    ],
    ids=["time", "memory", "clock"],
)
def test_a_trial_that_exceeds_a_limit_is_ended_and_says_at_what(
    lines: str, limits: Limits, why: str, make_build: MakeBuild, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "TOKENIZER_LIMITS", limits)
    build = make_build(lines)
    with pytest.raises(ModelFileError) as raised:
        extra_buffers_work(model, no_warning, build.command)
    assert raised.value.why == why
    assert raised.value.hint


@pytest.mark.slow
def test_a_large_file_that_is_mapped_is_not_counted(
    make_build: MakeBuild, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are memory of the process before llama.cpp reports the first progress."""
    monkeypatch.setattr(trial, "TOKENIZER_LIMITS", Limits(inf, inf, 1e8))
    os.truncate(model, 400_000_000)
    lines = f"import mmap, time\nheld = open({str(model)!r}, 'rb')\n" + BEGINS
    lines += "if file == 'model.gguf': pages = mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ)\n"
    lines += "if file == 'model.gguf': sum(pages[::4096]); time.sleep(0.5)\n"
    assert extra_buffers_work(model, no_warning, make_build(lines).command)


def test_the_time_begins_anew_with_each_report_of_progress(
    make_build: MakeBuild, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a large file may take hours on a slow disk."""
    made = list[Meter]()

    def metered(pid: int) -> Meter:
        made.append(Meter(pid))
        return made[-1]

    monkeypatch.setattr(child, "Meter", metered)
    lines = "for _ in range(3 * (file == 'model.gguf')): begin('while loading the weights')"
    assert extra_buffers_work(model, no_warning, make_build(lines).command)
    assert len(made) == 2 + 1 + 4  # two children that start and try a file; one reports three times


def test_a_crash_names_what_llama_cpp_was_doing(make_build: MakeBuild, model: Path) -> None:
    build = make_build(BEGINS + "if file == 'model.gguf': crash()")
    with pytest.raises(ModelFileError, match=r"crashed in a trial load, while reading the tokenizer \(rwkv\)"):
        extra_buffers_work(model, no_warning, build.command)


# --- what is no trial -------------------------------------------------------------------------------------------------


def test_a_child_that_fails_before_it_tries_says_why_and_condemns_nothing(make_build: MakeBuild, model: Path) -> None:
    build = make_build("sys.exit('no module named numpy')")
    for _ in range(2):
        with pytest.raises(GenerationError, match="no module named numpy"):
            extra_buffers_work(model, no_warning, build.command)
    assert build.starts() == ["draft.gguf 1", "model.gguf 1"] * 2


@pytest.mark.skipif(os.name == "nt", reason="processes end by signals on POSIX systems only")
def test_ctrl_c_during_the_self_check_is_no_crash(make_build: MakeBuild) -> None:
    build = make_build("signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)")
    with pytest.raises(KeyboardInterrupt):
        self_check(build.command)
    assert self_check(make_build(NEVER_CRASHES).command) == "works"


@pytest.mark.skipif(os.name == "nt", reason="processes end by signals on POSIX systems only")
def test_a_killed_child_means_no_memory_and_not_a_damaged_file(make_build: MakeBuild, model: Path) -> None:
    build = make_build("if file == 'model.gguf': os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(OutOfMemoryError, match="memory runs out"):
        extra_buffers_work(model, no_warning, build.command)
    assert extra_buffers_work(model, no_warning, make_build(NEVER_CRASHES).command)


@pytest.mark.skipif(os.name != "nt", reason="Windows has exit codes of its own for crashes")
@pytest.mark.parametrize(("code", "crash"), [(0xC0000005, True), (0xC000001D, True), (3, True), (1, False)])
def test_crashes_are_distinguished_from_failures_on_windows(code: int, crash: bool) -> None:
    assert trial._is_crash(code) is crash


def test_without_a_cache_every_start_tries_again(
    make_build: MakeBuild, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "file"))
    build = make_build(CRASHES_WITH_EXTRA_BUFFERS)
    for _ in range(2):
        warnings = list[str]()
        assert not extra_buffers_work(model, warnings.append, build.command)
        assert ["repacked" in warning for warning in warnings] == [True]
        assert build.starts() == ["draft.gguf 1", "draft.gguf 0", "model.gguf 0"]


# --- the driver of a GPU ----------------------------------------------------------------------------------------------

ON_GPU: Placement = {"gpu_layers": 9, "devices": ("Vulkan0",)}
CRASHES_ON_GPU = "if question['placement']: crash()"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The version of the driver, which can be changed."""
    found = ["1.0"]
    monkeypatch.setattr(trial, "identities", lambda names: [[name, *found] for name in names])
    return found


def test_a_driver_that_crashes_is_blamed_and_not_the_file(
    make_build: MakeBuild, model: Path, driver: list[str]
) -> None:
    build = make_build(CRASHES_ON_GPU)
    with pytest.raises(GenerationError, match="on the CPU the model works") as raised:
        extra_buffers_work(model, no_warning, build.command, **ON_GPU)
    assert "`gpu_layers=0`" in raised.value.hint and "download" not in str(raised.value)
    assert extra_buffers_work(model, no_warning, build.command)


def test_a_driver_that_is_too_slow_is_blamed_and_not_the_file(
    make_build: MakeBuild, model: Path, driver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "DRIVER_WAIT_S", 0.2)
    build = make_build("if question['placement']: __import__('time').sleep(60)")
    with pytest.raises(GenerationError, match=r"did not finish .* the GPU's driver is to blame"):
        extra_buffers_work(model, no_warning, build.command, **ON_GPU)


def test_a_file_that_crashes_on_the_cpu_too_is_to_blame(make_build: MakeBuild, model: Path, driver: list[str]) -> None:
    with pytest.raises(ModelFileError, match="download it again"):
        extra_buffers_work(model, no_warning, make_build("if file == 'model.gguf': crash()").command, **ON_GPU)


def test_another_driver_is_another_trial(make_build: MakeBuild, model: Path, driver: list[str]) -> None:
    build = make_build(NEVER_CRASHES)
    tried = []
    for version in ("1.0", "1.0", "2.0"):
        driver[0] = version
        extra_buffers_work(model, no_warning, build.command, **ON_GPU)
        tried.append([start for start in build.starts() if start.startswith("model.gguf")])
    extra_buffers_work(model, no_warning, build.command)
    assert [len(starts) for starts in [*tried, build.starts()]] == [1, 0, 1, 1]


# --- the real child ---------------------------------------------------------------------------------------------------


def test_the_self_check_tries_a_quantised_model() -> None:
    assert resolve("demo:draft").path == KNOWN_GOOD
    assert "Q8_0" in {tensor.type for tensor in check_model(KNOWN_GOOD).tensors.values()}


@pytest.mark.native
def test_the_real_child_takes_the_bundled_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_build: MakeBuild
) -> None:
    # A folder with a module of a name that the child needs is no trap.
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    without = extra_buffers_work(KNOWN_GOOD, lambda _: None) is False
    assert self_check() == ("works without extra buffers" if without else "works")
    # Both answers stand in the cache: a child that would refuse everything is not started any more.
    build = make_build("sys.exit(1)")
    extra_buffers_work(KNOWN_GOOD, lambda _: None, build.command)
    assert build.starts() == []


@pytest.mark.native
def test_the_real_child_refuses_with_the_reason(make_build: MakeBuild, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(KNOWN_GOOD.read_bytes()[:5000])
    with pytest.raises(ModelFileError) as raised:
        extra_buffers_work(broken, lambda _: None)
    with pytest.raises(ModelFileError) as expected:
        check_model(broken)
    assert str(raised.value) == str(expected.value)


@pytest.mark.native
@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("metadata", "tensor_type"),
    [
        ({}, (b"blk.0.attn_q.weight", 26)),  # I32
        ({"llama.expert_used_count": 2}, None),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 3}, None),
        ({"llama.rope.scaling.type": "twisted"}, None),
        ({"general.alignment": 8, "general.author": "x"}, None),
    ],
)
def test_the_real_child_finds_what_the_header_check_does_not(
    make_build: MakeBuild, tmp_path: Path, metadata: dict[str, Value | None], tensor_type: tuple[bytes, int] | None
) -> None:
    path = write_model(tmp_path / "broken.gguf", "llama", metadata=metadata)
    if tensor_type:
        data, (name, kind) = path.read_bytes(), tensor_type
        at = data.index(name) + len(name) + 4 + 2 * 8
        path.write_bytes(data[:at] + kind.to_bytes(4, "little") + data[at + 4 :])
    check_model(path)
    with pytest.raises(ModelFileError, match="crashed in a trial load"):
        extra_buffers_work(path, lambda _: None)
