"""Which models of the catalogue are recommended for which machine, and how fast they are expected to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.models.listing import ModelRow, catalogue_rows, usual_bytes
from edgespec.models.memory.fit import needed_by_size
from edgespec.models.names.catalog import catalogue
from edgespec.models.recommend import CANDIDATES, ROOM, Machine, recommended, this_machine

GB = 10**9


@pytest.fixture(scope="module")
def rows() -> list[ModelRow]:
    return list(catalogue_rows())


def names(machine: Machine, rows: list[ModelRow]) -> list[str]:
    return [each.row.name for each in recommended(machine, rows)]


def test_the_candidates_are_in_the_catalogue_with_a_size_and_a_free_licence() -> None:
    entries = catalogue()
    for name in CANDIDATES:
        assert entries[name].licence in ("Apache-2.0", "MIT"), name
        assert usual_bytes(entries[name]) > 0, name
    assert [entry.name for entry in entries.values() if not usual_bytes(entry)] == []


@pytest.mark.parametrize(
    ("gigabytes", "per_s", "found"),
    [
        (1, 100, []),
        (4, 15, ["qwen2.5-1.5b"]),
        (8, 30, ["qwen3-4b-2507", "qwen2.5-1.5b"]),
        (8, 3, []),  # nothing is fast enough
        (16, 60, ["gemma4-e4b", "granite4.2-3b"]),
        (64, 30, ["gemma4-26b-a4b", "gemma4-e2b"]),
        (64, 300, ["qwen3.6-35b-a3b", "gemma4-e2b"]),  # it thinks first, so it has to be fast
    ],
)
def test_more_memory_and_speed_bring_a_better_model(
    rows: list[ModelRow], gigabytes: int, per_s: int, found: list[str]
) -> None:
    assert names(Machine(gigabytes * GB, 4, per_s * GB), rows) == found


def test_a_gpu_counts_if_all_of_the_model_fits_into_its_memory(rows: list[ModelRow]) -> None:
    slow = Machine(20 * GB, 4, 5 * GB)
    assert names(slow, rows) == []
    assert names(replace(slow, gpu_bytes=16 * GB, gpu_weights_per_s=500 * GB), rows)[0] == "gemma4-12b"
    [best, *_] = recommended(replace(slow, gpu_bytes=16 * GB), rows)
    assert (best.row.name, best.speed) == ("gemma4-12b", "")  # the GPU does not tell its speed
    assert names(replace(slow, gpu_bytes=1 * GB, gpu_weights_per_s=500 * GB), rows) == []


def test_recommended_models_leave_memory_and_the_second_is_smaller_and_faster(rows: list[ModelRow]) -> None:
    for gigabytes in range(2, 80, 3):
        machine = Machine(gigabytes * GB, 8, 80 * GB)
        found = recommended(machine, rows)
        assert all(needed_by_size(each.row.size_bytes) <= ROOM * machine.room_bytes for each in found)
        if len(found) == 2:
            assert found[1].row.size_bytes <= found[0].row.size_bytes / 2
            assert found[1].tokens_per_s >= found[0].tokens_per_s


def test_only_the_active_weights_of_a_mixture_of_experts_are_read() -> None:
    machine, entries = Machine(64 * GB, 8, 80 * GB), catalogue()
    mixture, dense = (machine.tokens_per_s(entries[name]) for name in ("gpt-oss-20b", "gemma4-12b"))
    assert mixture > 3 * dense
    assert machine.tokens_per_s(replace(entries["gemma4-12b"], size_bytes=8 * GB)) == pytest.approx(7.3, abs=0.1)


def test_another_repository_or_quantisation_has_another_size(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[gpt-oss-20b]\nquant = "Q8_0"\n["gemma4-e4b"]\nrepository = "owner/x"\nsize_bytes = 7\n', "utf-8")
    entries = catalogue(file)
    assert (entries["gpt-oss-20b"].size_bytes, entries["gemma4-e4b"].size_bytes) == (0, 7)


def test_this_machine_is_measured() -> None:
    machine = this_machine(in_use_bytes=5)
    assert 1e8 < machine.weights_per_s < 1e13
    assert machine.cores >= 1 and machine.room_bytes > 5
