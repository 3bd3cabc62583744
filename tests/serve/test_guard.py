"""What is refused before a model is asked: other hosts, web pages, missing keys, bodies that are not JSON."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, dictionaries, integers, lists, none, recursive, text

from edgespec.serve.bodies import MAX_BODY, MAX_HELD, MAX_VALUES, VALUE, count_values, parsed
from edgespec.serve.errors import ApiError
from edgespec.serve.guard import Rules, guards
from edgespec.serve.origins import checked_origin
from edgespec.text.strict_json import MAX_DEPTH
from edgespec.validation import is_loopback

Headers = dict[str, str]


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body that the guard has read."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(scope.get("body")).encode()})


def ask(
    rules: Rules, headers: Headers, *, method: str = "GET", path: str = "/v1/models", body: bytes = b"", parts: int = 1
) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer."""
    start, *_ = sent_for(rules, headers, method=method, path=path, body=body, parts=parts)
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


def answer_to(rules: Rules, headers: Headers, **request: Any) -> Any:
    """The body of an answer."""
    return json.loads(b"".join(message["body"] for message in sent_for(rules, headers, **request)[1:]))


def sent_for(
    rules: Rules, headers: Headers, *, method: str = "GET", path: str = "/v1/models", body: bytes = b"", parts: int = 1
) -> list[Any]:
    sent: list[Any] = []
    size = max(1, len(body) // parts)
    pieces = [body[start : start + size] for start in range(0, len(body), size)] or [b""]

    async def receive() -> Any:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    app: Any = _app
    for middleware in reversed(guards(rules)):
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    asyncio.run(app(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "192.168.1.7", "a.localhost"]
)
def test_names_of_this_machine_are_hosts(host: str) -> None:
    assert ask(Rules(), {"Host": host})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1", "a:b:c"]
)
def test_a_forged_host_is_refused(host: str) -> None:
    assert ask(Rules(), {"Host": host})[0] == 403
    assert ask(Rules(), {})[0] == 403
    assert ask(Rules(hosts=None), {"Host": host})[0] == 200
    assert ask(Rules(hosts=("Evil.example",)), {"Host": "evil.EXAMPLE:80"})[0] == 200


def test_web_pages_of_other_origins_are_refused_unless_they_are_allowed() -> None:
    page = {"Host": "localhost:8080", "Origin": "https://example.org"}
    assert ask(Rules(), page)[0] == 403
    assert ask(Rules(), page | {"Origin": "null"})[0] == 403
    assert ask(Rules(), page | {"Origin": "http://localhost:8080"})[0] == 200
    assert ask(Rules(), page, method="OPTIONS")[0] == 403
    allowed = Rules(origins=("https://example.org",))
    status, headers = ask(allowed, page)
    assert (status, headers["access-control-allow-origin"]) == (200, "https://example.org")
    preflight = {"Access-Control-Request-Method": "POST"}
    assert ask(allowed, page | preflight, method="OPTIONS")[0] == 200
    assert ask(allowed, page | {"Origin": "https://example.net"})[0] == 403
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("origin", ["https://example.org", "app://obsidian.md", "null", "vscode-webview://1a2b"])
def test_a_page_can_read_why_it_is_refused_and_nothing_else(origin: str) -> None:
    page = {"Host": "localhost:8080", "Origin": origin, "Content-Type": "application/json"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    status, headers = ask(Rules(), page | asked, method="OPTIONS")
    assert (status, headers["access-control-allow-origin"], headers["access-control-max-age"]) == (200, origin, "0")
    assert headers["access-control-allow-headers"] == asked["Access-Control-Request-Headers"]
    asked["Access-Control-Request-Private-Network"] = "true"
    assert "access-control-allow-private-network" not in ask(Rules(), page | asked, method="OPTIONS")[1]
    for method in ("GET", "POST"):
        status, headers = ask(Rules(), page, method=method, body=b"{}")
        assert (status, headers["access-control-allow-origin"]) == (403, origin)
        assert "Origin" in headers["vary"]
        assert "access-control-allow-credentials" not in headers
    assert ask(Rules(), page | {"Host": "evil.example"})[1]["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ("app://obsidian.md", "--cors 'app://obsidian.md'"),
        ("vscode-webview://1a2b3c", "--cors 'vscode-webview://*'"),
        ("null", "--cors 'null'"),
        ("http://[", "may not use this server"),
    ],
)
def test_a_refusal_says_what_was_refused_and_how_to_allow_it(origin: str, told: str) -> None:
    for path, read in (("/v1/models", "message"), ("/api/tags", "")):
        page = {"Host": "localhost:8080", "Origin": origin}
        error = answer_to(Rules(), page, path=path)["error"]
        message = error[read] if read else error
        assert origin in message
        assert told in message
    error = answer_to(Rules(), {"Host": "ai.example:80"})["error"]
    assert "ai.example" in error["message"]
    assert "--allow-host ai.example" in error["message"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("app://obsidian.md", ["app://obsidian.md"], ["app://obsidian.md.evil", "http://obsidian.md"]),
        ("vscode-webview://*", ["vscode-webview://1a2b"], ["https://vscode-webview", "vscode-webview://"]),
        ("chrome-extension://*", ["chrome-extension://abcdef"], ["moz-extension://abcdef"]),
        ("tauri://localhost", ["tauri://localhost"], ["tauri://localhost:1", "http://localhost"]),
        (
            "http://localhost:*",
            ["http://localhost:5173", "http://localhost"],
            ["https://localhost:5173", "http://localhost.evil:1", "http://localhost:5173.evil", "http://localhost:x"],
        ),
        (
            "https://*.example.org",
            ["https://a.example.org", "https://a.b.example.org"],
            ["https://example.org", "https://evilexample.org", "https://a.example.org.evil", "https://a.example.org:8"],
        ),
        ("http://[::1]:8000", ["http://[::1]:8000"], ["http://[::1]"]),
        ("null", ["null"], ["https://null"]),
        ("*", ["null", "https://a.b", "app://x"], []),
    ],
)
def test_origins_may_be_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    rules = Rules(origins=(checked_origin(pattern),))
    host = {"Host": "127.0.0.1:8080"}
    for origin in matching:
        status, headers = ask(rules, host | {"Origin": origin})
        assert (status, headers["access-control-allow-origin"]) == (200, "*" if pattern == "*" else origin)
    for origin in others:
        assert ask(rules, host | {"Origin": origin})[0] == 403, origin


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("https://example.org/", "use https://example.org"),
        ("https://example.org/app", "use https://example.org"),
        ("app://obsidian.md/index.html", "use app://obsidian.md"),
        ("http://localhost?x", "use http://localhost"),
        ("example.org", "no scheme"),
        ("localhost:8080", "no scheme"),
        ("", "no scheme"),
        ("https://a.org https://b.org", "repeat the option"),
        ("https://a.org,https://b.org", "repeat the option"),
        ("HTTPS://example.org", "lower case"),
        ("https://Example.org", "use https://example.org"),
        ("http://localhost:80", "use http://localhost"),
        ("https://a.org:443", "use https://a.org"),
        ("http://localhost:99999", "valid port"),
        ("http://localhost:", "valid port"),
        ("http://localhost:80*", "valid port"),
        ("http://", "valid host"),
        ("http://local*", "valid host"),
        ("http://a.*.org", "valid host"),
        ("http://user@a.org", "valid host"),
        ("http://::1:8080", "valid host"),
        ("*://a.org", "scheme"),
        ("https://bücher.example", "xn--bcher-kva.example"),
        ("file://", "use null"),
        ("ws://localhost:1", "use http"),
        ("view-source:https://a.org", "scheme"),
        ("a:b://c", "scheme"),
    ],
)
def test_an_origin_that_can_match_nothing_is_an_error_with_a_hint(pattern: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        checked_origin(pattern)


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "//", "\xff", "", "https://a@b:c:d", "http://\u2100.example", "a:b://c"]
)
def test_an_origin_that_is_no_url_is_refused(origin: str) -> None:
    assert ask(Rules(), {"Host": "localhost:8080", "Origin": origin})[0] == 403


def test_an_allowed_page_may_send_the_headers_of_every_client_and_read_those_of_errors() -> None:
    page = {"Host": "localhost:8080", "Origin": "https://example.org"}
    rules = Rules(origins=("https://example.org",), api_key="secret")
    names = "anthropic-dangerous-direct-browser-access, anthropic-version, x-api-key, x-stainless-lang"
    preflight = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
    status, headers = ask(rules, preflight, method="OPTIONS")
    assert (status, headers["access-control-allow-headers"]) == (200, names)
    assert "access-control-allow-private-network" not in headers
    preflight["Access-Control-Request-Private-Network"] = "true"
    assert ask(rules, preflight, method="OPTIONS")[1]["access-control-allow-private-network"] == "true"
    status, headers = ask(rules, page)
    assert status == 401
    assert headers["access-control-allow-origin"] == "https://example.org"
    assert {"retry-after", "x-should-retry"} <= {*headers["access-control-expose-headers"].split(", ")}


def test_a_key_is_needed_where_there_is_one() -> None:
    rules, host = Rules(api_key="geheim-ü"), {"Host": "localhost"}
    assert ask(rules, host)[0] == 401
    assert ask(rules, host, path="/health")[0] == 200
    for wrong in ("Bearer", "Bearer x", "geheim-ü", "Basic geheim-ü", "Bearer geheim-ü2"):
        assert ask(rules, host | {"Authorization": wrong})[0] == 401
    assert ask(rules, host | {"Authorization": "Bearer geheim-ü"})[0] == 200
    assert ask(rules, host | {"X-Api-Key": "geheim-ü"})[0] == 200
    for odd in ("", "Bearer", "Bearer \xff\xfe", "Basic geheim", "\x80"):
        assert ask(rules, host | {"Authorization": odd})[0] == 401


def test_bodies_are_json_and_not_too_large() -> None:
    typed = {"Host": "localhost", "Content-Type": "application/json; charset=utf-8"}
    rules = Rules(max_body=100)
    assert ask(rules, typed, method="POST", body=b'{"a": 1}', parts=3)[0] == 200
    assert ask(rules, typed, method="POST", body=b"[" + b"1," * 60 + b"1]", parts=9)[0] == 413
    assert ask(rules, typed | {"Content-Length": "9" * 30}, method="POST", body=b"{}")[0] == 413
    assert ask(rules, typed, method="POST", body=b"{")[0] == 400


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain", "application/octet-stream"])
def test_only_web_pages_must_say_that_a_body_is_json(kind: str | None) -> None:
    typed = {"Host": "localhost:8080"} | ({} if kind is None else {"Content-Type": kind})
    rules = Rules(origins=("*",))
    assert answer_to(rules, typed, method="POST", body=b'{"a": 1}') == {"a": 1}
    assert ask(rules, typed, method="POST", body=b"a=1")[0] == 400
    pages = [{"Origin": origin} for origin in ("https://a.org", "http://localhost:8080", "null", "app://obsidian.md")]
    pages += [
        {f"Sec-Fetch-{name}": value} for name, value in (("Site", "none"), ("Mode", "no-cors"), ("Dest", "empty"))
    ]
    for page in pages:
        assert ask(rules, typed | page, method="POST", body=b"{}")[0] == 415, page
        typed_page = typed | page | {"Content-Type": "application/json"}
        assert ask(rules, typed_page, method="POST", body=b"{}")[0] == 200, page


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"metadata": {"a": 1e999}}',
        b'{"a": -1E+400}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":' * 500 + b"1" + b"}" * 500,
    ],
)
def test_what_is_no_plain_json_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as error:
        parsed(data)
    assert error.value.status == 400


@settings(max_examples=8)
@given(
    recursive(
        none() | booleans() | integers() | text(alphabet='a",[{}]:\\\n'),
        lambda inner: lists(inner) | dictionaries(text(alphabet='a",[{\\'), inner),
    )
)
def test_values_are_counted_without_being_parsed(value: Any) -> None:
    def count(part: Any) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return 1 + sum(map(count, inner))

    n_empty = json.dumps(value).count("[]") + json.dumps(value).count("{}")
    assert count(value) <= count_values(json.dumps(value).encode(), 10**6) <= count(value) + n_empty
    assert count_values(json.dumps(value).encode(), 0) >= 1


def test_bodies_of_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.serve.bodies.SMALL", 10)
    typed = {"Host": "localhost", "Content-Type": "application/json"}
    rules = Rules(max_values=100)
    assert ask(rules, typed, method="POST", body=json.dumps({"a": '[{,\\"' * 200}).encode())[0] == 200
    assert ask(rules, typed, method="POST", body=json.dumps([[]] * 40).encode())[0] == 200
    many: Any
    for many in ([[]] * 200, [1] * 200, [""] * 1000, {str(number): 0 for number in range(200)}):
        assert ask(rules, typed, method="POST", body=json.dumps(many).encode())[0] == 413
    assert MAX_BODY + MAX_VALUES * VALUE <= MAX_HELD  # no body is refused for what it takes alone
    assert ask(Rules(max_held=1000), typed, method="POST", body=json.dumps([[]] * 40).encode())[0] == 503


def test_loopback_is_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))
