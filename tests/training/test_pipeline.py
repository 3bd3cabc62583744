"""A head from scratch, in stages that resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from tiny_gguf import CHATML, EXACT, write_model

import edgespec
from edgespec import extras
from edgespec.core.index.successor_table import NONE, Context
from edgespec.core.sampling import SamplingSettings
from edgespec.datastore.successor_store import SUFFIX, read_table
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import paths
from edgespec.gguf_file.head_check import check_draft_file, kind_of_head
from edgespec.gguf_file.header import read_header
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Message, Request
from edgespec.training import answers
from edgespec.training.answers import Answers, end_token, load_settings, user_header
from edgespec.training.features import Features, TrainingRow, default_layers, load, n_learned, read_rows, read_states
from edgespec.training.job import NGRAM, Listener, Settings
from edgespec.training.ngram import Averages, acceptance
from edgespec.training.pipeline import train_head
from edgespec.training.prompts import Passages, held_out

TOKENS = 150
GREEDY = SamplingSettings(temperature=0)
NEEDS_PYTORCH = pytest.mark.skipif(
    find_spec("torch") is None, reason="heads are trained with PyTorch (pip install 'edgespec[train]')"
)


def short_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answers, "MAX_TOKENS", 16)
    patch.setattr(answers, "MAX_PROMPT_TOKENS", 16)
    patch.setattr(answers, "held_out", lambda *, chat: held_out(chat=chat)[:3])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    short_answers(monkeypatch)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "target.gguf"
    return write_model(path, "llama", n_layers=4, chat_template=CHATML)


@pytest.fixture(scope="module")
def llm(target: Path) -> Iterator[Runtime]:
    with Runtime(load_settings(Settings(target, Path(), threads=1), sequences=4)) as loaded:
        yield loaded


def collect(llm: Runtime, folder: Path, budget: int = TOKENS) -> list[TrainingRow]:
    folder.mkdir(exist_ok=True)
    settings = Settings(llm.model.path, Path(), tokens=budget, threads=1)
    Answers(llm, folder, settings, [], Passages()).collect(Listener())
    return read_rows(folder)


def read(llm: Runtime, folder: Path) -> Features:
    layers = default_layers(llm.model.n_layer)
    read_states(llm.model, folder, layers, Listener(), threads=1)
    return load(folder, llm.model.n_embd, len(layers))


@pytest.fixture(scope="module")
def answered(llm: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with answers and their states, to copy."""
    with pytest.MonkeyPatch.context() as patch:
        short_answers(patch)
        folder = tmp_path_factory.mktemp("work")
        collect(llm, folder)
        read(llm, folder)
        return folder


@pytest.fixture
def work(answered: Path, tmp_path: Path) -> Path:
    return shutil.copytree(answered, tmp_path / "work")


def test_the_target_answers_prompts_of_all_origins(work: Path) -> None:
    rows = read_rows(work)
    assert TOKENS <= n_learned(rows) < TOKENS + 16  # less than one answer more
    assert sum(row.is_held_out for row in rows) == 6  # each greedy and sampled
    assert {row.temperature for row in rows} == {0.0, 0.8}
    for line in (work / "answers.jsonl").read_text(encoding="utf-8").splitlines():
        assert {"kind", "temperature", "prompt", "answer", "text"} <= json.loads(line).keys()


def test_states_are_those_of_the_target(llm: Runtime, work: Path) -> None:
    kept = read(llm, work)
    for row, document in zip(read_rows(work), kept.documents, strict=True):
        place = slice(document.start, document.start + document.length)
        assert kept.tokens[place].tolist() == row.prompt + row.answer
        if row.temperature == 0:  # each token was the target's first choice
            first = document.start + document.n_prompt - 1
            assert kept.best[first : first + len(row.answer)].tolist()[:-1] == row.answer[:-1]
        assert not kept.hidden[document.start : document.start + document.n_prompt - 1].any()
        assert np.isfinite(kept.normalisers[place]).all() and kept.normalisers[place][-1].all()


def test_collecting_resumes_after_the_last_whole_answer(llm: Runtime, work: Path) -> None:
    before = read_rows(work)
    with (work / "answers.jsonl").open("ab") as file:
        file.write(b'{"kind": "wri')
    with (work / "states.bin").open("ab") as file:
        file.write(b"torn")
    after = collect(llm, work, 2 * TOKENS)
    assert after[: len(before)] == before and len(after) > len(before)
    assert read(llm, work).tokens.tolist() == [token for row in after for token in row.prompt + row.answer]


@pytest.mark.parametrize("n_bytes", [0, 100_000])
def test_missing_states_are_read_again(llm: Runtime, work: Path, n_bytes: int) -> None:
    before = (work / "states.bin").read_bytes()
    with (work / "states.bin").open("r+b") as file:
        file.truncate(n_bytes)
    read(llm, work)
    assert (work / "states.bin").read_bytes() == before


def test_a_template_shows_where_a_user_speaks_and_an_answer_ends(llm: Runtime) -> None:
    assert user_header(llm.model) == "<|im_start|>user\n"
    end = end_token(llm.model)
    assert end is not None and llm.model.token_bytes(end, special=True) == b"<|im_end|>"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="was not written by draft train"):
        read_rows(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device to write to")
def test_a_full_disk_ends_a_stage_with_a_reason(llm: Runtime, work: Path) -> None:
    (work / "states.bin").unlink()
    (work / "states.bin").symlink_to("/dev/full")
    with pytest.raises(EdgespecError, match="cannot write to"):
        read(llm, work)


def test_a_target_that_gives_no_layers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    target = write_model(tmp_path / "t.gguf", "gemma3", n_layers=4)
    with pytest.raises(UsageError, match="gemma3 model cannot be read") as caught:
        train_head(Settings(target, tmp_path / "h.gguf", work=tmp_path / "w"), Listener())
    assert "--kind eagle1" in caught.value.hint


def test_without_pytorch_it_says_how_to_get_it(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="training needs packages that are not installed") as caught:
        train_head(Settings(target, tmp_path / "h.gguf"), Listener())
    assert "pip install 'edgespec[train]'" in caught.value.hint


def test_what_does_not_fit_on_the_disk_is_not_begun(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    monkeypatch.setattr(paths, "free_in", lambda folder: 1000)
    with pytest.raises(UsageError, match="500k tokens need for training may not fit"):
        train_head(Settings(target, tmp_path / "h.gguf", work=tmp_path / "w"), Listener())


@pytest.mark.slow
def test_a_work_folder_of_another_target_is_refused(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    settings, listener = Settings(target, tmp_path / "h.gguf", tokens=TOKENS, work=tmp_path / "w"), Listener()
    listener.cancel.set()
    assert train_head(settings, listener) is None
    other = write_model(tmp_path / "other.gguf", "llama", n_layers=4, seed=9, chat_template=CHATML)
    with pytest.raises(UsageError, match=r"holds answers of target\.gguf"):
        train_head(replace(settings, target=other), listener)


def test_two_trainings_do_not_share_a_folder(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    with FileLock(tmp_path / ".lock"), pytest.raises(UsageError, match="another training uses"):
        train_head(Settings(target, tmp_path / "h.gguf", tokens=TOKENS, work=tmp_path), Listener())


def test_a_table_needs_no_pytorch_and_is_found_next_to_its_model(
    target: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    model = Path(shutil.copy(target, tmp_path))
    settings = Settings(model, tmp_path / f"t{SUFFIX}", NGRAM, tokens=TOKENS, work=work, threads=1)
    done, rows = train_head(settings, Listener()), read_rows(work)
    assert done is not None and done.size_bytes == settings.out.stat().st_size
    assert (done.answers, done.tokens) == (len(rows), n_learned(rows))
    contexts = set[Context]()
    for row in rows:
        tokens = row.prompt[-2:] + row.answer[:-1]
        contexts |= {*pairwise(tokens), *((NONE, token) for token in tokens[1:])} if not row.is_held_out else set()
    about, arrays = read_table(settings.out)
    assert {(before, token) for before, token in arrays["contexts"].tolist()} == contexts
    assert about["acceptance"] == done.progress.acceptance.greedy
    greedy = next(row for row in rows if row.temperature == 0 and not row.is_held_out)
    with Runtime(LoadSettings(str(model), spec_type="recycling", pace="fixed:3", threads=1, store=False)) as llm:
        list(llm.submit(Request(messages=(Message("user", greedy.text),), max_tokens=16, sampling=GREEDY)))
        assert llm.stats.accepted and llm.stats.rounds < 12
    stopped = Listener()
    stopped.cancel.set()
    assert train_head(replace(settings, out=tmp_path / f"x{SUFFIX}"), stopped) is None


def test_the_table_holds_the_average_of_all_places() -> None:
    averages = Averages()
    averages.add((1, 2), {5: 0.5, 6: 0.25})
    averages.add((1, 2), {5: 0.25, 7: 0.75})
    averages.add((1, 3), {8: 1.0})
    table = averages.table()
    ids, logits = table.get(1, 2) or pytest.fail("missing")
    assert ids.tolist() == [5, 7, 6] or ids.tolist() == [7, 5, 6]
    assert np.exp(logits).tolist() == pytest.approx([0.375, 0.375, 0.125])
    row = TrainingRow("chat", 0.0, True, [1, 2], [5, 9, 1, 3, 8, 4])
    assert acceptance(table, [row]) == [0.3333, 0.0, 0.0]


def test_two_tokens_have_no_row_if_the_last_one_alone_predicts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.training.ngram.MOST_CONTEXTS", 2)
    averages = Averages()
    for before, following, times in ((1, 5, 9), (2, 6, 3)):
        for _ in range(times):
            averages.add((before, 3), {following: 1.0})
            averages.add((NONE, 3), {following: 1.0})
    table = averages.table()
    assert table.get(NONE, 3) is not None and table.get(2, 3) is not None and table.get(1, 3) is None


def test_rare_contexts_leave_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.training.ngram.MOST_AVERAGED", 10)
    averages = Averages()
    for token in range(50):
        averages.add((1, token), {2: 1.0})
        averages.add((9, 9), {3: 1.0})
    table = averages.table()
    assert len(table) <= 10
    assert table.get(9, 9) is not None and table.get(1, 49) is not None


@NEEDS_PYTORCH
class TestTraining:
    """With PyTorch."""

    def settings(self, target: Path, work: Path, kind: str = "eagle3") -> Settings:
        out = work.parent / f"{kind}.gguf"
        return Settings(target, out, kind, minutes=0.01, tokens=TOKENS, vocabulary=64, work=work, threads=1)

    @pytest.mark.parametrize(
        ("kind", "architecture", "tensor", "shape"),
        [
            ("eagle3", "eagle3", "fc", (192, 64)),
            ("eagle1", "eagle3", "fc", (96, 64)),
            ("dspark", "dflash", "markov_w2", (64, 64)),
            ("dflash", "dflash", "fc", (192, 64)),
            ("hydra", "edgespec-hydra", "head.2.up", (4 * 64, 64)),
            ("medusa", "edgespec-medusa", "head.2.up", (64, 64)),
        ],
    )
    def test_all_kinds_come_from_the_same_answers_and_resume(
        self, target: Path, work: Path, kind: str, architecture: str, tensor: str, shape: tuple[int, int]
    ) -> None:
        settings = self.settings(target, work, kind)
        done = train_head(settings, Listener())
        assert done is not None and len(done.progress.acceptance.greedy) == (3 if kind in ("hydra", "medusa") else 4)
        again = train_head(replace(settings, minutes=0.02), Listener())
        assert again is not None and again.progress.step > done.progress.step
        assert len(read_rows(work)) == done.answers == again.answers
        header = check_draft_file(settings.out)
        assert kind_of_head(header) == kind and header.architecture == architecture
        assert header.tensors[f"{tensor}.weight"].shape == shape
        assert header.tensors["output.weight"].shape == (64, 64)
        with pytest.raises(UsageError, match="vocabulary of 64 tokens"):
            train_head(replace(settings, vocabulary=128), Listener())

    @pytest.mark.parametrize("kind", ["eagle1", "hydra", "medusa"])
    def test_targets_that_give_no_layers_have_heads_without(self, tmp_path: Path, kind: str) -> None:
        target = write_model(tmp_path / "target.gguf", "qwen2", n_layers=4, chat_template=CHATML)
        settings = self.settings(target, tmp_path / "work", kind)
        assert train_head(settings, Listener()) is not None
        with edgespec.load(str(target), spec_type="none", ctx_size=512, **EXACT) as plain:
            wanted = plain.complete("One, two", max_tokens=30, ignore_eos=True, temperature=0)
        with edgespec.load(str(target), draft_model=str(settings.out), pace="fixed:3", ctx_size=512, **EXACT) as llm:
            found = llm.complete("One, two", max_tokens=30, ignore_eos=True, temperature=0)
            assert kind in llm.info.drafters
        assert found.tokens == wanted.tokens

    @pytest.mark.parametrize("kind", ["dspark", "dflash"])
    def test_a_trained_block_drafter_changes_no_text(self, target: Path, work: Path, kind: str) -> None:
        settings = replace(self.settings(target, work, kind), block=5)
        done = train_head(settings, Listener())
        assert done is not None and len(done.progress.acceptance.greedy) == 5
        given: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temperature": 0}
        with edgespec.load(str(target), spec_type="none", ctx_size=512, **EXACT) as plain:
            wanted = plain.complete("One, two", **given)
        with edgespec.load(str(target), draft_model=str(settings.out), pace="fixed:5", ctx_size=512, **EXACT) as llm:
            found = llm.complete("One, two", **given)
            assert kind in llm.info.drafters and found.stats.proposed >= 5
        assert found.tokens == wanted.tokens

    def test_a_checkpoint_is_as_small_as_its_weights_in_half_precision(self, target: Path, work: Path) -> None:
        assert train_head(self.settings(target, work), Listener()) is not None
        n_weights = sum(
            int(np.prod(tensor.shape)) for tensor in read_header(work.parent / "eagle3.gguf").tensors.values()
        )
        assert (work / "eagle3.pt").stat().st_size < 2 * n_weights + 20_000

    def test_a_cancelled_training_writes_no_head(self, target: Path, work: Path) -> None:
        settings, listener = replace(self.settings(target, work), minutes=1.0), Listener()
        listener.training = lambda progress: listener.cancel.set()
        assert train_head(settings, listener) is None
        assert not settings.out.exists()
        assert (work / "eagle3.pt").exists()

    def test_a_damaged_checkpoint_is_reported(self, target: Path, work: Path) -> None:
        (work / "eagle3.pt").write_bytes(b"torn")
        with pytest.raises(UsageError, match=r"eagle3\.pt cannot be read"):
            train_head(self.settings(target, work), Listener())

    def test_a_loss_that_is_not_a_number_stops_the_training(
        self, target: Path, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from edgespec.training import trainer

        monkeypatch.setattr(trainer, "loss_of", lambda *args: next(iter(args[0].values())).sum() * float("nan"))
        with pytest.raises(EdgespecError, match="has diverged"):
            train_head(replace(self.settings(target, work), minutes=1.0), Listener())
