"""The prompts of the suites: the built-in ones fit their categories, and broken lines of a user's file are skipped."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.bench.suites import CATEGORIES, SuitePrompt, read_items, sample, shipped
from edgespec.errors import UsageError
from edgespec.llama.model import LlamaModel

ITEMS = shipped()
FENCED = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
PYTHON_BLOCK = re.compile(r"^(class|def) .*:$", re.MULTILINE)

Read = Callable[[bytes | str], tuple[list[SuitePrompt], list[str]]]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(Path(__file__).resolve().parents[2] / "models" / "demo" / "target.gguf") as model:
        yield model


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(content: bytes | str) -> tuple[list[SuitePrompt], list[str]]:
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_items(path)

    return write_and_read


def in_category(category: str) -> list[SuitePrompt]:
    return [item for item in ITEMS if item.category == category]


def shared_trigrams(item: SuitePrompt) -> float:
    """Return the share of the reference's runs of three words that occur in the prompt."""
    said, answered = (re.findall(r"\w+", text.lower()) for text in (item.prompt, item.reference))
    known = set(zip(said, said[1:], said[2:], strict=False))
    runs = list(zip(answered, answered[1:], answered[2:], strict=False))
    return sum(run in known for run in runs) / len(runs)


def test_every_category_is_shipped_with_ten_items_that_have_ids_of_their_own() -> None:
    assert Counter(item.category for item in ITEMS) == dict.fromkeys(CATEGORIES, 10)
    for category in CATEGORIES:
        assert [item.id for item in in_category(category)] == [f"{category}-{n:02}" for n in range(1, 11)]


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_shipped_file_has_no_line_that_is_skipped(category: str) -> None:
    path = Path(__file__).resolve().parents[2] / "edgespec" / "bench" / "suites" / f"{category}.jsonl"
    assert read_items(path) == (in_category(category), [])


def test_lengths_fit_the_context_of_the_bundled_pair(model: LlamaModel) -> None:
    for item in ITEMS:
        prompt, reference = (len(model.tokenize(text)) for text in (item.prompt, item.reference))
        assert (150 if item.category == "code_editing" else 80) <= reference <= 400, item.id
        assert (200 if item.category in ("code_editing", "summary") else 1) <= prompt <= 450, item.id
        assert prompt + reference <= 850, item.id


def test_python_compiles() -> None:
    sources = {f"{item.id}: {n}": code for item in ITEMS for n, code in enumerate(python_of(item))}
    for name, code in sources.items():
        compile(code, name, "exec")
    assert len(sources) == 16


def python_of(item: SuitePrompt) -> list[str]:
    if item.category != "code_completion":
        return [code for language, code in FENCED.findall(f"{item.prompt}\n{item.reference}") if language == "python"]
    return [item.prompt + item.reference] if PYTHON_BLOCK.search(item.prompt) else []


def test_a_code_completion_goes_on_where_the_file_breaks_off() -> None:
    for item in in_category("code_completion"):
        assert "```" not in item.prompt + item.reference
        assert item.prompt.endswith("\n")
        assert item.reference.startswith(" ")


def test_an_edited_file_comes_back_whole() -> None:
    for item in in_category("code_editing"):
        ((language, before),) = FENCED.findall(item.prompt)
        ((same_language, after),) = FENCED.findall(item.reference)
        assert same_language == language
        assert after != before
        assert len(after) > 0.7 * len(before), item.id


def test_answers_repeat_the_prompt_where_they_should_and_nowhere_else() -> None:
    for item in ITEMS:
        if item.category in ("code_editing", "summary"):
            assert shared_trigrams(item) > 0.2, item.id
        else:
            assert shared_trigrams(item) < 0.2, item.id


def test_some_categories_can_be_chosen() -> None:
    assert shipped(["maths", "chat"]) == in_category("maths") + in_category("chat")
    with pytest.raises(UsageError, match=r"unknown category 'math'\n.*code_completion"):
        shipped(["chat", "math"])


def test_a_prompt_is_enough(read: Read) -> None:
    items, problems = read('{"prompt": "Hi"}\n\n{"prompt": "Hi", "id": 7, "category": "talk", "reference": "Hello"}')
    assert items == [SuitePrompt("line-1", "other", "Hi"), SuitePrompt("7", "talk", "Hi", "Hello")]
    assert (items[0].prompt, problems) == ("Hi", [])


def test_the_form_of_spec_bench(read: Read) -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["One", "Two"]}
    bare = {"question_id": "x", "category": "qa", "turns": ["Why?"], "reference": []}
    items, problems = read(f"{json.dumps(row)}\n{json.dumps(bare)}\n")
    assert items == [SuitePrompt("81", "writing", "Write.", "One"), SuitePrompt("x", "qa", "Why?")]
    assert problems == []


def test_a_byte_order_mark_and_the_line_ends_of_windows_are_fine(read: Read) -> None:
    items, problems = read(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b", "id": null}\r\n')
    assert ([item.id for item in items], problems) == (["line-1", "line-3"], [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "a" "id": 1}', "not JSON in UTF-8"),
        (b'{"prompt": "a', "not JSON in UTF-8"),
        (b'["a"]', "not a JSON object"),
        (b"[" * 200_000, "not JSON in UTF-8"),
        (b'{"prompt": "a", "id": ' + b"1" * 5000 + b"}", "not JSON in UTF-8"),
        (b'{"prompt": "\xfc"}', "not JSON in UTF-8"),
        (b"{}", "there is no prompt"),
        (b'{"prompt": null}', "there is no prompt"),
        (b'{"prompt": " \\n"}', "there is no prompt"),
        (b'{"prompt": ["a"]}', "prompt is not a string"),
        (b'{"prompt": "a\\u0000b"}', "prompt contains a NUL character or half of a surrogate pair"),
        (b'{"prompt": "\\ud800"}', "prompt contains a NUL character or half of a surrogate pair"),
        (b'{"turns": "a"}', "there is no prompt"),
        (b'{"turns": []}', "there is no prompt"),
        (b'{"turns": [2, "a"]}', "prompt is not a string"),
        (b'{"prompt": "a", "reference": 1}', "reference is not a string"),
        (b'{"prompt": "a", "id": true}', "id is not printable text"),
        (b'{"prompt": "a", "id": "\\u001b[2J"}', "id is not printable text"),
        (b'{"prompt": "a", "category": ""}', "category is not printable text"),
        (b'{"prompt": "a", "id": "good"}', "duplicate id 'good'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "line",
)
def test_a_broken_line_is_skipped_with_its_number_and_the_reason(read: Read, line: bytes, reason: str) -> None:
    items, problems = read(b'\n{"prompt": "a", "id": "good"}\n' + line + b'\n{"prompt": "b"}\n')
    assert [item.id for item in items] == ["good", "line-4"]
    assert problems == [f"line 3: {reason}"]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"Hello\n", '{"prompt": "a"}'.encode("utf-16-le")])
def test_a_file_without_a_prompt_is_refused(read: Read, content: bytes) -> None:
    with pytest.raises(UsageError, match=r"there are no prompts in .*prompts\.jsonl: (the file is empty|line 1: not )"):
        read(content)


def test_a_file_in_utf_16_is_read(read: Read) -> None:
    items, problems = read('{"prompt": "a"}\r\n\ufeff{"prompt": "é"}'.encode("utf-16"))
    assert ([item.prompt for item in items], problems) == (["a", "é"], [])


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r'cannot read the prompts in .*\n.*\{"prompt": "\.\.\."\}'):
        read_items(tmp_path / name)


def test_a_sample_takes_the_categories_in_turns() -> None:
    assert [item.id for item in sample(ITEMS, 2)] == [f"{category}-{n:02}" for n in (1, 2) for category in CATEGORIES]


def test_a_sample_takes_all_there_are_of_a_small_category() -> None:
    a1, a2, a3, b1 = items = [SuitePrompt(id, id[0], "?") for id in ("a1", "a2", "a3", "b1")]
    assert sample(items, 2) == [a1, b1, a2]
    assert sample(items, 10**9) == [a1, b1, a2, a3]
    assert sample([], 3) == sample(items, 0) == []
