"""Compare servers with an OpenAI-compatible API: speed, and the time until the first token.

    edgespec serve -m model.gguf --port 8080 --parallel 8 -c 4096
    llama-server -m model.gguf --port 8081 -np 8 -c 32768
    python scripts/lab/bench_server.py edgespec=http://127.0.0.1:8080 llama-server=http://127.0.0.1:8081

Start the servers first, with a slot for each client and the same context. In each turn, several clients ask at the same
time, each with a different prompt after a common system prompt, and then ask the same again: "cached" is the first
token of a prompt that the server has just read. Only one server is asked at a time. The table on stdout, in Markdown,
has medians over turns and clients.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import NamedTuple

import httpx2

CLIENT = httpx2.Client(timeout=600)  # making one takes longer than the first token of a small model
SYSTEM = "You are a helpful assistant. Answer in plain words, and keep your answers short. " * 4
WORDS = (
    *("apple", "bridge", "candle", "desert", "engine", "forest", "garden", "harbour", "island", "journey", "kitchen"),
    *("ladder", "market", "needle", "orchard", "paper", "quarry", "river", "station", "temple", "umbrella", "village"),
)


class Result(NamedTuple):
    """Seconds until the first token, the largest pause after it, and the number of tokens."""

    first_s: float
    gap_s: float
    tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare servers with an OpenAI-compatible API")
    parser.add_argument("server", nargs="+", metavar="NAME=URL")
    parser.add_argument("--clients", default="1,4,8", help="separated by commas")
    parser.add_argument("--words", default="40,1200", help="lengths of prompts, separated by commas")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    servers = dict(each.split("=", 1) for each in args.server)
    columns = ["tok/s", "first token, ms", "cached, ms", "largest pause, ms"]
    print("| clients | words |", " | ".join(f"{name}: {of}" for of in columns for name in servers), "|")
    print("|---" * (2 + len(columns) * len(servers)) + "|", flush=True)
    for words in map(int, args.words.split(",")):
        for clients in map(int, args.clients.split(",")):
            found = measured(servers, clients, words, args.tokens, args.turns)
            cells = [f"{median(found[name, of]):.0f}" for of in columns for name in servers]
            print(f"| {clients} | {words} | {' | '.join(cells)} |", flush=True)


def measured(
    servers: dict[str, str], clients: int, words: int, tokens: int, turns: int
) -> dict[tuple[str, str], list[float]]:
    """Return the figures of each server, by its name and the column."""
    found = defaultdict[tuple[str, str], list[float]](list)
    for turn in range(turns + 1):
        draw = random.Random(f"{words} {clients} {turn}")
        prompts = [" ".join(draw.choices(WORDS, k=words)) + ". Write a story with these words." for _ in range(clients)]
        for name in [*servers][:: 1 if turn % 2 else -1]:
            started_s = perf_counter()
            results = asked(servers[name], prompts, tokens)
            took_s = perf_counter() - started_s
            again = asked(servers[name], prompts, tokens)
            if turn:  # the first one warms up
                found[name, "tok/s"].append(sum(each.tokens for each in results) / took_s)
                found[name, "first token, ms"] += [1000 * each.first_s for each in results]
                found[name, "cached, ms"] += [1000 * each.first_s for each in again]
                found[name, "largest pause, ms"] += [1000 * each.gap_s for each in results]
    return found


def asked(url: str, prompts: list[str], tokens: int) -> list[Result]:
    """Return the results of one client for each prompt, which ask at the same time."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: answer(url, prompt, tokens), prompts))


def answer(url: str, prompt: str, tokens: int) -> Result:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"model": "", "stream_options": {"include_usage": True}}
    started_s, times, n = perf_counter(), list[float](), 0
    with CLIENT.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if any(choice["delta"].get("content") for choice in event["choices"]):
                times.append(perf_counter())
            n = (event.get("usage") or {}).get("completion_tokens", n)
    gaps = [after - before for before, after in pairwise(times)]
    times = times or [perf_counter()]  # an empty answer
    return Result(times[0] - started_s, max(gaps, default=0.0), n)


if __name__ == "__main__":
    main()
