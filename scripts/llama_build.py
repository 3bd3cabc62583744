"""Which build of llama-cpp-python this machine needs: backend, compiler, flags, and the name it is cached under.

Everything but `look` is a pure function of a `Machine`. Standard library only; importable by Python 3.8.
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
COMPILERS = ("system", "zig")
ZIG = "0.17.0"  # of ziglang, the package that holds a C and C++ compiler
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
ZIG_COMPILERS = {"C": "cc", "CXX": "c++"}
ADDITIONS = Path(__file__).resolve().parent / "llama"  # what the build puts into llama.cpp, and leaves out


class Compiler(NamedTuple):
    """A C++ compiler: "gcc", "clang" or "zig", and its version, such as (12, 2)."""

    family: str
    version: tuple[int, int]


class Machine(NamedTuple):
    """What the choice of a build depends on."""

    system: str  # platform.system(): Linux, Darwin, Windows
    architecture: str  # platform.machine()
    cpu: str  # the text of /proc/cpuinfo; on other systems the name of the CPU
    compiler: Compiler | None = None
    clang_works: bool = False
    nvcc: str = ""  # path of the CUDA compiler
    gpus: str = ""  # names of the NVIDIA GPUs, one a line


def choose_backend(machine: Machine, wanted: str) -> str:
    """The backend asked for, or without one what the machine offers. Vulkan is only used when asked for.

    Raises ValueError for an unknown name, and for one that the compiler cannot build.
    """
    if wanted:
        if wanted.lower() not in BACKENDS:
            raise ValueError(
                f"EDGESPEC_BACKEND={wanted}: there is no such backend; choose one of {', '.join(BACKENDS)}"
            )
        if uses_zig(machine) and wanted.lower() != "cpu":
            raise ValueError(f"zig builds llama.cpp for CPUs only, not for {wanted.lower()}; set EDGESPEC_BACKEND=cpu")
        return wanted.lower()
    if uses_zig(machine):
        return "cpu"
    if machine.system == "Darwin" and machine.architecture == "arm64":
        return "metal"
    return "cuda" if machine.nvcc and machine.gpus else "cpu"


def build_environment(machine: Machine, backend: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to set for the build, on top of `environ`; what the user set there stays and wins."""
    options = {"cuda": "-DGGML_CUDA=on", "metal": "-DGGML_METAL=on", "vulkan": "-DGGML_VULKAN=on", "cpu": ""}[backend]
    if machine.system == "Darwin" and backend != "metal":
        options = f"-DGGML_METAL=off {options}"
    if not with_rpc(environ):
        options = f"-DGGML_RPC=off {options}".strip()
    if uses_zig(machine):
        options = f"-DGGML_OPENMP=OFF {options}".strip()  # the package has no OpenMP; llama.cpp brings its own threads
    chosen = {"CMAKE_ARGS": options} if options else {}
    if backend == "cuda" and machine.nvcc and "CUDACXX" not in environ:
        chosen["CUDACXX"] = machine.nvcc  # CMake looks only on PATH
    if amx_is_miscompiled(machine):
        own_compiler = "CC" in environ or "CXX" in environ or "_COMPILER" in environ.get("CMAKE_ARGS", "")
        if machine.clang_works and not own_compiler and backend != "cuda":  # nvcc is particular about its host compiler
            return {**_before(chosen, environ), "CC": "clang", "CXX": "clang++"}
        chosen.update(CFLAGS=NO_AMX, CXXFLAGS=NO_AMX)
    return _before(chosen, environ)


def amx_is_miscompiled(machine: Machine) -> bool:
    """Whether quantised models would kill the process: the CPU has AMX, and GCC loses the tile configuration.

    `_tile_loadconfig` of GCC 11 to 13.2 tells the optimiser that 8 of the 64 bytes are read (GCC PR target/114098).
    Older ones know no AMX. Later point releases of GCC 11 and 12 may be mended: they are not trusted.
    """
    if machine.system != "Linux" or machine.architecture not in ("x86_64", "AMD64") or machine.compiler is None:
        return False
    has_amx = not {"amx_tile", "amx_int8"}.isdisjoint(cpu_features(machine.cpu))
    family, version = machine.compiler
    return has_amx and family == "gcc" and (11, 0) <= version < (13, 3)


def chosen_compiler(environ: Mapping[str, str]) -> str:
    """What EDGESPEC_COMPILER asks for. Raises ValueError for what there is not."""
    wanted = environ.get("EDGESPEC_COMPILER", "").lower() or COMPILERS[0]
    if wanted not in COMPILERS:
        raise ValueError(f"EDGESPEC_COMPILER={wanted}: there is no such compiler; choose one of {', '.join(COMPILERS)}")
    if wanted == "zig" and platform.system() == "Darwin":
        raise ValueError("EDGESPEC_COMPILER=zig: macOS builds need Apple's frameworks: xcode-select --install")
    return wanted


def with_rpc(environ: Mapping[str, str]) -> bool:
    """Whether layers can be put on other machines: unless EDGESPEC_RPC=0. Raises ValueError for what is no switch."""
    wanted = environ.get("EDGESPEC_RPC", "") or "1"
    if wanted not in ("0", "1"):
        raise ValueError(f"EDGESPEC_RPC={wanted}: it must be 1 (the default) or 0")
    return wanted == "1"


def uses_zig(machine: Machine) -> bool:
    return machine.compiler is not None and machine.compiler.family == "zig"


def lacks_compiler(machine: Machine, environ: Mapping[str, str]) -> bool:
    """Whether a build would fail for want of a compiler. On Windows CMake finds Visual Studio, which is not on PATH."""
    own = environ.get("CC") or environ.get("CXX") or "_COMPILER" in environ.get("CMAKE_ARGS", "")
    return machine.compiler is None and machine.system != "Windows" and not own


def cpu_features(cpu: str) -> list[str]:
    """The sorted instruction set flags of a /proc/cpuinfo text; the text itself, in words, where it lists none."""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpu, re.MULTILINE)
    return sorted(set((line.group(1) if line else cpu).split()))


def cache_name(version: str, machine: Machine, backend: str, environ: Mapping[str, str], *, stock: bool = False) -> str:
    """A folder name, different wherever the compiled library may be: llama.cpp is built for the CPU that builds it.

    The Python version has no part in it: the wheel is tagged py3-none. `environ` is the whole environment of the build,
    which `stock` leaves without `ADDITIONS`.
    """
    flags = [f"{name}={environ.get(name, '')}" for name in ("CMAKE_ARGS", "CC", "CXX", "CFLAGS", "CXXFLAGS")]
    libc = " ".join(platform.libc_ver())
    parts = [version, backend, machine.system, machine.architecture, libc, str(machine.compiler), *flags]
    parts += cpu_features(machine.cpu) + (machine.gpus.splitlines() if backend == "cuda" else [])
    parts += [] if stock else [path.read_text(encoding="utf-8") for path in sorted(ADDITIONS.iterdir())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return f"{version}-{backend}-{machine.system}-{machine.architecture}-{digest}".lower()


def with_additions(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the CMake option that reads `ADDITIONS` into the build; its path stays out of `cache_name`."""
    option = shlex.quote(f"-DCMAKE_PROJECT_INCLUDE={(ADDITIONS / 'kernels.cmake').as_posix()}")
    return {**environ, "CMAKE_ARGS": f"{option} {environ.get('CMAKE_ARGS', '')}".strip()}


def with_zig(environ: Mapping[str, str], package: Path) -> dict[str, str]:
    """`environ` with the compiler of a ziglang package, whose path stays out of `cache_name`. Writes the wrappers that
    CMake needs, and what the compiler keeps, into that folder, so that nothing is left once it is deleted."""
    zig = package / ("zig.exe" if os.name == "nt" else "zig")
    options = [f"-DCMAKE_{language}_COMPILER={zig.as_posix()};{name}" for language, name in ZIG_COMPILERS.items()]
    for tool in ("ar", "ranlib"):
        wrapper = package / (f"{tool}.cmd" if os.name == "nt" else tool)
        wrapper.write_text(f'@"{zig}" {tool} %*\n' if os.name == "nt" else f'#!/bin/sh\nexec "{zig}" {tool} "$@"\n')
        wrapper.chmod(0o755)
        options.append(f"-DCMAKE_{tool.upper()}={wrapper.as_posix()}")
    caches = {f"ZIG_{which}_CACHE_DIR": str(package / "cache") for which in ("GLOBAL", "LOCAL")}
    return {**environ, **caches, "CMAKE_ARGS": f"{shlex.join(options)} {environ.get('CMAKE_ARGS', '')}".strip()}


def look(environ: Mapping[str, str]) -> Machine:
    """This machine, with the compiler that EDGESPEC_COMPILER in `environ` names. Raises ValueError for another name."""
    cuda = [home for home in (environ.get("CUDA_PATH"), environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cpu=_cpu(),
        compiler=_compiler(environ),
        clang_works=_compiles(["clang", "-x", "c"]) and _compiles(["clang++", "-x", "c++"]),
        nvcc=shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(f"{home}/bin" for home in cuda)) or "",
        gpus=_output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).strip(),
    )


def _before(chosen: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Puts each chosen value before the user's own, so that the user's has the last word."""
    return {name: f"{value} {environ.get(name, '')}".strip() for name, value in chosen.items()}


def _cpu() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        brand = _output(["sysctl", "-n", "machdep.cpu.brand_string"]) if platform.system() == "Darwin" else ""
        return brand.strip() or os.environ.get("PROCESSOR_IDENTIFIER", "") or platform.processor()


def _compiler(environ: Mapping[str, str]) -> Compiler | None:
    """The C++ compiler that CMake would take; its predefined macros tell what it is, whatever it is called."""
    if chosen_compiler(environ) == "zig":
        return Compiler("zig", (int(ZIG.split(".")[0]), int(ZIG.split(".")[1])))
    for name in [environ["CXX"]] if environ.get("CXX") else ["c++", "g++", "clang++"]:
        macros = dict(
            re.findall(r"^#define (\w+) (.*)$", _output([*name.split(), "-dM", "-E", "-x", "c++", "-"]), re.M)
        )
        for family, major, minor in (
            ("clang", "__clang_major__", "__clang_minor__"),
            ("gcc", "__GNUC__", "__GNUC_MINOR__"),
        ):
            if major in macros:
                return Compiler(family, (int(macros[major]), int(macros[minor])))
    return None


def _compiles(compiler: list[str]) -> bool:
    """Whether a program that needs the standard library compiles and links: clang++ is often there without headers."""
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
