"""OpenAI's batch form: requests as they are sent there, and answers as they come back from there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgespec.batch.reading import Defaults, RowReader
from edgespec.batch.results import Results, id_in, is_failure
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, UsageError
from edgespec.events import TokenEvent
from edgespec.requests.known_fields import BATCH_CHAT, BATCH_TEXT, Known
from edgespec.requests.openai import text_logprobs, token_logprob
from edgespec.requests.row import BadRow, Row, Sample
from edgespec.requests.samplers import CHAIN
from edgespec.settings import Message, Request

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TURNS = [{"role": "user", "content": "hi"}]
NAMED = (Message("user", "hi", extra='{"name": "Ann"}'),)
RESULTS = Results("a model", lambda token: [b"a", b"\xc3", b"b"][token])


def read(value: Any, chat: bool = False) -> Row | BadRow:
    (found,) = RowReader(Defaults(Request(max_tokens=9), seed=1, chat=chat)).from_values([value])
    assert found is not None
    return found


def chat(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "gpt", "messages": TURNS} | body}


def text(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": TEXT, "body": {"model": "gpt", "prompt": "hi"} | body}


def row(value: Any) -> Row:
    found = read(value)
    assert isinstance(found, Row), found
    return found


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_chat_completion_is_a_chat() -> None:
    found = row(chat())
    assert (found.id, found.n, found.form) == ("a", 1, "chat.completion")
    assert found.request == Request(messages=(Message("user", "hi"),), max_tokens=9, seed=found.request.seed)


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_completion_goes_on_from_its_prompt_whatever_other_prompts_are(is_chat: bool) -> None:
    found = read(text(), chat=is_chat)
    assert isinstance(found, Row)
    assert (found.form, found.request.prompt, found.request.messages) == ("text_completion", "hi", ())


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"max_tokens": 3}, "max_tokens", 3),
        ({"max_completion_tokens": 4}, "max_tokens", 4),
        ({"seed": 5}, "seed", 5),
        ({"stop": ["x"]}, "stop", ("x",)),
        ({"logprobs": True}, "logprobs", 0),
        ({"logprobs": True, "top_logprobs": 3}, "logprobs", 3),
        ({"logprobs": False}, "logprobs", None),
        ({"response_format": {"type": "text"}}, "json_schema", ""),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            "json_schema",
            '{"type": "null"}',
        ),
        ({"stream": False, "user": "u", "metadata": {}, "store": True, "tools": None}, "max_tokens", 9),
        ({"service_tier": "auto", "prompt_cache_key": "k", "modalities": ["text"]}, "max_tokens", 9),
        ({"seed": -1}, "seed", 2**63 - 1),
        ({"regex": "a+"}, "regex", "a+"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_json": {"type": "null"}, "n_keep": 0}, "json_schema", '{"type": "null"}'),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "regex", "a|b"),
        ({"response_format": {"type": "json_object", "schema": {"type": "null"}}}, "json_schema", '{"type": "null"}'),
        ({"min_tokens": 2, "best_of": 1, "verbosity": "medium"}, "min_tokens", 2),
        ({"stop_token_ids": [5], "tool_choice": "auto"}, "stop_token_ids", (5,)),
        ({"bad_words": ["a"], "parallel_tool_calls": True}, "bad_words", ("a",)),
        ({"cache_prompt": False, "prediction": {"type": "content", "content": "a"}}, "cache_prompt", False),
        ({"messages": [{"role": "user", "content": "hi", "name": "Ann"}]}, "messages", NAMED),
    ],
)
def test_what_the_body_says_is_asked(body: Any, field: str, value: Any) -> None:
    assert getattr(row(chat(**body)).request, field) == value


def test_a_response_of_text_takes_the_place_of_a_constraint_that_holds_for_all() -> None:
    reader = RowReader(Defaults(Request(regex="a"), seed=1, chat=False))
    values = [chat(), chat(response_format={"type": "text"}) | {"custom_id": "b"}]
    constraints = [each.request.constraint for each in reader.from_values(values) if isinstance(each, Row)]
    assert constraints == [("regex", "a"), None]


def test_sampling_has_its_names() -> None:
    body = {"temperature": 0, "top_p": 0.5, "presence_penalty": 1, "frequency_penalty": 2, "logit_bias": {"5": -100}}
    sampling = row(chat(**body, n=3)).request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.presence_penalty) == (0, 0.5, 1)
    assert (sampling.frequency_penalty, sampling.logit_bias) == (2, ((5, -100.0),))
    assert row(chat(n=3)).n == 3
    assert row(text(logprobs=2)).request.logprobs == 2


@pytest.mark.parametrize("as_body", [chat, text])
def test_samplers_and_banned_tokens_are_those_of_the_server(as_body: Any) -> None:
    usual = row(as_body()).request
    for order in (
        {"samplers": [*CHAIN]},
        {"sampler_priority": ["top_k", "min_p", "temperature"]},
        {"sampler_order": [6, 0, 1, 3, 4, 2, 5]},
        {"temperature_last": True},
    ):
        assert row(as_body(**order)).request == usual, order
    assert row(as_body(samplers=["temperature"])).request.sampling.top_p == 1
    assert row(as_body(custom_token_bans="5, 6", logit_bias={"4": 1})).request.sampling.logit_bias == (
        *((4, 1.0), (5, float("-inf"))),
        (6, float("-inf")),
    )


@pytest.mark.parametrize("known", [BATCH_CHAT, BATCH_TEXT])
def test_no_field_that_is_known_is_called_unknown(known: Known) -> None:
    as_body, others = (chat, ("prompt",)) if known is BATCH_CHAT else (text, ("messages",))
    for name, field in known.items():
        found = read(as_body(**{name: "x"})) if field.use == "read" and name not in others else None
        assert not isinstance(found, BadRow) or f"'{name}' is not supported" not in found.why


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (chat(stream=True), "stream must be false"),
        (chat(tools=[{}]), "tools is not supported"),
        (chat(best_of=3), "best_of is not supported: 3 answers cannot be ranked"),
        (chat(t_max_predict_ms=9), "t_max_predict_ms is not supported: 9 cannot be honoured; only -1 or 0"),
        (chat(frobnicate=1), "'frobnicate' is not supported"),
        (chat(response_format={"type": "text", "kind": 1}), "unknown field 'response_format.kind' is not supported"),
        (chat(guided_json={}, regex="a"), "regex and guided_json cannot be combined"),
        (chat(max_tokens=3, n_predict=4), "n_predict and max_tokens contradict each other"),
        (text(echo=True), "echo is not supported"),
        (chat(messages=None), f"a request to {CHAT} has messages, not prompt"),
        (chat(prompt="a"), "not prompt"),
        (text(prompt=None), f"a request to {TEXT} has prompt"),
        (text(prompt=["a", "b"]), "prompt must be a string"),
        (chat(logprobs=2), "must be true or false"),
        (chat(custom_token_bans="9" * 5000), "custom_token_bans must be token ids"),
        (chat(samplers=["temperature", "penalties"], repeat_penalty=1.1, temperature=2), "samplers is not supported"),
        (chat(top_logprobs=2), "top_logprobs needs logprobs"),
        (chat(response_format={"type": "xml"}), "response_format must be"),
        (chat(response_format={"type": "json_schema", "json_schema": {"name": "n"}}), "response_format must be"),
        (chat(response_format="text"), "response_format must be"),
        (chat() | {"url": "/v1/embeddings"}, "not 'POST' to '/v1/embeddings'"),
        (chat() | {"method": "GET"}, "not 'GET'"),
        (chat() | {"body": []}, "must be an object"),
        (chat() | {"body": None}, "must be an object"),
        (chat() | {"max_tokens": 4}, "'max_tokens' is not supported"),
    ],
)
def test_what_cannot_be_meant_is_said(value: Any, reason: str) -> None:
    found = read(value)
    assert isinstance(found, BadRow)
    assert reason in found.why
    assert (found.id, found.form != "own") == ("a", True)


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(keeps_tokens: bool = True) -> Sample:
    made, infinite = Sample(keeps_tokens), float("-inf")
    made.add(TokenEvent(0, "a", logprob=-0.5, top_logprobs=((0, -0.5), (2, infinite))))
    made.add(TokenEvent(1, "", logprob=-1.5, top_logprobs=((1, -1.5),)))
    # draft tokens after a stop string are counted in the statistics
    made.add(TokenEvent(-1, "b", finish_reason="stop", stats=Stats(prompt_tokens=5, generated_tokens=3, rounds=2)))
    return made


def test_a_chat_is_answered_with_its_object() -> None:
    result = RESULTS.answered(row(chat(n=2)), [answer(), answer()])
    assert not result.failure
    assert id_in(result.row) == "a"
    assert not is_failure(result.row)
    response = result.row["response"]
    assert (result.row["error"], response["status_code"]) == (None, 200)
    body = response["body"]
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "a model", 0)
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    message = {"role": "assistant", "content": "ab", "refusal": None}
    assert body["choices"][1] == {"index": 1, "message": message, "logprobs": None, "finish_reason": "stop"}


def test_log_probabilities_of_a_chat_have_the_bytes_of_tokens() -> None:
    result = RESULTS.answered(row(chat(logprobs=True, top_logprobs=2)), [answer()])
    content = result.row["response"]["body"]["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "b", "logprob": None, "bytes": [98]},
        ],
    }
    assert (content[1]["token"], content[1]["bytes"]) == ("bytes:\\xc3", [0xC3])
    json.dumps(result.row, allow_nan=False)


def test_a_completion_is_answered_with_its_object() -> None:
    result = RESULTS.answered(row(text(logprobs=2)), [answer()])
    body = result.row["response"]["body"]
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert choice["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"a": -0.5, "b": None}, {"bytes:\\xc3": -1.5}],
        "text_offset": [0, 1],
    }


def test_alternatives_that_are_parts_of_characters_or_look_alike_are_all_kept() -> None:
    texts = [b"\xe2\x80", b"\xe2\x81", b"A", b"A"]
    top = tuple((id, -float(1 + id)) for id in range(4))
    event = TokenEvent(0, "", logprob=-1.0, top_logprobs=top)
    (alternatives,) = text_logprobs([event], texts.__getitem__)["top_logprobs"]
    assert alternatives == {"bytes:\\xe2\\x80": -1.0, "bytes:\\xe2\\x81": -2.0, "A": -3.0, "token_id:3": -4.0}
    of_chat = token_logprob(event, texts.__getitem__)["top_logprobs"]
    assert [one["bytes"] for one in of_chat] == [list(text) for text in texts]
    assert [one["token"] for one in of_chat] == ["bytes:\\xe2\\x80", "bytes:\\xe2\\x81", "A", "A"]


def test_two_runs_give_the_same_object_and_two_rows_do_not() -> None:
    first = RESULTS.answered(row(chat()), [answer()]).row
    assert RESULTS.answered(row(chat()), [answer()]).row == first
    other = RESULTS.answered(row(chat() | {"custom_id": "b"}), [answer()]).row
    assert first["id"] != other["id"]
    assert first["response"]["body"]["id"] != other["response"]["body"]["id"]


def test_timings_stand_beside_the_choices() -> None:
    results = Results("a model", RESULTS.token_bytes, timings=True)
    (choice,) = results.answered(row(chat()), [answer()]).row["response"]["body"]["choices"]
    assert choice["timings"]["predicted_n"] == 3


def test_a_request_that_is_refused_has_a_response_and_one_that_failed_an_error() -> None:
    refused = RESULTS.failed(row(chat()), UsageError("the prompt is long", why="it has many tokens"))
    assert refused.row["response"]["status_code"] == 400
    assert refused.row["response"]["body"]["error"]["message"] == "the prompt is long: it has many tokens"
    assert refused.row["error"] is None
    failed = RESULTS.failed(row(chat()), GenerationError("it crashed"))
    assert failed.row["response"] is None
    assert failed.row["error"] == {"code": "server_error", "message": "it crashed"}
    for result in (refused, failed):
        assert result.failure.startswith("'a' (line 1): ")
        assert is_failure(result.row)
        assert id_in(result.row) == "a"


def test_a_bad_row_names_its_line() -> None:
    found = read(chat(stream=True))
    assert isinstance(found, BadRow)
    refused = RESULTS.refused(found).row
    assert refused["line"] == 1
    assert refused["response"]["body"]["error"]["message"].startswith("line 1: stream must be false")
    assert is_failure(refused)
