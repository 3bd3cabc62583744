"""An answer that repeats itself ends in all formats as one that is cut off, with a field that says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Serving

from edgespec.core.sampling import SamplingSettings
from edgespec.remote.model import RemoteModel
from edgespec.settings import Message, Request

pytestmark = [pytest.mark.native, pytest.mark.cli]
SAID = [{"role": "user", "content": "again"}]
# A penalty below 1 makes any model repeat itself.
ASKED: dict[str, Any] = {
    "seed": 1,
    "temperature": 0,
    "repeat_penalty": 0.05,
    "repeat_limit": 96,
    "enable_thinking": False,
}
N = 400
FORMATS: dict[str, tuple[str, dict[str, Any], str]] = {  # path, fields, and the finish reason
    "chat": ("/v1/chat/completions", {"messages": SAID, **ASKED, "max_tokens": N}, "length"),
    "completions": ("/v1/completions", {"prompt": "again", **ASKED, "max_tokens": N}, "length"),
    "completion": ("/completion", {"prompt": "again", **ASKED, "n_predict": N}, "limit"),
    "responses": ("/v1/responses", {"input": "again", **ASKED, "max_output_tokens": N}, "max_output_tokens"),
    "messages": ("/v1/messages", {"messages": SAID, **ASKED, "max_tokens": N}, "max_tokens"),
    "ollama": ("/api/chat", {"messages": SAID, "think": False, "options": {**ASKED, "num_predict": N}}, "length"),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_the_end_has_a_known_reason_and_says_more(templated: Serving, format: str, streams: bool) -> None:
    path, body, reason = FORMATS[format]
    for limit, ended_by in ((96, "repetition"), (0, None)):
        asked = json.loads(json.dumps(body).replace('"repeat_limit": 96', f'"repeat_limit": {limit}'))
        found = last_of(templated, path, asked | {"stream": streams})
        assert (reason_in(found), found.get("ended_by")) == (reason, ended_by), found


def last_of(server: Serving, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the object, or the choice, that has the finish reason."""
    with server.client() as client:
        text = client.post(path, json=body).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.removeprefix("data: ").startswith("{")]
    found: dict[str, Any] = {}
    for line in lines:
        value = json.loads(line)
        value = (value.get("choices") or [value])[0]
        for part in (value, value.get("response"), value.get("delta")):  # where formats have it
            if isinstance(part, dict):
                found |= {name: each for name, each in part.items() if each is not None}
    return found


def reason_in(found: dict[str, Any]) -> Any:
    told = found.get("incomplete_details")
    names = ("finish_reason", "stop_type", "stop_reason", "done_reason")
    return told["reason"] if told else next(found[name] for name in names if name in found)


def test_a_client_of_this_program_is_told_the_reason_itself(templated: Serving) -> None:
    request = Request(
        messages=(Message("user", "again"),),
        sampling=SamplingSettings(temperature=0, repeat_penalty=0.05),
        max_tokens=N,
        repeat_limit=96,
        template='{"enable_thinking": false}',
    )
    with RemoteModel(templated.url) as llm:
        *tokens, last = llm.submit(request)
    assert len(tokens) < N
    assert last.finish_reason == "repetition" and last.stats is not None and 96 <= last.stats.repeated_tokens < 112
