"""Build the wheels of a release: llama.cpp with edgespec's kernels for every system, and edgespec itself.

    release.py                 all steps that this machine can do
    release.py STEP ...        these steps only: source, linux-x86_64, linux-aarch64, windows-x86_64, macos-arm64,
                               edgespec

The wheels are written to dist/. A step that is complete is not done again; an interrupted one continues where it was.
The wheels for Linux and Windows are compiled on Linux by Zig's clang, which brings the C libraries of all systems, so
that no other compiler and no container is needed. The wheel for macOS needs Apple's SDK and is compiled on a Mac.
Standard library only: the tools are installed into build/release/tools, except for Vulkan's headers and glslc, which no
package index has: install the Vulkan SDK (https://vulkan.lunarg.com) or the packages of the distribution. With
EDGESPEC_BACKEND=cpu the wheels are built without Vulkan.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gpu_tools
from bootstrap import llama_version
from llama_build import ADDITIONS, library_version
from long_commands import CommandError, locked, minutes, read, run_logged, say

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WORK = ROOT / "build/release"
LOG = WORK / "build.log"
TOOLS = WORK / "tools"
REQUIREMENTS = (
    "ziglang==0.17.1",
    "cmake>=3.28,<5",
    "ninja>=1.11",
    "scikit-build-core>=0.11,<1",
    "wheel>=0.45",
    "build>=1.2",
    "auditwheel>=6.4",
)
# The functions of Vulkan's loader that ggml-vulkan.cpp calls by name. It asks the first two for all others.
LOADER = ("vkGetInstanceProcAddr", "vkGetDeviceProcAddr", "vkGetPhysicalDeviceFeatures2", "vkCmdCopyBuffer")
# Zig's clang would keep frame pointers, which take 6 to 8 % of the speed, and debug information, which wheels lack.
FLAGS = "-fno-sanitize=undefined -fomit-frame-pointer -g0"
UNUSED = ("include/**", "lib/**", "bin/**", "llama_cpp/lib/*.a", "llama_cpp/lib/*.lib")  # files that a wheel leaves out
PORTABLE = ("GGML_BACKEND_DL=ON", "GGML_CPU_ALL_VARIANTS=ON", "GGML_NATIVE=OFF", "GGML_OPENMP=OFF")


class Target(NamedTuple):
    """A system that a wheel is for: the tag of its wheels, and Zig's and CMake's names of it."""

    tag: str
    zig: str
    system: str
    processor: str


TARGETS = {
    "linux-x86_64": Target("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", "Linux", "x86_64"),
    "linux-aarch64": Target("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "Linux", "aarch64"),
    "windows-x86_64": Target("win_amd64", "x86_64-windows-gnu", "Windows", "AMD64"),
}

# Zig reads the name of a CPU in -march, and has other names for the levels of ARM.
WRAPPER = """#!/bin/sh
for argument do
    shift
    case $argument in -march=armv*)
        argument=$(echo "$argument" | sed "s/-march=armv8-a/-mcpu=generic/
            s/-march=armv\\(.\\)\\.\\(.\\)-a/-mcpu=generic+v\\1_\\2a/; s/+fp16/+fullfp16/; s/+nosve//");;
    esac
    set -- "$@" "$argument"
done
exec "{zig}" {tool} "$@"
"""


def main(arguments: list[str]) -> int:
    """Run the steps that the arguments name, or all, and return the exit status."""
    if sys.version_info < (3, 11):  # noqa: UP036
        say(f"needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
        return 1
    steps = {"source": source, **{name: _llama_step(name) for name in TARGETS}, "edgespec": edgespec}
    if sys.platform == "darwin":
        steps = {"source": source, "macos-arm64": macos, "edgespec": edgespec}
    elif sys.platform != "linux":
        print("release.py needs Linux, or macOS for the wheel for macOS", file=sys.stderr)
        return 1
    unknown = [name for name in arguments if name not in steps]
    if unknown:
        print(f"no such step on this system: {', '.join(unknown)}; there are {', '.join(steps)}", file=sys.stderr)
        return 2
    try:
        for folder in (WORK, DIST):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(WORK / "lock", "building the same release"):
            tools()
            for name in arguments or steps:
                _timed(name, steps[name])
    except (CommandError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next call continues")
        return 130
    for wheel in sorted(DIST.iterdir()):
        print(f"{wheel.stat().st_size / 1e6:8.1f} MB  {wheel.relative_to(ROOT)}")
    return 0


def tools() -> None:
    """Create build/release/tools, an environment with the compiler and the builders."""
    if read(TOOLS / "requirements") == "\n".join(REQUIREMENTS):
        return
    shutil.rmtree(TOOLS, ignore_errors=True)
    _run("creating build/release/tools", [sys.executable, "-m", "venv", str(TOOLS)])
    pip = [_tool("python"), "-m", "pip", "install"]
    _run("updating pip", [*pip, "pip>=25"])  # options of wheels (-C) are new
    _run("installing the tools", [*pip, *REQUIREMENTS])
    (TOOLS / "requirements").write_text("\n".join(REQUIREMENTS), encoding="utf-8")


def source() -> Path:
    """Unpack the source of llama-cpp-python and mark its version as edgespec's build of it. Return its folder.

    The build writes edgespec's additions and their path into the source, so that other additions need a new copy. The
    files keep the times of the archive, so that only those which the build changes are compiled again.
    """
    folder, inputs = WORK / f"llama_cpp_python-{llama_version()}", _digest(str(ROOT), *_additions())
    if read(folder / "edgespec") == inputs:
        return folder
    archive = WORK / f"{folder.name}.tar.gz"
    if not archive.exists():
        pip = [_tool("python"), "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--dest", str(WORK)]
        wanted = f"llama-cpp-python=={llama_version()}"
        _run("downloading llama-cpp-python", [*pip, "--no-binary", "llama-cpp-python", wanted])
    part = WORK / "unpacked"
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
        files.extractall(part)
    package = part / folder.name / "llama_cpp/__init__.py"
    text = package.read_text(encoding="utf-8")
    package.write_text(text.replace(f'"{llama_version()}"', f'"{library_version(llama_version())}"'), encoding="utf-8")
    (part / folder.name / "edgespec").write_text(inputs, encoding="utf-8")
    (part / folder.name).rename(folder)
    return folder


def _llama_step(name: str) -> Callable[[], Path]:
    return lambda: llama_wheel(name, TARGETS[name])


def llama_wheel(name: str, target: Target) -> Path:
    """Cross-compile the wheel of llama-cpp-python for a target, with a CPU backend for each level of instructions."""
    compilers = {
        tool: _wrapper(name, tool, f"-target {target.zig}" if tool in ("cc", "c++") else "")
        for tool in ("cc", "c++", "ar", "ranlib", "rc")
    }
    defines = [
        *PORTABLE,
        f"CMAKE_SYSTEM_NAME={target.system}",
        f"CMAKE_SYSTEM_PROCESSOR={target.processor}",
        f"CMAKE_C_FLAGS={FLAGS}",
        f"CMAKE_CXX_FLAGS={FLAGS}",
        f"CMAKE_C_COMPILER={compilers['cc']}",
        f"CMAKE_CXX_COMPILER={compilers['c++']}",
        f"CMAKE_AR={compilers['ar']}",
        f"CMAKE_RANLIB={compilers['ranlib']}",
        f"CMAKE_RC_COMPILER={compilers['rc']}",
        *vulkan(name, target),
    ]
    return _llama_wheel(name, target.tag, defines)


def vulkan(name: str, target: Target) -> list[str]:
    """Return the CMake definitions of the Vulkan backend, a plugin that is loaded where the system has Vulkan's loader.

    The plugin is linked to a loader without code, so that the system's own loader is not needed to build it.
    """
    if os.environ.get("EDGESPEC_BACKEND", "").lower() == "cpu":
        return []
    found = gpu_tools.vulkan([_zig(), "c++"], os.environ, linked=False)
    folder = WORK / "vulkan"
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir(parents=True)
    include = folder / "include"  # without the other headers of /usr/include, which are those of another C library
    shutil.rmtree(include, ignore_errors=True)
    include.mkdir()
    for header in ("vulkan", "vk_video", "spirv"):
        source = next((path for path in found.includes if (path / header).is_dir()), None)
        if source:
            (include / header).symlink_to(source / header)
    (folder / name / "SPIRV-HeadersConfig.cmake").touch()  # CMake asks for it; the headers are in `include`
    host = folder / name / "host.cmake"
    compilers = "".join(
        f'set(CMAKE_{language}_COMPILER "{_wrapper("host", tool, "")}")\n'
        for language, tool in (("C", "cc"), ("CXX", "c++"))
    )
    host.write_text(compilers, encoding="utf-8")
    return [
        "GGML_VULKAN=ON",
        f"GGML_VULKAN_SHADERS_GEN_TOOLCHAIN={host}",
        f"Vulkan_INCLUDE_DIR={include}",
        f"Vulkan_LIBRARY={_loader(folder / name, target)}",
        f"Vulkan_GLSLC_EXECUTABLE={found.glslc}",
        f"SPIRV-Headers_DIR={folder / name}",
        f"EDGESPEC_VULKAN={found.version}",  # CMake does not use it: another version is another build
    ]


def _loader(folder: Path, target: Target) -> Path:
    """Write a library with the names of Vulkan's loader for the linker."""
    if target.system == "Windows":
        names, library = folder / "vulkan.def", folder / "vulkan-1.lib"
        names.write_text("\n".join(["LIBRARY vulkan-1.dll", "EXPORTS", *LOADER, ""]), encoding="utf-8")
        command = [_zig(), "dlltool", "-m", "i386:x86-64", "-d", str(names), "-l", str(library)]
    else:
        code, library = folder / "loader.c", folder / "libvulkan.so"
        code.write_text("".join(f"void {function}(void) {{}}\n" for function in LOADER), encoding="utf-8")
        command = [_zig(), "cc", "-target", target.zig, "-shared", "-Wl,-soname,libvulkan.so.1", "-o", str(library)]
        command += [str(code)]
    _run("making a stub of Vulkan's loader", command)
    return library


def _wrapper(name: str, tool: str, options: str) -> str:
    wrapper = TOOLS / "wrappers" / f"{name}-{tool}"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(WRAPPER.format(zig=_zig(), tool=f"{tool} {options}".rstrip()), encoding="utf-8")
    wrapper.chmod(0o755)
    return str(wrapper)


def macos() -> Path:
    """Compile the wheel for Apple silicon, with Metal and the CPU backends of M1 to M4."""
    defines = [*PORTABLE, "CMAKE_OSX_ARCHITECTURES=arm64", "CMAKE_OSX_DEPLOYMENT_TARGET=14.0"]
    return _llama_wheel("macos-arm64", "macosx_14_0_arm64", defines)


def _llama_wheel(name: str, tag: str, defines: list[str]) -> Path:
    wheel = DIST / f"llama_cpp_python-{library_version(llama_version())}-py3-none-{tag}.whl"
    folder = WORK / name
    toolchain = _digest(*REQUIREMENTS, WRAPPER, *TARGETS.get(name, ()), *defines)
    inputs = _digest(toolchain, llama_version(), *UNUSED, *_additions())
    if wheel.exists() and read(folder / "done") == inputs:
        return wheel
    if read(folder / "toolchain") != toolchain:  # ninja does not know what its commands depend on
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "toolchain").write_text(toolchain, encoding="utf-8")
    (folder / "done").unlink(missing_ok=True)
    built = folder / "wheel"
    shutil.rmtree(built, ignore_errors=True)
    shutil.rmtree(source() / "llama_cpp/lib", ignore_errors=True)  # CMake also installs the libraries there
    command = [_tool("python"), "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    command += ["--wheel-dir", str(built), "-C", f"build-dir={folder / 'cmake'}"]
    for unused in UNUSED:
        command += ["-C", f"wheel.exclude={unused}"]
    defines = [*defines, f"CMAKE_PROJECT_INCLUDE={ADDITIONS / 'kernels.cmake'}"]
    environ = {"CMAKE_ARGS": shlex.join(f"-D{define}" for define in defines), "CMAKE_GENERATOR": "Ninja"}
    _run(f"compiling for {name}", [*command, str(source())], environ)
    retagged = [_tool("python"), "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(next(built.iterdir()))]
    _run("naming the wheel", retagged)
    if "manylinux" in tag:
        check_tag(built / wheel.name, tag)
    shutil.move(built / wheel.name, wheel)
    (folder / "done").write_text(inputs, encoding="utf-8")
    return wheel


def check_tag(wheel: Path, tag: str) -> None:
    """Raise CommandError unless the libraries of a wheel for Linux need no more than its tag says.

    Vulkan's loader may be needed too, because the plugin that needs it is left out where the loader is missing.
    """
    done = subprocess.run([_tool("auditwheel"), "show", "--json", str(wheel)], capture_output=True, text=True)
    found = {} if done.returncode else json.loads(done.stdout)
    only_loader = found and found["policy_upgrades"].get(tag) == {"libs_to_eliminate": ["libvulkan.so.1"]}
    fits = only_loader and found["sym_tag"] == tag and not found["unsupported_isa"]
    if not found or not (found["overall_tag"] == tag or fits):
        raise CommandError(f"auditwheel finds that {wheel.name} is not for {tag}:\n{done.stdout}{done.stderr}")


def edgespec() -> Path:
    """Build edgespec's own wheel and source archive."""
    _run("building edgespec", [_tool("python"), "-m", "build", "--outdir", str(DIST), str(ROOT)])
    return max(DIST.glob("edgespec-*.whl"), key=lambda path: path.stat().st_mtime)


def _additions() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(ADDITIONS.iterdir())]


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _timed(name: str, step: Callable[[], Path]) -> None:
    started = time.monotonic()
    result = step()
    say(f"{name}: {result.name} ({minutes(time.monotonic() - started)})")


def _tool(name: str) -> str:
    return str(TOOLS / "bin" / name)


def _zig() -> str:
    return str(next((TOOLS / "lib").glob("python*/site-packages/ziglang/zig")))


def _run(title: str, command: list[str], environ: dict[str, str] | None = None) -> None:
    path = f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"  # cmake and ninja
    zig = str(WORK / "zig")
    ours = {"PATH": path, "PIP_USER": "0", "ZIG_GLOBAL_CACHE_DIR": zig, "ZIG_LOCAL_CACHE_DIR": zig}
    run_logged(title, command, LOG, ROOT, {**os.environ, **ours, **(environ or {})}, "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
