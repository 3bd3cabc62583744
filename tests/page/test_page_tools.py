"""Tools in the page: the user decides about each call, and sees its result."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from browser import ENTER, Browser
from calling import written_call
from page_client import PageClient, View, of

from edgespec.cancel import CancelFlag
from edgespec.page import chats
from edgespec.page.lent import LentModel

pytestmark = [pytest.mark.native, pytest.mark.cli, pytest.mark.slow]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer of each chat calls a tool, the next ones do not."""

    class Forced(LentModel):
        n_answers = 0

        def prepared(self, request: Any, cancel: CancelFlag | None = None) -> Any:
            text = json.dumps(written_call("add", a=1, b=2)) if not self.n_answers else "[a-z]{6}"
            self.n_answers += 1
            return replace(super().prepared(request, cancel), grammar=f"root ::= {text}")

    monkeypatch.setattr(chats, "LentModel", Forced)


def answered(page: PageClient, decision: str) -> list[View]:
    seen = []
    with page.stream(chat=None, text="What is 1 + 2?") as events:
        for event in events:
            seen.append(event)
            if event["type"] == "call" and event["state"] == "asking":
                assert page.post("decision", id=event["id"], decision=decision) == {"decided": decision}
    return seen


@pytest.mark.usefixtures("calls")
def test_a_call_runs_when_the_user_allows_it(page_with_tools: PageClient) -> None:
    events = answered(page_with_tools, "once")
    assert [event["state"] for event in of(events, "call")] == ["asking", "running", "done"]
    assert of(events, "call")[0]["arguments"] == "a: 1\nb: 2"
    chat = page_with_tools.get("chat", id=events[-1]["chat"]["id"])
    roles = [turn["role"] for turn in chat["turns"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    tool = chat["turns"][2]["tool"]
    assert (tool["name"], tool["result"], tool["outcome"]) == ("calculator/add", "1 + 2 = 3", "ok")
    assert chat["turns"][1]["text"] == ""


@pytest.mark.usefixtures("calls")
def test_a_call_that_is_denied_does_not_run(page_with_tools: PageClient) -> None:
    events = answered(page_with_tools, "deny")
    assert [event["state"] for event in of(events, "call")] == ["asking", "done"]
    assert of(events, "call")[-1]["result"]["outcome"] == "denied"
    last = of(events, "call")[-1]["id"]
    assert "any more" in page_with_tools.post("decision", 400, id=last, decision="once")["error"]["message"]
    assert page_with_tools.post("decision", 400, id=last, decision="maybe")["error"]


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("decision", ["Allow once", "Do not allow"])
def test_the_user_decides_in_the_browser(browser: Browser, page_with_tools: PageClient, decision: str) -> None:
    browser.open(page_with_tools.server.url)
    browser.type("#message", "What is 1 + 2?", ENTER)
    asked = browser.one(".call.asking")
    assert "calculator/add" in asked.text
    assert "a: 1\nb: 2" in asked.text
    next(each for each in browser.all(".call .button") if each.text == decision).click()
    browser.wait(lambda: browser.all(".turn.tool") and not browser.all(".live"))
    assert browser.text(".turn.tool summary .quiet") == (
        "1 line, 9 characters" if "once" in decision else "not allowed by you"
    )
    browser.click(".turn.tool summary")
    expected = "1 + 2 = 3" if "once" in decision else "does not allow"
    browser.wait(lambda: expected in browser.texts(".tool-part pre")[1])
    assert browser.texts(".foot .figures") != []
