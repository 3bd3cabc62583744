"""The number of threads follows what they get of a busy machine, in passes whose times were computed beforehand."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from edgespec.llama.threads import ThreadChoice

PASS_S, BETWEEN_S = 0.024, 0.0005  # a pass of one thread, and the time until the next pass


@dataclass
class Machine:
    """Cores, and other programs that each would use a core.

    The system divides the cores equally. Where threads get less than all of their time, a pass takes `waiting` times as
    long as the work and the share of the time explain, and this varies by a third.
    """

    cores: int
    waiting: float = 2.0
    programs: int = 0
    counts_idle: bool = True
    now_s: float = 0.0
    idle_s: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(1))
    seconds: Counter[int] = field(default_factory=Counter)

    def run(self, choice: ThreadChoice, seconds: float, programs: int = 0, width: int = 1) -> int:
        """Run passes for so long, and return the number of threads in most of the last half of the time."""
        self.programs, end_s = programs, self.now_s + seconds
        half_s = self.now_s + seconds / 2
        self.seconds = Counter()
        while self.now_s < end_s:
            threads = choice.threads
            pass_s, cpu_s = self.compute(threads, width)
            choice.record(width, pass_s, cpu_s, self.now_s)
            if self.now_s > half_s:
                self.seconds[threads] += round(1000 * pass_s)
        return self.seconds.most_common(1)[0][0]

    def read(self, choice: ThreadChoice, passes: int, programs: int = 0) -> list[int]:
        """Run the passes of a long prompt, and return their numbers of threads."""
        self.programs, numbers = programs, list[int]()
        for _ in range(passes):
            numbers.append(choice.begin_wide(self.now_s))
            choice.record_wide(*self.compute(numbers[-1], 64), self.now_s)
        return numbers

    def compute(self, threads: int, width: int) -> tuple[float, float]:
        """Run a pass, and return its seconds and those of all cores together."""
        share = min(1.0, self.cores / (threads + self.programs))
        pass_s = width * PASS_S / (threads * share)
        if share < 1:
            pass_s *= (self.waiting if threads > 1 else 1.0) * (1 + self.random.random() / 3)
        self.rest(BETWEEN_S)
        self.rest(pass_s, threads)
        return pass_s, pass_s * threads * share / (self.waiting if share < 1 and threads > 1 else 1.0)

    def rest(self, seconds: float, threads: int = 0) -> None:
        """Let the time pass while so many threads compute."""
        self.now_s += seconds
        self.idle_s += self.counts_idle * max(0, self.cores - threads - self.programs) * seconds

    def choice(self) -> ThreadChoice:
        return ThreadChoice(self.cores, lambda: self.idle_s)


@pytest.mark.parametrize("cores", [2, 8, 64])
def test_a_quiet_machine_gives_all_threads_to_every_pass(cores: int) -> None:
    machine = Machine(cores)
    machine.run(choice := machine.choice(), 20)
    assert {*machine.seconds} == {cores}
    assert choice.threads == cores


@pytest.mark.parametrize(("cores", "programs", "best"), [(2, 1, 1), (2, 2, 1), (2, 4, 1), (8, 1, 7), (8, 4, 4)])
def test_the_fastest_number_is_found_and_left_when_the_others_end(cores: int, programs: int, best: int) -> None:
    machine = Machine(cores)
    choice = machine.choice()
    machine.run(choice, 3)
    assert machine.run(choice, 10, programs) == best
    assert machine.seconds[best] > 0.9 * machine.seconds.total()  # trials take little of the time
    assert machine.run(choice, 4) == cores


def test_all_threads_are_kept_where_fewer_are_not_faster() -> None:
    machine = Machine(2, waiting=1.0)
    assert machine.run(machine.choice(), 10, programs=4) == 2


def test_more_threads_are_tried_now_and_then_where_idle_cores_are_not_counted() -> None:
    machine = Machine(2, counts_idle=False)
    choice = machine.choice()
    assert machine.run(choice, 5, programs=1) == 1
    assert machine.run(choice, 20) == 2


def test_passes_are_compared_with_passes_of_the_same_width() -> None:
    machine = Machine(2, waiting=1.0, programs=1)
    choice, tried = machine.choice(), Counter[int]()
    choice.record(1, *machine.compute(2, 1), machine.now_s)
    for _ in range(2000):
        tried[threads := choice.threads] += 1
        width = 1 if threads == 1 else 8  # narrower passes take less time, for another reason than their threads
        choice.record(width, *machine.compute(threads, width), machine.now_s)
    assert tried[1]
    assert tried[2] > 3 * tried[1]


def test_a_trial_ends_if_the_next_passes_have_a_new_width() -> None:
    machine = Machine(2, waiting=1.0)
    choice = machine.choice()
    while choice.threads == 2:
        machine.run(choice, 0.01, programs=4)
    assert machine.run(choice, 20, programs=4, width=8) == 2


@pytest.mark.parametrize("has_pause", [False, True])
def test_a_prompt_after_a_load_is_read_with_all_threads(has_pause: bool) -> None:
    machine = Machine(2)
    choice = machine.choice()
    assert machine.run(choice, 5, programs=1) == 1
    assert machine.read(choice, 3, programs=1) == [1, 1, 1]
    if has_pause:
        machine.rest(60)
        assert machine.read(choice, 4) == [2, 2, 2, 2]
    else:
        assert machine.read(choice, 4) == [1, 2, 2, 2]


def test_a_prompt_after_a_pause_in_a_load_soon_has_the_best_number() -> None:
    machine = Machine(2)
    choice = machine.choice()
    assert machine.run(choice, 5, programs=1) == 1
    machine.rest(60)
    assert machine.read(choice, 4, programs=1) == [2, 1, 1, 1]


def test_a_pause_in_a_trial_does_not_put_off_the_next_one() -> None:
    machine = Machine(2, waiting=1.0)
    choice = machine.choice()
    while choice.threads == 2:
        machine.run(choice, 0.01, programs=4)
    machine.rest(600)
    machine.run(choice, 60, programs=4)
    assert machine.seconds[1], "fewer threads were tried again"


def test_cores_that_are_idle_in_a_pause_are_no_reason_for_many_more_threads() -> None:
    machine = Machine(8)
    choice = machine.choice()
    assert machine.run(choice, 10, programs=4) == 4
    tried = set[int]()
    for _ in range(10):
        machine.rest(60)
        for _ in range(100):
            machine.run(choice, 0.001, programs=4)
            tried.add(choice.threads)
    assert max(tried) == 5


def test_a_machine_that_gets_faster_during_a_trial_does_not_decide_it() -> None:
    """Blocks of both numbers take turns."""
    choice = ThreadChoice(2, lambda: 0.0)
    now_s, pass_s, tried = 0.0, 0.02, Counter[int]()
    for _ in range(400):
        threads = choice.threads
        tried[threads] += 1
        now_s += pass_s
        choice.record(1, pass_s * (1.0 if threads == 2 else 1.02), pass_s, now_s)  # half of the time of two cores
        pass_s *= 0.998
    assert tried[1]
    assert tried[2] > 3 * tried[1]
