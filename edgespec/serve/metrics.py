"""The counts and the log of requests.

Counts are for Prometheus, under the names of llama.cpp's server; those of drafts also under the names of vLLM.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.core.stats import Stats
from edgespec.requests.bad_input import JsonObject
from edgespec.serve.pool import Pool


class Metrics:
    """Counts since the start of the server. `stats` adds up all finished answers."""

    def __init__(self) -> None:
        self.started_s = int(time.time())
        self.stats = Stats()
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.answers: Counter[str] = Counter()  # by how they ended
        self.texts: Counter[str] = Counter()  # by what was made of them

    def count(self, stats: Stats, reason: str) -> None:
        """Count a finished answer."""
        self.stats.add(stats)
        self.answers[reason] += 1

    def count_texts(self, kind: str, n_texts: int, stats: Stats) -> None:
        """Count the texts of a finished request for vectors or scores."""
        self.stats.add(stats)
        self.texts[kind] += n_texts

    def text(self, pool: Pool, cache: Mapping[str, int]) -> str:
        """Return everything in Prometheus' format; `cache` has the counts of the engines' prefix caches."""
        stats, (processing, deferred) = self.stats, pool.load
        lines = [
            *_counter("llamacpp:prompt_tokens_total", stats.prompt_tokens - stats.cached_tokens),
            *_counter("llamacpp:prompt_seconds_total", stats.prompt_s),
            *_counter("llamacpp:tokens_predicted_total", stats.generated_tokens),
            *_counter("llamacpp:tokens_predicted_seconds_total", stats.generation_s),
            *_counter("llamacpp:n_decode_total", stats.rounds),
            *_gauge("llamacpp:prompt_tokens_seconds", stats.prompt_tokens_per_s),
            *_gauge("llamacpp:predicted_tokens_seconds", stats.tokens_per_s),
            *_gauge("llamacpp:requests_processing", processing),
            *_gauge("llamacpp:requests_deferred", deferred),
            *_counter("llamacpp:prompt_tokens_cached_total", stats.cached_tokens),
            *_gauge("edgespec:models_loaded", pool.n_loaded),
            *_gauge("edgespec:prefix_cache_bytes", cache["bytes"]),
            *_gauge("edgespec:prefix_cache_limit_bytes", cache["limit_bytes"]),
            *_gauge("edgespec:prefix_cache_states", cache["states"]),
            *_gauge("edgespec:prefix_cache_checkpoints", cache["checkpoints"]),
            *_counter("edgespec:prefix_cache_hits_total", cache["hits"]),
            *_counter("edgespec:prefix_cache_restored_tokens_total", cache["restored_tokens"]),
        ]
        for what, counted in (("loads", pool.loads), ("unloads", pool.unloads), ("deaths", pool.deaths)):
            lines += _labelled(f"edgespec:model_{what}_total", {f"model={_quoted(n)}": c for n, c in counted.items()})
        for prefix in ("llamacpp", "vllm"):
            lines += _counter(f"{prefix}:spec_decode_num_drafts_total", sum(stats.proposed_per_pos[:1]))
            lines += _counter(f"{prefix}:spec_decode_num_draft_tokens_total", stats.proposed)
            lines += _counter(f"{prefix}:spec_decode_num_accepted_tokens_total", stats.accepted)
            positions = {f'position="{n}"': count for n, count in enumerate(stats.accepted_per_pos)}
            lines += _labelled(f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total", positions)
        sources = {f'drafter="{name}"': source for name, source in stats.by_source.items()}
        lines += _labelled("edgespec:draft_tokens_total", {key: source.proposed for key, source in sources.items()})
        lines += _labelled("edgespec:accepted_tokens_total", {key: source.accepted for key, source in sources.items()})
        lines += _labelled("edgespec:answers_total", {f'reason="{why}"': n for why, n in self.answers.items()})
        lines += _labelled("edgespec:texts_total", {f'kind="{kind}"': n for kind, n in self.texts.items()})
        counts = {f'path="{path}",status="{status}"': n for (path, status), n in self.requests.items()}
        lines += _labelled("edgespec:http_requests_total", counts)
        return "\n".join(lines) + "\n"


def _quoted(label: str) -> str:
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _counter(name: str, value: float) -> Iterator[str]:
    yield from (f"# TYPE {name} counter", f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}")


def _gauge(name: str, value: float) -> Iterator[str]:
    yield from (f"# TYPE {name} gauge", f"{name} {value:.6g}")


def _labelled(name: str, counts: dict[str, int]) -> Iterator[str]:
    if counts:
        yield f"# TYPE {name} counter"
        yield from (f"{name}{{{labels}}} {count}" for labels, count in counts.items())


Log = Callable[[JsonObject], None]
"""Called with a record of each request that has ended, as plain data."""


class Recorder:
    """Counts and logs each request after its answer was sent, refused requests too."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: Log) -> None:
        self._app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s, status = perf_counter(), 499  # unless anything is sent
        scope["record"] = dict[str, object]()

        async def noticing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noticing)
        finally:
            self._metrics.requests[scope.get("route_path", "other"), status] += 1
            about = {"event": "request", "method": scope["method"], "path": scope["path"], "status": status}
            self._log(about | {"seconds": round(perf_counter() - started_s, 3)} | scope["record"])
