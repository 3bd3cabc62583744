"""A recorder writes what was guessed and what came of it, and its file is read back or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.bench.replay import Tape, Until, replay
from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy, Proposal, ProposalContext, Verified
from edgespec.engine.trace import Recorder, Trace, read_trace
from edgespec.errors import EdgespecError, UsageError
from edgespec.runtime.runtime import Runtime

HEADER = {
    "kind": "coupled",
    "temperature": 0.8,
    "n_max": 4,
    "costs": {"target": {"1": 1.0, "4": 1.2}, "step": {"draft": 0.1}},
}
DECODES = [[4], [5], [6], [7]]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def step(recorder: Recorder, emitted: list[int], draft: Draft | None = None, n_max: int = 4) -> Draft:
    """A step as the engine takes it, in which the draft model may propose this; what was verified."""
    context, verified = ProposalContext("coupled", n_max), Draft.empty()
    budget = recorder.budget(context, "draft", int) if draft is not None else None
    if budget is not None and draft is not None:
        assert budget.worth([0.1] * (len(draft) - 1), 0.001)
        context.proposals.append(
            Proposal("draft", draft if len(draft) <= budget.tokens else draft.first(budget.tokens), 0, 3, 0.25)
        )
        [verified] = recorder.select([context], 1, n_max)
    recorder.record([Verified(context, verified, range(min(len(verified), len(emitted) - 1)), emitted)], 0.5)
    return verified


def chain(*tokens: int) -> Draft:
    return Draft.chain(list(tokens), [0.5] * len(tokens), "draft")


def small(path: Path) -> Path:
    """A trace of two answers."""
    recorder = Recorder(FixedPolicy(0), path, HEADER)
    for answer in range(2):
        recorder.begin({"prompt": f"prompt {answer}"})
        for number, tokens in enumerate(DECODES):
            step(recorder, tokens, chain(4, 5, 9) if number == 0 else None)
    recorder.close()
    return path


def test_where_nothing_is_guessed_the_recorder_guesses_in_the_shadow(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(0), tmp_path / "t.jsonl", HEADER)
    assert len(step(recorder, DECODES[0], chain(4, 5, 9))) == 0
    for tokens in DECODES[1:]:
        step(recorder, tokens)
    recorder.close()
    header, first, *others = rows(tmp_path / "t.jsonl")
    assert header == {"type": "header", "version": 1, **HEADER}
    assert first == {
        "type": "round",
        "position": 0,
        "emitted": [4],
        "width": 1,
        "target_s": 0.5,
        "drafts": [
            {
                "source": "draft",
                "tokens": [4, 5, 9],
                "confidence": [0.5] * 3,
                "q": None,
                "entropy": None,
                "matched": 2,
                "verified": 0,
                "accepted": None,
                "passes": 3,
                "draft_s": 0.25,
            }
        ],
    }
    assert [row["position"] for row in others] == [1, 2, 3]


def test_what_the_other_policy_drafts_is_passed_through_and_written_down(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(2), tmp_path / "t.jsonl", HEADER)
    assert step(recorder, [4, 8], chain(4, 5, 6)).tokens == [4, 5]
    recorder.close()
    row = rows(tmp_path / "t.jsonl")[1]
    (draft,) = row["drafts"]
    assert (draft["tokens"], draft["verified"], draft["accepted"], draft["matched"]) == ([4, 5], 2, 1, 1)
    assert (row["width"], row["emitted"]) == (3, [4, 8])


def test_the_other_policy_hears_of_its_own_drafts_only(tmp_path: Path) -> None:
    heard: list[object] = []

    class Listening(FixedPolicy):
        def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
            heard.append(([proposal.drafter for proposal in verified[0].context.proposals], seconds))

    for tokens in (0, 2):
        step(Recorder(Listening(tokens), tmp_path / "t.jsonl", HEADER), [4], chain(4, 5))
    assert heard == [([], 0.5), (["draft"], 0.5)]


def test_a_drafter_that_drafts_in_the_shadow_is_not_verified_beside_another(tmp_path: Path) -> None:
    class Choosy(FixedPolicy):
        def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
            return super().budget(context, drafter, n_unread) if drafter == "draft" else None

    recorder, context = Recorder(Choosy(2), tmp_path / "t.jsonl", HEADER), ProposalContext("coupled", 4)
    for drafter in ("lookup", "draft"):
        budget = recorder.budget(context, drafter, int)
        assert budget is not None
        proposed = Draft.chain([4, 5, 6, 7][: budget.tokens], [0.9] * budget.tokens, drafter)
        context.proposals.append(Proposal(drafter, proposed))
    [verified] = recorder.select([context], 1, 4)
    assert (verified.source, len(verified)) == ("draft", 2)
    recorder.record([Verified(context, verified, range(2), [4, 5, 9])], 0.5)
    recorder.close()
    drafts = rows(tmp_path / "t.jsonl")[1]["drafts"]
    assert [(draft["source"], draft["verified"], draft["accepted"]) for draft in drafts] == [
        ("lookup", 0, None),
        ("draft", 2, 2),
    ]


def test_a_row_is_written_as_soon_as_it_is_known_what_matched(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(0), tmp_path / "t.jsonl", HEADER)
    step(recorder, [4], chain(4, 5, 6))
    step(recorder, [5])
    assert len(rows(tmp_path / "t.jsonl")) == 1
    step(recorder, [9])
    assert [row["drafts"][0]["matched"] for row in rows(tmp_path / "t.jsonl")[1:2]] == [2]
    step(recorder, [9], chain(8, 8, 8))
    assert len(rows(tmp_path / "t.jsonl")) == 5  # it missed at once


def test_the_end_settles_what_matched(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(0), tmp_path / "t.jsonl", HEADER)
    step(recorder, [4], chain(4, 5, 6))
    recorder.close()
    assert rows(tmp_path / "t.jsonl")[1]["drafts"][0]["matched"] == 1


def test_a_closed_recorder_leaves_the_other_policy_alone(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(0), tmp_path / "t.jsonl", HEADER)
    recorder.close()
    assert recorder.budget(ProposalContext("coupled", 4), "draft", int) is None
    step(recorder, [4])
    assert len(rows(tmp_path / "t.jsonl")) == 1


def test_how_sure_the_draft_model_was_is_written_down(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(0), tmp_path / "t.jsonl", HEADER)
    step(recorder, [4], Draft([4], [-1], [0.5], [None], "draft", certainty=[(0.75, 1.25)]))
    recorder.close()
    (draft,) = rows(tmp_path / "t.jsonl")[1]["drafts"]
    assert (draft["q"], draft["entropy"]) == ([0.75], [1.25])


def test_a_step_without_room_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(0), tmp_path / "t.jsonl", HEADER)
    assert recorder.budget(ProposalContext("coupled", 0), "draft", int) is None


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(EdgespecError, match="cannot be written"):
        Recorder(FixedPolicy(0), tmp_path / "missing" / "t.jsonl", HEADER)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    traces = read_trace(small(tmp_path / "t.jsonl"))
    assert [trace.header["prompt"] for trace in traces] == ["prompt 0", "prompt 1"]
    for trace in traces:
        assert (trace.kind, trace.temperature, trace.n_max) == ("coupled", 0.8, 4)
        assert trace.costs["target"] == {"1": 1.0, "4": 1.2}
        assert trace.text == [4, 5, 6, 7]
        (draft,) = trace.rounds[0].drafts
        assert (draft.tokens, draft.matched, draft.q, draft.accepted) == ([4, 5, 9], 2, None, None)


def test_an_answer_without_a_row_of_its_own_is_read(tmp_path: Path) -> None:
    recorder = Recorder(FixedPolicy(0), tmp_path / "t.jsonl", HEADER)
    step(recorder, [4])
    recorder.close()
    assert [trace.text for trace in read_trace(tmp_path / "t.jsonl")] == [[4]]


def test_a_last_line_that_was_torn_off_is_left_out(tmp_path: Path) -> None:
    path = small(tmp_path / "t.jsonl")
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert [len(trace.rounds) for trace in read_trace(path)] == [4, 3]


@pytest.mark.parametrize(
    ("line", "change", "reason"),
    [
        (0, {"type": "round"}, "header"),
        (0, {"version": 2}, "version 2"),
        (0, {"costs": {"target": {"1": -1.0}}}, "-1.0"),
        (2, {"type": "other"}, "'other'"),
        (2, {"emitted": ["a"]}, "integers"),
        (3, {"position": 2}, "position 2 after 1"),
        (2, {"drafts": [{"source": "draft"}]}, "missing"),
    ],
)
def test_what_no_recorder_writes_is_refused_with_its_line(
    tmp_path: Path, line: int, change: dict[str, Any], reason: str
) -> None:
    path = small(tmp_path / "t.jsonl")
    changed = rows(path)
    changed[line] |= change
    path.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
    with pytest.raises(UsageError, match=f"line {line + 1}: .*{reason}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"matched": 4}, "4 of 3"), ({"confidence": [0.5]}, "different lengths"), ({"q": [0.5]}, "different lengths")],
)
def test_a_draft_that_no_drafter_made_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = small(tmp_path / "t.jsonl")
    changed = rows(path)
    changed[2]["drafts"][0] |= change
    path.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
    with pytest.raises(UsageError, match=f"line 3: .*{reason}"):
        read_trace(path)


@pytest.mark.parametrize("text", ["", "hello\n", "[1]\n", '{"torn', "\u00ff\u00fe"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-16")
    (tmp_path / "u.jsonl").write_text(text, encoding="utf-8")
    for name in ("t.jsonl", "u.jsonl", "missing.jsonl"):
        with pytest.raises(UsageError):
            read_trace(tmp_path / name)


# --- with the bundled pair --------------------------------------------------------------------------------------------


def answer(llm: Runtime, pace: DraftPolicy, temperature: float) -> list[int]:
    llm.engine.speculator.pace = pace
    events = list(llm.generate("import os\n", max_tokens=80, temperature=temperature, seed=7))
    return [token.id for token in events if token.id >= 0]


@pytest.fixture(scope="module")
def llm(home: Path) -> Any:
    with edgespec.load("demo", spec_type="draft", threads=1, spec_draft_n_max=6, ctx_size=256) as runtime:
        yield runtime


@pytest.fixture(scope="module", params=[0.0, 0.8])
def recorded(request: pytest.FixtureRequest, llm: Runtime, tmp_path_factory: Any) -> tuple[Trace, list[int]]:
    """The trace of a plain run with a guess at every token, and the tokens of the answer."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    recorder = Recorder(FixedPolicy(0), path, HEADER | {"n_max": 6, "temperature": request.param})
    tokens = answer(llm, recorder, request.param)
    recorder.close()
    (trace,) = read_trace(path)
    return trace, tokens


def test_a_recorded_run_decodes_plainly_and_guesses_at_every_token(
    recorded: tuple[Trace, list[int]], llm: Runtime
) -> None:
    trace, tokens = recorded
    assert tokens == answer(llm, FixedPolicy(0), trace.temperature)
    assert trace.text == tokens[1:]  # the first one comes out of the prompt's pass
    assert all(round.width == 1 for round in trace.rounds)
    assert all(round.drafts[0].verified == 0 and round.drafts[0].tokens for round in trace.rounds[:-1])
    assert max(round.drafts[0].matched for round in trace.rounds[:-1]) > 0


@pytest.mark.parametrize("length", [1, 3, 6])
def test_a_replay_makes_the_rounds_that_the_engine_makes(
    recorded: tuple[Trace, list[int]], llm: Runtime, length: int
) -> None:
    trace, tokens = recorded
    replayed = replay([Tape.of(trace, "draft")], "fixed", Until(length))
    assert answer(llm, FixedPolicy(length), trace.temperature) == tokens
    stats = llm.stats
    assert stats is not None
    assert (replayed.rounds, replayed.accepted) == (stats.rounds - 1, stats.accepted)
