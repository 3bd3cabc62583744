"""What holds on real weights: the default model, SmolLM2 135M, downloaded once."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import check_memory
import pytest
from cli_program import edgespec_here

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.gguf_file.model_check import check_model
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]  # the first one waits for the download

QUESTION = "What is the capital of France?"
NOTE = "Entry {0}: on day {0} of the journey the ship made {1} miles, the wind came from the west, nobody was ill.\n"


@pytest.fixture(scope="module")
def llm(real_model: Path) -> Iterator[Runtime]:
    with edgespec.load(str(real_model), ctx_size=2048, store=False, spec_draft_n_max=7) as llm:
        yield llm


def asked(question: str, *, temperature: float = 0.0, **settings: object) -> Request:
    sampling = SamplingSettings(temperature=temperature)
    return Request(messages=(Message("user", question),), sampling=sampling, **settings)  # type: ignore[arg-type]


def answered(llm: Runtime, request: Request) -> tuple[str, str | None]:
    """The text, and why it ended."""
    events = list(llm.submit(request))
    return "".join(event.text for event in events), events[-1].finish_reason


@pytest.mark.long
def test_its_template_asks_as_it_was_trained(llm: Runtime) -> None:
    assert llm.info.has_chat_template
    prompt = [llm.token_text(token) for token in llm.tokenize(asked(QUESTION))]
    assert prompt[:2] == ["<|im_start|>", "system"]
    assert "".join(prompt).endswith("<|im_start|>assistant\n")
    assert prompt.count("<|im_start|>") == 3
    assert QUESTION in "".join(prompt)


def test_it_answers_and_stops_by_itself(llm: Runtime) -> None:
    text, finish_reason = answered(llm, asked("Write one sentence about the sea.", max_tokens=200))
    assert finish_reason == "stop"
    assert len(text.split()) > 3
    assert "<|im_" not in text


@pytest.mark.parametrize("text", ["def f(x):\n\treturn x  # 1", "Grüße, 東京 🙂", "<|im_start|> is text", "  a\r\n\n "])
def test_texts_survive_its_tokenizer(llm: Runtime, text: str) -> None:
    assert b"".join(map(llm.model.token_bytes, llm.model.tokenize(text))).decode() == text


def test_control_tokens_are_text_unless_asked_for(llm: Runtime) -> None:
    plain = llm.tokenize(Request(prompt="<|im_end|>"))
    special = llm.tokenize(Request(prompt="<|im_end|>", special=True))
    assert len(special) < len(plain)
    assert llm.token_text(special[-1]) == "<|im_end|>"


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("n_notes", "temperature"), [(2, 0.0), (2, 0.8), (17, 0.8)])
def test_the_same_seed_gives_the_same_text_with_and_without_drafting(
    llm: Runtime, n_notes: int, temperature: float
) -> None:
    notes = "".join(NOTE.format(number, 20 + 7 * number) for number in range(1, n_notes + 1))
    request = asked(f"Repeat these notes, and add one.\n\n{notes}", temperature=temperature, seed=7, max_tokens=64)
    assert (len(llm.tokenize(request)) > 512) == (n_notes == 17)
    texts = []
    for spec_type in ("none", "auto", "auto"):
        llm.draft_with(spec_type=spec_type)
        texts.append(answered(llm, request)[0])
    assert texts[1:] == [texts[0]] * 2


def test_json_by_a_schema(llm: Runtime) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "maximum": 99999999}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    request = asked("Name a city and its inhabitants.", json_schema=json.dumps(schema), max_tokens=80)
    found = json.loads(answered(llm, request)[0])
    assert set(found) == {"city", "people"}
    assert isinstance(found["people"], int)


@pytest.mark.long
def test_a_batch_answers_every_row(real_model: Path, tmp_path: Path) -> None:
    rows = [{"id": str(number), "prompt": f"What is {number} plus {number}?"} for number in range(4)]
    lines = "\n".join(map(json.dumps, rows)).encode()
    args = ("batch", "-", "-m", str(real_model), "-n", "8", "--parallel", "2", "--spec-type", "none")
    done = edgespec_here(*args, home=tmp_path, stdin=lines)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in io.BytesIO(done.stdout)]
    assert sorted(result["id"] for result in results) == ["0", "1", "2", "3"]
    assert all(result["content"].strip() for result in results)


def test_the_memory_estimate_is_what_loading_takes(real_model: Path) -> None:
    header = check_model(real_model)
    for settings in ({"n_ctx": 1024}, {"n_ctx": 4096, "flash_attention": "off"}):
        expected = check_memory.sizes(estimate(MemoryPlan(header, **settings)))
        assert check_memory.misses(expected, check_memory.reported(real_model, settings)) == []


@pytest.mark.long  # tests/bench compares files of tiny models
def test_compare_tells_a_smaller_type_from_the_reference(real_model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Name a colour."}', encoding="utf-8")
    args = ("compare", str(real_model), "--quants", "Q4_0", "--modes", "plain", "--prompts", "prompts.jsonl")
    done = edgespec_here(*args, "--limit", "1", "-n", "4", "-c", "1024", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    reference, smaller = json.loads(done.stdout)["files"]
    assert smaller["size_bytes"] < reference["size_bytes"]
    assert 0 < smaller["quality"]["kl"] < 1
