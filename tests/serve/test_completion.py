"""The format of llama.cpp's server: /completion."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Serving

from edgespec.settings import Request

PATH = "/completion"
pytestmark = [pytest.mark.native, pytest.mark.cli]


def completed(server: Serving, status: int = 200, path: str = PATH, **body: Any) -> Any:
    with server.client() as client:
        response = client.post(path, json={"prompt": "def f(", "n_predict": 8, "seed": 3} | body)
    assert response.status_code == status, response.text
    return response.json()


def test_a_completion_has_the_text_and_the_figures_under_llama_cpps_names(server: Serving) -> None:
    events = [*server.served.worker.submit(Request("def f(", max_tokens=8, seed=3))]
    found = completed(server, return_tokens=True)
    assert found["content"] == "".join(event.text for event in events)
    assert found["tokens"] == [event.id for event in events if not event.is_last]
    assert (found["stop"], found["stop_type"], found["stopping_word"]) == (True, "limit", "")
    assert (found["tokens_predicted"], found["truncated"], found["index"]) == (8, False, 0)
    assert found["tokens_evaluated"] == server.served.worker.prompt_length(Request("def f("))
    assert found["timings"]["predicted_n"] == 8
    assert (found["model"], found["prompt"]) == ("demo", "def f(")
    other = completed(server, path="/completions")
    assert (other["content"], other["tokens"]) == (found["content"], [])


def test_how_a_completion_ended_is_reported(server: Serving) -> None:
    whole = completed(server, n_predict=20, temperature=0)["content"]
    cut = completed(server, n_predict=20, temperature=0, stop=["\x00never", whole[5:8]])
    assert (cut["content"], cut["stop_type"], cut["stopping_word"]) == (whole[:5], "word", whole[5:8])
    eos = completed(server, grammar='root ::= "yes"')
    assert (eos["content"], eos["stop_type"]) == ("yes", "eos")
    full = completed(server, prompt="def f(\n" * 330, n_predict=-1, ignore_eos=True)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["has_new_line"] == ("\n" in full["content"])


def test_a_stream_has_the_same_text_and_no_mark_at_its_end(server: Serving) -> None:
    whole = completed(server, return_tokens=True, n_probs=1)
    body = {"prompt": "def f(", "n_predict": 8, "seed": 3, "stream": True, "n_probs": 1}
    with server.client() as client, client.stream("POST", PATH, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    *parts, last = map(json.loads, lines)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [id for part in parts for id in part["tokens"]] == whole["tokens"]
    assert {part["stop"] for part in parts} == {False}
    probabilities = [one for part in parts for one in part["completion_probabilities"]]
    assert probabilities == whole["completion_probabilities"]
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", 8)


def test_several_prompts_are_a_list_of_completions(server: Serving) -> None:
    one, two = completed(server, prompt=["def f(", "class"])
    assert one["content"] == completed(server)["content"]
    assert (one["index"], two["index"], two["prompt"]) == (0, 1, "class")
    assert len(completed(server, n_cmpl=2, n_predict=1)) == 2


def test_probabilities_are_those_of_each_token(server: Serving) -> None:
    found = completed(server, n_predict=3, n_probs=2, return_tokens=True)["completion_probabilities"]
    assert [one["id"] for one in found] == completed(server, n_predict=3, return_tokens=True)["tokens"]
    for one in found:
        assert one["logprob"] <= one["top_logprobs"][0]["logprob"] <= 0
        assert len(one["top_logprobs"]) == 2
        assert {"id", "token", "bytes", "logprob"} == one["top_logprobs"][0].keys()


def test_control_tokens_of_a_prompt_are_read_unless_that_is_switched_off(server: Serving) -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n"
    special = completed(server, prompt=prompt, n_predict=0)["tokens_evaluated"]
    assert special < completed(server, prompt=prompt, n_predict=0, special=False)["tokens_evaluated"]


def test_the_usual_samplers_change_nothing(server: Serving) -> None:
    every = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    assert completed(server, samplers=every)["content"] == completed(server)["content"]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": 3},
        {"prompt": [1, None]},
        {"prompt": {"text": "x"}},
        {"samplers": ["temperature", "top_k"]},
        {"samplers": "tk"},
        {"n_indent": -1},
        {"post_sampling_probs": True},
        {"mirostat": 2},
        {"dry_multiplier": -0.8},
        {"dry_sequence_breakers": ["x"] * 65},
        {"dry_sequence_breakers": "[3]"},
        {"xtc_probability": 1.5},
        {"image_data": [{"data": "", "id": 1}]},
        {"lora": [{"id": 0, "scale": 1}]},
        {"lora": {"id": 0}},
        {"lora": [{"id": 0}]},
        {"response_fields": "content"},
        {"n_probs": 21},
        {"return_tokens": 1},
    ],
)
def test_what_changes_an_answer_and_is_absent_is_named(server: Serving, body: dict[str, Any]) -> None:
    error = completed(server, 400, **body)["error"]
    assert error["param"] == next(iter(body))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("bans", "told"),
    [
        ({"logit_bias": "all"}, "logit_bias"),
        ({"logit_bias": "all", "temperature": 0, "spec_type": "none"}, "logit_bias"),
        ({"logit_bias": "all", "grammar": 'root ::= "a"'}, "logit_bias and the constraint or bad_words"),
        ({"logit_bias": "all", "ignore_eos": True, "verify": "block"}, "logit_bias and ignore_eos"),
        ({"custom_token_bans": "all"}, "logit_bias"),
    ],
)
def test_a_request_that_forbids_all_tokens_gets_an_error_of_its_own(
    server: Serving, bans: dict[str, Any], told: str, stream: bool
) -> None:
    every = {"logit_bias": {f"{id}": False for id in range(8192)}, "custom_token_bans": [*range(8192)]}
    bans = {name: every[name] if value == "all" else value for name, value in bans.items()}
    error = completed(server, 400, stream=stream, **bans)["error"]
    assert f"no token may follow: {told}" in error["message"]
    assert error["type"] == "invalid_request_error"


def test_tokens_that_run_out_in_the_middle_end_the_stream_with_the_same_error(server: Serving) -> None:
    [token] = server.served.worker.token_ids("a", add_special=False, parse_special=False)
    bans = {f"{id}": False for id in range(8192) if id != token}
    body = {"prompt": "def", "logit_bias": bans, "regex": "[az][by]", "stream": True}
    with server.client() as client:
        lines = client.post("/completion", json=body).text.splitlines()
    events = [json.loads(line.partition(": ")[2]) for line in lines if line.startswith(("data: {", "error: {"))]
    assert "".join(event.get("content", "") for event in events) == "a"
    assert "no token may follow: logit_bias and the constraint or bad_words" in events[-1]["error"]["message"]


def test_defaults_that_llama_cpps_clients_send_are_accepted(server: Serving) -> None:
    usual: dict[str, Any] = {"n_keep": 0, "n_discard": 0, "n_indent": 0, "min_keep": 0, "t_max_predict_ms": 0}
    usual |= {"mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "dry_multiplier": 0, "dry_base": 1.75}
    usual |= {"dynatemp_range": 0, "dynatemp_exponent": 1, "xtc_probability": 0, "xtc_threshold": 0.1, "typical_p": 1}
    usual |= {"cache_prompt": True, "stop": [], "n_probs": 0, "image_data": [], "grammar": "", "logit_bias": []}
    assert completed(server, **usual)["content"] == completed(server)["content"]
    assert completed(server, seed=-1)["stop"] is True
