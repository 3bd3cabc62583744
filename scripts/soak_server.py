"""Many clients of a running server at once, some of whom leave or stop reading: what they got, and what is left of it.

    python scripts/soak_server.py http://127.0.0.1:8080 --requests 1000 --clients 64 --pid PID

All is well if no status is 500, nothing is open at the end, and the memory of the server (--pid) stays where it was
after the first hundreds of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter

import httpx2
import psutil

CHATS = ("/v1/chat/completions", "/v1/messages")


async def ask(client: httpx2.AsyncClient, models: list[str], rng: random.Random) -> str:
    """One request: its status, or how its client left it."""
    path, model, words = rng.choice(CHATS), rng.choice(models), rng.randrange(1, 200)
    body = {"model": model, "max_tokens": rng.randrange(1, 40), "stream": True, "seed": rng.randrange(9)}
    body["messages"] = [{"role": "user", "content": f"{rng.randrange(20)} " + "word " * words}]
    leaves, stalls = rng.random() < 0.3, rng.random() < 0.1
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            return str(response.status_code)
        async for line in response.aiter_lines():
            if leaves and "delta" in line:
                return "left"
            if stalls and "delta" in line:
                await asyncio.sleep(rng.random())
            if '"error"' in line:
                return "error in the stream"
    return "200"


async def open_answers(client: httpx2.AsyncClient) -> int:
    """Answers that are made or wait."""
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith("llamacpp:requests_"))


async def soak(url: str, n_requests: int, n_clients: int, seed: int, server: psutil.Process | None) -> None:
    rng, got, room = random.Random(seed), Counter[str](), asyncio.Semaphore(n_clients)
    limits = httpx2.Limits(max_connections=2 * n_clients)
    async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        models = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]

        async def one(number: int) -> None:
            async with room:
                got[await ask(client, models, rng)] += 1
            if server and number % 200 == 199:
                family = [server, *server.children(recursive=True)]
                mb = [process.memory_info().rss // 2**20 for process in family]
                print(f"{number + 1} requests: {mb} MB, {server.num_fds()} files", flush=True)

        await asyncio.gather(*map(one, range(n_requests)))
        for _ in range(100):
            if not (left := await open_answers(client)):
                break
            await asyncio.sleep(0.1)
    print(dict(got), f"{left} answers still open")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int, help="the server's process, whose memory is shown")
    given = parser.parse_args()
    server = psutil.Process(given.pid) if given.pid else None
    asyncio.run(soak(given.url, given.requests, given.clients, given.seed, server))


if __name__ == "__main__":
    main()
