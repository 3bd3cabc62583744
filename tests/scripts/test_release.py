"""Building the wheels of a release: the parts that need no compiler."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import release
from bootstrap import llama_version
from llama_build import library_version
from long_commands import CommandError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("for_gcc", "for_zig"),
    [
        ("-march=armv8-a", "-mcpu=generic"),
        ("-march=armv8.2-a+dotprod+fp16", "-mcpu=generic+v8_2a+dotprod+fullfp16"),
        ("-march=armv8.6-a+dotprod+fp16+sve+i8mm", "-mcpu=generic+v8_6a+dotprod+fullfp16+sve+i8mm"),
        ("-march=armv8.2-a+dotprod+nosve", "-mcpu=generic+v8_2a+dotprod"),
        ("-mavx2", "-mavx2"),
    ],
)
def test_levels_of_arm_get_the_names_that_zig_has(for_gcc: str, for_zig: str, tmp_path: Path) -> None:
    wrapper = tmp_path / "cc"
    wrapper.write_text(release.WRAPPER.format(zig="/bin/echo", tool="cc -target x"))
    arguments = ["sh", str(wrapper), for_gcc, "-c", "a file.c"]
    printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert printed == f"cc -target x {for_zig} -c a file.c\n"


def test_an_unknown_step_is_answered_with_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["linux-riscv64"]) == 2
    said = capsys.readouterr().err
    assert "linux-riscv64" in said
    assert "linux-aarch64" in said or sys.platform != "linux"


def test_a_complete_step_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / f"llama_cpp_python-{library_version(llama_version())}-py3-none-any.whl"
    wheel.touch()
    monkeypatch.setattr(release, "DIST", tmp_path)
    monkeypatch.setattr(release, "WORK", tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/done").write_text(release._digest(["A=1"]))
    assert release._llama_wheel("here", "any", ["A=1"]) == wheel
    started = list[str]()

    def stop(title: str, *_arguments: object) -> None:
        started.append(title)
        raise CommandError(title)

    monkeypatch.setattr(release, "_run", stop)
    with pytest.raises(CommandError):
        release._llama_wheel("here", "any", ["A=2"])
    assert started == ["downloading llama-cpp-python"]
    assert not (tmp_path / "here/done").exists()


def test_the_workflow_runs_scripts_that_exist() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    scripts = re.findall(r"scripts/[\w.]+", text)
    assert {"scripts/release", "scripts/check_release.py"} <= {*scripts}
    for name in scripts:
        assert (ROOT / name).is_file()
    steps = re.findall(r"steps: (?:\"\"|([\w-]+))", text)
    assert {*filter(None, steps)} <= {*release.TARGETS, "macos-arm64"}
