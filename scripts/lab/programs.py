"""Programs that the scripts of this folder start: llama.cpp's own, and servers.

llama.cpp's programs are built from the sources that pyproject.toml pins, with the flags of the project's own build
(llama_build.py) but without its additions. They are kept next to the compiled wheels, in a folder for each version,
machine and set of flags. An interrupted build resumes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

sys.path.append(str(Path(__file__).resolve().parents[1]))  # modules of the project's own build
import llama_build
from bootstrap import STAMP, llama_version, wheel_cache
from supervised import CommandError, read, say

__all__ = ["CommandError", "wheel_cache"]  # others import them from here, after the path has been set

ENVIRON = dict(os.environ)  # before edgespec is imported, which changes how long threads spin
START_S = 300.0  # limit for the start of a server
OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DLLAVA_BUILD=OFF",
    "-DLLAMA_BUILD_EXAMPLES=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
]


def build(name: str) -> tuple[Path, str]:
    """Return the path of one of llama.cpp's programs, which is built unless it exists, and the flags of the build.

    Raises CommandError, ValueError.
    """
    machine, version = llama_build.look(os.environ), llama_version()
    backend = llama_build.choose_backend(machine, os.environ.get("EDGESPEC_BACKEND", "") or read(STAMP / "backend"))
    flags = llama_build.build_environment(machine, backend, os.environ)
    environ = {**os.environ, **flags}
    folder = wheel_cache().parent / "native" / llama_build.cache_name(version, machine, backend, environ, stock=True)
    if not (program := find(folder, name)):
        say(f"building {name}: about 8 minutes on two cores, once for this machine ({folder})")
        environ["PATH"] = f"{environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"
        cmake = shutil.which("cmake", path=environ["PATH"])
        if cmake is None:
            raise CommandError(f"cmake was not found: {sys.executable} -m pip install cmake ninja")
        generator = ["-G", "Ninja"] if shutil.which("ninja", path=environ["PATH"]) else []
        configure = ["-S", _sources(folder, version), "-B", str(folder), *OPTIONS]
        _run([cmake, *generator, *configure, *shlex.split(environ.get("CMAKE_ARGS", ""))], environ)
        jobs = str(os.cpu_count() or 1)
        _run([cmake, "--build", str(folder), "--config", "Release", "--parallel", jobs, "--target", name], environ)
        program = find(folder, name)
        if program is None:
            raise CommandError(f"{name} is not in {folder} after the build")
    return program, f"{backend}, {' '.join(map(str, machine.compiler or ()))}, {flags or 'no further flags'}"


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a program; on Windows, the build puts it into a folder for the configuration."""
    return next((folder / "bin").rglob(name + (".exe" if os.name == "nt" else "")), None)


def _sources(folder: Path, version: str) -> str:
    """Return the folder of the sources of this version, which are downloaded if they are missing."""
    sources = folder.parent / f"llama_cpp_python-{version}"
    if not sources.exists():
        sources.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=sources.parent) as part:
            options = ["--no-deps", "--no-binary=llama-cpp-python", "--dest", part]
            pip = [sys.executable, "-m", "pip", "download", *options, f"llama-cpp-python=={version}"]
            _run(pip, os.environ)  # which asks the package for its name, by tools that pip downloads
            with tarfile.open(next(Path(part).glob("*.tar.gz"))) as archive:
                archive.extractall(part, filter="data")
            (Path(part) / sources.name).replace(sources)
    return str(sources)


def _run(command: Sequence[str], environ: dict[str, str] | os._Environ[str]) -> None:
    """Run a command whose output is shown on stderr. Raises CommandError if it fails."""
    if status := subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environ).returncode:
        raise CommandError(f"exit status {status}: {shlex.join(command)}")


@contextmanager
def running(command: Sequence[str]) -> Iterator[str]:
    """Run a server on a free port, and yield its URL once it answers. Raises CommandError."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRON
        )
        try:
            while not _is_ready(url):
                if process.poll() is not None or time.monotonic() > until_s:
                    log.seek(0)
                    raise CommandError("a server does not answer:\n" + log.read().decode("utf-8", "replace")[-800:])
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health").status_code == 200
    except httpx2.TransportError:
        return False


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
