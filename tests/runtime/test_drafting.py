"""Requests that say how their drafts are made: side by side, each in its own way, with the text it has in any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.events import TokenEvent
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Request, fixed_length

SETTINGS = LoadSettings("demo", sequences=4, ctx_size=512, store=False, threads=1, spec_type="suffix,lookahead,draft")
WAYS: list[dict[str, Any]] = [
    {},
    {"spec_type": "none"},
    {"spec_type": "suffix", "pace": "fixed:3"},
    {"spec_type": "draft", "pace": "fixed:2"},
    {"pace": "off"},
    {"draft_n_max": 0},
    {"draft_n_max": 1, "pace": "fixed:1"},
    {"spec_type": "lookahead,draft", "pace": "auto", "draft_n_max": 5},
]


@pytest.fixture(scope="module")
def llm(home: object) -> Iterator[Runtime]:
    with Runtime(SETTINGS) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def worker(home: object) -> Iterator[Worker]:
    with Worker(SETTINGS) as opened:
        yield opened


@pytest.fixture(scope="module")
def fast(home: Path) -> Iterator[Runtime]:
    """With a cache that all sequences share, where drafts of a pass may have different lengths."""
    with Runtime(replace(SETTINGS, exact=False, cache_type_k="f32", cache_type_v="f32")) as runtime:
        assert not runtime.context.streams
        yield runtime


def asked(rule: Any = "coupled", temperature: float = 0.8) -> list[Request]:
    """One request for each way."""
    one = Request("import os\nimport sys\nimport", max_tokens=24, seed=3, ignore_eos=True, verify=rule)
    one = replace(one, sampling=replace(one.sampling, temperature=temperature))
    return [replace(one, **way) for way in WAYS]


def answered(llm: Runtime | Worker, requests: list[Request]) -> tuple[list[list[int]], list[Stats]]:
    """Ids and figures of answers that are made together."""
    tokens: list[list[int]] = [[] for _ in requests]
    stats = [Stats() for _ in requests]
    for index, event in llm.stream(requests):
        assert isinstance(event, TokenEvent)
        tokens[index].append(event.id)
        stats[index] = event.stats or stats[index]
    return tokens, stats


def check(stats: Stats, way: dict[str, Any], *, drafts: bool) -> None:
    """True if an answer was drafted as its request asks."""
    if way.get("spec_type") == "none" or way.get("pace") == "off" or way.get("draft_n_max") == 0:
        assert stats.proposed == 0 and not stats.by_source
        return
    assert {*stats.by_source} <= {*way.get("spec_type", SETTINGS.spec_type).split(",")}
    most = way.get("draft_n_max") or fixed_length(way.get("pace", "")) or 31
    assert len(stats.proposed_per_pos) <= most
    if drafts and "pace" in way and way["pace"] != "auto":
        assert len(stats.proposed_per_pos) == most


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["llm", "worker"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_drafts_in_its_way_and_says_the_same(
    name: str, temperature: float, request: pytest.FixtureRequest
) -> None:
    model: Runtime | Worker = request.getfixturevalue(name)
    requests = asked(temperature=temperature)
    tokens, stats = answered(model, requests)
    assert all(each == tokens[0] for each in tokens)
    for way, each, one in zip(WAYS, stats, requests, strict=True):
        check(each, way, drafts=False)
        (alone,), (figures,) = answered(model, [one])
        assert alone == tokens[0]
        check(figures, way, drafts=True)


def test_side_by_side_drafts_are_as_long_as_each_wants_them(fast: Runtime) -> None:
    _, stats = answered(fast, asked())
    for way, each in zip(WAYS, stats, strict=True):
        check(each, way, drafts=True)
        assert each.generated_tokens == 24


@pytest.mark.long(but=1)
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_beside_other_rules_the_text_is_the_same(fast: Runtime, rule: str) -> None:
    """All of a sampled draft is verified, also where a pass has little room."""
    speculator, most = fast.engine.scheduler, fast.engine.scheduler.most_rows
    longest: dict[str, Any] = {"spec_type": "draft", "pace": "fixed:8"}
    others = [replace(one, **longest) for one in asked(rule)[3:5]]
    alone = [answered(fast, [one])[0][0] for one in others]
    coupled = answered(fast, asked()[1:2])[0][0]
    try:
        for room in (9, 64):
            speculator.most_rows = room
            tokens, stats = answered(fast, [replace(asked()[0], **longest), *others, asked()[6]])
            assert tokens[0] == tokens[3] == coupled
            assert all(each.generated_tokens == 24 for each in stats)
        assert tokens[1:3] == alone
    finally:
        speculator.most_rows = most


def test_where_drafts_have_one_length_nobody_drafts_in_vain(llm: Runtime) -> None:
    """In an exact context with streams, other requests draft nothing together with a request that drafts nothing."""
    plain, drafting = asked()[1], replace(asked()[3], max_tokens=10)
    _, stats = answered(llm, [plain, drafting])
    assert not stats[1].by_source or stats[1].by_source["draft"].asked == 0


@pytest.mark.native
@pytest.mark.parametrize("name", ["llm", "worker"])
@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"spec_type": "recycling"}, "spec_type: drafter recycling is not loaded"),
        ({"spec_type": "self:2"}, "spec_type: drafter self:2 is not loaded"),
        ({"spec_type": "none,draft"}, "spec_type must be auto, none, or some of"),
        ({"spec_type": 3}, "spec_type must be"),
        ({"spec_type": "draft,bogus"}, "spec_type: unknown drafter 'bogus'"),
        ({"pace": "fixed:0"}, "pace must be auto"),
        ({"pace": "fixed:40"}, "pace fixed:40 needs draft_n_max 40 or more, not 31"),
        ({"pace": "fixed:4", "draft_n_max": 2}, "pace fixed:4 needs draft_n_max 4 or more, not 2"),
        ({"draft_n_max": 65}, "draft_n_max must be an integer from 0 to 64"),
        ({"draft_n_max": 32}, "draft_n_max: drafts of 32 tokens do not fit"),
        ({"draft_n_max": True}, "draft_n_max must be an integer"),
    ],
)
def test_what_is_not_loaded_or_not_spelt_like_that_is_refused(
    name: str, way: dict[str, Any], message: str, request: pytest.FixtureRequest
) -> None:
    model: Runtime | Worker = request.getfixturevalue(name)
    with pytest.raises(UsageError) as refused:
        list(model.submit(Request("x", max_tokens=2, **way)))
    assert refused.value.what.startswith(message)
    if "is not loaded" in message:
        assert refused.value.why == "loaded: suffix, lookahead, draft"


def test_a_drafter_that_all_others_do_without_drafts_where_it_is_asked_for(home: object) -> None:
    with Runtime(replace(SETTINGS, sequences=2)) as llm:
        llm.draft_with(spec_type="none")
        ways: list[dict[str, Any]] = [{}, {"spec_type": "lookahead,draft", "pace": "fixed:2"}]
        (plain, before), (drafted, after) = (answered(llm, [replace(asked()[0], **way)]) for way in ways)
        assert plain == drafted
        assert before[0].proposed == 0 < after[0].by_source["draft"].proposed
        with pytest.raises(UsageError, match="not loaded"):
            llm.complete("x", spec_type="corpus")
        llm.draft_with(spec_type="draft", pace="fixed:3")
        assert llm.complete("import os\n", max_tokens=9, temperature=0, pace="off").stats.proposed == 0
        assert llm.complete("import os\n", max_tokens=9, temperature=0, draft_n_max=3).stats.proposed > 0


def test_rows_of_a_batch_say_how_to_draft(llm: Runtime) -> None:
    row = {"prompt": "import os\n", "max_tokens": 12, "temperature": 0}
    rows = [row, row | {"spec_type": "draft", "pace": "fixed:2"}, row | {"spec_type": "corpus"}, row | {"pace": 3}]
    found = list(llm.batch(rows, chat=False, ordered=True))
    assert found[0]["content"] == found[1]["content"]
    assert "drafter corpus is not loaded" in str(found[2]["error"])
    assert "pace must be a string" in str(found[3]["error"])
