"""Programs that write to one store of chats at the same time, and programs that die while they write."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import store_writer
from talks import contents, talk

from edgespec.history import AnswerRecord, Store, TokenRecord, new_id

WRITER = [sys.executable, store_writer.__file__]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def in_the_making(file: Path) -> int:
    with closing(sqlite3.connect(file)) as db:
        return int(db.execute("SELECT count(*) FROM making").fetchone()[0])


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*WRITER, *map(str, arguments)], stdout=subprocess.PIPE, text=True, encoding="utf-8")


@pytest.mark.slow
def test_a_program_that_is_killed_loses_no_message_and_what_it_was_writing_is_marked(file: Path) -> None:
    chance = random.Random(20)
    with Store(file) as store:
        store.create("chat")
    finished: list[str] = []
    asked: list[str] = []
    for n_killed in range(1, 5):
        # The program is killed after this step, and may have done a few more.
        most = chance.randrange(1, 40)
        with start(file, "chat", f"writer {chance.random()}") as writer:
            assert writer.stdout is not None
            said = [next(writer.stdout) for _ in range(most)]
            writer.kill()
            said += writer.stdout
        steps = [line.split() for line in said if line.endswith("\n")]
        finished += [name for step, name in steps[1:] if step == "finished"]
        asked += [name for step, name in steps[1:] if step == "asked"]
        with Store(file) as store:
            turns = store.path(store.find("chat").head)
            stored = {turn.key: turn for turn in turns}
            assert not in_the_making(file)
            assert set(finished) | set(asked) <= set(stored)
            answers = [turn for turn in turns if turn.answer is not None]
            assert all(turn.role == "assistant" for turn in answers)
            whole = [turn.key for turn in answers if turn.answer and turn.answer.finish_reason == "stop"]
            # The last write may have happened without its report.
            assert set(finished) <= set(whole) and len(whole) <= len(finished) + 1
            finished = whole
            assert len(answers) - len(whole) <= n_killed
            for turn in answers:
                assert turn.answer is not None and turn.parent is not None
                text = store_writer.answer_to(int(stored[turn.parent].content.split()[-1]))
                if turn.answer.finish_reason == "stop":
                    assert turn.content == text
                else:
                    assert turn.answer.finish_reason == "interrupted"
                    assert turn.content and text.startswith(turn.content)
            with closing(sqlite3.connect(file)) as db:
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                db.execute("INSERT INTO message_words (message_words) VALUES ('integrity-check')")


def test_an_answer_of_a_dead_program_is_the_head_unless_the_chat_went_on(file: Path) -> None:
    with Store(file) as store:
        chat, [question] = talk(store, "q")
        other, [first] = talk(store, "p")
        for number, (name, parent) in enumerate([(chat, question), (other, first), (other, first)]):
            row = store.begin(name, parent.key, AnswerRecord(model="m", finish_reason="generating", seed=5))
            if number < 2:
                store.grow(row, "so f", [TokenRecord(1, "so"), TokenRecord(2, " f")])
        talk(store, "went on", chat=other, parent=first.key)
        went_on = store.find(other).head
    kill_the_writer(file)
    with Store(file) as store:
        [_, partial] = store.path(store.find(chat).head)
        assert (partial.role, partial.content, partial.parent) == ("assistant", "so f", question.key)
        assert partial.answer == AnswerRecord(model="m", finish_reason="interrupted", seed=5)
        assert store.pieces(partial.key) == [TokenRecord(1, "so"), TokenRecord(2, " f")]
        assert store.find(other).head == went_on
        assert len(store.branches(other)) == 2  # the empty answer is deleted
        assert [hit.key for hit in store.search("so f")][-1] == partial.key
    assert not in_the_making(file)


def kill_the_writer(file: Path) -> None:
    """Make unfinished answers belong to an earlier process with the same id."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE making SET started_s = started_s - 3600")
        db.commit()


def test_an_answer_of_a_running_program_is_left_alone(file: Path) -> None:
    with Store(file) as store, start(file, "chat", "writer") as writer:
        store.create("chat")
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.startswith("grown"):
                break
        chat, [question] = talk(store, "q")
        row = store.begin(chat, question.key, AnswerRecord())
        store.grow(row, "mine", ())
        with Store(file) as other:
            reasons = {turn.answer.finish_reason for turn in other.path(other.find("chat").head) if turn.answer}
            assert reasons <= {"stop"}
            assert contents(other.path(other.find(chat).head)) == ["q"]
        answer = store.finish(row, chat, question.key, "mine, whole", AnswerRecord())
        writer.kill()
        assert store.path(answer.key) == [question, answer]


def test_an_answer_that_is_dropped_or_finished_leaves_no_row(file: Path) -> None:
    with Store(file) as store:
        chat, [question] = talk(store, "q")
        store.drop(store.begin(chat, question.key, AnswerRecord()))
        row = store.begin(chat, question.key, AnswerRecord())
        store.grow(row, "par", ())
        for _ in range(2):
            answer = store.finish(
                row, chat, question.key, "partly", AnswerRecord(ids=(1, 2)), [TokenRecord(1, "partly")]
            )
        store.grow(row, "partly and", ())  # too late, and no error
        assert store.path(store.find(chat).head) == [question, answer]
        assert store.finish(None, chat, question.key, "at once", AnswerRecord()).parent == question.key
        store.remove([chat])
    assert not in_the_making(file)


def test_an_interrupted_answer_does_not_replace_the_same_one_that_was_whole(file: Path) -> None:
    with Store(file) as store:
        chat, [question] = talk(store, "q")
        whole = store.append(chat, question.key, "assistant", "a", AnswerRecord(model="m"))
        store.grow(store.begin(chat, question.key, AnswerRecord()), "a", ())
    kill_the_writer(file)
    with Store(file) as store:
        assert store.path(store.find(chat).head) == [question, whole]


def test_two_programs_in_one_chat_make_two_branches(file: Path) -> None:
    with Store(file) as store:
        chat, [turn] = talk(store, "where they part")
    writers = [start(file, chat, name, 15) for name in ("one", "two")]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    with Store(file) as store:
        branches = store.branches(chat)
        paths = [store.path(branch.leaf) for branch in branches]
        assert store.find(chat).head in {branch.leaf for branch in branches}
    # One program may have started when the other had finished.
    names = {f"{name} {number}" for name in ("one", "two") for number in range(15)}
    assert names <= {turn.content for path in paths for turn in path}
    assert all(path[0] == turn for path in paths)
    assert len(paths) == 2 or len(paths[0]) == 61


def test_programs_that_open_a_new_store_at_once_all_get_it(file: Path) -> None:
    code = "import sys, pathlib, edgespec.history as s; s.Store(pathlib.Path(sys.argv[1])).create(sys.argv[2])"
    programs = [subprocess.Popen([sys.executable, "-c", code, str(file), f"chat{number}"]) for number in range(4)]
    assert [program.wait() for program in programs] == [0] * 4
    with Store(file) as store:
        assert len(store.chats()) == 4


def test_threads_share_one_store(file: Path) -> None:
    with Store(file) as store:
        chats = [new_id() for _ in range(4)]

        def write(chat: str) -> None:
            store.create(chat)
            parent = None
            for number in range(25):
                parent = store.append(chat, parent, "user", f"{chat} {number}").key
                assert store.search(f"{chat} {number}")

        threads = [threading.Thread(target=write, args=(chat,)) for chat in chats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for chat in chats:
            assert contents(store.path(store.find(chat).head)) == [f"{chat} {number}" for number in range(25)]


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="nobody can be kept waiting here")
def test_a_dead_program_whose_parent_has_not_looked_yet_is_dead(file: Path) -> None:
    with Store(file) as store:
        store.create("chat")
    writer = start(file, "chat", "writer")
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.startswith("grown"):
            break
    writer.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    with Store(file):
        assert not in_the_making(file)
    writer.communicate()
