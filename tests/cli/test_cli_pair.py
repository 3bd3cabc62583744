"""`edgespec pair`: its report about a pair and about possible drafts, and its exit codes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import Finished, edgespec_here
from cli_program import edgespec as edgespec_process
from fake_hub import FakeHub, hub_with_demo_pair
from terminal import at_terminal, read_until
from tiny_gguf import CHATML, model_metadata, write_model
from tiny_head import write_head, write_hydra, write_peagle


def pair(home: Path, *args: str, code: int = 0) -> Finished:
    """Run `pair` where the only models are the bundled ones and those in `home`."""
    elsewhere = str(home / "nobody")
    done = edgespec_here(
        "pair", *args, home=home, HOME=elsewhere, USERPROFILE=elsewhere, HF_HOME=elsewhere, COLUMNS="80"
    )
    assert done.returncode == code, done.stderr
    return done


def text(done: Finished) -> str:
    """Return the output on one line."""
    assert all(len(line) <= 80 for line in done.stdout.decode().splitlines())
    return " ".join(done.stdout.decode().split())


def one_token_renamed(folder: Path) -> str:
    tokens: Any = list(model_metadata("llama")["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    tokens[250] = "gnu"
    return write_model(folder / "gnu.gguf", "llama", metadata={"tokenizer.ggml.tokens": tokens}).name


# --- check ------------------------------------------------------------------------------------------------------------


def test_the_bundled_pair_works(tmp_path: Path) -> None:
    said = text(pair(tmp_path, "check", "demo", "demo:draft"))
    assert said.startswith("target demo: llama, ")
    assert " tokens draft demo:draft: llama, " in said
    assert " tokens verdict works size " in said
    assert "10 times smaller than the target" in said
    assert "a draft pass reads 9.8 % of the weights" in said
    assert "17.2 MB together, with 16-bit caches of 1024 tokens" in said
    assert said.endswith("measure it with: edgespec tune demo -md demo:draft")


def test_one_other_token_is_named_and_the_rest_is_shared(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "target.gguf", "llama").name, one_token_renamed(tmp_path)
    usual: Any = model_metadata("llama")["tokenizer.ggml.tokens"]
    said = text(pair(tmp_path, "check", target, draft))
    assert "verdict works for shared tokens (vocabulary overlap 99 %)" in said  # 298 of 299
    assert f"token 250 is {usual[250]!r} in the target, 'gnu' in the draft" in said


def test_what_cannot_draft_is_reported_with_the_exit_code_of_a_pair_that_does_not_fit(tmp_path: Path) -> None:
    write_model(tmp_path / "target.gguf", "llama")
    write_model(tmp_path / "mamba.gguf", "mamba")
    said = text(pair(tmp_path, "check", "target.gguf", "mamba.gguf", code=4))
    assert "verdict incompatible: the state of a mamba model cannot be rolled back" in said
    assert "speedup" not in said
    said = text(pair(tmp_path, "check", "demo", "target.gguf", code=4))
    assert "verdict incompatible: vocabulary overlap 4 %" in said
    assert said.count("overlap") == 1


def test_a_draft_that_would_slow_its_target_down_is_reported_first_and_still_fits(tmp_path: Path) -> None:
    said = text(pair(tmp_path, "check", "demo:draft", "demo"))
    assert "verdict works, but is larger than the target: it would slow decoding down size " in said
    said = text(pair(tmp_path, "check", "demo", "demo"))
    assert "verdict works, but is as large as the target: it would slow decoding down size " in said
    said = text(pair(tmp_path, "suggest", "demo:draft"))
    assert said == "large demo: larger than the target: it would slow decoding down"
    (draft,) = json.loads(pair(tmp_path, "suggest", "demo:draft", "--json").stdout)["drafts"]
    assert (draft["verdict"], draft["slows_down"]) == ("no", True)


@pytest.mark.parametrize("write", [write_head, write_hydra, write_peagle])
def test_a_draft_head_is_compared_by_what_matters_for_it(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    write_model(tmp_path / "target.gguf", "llama", n_layers=4, chat_template=CHATML)
    head = write(tmp_path / "head.gguf").name
    fits, misfits = (
        pair(tmp_path, "check", target, head, code=code) for target, code in (("target.gguf", 0), ("demo", 4))
    )
    assert text(fits).count(" parameters, 299 tokens ") == 2
    assert "verdict works cost a draft pass reads" in text(fits)
    assert " parameters, 8192 tokens draft" in text(misfits)
    assert "why it is a head for models of width 64, and this one has 256" in text(misfits)
    assert "cost" not in text(misfits)
    for done in (fits, misfits):
        assert not any(
            word in text(done) for word in ("BOS", "EOS", "chat template", "trained", "times smaller", "note")
        )


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"<html>")
    assert b"it is a web page" in pair(tmp_path, "check", "demo", "broken.gguf", code=3).stderr
    assert b"was not found" in pair(tmp_path, "check", "demo", "nowhere.gguf", code=3).stderr


# --- suggest ----------------------------------------------------------------------------------------------------------


def test_drafts_are_suggested_the_best_first(tmp_path: Path) -> None:
    one_token_renamed(tmp_path)
    write_model(tmp_path / "target.gguf", "llama", width=192)
    write_model(tmp_path / "mamba.gguf", "mamba")
    write_model(tmp_path / "draft.gguf", "llama")
    done = pair(tmp_path, "suggest", "target.gguf")
    labels = [line.split()[0] for line in done.stdout.decode().splitlines() if not line.startswith(" ")]
    assert labels[:2] == ["works", "shared"]
    assert {*labels[2:]} == {"no", "large"}
    assert "the state of a mamba model cannot be rolled back" in text(done)
    found = json.loads(pair(tmp_path, "suggest", "target.gguf", "--json").stdout)
    named = [(each["verdict"], Path(each["spec"]).name) for each in found["drafts"]]
    assert named[:2] == [("works", "draft.gguf"), ("shared", "gnu.gguf")]
    assert {("no", "mamba.gguf"), ("no", "demo")} <= {*named[2:]}
    assert found["drafts"][0]["is_here"]


def test_drafts_of_the_catalogue_come_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    name = "qwen2.5-7b-instruct-q4_k_m.gguf"
    write_model(tmp_path / name, "qwen2")
    done = pair(tmp_path, "suggest", name)
    assert "pull qwen2.5-0.5b: Qwen 2.5 0.5B Instruct: edgespec pull qwen2.5-0.5b" in text(done)
    assert b"note" not in done.stderr


# --- what is not here -------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with hub_with_demo_pair(tmp_path) as hub:
        yield hub


def on_hub(hub: FakeHub, home: Path, *args: str, code: int = 0) -> Finished:
    done = edgespec_process("pair", *args, home=home, stdin=b"", **({"HOME": str(home)} | hub.environment(home)))
    assert done.returncode == code, done.stderr
    return done


def test_what_is_named_is_fetched_and_no_draft_with_it(hub: FakeHub, tmp_path: Path) -> None:
    found = json.loads(on_hub(hub, tmp_path, "suggest", "demo-pair", "-y", "--json").stdout)
    assert found["is_here"]
    assert [each["spec"] for each in found["drafts"] if each["verdict"] == "works"] == ["demo:draft", "demo-draft"]
    assert b"verdict  works" in on_hub(hub, tmp_path, "check", "demo-pair", "demo-draft", "-y").stdout


@pytest.mark.long
def test_without_the_target_its_drafts_are_those_of_the_catalogue(hub: FakeHub, tmp_path: Path) -> None:
    done = on_hub(hub, tmp_path, "suggest", "demo-pair")
    assert done.stdout.decode().splitlines() == ["pull  demo-draft: owner/draft-GGUF: edgespec pull demo-draft"]
    note = "no headers were compared, because demo-pair is not downloaded; to download it: edgespec pull demo-pair"
    assert note in " ".join(done.stderr.decode().split())
    assert not hub.requests
    on_hub(hub, tmp_path, "check", "demo-draft", "demo-draft", "-y")
    done = on_hub(hub, tmp_path, "suggest", "demo-pair", "--offline")
    assert done.stdout.decode().splitlines() == ["here  owner/draft-GGUF:Q8_0: owner/draft-GGUF"]
    found = json.loads(on_hub(hub, tmp_path, "suggest", "demo-pair", "--json").stdout)
    assert (found["is_here"], [each["is_here"] for each in found["drafts"]]) == (False, [True])


def test_what_the_catalogue_does_not_know_has_to_be_fetched_first(hub: FakeHub, tmp_path: Path) -> None:
    for args in (["suggest", "owner/unknown-GGUF"], ["check", "demo-pair", "demo"]):
        done = on_hub(hub, tmp_path, *args, "-y", "--offline", code=3)
        assert f"edgespec pull {args[1]}" in done.stderr.decode()
    assert not hub.requests


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("answer", "code"), [(b"\n", 0), (b"n\n", 3)])
def test_at_a_terminal_it_asks_first(hub: FakeHub, tmp_path: Path, answer: bytes, code: int) -> None:
    args = ["pair", "check", "demo-pair", "demo:draft"]
    on = at_terminal(tmp_path, args, streams=["stdin", "stderr"], **hub.environment(tmp_path))
    with on as (program, master):
        asked = read_until(master, "[Y/n]")
        assert "demo-pair" in asked
        assert "demo-draft" not in asked
        os.write(master, answer)
        assert program.stdout is not None
        assert (b"verdict  works" in program.stdout.read()) == (code == 0)
        assert program.wait(60) == code


# --- nothing ----------------------------------------------------------------------------------------------------------


def test_that_nothing_fits_is_said(tmp_path: Path) -> None:
    write_model(tmp_path / "target.gguf", "llama")
    done = pair(tmp_path, "suggest", "target.gguf")
    assert b"no model here can draft for it, and the catalogue has none" in done.stderr
    assert pair(tmp_path, "suggest", "target.gguf", "-q").stderr == b""
