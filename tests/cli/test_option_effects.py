"""Every option of every command reaches the code that acts on it.

Options for models and requests are observed where a command hands its settings to the loader and its request to the
model. Their effects are tested in the rooms of the loader and the model.
"""

from __future__ import annotations

import ast
import inspect
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock, patch

import click
import pytest
from cli_program import commands, edgespec_here
from fake_engine import FakeEngine
from option_fields import LANDS, field

from edgespec.cli.options.command import Command
from edgespec.core.sampling import SamplingSettings
from edgespec.llama.devices import listing
from edgespec.llm.info import ModelInfo
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings, Message, Request


class Reached(BaseException):
    """A command has reached the code that acts on its settings."""

    def __init__(self, **seen: Any) -> None:
        super().__init__()
        self.seen = seen | {
            "offline": os.environ.get("HF_HUB_OFFLINE") == "1",
            "level": logging.getLogger("edgespec").level,
        }


ALL = dict(commands())
OPTIONS = {
    (name, str(param.name)): param
    for name, command in ALL.items()
    for param in command.params
    if isinstance(param, click.Option)
}


# --- settings of models and requests ----------------------------------------------------------------------------------


class Loaded:
    """A model that is asked only whether a request is possible."""

    info = ModelInfo("demo")

    def __init__(self, settings: LoadSettings, *args: Any) -> None:
        self.settings = settings

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def check_settings(self, request: Request) -> None:
        raise Reached(load=self.settings, request=request)


def loads(settings: LoadSettings, *args: Any) -> None:
    raise Reached(load=settings)


def tunes(settings: LoadSettings, sampling: SamplingSettings, *args: Any, **more: Any) -> None:
    raise Reached(load=settings, request=Request(sampling=sampling))


def talks(settings: LoadSettings, *args: Any) -> FakeEngine:
    """A model of a chat."""

    class Engine(FakeEngine):
        def submit(self, request: Any, cancel: Any = None) -> Any:
            raise Reached(load=settings, request=request)

    return Engine("hello", settings=settings)


def serves(call: Any, sock: Any, models: Any, page: Any) -> None:
    offer = next(iter(models.named.values()))
    chat = (Message("system", offer.system), Message("user", "hello"))
    raise Reached(load=offer.settings, request=replace(offer.defaults, messages=chat, seed=offer.seed or 0))


class Answering:
    """The job of a batch, which has one row."""

    def __init__(self, llm: Any, rows: Iterator[Any], *args: Any, **more: Any) -> None:
        raise Reached(load=llm.settings, request=next(rows).request)


def opens(settings: LoadSettings, asked: Request, output: Any, cancel: Any) -> Any:
    return MagicMock(__enter__=lambda model: model, settings=settings)


# Of each command: what takes its settings, by the place where it finds that, and how it is called.
SEAMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "run": ({"edgespec.runtime.runtime.Runtime": Loaded}, ["--chat", "hello"]),
    "chat": ({"edgespec.runtime.worker.Worker": talks}, ["hello"]),
    "serve": ({"edgespec.cli.commands.serve._run": serves}, ["--port", "0"]),
    "batch": (
        {"edgespec.cli.commands.batch.open_model": opens, "edgespec.cli.commands.batch.Job": Answering},
        ["rows.jsonl"],
    ),
    "bench": ({"edgespec.runtime.runtime.Runtime": loads}, []),
    "tune": ({"edgespec.bench.tune.tune": tunes}, []),
    "compare": ({"edgespec.bench.comparison.run_comparison": lambda plan, *rest: loads(plan.settings)}, ["demo"]),
    "perplexity": ({"edgespec.bench.quality.opened": lambda path, settings, *rest: loads(settings)}, []),
}


def reached(command: str, args: list[str], home: Path) -> Mapping[str, Any]:
    """Return what a command hands over."""
    seams, always = SEAMS[command]
    home.mkdir(exist_ok=True)
    (home / "rows.jsonl").write_text('{"prompt": "hello"}\n')
    (home / "a.jinja").write_text("{{ messages }}")
    for adapter in ("a.gguf", "b.gguf"):
        (home / adapter).symlink_to(resolve("demo").path)
    with ExitStack() as stack:
        for place, stand_in in seams.items():
            stack.enter_context(patch(place, stand_in))
        reaches = stack.enter_context(pytest.raises(Reached))
        done = edgespec_here(command, *args, *always, home=home)
        pytest.fail(f"{command} ended with {done}")
    return reaches.value.seen


HANDED = {name for name, *_ in LANDS}
"""The options for models and requests."""
APART = {"grammar", "regex", "cpu_moe", "strict", "spec_type", "chat_template_file"}
"""Options that exclude others: each is tried alone."""
CHECKED: dict[str, tuple[list[str], Any]] = {
    "model": (["-m", "demo"], "demo"),
    "draft_model": (["-md", "demo:draft"], "demo:draft"),
}
"""Values for options whose files are looked for before a model is loaded."""
TAKEN_OVER = {
    "tune": {"spec_type"},
    "compare": {"draft_model"},
    "batch": {"seed"},
    "perplexity": {"ctx_size"},
}
"""Options that mean something else in a command than the field of their name: other tests observe them."""


def handed(command: str) -> dict[str, tuple[list[str], str, Any]]:
    """Return the options for models and requests of a command: what is typed, the field and its value there."""
    names = {name for of, name in OPTIONS if of == command} - TAKEN_OVER.get(command, set())
    found = {name: (args, target, value) for name, args, target, value in reversed(LANDS) if name in names}
    return {
        name: (CHECKED.get(name, (args, value))[0], target, CHECKED.get(name, (args, value))[1])
        for name, (args, target, value) in found.items()
    }


def groups() -> Iterator[tuple[str, list[str]]]:
    """Yield the options of each command that can be tried together."""
    for command in SEAMS:
        names = list(handed(command))
        yield command, [name for name in names if name not in APART]
        yield from ((command, [name]) for name in names if name in APART)


@pytest.mark.parametrize(("command", "names"), list(groups()))
def test_an_option_reaches_the_loader_or_the_model(command: str, names: list[str], tmp_path: Path) -> None:
    options = handed(command)
    more = ["--json"] * (command == "run" and "logprobs" in names)
    seen = reached(command, [*more, *(arg for name in names for arg in options[name][0])], tmp_path)
    for name in names:
        _, target, value = options[name]
        assert (name, field(seen, target)) == (name, value)


ANYWHERE = {"quiet", "verbose", "offline"}
"""Options on which the class of the commands, or the option itself, acts."""


# --- options that many commands have ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", SEAMS)
def test_quiet_verbose_and_offline_hold_for_the_whole_command(command: str, tmp_path: Path) -> None:
    levels = [reached(command, args, tmp_path / args[0])["level"] for args in (["-q"], ["-v"])]
    assert levels == [logging.ERROR, logging.DEBUG]
    assert not reached(command, ["-v"], tmp_path / "with")["offline"]
    assert reached(command, ["--offline"], tmp_path / "without")["offline"]


@pytest.mark.parametrize("command", [command for command, name in OPTIONS if name == "list_devices"])
def test_devices_are_listed_by_each_command_that_uses_them(command: str, tmp_path: Path) -> None:
    done = edgespec_here(*command.split(), "--list-devices", home=tmp_path)
    assert (done.returncode, done.stdout.decode()) == (0, f"{listing()}\n")


@pytest.mark.parametrize("command", [command for command, name in OPTIONS if name == "help_all"])
def test_all_options_are_shown_on_request(command: str, tmp_path: Path) -> None:
    text = edgespec_here(*command.split(), "--help-all", home=tmp_path).stdout.decode()
    names = {max(param.opts, key=len) for (of, _), param in OPTIONS.items() if of == command and not param.hidden}
    assert {name for name in names if name not in text} == set()


# --- options of one command -------------------------------------------------------------------------------------------


def served(args: list[str], home: Path) -> dict[str, Any]:
    """Return what `serve` hands to the server, the pool of models and its file for other commands."""
    seen: dict[str, Any] = {}

    def pool(named: Any, look: Any, note: Any, tell: Any, **limits: Any) -> Mock:
        first = named[0]
        seen.update(limits, idle_s=first.idle_s, sequences=first.settings.sequences, seed=first.seed)
        return Mock()

    def app(open_pool: Callable[[], Any], rules: Any, show: Callable[[Mapping[str, Any]], None], page: Any) -> None:
        open_pool()
        seen["page"] = bool(page)
        seen.update({name: getattr(rules, name) for name in ("api_key", "hosts", "origins")})
        show({"event": "unloaded", "model": "demo", "why": "shown"})

    def presence(url: str, key: str, keep_s: float | None, end: Any) -> MagicMock:
        host, _, seen["port"] = url.rpartition(":")
        seen.update(host=host, keep_alive=keep_s)
        return MagicMock()

    def offers(named: Any, another: Any) -> dict[str, Any]:
        seen["others"] = another is not None
        return {}

    stand_ins: dict[str, Any] = {
        "edgespec.serve.offers.offers_here": offers,
        "edgespec.cli.commands.serve.open_worker": MagicMock(),
        "edgespec.cli.commands.serve.Presence": presence,
        "edgespec.serve.pool.Pool": pool,
        "edgespec.serve.app.make_app": app,
        "edgespec.serve.http.uvicorn_server": MagicMock(side_effect=Reached),
    }
    home.mkdir()
    with ExitStack() as stack:
        for place, stand_in in stand_ins.items():
            stack.enter_context(patch(place, stand_in))
        streams = stack.enter_context(patch("edgespec.cli.terminal.output.Output.json"))
        stack.enter_context(pytest.raises(Reached))
        pytest.fail(
            str(
                edgespec_here("serve", "-m", "demo", *(args if "--port" in args else ["--port", "0", *args]), home=home)
            )
        )
    return seen | {"as_json": streams.called}


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


OF_SERVE: dict[str, tuple[list[str], str, Any]] = {
    "host": (["--host", "127.0.0.2"], "host", "http://127.0.0.2"),
    "port": (["--port", port := free_port()], "port", port),
    "api_key": (["--api-key", "key"], "api_key", "key"),
    "hosts": (["--allow-host", "box.local"], "hosts", ("box.local",)),
    "origins": (["--cors", "https://example.org"], "origins", ("https://example.org",)),
    "models_max": (["--models-max", "2"], "max_loaded", 2),
    "idle_unload": (["--idle-unload", "3"], "idle_s", 180.0),
    "keep_alive": (["--keep-alive", "5m"], "keep_alive", 300.0),
    "only": (["--only"], "others", False),
    "parallel": (["--parallel", "3"], "sequences", 3),
    "page": (["--no-page"], "page", False),
    "queue": (["--queue", "7"], "max_waiting", 7),
    "as_json": (["--json"], "as_json", True),
    "seed": (["--seed", "11"], "seed", 11),
}


def test_options_of_serve_reach_the_server(tmp_path: Path) -> None:
    assert set(OF_SERVE) == {name for of, name in OPTIONS if of == "serve"} - HANDED - ANYWHERE - {
        "yes",
        "list_devices",
        "help_all",
        "opens",  # tests/page/test_page_program.py tests these two
        "mcp_config",
    } | {"seed"}
    before = served([], tmp_path / "without")
    typed = [arg for name, (args, *_) in OF_SERVE.items() if name != "idle_unload" for arg in args]
    after = served(typed, tmp_path / "with") | {"idle_s": served(["--idle-unload", "3"], tmp_path / "idle")["idle_s"]}
    for name, (_, where, value) in OF_SERVE.items():
        assert (name, after[where], before[where] != value) == (name, value, True)


def functions_of(file: Path) -> Iterator[ast.FunctionDef]:
    """Yield the functions in a file, without their decorators."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            yield node


def is_of_options(node: ast.Attribute) -> bool:
    """Return whether a field of `options` is read, or one of its settings: `call.options.load.spec_type`."""
    value = node.value
    while isinstance(value, ast.Attribute) and value.attr != "options":
        value = value.value
    return isinstance(value, ast.Attribute) or (isinstance(value, ast.Name) and value.id == "options")


@pytest.mark.slow
def test_each_other_option_is_used_by_its_command() -> None:
    """Some commands take their options as parameters. Others read fields of their options."""
    dead = []
    for command, function in ALL.items():
        if function.callback is None:
            continue
        own = functions_of(Path(inspect.getfile(inspect.unwrap(function.callback))))
        if isinstance(function, Command):
            nodes = [node for each in own for node in ast.walk(each)]
            used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and is_of_options(node)}
        else:
            name = function.callback.__name__
            nodes = [node for each in own if each.name == name for node in ast.walk(each)]
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
        settings = handed(command).keys() if command in SEAMS else set()
        names = {name for of, name in OPTIONS if of == command} - settings - {"list_devices", "help_all"}
        dead += [(command, name) for name in names - used - (ANYWHERE if isinstance(function, Command) else set())]
    assert dead == []
