"""The report about a device: its sections about draft heads, and the drafts of llama.cpp's program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import head_report
import pytest
from bench_native import drafts_of
from bench_shapes import Figures
from head_report import (
    Agreement,
    Checked,
    Pair,
    checked,
    common,
    compared,
    conclusions,
    last_error,
    of_heads,
    of_shapes,
    parse_drafts,
    table,
    tiny_pairs,
)
from tiny_gguf import write_model
from tiny_head import write_bigram, write_block_drafter, write_head, write_hydra
from tiny_mtp import write_mtp

import edgespec
from edgespec.settings import HEADS, MTP

LOG = """
0.01 D spec        draft:  - seq_id 0, draft candidate   0, pos   0:    70 (   0.905) ' a'
0.01 D spec        draft:  - seq_id 0, draft candidate   1, pos   0:    71 (   0.005) ' b'
0.01 D spec        draft:  - seq_id 0, draft candidate   0, pos   1:    72 (   0.805) ' c'
0.01 D accepted 1/2 draft tokens, the last target token is: (90)
0.01 D  - seq_id 0, draft candidate   0, pos   0:    73 (   0.905) ' d'
0.01 D  - seq_id 0, draft candidate   0, pos   1:    74 (   0.905) ' e'
0.01 D accepted 0/2 draft tokens, the last target token is: (91)
"""


def test_drafts_of_a_log_belong_to_the_tokens_before_them() -> None:
    drafts, answer = parse_drafts(LOG, 10)
    assert drafts == {10: [70, 72], 12: [73, 74]}
    assert answer == [70, 90, 91]


def test_a_draft_that_is_verified_twice_is_one_draft() -> None:
    """A recurrent memory is restored, and the accepted tokens go through the target again with the corrected one."""
    log = LOG.replace("accepted 1/2 draft tokens", "accepted 3/3 draft tokens")
    drafts, answer = parse_drafts(log, 10)
    assert drafts == {10: [70, 72], 14: [73, 74]} and answer == [70, 72, None, 90, 91]


def test_drafts_are_compared_where_the_texts_are_the_same() -> None:
    own = {10: [1, 2], 12: [3, 4], 14: [5], 16: [7, 8]}
    native = {10: [1, 2], 12: [3, 9], 14: [5], 16: [0, 0]}
    assert compared(own, native, 2, end=13) == Agreement(2, 1)
    assert compared(own, native, 2, end=16) == Agreement(3, 1)
    assert common([1, 2, 3, 4], [1, None, 3, 9]) == 3 and common([1], [1, 2]) == 1


def test_an_error_of_the_program_is_found_in_its_log() -> None:
    assert last_error("a\nE failed to load model\nbye") == "E failed to load model"
    assert last_error("") == "no output"


def test_only_heads_that_the_program_runs_are_compared(tmp_path: Path) -> None:
    target = write_bigram(tmp_path / "target.gguf")
    head, network = write_head(tmp_path / "head.gguf"), write_hydra(tmp_path / "hydra.gguf")
    block = write_block_drafter(tmp_path / "block.gguf", "dspark")
    assert drafts_of(target, head) == [["--spec-type", "draft-eagle3", "-md", str(head)]]
    assert drafts_of(target, block)[0][1] == "draft-dspark"
    assert drafts_of(target, write_model(tmp_path / "draft.gguf", "llama"))[0][1] == "draft-simple"
    assert drafts_of(target, network) == [] == drafts_of(target, None)
    assert drafts_of(write_mtp(tmp_path / "mtp.gguf"), None) == [["--spec-type", "draft-mtp"]]


def test_the_drafts_of_a_head_are_collected(tmp_path: Path, home: Path) -> None:
    target, head = write_bigram(tmp_path / "target.gguf"), write_head(tmp_path / "head.gguf", knows_bigrams=True)
    settings: dict[str, Any] = {
        "draft_model": str(head),
        "spec_type": "eagle3",
        "pace": "fixed:3",
        "store": False,
        "ctx_size": 256,
    }
    with edgespec.load(str(target), **settings) as llm:
        ids = llm.model.tokenize("def the class", add_special=True, parse_special=True)
        drafts, answer = head_report.own_drafts(llm, ids, 12)
    text = [*ids, *answer]
    whole = {at: draft for at, draft in drafts.items() if len(draft) == 3}
    assert whole
    for at, draft in whole.items():  # this head is always right
        assert draft[: len(text) - at] == text[at : at + 3]


# --- the report -------------------------------------------------------------------------------------------------------


def test_there_is_a_pair_for_each_kind_of_head(tmp_path: Path) -> None:
    pairs = list(tiny_pairs(tmp_path))
    kinds = {head_report.kind_of(pair) for pair in pairs}
    assert kinds == {*HEADS, MTP}
    assert all(pair.target.is_file() and (pair.head is None or pair.head.is_file()) for pair in pairs)


def test_texts_of_a_pair_are_compared(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_report, "TEXT_MODES", ("chains of 6",))
    monkeypatch.setattr(head_report, "LENGTHS", (20,))
    pair = Pair("eagle3", "llama", write_bigram(tmp_path / "t.gguf"), write_head(tmp_path / "h.gguf"))
    found = checked(pair, None)
    assert not found.why and found.texts == {"chains of 6": (2, 2)} and found.is_equal
    section = "\n".join(of_heads([found], None))
    assert "| eagle3 | llama | " in section and "| 2 of 2 | - |" in section and "Skipped: drafts were not" in section
    assert list(conclusions([found], {}, None)) == ["all texts with 1 head are those of plain decoding"]


def test_a_pair_that_fails_is_named(tmp_path: Path, home: Path) -> None:
    (tmp_path / "h.gguf").write_bytes(b"GGUF")
    found = checked(Pair("eagle3", "llama", write_bigram(tmp_path / "t.gguf"), tmp_path / "h.gguf"), None)
    assert found.why
    assert "eagle3 (llama) failed: " in "\n".join(of_heads([found], None))
    assert "eagle3 (llama) could not be checked" in list(conclusions([found], {}, None))


def test_conclusions_tell_mistakes_from_rounding(tmp_path: Path) -> None:
    pair = Pair("mtp", "qwen35", tmp_path, None)
    wrong = Checked(pair, "all widths", {"chains of 6": (5, 6)}, Agreement(40, 39))
    rounded = Checked(pair, "no: 1e-05 apart", {"chains of 6": (5, 6)}, Agreement(40, 20))
    assert list(conclusions([wrong, rounded], {}, "program")) == [
        "texts with mtp (qwen35) differ although passes are exact: a mistake to report",
        "texts with mtp (qwen35) differ, and passes are not exact on this device: rounding can explain that",
        "mtp (qwen35): 98% of the drafts are llama.cpp's, rounding can explain that",
        "mtp (qwen35): 50% of the drafts are llama.cpp's, the two programs compute something else",
    ]
    right = Checked(pair, "all widths", {"chains of 6": (6, 6)}, Agreement(40, 40))
    assert "all 40 drafts of 1 head are the same as llama.cpp's, token by token" in conclusions([right], {}, "program")


def test_costs_say_from_which_rate_drafts_pay() -> None:
    passes = {width: 0.01 * (1 + 0.2 * (width - 1)) for width in head_report.WIDTHS}
    shapes = {"Qwen3.5-0.8B": Figures(10**9, 1.5, 2e9, passes, {"mtp, trimmed": 0.1, "eagle3": 2.0})}
    section = "\n".join(of_shapes(shapes))
    assert "| Qwen3.5-0.8B | 1.0 GB | 1.5 | 2.0 GB | 10.00 | 1.20 | 1.40 |" in section
    assert "| Qwen3.5-0.8B | mtp, trimmed | 0.100 | 31 % |" in section
    assert "| Qwen3.5-0.8B | eagle3 | 2.000 | never | never |" in section
    assert list(conclusions([], shapes, None)) == [
        "Qwen3.5-0.8B, mtp, trimmed: drafts of one token pay off if more than 31 % are accepted",
        "Qwen3.5-0.8B, eagle3: drafts of one token never pay off",
    ]


@pytest.mark.slow
def test_an_mtp_block_drafts_as_in_llama_cpp_within_the_comparison_only(tmp_path: Path, home: Path) -> None:
    """With the additional cell for the first token, some drafts of a random block differ."""
    target = write_mtp(tmp_path / "mtp.gguf", "glm4moe")
    with edgespec.load(str(target), spec_type="mtp", pace="fixed:3", store=False, ctx_size=256) as llm:
        ids = llm.model.tokenize("def the class for x in the list", add_special=True, parse_special=True)
        before, text = head_report.own_drafts(llm, ids, 24)
        with head_report.as_llama_cpp():
            within, text_within = head_report.own_drafts(llm, ids, 24)
        after, _ = head_report.own_drafts(llm, ids, 24)
    assert text == text_within and before == after and before.keys() & within.keys()
    assert any(within[at] != draft for at, draft in before.items() if at in within)


def test_tables() -> None:
    rows = [["weights", "widths", "n = 2"], ["F16", "1, 2-16", "1.02"]]
    assert [*table(rows)] == ["| weights | widths | n = 2 |", "| --- | --- | ---: |", "| F16 | 1, 2-16 | 1.02 |"]
