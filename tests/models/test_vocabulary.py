"""Compare the token ids of draft and target: refusals and their messages, and allowed padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

import cli_program
import pytest
from tiny_gguf import Value, model_metadata, model_tensors, write_file, write_model

import edgespec
from edgespec.core.verify import VerifyRule
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import PairError
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.model import LlamaModel
from edgespec.models.pair.check import MAX_PADDING, check_pair, vocabulary_difference

EXACT: dict[str, Any] = {"threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
PROMPT = "def f(x):\n    return"
N_BPE, NORMAL = 299, 1


pytestmark = pytest.mark.usefixtures("home")


def write(
    path: Path,
    architecture: str = "llama",
    *,
    more: Sequence[str | bytes] = (),
    changed: Mapping[int, str | bytes] | None = None,
    noise: float = 0.0,
    **entries: Value,
) -> Path:
    """Write a tiny model with `more` additional tokens, and with some tokens `changed`."""
    metadata = model_metadata(architecture)
    tokens, kinds = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    assert isinstance(tokens, list)
    assert isinstance(kinds, list)
    tokens = [(changed or {}).get(id, text) for id, text in enumerate(tokens)] + list(more)
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds + [NORMAL] * len(more)}
    if "tokenizer.ggml.scores" in metadata:
        metadata["tokenizer.ggml.scores"] = [0.0] * len(tokens)
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in entries.items()}
    return write_file(path, metadata, model_tensors(architecture, metadata, noise=noise))


def padding(n: int) -> list[str]:
    return [f"<pad{index}>" for index in range(n)]


def difference(target: Path, draft: Path) -> str:
    return vocabulary_difference(check_model(target), check_model(draft))


def overlap(target: Path, draft: Path) -> float:
    return check_pair(check_model(target), check_model(draft)).overlap


def strange(n: int) -> dict[int, str | bytes]:
    """Return tokens that are in no other model."""
    return {id: f"\u0378{id}" for id in range(n)}


# --- told apart -------------------------------------------------------------------------------------------------------


def test_another_kind_of_vocabulary_is_reported_with_all_that_differs(tmp_path: Path) -> None:
    target, draft = write(tmp_path / "bpe.gguf"), write(tmp_path / "spm.gguf", "gemma")
    why = difference(target, draft)
    assert f"byte-level BPE of {N_BPE} tokens in the target, SentencePiece of 384 tokens in the draft" in why
    assert "token 0 is 'Ā' in the target, '<unk>' in the draft" in why
    assert overlap(target, draft) == 280 / N_BPE


def test_the_first_token_that_differs_is_named_on_both_sides(tmp_path: Path) -> None:
    target = write(tmp_path / "target.gguf", changed={250: "gnu", 200: "emu"})
    draft = write(tmp_path / "draft.gguf", changed={250: "yak"})
    with LlamaModel(target) as model:
        usual = model_metadata("llama")["tokenizer.ggml.tokens"]
        assert isinstance(usual, list)
        assert model.token_bytes(200) == b"emu"
    why = difference(target, draft)
    assert f"token 200 is 'emu' in the target, {usual[200]!r} in the draft" in why
    assert "gnu" not in why
    assert overlap(target, draft) == 297 / N_BPE


def test_one_token_in_many_is_less_than_all_of_them(tmp_path: Path) -> None:
    many = [f"<{index}>" for index in range(4000)]
    target, draft = write(tmp_path / "a.gguf", more=many), write(tmp_path / "b.gguf", more=[*many[:-1], "<gnu>"])
    assert "token 4298 is '<3999>' in the target, '<gnu>' in the draft" in difference(target, draft)
    assert overlap(target, draft) == 4298 / 4299


def test_more_than_padding_is_reported_both_ways_round(tmp_path: Path) -> None:
    shorter, longer = write(tmp_path / "shorter.gguf"), write(tmp_path / "longer.gguf", more=padding(MAX_PADDING + 1))
    for target, draft, n_target, n_draft in ((shorter, longer, 299, 428), (longer, shorter, 428, 299)):
        why = difference(target, draft)
        assert f"BPE of {n_target} tokens in the target, byte-level BPE of {n_draft} tokens in the draft" in why
        assert "they start alike, but one has more than 128 additional tokens" in why


def test_equally_long_vocabularies_with_other_tails_are_told_apart(tmp_path: Path) -> None:
    why = difference(write(tmp_path / "a.gguf", more=["one", "two"]), write(tmp_path / "b.gguf", more=["one", "three"]))
    assert "token 300 is 'two' in the target, 'three' in the draft" in why


def test_another_first_token_of_a_text_is_reported(tmp_path: Path) -> None:
    why = difference(write(tmp_path / "without.gguf"), write(tmp_path / "with.gguf", add_bos_token=True))
    assert "they add different tokens at the start of a text (no BOS and BOS 296)" in why


@pytest.mark.parametrize("architecture", ["llama", "gemma"])
def test_tokens_that_are_no_text_are_compared_and_shown_as_bytes(tmp_path: Path, architecture: str) -> None:
    ours = write(tmp_path / "ours.gguf", architecture, more=[b"\xff\xfe"])
    same = write(tmp_path / "same.gguf", architecture, more=[b"\xff\xfe"], noise=0.1)
    theirs = write(tmp_path / "theirs.gguf", architecture, more=[b"\xff\xfd"])
    assert difference(ours, same) == ""
    assert r"is b'\xff\xfe' in the target, b'\xff\xfd' in the draft" in difference(ours, theirs)


def test_a_draft_that_shares_next_to_nothing_is_refused(tmp_path: Path) -> None:
    target, draft = write(tmp_path / "target.gguf"), write(tmp_path / "draft.gguf", changed=strange(290))
    with pytest.raises(PairError) as refused:
        edgespec.load(str(target), spec_type="draft", draft_model=str(draft))
    assert refused.value.exit_code == 4
    assert str(refused.value).startswith(f"{draft.name} cannot draft for {target.name}: ")
    assert refused.value.why == f"vocabulary overlap 3 %; {difference(target, draft)}"
    assert "`spec_type=none`" in refused.value.hint


def test_a_message_holds_nothing_that_would_upset_a_terminal(home: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target.gguf")
    draft = write(tmp_path / "draft.gguf", changed=strange(290) | {0: "\x1b[31m\u202e\n" + "red" * 2000})
    done = cli_program.edgespec_here("run", "hello", "-m", str(target), "-md", str(draft), home=home)
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (4, b"")
    assert r"'\x1b[31m\u202e\nred" in message
    assert "..." in message
    assert not set(message) & {"\x1b", "\u202e"}
    assert len(message) < 600
    assert "Traceback" not in message


# --- accepted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("longer", "leaves"), [("target", 1), ("draft", 3)])
def test_padded_tails_are_no_difference(tmp_path: Path, longer: str, leaves: int) -> None:
    tails = {name: padding(MAX_PADDING) if name == longer else [] for name in ("target", "draft")}
    target = str(write(tmp_path / "target.gguf", more=tails["target"]))
    draft = str(write(tmp_path / "draft.gguf", more=tails["draft"], noise=0.02))
    never = tuple((token, -100.0) for token in range(N_BPE, N_BPE + len(tails["target"])))
    with (
        edgespec.load(target, spec_type="none", **EXACT) as plain,
        edgespec.load(target, spec_type="draft", draft_model=draft, spec_tree=leaves, pace="fixed:3", **EXACT) as llm,
    ):
        for temperature in (0.0, 0.8):
            settings: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True, "temperature": temperature, "seed": 5}
            settings["logit_bias"] = never  # like trained models, which never generate padding
            wanted = [event.id for event in plain.generate(PROMPT, **settings)]
            assert [event.id for event in llm.generate(PROMPT, **settings)] == wanted
            assert llm.stats.accepted > 0
            assert not any("is off for this answer" in note for note in llm.notes)


def test_a_draft_never_proposes_what_the_target_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = write(tmp_path / "target.gguf"), write(tmp_path / "draft.gguf", more=padding(MAX_PADDING))
    with edgespec.load(
        str(target), spec_type="draft", draft_model=str(draft), spec_tree=2, pace="fixed:3", **EXACT
    ) as llm:
        [drafter] = llm.engine.speculator.drafters
        assert isinstance(drafter, ModelDrafter)
        assert drafter.context.model.n_vocab == llm.model.n_vocab + MAX_PADDING
        original, proposed = drafter.propose, list[int]()

        def recording(*asked: Any) -> Any:
            drafts = original(*asked)
            proposed.extend(token for draft in drafts for token in draft.tokens)
            return drafts

        monkeypatch.setattr(drafter, "propose", recording)
        for rule, temperature in product(get_args(VerifyRule), (0.0, 1.5)):
            proposed.clear()
            list(llm.generate(PROMPT, max_tokens=16, ignore_eos=True, temperature=temperature, verify=rule))
            assert len(proposed) == llm.stats.proposed > 0, (rule, temperature)
            assert max(proposed) < llm.model.n_vocab
        assert not any("is off for this answer" in note for note in llm.notes)


def test_a_token_only_the_target_knows_costs_the_draft_and_not_the_text(tmp_path: Path) -> None:
    target = str(write(tmp_path / "target.gguf", more=padding(5)))
    draft = str(write_model(tmp_path / "draft.gguf", "llama"))
    settings: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "logit_bias": ((301, 8.0),)}
    with (
        edgespec.load(target, spec_type="none", **EXACT) as plain,
        edgespec.load(target, spec_type="draft", draft_model=draft, pace="fixed:3", **EXACT) as llm,
    ):
        wanted = [event.id for event in plain.generate(PROMPT, **settings)]
        assert 301 in wanted
        assert [event.id for event in llm.generate(PROMPT, **settings)] == wanted
        usual = settings | {"logit_bias": tuple((token, -100.0) for token in range(N_BPE, N_BPE + 5))}
        assert [event.id for event in llm.generate(PROMPT, **usual)] == [
            event.id for event in plain.generate(PROMPT, **usual)
        ]
        assert llm.stats.accepted > 0  # the next answer is drafted again
