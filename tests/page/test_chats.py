"""The chats of the page: answers, branches, changes, files and search, over the store that the terminal has."""

from __future__ import annotations

import base64
import time
from itertools import islice
from pathlib import Path

import pytest
from page_client import PageClient, View, of, text_of

from edgespec.chat.session import Session
from edgespec.history import Store

pytestmark = [pytest.mark.native, pytest.mark.cli]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def texts(chat: View) -> list[str]:
    return [turn["text"] for turn in chat["turns"]]


def test_a_new_chat_is_streamed_and_saved_as_the_terminal_saves_it(page: PageClient) -> None:
    events = page.answer(chat=None, text="Hello", settings={"temp": "0", "max-tokens": "12"})
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["chat", "turn"]
    assert kinds[-1] == "end"
    assert set(kinds[2:-1]) == {"reading", "token"}
    *_, last = events
    assert last["turn"]["text"] == text_of(events)
    assert (last["turn"]["end"], last["turn"]["stats"]["tokens"]) == ("cut off at the token limit", 12)
    with Store() as store:  # another program of this user
        info = store.find(last["chat"]["id"])
        turns = store.path(info.head)
        assert [turn.role for turn in turns] == ["user", "assistant"]
        assert turns[-1].content == text_of(events)
        assert turns[-1].answer is not None
        assert len(turns[-1].answer.ids) == 12
        assert store.chat_settings(info.id)["model"] == "demo"


def test_the_page_continues_a_chat_of_the_terminal_with_its_settings(page: PageClient) -> None:
    session = page.chats.session(page.server.pool._places["demo"].offer, None, page.server.served)
    session.chat.change({"temp": "0", "max-tokens": "8"})
    session.chat.set_system("Be brief.")
    list(session.ask("First"))
    chat = page.get("chat", id=session.chat.id)
    assert (chat["system"], chat["settings"]) == ("Be brief.", {"temp": "0.0", "max-tokens": "8"})
    assert chat["model"] == "demo"
    events = page.answer(chat=chat["id"], text="Second")
    assert len(of(events, "token")) <= 8
    assert len(page.get("chat", id=chat["id"])["turns"]) == 4


def test_the_same_seed_gives_the_text_that_the_terminal_gives(page: PageClient) -> None:
    settings = {"temp": "0.9", "seed": "7", "max-tokens": "16"}
    events = page.answer(chat=None, text="Tell me", settings=settings)
    session: Session = page.chats.session(page.server.pool._places["demo"].offer, None, page.server.served)
    session.chat.change(settings | {"pace": "off"})
    list(session.ask("Tell me"))
    assert session.chat.turns[-1].content == text_of(events)


def test_an_answer_is_regenerated_edited_and_continued_as_branches(page: PageClient) -> None:
    chat = page.ask("One")
    first, answer = chat["turns"]
    page.answer(chat=chat["id"], action="regenerate", key=answer["key"], settings={"temp": "1.5", "seed": "3"})
    both = page.get("chat", id=chat["id"])
    assert len(both["turns"][1]["versions"]) == 2
    page.answer(chat=chat["id"], action="edit", key=first["key"], text="Two", settings={"max-tokens": "3"})
    edited = page.get("chat", id=chat["id"])
    assert edited["turns"][0]["text"] == "Two"
    assert edited["turns"][0]["versions"] == [first["key"], edited["turns"][0]["key"]]
    page.answer(chat=chat["id"], action="continue", settings={"max-tokens": "4"})
    longer = page.get("chat", id=chat["id"])["turns"][1]["text"]
    assert longer.startswith(edited["turns"][1]["text"])
    assert longer != edited["turns"][1]["text"]
    assert len(page.get("branches", id=chat["id"])["branches"]) == 4
    back = page.post("chat", id=chat["id"], action="switch", key=answer["key"])
    assert texts(back) == texts(chat)


def test_an_answer_that_is_closed_is_saved_as_far_as_it_was(page: PageClient) -> None:
    with page.stream(chat=None, text="Count", settings={"regex": "[a-z]{4000}", "max-tokens": "1500"}) as events:
        begun = list(islice(events, 8))
    chat = begun[0]["id"]
    for _ in range(200):
        if len(turns := page.get("chat", id=chat)["turns"]) == 2:
            break
        time.sleep(0.05)
    assert turns[1]["end"] == "stopped by you"
    assert turns[1]["text"].startswith(text_of(begun))
    assert page.server.served.n_open == 0


def test_changes_of_a_chat(page: PageClient) -> None:
    chat = page.ask("Hello")
    id = chat["id"]
    assert page.post("chat", id=id, action="rename", title="A title")["title"] == "A title"
    page.post("chat", id=id, action="pin", pinned=True)
    page.post("chat", id=id, action="move", folder="Work")
    [info] = [each for each in page.get("chats")["chats"] if each["id"] == id]
    assert (info["title"], info["pinned"], info["folder"], info["turns"]) == ("A title", True, "Work", 2)
    changed = page.post("chat", id=id, action="set", settings={"temp": "0.5"})
    assert changed["settings"] == {"temp": "0.5", "max-tokens": "12"}
    assert page.post("chat", id=id, action="system", system="Be kind.")["system"] == "Be kind."
    fork = page.post("chat", id=id, action="fork", key=chat["turns"][0]["key"])
    assert (fork["id"] != id, texts(fork)) == (True, ["Hello"])
    undone = page.post("chat", id=id, action="undo")
    assert (undone["text"], undone["turns"]) == ("Hello", [])
    assert page.post("chat", id=id, action="delete") == {"deleted": id}
    assert page.get("chat", 400, id=id)["error"]["message"].startswith("there is no chat")
    assert page.get("chat", id=fork["id"])["turns"]


def test_a_chat_is_changed_by_the_beginning_of_its_id(page: PageClient) -> None:
    id = page.ask("Hello")["id"]
    page.post("chat", id=id[:8], action="pin")
    page.post("chat", id=id[:8], action="move", folder="Work")
    [info] = [each for each in page.get("chats")["chats"] if each["id"] == id]
    assert (info["pinned"], info["folder"]) == (True, "Work")
    assert page.post("chat", id=id[:8], action="delete") == {"deleted": id}
    assert page.get("chat", 400, id=id)["error"]["message"].startswith("there is no chat")


def test_a_chat_that_is_answered_is_not_deleted(page: PageClient) -> None:
    with page.stream(chat=None, text="Count", settings={"regex": "[a-z]{4000}", "max-tokens": "1500"}) as events:
        id = next(events)["id"]
        next(event for event in events if event["type"] == "token")
        error = page.post("chat", 400, id=id, action="delete")["error"]
        assert "being answered" in error["message"]
    for _ in range(200):
        if page.server.served.n_open == 0:
            break
        time.sleep(0.05)
    page.post("chat", id=id, action="delete")
    assert id not in [each["id"] for each in page.get("chats")["chats"]]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"action": "burn"}, "action must be rename"),
        ({"action": "set", "settings": {"temperatur": "1"}}, "unknown setting"),
        ({"action": "set", "settings": {"temp": 1}}, "settings.temp must be a string"),
        ({"action": "set", "settings": {"temp": "-1"}}, "temp must be"),
        ({"action": "switch", "key": "nothing"}, "no message"),
        ({"action": "fork", "key": "nothing"}, "no such message"),
    ],
)
def test_wrong_changes_are_refused(page: PageClient, body: View, why: str) -> None:
    chat = page.ask("Hello")["id"]
    assert why in page.post("chat", 400, id=chat, **body)["error"]["message"]
    assert len(page.get("chat", id=chat)["turns"]) == 2


@pytest.mark.parametrize(("name", "text"), [("grammar", 'root ::= "a"'), ("json-schema", '{"const": "a"}')])
def test_constraints_are_texts_and_no_files_of_the_server(
    page: PageClient, tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / "constraint"
    file.write_text(text)
    id = page.ask("Hello")["id"]
    requests: list[tuple[str, View]] = [
        ("chat", {"id": id, "action": "set", "settings": {name: str(file)}}),
        ("answer", {"chat": id, "text": "x", "settings": {name.replace("-", "_"): f" {file}"}}),
        ("race", {"chat": id, "text": "x", "sides": ["", f"{name}={file}"]}),
    ]
    for path, body in requests:
        assert "reads no files" in page.post(path, 400, **body)["error"]["message"]
    assert name in page.post("chat", id=id, action="set", settings={name: text})["settings"]
    assert name not in page.post("chat", id=id, action="set", settings={name: "none"})["settings"]


def test_wrong_answers_are_refused_before_anything_is_saved(page: PageClient) -> None:
    chat = page.ask("Hello")["id"]
    for body in ({"action": "sing"}, {"action": "edit", "key": "x"}, {"files": 3}, {"settings": {"pace": "fast"}}):
        assert page.server.posted("/page/answer", {"chat": chat, "text": "More"} | body, 400)["error"]
    assert page.server.posted("/page/answer", {"chat": "nothing", "text": "x"}, 400)["error"]
    assert page.server.posted("/page/answer", {"model": "nothing", "text": "x"}, 404)["error"]
    assert len(page.get("chat", id=chat)["turns"]) == 2


def test_a_message_that_is_too_long_is_refused(page: PageClient) -> None:
    error = page.post("answer", 400, chat=None, text="word " * 20_000)["error"]
    assert "the context holds" in error["message"]


def test_files_become_part_of_the_message(page: PageClient) -> None:
    table = page.post("files", name="a.csv", data=base64.b64encode(b"a,b\n1,2\n").decode())
    assert (table["kind"], table["text"]) == ("text", "a,b\n1,2")
    chat = page.ask("What is b?", files=[{name: table[name] for name in ("name", "about", "text")}])
    [file] = chat["turns"][0]["files"]
    assert (file["name"], file["bytes"]) == ("a.csv", 7)
    assert chat["turns"][0]["text"] == "What is b?"
    with Store() as store:
        assert "1,2" in store.path(store.find(chat["id"]).head)[0].content


@pytest.mark.parametrize(("name", "shown"), [("Makefile", "./Makefile"), ("a\nb.csv", "a b.csv"), ("notes", "./notes")])
def test_files_with_odd_names_stay_apart_from_the_text(page: PageClient, name: str, shown: str) -> None:
    read = page.post("files", name=name, data=base64.b64encode(b"all: it").decode())
    turn = page.ask("What is it?", files=[{key: read[key] for key in ("name", "about", "text")}])["turns"][0]
    assert ([file["name"] for file in turn["files"]], turn["text"]) == ([shown], "What is it?")


def test_an_image_is_kept_and_shown(page: PageClient) -> None:
    kept = page.post("files", name="dot.png", data=base64.b64encode(PNG).decode())
    assert (kept["kind"], kept["about"]) == ("image", "1x1")
    with page.server.client() as client:
        response = client.get("/page/image", params={"name": kept["image"]})
    assert (response.content, response.headers["content-type"]) == (PNG, "image/png")
    error = page.post("answer", 400, chat=None, text="What is it?", files=[{"name": "dot.png", "image": kept["image"]}])
    assert "image" in error["error"]["message"]  # this model has no projector
    for name in ("../../chats.db", "0" * 64, ""):
        assert "not here" in page.get("image", 400, name=name)["error"]["message"]


@pytest.mark.parametrize(
    ("data", "why"), [("?", "base64"), ("é", "base64"), (base64.b64encode(b"\0\1\2\xff" * 9).decode(), "binary")]
)
def test_files_that_cannot_be_read_say_why(page: PageClient, data: str, why: str) -> None:
    assert why in page.post("files", 400, name="thing.txt", data=data)["error"]["message"]


def test_search_finds_messages_of_all_chats(page: PageClient) -> None:
    chat = page.ask("A xylophone is rare")
    found = page.get("chats", query="xylophone")
    assert [each["id"] for each in found["chats"]] == [chat["id"]]
    [hit] = [each for each in found["hits"] if each["role"] == "user"]
    assert (hit["key"], "\x02xylophone\x03" in hit["snippet"]) == (chat["turns"][0]["key"], True)
    assert len(page.get("chats", limit="1")["chats"]) == 1
    assert page.get("chats", limit="9" * 5000)["chats"]


def test_the_tokens_of_an_answer_have_their_drafters(page: PageClient) -> None:
    chat = page.ask("Say it: one two three one two three one two three", settings={"max-tokens": "24"})
    answer = chat["turns"][1]
    tokens = page.get("tokens", chat=chat["id"], key=answer["key"])["tokens"]
    assert "".join(text for text, _, _ in tokens) == answer["text"]
    counts = {name: sum(drafter == name for _, drafter, _ in tokens) for name in answer["stats"]["drafters"]}
    assert counts == answer["stats"]["drafters"]


def test_a_race_answers_twice_and_compares(page: PageClient) -> None:
    settings = {"temp": "0", "max-tokens": "24", "pace": "fixed:4"}
    events = page.answer("race", chat=None, text="One two one two one two one two", settings=settings)
    lanes = [event for event in of(events, "token") if event["lane"] == 0]
    others = [event for event in of(events, "token") if event["lane"] == 1]
    assert text_of(lanes) == text_of(others)
    assert {event["drafter"] for event in others} == {""}
    assert [event["title"] for event in of(events, "lane")] == ["current settings", "without drafting"]
    [result] = of(events, "result")
    assert result["differs_at"] is None
    assert events[-1]["turn"]["text"] == text_of(lanes)
    drafted, plain = (lane["stats"] for lane in result["lanes"])
    assert events[-1]["turn"]["stats"]["passes"] == drafted["passes"] < plain["passes"]
    chat = page.get("chat", id=events[-1]["chat"]["id"])
    kept = chat["turns"][1]
    assert kept["stats"]["drafters"] == drafted["drafters"]
    tokens = page.get("tokens", chat=chat["id"], key=kept["key"])["tokens"]
    assert sum(drafter != "" for _, drafter, _ in tokens) == drafted["accepted"] > 0
    assert "".join(text for text, _, _ in tokens) == kept["text"]
    error = page.post("race", 400, chat=None, text="x", sides=["", "demo:draft"])["error"]
    assert "one model" in error["message"]


def test_files_are_sent_with_the_message_of_a_race(page: PageClient) -> None:
    files = [{"name": "a.csv", "about": "1 row", "text": "a,b\n1,2"}]
    events = page.answer("race", chat=None, text="What is b?", files=files, settings={"max-tokens": "4"})
    chat = page.get("chat", id=events[-1]["chat"]["id"])
    assert [file["name"] for file in chat["turns"][0]["files"]] == ["a.csv"]
    assert chat["turns"][0]["text"] == "What is b?"


def test_an_export_is_that_of_the_terminal(page: PageClient) -> None:
    chat = page.ask("Hello")
    with page.server.client() as client:
        response = client.get("/page/export", params={"id": chat["id"]})
        assert response.text.startswith("<!-- a chat exported by edgespec -->")
        assert chat["turns"][1]["text"].strip() in response.text
        assert client.get("/page/export", params={"id": chat["id"], "format": "exe"}).status_code == 400


def test_the_state_lists_models_and_settings(page: PageClient) -> None:
    state = page.get("state")
    assert [model["name"] for model in state["models"]] == ["demo"]
    assert (state["models"][0]["state"], state["system"]) == ("loaded", "")
    assert {setting["name"] for setting in state["settings"]} >= {"temp", "max-tokens", "pace"}
