"""Every option of `run` sets its field, and invalid values are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from cli_program import commands
from option_fields import LANDS, field

from edgespec.cli.commands.run import Prompt, RunOptions, request, run
from edgespec.cli.options.command import Call, Command
from edgespec.llm.info import ModelInfo
from edgespec.settings import LoadSettings, Message, Request

ALL = dict(commands())
ELSEWHERE = {
    *("prompt", "file", "chat", "samples", "markdown", "as_json", "explain", "stats", "quiet", "verbose"),
    *("offline", "yes", "persona", "help_all", "list_devices", "mcp_config", "allow_tool", "server", "keep_alive"),
}
"""Parameters that configure neither model nor request; tests/cli/test_cli_run.py tests their effects."""


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def parse(*args: str) -> dict[str, Any]:
    return run.make_context("run", [*args, "hello"]).params


def call_of(*args: str) -> Call[RunOptions]:
    return Call(run.make_context("run", [*args, "hello"]), RunOptions)


def asked(call: Call[RunOptions], *, chat: bool) -> Request:
    return request(ModelInfo("demo", has_chat_template=chat), Prompt("hello", (), []), call)


def built(args: list[str]) -> Mapping[str, Any]:
    call = call_of(*args)
    load = call.options.load
    return {
        "load": replace(load, model=load.model or "demo"),
        "request": asked(call, chat=bool(call.options.system)),
    }


@pytest.mark.parametrize(("parameter", "args", "target", "value"), LANDS)
def test_an_option_sets_its_field_and_no_other(parameter: str, args: list[str], target: str, value: Any) -> None:
    before, after = built([]), built(args)
    assert field(before, target) != value
    assert field(after, target) == value


def test_no_option_is_missing_above() -> None:
    names = {param.name for param in run.params}
    assert names == {parameter for parameter, *_ in LANDS} | ELSEWHERE


def test_every_spelling_is_used_above() -> None:
    typed = {arg for _, args, *_ in LANDS for arg in args}
    spellings = {
        name for param in run.params if param.name not in ELSEWHERE for name in param.opts if name.startswith("-")
    }
    assert spellings <= typed


def test_without_options_the_settings_are_their_own_defaults() -> None:
    objects = built(["--seed", "3"])
    assert objects["load"] == LoadSettings("demo")
    assert objects["request"] == Request(prompt="hello", seed=3)


def test_a_seed_is_random_unless_it_is_given() -> None:
    seeds = {asked(call_of(), chat=False).seed for _ in range(3)}
    assert len(seeds) > 1
    assert min(seeds) >= 0


def test_a_prompt_is_either_a_text_or_a_turn() -> None:
    call = call_of("-m", "demo")
    assert asked(call, chat=True).messages == (Message("user", "hello"),)
    assert asked(call, chat=True).prompt == ""
    assert asked(call, chat=False).prompt == "hello"
    assert asked(call, chat=False).messages == ()


def test_the_mode_is_open_until_one_is_asked_for() -> None:
    assert [parse(*args)["chat"] for args in ([], ["--chat"], ["--raw"])] == [None, True, False]


def test_behind_two_dashes_a_prompt_may_be_called_like_an_option() -> None:
    assert run.make_context("run", ["--raw", "--", "--chat"]).params["prompt"] == "--chat"


@pytest.mark.parametrize(
    "args",
    [["-n", "-2"], ["-n", "x"], ["-n", "1.5"], ["-n", ""], ["-n", "9" * 30],
     ["-c", "0"], ["-c", "-1"], ["-c", "4294967296"], ["-t", "0"], ["-t", "-1"], ["-t", "513"], ["-tb", "0"],
     ["-ngl", "-1"], ["-ngl", "some"], ["-ngld", "1.5"], ["-ngl", ""],
     ["--spec-draft-n-max", "-1"], ["--spec-draft-n-max", "65"], ["--spec-type", "tree"],
     ["--spec-type", "none,draft"], ["--spec-type", "draft,draft"], ["--spec-type", ""], ["--spec-type", "draft,"],
     ["--spec-tree", "0"], ["--spec-tree", "17"], ["--spec-draft-n-max", "10000"], ["--verify", "lenient"],
     ["-cd", "0"], ["-td", "0"],
     ["-fa", "yes"], ["-ctk", "q3"], ["-ctv", ""],
     ["--temp", "-0.1"], ["--temp", "nan"], ["--temp", "inf"], ["--temp", "warm"],
     ["--top-p", "-0.1"], ["--top-p", "1.1"], ["--top-p", "nan"], ["--min-p", "-0.1"], ["--min-p", "2"],
     ["--typical-p", "0"], ["--repeat-penalty", "0"], ["--repeat-penalty", "inf"], ["--repeat-last-n", "-2"],
     ["--top-k", "-2"], ["--presence-penalty", "nan"], ["--frequency-penalty", "-inf"],
     ["--seed", "-2"], ["--seed", str(2**64)], ["--logprobs", "-1"], ["--stop", ""],
     ["-l", "7"], ["-l", "x+1"], ["-l", "7+inf"], ["-l", "-7+1"], ["-l", "7+nan"], ["-l", "7*2"], ["-l", "7+-1"],
     ["--stop", "a\udcff"], ["-s", "a\udcff"], ["-m", "a\udcff"],
     ["--no-such-option"], ["two", "prompts"], ["-n"]],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(args: list[str]) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse(*args)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tree", "unknown drafter 'tree'; choose from auto, none, "),
        ("sufix", "unknown drafter 'sufix'; did you mean suffix?"),
        ("none,draft", "must be auto, none, or some of "),
    ],
)
def test_the_option_is_named_once(given: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse("--spec-type", given)
    assert caught.value.message.startswith(message)


def test_the_byte_that_is_not_utf8_is_named() -> None:
    with pytest.raises(click.BadParameter, match="byte 3 is invalid"):
        parse("-s", "é!\udcff")


@pytest.mark.parametrize("name", [name for name, command in ALL.items() if isinstance(command, Command)])
def test_a_field_has_the_name_of_its_option(name: str) -> None:
    command = ALL[name]
    assert isinstance(command, Command)
    single = [each for each in fields(command.options) if "settings" not in each.metadata]
    assert [[param.name for param in each.metadata["params"]] for each in single] == [[each.name] for each in single]


@pytest.mark.parametrize(
    ("args", "system", "temperature"),
    [([], "Be brief.", 0.25), (["-s", "Be long."], "Be long.", 0.25), (["--temp", "1"], "Be brief.", 1.0)],
)
def test_values_fill_what_the_user_left_open(args: list[str], system: str, temperature: float) -> None:
    call = call_of(*args)
    own = {"system": "Be brief.", "temperature": 0.25}
    call.change({name: value for name, value in own.items() if call.is_unset(name)})
    assert (call.options.system, call.options.answer.sampling.temperature) == (system, temperature)
    assert call.options_with({"max_tokens": 3}).answer.max_tokens == 3
    assert call.options.answer.max_tokens == -1
