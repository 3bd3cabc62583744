"""Build llama.cpp's own programs from the sources that pyproject.toml pins, and measure their answers.

The flags are those of the project's own build of llama.cpp (llama_build.py); the sources are unchanged. The programs
are kept next to the compiled wheels, in a folder for each version, machine and set of flags. An interrupted build
resumes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # modules of the project's own build
import llama_build
from bootstrap import (
    NO_COMPILE,
    NO_INSTALL,
    ROOT,
    STAMP,
    llama_version,
    wheel_cache,
)
from supervised import CommandError, locked, read, run_logged, say

__all__ = ["CommandError", "wheel_cache"]  # others import them from here, after the path has been set

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
ENVIRON = dict(os.environ)  # before edgespec is imported, which changes how long threads spin
SPECULATIVE, SERVER = "llama-speculative-simple", "llama-server"
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
NEVER = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1024", "--spec-ngram-simple-size-m", "1")
SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": NEVER,  # the same loop, whose n-gram of 1,024 tokens never matches: it refuses to run without a drafter
    "ngram-simple": ("--spec-type", "ngram-simple"),
    "ngram-simple n3 m8": (
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"),
    ),
    "ngram-simple n5 m24": (
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "5", "--spec-ngram-simple-size-m", "24"),
    ),
    "ngram-mod": ("--spec-type", "ngram-mod"),
}


def draft_settings(draft: Path, lengths: Sequence[int], threads: int) -> dict[str, tuple[str, ...]]:
    """Return the arguments for a draft model at several fixed lengths."""
    model = ("--spec-type", "draft-simple", "-md", str(draft), "-td", str(threads))
    return {f"draft-simple K={length}": (*model, "--spec-draft-n-max", str(length)) for length in lengths}


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """`tokens` were decoded in `seconds`, one at least for each pass, the last token of the prompt included."""

    prompt_tokens: int
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    text: str


@dataclass(frozen=True, slots=True)
class Native:
    """The programs, and the arguments that all calls have in common."""

    programs: Path
    model: Path
    threads: int
    context: int
    arguments: tuple[str, ...] = ()

    def answer(self, prompt: str, tokens: int, setting: Sequence[str]) -> NativeAnswer:
        """Return an answer of at most `tokens` tokens at temperature 0."""
        length = ["-n", str(tokens - 1)]  # this program generates one more than requested
        sampling = ["--temp", "0", "--top-k", "1"]
        size = ["-c", str(self.context), "-b", str(self.context)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "prompt.txt"
            file.write_bytes(prompt.encode())
            read_from = ["-bf", str(file), "--no-escape"]
            out, log = self._run([*size, *read_from, *length, *sampling, *self.arguments, *setting])
        return parse_answer(out, log, prompt)

    def _run(self, arguments: Sequence[str]) -> tuple[str, str]:
        path = find(self.programs, SPECULATIVE)
        if path is None:
            raise CommandError(f"{SPECULATIVE} is not in {self.programs}: delete that folder, and it is built again")
        command = [str(path), "-m", str(self.model), "-t", str(self.threads), *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRON)
        log = done.stderr.decode("utf-8", "replace")
        if done.returncode:
            last = "\n".join(log.splitlines()[-8:])
            raise CommandError(f"{SPECULATIVE} ended with {done.returncode}:\n{last}\n{shlex.join(command)}")
        return done.stdout.decode("utf-8", "replace"), log


def parse_answer(out: str, log: str, prompt: str) -> NativeAnswer:
    """Parse the output of llama-speculative-simple. Raises CommandError for unexpected output."""
    prompt, out = prompt.replace("\r\n", "\n"), out.replace("\r\n", "\n")
    times = [re.search(rf"{what} +(\d+) tokens in +([\d.]+) seconds", log) for what in ("encoded", "decoded")]
    counts = [re.search(rf"{name} *= (\d+)", log) for name in ("n_drafted", "n_accept")]
    begin = out.find(prompt)
    if None in times or None in counts or begin < 0:
        raise CommandError(f"{SPECULATIVE} has written something unexpected:\n{out[-400:]}\n{log[-400:]}")
    (prompt_tokens, _), (tokens, seconds) = (time.groups() for time in times if time)
    drafted, accepted = (int(count[1]) for count in counts if count)
    text = out[begin + len(prompt) :].removesuffix(4 * "\n")
    return NativeAnswer(int(prompt_tokens), int(tokens), float(seconds), drafted, accepted, text)


def find(programs: Path, name: str) -> Path | None:
    """Return the path of a program; on Windows, the build puts it into a folder for the configuration."""
    return next(iter(programs.rglob(name + (".exe" if os.name == "nt" else ""))), None)


def build(*wanted: str) -> tuple[Path, str]:
    """Build these programs unless they exist, and return their folder and the flags of the build.

    Raises CommandError, ValueError.
    """
    machine = llama_build.look(os.environ)
    backend = llama_build.choose_backend(machine, os.environ.get("EDGESPEC_BACKEND", "") or read(STAMP / "backend"))
    changes = llama_build.build_environment(machine, backend, os.environ)
    environ, version = {**os.environ, **changes}, llama_version()
    name = llama_build.cache_name(version, machine, backend, environ, stock=True)
    folder = wheel_cache().parent / "native" / name
    folder.mkdir(parents=True, exist_ok=True)
    programs = folder / "build" / "bin"
    ready = [folder / f"{program}.ready" for program in wanted]
    facts = f"{backend}, {' '.join(map(str, machine.compiler or ()))}, {changes or 'no further flags'}"
    if all(file.exists() for file in ready):
        return programs, facts
    with locked(folder.with_name(f"{name}.lock"), "building llama.cpp's own programs"):
        if not all(file.exists() for file in ready):
            say(f"building {' and '.join(wanted)}: about 8 minutes on two cores, once for this machine ({folder})")
            sources = unpacked(folder, version)
            compile_programs(sources, folder, environ, wanted)
            clear(folder)
            for file in ready:
                file.touch()
    return programs, facts


def unpacked(folder: Path, version: str) -> Path:
    """Return the folder of the sources of this version, which are downloaded if they are missing."""
    sources = folder / f"llama_cpp_python-{version}"
    if not sources.exists():
        part = folder / "sources.part"
        shutil.rmtree(part, ignore_errors=True)
        # pip builds nothing for this, but asks the package for its name, by tools that it downloads
        options = ["--no-cache-dir", "--no-deps", "--no-binary=llama-cpp-python", "--dest", str(part)]
        command = [*PIP, "download", *options, f"llama-cpp-python=={version}"]
        logged("downloading the sources", command, folder, os.environ, NO_INSTALL)
        with tarfile.open(next(part.glob("*.tar.gz"))) as archive:
            archive.extractall(part, filter="data")
        (part / sources.name).replace(sources)
        shutil.rmtree(part)
    return sources


def compile_programs(sources: Path, folder: Path, environment: Mapping[str, str], programs: Sequence[str]) -> None:
    """Build these programs into folder/build/bin."""
    environ = dict(environment)
    tools = folder / "tools"
    wanted = [name for name in ("cmake", "ninja") if not shutil.which(name)]
    if wanted and not (tools / "ready").exists():
        venv.create(tools, clear=True, with_pip=True)
        python = tools / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        logged(
            "installing cmake and ninja", [str(python), "-m", "pip", "install", *wanted], folder, environ, NO_INSTALL
        )
        (tools / "ready").touch()
    environ["PATH"] = f"{environ.get('PATH', '')}{os.pathsep}{tools / ('Scripts' if os.name == 'nt' else 'bin')}"
    generator = [] if os.name == "nt" else ["-G", "Ninja"]  # there CMake finds Visual Studio by itself
    options = [*OPTIONS, *shlex.split(environ.get("CMAKE_ARGS", ""))]
    target = folder / "build"
    cmake = shutil.which("cmake", path=environ["PATH"]) or "cmake"
    configure = [cmake, *generator, "-S", str(sources), "-B", str(target), *options]
    logged("configuring llama.cpp", configure, folder, environ, NO_COMPILE)
    build = [cmake, "--build", str(target), "--config", "Release", "--parallel", str(os.cpu_count() or 1)]
    logged("compiling llama.cpp", [*build, "--target", *programs], folder, environ, NO_COMPILE)


def clear(folder: Path) -> None:
    """Delete all files that the programs do not need."""
    for path in [*folder.glob("llama_cpp_python-*"), folder / "tools", *(folder / "build").iterdir()]:
        if path.name != "bin" and path.is_dir():
            shutil.rmtree(path)


def logged(title: str, command: list[str], folder: Path, environ: Mapping[str, str], hint: str) -> None:
    run_logged(title, command, folder / "build.log", ROOT, environ, hint)
