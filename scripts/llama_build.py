"""The build of llama-cpp-python for this machine: backend, compiler, flags, and its name in the cache.

Except `look`, the functions depend only on a `Machine`. Standard library only; importable by Python 3.8.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

BACKENDS = ("cpu", "cuda", "metal", "vulkan")
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
ADDITIONS = Path(__file__).resolve().parent / "llama"  # changes to llama.cpp


class Compiler(NamedTuple):
    """A C++ compiler: "gcc" or "clang", and its version, such as (12, 2)."""

    family: str
    version: tuple[int, int]


class Machine(NamedTuple):
    """The properties of a machine that the choice of a build depends on."""

    system: str  # platform.system(): Linux, Darwin, Windows
    architecture: str  # platform.machine()
    cpu: str  # the text of /proc/cpuinfo; on other systems the name of the CPU
    compiler: Compiler | None = None
    clang_works: bool = False
    nvcc: str = ""  # path of the CUDA compiler
    gpus: str = ""  # names of the NVIDIA GPUs, one a line
    capabilities: str = ""  # their compute capabilities as CMake writes them, such as "86;89"
    driver: str = ""  # version of NVIDIA's driver


def choose_backend(machine: Machine, wanted: str) -> str:
    """Return the requested backend, or the best one for the machine; Vulkan is never chosen by itself.

    Raises ValueError for an unknown name.
    """
    if wanted:
        if wanted.lower() not in BACKENDS:
            raise ValueError(
                f"EDGESPEC_BACKEND={wanted}: there is no such backend; choose one of {', '.join(BACKENDS)}"
            )
        return wanted.lower()
    if machine.system == "Darwin" and machine.architecture == "arm64":
        return "metal"
    return "cuda" if machine.nvcc and machine.gpus else "cpu"


def build_environment(machine: Machine, backend: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the build. Flags that the user set in `environ` take precedence."""
    options = {"cuda": "-DGGML_CUDA=on", "metal": "-DGGML_METAL=on", "vulkan": "-DGGML_VULKAN=on", "cpu": ""}[backend]
    if machine.system == "Darwin" and backend != "metal":
        options = f"-DGGML_METAL=off {options}"
    if backend == "cuda" and machine.capabilities:
        options += f" -DCMAKE_CUDA_ARCHITECTURES='{machine.capabilities}'"  # only those of this machine
    chosen = {"CMAKE_ARGS": options} if options else {}
    if backend == "cuda" and machine.nvcc and "CUDACXX" not in environ:
        chosen["CUDACXX"] = machine.nvcc  # CMake only searches PATH
    if amx_is_miscompiled(machine):
        own_compiler = "CC" in environ or "CXX" in environ or "_COMPILER" in environ.get("CMAKE_ARGS", "")
        if machine.clang_works and not own_compiler and backend != "cuda":  # nvcc supports few host compilers
            return {**_before(chosen, environ), "CC": "clang", "CXX": "clang++"}
        chosen.update(CFLAGS=NO_AMX, CXXFLAGS=NO_AMX)
    return _before(chosen, environ)


def amx_is_miscompiled(machine: Machine) -> bool:
    """Return whether quantised models would crash: the CPU has AMX, and GCC loses the tile configuration.

    `_tile_loadconfig` of GCC 11 to 13.2 declares only 8 of the 64 bytes as read (GCC PR target/114098). Older versions
    do not support AMX. Later point releases of GCC 11 and 12 may be fixed, but are not trusted.
    """
    if machine.system != "Linux" or machine.architecture not in ("x86_64", "AMD64") or machine.compiler is None:
        return False
    has_amx = not {"amx_tile", "amx_int8"}.isdisjoint(cpu_features(machine.cpu))
    family, version = machine.compiler
    return has_amx and family == "gcc" and (11, 0) <= version < (13, 3)


def lacks_compiler(machine: Machine, environ: Mapping[str, str]) -> bool:
    """Return whether no compiler was found. On Windows CMake finds Visual Studio, which is not on PATH."""
    own = environ.get("CC") or environ.get("CXX") or "_COMPILER" in environ.get("CMAKE_ARGS", "")
    return machine.compiler is None and machine.system != "Windows" and not own


def has_own_flags(environ: Mapping[str, str]) -> bool:
    """Return whether the user chose a compiler or flags, which asks for a build on this machine."""
    return any(environ.get(name) for name in ("CMAKE_ARGS", "CC", "CXX", "CFLAGS", "CXXFLAGS"))


def cpu_features(cpu: str) -> list[str]:
    """Return the sorted instruction set flags of a /proc/cpuinfo text, or the words of another text."""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpu, re.MULTILINE)
    return sorted(set((line.group(1) if line else cpu).split()))


def cache_name(version: str, machine: Machine, backend: str, environ: Mapping[str, str]) -> str:
    """Return a folder name that differs whenever the compiled library may differ: llama.cpp is built for this CPU.

    The wheel does not depend on the Python version (py3-none). `environ` is the whole environment of the build.
    """
    flags = [f"{name}={environ.get(name, '')}" for name in ("CMAKE_ARGS", "CC", "CXX", "CFLAGS", "CXXFLAGS")]
    libc = " ".join(platform.libc_ver())
    parts = [version, backend, machine.system, machine.architecture, libc, str(machine.compiler), *flags]
    parts += cpu_features(machine.cpu) + (machine.gpus.splitlines() if backend == "cuda" else [])
    parts += [path.read_text(encoding="utf-8") for path in sorted(ADDITIONS.iterdir())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return f"{version}-{backend}-{machine.system}-{machine.architecture}-{digest}".lower()


def library_version(version: str) -> str:
    """Return the version of llama-cpp-python with `ADDITIONS`: the local part counts changes of their interface."""
    header = (ADDITIONS / "kernels.h").read_text(encoding="utf-8")
    return f"{version}+edgespec.{re.findall(r'EDGESPEC_VERSION = ([0-9]+)', header)[0]}"


def with_additions(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the CMake option for `ADDITIONS`; its path must not be part of `cache_name`."""
    option = shlex.quote(f"-DCMAKE_PROJECT_INCLUDE={(ADDITIONS / 'kernels.cmake').as_posix()}")
    return {**environ, "CMAKE_ARGS": f"{option} {environ.get('CMAKE_ARGS', '')}".strip()}


def look(environ: Mapping[str, str]) -> Machine:
    """Return the properties of this machine."""
    homes = (environ.get("CUDA_PATH"), environ.get("CUDA_HOME"), "/usr/local/cuda")
    cuda = [f"{home}/bin" for home in homes if home]
    ask = ["nvidia-smi", "--format=csv,noheader"]
    found = _output([*ask, "--query-gpu=name,compute_cap,driver_version"])
    if not found:  # an old driver does not know the capability
        found = _output([*ask, "--query-gpu=name,name,driver_version"])
    cards = [line.rsplit(", ", 2) for line in found.splitlines() if line.count(", ") > 1]
    capabilities = {capability.replace(".", "") for _, capability, _ in cards if re.fullmatch(r"\d+\.\d+", capability)}
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cpu=_cpu(),
        compiler=_compiler(environ),
        clang_works=_compiles(["clang", "-x", "c"]) and _compiles(["clang++", "-x", "c++"]),
        nvcc=environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(cuda)) or "",
        gpus="\n".join(name for name, _, _ in cards),
        capabilities=";".join(sorted(capabilities)),
        driver=cards[0][2] if cards else "",
    )


def _before(chosen: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Put each chosen value before the user's, because the last flag wins."""
    return {name: f"{value} {environ.get(name, '')}".strip() for name, value in chosen.items()}


def _cpu() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        brand = _output(["sysctl", "-n", "machdep.cpu.brand_string"]) if platform.system() == "Darwin" else ""
        return brand.strip() or os.environ.get("PROCESSOR_IDENTIFIER", "") or platform.processor()


def _compiler(environ: Mapping[str, str]) -> Compiler | None:
    """Return the C++ compiler that CMake would use, identified by its predefined macros."""
    command = compiler_command(environ)
    if command:
        macros = dict(re.findall(r"^#define (\w+) (.*)$", _output([*command, "-dM", "-E", "-x", "c++", "-"]), re.M))
        for family, major, minor in (
            ("clang", "__clang_major__", "__clang_minor__"),
            ("gcc", "__GNUC__", "__GNUC_MINOR__"),
        ):
            if major in macros:
                return Compiler(family, (int(macros[major]), int(macros[minor])))
    return None


def compiler_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the C++ compiler that CMake would use, or [] if there is none."""
    if environ.get("CXX"):
        return environ["CXX"].split()
    return [name for name in ("c++", "g++", "clang++") if shutil.which(name)][:1]


def _compiles(compiler: list[str]) -> bool:
    """Return whether a program that includes the standard library can be built: clang++ often lacks its headers."""
    header = "vector" if "c++" in compiler else "math.h"
    program = f"#include <{header}>\nint main(void) {{ return 0; }}\n"
    return shutil.which(compiler[0]) is not None and _run([*compiler, "-", "-o", os.devnull], program) is not None


def _output(command: list[str]) -> str:
    return _run(command, "") or ""


def _run(command: list[str], text: str) -> str | None:
    try:
        done = subprocess.run(
            command, input=text, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", timeout=60
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None
