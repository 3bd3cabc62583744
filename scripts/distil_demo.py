"""Train the bundled draft further, on the bundled target's answers: it learns from the text that it has to draft.

    .venv/bin/pip install torch==2.13.0                               needed by this script only
    .venv/bin/python scripts/distil_demo.py questions WORK            WORK/questions.jsonl and WORK/held-out.jsonl
    ./scripts/edgespec draft collect WORK/questions.jsonl -m demo -n 64 --temp 0.8 -o WORK/answers.jsonl
    .venv/bin/python scripts/distil_demo.py train WORK/answers.jsonl --minutes 10 -o WORK/draft.gguf
    .venv/bin/python scripts/distil_demo.py train WORK/questions.jsonl --minutes 10 -o WORK/control.gguf
    ./scripts/edgespec bench demo -md WORK/draft.gguf --prompts WORK/held-out.jsonl --mode "draft fixed:1"

The control learns for as long from the answers that the questions come with. Most of the loss is the target's own
next-token distribution, as when train_demo.py trained the draft.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import gguf
import numpy as np
import torch
import train_demo
from demo_texts import conversation, docstring_questions
from train_demo import CONTEXT, DRAFT, TARGET, Llama, Shape

import edgespec

DEMO = Path(__file__).parents[1] / "models" / "demo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stages = parser.add_subparsers(dest="stage", required=True)
    asking = stages.add_parser("questions", help="write questions to train with, and others to measure with")
    asking.add_argument("work", type=Path)
    asking.add_argument("--questions", type=int, default=2000)
    asking.add_argument("--held-out", type=int, default=40)
    training = stages.add_parser("train", help="train the draft on collected answers")
    training.add_argument("answers", type=Path)
    training.add_argument("--minutes", type=float, default=10)
    training.add_argument("--batch", type=int, default=8, help="sequences of 1,024 tokens per step")
    training.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    if args.stage == "questions":
        args.work.mkdir(parents=True, exist_ok=True)
        trained, held_out = questions()
        write_questions(args.work / "questions.jsonl", trained, args.questions)
        write_questions(args.work / "held-out.jsonl", held_out, args.held_out)
    else:
        distil(args.answers, args.minutes, args.batch, args.out)


def questions() -> tuple[dict[str, str], dict[str, str]]:
    """Questions about what train_demo.py trained on, and about what it held out, with their answers."""
    trained: dict[str, str] = {}
    held_out: dict[str, str] = {}
    for turns in subjects():
        question, answer = turns[0]
        (held_out if crc32(answer.encode()) % 100 == 0 else trained).setdefault(question, answer)
    return trained, {question: answer for question, answer in held_out.items() if question not in trained}


def write_questions(path: Path, found: dict[str, str], most: int) -> None:
    chosen = random.Random(0).sample(sorted(found), min(most, len(found)))
    rows = [
        {"id": str(number), "prompt": question, "reference": found[question]} for number, question in enumerate(chosen)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path}: {len(chosen)} of {len(found)} questions")


def subjects() -> Iterator[list[tuple[str, str]]]:
    stdlib = Path(sysconfig.get_path("stdlib"))
    for path in sorted(stdlib.rglob("*.py")):
        module = path.relative_to(stdlib).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if any(part in module for part in ("site-packages", "test", "idle", "encodings", "lib2to3")):
            continue
        try:
            yield from docstring_questions(module, ast.parse(path.read_text(encoding="utf-8")))
        except (UnicodeDecodeError, SyntaxError, ValueError):
            continue


def distil(answers: Path, minutes: float, batch: int, out: Path) -> None:
    texts = [conversation([pair(line)]) for line in answers.read_text(encoding="utf-8").splitlines()]
    with edgespec.load("demo", spec_type="none") as llm:
        tokens = [token for text in texts for token in llm.model.tokenize(text, parse_special=True)]
    print(f"{len(texts)} answers, {len(tokens)} tokens with their questions")
    if len(tokens) <= CONTEXT + 1:
        raise SystemExit("too few to train on")
    parts = {"chat": np.array(tokens, np.uint16)}
    target, start = read_gguf(DEMO / "target.gguf", TARGET), read_gguf(DEMO / "draft.gguf", DRAFT)
    with tempfile.TemporaryDirectory() as work:
        draft, log = train_demo.train("draft", DRAFT, parts, minutes, batch, Path(work), teacher=target, start=start)
    print(json.dumps(log, indent=1))
    write_gguf(draft, DEMO / "draft.gguf", out)


def pair(line: str) -> tuple[str, str]:
    """Question and answer of one line of collected answers, or of one question with its own answer."""
    row = json.loads(line)
    if "messages" not in row:
        return row["prompt"], row["reference"]
    question, answer = (message["content"] for message in row["messages"])
    return question, answer


def read_gguf(path: Path, shape: Shape) -> Llama:
    model = Llama(shape)
    weights = {
        tensor.name: torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        for tensor in gguf.GGUFReader(path).tensors
    }
    model.load_state_dict(weights)
    return model


def write_gguf(model: Llama, like: Path, path: Path) -> None:
    """A copy of the file `like` with this model's weights in it."""
    shutil.copyfile(like, path)
    weights = model.state_dict()
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        tensor.data[...] = gguf.quants.quantize(weights[tensor.name].float().numpy(), tensor.tensor_type)


if __name__ == "__main__":
    main()
