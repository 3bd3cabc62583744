"""The store of chats: saved messages are read again, branches and forks share messages, every word is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import ANSWER, PIECES, contents, talk

from edgespec.errors import UsageError
from edgespec.history import AnswerRecord, Store, UnknownChatError, new_id
from edgespec.history.data import valid_text
from edgespec.history.search import BEGIN, END, found_in, spans


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


def count(store: Store, table: str) -> int:
    """Return the rows of a table, read through another connection."""
    assert store.file is not None
    db = sqlite3.connect(store.file)
    try:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    finally:
        db.close()


def test_what_was_said_is_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        chat, [question] = talk(store, "what?")
        answer = store.append(chat, question.key, "assistant", "that", ANSWER, PIECES[:2])
        assert answer.answer == ANSWER
    with Store(tmp_path / "chats.db") as store:
        assert store.path(answer.key) == [question, answer]
        assert store.pieces(answer.key) == list(PIECES[:2])
        assert not store.pieces(question.key)
        [info] = store.chats()
        assert (info.id, info.title, info.head, info.n_turns, info.model) == (
            chat, "what?", answer.key, 2, "target.gguf",
        )  # fmt: skip
        assert info.created_s <= question.created_s <= answer.created_s == info.updated_s


@pytest.mark.parametrize(
    "text",
    ["", "a\0b", "'; DROP TABLE chat; --", '"quoted"', "日本語 🦜 e\u0301", "\x1b[31m\x02\x03\r\n", "x" * (1 << 20)],
    ids=["empty", "NUL", "SQL", "quotes", "unicode", "control", "1 MB"],
)
def test_any_text_comes_back_as_it_was(store: Store, text: str) -> None:
    chat, turns = talk(store, text, text)
    assert store.path(store.find(chat).head) == turns
    assert contents(turns) == [text, text]


def test_halves_of_characters_are_replaced(store: Store) -> None:
    chat, [turn] = talk(store, "a\ud800b \ud83d\ude00")
    assert turn.content == "a\ufffdb \U0001f600"
    assert store.path(store.find(chat).head) == [turn]
    store.append(chat, turn.key, "assistant", "b", ANSWER, PIECES)
    head = store.find(chat).head
    assert head is not None
    assert store.pieces(head) == list(PIECES)


def test_to_say_the_same_again_adds_nothing(store: Store) -> None:
    chat, turns = talk(store, "a", "b")
    assert talk(store, "a", "b", chat=chat)[1] == turns
    store.create(chat)
    assert count(store, "message") == 2
    assert [info.id for info in store.chats()] == [chat]


def test_the_same_text_elsewhere_is_another_message(store: Store) -> None:
    keys = {turn.key for _ in range(2) for turn in talk(store, "a", "a", "a")[1]}
    assert len(keys) == 6


def test_the_title_is_the_first_line_of_what_the_user_said_first(store: Store) -> None:
    chat = new_id()
    store.create(chat)
    system = store.append(chat, None, "system", "be brief")
    talk(store, "\n  how  do I\nbake", "so", "and then", chat=chat, parent=system.key)
    assert store.find(chat).title == "how do I"
    store.rename(chat, "bread\n")
    talk(store, "something else", chat=chat, parent=system.key)
    assert store.find(chat).title == "bread"
    long, _ = talk(store, "word " * 50)
    title = store.find(long).title
    assert len(title) <= 60 and title.endswith("…")


def test_settings_and_preferences_are_kept(store: Store) -> None:
    chat = new_id()
    store.create(chat, {"temp": 1.5}, "named")
    assert store.chat_settings(chat) == {"temp": 1.5}
    store.save_settings(chat, {"pace": None})
    assert store.chat_settings(chat) == {"pace": None}
    assert store.find(chat).title == "named"
    assert store.preference("theme") is None
    for theme in ("dark", "light"):
        store.set_preference("theme", theme)
        assert store.preference("theme") == theme


def test_chats_are_listed_with_the_last_used_first(store: Store) -> None:
    first, second, third = (talk(store, text)[0] for text in ("one", "two", "three"))
    store.append(first, store.find(first).head, "assistant", "1")
    assert [chat.id for chat in store.chats()] == [first, third, second]
    assert [chat.id for chat in store.chats(limit=2)] == [first, third]
    assert store.find("last").id == first


def test_a_chat_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    with pytest.raises(UnknownChatError, match="no chat yet"):
        store.find("last")
    for chat in ("abc1", "abc2", "abc"):
        store.create(chat)
    assert store.find("abc1").id == "abc1"
    assert store.find("abc").id == "abc"
    for name, reason in (("ab", "3 chats begin with 'ab'"), ("x", "no chat 'x'"), ("", "no chat ''"), ("%", "no chat")):
        with pytest.raises(UnknownChatError, match=reason) as error:
            store.find(name)
        assert isinstance(error.value, UsageError)
        assert error.value.exit_code == 2


def test_what_is_not_there_cannot_be_used(store: Store) -> None:
    chat, [turn] = talk(store, "a")
    other, _ = talk(store, "b")
    for fails in (
        lambda: store.append("x", None, "user", "a"),
        lambda: store.append(chat, "x", "user", "a"),
        lambda: store.append(other, turn.key, "user", "a"),
        lambda: store.begin(other, turn.key, AnswerRecord()),
        lambda: store.set_head(other, turn.key),
        lambda: store.siblings(other, turn.key),
        lambda: store.fork(other, turn.key),
        lambda: store.path("x"),
        lambda: store.rename("x", "y"),
    ):
        with pytest.raises(UnknownChatError, match="there is no"):
            fails()
    assert store.path(None) == []


def test_answering_again_and_editing_make_branches(store: Store) -> None:
    chat, [question, first, *_, last] = talk(store, "q", "a1", "more", "yes")
    second = store.append(chat, question.key, "assistant", "a2")
    edited = store.append(chat, None, "user", "other q")
    assert store.siblings(chat, first.key) == store.siblings(chat, second.key) == [first.key, second.key]
    assert store.siblings(chat, edited.key) == [question.key, edited.key]
    assert store.latest_leaf(chat, question.key) == second.key
    assert store.latest_leaf(chat, first.key) == last.key
    branches = store.branches(chat)
    assert [(branch.leaf, branch.n_turns, branch.preview, branch.is_current) for branch in branches] == [
        (edited.key, 1, "other q", True),
        (second.key, 2, "a2", False),
        (last.key, 4, "yes", False),
    ]
    store.set_head(chat, last.key)
    assert contents(store.path(store.find(chat).head)) == ["q", "a1", "more", "yes"]
    store.set_head(chat, question.key)
    assert not any(branch.is_current for branch in store.branches(chat))
    store.set_head(chat, None)
    assert (store.find(chat).head, store.find(chat).n_turns) == (None, 0)


def test_a_preview_leaves_out_what_was_thought(store: Store) -> None:
    chat, _ = talk(store, "q", "<think>hm\n\nso</think>\n\nthe answer\nand more")
    assert [branch.preview for branch in store.branches(chat)] == ["the answer"]


def test_a_fork_copies_no_message_and_goes_its_own_way(store: Store) -> None:
    chat, turns = talk(store, "q", "a", "more", "yes")
    store.save_settings(chat, {"temp": 0.1})
    fork = store.fork(chat, turns[1].key, "the fork")
    assert count(store, "message") == 4
    info = store.find(fork)
    assert (info.title, info.head, info.n_turns) == ("the fork", turns[1].key, 2)
    assert store.chat_settings(fork) == {"temp": 0.1}
    [own] = talk(store, "instead", chat=fork, parent=turns[1].key)[1]
    assert store.siblings(fork, own.key) == [own.key]
    assert store.siblings(chat, turns[2].key) == [turns[2].key]
    assert store.latest_leaf(chat, turns[0].key) == turns[3].key
    assert store.latest_leaf(fork, turns[0].key) == own.key
    assert [branch.leaf for branch in store.branches(chat)] == [turns[3].key]


def test_removing_a_chat_leaves_what_others_share(store: Store) -> None:
    chat, turns = talk(store, "shared", "also", "gone", "gone too")
    store.append(chat, turns[0].key, "assistant", "other branch", ANSWER, PIECES)
    fork = store.fork(chat, turns[1].key)
    assert store.remove([chat, "unknown"]) == 1
    assert contents(store.path(store.find(fork).head)) == ["shared", "also"]
    assert (count(store, "message"), count(store, "member"), count(store, "answer")) == (2, 2, 0)
    assert not store.search("gone") and [hit.chat for hit in store.search("shared")] == [fork]
    assert store.remove([fork]) == 1
    assert [count(store, table) for table in ("chat", "message", "member", "answer")] == [0, 0, 0, 0]


STEP = st.tuples(st.sampled_from(["say", "say", "say", "fork", "remove", "head"]), st.integers(0, 9), st.integers(0, 2))


@settings(max_examples=25, deadline=None)
@given(st.lists(STEP, max_size=30))
def test_the_store_agrees_with_a_simple_model_of_it(steps: list[tuple[str, int, int]]) -> None:
    parents: dict[str, str | None] = {}
    chats: dict[str, tuple[set[str], str | None]] = {}  # members and head

    def path(key: str | None) -> list[str]:
        return [*path(parents[key]), key] if key is not None else []

    with Store.in_memory() as store:
        for what, which, text in steps:
            if not chats:
                store.create(chat := new_id())
                chats[chat] = (set(), None)
            chat = list(chats)[which % len(chats)]
            members, head = chats[chat]
            keys = [None, *sorted(members)]
            key = keys[which % len(keys)]
            if what == "say":
                turn = store.append(chat, key, "user", str(text))
                parents[turn.key] = key
                chats[chat] = (members | {turn.key}, turn.key)
            elif what == "fork":
                chats[store.fork(chat, key)] = (set(path(key)), key)
            elif what == "head":
                store.set_head(chat, key)
                chats[chat] = (members, key)
            else:
                store.remove([chat])
                del chats[chat]
        assert {chat.id: chat.head for chat in store.chats()} == {chat: head for chat, (_, head) in chats.items()}
        for chat, (members, head) in chats.items():
            assert [turn.key for turn in store.path(head)] == path(head)
            above = {parents[key] for key in members}
            assert {branch.leaf for branch in store.branches(chat)} == members - above
            assert {branch.n_turns for branch in store.branches(chat)} == {len(path(leaf)) for leaf in members - above}
            for key in members:
                siblings = {other for other in members if parents[other] == parents[key]}
                assert set(store.siblings(chat, key)) == siblings
                assert key in path(store.latest_leaf(chat, key))
        found = {hit.key for text in "012" for hit in store.search(text, limit=10**6)}
        assert found == set().union(*(members for members, _ in chats.values()))


LIBRARY = ("The quick brown fox", "c++ and cat, foo-bar", "Übergröße NEAR the café", "JavaScript", "日本語の文章")


@pytest.fixture(scope="module")
def library() -> Iterator[tuple[Store, str]]:
    """A chat that grows with every example."""
    with Store.in_memory() as store:
        store.create("all")
        for text in (
            "The quick brown fox",
            "c++ and cat, foo-bar",
            "Übergröße NEAR the café",
            "JavaScript",
            "日本語の文章",
        ):
            store.append("all", None, "user", text)
        yield store, "all"


SIGNS = st.sampled_from(
    ["\0", '"', "'", "*", "(", ")", ":", "^", "-", " NEAR ", " OR ", "\ud800", "%", "_", "\\", BEGIN]
)
OTHERS = st.characters(categories=["Lo", "Mn", "Nd", "So", "Cs"])
TEXT = st.lists(st.text(max_size=8) | SIGNS | OTHERS, max_size=12).map("".join)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(TEXT)
def test_whatever_was_said_is_found_by_its_words(library: tuple[Store, str], text: str) -> None:
    store, chat = library
    key = store.append(chat, None, "user", text).key
    words = valid_text(text).replace("\0", " ").split()
    for query in [text, *words]:
        hits = store.search(query, limit=10**6)
        assert (key in {hit.key for hit in hits}) == bool(words)
        assert (chat in {info.id for info in store.chats(query=query)}) or not words
        for hit in hits:
            assert hit.snippet.count(BEGIN) == hit.snippet.count(END)
            assert "\n" not in hit.snippet


@settings(max_examples=25, deadline=None)
@given(TEXT)
def test_nothing_that_is_typed_is_an_error(library: tuple[Store, str], query: str) -> None:
    store, _ = library
    assert isinstance(store.search(query), list)
    assert isinstance(store.chats(query=query), list)


@pytest.mark.parametrize(
    ("query", "snippets"),
    [
        ("quick", ["The <quick> brown fox"]),
        ("brown QUI", ["The <qui>ck <brown> fox"]),
        ("qui fox", ["The <qui>ck brown <fox>"]),  # a part of a word
        ("uick bro", ["The q<uick> <bro>wn fox"]),
        ("c++", ["<c++> and cat, foo-bar"]),
        ("foo-b", ["c++ and cat, <foo-b>ar"]),
        ("foo+bar", []),
        ("ubergroße", ["<Übergröße> NEAR the café"]),
        ("cafe near", ["Übergröße <NEAR> the <café>"]),
        ("GRÖSSE", ["Übergröße NEAR the café"]),
        ("script", ["Java<Script>"]),
        ("文章", ["日本語の<文章>"]),
        ("+", ["c<+><+> and cat, foo-bar"]),
        ("quick OR cat", []),
        ("", []),
        (" \n", []),
    ],
)
def test_how_words_are_found(query: str, snippets: list[str]) -> None:
    with Store.in_memory() as store:
        talk(store, *LIBRARY)
        found = [hit.snippet.replace(BEGIN, "<").replace(END, ">") for hit in store.search(query)]
        assert found == snippets


def test_a_long_message_is_shown_around_what_was_found(store: Store) -> None:
    chat, turns = talk(store, "before " * 300 + "\n\nneedle\x02 " + "after " * 300, "x" * 300 + "hay" + "y" * 300)
    [hit] = store.search("needle")
    assert (hit.chat, hit.key, hit.role, hit.title) == (chat, turns[0].key, "user", store.find(chat).title)
    assert "before \x02needle\x03 after" in hit.snippet and len(hit.snippet) < 300
    [hit] = store.search("hay")
    assert hit.snippet.startswith("…x") and f"{BEGIN}hay{END}" in hit.snippet and len(hit.snippet) < 300


def test_chats_are_found_by_title_and_by_text(store: Store) -> None:
    bread, _ = talk(store, "how to bake", "with flour")
    store.rename(bread, "Bread")
    cake, turns = talk(store, "another thing", "with flour and sugar")
    fork = store.fork(cake, turns[-1].key)
    found = {
        query: [chat.id for chat in store.chats(query=query)] for query in ("bre", "flour", "sugar", "bread sugar")
    }
    assert found == {"bre": [bread], "flour": [fork, cake, bread], "sugar": [fork, cake], "bread sugar": []}
    assert [hit.chat for hit in store.search("flour")] == [cake, bread]
    assert [hit.chat for hit in store.search("flour", limit=1)] == [cake]


def test_a_store_in_memory_is_gone_with_the_program() -> None:
    with Store.in_memory() as store:
        talk(store, "a")
        assert store.file is None
    with Store.in_memory() as store:
        assert not store.chats()


# --- in order ---------------------------------------------------------------------------------------------------------


def test_chats_are_pinned_and_put_into_folders(store: Store) -> None:
    first, second, third = (started(store, text) for text in ("one", "two", "three"))
    store.pin(first, True)
    store.move(second, " the  work ")
    assert [chat.title for chat in store.chats(2)] == ["three", "two"]
    assert [chat.title for chat in store.chats(2, order="pinned")] == ["one", "three"]
    assert [chat.title for chat in store.chats(order="folders")] == ["one", "two", "three"]
    assert [chat.title for chat in store.chats(query="t", order="folders")] == ["two", "three"]
    assert store.find("last").id == third
    assert (store.find(first).is_pinned, store.find(second).folder, store.folders()) == (True, "the work", ["the work"])
    fork = store.fork(second, store.find(second).head)
    assert store.find(fork).folder == "the work"
    store.pin(first, False)
    store.move(second, "")
    assert not store.find(first).is_pinned and not store.find(second).folder


def started(store: Store, text: str) -> str:
    chat = new_id()
    store.create(chat)
    store.append(chat, None, "user", text)
    return chat


@pytest.mark.parametrize(
    ("query", "content", "marked"),
    [
        ("sky blue", "The SKY is blue, skylike; bluer", ["SKY", "blue", "sky", "blue"]),
        ("cafe", "Ein Café, zwei Cafés", ["Café", "Café"]),
        ("walr", "the walrus", ["walr"]),
        ("alrus", "the walrus", ["alrus"]),
        ("a.b", "a.b and axb", ["a.b"]),
        ("字", "漢字と字", ["字", "字"]),
        ("", "anything", []),
    ],
)
def test_what_was_found_is_marked_in_a_message(query: str, content: str, marked: list[str]) -> None:
    pattern = found_in(query)
    assert [content[start:end] for start, end in (spans(pattern, content) if pattern else [])] == marked
