"""Every option of `run` sets its field, and invalid values are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from edgespec.cli.commands.run import run
from edgespec.cli.options.generation import load_settings, request
from edgespec.settings import LoadSettings, Message, Request

ELSEWHERE = {
    *("prompt", "file", "chat", "samples", "as_json", "explain", "stats", "quiet", "verbose"),
    *("offline", "yes", "persona", "help_all", "list_devices", "mcp_config", "allow_tool", "server", "keep_alive"),
}
"""Parameters that configure neither model nor request; tests/test_cli_run.py shows what they do."""

# parameter, what is typed, the field it sets, the value it gets there
LANDS = [
    ("model", ["-m", "a.gguf"], "load.model", "a.gguf"),
    ("model", ["--model", "a.gguf"], "load.model", "a.gguf"),
    ("draft_model", ["-md", "b.gguf"], "load.draft_model", "b.gguf"),
    ("draft_model", ["--draft-model", "b.gguf"], "load.draft_model", "b.gguf"),
    ("spec_type", ["--spec-type", "none"], "load.spec_type", "none"),
    ("spec_type", ["--spec-type", "Lookup, draft"], "load.drafters", ("lookup", "draft")),
    ("corpus", ["--corpus", "x.corpus"], "load.corpus", "x.corpus"),
    ("store", ["--store", "--no-store"], "load.store", False),
    ("spec_tree", ["--spec-tree", "4"], "load.spec_tree", 4),
    ("overlap", ["--overlap", "off"], "load.overlap", "off"),
    ("verify", ["--verify", "block"], "request.verify", "block"),
    ("strict", ["--strict"], "load.strict", True),
    ("exact", ["--exact", "--fast"], "load.exact", False),
    ("ctx_size_draft", ["-cd", "300"], "load.ctx_size_draft", 300),
    ("ctx_size_draft", ["--ctx-size-draft", "300"], "load.ctx_size_draft", 300),
    ("threads_draft", ["-td", "3"], "load.threads_draft", 3),
    ("threads_draft", ["--threads-draft", "3"], "load.threads_draft", 3),
    ("spec_draft_n_max", ["--spec-draft-n-max", "7"], "load.spec_draft_n_max", 7),
    ("pace", ["--pace", "fixed:5"], "load.pace", "fixed:5"),
    ("mmproj", ["-mm", "p.gguf"], "load.mmproj", "p.gguf"),
    ("mmproj", ["--mmproj", "none"], "load.mmproj", "none"),
    ("ctx_size", ["-c", "512"], "load.ctx_size", 512),
    ("ctx_size", ["--ctx-size", "512"], "load.ctx_size", 512),
    ("threads", ["-t", "3"], "load.threads", 3),
    ("threads", ["--threads", "3"], "load.threads", 3),
    ("threads_batch", ["-tb", "5"], "load.threads_batch", 5),
    ("threads_batch", ["--threads-batch", "5"], "load.threads_batch", 5),
    ("gpu_layers", ["-ngl", "12"], "load.gpu_layers", 12),
    ("gpu_layers", ["-ngl", "ALL"], "load.gpu_layers", "all"),
    ("gpu_layers", ["--gpu-layers", "0"], "load.gpu_layers", 0),
    ("gpu_layers_draft", ["-ngld", "4"], "load.gpu_layers_draft", 4),
    ("gpu_layers_draft", ["--gpu-layers-draft", "all"], "load.gpu_layers_draft", "all"),
    ("device", ["-dev", "CUDA0,CUDA1"], "load.device", "CUDA0,CUDA1"),
    ("device", ["--device", "none"], "load.device", "none"),
    ("device_draft", ["-devd", "CUDA1"], "load.device_draft", "CUDA1"),
    ("device_draft", ["--device-draft", "CUDA1"], "load.device_draft", "CUDA1"),
    ("device_draft", ["--draft-device", "none"], "load.offload", ("auto", 0)),
    ("n_cpu_moe", ["-ncmoe", "3"], "load.n_cpu_moe", 3),
    ("n_cpu_moe", ["--n-cpu-moe", "3"], "load.experts_on_cpu", 3),
    ("cpu_moe", ["-cmoe"], "load.cpu_moe", True),
    ("cpu_moe", ["--cpu-moe"], "load.experts_on_cpu", 2**31 - 1),
    ("cache_type_k", ["-ctk", "q8_0"], "load.cache_type_k", "q8_0"),
    ("cache_type_k", ["--cache-type-k", "Q8_0"], "load.cache_type_k", "q8_0"),
    ("cache_type_v", ["-ctv", "q4_0"], "load.cache_type_v", "q4_0"),
    ("cache_type_v", ["--cache-type-v", "bf16"], "load.cache_type_v", "bf16"),
    ("rpc", ["--rpc", "a:1", "--rpc", "b:2"], "load.rpc", ("a:1", "b:2")),
    ("lora", ["--lora", "a.gguf", "--lora", "x=b.gguf=0.5"], "load.lora", ("a.gguf", "x=b.gguf=0.5")),
    ("cache_ram", ["--cache-ram", "512"], "load.cache_ram", 512),
    ("flash_attention", ["-fa", "on"], "load.flash_attention", "on"),
    ("flash_attention", ["--flash-attn", "off"], "load.flash_attention", "off"),
    ("temperature", ["--temp", "0.25"], "request.sampling.temperature", 0.25),
    ("top_k", ["--top-k", "7"], "request.sampling.top_k", 7),
    ("top_k", ["--top-k", "-1"], "request.sampling.top_k", -1),
    ("top_p", ["--top-p", "0.5"], "request.sampling.top_p", 0.5),
    ("min_p", ["--min-p", "0.25"], "request.sampling.min_p", 0.25),
    ("typical_p", ["--typical-p", "0.75"], "request.sampling.typical_p", 0.75),
    ("top_n_sigma", ["--top-n-sigma", "1.5"], "request.sampling.top_n_sigma", 1.5),
    ("top_n_sigma", ["--top-nsigma", "1"], "request.sampling.top_n_sigma", 1.0),
    ("xtc_probability", ["--xtc-probability", "0.5"], "request.sampling.xtc_probability", 0.5),
    ("xtc_threshold", ["--xtc-threshold", "0.2"], "request.sampling.xtc_threshold", 0.2),
    ("dry_multiplier", ["--dry-multiplier", "0.8"], "request.sampling.dry_multiplier", 0.8),
    ("dry_base", ["--dry-base", "2"], "request.sampling.dry_base", 2.0),
    ("dry_allowed_length", ["--dry-allowed-length", "3"], "request.sampling.dry_allowed_length", 3),
    ("dry_penalty_last_n", ["--dry-penalty-last-n", "-1"], "request.sampling.dry_penalty_last_n", -1),
    ("dry_sequence_breakers", ["--dry-sequence-breaker", "a", "--dry-sequence-breaker", "\\n"],
     "request.sampling.dry_sequence_breakers", ("a", "\n")),
    ("dry_sequence_breakers", ["--dry-sequence-breaker", "none"], "request.sampling.dry_sequence_breakers", ()),
    ("repeat_penalty", ["--repeat-penalty", "1.5"], "request.sampling.repeat_penalty", 1.5),
    ("repeat_last_n", ["--repeat-last-n", "-1"], "request.sampling.repeat_last_n", -1),
    ("presence_penalty", ["--presence-penalty", "-0.5"], "request.sampling.presence_penalty", -0.5),
    ("frequency_penalty", ["--frequency-penalty", "0.5"], "request.sampling.frequency_penalty", 0.5),
    ("logit_bias", ["-l", "7+1.5", "-l", "8-2"], "request.sampling.logit_bias", ((7, 1.5), (8, -2.0))),
    ("logit_bias", ["--logit-bias", "7-inf"], "request.sampling.logit_bias", ((7, float("-inf")),)),
    ("seed", ["--seed", "42"], "request.seed", 42),
    ("max_tokens", ["-n", "64"], "request.max_tokens", 64),
    ("max_tokens", ["-n64"], "request.max_tokens", 64),
    ("max_tokens", ["--max-tokens", "0"], "request.max_tokens", 0),
    ("stop", ["--stop", "a b", "--stop", "\n"], "request.stop", ("a b", "\n")),
    ("reasoning_budget", ["--reasoning-budget", "9"], "request.reasoning_budget", 9),
    ("ignore_eos", ["--ignore-eos"], "request.ignore_eos", True),
    ("logprobs", ["--logprobs", "5"], "request.logprobs", 5),
    ("grammar", ["--grammar", 'root ::= "a"'], "request.grammar", 'root ::= "a"'),
    ("json_schema", ["-j", "{}"], "request.json_schema", "{}"),
    ("json_schema", ["--json-schema", '{"type": "null"}'], "request.json_schema", '{"type": "null"}'),
    ("regex", ["--regex", "[0-9]+"], "request.regex", "[0-9]+"),
    ("special", ["--special"], "request.special", True),
    ("system", ["-s", "Be brief."], "request.messages", (Message("system", "Be brief."), Message("user", "hello"))),
    ("system", ["--system", "x"], "request.messages", (Message("system", "x"), Message("user", "hello"))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def parse(*args: str) -> dict[str, Any]:
    return run.make_context("run", [*args, "hello"]).params


def built(args: list[str]) -> Mapping[str, Any]:
    values = parse(*args)
    values["model"] = values["model"] or "demo"
    return {
        "load": load_settings(values),
        "request": request(values, values["prompt"], chat=bool(values["system"]), seed=values["seed"]),
    }


def field(objects: Mapping[str, Any], path: str) -> Any:
    name, *attributes = path.split(".")
    value = objects[name]
    for attribute in attributes:
        value = getattr(value, attribute)
    return value


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
    objects = built([])
    assert objects["load"] == LoadSettings("demo")
    assert objects["request"] == Request(prompt="hello", seed=-1)


def test_a_prompt_is_either_a_text_or_a_turn() -> None:
    values = parse("-m", "demo")
    assert request(values, "hello", chat=True, seed=1).messages == (Message("user", "hello"),)
    assert request(values, "hello", chat=True, seed=1).prompt == ""
    assert request(values, "hello", chat=False, seed=1).prompt == "hello"
    assert request(values, "hello", chat=False, seed=1).messages == ()


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
    [("tree", "unknown drafter 'tree'; choose from auto, none, "), ("none,draft", "must be auto, none, or some of ")],
)
def test_the_option_is_named_once(given: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse("--spec-type", given)
    assert caught.value.message.startswith(message)


def test_the_byte_that_is_not_utf8_is_named() -> None:
    with pytest.raises(click.BadParameter, match="byte 3 is invalid"):
        parse("-s", "é!\udcff")
