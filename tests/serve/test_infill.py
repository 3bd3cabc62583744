"""The endpoint /infill of llama.cpp's server, as editors use it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Serving
from tiny_gguf import FILL

from edgespec.serve.completion import infill_prompt

PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
ASKED: dict[str, Any] = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 8, "seed": 3}
PRE, SUF, MID, REP, SEP = FILL.values()
# What llama.vim sends when the cursor rests, and when it only wants the context to be read.
FIGURES = ("prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms")
FIELDS = ["content", *(f"timings/{name}" for name in FIGURES), "truncated", "tokens_cached"]
FILES = [{"filename": f"f{number}.py", "text": "x = 1\n" * 40, "time": [1, 2]} for number in range(3)]
OF_VIM: dict[str, Any] = {
    "input_prefix": "import os\n",
    "input_suffix": "\nprint(x)\n",
    "input_extra": FILES,
    "prompt": "def f",
    "n_predict": 8,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 60_000,
    "id_slot": 0,
    "response_fields": FIELDS,
    "seed": 3,
}
TO_READ: dict[str, Any] = {
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": FILES,
    "prompt": "",
    "n_predict": 0,
    "samplers": [],
    "temperature": 0.0,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
    "id_slot": 1,
}
pytestmark = [pytest.mark.native, pytest.mark.cli]


def posted(server: Serving, status: int = 200, path: str = "/infill", **body: Any) -> Any:
    return server.posted(path, body, status)


def ids_of(server: Serving, **body: Any) -> list[int]:
    ids = infill_prompt(ASKED | body, server.served).take("prompt")
    assert isinstance(ids, list)
    return ids


def test_a_gap_is_completed_in_llama_cpps_format(templated: Serving) -> None:
    model = templated.served.vocabulary
    read = model.tokenize
    gap = [model.bos, PRE, *read(PREFIX), *read("<s>a", parse_special=True), SUF, *read(SUFFIX), MID]
    files = [{"filename": "a.py", "text": "import os\n"}, {"text": "<s>"}]
    context = [REP, *read("myproject\n"), SEP, *read("a.py\n"), *read("import os\n"), SEP, *read("tmp\n"), *read("<s>")]
    ids = [*context, SEP, *read("filename\n"), *gap]
    assert ids_of(templated, prompt="<s>a", input_extra=files) == ids
    asked = ASKED | {"prompt": "<s>a", "input_extra": files, "temperature": 0, "return_tokens": True}
    found = posted(templated, **asked)
    plain = posted(templated, path="/completion", prompt=ids, n_predict=8, temperature=0, return_tokens=True)
    assert (found["tokens"], found["prompt"]) == (plain["tokens"], plain["prompt"])
    assert found["tokens_evaluated"] == len(ids)
    assert posted(templated, **asked, spec_type="none")["tokens"] == found["tokens"]


def test_text_around_the_gap_and_other_files_are_cut_to_the_context(templated: Serving) -> None:
    model, n_ctx = templated.served.vocabulary, templated.served.n_ctx
    window = (n_ctx - 8 - 4) // 2
    long = {"input_prefix": "a b " * 4000, "input_suffix": "c d " * 4000, "input_extra": [{"text": "e f " * 9000}]}
    ids = ids_of(templated, **long, prompt="g")
    assert n_ctx - 64 < len(ids) <= n_ctx - 8
    assert len(ids_of(templated, **long | {"input_extra": []})) > n_ctx - 96
    gap = ids[ids.index(PRE) :]
    before, after = gap[1 : gap.index(SUF)], gap[gap.index(SUF) + 1 : -1]
    assert (before[-1:], len(before) - 1) == (model.tokenize("g"), 3 * window // 4)
    assert len(after) == window - 3 * window // 4 - 2 - 1
    assert len(ids_of(templated, **long, n_predict=n_ctx)) < n_ctx // 2
    assert len(ids_of(templated, **long, n_predict=-1)) < n_ctx


def test_editors_get_the_fields_that_they_ask_for(templated: Serving) -> None:
    found = posted(templated, **OF_VIM)
    assert [*found] == FIELDS
    assert found["content"] == posted(templated, **OF_VIM, spec_type="none")["content"]
    with templated.client() as client, client.stream("POST", "/infill", json=OF_VIM | {"stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    *parts, last = map(json.loads, lines)
    assert "".join(part["content"] for part in parts) == found["content"]
    assert [*last] == FIELDS


def test_files_that_were_only_to_be_read_are_cached(templated: Serving) -> None:
    files = [{"filename": "g.py", "text": "y = 2\n" * 60}]
    assert posted(templated, **TO_READ | {"input_extra": files}) == {}
    cached = posted(templated, **OF_VIM | {"input_extra": files})["tokens_cached"]
    read = posted(templated, path="/tokenize", content="y = 2\n" * 60)["tokens"]
    assert cached >= len(read) - 64  # the end of a prompt is always read


def test_an_answer_ends_at_a_line_that_is_indented_less(server: Serving) -> None:
    prompt = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        "
    asked: dict[str, Any] = {"prompt": prompt, "n_predict": 60, "seed": 1, "path": "/completion"}
    whole = posted(server, **asked)["content"]
    kept, blank, _ = whole.partition("\n\n")
    assert blank
    cut = posted(server, **asked, n_indent=8)
    assert cut["content"] == kept + "\n"
    assert cut["stop_type"] == "limit"
    line = posted(server, **asked, t_max_predict_ms=1)["content"]
    assert whole.startswith(line)
    assert "\n" in line


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_suffix": 3}, "input_suffix"),
        ({"prompt": [1]}, "prompt"),
        ({"input_extra": "x"}, "input_extra"),
        ({"input_extra": [3]}, "input_extra"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a"}, {"text": 3}]}, "input_extra[1].text"),
        ({"input_extra": [{"text": "a", "filename": 3}]}, "input_extra[0].filename"),
        ({"n_predict": "x"}, "n_predict"),
        ({"n_indent": -1}, "n_indent"),
        ({"t_max_predict_ms": "x"}, "t_max_predict_ms"),
        ({"response_fields": "content"}, "response_fields"),
        ({"samplers": ["infill", "top_k"]}, "samplers"),
        ({"samplers": ["infill"]}, "infill"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"prompt": "a b " * 3000}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(templated: Serving, body: dict[str, Any], param: str) -> None:
    assert posted(templated, 400, **ASKED | body)["error"]["param"] == param


def test_a_model_without_tokens_for_gaps_is_named_as_the_reason(server: Serving) -> None:
    error = posted(server, 400, **ASKED)["error"]
    assert "no control tokens" in error["message"]
    assert error["code"] == "unsupported_parameter"
