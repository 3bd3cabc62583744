"""What the tests of llama.cpp's server ask: forms of prompts and texts, endpoints, words of errors, progress."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Serving, posted

from edgespec.requests.bad_input import object_in
from edgespec.serve.native import props
from edgespec.serve.pool import Offer, Place
from edgespec.settings import LoadSettings, Request

CHAT, TEXT, NATIVE, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/completion", "/v1/embeddings"
HI = [{"role": "user", "content": "Say hello."}]
LONG = "The cat sat on the mat. " * 30
TEXTS = ["the cat sat on the mat", "paris is the capital of france"]
pytestmark = [pytest.mark.native, pytest.mark.cli]


def got(server: Serving, path: str, status: int = 200) -> Any:
    with server.client() as client:
        response = client.get(path)
    assert response.status_code == status, response.text
    return response.json()


def streamed(server: Serving, path: str, **body: Any) -> list[dict[str, Any]]:
    with server.client() as client:
        lines = client.post(path, json=body | {"stream": True}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


# --- words and places -------------------------------------------------------------------------------------------------


def test_what_is_missing_is_not_found(server: Serving) -> None:
    for path in ("/nowhere", "/v1/models/nix"):
        error = got(server, path, 404)["error"]
        assert "not found" in error["message"] and error["type"] == "not_found_error"
    assert "model 'nix' not found" in posted(server, CHAT, 404, model="nix", messages=HI)["error"]["message"]


def test_the_list_of_models_has_four_paths(server: Serving) -> None:
    listed = got(server, "/v1/models")
    assert all(got(server, path) == listed for path in ("/v1/models/", "/models", "/models/"))


def test_tokens_of_a_prompt_are_counted(server: Serving) -> None:
    prompt = posted(server, "/apply-template", messages=HI, count=True)["n_tokens"]
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert posted(server, path, messages=HI) == {"input_tokens": prompt}
    for path in ("/v1/responses/input_tokens", "/responses/input_tokens"):
        assert posted(server, path, input="Say hello.") == {"input_tokens": prompt}
    assert posted(server, "/v1/responses/input_tokens", 400, input=[])["error"]["param"] == "input"


def test_adapters_are_listed(templated: Serving, server: Serving) -> None:
    listed = got(templated, "/lora-adapters")
    assert listed == [{"id": id, "name": n, "path": f"{n}.gguf", "scale": 0.0} for id, n in enumerate(("one", "two"))]
    assert got(server, "/lora-adapters") == []


def test_metrics_say_when_the_server_was_started(server: Serving) -> None:
    with server.client() as client:
        response = client.get("/metrics")
    assert 0 < int(response.headers["Process-Start-Time-Unix"]) <= server.served.created + 600
    assert "llamacpp:prompt_tokens_cached_total" in response.text


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [NATIVE, TEXT])
def test_a_prompt_has_several_forms(server: Serving, path: str) -> None:
    def texts(prompt: Any) -> list[str]:
        answer = posted(server, path, prompt=prompt, max_tokens=6, temperature=0)
        found = answer["choices"] if path == TEXT else answer if isinstance(answer, list) else [answer]
        return [each.get("text", each.get("content")) for each in found]

    ids = posted(server, "/tokenize", content="The cat sat", add_special=True)["tokens"]
    [plain] = texts("The cat sat")
    assert texts({"prompt_string": "The cat sat"}) == texts({"prompt_string": "The cat sat", "multimodal_data": []})
    assert texts({"prompt_string": "The cat sat"}) == texts(ids) == [plain]
    assert texts([ids, "The cat sat", {"prompt_string": "The cat sat"}]) == [plain] * 3
    begun = posted(server, "/tokenize", content="The cat sat")["tokens"]
    first, last = (posted(server, "/detokenize", tokens=[id])["content"] for id in (begun[0], ids[-1]))
    halves = [*ids[:-1], last]
    assert texts(halves) == texts([first, *begun[1:]]) == [plain]
    assert texts([halves, ids]) == [plain] * 2
    for wrong, where in ((["a", ["b"]], "prompt[1]"), ([1, []], "prompt"), ({"prompt": "a"}, "prompt"), ([], "prompt")):
        assert posted(server, path, 400, prompt=wrong)["error"]["param"] == where
    image = {"prompt_string": "a <__media__>", "multimodal_data": ["AAAA"]}
    assert posted(server, path, 400, prompt=image)["error"]["param"] == "prompt.multimodal_data"


@pytest.mark.parametrize("path", [NATIVE, TEXT, CHAT])
def test_a_bias_may_be_that_of_a_text(server: Serving, path: str) -> None:
    asked: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "The cat sat"}

    def answer(bias: Any, status: int = 200) -> Any:
        made = posted(server, path, status, **asked, max_tokens=4, temperature=0, logit_bias=bias)
        return made if status != 200 else made.get("content") or made["choices"][0]

    [id] = posted(server, "/tokenize", content=" the")["tokens"]
    forced = answer({str(id): 100})
    assert forced == answer([[" the", 100]]) == answer({" the": 100}) == answer([[id, 100]])
    banned = answer([[" the", False], [" a", False]])
    assert banned == answer({" the": False, " a": False}) != forced
    assert answer({" the": "x"}, 400)["error"]["param"] == "logit_bias"
    assert answer([[" the"]], 400)["error"]["param"] == "logit_bias"


def test_a_completion_has_the_settings_it_was_made_with(server: Serving) -> None:
    asked: dict[str, Any] = {"prompt": "The cat", "n_predict": 3, "temperature": 0, "seed": 7, "stop": ["x"]}
    settings = posted(server, NATIVE, **asked)["generation_settings"]
    assert {name: settings[name] for name in ("n_predict", "max_tokens", "temperature", "seed", "stop")} == {
        "n_predict": 3,
        "max_tokens": 3,
        "temperature": 0,
        "seed": 7,
        "stop": ["x"],
    }
    assert streamed(server, NATIVE, **asked)[-1]["generation_settings"] == settings
    fields = ["generation_settings/n_predict", "timings/predicted_n", "nothing"]
    assert posted(server, NATIVE, **asked, response_fields=fields) == dict(zip(fields[:2], (3, 3), strict=True))
    assert {*got(server, "/props")["default_generation_settings"]["params"]} == {*settings}


def test_properties_name_the_seed_of_requests_without_one() -> None:
    for seed, named in ((None, -1), (11, 11)):
        offer = Offer("m", LoadSettings(model="m.gguf"), Request(), seed=seed)
        settings = object_in(props(Place(offer))["default_generation_settings"])
        assert object_in(settings["params"])["seed"] == named


def test_a_message_is_continued_or_a_new_one_begins(server: Serving) -> None:
    messages = [*HI, {"role": "assistant", "content": "Hel"}]
    ends = {"continue_final_message": True, "add_generation_prompt": False}
    asked: dict[str, Any] = {"messages": messages, "max_tokens": 4, "temperature": 0}
    usual = posted(server, CHAT, **asked)["choices"]
    assert posted(server, CHAT, **asked, **ends)["choices"] == usual
    assert posted(server, CHAT, **asked, add_generation_prompt=True)["choices"] == usual
    error = posted(server, CHAT, 400, **asked, **ends | {"add_generation_prompt": True})["error"]
    assert "contradict each other" in error["message"]


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [NATIVE, TEXT, CHAT])
def test_a_stream_tells_how_much_of_the_prompt_is_read(server: Serving, path: str) -> None:
    asked: dict[str, Any] = {"max_tokens": 3, "return_progress": True, "seed": 1}
    prompt = f"{path} {LONG}"
    asked |= {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    for _ in range(2):
        chunks = streamed(server, path, **asked)
        told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        first, last = told[0], told[-1]
        assert first["processed"] == first["cache"] < first["total"] == last["processed"] == last["total"]
        assert [each["processed"] for each in told] == sorted({each["processed"] for each in told})
        assert {(each["total"], each["cache"]) for each in told} == {(first["total"], first["cache"])}
        figures = next(chunk["timings"] for chunk in chunks if "timings" in chunk)
        assert first["cache"] == figures["cache_n"] == first["total"] - figures["prompt_n"]
        times = [each["time_ms"] for each in told]
        assert times == sorted(times)
        said = [number for number, chunk in enumerate(chunks) if "prompt_progress" not in chunk]
        assert max(n for n, chunk in enumerate(chunks) if "prompt_progress" in chunk) < said[1]
    usual = streamed(server, path, **asked | {"return_progress": False})
    assert not any("prompt_progress" in chunk for chunk in usual)
    assert [*map(text_of, usual)] == [text_of(chunk) for chunk in chunks if "prompt_progress" not in chunk]
    whole = posted(server, path, **asked)
    assert "prompt_progress" not in whole


def text_of(chunk: dict[str, Any]) -> Any:
    choice = chunk.get("choices", [chunk])[0]
    return choice.get("delta", choice).get("content", choice.get("text"))


# --- texts ------------------------------------------------------------------------------------------------------------


def test_texts_for_vectors_have_several_forms(texts: Serving) -> None:
    def vectors(given: Any) -> list[Any]:
        return [each["embedding"] for each in posted(texts, EMBEDDINGS, input=given)["data"]]

    ids = [posted(texts, "/tokenize", content=text, add_special=True)["tokens"] for text in TEXTS]
    usual = vectors(TEXTS)
    assert vectors({"prompt_string": TEXTS[0]}) == vectors(ids[0]) == usual[:1]
    parts = {"content": [{"type": "text", "text": "the cat sat "}, {"type": "text", "text": "on the mat"}]}
    assert vectors(parts) == usual[:1]
    assert vectors([parts, {"prompt_string": TEXTS[1]}]) == vectors([parts, ids[1]]) == usual
    mixed = [*ids[0][:2], "sat", *ids[0][3:]]
    assert len(vectors(mixed)) == 1
    assert vectors([mixed, ids[1]]) == [*vectors(mixed), usual[1]]
    for wrong in ({"content": "the cat"}, {"content": [{"type": "unknown"}]}, [["a", "b"]], [TEXTS[0], {}], True):
        assert posted(texts, EMBEDDINGS, 400, input=wrong)["error"]["param"].startswith("input")


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
@pytest.mark.parametrize("field", ["content", "input"])
def test_vectors_in_the_format_of_llama_cpp(texts: Serving, path: str, field: str) -> None:
    usual = [each["embedding"] for each in posted(texts, EMBEDDINGS, input=TEXTS)["data"]]
    answer = texts.posted(path, {field: TEXTS})
    assert answer == [{"index": index, "embedding": [vector]} for index, vector in enumerate(usual)]
    for wrong in (1.5, "the cat " * 200):
        assert texts.posted(path, {field: [TEXTS[0], wrong]}, 400)["error"]["param"] == f"{field}[1]"


def test_scores_in_the_format_of_text_embeddings_inference(texts: Serving) -> None:
    asked: dict[str, Any] = {"model": "rank", "query": "Where is Paris?"}
    results = posted(texts, "/v1/rerank", **asked, documents=TEXTS)["results"]
    answer = posted(texts, "/reranking", **asked, texts=TEXTS)
    assert answer == [{"index": each["index"], "score": each["relevance_score"]} for each in results]
    one = posted(texts, "/v1/reranking", **asked, texts=TEXTS, top_n=1, return_text=True)
    assert one == [answer[0] | {"text": TEXTS[answer[0]["index"]]}]
    assert posted(texts, "/rerank", 400, **asked, texts=["a", 1])["error"]["param"] == "texts[1]"
