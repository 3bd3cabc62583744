"""Log-probabilities of prompts: as lm-evaluation-harness asks for them, and in vLLM's form."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from serving import Serving
from serving import posted as posted_to

from edgespec.settings import Request

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HARNESS: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
HELLO = [{"role": "user", "content": "Hello"}]
PROMPT = "def f(x):\n    return x\n" * 20 + "print('\u00e9\u4e2d')"
posted = partial(posted_to, path=TEXT)
pytestmark = [pytest.mark.native, pytest.mark.cli]


def columns(server: Serving, **body: Any) -> list[dict[str, Any]]:
    return [choice["logprobs"] for choice in posted(server, **HARNESS | body)["choices"]]


def test_an_echo_has_the_log_probabilities_of_prompt_and_answer(server: Serving) -> None:
    ids = server.served.worker.tokenize(Request(PROMPT))
    whole = posted(server, prompt=PROMPT, ignore_eos=True, **HARNESS)
    (choice,) = whole["choices"]
    found = choice["logprobs"]
    assert {len(column) for column in found.values()} == {len(ids) + 1}
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert all(value <= 0 for value in found["token_logprobs"][1:])
    pairs = zip(found["top_logprobs"][1:], found["token_logprobs"][1:], strict=True)
    assert all(max(top.values()) >= value for top, value in pairs)
    starts = [*found["text_offset"], len(choice["text"])]
    assert choice["text"].startswith(PROMPT)
    for token, start, end in zip(found["tokens"][1:-1], starts[1:], starts[2:], strict=False):
        assert token == choice["text"][start:end] or token.startswith("bytes:")
    assert starts[0] == 0
    assert whole["usage"]["completion_tokens"] == 1
    assert whole["usage"]["prompt_tokens"] == len(ids)
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    usual = posted(server, prompt=PROMPT, ignore_eos=True, **HARNESS | {"echo": False})["choices"][0]
    assert choice["text"] == PROMPT + usual["text"]
    assert found["token_logprobs"][-1:] == usual["logprobs"]["token_logprobs"]


def test_prompts_as_texts_and_ids_alone_and_in_lists_have_the_same(server: Serving) -> None:
    texts = [PROMPT, "import os\n"]
    ids = [server.served.worker.tokenize(Request(text)) for text in texts]
    of_texts = columns(server, prompt=texts)
    assert columns(server, prompt=texts[0]) == of_texts[:1]
    of_ids = columns(server, prompt=ids)
    assert columns(server, prompt=ids[1]) == of_ids[1:]
    for one, other in zip(of_texts, of_ids, strict=True):
        same = ("tokens", "token_logprobs", "top_logprobs")
        assert [one[name] for name in same] == [other[name] for name in same]
    without = columns(server, prompt=texts, max_tokens=0)
    assert [one["token_logprobs"] for one in without] == [one["token_logprobs"][:-1] for one in of_texts]


def test_neither_drafts_nor_the_cache_change_them(server: Serving) -> None:
    posted(server, prompt=PROMPT, max_tokens=8)
    first = columns(server, prompt=PROMPT, max_tokens=12, ignore_eos=True)
    for more in ({}, {"spec_type": "none"}, {"cache_prompt": False}, {"pace": "fixed:4"}):
        assert columns(server, prompt=PROMPT, max_tokens=12, ignore_eos=True, **more) == first


def test_an_end_token_has_its_entry_after_an_echo(server: Serving) -> None:
    """Clients leave out the last entry, which is that of the one token they ask for."""
    end = server.served.vocabulary.eos
    asked: dict[str, Any] = HARNESS | {"prompt": "def", "logit_bias": {str(end): 50}}
    (choice,) = posted(server, **asked)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("def", "stop")
    assert choice["logprobs"]["tokens"][-1] == server.served.token_bytes(end or 0).decode()
    assert len(choice["logprobs"]["tokens"]) == 1 + len(server.served.worker.tokenize(Request("def")))
    assert posted(server, **asked | {"echo": False})["choices"][0]["logprobs"]["tokens"] == []


def test_a_stream_begins_with_the_prompt(server: Serving) -> None:
    body = HARNESS | {"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True}
    whole = posted(server, **body)["choices"][0]
    with server.client() as client, client.stream("POST", TEXT, json=body | {"stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    choices = [json.loads(line)["choices"][0] for line in lines]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert choices[0]["text"] == PROMPT
    for name, column in whole["logprobs"].items():
        assert [value for choice in choices for value in (choice["logprobs"] or {name: []})[name]] == column


def test_offsets_do_not_count_what_the_tokenizer_adds(templated: Serving) -> None:
    (found,) = columns(templated, prompt="def f(")
    bos = templated.served.vocabulary.bos
    assert found["tokens"][0] == templated.served.token_bytes(bos or 0).decode()
    assert found["text_offset"][:2] == [0, 0]
    assert found["text_offset"][-1] == len("def f(")


def test_vllms_form(server: Serving) -> None:
    ids = server.served.worker.tokenize(Request("def f("))
    whole = posted(server, prompt="def f(", prompt_logprobs=2, max_tokens=2, n=2)
    for choice in whole["choices"]:
        assert choice["logprobs"] is None
        first, *scores = choice["prompt_logprobs"]
        assert first is None
        for id, entries in zip(ids[1:], scores, strict=True):
            assert {1, 2} <= {entry["rank"] for entry in entries.values()}
            assert entries[str(id)]["decoded_token"] == server.served.token_bytes(id).decode()
            assert all(entry["rank"] >= 1 and entry["logprob"] <= 0 for entry in entries.values())
    (echoed,) = columns(server, prompt="def f(", prompt_logprobs=0)
    own = [entries[str(id)]["logprob"] for id, entries in zip(ids[1:], scores, strict=True)]
    assert echoed["token_logprobs"][1:-1] == own
    chat = posted(server, path=CHAT, messages=HELLO, prompt_logprobs=0, max_tokens=1)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"messages": HELLO, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (TEXT, {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        (TEXT, {"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        (TEXT, {"prompt": "a " * 50_000, "prompt_logprobs": 20, "n": 8}, "prompt"),
        ("/completion", {"prompt": "a", "n_probs": 1, "echo": True}, "echo"),
        ("/completion", {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 1, "prompt_logprobs": 1}, None),
    ],
)
def test_what_has_no_place_is_refused(server: Serving, path: str, body: dict[str, Any], param: str | None) -> None:
    assert server.posted(path, body, 400)["error"].get("param") == param


def test_an_image_on_a_web_page_loads_no_model(server: Serving) -> None:
    with server.client() as client:
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            assert client.get("/tokenizer_info", headers={"Sec-Fetch-Site": site}).status_code == status, site
        page = {"Sec-Fetch-Site": "cross-site", "Origin": server.url}
        assert client.get("/tokenizer_info", headers=page).status_code == 200


def test_the_tokenizer_for_clients_without_one(templated: Serving, server: Serving) -> None:
    """The endpoints that lm-evaluation-harness looks for."""
    with templated.client() as client:
        about = client.get("/tokenizer_info").json()
    vocabulary = templated.served.vocabulary
    texts = {
        name: templated.served.token_bytes(id or 0).decode()
        for name, id in (("bos_token", vocabulary.bos), ("eos_token", vocabulary.eos))
    }
    assert texts.items() <= about.items()
    assert "messages" in about["chat_template"]
    asked: dict[str, Any] = {"path": "/tokenize", "prompt": "def f("}
    plain = posted(templated, **asked, add_special_tokens=False)
    assert plain == {"tokens": plain["tokens"], "count": len(plain["tokens"]), "max_model_len": templated.served.n_ctx}
    assert posted(templated, **asked, add_special_tokens=True)["tokens"] == [vocabulary.bos, *plain["tokens"]]
    assert posted(templated, path="/detokenize", tokens=plain["tokens"])["prompt"] == "def f("
    with server.client() as client:
        assert client.get("/tokenizer_info", params={"model": "nothing"}).status_code == 404
