"""Checks, before minutes of compiling, of what a GPU build of llama.cpp needs: compilers, headers and libraries.

An error names what is missing, and the command that installs it on this distribution. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from llama_build import Machine, compiler_command
from long_commands import CommandError, read, say

# The preprocessor prints which headers are missing, and the places of the others.
HEADERS = """
#if __has_include(<vulkan/vulkan.hpp>)
#include <vulkan/vulkan_core.h>
version: VK_HEADER_VERSION_COMPLETE
#ifndef VK_EXT_layer_settings
missing: newer headers
#endif
#else
missing: headers
#endif
#if __has_include(<spirv/unified1/spirv.hpp>)
#include <spirv/unified1/spirv.hpp>
#else
missing: spirv
#endif
"""
SHADER = """#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_integer_dot_product : require
void main() {}
"""
KERNEL = """#include <cublas_v2.h>
#if !__has_include(<cub/cub.cuh>)
#error The headers of CUB are missing.
#endif
__global__ void kernel() {}
"""

#: The command that installs packages, and the packages of each part, by family of distributions.
PACKAGES = {
    "debian": ("sudo apt install", {"glslc": "glslc", "headers": "libvulkan-dev", "spirv": "spirv-headers"}),
    "fedora": (
        "sudo dnf install",
        {"glslc": "glslc", "headers": "vulkan-headers vulkan-loader-devel", "spirv": "spirv-headers-devel"},
    ),
    "arch": (
        "sudo pacman -S",
        {"glslc": "shaderc", "headers": "vulkan-headers vulkan-icd-loader", "spirv": "spirv-headers"},
    ),
    "suse": ("sudo zypper install", {"glslc": "shaderc", "headers": "vulkan-devel", "spirv": "spirv-headers"}),
}
NAMES = {
    "glslc": "glslc (the shader compiler)",
    "headers": "the Vulkan headers",
    "spirv": "the SPIR-V headers",
    "loader": "the Vulkan loader (libvulkan.so)",
    "sdk": "the Vulkan SDK",
}
#: How to install the CUDA toolkit; other distributions get it from NVIDIA.
CUDA_COMMANDS = {"debian": "sudo apt install nvidia-cuda-toolkit", "arch": "sudo pacman -S cuda"}
CUDA_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver for each major version of CUDA."""
#: PyPI has nvcc for CUDA 13 only. Each part has to be named: nvcc would get other versions of the parts it needs.
CUDA_VERSION = "13.0.2"
CUDA_PACKAGES = f"cuda-toolkit[nvcc,crt,nvvm,cudart,cublas,cccl]=={CUDA_VERSION}"
OLDEST_CAPABILITY = 75  # of CUDA 13


class Vulkan(NamedTuple):
    """The shader compiler that was found, the folders of the headers, and the versions of both."""

    glslc: str
    includes: list[Path]
    version: str


def check(machine: Machine, backend: str, environ: Mapping[str, str]) -> None:
    """Raise CommandError if a build for this backend would fail for a reason that can be known within seconds."""
    if backend == "vulkan" and "Vulkan_" not in environ.get("CMAKE_ARGS", ""):
        vulkan([] if machine.system == "Windows" else compiler_command(environ), environ)
    if backend == "cuda" and "CMAKE_CUDA_COMPILER" not in environ.get("CMAKE_ARGS", ""):
        cuda(machine, environ)


def advice(backend: str) -> str:
    """Return what to do about a build for a GPU that failed although `check` found nothing."""
    return {
        "cuda": "The CUDA toolkit may not fit this version of llama.cpp, or the C++ compiler. " + NO_TOOLKIT,
        "vulkan": f"The Vulkan headers or glslc may be too old. {VULKAN_SDK}\n{OTHERWISE}",
    }[backend]


def vulkan(compiler: Sequence[str], environ: Mapping[str, str], linked: bool = True) -> Vulkan:
    """Return the places of Vulkan's headers and of glslc. `linked`: the loader is needed too.

    Raises CommandError with what is missing. The headers are looked for by the compiler; without one, only the SDK is
    asked for.
    """
    sdk = environ.get("VULKAN_SDK", "")
    places = [str(Path(sdk, "bin"))] if sdk else []
    glslc = shutil.which("glslc", path=os.pathsep.join([*places, environ.get("PATH", os.defpath)])) or ""
    missing = [] if glslc else ["glslc"]
    includes, version = list[Path](), ""
    if compiler:
        flags = [f"-I{sdk}/include"] if sdk else []
        printed = _run([*compiler, "-E", "-x", "c++", *flags, "-"], HEADERS)[1]
        numbers = "".join(re.findall(r"^version: (.*)", printed, re.M))
        version = ".".join(re.findall(r"uint32_t\)\((\d+)\)", numbers)[-3:])
        missing += re.findall(r"^missing: (.*)", printed, re.M)
        found = re.findall(r'^# 1 "(.+)/(?:vulkan/vulkan_core\.h|spirv/unified1/spirv\.hpp)"', printed, re.M)
        includes = [Path(path) for path in dict.fromkeys(found)]
        library = [f"-L{sdk}/lib"] if sdk else []
        link = [*compiler, "-x", "c++", "-", *library, "-lvulkan", "-o", os.devnull]
        if linked and "headers" not in missing and _run(link, "int main() {}")[0]:
            missing.append("loader")
    elif not sdk:
        missing.append("sdk")
    if "newer headers" in missing:
        raise CommandError(OLD_HEADERS.format(version, VULKAN_SDK, OTHERWISE))
    if missing:
        raise CommandError(_missing(missing, read(Path("/etc/os-release"))))
    status, printed = _run([glslc, "-fshader-stage=compute", "--target-env=vulkan1.3", "-o", os.devnull, "-"], SHADER)
    if status and "extension not supported" not in printed:
        raise CommandError(f"glslc does not work ({glslc}):\n{_quoted(printed)}\n{VULKAN_SDK}\n{OTHERWISE}")
    if status:
        say("this glslc is too old for matrix cores and integer dot products, so prompts will be read more slowly.")
        say("glslc 2025.2 or newer has them: Debian 13, or the Vulkan SDK (https://vulkan.lunarg.com)")
    return Vulkan(glslc, includes, f"{version} {_run([glslc, '--version'], '')[1].partition(chr(10))[0]}")


def cuda(machine: Machine, environ: Mapping[str, str]) -> None:
    """Raise CommandError unless nvcc compiles for the GPUs with the C++ compiler, and the driver runs the result."""
    if not machine.nvcc:
        packages = CUDA_COMMANDS.get(family(read(Path("/etc/os-release"))), "")
        packages = f"\n    {packages}" if packages and machine.system == "Linux" else ""
        raise CommandError(f"the CUDA compiler (nvcc) was not found.{packages}\n{NO_TOOLKIT}")
    version = re.findall(r"release (\d+)\.(\d+)", _run([machine.nvcc, "--version"], "")[1])
    needed = CUDA_DRIVERS.get(int(version[0][0]), 0) if version else 0
    if machine.driver and int(machine.driver.partition(".")[0]) < needed:
        raise CommandError(
            f"version {'.'.join(version[0])} of the CUDA toolkit needs NVIDIA's driver {needed} or newer, and"
            f" {machine.driver} is installed.\nUpdate the driver, or install an older toolkit.\n{NO_TOOLKIT}"
        )
    host = ["-ccbin", environ["CUDAHOSTCXX"]] if environ.get("CUDAHOSTCXX") else []
    for capability in re.findall(r"\d+", machine.capabilities):
        host += ["-gencode", f"arch=compute_{capability},code=sm_{capability}"]
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "kernel.cu")
        source.write_text(KERNEL, encoding="utf-8")
        status, printed = _run([machine.nvcc, *host, "-c", str(source), "-o", str(source.with_suffix(".o"))], "")
    if status:
        remedy = next(remedy for symptom, remedy in NVCC_REMEDIES.items() if re.search(symptom, printed))
        raise CommandError(f"{machine.nvcc} cannot compile a small program:\n{_quoted(printed)}\n{remedy}\n{NO_CUDA}")


def needs_toolkit(machine: Machine, environ: Mapping[str, str]) -> bool:
    """Return whether the CUDA toolkit is missing, and the one on PyPI works for the GPUs and the driver."""
    own = machine.nvcc or environ.get("CUDACXX") or "CMAKE_CUDA_COMPILER" in environ.get("CMAKE_ARGS", "")
    if own or machine.system != "Linux" or not machine.driver:
        return False
    capabilities = [int(capability) for capability in re.findall(r"\d+", machine.capabilities)]
    driver = int(machine.driver.partition(".")[0])
    newest = CUDA_DRIVERS[int(CUDA_VERSION.partition(".")[0])]
    return min(capabilities, default=0) >= OLDEST_CAPABILITY and driver >= newest


def complete_toolkit(root: Path, compiler: Sequence[str]) -> None:
    """Add to the CUDA packages in `root` what the linker looks for: unversioned names, and a stub of the driver."""
    library = root / "lib"
    for path in library.glob("lib*.so.*"):
        (library / f"{path.name.partition('.so')[0]}.so").symlink_to(path.name)
    (root / "lib64").symlink_to("lib")
    (library / "stubs").mkdir()
    code = "int cuGetErrorString(void) { return 0; }"  # a library is named as needed if one of its functions is used
    stub = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", str(library / "stubs/libcuda.so")]
    status, printed = _run([*compiler, "-x", "c", "-", *stub], code)
    if status:
        raise CommandError(f"the C++ compiler cannot make a library:\n{_quoted(printed)}")


def family(os_release: str) -> str:
    """Return the family in `PACKAGES` that the text of /etc/os-release names, or ""."""
    words = re.findall(r"[\w-]+", " ".join(re.findall(r"^ID(?:_LIKE)?=(.*)$", os_release, re.M)))
    others = {"ubuntu": "debian", "rhel": "fedora", "opensuse": "suse"}
    known = (others.get(word.partition("-")[0], word.partition("-")[0]) for word in words)
    return next((word for word in known if word in PACKAGES), "")


def _missing(parts: Sequence[str], os_release: str) -> str:
    found = family(os_release)
    text = f"llama.cpp's Vulkan backend cannot be compiled without {_listed([NAMES[part] for part in parts])}.\n"
    if found and "sdk" not in parts:
        command, packages = PACKAGES[found]
        wanted = dict.fromkeys(packages["headers" if part == "loader" else part] for part in parts)
        text += f"    {command} {' '.join(wanted)}\n"
    return f"{text}{VULKAN_SDK}\n{OTHERWISE}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _quoted(printed: str) -> str:
    return "\n".join(f"    {line}" for line in printed.strip().splitlines()[:6])


def _run(command: Sequence[str], text: str) -> tuple[int, str]:
    """Return the exit status, and all that was printed. A program that cannot be started has the status 127."""
    try:
        done = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)
    return done.returncode, done.stdout


VULKAN_SDK = """The Vulkan SDK has all that is needed: https://vulkan.lunarg.com/sdk/home
Set VULKAN_SDK to the folder that has its include/ and bin/, such as ~/1.4.309.0/x86_64 (on Windows its installer does).
The packages of Debian 12 and Ubuntu 22.04 are too old: use the SDK there."""

OTHERWISE = "EDGESPEC_BACKEND=cpu needs none of this, and on a Mac the default is Metal. See docs/install.md."

OLD_HEADERS = """the Vulkan headers (version {0}) are too old for llama.cpp, which uses VK_EXT_layer_settings.
{1}
{2}"""

NO_CUDA = "EDGESPEC_BACKEND=vulkan needs no CUDA. See docs/install.md."

NO_TOOLKIT = f"""NVIDIA's CUDA toolkit: https://developer.nvidia.com/cuda-downloads
On Linux, with NVIDIA's driver 580 or newer and GPUs from the RTX 20 series on (compute capability 7.5), it need not be
installed: the parts that are needed are downloaded (0.5 GB).
{NO_CUDA}"""

#: What to do about an error of nvcc, by what it prints.
NVCC_REMEDIES = {
    "unsupported.*version": "The C++ compiler is too new for nvcc. Install an older one: CUDAHOSTCXX=g++-14 names it.",
    "gpu architecture": "This CUDA toolkit does not support the GPU. Install another version:"
    " CUDACXX=/usr/local/cuda-13.0/bin/nvcc names its compiler.",
    "": "A part of the CUDA toolkit is missing: https://developer.nvidia.com/cuda-downloads",
}
