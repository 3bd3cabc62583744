"""The MTP block of a base model in a fine-tune that lost it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_gguf import CHATML, EXACT, write_model
from tiny_mtp import LAYERS, write_mtp

import edgespec
from edgespec.errors import PairError, UsageError
from edgespec.gguf_file.head_check import mtp_mismatch
from edgespec.gguf_file.header import read_header
from edgespec.llama.quantize import quantize
from edgespec.models.pair.graft import graft
from edgespec.models.pair.self_draft import slice_layers


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mtp(tmp_path_factory.mktemp("graft") / "base.gguf", knows_bigrams=True)


@pytest.fixture
def tuned(base: Path, tmp_path: Path) -> Path:
    """The same model without the block, as quantised as fine-tunes are."""
    plain = tmp_path / "plain.gguf"
    slice_layers(base, plain, LAYERS)
    assert mtp_mismatch(read_header(plain)) == "it has no MTP block"
    quantize(plain, tmp_path / "tuned.gguf", "Q8_0")
    return tmp_path / "tuned.gguf"


def test_the_grafted_block_drafts_and_the_text_stays_the_same(base: Path, tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    graft(read_header(base), read_header(tuned), out)
    header = read_header(out)
    assert mtp_mismatch(header) == ""
    assert header.tensors["blk.0.ffn_up.weight"].type == "Q8_0"
    assert header.tensors[f"blk.{LAYERS}.nextn.eh_proj.weight"].type == "F32"
    found = []
    for model, drafter in ((tuned, "none"), (out, "none"), (out, "mtp")):
        with edgespec.load(str(model), ctx_size=256, **EXACT, spec_type=drafter, pace="fixed:3") as llm:
            found.append(llm.complete("def the class for", max_tokens=32, temperature=0, ignore_eos=True))
    assert found[0].text == found[1].text == found[2].text
    assert found[2].stats.accepted > 0.8 * found[2].stats.proposed > 0


@pytest.mark.parametrize("architecture", ["mimo2", "nemotron_h_moe"])
def test_values_of_layers_are_continued(tmp_path: Path, architecture: str) -> None:
    base, plain, out = (tmp_path / f"{name}.gguf" for name in ("base", "plain", "out"))
    write_mtp(base, architecture)
    slice_layers(base, plain, LAYERS)
    graft(read_header(base), read_header(plain), out)
    before, after = read_header(base), read_header(out)
    assert after.metadata.keys() == before.metadata.keys()
    assert {key: value for key, value in after.metadata.items() if key.startswith(architecture)} == {
        key: value for key, value in before.metadata.items() if key.startswith(architecture)
    }
    assert {name: tensor.size_bytes for name, tensor in after.tensors.items()} == {
        name: tensor.size_bytes for name, tensor in before.tensors.items()
    }


def test_models_that_do_not_belong_together_are_refused(base: Path, tuned: Path, tmp_path: Path) -> None:
    other = write_mtp(tmp_path / "glm.gguf", "glm4moe")
    llama = write_model(tmp_path / "llama.gguf", "llama", chat_template=CHATML)
    foreign = write_model(tmp_path / "foreign.gguf", "qwen35", n_layers=LAYERS, seed=5)
    wide = write_model(tmp_path / "wide.gguf", "qwen35", n_layers=LAYERS, width=128)
    deep = write_model(tmp_path / "deep.gguf", "qwen35", n_layers=LAYERS + 1)
    for given, to, why in (
        (llama, tuned, "it has no MTP block"),
        (other, tuned, "a glm4moe model, the other a qwen35 model"),
        (base, base, "it has a block of its own"),
        (base, deep, "one has 3 layers, the other 4"),
        (base, wide, "has the shape"),
        (base, foreign, "no fine-tune of this model"),
    ):
        with pytest.raises(PairError, match=why):
            graft(read_header(given), read_header(to), tmp_path / "out.gguf")
    with pytest.raises(UsageError, match="with itself"):
        graft(read_header(base), read_header(tuned), tuned)
    assert not (tmp_path / "out.gguf").exists()
