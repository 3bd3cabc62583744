"""Removing draft tokens again: from recurrent and hybrid memories, as far as llama.cpp can, and from sliding
windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import CHATML, HYBRID, write_model

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.core.batch import Batch
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import PairError
from edgespec.events import TokenEvent
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.models.memory.estimate import MemoryPlan
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

# Other batch widths and layouts then differ by about 1e-4, while a wrong state differs by several units.
EXACT: dict[str, Any] = {"threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
CLOSE = 0.05
PROMPT = "def f(x):\n    return"
BARE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
# With so few tokens left, a random draft is right in one of three cases, and each state influences the choice.
FEW = tuple((token, 60.0) for token in (72, 73, 74))
N_TOKENS = 64
N_BACK = 3


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write targets, by architecture, and one draft for all of them: "llama"."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: str(write_model(folder / f"{name}.gguf", name, chat_template=CHATML))
        for name in (*HYBRID, "mamba", "llama")
    }


# --- contexts ---------------------------------------------------------------------------------------------------------


class Cache:
    """A context under test and another one that decodes every text from the start; `texts` is what the first should
    hold."""

    def __init__(self, path: str, sequences: int = 1) -> None:
        self.model = LlamaModel(path)
        wide: dict[str, Any] = {"n_ctx": 256, "max_outputs": 64, **EXACT}
        self.context = Context(self.model, ContextParams(sequences=sequences, rollback=N_BACK, **wide))
        self.fresh = Context(self.model, ContextParams(**wide))
        self.texts: list[list[int]] = [[] for _ in range(sequences)]
        self.drawn = np.random.default_rng(7)

    def decode(self, lengths: dict[int, int], cancel: CancelFlag | None = None) -> None:
        """Continue with random tokens, the given number for each sequence, all in one batch."""
        batch = Batch.empty()
        before = [len(text) for text in self.texts]
        for sequence, length in lengths.items():
            for token in self.drawn.integers(0, 256, length).tolist():
                batch.add([token], len(self.texts[sequence]), (sequence,), wanted=True)
                self.texts[sequence].append(token)
        self.context.watch(cancel)
        try:
            self.context.decode(*batch)
        except CancelledError:
            for sequence in lengths:
                del self.texts[sequence][before[sequence] :]
            raise
        self.rows = {
            sequence: [self.context.logits(i).copy() for i in range(batch.size) if batch.sequence_ids[i] == (sequence,)]
            for sequence in lengths
        }

    def truncate(self, sequence: int, length: int) -> bool:
        done = self.context.truncate(sequence, length)
        if done:
            del self.texts[sequence][length:]
        return done

    def difference(self) -> float:
        """Return how much the rows of the last decode differ from those of the same texts decoded from the start."""
        differences = [
            np.abs(np.stack(rows) - self._fresh_rows(self.texts[sequence])[-len(rows) :]).max()
            for sequence, rows in self.rows.items()
        ]
        return float(max(differences))

    def _fresh_rows(self, text: list[int]) -> NDArray[np.float32]:
        self.fresh.forget(0)
        self.fresh.decode(text, range(len(text)), [(0,)] * len(text), [True] * len(text))
        return np.stack([self.fresh.logits(index).copy() for index in range(len(text))])

    def close(self) -> None:
        for opened in (self.context, self.fresh, self.model):
            opened.close()


@pytest.fixture
def cache(files: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Cache]:
    """Make a cache for LFM2 with one sequence, unless a test asks for another."""
    architecture, sequences = getattr(request, "param", ("lfm2", 1))
    made = Cache(files[architecture], sequences)
    yield made
    made.close()


@pytest.mark.parametrize("cache", [(name, 1) for name in HYBRID], indirect=True)
def test_what_follows_a_rollback_is_what_a_fresh_decode_gives(cache: Cache) -> None:
    cache.decode({0: 20})
    for n_drafted in range(1, N_BACK + 1):
        for n_back in range(1, n_drafted + 1):
            cache.decode({0: 1 + n_drafted})
            assert cache.difference() < CLOSE
            assert cache.truncate(0, len(cache.texts[0]) - n_back)
            assert cache.context.length(0) == len(cache.texts[0])
    cache.decode({0: 1})
    assert cache.difference() < CLOSE


@pytest.mark.parametrize("cache", [(name, 1) for name in HYBRID], indirect=True)
def test_a_rollback_that_cannot_be_is_refused_and_changes_nothing(cache: Cache) -> None:
    cache.decode({0: 20})
    assert not cache.truncate(0, 20 - N_BACK - 1)  # older than the kept states
    cache.decode({0: 2})
    assert not cache.truncate(0, 20)  # the state before the decode was overwritten
    assert not cache.truncate(0, 19)
    cache.decode({0: 3})
    assert cache.difference() < CLOSE
    assert cache.truncate(0, 24)
    assert not cache.truncate(0, 23)  # only once for each decode
    assert cache.truncate(0, 24)  # all states that are kept
    cache.decode({0: 2})
    assert cache.difference() < CLOSE
    assert cache.truncate(0, 0)
    cache.texts[0] = []
    cache.decode({0: 5})
    assert cache.difference() < CLOSE


@pytest.mark.parametrize("cache", [(name, 4) for name in HYBRID], indirect=True)
def test_sequences_of_a_batch_are_taken_back_each_for_itself(cache: Cache) -> None:
    cache.decode({1: 9})
    cache.decode({2: 5, 0: 7})
    for lengths in ({0: 4, 1: 2}, {1: 4, 0: 1}, {0: 3, 2: 3, 1: 3}, {2: 1, 1: 4}, {3: 4, 1: 4, 2: 4, 0: 4}):
        cache.decode(lengths)
        assert cache.difference() < CLOSE
        for sequence, length in lengths.items():
            if length > 1:
                assert cache.truncate(sequence, len(cache.texts[sequence]) - (1 + sequence % (length - 1)))


@pytest.mark.parametrize("cache", [(name, 3) for name in HYBRID], indirect=True)
def test_three_sequences_of_different_lengths_cannot_be_taken_back(cache: Cache) -> None:
    # llama.cpp moves the first sequence's state when it decodes the other two, but not its older states.
    cache.decode({1: 5})
    cache.decode({0: 5})
    cache.decode({2: 5})
    cache.decode({0: 4, 1: 2, 2: 2})
    for sequence in range(3):
        assert not cache.truncate(sequence, len(cache.texts[sequence]) - 1)
    cache.decode({0: 1, 1: 1, 2: 1})
    assert cache.difference() < CLOSE


@pytest.mark.parametrize("cache", [(name, 3) for name in (*HYBRID, "mamba")], indirect=True)
def test_after_a_cancelled_decode_a_recurrent_state_is_unknown_until_it_is_forgotten(cache: Cache) -> None:
    cancel = CancelFlag()
    cache.decode({0: 6, 1: 6, 2: 6}, cancel)
    cancel.set()
    with pytest.raises(CancelledError):
        cache.decode({0: 2, 1: 2}, cancel)
    for sequence in range(3):
        assert not cache.truncate(sequence, 6)
        assert not cache.truncate(sequence, 5)
    cache.context.forget(0)
    assert cache.truncate(1, 0)
    cache.texts[:2] = [], []
    cache.decode({0: 7, 1: 7})
    assert cache.difference() < CLOSE
    assert cache.truncate(0, 6) == (cache.context.rollback > 0)


def test_what_is_planned_with_streams_is_loaded_with_them(files: dict[str, str]) -> None:
    for name, path in files.items():
        with LlamaModel(path) as model:
            assert MemoryPlan(model.header, n_ctx=64, exact=True).can_stream == model.can_roll_back, name


def test_a_context_says_how_far_back_it_can_go(files: dict[str, str]) -> None:
    expected = {"lfm2": 5, "qwen35": 5, "nemotron_h": 5, "mamba": 0, "llama": 16}
    for name, rollback in expected.items():
        with (
            LlamaModel(files[name]) as model,
            Context(model, ContextParams(n_ctx=64, n_batch=16, rollback=5, threads=1)) as context,
        ):
            assert context.rollback == rollback
    with LlamaModel(files["lfm2"]) as model:
        with Context(model, ContextParams(n_ctx=64, threads=1)) as context:
            assert context.rollback == 0
        with Context(model, ContextParams(n_ctx=64, n_batch=4, rollback=64, threads=1)) as context:
            assert context.rollback < 4


# --- answers ----------------------------------------------------------------------------------------------------------


def text_of(events: Iterable[TokenEvent]) -> str:
    return "".join(event.text for event in events)


def assert_same(events: Iterable[TokenEvent], plain: Iterable[TokenEvent]) -> None:
    assert [event.id for event in events] == [event.id for event in plain]


def settings(temperature: float = 0.8, **more: Any) -> dict[str, Any]:
    return {"max_tokens": N_TOKENS, "ignore_eos": True, "seed": 3, "temperature": temperature, "logit_bias": FEW} | more


def load(target: str, **more: Any) -> Runtime:
    drafters = "draft" if "draft_model" in more else "none"
    return edgespec.load(target, **{"pace": "fixed:3", "spec_type": drafters} | EXACT | more)


def drafting(files: dict[str, str], architecture: str, **more: Any) -> Runtime:
    return load(files[architecture], draft_model=files["llama"], **more)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("architecture", HYBRID)
@pytest.mark.parametrize("drafter", ["draft", "lookup", "draft,lookup"])
def test_a_hybrid_model_says_the_same_with_any_draft(files: dict[str, str], architecture: str, drafter: str) -> None:
    with load(files[architecture]) as plain, drafting(files, architecture, spec_type=drafter) as llm:
        assert not any("plainly" in note for note in llm.notes)
        for temperature in (0.0, 0.8):
            chosen = settings(temperature)
            assert_same(llm.generate(PROMPT, **chosen), plain.generate(PROMPT, **chosen))
            assert 0 < llm.stats.accepted < llm.stats.proposed
            assert llm.stats.rounds < plain.stats.rounds == N_TOKENS


@pytest.mark.parametrize("architecture", HYBRID)
def test_rollback_costs_a_hybrid_model_no_decoding(files: dict[str, str], architecture: str) -> None:
    with drafting(files, architecture) as llm:
        list(llm.generate(PROMPT, **settings()))
        assert llm.stats.accepted < llm.stats.proposed
        assert llm.context.decodes == llm.stats.rounds
        assert llm.context.length(0) == llm.stats.prompt_tokens + N_TOKENS - 1


@pytest.mark.parametrize("architecture", HYBRID)
def test_a_cancelled_answer_leaves_a_hybrid_model_usable(files: dict[str, str], architecture: str) -> None:
    with drafting(files, architecture) as llm:
        want = text_of(llm.generate(PROMPT, **settings()))
        cancel, events = CancelFlag(), []
        for event in llm.generate(PROMPT, cancel=cancel, **settings()):
            events.append(event)
            if len(events) == 20:
                cancel.set()
        assert events[-1].finish_reason == "cancelled"
        assert want.startswith(text_of(events))
        assert text_of(llm.generate(PROMPT, **settings())) == want


@pytest.mark.parametrize("architecture", [*HYBRID, "mamba"])
def test_the_next_turn_of_a_chat_is_what_a_new_chat_would_say(files: dict[str, str], architecture: str) -> None:
    with load(files[architecture]) as plain, drafting(files, architecture) as llm:
        turns = [Message("user", "hello")]
        for question in ("and then?", "why?"):
            answer = list(llm.chat(turns, **settings(max_tokens=24)))
            assert_same(answer, plain.chat(turns, **settings(max_tokens=24)))
            turns += [Message("assistant", text_of(answer)), Message("user", question)]


@pytest.mark.parametrize("architecture", HYBRID)
@pytest.mark.parametrize(("sequences", "drafter"), [(2, "draft"), (2, "lookup"), (3, "draft"), (3, "lookup")])
def test_answers_decoded_together_are_those_given_alone(
    files: dict[str, str], architecture: str, sequences: int, drafter: str
) -> None:
    requests = [_request(seed, PROMPT + " x" * seed, 12 + 5 * seed) for seed in range(5)]
    with load(files[architecture]) as plain:
        alone = [list(plain.submit(request)) for request in requests]
    with drafting(files, architecture, spec_type=drafter, sequences=sequences) as llm:
        together: list[list[TokenEvent]] = [[] for _ in requests]
        proposed = accepted = 0
        for index, event in llm.stream(requests):
            assert isinstance(event, TokenEvent)
            together[index].append(event)
            if event.stats:
                proposed += event.stats.proposed
                accepted += event.stats.accepted
    for answer, expected in zip(together, alone, strict=True):
        assert_same(answer, expected)
    assert 0 < accepted < proposed


def _request(seed: int, prompt: str, max_tokens: int) -> Request:
    sampling = SamplingSettings(temperature=0.8, logit_bias=FEW)
    return Request(prompt=prompt, max_tokens=max_tokens, sampling=sampling, seed=seed, ignore_eos=True)


@pytest.mark.parametrize("architecture", HYBRID)
def test_a_tree_for_a_hybrid_model_is_a_chain_and_it_says_so(files: dict[str, str], architecture: str) -> None:
    with load(files[architecture]) as plain, drafting(files, architecture, spec_tree=4) as llm:
        assert any("drafting chains" in note and architecture in note for note in llm.notes)
        assert_same(llm.generate(PROMPT, **settings()), plain.generate(PROMPT, **settings()))
        assert 0 < llm.stats.accepted < llm.stats.proposed


@pytest.mark.parametrize("drafter", ["draft", "lookup"])
def test_a_recurrent_model_without_old_states_decodes_plainly_and_says_so(files: dict[str, str], drafter: str) -> None:
    with load(files["mamba"]) as plain, drafting(files, "mamba", spec_type=drafter) as llm:
        assert any("decoding without speculation" in note and "mamba" in note for note in llm.notes)
        assert_same(llm.generate(PROMPT, **settings()), plain.generate(PROMPT, **settings()))
        assert llm.stats.proposed == 0


def test_a_hybrid_model_cannot_draft(files: dict[str, str]) -> None:
    with pytest.raises(PairError, match=r"lfm2\.gguf cannot draft: .*cannot be rolled back"):
        load(files["llama"], draft_model=files["lfm2"])


@pytest.mark.long(but=2)
@pytest.mark.parametrize("leaves", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_sliding_window_does_not_show_in_drafted_text(tmp_path: Path, leaves: int, temperature: float) -> None:
    n_window, chosen = 32, settings(temperature, max_tokens=100)
    target = str(write_model(tmp_path / "target.gguf", "gemma3"))
    draft = str(write_model(tmp_path / "draft.gguf", "gemma3", noise=0.3))
    with load(target) as plain, load(target, draft_model=draft, spec_tree=leaves, pace="fixed:6") as llm:
        assert llm.model.sliding_window
        for prompt in (PROMPT, PROMPT * 8):
            assert_same(llm.generate(prompt, **chosen), plain.generate(prompt, **chosen))
            assert llm.stats.generated_tokens > 2 * n_window
            assert 0 < llm.stats.accepted < llm.stats.proposed


@pytest.mark.long
def test_a_chat_may_go_back_behind_the_sliding_window(tmp_path: Path) -> None:
    target = str(write_model(tmp_path / "target.gguf", "gemma3", chat_template=BARE))
    draft = str(write_model(tmp_path / "draft.gguf", "gemma3", noise=0.3))
    question = Message("user", PROMPT * 8)
    with load(target) as plain, load(target, draft_model=draft, spec_tree=4) as llm:
        list(llm.chat([question], **settings(max_tokens=1200)))
        # Tokens that the window does not reach from the end of that answer are needed again.
        turns = [question, Message("user", "x")]
        assert_same(llm.chat(turns, **settings()), plain.chat(turns, **settings()))
        assert 100 < llm.stats.cached_tokens >= llm.stats.prompt_tokens - 10
