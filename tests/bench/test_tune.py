"""`tune`: which drafts of a model are measured, what is left out and why, and what is kept when it is stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import edgespec_here
from inflate_gguf import inflate
from tiny_gguf import write_model
from tiny_head import write_bigram, write_head, write_hydra
from tiny_mtp import write_mtp

from edgespec.bench.candidates import current_mode, find_candidates
from edgespec.bench.modes import PLAIN, Mode
from edgespec.bench.suites import sample, shipped
from edgespec.bench.summary import acceptance_probability, cost_curve
from edgespec.bench.tune import Tuned, tune
from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import ModelFileError, UsageError
from edgespec.gguf_file.model_check import check_model
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings

ITEMS = [item for item in sample(shipped(), 1) if item.category in ("chat", "code_completion")]
SUFFIX = "suffix,recycling"


@pytest.fixture(autouse=True)
def _few_short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.bench.tune.TOKENS", 12)
    monkeypatch.setattr("edgespec.bench.tune.LEAST_PROMPTS", 1)
    monkeypatch.setattr("edgespec.bench.suites.shipped", lambda: ITEMS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a target and an EAGLE-3 head that predicts as it does."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    write_bigram(tmp_path / "target.gguf")
    write_head(tmp_path / "a-head.gguf", knows_bigrams=True)
    return tmp_path


def tuned(target: Path, seconds: float = 0.1, temperature: float = 0.0, cancel: CancelFlag | None = None) -> Tuned:
    settings = LoadSettings(str(target), threads=1, ctx_size=512)
    found = tune(settings, SamplingSettings(temperature), ITEMS, seconds, cancel=cancel)
    assert found is not None
    return found


def modes_of(found: Tuned) -> dict[str, list[str]]:
    """Return the names of the measured modes by the name of their draft."""
    modes: dict[str, list[str]] = {}
    for candidate in found.candidates:
        modes.setdefault(candidate.draft.stem if candidate.draft else "", []).append(candidate.mode.name)
    return modes


# --- what is measured -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_head_is_measured_alone_with_the_others_and_with_fixed_lengths(folder: Path) -> None:
    write_hydra(folder / "b-head.gguf")
    found = tuned(folder / "target.gguf", temperature=0.8)
    assert modes_of(found) == {
        "": ["plain", f"{SUFFIX} auto"],
        "a-head": ["eagle3 auto", f"{SUFFIX},eagle3 auto", "eagle3 fixed:1", "eagle3 fixed:3"],
        "b-head": ["hydra auto", f"{SUFFIX},hydra auto", "hydra fixed:1", "hydra fixed:3"],
    }
    assert found.temperatures == (0.0, 0.8) and found.is_complete and not found.left_out
    for candidate in found.candidates:
        assert {*candidate.cells} == {0.0, 0.8}
        for cell in candidate.cells.values():
            assert cell.equal_share == 1  # drafts never change texts
    [current] = [candidate.mode.name for candidate in found.candidates if candidate.is_current]
    assert current in (f"{SUFFIX},eagle3 auto", f"{SUFFIX},hydra auto", f"{SUFFIX} auto")
    costs = {cost.drafter: cost for cost in found.costs}
    assert costs["eagle3"].alpha == 1 and (costs["eagle3"].cost or 0) > 0 and (costs["hydra"].alpha or 0) < 0.5
    facts = json.loads(json.dumps(found.as_json()))
    assert facts["passes"]["1"] == 1.0 and len(facts["candidates"]) == len(found.candidates)
    assert facts["candidates"][0]["figures"][0]["speedup"] == 1.0


@pytest.mark.slow
def test_a_block_in_the_file_of_the_model_is_measured(tmp_path: Path, home: Path) -> None:
    found = tuned(write_mtp(tmp_path / "model.gguf", knows_bigrams=True))
    assert modes_of(found)[""] == [
        "plain", f"{SUFFIX} auto", "mtp auto", f"{SUFFIX},mtp auto", "mtp fixed:1", "mtp fixed:3",
    ]  # fmt: skip
    [current] = [candidate.mode.name for candidate in found.candidates if candidate.is_current]
    assert current == f"{SUFFIX},mtp auto"
    assert [cost.drafter for cost in found.costs] == ["mtp"]


def test_a_head_for_a_model_with_a_block_is_measured_together_with_it(tmp_path: Path) -> None:
    target = check_model(write_mtp(tmp_path / "model.gguf"))
    head = write_head(tmp_path / "head.gguf", n_vocab=target.n_vocab, reads_state=True)
    settings = LoadSettings(str(target.path), draft_model=str(head))
    block, of_head = find_candidates(settings, target, None, (None, PLAIN)).contests
    assert block.draft is None and of_head.draft == head
    assert Mode(f"{SUFFIX},mtp,eagle1") in of_head.modes and Mode("mtp") not in of_head.modes


def test_only_the_requested_drafters_are_measured(folder: Path) -> None:
    target = check_model(folder / "target.gguf")
    write_hydra(folder / "b-head.gguf")
    settings = LoadSettings(str(target.path), spec_type="hydra", spec_draft_n_max=2)
    [contest] = find_candidates(settings, target, None, (None, PLAIN)).contests
    assert contest.modes == (PLAIN, Mode("hydra"), Mode("hydra", "fixed:1"), Mode("hydra", "fixed:2"))
    with pytest.raises(UsageError, match="there is nothing to tune"):
        find_candidates(LoadSettings(str(target.path), spec_type="dspark"), target, None, (None, PLAIN))


def test_what_a_start_without_options_uses_is_measured_too(folder: Path) -> None:
    target = check_model(folder / "target.gguf")
    fixed = LoadSettings(str(target.path), spec_type="draft", pace="fixed:5")
    current = current_mode(fixed, target, None)
    assert current == (folder / "a-head.gguf", Mode("eagle3", "fixed:5"))
    [contest] = find_candidates(LoadSettings(str(target.path)), target, None, current).contests
    assert contest.modes[-1] == current[1]
    assert current_mode(LoadSettings(str(target.path), spec_type="none"), target, None) == (None, PLAIN)
    assert current_mode(LoadSettings(str(target.path)), target, None)[1] == Mode(f"{SUFFIX},eagle3")


@pytest.mark.slow
def test_without_any_draft_the_drafters_without_weights_are_compared(tmp_path: Path, home: Path) -> None:
    found = tuned(write_model(tmp_path / "x.gguf", "llama"))
    assert modes_of(found) == {
        "": ["plain", f"{SUFFIX} auto", "suffix auto", "recycling auto", f"{SUFFIX} fixed:4", f"{SUFFIX} fixed:8"]
    }


# --- what cannot be measured ------------------------------------------------------------------------------------------


def test_drafts_that_cannot_be_used_are_named_and_the_others_measured(folder: Path) -> None:
    (folder / "broken-eagle3.gguf").write_bytes(b"GGUF" + bytes(40))
    write_hydra(folder / "foreign.gguf", n_vocab=99)
    found = tuned(folder / "target.gguf")
    assert modes_of(found).keys() == {"", "a-head"}
    left_out = {Path(each.draft).name: each.why for each in found.left_out}
    assert left_out.keys() == {"broken-eagle3.gguf", "foreign.gguf"} and all(left_out.values())


def test_a_head_that_fails_to_load_leaves_the_rest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise ModelFileError("head.gguf cannot be used", why="it is refused")

    monkeypatch.setattr("edgespec.runtime.model_files.check_head_fits", refuse)
    found = tuned(folder / "target.gguf")
    assert [each.why for each in found.left_out] == ["head.gguf cannot be used: it is refused"]
    assert f"{SUFFIX} fixed:4" in modes_of(found)[""]


def test_a_target_that_fails_to_load_is_an_error(folder: Path) -> None:
    (folder / "target.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        tuned(folder / "target.gguf")


# --- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stopped_at_the_second_head_it_keeps_the_first(folder: Path) -> None:
    write_hydra(folder / "b-head.gguf")
    cancel, told = CancelFlag(), list[str]()

    def stop(what: str, done: float) -> None:
        told.append(what)
        if "b-head" in what:
            cancel.set()

    settings = LoadSettings(str(folder / "target.gguf"), threads=1, ctx_size=512)
    found = tune(settings, SamplingSettings(0.0), ITEMS, 0.1, progress=stop, cancel=cancel)
    assert found is not None and not found.is_complete
    [eagle] = [candidate for candidate in found.candidates if candidate.mode.name == "eagle3 auto"]
    assert eagle.cells[0.0].prompts >= 1
    assert any(what.endswith("(1 of 2)") for what in told) and "loading" in told
    assert tune(settings, SamplingSettings(0.0), ITEMS, 0.1, cancel=cancel) is None


# --- costs ------------------------------------------------------------------------------------------------------------


def test_the_cost_of_widths_in_between_is_interpolated() -> None:
    curve = cost_curve({"target": {"1": 0.010, "2": 0.008, "5": 0.030}, "draft": 0.001})
    assert curve is not None and curve.draft == pytest.approx(0.1)
    assert [curve.at(width) for width in (1, 2, 3, 5)] == pytest.approx([1, 1, 5 / 3, 3])  # a disturbed 0.8 counts as 1
    assert cost_curve({}) is None


def test_alpha_is_the_share_of_verified_tokens_that_were_accepted() -> None:
    # four drafts of two tokens: three of the first accepted, then one of these three
    assert acceptance_probability([([4, 4], [3, 1])]) == 4 / 7
    assert acceptance_probability([([], [])]) is None


def test_break_even_is_where_drafts_of_a_length_begin_to_pay() -> None:
    curve = cost_curve({"target": {"1": 1.0, "2": 1.2, "3": 1.4}})
    assert curve is not None
    assert curve.break_even(1, 0.1) == pytest.approx(0.31)  # 1 + alpha > 1.2 + 0.1
    assert curve.break_even(2, 0.1) == pytest.approx(0.37)  # 1 + alpha + alpha^2 > 1.4 + 0.1
    assert curve.break_even(1, 0.9) is None


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_shows_a_table_and_the_advice(folder: Path) -> None:
    arguments = ["target.gguf", "-c", "512", "-t", "1", "--seconds", "1", "--temp", "0.7"]
    done = edgespec_here("tune", *arguments, home=folder)
    shown = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    for part in ("Temperature 0;", "Temperature 0.7;", f"{SUFFIX},eagle3 auto", "recommendation ", "temperature 0.7"):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 80
    done = edgespec_here("tune", *arguments, "--json", "-q", home=folder)
    found = json.loads(done.stdout)
    assert not done.stderr and found["temperatures"] == [0.0, 0.7]
    assert found["advice"]["sentence"] and {each["mode"] for each in found["candidates"]} >= {"plain", "eagle3 auto"}
    assert edgespec_here("store", "ls", home=folder).stdout == b"no answers are stored yet\n"


@pytest.mark.slow
def test_a_named_head_that_does_not_fit_is_reported_at_the_end(folder: Path) -> None:
    write_hydra(folder / "foreign.gguf", n_vocab=99)
    arguments = ["target.gguf", "-md", "foreign.gguf", "-c", "512", "-t", "1", "--seconds", "1", "--temp", "0"]
    done = edgespec_here("tune", *arguments, home=folder)
    assert done.returncode == 1
    assert b"foreign.gguf was not measured: " in done.stdout and b"eagle3 auto" in done.stdout


def test_configured_settings_are_the_present_ones(folder: Path) -> None:
    for key, value in (("spec-type", "eagle3"), ("pace", "fixed:2"), ("temp", "0")):
        assert edgespec_here("config", "set", key, value, home=folder).returncode == 0
    done = edgespec_here("tune", "target.gguf", "-c", "512", "-t", "1", "--seconds", "1", "--json", home=folder)
    found = json.loads(done.stdout)
    assert [each["mode"] for each in found["candidates"] if each["is_current"]] == ["eagle3 fixed:2"]
    assert found["temperatures"] == [0.0]


def test_there_is_nothing_to_tune_without_drafters(home: Path) -> None:
    done = edgespec_here("tune", "demo", "--spec-type", "none", home=home)
    assert done.returncode == 2 and b"nothing to tune" in done.stderr


@pytest.mark.long
def test_a_useless_draft_is_not_advised(tmp_path: Path) -> None:
    useless = tmp_path / "useless.gguf"
    inflate(resolve("demo:draft").path, useless, scramble=True)
    arguments = ["demo", "-md", str(useless), "-t", "1", "--seconds", "1", "--temp", "0"]
    done = edgespec_here("tune", *arguments, "--json", "-q", home=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and not done.stderr
    [cost] = [each for each in found["drafts"] if each["draft"] == str(useless)]
    assert cost["alpha"] < 0.05
    assert str(useless) not in [choice["draft_model"] for choice in found["advice"]["choices"]]
    assert sorted((tmp_path / "cache" / "pace").glob("*.json"))


@pytest.mark.long
def test_a_target_that_drafts_for_itself_is_tuned(home: Path) -> None:
    done = edgespec_here("tune", "demo", "--spec-type", "self:2", "-t", "1", "--seconds", "1", home=home)
    assert done.returncode == 0 and b"\nself:2 auto" in done.stdout
