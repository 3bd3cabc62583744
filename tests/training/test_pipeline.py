"""A head from nothing, in stages that resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from tiny_gguf import CHATML, EXACT, write_model

import edgespec
from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf_file.head_check import check_draft_file, kind_of_head
from edgespec.gguf_file.header import read_header
from edgespec.llama.model import Model
from edgespec.training import answers, features, pipeline
from edgespec.training.answers import Answers, end_token, user_header
from edgespec.training.features import Writer, default_layers, load, read_rows
from edgespec.training.pipeline import Listener, Settings, train_head
from edgespec.training.prompts import Passages, held_out

TOKENS = 150
NEEDS_PYTORCH = pytest.mark.skipif(
    find_spec("torch") is None, reason="heads are trained with PyTorch (pip install 'edgespec[train]')"
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "target.gguf"
    return write_model(path, "llama", n_layers=4, chat_template=CHATML)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_TOKENS", 16)
    monkeypatch.setattr(answers, "MAX_PROMPT_TOKENS", 16)
    monkeypatch.setattr(answers, "held_out", lambda *, chat: held_out(chat=chat)[:3])


@pytest.fixture
def model(target: Path) -> Iterator[Model]:
    with Model(target) as loaded:
        yield loaded


def collect(model: Model, folder: Path, budget: int = TOKENS) -> list[features.Row]:
    folder.mkdir(exist_ok=True)
    with Writer(folder, model.n_embd) as writer:
        layers = default_layers(model.n_layer)
        Answers(model, writer, layers, budget, [], Passages(), sequences=4, threads=1).collect()
    return read_rows(folder)


def test_answers_come_with_what_the_target_saw(model: Model, tmp_path: Path) -> None:
    rows = collect(model, tmp_path)
    assert sum(len(row.answer) for row in rows if not row.is_held_out) >= TOKENS
    assert sum(row.is_held_out for row in rows) == 6  # greedy and sampled
    kept = load(tmp_path, model.n_embd)
    for row, document in zip(rows, kept.documents, strict=True):
        place = slice(document.start, document.start + document.length)
        assert kept.tokens[place].tolist() == row.prompt + row.answer
        if row.temperature == 0:  # each token was the target's first choice
            first = document.start + document.n_prompt - 1
            assert kept.best[first : first + len(row.answer)].tolist()[:-1] == row.answer[:-1]
    chances = np.exp(kept.hidden[place].astype(np.float32) @ np.zeros(model.n_embd) - kept.normalisers[place, 0])
    assert np.isfinite(chances).all()


def test_collecting_resumes_behind_the_last_whole_answer(model: Model, tmp_path: Path) -> None:
    before = collect(model, tmp_path, 40)
    with (tmp_path / "answers.jsonl").open("ab") as file:
        file.write(b'{"kind": "wri')
    with (tmp_path / "tokens.bin").open("ab") as file:
        file.write(b"torn")
    after = collect(model, tmp_path)
    assert after[: len(before)] == before
    kept = load(tmp_path, model.n_embd)
    assert kept.tokens.tolist() == [token for row in after for token in row.prompt + row.answer]


def test_arrays_that_are_missing_are_read_again(model: Model, tmp_path: Path) -> None:
    rows = collect(model, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.bin")}
    (tmp_path / "hidden.bin").unlink()
    assert collect(model, tmp_path) == rows
    kept = load(tmp_path, model.n_embd)
    assert (tmp_path / "tokens.bin").read_bytes() == before["tokens.bin"]
    assert (kept.best == np.frombuffer(before["best.bin"], np.int32)).mean() > 0.97  # near ties may fall otherwise
    hidden = np.frombuffer(before["hidden.bin"], np.float16).reshape(kept.hidden.shape)
    assert np.allclose(kept.hidden, hidden, atol=0.05)
    with (tmp_path / "inputs.bin").open("r+b") as file:
        file.truncate(1000)
    with Writer(tmp_path, model.n_embd) as writer:
        assert writer.missing == rows


def test_a_template_tells_where_a_user_speaks_and_an_answer_ends(model: Model) -> None:
    header = model.detokenize(user_header(model), special=True)
    assert header == b"<|im_start|>user\n"
    end = end_token(model)
    assert end is not None and model.token_bytes(end, special=True) == b"<|im_end|>"


def test_a_folder_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="was not written by draft train"):
        read_rows(tmp_path)


@NEEDS_PYTORCH
def test_a_target_that_gives_no_layers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: name)
    target = write_model(tmp_path / "t.gguf", "gemma3", n_layers=4)
    with pytest.raises(UsageError, match="gemma3 model cannot be read") as caught:
        train_head(Settings(target, tmp_path / "h.gguf", work=tmp_path / "w"), Listener())
    assert "--kind eagle1" in caught.value.hint


def test_without_pytorch_it_says_how_to_get_it(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="PyTorch, which is not installed") as caught:
        train_head(Settings(target, tmp_path / "h.gguf"), Listener())
    assert "pip install 'edgespec[train]'" in caught.value.hint


@NEEDS_PYTORCH
def test_what_does_not_fit_on_the_disk_is_not_begun(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: name)
    monkeypatch.setattr(pipeline, "free_in", lambda folder: 1000)
    with pytest.raises(UsageError, match="no room for 500k tokens"):
        train_head(Settings(target, tmp_path / "h.gguf", work=tmp_path / "w"), Listener())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device to write to")
def test_a_full_disk_ends_a_stage_with_a_reason(model: Model, tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").symlink_to("/dev/full")
    with pytest.raises(EdgespecError, match="cannot write to"):
        collect(model, tmp_path)


@NEEDS_PYTORCH
class TestTraining:
    """With PyTorch."""

    def settings(self, target: Path, folder: Path) -> Settings:
        return Settings(
            target, folder / "head.gguf", minutes=0.02, tokens=TOKENS, vocabulary=64, work=folder / "work", threads=1
        )

    def test_a_head_comes_out_and_resumes(self, target: Path, tmp_path: Path) -> None:
        settings = self.settings(target, tmp_path)
        done = train_head(settings, Listener())
        assert done is not None
        assert done.difference is not None and done.difference < 0.05
        assert len(done.acceptance) == 4
        header = read_header(settings.out)
        assert header.tensors["output.weight"].shape == (64, 64)
        again = train_head(replace(settings, minutes=0.03), Listener())
        assert again is not None and again.progress.step > done.progress.step
        with pytest.raises(UsageError, match="vocabulary of 64 tokens"):
            train_head(replace(settings, vocabulary=128), Listener())

    def test_all_kinds_come_from_the_same_answers(self, target: Path, tmp_path: Path) -> None:
        for kind, architecture, shape in (
            ("eagle3", "eagle3", ("fc", (192, 64))),
            ("eagle1", "eagle3", ("fc", (96, 64))),
            ("hydra", "edgespec-hydra", ("head.2.up", (4 * 64, 64))),
            ("medusa", "edgespec-medusa", ("head.2.up", (64, 64))),
        ):
            settings = replace(self.settings(target, tmp_path), kind=kind, out=tmp_path / f"{kind}.gguf")
            done = train_head(settings, Listener())
            assert done is not None and len(done.acceptance) == (4 if "eagle" in kind else 3)
            assert (done.difference is not None) == ("eagle" in kind)
            again = train_head(replace(settings, minutes=0.03), Listener())
            assert again is not None and again.progress.step > done.progress.step
            header = check_draft_file(settings.out)
            assert kind_of_head(header) == kind and header.architecture == architecture
            assert header.tensors[f"{shape[0]}.weight"].shape == shape[1]
            assert header.tensors["output.weight"].shape == (64, 64)
            assert len(read_rows(tmp_path / "work")) == done.answers == again.answers

    @pytest.mark.parametrize("kind", ["eagle1", "hydra", "medusa"])
    def test_targets_that_give_no_layers_have_heads_without(self, tmp_path: Path, kind: str) -> None:
        target = write_model(tmp_path / "target.gguf", "qwen2", n_layers=4, chat_template=CHATML)
        settings = replace(self.settings(target, tmp_path), kind=kind)
        assert train_head(settings, Listener()) is not None
        assert not (tmp_path / "work" / "inputs.bin").exists()
        (tmp_path / "work" / "hidden.bin").unlink()  # read again
        assert train_head(replace(settings, minutes=0.03), Listener()) is not None
        with edgespec.load(str(target), spec_type="none", ctx_size=512, **EXACT) as plain:
            wanted = plain.complete("One, two", max_tokens=30, ignore_eos=True, temperature=0)
        with edgespec.load(str(target), draft_model=str(settings.out), pace="fixed:3", ctx_size=512, **EXACT) as llm:
            found = llm.complete("One, two", max_tokens=30, ignore_eos=True, temperature=0)
            assert kind in llm.describe()["drafters"]
        assert found.tokens == wanted.tokens

    def test_a_cancelled_training_writes_no_head(self, target: Path, tmp_path: Path) -> None:
        settings, listener = self.settings(target, tmp_path), Listener()
        listener.training = lambda progress: listener.cancel.set()
        assert train_head(settings, listener) is None
        assert not settings.out.exists()
        assert (tmp_path / "work" / "eagle3.pt").exists()

    def test_a_work_folder_of_another_target_is_refused(self, target: Path, tmp_path: Path) -> None:
        settings = self.settings(target, tmp_path)
        listener = Listener()
        listener.cancel.set()
        train_head(settings, listener)
        other = write_model(tmp_path / "other.gguf", "llama", n_layers=4, seed=9, chat_template=CHATML)
        with pytest.raises(UsageError, match=r"holds answers of target\.gguf"):
            train_head(replace(settings, target=other), listener)

    def test_two_trainings_do_not_share_a_folder(self, target: Path, tmp_path: Path) -> None:
        settings = self.settings(target, tmp_path)
        (tmp_path / "work").mkdir()
        with FileLock(tmp_path / "work" / ".lock"), pytest.raises(UsageError, match="another training uses"):
            train_head(settings, Listener())

    def test_a_damaged_checkpoint_is_said(self, target: Path, tmp_path: Path) -> None:
        settings = self.settings(target, tmp_path)
        assert train_head(settings, Listener()) is not None
        (tmp_path / "work" / "eagle3.pt").write_bytes(b"torn")
        with pytest.raises(UsageError, match=r"eagle3\.pt cannot be read"):
            train_head(settings, Listener())

    def test_a_loss_that_is_not_a_number_stops_the_training(
        self, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from edgespec.training import trainer

        monkeypatch.setattr(trainer, "loss_of", lambda *args: next(iter(args[0].values())).sum() * float("nan"))
        with pytest.raises(EdgespecError, match="has diverged"):
            train_head(replace(self.settings(target, tmp_path), minutes=1.0), Listener())


def test_rows_are_json_that_others_can_read(model: Model, tmp_path: Path) -> None:
    collect(model, tmp_path, 20)
    for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines():
        assert {"kind", "temperature", "prompt", "answer", "text"} <= json.loads(line).keys()
