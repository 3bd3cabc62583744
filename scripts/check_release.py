"""Install the wheels of a release into a new environment and check that edgespec works there, without a compiler.

    check_release.py                               dist/, on this system
    check_release.py --root FOLDER                 in a clean Debian made in FOLDER (Linux, as root; needs debootstrap)
    check_release.py --root FOLDER --arch arm64    the same for another processor (needs qemu-user-static)
    check_release.py --model smollm2               also the default model, which is downloaded (93 MB)
    check_release.py --wine                        the libraries for Windows under wine (needs build/release)

Each check prints its time. The first that fails ends the program with its output and exit status 1. The program needs
only the standard library, because it also runs in the clean system.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = "python3,python3-venv,ca-certificates"  # of the clean Debian
VARIABLES = ("PIP_", "SSL_", "HTTP", "http", "ALL_", "all_", "NO_PROXY", "no_proxy", "EDGESPEC_", "HF_", "QEMU_")
"""Beginnings of the names of environment variables that the clean system gets too."""
PROMPT = ("run", "-m", "demo", "--raw", "def quicksort(xs):", "-n", "48", "--seed", "7", "--temp", "0.8", "--no-store")
ON_CPU = ("-ngl", "0")  # kernels of GPUs are not exact


class CheckError(Exception):
    """A check that failed, with what was printed."""


def main() -> int:
    """Run the checks that the arguments ask for, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="the folder of the wheels")
    parser.add_argument("--root", type=Path, help="a folder for a clean Debian")
    parser.add_argument("--arch", default="", help="its processor, such as arm64; default: this machine's")
    parser.add_argument("--model", help="also ask this model, such as smollm2")
    parser.add_argument("--wine", action="store_true", help="try the libraries for Windows under wine")
    args = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        if args.wine:
            under_wine(args.wheels.resolve())
        elif args.root:
            return in_clean_root(args)
        else:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                check(Path(folder), args.wheels.resolve(), args.model)
    except (CheckError, OSError, subprocess.SubprocessError) as error:
        print(f"FAILED: {error}")
        return 1
    print("the release works here")
    return 0


def in_clean_root(args: argparse.Namespace) -> int:
    """Make a minimal Debian with Python in a folder, once, and run this program there. Return its exit status."""
    root: Path = args.root.resolve()
    stamp, wanted = root / "clean-debian", args.arch or "this processor"
    if stamp.exists():
        made_for = stamp.read_text("utf-8")
        require(made_for == wanted, f"{root} is a Debian for {made_for}, not for {wanted}: use another folder")
    else:
        require(not root.exists() or not any(root.iterdir()), f"{root} is not empty, or half made: delete it")
        arch = ["--arch", args.arch] if args.arch else []
        make = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", *arch, "bookworm", str(root)]
        print(f"making a clean Debian in {root} (log: {root}/debootstrap/debootstrap.log)", flush=True)
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        stamp.write_text(wanted, "utf-8")
    for name in ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt", "etc/pip.conf"):
        if Path("/", name).exists():
            shutil.copyfile(Path("/", name), root / name)
    inside = root / "release"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(args.wheels, inside / "wheels")
    shutil.copyfile(__file__, inside / "check_release.py")
    environ = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    environ |= {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME": "/root", "LANG": "C.UTF-8"}
    command = ["/usr/bin/python3", "/release/check_release.py", "--wheels", "/release/wheels"]
    command += ["--model", args.model] if args.model else []
    with _mounted("proc", root / "proc"):
        return subprocess.call(["chroot", str(root), *command], env=environ)


@contextlib.contextmanager
def _mounted(kind: str, folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", kind, kind, str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def under_wine(wheels: Path) -> None:
    """Decode the bundled model with the libraries for Windows, in each CPU variant that this processor can run."""
    wheel = the_wheel(wheels, "llama_cpp_python-*-win_amd64.whl")
    build = ROOT / "build/release"
    zig = next(build.glob("tools/lib/python*/site-packages/ziglang/zig"), None)
    headers = [f"-I{path}" for path in build.glob("llama_cpp_python-*/vendor/llama.cpp/**/include")]
    require(bool(zig and headers), "there is no compiler: call scripts/release windows-x86_64 first")
    ran = list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        libraries = folder / "llama_cpp/lib"
        program = libraries / "decode.exe"
        command = [str(zig), "cc", "-target", "x86_64-windows-gnu", "-O1", *headers, "-o", str(program)]
        command += [str(ROOT / "scripts/packaging/decode.c")]
        command += [str(libraries / name) for name in ("libllama.dll", "ggml.dll", "ggml-base.dll")]
        with timed("compiling scripts/packaging/decode.c"):
            subprocess.run(command, check=True, env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(build / "zig")})
        environ = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(folder / "wine")}
        for variant in sorted(libraries.glob("ggml-cpu-*.dll")):
            decode = ["wine", str(program), str(ROOT / "models/demo/target.gguf"), variant.name]
            done = subprocess.run(decode, cwd=libraries, env=environ, capture_output=True, text=True)
            print(f"{variant.stem}: {'this processor cannot run it' if done.returncode == 2 else done.stdout.strip()}")
            require(done.returncode in (0, 2), f"exit status {done.returncode}", done.stderr)
            ran += [variant.stem] if not done.returncode else []
    require(bool(ran), "no variant could be tried")


def check(folder: Path, wheels: Path, model: str | None) -> None:
    """Run all checks with a new environment and a home of its own in `folder`."""
    program, wheel = Program(folder), the_wheel(wheels, "edgespec-*.whl")
    compilers = [name for name in ("cc", "gcc", "clang", "cl") if shutil.which(name)]
    print(f"{sys.platform}, Python {sys.version.split()[0]}, compilers: {', '.join(compilers) or 'none'}")
    with timed("a new environment"):
        program.call(sys.executable, "-m", "venv", str(folder / "venv"))
    with timed("pip install WHEEL --find-links WHEELS"):
        printed = program.python("-m", "pip", "install", "--no-cache-dir", "--find-links", str(wheels), f"{wheel}[all]")
    print(f"        {downloaded_mb(printed):.0f} MB of other packages")
    if sys.platform != "darwin":
        libraries = program.python("-c", "from llama_cpp._ggml import libggml_base_path as p; print(*p.iterdir())")
        require("ggml-vulkan" in libraries, "the wheel lacks the Vulkan backend", libraries)
    if model:
        with timed(f"the first answer of {model}, with its download"):
            program("run", "-m", model, "--yes", "What is the capital of France?", "-n", "24")
    with timed("--version"):
        version = program("--version")
    print(f"        {version.strip()}")
    with timed("doctor"):
        doctor = program("doctor", "demo")
    require_exact(version, doctor)
    with timed("run, with and without drafting"):
        for common in ((), ("--spec-tree", "4")):  # branches have room in the cache, which changes its layout
            plain = program(*PROMPT, *ON_CPU, *common, "--spec-type", "none")
            for ways in ((), ("--pace", "fixed:6"), ("--spec-type", "suffix", "--pace", "fixed:12")):
                drafted = program(*PROMPT, *ON_CPU, *common, *ways)
                require(drafted == plain, f"another text with {' '.join((*common, *ways))}", f"{plain}\n---\n{drafted}")
    with timed("chat --plain"):
        require(program("chat", "-m", "demo", "--plain", "-n", "16", stdin="What does os.walk do?\n").strip() != "")
    with timed("batch"):
        rows = [{"id": str(i), "prompt": f"def function_{i}(", "max_tokens": 16} for i in range(4)]
        answers = program("batch", "-", "-m", "demo", stdin="".join(json.dumps(row) + "\n" for row in rows))
        require(len(answers.splitlines()) == len(rows), "rows are missing", answers)
    with timed("serve"):
        serve(program)


def require_exact(version: str, doctor: str) -> None:
    """Raise CheckError unless the outputs of --version and of doctor show exact kernels and measured exactness.

    Apple's GPU cannot be exact (docs/exactness.md), and doctor does not check a model without it.
    """
    require(", exact kernels" in version and "+edgespec" in version, "another build of llama.cpp is used", version)
    if "variant apple" in version:
        return
    words = " ".join(doctor.split())
    is_exact = "exact mode" in words and "no exact mode" not in words and "exact: decoding up to" in words
    require(is_exact, "the kernels are not exact", doctor)


class Program:
    """The edgespec of a new environment. Its data are in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        self.environ = {**os.environ, "EDGESPEC_HOME": str(folder / "home"), "PYTHONUTF8": "1"}
        self.environ["GGML_VK_VISIBLE_DEVICES"] = ""  # the checks are about the kernels of the CPU
        self.command = str(self.scripts / "edgespec")

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        return self.call(self.command, *arguments, stdin=stdin)

    def python(self, *arguments: str) -> str:
        return self.call(str(self.scripts / "python"), *arguments)

    def call(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", env=self.environ)
        require(not done.returncode, f"{' '.join(command)}: exit status {done.returncode}", done.stdout + done.stderr)
        require("vulkan" not in done.stderr.lower(), "a message about Vulkan", done.stderr)  # the loader may be missing
        return done.stdout


def the_wheel(folder: Path, name: str) -> Path:
    """Return the wheel whose name matches `name`. Raises CheckError if there is none, or several."""
    found = sorted(folder.glob(name))
    require(len(found) == 1, f"{folder} has {len(found)} files {name}", "\n".join(map(str, found)))
    return found[0]


def serve(program: Program) -> None:
    """Start a server on a free port, ask it for an answer, and stop it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program.command, "serve", "-m", "demo", "--port", str(port)]
    log = program.scripts.parent / "serve.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(command, env=program.environ, stdout=sink, stderr=subprocess.STDOUT)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # proxies cannot reach this address
    try:
        deadline_s = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError):
                opener.open(f"http://127.0.0.1:{port}/health", timeout=10).close()
                break
            is_late = time.monotonic() > deadline_s
            require(server.poll() is None and not is_late, "the server does not answer", log.read_text("utf-8"))
            time.sleep(0.2)
        body = json.dumps({"prompt": "import os", "max_tokens": 8}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
        with opener.open(request, timeout=300) as response:
            answer = json.load(response)
        require(answer["usage"]["completion_tokens"] > 0, "the server answers nothing", str(answer))
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            raise


def downloaded_mb(printed: str) -> float:
    """Return the sum of the sizes that pip prints after "Downloading"."""
    units = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
    sizes = re.findall(r"Downloading \S+ \(([0-9.]+) (kB|MB|GB)\)", printed)
    return sum(float(size) * units[unit] for size, unit in sizes)


@contextlib.contextmanager
def timed(title: str) -> Iterator[None]:
    """Print how long the block took."""
    started_s = time.monotonic()
    yield
    print(f"{time.monotonic() - started_s:6.1f} s  {title}", flush=True)


def require(holds: bool, why: str = "no output", printed: str = "") -> None:
    if not holds:
        raise CheckError(f"{why}\n{printed}".strip())


if __name__ == "__main__":
    sys.exit(main())
