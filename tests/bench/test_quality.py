"""Perplexity and divergence over a text: against llama.cpp's figures, and against decoding token by token."""

from __future__ import annotations

import io
import json
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_program import DEMO_ANSWERS, Finished, ctrl_c_in, edgespec_changed, edgespec_here
from numpy.typing import NDArray
from tiny_gguf import write_model

from edgespec.bench import WINDOW, quality
from edgespec.bench.measure import TimeLeft
from edgespec.bench.quality import (
    MOST_BYTES,
    ROWS,
    Perplexity,
    Quality,
    ReferenceRows,
    compare_with,
    default_limit,
    default_text,
    divergence,
    exp_of_mean,
    keep_rows,
    log_softmax,
    opened,
    perplexity,
    read_text,
    room_for_rows,
    windows,
)
from edgespec.bench.targets import make_quant
from edgespec.cancel import CancelFlag
from edgespec.cli.terminal.output import Output
from edgespec.errors import GenerationError, UsageError
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings

TARGET, DRAFT = resolve("demo").path, resolve("demo:draft").path
SETTINGS = LoadSettings("demo", threads=1)
SIZE = 40  # of a window: its half is 20, of which 19 count
# What llama-perplexity of this llama.cpp prints for the bundled target over the default text, -c 512 -t 1
LLAMA_CPP = {1: 63.5992, 2: 42.1963}
# and with --kl-divergence for the Q4_K_M of it, over the first two windows
LLAMA_CPP_KL, LLAMA_CPP_SAME_TOP = 0.02463, 0.90980


def in_windows(text: str, size: int = SIZE, limit: int | None = 3) -> list[list[int]]:
    with LlamaModel.load_vocabulary(TARGET) as model:
        return windows(model, text, size, limit)


def measured(path: Path, text: Sequence[Sequence[int]], cancel: CancelFlag | None = None) -> Perplexity | None:
    with opened(path, SETTINGS, len(text[0]), lambda note: None, lambda done: None) as context:
        return perplexity(context, text, lambda done, total: None, cancel or CancelFlag())


def compared(path: Path, text: Sequence[Sequence[int]], rows: ReferenceRows) -> Quality:
    with opened(path, SETTINGS, len(text[0]), lambda note: None, lambda done: None) as context:
        return compare_with(rows, context, text, lambda done, total: None, CancelFlag())


def kept(path: Path, text: Sequence[Sequence[int]], rows: ReferenceRows) -> None:
    with opened(path, SETTINGS, len(text[0]), lambda note: None, lambda done: None) as context:
        keep_rows(context, text, rows, lambda done, total: None, CancelFlag())


def one_by_one(path: Path, text: Sequence[Sequence[int]]) -> list[tuple[int, NDArray[np.float64]]]:
    """Compute the counted tokens and their probabilities by the definition, with passes over one token."""
    found = []
    with LlamaModel(path) as model, Context(model, ContextParams(n_ctx=len(text[0]), threads=1)) as context:
        for window in text:
            context.forget(0)
            for place, token in enumerate(window[:-1]):
                context.decode([token], [place], [(0,)], [True])
                if place >= len(window) // 2:
                    exponentials = np.exp(context.logits(0).astype(np.float64))
                    found.append((window[place + 1], exponentials / exponentials.sum()))
    return found


# --- a text -----------------------------------------------------------------------------------------------------------


def test_windows_follow_each_other_and_begin_with_bos() -> None:
    text = default_text()
    with LlamaModel.load_vocabulary(TARGET) as model:
        tokens, found = model.tokenize(text, add_special=True), windows(model, text, 50)
        assert model.adds_bos
    assert len(found) == len(tokens) // 50
    assert {window[0] for window in found} == {tokens[0]}
    for number, window in enumerate(found):
        assert window[1:] == tokens[50 * number + 1 : 50 * (number + 1)]


def test_a_model_without_bos_reads_its_windows_as_they_are(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", metadata={"tokenizer.ggml.add_bos_token": False})
    with LlamaModel.load_vocabulary(path) as model:
        assert [token for window in windows(model, "words " * 50, 16) for token in window][:64] == model.tokenize(
            "words " * 50
        )[:64]


@pytest.mark.parametrize(("text", "said"), [("", "the text is empty"), ("too short", "shorter than one window")])
def test_a_text_without_a_window_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        in_windows(text)


def test_a_file_is_read_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo\n\n")
    assert read_text(tmp_path / "a") == "one\r\ntwo\n"
    (tmp_path / "b").write_bytes(b"abc\xff")
    with pytest.raises(UsageError, match="byte 4 is invalid"):
        read_text(tmp_path / "b")
    with pytest.raises(UsageError, match="cannot read"):
        read_text(tmp_path / "c")


# --- perplexity -------------------------------------------------------------------------------------------------------


def test_it_is_llama_cpps(home: Path) -> None:
    found = measured(TARGET, in_windows(default_text(), 512, 1))
    assert found is not None
    assert found.value == pytest.approx(LLAMA_CPP[1], rel=0.005)
    assert (found.windows, found.positions) == (1, 255)


@pytest.mark.parametrize("rows", [ROWS, 12])  # of a window 19 are wanted: the latter reads them in two passes
def test_it_is_that_of_passes_over_one_token(rows: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Passes over 64 tokens and more round differently from narrower ones, which is no error, but shifts the mean of a
    # few hundred losses by up to half a per cent. The windows of `test_it_is_llama_cpps` are read in such passes.
    assert SIZE < 64
    monkeypatch.setattr(quality, "ROWS", rows)
    text = in_windows(default_text(), SIZE, 2)
    losses = [-math.log(row[token]) for token, row in one_by_one(TARGET, text)]
    found = measured(TARGET, text)
    assert found is not None
    assert found.positions == len(losses) == 2 * (SIZE - 1 - SIZE // 2)
    assert found.value == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-3)
    spread = math.sqrt(sum((loss - sum(losses) / len(losses)) ** 2 for loss in losses) / len(losses))
    assert found.standard_error == pytest.approx(found.value * spread / math.sqrt(len(losses) - 1), rel=1e-2)


@pytest.mark.parametrize("architecture", ["gemma3", "mamba"])
def test_other_memories_begin_each_window_anew(architecture: str, home: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", architecture, n_ctx=64)
    with LlamaModel.load_vocabulary(path) as model:
        text = windows(model, default_text(), 64, 1)
    once, twice = measured(path, text), measured(path, text * 2)
    assert once is not None and twice is not None
    assert twice.value == pytest.approx(once.value, rel=1e-6)


def test_a_random_model_wavers_between_all_tokens(home: Path, tmp_path: Path) -> None:
    zeros = write_model(
        tmp_path / "m.gguf", "llama", tensors={"output_norm.weight": np.zeros(64, np.float32)}, n_ctx=64
    )
    with LlamaModel.load_vocabulary(zeros) as model:
        text, n_vocab = windows(model, default_text(), 32, 1), model.n_vocab
    found = measured(zeros, text)
    assert found is not None and found.value == pytest.approx(n_vocab, rel=1e-4)


def test_stopped_before_the_end_it_is_that_of_the_windows_before(home: Path) -> None:
    text, cancel = in_windows(default_text()), CancelFlag()

    def stop(done: int, total: int) -> None:
        if done == 2:
            cancel.set()

    with opened(TARGET, SETTINGS, SIZE, lambda note: None, lambda done: None) as context:
        found = perplexity(context, text, stop, cancel)
        assert perplexity(context, text, stop, cancel) is None
    whole = measured(TARGET, text[:2])
    assert found is not None and whole is not None
    assert found.windows == 2
    assert found.value == pytest.approx(whole.value, rel=1e-6)


def test_weights_are_not_repacked_if_the_settings_say_so(home: Path) -> None:
    settings = replace(SETTINGS, repack=False)
    with opened(TARGET, settings, SIZE, lambda note: None, lambda done: None) as context:
        assert context.fingerprint["extra_buffers"] is False


def test_what_is_no_number_is_an_error() -> None:
    for row in ([0.0, math.nan], [math.inf, 0.0]):
        with pytest.raises(GenerationError, match="not numbers"):
            log_softmax(np.array(row, np.float32))
    assert log_softmax(np.array([1000, 1000, -math.inf], np.float32)) == pytest.approx([-math.log(2)] * 2 + [-math.inf])


def test_a_mean_has_a_standard_error() -> None:
    value, error = exp_of_mean([1.0, 3.0])
    assert value == pytest.approx(math.e**2)
    assert error == pytest.approx(math.e**2)  # both are 1 away from 2, and one is free


# --- divergence -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_quantisation_is_as_far_as_llama_cpp_says(home: Path) -> None:
    text = in_windows(default_text(), 512, 2)
    with room_for_rows(8192, 512, 2) as rows:
        kept(TARGET, text, rows)
        found = compared(make_quant(TARGET, "Q4_K_M"), text, rows)
    assert rows.quality.perplexity == pytest.approx(LLAMA_CPP[2], rel=0.005)
    assert found.kl == pytest.approx(LLAMA_CPP_KL, rel=0.02)
    assert found.same_top == pytest.approx(LLAMA_CPP_SAME_TOP, abs=0.01)


def test_it_is_that_of_rows_one_by_one(home: Path) -> None:
    text = in_windows(default_text())
    ours, theirs = one_by_one(TARGET, text), one_by_one(DRAFT, text)
    expected = [float(np.sum(p * np.log(p / q))) for (_, p), (_, q) in zip(ours, theirs, strict=True)]
    losses = [[-math.log(row[token]) for token, row in found] for found in (ours, theirs)]
    with room_for_rows(8192, SIZE, len(text)) as rows:
        kept(TARGET, text, rows)
        found = compared(DRAFT, text, rows)
    assert found.positions == len(expected) == 3 * 19
    assert found.kl == pytest.approx(np.mean(expected), rel=5e-3)
    assert found.kl_median == pytest.approx(np.median(expected), rel=2e-2)
    assert found.kl_99 == pytest.approx(np.quantile(expected, 0.99), rel=2e-2)
    same = np.mean([p.argmax() == q.argmax() for (_, p), (_, q) in zip(ours, theirs, strict=True)])
    assert found.same_top == pytest.approx(same, abs=1.5 / 57)  # a tie may turn
    assert found.perplexity_ratio == pytest.approx(math.exp(np.mean(losses[1]) - np.mean(losses[0])), rel=5e-3)


def test_a_file_is_not_far_from_itself(home: Path) -> None:
    text = in_windows(default_text(), 128, 4)
    with room_for_rows(8192, 128, 4) as rows:
        kept(TARGET, text, rows)
        found = compared(TARGET, text, rows)
    assert 0 <= found.kl < 1e-6
    assert found.kl_99 < 1e-5
    assert (found.same_top, found.perplexity_ratio) == (1.0, 1.0)
    assert rows.quality == replace(found, kl=0.0, kl_error=0.0, kl_median=0.0, kl_99=0.0)


def test_tokens_that_cannot_come_add_nothing() -> None:
    with np.errstate(divide="ignore"):
        p, q = np.log([0.5, 0.5, 0.0]), np.log([0.25, 0.75, 0.0])
    assert divergence(p, q) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert divergence(q, p) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


# --- rows on disk -----------------------------------------------------------------------------------------------------


def test_rows_stay_below_a_gigabyte() -> None:
    assert default_limit(8192, 512) == default_limit(151_936, 512) == 12
    assert MOST_BYTES > 2 * 151_936 * 255 * 12
    assert 2 * 262_144 * 255 * default_limit(262_144, 512) <= MOST_BYTES
    assert default_limit(10**9, 512) == 1


def test_rows_are_gone_afterwards(home: Path) -> None:
    folder = home / "cache" / "compare"
    text = in_windows(default_text())
    with room_for_rows(8192, SIZE, len(text)) as rows:
        kept(TARGET, text, rows)
        assert [int(row.argmax()) for row in rows] == rows.likeliest
    with pytest.raises(CancelledError), room_for_rows(8192, SIZE, 1):
        raise CancelledError
    assert not list(folder.iterdir())


def test_without_room_nothing_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="may not fit into"), room_for_rows(10**6, 512, 10**7):
        pytest.fail("there was room")
    (home / "cache").rename(home / "elsewhere")
    (home / "cache").write_text("no folder", encoding="utf-8")
    with room_for_rows(8192, 512, 1) as rows:  # in the folder of temporary files
        assert rows is not None
    (home / "cache").unlink()
    (home / "elsewhere").rename(home / "cache")


def test_a_disk_that_is_full_in_the_middle_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quality, "log_probabilities", full)
    with pytest.raises(UsageError, match="No space left"), room_for_rows(8192, SIZE, 1) as rows:
        kept(TARGET, in_windows(default_text()), rows)


# --- time and the command ---------------------------------------------------------------------------------------------


def test_time_left_is_reported_between_begin_and_end() -> None:
    left = TimeLeft(4)
    assert (left.line("reading"), left.share) == ("reading", 0)
    left.done = 1
    assert left.line("reading").startswith("reading, ") and left.share == 0.25
    left.done = 4
    assert (left.line("reading"), left.share) == ("reading", 1)


def test_a_log_file_hears_now_and_then_how_far_something_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = io.StringIO(), 0.0
    monkeypatch.setattr("sys.stderr", log)
    monkeypatch.setattr("edgespec.cli.terminal.output.monotonic", lambda: now)
    output, quiet = Output(quiet=False), Output(quiet=True)
    for now in (1000.0, 1029.0, 1030.0, 1050.0, 1061.0):
        output.progress(f"at {now:.0f}", 0.5)
        output.note("unasked")  # does not end it
        quiet.progress("unheard", None)
    output.end_progress()
    for now in (1100.0, 1129.0, 1130.0):  # another thing, of which the first seconds are not told either
        output.progress(f"at {now:.0f}", None)
    lines = [line for line in log.getvalue().splitlines() if line != "note: unasked"]
    assert lines == ["at 1030  50%", "at 1061  50%", "at 1130"]


def command(home: Path, *args: str) -> Finished:
    return edgespec_here("perplexity", "-t", "1", *args, home=home)


def test_the_command_shows_what_was_found(home: Path) -> None:
    done = command(home, "demo", "--limit", "2")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[1].split()[0] == "perplexity" and lines[1].split()[1].startswith("42.")
    assert lines[2].split(maxsplit=1) == ["counted", "510 tokens of 2 windows of 512"]
    result = json.loads(command(home, "-m", "demo", "--limit", "1", "-c", "128", "--json").stdout)
    assert (result["window"], result["positions"], result["complete"]) == (128, 63, True)
    assert list(result) == [
        "model", "text", "window", "value", "standard_error", "positions", "windows", "seconds", "tokens_per_s",
        "complete",
    ]  # fmt: skip


def test_a_configured_context_does_not_change_the_figure(home: Path, tmp_path: Path) -> None:
    (tmp_path / "edgespec.toml").write_text("ctx-size = 128\n", encoding="utf-8")
    done = edgespec_here("perplexity", "-t", "1", "--limit", "1", "--json", home=tmp_path, EDGESPEC_HOME=str(home))
    assert json.loads(done.stdout)["window"] == 512


def test_every_option_is_there_once() -> None:
    from edgespec.cli.commands.perplexity import perplexity as declared

    assert next(param.default for param in declared.params if param.name == "window") == WINDOW
    names = [name for param in declared.params for name in param.opts]
    assert len(names) == len(set(names))
    assert {"--model", "--ctx-size", "--threads", "--cache-type-v", "--gpu-layers"} <= set(names)
    assert "--gpu-layers-draft" not in names


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        (["--text", "empty.txt"], "the text is empty", 2),
        (["--text", "short.txt"], "it has 2 tokens, a window 512", 2),
        (["--text", "missing.txt"], "cannot read the text", 2),
        (["-c", "2"], "2 is not in the range", 2),
        (["nothing.gguf"], "nothing.gguf", 3),
    ],
)
def test_what_cannot_be_read_is_refused(home: Path, args: list[str], said: str, code: int) -> None:
    (home / "empty.txt").write_bytes(b"")
    (home / "short.txt").write_bytes(b"a")
    done = command(home, *args)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode()


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.long
def test_ctrl_c_shows_what_there_is(home: Path) -> None:
    code = ctrl_c_in("edgespec.bench.quality", "log_probabilities", call=2)
    done = edgespec_changed(code, "perplexity", "-t", "1", home=home)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == DEMO_ANSWERS
    assert b"of 63 windows" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_ctrl_c_before_the_first_window_says_that_nothing_was_found(home: Path) -> None:
    code = ctrl_c_in("edgespec.bench.quality", "log_probabilities")
    done = edgespec_changed(code, "perplexity", "-t", "1", "--limit", "1", "-c", "1024", home=home)
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, b"")
    assert done.stderr == DEMO_ANSWERS + b"note: stopped before the first window was read\n"
