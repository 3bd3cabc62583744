"""Measurements of a pair: taken, kept until the next start, and only ever an aid."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_model

import edgespec
from edgespec.core.draft import Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import FixedPolicy, pass_widths
from edgespec.drafters.base import Budget, DraftContext, Drafter
from edgespec.drafters.model import ModelDrafter
from edgespec.engine.calibrate import CHECK_S, TURNS, VERSION, CostModelCache, assumed_shape, measure_passes
from edgespec.engine.width_classes import WidthClasses
from edgespec.errors import UsageError
from edgespec.events import TokenEvent
from edgespec.files.cache import read_cache
from edgespec.llama.context import Context
from edgespec.llama.model import LlamaModel
from edgespec.llama.threads import ThreadChoice
from edgespec.runtime.runtime import Runtime
from edgespec.settings import DRAFT_N_MAX, LoadSettings, Request

PROMPT = "def quicksort(xs):"


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    return tmp_path


def answer(llm: Runtime, **settings: Any) -> list[int]:
    settings = {"max_tokens": 48, "temperature": 0.0, "ignore_eos": True} | settings
    return [event.id for event in llm.generate(PROMPT, **settings) if event.id >= 0]


def remembered(home: Path) -> list[Path]:
    return sorted((home / "cache" / "pace").glob("*.json"))


def test_what_was_learnt_is_where_the_next_start_begins(fresh: Path) -> None:
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        answer(llm)
        assert isinstance(llm.engine.speculator.pace, MeasuredPolicy)
        learnt = llm.engine.speculator.pace.state()
    assert len(remembered(fresh)) == 1
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        assert isinstance(llm.engine.speculator.pace, MeasuredPolicy)
        assert llm.engine.speculator.pace.state() == learnt
        assert [*llm.notes] == []


def test_another_number_of_threads_is_another_machine(fresh: Path) -> None:
    for threads in (1, 2):
        with edgespec.load("demo", spec_type="draft", threads=threads) as llm:
            answer(llm)
    assert len(remembered(fresh)) == 2


def test_a_damaged_file_is_measured_anew(fresh: Path) -> None:
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        expected = answer(llm)
    [file] = remembered(fresh)
    stored = read_cache(f"pace/{file.name}")
    assert stored is not None
    for damaged in (stored.encode(), file.read_bytes().replace(b"1", b"2"), file.read_bytes()[:-1], b"\xff\xff", b""):
        file.write_bytes(damaged)
        assert read_cache(f"pace/{file.name}") is None
        with edgespec.load("demo", spec_type="draft", threads=1) as llm:
            assert answer(llm) == expected
        again = read_cache(f"pace/{file.name}")
        assert again is not None and json.loads(again)["facts"]["version"] == VERSION


def test_without_a_place_to_remember_it_answers_all_the_same(fresh: Path) -> None:
    (fresh / "cache").write_text("a file where a folder should be", encoding="utf-8")
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        assert answer(llm)
    assert remembered(fresh) == []


# --- the clock --------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize("tick", [0.0, -1.0, 1e9])
def test_a_clock_that_stands_still_or_jumps_changes_no_text(
    fresh: Path, tick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        expected = answer(llm)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += tick
        return now

    monkeypatch.setattr("edgespec.engine.engine.perf_counter", clock)
    monkeypatch.setattr("edgespec.engine.calibrate.perf_counter", clock)
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        assert answer(llm) == expected


def test_passes_are_measured_behind_some_tokens_and_leave_nothing() -> None:
    told: list[float] = []
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        taken = measure_passes(llm.context, [1, 2, 5], depth=32, repeat=2, progress=told.append)
        assert list(taken) == [1, 2, 5] and all(seconds > 0 for seconds in taken.values())
        assert told == sorted(told) and told[-1] == 1.0
        assert llm.context.length(0) == 0


def test_a_memory_that_cannot_be_rolled_back_is_measured_too(tmp_path: Path) -> None:
    with edgespec.load(str(write_model(tmp_path / "mamba.gguf", "mamba")), threads=1) as llm:
        assert measure_passes(llm.context, [1], depth=8, repeat=2)[1] > 0


def test_the_fewer_bits_a_weight_has_the_steeper_a_curve_is_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.engine.calibrate.have_exact_kernels", lambda: False)
    shapes = []
    for type in ("F32", "Q8_0"):
        with LlamaModel(write_model(tmp_path / f"{type}.gguf", "llama", type=type)) as model:
            shapes.append(assumed_shape(model))
            monkeypatch.setattr("edgespec.engine.calibrate.have_exact_kernels", lambda: True)
            own = assumed_shape(model)
            monkeypatch.setattr("edgespec.engine.calibrate.have_exact_kernels", lambda: False)
    assert all(shapes[0][width] <= shapes[1][width] for width in shapes[0])
    assert own[8] < shapes[0][8] < shapes[1][8]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_drafting_can_be_changed_between_answers() -> None:
    with edgespec.load("demo", spec_type="draft,lookup", spec_tree=4, flash_attention="off", threads=1) as llm:
        llm.draft_with(pace="off", spec_tree=1)
        expected = answer(llm)
        llm.draft_with(pace="fixed:4")
        assert answer(llm) == expected
        assert llm.stats.proposed and max(llm.stats.proposed_per_pos) and len(llm.stats.proposed_per_pos) <= 4
        llm.draft_with(pace="off")
        assert answer(llm) == expected and llm.stats.proposed == 0
        llm.draft_with(spec_type="lookup", pace="fixed:2")
        assert answer(llm) == expected and set(llm.stats.by_source) <= {"lookup"}
        llm.draft_with(spec_type="none")
        assert answer(llm) == expected and llm.stats.draft_s == 0


def test_draft_with_takes_the_names_of_load_settings() -> None:
    with edgespec.load("demo", spec_type="suffix", spec_tree=4, threads=1) as llm:
        llm.draft_with(spec_draft_n_max=3, spec_tree=2)
        assert (llm.settings.spec_draft_n_max, llm.settings.spec_tree) == (3, 2)
        with pytest.raises(TypeError, match="unexpected keyword argument 'n_max'"):
            llm.draft_with(n_max=1)  # type: ignore[call-arg]


def test_what_was_not_loaded_cannot_be_asked_for() -> None:
    with edgespec.load("demo", spec_type="lookup", threads=1) as llm:
        too_long = f"fixed:{DRAFT_N_MAX + 1}"
        for wanted in ({"spec_type": "draft"}, {"spec_tree": 4}, {"pace": too_long}, {"pace": "fast"}):
            with pytest.raises(UsageError):
                llm.draft_with(**wanted)
        assert llm.settings.spec_type == "lookup"


@pytest.mark.parametrize("pace", ["", "fixed", "fixed:", "fixed:0", "fixed:65", "fixed:-1", "fixed:²", "slow", None, 3])
def test_a_pace_that_cannot_be_meant_is_refused(pace: Any) -> None:
    with pytest.raises(UsageError, match="pace"):
        edgespec.load("demo", spec_type="draft", pace=pace)


def test_a_fixed_pace_sets_the_most_tokens_too_unless_these_are_given() -> None:
    with edgespec.load("demo", spec_type="draft", pace="fixed:12", threads=1) as llm:
        assert llm.engine.speculator.n_max == 12 and llm.engine.speculator.pace == FixedPolicy(12)
    with pytest.raises(UsageError, match="needs `spec_draft_n_max=12` or more"):
        edgespec.load("demo", spec_type="draft", pace="fixed:12", spec_draft_n_max=4)


# --- a given text -----------------------------------------------------------------------------------------------------


def test_a_reference_answer_is_what_comes_out_whatever_guesses(fresh: Path) -> None:
    with edgespec.load("demo", spec_type="draft,lookup", pace="fixed:4", threads=1) as llm:
        reference = tuple(llm.model.tokenize("the cat sat on the mat and the cat sat on the mat and the cat sat"))
        assert answer(llm, reference=reference) == list(reference)
        assert llm.stats.by_source["lookup"].accepted > 4
        assert answer(llm, reference=reference, max_tokens=3) == list(reference[:3])
        llm.draft_with(spec_type="none")
        assert answer(llm, reference=reference) == list(reference)
        assert llm.stats.rounds == len(reference)
        for wrong in ({"reference": (-1,)}, {"reference": (8192,)}, {"reference": (1,), "verify": "rejection"}):
            with pytest.raises(UsageError):
                answer(llm, **wrong)


# --- the pace in the engine -------------------------------------------------------------------------------------------


class Breaking(Drafter):
    """Drafts well for a while, then wrong tokens only."""

    name = "breaking"

    def __init__(self, fails_in: str) -> None:
        self.fails_in = fails_in

    def n_unread(self, sequence: DraftContext) -> int:
        if self.fails_in == "n_unread":
            raise RuntimeError("no idea how far behind")
        return 0

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        raise RuntimeError("no idea")


@pytest.mark.parametrize("fails_in", ["n_unread", "propose"])
def test_a_drafter_that_fails_under_the_pace_is_switched_off_and_the_answer_goes_on(fails_in: str) -> None:
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        llm.draft_with(pace="off")
        expected = answer(llm)
        llm.draft_with(pace="auto")
        llm.engine.speculator.drafters = [Breaking(fails_in)]
        assert answer(llm) == expected
        assert any("is off for this answer" in note for note in llm.notes)


def test_answers_given_together_are_paced_too(fresh: Path) -> None:
    requests = [Request(prompt=PROMPT, max_tokens=32, seed=seed, ignore_eos=True) for seed in range(4)]
    texts = []
    for spec_type in ("none", "draft,lookup"):
        with edgespec.load("demo", spec_type=spec_type, sequences=2, flash_attention="off", threads=1) as llm:
            got: dict[int, list[int]] = {}
            for index, event in llm.stream(requests):
                assert isinstance(event, TokenEvent)
                got.setdefault(index, []).append(event.id)
            texts.append(got)
    assert sum(a == b for a, b in zip(texts[0].values(), texts[1].values(), strict=True)) >= 3  # up to rounding


def test_what_passes_cost_is_measured_at_every_width_of_a_draft(fresh: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with Runtime(LoadSettings("demo", spec_type="suffix", threads=1), lambda what, done: told.append(what)) as llm:
            measured = llm.engine.speculator.pace
            assert isinstance(measured, MeasuredPolicy) and measured.longest == DRAFT_N_MAX
            known = measured_widths(measured)
            assert {1, *known} >= {*pass_widths(DRAFT_N_MAX)} and 1 + DRAFT_N_MAX in known
            list(llm.generate(PROMPT, max_tokens=4))
        assert "costs" in told
        told.clear()


def test_of_a_large_model_some_widths_are_left_out(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.engine.calibrate.MEASURE_S", 0.0)
    with edgespec.load("demo", spec_type="suffix", threads=1) as llm:
        measured = llm.engine.speculator.pace
        assert isinstance(measured, MeasuredPolicy)
        assert measured_widths(measured) == []
        assert len(answer(llm)) == 48


def test_no_pass_verifies_more_rows_than_are_allowed(fresh: Path) -> None:
    with edgespec.load("demo", spec_type="suffix", pace="fixed:20", sequences=2, threads=1) as llm:
        llm.engine.scheduler.most_rows, widths, decode = 9, list[int](), llm.context.decode

        def counting(tokens: list[int], *rest: Any) -> None:
            widths.append(len(tokens))
            decode(tokens, *rest)

        llm.context.decode = counting  # type: ignore[method-assign,assignment]
        requests = [Request(prompt=PROMPT, max_tokens=48, seed=seed) for seed in (1, 2)]
        list(llm.stream(requests))
    assert 9 in widths and set(widths[-20:]) <= set(range(10))


def test_drawn_guesses_and_lookups_are_paced_together(fresh: Path) -> None:
    asked = set[str]()
    with edgespec.load("demo", spec_type="draft,lookup", threads=1) as llm:
        for rule in ("rejection", "block"):
            assert len(answer(llm, temperature=0.8, verify=rule)) == 48
            assert isinstance(llm.engine.speculator.pace, MeasuredPolicy)
            asked |= {verdict.drafter for verdict in llm.engine.speculator.pace.verdicts(rule)}
    assert asked == {"draft", "lookup"}


def test_a_target_in_strict_mode_is_paced_by_its_padded_passes(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = WidthClasses.best

    def at_least_two(classes: WidthClasses, most_cost: float = math.inf) -> tuple[int, int] | None:
        """Of a class that begins with one token, which needs no padding: some processors have only this one."""
        found = best(classes, most_cost)
        return found and (max(2, found[0]), found[1])

    monkeypatch.setattr(WidthClasses, "best", at_least_two)
    with edgespec.load("demo", spec_type="draft", strict=True, exact=False, threads=1) as llm:
        first = answer(llm)
        assert isinstance(llm.engine.speculator.pace, MeasuredPolicy)
        assert llm.engine.speculator.pace.costs.least_width == llm.engine.runner.least_width >= 2
        llm.draft_with(pace="off")
        assert answer(llm) == first


@pytest.mark.parametrize(("token_s", "depth", "n_widths"), [(1e-4, 64, 12), (3e-3, 64, 12), (1e-2, 0, 9), (0.3, 0, 1)])
def test_costs_are_measured_in_about_a_second(
    monkeypatch: pytest.MonkeyPatch, token_s: float, depth: int, n_widths: int
) -> None:
    """The tokens before count too; for a large model fewer widths are measured."""
    now_s, cached, depths, widths = 0.0, 0, list[int](), set[int]()

    def timed_pass(context: Context, width: int, depth: int) -> float:
        nonlocal now_s, cached
        now_s += token_s * max(0, depth - cached) + token_s * width
        cached = depth
        depths.append(depth)
        widths.add(width)
        return token_s * width

    shown: list[float] = []
    with edgespec.load("demo", spec_type="suffix", store=False, threads=1) as llm:
        tuning = CostModelCache(llm.context, [], 1)
        tuning.costs = Costs({1: 1.0, 64: 64.0})
        monkeypatch.setattr("edgespec.engine.calibrate._timed_pass", timed_pass)
        monkeypatch.setattr("edgespec.engine.calibrate.perf_counter", lambda: now_s)
        tuning.measure(llm.context, 32, shown.append)
    assert now_s < 1.0 + 3 * token_s
    assert (max(depths), len(widths)) == (depth, n_widths)
    assert len(shown) == TURNS * len(pass_widths(31)[1:]) and shown[-1] == 1.0
    assert tuning.costs.plain_s == pytest.approx(token_s) and tuning.costs.target(8) == pytest.approx(8)


def test_the_next_start_corrects_a_measurement_that_was_disturbed(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    """The machine has another speed at each start, which must not count."""
    now_s, load, n_passes = 0.0, [1.0, 1.5, 0.7, 1.2], 0

    def timed_pass(context: Context, width: int, depth: int) -> float:
        nonlocal now_s, n_passes
        took_s = load[start] * 0.01 * (1 + (0.5 if start == 0 else 0.1) * (width - 1))
        now_s, n_passes = now_s + took_s, n_passes + 1
        return took_s

    with edgespec.load("demo", spec_type="suffix", store=False, threads=1) as llm:
        monkeypatch.setattr("edgespec.engine.calibrate._timed_pass", timed_pass)
        monkeypatch.setattr("edgespec.engine.calibrate.perf_counter", lambda: now_s)
        took = []
        for start in range(len(load)):
            tuning = CostModelCache(llm.context, [], 1)
            began_s, n_passes = now_s, 0
            tuning.measure(llm.context, 32, lambda done: None)
            assert tuning.costs.target(4) == pytest.approx(2.5 if start == 0 else 1.3)
            took.append(now_s - began_s)
            tuning.pace(["suffix"])
            tuning.save()
    assert took[1] > CHECK_S > max(took[2:]), "only the disturbed one was measured anew"


@pytest.mark.parametrize(("token_s", "widths"), [(0.15, [1, 1, 4, 1, 1]), (3.0, [1, 1])])
def test_one_pair_of_passes_checks_a_slow_model_and_none_a_very_slow_one(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, token_s: float, widths: list[int]
) -> None:
    now_s, decoded = 0.0, list[int]()

    def timed_pass(context: Context, width: int, depth: int) -> float:
        nonlocal now_s
        decoded.append(width)
        now_s += token_s
        return token_s

    with edgespec.load("demo", spec_type="suffix", store=False, threads=1) as llm:
        monkeypatch.setattr("edgespec.engine.calibrate._timed_pass", timed_pass)
        monkeypatch.setattr("edgespec.engine.calibrate.perf_counter", lambda: now_s)
        tuning = CostModelCache(llm.context, [], 1)
        tuning.costs = Costs({1: 1.0, 64: 1.1})
        tuning.costs.observe_plain(1, token_s)
        tuning.measure(llm.context, 32, lambda done: None)
    assert decoded == widths


def test_kernels_are_compiled_before_passes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[tuple[str, object]]()

    def timed_pass(context: object, width: int, depth: int) -> float:
        done.append(("measured", context))
        return 0.01

    monkeypatch.setattr("edgespec.engine.calibrate._timed_pass", timed_pass)
    monkeypatch.setattr("edgespec.engine.calibrate.warm_up", lambda context: done.append(("compiled", context)))
    with edgespec.load("demo", spec_type="draft", store=False, pace="off", threads=1) as llm:
        models = [drafter for drafter in llm.engine.speculator._known if isinstance(drafter, ModelDrafter)]
        tuning, contexts = CostModelCache(llm.context, models, 1, compiles=True), [llm.context, models[0].context]
        done.clear()
        tuning.measured_now(llm.context, models, [1, 4], 8, 2, lambda share: None)
    assert done[:2] == [("compiled", context) for context in contexts]
    assert {*done[2:]} == {("measured", context) for context in contexts}


def test_models_on_a_device_are_warmed_up_when_they_are_loaded(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    warmed = list[object]()
    monkeypatch.setattr("edgespec.llama.model.LlamaModel.is_offloaded", True)
    monkeypatch.setattr("edgespec.runtime.loading.warm_up", warmed.append)
    with edgespec.load("demo", spec_type="draft", store=False, threads=1) as llm:
        [drafter] = llm.engine.speculator.drafters
        assert isinstance(drafter, ModelDrafter) and warmed == [llm.context, drafter.context]


def measured_widths(policy: MeasuredPolicy) -> list[int]:
    """Return the widths of the target's passes that were measured, at the lowest depth."""
    table = policy.costs.state()["tables"]
    return [row[1] for row in table.get("0", []) if row[0] == "target"]


def test_passes_with_fewer_threads_do_not_change_the_costs_of_others() -> None:
    class OneThread(ThreadChoice):
        threads = 1

    with edgespec.load("demo", spec_type="none", threads=2) as llm:
        tuning = CostModelCache(llm.context, [], 1)
        tuning.costs.observe_plain(1, 0.01)
        tuning.costs.put(("target", 4), 1.5)
        before = tuning.costs.state()
        llm.context._choice = OneThread(2, lambda: 0.0)
        llm.context.decode_filler(0, [True])
        assert llm.context.threads_now == 1
        tuning.costs.observe_plain(1, 0.03)
        tuning.costs.observe_target(4, 0.1)
        assert tuning.costs.state()["tables"] == before["tables"]
