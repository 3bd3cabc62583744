"""Create `.venv` with edgespec in it, or update it; scripts/edgespec and scripts/test call this.

It can be interrupted, and started twice: the operating system releases the lock on the folder when its holder dies, the
stamp that means "ready" is written last, and a run after a killed one starts over. Under Python 3.8 to 3.10 it only
reports that 3.11 is needed. All output goes to stderr.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import gpu_tools
import llama_build
from long_commands import CommandError, locked, minutes, read, run_logged, say

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed"  # what .venv was made from: pyproject.toml, llama/, backend, root, perhaps dev
BUILD = VENV / "llama-build"  # the name of its llama-cpp-python build
LOG = VENV / "build.log"
RELEASES = "https://github.com/edgespec/edgespec/releases/expanded_assets/v"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036
        say(f"needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
        return 1
    if Path(sys.prefix).resolve() == VENV:  # an activated .venv cannot replace itself
        return subprocess.call([sys._base_executable, __file__, *arguments])  # type: ignore[attr-defined]
    try:
        with locked(ROOT / ".venv.lock", "setting up .venv in this folder") as torn:
            install(dev="--dev" in arguments or (STAMP / "dev").exists(), torn=torn)
    except (CommandError, ValueError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next call starts over")
        return 130
    return 0


def install(dev: bool, torn: bool) -> None:
    """Create or update the environment; quick if it is ready. `torn`: an earlier run was killed."""
    started = time.monotonic()
    wanted = os.environ.get("EDGESPEC_BACKEND", "").lower()
    if is_ready(wanted, dev) and not torn:
        say(".venv is up to date")
        return
    machine = llama_build.look(os.environ)
    backend = llama_build.choose_backend(machine, wanted or read(STAMP / "backend"))
    if backend == "cpu" and not wanted and machine.gpus:
        gpu = machine.gpus.splitlines()[0]
        say(f"{gpu} was found: EDGESPEC_BACKEND=cuda compiles llama.cpp for it (docs/install.md)")
    pip = [str(PYTHON), "-I", "-m", "pip", "--disable-pip-version-check"]
    moved = read(STAMP / "root") not in ("", str(ROOT))  # a virtual environment is full of absolute paths
    if torn or moved or not _succeeds([*pip, "--version"]):
        create_venv()
    build, wheel = llama_wheel(pip, machine, backend, keep=not wanted)
    (STAMP / "pyproject.toml").unlink(missing_ok=True)  # .venv is not ready from here on
    if wheel:
        BUILD.write_text("being installed", encoding="utf-8")
        run("installing llama-cpp-python", [*pip, "install", "--force-reinstall", "--no-deps", str(wheel)])
    BUILD.write_text(build, encoding="utf-8")
    run("installing edgespec and what it needs", [*pip, "install", "-e", ".[all,dev]" if dev else ".[all,mcp]"])
    if dev:
        link_for_mypy()
    stamp(backend, dev)
    say(f"ready after {minutes(time.monotonic() - started)} ({backend} build of llama.cpp)")


def is_ready(backend: str, dev: bool) -> bool:
    """Return whether `.venv` was made from this pyproject.toml and these additions to llama.cpp, in this folder, for
    this backend ("": any)."""
    same_project = read(STAMP / "pyproject.toml") == read(ROOT / "pyproject.toml")
    same_build = _contents(STAMP / "llama") == _contents(llama_build.ADDITIONS)
    same_backend = backend in ("", read(STAMP / "backend"))
    has_dev = not dev or (STAMP / "dev").exists()
    same_place = PYTHON.exists() and read(STAMP / "root") == str(ROOT)
    return same_project and same_build and same_backend and has_dev and same_place


def create_venv() -> None:
    if not _succeeds([base_python(), "-c", "import venv, ensurepip"]):
        raise CommandError(NO_ENSUREPIP.format(*sys.version_info[:2]))
    if VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    run(f"creating .venv with Python {sys.version.split()[0]}", [base_python(), "-m", "venv", str(VENV)])


def stamp(backend: str, dev: bool) -> None:
    """Record that `.venv` is ready, atomically by renaming a folder."""
    new = VENV / "installed.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    shutil.copyfile(ROOT / "pyproject.toml", new / "pyproject.toml")
    shutil.copytree(llama_build.ADDITIONS, new / "llama")
    for name, text in {"backend": backend, "root": str(ROOT), **({"dev": ""} if dev else {})}.items():
        (new / name).write_text(text + "\n", encoding="utf-8", newline="\n")
    shutil.rmtree(STAMP, ignore_errors=True)
    new.rename(STAMP)


def llama_wheel(pip: list[str], machine: llama_build.Machine, backend: str, keep: bool) -> tuple[str, Path | None]:
    """Return the name of the required llama-cpp-python build, and its wheel, or None if it is installed already.

    The user's own wheel or installation is kept unless a backend was requested (`keep`). Other wheels are prebuilt ones
    of edgespec, in our cache, or compiled into it. pip's cache is not used: it ignores CMAKE_ARGS, and would return a
    CPU wheel for a CUDA build.
    """
    version, wanted = llama_version(), os.environ.get("EDGESPEC_LLAMA_WHEEL", "")
    installed = read(BUILD)
    if wanted.endswith(".whl") and "://" not in wanted:
        return f"{wanted} (own)", own_wheel(pip, Path(wanted).expanduser().resolve())
    if keep and not wanted and (not installed or installed.endswith("(own)")) and _installed_llama() == version:
        return installed or "(own)", None
    toolkit = None
    if backend == "cuda" and gpu_tools.needs_toolkit(machine, os.environ):
        toolkit = wheel_cache().parent / f"cuda-{gpu_tools.CUDA_VERSION}"
        machine = machine._replace(nvcc=str(toolkit / "bin/nvcc"))
    environ = {**os.environ, **llama_build.build_environment(machine, backend, os.environ)}
    build = llama_build.cache_name(version, machine, backend, environ)
    if build == installed and wanted in ("", "compile") and (toolkit is None or toolkit.exists()):
        return build, None
    cache = wheel_cache()
    folder, part = cache / build, cache / (build + ".part")
    own_build = llama_build.has_own_flags(os.environ) or backend not in _prebuilt_backends(machine, keep)
    if wanted != "compile" and (wanted or not (own_build or list(folder.glob("*.whl")))):
        name = f"{llama_build.library_version(version)} (prebuilt)"
        if name == installed and not wanted and keep:
            return name, None
        if wheel := prebuilt_wheel(pip, wanted, "ggml-vulkan" if backend == "vulkan" and not wanted else ""):
            return name, wheel
    if not list(folder.glob("*.whl")) and llama_build.lacks_compiler(machine, os.environ):
        raise CommandError(f"no C++ compiler was found.\n{NO_COMPILE}")
    if toolkit:  # the libraries in it are also needed when llama.cpp runs
        install_cuda(pip, toolkit)
        rpath = shlex.quote(f"-Wl,-rpath,{toolkit / 'lib'}")
        environ["LDFLAGS"] = f"{rpath} {environ.get('LDFLAGS', '')}".strip()
    with locked(cache / (build + ".lock"), "compiling the same llama.cpp"):
        if not list(folder.glob("*.whl")):
            gpu_tools.check(machine, backend, os.environ)
            shutil.rmtree(part, ignore_errors=True)
            say(f"compiling llama.cpp for {backend}: {DURATIONS[backend]}, once for this machine (log: {LOG})")
            command = [*pip, "wheel", "-v", "--no-cache-dir", "--no-deps", "--wheel-dir", str(part)]
            environ = llama_build.with_additions(environ)
            hint = NO_COMPILE if backend in ("cpu", "metal") else gpu_tools.advice(backend)
            run("compiling llama.cpp", [*command, f"llama-cpp-python=={version}"], environ, hint=hint)
            part.replace(folder)
    return build, next(folder.glob("*.whl"))


def install_cuda(pip: list[str], folder: Path) -> None:
    """Install NVIDIA's compiler and libraries from PyPI into a folder of the cache, once."""
    part = folder.with_name(folder.name + ".part")
    with locked(folder.with_name(folder.name + ".lock"), "installing the CUDA toolkit"):
        if folder.exists():
            return
        shutil.rmtree(part, ignore_errors=True)
        command = [*pip, "install", "--no-cache-dir", "--target", str(part), gpu_tools.CUDA_PACKAGES]
        run("installing the CUDA toolkit (0.5 GB)", command)
        root = next(part.glob("nvidia/cu*"))
        gpu_tools.complete_toolkit(root, llama_build.compiler_command(os.environ))
        root.replace(folder)
        shutil.rmtree(part)


def _prebuilt_backends(machine: llama_build.Machine, keep: bool) -> list[str]:
    """Return the backends for which a prebuilt wheel is used: Metal on Apple silicon, elsewhere the CPU and Vulkan.

    A requested CPU or Metal build (not `keep`) is compiled for this processor.
    """
    default = llama_build.choose_backend(machine._replace(nvcc=""), "")
    return ([default] if keep else []) + (["vulkan"] if machine.system in ("Linux", "Windows") else [])


def own_wheel(pip: list[str], wheel: Path) -> Path:
    """Return the user's own wheel. Raises CommandError if it cannot be installed."""
    version = wheel.name.removeprefix("llama_cpp_python-").partition("-")[0]
    if not wheel.is_file():
        raise CommandError(f"EDGESPEC_LLAMA_WHEEL: there is no file {wheel}")
    if version.partition("+")[0] != llama_version():
        raise CommandError(
            f"EDGESPEC_LLAMA_WHEEL: edgespec needs llama-cpp-python {llama_version()}, and this is another version:\n"
            f"    {wheel.name}"
        )
    if not zipfile.is_zipfile(wheel):
        raise CommandError(f"EDGESPEC_LLAMA_WHEEL: {wheel} is incomplete; download or build it again")
    if not _succeeds([*pip, "install", "--dry-run", "--no-deps", str(wheel)]):
        raise CommandError(f"EDGESPEC_LLAMA_WHEEL: this wheel is for another system or processor:\n    {wheel.name}")
    return wheel


def prebuilt_wheel(pip: list[str], place: str, library: str = "") -> Path | None:
    """Return edgespec's wheel of llama.cpp for this system from a folder or a page, or None if none is found.

    `place` is the user's choice; without one the wheels of scripts/release and the release page are used. Raises
    CommandError if the user's place has no wheel. Wheels without a file with `library` in its name are passed over.
    """
    wanted = f"llama-cpp-python=={llama_build.library_version(llama_version())}"
    hint = (
        f"EDGESPEC_LLAMA_WHEEL={place} is not a folder or web page with {wanted} for this system.\n"
        "It can also be a wheel, or 'compile' (docs/install.md)."
    )
    folder = VENV / "prebuilt"
    if place and Path(place).is_dir():
        place = str(Path(place).resolve())
    for links in [place] if place else [*filter(os.path.isdir, [str(ROOT / "dist")]), RELEASES + project()["version"]]:
        shutil.rmtree(folder, ignore_errors=True)
        command = [*pip, "download", "--no-deps", "--no-index", "--only-binary", ":all:", "--find-links", links]
        command += ["--timeout", "15", "--retries", "1", "--dest", str(folder), wanted]
        try:
            run("looking for a prebuilt llama.cpp", command, hint=hint)
            wheel = next(folder.glob("*.whl"))
            if any(library in name for name in zipfile.ZipFile(wheel).namelist()):
                return wheel
        except CommandError:
            if place:
                raise
    return None


def llama_version() -> str:
    """Return the version of llama-cpp-python that pyproject.toml requires."""
    pins = [line.partition("==") for line in project()["dependencies"] if line.startswith("llama-cpp-python")]
    return str(pins[0][2].strip())


class Project(TypedDict):
    """What is read of the table [project] of pyproject.toml."""

    version: str
    dependencies: list[str]


def project() -> Project:
    """Return the table [project] of pyproject.toml."""
    import tomllib

    found: Project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def wheel_cache() -> Path:
    """Return the folder of compiled wheels: the user's cache, or a folder in `.venv` if the cache is not writable."""
    home, local = os.environ.get("EDGESPEC_HOME"), "LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME"
    cache = Path(home) / "cache" if home else Path(os.environ.get(local) or Path.home() / ".cache") / "edgespec"
    cache = cache.expanduser().resolve() / "wheels"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    except OSError:
        pass
    say(f"cannot write to {cache}; the compiled wheel stays in .venv")
    cache = VENV / "wheels"
    cache.mkdir(exist_ok=True)
    return cache


def link_for_mypy() -> None:
    """Link models/ and tui/ under their installed names for mypy, which ignores the finders of editable installs."""
    typing = VENV / "typing" / "edgespec"
    typing.mkdir(parents=True, exist_ok=True)
    for name in ("models", "tui"):
        link = typing / name
        if not os.path.lexists(link):
            if sys.platform == "win32":
                import _winapi

                _winapi.CreateJunction(str(ROOT / name), str(link))  # a symbolic link would need a privilege
            else:
                link.symlink_to(Path("../../..") / name)


def run(title: str, command: list[str], environ: Mapping[str, str] = os.environ, hint: str = "") -> None:
    environ = {**environ, "PYTHONUNBUFFERED": "1", "PIP_USER": "0"}  # PIP_USER: a user's pip.conf may say otherwise
    run_logged(title, command, LOG, ROOT, environ, hint or NO_INSTALL)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def _installed_llama() -> str:
    code = "import importlib.metadata as m; print(m.version('llama-cpp-python'))"
    done = subprocess.run([str(PYTHON), "-I", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode().strip().partition("+")[0]


def base_python() -> str:
    return str(getattr(sys, "_base_executable", sys.executable))


NO_ENSUREPIP = """this Python cannot make virtual environments (its ensurepip module is missing).
  Debian, Ubuntu:  sudo apt install python{0}.{1}-venv
  elsewhere:       a Python from https://www.python.org/downloads/, pyenv or uv, named in EDGESPEC_PYTHON"""

NO_COMPILE = """llama.cpp is compiled on this machine and needs a C++ compiler (CMake and Ninja are downloaded):
  Debian, Ubuntu:  sudo apt install g++         Fedora: sudo dnf install gcc-c++
  macOS:           xcode-select --install
  Windows:         Visual Studio Build Tools with "Desktop development with C++"
Prebuilt wheels: docs/install.md."""

DURATIONS = dict.fromkeys(llama_build.BACKENDS, "2 to 6 minutes")
DURATIONS |= {"cuda": "10 to 60 minutes", "vulkan": "5 to 15 minutes"}

NO_INSTALL = "Packages come from PyPI: check the connection, then run the same command again."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
