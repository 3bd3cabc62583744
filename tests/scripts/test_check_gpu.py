"""check_gpu: what is made and used for a software device. The tests that it runs are in tests/gpu."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import check_gpu
import pytest
from check_gpu import CheckError
from gpu import HIDDEN, visible_gpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="software devices are for Linux")

DRIVER = "usr/share/vulkan/icd.d/lvp_icd.json"


def with_driver(root: Path) -> Path:
    (root / DRIVER).parent.mkdir(parents=True)
    (root / DRIVER).touch()
    return root


def test_a_half_made_debian_is_not_used(tmp_path: Path) -> None:
    root = with_driver(tmp_path / "root")
    assert check_gpu.is_complete(root)
    (root / "debootstrap").mkdir()
    assert not check_gpu.is_complete(root)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    (tmp_path / "letters").touch()
    with pytest.raises(CheckError, match="another folder"):
        check_gpu.make_debian(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


def test_without_the_rights_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CheckError, match="install mesa-vulkan-drivers"):
        check_gpu.make_debian(tmp_path / "root")


def test_a_python_of_the_system_does_not_hide_the_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    folders = check_gpu.entering(tmp_path)[7].split()
    assert str(check_gpu.ROOT) in folders
    assert "/usr" not in folders


def test_only_the_software_driver_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("EDGESPEC_MODEL", "other")
    environ = check_gpu.environment("0,0", with_driver(tmp_path / "root"))
    assert environ["VK_DRIVER_FILES"] == f"/{DRIVER}"
    assert environ["GGML_VK_VISIBLE_DEVICES"] == "0,0"
    assert "EDGESPEC_MODEL" not in environ


def test_failed_tests_are_collected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_gpu, "PYTHON", "/bin/echo")
    assert check_gpu.tests("one device", [], os.environ, "gpu", ["\nFAILED tests/a.py::b - wrong"]) == [
        "FAILED tests/a.py::b - wrong"
    ]
    assert "== tests on one device: 0 s" in capsys.readouterr().out


def test_the_report_gets_what_was_asked_and_which_tests_failed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_gpu, "PYTHON", "/bin/echo")
    args = argparse.Namespace(model="m.gguf", native="program", shape=["Qwen3.5-4B"], output="r.md")
    for failed, options in ((None, ""), ([], "--failed= "), (["FAILED a", "FAILED b"], "--failed=FAILED a ")):
        check_gpu.report(args, failed)
        printed = capfd.readouterr().out
        assert "--native=program --shape=Qwen3.5-4B --output=r.md m.gguf" in printed
        assert options in printed and ("--failed" in printed) == (failed is not None)


def test_gpus_are_hidden_from_these_tests() -> None:
    assert all(os.environ[name] == value for name, value in HIDDEN.items())
    assert not visible_gpus()
