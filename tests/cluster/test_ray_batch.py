"""A batch over a real Ray cluster: its rows are those of this machine, also if the model is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_program import edgespec

pytest.importorskip("ray")
pytestmark = [pytest.mark.skipif(os.name != "posix", reason="aborts a process"), pytest.mark.slow]

ROWS = [
    *({"id": number, "prompt": f"def f{number}("} for number in range(6)),
    {"id": "n", "prompt": "x", "n": 3, "logprobs": 2, "temperature": 1.5},
    {"id": "wrong", "prompt": "x", "grammar": "nonsense"},
    {"id": "long", "prompt": "word " * 3000},
    {"id": "chat", "messages": [{"role": "user", "content": "Hello"}], "regex": "[ab]{3}", "seed": 4},
    {"id": "deadly", "prompt": "with arsenic"},
    {"custom_id": "openai", "url": "/v1/completions", "body": {"prompt": "Hello", "logprobs": 1}},
    "no row",
]
POISON = """
import os, sys
if "--multiprocessing-fork" in sys.orig_argv:
    from edgespec.llama.context import Context
    from edgespec.llama.model import LlamaModel as Model
    tokenize, decode, eaten = Model.tokenize, Context.decode, False
    def tasting(self, text, *args, **more):
        global eaten
        eaten = eaten or "arsenic" in text
        return tokenize(self, text, *args, **more)
    def dying(self, *args, **more):
        if eaten:
            os.abort()
        return decode(self, *args, **more)
    Model.tokenize, Context.decode = tasting, dying
"""


@pytest.mark.long
def test_rows_are_those_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(POISON)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    args = [
        "batch",
        "in.jsonl",
        "-m",
        "demo",
        "-n",
        "12",
        "--seed",
        "1",
        "--parallel",
        "2",
        "-t",
        "1",
        "--ordered",
        "--system",
        "Be brief.",
    ]
    path = str(tmp_path)
    here = edgespec(*args, home=tmp_path, PYTHONPATH=path)
    there = edgespec(*args, "--over", "ray", home=tmp_path, PYTHONPATH=path, RAY_ADDRESS="local")
    assert there.stdout == here.stdout
    assert there.returncode == here.returncode == 6
    assert len(here.stdout.splitlines()) == len(ROWS)
    assert b"llama.cpp aborted" in here.stdout
    said = there.stderr.decode()
    assert "this machine belongs to no Ray cluster" in said
    assert ": llama.cpp aborted: an internal check failed; restarting it" in said
