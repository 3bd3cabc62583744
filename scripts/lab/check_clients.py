"""Run clients as people use them against `edgespec serve`, each in a separate environment.

    python scripts/lab/check_clients.py                      # all of them, with the bundled pair
    python scripts/lab/check_clients.py openai llm -m smollm2

Needs the network for clients that are not installed yet (aider and litellm take 500 MB).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from programs import CommandError, running, wheel_cache

from edgespec.errors import EdgespecError

KEY = "secret"  # of the server that is asked
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Client:
    """`packages` of pip, and a program for Python or for the shell in `typed`; `files` exist when it starts. URL, KEY
    and MODEL are replaced by those of the server."""

    name: str
    packages: tuple[str, ...]
    typed: str
    runs: str = "python"
    files: tuple[tuple[str, str], ...] = ()


CLIENTS = [
    Client(
        "curl",
        (),
        """
        set -ex
        curl -sf URL/v1/models -H "Authorization: Bearer KEY"
        curl -sfN URL/v1/chat/completions -H "Authorization: Bearer KEY" -H "Content-Type: application/json" \\
          -d '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "stream": true}'
        : without a key, from a page of another origin, by a forged name, as a form
        test 401 = $(curl -s -o /dev/null -w "%{http_code}" URL/v1/models)
        test 403 = $(curl -s -o /dev/null -w "%{http_code}" URL/v1/models -H "Authorization: Bearer KEY" \\
          -H "Host: evil.example")
        test 403 = $(curl -s -o /dev/null -w "%{http_code}" URL/v1/models -H "Authorization: Bearer KEY" \\
          -H "Origin: https://evil.example")
        test 415 = $(curl -s -o /dev/null -w "%{http_code}" URL/v1/chat/completions -H "Authorization: Bearer KEY" \\
          -d '{"messages": []}')
        """,
        "shell",
    ),
    Client(
        "openai",
        ("openai==3.54.0",),
        """
        from typing import Literal

        from openai import BadRequestError, NotFoundError, OpenAI, pydantic_function_tool
        from pydantic import BaseModel

        client = OpenAI(base_url="URL/v1", api_key="KEY")
        print([model.id for model in client.models.list()])
        ask = [{"role": "user", "content": "Name a colour."}]
        answer = client.chat.completions.create(model="MODEL", messages=ask, max_tokens=16, seed=1, n=2, logprobs=True)
        print(answer.choices[0].message.content, answer.choices[1].message.content, answer.usage)
        assert answer.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in answer.choices)
        stream = client.chat.completions.create(
            model="MODEL", messages=ask, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        print("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks[-1].usage)

        class Person(BaseModel):
            kind: Literal["adult", "child"]
            is_tall: bool

        class Weather(BaseModel):
            city: Literal["Oslo", "Rome"]

        parsed = client.chat.completions.parse(model="MODEL", messages=ask, response_format=Person, max_tokens=64)
        print(parsed.choices[0].finish_reason, parsed.choices[0].message.parsed)
        assert isinstance(parsed.choices[0].message.parsed, Person)
        asked = client.chat.completions.parse(
            model="MODEL", messages=ask, tools=[pydantic_function_tool(Weather)], tool_choice="required",
            parallel_tool_calls=False, max_tokens=64
        )
        (call,) = asked.choices[0].message.tool_calls
        print(call.function.parsed_arguments)
        assert isinstance(call.function.parsed_arguments, Weather)
        parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
        tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
        called = client.chat.completions.create(
            model="MODEL", messages=ask, tools=[tool], tool_choice="required", max_tokens=64
        )
        print(called.choices[0].message.tool_calls)
        print(client.completions.create(model="MODEL", prompt="Once upon", max_tokens=8).choices[0].text)
        response = client.responses.create(model="MODEL", input="Name a colour.", max_output_tokens=16)
        print(response.output_text, response.usage)
        answered = client.responses.parse(
            model="MODEL", input=ask, text_format=Person, max_output_tokens=64, top_logprobs=2,
            include=["message.output_text.logprobs"]
        )
        print(answered.output_parsed, answered.output[0].content[0].logprobs[0])
        assert isinstance(answered.output_parsed, Person)
        try:
            client.chat.completions.create(model="MODEL", messages=ask, extra_body={"t_max_predict_ms": 100})
        except BadRequestError as error:
            print(error)
        off = client.chat.completions.create(
            model="MODEL", messages=ask, max_tokens=16, seed=1, extra_body={"spec_type": "none"}
        )
        print(off.timings, off.choices[0].message.content == answer.choices[0].message.content)
        try:
            client.chat.completions.create(model="no-such-model", messages=ask)
        except NotFoundError as error:
            print(error)
        """,
    ),
    Client(
        "anthropic",
        ("anthropic==2.12.0",),
        """
        from typing import Literal

        from anthropic import Anthropic
        from pydantic import BaseModel

        client = Anthropic(base_url="URL", api_key="KEY")
        ask = [{"role": "user", "content": "Name a colour."}]
        print(client.messages.create(model="MODEL", max_tokens=16, messages=ask, system="Be brief."))
        with client.messages.stream(model="MODEL", max_tokens=16, messages=ask) as stream:
            print("".join(stream.text_stream), stream.get_final_message().usage)

        class Person(BaseModel):
            kind: Literal["adult", "child"]
            is_tall: bool

        parsed = client.messages.parse(model="MODEL", max_tokens=64, messages=ask, output_format=Person)
        print(parsed.stop_reason, parsed.parsed_output)
        assert isinstance(parsed.parsed_output, Person)
        print(client.messages.count_tokens(model="MODEL", messages=ask))
        schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
        tools = [{"name": "weather", "input_schema": schema}]
        choice = {"type": "any", "disable_parallel_tool_use": True}
        called = client.messages.create(model="MODEL", max_tokens=64, messages=ask, tools=tools, tool_choice=choice)
        print(called.stop_reason, called.content)
        """,
    ),
    Client(
        "llm",
        ("llm==0.36",),
        """
        set -ex
        llm models list | grep local
        llm -m local -o max_tokens 16 "Name a colour."
        echo "Rain fell all day." | llm -m local -o max_tokens 16 -s "Translate to French." --no-stream
        """,
        "shell",
        (
            (
                "extra-openai-models.yaml",
                '- model_id: local\n  model_name: MODEL\n  api_base: "URL/v1"\n  api_key_name: local\n',
            ),
            ("keys.json", '{"local": "KEY"}\n'),
        ),
    ),
    Client(
        "litellm",
        ("litellm",),
        """
        import litellm

        ask = [{"role": "user", "content": "Name a colour."}]
        to = {"model": "openai/MODEL", "api_base": "URL/v1", "api_key": "KEY", "max_tokens": 16}
        print(litellm.completion(messages=ask, **to).choices[0].message.content)
        for part in litellm.completion(messages=ask, stream=True, **to):
            print(part.choices[0].delta.content or "", end="")
        long = [{"role": "user", "content": "one two three " * 100_000}]
        for to in (to, {**to, "model": "anthropic/MODEL", "api_base": "URL"}):
            try:
                litellm.completion(messages=long, **to)
            except litellm.ContextWindowExceededError as error:
                print(error)
            else:
                raise AssertionError("a prompt beyond the context was answered")
        """,
    ),
    Client(
        "aider",
        ("aider-chat==0.86.2",),
        """
        set -ex
        aider --model openai/MODEL --openai-api-base URL/v1 --openai-api-key KEY --no-git --no-check-update \\
          --no-show-model-warnings --no-analytics --no-pretty --map-tokens 0 --edit-format whole --yes-always \\
          --message "Add a comment." hello.py
        """,
        "shell",
        (
            ("hello.py", "print('hello')\n"),
            (".aider.model.settings.yml", "- name: openai/MODEL\n  extra_params:\n    max_tokens: 64\n"),
        ),
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(client.name for client in CLIENTS))
    parser.add_argument("-m", "--model", default="demo", help="the model to serve (default: %(default)s)")
    args = parser.parse_args()
    chosen = [client for client in CLIENTS if not args.clients or client.name in args.clients]
    if unknown := {*args.clients} - {client.name for client in CLIENTS}:
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    failed: list[str] = []
    serve = [sys.executable, "-m", "edgespec", "serve", "-m", args.model, "--api-key", KEY]
    try:
        with running(serve) as url:
            listed = httpx2.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}).json()
            model = listed["data"][0]["id"]
            for client in chosen:
                print(f"== {client.name}", flush=True)
                session, status = run(client, url, model)
                print(session, flush=True)
                if status:
                    failed.append(client.name)
    except (EdgespecError, CommandError, OSError, httpx2.HTTPError) as error:
        print(f"check_clients: {error}", file=sys.stderr)
        return 1
    print(f"failed: {', '.join(failed)}" if failed else f"{len(chosen)} clients work")
    return int(bool(failed))


def run(client: Client, url: str, model: str) -> tuple[str, int]:
    """Return the program and its output, and the exit status. Raises CommandError."""
    names = {"URL": url, "KEY": KEY, "MODEL": model}
    folder = wheel_cache().parent / "clients" / client.name.replace(" ", "-")
    programs = installed(client, folder)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        home = Path(place)
        for name, text in client.files:
            (home / name).write_text(filled(text, names), encoding="utf-8")
        typed = filled(textwrap.dedent(client.typed).strip(), names)
        environ = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}", "LLM_USER_PATH": place}
        script = home / "typed"
        script.write_text(typed + "\n", encoding="utf-8")
        command = [{"shell": "sh"}.get(client.runs, client.runs), str(script)]
        done = output_of(command, home, environ)
    return f"{typed}\n\n{done.stdout.rstrip()}", done.returncode


def installed(client: Client, folder: Path) -> Path:
    """Return the folder of a client's programs, which are installed once. Raises CommandError."""
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    if not client.packages or (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        return programs
    venv.create(folder, clear=True, with_pip=True)
    done = output_of([str(programs / "python"), "-m", "pip", "install", "-q", *client.packages], folder, os.environ)
    if done.returncode:
        raise CommandError(f"{' '.join(client.packages)} cannot be installed:\n{done.stdout[-800:]}")
    (folder / "ready").touch()
    return programs


def output_of(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{command[0]} takes longer than {TIMEOUT_S} seconds") from error


def filled(text: str, names: Mapping[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[1]], text)


if __name__ == "__main__":
    sys.exit(main())
