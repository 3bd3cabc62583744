"""Kills chats at random moments and looks at what is left.

    .venv/bin/python scripts/kill_chat.py --times 20

Half of the runs kill the whole program, half the process with the model, each with SIGKILL somewhere between its start
and the middle of its fifth answer. Whatever was finished has to be in the store, what was not has to be marked, and no
process may be left over. POSIX only. Exits with 1 at the first loss.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from edgespec.history import Store, Turn

MARK = b"Leave the chat.\n"  # what /help bye prints: the answer before it is finished
GONE_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-m", "--model", default="demo")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    counts = {"finished": 0, "marked": 0}
    for number in range(2 * options.times):
        whole = number % 2 == 0
        with tempfile.TemporaryDirectory() as home:
            # Without its first model a chat that reads a pipe ends, so a worker is killed once it answers.
            answers = not whole or chance.random() < 0.7
            after_s = chance.uniform(0.0, 4.0)
            finished, turns = killed(Path(home), options.model, after_s, whole=whole, answers=answers)
        problem = what_is_lost(finished, turns, whole=whole)
        kind = "program" if whole else "worker"
        marked = bool(turns) and turns[-1].answer is not None and turns[-1].answer.finish_reason == "interrupted"
        counts["finished"] += finished
        counts["marked"] += marked
        print(
            f"{number + 1:3} {kind:8} {finished} finished, {len(turns)} kept{', the last one marked' * marked}",
            flush=True,
        )
        if problem:
            sys.exit(f"LOST: {problem}")
    print(f"{2 * options.times} kills, {counts['finished']} finished answers all there, {counts['marked']} marked")


def killed(home: Path, model: str, after_s: float, *, whole: bool, answers: bool) -> tuple[int, list[Turn]]:
    """Kill so long after the start, or after the first words of an answer. How many answers were finished, also after
    the kill where the chat goes on, and what the store has."""
    environ = os.environ | {"EDGESPEC_HOME": str(home)}
    command = [
        sys.executable,
        "-m",
        "edgespec",
        "chat",
        "-m",
        model,
        "-n",
        "400",
        "-t",
        "1",
        "-l",
        "2-inf",
        "--seed",
        "1",
    ]
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    )
    heard = Hearing(program)
    family = psutil.Process(program.pid)
    say(program, *(f"question {number}\n/help bye" for number in range(5)))
    while answers and not heard.text and program.poll() is None:
        time.sleep(0.01)
    time.sleep(after_s)
    with suppress(psutil.NoSuchProcess):
        processes = [family, *family.children(recursive=True)]
        if whole:
            program.kill()
        else:
            for process in processes[1:]:
                with suppress(psutil.NoSuchProcess):
                    if "spawn_main" in " ".join(process.cmdline()):
                        process.kill()
            say(program, "/restart 1", "go on", "/help bye", "/bye")
    program.wait(60)
    heard.join(10)
    left = psutil.wait_procs([process for process in processes if process.pid != program.pid], timeout=GONE_S)[1]
    if left:
        sys.exit(f"LEFT OVER: {left}")
    with Store(home / "data" / "chats.db") as store:
        chats = store.chats()
        return heard.text.count(MARK), store.path(chats[0].head) if chats else []


class Hearing(threading.Thread):
    """Collects what a program says."""

    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._program, self.text = program, b""
        self.start()

    def run(self) -> None:
        assert self._program.stdout is not None
        while data := os.read(self._program.stdout.fileno(), 65536):
            self.text += data


def say(program: subprocess.Popen[bytes], *lines: str) -> None:
    assert program.stdin is not None
    with suppress(BrokenPipeError):
        for line in lines:
            program.stdin.write(f"{line}\n".encode())
        program.stdin.flush()


def what_is_lost(finished: int, turns: list[Turn], *, whole: bool) -> str:
    """What should be there and is not; empty where all is."""
    reasons = [turn.answer.finish_reason if turn.answer else "" for turn in turns if turn.role == "assistant"]
    whole_ones = sum(reason in ("length", "stop") for reason in reasons)
    if whole and whole_ones < finished:
        return f"{finished} answers were finished, {whole_ones} are kept"
    if whole and any(reason == "interrupted" for reason in reasons[:-1]):
        return "an answer in the middle is marked as interrupted"
    if "generating" in reasons:
        return "an answer nobody makes is not marked"
    if not whole and (not turns or turns[-1].content == "" or whole_ones < 1):
        return "the chat did not go on without its worker"
    return ""


if __name__ == "__main__":
    main()
