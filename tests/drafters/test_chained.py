"""Models with several MTP blocks: which block drafts which token, what it has read, and that texts stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import EXACT
from tiny_mtp import SEVERAL, write_mtp

import edgespec
from edgespec.core.draft import Draft
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters import chained
from edgespec.drafters.base import Budget, DraftContext
from edgespec.drafters.chained import ChainedDrafter
from edgespec.gguf_file.head_check import n_chained
from edgespec.gguf_file.header import read_header
from edgespec.llama.context import CacheFullError
from edgespec.llama.head_context import HeadContext
from edgespec.models.memory.estimate import MemoryPlan
from edgespec.settings import Request

PROMPT = "def the class for x in the list: return the one, or print it"


def load(target: Path, **settings: object) -> edgespec.LLM:
    chosen: dict[str, Any] = {"ctx_size": 1024, "spec_type": "mtp", "pace": "fixed:3", **EXACT, **settings}
    return edgespec.load(str(target), **chosen)


def drafter_of(llm: edgespec.LLM) -> ChainedDrafter:
    [drafter] = llm.engine.speculator.drafters
    assert isinstance(drafter, ChainedDrafter)
    return drafter


def request(tokens: Sequence[int] | None = None, *, prompt: str = PROMPT, n: int = 40, seed: int = 1) -> Request:
    greedy = SamplingSettings(temperature=0.0)
    start: dict[str, Any] = {"prompt": prompt} if tokens is None else {"prompt_tokens": tuple(tokens)}
    return Request(**start, max_tokens=n, sampling=greedy, seed=seed, ignore_eos=True)


@pytest.fixture
def always_chained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained, "EXPLORED", 1 << 30)
    monkeypatch.setattr(ChainedDrafter, "_share", lambda self, *, chained: float(chained))


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, ...], Draft]:
    """The drafts by the text that they follow."""
    made: dict[tuple[int, ...], Draft] = {}
    propose = ChainedDrafter.propose

    def kept(self: ChainedDrafter, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        result = propose(self, sequences, budgets)
        made.update((tuple(each.tokens), draft) for each, draft in zip(sequences, result, strict=True))
        return result

    monkeypatch.setattr(ChainedDrafter, "propose", kept)
    return made


@pytest.mark.usefixtures("always_chained")
@pytest.mark.parametrize("architecture", SEVERAL)
def test_each_block_drafts_one_token_from_the_whole_text(
    tmp_path: Path, architecture: str, drafts: dict[tuple[int, ...], Draft], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that have read the text piece by piece draft what they draft after reading it at once."""
    used: list[int] = []
    use_block = HeadContext.use_block

    def noted(self: HeadContext, block: int) -> None:
        used.append(block)
        use_block(self, block)

    monkeypatch.setattr(HeadContext, "use_block", noted)
    target = write_mtp(tmp_path / "mtp.gguf", architecture, n_blocks=3)
    with load(target) as llm:
        assert drafter_of(llm).context.blocks == n_chained(read_header(target)) == 3
        list(llm.submit(request()))
        assert set(zip(used[::2], used[1::2], strict=True)) == {(1, 0), (2, 0)}
    in_pieces = {text: draft.tokens for text, draft in drafts.items() if len(draft) == 3}
    assert len(in_pieces) > 30
    for text in sorted(in_pieces)[1::8]:
        drafts.clear()
        with load(target) as llm:
            list(llm.submit(request(text[:-1], n=8)))
        assert drafts[text].tokens == in_pieces[text]


def test_the_way_that_is_accepted_more_is_used(tmp_path: Path) -> None:
    """The first block alone knows the target's text: what the others add to it is wrong."""
    target = write_mtp(tmp_path / "mtp.gguf", "hy_v3", n_blocks=3, knows_bigrams=True, n_knowing=1)
    with load(target) as llm:
        drafter = drafter_of(llm)
        events = [*llm.submit(request(n=200))]
        assert drafter._share(chained=False) > 0.8 > 0.3 > drafter._share(chained=True)
        saved = drafter.state()
    with load(target, spec_type="none") as plain:
        assert [event.id for event in plain.submit(request(n=200))] == [event.id for event in events]
    with load(target) as llm:
        drafter_of(llm).restore(saved)
        assert sum(drafter_of(llm)._chains([]) for _ in range(16)) == 16 // chained.EXPLORED


def test_several_sequences_and_long_prompts_are_chained(tmp_path: Path) -> None:
    target = write_mtp(tmp_path / "mtp.gguf", "step35", n_blocks=2, knows_bigrams=True)
    requests = [request(prompt=f"{times} {PROMPT * times}", n=30) for times in (1, 25, 4, 2)]
    answers: dict[int, list[int]] = {}
    with load(target, sequences=3, ctx_size=2048) as llm:
        for index, event in llm.stream(iter(requests)):
            assert isinstance(event, edgespec.TokenEvent)
            answers.setdefault(index, []).append(event.id)
        assert llm.stats.acceptance_rate > 0.9
    with load(target, spec_type="none", ctx_size=2048) as plain:
        for index, each in enumerate(requests):
            assert [event.id for event in plain.submit(each)] == answers[index]


@pytest.mark.usefixtures("always_chained")
def test_trees_have_siblings_beside_the_chain(tmp_path: Path, drafts: dict[tuple[int, ...], Draft]) -> None:
    target = write_mtp(tmp_path / "mtp.gguf", "mimo2", n_blocks=3)
    with load(target, spec_type="none") as plain:
        expected = [event.id for event in plain.submit(request())]
    with load(target, spec_tree=4, pace="fixed:6") as llm:
        assert [event.id for event in llm.submit(request())] == expected
    longest = [max(map(len, _paths(draft))) for draft in drafts.values() if len(draft) == 6]
    assert len(longest) > 20 and max(longest) == 3  # one token of each block
    assert any(not draft.is_chain for draft in drafts.values())


def _paths(draft: Draft) -> list[list[int]]:
    """Return the tokens up to each node."""
    paths: list[list[int]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


@pytest.mark.usefixtures("always_chained")
def test_after_an_error_a_block_still_knows_the_text(
    tmp_path: Path, drafts: dict[tuple[int, ...], Draft], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafts of the next answer are those of an answer without an error."""
    target = write_mtp(tmp_path / "mtp.gguf", "step35", n_blocks=3)
    with load(target) as llm:
        text = [event.id for event in llm.submit(request(n=60)) if event.id >= 0]
    expected = {text: draft.tokens for text, draft in drafts.items()}
    decode_pairs, passes = HeadContext.decode_pairs, 0

    def failing(self: HeadContext, *args: Any) -> None:
        nonlocal passes
        passes += 1
        decode_pairs(self, *args)
        if passes == 30:
            raise CacheFullError

    with load(target) as llm:
        prompt = llm.tokenize(request())
        monkeypatch.setattr(HeadContext, "decode_pairs", failing)
        assert [event.id for event in llm.submit(request(n=60)) if event.id >= 0] == text
        drafts.clear()
        again = request([*prompt, *text[:30]], n=30)
        assert [event.id for event in llm.submit(again) if event.id >= 0] == text[30:]
    compared = [(draft.tokens, expected[text]) for text, draft in drafts.items() if text in expected]
    assert len(compared) > 15 and all(one == other for one, other in compared if len(one) == len(other) == 3)


def test_many_sequences_leave_one_block(tmp_path: Path) -> None:
    header = read_header(write_mtp(tmp_path / "mtp.gguf", "step35", n_blocks=3))
    assert MemoryPlan(header, n_ctx=64, sequences=85, mtp=True).of_block.blocks == 3
    many = MemoryPlan(header, n_ctx=64, sequences=86, mtp=True).of_block
    assert (many.blocks, many.sequences) == (1, 86)


def test_blocks_that_were_left_out_of_a_file_are_not_used(tmp_path: Path) -> None:
    header = read_header(write_mtp(tmp_path / "mtp.gguf", "mimo2", n_blocks=3))
    assert n_chained(header) == 3
    del header.tensors["blk.4.nextn.eh_proj.weight"]
    assert n_chained(header) == 1
