"""Run the tests that need a GPU, on Mesa's software driver or on the GPU of this machine, and report about the device.

    check_gpu.py                  one and two software devices (Linux)
    check_gpu.py --root FOLDER    the same in a Debian 13 in FOLDER, which is made if it is missing (as root)
    check_gpu.py --device         the GPU of this machine, and then a report for docs/gpu.md
    check_gpu.py --report         only the report, also on a machine without a GPU
    check_gpu.py -k faults        other arguments go to pytest

A software device needs Mesa 25 or newer: Debian 13 and Ubuntu 24.10 have it (mesa-vulkan-drivers). On older systems,
root gets a Debian 13 in build/check_gpu; debootstrap makes it. A later run keeps the build of llama.cpp with Vulkan,
the Debian, and the shaders that the first run has compiled. Each step prints its time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/check_gpu"
PYTHON = ROOT / ".venv/bin/python"
FAULTS = WORK / "fake_gpu.so"  # tests/support/gpu.py looks for it here
NONE_CHOSEN = 5  # the exit status of pytest if no test was chosen
DEVICES = {"one device": ("0", "gpu"), "two devices": ("0,0", "gpu(devices=2)")}
SYSTEM = Path("/")
SOFTWARE_DRIVER = "usr/share/vulkan/icd.d/lvp_icd*.json"
# Mesa and Vulkan's loader, and what Python's modules need.
PACKAGES = (
    "mesa-vulkan-drivers,libvulkan1,libgomp1,libssl3t64,libffi8,libsqlite3-0,libbz2-1.0,liblzma5,libexpat1,zlib1g"
)
# Binds FOLDERS into the Debian as $1 and runs the rest there; the mounts end with the process.
ENTER = """
root=$1; folders=$2; shift 2
for folder in $folders; do
    if [ -d "$folder" ]; then mkdir -p "$root$folder"; else mkdir -p "$root${folder%/*}"; touch "$root$folder"; fi
    mount --rbind "$folder" "$root$folder" || exit
done
exec chroot "$root" "$@"
"""
# Mesa before version 25 crashes in passes of two tokens.
TRY = """
import edgespec
with edgespec.load("demo", gpu_layers="all", spec_type="draft", pace="fixed:1", exact=False, store=False) as llm:
    assert llm.info.offloaded, "no device"
    llm.complete("def", max_tokens=8)
"""


Result = TypeVar("Result")


class CheckError(Exception):
    """A step that failed, with the reason and what to do."""


def main() -> int:
    """Run the steps, and return the exit status: 1 if tests or a step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a folder with a Debian 13, or for one")
    parser.add_argument("--device", action="store_true", help="use the GPU of this machine, and print a report")
    parser.add_argument("--report", action="store_true", help="print the report without running tests")
    parser.add_argument("--model", default="", help="a model of F16 weights for the report; default: one that is made")
    parser.add_argument("--native", default="", help="llama.cpp's llama-speculative-simple, to compare with")
    parser.add_argument("--shape", action="append", default=[], help="a shape for the report (scripts/lab/shapes.py)")
    parser.add_argument("--output", default=str(WORK / "report.md"), help="the file of the report (%(default)s)")
    args, rest = parser.parse_known_args()
    try:
        if args.report:
            failed = list[str]()
            report(args, None)
        elif args.device:
            failed = tests("this GPU", [], os.environ, "gpu", rest)
            report(args, failed)
        else:
            root, failed = software_device(args.root), []
            for name, (visible, marker) in DEVICES.items():
                failed += tests(name, entering(root), environment(visible, root), marker, rest)
    except (CheckError, OSError, subprocess.SubprocessError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return int(bool(failed))


# --- a software device ------------------------------------------------------------------------------------------------


def software_device(root: Path | None) -> Path:
    """Return the root folder of a system with a software device, after making what is missing for it."""
    if sys.platform != "linux":
        raise CheckError("only Linux has Mesa's software driver; --device uses a GPU")
    WORK.mkdir(parents=True, exist_ok=True)
    if not list(Path(sysconfig.get_path("purelib"), "llama_cpp/lib").glob("*ggml-vulkan*")):
        timed("a build of llama.cpp with Vulkan", build_vulkan)
    if shutil.which("cc"):
        command = ["cc", "-shared", "-fPIC", "-o", str(FAULTS), str(ROOT / "tests/support/fake_gpu.c")]
        timed("a library that fakes faults", lambda: subprocess.run(command, check=True))
    if root is None and timed("a software device of this system", lambda: works(SYSTEM)):
        return SYSTEM
    root = (root or WORK / "debian").resolve()
    if not is_complete(root):
        timed(f"a Debian 13 in {root}", lambda: make_debian(root))
    if not timed("a software device of that Debian", lambda: works(root)):
        raise CheckError(f"the software driver in {root} does not work; {WORK}/try.log has its output")
    return root


def build_vulkan() -> None:
    environ = os.environ | {"EDGESPEC_BACKEND": "vulkan"}
    if subprocess.run([PYTHON, ROOT / "scripts/bootstrap.py", "--dev"], env=environ).returncode:
        raise CheckError("llama.cpp could not be built with Vulkan (see above)")


def is_complete(root: Path) -> bool:
    """Return whether the Debian has a driver and is not half made: debootstrap removes this folder at its end."""
    return any(root.glob(SOFTWARE_DRIVER)) and not (root / "debootstrap").exists()


def make_debian(root: Path) -> None:
    if os.geteuid() or not shutil.which("debootstrap"):
        raise CheckError(
            "this system has no software device that works\n"
            "  install mesa-vulkan-drivers, version 25 or newer (in Debian 13, Ubuntu 24.10 and later), or\n"
            "  install debootstrap and start this script as root, which then makes a Debian 13 for the tests"
        )
    if root.exists() and any(root.iterdir()):
        if not (root / "debootstrap").exists():
            raise CheckError(f"{root} is not empty, and has no Vulkan driver: use another folder")
        shutil.rmtree(root)  # an interrupted run left it
    make = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", str(root)]
    done = subprocess.run(make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise CheckError(f"debootstrap failed: {done.stdout[-500:]}")


def entering(root: Path) -> list[str]:
    """Return the beginning of commands that run in that system, with this folder and this Python bound into it."""
    if root == SYSTEM:
        return []
    python: list[str] = [sys.base_prefix]
    if python == ["/usr"]:  # which would hide the Debian's own
        python = [str(PYTHON.resolve()), sysconfig.get_path("stdlib")]
    folders = " ".join(["/proc", "/dev", "/sys", str(ROOT), *python])
    inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(ROOT)]
    return ["unshare", "--mount", "sh", "-c", ENTER, "enter", str(root), folders, *inside]


def environment(visible: str, root: Path) -> dict[str, str]:
    """Return environment variables with which llama.cpp sees these devices of the software driver, and no others."""
    drivers = [str(SYSTEM / path.relative_to(root)) for path in root.glob(SOFTWARE_DRIVER)]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TERM") if name in os.environ}
    own = {"EDGESPEC_HOME": str(WORK / "home"), "XDG_CACHE_HOME": str(WORK / "shaders")}
    return kept | own | {"TMPDIR": "/tmp", "VK_DRIVER_FILES": ":".join(drivers), "GGML_VK_VISIBLE_DEVICES": visible}


def works(root: Path) -> bool:
    """Return whether a model runs on a software device of the system in this folder."""
    if not any(root.glob(SOFTWARE_DRIVER)):
        return False
    with (WORK / "try.log").open("wb") as log:
        command = [*entering(root), str(PYTHON), "-c", TRY]
        return subprocess.run(command, env=environment("0", root), stdout=log, stderr=log).returncode == 0


# --- tests and the report ---------------------------------------------------------------------------------------------


def tests(name: str, enter: Sequence[str], environ: Mapping[str, str], marker: str, rest: Sequence[str]) -> list[str]:
    """Run the tests with a marker, and return the lines about those that failed."""
    command = [*enter, str(PYTHON), "-m", "pytest", "-m", marker, "--timeout", "900", "-vv", *rest]

    def run() -> list[str]:
        failed = []
        with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                failed += [line.strip()] if line.startswith(("FAILED ", "ERROR ")) else []
        if process.returncode not in (0, NONE_CHOSEN) and not failed:
            failed = [f"pytest ended with exit status {process.returncode}"]
        return failed

    return timed(f"tests on {name}", run)


def report(args: argparse.Namespace, failed: Sequence[str] | None) -> None:
    """Print the report of this device, made by scripts/lab/device_report.py; `failed` is None if no test was run."""
    options = [f"--failed={line}" for line in failed or [""]] if failed is not None else []
    options += [f"--native={args.native}"] * bool(args.native) + [f"--shape={shape}" for shape in args.shape]
    command = [str(PYTHON), str(ROOT / "scripts/lab/device_report.py"), *options, f"--output={args.output}"]
    timed("the report", lambda: subprocess.run([*command, *[args.model] * bool(args.model)], check=True))


def timed(what: str, do: Callable[[], Result]) -> Result:
    print(f"== {what}", flush=True)
    started = time.monotonic()
    result = do()
    print(f"== {what}: {time.monotonic() - started:.0f} s{' (no)' if result is False else ''}", flush=True)
    return result


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
