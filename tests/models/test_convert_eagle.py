"""Converted EAGLE-3.1 and P-EAGLE heads compute what their authors define, and draft without changing the text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_heads import WIDTH, Reference, config, drawn, eagle3, eagle31, peagle, write_head
from tiny_gguf import EXACT, model_metadata, write_model

import edgespec
from edgespec.core.batch import Batch
from edgespec.core.draft import Budget, Draft
from edgespec.drafters.base import DraftContext
from edgespec.errors import ModelFileError, UsageError
from edgespec.gguf_file.head_check import check_draft_file, kind_of_head, read_ids
from edgespec.gguf_file.header import read_header
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.eagle_context import EagleContext, ParallelContext
from edgespec.llama.eagle_graph import HeadWeights
from edgespec.llama.head_context import HeadContext
from edgespec.llama.model import LlamaModel
from edgespec.models.pair.convert import convert_head

IDS = [3, 9, 60, 61, 62, 70, 97, 110, 200, 256, 270, 290]
TOKENS = [40, 41, 77, 290, 12, 270, 5, 110]
N_VOCAB = len(model_metadata("llama")["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
HOW: dict[str, Any] = {"threads": 1, "n_ctx": 64, "n_batch": 32, "max_outputs": 32}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("convert") / "target.gguf", "llama", n_layers=4)


def converted(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, Any], target: Path, type: str = "F32"
) -> Path:
    folder, out = write_head(tmp_path / "published", settings, tensors), tmp_path / "head.gguf"
    convert_head(folder, read_header(target), out, type)
    return out


def features_of(context: Context, reads: tuple[int, ...]) -> np.ndarray[Any, Any]:
    n = len(TOKENS)
    context.watch_layers(reads)
    context.decode(TOKENS, range(n), [(0,)] * n, [True] * n)
    return np.concatenate([context.layer_inputs(each) for each in reads], axis=1)


def close(found: Any, wanted: Any) -> bool:
    return bool(np.abs(found - wanted).max() < 0.005 * np.std(wanted))  # keys and values are F16


# --- EAGLE-3.1 --------------------------------------------------------------------------------------------------------

FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "both norms": (config(fc_norm=True, norm_output=True), eagle31(IDS)),
    "only the layers": (config(fc_norm=True), eagle31(IDS)),
    "only the state": (config(norm_output=True, norm_before_residual=True), eagle3(IDS)),
    "all layers together": (
        config(norm_before_fc=True, eagle_config={"norm_output": True}),
        eagle3(IDS) | {"input_norm.weight": drawn(np.random.default_rng(4), (3 * WIDTH,))},
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [HeadContext, EagleContext])
def test_an_eagle31_head_computes_what_its_authors_define(
    target: Path, tmp_path: Path, form: str, kind: type[HeadContext | EagleContext]
) -> None:
    """The last cell is that of a draft token, which is decoded with the state of the cell before it."""
    settings, tensors = FORMS[form]
    path = converted(tmp_path, settings, tensors, target)
    n, header = len(TOKENS), check_draft_file(path)
    assert kind_of_head(header) == "eagle3"
    with (
        LlamaModel(target) as model,
        Context(model, ContextParams(n_ctx=32, max_outputs=n, threads=1)) as context,
        LlamaModel(path) as loaded,
        kind(loaded, context, ContextParams(**HOW)) as head,
    ):
        features = features_of(context, head.reads)
        head.decode_pairs(
            Batch(TOKENS[1:], [*range(n - 1)], [(0,)] * (n - 1), [True] * (n - 1)), head.encode(features[:-1])
        )
        found = [head.logits(index)[IDS] for index in range(n - 1)]
        states = [head.state(index) for index in range(n - 1)]
        head.decode_pairs(Batch([61], [n - 1], [(0,)], [True]), states[-1][None])
        found, states = [*found, head.logits(0)[IDS]], [*states, head.state(0)]
    settings = {"eagle_config": {}} | settings
    settings["norm_output"] = settings.get("norm_output") or settings["eagle_config"].get("norm_output")
    reference, embeddings = Reference(settings, tensors), read_rows(read_header(target), "token_embd.weight")
    wanted = reference.states(features[:-1])
    for _ in range(2):  # first up to the draft token, then with it
        logits, after = reference.run(embeddings[[*TOKENS[1:], 61][: len(wanted)]], wanted)
        wanted = np.concatenate([wanted, after[-1:]])
    assert close(np.stack(found), logits) and close(np.stack(states), after)


@pytest.mark.parametrize("form", FORMS)
def test_both_ways_of_decoding_draft_the_same(
    target: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, drafts = converted(tmp_path, *FORMS[form], target), []
    for kind in (EagleContext, HeadContext):
        monkeypatch.setattr("edgespec.runtime.drafting.EagleContext", kind)
        drafts.append(drafted(target, path, "eagle3"))
    assert drafts[0] == drafts[1]


def drafted(target: Path, path: Path, kind: str, **settings: Any) -> list[list[int]]:
    """Return all drafts of an answer, and check that its text is that without them."""
    request: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    with edgespec.load(str(target), ctx_size=256, spec_type="none", **EXACT) as plain:
        wanted = plain.complete("def the class for", **request).text
    found: list[list[int]] = []
    how: dict[str, Any] = {"spec_type": kind, "draft_model": str(path), "pace": "fixed:4", "ctx_size": 256}
    with edgespec.load(str(target), **EXACT | how | settings) as llm:
        drafter = llm._loaded.drafters.by_name[kind]
        propose = drafter.propose

        def spy(sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
            drafts: list[Draft] = propose(sequences, budgets)
            found.extend([*draft.tokens] for draft in drafts)
            return drafts

        drafter.propose = spy  # type: ignore[method-assign]
        assert llm.complete("def the class for", **request).text == wanted
    assert sum(map(len, found)) > 40
    return found


def test_the_scales_of_the_norms_are_in_the_columns_of_fc(target: Path, tmp_path: Path) -> None:
    header = check_draft_file(converted(tmp_path, *FORMS["both norms"], target))
    flags = {key: value for key, value in header.metadata.items() if key.startswith("edgespec.head.norm")}
    assert flags == {"edgespec.head.norm_layers": True, "edgespec.head.norm_state": True}
    assert not [name for name in header.tensors if "fc_norm" in name]
    plain = converted(tmp_path, config(), eagle3(IDS), target)
    assert not [key for key in read_header(plain).metadata if key.startswith("edgespec.head.norm")]


def without(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: values for key, values in tensors.items() if key != name}


SMALL, MASKED = peagle(IDS, N_VOCAB, n_layers=1), config(mask_token_id=3)
NORM = {"input_norm.weight": np.ones(3 * WIDTH, np.float32)}


@pytest.mark.parametrize(
    ("settings", "tensors", "why"),
    [
        (config(), without(eagle31(IDS), "fc_norm.1.weight"), "'fc_norm.1' is missing"),
        (config(fc_norm=True), eagle3(IDS), "'fc_norm.0' is missing"),
        (config(), eagle31(IDS) | {"fc_norm.2.weight": np.ones(9, np.float32)}, "has 9 numbers, where 64 are needed"),
        (config(), eagle31(IDS) | NORM, "norms both each layer"),
        (config(num_hidden_layers=2), eagle3(IDS), "it has 2 layers, and llama.cpp's eagle3 has one"),
        (config(), eagle3(IDS) | {"midlayer.self_attn.q_norm.weight": np.ones(16, np.float32)}, "nothing like.*q_norm"),
        (config(), SMALL, "names no mask token"),
        (config(mask_token_id=N_VOCAB), SMALL, "has no mask token"),
        (MASKED | {"num_hidden_layers": 3}, peagle(IDS, N_VOCAB, n_layers=2), "blk.2.* is missing"),
        (MASKED, without(SMALL, "lm_head.weight"), "output.weight.* is missing"),
        (MASKED | {"num_depths": 65}, SMALL, "drafts 65 tokens in a pass"),
        (MASKED | {"num_depths": "many"}, SMALL, "cannot be used"),
        (MASKED | {"layer_types": ["sliding_attention"]}, SMALL, "sliding window"),
        (MASKED, SMALL | {"mask_hidden": np.full((1, 192), np.nan, np.float32)}, "mask_hidden has values that are not"),
        (MASKED, SMALL | {"mask_hidden": np.ones((1, 64), np.float32)}, "has 64 numbers, where 192 are needed"),
        (MASKED, SMALL | {"layers.0.self_attn.sinks": np.ones(4, np.float32)}, "P-EAGLE head has nothing like"),
    ],
)  # fmt: skip
def test_heads_that_cannot_be_converted_are_refused(
    target: Path, tmp_path: Path, settings: dict[str, Any], tensors: dict[str, Any], why: str
) -> None:
    with pytest.raises((ModelFileError, UsageError)) as caught:
        converted(tmp_path, settings, tensors, target)
    assert caught.match(why) or pytest.fail(str(caught.value))
    assert not (tmp_path / "head.gguf").exists()


# --- P-EAGLE ----------------------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
PARALLEL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "three layers": (config(num_hidden_layers=3, ptd_token_id=7), peagle(IDS, N_VOCAB)),
    "one layer, norms": (
        config(pard_token=7, fc_norm=True, rope_scaling={"rope_type": "linear", "factor": 2.0}),
        peagle(IDS, N_VOCAB, n_layers=1) | {name: eagle31(IDS)[name] for name in eagle31(IDS) if "fc_norm" in name},
    ),
    "speculators": (
        {
            "speculators_model_type": "peagle", "mask_token_id": 7, "norm_before_residual": True,
            "transformer_layer_config": config(num_hidden_layers=2, rope_scaling=YARN),
            "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        },
        peagle(IDS, N_VOCAB, n_layers=2, has_more=True)
        | {"input_norm.weight": drawn(np.random.default_rng(4), (3 * WIDTH,))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", PARALLEL)
def test_a_peagle_head_drafts_in_one_pass_what_its_authors_define(target: Path, tmp_path: Path, form: str) -> None:
    settings, tensors = PARALLEL[form]
    path = converted(tmp_path, settings, tensors, target)
    header = check_draft_file(path)
    assert kind_of_head(header) == "peagle" and read_ids(header).tolist() == IDS
    n, texts = len(TOKENS), []
    with (
        LlamaModel(target) as model,
        Context(model, ContextParams(n_ctx=32, max_outputs=n, threads=1)) as context,
        ParallelContext(HeadWeights(header, model), context, ContextParams(sequences=2, **HOW)) as head,
    ):
        assert head.longest == (5 if form == "speculators" else 8)
        features = features_of(context, head.reads)
        states = head.encode(features)
        for start, end in ((0, n - 3), (n - 3, n - 1)):  # masks of the first pass must not be seen in the second
            batch = Batch.empty()
            for slot in (0, 1):
                batch.add(TOKENS[1 + start : 1 + end], start, (slot,), wanted=slot == 1 or start == 0)
            blocks = head.draft(batch, np.concatenate([states[start:end]] * 2), [4] * sum(batch.wanted))
            texts.append([[block.row([0] * depth)[IDS] for depth in range(block.n)] for block in blocks])
            assert [head.length(slot) for slot in (0, 1)] == [end, end]
    merged = {**config(), **settings.get("transformer_layer_config", {}), **settings}
    reference, mask = Reference(merged, tensors), tensors["embed_tokens.weight"][7]
    for rows, end in zip(texts, (n - 3, n - 1), strict=True):
        embeddings = np.concatenate([tensors["embed_tokens.weight"][TOKENS[1 : 1 + end]], [mask] * 3])
        inputs = np.concatenate([reference.states(features[:end]), [reference.masked()] * 3])
        logits, _ = reference.run(embeddings, inputs)
        for block in rows:
            assert close(np.stack(block), logits[-4:])


@pytest.mark.parametrize("form", PARALLEL)
@pytest.mark.parametrize("settings", [{}, {"spec_tree": 4}, {"pace": "fixed:12"}])
def test_texts_stay_what_they_are_with_a_peagle_head(
    target: Path, tmp_path: Path, form: str, settings: dict[str, Any]
) -> None:
    path = converted(tmp_path, *PARALLEL[form], target, type="Q8_0")
    drafts = drafted(target, path, "peagle", **{"spec_draft_n_max": 12, **settings})
    longest = 5 if form == "speculators" else 8
    if "spec_tree" not in settings:
        assert max(map(len, drafts)) <= longest
    if settings.get("pace") == "fixed:12":
        assert max(map(len, drafts)) == longest


def test_a_head_without_embeddings_reads_those_of_its_target(target: Path, tmp_path: Path) -> None:
    settings, tensors = PARALLEL["three layers"]
    path = converted(tmp_path, settings, without(tensors, "embed_tokens.weight"), target)
    with LlamaModel(target) as model:
        weights = HeadWeights(check_draft_file(path), model)
        assert np.array_equal(weights.embeddings([5, 7]), read_rows(model.header, "token_embd.weight", [5, 7]))
    drafted(target, path, "peagle")


def test_its_own_embeddings_are_kept_although_they_are_similar(target: Path, tmp_path: Path) -> None:
    """They are trained, unlike those of other EAGLE heads."""
    settings, tensors = PARALLEL["three layers"]
    similar = read_rows(read_header(target), "token_embd.weight") * 1.01
    path = converted(tmp_path, settings, tensors | {"embed_tokens.weight": similar.astype(np.float32)}, target)
    assert "token_embd.weight" in read_header(path).tensors


def test_several_answers_and_long_prompts(target: Path, tmp_path: Path) -> None:
    path = converted(tmp_path, *PARALLEL["three layers"], target)
    prompts = ["def the class for x in the list " * times for times in (1, 20, 3)]
    requests = [edgespec.Request(prompt=prompt, max_tokens=24, ignore_eos=True) for prompt in prompts]
    texts = []
    drafting: dict[str, Any] = {"spec_type": "peagle", "draft_model": str(path), "pace": "fixed:6"}
    for settings in ({"spec_type": "none"}, drafting):
        with edgespec.load(str(target), ctx_size=1024, sequences=3, **EXACT, **settings) as llm:
            answers: list[list[int]] = [[] for _ in requests]
            for index, event in llm.stream(iter(requests)):
                assert isinstance(event, edgespec.TokenEvent)
                answers[index].append(event.id)
            texts.append(answers)
            assert llm.stats.proposed > 40 or settings is not drafting
    assert texts[0] == texts[1]
