"""The tests that load a model, and those that start a program: found in what they call, so that they need no marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

CALLS = {
    "edgespec.runtime.runtime.load": "native",
    "edgespec.llama.model.LlamaModel": "native",
    "edgespec.llama.quantize.quantize": "native",
    "edgespec.bench.comparison.run_comparison": "native",
    "edgespec.bench.targets.make_quant": "native",
    "edgespec.runtime.runtime.Runtime": "native",
    "edgespec.runtime.worker.Worker": "native",
    "edgespec.runtime.embedding_runtime.EmbeddingRuntime": "native",
    "fake_index.FakeIndex": "native",  # the model that it offers is converted
    "cli_program.environment": "cli",
    "cli_program.edgespec": "cli",
    "cli_program.edgespec_changed": "cli",
    "cli_program.edgespec_here": "cli",
    "cli_program.edgespec_alone": "native",
    "terminal.at_terminal": "cli",
    "click.testing.CliRunner": "cli",
    "subprocess.run": "cli",
    "subprocess.Popen": "cli",
    "edgespec.llama.compiler.Compiler": "cli",
    "edgespec.llama.compiler.quick_compiler": "cli",
    "edgespec.llama.grammar.Grammars": "cli",
    "edgespec.llama.rendering.Renderer": "cli",
    "edgespec.documents.reader.DocumentReader": "cli",
    "edgespec.documents.reader.read_file": "cli",
}


ROOT = Path(__file__).parents[2]
HELPERS = {path.stem for folder in ("tests/support", "scripts", "scripts/lab") for path in (ROOT / folder).glob("*.py")}


@cache
def markers(test: Callable[..., Any]) -> frozenset[str]:
    """The markers of what a test calls, and of what its fixtures and helpers call for it."""
    found: set[str] = set()
    seen: set[Any] = set()
    todo: list[Any] = [test]
    while todo:
        function = unwrap(todo.pop())
        if hasattr(function, "hypothesis"):
            function = function.hypothesis.inner_test
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        for thing in mentioned(function):
            module = getattr(thing, "__module__", None) or ""
            name = f"{module}.{getattr(thing, '__qualname__', '')}"
            if name in CALLS:
                found.add(CALLS[name])
            elif module.startswith("tests.") or module in HELPERS:
                todo += filter(callable, vars(thing).values()) if isinstance(thing, type) else [thing]
    return frozenset(found)


def mentioned(function: FunctionType) -> Iterator[Any]:
    """The things that the names in a function mean, also in modules that it names; fixtures are its parameters."""
    names = set(names_in(function.__code__))
    for name in names:
        thing = function.__globals__.get(name)
        if isinstance(thing, ModuleType):
            known = {*vars(thing), *getattr(thing, "__all__", ())}  # `edgespec` imports its names at their first use
            yield from (getattr(thing, name) for name in names & known)
        else:
            yield thing


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
