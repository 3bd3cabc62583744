"""The page in a browser: chats, branches, settings, search, files, races and errors, as a person uses them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from browser import ENTER, ESCAPE, Browser
from page_client import PageClient
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.native, pytest.mark.cli, pytest.mark.slow]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DONE = ".turn.assistant:last-child .actions"


def send(browser: Browser, text: str) -> None:
    """Send a message, and wait for its answer."""
    before = len(browser.all(".turn.user"))
    browser.type("#message", text, ENTER)
    browser.wait(lambda: len(browser.all(".turn.user")) > before and browser.all(DONE) and not browser.all(".live"))


def opened(browser: Browser, page: PageClient, *texts: str, most: int = 12) -> str:
    """Open a chat with these messages, whose answers have `most` tokens. Returns its id."""
    chat = {"id": None}
    for text in texts:
        chat = page.ask(text, chat=chat["id"], settings={"max-tokens": str(most)})
    browser.open(f"{page.server.url}/#/chat/{chat['id']}")
    return str(chat["id"])


def answers(page: PageClient, chat: str) -> list[str]:
    return [turn["text"] for turn in page.get("chat", id=chat)["turns"] if turn["role"] == "assistant"]


def words(text: str) -> list[str]:
    """Markdown changes spaces and marks, and keeps the letters."""
    return "".join(each if each.isalnum() else " " for each in text).split()


def test_a_message_is_answered_and_the_chat_is_in_the_list(browser: Browser, page: PageClient) -> None:
    browser.open(page.server.url)
    assert browser.focus == "#message"
    browser.click("#settings")
    browser.replace("[aria-label=max-tokens]", "9" + Keys.TAB)
    browser.press(ESCAPE)
    send(browser, "Name a colour")
    chat = str(browser.driver.current_url).rpartition("/")[2]
    assert words(browser.text(".turn.assistant .prose")) == words(answers(page, chat)[0])
    assert page.get("chat", id=chat)["settings"] == {"max-tokens": "9"}
    assert "tok/s" in browser.text(".turn.assistant .figures")
    assert browser.wait(lambda: "Name a colour" in browser.texts("#chats a"))
    assert browser.run("return document.title").startswith("Name a colour")
    send(browser, "And another one")
    assert len(answers(page, chat)) == 2
    assert browser.refused == []


def test_escape_stops_an_answer_which_can_be_continued(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "Tell me everything", most=4)
    page.post(
        "chat", id=chat, action="set", settings={"regex": "([a-z]{4} ){800}", "max-tokens": "1500", "pace": "off"}
    )
    browser.click("[aria-label=Regenerate]")
    browser.wait(lambda: len(browser.text(".growing .prose")) > 20)
    browser.press(ESCAPE)
    browser.wait(lambda: "stopped by you" in browser.text(".turn.assistant .notice"))
    (begun,) = answers(page, chat)
    page.post("chat", id=chat, action="set", settings={"regex": "none", "max-tokens": "8"})
    browser.click("[aria-label='Continue this answer']")
    browser.wait(lambda: len(answers(page, chat)[0]) > len(begun) and browser.all(DONE) and not browser.all(".live"))
    (whole,) = answers(page, chat)
    assert whole.startswith(begun)
    assert words(browser.text(".turn.assistant .prose")) == words(whole)


@pytest.mark.parametrize("stops", [False, True])
def test_a_message_that_is_written_during_an_answer_waits(browser: Browser, page: PageClient, stops: bool) -> None:
    chat = opened(browser, page, "First", most=4)
    slow = {"regex": "([a-z]{4} ){800}", "max-tokens": "1500" if stops else "600", "pace": "off"}
    page.post("chat", id=chat, action="set", settings=slow)
    browser.type("#message", "Second", ENTER)
    browser.wait(lambda: browser.text(".growing .prose"))
    browser.type("#message", "Third", ENTER)
    browser.wait(lambda: browser.text(".queued .bubble") == "Third")
    if stops:
        browser.press(ESCAPE)
        browser.wait(lambda: browser.run("return document.querySelector('#message').value") == "Third")
        assert browser.texts(".bubble") == ["First", "Second"]
        return
    browser.wait(lambda: len(browser.all(".turn.assistant .actions")) == 3 and not browser.all(".live"))
    turns = page.get("chat", id=chat)["turns"]
    assert [turn["text"] for turn in turns if turn["role"] == "user"] == ["First", "Second", "Third"]
    assert browser.texts(".bubble") == ["First", "Second", "Third"]


def test_an_edited_message_is_a_branch_and_both_can_be_seen(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "First version")
    browser.run("document.querySelector('.turn.user [aria-label=Edit]').click()")
    browser.replace(".editor", "Second version" + ENTER)
    browser.wait(lambda: browser.texts(".turn.user .versions span") == ["2/2"] and browser.all(DONE))
    assert browser.text(".bubble") == "Second version"
    browser.run("document.querySelector('[aria-label=\"Previous version\"]').click()")
    browser.wait(lambda: browser.text(".bubble") == "First version")
    assert browser.text(".turn.user .versions span") == "1/2"
    assert len(page.get("branches", id=chat)["branches"]) == 2


def test_a_regenerated_answer_is_another_version(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "Say something")
    page.post("chat", id=chat, action="set", settings={"temp": "1.5"})
    browser.click("[aria-label=Regenerate]")
    browser.wait(lambda: browser.texts(".turn.assistant .versions span") == ["2/2"])
    (now,) = answers(page, chat)
    assert words(browser.text(".turn.assistant .prose")) == words(now)


def test_a_search_finds_messages_of_all_chats_and_marks_them(browser: Browser, page: PageClient) -> None:
    opened(browser, page, "The zebrafish swims")
    opened(browser, page, "Something else")
    browser.press(Keys.CONTROL, "k")
    assert browser.focus == "#search"
    browser.type("#search", "zebrafish")
    browser.wait(lambda: "zebrafish" in browser.texts("#chats .hit mark"))
    browser.click("#chats .hit a")
    browser.wait(lambda: browser.text(".bubble") == "The zebrafish swims")
    assert browser.wait(lambda: browser.run("return CSS.highlights.get('found')?.size"))
    browser.type("#search", ESCAPE)
    browser.wait(lambda: "Something else" in browser.texts("#chats a"))


def test_a_setting_is_changed_refused_and_reset(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "Settings", most=4)
    field = "[aria-label=top-k]"
    browser.click("#settings")
    browser.replace(field, "7" + Keys.TAB)
    browser.wait(lambda: page.get("chat", id=chat)["settings"].get("top-k") == "7")
    browser.replace(field, "many" + Keys.TAB)
    assert "top-k must be an integer" in browser.wait(lambda: browser.text(".problem:not(:empty)"))
    assert page.get("chat", id=chat)["settings"]["top-k"] == "7"
    browser.click("[aria-label='Reset top-k']")
    browser.wait(lambda: "top-k" not in page.get("chat", id=chat)["settings"])
    browser.type("[aria-label='System prompt']", "Be brief.", Keys.TAB)
    browser.wait(lambda: page.get("chat", id=chat)["system"] == "Be brief.")


def test_a_setting_of_a_new_chat_is_checked_and_sent_with_its_first_message(browser: Browser, page: PageClient) -> None:
    browser.open(page.server.url)
    browser.click("#settings")
    browser.replace("[aria-label=max-tokens]", "few" + Keys.TAB)
    assert "max-tokens must be a number" in browser.wait(lambda: browser.text(".problem:not(:empty)"))
    browser.replace("[aria-label=max-tokens]", "5" + Keys.TAB)
    browser.type("[aria-label='System prompt']", "Be brief.", Keys.TAB)
    browser.press(ESCAPE)
    send(browser, "New")
    chat = page.get("chat", id=str(browser.driver.current_url).rpartition("/")[2])
    assert (chat["settings"], chat["system"]) == ({"max-tokens": "5"}, "Be brief.")


def test_a_race_shows_two_answers_and_the_other_one_can_be_kept(browser: Browser, page: PageClient) -> None:
    browser.open(page.server.url)
    browser.type("#message", "Who is faster?")
    browser.click("#attach")
    browser.wait(lambda: browser.all(".menu button"))
    browser.all(".menu button")[1].click()
    browser.replace(".sides label:first-child input", "max-tokens=8 temp=0")
    browser.replace(".sides label:last-child input", "max-tokens=12 temp=0")
    browser.click("dialog .primary")
    browser.wait(lambda: browser.all(".lane-keep .button"))
    assert len(browser.text(".verdict")) > 10
    assert ["8 tokens" in figures for figures in browser.texts(".lane-figures")] == [True, False]
    chat = str(browser.driver.current_url).rpartition("/")[2]
    (before,) = answers(page, chat)
    browser.click(".lane-keep .button")
    browser.wait(lambda: answers(page, chat) != [before])
    (after,) = answers(page, chat)
    assert words(browser.text(".lane.kept .prose")) == words(after)


def test_files_are_read_shown_and_sent(browser: Browser, page: PageClient, tmp_path: Path) -> None:
    text, image = tmp_path / "notes.txt", tmp_path / "dot.png"
    text.write_text("The secret word is marzipan.")
    image.write_bytes(PNG)
    browser.open(page.server.url)
    picker = browser.all("#file-picker")[0]
    picker.send_keys(str(image))
    browser.wait(lambda: browser.all("#attached .thumbnail"))
    browser.click("#attached [aria-label='Remove dot.png']")
    browser.wait(lambda: not browser.all("#attached .thumbnail"))
    picker.send_keys(str(text))
    browser.wait(lambda: browser.all("#attached .chip") and "read" not in browser.text("#attached .chip"))
    browser.click("#settings")
    browser.replace("[aria-label=max-tokens]", "4" + Keys.TAB)
    browser.press(ESCAPE)
    send(browser, "What is it?")
    assert browser.text(".turn.user .chip-name") == "notes.txt"
    chat = str(browser.driver.current_url).rpartition("/")[2]
    turn = page.get("chat", id=chat)["turns"][0]
    assert (turn["text"], [each["name"] for each in turn["files"]]) == ("What is it?", ["notes.txt"])


def test_a_chat_is_renamed_pinned_and_deleted_unless_that_is_undone(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "Old name", most=4)
    browser.click("#chat-menu")
    browser.click(".menu button:nth-of-type(1)")
    browser.replace("dialog input", "New name" + ENTER)
    browser.wait(lambda: "New name" in browser.texts("#chats a"))
    browser.click("#chat-menu")
    browser.click(".menu button:nth-of-type(2)")
    browser.wait(lambda: browser.text(".group h2") == "Pinned")
    for undoes in (True, False):
        browser.click("#chat-menu")
        browser.click(".menu .danger")
        browser.wait(lambda: "New name" not in browser.texts("#chats a"))
        if undoes:
            browser.click(".toast .button")
            browser.wait(lambda: "New name" in browser.texts("#chats a"))
            browser.click("#chats a")
            browser.wait(lambda: browser.text(".bubble") == "Old name")
    browser.wait(lambda: all(each["id"] != chat for each in page.get("chats")["chats"]))


def test_unsent_text_stays_with_its_chat(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "Here", most=4)
    browser.type("#message", "an unsent thought")
    browser.click("#new-chat")
    browser.wait(lambda: browser.run("return document.querySelector('#message').value") == "")
    browser.open(f"{page.server.url}/#/chat/{chat}")
    assert browser.wait(lambda: browser.run("return document.querySelector('#message').value")) == "an unsent thought"


def test_nothing_is_lost_while_the_server_is_away(browser: Browser, page: PageClient) -> None:
    opened(browser, page, "Before", most=4)
    browser.offline(True)
    browser.type("#message", "Are you there?", ENTER)
    assert "cannot be reached" in browser.one("#connection").text
    browser.wait(lambda: browser.run("return document.querySelector('#message').value") == "Are you there?")
    assert browser.texts(".bubble") == ["Before"]
    assert not browser.all(".toast")  # the banner says it
    browser.offline(False)
    browser.wait(lambda: not browser.one("#page").find_elements("css selector", "#connection:not([hidden])"))
    send(browser, "")
    assert browser.texts(".bubble") == ["Before", "Are you there?"]


def test_the_tokens_have_the_colours_of_their_drafters(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "one two three one two three one two three", most=48)
    tokens = page.get("tokens", chat=chat, key=page.get("chat", id=chat)["turns"][-1]["key"])["tokens"]
    drafted = "".join(text for text, drafter, _ in tokens if drafter)
    browser.click("#drafters")
    browser.wait(lambda: browser.all(".legend"))
    counts = {drafter for _, drafter, _ in tokens if drafter}
    assert {each.split("\n")[0] for each in browser.texts(".legend li")} == counts | {"the model itself"}
    assert words("".join(browser.texts(".drafted"))) == words(drafted)
    send(browser, "one two three")  # in a new answer, too
    browser.wait(lambda: len(browser.all(".legend")) == 2)
    browser.click("#drafters")
    browser.wait(lambda: not browser.all(".drafted, .legend"))


def test_an_edited_answer_is_another_version_and_is_not_answered(browser: Browser, page: PageClient) -> None:
    chat = opened(browser, page, "Say something")
    browser.click(".turn.assistant [aria-label=Edit]")
    browser.replace(".editor", "My own *words*" + ENTER)
    browser.wait(lambda: browser.text(".turn.assistant .prose") == "My own words")
    assert answers(page, chat) == ["My own *words*"]
    browser.click("#chat-menu")
    browser.wait(lambda: browser.all(".menu button"))
    next(each for each in browser.all(".menu button") if "Branches" in each.text).click()
    browser.click(".branches button:not([aria-current])")
    browser.wait(lambda: browser.text(".turn.assistant .prose") != "My own words")
