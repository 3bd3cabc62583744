"""Measure `edgespec serve` and llama-server of the same sources under the same load.

    python scripts/lab/bench_server.py --model SmolLM2-135M-Instruct.F16.gguf
    python scripts/lab/bench_server.py --model target.gguf --clients 4 --own "--spec-type none"

Both run all the time, with as many slots as there are clients at most. They get the same prompts, interleaved, at
temperature 0, with a common system prompt. Each client sends its next request as soon as it has its answer. A figure is
the median over the turns; the texts of the servers differ, also in length. The table goes to stdout as Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import httpx2
from programs import CommandError, build, markdown, running

from edgespec.bench.machine import machine
from edgespec.bench.suites import sample, shipped
from edgespec.errors import EdgespecError
from edgespec.llama import library
from edgespec.models.names.spec import resolve

NATIVE, OWN = "llama-server", "edgespec serve"
SYSTEM = (
    "You are a careful assistant in the support team of a small company that makes bicycles. Answer in plain English "
    "and in whole sentences. Say so when you do not know something, and never invent figures, names or dates. Keep to "
    "what was asked. If a text is given, rely on that text alone, and quote the words on which your answer rests."
)
WARM_UP = 2  # requests to each server that do not count


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, with the seconds to the first token, the longest gap between two tokens, and the whole time."""

    first_s: float
    gap_s: float
    took_s: float
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The answers of one server under one load, which took `seconds` in all."""

    who: str
    clients: int
    words: int
    turn: int
    seconds: float
    answers: list[Answer]

    @property
    def rate(self) -> float:
        """Tokens per second of all clients."""
        return sum(answer.tokens for answer in self.answers) / self.seconds


def main() -> int:
    args = arguments()
    samples: list[Sample] = []
    try:
        model = resolve(args.model).path
        program, flags = build(NATIVE)
        with ExitStack() as open_servers:
            most = max(args.clients)
            size, threads = args.context * most, ["-t", str(args.threads)]
            native = [str(program), "-m", str(model), "-c", str(size), "-np", str(most), *threads, "-tb", threads[1]]
            own = [sys.executable, "-m", "edgespec", "serve", "-m", str(model), "--parallel", str(most), "-q", *threads]
            urls = {
                NATIVE: open_servers.enter_context(running([*native, *shlex.split(args.native)])),
                OWN: open_servers.enter_context(running([*own, "-c", str(args.context), *shlex.split(args.own)])),
            }
            for found in measured(urls, args):
                samples.append(found)
                what = f"{found.who}: {found.clients} clients, {found.words} words: {found.rate:.1f} tok/s"
                print(what, file=sys.stderr)
    except KeyboardInterrupt:
        pass
    except (EdgespecError, CommandError, ValueError, OSError, httpx2.HTTPError) as error:
        print(f"bench_server: {error}", file=sys.stderr)
        return 1
    print(markdown(HEADER, [*table(samples)]))
    print(f"\n{OWN} / {NATIVE}; {machine()['cpu']}, {args.threads} threads of {os.cpu_count()}; {flags}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model to serve, a chat model")
    parser.add_argument("--clients", default="1,4,8", help="clients at a time (default: %(default)s)", type=numbers)
    parser.add_argument("--words", default="40,400,1400", help="of the prompts (default: %(default)s)", type=numbers)
    parser.add_argument("--requests", type=int, default=2, help="of each client (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="how often each load is put on each server")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("-t", "--threads", type=int, default=library.default_threads())
    parser.add_argument("-c", "--context", type=int, default=3072, help="of each slot")
    parser.add_argument("--native", default="", help='further arguments of llama-server, as "-fa off"')
    parser.add_argument("--own", default="", help='further arguments of edgespec serve, as "--spec-type none"')
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def measured(urls: dict[str, str], args: argparse.Namespace) -> Iterator[Sample]:
    """Yield a sample of each load on each server; the order of the servers alternates."""
    for url in urls.values():
        asyncio.run(load(url, 1, [text_of(40, seed) for seed in range(WARM_UP)], args.tokens))
    for turn in range(args.turns):
        for words in args.words:
            for clients in args.clients:
                seed = 1000 * turn + words + clients
                asked = [text_of(words, seed + place) for place in range(clients * args.requests)]
                for who in sorted(urls, reverse=bool(turn % 2)):
                    started_s = time.perf_counter()
                    answers = asyncio.run(load(urls[who], clients, asked, args.tokens))
                    yield Sample(who, clients, words, turn, time.perf_counter() - started_s, answers)


def text_of(words: int, seed: int) -> str:
    """Return a question about a text of this many words, made of the prompts of the suites in random order."""
    texts = [" ".join(item.turns) for item in sample(shipped(), 4)]
    random.Random(seed).shuffle(texts)
    found = " ".join(texts).split()
    found = (found * math.ceil(words / len(found)))[:words]
    return f"Text {seed % 1000}:\n\n{' '.join(found)}\n\nWhat is this text about? Explain it in detail."


async def load(url: str, clients: int, asked: Sequence[str], tokens: int) -> list[Answer]:
    """Send all requests, by this many clients at a time."""
    waiting, answers = list(reversed(asked)), list[Answer]()
    timeout, limits = httpx2.Timeout(600), httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=timeout, limits=limits) as client:

        async def one_client() -> None:
            while waiting:
                answers.append(await answer(client, waiting.pop(), tokens))

        await asyncio.gather(*(one_client() for _ in range(clients)))
    return answers


async def answer(client: httpx2.AsyncClient, text: str, tokens: int) -> Answer:
    body = {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.perf_counter()
    times, usage = list[float](), {"prompt_tokens": 0, "completion_tokens": 0}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise CommandError(f"status {response.status_code}: {(await response.aread())[:300]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise CommandError(f"the answer was broken off: {chunk['error']}")
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                times.append(time.perf_counter())
            usage = chunk.get("usage") or usage
    gaps = [after - before for before, after in pairwise(times)]
    first_s, took_s = (times or [started_s])[0] - started_s, time.perf_counter() - started_s
    return Answer(first_s, max(gaps, default=0.0), took_s, usage["prompt_tokens"], usage["completion_tokens"])


HEADER = ("clients", "prompt", "tok/s", "x", "first token, ms", "x", "95 %", "x", "largest gap, ms", "x")


def table(samples: Sequence[Sample]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each load: ours / theirs, and the ratio."""
    for clients, words in dict.fromkeys((each.clients, each.words) for each in samples):
        cells, prompt = dict[str, list[float]](), 0.0
        for who in (OWN, NATIVE):
            found = [each for each in samples if (each.who, each.clients, each.words) == (who, clients, words)]
            answers = [answer for each in found for answer in each.answers]
            if not answers:
                return
            prompt = median(answer.prompt_tokens for answer in answers)
            first = sorted(answer.first_s for answer in answers)
            cells[who] = [
                median(each.rate for each in found),
                1000 * median(first),
                1000 * first[math.ceil(0.95 * len(first)) - 1],
                1000 * median(max(answer.gap_s for answer in each.answers) for each in found),
            ]
        pairs = zip(cells[OWN], cells[NATIVE], strict=True)
        figures = [(f"{own:.0f} / {native:.0f}", f"{own / max(native, 1e-9):.2f}") for own, native in pairs]
        yield (str(clients), f"{prompt:.0f}", *(text for figure in figures for text in figure))


if __name__ == "__main__":
    sys.exit(main())
