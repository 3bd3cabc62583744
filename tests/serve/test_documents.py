"""Documents in requests: file parts of OpenAI's formats, and document blocks of Anthropic's."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from made_documents import docx, paragraph, pdf
from serving import Serving

from edgespec.requests import documents

pytestmark = [pytest.mark.native, pytest.mark.cli]

PDF = b64encode(pdf("one", "two")).decode()
URL = f"data:application/pdf;base64,{PDF}"
READ = "(2 pages):\n```\n[page 1]\none\n\n[page 2]\ntwo\n```"


def posted(server: Serving, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    with server.client() as client:
        response = client.post(path, json=body)
    return response.status_code, response.json()


def test_a_document_is_part_of_the_prompt(templated: Serving) -> None:
    parts = [{"type": "file", "file": {"filename": "a.pdf", "file_data": URL}}, {"type": "text", "text": "why?"}]
    status, said = posted(templated, "/apply-template", {"messages": [{"role": "user", "content": parts}]})
    assert (status, f"<|user|>a.pdf {READ}\nwhy?" in said["prompt"]) == (200, True)


@pytest.mark.parametrize(
    ("path", "part", "same"),
    [
        ("/v1/chat/completions", {"type": "file", "file": {"file_data": PDF}}, f"document {READ}"),
        ("/v1/responses", {"type": "input_file", "filename": "b.pdf", "file_data": URL}, f"b.pdf {READ}"),
        (
            "/v1/messages",
            {
                "type": "document",
                "title": "A title",
                "context": "Its source",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
            },
            f"Its source\n\nA title {READ}",
        ),
        (
            "/v1/messages",
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
            "document:\n```\nplain\n```",
        ),
    ],
)
def test_a_document_has_the_tokens_of_its_text(server: Serving, path: str, part: dict[str, Any], same: str) -> None:
    list_name = "input" if path == "/v1/responses" else "messages"

    def n_tokens(part: dict[str, Any]) -> int:
        asked = {list_name: [{"role": "user", "content": [part]}], "max_tokens": 1, "max_output_tokens": 1}
        status, said = posted(server, path, asked)
        assert status == 200, said
        usage: dict[str, int] = said["usage"]
        return sum(usage.get(name, 0) for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens"))

    assert n_tokens(part) == n_tokens({"type": "text", "text": same})


@pytest.mark.parametrize(
    ("path", "part", "param"),
    [
        ("/v1/chat/completions", {"type": "file", "file": {"file_id": "file-1"}}, "file_id"),
        ("/v1/responses", {"type": "input_file", "file_url": "http://example.org/a.pdf"}, "file_url"),
        ("/v1/responses", {"type": "input_file", "file_data": "%"}, "base64"),
        ("/v1/chat/completions", {"type": "file", "file": {"filename": "a.docx", "file_data": "YQ=="}}, "a.docx"),
        ("/v1/messages", {"type": "document", "source": {"type": "url", "url": "http://example.org"}}, "source"),
        (
            "/v1/messages",
            {"type": "document", "citations": {"enabled": True}, "source": {"type": "text", "data": "x"}},
            "citations",
        ),
    ],
)
def test_what_cannot_be_read_is_named(server: Serving, path: str, part: dict[str, Any], param: str) -> None:
    list_name = "input" if path == "/v1/responses" else "messages"
    body = {list_name: [{"role": "user", "content": [part]}], "max_tokens": 1}
    status, said = posted(server, path, body)
    assert status == 400
    assert f"{list_name}[0].content[0]" in said["error"]["message"]
    assert param in said["error"]["message"]


def test_time_and_number_of_documents_are_limited(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"type": "file", "file": {"filename": "a.docx", "file_data": b64encode(docx(paragraph("x"))).decode()}}
    body = {"messages": [{"role": "user", "content": [part] * 3}], "max_tokens": 1}
    monkeypatch.setattr(documents, "MOST_DOCUMENTS", 2)
    assert posted(server, "/v1/chat/completions", body)[1]["error"]["message"] == "a request may have 2 documents"
    monkeypatch.setattr(documents, "MOST_DOCUMENTS", 3)
    monkeypatch.setattr(documents, "MOST_S", -1.0)
    assert "it takes too long" in posted(server, "/v1/chat/completions", body)[1]["error"]["message"]
