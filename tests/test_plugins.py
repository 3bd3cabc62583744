"""Parts that other packages add: those of the example package, and ones that cannot be used."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from serving import serving

import edgespec
from edgespec import plugins
from edgespec.cli.commands import edgespec as program
from edgespec.drafters.registry import REGISTRY, Entry, Registry
from edgespec.errors import UsageError
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings
from edgespec.validation import check_spec_type

EXAMPLE = Path(__file__).resolve().parent.parent / "scripts" / "lab" / "example_plugin"
PROMPT = "for i in range(3): print(i); print(i); print(i); print(i);"

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install packages with these entry points, given as group and "name = module:object"."""

    def installed(*parts: tuple[str, str]) -> None:
        split = [(group, *part.split(" = ")) for group, part in parts]
        points = [EntryPoint(name, value, group) for group, name, value in split]
        monkeypatch.setattr(plugins, "added", lambda group: {each.name: each for each in points if each.group == group})
        monkeypatch.setattr(plugins, "package_of", lambda group, name: "edgespec-example")
        REGISTRY.__dict__.pop("_others", None)

    yield installed
    REGISTRY.__dict__.pop("_others", None)


@pytest.fixture
def example(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    tables = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    install(*((group, f"{name} = {value}") for group, table in tables.items() for name, value in table.items()))


@pytest.mark.usefixtures("example")
def test_a_drafter_of_a_package_drafts_and_texts_stay() -> None:
    settings: dict[str, Any] = {"ctx_size": 512, "store": False}
    with edgespec.load("demo", spec_type="none", **settings) as llm:
        plain = llm.complete(PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
    with edgespec.load("demo", spec_type="period", pace="fixed:4", **settings) as llm:
        assert llm.info.drafters == ("period",)
        answer = llm.complete(PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
    assert answer.text == plain.text
    assert answer.stats.accepted > 0
    with edgespec.load("demo", spec_type="auto", **settings) as llm:
        assert "period" in llm.info.drafters


@pytest.mark.usefixtures("example")
def test_a_drafter_of_a_package_is_in_the_help_of_its_option() -> None:
    shown = " ".join(CliRunner().invoke(program, ["run", "--help"]).output.split())
    assert f"period: {REGISTRY['period'].help} (of the package edgespec-example)." in shown
    assert shown.count("period: ") == 1


@pytest.mark.usefixtures("example")
def test_a_command_of_a_package_runs_and_is_listed() -> None:
    done = CliRunner().invoke(program, ["pieces", "demo", "Hi"])
    assert done.exit_code == 0 and "b'H" in done.output
    assert "Commands of other packages:\n  pieces  edgespec-example\n" in CliRunner().invoke(program, ["--help"]).output


@pytest.mark.usefixtures("example")
def test_a_format_of_a_package_answers() -> None:
    with Worker(LoadSettings("demo", threads=1, store=False)) as worker, serving(worker) as server:
        body = {"ask": "What is a loop?", "max_tokens": 12, "temperature": 0, "seed": 1}
        whole = server.posted("/plain", body)["answer"]
        assert whole
        with httpx2.stream("POST", f"{server.url}/plain", json=body | {"stream": True}) as response:
            parts = [line for line in response.iter_lines() if '"part"' in line]
        assert len(parts) > 1
        bodies: list[dict[str, Any]] = [{"ask": 3}, {"ask": ""}, {"messages": []}]
        for odd in bodies:
            error = server.posted("/plain", odd, 400)["error"]
            assert error["param"] == "ask" and error["message"].startswith("ask must be a question")


def test_a_part_that_cannot_be_used_is_named_and_the_rest_works(install: Install, caplog: Any) -> None:
    install(
        (plugins.DRAFTERS, "odd = no_such_module:ENTRY"),
        (plugins.DRAFTERS, "suffix = no_such_module:ENTRY"),  # edgespec's own comes first
        (plugins.COMMANDS, "odd = builtins:len"),
        (plugins.FORMATS, "odd = builtins:len"),
    )
    assert "odd" not in [*REGISTRY]
    assert "'odd' of the package edgespec-example cannot be used: ModuleNotFoundError" in caplog.text
    with pytest.raises(UsageError, match="cannot be used: ModuleNotFoundError") as raised:
        check_spec_type("odd")
    assert raised.value.hint == "update or uninstall the package"
    with pytest.raises(UsageError, match="unknown drafter 'other'"):
        check_spec_type("other")
    check_spec_type("suffix")
    done = CliRunner().invoke(program, ["odd"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.why == "it is a builtin_function_or_method, not a Command"
    with Worker(LoadSettings("demo", threads=1, store=False)) as worker, serving(worker) as server:
        assert server.posted("/v1/completions", {"prompt": "a", "max_tokens": 1})["choices"]


def test_a_drafter_that_cannot_be_made_is_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auto` the others draft."""
    module = ModuleType("odd_drafter")
    module.ENTRY = Entry("odd", "nothing", make=lambda parts: 1 / 0)  # type: ignore[attr-defined, arg-type, return-value]
    monkeypatch.setitem(sys.modules, "odd_drafter", module)
    install((plugins.DRAFTERS, "odd = odd_drafter:ENTRY"))
    with pytest.raises(UsageError, match="'odd' of the package edgespec-example cannot be used: ZeroDivisionError"):
        edgespec.load("demo", spec_type="odd,suffix", store=False)
    with edgespec.load("demo", store=False) as llm:
        assert "odd" not in llm.info.drafters and any("ZeroDivisionError" in note for note in llm.notes)


def test_nothing_is_looked_for_while_edgespecs_own_parts_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "added", lambda group: pytest.fail(f"{group} is looked for"))
    registry = Registry(REGISTRY.own)
    assert registry["suffix"].name == "suffix"
    assert program.get_command(None, "run") is not None  # type: ignore[arg-type]
    assert sys.modules["edgespec.settings"]
