"""Fixtures of all tests: separate folders for caches and settings, and results that the tests of a session share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from gpu import skip_without_gpu
from hypothesis import HealthCheck, settings
from markers import markers
from surroundings import settle

from edgespec.llama import rounding, trial
from edgespec.llama.context import Context

# A loaded machine may take any time for an example.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

USUAL_ENVIRONMENT = dict(os.environ)  # of the user who runs the tests
settle()  # before test modules import Textual, which reads the environment


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = Counter[str]()
    for item in items:
        found = markers(item.function) if isinstance(item, pytest.Function) else ()
        for name in {*found, *(["slow"] if "tui" in item.path.parts else [])}:
            item.add_marker(name)
        if long := item.get_closest_marker("long"):
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] <= long.kwargs.get("but", 0):
                item.own_markers.remove(long)


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_without_gpu(item)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """A small model with real weights, downloaded once into the user's model folder."""
    command = [sys.executable, "-m", "edgespec", "pull", "smollm2", "-q"]
    done = subprocess.run(command, capture_output=True, env=USUAL_ENVIRONMENT, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"smollm2 cannot be had: {done.stderr.decode(errors='replace').strip()}")
    return Path(done.stdout.decode().splitlines()[1].strip())


@pytest.fixture(scope="session", autouse=True)
def no_memory_of_other_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate the tests from the user's measurements and settings, and these from the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("EDGESPEC_")]:
            patch.delenv(name)
        patch.setenv("EDGESPEC_HOME", str(tmp_path_factory.mktemp("edgespec")))
        patch.setenv("EDGESPEC_DEFAULT_MODEL", "demo")  # the usual one would be downloaded
        yield


@pytest.fixture(scope="session", autouse=True)
def the_same_bytes_are_tried_once() -> Iterator[None]:
    """Try equal files once a session: a trial load takes half a second, and many tests write the same tiny models."""
    known, try_file = dict[tuple[object, ...], str](), trial._crashed

    def remembered(path: Path, command: Sequence[str], *, extra_buffers: bool, **placement: Any) -> str:
        if command != trial.CHILD or "-of-" in path.name:  # another child, or a part of a model
            return try_file(path, command, extra_buffers=extra_buffers, **placement)
        key = sha256(path.read_bytes()).digest(), extra_buffers, *map(str, placement.values())
        if key not in known:
            known[key] = try_file(path, command, extra_buffers=extra_buffers, **placement)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_crashed", remembered)
        yield


@pytest.fixture(scope="session", autouse=True)
def the_same_bytes_are_measured_once() -> Iterator[None]:
    """Measuring how a model rounds takes up to a second, and gives the same for the same bytes and the same context."""
    known, measure, decode = dict[str, rounding.Widths](), rounding.measure_widths, Context.decode

    def remembered(
        context: Context, n_past: int, widest: int, progress: Callable[[float], None] | None = None
    ) -> rounding.Widths:
        if Context.decode is not decode or type(context) is not Context or context.model.remote:
            return measure(context, n_past, widest, progress)  # a test has changed what is measured
        facts = context.fingerprint | {"file": sha256(context.model.path.read_bytes()).hexdigest(), "mtime": None}
        key = json.dumps([facts, n_past, widest, context.free_branches > 0])
        if key not in known:
            known[key] = measure(context, n_past, widest, progress)
        elif progress:
            progress(1.0)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "measure_widths", remembered)
        yield


@pytest.fixture(scope="session", autouse=True)
def hears_of_signals() -> None:
    """Handle Ctrl-C and SIGHUP as a terminal would have it.

    Processes in the background of a shell ignore Ctrl-C, those of nohup ignore SIGHUP, and so do the processes
    that they start: tests that send these signals would wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder for each test file."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(folder))
        yield folder
