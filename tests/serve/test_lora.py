"""Adapters of a model, by request: under a name of their own, or with llama.cpp's field `lora`."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Serving

CHAT, TEXT, NATIVE, GENERATE = "/v1/chat/completions", "/v1/completions", "/completion", "/api/generate"
pytestmark = [pytest.mark.native, pytest.mark.cli]


def posted(server: Serving, path: str = TEXT, status: int = 200, **body: Any) -> Any:
    return server.posted(path, {"prompt": "def f(", "max_tokens": 12, "seed": 3} | body, status)


def text(server: Serving, **body: Any) -> str:
    said: str = posted(server, **body)["choices"][0]["text"]
    return said


def test_requests_choose_adapters_by_name_or_number(templated: Serving) -> None:
    plain, one = text(templated), text(templated, lora=[{"id": 0, "scale": 1}])
    two = text(templated, lora=[{"id": "two", "scale": 1.0}])
    assert len({plain, one, two}) == 3
    assert text(templated, model="demo:one") == one
    assert text(templated, model="demo:two") == text(templated, model="demo:one", lora=[{"id": 1, "scale": 1}]) == two
    assert text(templated, lora=[]) == text(templated, lora=[{"id": 0, "scale": 0}]) == text(templated, model="demo")
    assert posted(templated, NATIVE, lora=[{"id": 0, "scale": 1}])["content"] == one
    body: dict[str, Any] = {"model": "demo:one", "options": {"seed": 3, "num_predict": 12}, "raw": True}
    body["stream"] = False
    assert posted(templated, GENERATE, **body)["response"] == one
    assert text(templated, model="demo:one", spec_type="none") == one


def test_an_answer_and_the_list_of_models_have_the_name_of_the_adapter(templated: Serving) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert posted(templated, CHAT, model="demo:one", messages=messages)["model"] == "demo:one"
    with templated.client() as client:
        listed = client.get("/v1/models").json()["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [
            ("demo", None),
            ("demo:one", "demo"),
            ("demo:two", "demo"),
        ]
        assert client.get("/v1/models/demo:two").json()["id"] == "demo:two"
        assert client.get("/props").json()["edgespec"]["adapters"] == {"one": 0.0, "two": 0.0}
    assert templated.served.n_open == 0


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ([{"id": 2, "scale": 1}], "not loaded: 2"),
        ([{"id": "three", "scale": 1}], "not loaded: 'three'"),
        ([{"id": 0, "scale": 1}, {"id": "one", "scale": 1}], "twice"),
        ([{"id": 0, "scale": 1e9}], "scale"),
        ([{"id": 0}], "must be a list"),
        ([{"id": True, "scale": 1}], "must be a list"),
        ([{"id": 0, "scale": "1"}], "must be a list"),
        ("one", "must be a list"),
    ],
)
def test_other_sets_are_refused_by_name(templated: Serving, lora: Any, said: str) -> None:
    error = posted(templated, status=400, lora=lora)["error"]
    assert said in error["message"]
    assert error["param"] == "lora"


def test_a_model_has_only_its_own_adapters(templated: Serving, server: Serving) -> None:
    for name in ("demo:three", ":one", "demo:one:two", "other:one"):
        assert posted(templated, status=404, model=name)["error"]["code"] == "model_not_found"
    assert posted(server, status=404, model="demo:one")["error"]["param"] == "model"
    assert posted(server, status=400, lora=[{"id": 0, "scale": 1}])["error"]["param"] == "lora"
