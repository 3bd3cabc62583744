"""The same job at several numbers of answers at a time, with and without drafts: how many answers are the same bytes?

    .venv/bin/python scripts/check_parallel.py                                   # the bundled pair, 64 prompts
    .venv/bin/python scripts/check_parallel.py -m target.gguf -md draft.gguf --rows 32 --temp 0

Answers are compared with those generated one at a time without drafts. On CPUs all should be the same. Where one
differs, as on GPUs, "gap" is the lead of its token there over the second best, in logits with noise: rounding that
depends on the other tokens of a pass can only change a choice where that is small.
"""

from __future__ import annotations

import argparse
from itertools import islice
from statistics import median

import edgespec
from edgespec.bench.suites import shipped
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError
from edgespec.events import TokenEvent
from edgespec.settings import Message, Request

PARALLEL = (1, 4, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-md", "--draft-model")
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("-c", "--ctx-size", type=int, default=1024)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    wanted = answers(options, 1, "none")
    for parallel in PARALLEL:
        for spec_type in ("none", "auto"):
            got = wanted if (parallel, spec_type) == (1, "none") else answers(options, parallel, spec_type)
            pairs = list(zip(wanted, got, strict=True))
            gaps = [gap for want, have in pairs if (gap := gap_where_they_part(want, have)) is not None]
            parted = f", gap {min(gaps):.3f} to {max(gaps):.3f}, median {median(gaps):.3f}" if gaps else ""
            print(f"{parallel:2} at a time, {spec_type:4}: {len(pairs) - len(gaps)} of {len(pairs)} the same{parted}")


def answers(options: argparse.Namespace, parallel: int, spec_type: str) -> list[list[TokenEvent]]:
    """The tokens of each answer."""
    prompts = islice((item.prompt for item in shipped(None)), options.rows)
    requests = [
        Request(
            messages=(Message("user", f"{prompt} ({number})"),),
            max_tokens=options.max_tokens,
            sampling=SamplingSettings(temperature=options.temp),
            seed=number,
        )
        for number, prompt in enumerate(prompts)
    ]
    found: list[list[TokenEvent]] = [[] for _ in requests]
    settings = {"threads": options.threads, "ctx_size": options.ctx_size, "store": False}
    with edgespec.load(
        options.model, draft_model=options.draft_model, spec_type=spec_type, sequences=parallel, **settings
    ) as llm:
        for index, event in llm.stream(requests):
            if not isinstance(event, EdgespecError) and event.id >= 0:
                found[index].append(event)
    return found


def gap_where_they_part(want: list[TokenEvent], have: list[TokenEvent]) -> float | None:
    """None where they are the same."""
    ids = [event.id for event in have]
    for place, event in enumerate(want):
        if place >= len(ids) or ids[place] != event.id:
            return event.gap
    return None if len(ids) == len(want) else have[len(want)].gap


if __name__ == "__main__":
    main()
