"""The one list of models: its order, its filter, and facts about models here and models to download."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, lead_to
from tiny_gguf import write_embedding_model, write_model
from tiny_head import write_head
from tiny_mtp import write_mtp

from edgespec.chat.commands import models_and_drafts
from edgespec.gguf_file.model_check import check_model
from edgespec.models.hub.cache import repository_folder
from edgespec.models.hub.requests import DownloadError
from edgespec.models.listing import ModelRow, incomplete, rows_here, rows_of_hub, rows_to_download, sizes_of
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.models.memory.fit import fit_of, needed_by
from edgespec.models.names.local import local_models
from edgespec.models.names.source import BUNDLED
from edgespec.tui.picker_rows import Here


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    with FakeHub() as hub:
        lead_to(hub, tmp_path, monkeypatch)
        yield hub


def test_a_search_tells_what_people_choose_by(hub: FakeHub) -> None:
    hub.add("owner/tiny-GGUF", {})
    hub.about["owner/tiny-GGUF"] = {
        "downloads": 1_234_567, "likes": 89, "gated": "manual", "pipeline_tag": "text-generation",
        "gguf": {"total": 8_030_000_000, "architecture": "llama"},
    }  # fmt: skip
    hub.add("owner/tiny-pictures-GGUF", {})
    hub.about["owner/tiny-pictures-GGUF"] = {"pipeline_tag": "text-to-image"}
    hub.add("owner/../evil", {})
    [found] = rows_of_hub("tiny")
    assert (found.spec, found.entry.about) == ("hf:owner/tiny-GGUF", "llama")
    assert found.facts == ["gated", "8.0B", "1.2M downloads", "89 likes"]
    asked = hub.requests[-1].path
    assert "search=tiny" in asked
    assert "filter=gguf" in asked
    assert rows_of_hub("evil") == []


def test_a_search_that_is_impossible_says_why(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.busy = 1
    with pytest.raises(DownloadError, match="responds with status 503"):
        rows_of_hub("tiny")
    hub.faults.not_json = True
    with pytest.raises(DownloadError, match="does not respond like a model hub"):
        rows_of_hub("tiny")
    asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="offline"):
        rows_of_hub("tiny")
    assert len(hub.requests) == asked


def test_the_sizes_of_a_repository_can_be_chosen(hub: FakeHub) -> None:
    hub.add("owner/tiny-GGUF", {"tiny-Q4_K_M.gguf": b"four", "tiny-F16.gguf": b"sixteen", "mmproj-F16.gguf": b"no"})
    found = sizes_of(ModelRow("hf:owner/tiny-GGUF", "owner/tiny-GGUF", "hub"))
    assert [(each.spec, each.quant, each.size_bytes) for each in found] == [
        ("hf:owner/tiny-GGUF:Q4_K_M", "Q4_K_M", 4),
        ("hf:owner/tiny-GGUF:F16", "F16", 7),
    ]


def test_the_catalogue_tells_sizes_drafts_and_what_has_begun(hub: FakeHub) -> None:
    blobs = repository_folder("Qwen/Qwen2.5-7B-Instruct-GGUF") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "etag.incomplete").write_bytes(b"12345")
    found = {each.spec: each for each in rows_to_download()}
    seven = found["qwen2.5-7b"]
    assert (seven.size, seven.begun_bytes, seven.entry.drafts[0]) == ("~4.7 GB", 5, "qwen2.5-0.5b")
    assert (found["smollm2"].size, found["smollm2"].is_exact) == ("92.9 MB", True)
    assert found["gemma4-e2b"].size == "~3.4 GB"  # its name gives another number
    assert "demo" not in found
    assert hub.requests == []


def test_whether_a_model_fits_is_told_with_figures() -> None:
    header = check_model(BUNDLED / "target.gguf")
    assert needed_by(header) == estimate(MemoryPlan(header, n_ctx=header.number("context_length"))).total
    assert fit_of(4_000_000_000, 8_000_000_000) == "fits in memory"
    assert fit_of(7_500_000_000, 8_000_000_000) == "just fits in memory"
    assert fit_of(9_000_000_000, 8_000_000_000) == "too large for memory (about 9.0 GB, 8.0 GB free)"
    assert fit_of(0, 8_000_000_000) == fit_of(1, 0) == ""


# --- the same rows everywhere -----------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a file of each kind, the first names last."""
    for name in ("HOME", "USERPROFILE", "EDGESPEC_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "z.gguf", "llama", type="Q8_0")
    write_mtp(tmp_path / "block.gguf")
    write_head(tmp_path / "head.gguf")
    write_embedding_model(tmp_path / "a-embedding.gguf")
    (tmp_path / "a-broken.gguf").write_text("<html>")
    blobs = repository_folder("owner/begun-GGUF") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "etag.incomplete").write_bytes(b"12345")
    return tmp_path


def test_rows_stand_in_one_order_with_what_can_answer_first(home: Path) -> None:
    rows = [*rows_here(embeds=True), *incomplete()]
    assert [(row.label, row.kind) for row in rows] == [
        ("demo", "model"),
        ("demo:draft", "model"),
        ("block", "model"),
        ("z", "model"),
        ("head", "head"),
        ("a-embedding", "embedding"),
        ("a-broken", "unusable"),
        ("owner/begun-GGUF", "incomplete"),
    ]
    assert [row.kind for row in rows_here() if row.label == "a-embedding"] == ["unusable"]  # it cannot chat
    facts = {row.label: row.facts for row in rows}
    assert facts["block"][1:] == ["F32", rows[2].size, "mtp in its file"]
    assert facts["owner/begun-GGUF"] == ["5 B"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("Q8_0 z", ["z"]),
        ("mtp", ["block"]),
        ("LLAMA q8_0", ["demo", "demo:draft", "z"]),
        ("begun", ["owner/begun-GGUF"]),
        ("nothing like this", []),
    ],
)
def test_a_filter_takes_words_of_names_and_facts_in_any_order(home: Path, text: str, labels: list[str]) -> None:
    rows = [*rows_here(), *incomplete()]
    assert [row.label for row in rows if row.has(text)] == labels


def test_the_chat_and_the_picker_show_the_rows_of_the_list(home: Path) -> None:
    rows = [row for row in rows_here() if row.kind != "head"]
    lines = ["  ".join([row.name, *([row.problem] if row.problem else row.facts)]) for row in rows]
    assert models_and_drafts("demo")[: len(rows)] == lines
    here = Here("demo", None)
    for model in local_models():
        here.add(model)
    here.add_heads((str(row.files[0]), row.head) for row in rows)
    shown = [str(option.prompt).split("\n")[0] for option in here.options()]
    assert shown == [row.label for row in rows]
    facts = [str(option.prompt).split("\n  ")[1] for option in here.options()]
    assert facts[1:3] == [" \u00b7 ".join(row.facts) for row in rows[1:3]]
