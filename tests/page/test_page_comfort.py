"""The page by keyboard, on a phone, for screen readers, and with long chats and long lists."""

from __future__ import annotations

import time

import pytest
from browser import ENTER, ESCAPE, Browser
from page_client import PageClient
from selenium.webdriver.common.keys import Keys
from talks import talk

pytestmark = [pytest.mark.native, pytest.mark.cli, pytest.mark.slow]
WIDE = "\n\n".join((
    "| a | b | c | d | e |\n|--|--|--|--|--|\n" + f"| {'a long cell ' * 3} " * 5 + "|",
    "$$" + " + ".join(f"x_{{{n}}}^{{{n}}}" for n in range(30)) + "$$",
    "```python\n" + "print('a long line') ; " * 20 + "\n```",
    "averylongword" * 30,
))  # fmt: skip


def test_a_chat_by_keyboard_only(browser: Browser, page: PageClient) -> None:
    chat = page.ask("By keyboard", settings={"max-tokens": "4"})["id"]
    browser.open(f"{page.server.url}/#/chat/{chat}")
    browser.press(Keys.CONTROL, Keys.SHIFT, "o")
    browser.wait(lambda: browser.run("return location.hash") == "#/" and browser.focus == "#message")
    browser.press(Keys.CONTROL, "k")
    browser.press(Keys.ARROW_DOWN)
    browser.wait(lambda: browser.focus.startswith("A."))
    browser.press(ENTER)
    browser.wait(lambda: browser.text(".bubble") == "By keyboard")
    browser.press(Keys.ALT, Keys.ARROW_UP)
    browser.wait(lambda: "assistant" in browser.focus)
    browser.press("r")
    browser.wait(lambda: len(page.get("branches", id=chat)["branches"]) <= 2 and not browser.all(".live"))
    browser.press(ESCAPE)
    browser.wait(lambda: browser.focus == "#message")
    browser.press(Keys.ARROW_UP)
    browser.wait(lambda: browser.focus == "TEXTAREA.editor")
    browser.press(ESCAPE)
    browser.wait(lambda: "user" in browser.focus)
    browser.press("?")
    browser.wait(lambda: "Keyboard shortcuts" in browser.text("dialog"))
    browser.press(ESCAPE)
    browser.wait(lambda: not browser.all("dialog"))


def test_shift_enter_starts_a_new_line(browser: Browser, page: PageClient) -> None:
    browser.open(page.server.url)
    browser.type("#message", "one", Keys.SHIFT + ENTER + Keys.NULL, "two")
    assert browser.run("return document.querySelector('#message').value") == "one\ntwo"
    assert not browser.all(".turn")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, page: PageClient, width: int) -> None:
    chat, _ = talk(page.chats.store, WIDE, WIDE)
    browser.resize(width, 780)
    browser.open(f"{page.server.url}/#/chat/{chat}")
    browser.wait(lambda: browser.all(".prose math"))
    assert browser.run("return document.querySelector('#scroller').scrollWidth") <= width
    assert browser.run("return document.scrollingElement.scrollWidth") <= width
    shown = browser.one("#send").rect
    assert shown["x"] + shown["width"] <= width


def test_the_list_is_a_drawer_on_a_phone(browser: Browser, page: PageClient) -> None:
    chat, _ = talk(page.chats.store, "In the drawer", "Yes")
    browser.resize(360, 740)
    browser.open(page.server.url)
    assert not browser.all("#search")[0].is_displayed()
    browser.click("#list-button")
    browser.wait(lambda: browser.all("#search")[0].is_displayed())
    browser.click(f"#chats a[data-chat='{chat}']")
    browser.wait(lambda: browser.text(".bubble") == "In the drawer")
    browser.wait(lambda: not browser.all("#search")[0].is_displayed())


def test_screen_readers_have_landmarks_names_and_finished_answers(browser: Browser, page: PageClient) -> None:
    browser.open(page.server.url)
    browser.run(
        "window.heard = [];"
        "new MutationObserver(() => window.heard.push(document.querySelector('#announcer').textContent))"
        ".observe(document.querySelector('#announcer'), {childList: true, characterData: true, subtree: true})"
    )
    browser.click("#settings")
    browser.replace("[aria-label=max-tokens]", "12" + Keys.TAB)
    browser.press(ESCAPE)
    browser.type("#message", "Say it", ENTER)
    browser.wait(lambda: browser.all(".turn.assistant .actions") and not browser.all(".live"))
    assert len(browser.run("return window.heard")) == 1  # the answer, not each token
    unnamed = (
        "return [...document.querySelectorAll('button, input:not([hidden]), textarea, select, a[href]')]"
        ".filter(e => !e.innerText.trim() && !e.ariaLabel && !e.labels?.length).map(e => e.outerHTML)"
    )
    assert browser.run(unnamed) == []
    for landmark in ("nav[aria-label]", "main", "header", "form[aria-label]", "h1", "[aria-live=polite]"):
        assert browser.all(landmark), landmark


def test_texts_from_right_to_left_begin_at_the_right(browser: Browser, page: PageClient) -> None:
    chat, _ = talk(page.chats.store, "ما هي عاصمة فرنسا؟", "باريس.\n\nIn English: Paris.")
    browser.open(f"{page.server.url}/#/chat/{chat}")
    browser.wait(lambda: len(browser.all(".prose p")) == 2)
    sides = "return [...document.querySelectorAll('.bubble, .prose p')].map(e => getComputedStyle(e).direction)"
    assert browser.run(sides) == ["rtl", "rtl", "ltr"]


@pytest.mark.long
def test_long_chats_and_long_lists_stay_fast(browser: Browser, page: PageClient) -> None:
    part = "## A part\n\nThe *quick* brown fox jumps over `12` lazy dogs.\n\n```python\nprint(1)\n```\n\n"
    store = page.chats.store
    texts = [text for n in range(300) for text in (f"Question {n}", part * 25)]  # about 200,000 tokens
    chat, turns = talk(store, *texts)
    for n in range(1000):
        talk(store, f"Small talk {n}")
    begun = time.monotonic()
    browser.open(f"{page.server.url}/#/chat/{chat}")
    last = "return [...document.querySelectorAll('.bubble')].at(-1)?.textContent"
    browser.wait(lambda: browser.run(last) == "Question 299" and browser.all(".turn:last-child .prose:not(.raw)"))
    assert time.monotonic() - begun < 15
    assert len(browser.all(".prose:not(.raw)")) < 40  # those near the end
    assert len(browser.all("#chats li")) < 200
    browser.run("document.querySelector('#chats').scrollTop = 1e6")
    browser.wait(lambda: len(browser.all("#chats li")) > 100)
    browser.run(f"location.hash = '#/chat/{chat}/{turns[1].key}'")
    browser.wait(lambda: browser.all(f"[data-key='{turns[1].key}'] .prose:not(.raw) h2"))
    begun = time.monotonic()
    browser.type("#message", "typed at once")
    assert time.monotonic() - begun < 5
