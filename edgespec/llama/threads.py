"""Threads that a context keeps from one pass to the next.

In builds with OpenMP, OpenMP keeps them. Other builds would start and end the threads of each pass: that takes as long
as a small model's pass, and on a busy machine new threads wait for a processor many times as long.
"""

from __future__ import annotations

import ctypes
from typing import Any

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


def attach_threads(context: Any, n_threads: int) -> int | None:
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
