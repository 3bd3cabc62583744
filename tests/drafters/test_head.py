"""Draft heads: what they read from the target, what they draft, and that the text never changes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_gguf import EXACT, write_model
from tiny_head import write_bigram, write_block_drafter, write_head, write_networks
from tiny_mtp import ARCHITECTURES, SEVERAL, write_mtp

import edgespec
import edgespec.drafters.states as heads
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.head import HeadDrafter
from edgespec.errors import ModelFileError, PairError, UsageError
from edgespec.gguf_file.head_check import check_draft_file, kind_of_head, mtp_mismatch
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.weights import read_rows
from edgespec.llama import head_context
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.head_context import HeadContext
from edgespec.llama.model import LlamaModel
from edgespec.models.names.source import HEADS
from edgespec.models.pair.check import check_pair
from edgespec.settings import Message, Request

PROMPT = "def the class for x in the list: return the one, or print it"


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bigram(tmp_path_factory.mktemp("heads") / "bigram.gguf")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("heads") / "deep.gguf", "llama", n_layers=4)


def load(target: Path, head: Path | None, **settings: object) -> edgespec.LLM:
    chosen = {"spec_type": "eagle3", "draft_model": str(head), "pace": "fixed:4"} if head else {"spec_type": "none"}
    return edgespec.load(str(target), **{"ctx_size": 512, **EXACT, **chosen, **settings})


def texts(llm: edgespec.LLM, prompts: list[str], temperature: float = 0.0, n: int = 40) -> list[list[int]]:
    found = []
    for seed, prompt in enumerate(prompts):
        sampling = SamplingSettings(temperature=temperature)
        request = Request(prompt=prompt, max_tokens=n, sampling=sampling, seed=seed, ignore_eos=True)
        found.append([event.id for event in llm.submit(request) if event.id >= 0])
    return found


@pytest.mark.long(but=3)
@pytest.mark.parametrize("tree", [1, 4])
@pytest.mark.parametrize("has_vocabulary", [True, False])
@pytest.mark.parametrize("draft_tokens", [None, list(range(290))])
def test_a_head_that_predicts_as_the_target_is_accepted(
    bigram: Path, tmp_path: Path, tree: int, draft_tokens: list[int] | None, has_vocabulary: bool
) -> None:
    head = write_head(
        tmp_path / "head.gguf", knows_bigrams=True, draft_tokens=draft_tokens, has_vocabulary=has_vocabulary
    )
    with load(bigram, None) as plain, load(bigram, head, spec_tree=tree) as llm:
        assert texts(llm, [PROMPT]) == texts(plain, [PROMPT])
        assert llm.stats.acceptance_rate > (0.9 if tree == 1 else 0.8)  # in a tree, some branches must be wrong
        assert llm.stats.tokens_per_round > 3


@pytest.mark.long(but=2)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", [1, 4])
@pytest.mark.parametrize("spec_type", ["eagle3", "suffix,recycling,eagle3"])
def test_texts_stay_what_they_are(deep: Path, tmp_path: Path, spec_type: str, temperature: float, tree: int) -> None:
    prompts = [PROMPT * times for times in (1, 3, 8)]
    head = write_head(tmp_path / "head.gguf", seed=3)
    with load(deep, None) as plain, load(deep, head, spec_tree=tree, spec_type=spec_type) as llm:
        assert texts(llm, prompts, temperature) == texts(plain, prompts, temperature)
        assert llm.stats.proposed > 0


def test_several_sequences_and_long_prompts_are_read(bigram: Path, tmp_path: Path) -> None:
    """Prompts take several batches of the target and of the head, and begin alike or not: the head has not seen the
    beginning of a copied prompt."""
    head = write_head(tmp_path / "head.gguf", knows_bigrams=True)
    texts = [f"{times} {PROMPT * times}" for times in (1, 25, 4, 2)]
    requests = [Request(prompt=text, max_tokens=30, ignore_eos=True) for text in texts]
    with load(bigram, head, sequences=3, ctx_size=2048) as llm:
        answers: dict[int, list[edgespec.TokenEvent]] = {}
        for index, event in llm.stream(iter(requests)):
            assert isinstance(event, edgespec.TokenEvent)
            answers.setdefault(index, []).append(event)
    for request, events in zip(requests, (answers[index] for index in range(4)), strict=True):
        assert events[-1].stats is not None
        assert events[-1].stats.acceptance_rate > 0.9
        with load(bigram, None, ctx_size=2048) as plain:
            assert [event.id for event in plain.submit(request)] == [event.id for event in events]


def test_a_continued_chat_feeds_the_head_what_is_new(bigram: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head.gguf", knows_bigrams=True)
    messages = [Message("user", PROMPT)]
    with load(bigram, head, ctx_size=2048) as llm:
        for turn in range(3):
            request = Request(messages=tuple(messages), max_tokens=30, ignore_eos=True)
            events = [event for event in llm.submit(request) if event.id >= 0]
            assert llm.stats.acceptance_rate > 0.8
            assert (llm.stats.cached_tokens > 0) == (turn > 0)
            text = "".join(event.text for event in events)
            messages += [Message("assistant", text, tuple(event.id for event in events)), Message("user", "and then?")]


def test_the_head_keeps_what_the_next_prompt_begins_with(
    bigram: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = write_head(tmp_path / "head.gguf", knows_bigrams=True)
    first = Message("user", "def the class for x")
    with load(bigram, head, ctx_size=2048) as llm:
        answer = llm.complete([first], max_tokens=20, ignore_eos=True)
        (drafter,) = llm.engine.speculator.drafters
        assert isinstance(drafter, HeadDrafter)
        monkeypatch.setattr(drafter.context, "forget", lambda slot: pytest.fail("it was thrown away"))
        chat = [first, Message("assistant", answer.text, tuple(answer.tokens)), Message("user", "and then?")]
        for messages in (
            chat,
            [first],
            [*chat[:2], Message("user", "and what else?")],
            [Message("user", "def the one")],
        ):
            answer = llm.complete(messages, max_tokens=20, ignore_eos=True)
            assert answer.stats.cached_tokens > 0
            assert answer.stats.acceptance_rate > 0.8


@pytest.mark.parametrize("most", [1, 100_000])
def test_of_much_that_a_head_has_not_read_it_reads_the_end(
    bigram: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(heads, "MOST_UNREAD", most)
    head = write_head(tmp_path / "head.gguf", knows_bigrams=True)
    with load(bigram, head, ctx_size=4096) as llm:
        drafter, sequences = llm.engine.speculator.drafters[0], llm.engine.scheduler.active
        prompt, n_unread = PROMPT * 60, []
        for number, _ in enumerate(llm.generate(prompt, max_tokens=40, ignore_eos=True)):
            if number == 0:
                n_unread = [drafter.n_unread(sequence) for sequence in sequences]
        assert llm.stats.acceptance_rate > 0.9
        assert llm.stats.prompt_tokens > 1000
        assert 0 < n_unread[0] < 700


def test_a_prompt_of_one_token_is_nothing_to_draft_behind_yet(bigram: Path, tmp_path: Path) -> None:
    with load(bigram, write_head(tmp_path / "head.gguf", knows_bigrams=True)) as llm:
        answer = llm.complete("a", max_tokens=20, ignore_eos=True)
        assert answer.stats.prompt_tokens == 1
        assert answer.stats.accepted > 10
        assert not llm.notes


def test_a_head_switched_on_in_the_middle_begins_there(bigram: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head.gguf", knows_bigrams=True)
    with load(bigram, head) as llm:
        llm.draft_with(spec_type="none")
        request = Request(prompt=PROMPT, max_tokens=40, ignore_eos=True)
        sources = []
        for number, event in enumerate(llm.submit(request)):
            if number == 10:
                llm.draft_with(spec_type="eagle3", pace="fixed:4")
            sources.append(event.source)
    assert set(sources[:10]) == {""}
    assert sources.count("eagle3") > 10


@pytest.mark.parametrize(
    ("metadata", "tensors", "why"),
    [
        ({"eagle3.target_layers": [1, 2]}, {}, "read 3 layers"),
        ({"eagle3.block_count": 2}, {}, "one layer"),
        ({}, {"fc.weight": None}, "is missing"),
        ({}, {"fc.weight": np.zeros((64, 64), np.float32)}, "has the shape"),
        ({}, {"blk.0.attn_q.weight": np.zeros((64, 64), np.float32)}, "has the shape"),
        ({}, {"blk.0.attn_v.weight": None}, "is missing"),
        ({"eagle3.attention.head_count_kv": 2}, {}, "'blk.0.attn_k.weight' has the shape"),
        ({"eagle3.feed_forward_length": 96}, {}, "'blk.0.ffn_gate.weight' has the shape"),
        ({"eagle3.norm_before_fc": True}, {}, "'enc.output_norm.weight' is missing"),
        ({}, {"d2t": np.arange(9), "output.weight": None}, "'output.weight' is missing"),
        ({}, {"d2t": np.array([0, 9999], np.int64), "output.weight": np.zeros((2, 64), np.float32)}, "does not fit"),
        ({}, {"output_norm.weight": np.full(64, np.nan, np.float32)}, "not numbers"),
        ({}, {"blk.0.attn_norm_2.weight": np.full(64, np.nan, np.float32)}, "not numbers"),
        ({"eagle3.rope.dimension_count": 0}, {}, "is 0, not an integer from 1 to 65,536"),
        ({"eagle3.rope.dimension_count": 63}, {}, "63 rotary dimensions"),
        ({"eagle3.rope.dimension_count": 6400}, {}, "6400 rotary dimensions"),
        ({"eagle3.attention.layer_norm_rms_epsilon": -1.0}, {}, "impossible"),
        ({"eagle3.attention.layer_norm_rms_epsilon": float("nan")}, {}, "impossible"),
    ],
)
def test_a_broken_head_is_refused(tmp_path: Path, metadata: dict, tensors: dict, why: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ModelFileError, match=why):
        check_draft_file(write_head(tmp_path / "head.gguf", metadata=metadata, tensors=tensors))


def test_a_head_with_weights_that_are_not_numbers_is_off(deep: Path, tmp_path: Path) -> None:
    broken = {"fc.weight": np.full((64, 192), np.nan, np.float32)}
    with load(deep, None) as plain, load(deep, write_head(tmp_path / "head.gguf", tensors=broken)) as llm:
        assert texts(llm, [PROMPT]) == texts(plain, [PROMPT])
    assert llm.stats.accepted == 0


@pytest.mark.parametrize(
    ("architecture", "width", "layers", "why"),
    [
        ("llama", 128, (1, 2, 3), "a head for models of width 64"),
        ("llama", 64, (1, 2, 9), "it reads layer 9"),
        ("qwen2", 64, (1, 2, 3), "does not give the inputs of layers of a qwen2"),
    ],
)
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_head_of_another_target_is_refused(
    tmp_path: Path, kind: str, architecture: str, width: int, layers: tuple[int, ...], why: str
) -> None:
    target, path = write_model(tmp_path / "target.gguf", architecture, width=width, n_layers=4), tmp_path / "head.gguf"
    is_block = kind == "dflash"
    head = write_block_drafter(path, kind, layers=layers) if is_block else write_head(path, layers=layers)
    with pytest.raises(PairError, match=why):
        load(target, head, spec_type=kind)
    assert why in " ".join(check_pair(check_draft_file(target), check_draft_file(head)).reasons)


def test_a_head_that_cannot_be_opened_leaves_nothing_behind(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[HeadContext] = []

    def switch_states(*_: object, **__: object) -> None:
        raise UsageError("this build has no states")

    def close(self: HeadContext) -> None:
        opened.append(self)
        Context.close(self)

    monkeypatch.setattr(head_context, "switch_states", switch_states)
    monkeypatch.setattr(HeadContext, "close", close)
    with (
        LlamaModel(deep) as target,
        LlamaModel(write_head(tmp_path / "head.gguf")) as head,
        Context(target, ContextParams(n_ctx=64)) as context,
        pytest.raises(UsageError, match="no states"),
    ):
        HeadContext(head, context, ContextParams(threads=1, n_ctx=64, n_batch=64))
    with pytest.raises(UsageError, match="closed"):
        opened[0].length(0)


@pytest.mark.parametrize("name", ["eagle3", "mtp"])
def test_passes_of_a_head_without_texts_are_timed(deep: Path, tmp_path: Path, name: str) -> None:
    head = write_head(tmp_path / "head.gguf", has_vocabulary=False) if name == "eagle3" else None
    target = deep if head else write_mtp(tmp_path / "mtp.gguf")
    with load(target, head, spec_type=name, draft_model=head and str(head)) as llm:
        costs = llm.measure_costs([1, 2], repeat=1)
        assert costs["step"][name] > 0


def test_a_head_is_no_model_and_a_model_no_head(deep: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head.gguf")
    with pytest.raises(ModelFileError, match="a draft head"):
        load(head, None)
    with pytest.raises(PairError, match="a draft model, not a draft head"):
        load(deep, deep)


# --- heads that read the final state ----------------------------------------------------------------------------------


def write(path: Path, kind: str, n_vocab: int = 0) -> Path:
    """Write a random head of this kind."""
    if kind == "eagle1":
        return write_head(path, reads_state=True, n_vocab=n_vocab, has_vocabulary=False)
    return write_networks(path, kind, n_vocab=n_vocab)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", [1, 4])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle1"])
def test_it_drafts_for_all_architectures_and_texts_stay(
    tmp_path: Path, kind: str, architecture: str, tree: int, temperature: float
) -> None:
    target = write_model(tmp_path / "target.gguf", architecture, n_layers=4)
    head = write(tmp_path / "head.gguf", kind, check_draft_file(target).n_vocab)
    prompts = [PROMPT * times for times in (1, 8)]
    with load(target, None) as plain, load(target, head, spec_type="draft", spec_tree=tree) as llm:
        assert texts(llm, prompts, temperature) == texts(plain, prompts, temperature)
        assert llm.stats.proposed > 0
        assert llm.info.drafters == (kind,)
    assert check_pair(check_draft_file(target), check_draft_file(head)).verdict == "works"


@pytest.mark.long(but=1)
@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle1"])
def test_several_sequences_draft_with_it(deep: Path, tmp_path: Path, kind: str) -> None:
    requests = [Request(prompt=PROMPT * times, max_tokens=20, ignore_eos=True) for times in (1, 9, 4)]
    answers: dict[int, list[int]] = {}
    with load(deep, write(tmp_path / "head.gguf", kind), spec_type=kind, sequences=2) as llm:
        for index, event in llm.stream(iter(requests)):
            assert isinstance(event, edgespec.TokenEvent)
            answers.setdefault(index, []).append(event.id)
    with load(deep, None) as plain:
        for index, request in enumerate(requests):
            assert [event.id for event in plain.submit(request)] == answers[index]


@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle1"])
def test_it_is_no_eagle3(deep: Path, tmp_path: Path, kind: str) -> None:
    with pytest.raises(PairError, match=f"a head of the kind {kind}"):
        load(deep, write(tmp_path / "head.gguf", kind), spec_type="eagle3")


@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle1"])
def test_it_is_refused_for_another_width(tmp_path: Path, kind: str) -> None:
    target = write_model(tmp_path / "target.gguf", "qwen2", width=128)
    with pytest.raises(PairError, match="a head for models of width 64"):
        load(target, write(tmp_path / "head.gguf", kind))


@pytest.mark.parametrize(
    ("kind", "tensors", "why"),
    [
        ("hydra", {"embd_norm.weight": None}, "'embd_norm.weight' is missing"),
        ("hydra", {"head.1.up.weight": np.zeros((64, 64), np.float32)}, "where (192, 64) is needed"),
        ("medusa", {"head.1.up.weight": np.zeros((64, 192), np.float32)}, "where (64, 64) is needed"),
        ("medusa", {"head.2.down.weight": None}, "'head.2.down.weight' is missing"),
        ("medusa", {"d2t": np.arange(5) + 10**6}, "where"),
    ],
)
def test_broken_networks_are_refused(tmp_path: Path, kind: str, tensors: dict, why: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ModelFileError, match=re.escape(why)):
        check_draft_file(write_networks(tmp_path / "head.gguf", kind, tensors=tensors))


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"edgespec.head.reads": "the future"}, "what it reads (edgespec.head.reads) is unknown"),
        ({"eagle3.target_hidden_size": 21}, "it has to read 64 numbers of its target, not 63"),
        ({"eagle3.target_hidden_size": 23}, "where (69, 64) is needed"),
    ],
)
def test_a_broken_eagle1_is_refused(tmp_path: Path, metadata: dict, why: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ModelFileError, match=re.escape(why)):
        check_draft_file(write_head(tmp_path / "head.gguf", reads_state=True, metadata=metadata))


def test_networks_of_what_is_no_number_are_refused(deep: Path, tmp_path: Path) -> None:
    head = write_networks(tmp_path / "head.gguf", "medusa")
    broken = {"output.weight": np.full_like(read_rows(read_header(head), "output.weight"), np.nan)}
    with pytest.raises(ModelFileError, match="not numbers"):
        load(deep, write_networks(head, "medusa", tensors=broken), spec_type="medusa")


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_networks_that_know_nothing_draft_what_the_target_said_before(bigram: Path, tmp_path: Path, kind: str) -> None:
    nothing = {"output.weight": np.zeros((check_draft_file(bigram).n_vocab, 64), np.float32)}
    rates = []
    with load(
        bigram, write_networks(tmp_path / "head.gguf", kind, tensors=nothing), spec_type=kind, store=False
    ) as llm:
        for _ in range(2):
            texts(llm, [PROMPT])
            rates.append(llm.stats.acceptance_rate)
    assert rates[0] < 0.5 < 0.9 < rates[1]  # the second time, all successors are known


def test_an_eagle1_head_reads_prompts_and_goes_on_in_chats(bigram: Path, tmp_path: Path) -> None:
    """The target gives it no states of prompts, so it reads their tokens only."""
    head = write_head(tmp_path / "head.gguf", knows_bigrams=True, reads_state=True)
    messages = [Message("user", PROMPT * 20)]
    with load(bigram, head, spec_type="eagle1", ctx_size=4096) as llm:
        for turn in range(3):
            answer = llm.complete(messages, max_tokens=30, ignore_eos=True)
            assert answer.stats.acceptance_rate > 0.9
            assert (answer.stats.cached_tokens > 0) == (turn > 0)
            messages += [Message("assistant", answer.text, tuple(answer.tokens)), Message("user", "and then?")]


def test_a_hydra_head_needs_a_final_state(tmp_path: Path) -> None:
    target, head = write_mtp(tmp_path / "target.gguf", "deepseek4"), write_networks(tmp_path / "head.gguf", "hydra")
    with pytest.raises(PairError, match="does not give the final state of a deepseek4 model"):
        load(target, head, spec_type="hydra")


# --- MTP blocks -------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("architecture", "n_blocks"), [*((name, 1) for name in ARCHITECTURES), *((name, 3) for name in SEVERAL)]
)
def test_an_mtp_block_drafts_and_texts_stay(tmp_path: Path, architecture: str, n_blocks: int) -> None:
    """If there are several blocks, the first one drafts."""
    target = write_mtp(tmp_path / "mtp.gguf", architecture, n_blocks=n_blocks)
    prompts = [PROMPT * times for times in (1, 8)]
    with load(target, None) as plain, load(target, None, spec_type="mtp", pace="fixed:3") as llm:
        assert llm.info.drafters == ("mtp",)
        for temperature in (0.0, 0.9):
            assert texts(llm, prompts, temperature) == texts(plain, prompts, temperature)
            assert llm.stats.proposed > 0


@pytest.mark.long(but=1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_mtp_block_that_predicts_as_the_target_is_accepted(tmp_path: Path, architecture: str) -> None:
    target = write_mtp(tmp_path / "mtp.gguf", architecture, knows_bigrams=True)
    with load(target, None, spec_type="mtp", pace="fixed:3") as llm:
        texts(llm, [PROMPT * 8])
        assert llm.stats.acceptance_rate > 0.9


@pytest.mark.parametrize(
    ("architecture", "n_blocks", "metadata", "left_out", "why"),
    [
        ("glm4moe", 2, {}, "", "it has 2 MTP blocks, and llama.cpp runs one of a glm4moe model"),
        ("deepseek2", 1, {}, "attn_q_a", "does not run an MTP block without attn_q_a of a deepseek2 model"),
        ("mimo2", 1, {}, "attn_qkv", "does not run an MTP block without attn_qkv of a mimo2 model"),
        ("qwen35", 1, {}, "nextn.eh_proj", "this file was converted without its MTP block"),
        (
            "qwen35",
            1,
            {"general.architecture": "qwen3next"},
            "",
            "the state of a qwen3next model cannot be rolled back",
        ),
        ("qwen35", 1, {"general.architecture": "exaone-moe"}, "", "does not draft with the MTP blocks of a exaone-moe"),
    ],
)
def test_a_block_that_llama_cpp_does_not_run_is_not_tried(
    tmp_path: Path, architecture: str, n_blocks: int, metadata: dict[str, str], left_out: str, why: str
) -> None:
    header = read_header(write_mtp(tmp_path / "mtp.gguf", architecture, n_blocks=n_blocks))
    assert (mtp_mismatch(header) == "") == (n_blocks == 1)
    renamed = {
        key.replace(architecture, metadata.get("general.architecture", architecture), 1): value
        for key, value in header.metadata.items()
    }
    tensors = {name: tensor for name, tensor in header.tensors.items() if name != f"blk.3.{left_out}.weight"}
    assert why in mtp_mismatch(replace(header, metadata=renamed | metadata, tensors=tensors))


def test_a_model_without_an_mtp_block_says_so(deep: Path) -> None:
    with pytest.raises(PairError, match="it has no MTP block"):
        load(deep, None, spec_type="mtp")


# --- bundled heads ----------------------------------------------------------------------------------------------------


def test_a_head_that_comes_with_the_program_is_found_by_its_kind(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.models.pair.near.HEADS", tmp_path)
    write_networks(tmp_path / "a.gguf", "hydra", n_vocab=999)  # of another model
    write_networks(tmp_path / "b.gguf", "hydra")
    with load(deep, None, spec_type="hydra") as llm:
        assert llm.info.drafters == ("hydra",)
    with load(deep, None, spec_type="auto") as llm:
        assert "hydra" not in llm.info.drafters
    with pytest.raises(UsageError, match="needs a draft head"):
        load(deep, None, spec_type="medusa")


def test_the_heads_that_come_with_the_program_are_whole_and_small() -> None:
    files = [*HEADS.glob("*.gguf")]
    assert {kind_of_head(check_draft_file(file)) for file in files} == {"eagle3", "hydra"}
    assert sum(file.stat().st_size for file in files) <= 16_000_000
    assert all("accepted" in file.with_suffix(".md").read_text(encoding="utf-8").lower() for file in files)
