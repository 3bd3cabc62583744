"""Bad input of all kinds: an answer or an error that says why, and never a status of 500."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from serving import Serving

from edgespec.requests.known_fields import OLLAMA_SAMPLING

pytestmark = [pytest.mark.native, pytest.mark.cli]

PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"),
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/completion", "/infill"),
    *("/api/chat", "/api/generate", "/api/show", "/v1/embeddings", "/api/embed", "/api/embeddings"),
)
OF_TEXTS = ("/v1/embeddings", "/v1/rerank", "/api/embed", "/api/embeddings")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, 2**31, 2**64, -(2**70), 10**400),
    *("", "x", "auto", "\x00", "é\u2028", "a" * 5000, "<|im_end|>", "\ue0000\ue001", "{{ 7*7 }}", "../../etc/passwd"),
    *(
        [],
        {},
        [None],
        [[]],
        [""],
        ["a", "b"],
        [1, 2],
        {"a": {}},
        {"type": "json_object"},
        {"type": "object", "$ref": "#"},
        [{"text": "a", "filename": 3}],
        ["top_k", "infill"],
    ),
    *([{"name": "f", "input_schema": {}}], [{"type": "function", "name": "f"}], [{"type": "tool_use", "input": 3}]),
    *([{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}}}], {"type": "any"}, "required"),
    *([{"role": "user", "content": [{"type": "tool_result"}]}], [{"type": "function_call"}], [{"type": "reasoning"}]),
    *([{"role": "user", "content": "Hi"}], [{"role": "user"}], [{"role": "user", "content": [{"type": "text"}]}]),
    *(
        {"0": 1e9},
        {"-1": 0},
        {"x": 1},
        [[0, 1]],
        {"5": False},
        {"include_usage": 1},
        "root ::= root",
        "(a*)*b",
        "[",
        "\\",
    ),
)
FIELDS = (
    *("format", "think", "raw", "system", "keep_alive", "images"),
    *("messages", "prompt", "model", "stream", "stream_options", "n", "stop", "seed", "temperature", "top_k", "top_p"),
    *("min_p", "typical_p", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("logprobs", "top_logprobs", "response_format", "grammar", "json_schema", "regex", "special", "ignore_eos"),
    *("verify", "spec_type", "pace", "draft_n_max", "strict", "tools", "tool_choice", "echo", "suffix", "best_of"),
    *(
        "content",
        "tokens",
        "with_pieces",
        "add_special",
        "reasoning_format",
        "mirostat",
        "chat_template_kwargs",
        "lora",
    ),
    *("system", "thinking", "stop_sequences", "input", "instructions", "max_output_tokens", "text", "reasoning"),
    *("max_completion_tokens", "n_predict", "user", "frobnicate", ""),
    *("input", "dimensions", "encoding_format", "truncate", "query", "documents", "top_n", "return_documents"),
    *("samplers", "n_probs", "n_cmpl", "response_fields", "return_tokens", "n_indent", "min_keep", "image_data"),
    *("input_prefix", "input_suffix", "input_extra", "t_max_predict_ms", "id_slot", "infill"),
    *("reasoning_budget", "thinking_budget_tokens", "reasoning_effort", "enable_thinking"),
)
LINES = (  # of a request's head
    *("Host: localhost", "Host: [::1", "Host: ]", "Host: a:b:c", "Host:", "Host: \xff", "Host: evil.example"),
    *("Origin: http://[", "Origin: http://[::1", "Origin: //", "Origin: null", "Origin: \xff", "Origin: http://a@[b"),
    *("Origin: http://page.example", "Origin: http://\xe2\x84\x80.example"),
    *("Authorization: Bearer s\xe9cret", "Authorization: Bearer", "Authorization: \xff", "X-Api-Key: \xff"),
    *("Content-Length: -1", "Content-Length: 5, 6", f"Content-Length: {'9' * 30}", "Content-Length: \xd9\xa5"),
    *("Transfer-Encoding: gzip", "Transfer-Encoding: chunked, chunked", "Upgrade: websocket", "Connection: upgrade"),
    *("Content-Type: application/json; charset=\xff", "Content-Type: multipart/form-data", "Content-Type: ;;"),
    *("Access-Control-Request-Headers: a\xffb, c d,,", "Expect: 100-continue", "Range: bytes=0-", f"X: {'x' * 9000}"),
)
TARGETS = (
    *("/v1/models/%00", "/v1/models/%", "/v1/models/%zz", "/v1/models/%ff%fe", "/v1/models/..%2f..%2fetc%2fpasswd"),
    *("/props?model=%00", "/props?model=%ff", f"/slots?{'a=b&' * 9000}", "/metrics?%", "//v1//models", "*", "?"),
    *("http://evil.example/v1/models", "/\xff", "/v1/models/demo%0d%0aX:y", "/v1/chat%2fcompletions", "/completion/"),
    *("/v1/chat/completions", "/v1/messages", "/v1/responses", "/completion", "/health", f"/{'a' * 9000}"),
)


def bodies(n: int, paths: Sequence[str] = PATHS, **fixed: Any) -> Iterator[tuple[str, bytes]]:
    """Bodies with wrong values in fields that there are, and bytes that are not even JSON."""
    rng = random.Random(7)
    for number in range(n):
        path = rng.choice(paths)
        if number % 10 == 0:
            yield path, rng.randbytes(rng.randrange(60))
            continue
        body: dict[str, Any] = {"max_tokens": rng.randrange(4), **fixed}
        body |= {"messages": [{"role": "user", "content": "Hi"}]} if path[:6] in ("/v1/ch", "/v1/me", "/apply") else {}
        body |= {"input": "Hi"} if path in ("/v1/responses", *OF_TEXTS) else {}
        body |= {"input_prefix": "a", "input_suffix": "b"} if path == "/infill" else {}
        body |= {"query": "Hi", "documents": ["a", "b"]} if path == "/v1/rerank" else {}
        body |= {"prompt": "Hi", "content": "Hi"} if path in ("/v1/completions", "/completion", "/tokenize") else {}
        if path.startswith("/api/"):
            wrong = {rng.choice((*FIELDS, *OLLAMA_SAMPLING)): rng.choice(VALUES)}
            body |= {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"}
            body["options"] = {**wrong, "num_predict": rng.randrange(4)}
        body |= {rng.choice(FIELDS): rng.choice(VALUES) for _ in range(rng.randrange(1, 4))}
        data = json.dumps(body).encode()
        if number % 7 == 0:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(1) + data[at + rng.randrange(3) :]
        yield path, data


def check_all(server: Serving, sent: Iterator[tuple[str, bytes]]) -> None:
    """Check that each body gets an answer or an error that says why."""
    failed, n_notes = [], len(server.notes)
    with server.client(headers={"Content-Type": "application/json"}) as client:
        for path, data in sent:
            response = client.post(path, content=data)
            is_told = response.status_code == 200 or "error" in response.json()
            if response.status_code not in (200, 400, 404) or not is_told or b'"server_error"' in response.content:
                failed.append((path, data[:300], response.status_code, response.text[:300]))
        assert failed == []
        assert server.served.n_open == 0
        assert not any("restarting" in note for note in server.notes[n_notes:])


@pytest.mark.long
@pytest.mark.slow
def test_no_body_makes_the_server_fail(server: Serving) -> None:
    check_all(server, bodies(600))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("model", ["rank", "bert"])
def test_no_body_makes_models_for_texts_fail(texts: Serving, model: str) -> None:
    check_all(texts, bodies(200, OF_TEXTS, model=model))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET " + b"/a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_are_refused_at_once(server: Serving, data: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(data)
        status = sock.recv(4096).partition(b"\r\n")[0]
    assert status.split()[1] in (b"400", b"403", b"404")


def test_no_head_of_a_request_makes_the_server_fail(server: Serving) -> None:
    """The client leaves after the head, which is judged before anything else is known of a request."""
    rng, failed, n_records = random.Random(3), [], len(server.records)
    host, port = server.url.removeprefix("http://").split(":")
    for _ in range(100):
        lines = ["Host: localhost", "Connection: close", *rng.sample(LINES, rng.randrange(4))]
        lines = lines[rng.choice((0, 0, 0, 1)) :]
        head = f"{rng.choice(('GET', 'POST', 'HEAD', 'OPTIONS', 'PUT', 'get'))} {rng.choice(TARGETS)} HTTP/1.1"
        data = "\r\n".join([head, *lines, "", ""]).encode("latin-1")
        with socket.create_connection((host, int(port)), timeout=30) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            status = sock.makefile("rb").readline().split()[1:2]
        if status and not 200 <= int(status[0]) < 500:
            failed.append((data[:300], status))
    assert failed == []
    assert not any(record.get("status", 0) >= 500 for record in server.records[n_records:])


def test_a_large_prompt_is_refused(server: Serving) -> None:
    with server.client() as client:
        response = client.post("/v1/completions", json={"prompt": "x" * 1_500_000, "max_tokens": 1})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
