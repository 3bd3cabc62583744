"""A model's own system prompt and settings are the same in every command, format and interface."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from cli_program import edgespec_here
from serve_program import program
from tiny_gguf import FILL, write_model

import edgespec
from edgespec.llm.fleet import Fleet
from edgespec.models.names import ollama
from edgespec.runtime.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.cli, pytest.mark.slow]
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
QUESTION = "What is the capital of France?"
SYSTEM = "Answer in plain English."
N, SEED = 24, 7
SAID: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
SAMPLING = {"temperature": 0.9, "top_p": 0.8, "repeat_penalty": 1.3}


class Home:
    """A folder with a model that has a system prompt and settings, in the user's catalogue or of Ollama."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.variables = {"OLLAMA_MODELS": str(folder / "ollama"), "OMP_NUM_THREADS": "1"}
        file = write_model(folder / "tiny.gguf", "llama", chat_template=TEMPLATE, metadata=FILL)
        if kind == "catalogue":
            self.model = "packed"
            self._catalogue(file)
        else:
            self.model = "ollama:mine:latest"
            self._ollama(file)

    def _catalogue(self, file: Path) -> None:
        kept = self.folder / "data" / "models" / "tiny-model-1.0" / "tiny.F32.gguf"
        kept.parent.mkdir(parents=True)
        about = {"package": "tiny-model==1.0", "wheel_sha256": "0" * 64, "member": "tiny/tiny.F32.gguf", "quant": "F32"}
        about |= {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "system": SYSTEM}
        lines = ["[packed]", *(f'{key} = "{value}"' for key, value in about.items())]
        lines += [f"{key} = {value}" for key, value in (SAMPLING | {"wheel_bytes": 1, "size_bytes": 1}).items()]
        (self.folder / "config").mkdir()
        (self.folder / "config" / "models.toml").write_text("\n".join(lines))
        file.rename(kept)

    def _ollama(self, file: Path) -> None:
        blobs, manifest = self.folder / "ollama/blobs", self.folder / "ollama/manifests/registry.ollama.ai/library/mine"
        for each in (blobs, manifest):
            each.mkdir(parents=True)
        contents = {
            ollama.WEIGHTS: file.read_bytes(),
            ollama.SYSTEM: SYSTEM.encode(),
            ollama.PARAMETERS: json.dumps(SAMPLING | {"stop": ["<|end|>"], "num_ctx": 64}).encode(),
        }
        layers = []
        for kind, content in contents.items():
            digest = hashlib.sha256(content).hexdigest()
            (blobs / f"sha256-{digest}").write_bytes(content)
            layers.append({"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)})
        (manifest / "latest").write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        # The same weights under another name, without a system prompt.
        (manifest.parent / "plain").mkdir()
        (manifest.parent / "plain" / "latest").write_text(json.dumps({"schemaVersion": 2, "layers": layers[:1]}))

    def run(self, *args: str, stdin: bytes = b"") -> str:
        done = edgespec_here(*args, home=self.folder, stdin=stdin, **self.variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()


@pytest.fixture(scope="module", params=["catalogue", "ollama"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"), request.param)


@pytest.fixture(scope="module")
def llm(home: Home) -> Iterator[Runtime]:
    variables = home.variables | {"EDGESPEC_HOME": str(home.folder)}
    with patch.dict(os.environ, variables), edgespec.load(home.model, threads=1, store=False) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    with program(home.folder, "-m", home.model, **home.variables) as (_, found):
        yield found


@pytest.fixture(scope="module")
def text(llm: Runtime) -> str:
    """The answer with everything said."""
    messages = [{"role": "system", "content": SYSTEM}, *SAID]
    return llm.complete(messages, seed=SEED, max_tokens=N, **SAMPLING).text  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bare(llm: Runtime) -> str:
    """The answer without a system prompt."""
    return llm.complete(SAID, add_system_prompt=False, seed=SEED, max_tokens=N).text


def test_python_answers_as_the_model_says(llm: Runtime, text: str, bare: str) -> None:
    assert bare != text
    assert llm.own_settings == {"system": SYSTEM, **SAMPLING}
    assert str(llm.chat(QUESTION, seed=SEED, max_tokens=N)) == text
    assert str(llm.complete(SAID, seed=SEED, max_tokens=N)) == text
    assert str(llm.chat(QUESTION, system="", seed=SEED, max_tokens=N)) == bare
    own = [{"role": "system", "content": "Shout."}, *SAID]
    assert str(llm.chat(own, seed=SEED, max_tokens=N)) == str(llm.chat(SAID, system="Shout.", seed=SEED, max_tokens=N))
    system = [{"role": "system", "content": ""}]
    assert str(llm.chat([*system, *SAID], seed=SEED, max_tokens=N)) not in (text, "")
    raw = llm.complete(QUESTION, seed=SEED, max_tokens=N).text
    assert raw == llm.complete(QUESTION, seed=SEED, max_tokens=N, **SAMPLING).text  # type: ignore[arg-type]
    assert raw not in (text, bare)


def test_a_worker_and_a_model_of_a_server_answer_as_this_process(
    home: Home, url: str, llm: Runtime, text: str, bare: str
) -> None:
    variables = home.variables | {"EDGESPEC_HOME": str(home.folder)}
    settings = edgespec.LoadSettings(home.model, threads=1, store=False)
    with (
        patch.dict(os.environ, variables),
        edgespec.Worker(settings) as worker,
        edgespec.RemoteModel(url) as remote,
        Fleet([edgespec.RemoteModel(url)]) as fleet,
    ):
        models: list[edgespec.Model] = [worker, remote, fleet]
        for model in models:
            assert str(model.chat(QUESTION, seed=SEED, max_tokens=N)) == text
            assert str(model.complete(SAID, seed=SEED, max_tokens=N)) == text
            assert str(model.chat(QUESTION, add_system_prompt=False, seed=SEED, max_tokens=N)) == bare
            raw = llm.complete(QUESTION, seed=SEED, max_tokens=N)
            assert model.complete(QUESTION, seed=SEED, max_tokens=N).text == raw.text
            assert "".join(token.text for token in model.generate(QUESTION, seed=SEED, max_tokens=N)) == raw.text
            answered = asyncio.run(model.acomplete(SAID, seed=SEED, max_tokens=N))
            assert (answered.text, answered.tokens) == (text, llm.complete(SAID, seed=SEED, max_tokens=N).tokens)


def test_commands_answer_as_the_model_says(home: Home, text: str, bare: str) -> None:
    asked = ("-m", home.model, "--seed", str(SEED), "-n", str(N), "-t", "1")
    assert json.loads(home.run("run", QUESTION, *asked, "--json"))["content"] == text
    assert json.loads(home.run("run", QUESTION, *asked, "--json", "--system", ""))["content"] == bare
    assert text in home.run("chat", "--plain", *asked, stdin=QUESTION.encode() + b"\n")


def test_batches_answer_as_the_model_says(home: Home, llm: Runtime, text: str, bare: str) -> None:
    body = {"messages": SAID}
    wrapped: dict[str, Any] = {"method": "POST", "url": "/v1/chat/completions", "body": body | {"seed": SEED}}
    rows: dict[str, dict[str, Any]] = {
        "prompt": {"prompt": QUESTION, "seed": SEED},
        "messages": {"messages": SAID, "seed": SEED},
        "openai": wrapped,
        "no system": {"prompt": QUESTION, "seed": SEED, "system": ""},
        "left out": {"messages": SAID, "seed": SEED, "add_system_prompt": False},
        "left out, openai": wrapped | {"body": wrapped["body"] | {"add_system_prompt": False}},
    }
    lines = [{"custom_id" if "body" in row else "id": name, **row} for name, row in rows.items()]
    expected = {name: bare if name.startswith(("no", "left")) else text for name in rows}
    assert dict(map(_result, llm.batch(lines, max_tokens=N))) == expected
    (home.folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    home.run("batch", "rows.jsonl", "-m", home.model, "-n", str(N), "-t", "1", "-o", "out.jsonl", "--overwrite")
    made = (home.folder / "out.jsonl").read_text().splitlines()
    assert dict(map(_result, map(json.loads, made))) == expected


def _result(row: dict[str, Any]) -> tuple[str, str]:
    if "custom_id" in row:
        return row["custom_id"], row["response"]["body"]["choices"][0]["message"]["content"]
    return row["id"], row["content"]


LEFT_OUT = {"add_system_prompt": False}
OPTIONS = {"seed": SEED, "num_predict": N}
FORMATS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # path, fields, and what leaves the prompt out
    "chat": ("/v1/chat/completions", {"messages": SAID, "seed": SEED, "max_tokens": N}, LEFT_OUT),
    "responses": ("/v1/responses", {"input": QUESTION, "seed": SEED, "max_output_tokens": N}, LEFT_OUT),
    "instructions": ("/v1/responses", {"input": QUESTION, "seed": SEED, "max_tokens": N}, {"instructions": ""}),
    "messages": ("/v1/messages", {"messages": SAID, "seed": SEED, "max_tokens": N}, LEFT_OUT),
    "system": ("/v1/messages", {"messages": SAID, "seed": SEED, "max_tokens": N}, {"system": ""}),
    "ollama chat": ("/api/chat", {"messages": SAID, "options": OPTIONS, "stream": False}, LEFT_OUT),
    "ollama generate": ("/api/generate", {"prompt": QUESTION, "options": OPTIONS, "stream": False}, LEFT_OUT),
    "ollama system": ("/api/generate", {"prompt": QUESTION, "options": OPTIONS, "stream": False}, {"system": ""}),
}


@pytest.mark.parametrize("format", FORMATS)
def test_the_server_answers_as_the_model_says(home: Home, url: str, text: str, bare: str, format: str) -> None:
    path, fields, left_out = FORMATS[format]
    with httpx2.Client(base_url=url, timeout=60) as client:
        for more, expected in (({}, text), (left_out, bare)):
            answer = client.post(path, json={"model": home.model, **fields, **more}).json()
            assert _said(answer) == expected, answer


def _said(answer: dict[str, Any]) -> str:
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    if "content" in answer:
        return str(answer["content"][0]["text"])
    return str(answer["message"]["content"] if "message" in answer else answer["response"])


def test_a_chat_and_run_with_a_server_answer_alike(home: Home, url: str, text: str, bare: str) -> None:
    asked = ("--server", url, "--seed", str(SEED), "-n", str(N))
    assert json.loads(home.run("run", QUESTION, *asked, "--json"))["content"] == text
    assert json.loads(home.run("run", QUESTION, *asked, "--json", "-s", ""))["content"] == bare
    assert text in home.run("chat", "--plain", *asked, stdin=QUESTION.encode() + b"\n")


def test_the_settings_are_named(home: Home, url: str) -> None:
    shown = " ".join(home.run("show", home.model).split())
    assert f'answers with system "{SYSTEM}", temperature 0.9, top_p 0.8, repeat_penalty 1.3' in shown
    with httpx2.Client(base_url=url, timeout=60) as client:
        props = client.get("/props").json()
        about = client.post("/api/show", json={"model": home.model}).json()
    assert props["system_prompt"] == about["system"] == SYSTEM
    assert props["default_generation_settings"]["params"]["repeat_penalty"] == 1.3
    assert [line.split() for line in about["parameters"].splitlines()] == [
        ["temperature", "0.9"],
        ["top_p", "0.8"],
        ["repeat_penalty", "1.3"],
    ]
    assert f'SYSTEM """{SYSTEM}"""' in about["modelfile"]


def test_names_of_the_same_weights_keep_their_own_settings(home: Home, url: str, text: str, bare: str) -> None:
    if home.kind != "ollama":
        pytest.skip("only Ollama has two names for one file")
    path, fields, _ = FORMATS["chat"]
    with httpx2.Client(base_url=url, timeout=60) as client:
        plain = _said(client.post(path, json={"model": "plain", **fields}).json())
        assert _said(client.post(path, json={"model": "mine", **fields}).json()) == text
        assert plain == _said(client.post(path, json={"model": "plain", **fields, **LEFT_OUT}).json()) != text
