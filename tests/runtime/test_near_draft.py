"""A draft near the model is used without being named, unless it is known not to pay off or does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_model
from tiny_head import write_head, write_hydra

from edgespec.core.policy.measured import DRAFTS, MeasuredPolicy, Record, SamplingMode
from edgespec.errors import ModelFileError, OutOfMemoryError
from edgespec.gguf_file.model_check import check_model
from edgespec.models.memory.estimate import MemoryPlan
from edgespec.runtime import planning
from edgespec.runtime.model_files import TRIED, does_not_pay, drafters_here, near_draft
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Request


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a target of eight layers and a head for it."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "edgespec"))
    write_model(tmp_path / "target.gguf", "llama", n_layers=8)
    write_hydra(tmp_path / "head.gguf")
    return tmp_path


@pytest.fixture
def settings(folder: Path) -> LoadSettings:
    return LoadSettings(str(folder / "target.gguf"), ctx_size=256, store=False, threads=1)


def opened(settings: LoadSettings, gain: float | None = None, steps: int = TRIED) -> tuple[str, list[str]]:
    """Return the kind of head that a session loads, and its notes. The head then gains this much per draft, and is
    backed off for these steps."""
    with Runtime(settings) as llm:
        head = next((name for name in llm._loaded.drafters.by_name if name in ("hydra", "eagle3")), "")
        if gain is not None:
            policy = llm.engine.speculator.pace
            assert isinstance(policy, MeasuredPolicy)
            policy._modes["greedy"] = SamplingMode(
                step=steps, records={head: Record(gain=gain, count=DRAFTS, due=steps)}
            )
        return head, [*llm.notes]


def test_a_head_near_the_model_is_used_and_named(settings: LoadSettings) -> None:
    with Runtime(settings) as llm:
        assert "hydra" in llm._loaded.drafters.by_name
        [note] = [note for note in llm.notes if "head.gguf" in note]
        assert "found near target.gguf" in note
        llm.draft_with(spec_type="hydra", pace="fixed:2")
        assert sum(event.id >= 0 for event in llm.generate("to be or not to be", max_tokens=8, ignore_eos=True)) == 8
    assert drafters_here(settings) == {"hydra"}
    assert opened(replace(settings, spec_type="suffix")) == ("", [])


def test_a_head_that_did_not_pay_off_is_not_loaded_again_until_it_does(settings: LoadSettings) -> None:
    target, head = (Path(settings.model).with_name(name) for name in ("target.gguf", "head.gguf"))
    assert opened(settings)[0] == "hydra"
    for _ in range(2):
        assert not does_not_pay(settings, target, head)
        assert opened(settings, gain=-0.1, steps=TRIED // 2)[0] == "hydra"
    assert does_not_pay(settings, target, head)
    kind, [note] = opened(settings)
    assert kind == ""
    assert "did not pay off on this machine ('edgespec tune " in note and " -md " in note
    assert drafters_here(settings) == {"hydra"}  # so that benchmarks measure it
    assert opened(replace(settings, spec_type="suffix,hydra"), gain=0.2)[0] == "hydra"
    assert opened(settings, gain=-0.1)[0] == "hydra"
    assert does_not_pay(settings, target, head)
    head.write_bytes(head.read_bytes() + bytes(32))
    assert not does_not_pay(settings, target, head)


def test_a_head_that_was_not_tried_is_not_judged(settings: LoadSettings, folder: Path) -> None:
    assert opened(settings, gain=-0.1, steps=0)[0] == "hydra"
    assert opened(replace(settings, pace="fixed:2"))[0] == "hydra"
    assert not [*(folder / "edgespec" / "cache").glob("paid/*")]


def test_a_head_for_which_there_is_no_memory_is_left_out(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: Callable[..., MemoryPlan] = planning.fitted

    def with_little_memory(plan: MemoryPlan, *args: Any, **more: Any) -> MemoryPlan:
        if more["must_fit"]:
            raise OutOfMemoryError("the model does not fit into memory", why="it needs 2 MB, 1 MB is free")
        return fitted(plan, *args, **more)

    monkeypatch.setattr("edgespec.runtime.planning.fitted", with_little_memory)
    assert opened(settings) == ("", [settings_note(settings), "head.gguf is not used: it needs 2 MB, 1 MB is free"])


def settings_note(settings: LoadSettings) -> str:
    """Return the note about the head that is found."""
    notes: list[str] = []
    found = near_draft(settings, check_model(settings.model), notes.append)
    assert found is not None and not notes
    return f"{found.what}: found near target.gguf, {found.found.why}"


def test_files_that_cannot_be_read_are_noted_once_and_misfits_not_at_all(settings: LoadSettings, folder: Path) -> None:
    write_hydra(folder / "misfit.gguf", n_vocab=5)
    for name in ("a-draft.gguf", "b-draft.gguf"):
        (folder / name).write_bytes(b"junk")
    (folder / "head.gguf").unlink()
    kind, [note] = opened(settings)
    assert kind == "" and note.startswith("a-draft.gguf is not used as a draft: it starts with 'junk'")


def test_the_kind_that_is_asked_for_is_taken(settings: LoadSettings, folder: Path) -> None:
    write_head(folder / "another.gguf", draft_tokens=[1, 2, 3])
    assert opened(replace(settings, spec_type="eagle3"))[0] == "eagle3"
    assert opened(replace(settings, spec_type="hydra"))[0] == "hydra"


@pytest.mark.parametrize("missing", ["blk.0.attn_q.weight", "blk.0.ffn_up.weight"])
def test_a_head_without_a_tensor_is_left_out(settings: LoadSettings, folder: Path, missing: str) -> None:
    (folder / "head.gguf").unlink()
    write_head(folder / "broken.gguf", tensors={missing: None})
    with Runtime(settings) as llm:
        assert "eagle3" not in llm._loaded.drafters.by_name
        assert any("broken.gguf is not used as a draft: " in note for note in llm.notes)
        assert sum(event.id >= 0 for event in llm.generate("to be", max_tokens=8, ignore_eos=True)) == 8
    with pytest.raises(ModelFileError):
        Runtime(replace(settings, draft_model=str(folder / "broken.gguf")))


def test_a_model_with_a_default_draft_and_no_drafts_may_have_less_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    fitted: Callable[..., MemoryPlan] = planning.fitted

    def spy(*args: Any, must_fit: bool = False, **more: Any) -> MemoryPlan:
        asked.append(must_fit)
        return fitted(*args, must_fit=must_fit, **more)

    monkeypatch.setattr(planning, "fitted", spy)
    with Runtime(LoadSettings("demo", spec_draft_n_max=0, store=False, threads=1)):
        assert asked == [False]


def test_more_sequences_than_a_pass_of_a_head_has_tokens(settings: LoadSettings, folder: Path) -> None:
    (folder / "head.gguf").unlink()
    write_head(folder / "eagle3.gguf")
    with Runtime(replace(settings, ctx_size=32, sequences=70)) as llm:
        requests = [Request(prompt=f"to be {n}", max_tokens=6, ignore_eos=True) for n in range(70)]
        assert "eagle3" in llm._loaded.drafters.by_name
        assert sum(event.id >= 0 for _, event in llm.stream(iter(requests))) == 70 * 6  # type: ignore[union-attr]


def test_a_head_that_llama_cpp_does_not_load_is_left_out(settings: LoadSettings, folder: Path) -> None:
    (folder / "head.gguf").unlink()
    write_head(folder / "odd.gguf", metadata={"eagle3.attention.layer_norm_rms_epsilon": None})
    with Runtime(settings) as llm:
        assert "eagle3" not in llm._loaded.drafters.by_name
        assert any("odd.gguf is not used: " in note for note in llm.notes)
