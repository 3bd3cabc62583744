"""Batches from Python, with a model: the answers that each row would get by itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import CHATML, EXACT, write_model

import edgespec
from edgespec.errors import UsageError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Request

ROWS: list[dict[str, Any]] = [
    {"id": number, "prompt": f"def f{number}(x):", "max_tokens": 3 + number % 5} for number in range(12)
]


@pytest.fixture(scope="module")
def llm(home: Path) -> Iterator[Runtime]:
    path = write_model(home / "tiny.gguf", "llama", chat_template=CHATML)
    with edgespec.load(str(path), sequences=3, spec_type="lookup", pace="fixed:2", store=False, **EXACT) as opened:
        yield opened


def test_each_row_gets_the_answer_it_would_get_alone(llm: Runtime) -> None:
    found = {row["id"]: row for row in llm.batch(ROWS, chat=False, temperature=1.0, seed=5)}
    assert len(found) == len(ROWS)
    for row in ROWS:
        result = found[row["id"]]
        alone = list(llm.generate(row["prompt"], max_tokens=row["max_tokens"], temperature=1.0, seed=result["seed"]))
        assert result["content"] == "".join(event.text for event in alone)
        assert result["tokens"] == len(alone) - 1


def test_samples_differ_and_are_those_of_their_numbers(llm: Runtime) -> None:
    (result,) = llm.batch([{"id": 1, "prompt": "a", "n": 4, "seed": 9}], chat=False, max_tokens=6, temperature=1.5)
    texts = [choice["content"] for choice in result["choices"]]
    assert len({*texts}) > 1
    for sample, text in enumerate(texts):
        alone = llm.generate("a", max_tokens=6, temperature=1.5, seed=9, sample=sample)
        assert "".join(event.text for event in alone) == text


def test_rows_keep_their_order_on_demand_and_errors_stand_among_them(llm: Runtime) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "max_tokens": 30},
        {"prompt": "x " * 9000},
        {"prompt": "b", "max_tokens": 1},
        {},
    ]
    found = list(llm.batch(rows, ordered=True))
    assert [row["id"] for row in found] == [1, 2, 3, 4]
    assert ["error" in row for row in found] == [False, True, False, True]


def test_a_batch_that_is_left_frees_the_model(llm: Runtime) -> None:
    endless = llm.batch(({"prompt": "a"} for _ in count()), max_tokens=2)
    next(endless)
    endless.close()
    assert next(llm.batch([{"prompt": "a"}], max_tokens=2))["tokens"] <= 2


def test_whatever_goes_wrong_with_a_row_is_an_error_of_that_row_alone(
    llm: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = llm.prompts.tokenized

    def fail_for_some(request: Request) -> Any:
        if "bad" in request.prompt:
            raise ZeroDivisionError("nobody thought of that")
        return real(request)

    monkeypatch.setattr(llm.prompts, "tokenized", fail_for_some)
    found = list(
        llm.batch([{"prompt": "a"}, {"prompt": "bad"}, {"prompt": "b"}], max_tokens=2, ordered=True, chat=False)
    )
    assert ["error" in each for each in found] == [False, True, False]
    assert found[1]["error"]["message"] == "unexpected ZeroDivisionError: nobody thought of that"


def test_a_constraint_for_all_rows_is_checked_before_the_first(llm: Runtime) -> None:
    with pytest.raises(UsageError, match="Invalid type"):
        llm.batch([], json_schema={"type": "nonsense"})
