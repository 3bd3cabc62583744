"""The bench itself: modes and their names, whose turn it is, and what a result says about answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tiny_gguf import write_model

import edgespec
from edgespec.bench.answers import OwnMode, repeated_4grams
from edgespec.bench.energy import EnergyMeter
from edgespec.bench.machine import without_folders
from edgespec.bench.measure import Plan, Result, run_bench
from edgespec.bench.modes import PLAIN, Mode, default_modes, parse_mode, settings_for, with_plain
from edgespec.bench.questions import Question, ask
from edgespec.bench.suites import Item
from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import GenerationError, UsageError
from edgespec.llama import kernels
from edgespec.llama.peer import Peer, _CountingLlama
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

REPETITIVE = "the cat sat on the mat and " * 8
ITEMS = [
    Item("one", "chat", ("Say something about cats.",), REPETITIVE),
    Item("two", "code_completion", ("def quicksort(xs):\n",), "x = [1, 2, 3]\n" * 8),
    Item("three", "chat", ("And now?", "Go on."), REPETITIVE),
]
ALL = ("suffix", "recycling", "draft")
MODES = [Mode("draft", "fixed:2"), Mode("lookup", "fixed:4"), Mode("draft,lookup"), Mode("draft", "fixed:3", 2)]


@pytest.fixture(scope="module")
def llm(home: Path) -> Iterator[Runtime]:
    plan = Plan(ITEMS, MODES, peer=True)
    with Runtime(settings_for(LoadSettings("demo", threads=1), MODES, plan.least_n_max)) as llm:
        yield llm


@pytest.fixture(scope="module")
def result(llm: Runtime) -> Result:
    return run_bench(llm, Plan(ITEMS, MODES, tokens=8, repeat=2, peer=True, command="edgespec bench"))


# --- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode", "name"),
    [
        ("plain", PLAIN, "plain"),
        ("auto", Mode("draft"), "draft auto"),
        ("lookup", Mode("lookup"), "lookup auto"),
        ("fixed:04", Mode("draft", "fixed:4"), "draft fixed:4"),
        ("draft,lookup  AUTO", Mode("lookup,draft"), "lookup,draft auto"),
        ("tree:4 fixed:6 draft", Mode("draft", "fixed:6", 4), "draft fixed:6 tree:4"),
        ("rejection auto", Mode("draft", rule="rejection"), "draft auto rejection"),
        ("draft tree:1 coupled", Mode("draft"), "draft auto"),
        ("recycling,SUFFIX fixed:2", Mode("suffix,recycling", "fixed:2"), "suffix,recycling fixed:2"),
        ("self:Q2_K auto", Mode("self:q2_k"), "self:q2_k auto"),
        ("self:8,suffix auto", Mode("suffix,self:8"), "suffix,self:8 auto"),
        ("all auto", Mode("suffix,recycling,draft"), "suffix,recycling,draft auto"),
    ],
)
def test_a_mode_has_one_name_however_it_is_written(text: str, mode: Mode, name: str) -> None:
    assert parse_mode(text, ALL) == mode
    assert mode.name == name
    assert parse_mode(name, ("suffix",)) == mode


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("plain auto", "plain takes no other words"),
        ("draft lookup", "it has both draft and lookup"),
        ("auto fixed:2", "it has both auto and fixed:2"),
        ("fixed:0", "K from 1 to"),
        ("fixed:", "K from 1 to"),
        ("tree:17", "1 to 16 leaves"),
        ("tree:x", "1 to 16 leaves"),
        ("tree:2 block", "supports chains only"),
        ("drafts auto", "did you mean draft?"),
        ("draft,draft", "must be auto, none, or some of"),
        ("draft,self:2", "draft and self are one draft model each"),
        ("self auto", "must be auto, none, or some of"),
        ("off", "unknown word"),
        ("none", "unknown word"),
    ],
)
def test_what_is_no_mode_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="mode") as error:
        parse_mode(text, ALL)
    assert said in str(error.value)


def test_where_no_drafter_is_named_the_suffix_drafter_drafts_if_there_is_no_draft_model() -> None:
    assert parse_mode("fixed:2", ALL).spec_type == "draft"
    assert parse_mode("fixed:2", ("suffix", "recycling")).spec_type == "suffix"


def test_a_model_is_loaded_for_the_longest_drafts_and_the_widest_trees() -> None:
    settings = settings_for(LoadSettings("demo", pace="fixed:4", threads=2), [PLAIN, *MODES, Mode("draft", "fixed:40")])
    assert settings == LoadSettings(
        "demo", spec_type="lookup,draft", spec_draft_n_max=40, spec_tree=2, threads=2, store=False
    )
    assert settings_for(LoadSettings("demo"), [PLAIN]).spec_type == "none"
    assert settings_for(LoadSettings("demo"), [Mode("self:4"), Mode("suffix,self:4")]).spec_type == "suffix,self:4"
    for other in ("draft", "self:8"):
        with pytest.raises(UsageError, match="in separate runs"):
            settings_for(LoadSettings("demo"), [Mode("self:4"), Mode(other)])


def test_plain_decoding_is_always_among_them_and_no_mode_twice() -> None:
    assert with_plain([MODES[0], PLAIN, MODES[0]]) == [PLAIN, MODES[0]]
    for possible in (ALL, ("suffix", "recycling")):
        modes = default_modes(possible)
        assert with_plain(modes) == modes
        assert {drafter for mode in modes for drafter in mode.drafters} == set(possible)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_no_mode_is_always_first(result: Result) -> None:
    first: dict[tuple[str, float, int], str] = {}
    for sample in result["samples"]:
        first.setdefault((sample["item"], sample["temperature"], sample["repeat"]), sample["mode"])
    assert len(set(first.values())) > 1


def test_no_draft_finds_a_prompt_in_its_cache() -> None:
    """An answer begins cold, whatever was asked before it."""
    with edgespec.load("demo", spec_type="draft", pace="fixed:2", threads=1) as llm:
        mode = OwnMode(llm, parse_mode("draft fixed:2", ALL), EnergyMeter())
        [question], _ = ask(llm, ITEMS[:1], 4, reference=False)
        decodes = []
        for _ in range(2):
            [drafter] = llm.engine.speculator.drafters
            assert isinstance(drafter, ModelDrafter)
            before = drafter.context.decodes
            mode.answer(question, CancelFlag())
            decodes.append(drafter.context.decodes - before)
            assert drafter.context.length(0) >= len(question.prompt)
            llm.forget()
            assert drafter.context.length(0) == 0
        assert decodes[0] == decodes[1]


# --- a result ---------------------------------------------------------------------------------------------------------


def test_every_mode_answers_every_prompt(result: Result) -> None:
    names = ["plain", *(mode.name for mode in MODES), "llama-cpp-python", "llama-cpp-python lookup"]
    samples = result["samples"]
    assert result["complete"]
    assert result["settings"]["modes"] == names
    kinds = Counter((s["mode"], s["item"], s["temperature"], s["repeat"]) for s in samples)
    expected = {(name, item.id, t, repeat) for name in names for item in ITEMS for t in (0.0, 0.8) for repeat in (0, 1)}
    assert set(kinds) == expected
    assert set(kinds.values()) == {1}
    assert [sample["order"] for sample in samples] == list(range(len(samples)))
    assert {sample["tokens"] for sample in samples} == {8}


def test_the_parts_of_an_answer_add_up(result: Result) -> None:
    for sample in result["samples"]:
        widths = {int(width): count for width, count in sample["widths"].items()}
        assert sum(widths.values()) == sample["rounds"] - 1
        assert sum((width - 1) * count for width, count in widths.items()) == sample["proposed"]
        assert sample["tokens"] == sample["rounds"] + sample["accepted"]
        assert sum(sample["proposed_per_pos"]) == sample["proposed"]
        assert sum(sample["accepted_per_pos"]) == sample["accepted"]
        assert sample["tokens_per_s"] == sample["tokens"] / sample["seconds"]
        if sample["draft_s"] is not None:
            assert sum(sample[part] for part in ("draft_s", "target_s", "other_s")) == pytest.approx(sample["seconds"])


def test_only_plain_decoding_drafts_nothing(result: Result) -> None:
    speculating = {sample["mode"] for sample in result["samples"] if sample["proposed"]}
    assert not speculating & {"plain", "llama-cpp-python"}
    assert {"draft fixed:2", "draft fixed:3 tree:2"} <= speculating


def test_answers_are_compared_with_those_of_plain_decoding(result: Result) -> None:
    for sample in result["samples"]:
        assert (sample["equal"] is None) == sample["mode"].startswith("llama-cpp-python")
        if sample["mode"] == "plain":
            assert sample["equal"]


def test_a_result_tells_about_machine_build_models_and_costs(result: Result, llm: Runtime) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert str(llm.model.path.parent) not in json.dumps(result)
    assert list(result["costs"]["target"]) == ["1", "2", "3", "4", "5", "6", "8", "10", "12", "16", "24", "32"]
    assert min(result["costs"]["draft"], *result["costs"]["target"].values()) > 0
    assert result["load"]["spread"] == max(result["load"]["passes"], result["load"]["plain"])
    assert len(result["models"]["draft"]["sha256"]) == 64
    assert result["models"]["target"]["name"] == "demo"
    assert (result["settings"]["threads"], result["settings"]["tokens"]) == (1, 8)
    assert result["machine"]["cpu"] and result["build"]["llama_cpp_python"]
    assert "three: only the first of 2 turns is used" in result["messages"]


def test_a_reference_is_the_answer_and_lookup_drafts_what_it_repeats(llm: Runtime) -> None:
    modes = [*MODES, Mode("draft", rule="rejection")]
    result = run_bench(llm, Plan(ITEMS[:2], modes, tokens=40, temperatures=[0.8], reference=True, peer=True))
    lookups = [sample for sample in result["samples"] if sample["mode"] == "lookup fixed:4"]
    assert [sample["accepted"] > 20 for sample in lookups] == [True, True]
    assert {sample["equal"] for sample in result["samples"]} == {True, None}
    assert len({(s["item"], s["tokens"], s["repeated_4grams"]) for s in result["samples"]}) == len(ITEMS[:2])
    assert "skipped draft auto rejection: reference answers need the coupled rule" in result["messages"]


def test_all_of_a_reference_unless_a_length_is_given(llm: Runtime) -> None:
    n = len(llm.model.tokenize(ITEMS[1].reference, add_special=False, parse_special=False))
    result = run_bench(llm, Plan(ITEMS[1:2], [PLAIN], temperatures=[0.0], reference=True))
    assert [sample["tokens"] for sample in result["samples"]] == [n]


def test_what_does_not_fit_or_has_no_reference_is_left_out(llm: Runtime) -> None:
    items = [Item("long", "chat", ("word " * 2000,)), Item("bare", "chat", ("Hello",)), ITEMS[0]]
    result = run_bench(llm, Plan(items, [PLAIN], tokens=8, temperatures=[0.0]))
    assert {sample["item"] for sample in result["samples"]} == {"bare", "one"}
    assert any(message.startswith("skipped long: the prompt has ") for message in result["messages"])
    with pytest.raises(UsageError, match="skipped bare: it has no reference answer"):
        run_bench(llm, Plan(items[1:2], [PLAIN], reference=True))


def test_modes_that_the_model_cannot_do_are_left_out(home: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "mamba")  # whose memory cannot be rolled back
    modes = [Mode("lookup", "fixed:2")]
    with Runtime(settings_for(LoadSettings(str(tmp_path / "tiny.gguf"), threads=1), modes)) as llm:
        result = run_bench(llm, Plan(ITEMS[:1], modes, tokens=4, temperatures=[0.0]))
    assert result["settings"]["modes"] == ["plain"]
    assert "skipped lookup fixed:2: drafter lookup is not loaded" in result["messages"]
    assert result["models"]["draft"] is result["costs"]["draft"] is None


# --- what ends too soon -----------------------------------------------------------------------------------------------


def test_what_was_measured_before_it_was_cancelled_is_kept(llm: Runtime) -> None:
    cancel = CancelFlag()

    def stop_in_the_middle(what: str, done: float) -> None:
        if what.startswith("measuring,") and done >= 0.5:
            cancel.set()

    result = run_bench(llm, Plan(ITEMS[:2], MODES, tokens=8), stop_in_the_middle, cancel)
    assert not result["complete"]
    assert result["failure"] is None
    assert len(result["samples"]) == 10  # of 20
    assert result["costs"]["target"]


def test_cancelled_before_the_first_answer_it_is_empty(llm: Runtime) -> None:
    cancel = CancelFlag()
    cancel.set()
    result = run_bench(llm, Plan(ITEMS[:2], MODES, tokens=8), None, cancel)
    assert (result["complete"], result["samples"], result["costs"]) == (False, [], {"target": {}, "draft": None})


def test_what_was_measured_before_the_model_failed_is_kept(llm: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = OwnMode.answer, iter(range(100))

    def fail_late(self: OwnMode, question: Question, cancel: CancelFlag) -> object:
        if next(calls) == 4:  # two to warm up
            raise GenerationError("decoding failed", why="it is broken")
        return real(self, question, cancel)

    monkeypatch.setattr(OwnMode, "answer", fail_late)
    result = run_bench(llm, Plan(ITEMS[:2], MODES[:1], tokens=8))
    assert (result["complete"], result["failure"], len(result["samples"])) == (
        False,
        "decoding failed: it is broken",
        2,
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def test_energy_is_the_sum_of_the_packages_and_counters_go_round(tmp_path: Path) -> None:
    for zone, name, value in (
        ("intel-rapl:0", "package-0", 900_000),
        ("intel-rapl:0:0", "core", 5),
        ("intel-rapl:1", "package-1", 100_000),
        ("intel-rapl-mmio:0", "package-0", 900_000),
    ):
        folder = tmp_path / zone
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text("999999\n")
        (folder / "energy_uj").write_text(f"{value}\n")
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("200000")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("400000")
    assert meter.joules() == pytest.approx(0.3 + 0.3)
    meter.start()
    assert meter.joules() == 0
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert meter.joules() is None


def test_without_counters_energy_is_unknown(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path / "nowhere").joules() is None


@pytest.mark.parametrize(
    ("tokens", "share"), [([1, 2, 3], 0), ([1, 2, 3, 4, 5], 0), ([1] * 13, 0.9), ([1, 2, 3, 4, 1, 2, 3, 4], 0.2)]
)
def test_repetition_is_the_share_of_4grams_that_were_there_before(tokens: list[int], share: float) -> None:
    assert repeated_4grams(tokens) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/joe/models/x.gguf is not used", "x.gguf is not used"),
        (r"C:\Users\joe\x.gguf: no", "x.gguf: no"),
        ("models/x.gguf at 3 tokens/s and/or more", "models/x.gguf at 3 tokens/s and/or more"),
    ],
)
def test_messages_name_files_without_their_folders(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_the_peer_decodes_with_llama_cpp_s_own_kernels_whatever_the_weights(
    llm: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[object] = []
    evaluate = _CountingLlama.eval

    def watched(self: _CountingLlama, tokens: Sequence[int]) -> None:
        used.append(kernels._used)
        evaluate(self, tokens)

    monkeypatch.setattr(_CountingLlama, "eval", watched)
    # Weights that an exact context leaves as they are; the peer repacks them, as this build can.
    monkeypatch.setitem(llm.model.fingerprint, "extra_buffers", False)
    list(llm.generate("x", max_tokens=2))
    with Peer(llm.context, llm.settings, 64) as peer:
        peer.answer([1, 2, 3], 3, CancelFlag(), lookup=False, sampling=SamplingSettings(temperature=0), seed=1)
    assert used == [kernels.STOCK] * 3


def test_a_build_that_crashes_with_repacked_weights_has_no_peer(llm: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.llama.peer.self_check", lambda: "works without extra buffers")
    with pytest.raises(GenerationError, match="cannot compare"):
        Peer(llm.context, llm.settings, 64)
