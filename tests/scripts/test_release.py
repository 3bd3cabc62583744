"""Building the wheels of a release: the parts that need no compiler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import gpu_tools
import pytest
import release
from bootstrap import llama_version
from check_release import CheckError, downloaded_mb, require_exact, the_wheel
from llama_build import library_version
from long_commands import CommandError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="a script of sh")
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no steps for Windows")
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
    toolchain = release._digest(*release.REQUIREMENTS, release.WRAPPER, "A=1")
    inputs = release._digest(toolchain, llama_version(), *release.UNUSED, *release._additions())
    (tmp_path / "here/toolchain").write_text(toolchain)
    (tmp_path / "here/done").write_text(inputs)
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


def test_a_new_toolchain_compiles_all_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "DIST", tmp_path)
    monkeypatch.setattr(release, "WORK", tmp_path)
    for toolchain, is_kept in ((release._digest(*release.REQUIREMENTS, release.WRAPPER), True), ("other", False)):
        (tmp_path / "here/cmake").mkdir(parents=True, exist_ok=True)
        (tmp_path / "here/toolchain").write_text(toolchain)
        monkeypatch.setattr(release, "source", lambda: (_ for _ in ()).throw(CommandError("stop here")))
        with pytest.raises(CommandError):
            release._llama_wheel("here", "any", [])
        assert (tmp_path / "here/cmake").exists() == is_kept


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
@pytest.mark.parametrize("name", ["linux-aarch64", "windows-x86_64"])
def test_vulkan_is_built_with_its_own_headers_only(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for header in ("vulkan/vulkan.hpp", "spirv/spirv.hpp", "stdio.h"):
        (tmp_path / "usr" / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr" / header).touch()
    (tmp_path / "tools").mkdir()
    monkeypatch.setattr(release, "WORK", tmp_path)
    monkeypatch.setattr(release, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(release, "_zig", lambda: "/opt/zig")
    commands = list[list[str]]()
    monkeypatch.setattr(release, "_run", lambda _title, command: commands.append(command))
    found = gpu_tools.Vulkan("/sdk/glslc", [tmp_path / "usr"], "1.4.309")
    monkeypatch.setattr(gpu_tools, "vulkan", lambda *_arguments, **_options: found)
    monkeypatch.delenv("EDGESPEC_BACKEND", raising=False)
    for _ in range(2):  # an interrupted step is done again
        defines = dict(define.split("=", 1) for define in release.vulkan(name, release.TARGETS[name]))
    include = Path(defines["Vulkan_INCLUDE_DIR"])
    assert sorted(path.name for path in include.iterdir()) == ["spirv", "vulkan"]
    assert (include / "vulkan/vulkan.hpp").exists()
    assert defines["Vulkan_GLSLC_EXECUTABLE"] == "/sdk/glslc"
    assert (Path(defines["SPIRV-Headers_DIR"]) / "SPIRV-HeadersConfig.cmake").exists()
    assert "host-c++" in Path(defines["GGML_VULKAN_SHADERS_GEN_TOOLCHAIN"]).read_text()
    assert defines["Vulkan_LIBRARY"] in commands[-1]
    assert ("dlltool" if "windows" in name else "aarch64-linux-gnu.2.17") in commands[-1]
    monkeypatch.setenv("EDGESPEC_BACKEND", "cpu")
    assert release.vulkan(name, release.TARGETS[name]) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a script of sh")
@pytest.mark.parametrize(
    ("libraries", "changes", "fits"),
    [
        ([], {"overall_tag": "manylinux_2_17_x86_64"}, True),
        (["libvulkan.so.1"], {}, True),
        (["libvulkan.so.1", "libcuda.so.1"], {}, False),
        (["libvulkan.so.1"], {"sym_tag": "manylinux_2_34_x86_64"}, False),
        (["libvulkan.so.1"], {"unsupported_isa": True}, False),
    ],
)
def test_a_wheel_for_linux_needs_no_other_library_than_the_loader_of_vulkan(
    libraries: list[str], changes: dict[str, object], fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = "manylinux_2_17_x86_64"
    report = {"overall_tag": "linux_x86_64", "sym_tag": tag, "unsupported_isa": False, "policy_upgrades": {}} | changes
    if libraries:
        report["policy_upgrades"] = {tag: {"libs_to_eliminate": libraries}}
    auditwheel = tmp_path / "auditwheel"
    auditwheel.write_text(f"#!/bin/sh\necho '{json.dumps(report)}'\n")
    auditwheel.chmod(0o755)
    monkeypatch.setattr(release, "_tool", lambda _name: str(auditwheel))
    if fits:
        release.check_tag(tmp_path / "x.whl", tag)
    else:
        with pytest.raises(CommandError, match=f"is not for {tag}"):
            release.check_tag(tmp_path / "x.whl", tag)


def test_only_an_exact_build_passes_the_check_of_a_release() -> None:
    version = "llama-cpp-python 1+edgespec.2, exact kernels"
    doctor = "exact mode, weights not repacked\nexact: decoding\n  up to 9 tokens"
    require_exact(version, doctor)
    for other in (version.replace("+edgespec.2", ""), version.replace("exact", "without edgespec's exact")):
        with pytest.raises(CheckError, match="another build"):
            require_exact(other, doctor)
    for other in (f"no {doctor}", doctor.replace("exact: ", "exact for 2; ")):
        with pytest.raises(CheckError, match="not exact"):
            require_exact(version, other)
        require_exact(version.replace(".2,", ".2, CPU variant apple_m1,"), other)


def test_exactly_one_wheel_is_installed(tmp_path: Path) -> None:
    for count in range(3):
        if count == 1:
            assert the_wheel(tmp_path, "edgespec-*.whl").name == "edgespec-0.whl"
        else:
            with pytest.raises(CheckError, match=f"has {count} files"):
                the_wheel(tmp_path, "edgespec-*.whl")
        (tmp_path / f"edgespec-{count}.whl").touch()


def test_the_downloads_of_pip_are_added_up() -> None:
    assert downloaded_mb("Downloading a.whl (1.5 MB)\n  Downloading b.whl.metadata (500 kB)\nUsing c") == 2.0


def test_the_workflow_runs_scripts_that_exist() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = dict(re.findall(r"^  (\w+):\n((?:    .*\n)+)", text, re.MULTILINE))
    needs = {name: re.findall(r"\w+", "".join(re.findall(r"needs: (.*)", job))) for name, job in jobs.items()}
    assert needs == {
        "build": [], "check": ["build"], "container": ["build"],
        "publish": ["check", "container"], "pypi": ["publish"], "image": ["publish"],
    }  # fmt: skip
    assert all(system in jobs["check"] for system in ("ubuntu-", "-arm", "macos-", "windows-"))
    scripts = re.findall(r"scripts/[\w.]+", text)
    assert {"scripts/release", "scripts/check_release.py"} <= {*scripts}
    for name in scripts:
        assert (ROOT / name).is_file()
    steps = re.findall(r"steps: (?:\"\"|([\w-]+))", text)
    assert {*filter(None, steps)} <= {*release.TARGETS, "macos-arm64"}
