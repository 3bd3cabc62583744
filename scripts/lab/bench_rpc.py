"""Measure what layers on other machines cost: passes and answers over workers, with a simulated network.

    python scripts/lab/bench_rpc.py MODEL                                  two workers on loopback, as fast as it is
    python scripts/lab/bench_rpc.py MODEL --gbit 1 --delay-ms 0.25         each way, by a relay

For passes, it prints milliseconds and the bytes sent and received, with a constant width and with alternating widths.
For answers, it prints tokens per second with and without drafts. On Linux only: the kernel counts the bytes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from statistics import harmonic_mean, median
from typing import Any

import edgespec
from edgespec.llama.rpc import connections
from edgespec.runtime.runtime import Runtime

PASSES = 24
DEPTH, CHUNK = 300, 60
WIDTHS = {"1": [1], "4": [4], "8": [8], "1 and 4 in turn": [1, 4], "4 and 8 in turn": [4, 8]}
MODES = {"plain": ("none", "auto"), "auto": ("auto", "auto"), "chains of 4": ("suffix,recycling", "fixed:4")}
PROMPTS = (
    "Write a short story about a lighthouse.",
    "def mean(values):\n    if not values:\n        raise ValueError('no values')\n    return sum(values)\n\n"
    "Write the same function for the median, then both once more with type hints.",
    "Repeat this list word by word, five times: apples, pears, plums, cherries, quinces, medlars, sloes.",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gbit", type=float, default=0, help="rate of each direction; 0: as it is")
    parser.add_argument("--delay-ms", type=float, default=0, help="delay of each direction")
    parser.add_argument("-ngl", dest="gpu_layers", default="auto", help="layers on the workers")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("-n", type=int, default=64, help="tokens per answer")
    parser.add_argument("-t", type=int, default=1, help="threads of each process")
    args = parser.parse_args()
    layers = args.gpu_layers if args.gpu_layers in ("auto", "all") else int(args.gpu_layers)
    with ExitStack() as stack:
        addresses = [stack.enter_context(worker(args.t)) for _ in range(args.workers)]
        if args.gbit or args.delay_ms:
            shape = args.gbit * 1e9 / 8, args.delay_ms / 1e3
            addresses = [stack.enter_context(relayed(address, *shape)) for address in addresses]
        places: dict[str, tuple[Runtime, list[str]]] = {}
        for where, rpc in (("here", []), (f"{args.workers} workers", addresses)):
            how: dict[str, Any] = {"rpc": rpc, "gpu_layers": layers, "threads": args.t, "store": False}
            places[where] = stack.enter_context(edgespec.load(args.model, **how)), rpc
            print("\n".join(places[where][0].notes))
        for where, (llm, rpc) in places.items():
            passes(llm, rpc, where)
        answers(places, args.n, args.turns)
    return 0


def passes(llm: Runtime, rpc: Sequence[str], where: str) -> None:
    """Print the milliseconds, bytes sent and bytes received of passes of several widths."""
    context = llm.context
    context.forget(0)
    for start in range(0, DEPTH, CHUNK):
        context.decode_filler(start, [False] * (CHUNK - 1) + [True])
    for name, widths in WIDTHS.items():
        times = []
        for turn in range(-len(widths), PASSES):
            if turn == 0:
                before = traffic(rpc)
            context.truncate(0, DEPTH)
            started_s = time.perf_counter()
            context.decode_filler(DEPTH, [True] * widths[turn % len(widths)])
            context.logits(0)
            times.append(time.perf_counter() - started_s)
        sent, received = ((after - start) / PASSES for after, start in zip(traffic(rpc), before, strict=True))
        n = len(widths)
        mean_ms = 1e3 * sum(median(times[n + place :: n]) for place in range(n)) / n
        print(f"{where}, width {name}: {mean_ms:.2f} ms, {sent:,.0f} B sent, {received:,.0f} B received", flush=True)
    context.forget(0)


def answers(places: dict[str, tuple[Runtime, list[str]]], n: int, turns: int) -> None:
    """Print tokens per second, and tokens and bytes of a step, by place and mode.

    The time of reading the prompt is not counted. A speed is the median of a prompt's turns, and of these the harmonic
    mean. Places and modes are interleaved; the first turn is to warm up.
    """
    rates: dict[tuple[str, int], list[float]] = {}
    totals: dict[str, list[int]] = {}
    for turn in range(-1, turns):
        for (number, prompt), mode, (where, (llm, rpc)) in product(enumerate(PROMPTS), MODES, places.items()):
            spec_type, pace = MODES[mode]
            before = sum(traffic(rpc))
            messages = [{"role": "user", "content": prompt}]
            stats = llm.complete(messages, max_tokens=n, temperature=0, spec_type=spec_type, pace=pace).stats
            if turn >= 0:
                what = f"{where}, {mode}"
                rates.setdefault((what, number), []).append(stats.generated_tokens / stats.generation_s)
                total = totals.setdefault(what, [0, 0, 0])
                for index, more in enumerate((stats.generated_tokens, stats.rounds, sum(traffic(rpc)) - before)):
                    total[index] += more
    for what, (tokens, steps, moved) in totals.items():
        middles = [median(rates[what, number]) for number in range(len(PROMPTS))]
        print(
            f"{what}: {harmonic_mean(middles):.1f} tok/s ({', '.join(f'{rate:.1f}' for rate in middles)}), "
            f"{tokens / steps:.2f} tokens and {moved / steps:,.0f} B a step"
        )


def traffic(addresses: Sequence[str]) -> tuple[int, int]:
    """Return the bytes sent to these addresses and received from them, over the open connections (TCP_INFO)."""
    sent = received = 0
    for connection in connections(addresses):
        acked, got = struct.unpack_from("<QQ", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 120)
        sent, received = sent + acked, received + got
    return sent, received


@contextmanager
def worker(threads: int) -> Iterator[str]:
    """Run a worker on this machine, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "edgespec", "rpc-worker", "--port", str(port), "-t", str(threads)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if re.search(r"listening on .*:\d+", line):
                break
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def relayed(address: str, bytes_per_s: float, delay_s: float) -> Iterator[str]:
    """Run a relay to `address` whose two directions have this rate and delay each, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=_relay, args=(server, address, bytes_per_s, delay_s), daemon=True)
        process.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            process.kill()
            process.join()


def _relay(server: socket.socket, address: str, bytes_per_s: float, delay_s: float) -> None:
    host, _, port = address.rpartition(":")
    while True:
        client, _ = server.accept()
        target = socket.create_connection((host, int(port)))
        for source, sink in ((client, target), (target, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _pipe(source, sink, bytes_per_s, delay_s)


def _pipe(source: socket.socket, sink: socket.socket, bytes_per_s: float, delay_s: float) -> None:
    due: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def take() -> None:
        free_s = 0.0  # when the line is free again
        with suppress(OSError):
            while data := source.recv(1 << 16):
                free_s = max(free_s, time.perf_counter()) + (len(data) / bytes_per_s if bytes_per_s else 0)
                due.put((free_s + delay_s, data))
        due.put((0.0, b""))

    def give() -> None:
        with suppress(OSError):
            while (item := due.get())[1]:
                while (left_s := item[0] - time.perf_counter()) > 0:
                    time.sleep(max(0.0, left_s - 5e-5))
                sink.sendall(item[1])
            sink.shutdown(socket.SHUT_WR)

    for work in (take, give):
        threading.Thread(target=work, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
