"""Vectors and scores: OpenAI's, Ollama's and Jina's formats, what is refused, and chats next to them."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from serving import Serving, posted

from edgespec.serve.embeddings import MOST_TEXTS, Room
from edgespec.serve.errors import ApiError

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TEXTS = ["the cat sat on the mat", "paris is the capital of france"]
pytestmark = [pytest.mark.native, pytest.mark.cli]


def vectors(answer: dict[str, Any]) -> NDArray[np.float64]:
    assert [one["index"] for one in answer["data"]] == [*range(len(answer["data"]))]
    return np.array([one["embedding"] for one in answer["data"]])


# --- OpenAI -----------------------------------------------------------------------------------------------------------


def test_vectors_have_the_length_one_in_both_encodings(texts: Serving) -> None:
    answer = posted(texts, EMBEDDINGS, input=TEXTS, model="bert", user="someone")
    assert (answer["object"], answer["model"], answer["data"][0]["object"]) == ("list", "bert", "embedding")
    found = vectors(answer)
    assert found.shape == (2, 64)
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1])
    coded = posted(texts, EMBEDDINGS, input=TEXTS, encoding_format="base64")["data"]
    decoded = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in coded]
    assert (np.array(decoded) == found).all()
    assert posted(texts, EMBEDDINGS, input=TEXTS[1])["data"][0]["embedding"] == found[1].tolist()


def test_texts_may_be_token_ids(texts: Serving) -> None:
    ids = [posted(texts, "/tokenize", content=text, add_special=True)["tokens"] for text in TEXTS]
    answer = posted(texts, EMBEDDINGS, input=ids)
    assert answer == posted(texts, EMBEDDINGS, input=TEXTS)
    assert answer["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    assert posted(texts, EMBEDDINGS, input=ids[0])["data"] == answer["data"][:1]
    assert posted(texts, EMBEDDINGS, input=[ids[0], TEXTS[1]])["data"] == answer["data"]


def test_fewer_dimensions_are_the_first_ones_with_the_length_one(texts: Serving) -> None:
    whole, short = (vectors(posted(texts, EMBEDDINGS, input=TEXTS, dimensions=n)) for n in (64, 16))
    first = whole[:, :16]
    assert short == pytest.approx(first / np.linalg.norm(first, axis=1, keepdims=True), abs=1e-6)
    for n in (0, 65, "8"):
        error = posted(texts, EMBEDDINGS, 400, input="x", dimensions=n)["error"]
        assert (error["param"], error["message"][:40]) == ("dimensions", "dimensions must be an integer from 1 to ")


# --- Ollama -----------------------------------------------------------------------------------------------------------


def test_ollamas_vectors_are_the_same(texts: Serving) -> None:
    expected = vectors(posted(texts, EMBEDDINGS, input=TEXTS))
    answer = posted(texts, "/api/embed", model="bert", input=TEXTS, options={"temperature": 1}, keep_alive="5m")
    assert answer["embeddings"] == expected.tolist()
    assert answer["total_duration"] >= answer["load_duration"] >= 0
    assert answer["prompt_eval_count"] == posted(texts, EMBEDDINGS, input=TEXTS)["usage"]["prompt_tokens"]
    short = posted(texts, "/api/embed", model="bert", input=TEXTS[0], dimensions=16)["embeddings"]
    assert len(short[0]) == 16
    old = np.array(posted(texts, "/api/embeddings", model="bert", prompt=TEXTS[0])["embedding"])
    assert np.linalg.norm(old) > 2  # as the model made it
    assert old / np.linalg.norm(old) == pytest.approx(expected[0], abs=1e-6)


def test_a_request_of_ollama_without_a_text_loads_the_model(texts: Serving) -> None:
    assert posted(texts, "/api/embed", model="bert", input=[]) == {"model": "bert", "embeddings": []}
    assert posted(texts, "/api/embeddings", model="bert") == {"embedding": []}


def test_long_texts_are_cut_for_ollama_alone(texts: Serving) -> None:
    long = "cat " * 200
    error = posted(texts, EMBEDDINGS, 400, input=["cat", long])["error"]
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (202, 128)
    assert "128 tokens. However, your input[1] resulted in 202 tokens" in error["message"]
    assert posted(texts, EMBEDDINGS, 400, input=long)["error"]["param"] == "input"
    assert "your input resulted in 202" in posted(texts, "/api/embed", 400, input=long, truncate=False)["error"]
    cut = posted(texts, "/api/embed", input=long)
    assert cut["prompt_eval_count"] == 128
    ids = posted(texts, "/tokenize", content=long, add_special=True)["tokens"]
    kept = posted(texts, EMBEDDINGS, input=[*ids[:127], ids[-1]])  # with the [SEP] at its end
    assert cut["embeddings"] == vectors(kept).tolist()
    assert posted(texts, "/api/embeddings", prompt=long)["embedding"]
    assert "200,000 characters" in posted(texts, EMBEDDINGS, 400, input="cat " * 50_000)["error"]["message"]


# --- reranking --------------------------------------------------------------------------------------------------------


def test_documents_are_ranked_for_a_query(texts: Serving) -> None:
    documents = [*TEXTS, "rome"]
    answer = posted(texts, RERANK, model="rank", query="where is rome", documents=documents)
    results = answer["results"]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 20
    objects = [{"text": document} for document in documents]
    top = posted(
        texts, "/rerank", model="rank", query="where is rome", documents=objects, top_n=1, return_documents=True
    )
    assert top["results"] == [results[0] | {"document": {"text": documents[results[0]["index"]]}}]
    assert top["usage"] == answer["usage"]
    alone = posted(texts, "/v2/rerank", model="rank", query="where is rome", documents=[documents[1]])["results"]
    assert alone[0]["relevance_score"] == next(r["relevance_score"] for r in results if r["index"] == 1)
    long = posted(texts, RERANK, 400, model="rank", query="x", documents=["cat", "cat " * 200])["error"]
    assert (long["param"], long["n_ctx"]) == ("documents[1]", 128)
    error = posted(texts, RERANK, 400, model="rank", query="cat " * 200, documents=["cat"])["error"]
    assert (error["param"], error["n_prompt_tokens"]) == ("query", 202)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        (EMBEDDINGS, {}, "input"),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": {"a": 1}}, "input"),
        (EMBEDDINGS, {"input": [1, None]}, "input"),
        (EMBEDDINGS, {"input": [1, -1]}, "input"),
        (EMBEDDINGS, {"input": [[]]}, "input[0]"),
        (EMBEDDINGS, {"input": ["x", None]}, "input[1]"),
        (EMBEDDINGS, {"input": [[1], [10**9]]}, "input[1]"),
        (EMBEDDINGS, {"input": ["x"] * (MOST_TEXTS + 1)}, "input"),
        (EMBEDDINGS, {"input": "x", "encoding_format": "int8"}, "encoding_format"),
        (EMBEDDINGS, {"input": "x", "input_type": "query"}, "input_type"),
        (EMBEDDINGS, {"input": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        (RERANK, {"model": "rank", "documents": ["x"]}, "query"),
        (RERANK, {"model": "rank", "query": "x"}, "documents"),
        (RERANK, {"model": "rank", "query": "x", "documents": []}, "documents"),
        (RERANK, {"model": "rank", "query": "x", "documents": ["x", {"title": "x"}]}, "documents[1]"),
        (RERANK, {"model": "rank", "query": "x", "documents": ["x"], "top_n": 0}, "top_n"),
        (RERANK, {"model": "rank", "query": "x", "documents": ["x"], "texts": ["x"]}, "texts"),
        (RERANK, {"model": "bert", "query": "x", "documents": ["x"]}, "model"),
        (EMBEDDINGS, {"model": "rank", "input": "x"}, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, "model"),
        ("/v1/completions", {"model": "rank", "prompt": "x"}, "model"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}, None),
        (EMBEDDINGS, {"model": "bert:one", "input": "x"}, "model"),  # an adapter of one request
        ("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}, "model"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_name(
    texts: Serving, path: str, body: dict[str, Any], names: str | None
) -> None:
    error = posted(texts, path, 400, **body)["error"]
    assert error.get("param") == names
    assert error["message"]


def test_models_say_what_they_are_for(texts: Serving, server: Serving) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    refusal = posted(texts, "/api/chat", 400, model="bert", messages=hello, stream=False)["error"]
    assert refusal == "bert is an embedding model, which cannot generate text; POST /v1/embeddings uses it"
    about_gap = posted(texts, "/infill", 400, model="bert", input_prefix="a", input_suffix="b")["error"]["message"]
    assert about_gap == refusal
    refusal = posted(texts, "/v1/responses", 400, model="rank", input="Hi")["error"]["message"]
    assert refusal == "rank is a reranking model, which cannot generate text; POST /v1/rerank uses it"
    assert "cannot rank" in posted(server, RERANK, 400, query="x", documents=["x"])["error"]["message"]
    refusal = posted(server, EMBEDDINGS, 400, input="x")["error"]
    assert refusal["message"] == "demo generates text and makes no vectors; name an embedding model"
    assert "makes no vectors" in posted(server, "/api/embed", 400, model="demo", input="x")["error"]
    with texts.client() as client:
        listed = {model["name"]: model["details"]["family"] for model in client.get("/api/tags").json()["models"]}
        shown = [client.post("/api/show", json={"model": name}).json() for name in ("bert", "rank")]
        about = client.get("/props").json()["edgespec"]
        assert client.get("/slots").json() == []
        data = {model["id"]: model["meta"]["pooling"] for model in client.get("/v1/models").json()["data"]}
    assert listed == {"bert": "bert", "rank": "bert"}
    assert [each["capabilities"] for each in shown] == [["embedding"], []]
    assert (about["pooling"], about["n_embd"]) == ("mean", 64)
    assert data == {"bert": "mean", "bert:one": "mean", "rank": "rank"}


# --- many requests ----------------------------------------------------------------------------------------------------


def test_requests_take_turns_and_change_no_vector(texts: Serving) -> None:
    n_records = len(texts.records)
    alone = vectors(posted(texts, EMBEDDINGS, input=TEXTS[0]))[0].tobytes()
    with ThreadPoolExecutor(1) as threads:
        many = threads.submit(posted, texts, EMBEDDINGS, input=[TEXTS[0], "cat " * 120] * 500)
        while not texts.served.n_open:
            time.sleep(0.001)
        assert {row.tobytes() for row in vectors(posted(texts, EMBEDDINGS, input=[TEXTS[0]] * 7))} == {alone}
        assert {row.tobytes() for row in vectors(many.result())[::2]} == {alone}
    # Records follow the answers, and those of an earlier test may be among them.
    while 1000 not in (sizes := [record.get("texts") for record in texts.records[n_records:]]):
        time.sleep(0.001)
    assert sizes.index(7) < sizes.index(1000)
    assert texts.served.n_open == 0


def test_a_client_that_leaves_stops_the_work(texts: Serving) -> None:
    n_records = len(texts.records)
    with texts.client() as client, pytest.raises(httpx2.ReadTimeout):
        client.post(EMBEDDINGS, json={"input": ["cat " * 120] * MOST_TEXTS}, timeout=0.2)
    assert posted(texts, EMBEDDINGS, input="x")["data"]
    while texts.served.n_open or 499 not in [record["status"] for record in texts.records[n_records:]]:
        time.sleep(0.01)


def test_values_that_are_not_sent_yet_have_a_limit() -> None:
    room = Room(10)
    with room.held(6), pytest.raises(ApiError, match="too many large requests"), room.held(5):
        pass
    with room.held(10):
        pass


def test_values_count_until_the_client_has_read_them(texts: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    held, events = Room.held, list[str]()

    @contextmanager
    def noticed(room: Room, n_values: int) -> Iterator[None]:
        with held(room, n_values):
            yield
        events.append("released")

    monkeypatch.setattr(Room, "held", noticed)
    with texts.client() as client:
        with client.stream("POST", EMBEDDINGS, json={"input": ["cat"] * MOST_TEXTS}) as response:
            parts = response.iter_raw()
            next(parts)
            assert (int(response.headers["content-length"]) > 2**21, events) == (True, [])
        assert posted(texts, EMBEDDINGS, input="x")["data"]
    while len(events) < 2:  # of the client that has left, too
        time.sleep(0.001)


def test_metrics_count_texts(texts: Serving) -> None:
    posted(texts, EMBEDDINGS, input=TEXTS)
    with texts.client() as client:
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
    assert int(lines['edgespec:texts_total{kind="embedding"}']) >= 2
    assert int(lines["llamacpp:prompt_tokens_total"]) > 0
    record = next(record for record in reversed(texts.records) if record.get("texts") == 2)
    assert (record["model"], record["prompt_tokens"] > 10) == ("bert", True)
