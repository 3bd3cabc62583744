"""`edgespec run`: its output on stdout and stderr for valid and invalid input."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_program import COMMAND, DEMO_ANSWERS, Finished, edgespec, edgespec_here, environment
from made_documents import pdf
from tiny_gguf import CHATML, write_model
from tiny_head import write_hydra

import edgespec as api
from edgespec.errors import OutOfMemoryError
from edgespec.models.names.source import BUNDLED
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

PROMPT = "def return"
FIRST = ["-m", "chat.gguf", "-t", "1", "-n", "24", "--seed", "7"]
CUT = b"note: stopped after 24 tokens (-n)\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a chat model, a draft for it, and a model without template; also EDGESPEC_HOME."""
    folder = tmp_path_factory.mktemp("home")
    write_model(folder / "chat.gguf", "llama", chat_template=CHATML)
    write_model(folder / "draft.gguf", "llama", noise=0.05)
    write_model(folder / "raw.gguf", "llama")
    return folder


@pytest.fixture(scope="module")
def answers(home: Path) -> dict[str, str]:
    """The answers of the Python interface to PROMPT with the settings of FIRST: as a chat message, and verbatim."""
    with api.load(str(home / "chat.gguf"), threads=1) as llm:
        asked = "".join(token.text for token in llm.chat([{"role": "user", "content": PROMPT}], max_tokens=24, seed=7))
        continued = "".join(token.text for token in llm.generate(PROMPT, max_tokens=24, seed=7))
    assert asked != continued
    return {"chat": asked, "raw": continued}


def shown(answer: str) -> bytes:
    """Return an answer as it is printed: with one newline at the end."""
    return (answer.rstrip("\n") + "\n").encode()


def refusal(done: Finished, code: int = 2) -> str:
    """Return the message of a refused run: nothing on stdout, one message without traceback on stderr."""
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), message
    assert message.count("edgespec: ") == 1
    assert "Traceback" not in message
    return message


# --- documents --------------------------------------------------------------------------------------------------------


def test_a_document_is_added_with_its_name_and_its_size_is_noted(home: Path) -> None:
    (home / "report.pdf").write_bytes(pdf("one", "two words", "three"))
    (home / "same.txt").write_text("report.pdf (pages 1-2 of 3):\n```\n[page 1]\none\n\n[page 2]\ntwo words\n```\n")
    done = edgespec("run", PROMPT, "-f", "report.pdf 1-2", *FIRST, home=home)
    assert done.stderr.startswith(b"note: report.pdf, pages 1-2 of 3, ")
    assert done.stdout == edgespec_here("run", PROMPT, "-f", "same.txt", *FIRST, home=home).stdout


def test_a_document_that_does_not_fit_is_an_error(home: Path) -> None:
    (home / "long.csv").write_text("n,m\n" + "1,2\n" * 900)
    said = refusal(edgespec_here("run", PROMPT, "-f", "long.csv", *FIRST, "-c", "512", home=home))
    assert said.startswith("note: long.csv, 900 rows, ")
    assert "the context holds 512\n" in said
    assert "a range chooses pages, rows or lines: -f 'long.csv 1-20'" in said.replace("\n  ", " ")
    (home / "folder").mkdir()
    (home / "folder" / "large one.txt").write_text("word " * 3_000)
    (home / "folder" / "small.txt").write_text("word")
    said = refusal(edgespec_here("run", PROMPT, "-f", "folder", *FIRST, "-c", "512", home=home))
    assert f"-f '{Path('folder', 'large one.txt')} 1-20'" in said.replace("\n  ", " ")
    assert "report.docx cannot be read: No such file" in refusal(edgespec_here("run", "-f", "report.docx", home=home))


# --- the prompt -------------------------------------------------------------------------------------------------------


def test_a_model_with_a_template_is_asked(home: Path, answers: dict[str, str]) -> None:
    done = edgespec("run", PROMPT, *FIRST, home=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown(answers["chat"]), CUT)


def test_raw_goes_on_from_the_prompt(home: Path, answers: dict[str, str]) -> None:
    assert edgespec_here("run", PROMPT, "--raw", *FIRST, home=home).stdout == shown(answers["raw"])


def test_reasoning_is_limited(home: Path) -> None:
    done = edgespec_here("run", "Why?<think>", "--raw", *FIRST, "--reasoning-budget", "2", home=home)
    assert (done.returncode, b"\n</think>\n\n" in done.stdout) == (0, True), done.stderr


def test_a_model_without_a_template_goes_on_from_the_prompt(home: Path, answers: dict[str, str]) -> None:
    assert edgespec_here("run", PROMPT, *FIRST, "-m", "raw.gguf", home=home).stdout == shown(answers["raw"])


@pytest.mark.parametrize("prompt", [[], ["-"], ["-f", "-"]])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_piped_prompt_is_one_without_its_last_newline(
    home: Path, answers: dict[str, str], prompt: list[str], end: str
) -> None:
    done = edgespec_here("run", *prompt, *FIRST, home=home, stdin=(PROMPT + end).encode())
    assert done.stdout == shown(answers["chat"])


@pytest.mark.parametrize("data", [PROMPT, PROMPT + "\n", "\ufeff" + PROMPT])
def test_a_file_may_hold_the_prompt(home: Path, answers: dict[str, str], data: str) -> None:
    (home / "prompt.txt").write_bytes(data.encode())
    assert edgespec_here("run", "-f", "prompt.txt", *FIRST, home=home).stdout == shown(answers["chat"])


def test_what_is_piped_in_is_appended_to_the_prompt(home: Path) -> None:
    joined = edgespec_here("run", f"{PROMPT}\n\nfrom a pipe", *FIRST, home=home).stdout
    assert edgespec_here("run", PROMPT, *FIRST, home=home, stdin=b"from a pipe\n").stdout == joined


def test_a_prompt_may_look_like_an_option(home: Path) -> None:
    assert edgespec_here("run", *FIRST, "--", "--json", home=home).returncode == 0


# --- which model answers ----------------------------------------------------------------------------------------------


def test_the_environment_and_the_project_may_name_the_model(
    home: Path, answers: dict[str, str], tmp_path: Path
) -> None:
    args = ["run", PROMPT, *FIRST[2:]]
    model = str(home / "chat.gguf")
    assert edgespec_here(*args, home=tmp_path, EDGESPEC_MODEL=model).stdout == shown(answers["chat"])
    (tmp_path / "edgespec.toml").write_text(f"model = {json.dumps(model)}")
    done = edgespec_here(*args, home=tmp_path)
    assert (done.stdout, done.stderr) == (shown(answers["chat"]), CUT)


@pytest.mark.skipif(not (BUNDLED / "target.gguf").is_file(), reason="the bundled pair has not been trained here")
def test_without_a_model_the_bundled_pair_answers_and_drafts(tmp_path: Path) -> None:
    args = ["run", "def fibonacci(n):", "-n", "24", "-t", "1", "-tb", "1", "--seed", "1"]
    drafted = edgespec(*args, "--pace", "fixed:3", "--stats", home=tmp_path)
    note, cut, _, speculation, _ = drafted.stderr.decode().splitlines()
    assert (drafted.returncode, f"{note}\n".encode(), f"{cut}\n".encode()) == (0, DEMO_ANSWERS, CUT)
    assert "acceptance rate " in speculation
    assert edgespec_here(*args, "--spec-type", "none", "-q", home=tmp_path).stdout == drafted.stdout != b""


def test_a_model_of_the_catalogue_says_that_its_draft_is_missing(home: Path, tmp_path: Path) -> None:
    target, draft = fetched(tmp_path, "Qwen/Qwen2.5-7B-Instruct-GGUF"), "Qwen/Qwen2.5-1.5B-Instruct-GGUF"
    write_model(target / "m-Q4_K_M.gguf", "llama", chat_template=CHATML)

    def said(*args: str) -> str:
        args = ("run", PROMPT, *FIRST, "-m", "qwen2.5-7b", *args)
        done = edgespec_here(*args, home=home, HF_HUB_CACHE=str(tmp_path))
        assert done.returncode == 0
        return done.stderr.decode()

    note = "note: running without its draft model; download it with 'edgespec pull qwen2.5-0.5b'\n"
    assert said() == note + CUT.decode()
    drafting = ("run", PROMPT, *FIRST, "-m", "qwen2.5-7b", "--spec-type", "suffix,draft")
    refused = refusal(edgespec_here(*drafting, home=home, HF_HUB_CACHE=str(tmp_path)))
    assert "'edgespec pull qwen2.5-0.5b' downloads one; --spec-type suffix goes without" in refused
    assert said("-q") == ""
    for args in (["--spec-type", "none"], ["--spec-type", "suffix"], ["--spec-draft-n-max", "0"]):
        assert said(*args) == CUT.decode()
    assert said("-md", "draft.gguf") == CUT.decode()
    write_model(fetched(tmp_path, draft) / "d-Q4_K_M.gguf", "llama", noise=0.05)
    assert said() == CUT.decode()


@pytest.mark.parametrize("asked", [["--spec-type", "draft"], ["--spec-type", "draft", "-md", "auto"]])
def test_drafting_that_was_asked_for_and_cannot_be_is_refused(home: Path, asked: list[str]) -> None:
    refused = refusal(edgespec_here("run", PROMPT, *FIRST, *asked, home=home, EDGESPEC_MODELS=""))
    assert "--spec-type draft needs a draft model" in refused
    assert "name one (-md MODEL)" in refused
    assert edgespec_here("run", PROMPT, *FIRST, *asked, "--spec-draft-n-max", "0", home=home).returncode == 0


@pytest.mark.parametrize("model", ["chat.gguf", "demo"])
@pytest.mark.parametrize("more", [[], ["-md", "auto"]])
@pytest.mark.parametrize("kind", ["eagle3", "hydra"])
def test_a_draft_head_that_was_asked_for_and_is_not_there_can_be_trained(
    home: Path, kind: str, more: list[str], model: str
) -> None:
    """The bundled draft model is not used as one."""
    asked = ["-m", model, "--spec-type", f"suffix,{kind}", *more]
    refused = refusal(edgespec_here("run", PROMPT, *asked, home=home, EDGESPEC_MODELS=""))
    assert f"--spec-type suffix,{kind} needs a draft head" in refused
    assert "name one (-md HEAD.gguf)" in refused
    assert f"'edgespec draft train {model} --kind {kind} -o HEAD.gguf' trains one" in refused
    assert "--spec-type suffix goes without" in refused


def test_the_best_head_here_is_found(tmp_path: Path) -> None:
    home, target = tmp_path, write_model(tmp_path / "deep.gguf", "llama", n_layers=8)
    write_model(home / "draft.gguf", "llama", n_layers=1)
    write_hydra(home / "head.gguf")
    asked = ["-m", target.name, "--spec-type", "hydra", "-md", "auto", "-n", "4", "--explain"]
    done = edgespec_here("run", PROMPT, *asked, home=home, EDGESPEC_MODELS="")
    assert done.returncode == 0, done.stderr
    assert b"head.gguf: " in done.stderr


def fetched(cache: Path, repository: str) -> Path:
    """Return the folder of a repository in the hub cache."""
    folder, commit = cache / f"models--{repository.replace('/', '--')}", "c" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit, encoding="ascii")
    (folder / "snapshots" / commit).mkdir(parents=True)
    return folder / "snapshots" / commit


# --- the output -------------------------------------------------------------------------------------------------------


def test_the_draft_changes_no_byte(home: Path, answers: dict[str, str]) -> None:
    done = edgespec_here("run", PROMPT, *FIRST, "-md", "draft.gguf", home=home)
    assert done.stdout == shown(answers["chat"])


def test_a_drawn_seed_is_shown_and_brings_the_text_back(home: Path) -> None:
    drawn = edgespec_here("run", PROMPT, *FIRST, "--seed", "-1", home=home)
    word, seed = drawn.stderr.removesuffix(CUT).decode().split()
    assert word == "seed"
    assert edgespec_here("run", PROMPT, *FIRST, "--seed", seed, home=home).stdout == drawn.stdout


@pytest.mark.parametrize("args", [["-q"], ["--temp", "0"]])
def test_a_seed_is_not_shown_to_those_who_want_quiet_or_that_matters_not(home: Path, args: list[str]) -> None:
    assert edgespec_here("run", PROMPT, *FIRST, "--seed", "-1", *args, home=home).stderr.removesuffix(CUT) == b""


def test_statistics_are_shown_on_request(home: Path) -> None:
    drafting = ("-md", "draft.gguf", "--spec-type", "draft", "--pace", "fixed:3")
    done = edgespec_here("run", PROMPT, *FIRST, *drafting, "--stats", home=home)
    _, speed, speculation, why = done.stderr.decode().splitlines()
    assert re.fullmatch(r"24 tokens · [\d.]+ tok/s · first token after [\d.]+ s", speed)
    assert re.fullmatch(r"speculative decoding: acceptance rate \d+ % · [\d.]+ tokens per step", speculation)
    assert why == "draft length fixed:3 · output identical with and without speculation on this machine"


def test_a_stream_that_knows_ascii_only_gets_a_footer_in_ascii(home: Path) -> None:
    drafting = ("-md", "draft.gguf", "--pace", "fixed:3")
    done = edgespec_here("run", PROMPT, *FIRST, *drafting, "--stats", home=home, PYTHONIOENCODING="ascii")
    assert done.stderr.isascii()
    assert b"24 tokens | " in done.stderr


def test_pipes_get_no_colours(home: Path) -> None:
    assert b"\x1b" not in edgespec_here("run", PROMPT, *FIRST, "--stats", home=home, FORCE_COLOR="1").stderr


def test_json_holds_text_tokens_and_figures(home: Path, answers: dict[str, str]) -> None:
    done = edgespec_here(
        "run", PROMPT, *FIRST, "-md", "draft.gguf", "--spec-type", "draft", "--json", "--logprobs", "2", home=home
    )
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)
    assert result["content"] == answers["chat"]
    assert (result["seed"], result["finish_reason"], result["notes"]) == (7, "length", [])
    assert (Path(result["model"]).name, Path(result["draft_model"]).name) == ("chat.gguf", "draft.gguf")
    tokens, timings = result["tokens"], result["timings"]
    assert len(tokens) == timings["predicted_n"] == 24
    assert set(tokens[0]) == {"id", "text", "from_draft", "source", "round", "logprob", "top_logprobs"}
    assert result["content"].startswith("".join(token["text"] for token in tokens))
    assert sum(token["from_draft"] for token in tokens) == timings["draft_n_accepted"] <= timings["draft_n"]
    assert [token["source"] for token in tokens] == ["draft" if token["from_draft"] else "" for token in tokens]
    assert [len(token["top_logprobs"]) for token in tokens] == [2] * 24
    assert tokens[-1]["round"] + 1 == result["rounds"]
    assert sum(result["accepted_per_pos"]) == timings["draft_n_accepted"]


def test_an_answer_that_loops_is_not_praised(home: Path) -> None:
    looping = ["run", PROMPT, *FIRST, "-n", "-1", "--regex", "(ab ){150}", "--pace", "fixed:4"]
    done = edgespec_here(*looping, "--json", home=home)
    period, tokens = (found := json.loads(done.stdout)["repetition"])["period"], found["tokens"]
    assert period <= 3 and tokens >= 140
    note = done.stderr.decode()
    assert note.startswith("note: the answer repeats itself (") and "--repeat-penalty 1.1" in note
    assert note.count("\n") == 1
    assert (
        f" · the answer repeats itself ({tokens:,} tokens)\n"
        in edgespec_here(*looping, "-q", "--stats", home=home).stderr.decode()
    )
    assert json.loads(edgespec_here("run", PROMPT, *FIRST, "--json", home=home).stdout)["repetition"] is None


def test_a_constrained_answer_that_is_cut_off_is_an_error(home: Path) -> None:
    schema = ["--raw", "-j", '{"type": "array", "items": {"type": "integer"}, "minItems": 40}']
    cut = edgespec_here("run", PROMPT, *FIRST, *schema, "-n", "9", "--json", home=home)
    assert (cut.returncode, json.loads(cut.stdout)["finish_reason"]) == (1, "length")
    assert cut.stderr.decode().splitlines() == [
        "edgespec: the answer is cut off and may not fit the JSON schema: -n 9 is reached",
        "  raise -n, or leave it out",
    ]
    full = edgespec_here("run", PROMPT, *FIRST, *schema, "-n", "-1", "-c", "32", "-q", home=home)
    assert full.returncode == 1 and b": the context of 32 tokens is full\n  use a larger one (-c)" in full.stderr
    several = edgespec_here("run", PROMPT, *FIRST, *schema, "-n", "9", "--samples", "2", "-q", home=home)
    assert several.returncode == 1 and b"2 of 2 answers are cut off" in several.stderr


def test_an_answer_that_nothing_could_follow_is_whole_at_the_limit(home: Path) -> None:
    whole = edgespec_here("run", PROMPT, *FIRST, "--raw", "--regex", "[ab]", "-n", "1", "--json", home=home)
    assert (whole.returncode, json.loads(whole.stdout)["finish_reason"]) == (0, "stop")


def test_samples_of_a_prompt_come_one_after_the_other(home: Path, answers: dict[str, str]) -> None:
    several = ["run", PROMPT, *FIRST, "--samples", "3"]
    result = json.loads(edgespec_here(*several, "--json", home=home).stdout)
    assert [choice["index"] for choice in result["choices"]] == [0, 1, 2]
    contents = [choice["content"] for choice in result["choices"]]
    assert contents[0] == answers["chat"]
    assert len(set(contents)) == 3
    assert [choice["finish_reason"] for choice in result["choices"]] == ["length"] * 3
    assert [len(choice["tokens"]) for choice in result["choices"]] == [24] * 3
    assert result["timings"]["predicted_n"] == 72
    for args in ([], ["--strict"]):
        done = edgespec_here(*several, *args, home=home)
        assert done.stdout.decode() == "".join(content.rstrip("\n") + "\n" for content in contents)
        *numbers, cut = done.stderr.decode().splitlines()
        assert numbers == [f"sample {number} of 3" for number in (1, 2, 3)]
        assert cut == "note: 3 of 3 answers stopped after 24 tokens (-n)"


def test_samples_read_a_long_prompt_once(home: Path) -> None:
    done = edgespec_here("run", "word " * 300, *FIRST, "--samples", "4", "--json", home=home)
    timings = json.loads(done.stdout)["timings"]
    assert timings["cache_n"] >= 3 * 300 > timings["prompt_n"] / 2


def test_samples_come_one_at_a_time_where_several_do_not_fit(
    home: Path, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(settings: LoadSettings, progress: Any) -> Runtime:
        if settings.sequences > 1:
            raise OutOfMemoryError("that does not fit")
        return Runtime(settings, progress)

    monkeypatch.setattr("edgespec.runtime.runtime.Runtime", load)
    done = edgespec_here("run", PROMPT, *FIRST, "--samples", "2", "--json", home=home)
    assert json.loads(done.stdout)["choices"][0]["content"] == answers["chat"]


def test_what_the_user_should_know_is_said_once(home: Path) -> None:
    done = edgespec_here("run", PROMPT, *FIRST, "-c", "4096", home=home)
    assert done.stderr.decode() == f"note: the model was trained for a context of 2048 tokens, not 4096\n{CUT.decode()}"
    assert edgespec_here("run", PROMPT, *FIRST, "-c", "4096", "-q", home=home).stderr == b""
    notes = json.loads(edgespec_here("run", PROMPT, *FIRST, "-c", "4096", "-q", "--json", home=home).stdout)["notes"]
    assert notes == ["the model was trained for a context of 2048 tokens, not 4096"]


def test_an_answer_that_n_ends_says_so_and_one_that_ends_by_itself_does_not(home: Path) -> None:
    assert edgespec_here("run", PROMPT, *FIRST, "-n", "3", home=home).stderr == b"note: stopped after 3 tokens (-n)\n"
    for args in (["-q"], ["--json"], ["--regex", "yes", "--raw"]):
        assert edgespec_here("run", PROMPT, *FIRST, "-n", "9", *args, home=home).stderr == b""


def test_no_tokens_are_no_output(home: Path) -> None:
    done = edgespec_here("run", PROMPT, *FIRST, "-n", "0", home=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_stop_string_ends_the_answer_before_it(home: Path, answers: dict[str, str]) -> None:
    answer = answers["raw"]
    stop = answer[len(answer) // 2 :][:3]
    done = edgespec_here("run", PROMPT, "--raw", *FIRST, "--stop", stop, "--json", home=home)
    result = json.loads(done.stdout)
    assert (result["content"], result["finish_reason"]) == (answer.partition(stop)[0], "stop")


def test_verbose_tells_what_happens_and_llama_cpp_is_silent_without_it(home: Path) -> None:
    assert edgespec("run", PROMPT, *FIRST, home=home).stderr == CUT
    assert b"llama_model_loader" in edgespec_here("run", PROMPT, *FIRST, "-v", home=home).stderr


with_and_without_draft = pytest.mark.parametrize("draft", [[], ["-md", "draft.gguf"]], ids=["plain", "draft"])


@pytest.mark.long(but=1)
@pytest.mark.skipif(os.name != "posix", reason="a shell pipe")
@with_and_without_draft
def test_a_reader_that_goes_away_ends_the_answer_without_a_word(home: Path, draft: list[str]) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", PROMPT, *FIRST, *draft, "-n", "-1", "--ignore-eos", "-c", "100000", "-q"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home, env=environment(home),
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.read(10)
        program.stdout.close()
        said = program.stderr.read()
        assert (program.wait(60), said) == (0, b"")


@pytest.mark.long(but=1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@with_and_without_draft
def test_a_full_disk_is_said_to_be_so(home: Path, draft: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "run", PROMPT, *FIRST, *draft], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
            cwd=home, env=environment(home), check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.decode() == "edgespec: the output cannot be written: No space left on device\n"


# --- bad input --------------------------------------------------------------------------------------------------------


def test_an_empty_prompt_is_refused_in_a_chat(home: Path) -> None:
    assert "the prompt is empty" in refusal(edgespec_here("run", "", *FIRST, home=home))
    assert "the prompt is empty" in refusal(edgespec_here("run", *FIRST, home=home, stdin=b"\n"))


def test_a_model_with_a_first_token_of_its_own_can_start_from_nothing(home: Path) -> None:
    write_model(home / "begins.gguf", "llama", metadata={"tokenizer.ggml.add_bos_token": True})
    done = edgespec_here("run", "", "--raw", *FIRST, "-m", "begins.gguf", home=home)
    assert (done.returncode, done.stderr) == (0, CUT)
    assert "the prompt is empty" in refusal(edgespec_here("run", "", "--raw", *FIRST, home=home))


@pytest.mark.parametrize("data", [b"abc\xffdef", b"abc\xe2\x82"])
def test_input_that_is_not_utf8_is_refused_naming_the_byte(home: Path, data: bytes) -> None:
    assert "the prompt from stdin is not UTF-8: byte 3 is invalid" in refusal(
        edgespec_here("run", *FIRST, home=home, stdin=data)
    )
    (home / "bad.txt").write_bytes(data)
    assert "the prompt from bad.txt is not UTF-8: byte 3 is invalid" in refusal(
        edgespec_here("run", "-f", "bad.txt", *FIRST, home=home)
    )


@pytest.mark.skipif(os.name != "posix", reason="arguments are bytes on POSIX only")
@pytest.mark.parametrize("args", [[b"abc\xff"], ["x", "-s", b"abc\xff"], ["x", "--stop", b"abc\xff"]])
def test_an_argument_that_is_not_utf8_is_refused_naming_the_byte(home: Path, args: list[str | bytes]) -> None:
    assert "not UTF-8: byte 3 is invalid" in refusal(edgespec_here("run", *args, *FIRST, home=home))


def test_utf16_is_read(home: Path, answers: dict[str, str]) -> None:
    (home / "utf16.txt").write_bytes(PROMPT.encode("utf-16"))
    assert edgespec_here("run", "-f", "utf16.txt", *FIRST, home=home).stdout == shown(answers["chat"])


def test_prompt_files_that_cannot_be_read_are_refused(home: Path) -> None:
    refused = refusal(edgespec_here("run", "-f", "none.txt", *FIRST, home=home))
    assert "prompt file 'none.txt' cannot be read" in refused and "check its path" in refused
    (home / "empty").mkdir()
    assert "the folder empty has no files" in refusal(edgespec_here("run", "-f", "empty", *FIRST, home=home))


def test_logprobs_without_json_are_refused(home: Path) -> None:
    assert "--logprobs needs --json" in refusal(edgespec_here("run", "x", "--logprobs", "1", *FIRST, home=home))


@pytest.mark.parametrize(
    ("args", "why"), [(["--raw"], "--raw was asked for"), (["-m", "raw.gguf"], "no chat template")]
)
def test_a_system_message_outside_a_chat_is_refused(home: Path, args: list[str], why: str) -> None:
    assert why in refusal(edgespec_here("run", "x", "-s", "Be brief.", *FIRST, *args, home=home))


def test_a_chat_with_a_model_that_has_no_template_is_refused(home: Path) -> None:
    assert "no chat template" in refusal(edgespec_here("run", "x", *FIRST, "--chat", "-m", "raw.gguf", home=home))


def test_a_prompt_longer_than_the_context_is_refused(home: Path) -> None:
    message = refusal(edgespec_here("run", "x" * 100, *FIRST, "-c", "32", home=home))
    assert "the context holds 32" in message


def test_a_full_context_ends_the_answer(home: Path) -> None:
    done = edgespec_here("run", "x", "--raw", *FIRST, "-n", "-1", "--ignore-eos", "-c", "32", "--json", home=home)
    assert (done.returncode, json.loads(done.stdout)["finish_reason"]) == (0, "length")


def test_a_context_larger_than_memory_is_refused(home: Path) -> None:
    assert "does not fit" in refusal(edgespec_here("run", "x", *FIRST, "-c", "2000000000", home=home), code=5)


def test_models_that_are_none_are_refused(home: Path) -> None:
    (home / "empty.gguf").write_bytes(b"")
    for model, said in [("gone.gguf", "'gone.gguf' was not found"), ("empty.gguf", "empty"), (".", "folder|directory")]:
        message = refusal(edgespec_here("run", "x", *FIRST, "-m", model, home=home), code=3)
        assert any(word in message for word in said.split("|")), message


def test_a_wrong_number_is_refused_before_anything_is_loaded(home: Path) -> None:
    message = refusal(edgespec_here("run", "x", "-n", "-2", "-m", "gone.gguf", home=home))
    assert "'-n' / '--max-tokens'" in message


def test_a_wrong_setting_is_refused_with_its_file(home: Path, tmp_path: Path) -> None:
    (tmp_path / "edgespec.toml").write_text("temp = -1")
    assert str(tmp_path / "edgespec.toml") in refusal(edgespec_here("run", "x", home=tmp_path))


def test_a_cache_that_cannot_be_written_is_noted_and_no_more(
    home: Path, answers: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    done = edgespec_here("run", PROMPT, *FIRST, home=home, EDGESPEC_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, shown(answers["chat"]))
    assert done.stderr.count(b"\n") == 2 and done.stderr.endswith(CUT)
    assert done.stderr.startswith(f"warning: {tmp_path / 'cache'} cannot be used (".encode())


# --- the pace ---------------------------------------------------------------------------------------------------------


def test_what_the_policy_decided_is_said_and_explained(home: Path) -> None:
    drafting = ("-md", "draft.gguf", "--spec-type", "draft", "--stats", "--explain")
    said = edgespec_here("run", PROMPT, *FIRST, *drafting, home=home, COLUMNS="40").stderr.decode()
    assert re.search(r"^answer: .* s, target .* s, drafting .* s, other .* s$", said, re.MULTILINE)  # it is not wrapped
    state = "backed off: draft" if "draft: backed off" in said else "active: draft"
    assert said.splitlines()[-1].startswith(f"{state} · ")
    assert said.count("passes of the target: 1 token in 1, ") == 1
