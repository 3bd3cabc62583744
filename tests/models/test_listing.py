"""Models that are not on this machine: facts from the catalogue and the hub, sizes, and fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, lead_to

from edgespec.gguf_file.model_check import check_model
from edgespec.models.hub.cache import repository_folder
from edgespec.models.hub.requests import DownloadError
from edgespec.models.listing import Row, rows_of_hub, rows_to_download, sizes_of
from edgespec.models.memory.estimate import Plan, estimate
from edgespec.models.memory.fit import fit_of, needed_by
from edgespec.models.names.source import BUNDLED


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
    found = sizes_of(Row("hf:owner/tiny-GGUF", "owner/tiny-GGUF", "hub"))
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
    assert found["gemma4-e2b"].size == ""  # the name gives another number
    assert "demo" not in found
    assert hub.requests == []


def test_whether_a_model_fits_is_told_with_figures() -> None:
    header = check_model(BUNDLED / "target.gguf")
    assert needed_by(header) == estimate(Plan(header, n_ctx=header.number("context_length"))).total
    assert fit_of(4_000_000_000, 8_000_000_000) == "fits in memory"
    assert fit_of(7_500_000_000, 8_000_000_000) == "just fits in memory"
    assert fit_of(9_000_000_000, 8_000_000_000) == "too large for memory (about 9.0 GB, 8.0 GB free)"
    assert fit_of(0, 8_000_000_000) == fit_of(1, 0) == ""
