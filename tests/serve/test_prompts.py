"""Prompts of completions: token ids, prompts that are returned with the answer, and texts with a gap."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Serving
from tiny_gguf import FILL

from edgespec.settings import Request

TEXT, GENERATE = "/v1/completions", "/api/generate"
ASKED: dict[str, Any] = {"max_tokens": 8, "seed": 3}
pytestmark = [pytest.mark.native, pytest.mark.cli]


def posted(server: Serving, status: int = 200, path: str = TEXT, **body: Any) -> Any:
    return server.posted(path, ASKED | body, status)


def texts(server: Serving, **body: Any) -> list[str]:
    return [choice["text"] for choice in posted(server, **body)["choices"]]


def test_token_ids_are_completed_like_their_text(server: Serving) -> None:
    worker = server.served.worker
    one, two = (worker.tokenize(Request(text)) for text in ("def f(", "import "))  # they begin with <|endoftext|>
    wanted = texts(server, prompt=["def f(", "import "])
    assert texts(server, prompt=one) == wanted[:1]
    assert texts(server, prompt=[one, two]) == texts(server, prompt=[one, "import "]) == wanted
    assert posted(server, prompt=one)["usage"]["prompt_tokens"] == len(one)
    native = posted(server, path="/completion", prompt=one)
    assert (native["content"], native["prompt"]) == (wanted[0], "<|endoftext|>def f(")


@pytest.mark.parametrize("prompt", [[1.5], [True], [[]], [[1], 2], [[["x"]]], [10**9], [-1], [], 3])
def test_other_prompts_are_refused_by_name(server: Serving, prompt: Any) -> None:
    assert posted(server, 400, prompt=prompt)["error"]["param"].partition("[")[0] == "prompt"


def test_an_echo_puts_the_prompt_before_each_answer(server: Serving) -> None:
    prompts = ["def f(", server.served.worker.tokenize(Request("import "))]
    wanted = texts(server, prompt=prompts, n=2)
    said = ["def f("] * 2 + ["<|endoftext|>import "] * 2
    whole = posted(server, prompt=prompts, n=2, echo=True)
    assert [choice["text"] for choice in whole["choices"]] == [one + two for one, two in zip(said, wanted, strict=True)]
    assert whole["usage"]["completion_tokens"] <= 4 * 8
    assert texts(server, prompt="def f(", echo=True, max_tokens=0) == ["def f("]
    body = ASKED | {"prompt": "def f(", "echo": True, "stream": True}
    with server.client() as client, client.stream("POST", TEXT, json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == "def f(" + wanted[0]


def test_an_echo_has_no_suffix(templated: Serving) -> None:
    assert posted(templated, 400, prompt="a", echo=True, suffix="b")["error"]["param"] == "echo"


def test_an_answer_fills_the_gap_before_a_suffix(templated: Serving) -> None:
    prefix, suffix, middle, *_ = FILL.values()
    vocabulary = templated.served.vocabulary
    before, after = (vocabulary.tokenize(text) for text in ("def f(", "\n    return x"))
    ids = [vocabulary.bos, prefix, *before, suffix, *after, middle]
    wanted = texts(templated, prompt=ids, temperature=0)[0]
    asked: dict[str, Any] = {"prompt": "def f(", "suffix": "\n    return x"}
    assert texts(templated, **asked, temperature=0) == [wanted]
    assert texts(templated, **asked, temperature=0, n=2) == [wanted] * 2
    options = {"temperature": 0, "num_predict": 8}
    ollama = posted(templated, path=GENERATE, **asked, options=options, stream=False)
    assert (ollama["response"], ollama["prompt_eval_count"]) == (wanted, len(ids))
    assert posted(templated, 400, path=GENERATE, **asked, system="x")["error"].startswith("system")


@pytest.mark.parametrize("path", [TEXT, "/completion"])
def test_a_suffix_needs_a_model_that_fills_gaps(server: Serving, path: str) -> None:
    error = posted(server, 400, path=path, prompt="a", suffix="b")["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert texts(server, prompt="def f(", suffix="") == texts(server, prompt="def f(")
