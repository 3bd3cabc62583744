"""Count how many answers to 30 ordinary first questions repeat themselves, with different settings.

    python scripts/lab/first_questions.py smollm2                              # the settings of the catalogue
    python scripts/lab/first_questions.py smollm2 --way temperature=0.8 --way "repeat_penalty=1.1 repeat_last_n=256"
    python scripts/lab/first_questions.py smollm2 --seeds 3 --answers answers.md

Each way is a list of settings that replace those of the catalogue. The table has, for each way, how many answers loop
(the same tokens over and over), how many reach the limit, the mean share of runs of four tokens that occurred before in
the answer, and the mean number of tokens. `--answers` writes the answers to a file: the numbers do not say whether an
answer is good.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import edgespec
from edgespec.bench.summary import repeated_4grams
from edgespec.llm.options import chat_request
from edgespec.text.repetition import RepetitionDetector

QUESTIONS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--way", action="append", default=[], help="settings, such as 'repeat_penalty=1.1 min_p=0.1'")
    parser.add_argument("--seeds", type=int, default=1, help="answers to each question")
    parser.add_argument("-n", type=int, default=600, help="maximum number of tokens of an answer")
    parser.add_argument("--answers", type=Path, help="file for the answers")
    args = parser.parse_args()
    shown = args.answers.open("w", encoding="utf-8") if args.answers else None
    print(f"{'way':60} loops  to limit  repeated  tokens", flush=True)
    with edgespec.load(args.model, sequences=8) as llm:
        for way in args.way or [""]:
            changes = {name: float(value) if "." in value else int(value) for name, _, value in _pairs(way)}
            requests = [
                chat_request(
                    question,
                    {**changes, "repeat_limit": 0, "seed": seed, "max_tokens": args.n},  # type: ignore[typeddict-item]
                    llm.own_settings,
                )
                for question in QUESTIONS
                for seed in range(args.seeds)
            ]
            texts, tokens = [""] * len(requests), [list[int]() for _ in requests]
            reasons = [""] * len(requests)
            for number, event in llm.stream(requests):
                if isinstance(event, edgespec.EdgespecError):
                    raise event
                texts[number] += event.text
                tokens[number] += [] if event.is_last else [event.id]
                reasons[number] = event.finish_reason or ""
            loops = [_loop(ids) for ids in tokens]
            repeated = sum(map(repeated_4grams, tokens)) / len(tokens)
            n_loops, n_full = sum(map(bool, loops)), reasons.count("length")
            mean = sum(map(len, tokens)) / len(tokens)
            print(f"{way or 'as catalogued':60} {n_loops:5}  {n_full:8}  {repeated:8.0%}  {mean:6.0f}", flush=True)
            if shown is not None:
                for number, text in enumerate(texts):
                    question = QUESTIONS[number // args.seeds]
                    print(
                        f"## {question} ({way}; {loops[number] or reasons[number]})\n\n{text}\n", file=shown, flush=True
                    )
    return 0


def _pairs(way: str) -> list[tuple[str, str, str]]:
    return [setting.partition("=") for setting in way.split()]


def _loop(tokens: list[int]) -> str:
    """Return the description of the loop in an answer, if there is one."""
    detector = RepetitionDetector()
    for token in tokens:
        detector.add(token)
    return str(detector.found or "")


if __name__ == "__main__":
    sys.exit(main())
