"""`edgespec compare`: files and their labels, saved parts, figures and conclusions."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_program import Finished, ctrl_c_in, edgespec_changed, edgespec_here
from other_vocabulary import permute_vocabulary
from rich.console import Console
from tiny_gguf import write_model

from edgespec.bench import targets
from edgespec.bench.comparison import (
    ComparedFile,
    Comparison,
    ComparisonPlan,
    ComparisonRow,
    caveats,
    conclusions,
    nats,
    rows_of,
    run_comparison,
    table,
    times_as_fast,
    with_best,
)
from edgespec.bench.measure import Runner, Sample
from edgespec.bench.modes import PLAIN, Contest, Mode, contests
from edgespec.bench.quality import Quality, default_text
from edgespec.bench.suites import SuitePrompt
from edgespec.bench.summary import ALL
from edgespec.bench.targets import check_quants, find_targets, make_quant, size_bytes
from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, UsageError
from edgespec.gguf_file.header import read_header
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings

TARGET, DRAFT = resolve("demo").path, resolve("demo:draft").path
ITEMS = [
    SuitePrompt("one", "chat", "Say something about cats."),
    SuitePrompt("two", "code_completion", "def quicksort(xs):\n"),
]
DEMO = ["demo", "-t", "1", "-n", "4", "--prompts", "maths", "--per-category", "1", "--limit", "1", "--modes", "plain"]
MODES = [PLAIN, Mode("suffix", "fixed:2"), Mode("draft", "fixed:2")]


@pytest.fixture(scope="module", autouse=True)
def _short_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgespec.bench.comparison.WINDOW", 64)
        yield


@pytest.fixture(scope="module")
def plan(home: Path) -> ComparisonPlan:
    """The bundled target, a smaller copy of it, and the draft as a third file."""
    targets, settings = find_targets(["demo:draft", "demo"], ["Q4_0"]), LoadSettings("demo", threads=1)
    return ComparisonPlan(targets, contests(MODES, [DRAFT]), ITEMS, 6, default_text(), settings, limit=1)


@pytest.fixture(scope="module")
def result(plan: ComparisonPlan) -> Comparison:
    return run_comparison(plan)


# --- which files ------------------------------------------------------------------------------------------------------


def test_the_largest_file_is_the_reference_unless_one_is_named(home: Path) -> None:
    assert find_targets(["demo:draft", "demo"]).reference.name == "demo"
    twice = find_targets(["demo:draft", str(DRAFT), str(TARGET)], reference="demo")
    assert [target.path for target in twice.all] == [DRAFT, TARGET]
    assert twice.reference.path == TARGET
    found = find_targets(["demo"], reference="demo:draft")
    assert found.reference.name == "demo:draft"
    assert [target.name for target in found.all] == ["demo", "demo:draft"]


def test_a_quantisation_is_made_once_and_not_where_there_is_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_targets(["demo"], ["Q8_0", "Q4_K_M"])
    assert [(target.label, target.quantisation) for target in found.all] == [("Q8_0", "Q8_0"), ("Q4_K_M", "Q4_K_M")]
    made = found.all[1].path
    assert made.parent == home / "cache" / "quants" and made.stat().st_size < TARGET.stat().st_size
    assert found.messages[0] == "demo is already Q8_0: files made from it lose quality twice"
    assert found.messages[1].startswith("created demo Q4_K_M: F32, Q4_K, ")
    monkeypatch.setattr(targets, "quantize", lambda *_, **__: pytest.fail("made again"))
    assert make_quant(TARGET, "Q4_K_M") == made


@pytest.mark.slow
def test_what_came_out_instead_of_k_quants_is_reported(home: Path, tmp_path: Path) -> None:
    narrow = write_model(tmp_path / "narrow.gguf", "llama", width=64, type="F16")
    [message] = find_targets([str(narrow)], ["Q4_K_M"]).messages
    assert message.startswith("created narrow Q4_K_M: ") and "Q5_0" in message


def test_an_unknown_quantisation_says_which_there_are() -> None:
    assert check_quants(["q8_0", " Q4_k_m", "Q8_0"]) == ["Q8_0", "Q4_K_M"]
    with pytest.raises(UsageError, match=r"cannot make quantisation 'Q9_K'\n  the types are F32, .*Q4_K_M.*Q2_K"):
        check_quants(["Q4_K_M", "q9_k"])


def test_without_room_no_quantisation_is_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(UsageError, match=r"Q3_K_S of target\.gguf may not fit into"):
        make_quant(TARGET, "Q3_K_S")


@pytest.mark.long(but=2)
@pytest.mark.parametrize("type", ["Q8_0", "Q4_K_M", "Q2_K"])
def test_room_is_asked_for_what_the_file_takes(type: str, home: Path) -> None:
    path = make_quant(TARGET, type)
    assert path.stat().st_size * 0.95 < size_bytes(read_header(TARGET).n_params, type) < path.stat().st_size * 1.6


@pytest.mark.slow
def test_files_of_other_vocabularies_are_refused(home: Path, tmp_path: Path) -> None:
    permute_vocabulary(TARGET, tmp_path / "permuted.gguf")
    tiny = write_model(tmp_path / "tiny.gguf", "llama")
    for other in (tmp_path / "permuted.gguf", tiny):
        with pytest.raises(UsageError, match="cannot be compared with demo") as error:
            find_targets(["demo", str(other)])
        assert "their vocabularies differ" in error.value.why and "8192 tokens" in error.value.why


def test_files_of_one_quantisation_are_called_by_their_names(home: Path, tmp_path: Path) -> None:
    for name in ("big-7b-a.gguf", "big-7b-b.gguf"):
        write_model(tmp_path / name, "llama")
    targets = find_targets([str(tmp_path / name) for name in ("big-7b-a.gguf", "big-7b-b.gguf")]).all
    assert [target.label for target in targets] == ["big-7b-a", "big-7b-b"]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["a/m.gguf", "b/m.gguf"], ["a/m", "b/m"]),
        (["a/x/m.gguf", "b/x/m.gguf"], ["a/x/m", "b/x/m"]),
        (["a/m.gguf", "b/m.gguf", "b/m.bin"], ["a/m", "b/m", "b/m.bin"]),
    ],
)
def test_files_of_the_same_name_are_told_apart_by_their_folders(
    files: list[str], names: list[str], home: Path, tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        write_model(tmp_path / file, "llama")
    found = find_targets([str(tmp_path / file) for file in files]).all
    assert [target.name for target in found] == [target.label for target in found] == names


# --- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_file_is_measured_in_every_mode(plan: ComparisonPlan, result: Comparison) -> None:
    assert result.complete and not result.failures
    labels = ["demo:draft", "demo", "demo Q4_0"]
    assert [file.label for file in result.files] == labels and result.reference == "demo"
    ways = [(None, "plain"), (None, "suffix fixed:2"), ("draft", "draft fixed:2")]
    assert [(row.file, row.draft, row.mode) for row in result.rows] == [
        (label, *way) for label in labels for way in ways
    ]
    for row in result.rows:
        assert row.prompts == 2
        assert row.tokens_per_s and row.first_token_s and row.memory_bytes > 10**7
        if row.mode == "plain":
            assert row.speedup == row.tokens_per_step == 1
    drafting = {row.file: row.tokens_per_step for row in result.rows if row.draft}
    assert drafting["demo:draft"] == 6 / 3  # its own draft is always right: 1, 3 and 2 tokens
    assert result.reference_again
    assert str(TARGET.parent) not in json.dumps(result.as_json(), allow_nan=False)


@pytest.mark.long
def test_quality_is_reported_of_every_file(result: Comparison) -> None:
    draft, demo, small = (file.quality for file in result.files)
    assert draft and demo and small
    assert demo.kl == 0 and demo.same_top == demo.perplexity_ratio == 1
    assert 0 < small.kl < draft.kl and draft.same_top < small.same_top < 1
    for quality in (draft, demo, small):
        assert quality.positions == 31
        assert quality.perplexity_ratio == pytest.approx(quality.perplexity / demo.perplexity)


def test_one_file_alone_has_a_perplexity(plan: ComparisonPlan, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.bench.comparison.WINDOW", 512)
    found = run_comparison(replace(plan, targets=find_targets(["demo"]), contests=contests([PLAIN], [])))
    [file], [row] = found.files, found.rows
    assert found.complete and file.quality and file.quality.perplexity == pytest.approx(63.6, rel=0.005)
    assert row.is_best and found.reference_again is None


@pytest.mark.long
def test_a_stopped_comparison_has_what_was_measured(plan: ComparisonPlan, home: Path) -> None:
    cancel = CancelFlag()

    def stop(what: str, done: float) -> None:
        if what.startswith("generating with demo,"):
            cancel.set()

    stopped = run_comparison(replace(plan, tokens=5, contests=contests([PLAIN], [])), stop, cancel)
    assert not stopped.complete and not stopped.failures
    assert [row.file for row in stopped.rows] == ["demo:draft"] and all(file.quality for file in stopped.files)


def test_the_progress_never_goes_back(plan: ComparisonPlan, home: Path) -> None:
    shown: list[float] = []
    contest, targets = contests([PLAIN], []), find_targets(["demo"])
    small = replace(plan, tokens=3, targets=targets, contests=contest, items=ITEMS[:1])
    run_comparison(small, lambda what, done: shown.append(done))
    assert shown == sorted(shown) and 0 < shown[-1] <= 1


def test_if_one_file_fails_the_others_are_measured(
    plan: ComparisonPlan, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Runner.samples, iter(range(100))

    def fail_once(self: Runner, *args: Any) -> Any:
        if next(calls) == 0:
            raise GenerationError("decoding failed", why="it is broken")
        return real(self, *args)

    monkeypatch.setattr(Runner, "samples", fail_once)
    found = run_comparison(replace(plan, tokens=3, contests=contests([PLAIN], []), items=ITEMS[:1]))
    assert found.failures == ["demo:draft: decoding failed: it is broken"]
    assert {row.file for row in found.rows} == {"demo", "demo Q4_0"} and not found.complete


# --- figures ----------------------------------------------------------------------------------------------------------


def sample(mode: str, item: str, rate: float, rounds: int = 8, tokens: Sequence[int] = range(8)) -> Sample:
    stats = Stats(generated_tokens=8, rounds=rounds, generation_s=8 / rate, prompt_s=1 / rate)
    return Sample(mode, 0.0, "chat", item, 0, list(tokens), stats)


def test_a_speedup_is_the_median_over_prompts() -> None:
    plain, auto = rows_of(
        "f",
        Contest(DRAFT, (PLAIN, Mode("draft"))),
        [
            *(sample("plain", item, rate) for item, rate in (("a", 10), ("b", 20), ("c", 40))),
            *(sample("draft auto", item, rate, 4) for item, rate in (("a", 30), ("b", 20), ("c", 80))),
        ],
        memory_bytes=1,
    )
    assert (plain.tokens_per_s, plain.speedup, plain.draft, plain.tokens_per_step) == (20, 1, None, 1)
    assert (auto.tokens_per_s, auto.speedup, auto.draft, auto.tokens_per_step) == (30, 2, "draft", 2)
    assert (auto.speedup_low, auto.speedup_high, plain.speedup_low) == (1, 3, None)
    assert auto.first_token_s == pytest.approx(1 / 30)


TWO_A_STEP = Stats(rounds=1, generated_tokens=2)


def row(file: str, rate: float | None, mode: str = "plain", **figures: Any) -> ComparisonRow:
    figures = {
        "speedup": 1.0,
        "speedup_low": None,
        "draft": None,
        "stats": Stats(rounds=1, generated_tokens=1),
        **figures,
    }
    return ComparisonRow(
        mode=mode,
        temperature=0.0,
        category=ALL,
        prompts=8,
        tokens_per_s=rate,
        speedup_high=None,
        first_token_s=0.1,
        repeated_4grams=0.0,
        equal_share=None,
        file=file,
        memory_bytes=5,
        **figures,
    )


def test_a_row_is_marked_if_no_other_beats_it_in_both() -> None:
    points = [("a", 10.0), ("a", 9.0), ("b", 12.0), ("c", 11.0), ("d", 10.0), ("e", None), ("f", 99.0)]
    marked = with_best([row(*point) for point in points], {"a": 0.0, "b": 0.1, "c": 0.2, "d": 0.0, "e": 0.0})
    assert [each.is_best for each in marked] == [True, False, True, False, True, False, False]


def test_speculation_is_marked_only_if_it_is_certainly_faster() -> None:
    plain, lucky, alone = row("a", 10.0), row("a", 12.0, "lucky", speedup_low=0.9), row("a", 13.0, "one prompt")
    idle = row("a", 11.0, "idle", speedup_low=1.01)
    sure = replace(idle, mode="sure", stats=TWO_A_STEP)
    assert [each.is_best for each in with_best([plain, lucky, alone, idle], {"a": 0.0})] == [True, False, False, False]
    assert [each.is_best for each in with_best([plain, lucky, sure], {"a": 0.0})] == [False, False, True]


def test_speeds_are_compared_by_common_prompts() -> None:
    before = [sample("plain", item, rate) for item, rate in (("a", 10), ("b", 20), ("c", 30))]
    now = [sample("plain", "a", 20), sample("plain", "b", 30), sample("plain", "d", 99)]
    assert times_as_fast(now, before) == pytest.approx((2 + 1.5) / 2)
    assert times_as_fast(now[2:], before) is None


# --- reports ----------------------------------------------------------------------------------------------------------


def told(result: Comparison, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table(result))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def two_files(small: float, *, spread: float = 0.0, again: float | None = 1.0) -> Comparison:
    """A result of plain decoding of F16, 10 tokens a second, and of Q4_K_M."""
    quality = Quality(255, 50.0, 1.0, kl=0.0213, same_top=0.93, perplexity_ratio=1.012)
    base = ComparedFile("F16", "model-f16", "f16.gguf", "F16", 420, 100, Quality(255, 49.0, 1.0), spread)
    other = replace(base, label="Q4_K_M", size_bytes=200, quality=quality, spread=None)
    rows = [
        row("F16", 10.0, is_best=True),
        row("Q4_K_M", small),
        row("Q4_K_M", 25.0, "auto", draft="small", speedup=1.5, speedup_low=1.1, stats=TWO_A_STEP, is_best=True),
        row("Q4_K_M", 30.0, "auto", draft="other", speedup=1.8, speedup_low=0.9, stats=TWO_A_STEP),
    ]
    return Comparison(
        command="",
        started="2026-01-01T00:00:00.000+00:00",
        settings={"threads": 1, "tokens": 6, "prompts": 2, "window": 512, "windows": 1},
        reference="F16",
        files=[base, other],
        rows=rows,
        reference_again=again,
        messages=[],
        failures=[],
        complete=True,
    )


def test_the_table_fits_the_terminal() -> None:
    result = two_files(17.0, spread=0.5)
    for width in (80, 100):
        text = told(result, width)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for label in ("F16", "Q4_K_M"):
        assert f"\n{label} " in text
    assert "the reference is F16" in text and "stopped" not in text
    assert "stopped" in told(replace(result, complete=False))


def test_conclusions_name_size_speed_and_quality() -> None:
    found = two_files(17.0)
    assert list(conclusions(found)) == [
        "Q4_K_M: 2.10x smaller, 1.70x faster, speculative decoding (auto by small) makes it 1.50x faster, KL 0.021, "
        "same most likely token at 93 % of the positions, perplexity 1.012 times the reference's",
        "best trade-offs of speed and closeness to F16, fastest first: Q4_K_M auto by small; F16 plain",
        "fastest on this machine: Q4_K_M with auto by small, 25.0 tok/s, 1.47x the fastest without drafting (Q4_K_M)",
    ]
    assert list(caveats(found)) == []
    found = two_files(30.0)
    assert list(conclusions(found))[-1] == "fastest on this machine: Q4_K_M without drafting, 30.0 tok/s"


@pytest.mark.parametrize(
    ("small", "circumstances", "said"),
    [
        (17.0, {"spread": 0.5}, "1.70x faster (1.13x to 2.55x as fast: see above)"),
        (5.0, {"again": 0.8}, "2.00x slower (0.40x to 0.62x as fast: see above)"),
        (17.0, {"again": 2.0}, "1.70x faster (0.85x to 3.40x as fast: see above)"),
    ],
)
def test_a_ratio_of_speeds_is_uncertain_if_the_machine_may_have_changed(
    small: float, circumstances: dict[str, Any], said: str
) -> None:
    first, *_ = conclusions(two_files(small, **circumstances))
    assert f"2.10x smaller, {said}" in first


def test_the_report_says_what_to_be_careful_with() -> None:
    [busy] = caveats(two_files(17.0, spread=0.5))
    assert busy == "the machine was busy: about the same work took up to 50 % longer at times"
    [changed] = caveats(two_files(17.0, again=0.5))
    assert changed == "at the end of this run, F16 was 0.50x as fast as in the table"


def test_small_figures_are_readable() -> None:
    assert [nats(value) for value in (0.0, 1e-7, 2.34e-5, 0.00123, 0.0456, 1.23)] == [
        "0", "0", "2.3e-05", "0.0012", "0.046", "1.2",
    ]  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------------


def compare(home: Path, *args: str) -> Finished:
    return edgespec_here("compare", *args, home=home)


@pytest.mark.long
def test_the_command_compares_quantisations_of_the_bundled_target(home: Path) -> None:
    done = compare(home, *DEMO, "--quants", "q4_k_m", "--modes", "fixed:2")
    assert (done.returncode, done.stderr) == (0, b"")
    for label in ("Q8_0", "Q4_K_M"):
        assert f"\n{label} " in done.stdout.decode()


@pytest.mark.long
def test_prompts_that_do_not_fit_are_left_out(home: Path) -> None:
    rows = [{"id": "long", "prompt": "word " * 2000}, {"id": "short", "prompt": "Hello"}]
    (home / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\nbroken\n", encoding="utf-8")
    args = ["demo", "-t", "1", "-n", "4", "--limit", "1", "--modes", "fixed:2", "--prompts", "prompts.jsonl", "--json"]
    done = compare(home, *args, "--quants", "Q4_K_M")
    result = json.loads(done.stdout)
    assert result["rows"][0]["prompts"] == 1 and result["complete"]
    assert any(message.startswith("skipped long") for message in result["messages"])
    assert b"prompts.jsonl: line 3" in done.stderr
    assert result["command"].startswith("edgespec compare demo -t 1")
    assert {line["draft"] for line in result["rows"]} == {None, "draft"}
    assert result["conclusions"][0].startswith("Q4_K_M: ")


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        ([], "Missing argument", 2),
        ([*DEMO, "--quants", "Q9"], "cannot make quantisation 'Q9'", 2),
        ([*DEMO, "--modes", "fast"], "unknown word 'fast'", 2),
        (["demo", "--prompts", "missing.jsonl"], "missing.jsonl", 2),
        ([*DEMO, "--text", "empty.txt"], "the text is empty", 2),
        ([*DEMO, "--text", "short.txt"], "the text is shorter than one window", 2),
        ([*DEMO, "tiny.gguf"], "tiny cannot be compared with demo", 2),
        ([*DEMO, "-md", "nothing.gguf"], "nothing.gguf", 3),
        ([*DEMO, "--limit", "100000000", "--text", "long.txt", "--quants", "Q2_K"], "fit into", 2),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    home: Path, args: Sequence[str], said: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "empty.txt").write_bytes(b"")
    (home / "short.txt").write_bytes(b"a few words")
    if "long.txt" in args:
        (home / "long.txt").write_bytes(b"word " * 2000)
        monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 4_000_000})())
    write_model(home / "tiny.gguf", "llama")
    monkeypatch.setattr(Runner, "samples", lambda *_, **__: pytest.fail("measured"))
    done = compare(home, *args)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode()


def test_a_failure_is_reported_and_the_exit_code_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise GenerationError("decoding failed")

    monkeypatch.setattr(Runner, "samples", fail)
    done = compare(home, *DEMO)
    assert done.returncode == 1
    assert done.stderr == b"edgespec: Q8_0: decoding failed\n"
    assert b"\nQ8_0 " in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.long
def test_ctrl_c_shows_what_there_is(home: Path) -> None:
    code = ctrl_c_in("edgespec.bench.measure", "Runner.answer", call=4)  # one to warm up
    args = ["compare", "demo", "-t", "1", "-n", "8", "--limit", "1", "--modes", "plain", "--per-category", "2"]
    done = edgespec_changed(code, *args, home=home)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == b""
    assert b"\nstopped " in done.stdout and b"\nQ8_0 " in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("targets make_quant", "; new quantisations are saved, and the same command starts again"),
        ("comparison run_comparison", "; new quantisations are saved, and the same command starts again"),
    ],
)
def test_ctrl_c_before_anything_was_measured_says_so(where: str, said: str, home: Path) -> None:
    module, name = where.split()
    code = ctrl_c_in(f"edgespec.bench.{module}", name)
    done = edgespec_changed(code, "compare", *DEMO, "--quants", "Q5_0", home=home)
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, b"")
    assert done.stderr.decode() == f"note: stopped before anything was measured{said}\n"
