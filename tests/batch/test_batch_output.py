"""The file of a job: what is kept of it, what is cut off, and when it is not gone on with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_model, write_split

from edgespec.batch.output import OutputFile, encoded
from edgespec.batch.sidecar import Sidecar, texts_depend_on
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError
from edgespec.gguf_file.model_check import check_model
from edgespec.models.text_facts import text_facts
from edgespec.requests.row import row_key
from edgespec.settings import LoadSettings, Request

SETTINGS: dict[str, Any] = {"model": "a.gguf", "temperature": 0.8, "stop": ("x",)}
FAILED: dict[str, Any] = {"id": "bad", "error": {"message": "no", "type": "server_error"}}
BAD_LINE: dict[str, Any] = {"id": None, "line": 9, "error": {"message": "no", "type": "invalid_request_error"}}
OPENAI: dict[str, Any] = {
    "id": "batch_req_1",
    "custom_id": "oa",
    "response": {"status_code": 200, "body": {}},
    "error": None,
}
REFUSED: dict[str, Any] = {"id": "batch_req_2", "custom_id": "or", "response": {"status_code": 400}, "error": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def row(id: Any) -> dict[str, Any]:
    return {"id": id, "content": f"answer {id}"}


def write(path: Path, *rows: dict[str, Any], seed: int | None = 5) -> None:
    with OutputFile(path) as file:
        file.resume(SETTINGS, seed)
        file.begin()
        for each in rows:
            file.write(each)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.job.json")


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_rows_are_there_as_soon_as_they_are_written(path: Path) -> None:
    with OutputFile(path) as file:
        assert file.resume(SETTINGS, 5) == 5
        file.begin()
        file.write(row("a"))
        assert rows_of(path) == [row("a")]
        file.write(row("ä\u2028\ud800"))
    assert rows_of(path) == [row("a"), row("ä\u2028\ud800")]
    assert len(path.read_text("utf-8").splitlines()) == 2


def test_what_is_there_is_kept_and_known_but_for_lines_that_may_have_been_fixed(path: Path) -> None:
    write(path, row("a"), row(2), FAILED, BAD_LINE, OPENAI, REFUSED)
    with OutputFile(path) as file:
        file.resume(SETTINGS, None)
        file.begin()
        ids: list[Any] = ["a", 2, "bad", "oa", "or"]
        assert {*file.done} == {row_key(id) for id in ids}
        assert (file.n_done, file.n_failed) == (5, 2)
        file.write(row("new"))
    assert rows_of(path) == [row("a"), row(2), FAILED, OPENAI, REFUSED, row("new")]


@pytest.mark.parametrize("torn", [b'{"id": "b", "con', b'{"id": "b"}', b"\0" * 500, b'{"id": "b", "con\n', b'"\n'])
def test_a_torn_last_line_is_cut_off(path: Path, torn: bytes) -> None:
    write(path, row("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with OutputFile(path) as file:
        file.resume(SETTINGS, None)
        assert path.read_bytes() == whole + torn
        file.begin()
        assert path.read_bytes() == whole
        assert {*file.done} == {row_key("a")}
        file.write(row("b"))
    assert rows_of(path) == [row("a"), row("b")]


@pytest.mark.parametrize("at", range(0, 120, 7))
def test_wherever_it_was_torn_no_row_is_lost_and_none_is_there_twice(path: Path, at: int) -> None:
    write(path, *map(row, range(4)))
    whole = path.read_bytes()
    path.write_bytes(whole[:at])
    with OutputFile(path) as file:
        file.resume(SETTINGS, 5)
        file.begin()
        for number in range(4):
            if row_key(number) not in file.done:
                file.write(row(number))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", [b"nonsense", b"12", b'{"content": "a"}', b'{"id": [1]}', b'{"id": null}'])
def test_a_line_in_the_middle_that_is_no_row_is_not_gone_on_with(path: Path, line: bytes) -> None:
    write(path, row("a"))
    before = path.read_bytes() + line + b"\n" + encoded(row("b"))
    path.write_bytes(before)
    with OutputFile(path) as file, pytest.raises(UsageError, match="line 2 is not a batch result"):
        file.resume(SETTINGS, None)
    assert path.read_bytes() == before


def test_failed_rows_can_be_taken_out_to_be_asked_once_more(path: Path) -> None:
    write(path, row("a"), FAILED, REFUSED, row("b"), BAD_LINE, OPENAI)
    with path.open("ab") as file:
        file.write(b'{"id": "torn')
    before = path.read_bytes()
    with OutputFile(path) as output:
        output.resume(SETTINGS, None, retry_failed=True)
        assert path.read_bytes() == before
        output.begin()
        assert {*output.done} == {row_key(id) for id in ("a", "b", "oa")}
        assert (output.n_done, output.n_failed) == (3, 0)
        output.write(row("bad"))
    assert rows_of(path) == [row("a"), row("b"), OPENAI, row("bad")]
    assert [file.name for file in path.parent.iterdir() if file.name.endswith(".part")] == []


def test_overwriting_keeps_nothing(path: Path) -> None:
    write(path, row("a"))
    with OutputFile(path) as file:
        assert file.overwrite(SETTINGS | {"temperature": 0}, 7) == 7
        assert rows_of(path) == [row("a")]
        file.begin()
        assert path.read_bytes() == b""
        file.write(row("b"))
    assert rows_of(path) == [row("b")]
    assert Sidecar.read(sidecar(path)).settings["temperature"] == 0


# --- what it was made with --------------------------------------------------------------------------------------------


def test_the_seed_that_was_drawn_is_the_seed_of_the_job(path: Path) -> None:
    with OutputFile(path) as file:
        drawn = file.resume(SETTINGS, None)
        file.begin()
        file.write(row("a"))
    with OutputFile(path) as file:
        assert file.resume(SETTINGS, None) == drawn
    with OutputFile(path) as file:
        assert file.resume(SETTINGS, drawn) == drawn
    with OutputFile(path) as file, pytest.raises(UsageError, match=f"seed was {drawn}, is now 6"):
        file.resume(SETTINGS, 6)
    with OutputFile(path.with_name("other")) as file:
        assert file.resume(SETTINGS, None) != drawn


def test_other_settings_are_named_and_nothing_is_touched(path: Path) -> None:
    write(path, row("a"))
    before = path.read_bytes()
    changed = SETTINGS | {"temperature": 0.2, "stop": ()}
    with OutputFile(path) as file, pytest.raises(UsageError) as caught:
        file.resume(changed, None)
    assert caught.value.why == 'temperature was 0.8, is now 0.2; stop was ["x"], is now []'
    assert "--overwrite" in caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("kept", [None, "", "{}", "[1]", '{"version": 99}', '{"version": 1, "seed": "a"}'])
def test_without_its_sidecar_a_file_is_not_gone_on_with(path: Path, kept: str | None) -> None:
    write(path, row("a"))
    if kept is None:
        sidecar(path).unlink()
    else:
        sidecar(path).write_text(kept)
    with (
        OutputFile(path) as file,
        pytest.raises(UsageError, match=r"it was not written by edgespec batch, or out\.jsonl\.job\.json"),
    ):
        file.resume(SETTINGS, None)
    assert rows_of(path) == [row("a")]


def test_an_empty_file_is_a_new_one_whatever_stands_beside_it(path: Path) -> None:
    path.touch()
    sidecar(path).write_text("nonsense")
    write(path, row("a"), seed=3)
    assert Sidecar.read(sidecar(path)).seed == 3


def test_the_sidecar_is_there_before_the_first_row(path: Path) -> None:
    with OutputFile(path) as file:
        file.resume(SETTINGS, 5)
        assert not sidecar(path).exists()
        file.begin()
        assert Sidecar.read(sidecar(path)).seed == 5
        assert path.read_bytes() == b""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "a.gguf", "llama")


def made_with(model: Path, load: LoadSettings | None = None, request: Request | None = None, **given: Any) -> Any:
    given = {"chat": False, "system": None} | given
    return texts_depend_on(text_facts(check_model(model), load or LoadSettings("x")), request or Request(), **given)


def names_of_changes(model: Path, **given: Any) -> list[str]:
    before, now = made_with(model), made_with(given.pop("other", model), **given)
    return [name for name in now if before[name] != now[name]]


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"request": Request(max_tokens=5)}, "max_tokens"),
        ({"request": Request(regex="a")}, "regex"),
        ({"request": Request(verify="block")}, "verify"),
        ({"request": Request(special=True)}, "special"),
        ({"request": Request(sampling=SamplingSettings(min_p=0.5))}, "min_p"),
        ({"request": Request(sampling=SamplingSettings(logit_bias=((1, 2.0),)))}, "logit_bias"),
        ({"chat": True}, "chat"),
        ({"system": "a"}, "system"),
        ({"load": LoadSettings("x", cache_type_k="q8_0")}, "cache_type_k"),
        ({"load": LoadSettings("x", cache_type_v="bf16")}, "cache_type_v"),
        ({"load": LoadSettings("x", flash_attention="off")}, "flash_attention"),
    ],
)
def test_what_changes_texts_counts(model: Path, given: Any, changed: str) -> None:
    assert names_of_changes(model, **given) == changed.split()


def test_what_changes_no_texts_does_not_count(model: Path) -> None:
    load = LoadSettings(
        "y", draft_model="z", spec_type="none", spec_draft_n_max=2, pace="off", store=False, ctx_size=512, threads=3,
        gpu_layers=0, sequences=8,
    )  # fmt: skip
    request = Request(spec_type="none", pace="off", draft_n_max=2)
    assert names_of_changes(model, load=load, request=request) == []


def test_trees_count_where_flash_attention_comes_with_them(model: Path) -> None:
    chains, trees = (made_with(model, LoadSettings("x", spec_tree=leaves, exact=False)) for leaves in (1, 2))
    assert chains == trees


def test_with_strict_the_length_of_drafts_does_not_count_but_strict_itself_does(model: Path) -> None:
    a, b = (made_with(model, LoadSettings("x", strict=True, spec_draft_n_max=length)) for length in (3, 4))
    assert a == b
    assert "strict" in names_of_changes(model, load=LoadSettings("x", strict=True))


def test_another_model_counts_also_one_of_the_same_size_and_header(model: Path, tmp_path: Path) -> None:
    same = tmp_path / "a.gguf"
    same.write_bytes(model.read_bytes())
    assert names_of_changes(model, other=same) == []
    write_model(same, "llama", seed=1)
    assert names_of_changes(model, other=same) == ["model digest"]
    write_model(same, "llama", chat_template="{{ messages }}")
    assert names_of_changes(model, other=same) == ["model size", "model digest"]


def test_all_of_the_header_counts(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", "llama", width=256, chat_template="{# " + "x" * 9000 + " #}")
    before, data = made_with(path), bytearray(path.read_bytes())
    data[data.index(b"xxx", 9000)] = ord("y")
    path.write_bytes(data)
    after = made_with(path)
    assert [name for name in after if before[name] != after[name]] == ["model digest"]


def test_a_part_of_a_split_model_counts(tmp_path: Path) -> None:
    first, second = write_split(tmp_path)
    before = made_with(first)
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    data[-4096:-4000] = bytes(96)
    data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
    second.write_bytes(data)
    after = made_with(first)
    assert [name for name in after if before[name] != after[name]] == ["model digest"]


def test_infinite_biases_are_the_same_again(path: Path) -> None:
    settings = SETTINGS | {"logit_bias": ((7, float("-inf")),)}
    with OutputFile(path) as file:
        file.resume(settings, 5)
        file.begin()
        file.write(row("a"))
    with OutputFile(path) as file:
        assert file.resume(settings, None) == 5


# --- who may write ----------------------------------------------------------------------------------------------------


def test_two_cannot_write_one_file(path: Path) -> None:
    with OutputFile(path), pytest.raises(UsageError, match="another batch is writing"):
        OutputFile(path)
    OutputFile(path).close()


def test_a_link_to_the_file_is_the_file(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    try:
        link.symlink_to(path)
    except OSError:
        pytest.skip("no links here")
    with OutputFile(path), pytest.raises(UsageError, match="another batch"):
        OutputFile(link)


def test_what_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        OutputFile(tmp_path / "no" / "out.jsonl")
    with pytest.raises(UsageError, match="it is not a file"):
        OutputFile(tmp_path)


FULL = """
import resource, sys
from pathlib import Path
from edgespec.batch.output import OutputFile
from edgespec.errors import EdgespecError
with OutputFile(Path(sys.argv[1])) as file:
    file.resume({}, 5)
    file.begin()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        for number in range(100):
            file.write({"id": number, "content": "x" * 90})
    except EdgespecError as error:
        print(number, error)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_where_no_more_can_be_written_the_last_row_is_whole(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    number, message = done.stdout.strip().split(" ", 1)
    assert message.startswith(f"cannot write {path}: File too large\n  the rows already written are kept")
    assert [each["id"] for each in rows_of(path)] == list(range(int(number)))
    assert 0 < int(number) < 10


def test_the_settings_of_a_request_that_belong_to_a_row_do_not_count(model: Path) -> None:
    assert names_of_changes(model, request=replace(Request(), prompt="a", seed=5, sample=2)) == []
