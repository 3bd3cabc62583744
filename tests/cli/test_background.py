"""Output that a thread writes: no writer waits, as much as possible is kept, and the rest is counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgespec.cli.terminal.background import MOST_WAITING, BackgroundStream

LINE = "x" * 1023 + "\n"


@contextmanager
def background(descriptor: int, failures: list[str]) -> Iterator[BackgroundStream]:
    with (
        os.fdopen(descriptor, "w") as file,
        BackgroundStream(file, "{} lines are lost\n".format, failures.append) as stream,
    ):
        yield stream


def test_lines_that_nobody_reads_are_dropped_and_counted_once() -> None:
    reader, writer = os.pipe()
    failures: list[str] = []
    given = 2 * MOST_WAITING // len(LINE)
    with os.fdopen(reader) as source, background(writer, failures) as stream:
        for _ in range(given):
            stream.write(LINE)
        stream.write("the last of them\n")
        kept = 0
        while (line := source.readline()) == LINE:
            kept += 1
        assert line == f"{given + 1 - kept} lines are lost\n"
        stream.write("later\n")
        assert source.readline() == "later\n"
    assert kept >= MOST_WAITING // len(LINE)
    assert failures == []


def test_no_text_is_not_the_end_of_all_text() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, background(writer, []) as stream:
        for text in ("a\n", "", "b\n"):
            stream.write(text)
        assert [source.readline() for _ in range(2)] == ["a\n", "b\n"]


def test_a_reader_that_has_gone_is_reported_once() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    failures: list[str] = []
    with background(writer, failures) as stream:
        stream.write(LINE)
        stream.write(LINE)
    assert failures == [""]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_lines_wait_for_space_on_a_full_disk(tmp_path: Path) -> None:
    failed = threading.Event()
    failures: list[str] = []

    def hear(why: str) -> None:
        failures.append(why)
        failed.set()

    with Path("/dev/full").open("w") as full, (tmp_path / "log").open("w") as log:
        with BackgroundStream(full, str, hear) as stream:
            stream.write("first\n")
            assert failed.wait(60)
            stream.write("second\n")
            os.dup2(log.fileno(), full.fileno())  # now there is space
        assert (tmp_path / "log").read_text() == "first\nsecond\n"
    assert failures == ["No space left on device"]
