"""Layers on workers: the same texts, what is where, and what becomes of answers when a worker is lost or hangs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from endless import CTX_SIZE, ENDLESS

import edgespec
from edgespec.errors import GenerationError
from edgespec.llama.rpc import connections, has_rpc
from edgespec.llama.workers import LOST, probe
from edgespec.llm.info import ModelInfo
from edgespec.runtime.worker import Worker, WorkerDiedError, remedies
from edgespec.runtime.worker.death import explained
from edgespec.settings import LoadSettings

pytestmark = pytest.mark.skipif(not has_rpc(), reason="this build of llama.cpp has no RPC")
posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@contextmanager
def lent(port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of `edgespec rpc-worker`."""
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    command = [sys.executable, "-m", "edgespec", "rpc-worker", "--port", str(port), "-t", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any(re.search(r"listening on [\d.]+:\d+", line) for line in process.stderr)
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    with lent() as (first, _), lent() as (second, _):
        yield [first, second]


def text(**settings: Any) -> tuple[str, ModelInfo]:
    with edgespec.load("demo", threads=1, store=False, **settings) as llm:
        done = llm.complete("def fibonacci(n):", max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
        return done.text, llm.info


@pytest.mark.long(but=1)
@pytest.mark.parametrize("strict", [False, True])
def test_the_text_is_that_of_one_machine(addresses: list[str], strict: bool) -> None:
    alone, _ = text(spec_type="none", strict=strict)
    for workers in (addresses[:1], addresses):
        found, info = text(rpc=workers, gpu_layers="all", pace="fixed:3", strict=strict)
        assert found == alone
        assert info.drafters and info.exact
        assert list(info.workers) == workers


def test_each_machine_gets_a_share_and_the_draft_stays_here(addresses: list[str]) -> None:
    with edgespec.load("demo", threads=1, rpc=addresses) as llm:
        layers = llm.info.workers
        assert 0 < sum(layers.values()) < llm.model.n_layer
        assert re.search(rf"layers 0.* here, .* on {addresses[0]}, .* on {addresses[1]}; the output here", llm.notes[0])
        assert llm.draft_header is not None and len([*connections(addresses)]) == 2
        draft = next(context for context in llm._loaded.drafters.contexts if context.model is not llm.model)
        assert not draft.model.is_offloaded


def test_a_second_program_is_told_that_the_worker_is_busy(addresses: list[str]) -> None:
    with (
        edgespec.load("demo", threads=1, rpc=addresses[:1], spec_type="none"),
        pytest.raises(GenerationError, match="one program at a time"),
    ):
        probe(addresses[0], answer_s=0.3)


@posix
def test_a_lost_worker_ends_the_answer_and_comes_back() -> None:
    with lent() as (address, process):
        settings = LoadSettings(
            "demo", rpc=(address,), threads=1, gpu_layers="all", spec_type="none", store=False, ctx_size=CTX_SIZE
        )
        with Worker(settings) as worker:
            events = worker.submit(ENDLESS)
            next(events)
            process.kill()
            with pytest.raises(WorkerDiedError, match=f"the connection to a worker broke off: {address}"):
                for _ in events:
                    pass
    with lent(int(address.rpartition(":")[2])), Worker(settings) as worker:
        assert next(worker.submit(ENDLESS))


HANGS = f"""
import edgespec, os, signal, sys
from edgespec.llama import rpc
rpc.SILENCE_S = 1
llm = edgespec.load(
    "demo", rpc=[sys.argv[1]], threads=1, gpu_layers="all", spec_type="none", store=False, ctx_size={CTX_SIZE}
)
for n, event in enumerate(llm.generate("def fibonacci(n):", max_tokens={ENDLESS.max_tokens}, ignore_eos=True)):
    if n == 3:
        os.kill(int(sys.argv[2]), signal.SIGSTOP)
"""


@pytest.mark.long
@posix
def test_a_worker_that_hangs_is_given_up() -> None:
    with lent() as (address, process):
        command = [sys.executable, "-c", HANGS, address, str(process.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        os.kill(process.pid, signal.SIGCONT)
        assert done.returncode == GenerationError.exit_code, done.stderr
        assert "the connection to a worker broke off" in done.stderr and address in done.stderr


@posix
def test_a_worker_ends_at_ctrl_c_and_tells_of_a_port_in_use() -> None:
    with lent() as (address, process):
        command = [sys.executable, "-m", "edgespec", "rpc-worker", "--port", address.rpartition(":")[2]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and "another worker may be running there" in done.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130


def test_last_words_of_a_lost_worker() -> None:
    error = explained(1, ["", "edgespec: the connection to a worker broke off: 10.0.0.2:50052", "  start it again"])
    assert (error.what, error.why) == ("the connection to a worker broke off", "10.0.0.2:50052")


def test_less_does_not_help_where_a_worker_was_lost() -> None:
    settings = LoadSettings("demo", rpc=("10.0.0.2:50052",), ctx_size=4096)
    lost = explained(1, [f"{LOST} 10.0.0.2:50052"])
    assert [remedy.settings for remedy in remedies(settings, ModelInfo(""), error=lost)] == [settings]
    assert len(remedies(settings, ModelInfo(""), error=explained(-9, []))) > 1
