"""The runner of benchmarks: names of modes, the order of answers, and results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_gguf import write_model
from tiny_lora import write_adapter

from edgespec.bench.measure import (
    BenchPlan,
    BenchResult,
    Question,
    Runner,
    Sample,
    ask,
    load_result,
    run_bench,
    without_folders,
)
from edgespec.bench.modes import PLAIN, Contest, Mode, contests, default_modes, parse_mode, settings_for, with_plain
from edgespec.bench.suites import SuitePrompt
from edgespec.bench.summary import speedups, summarise
from edgespec.cancel import CancelFlag
from edgespec.errors import GenerationError, UsageError
from edgespec.llama.context import Context
from edgespec.models.names.source import NAMES
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

REPETITIVE = "the cat sat on the mat and " * 8
ITEMS = [
    SuitePrompt("one", "chat", "Say something about cats.", REPETITIVE),
    SuitePrompt("two", "code_completion", "def quicksort(xs):\n", "x = [1, 2, 3]\n" * 8),
]
ALL = ("suffix", "recycling", "draft")
MODES = [Mode("draft", "fixed:2"), Mode("suffix", "fixed:4"), Mode("suffix,draft"), Mode("draft", "fixed:3", 2)]


@pytest.fixture(scope="module")
def llm(home: Path) -> Iterator[Runtime]:
    adapter = write_adapter(home / "style.gguf", NAMES["demo"])
    with Runtime(settings_for(LoadSettings("demo", threads=1, lora=(f"{adapter}=0",)), MODES)) as llm:
        yield llm


@pytest.fixture(scope="module")
def result(llm: Runtime) -> BenchResult:
    return run_bench(llm, BenchPlan(ITEMS, MODES, tokens=4, repeat=2, command="edgespec bench"))


# --- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode", "name"),
    [
        ("plain", PLAIN, "plain"),
        ("auto", Mode("draft"), "draft auto"),
        ("suffix", Mode("suffix"), "suffix auto"),
        ("fixed:04", Mode("draft", "fixed:4"), "draft fixed:4"),
        ("draft,suffix  AUTO", Mode("suffix,draft"), "suffix,draft auto"),
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
        ("draft suffix", "it has both draft and suffix"),
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
        "demo", spec_type="suffix,draft", spec_draft_n_max=40, spec_tree=2, threads=2, store=False
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


def test_each_draft_model_is_loaded_once_and_modes_without_one_are_measured_once() -> None:
    draft, other = Path("draft.gguf"), Path("other.gguf")
    drafting = (Mode("suffix,draft"), Mode("draft"))
    found = contests([Mode("suffix"), *drafting, Mode("self:2")], [draft, other])
    assert [(contest.draft, contest.modes) for contest in found] == [
        (draft, (PLAIN, Mode("suffix"), *drafting)),
        (other, (PLAIN, *drafting)),
        (None, (PLAIN, Mode("self:2"))),
    ]
    settings = found[1].settings(LoadSettings("demo", threads=1), Path("target.gguf"))
    assert (settings.model, settings.draft_model, settings.spec_type) == ("target.gguf", "other.gguf", "suffix,draft")
    assert contests([PLAIN], []) == [Contest(None, (PLAIN,))]
    with pytest.raises(UsageError, match="'draft auto' needs a draft model"):
        contests([Mode("draft")], [])


# --- a result ---------------------------------------------------------------------------------------------------------


def test_every_mode_answers_every_prompt_in_turns(result: BenchResult) -> None:
    names = ["plain", *(mode.name for mode in MODES)]
    assert result.complete and result.modes == names
    kinds = Counter((s.mode, s.item, s.temperature, s.repeat) for s in result.samples)
    expected = {(name, item.id, t, repeat) for name in names for item in ITEMS for t in (0.0, 0.8) for repeat in (0, 1)}
    assert set(kinds) == expected and set(kinds.values()) == {1}
    first = [turn[0].mode for turn in zip(*[iter(result.samples)] * len(names), strict=True)]
    assert len(set(first)) > 1  # no mode is always first
    assert None not in speedups(result.samples)


def test_the_parts_of_an_answer_add_up(result: BenchResult) -> None:
    for sample in result.samples:
        stats = sample.stats
        assert len(sample.tokens) == stats.generated_tokens == 4 == stats.rounds + stats.accepted
        assert sum(stats.proposed_per_pos) == stats.proposed and sum(stats.accepted_per_pos) == stats.accepted
        assert stats.draft_s + stats.target_s + stats.other_s == pytest.approx(stats.generation_s)
        assert sample.mode != "plain" or not stats.proposed


def test_answers_equal_those_of_plain_decoding(result: BenchResult) -> None:
    assert {cell.equal_share for cell in summarise(result.samples, result.modes).cells} == {1.0}


def test_a_result_says_how_it_was_made_and_can_be_loaded(result: BenchResult, llm: Runtime, tmp_path: Path) -> None:
    text = json.dumps(result.as_json(), allow_nan=False)
    assert str(llm.model.path.parent) not in text
    assert list(result.costs["target"]) == ["1", "2", "3", "4", "5", "6", "8", "10", "12", "16", "24", "32"]
    assert min(result.costs["draft"], *result.costs["target"].values()) > 0
    assert result.models["target"]["name"] == "demo" and result.models["draft"]["bytes"] > 10**5
    assert (result.settings["threads"], result.settings["tokens"]) == (1, 4)
    assert result.settings["lora"] == {"style": 0}
    assert result.machine["cpu"] and result.build["llama_cpp_python"]
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    loaded = load_result(tmp_path / "a.json")
    assert [(s.mode, s.item, s.tokens) for s in loaded.samples] == [(s.mode, s.item, s.tokens) for s in result.samples]
    assert (loaded.settings, loaded.modes, loaded.complete) == (result.settings, result.modes, True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "samples": []}', '{"version": 2, "samples": [{}]}'])
def test_other_files_are_no_results(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"x\.json is not a bench result"):
        load_result(tmp_path / "x.json")


def test_an_answer_begins_with_empty_caches(llm: Runtime) -> None:
    [question], _ = ask(llm, ITEMS[:1], 4, reference=False)
    decodes = []
    with Runner(llm, [Mode("draft", "fixed:2")], CancelFlag()) as runner:
        for _ in range(2):
            context = llm._loaded.drafters.contexts[-1]
            assert isinstance(context, Context)
            before = context.decodes
            runner.answer(runner.modes[-1], question, 0.0)
            decodes.append(context.decodes - before)
    assert decodes[0] == decodes[1]


def test_an_answer_is_not_drafted_from_the_answer_of_another_mode(home: Path) -> None:
    mode = Mode("recycling", "fixed:2")
    with Runtime(settings_for(LoadSettings("demo", threads=1), [mode])) as llm:
        [question], _ = ask(llm, ITEMS[:1], 16, reference=False)
        with Runner(llm, [mode], CancelFlag()) as runner:
            accepted = [runner.answer(mode, question, 0.0).stats.accepted for _ in range(2)]
    assert accepted[0] == accepted[1]


@pytest.mark.long
def test_a_reference_is_the_answer_and_the_suffix_drafter_drafts_what_it_repeats(llm: Runtime) -> None:
    modes = [*MODES[:2], Mode("draft", rule="rejection")]
    result = run_bench(llm, BenchPlan(ITEMS[:2], modes, tokens=32, temperatures=[0.8], reference=True))
    copied = [sample for sample in result.samples if sample.mode == "suffix fixed:4"]
    assert [sample.stats.accepted > 10 for sample in copied] == [True, True]
    assert len({(sample.item, *sample.tokens) for sample in result.samples}) == 2
    assert "skipped draft auto rejection: reference answers need the coupled rule" in result.messages
    n = len(llm.model.tokenize(ITEMS[1].reference, add_special=False, parse_special=False))
    [whole] = run_bench(llm, BenchPlan(ITEMS[1:2], [PLAIN], temperatures=[0.0], reference=True)).samples
    assert len(whole.tokens) == n


def test_prompts_that_do_not_fit_or_have_no_reference_are_left_out(llm: Runtime) -> None:
    items = [SuitePrompt("long", "chat", "word " * 2000), SuitePrompt("bare", "chat", "Hello"), ITEMS[0]]
    result = run_bench(llm, BenchPlan(items, [PLAIN], tokens=2, temperatures=[0.0]))
    assert {sample.item for sample in result.samples} == {"bare", "one"}
    assert any(message.startswith("skipped long: the prompt has ") for message in result.messages)
    with pytest.raises(UsageError, match="skipped bare: it has no reference answer"):
        run_bench(llm, BenchPlan(items[1:2], [PLAIN], reference=True))


def test_modes_that_the_model_cannot_do_are_left_out(home: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "mamba")  # whose memory cannot be rolled back
    modes = [Mode("suffix", "fixed:2")]
    with Runtime(settings_for(LoadSettings(str(tmp_path / "tiny.gguf"), threads=1), modes)) as llm:
        result = run_bench(llm, BenchPlan(ITEMS[:1], modes, tokens=4, temperatures=[0.0]))
    assert result.modes == ["plain"]
    assert "skipped suffix fixed:2: drafter suffix is not loaded" in result.messages
    assert result.models["draft"] is result.costs["draft"] is None


# --- what ends too soon -----------------------------------------------------------------------------------------------


def test_what_was_measured_before_it_was_cancelled_is_kept(llm: Runtime) -> None:
    cancel = CancelFlag()

    def stop_in_the_middle(what: str, done: float) -> None:
        if what.startswith("measuring,") and done >= 0.5:
            cancel.set()

    result = run_bench(llm, BenchPlan(ITEMS[:2], MODES, tokens=3), stop_in_the_middle, cancel)
    assert not result.complete and result.failure is None and result.costs["target"]
    assert len(result.samples) == 10  # of 20
    nothing = run_bench(llm, BenchPlan(ITEMS[:2], MODES, tokens=8), None, cancel)
    assert (nothing.complete, nothing.samples, nothing.costs) == (False, [], {})


def test_what_was_measured_before_the_model_failed_is_kept(llm: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Runner.answer, iter(range(100))

    def fail_late(self: Runner, mode: Mode, question: Question, temperature: float, repeat: int = 0) -> Sample:
        if next(calls) == 4:  # two to warm up
            raise GenerationError("decoding failed", why="it is broken")
        return real(self, mode, question, temperature, repeat)

    monkeypatch.setattr(Runner, "answer", fail_late)
    result = run_bench(llm, BenchPlan(ITEMS[:2], MODES[:1], tokens=2))
    assert (result.complete, result.failure, len(result.samples)) == (False, "decoding failed: it is broken", 2)


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
