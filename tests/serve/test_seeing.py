"""Images in the requests of all formats."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Serving, serving
from tiny_projector import picture, write_seeing

from edgespec.core.sampling import SamplingSettings
from edgespec.files.images import data_url
from edgespec.remote.model import RemoteModel
from edgespec.runtime.worker import Worker
from edgespec.settings import Image, LoadSettings, Message, Request

PICTURE, OTHER = picture(1), picture(2)
TEXT, ENCODED = "what is this?", b64encode(PICTURE).decode()
pytestmark = [pytest.mark.native, pytest.mark.cli]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = write_seeing(tmp_path_factory.mktemp("seeing"), "llama")
    settings = LoadSettings(str(path), threads=1, sequences=2, store=False)
    with Worker(settings) as worker, serving(worker, name="tiny") as found:
        yield found


def posted(server: Serving, path: str, body: dict[str, Any], status: int = 200) -> Any:
    return server.posted(path, {"model": server.name, "stream": False} | body, status)


def chat(server: Serving, *parts: Any, status: int = 200) -> Any:
    body = {"messages": [{"role": "user", "content": [*parts]}], "temperature": 0, "max_tokens": 8}
    found = posted(server, "/v1/chat/completions", body, status)
    return found["choices"][0]["message"]["content"] if status == 200 else found["error"]["message"]


def url_part(data: bytes | str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data) if isinstance(data, bytes) else data}}


TEXT_PART = {"type": "text", "text": TEXT}


def test_all_formats_show_the_model_the_same(seeing: Serving) -> None:
    expected = chat(seeing, url_part(PICTURE), TEXT_PART)
    assert expected != chat(seeing, url_part(OTHER), TEXT_PART)
    assert expected != chat(seeing, TEXT_PART)
    given = [{"type": "input_image", "image_url": data_url(PICTURE)}, {"type": "input_text", "text": TEXT}]
    body: dict[str, Any] = {"input": [{"role": "user", "content": given}], "temperature": 0, "max_output_tokens": 8}
    assert posted(seeing, "/v1/responses", body)["output"][-1]["content"][0]["text"] == expected
    source = {"type": "base64", "media_type": "image/png", "data": ENCODED}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, TEXT_PART]}]
    found = posted(seeing, "/v1/messages", {"messages": messages, "temperature": 0, "max_tokens": 8})
    assert found["content"][-1]["text"] == expected
    options = {"temperature": 0, "num_predict": 8}
    said = {"role": "user", "content": TEXT, "images": [ENCODED]}
    assert posted(seeing, "/api/chat", {"messages": [said], "options": options})["message"]["content"] == expected
    body = {"prompt": TEXT, "images": [ENCODED], "options": options}
    assert posted(seeing, "/api/generate", body)["response"] == expected


def test_an_engine_on_another_machine_sends_its_images(seeing: Serving) -> None:
    expected = chat(seeing, url_part(PICTURE), TEXT_PART, url_part(OTHER))
    images = (Image(PICTURE, 0), Image(OTHER, len(TEXT)))
    with RemoteModel(seeing.url) as remote:
        asked = Request(messages=(Message("user", TEXT, images=images),), max_tokens=8, sampling=SamplingSettings(0))
        assert "".join(event.text for event in remote.submit(asked)) == expected


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (url_part("https://example.org/a.png"), "the server fetches no URLs: send a data URL"),
        (url_part("data:image/png;base64,%%%"), "not valid base64"),
        (url_part("data:image/png;base64,AAAA"), "cannot be used"),
        (url_part(PICTURE[:300]), "cannot be decoded"),
        ({"type": "input_audio", "input_audio": {}}, "neither text nor images"),
        ({"type": "image", "source": {"type": "url", "url": "https://example.org"}}, "type base64"),
        ({"type": "image_url"}, "image_url"),
    ],
)
def test_other_images_are_errors_and_the_server_lives_on(seeing: Serving, part: Any, why: str) -> None:
    assert why in chat(seeing, part, TEXT_PART, status=400)
    assert chat(seeing, TEXT_PART)


def questions(image: bytes) -> list[tuple[str, str, Any]]:
    """Return messages about an image in all formats: the path, the name of their field, and the messages."""
    part = {"type": "input_image", "image_url": data_url(image)}
    screen = {"type": "computer_screenshot", "image_url": data_url(image)}
    return [
        ("/v1/chat/completions", "messages", [{"role": "user", "content": [url_part(image)]}]),
        ("/v1/responses", "input", [{"role": "user", "content": [part]}]),
        ("/v1/responses", "input", [{"type": "computer_call_output", "call_id": "a", "output": screen}]),
    ]


def test_the_error_of_an_image_that_cannot_be_decoded_names_the_field_of_the_format(seeing: Serving) -> None:
    for path, field, messages in questions(PICTURE[:300]):
        assert posted(seeing, path, {field: messages}, 400)["error"]["param"] == field


def test_a_model_that_cannot_see_says_so(server: Serving) -> None:
    for path, field, messages in questions(PICTURE):
        error = posted(server, path, {field: messages}, 400)["error"]
        assert (error["param"], error["message"].partition(":")[0]) == (field, f"{server.name} cannot see images")
        assert error["code"] == "invalid_image"


def test_clients_of_anthropic_know_the_error_of_an_image(server: Serving) -> None:
    """Claude Code leaves the image out of the next request if the error has these words; otherwise no later request of
    the session could be answered."""
    source = {"type": "base64", "media_type": "image/png", "data": ENCODED}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    call = {"type": "tool_use", "id": "a", "name": "Read", "input": {}}
    talk = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": [call]}]
    talk.append({"role": "user", "content": [result]})
    message = posted(server, "/v1/messages", {"messages": talk, "max_tokens": 2}, 400)["error"]["message"]
    assert message.startswith(f"Could not process image: {server.name} cannot see images")


def test_clients_can_ask_whether_a_model_sees(seeing: Serving, server: Serving) -> None:
    for one, sees in ((seeing, True), (server, False)):
        with one.client() as client:
            assert client.get("/props").json()["modalities"]["vision"] is sees
            shown = client.post("/api/show", json={"model": one.name}).json()
        assert ("vision" in shown["capabilities"]) is sees


def test_answers_have_no_images(seeing: Serving) -> None:
    messages = [{"role": "assistant", "content": [url_part(PICTURE)]}, {"role": "user", "content": TEXT}]
    found = posted(seeing, "/v1/chat/completions", {"messages": messages}, 400)
    assert "only messages of the user" in found["error"]["message"]


def test_tokens_of_images_are_counted(seeing: Serving) -> None:
    messages = [{"role": "user", "content": [url_part(PICTURE), TEXT_PART]}]
    found = posted(seeing, "/apply-template", {"messages": messages, "count": True})
    asked = posted(seeing, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert found["n_tokens"] == asked["usage"]["prompt_tokens"]


def test_no_endpoint_leaves_out_images(seeing: Serving) -> None:
    messages = [{"role": "user", "content": [url_part(PICTURE), TEXT_PART]}]
    assert "images" in posted(seeing, "/apply-template", {"messages": messages}, 400)["error"]["message"]
    assert posted(seeing, "/api/generate", {"images": [ENCODED], "options": {"num_predict": 1}})["eval_count"] == 1
