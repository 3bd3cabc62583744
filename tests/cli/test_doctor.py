"""`edgespec doctor`: facts and advice about a machine, a build and a model."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_program import edgespec_here
from click.testing import CliRunner, Result
from gpu import needs_gpu, visible_gpus
from tiny_gguf import write_model

from edgespec import __version__
from edgespec.cli.commands.doctor import doctor
from edgespec.llama import kernels, machine, trial
from edgespec.llama.kernels import exact_build, gpu_build
from edgespec.llama.machine import Gpu

MACHINE = [
    "edgespec", "llama.cpp", "Python", "library", "packages", "system", "build CPU", "CPU", "GPU", "RPC",
    "self-check", "threads", "memory", "terminal", "config", "cache", "data", "settings", "hub cache", "hub", "advice",
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_to_improve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice depends only on the test, not on the machine."""
    monkeypatch.setattr("edgespec.cli.commands.doctor.processor_flags", set)
    monkeypatch.setattr("edgespec.cli.commands.doctor.gpus_here", list)
    monkeypatch.setattr("edgespec.llama.library.gpu_backends", list)


def labels(text: str) -> list[str]:
    """Return the labels of a report; several pieces of advice count as one."""
    lines = text.splitlines()
    found = (re.sub(r"^advice \d+", "advice", line.partition("  ")[0]) for line in lines)
    return list(dict.fromkeys(filter(None, found)))


def joined(text: str) -> str:
    """Return a report without its line breaks."""
    return " ".join(text.split())


def run(*args: str) -> Result:
    return CliRunner().invoke(doctor, args, catch_exceptions=False)


# --- the machine ------------------------------------------------------------------------------------------------------


def test_machine_and_build_are_described(tmp_path: Path) -> None:
    done = edgespec_here("doctor", home=tmp_path)
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    # With a GPU there are more rows, but none that says that there is no GPU.
    found = [label for label in labels(text) if label in MACHINE]
    assert found == [label for label in MACHINE if label != "GPU" or label in found]
    assert re.search(rf"^edgespec +{re.escape(__version__)}$", text, re.MULTILINE)
    assert re.search(r"^self-check +quantised models work", text, re.MULTILINE)
    assert re.search(r"^threads +[1-9]\d* by default \(-t\); \d+ physical and \d+ logical", text, re.MULTILINE)


def test_a_report_is_plain_text_of_80_columns(home: Path) -> None:
    text = run().stdout
    assert re.search(r"[^\n\x20-\x7e]", text.replace(str(home), "")) is None
    # Only paths and commands to copy may be longer.
    long = [line for line in text.partition("\nadvice")[0].splitlines() if len(line) > 80]
    assert [line for line in long if " " in line[18:]] == []
    assert not re.search(r" $", text, re.MULTILINE)


def test_a_folder_that_cannot_be_written_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, where a folder should be")
    done = edgespec_here("doctor", home=tmp_path, EDGESPEC_HOME=str(tmp_path / "home"))
    assert done.returncode == 0
    said = joined(done.stdout.decode())
    for name in ("cache", "data", "state"):
        assert f"{tmp_path / 'home' / name} cannot be used (it cannot be created): " in said


@pytest.mark.parametrize(
    ("found", "said", "code"),
    [
        (
            "works without extra buffers",
            "repacking is disabled (GCC 12 miscompiles AMX code): slower than necessary;",
            0,
        ),
        ("crashes", "advice quantised models crash: no such model can be loaded", 1),
    ],
)
def test_a_build_that_crashes_is_pointed_out(
    found: str, said: str, code: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "self_check", lambda: found)
    monkeypatch.setattr("edgespec.llama.library.CPU_LIBRARY", None)
    result = run()
    assert result.exit_code == code
    assert said in joined(result.stdout)
    monkeypatch.setattr(sys, "prefix", str(home))  # not a checkout's own environment
    assert exact_build() in run().stdout.replace("\xa0", " ")


def test_a_gpu_that_this_build_does_not_use_is_reported_with_the_line_that_fixes_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.commands.doctor.gpus_here", lambda: [Gpu("RTX 4090", "cuda")])
    monkeypatch.setattr("edgespec.llama.library.supports_gpu", lambda: False)
    text = run().stdout
    assert re.search(r"^GPU +not used by this build: RTX 4090$", text, re.MULTILINE)
    assert f"\n{' ' * 12}{gpu_build('cuda')}\n" in text
    monkeypatch.setattr(sys, "prefix", str(home))  # not a checkout's own environment
    assert "DGGML_CUDA=on" in gpu_build("cuda")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_backend_without_a_device_is_explained(is_there: bool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu("Intel GPU", "vulkan")] if is_there else []
    monkeypatch.setattr("edgespec.cli.commands.doctor.gpus_here", lambda: gpus)
    monkeypatch.setattr("edgespec.llama.library.supports_gpu", lambda: False)
    monkeypatch.setattr("edgespec.llama.library.gpu_backends", lambda: ["vulkan"])
    monkeypatch.setattr(machine, "vulkan_devices", list)
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES", raising=False)
    text = joined(run().stdout)
    why = "vulkan in this build, without a device: no Vulkan driver is installed"
    assert f"GPU {'Intel GPU, not used' if is_there else 'none found'}; {why}" in text
    advice = "this build sees no GPU, so everything runs on the CPU: no Vulkan driver is installed; install"
    assert (advice in text) == is_there  # without a GPU there is nothing to install
    assert "DGGML_VULKAN" not in text  # another build would not help
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "")
    assert "GGML_VK_VISIBLE_DEVICES is set to ''; unset GGML_VK_VISIBLE_DEVICES," in joined(run().stdout)


@needs_gpu
def test_each_device_is_shown_with_its_memory_and_its_driver(home: Path) -> None:
    text = run().stdout
    for name in visible_gpus():
        assert re.search(rf"GPU {name}: .+?, \d\S+ GB of \d\S+ GB free", joined(text))
    assert "driver" in text


@pytest.mark.parametrize(
    ("has", "uses", "unused", "cost"),
    [
        ({"sse3", "avx2"}, "SSE3 = 1", "AVX2", "prefill and draft verification are slower than necessary"),
        ({"avx2", "amx_int8"}, "AVX2 = 1", "AMX_INT8", "a build with it needs clang or GCC 13.3"),
        ({"avx2"}, "AVX2 = 1", "", ""),
    ],
)
def test_instructions_that_this_build_leaves_unused_are_reported(
    has: set[str], uses: str, unused: str, cost: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.commands.doctor.processor_flags", lambda: has)
    monkeypatch.setattr("edgespec.llama.library.CPU_LIBRARY", None)
    monkeypatch.setattr("edgespec.llama.library.build_flags", lambda: f"CPU : {uses} | ")
    monkeypatch.setattr(trial, "self_check", lambda: "works")
    advice = joined(run().stdout.partition("\nadvice")[2])
    if not unused:
        assert advice == "no problems found"
        return
    assert advice.startswith(f"this build does not use {unused}, which")
    assert cost in advice
    assert "llama" in advice or "scripts" in advice


def test_a_portable_build_is_not_to_be_compiled_for_more_instructions(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.commands.doctor.processor_flags", lambda: {"amx_int8"})
    monkeypatch.setattr("edgespec.llama.library.CPU_LIBRARY", Path("libggml-cpu-zen4.so"))
    monkeypatch.setattr("edgespec.llama.library.build_flags", lambda: "CPU : AVX2 = 1 | ")
    monkeypatch.setattr(trial, "self_check", lambda: "works")
    assert "does not use AMX_INT8" not in joined(run().stdout)


@pytest.mark.parametrize(("with_gpu", "is_advised"), [(False, True), (True, False)])
def test_a_build_by_others_is_to_be_replaced_unless_it_uses_a_gpu(
    with_gpu: bool, is_advised: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.llama.kernels.is_own_build", lambda: False)
    monkeypatch.setattr("edgespec.llama.library.supports_gpu", lambda: with_gpu)
    monkeypatch.setattr("edgespec.llama.library.has_discrete_gpu", lambda: with_gpu)
    monkeypatch.setattr(trial, "self_check", lambda: "works")
    monkeypatch.setattr(sys, "prefix", str(home))  # not a checkout's own environment
    text = joined(run().stdout.replace("\xa0", " "))
    assert ("lacks edgespec's kernels" in text) == is_advised
    assert ("-m pip install" in text) == is_advised


def test_several_pieces_of_advice_are_numbered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.cli.commands.doctor.processor_flags", lambda: {"amx_int8"})
    monkeypatch.setattr("edgespec.llama.library.CPU_LIBRARY", None)
    monkeypatch.setattr("edgespec.llama.library.build_flags", lambda: "CPU : AVX2 = 1 | ")
    monkeypatch.setattr(trial, "self_check", lambda: "crashes")
    text = joined(run().stdout)
    assert "advice 1 quantised models crash: " in text
    assert "advice 2 this build does not use AMX_INT8" in text


def test_a_token_is_reported_and_never_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hf_secret@mirror.example/hub")
    text = joined(run().stdout)
    assert "hub offline: no downloads, token in HF_TOKEN, at https://mirror.example/hub" in text
    assert "hf_secret" not in text


def test_a_token_file_is_looked_for_where_huggingface_hub_keeps_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "elsewhere" / "hub"))
    assert "no token" in run().stdout
    (home / "hf").mkdir()
    (home / "hf" / "token").write_text("hf_secret")
    text = run().stdout
    assert f"token in {home / 'hf' / 'token'}" in joined(text)
    assert "hf_secret" not in text


def test_a_hub_cache_that_is_not_there_yet_is_no_fault(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "none" / "hub"))
    assert re.search(r"hub cache \S+none.hub, \d+\.\d [GMk]B free", joined(run().stdout))
    (home / "none").write_text("a file, where a folder should be")
    text = joined(run().stdout)
    assert "(not writable)" in text
    assert "the hub cache is not writable: no model can be downloaded; set HF_HOME to another place" in text


def test_settings_are_named_and_their_values_are_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_SYSTEM", "my secret")
    text = run().stdout
    assert "EDGESPEC_SYSTEM" in text
    assert "my secret" not in text


# --- a model ----------------------------------------------------------------------------------------------------------


def test_a_model_is_loaded_and_its_rounding_measured(home: Path) -> None:
    path = write_model(home / "tiny.gguf", "llama", width=256, type="Q8_0")
    text = run(str(path)).stdout
    assert re.search(r"^model +\S+tiny.gguf$", text, re.MULTILINE)
    assert re.search(r"^kernels +(no )?exact mode", text, re.MULTILINE)
    assert re.search(r"^rounding +(exact|decoding)", text, re.MULTILINE)
    assert re.search(r"^architecture +llama, 2 layers, ", text, re.MULTILINE)
    assert re.search(r"^weights +F32, Q8_0$", text, re.MULTILINE)


def test_a_model_that_cannot_be_rolled_back_is_not_measured(home: Path) -> None:
    assert "rounding not measured: " in " ".join(run(str(write_model(home / "m.gguf", "mamba"))).stdout.split())


def test_a_broken_model_ends_with_code_3_after_the_machine(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    done = edgespec_here("doctor", "broken.gguf", home=tmp_path)
    assert (done.returncode, done.stdout.startswith(b"edgespec  ")) == (3, True)
    assert done.stdout.endswith(b"cannot be loaded\n")
    assert b"broken.gguf" in done.stderr
    assert edgespec_here("doctor", "their.gguf", home=tmp_path).returncode == 3


PYTHON = "/my folder/bin/python"


@pytest.mark.parametrize(
    ("system", "is_checkout", "cpu", "gpu"),
    [
        ("posix", False, f"'{PYTHON}' -m pip install ", f"CMAKE_ARGS=\"-DGGML_CUDA=on\" '{PYTHON}' -m pip install "),
        ("nt", False, f'& "{PYTHON}" -m pip install ', f'$env:CMAKE_ARGS = "-DGGML_CUDA=on"; & "{PYTHON}" -m pip '),
        (
            "posix",
            True,
            "rm -r '{0}/.venv' && '{0}/scripts/edgespec' doctor",
            "EDGESPEC_BACKEND=\"cuda\" '{0}/scripts/edgespec' doctor",
        ),
        (
            "nt",
            True,
            'Remove-Item -Recurse "{0}/.venv"; & "{0}/scripts/edgespec.cmd" doctor',
            '$env:EDGESPEC_BACKEND = "cuda"; & "{0}/scripts/edgespec.cmd" doctor',
        ),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="paths of the other system")
def test_the_commands_of_the_advice_work_from_any_folder(
    system: str, is_checkout: bool, cpu: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "my folder"
    (home / "scripts").mkdir(parents=True)
    if is_checkout:
        (home / "scripts" / "edgespec").touch()
    monkeypatch.setattr(sys, "prefix", str(home / ".venv"))
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(kernels, "os", SimpleNamespace(name=system))
    assert exact_build().startswith(cpu.format(home))
    assert gpu_build("cuda").startswith(gpu.format(home))


def test_a_build_for_a_gpu_is_not_to_be_replaced_by_one_for_the_cpu(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.commands.doctor.processor_flags", lambda: {"amx_int8"})
    monkeypatch.setattr("edgespec.llama.library.CPU_LIBRARY", None)
    monkeypatch.setattr("edgespec.llama.library.build_flags", lambda: "CPU : AVX2 = 1 | ")
    monkeypatch.setattr(trial, "self_check", lambda: "crashes")
    for with_gpu in (False, True):
        monkeypatch.setattr("edgespec.llama.library.supports_gpu", lambda with_gpu=with_gpu: with_gpu)
        text = run().stdout.replace("\xa0", " ")
        assert "does not use AMX_INT8" in joined(text)
        assert (exact_build() in text) != with_gpu


def test_a_portable_build_that_crashes_has_other_variants(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.llama.library.CPU_LIBRARY", Path("libggml-cpu-zen4.so"))
    monkeypatch.setattr(trial, "self_check", lambda: "crashes")
    assert "EDGESPEC_CPU_VARIANT selects another CPU variant than zen4" in joined(run().stdout)
