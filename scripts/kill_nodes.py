"""A batch over two Ray nodes of this machine while actors, a node and the driver are killed: is every row there once?

    python scripts/kill_nodes.py [-m MODEL] [--rows 2000] [--kills 10] [--kinds actor,node,driver]

Rows are compared with those of `edgespec batch` on this machine. POSIX only; it needs Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import ray

BIN = Path(sys.executable).parent
PORT = 6399
START = ["--num-cpus=1", f"--object-store-memory={100 * 2**20}", "--disable-usage-stats", "--include-log-monitor=false"]


class Nodes:
    """Two nodes: one that drivers join, one that may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address = f"{ray.util.get_node_ip_address()}:{PORT}"
        self.environ = os.environ | {"RAY_ADDRESS": self._address, "RAY_USAGE_STATS_ENABLED": "0"}
        self._ray("--head", f"--port={PORT}", f"--temp-dir={folder / 'r'}", "--include-dashboard=false")
        self.first = {process.pid for process in self.processes("raylet")}
        self.start()

    def start(self) -> None:
        self._ray(f"--address={self._address}")

    def _ray(self, *options: str) -> None:
        command = [str(BIN / "ray"), "start", *options, *START]
        subprocess.run(command, check=True, env=self.environ, stdout=subprocess.DEVNULL)

    def processes(self, name: str) -> list[psutil.Process]:
        """Those of this cluster whose command holds `name`."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if name in line.split(" ")[0] and (str(self._folder) in line or self._is_below(process)):
                found.append(process)
        return found

    def _is_below(self, process: psutil.Process) -> bool:
        try:
            return any(str(self._folder) in " ".join(each.cmdline()) for each in process.parents())
        except psutil.Error:
            return False

    def kill_actor(self) -> bool:
        actors = self.processes("ray::Actor")
        if actors:
            random.choice(actors).kill()
        return bool(actors)

    def kill_node(self) -> bool:
        others = [process for process in self.processes("raylet") if process.pid not in self.first]
        for process in others:
            process.kill()
        if others:
            time.sleep(2)
            self.start()
        return bool(others)

    def close(self) -> None:
        for name in ("ray::", "raylet", "gcs_server", "python"):
            for process in self.processes(name):
                process.kill()


@contextmanager
def cluster(folder: Path) -> Iterator[Nodes]:
    nodes = Nodes(folder)
    try:
        yield nodes
    finally:
        nodes.close()


def disturbed(command: list[str], environ: dict[str, str], kill: Callable[[], bool], kills: int, each_s: float) -> int:
    """How often something was killed while the command ran; it must succeed."""
    job, n_killed = subprocess.Popen(command, env=environ), 0
    while job.poll() is None:
        time.sleep(random.uniform(0.5, 1.5) * each_s)
        if n_killed < kills and job.poll() is None:
            n_killed += kill()
    if job.returncode:
        sys.exit(f"the job ended with {job.returncode}")
    return n_killed


def restarted(command: list[str], environ: dict[str, str], kills: int, each_s: float) -> int:
    """How often the driver was killed before it was done."""
    for n_killed in range(kills + 1):
        job = subprocess.Popen(command, env=environ)
        try:
            job.wait(None if n_killed == kills else random.uniform(0.5, 1.5) * each_s)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGKILL)
            job.wait()
            continue
        if job.returncode:
            sys.exit(f"the job ended with {job.returncode}")
        return n_killed
    return kills


def judge(plain: Path, out: Path) -> str:
    rows, wanted = (Counter(path.read_text(encoding="utf-8").splitlines()) for path in (out, plain))
    ids = Counter(str(json.loads(row)["id"]) for row in rows.elements())
    doubles, lost = sum(n - 1 for n in ids.values()), len(wanted) - len(ids)
    unlike = sum((rows - wanted).values())
    return f"{sum(rows.values()):,} rows, {lost} missing, {doubles} doubled, {unlike} unlike those of a plain run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--kinds", default="actor,node,driver")
    parser.add_argument("--each", type=float, default=6.0, help="seconds between two, on average")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="k") as made:
        folder = Path(made)
        source, plain = folder / "in.jsonl", folder / "plain.jsonl"
        rows = ({"id": id, "prompt": f"def f{id}(x):", "max_tokens": 24 + id % 65} for id in range(asked.rows))
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        batch = [str(BIN / "edgespec"), "batch", str(source), "-m", asked.model, "--seed", "1", "--raw"]
        subprocess.run([*batch, "-o", str(plain), "--threads", "1"], check=True)
        with cluster(folder) as nodes:
            for kind in asked.kinds.split(","):
                out = folder / f"{kind}.jsonl"
                command, began_s = [*batch, "-o", str(out), "--over", "ray"], time.monotonic()
                if kind == "driver":
                    n = restarted(command, nodes.environ, asked.kills, 2 * asked.each)
                else:
                    kill = nodes.kill_actor if kind == "actor" else nodes.kill_node
                    n = disturbed(command, nodes.environ, kill, asked.kills, asked.each)
                print(f"{kind} killed {n} times: {judge(plain, out)}; {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
