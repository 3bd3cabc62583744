"""Threads that a context keeps from one pass to the next, and how many of them compute a pass.

In builds with OpenMP, OpenMP keeps them. Other builds would start and end the threads of each pass: that takes as long
as a small model's pass, and on a busy machine new threads wait for a processor many times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from edgespec.llama.library import api, build_flags, cpu_function, ggml_function

_MAX_THREADS = 512  # GGML_MAX_N_THREADS


class _Params(ctypes.Structure):
    """`ggml_threadpool_params`."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * _MAX_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


def new_threads(n_threads: int) -> int | None:
    """Return a pool of threads for `free_threads`; None if it is not needed."""
    if n_threads < 2 or "OPENMP = 1" in build_flags():
        return None
    params = _Params()
    ggml_function("ggml_threadpool_params_init", None, ctypes.c_void_p, ctypes.c_int)(ctypes.byref(params), n_threads)
    params.poll = 0  # threads without work sleep: spinning ones would take the processor from a draft model's threads
    return int(cpu_function("ggml_threadpool_new", ctypes.c_void_p, ctypes.c_void_p)(ctypes.byref(params)))


def attach_threads(context: int, n_threads: int) -> int | None:
    """Give a native context threads of its own, and return their pool for `free_threads`; None if it needs none."""
    pool = new_threads(n_threads)
    if pool is not None:
        attach = api._lib.llama_attach_threadpool
        attach.restype, attach.argtypes = None, [ctypes.c_void_p] * 3
        attach(context, pool, pool)
    return pool


def free_threads(pool: int | None) -> None:
    """End the threads of a context that has been freed."""
    if pool is not None:
        cpu_function("ggml_threadpool_free", None, ctypes.c_void_p)(pool)


def idle_s() -> float:
    """Return the seconds for which the cores of this machine were idle since it was started, the sum over all cores."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


# --- how many threads -------------------------------------------------------------------------------------------------

# `ThreadChoice` chooses how many threads compute a pass while other programs use the processor.
#
# The threads of a pass wait for each other several hundred times. If another program gets one of their cores, all of
# them wait until the system gives it back, and fewer threads are often faster. The best number depends on the other
# programs and on the system, so it is measured: a trial decodes passes with another number of threads, in turn with
# passes with the present one. The results of a pass do not depend on the number.
#
# Trials cost time, so there are none on a quiet machine, where the threads get all the time that they ask for.


WINDOW_S, WINDOW_PASSES = 0.1, 4  # least time and number of passes before a trial is considered
BUSY = 0.9  # share of the time that threads get; less of it means that they wait, perhaps for other programs
IDLE = 0.5  # idle cores, from which more threads may be faster
BLOCKS = 6  # of a trial: three with another number of threads, three with the present one
BLOCK_S, BLOCK_PASSES, LONG_S = 0.06, 4, 0.25  # least time and passes of a block; after a long time, fewer passes do
BETTER = 1.05  # a number of threads that is not faster by this factor is not worth a change
FIRST_WAIT, MOST_WAIT = 4, 64  # time until the next trial, in durations of a trial; doubled by each trial that fails
WAIT_BACK = 16  # the same after a change, until the number before it is tried again
LESS = 0.75  # factor by which the share of the time changes if other programs have started
WIDE = 64  # tokens of a pass from which on passes are not compared, since each takes long
GAIN = 1 / 8  # weight of the last pass in the mean time of its width
PAUSE_S = 1.0  # time without passes after which other programs may have started or ended


@dataclass(slots=True)
class _Passes:
    """The seconds that some passes took, and those that they usually take."""

    seconds: float = 0.0
    usual_s: float = 0.0
    cpu_s: float = 0.0
    n: int = 0

    def add(self, seconds: float, usual_s: float, cpu_s: float) -> None:
        self.seconds += seconds
        self.usual_s += usual_s
        self.cpu_s += cpu_s
        self.n += 1

    @property
    def is_block(self) -> bool:
        """True if these are enough passes for a block of a trial."""
        return self.seconds >= BLOCK_S and (self.n >= BLOCK_PASSES or self.seconds >= LONG_S)


@dataclass(frozen=True, slots=True)
class _Situation:
    """The share of the time that the threads get, and the number of idle cores."""

    share: float = 1.0
    n_idle: float = 0.0


@dataclass(slots=True)
class _Trial:
    """Blocks of passes with another number of threads, in turn with blocks with the present number."""

    threads: int
    situation: _Situation
    blocks: list[_Passes] = field(default_factory=lambda: [_Passes()])

    @property
    def is_other(self) -> bool:
        """True if this block is one with the other number."""
        return len(self.blocks) % 2 == 1

    @property
    def seconds(self) -> float:
        """The time of its passes, without pauses between them."""
        return sum(block.seconds for block in self.blocks)

    def speedup(self) -> float:
        """Return how many times as fast the other number is."""
        return _pace(self.blocks[::2]) / _pace(self.blocks[1::2])


@dataclass(slots=True)
class _Direction:
    """When fewer threads, or more, are tried again."""

    due_s: float = 0.0
    wait: int = 0  # until then, in durations of the last trial
    situation: _Situation = _Situation()  # in which they were tried

    def put_off(self, trial: _Trial, wait: int, now_s: float) -> None:
        self.wait, self.situation = wait, trial.situation
        self.due_s = now_s + wait * trial.seconds


class ThreadChoice:
    """Chooses the number of threads of the next pass, at most `most`, with which it begins.

    `idle` returns the seconds for which cores were idle since some point in time, the sum over all cores.
    """

    def __init__(self, most: int, idle: Callable[[], float]) -> None:
        self._most, self._threads, self._idle = most, most, idle
        self._usual_s: dict[int, float] = {}  # mean seconds of passes with this number of threads, by width
        self._window, self._began_s, self._idle_s = _Passes(), 0.0, 0.0
        self._trial: _Trial | None = None
        self._fewer, self._more = _Direction(), _Direction()
        self._ended_s = 0.0  # end of the last pass
        self._wide_has_all, self._wide_idle_s = False, 0.0  # the latter at the start of the last wide pass

    @property
    def threads(self) -> int:
        """The threads of the next pass."""
        return self._trial.threads if self._trial and self._trial.is_other else self._threads

    def begin_wide(self, now_s: float) -> int:
        """Return the threads of a pass that begins now and is too long to be compared with others.

        It has all threads after a pause, if cores were idle during the last one, or if that one used all of them well.
        """
        self._notice_pause(now_s)
        self._wide_idle_s = self._idle()
        return self._most if self._wide_has_all else self._threads

    def record_wide(self, seconds: float, cpu_s: float, now_s: float) -> None:
        """Learn from the pass of `begin_wide`, which ended at `now_s`, whether the next one has all threads."""
        self._ended_s = now_s
        if self._wide_has_all or self._threads == self._most:
            self._wide_has_all = cpu_s >= BUSY * self._most * seconds
        else:
            self._wide_has_all = self._idle() - self._wide_idle_s >= IDLE * max(seconds, WINDOW_S)

    def record(self, width: int, seconds: float, cpu_s: float, now_s: float) -> None:
        """Learn from a pass over `width` tokens that took `seconds`, and `cpu_s` of all cores together.

        `now_s` is the time at its end.
        """
        self._notice_pause(now_s - seconds)
        self._ended_s = now_s
        trial, usual_s = self._trial, self._usual_s.get(width)
        if trial is None or not trial.is_other:
            self._usual_s[width] = usual_s + GAIN * (seconds - usual_s) if usual_s else seconds
        if trial is None:
            self._window.add(seconds, seconds, cpu_s)
            if self._window.seconds >= WINDOW_S and self._window.n >= WINDOW_PASSES:
                self._end_window(now_s)
        elif usual_s:
            trial.blocks[-1].add(seconds, usual_s, cpu_s)
            if trial.blocks[-1].is_block:
                if len(trial.blocks) < BLOCKS:
                    trial.blocks.append(_Passes())
                else:
                    self._end_trial(trial, now_s)
        elif trial.is_other:  # the usual time of this width is learned before the next trial
            self._trial = None
            self._begin_window(now_s)

    def _notice_pause(self, began_s: float) -> None:
        """After a pause, forget the cores that were idle in it; the next wide pass has all threads."""
        if began_s - self._ended_s > PAUSE_S:
            self._wide_has_all = True
            self._begin_window(began_s)

    def _end_window(self, now_s: float) -> None:
        """Begin a trial if another number of threads may be faster."""
        share, n_idle, may_be_more = self._window.cpu_s / (self._threads * self._window.seconds), 0.0, False
        if self._threads < self._most:
            may_be_more, n_idle = True, (self._idle() - self._idle_s) / max(now_s - self._began_s, WINDOW_S)
        situation, fewer, more = _Situation(share, n_idle), self._fewer, self._more
        tries_fewer = self._threads > 1 and share < BUSY
        tries_fewer &= now_s >= fewer.due_s or share < LESS * fewer.situation.share
        # Also without idle cores: not every system counts them rightly, and more threads get a greater share of others.
        tries_more = may_be_more and (now_s >= more.due_s or n_idle >= more.situation.n_idle + IDLE)
        if tries_more and not (tries_fewer and fewer.wait <= more.wait and n_idle < IDLE):
            self._trial = _Trial(min(self._most, self._threads + max(1, round(n_idle))), situation)
        elif tries_fewer:
            # One less is the best guess if one core is taken, half of them if all cores are.
            is_second = fewer.wait == FIRST_WAIT
            self._trial = _Trial(self._threads // 2 if is_second else self._threads - 1, situation)
        self._begin_window(now_s)

    def _end_trial(self, trial: _Trial, now_s: float) -> None:
        """Keep the faster number of threads."""
        is_more, speedup = trial.threads > self._threads, trial.speedup()
        tried, opposite = (self._more, self._fewer) if is_more else (self._fewer, self._more)
        self._trial = None
        if speedup < BETTER:
            tried.put_off(trial, max(FIRST_WAIT, min(MOST_WAIT, 2 * tried.wait)), now_s)
        else:
            self._threads = trial.threads
            self._usual_s = {width: seconds / speedup for width, seconds in self._usual_s.items()}
            tried.put_off(trial, 0, now_s)
            opposite.put_off(trial, WAIT_BACK, now_s)
        self._begin_window(now_s)

    def _begin_window(self, now_s: float) -> None:
        self._window, self._began_s = _Passes(), now_s
        if self._threads < self._most:
            self._idle_s = self._idle()


def _pace(blocks: Sequence[_Passes]) -> float:
    """Return how much of the usual time's work these passes did in each second."""
    return sum(block.usual_s for block in blocks) / sum(block.seconds for block in blocks)
