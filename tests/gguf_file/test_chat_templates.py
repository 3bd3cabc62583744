"""The chat templates of a model file, and others in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_gguf import write_model

from edgespec.errors import UsageError
from edgespec.gguf_file.chat_templates import CHATML, MOST_BYTES, ChatTemplates, chat_templates
from edgespec.gguf_file.header import Header, read_header

NAMED = {"tokenizer.chat_template.tool_use": "with tools", "tokenizer.chat_template.rag": "with documents"}


@pytest.fixture
def header(tmp_path: Path) -> Header:
    return read_header(write_model(tmp_path / "m.gguf", "llama", chat_template="plain", metadata=NAMED))


def test_requests_with_tools_have_a_template_of_their_own_if_there_is_one(header: Header, tmp_path: Path) -> None:
    found = chat_templates(header)
    assert (found.of(has_tools=False), found.of(has_tools=True)) == ("plain", "with tools")
    other = read_header(write_model(tmp_path / "other.gguf", "llama", chat_template="plain"))
    assert chat_templates(other).of(has_tools=True) == "plain"
    assert chat_templates(read_header(write_model(tmp_path / "none.gguf", "llama"))) == ChatTemplates()


def test_a_template_is_chosen_by_its_name(header: Header) -> None:
    assert chat_templates(header, "rag") == ChatTemplates("with documents")
    assert chat_templates(header, "tool_use") == ChatTemplates("with tools")
    assert chat_templates(header, "chatml") == ChatTemplates(CHATML)
    with pytest.raises(UsageError, match=r"m\.gguf has no chat template 'other'") as refused:
        chat_templates(header, "other")
    assert "tool_use, rag, chatml" in (refused.value.hint or "")


def test_a_file_replaces_all_templates(header: Header, tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("ä {{ messages }}\n", encoding="utf-8")
    assert chat_templates(header, file=str(tmp_path / "a.jinja")) == ChatTemplates("ä {{ messages }}\n")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read the chat template"),
        (b" \n", "is empty"),
        (b"{{ \xff }}", "is not text in UTF-8"),
        (b"x" * (MOST_BYTES + 1), "is too large"),
    ],
)
def test_a_file_that_is_no_template_is_an_error(
    header: Header, tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "a.jinja").write_bytes(content)
    with pytest.raises(UsageError, match=why):
        chat_templates(header, file=str(tmp_path / "a.jinja"))
    with pytest.raises(UsageError, match="cannot read"):
        chat_templates(header, file=str(tmp_path))
