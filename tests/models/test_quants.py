"""The file that a quantisation selects."""

from __future__ import annotations

import pytest

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.quants import choose, drafts_in, is_assistant, models_in, parts_of, quant_of


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("Llama-3.2-1B-Instruct-Q8_0.gguf", "Q8_0"),
        ("gemma-2-9b-it-IQ3_XXS.gguf", "IQ3_XXS"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model.Q5_K_S.gguf", "Q5_K_S"),
        ("Q2_K/big-Q2_K-00003-of-00004.gguf", "Q2_K"),
        ("tiny-f16.gguf", "F16"),
        ("tiny-BF16.gguf", "BF16"),
        ("tiny-fp16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("m.iq4_nl_8_8.gguf", "IQ4_NL_8_8"),
        ("m-IQ4_NL-00001-of-00002.gguf", "IQ4_NL"),
        ("model.gguf", ""),
        ("q8_0tail.gguf", ""),
    ],
)
def test_a_name_tells_its_quantisation(name: str, quant: str) -> None:
    assert quant_of(name) == quant


NAMES = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-Q6_K-00001-of-00002.gguf", "m-Q6_K-00002-of-00002.gguf",
         "mmproj-m-F16.gguf", "m.imatrix.gguf"]  # fmt: skip


def test_models_are_distinguished_from_their_companions() -> None:
    assert models_in(NAMES) == ["m-Q4_K_M.gguf", "m-Q6_K-00001-of-00002.gguf", "m-Q8_0.gguf"]


def test_drafts_are_told_from_models_by_their_names() -> None:
    models = ["m-MTP-Q4_K_M.gguf", "m-Q8_0.gguf"]
    drafts = ["deep/dspark-m-Q8_0.gguf", "eagle3-m-Q8_0.gguf", "m-DFlash-Q4_K_M.gguf", "m-draft.gguf"]
    names = [*models, *drafts, "MTP/mtp-m-Q4_K_M.gguf", "eagle3.md"]
    assert (models_in(names), drafts_in(names)) == (models, drafts)
    assert choose(names, "Q4_K_M") == models[0]
    assert (models_in(drafts), drafts_in(drafts)) == (drafts, [])  # a repository of drafts


def test_separate_mtp_files_of_a_gemma_4_are_its_assistants() -> None:
    model, others = "gemma-4-E4B-it-Q8_0.gguf", ["MTP/mtp-Q8_0.gguf", "mtp-gemma-4-E4B-it.gguf"]
    named = ["MTP/gemma-4-E4B-it-MTP-Q8_0.gguf", "gemma-4-E4B-it-Q8_0-MTP.gguf", "gemma-4-E4B-it-assistant-Q8_0.gguf"]
    assert drafts_in([model, *named, *others]) == sorted([*named, *others])
    assert all(map(is_assistant, [*named, *others])) and not is_assistant("eagle3-gemma-4.gguf")
    assert drafts_in(["qwen-Q8_0.gguf", *others]) == [others[1]]
    others = ["gemma-4-12b-it-legal-assistant-Q8_0.gguf", "home-assistant-Q8_0.gguf"]
    assert models_in(others) == others
    assert choose([model, *named], "Q8_0") == model


def test_a_split_model_is_all_its_parts() -> None:
    assert parts_of("a/m-Q6_K-00001-of-00002.gguf") == ["a/m-Q6_K-00001-of-00002.gguf", "a/m-Q6_K-00002-of-00002.gguf"]
    assert parts_of("m.gguf") == ["m.gguf"]


@pytest.mark.parametrize(
    ("quant", "name"), [("", "m-Q4_K_M.gguf"), ("q8_0", "m-Q8_0.gguf"), ("Q6_K", "m-Q6_K-00001-of-00002.gguf")]
)
def test_a_quantisation_means_one_file(quant: str, name: str) -> None:
    assert choose(NAMES, quant) == name


@pytest.mark.parametrize(("typed", "held"), [("fp16", "F16"), ("F16", "fp16"), ("f32", "FP32"), ("bf16", "BF16")])
def test_unquantised_weights_have_one_name(typed: str, held: str) -> None:
    assert choose([f"m-{held}.gguf", "m-Q8_0.gguf"], typed) == f"m-{held}.gguf"


def test_repacked_weights_are_others() -> None:
    names = ["m-Q4_0.gguf", "m-Q4_0_4_4.gguf", "m-Q4_0_8_8.gguf"]
    assert [choose(names, quant) for quant in ("Q4_0", "q4_0_4_4", "Q4_0_8_8")] == names


def test_the_only_model_is_meant_without_a_quantisation() -> None:
    assert choose(["x.gguf", "notes.txt"]) == "x.gguf"
    assert choose(["x-Q2_K.gguf", "mmproj.gguf"]) == "x-Q2_K.gguf"


def test_one_file_is_better_than_the_same_in_parts() -> None:
    parts = ["m-q4_k_m-00001-of-00002.gguf", "m-q4_k_m-00002-of-00002.gguf"]
    assert choose([*parts, "m-q4_k_m.gguf", "m-q8_0.gguf"]) == "m-q4_k_m.gguf"


@pytest.mark.parametrize(
    ("names", "quant", "said"),
    [
        (NAMES, "Q5_K_M", "has no Q5_K_M: available: Q4_K_M, Q6_K, Q8_0"),
        (["a-Q8_0.gguf", "b-Q2_K.gguf"], "", "has no Q4_K_M: available: Q8_0, Q2_K"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "several models in Q8_0: a-Q8_0.gguf, b-Q8_0.gguf"),
        (["model.safetensors"], "", "has no GGUF model"),
        ([], "Q8_0", "has no GGUF model"),
        (["m-Q4_K_M.gguf"], "Q8_0", "has no Q8_0: available: Q4_K_M"),
        (["x.gguf"], "Q8_0", "has no Q8_0: available: x.gguf\n  choose one by its file name, such as hf:o/r/x.gguf"),
        (["a.gguf", "b.gguf"], "", "available: a.gguf, b.gguf\n  choose one by its file name, such as hf:o/r/a.gguf"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "choose one by its file name, such as hf:o/r/a-Q8_0.gguf"),
    ],
)
def test_what_means_no_one_file_is_said_with_what_there_is(names: list[str], quant: str, said: str) -> None:
    with pytest.raises(ModelNotFoundError, match=said):
        choose(names, quant, where="o/r")


@pytest.mark.parametrize(
    ("wanted", "similar"), [("Q4_K_M", "Q4_K_S"), ("Q4", "Q4_K_S"), ("q8", "Q8_0"), ("fp16", "BF16")]
)
def test_a_similar_quantisation_is_offered(wanted: str, similar: str) -> None:
    with pytest.raises(ModelNotFoundError, match=rf"did you mean :{similar}\?$"):
        choose(["m-IQ2_XS.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "m-BF16.gguf"], wanted)


def test_a_repository_without_the_usual_quantisation_offers_a_similar_one() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean :Q4_K_S"):
        choose(["m-IQ4_XS.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf"])
