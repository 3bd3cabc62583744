"""Images in prompts of the engine: passes of their own, and the same texts with drafts, other sequences and caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_images import MadeCells
from tiny_gguf import write_model

from edgespec.cancel import CancelFlag
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.base import Drafter
from edgespec.drafters.lookahead import LookaheadDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.successors import RecyclingDrafter, Successors
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import Reuse, Sequence
from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.llama.projector import EncodingError

# The parameters that contexts of targets and of drafts have in common
SHARED: dict[str, Any] = {"n_ctx": 768, "n_batch": 128, "threads": 1, "exact": True, "flash_attention": "on"}
MROPE: dict[str, Any] = {"qwen2vl.rope.dimension_sections": [2, 3, 3, 0]}
SHORT, LONG = [*range(40, 60)], [*range(30, 130)]
Part = int | list[int]
"""The seed of an image, or text."""

pytestmark = pytest.mark.skipif(not kernels.have_exact_kernels(), reason="this build of llama.cpp was made elsewhere")


@pytest.fixture(scope="module", params=["llama", "qwen2vl", "gemma3"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    write_model(path, request.param, metadata=MROPE if request.param == "qwen2vl" else {})
    with LlamaModel(path) as model:
        yield model


class Talk:
    """An engine, and prompts of texts and images for it."""

    def __init__(
        self, model: LlamaModel, *, sequences: int = 1, branches: int = 0, drafters: Any = (), **how: Any
    ) -> None:
        self.model = model
        params = ContextParams(
            **SHARED, sequences=sequences, branches=branches, streams=sequences > 1, max_outputs=63, rollback=8
        )
        self.context = Context(model, params)
        drafters = [make(self.context) if callable(make) else make for make in drafters]
        self.engine = Engine(self.context, drafters=drafters, most_rows=63, cache_bytes=1 << 26, **how)

    def cells(self, seed: int) -> MadeCells:
        is_whole = self.model.header.architecture == "gemma3"
        return MadeCells(seed, n_embd=self.model.n_embd_inp, has_mrope=self.model.has_mrope, is_whole=is_whole)

    def add(self, *parts: Part, n: int = 12, temperature: float = 0.9, reuse: Reuse = "all") -> Sequence:
        tokens, images = list[int](), dict[int, Any]()
        for part in parts:
            if isinstance(part, int):
                images[len(tokens)] = self.cells(part)
            tokens += images[len(tokens)].tokens if isinstance(part, int) else part
        sampler = Sampler(SamplingSettings(temperature), 3, 0, self.model.n_vocab)
        return self.engine.add(tokens, sampler, n, CancelFlag(), reuse=reuse, images=images)

    def run(self) -> None:
        scheduler = self.engine.scheduler
        while scheduler.active or scheduler.waiting:
            self.engine.step()
            for sequence in scheduler.finished():
                assert sequence.error is None
                self.engine.finish(sequence)

    def answer(self, *parts: Part, **how: Any) -> list[int]:
        sequence = self.add(*parts, **how)
        self.run()
        return sequence.tokens[sequence.n_prompt :]


def conversation(talk: Talk) -> list[list[int]]:
    """Two turns with images, an edited one, and earlier ones again."""
    first = talk.answer(LONG, 1, SHORT)
    turns: list[list[Part]] = [
        [SHORT, 2, LONG],  # another image in the next turn
        [SHORT],
        [LONG, 2],  # an image at the end
        [SHORT, 2, LONG],
    ]
    prompts: list[list[Part]] = [[LONG, 1, SHORT], [LONG, 3, SHORT], [1, SHORT], [LONG, 1], [LONG, 1, 2, SHORT]]
    texts = [talk.answer(LONG, 1, SHORT, first, *turn) for turn in turns]
    return [first, *texts, *(talk.answer(*prompt) for prompt in prompts)]


def own_draft(context: Context) -> Drafter:
    """The model drafts for itself, but without images."""
    params = ContextParams(**SHARED, sequences=context.sequences, branches=8, max_outputs=8)
    draft = Context(context.model, params)
    return ModelDrafter(draft, width=3)


@pytest.mark.parametrize("tree_width", [1, 3])
def test_drafts_change_no_text(model: LlamaModel, tree_width: int) -> None:
    plain = conversation(Talk(model))
    drafters = [SuffixDrafter, LookaheadDrafter, own_draft]
    made = [lambda context, make=make: make() if make is not own_draft else make(context) for make in drafters]
    recycling = RecyclingDrafter(Successors(model.n_vocab))
    talk = Talk(model, branches=tree_width - 1, drafters=[*made, recycling], draft_n_max=5, tree_width=tree_width)
    assert conversation(talk) == plain


def test_cached_prompts_and_other_sequences_change_no_text(model: LlamaModel) -> None:
    prompts: list[list[Part]] = [
        [LONG, 1, SHORT], [LONG, 1, LONG], [LONG], [1, SHORT], [LONG, 1, SHORT], [LONG, 2, SHORT], [SHORT, 1, 2],
    ]  # fmt: skip
    alone = [Talk(model).answer(*prompt, reuse="all") for prompt in prompts]
    talk = Talk(model)
    assert [talk.answer(*prompt, reuse="all") for prompt in prompts] == alone
    several = Talk(model, sequences=3)
    sequences = [several.add(*prompt, reuse="all") for prompt in prompts]
    several.run()
    assert [sequence.tokens[sequence.n_prompt :] for sequence in sequences] == alone


def test_a_cached_image_is_not_read_again(model: LlamaModel) -> None:
    talk = Talk(model)
    talk.answer(LONG, 1, SHORT)
    n_first = len(LONG) + talk.cells(1).n
    for parts, n_cached in (
        ((LONG, 1, SHORT[:9], LONG), n_first + 9),
        ((LONG, 1, [*SHORT, 7]), n_first + len(SHORT)),
        ((LONG, 2, SHORT), len(LONG)),
        ((LONG[:-5], 1, SHORT), len(LONG) - 5),
    ):
        sequence = talk.add(*parts, n=1, reuse="all")
        talk.run()
        assert sequence.stats.cached_tokens == n_cached
        talk.answer(LONG, 1, SHORT, n=1)


def test_an_image_is_read_in_one_step(model: LlamaModel) -> None:
    talk = Talk(model, sequences=2)
    others = talk.add(SHORT, n=100)
    talk.engine.step()
    sequence = talk.add(LONG, 1, LONG, n=1)
    seen = set[int]()
    while sequence.finish is None:
        talk.engine.step()
        seen.add(sequence.n_decoded)
    start, end = len(LONG), len(LONG) + talk.cells(1).n
    assert {start, end} <= seen
    assert not any(start < n < end for n in seen)
    assert others.stats.generated_tokens > 1
    talk.run()


def test_an_aborted_image_is_read_again(model: LlamaModel) -> None:
    talk = Talk(model)
    expected = talk.answer(LONG, 1, SHORT)
    talk = Talk(model)
    sequence = talk.add(LONG, 1, SHORT)
    talk.engine.watch = talk.context.watch
    talk.engine.step()
    sequence.cancel.set()
    talk.run()
    assert sequence.finish == "cancelled"
    talk.engine.watch = lambda flag: None
    talk.context.watch(None)
    assert talk.answer(LONG, 1, SHORT) == expected


@pytest.mark.long(but=1)
@pytest.mark.parametrize("architecture", ["qwen35", "lfm2"])  # the first one has M-RoPE, too
def test_memories_that_cannot_be_cut_are_exact_too(architecture: str, tmp_path: Path) -> None:
    prompts: list[list[Part]] = [[LONG, 1, SHORT], [LONG, 1, LONG], [1, SHORT], [LONG, 1, SHORT], [SHORT, 1, 2]]
    with LlamaModel(write_model(tmp_path / "tiny.gguf", architecture)) as model:
        alone = [Talk(model).answer(*prompt, reuse="all") for prompt in prompts]
        talk = Talk(model)
        assert [talk.answer(*prompt, reuse="all") for prompt in prompts] == alone
        plain = conversation(Talk(model))
        assert conversation(Talk(model, drafters=[SuffixDrafter()], draft_n_max=5)) == plain


def test_an_image_that_cannot_be_encoded_ends_only_its_own_answer(model: LlamaModel) -> None:
    def fail() -> Any:
        raise EncodingError("the projector failed")

    talk = Talk(model, sequences=2)
    other = talk.add(SHORT, n=40)
    talk.engine.step()
    failing = talk.add(LONG, 1, SHORT)
    failing.images[len(LONG)].rows = fail  # type: ignore[method-assign]
    while other.finish is None:
        talk.engine.step()
        if failing.finish is not None and failing.slot in [one.slot for one in talk.engine.scheduler.active[1:]]:
            talk.engine.finish(failing)
    assert (other.finish, failing.finish) == ("length", "error")
    assert isinstance(failing.error, EncodingError)
