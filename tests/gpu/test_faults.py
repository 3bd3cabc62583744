"""A GPU that is lost or has no memory left: one error says what happened and what to do, and no process hangs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cli_program
import pytest
from cli_program import COMMAND, Finished
from gpu import faults, needs_gpu
from serving import serving
from terminal import at_terminal, read_until

from edgespec.errors import OutOfMemoryError
from edgespec.llama.device_lost import GPU_HINT
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve
from edgespec.runtime.worker import Worker, WorkerDiedError
from edgespec.settings import LoadSettings, Request, with_options

pytestmark = [needs_gpu, pytest.mark.timeout(200)]

PROMPT = "def fibonacci(n):"
ON_GPU = LoadSettings(
    "demo", gpu_layers="all", spec_type="draft", pace="fixed:3", store=False, ctx_size=1024, exact=False
)
OPTIONS = ["-m", "demo", "-ngl", "all", "--spec-type", "draft", "--pace", "fixed:3"]
OPTIONS += ["--no-store", "-c", "1024", "--fast"]
LONG = Request(PROMPT, max_tokens=900, ignore_eos=True)
IN_AN_ANSWER = 300  # submitted batches of work: more than loading takes, fewer than a long answer


@pytest.fixture(scope="module", autouse=True)
def tried(home: Path) -> None:
    """Load the models once without faults, so that no trial load meets them."""
    with Worker(ON_GPU) as worker:
        assert worker.info.offloaded


@pytest.fixture
def losing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New processes lose the device in the middle of a long answer."""
    for name, value in faults(submits=IN_AN_ANSWER).items():
        monkeypatch.setenv(name, value)


def run(home: Path, *options: str, **limits: int) -> Finished:
    environment = os.environ | faults(**limits)
    command = [*COMMAND, "run", *OPTIONS, "--raw", PROMPT, *options]
    done = subprocess.run(command, capture_output=True, cwd=home, env=environment, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)


# --- lost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("submits", [0, IN_AN_ANSWER])
def test_run_ends_with_one_error(home: Path, submits: int) -> None:
    done = run(home, "-n", "900", "--ignore-eos", "-q", submits=submits)
    assert done.returncode == 1
    assert bool(done.stdout) == (submits > 0)
    what, hint = done.stderr.decode().strip().splitlines()
    assert what.startswith("edgespec: the GPU failed: the driver lost ") and hint.strip() == with_options(GPU_HINT)


def test_a_worker_reports_the_same(losing: None) -> None:
    with Worker(ON_GPU) as worker:
        texts = []
        with pytest.raises(WorkerDiedError) as caught:
            texts += [event.text for event in worker.submit(LONG)]
        assert caught.value.what == "the GPU failed" and "`gpu_layers=0`" in caught.value.hint


def test_a_server_loads_the_model_again(losing: None) -> None:
    with Worker(ON_GPU) as worker, serving(worker) as server, server.client() as client:
        ask = {"model": "demo", "prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}
        failed = client.post("/v1/completions", json=ask)
        assert failed.status_code >= 500 and "the GPU failed" in failed.text
        answer = client.post("/v1/completions", json=ask | {"max_tokens": 4})
        assert answer.status_code == 200 and answer.json()["choices"][0]["text"]


def test_a_chat_continues_on_the_cpu(losing: None, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_program, "known", lambda: home / "nothing")  # which would be measured on the GPU
    with LlamaModel.load_vocabulary(resolve("demo").path) as model:
        endless = [option for token in model.end_tokens for option in ("-l", f"{token}-inf")]
    args = ["chat", *OPTIONS, *endless, "--plain", "--no-history"]
    with at_terminal(home, args, **faults(submits=IN_AN_ANSWER)) as (_, master):
        read_until(master, ">>> ")
        os.write(master, b"hello\n")
        said = read_until(master, ">>> ")
        assert "the GPU failed" in said
        (number,) = re.findall(r"(\d)  Put no layers on the GPU", said)
        os.write(master, f"/restart {number}\n".encode())
        read_until(master, ">>> ")
        os.write(master, b"/set max-tokens 4\n")
        read_until(master, ">>> ")
        os.write(master, b"hello\n")
        read_until(master, "the answer was cut off at the token limit")


# --- no memory --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refusals(home: Path) -> Iterator[list[str]]:
    """The errors when the first allocation fails, the second, and so on until the models are loaded."""
    found: list[str] = []
    for allocations in range(40):
        done = run(home, "-n", "1", "-q", allocations=allocations)
        error = done.stderr.decode()
        if "edgespec: " not in error:
            break
        assert done.returncode == OutOfMemoryError.exit_code, error
        found.append(error)
    yield found


@pytest.mark.parametrize(
    "what",
    [
        "target.gguf does not fit on the GPU",
        "cannot create a context of 1024 tokens for target.gguf",
        "draft.gguf does not fit on the GPU",
        "cannot create a context of 1024 tokens for draft.gguf",
    ],
)
def test_each_stage_says_what_does_not_fit(refusals: list[str], what: str) -> None:
    (first, *_) = [error for error in refusals if what in error]
    assert "-ngl N" in first and "-ngld N" in first
    assert "context" not in what or "use a smaller context (-c)" in first


def test_a_worker_without_memory_says_so_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in faults(allocations=0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OutOfMemoryError, match="does not fit on the GPU"):
        Worker(ON_GPU)
