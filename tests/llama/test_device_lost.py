"""A GPU that is lost ends the process with one error, not with a backtrace of C++."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgespec.llama.device_lost import GPU_HINT
from edgespec.llm.info import ModelInfo
from edgespec.runtime.worker.death import explained, remedies
from edgespec.settings import LoadSettings

LOG = "from edgespec.llama import library\nprint('an answer', end='')\nlibrary._log(4, {line!r}, None)\nprint('more')"


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"ggml_vulkan: device lost on Radeon 9\n", "the driver lost Radeon 9"),
        (b"ggml_vulkan: device lost on Arc, likely caused by previous submission (nodes 1 to 2):\n", "driver lost Arc"),
        (b"CUDA error: an illegal memory access was encountered\n", "CUDA error: an illegal memory access"),
    ],
)
def test_the_process_ends_with_one_error(line: bytes, why: str) -> None:
    done = ended(LOG.format(line=line))
    assert done.returncode == 1 and done.stdout == "an answer"
    what, hint = done.stderr.strip().splitlines()
    assert what.startswith("edgespec: the GPU failed: ") and why in what
    assert hint.strip() == GPU_HINT and "`gpu_layers=0`" in hint


def test_the_command_line_ends_with_its_own_names_of_settings() -> None:
    start = "from edgespec.cli import run_program\nfrom edgespec.cli.terminal.interrupt import Interrupts\n"
    done = ended(start + "run_program(['--version'], Interrupts())\n" + LOG.format(line=b"CUDA error: broken\n"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "  put fewer layers on the GPU (-ngl N, or -ngl 0 for none); if it fails again, update its driver"
    )


def test_other_errors_do_not_end_the_process() -> None:
    done = ended(LOG.format(line=b"ggml_vulkan: Device memory allocation of size 9 failed.\n"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "an answermore\n", "")


def test_a_crash_prints_no_backtrace() -> None:
    done = ended(
        "from edgespec.llama.library import ggml_function as f\nf('ggml_abort', None)(b'file.c', 1, b'broken')"
    )
    assert done.returncode not in (0, 1) and done.stderr == "file.c:1: broken\n"


def test_the_parent_of_a_worker_gets_the_same_reason() -> None:
    error = explained(1, ["", "edgespec: the GPU failed: the driver lost Radeon 9", f"  {GPU_HINT}"])
    assert (error.what, error.why, error.hint) == ("the GPU failed", "the driver lost Radeon 9", GPU_HINT)
    assert not error.out_of_memory


def test_less_helps_first_where_the_memory_of_the_gpu_ran_out() -> None:
    error = explained(1, ["edgespec: the GPU failed: CUDA error: out of memory"])
    first, *_, last = remedies(LoadSettings("demo", gpu_layers=8), ModelInfo("", offloaded=True), error=error)
    assert first.label == "Put 4 layers on the GPU" and last.label == "Load again"
