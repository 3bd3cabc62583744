"""Several drafters at once: their drafts become one tree, and each drafter learns the result of its part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import EXACT, write_model
from tiny_head import write_bigram, write_head, write_hydra
from tiny_mtp import write_mtp

import edgespec
from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.policy import FixedPolicy
from edgespec.datastore.corpus import build
from edgespec.drafters.base import Outcome
from edgespec.engine.speculator import OBSERVE_EVERY
from edgespec.engine.width_classes import WidthClasses
from edgespec.errors import UsageError
from edgespec.events import TokenEvent
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Request

TEXT = "import os\n" + "    self.assertEqual(os.path.join('a', 'b'), 'a/b')\n" * 6


def tree(source: str, *nodes: tuple[int, int, float]) -> Draft:
    tokens, parents, confidence = (list(part) for part in zip(*nodes, strict=True))
    return Draft(tokens, parents, confidence, [None] * len(nodes), source)


@st.composite
def trees(draw: Any) -> Draft:
    """Generate trees: siblings differ, and their confidences never increase."""
    nodes: list[tuple[int, int, float]] = []
    for _ in range(draw(st.integers(1, 8))):
        parent = draw(st.integers(-1, len(nodes) - 1))
        taken = {token for token, other, _ in nodes if other == parent}
        token = draw(st.sampled_from(sorted(set(range(10)) - taken)))
        nodes.append((token, parent, draw(st.floats(0.1, 0.9))))
    return tree("x", *nodes)


def paths(draft: Draft) -> dict[tuple[int, ...], float]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append(((*found[parent],) if parent >= 0 else ()) + (token,))
    return dict(zip(found, draft.confidence, strict=True))


@given(trees(), trees())
@pytest.mark.slow
def test_a_merged_tree_has_the_paths_of_both_and_the_surer_confidence(a: Draft, b: Draft) -> None:
    merged, ours, theirs = a.merged(b), paths(a), paths(b)
    assert len(paths(merged)) == len(merged)
    assert paths(merged) == {path: max(ours.get(path, 0.0), theirs.get(path, 0.0)) for path in [*ours, *theirs]}
    assert all(-1 <= parent < node for node, parent in enumerate(merged.parents))


@given(trees(), trees(), st.integers(1, 9))
@pytest.mark.slow
def test_what_hangs_below_a_node_lies_right_behind_it(a: Draft, b: Draft, n: int) -> None:
    """Also in a part of a merged tree: after a gap the cells of the first path would be summed in another order."""
    draft = a.depth_first().merged(b).best(n).within(3)
    open_nodes = [-1]
    for node, parent in enumerate(draft.parents):
        assert parent in open_nodes
        open_nodes = [*open_nodes[: open_nodes.index(parent) + 1], node]


@pytest.mark.slow
@given(trees(), st.integers(1, 4))
def test_within_fewer_leaves_is_what_reaches_farthest(draft: Draft, leaves: int) -> None:
    fewer = draft.within(leaves)
    assert fewer.n_leaves <= leaves and paths(fewer).items() <= paths(draft).items()
    assert max(fewer.reaches()) == max(draft.reaches())
    if draft.n_leaves <= leaves:
        assert fewer is draft


def test_who_guessed_a_node_is_known_in_any_part_of_a_merged_tree() -> None:
    merged = tree("a", (1, -1, 0.5), (2, 0, 0.5)).merged(tree("b", (1, -1, 0.9), (3, 0, 0.9), (4, -1, 0.2)))
    assert [merged.source_of(node) for node in range(4)] == ["a", "a", "b", "b"]
    best = merged.best(2)
    assert best.tokens == [1, 3] and [best.source_of(node) for node in range(2)] == ["a", "b"]


def test_all_that_are_possible_guess_if_one_says_so() -> None:
    cheap = ("grammar", "suffix", "recycling")
    weighty = ("mtp", "assistant", "medusa", "hydra", "eagle1", "eagle3", "peagle", "dflash", "dspark", "draft")
    assert LoadSettings("demo", spec_type="auto").drafters == cheap + weighty
    assert LoadSettings("demo", spec_type="auto", corpus="x").drafters == (*cheap, "corpus", *weighty)
    assert LoadSettings("demo", spec_type="draft,lookup").drafters == ("lookup", "draft")
    with edgespec.load("demo", spec_type="auto", threads=1) as llm:
        assert llm.info.drafters == ("grammar", "suffix", "recycling", "draft")
    with edgespec.load("demo:draft", spec_type="auto", threads=1) as llm:
        assert llm.info.drafters == ("grammar", "suffix", "recycling") and not llm.notes


@pytest.mark.long(but=2)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("pace", "leaves"), [("fixed:8", 4), ("fixed:4", 1), ("auto", 4), ("auto", 1)])
def test_together_they_change_no_text(pace: str, leaves: int, temperature: float, home: Any) -> None:
    settings: dict[str, Any] = {"max_tokens": 64, "temperature": temperature, "seed": 3, "ignore_eos": True}
    with edgespec.load("demo", spec_type="none", threads=1, flash_attention="off") as plain:
        want = [event.id for event in plain.generate(TEXT, **settings)]
    settings_of_drafts: dict[str, Any] = {"spec_type": "auto", "pace": pace, "spec_tree": leaves}
    with edgespec.load("demo", threads=1, flash_attention="off", **settings_of_drafts) as llm:
        got = list(llm.generate(TEXT, **settings))
        assert [event.id for event in got] == want
        stats = llm.stats
        assert sum(source.accepted for source in stats.by_source.values()) == stats.accepted
        assert sum(source.proposed for source in stats.by_source.values()) == stats.proposed
        for name, source in stats.by_source.items():
            assert sum(event.source == name for event in got) == source.accepted
            assert source.rounds <= source.asked and (source.seconds > 0) == (source.asked > 0)
            assert (stats.gained_per_s(name) is None) == (pace != "auto")


def test_a_tree_holds_guesses_of_several(home: Any) -> None:
    with edgespec.load("demo", spec_type="suffix,draft", pace="fixed:8", spec_tree=4, threads=1) as llm:
        list(llm.generate("import os\nimport sys\n", max_tokens=96, temperature=0.8, seed=2, ignore_eos=True))
        assert {name for name, source in llm.stats.by_source.items() if source.accepted} == {"suffix", "draft"}


@pytest.mark.long(but=2)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["draft", "eagle3", "hydra", "mtp"])
def test_a_tree_holds_what_heads_and_others_propose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, temperature: float
) -> None:
    """Like the tree of a draft model: one draft has nodes of all three drafters, none twice."""
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    write_mtp(target, "glm4moe") if kind == "mtp" else write_bigram(target)
    match kind:
        case "draft":
            write_model(draft, "llama", n_layers=1)
        case "eagle3":
            write_head(draft, knows_bigrams=True)
        case "hydra":
            write_hydra(draft, knows_bigrams=True)
    found: list[Draft] = []
    settings: dict[str, Any] = {**EXACT, "ctx_size": 512, "store": False}
    asked: dict[str, Any] = {"max_tokens": 100, "temperature": temperature, "seed": 1, "ignore_eos": True}
    with edgespec.load(str(target), spec_type="none", **settings) as plain:
        want = [event.id for event in plain.generate(TEXT, **asked)]
    drafting: dict[str, Any] = {"spec_type": f"suffix,recycling,{kind}", "pace": "fixed:12", "spec_tree": 6}
    drafting |= {"draft_model": str(draft)} if draft.exists() else {}
    with edgespec.load(str(target), **settings, **drafting) as llm:
        select = FixedPolicy.select

        def selecting(self: FixedPolicy, contexts: Any, width: int, room: int) -> list[Draft]:
            drafts = select(self, contexts, width, room)
            found.extend(drafts)
            return drafts

        monkeypatch.setattr(FixedPolicy, "select", selecting)
        assert [event.id for event in llm.generate(TEXT, **asked)] == want
    sources = [{draft.source_of(node) for node in range(len(draft))} for draft in found]
    assert {"suffix", "recycling", kind} in sources
    assert all(len(paths(draft)) == len(draft) and draft.n_leaves <= 6 for draft in found)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("n_max", [15, 64])
def test_several_answers_share_the_branches_that_there_are_until_the_context_is_full(n_max: int, home: Any) -> None:
    common: dict[str, Any] = {"threads": 1, "exact": False, "flash_attention": "off", "sequences": 4, "ctx_size": 192}
    requests = [Request(TEXT, sample=number, ignore_eos=True) for number in range(4)]
    with edgespec.load("demo", spec_type="none", **common) as plain:
        want = texts(plain, requests)
    drafting: dict[str, Any] = {"spec_tree": 16, "spec_draft_n_max": n_max, "pace": f"fixed:{n_max}", "store": False}
    with edgespec.load("demo", **common, **drafting) as llm:
        assert texts(llm, requests) == want
        assert llm.context.free_branches == llm.engine.speculator.tree_width - 1
        assert not any("is off for this answer" in note for note in llm.notes)


def test_where_the_text_depends_on_the_guesses_the_same_seed_still_gives_the_same_text(home: Any) -> None:
    settings: dict[str, Any] = {"max_tokens": 48, "temperature": 1.0, "seed": 5, "verify": "rejection"}
    found = []
    for _ in range(2):
        with edgespec.load("demo", pace="fixed:3", threads=1) as llm:
            found += ["".join(event.text for event in llm.generate(TEXT, **settings)) for _ in range(2)]
            assert llm.stats.by_source["suffix"].proposed and llm.stats.by_source["draft"].proposed
    assert len(set(found)) == 1


def test_a_drafter_that_rests_looks_now_and_then_only(home: Any) -> None:
    with edgespec.load("demo", spec_type="recycling", threads=1) as llm:
        recycling, pace = llm.engine.speculator.drafters[0], llm.engine.speculator.pace
        seen: list[int] = []
        observe = recycling.observe

        def observing(outcome: Outcome) -> None:
            seen.extend(outcome.tokens)
            observe(outcome)

        recycling.observe = observing  # type: ignore[method-assign]
        pace.budget = lambda context, drafter, n_unread: Budget(0)  # type: ignore[method-assign]
        list(llm.generate(TEXT, max_tokens=33, temperature=0.0, ignore_eos=True))
        assert len(seen) == llm.stats.generated_tokens == 33
        seen.clear()
        pace.budget = lambda context, drafter, n_unread: None  # type: ignore[method-assign]
        list(llm.generate(TEXT, max_tokens=33, temperature=0.0, ignore_eos=True))
        assert len(seen) == 1 + 32 // OBSERVE_EVERY


def test_a_draft_of_itself_is_the_one_that_was_loaded(home: Any) -> None:
    with edgespec.load("demo", spec_type="suffix,self:2", threads=1) as llm:
        llm.draft_with(spec_type="suffix")
        llm.draft_with(spec_type="self:2")
        with pytest.raises(UsageError, match="drafter self:3 is not loaded"):
            llm.draft_with(spec_type="self:3")


def test_strict_without_a_proof_guesses_nothing_from_a_corpus_either(
    tmp_path: Path, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    with LlamaModel.load_vocabulary(resolve("demo").path) as vocabulary:
        build([tmp_path / "a.txt"], vocabulary, tmp_path / "x.corpus")
    single = tuple((width, width) for width in range(1, 17))
    found = WidthClasses(single, (1.0,) * 16, 192, 0.1)
    monkeypatch.setattr("edgespec.runtime.guarantee.measured_classes", lambda *rest: found)
    with edgespec.load("demo", strict=True, exact=False, corpus=str(tmp_path / "x.corpus"), threads=1) as llm:
        assert not llm.engine.speculator.drafters and "decoding without speculation" in llm.notes[0]


def texts(llm: Runtime, requests: list[Request]) -> list[str]:
    found = [""] * len(requests)
    for index, event in llm.stream(requests):
        assert isinstance(event, TokenEvent)
        found[index] += event.text
    return found


def test_a_target_that_cannot_be_rolled_back_decodes_plainly_without_a_word(tmp_path: Path, home: Any) -> None:
    write_model(tmp_path / "m.gguf", "mamba")
    with edgespec.load(str(tmp_path / "m.gguf"), threads=1) as llm:
        assert not llm.engine.speculator.drafters and not llm.notes
        assert list(llm.generate("a", max_tokens=4, ignore_eos=True))


def test_one_that_fails_leaves_the_others_alone(home: Any) -> None:
    with edgespec.load("demo", spec_type="auto", pace="fixed:4", spec_tree=2, threads=1) as llm:
        drafter = next(drafter for drafter in llm.engine.speculator.drafters if drafter.name == "recycling")
        drafter.propose = lambda sequences, budgets: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        list(llm.generate(TEXT, max_tokens=48, temperature=0.0, ignore_eos=True))
        assert any("drafter recycling failed and is off" in note for note in llm.notes)
        assert llm.stats.by_source["suffix"].accepted > 0
