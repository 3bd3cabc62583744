"""The layers of the package and their imports, and the libraries that a start must not load."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from loaded import loaded_after

ROOT = Path(__file__).resolve().parent.parent

# Data and small tools, which all rooms may use
PLAIN = "cancel closable errors events extras plugins settings validation"
ROOMS = {  # in the order of their floors, with their other imports; docs/design.md has a picture
    "errors": "",
    "extras": "",
    "plugins": "",
    "cancel": "",
    "closable": "",
    "text": "",
    "files": "text",
    "core": "",
    "drafters": "core",
    "events": "core text",
    "settings": "core drafters",
    "validation": "core drafters",
    "processes": "",
    "llm": "core text",
    "gguf_file": "drafters files",
    "documents": "processes text",
    "llama": "core files gguf_file processes text",
    "datastore": "core files gguf_file llama text",
    "dialects": "llama text",
    "tools": "dialects files gguf_file llm processes text",
    "engine": "core drafters files llama",
    "models": "core drafters files gguf_file llama text",
    "requests": "core documents files text",
    "batch": "core files llm requests text",
    "runtime": "batch core datastore dialects drafters engine files gguf_file llama llm models text",
    "remote": "core files llm runtime text",
    "edgespec": "core llm remote runtime",
    "history": "files text",
    "bench": "core drafters edgespec files gguf_file llama models runtime text",
    "training": "bench core datastore drafters files gguf_file llama runtime text",
    "cluster": "gguf_file llama llm models runtime",
    "serve": "core dialects edgespec files gguf_file llm models requests runtime text",
    "chat": "core dialects documents files gguf_file history llama llm models processes runtime text tools",
    "page": "chat core documents edgespec files gguf_file history llm models requests serve text tools",
    "tui": "chat core documents drafters files gguf_file history models text tools",
    "cli": "batch bench chat cluster core datastore dialects documents drafters edgespec engine files gguf_file history"
    " llama llm models page remote requests runtime serve text tools training tui",
}
HEAVY = {
    "torch",
    "llama_cpp",
    "textual",
    "huggingface_hub",
    "gguf",
    "numpy",
    "jinja2",
    "rich",
    "starlette",
    "uvicorn",
    "ray",
    "mcp",
    "pydantic",
} | {"httpx2", "pypdf", "mammoth", "bs4", "markdownify", "justhtml"}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by the name it is imported as, and its source."""
    for folder, package in (("edgespec", "edgespec"), ("models", "edgespec.models"), ("tui", "edgespec.tui")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            yield ".".join(parts).removesuffix(".__init__"), path


SOURCES = dict(modules())


def imports(name: str, at_start: bool = False) -> frozenset[str]:
    """The absolute names of what a module imports, anywhere in its source: also in functions and for types only;
    or only `at_start`, when it is loaded."""
    package = name if SOURCES[name].name == "__init__.py" else name.rpartition(".")[0]
    return imported_names(SOURCES[name], package, at_start)


def imported_names(path: Path, package: str, at_start: bool = False) -> frozenset[str]:
    found: set[str] = set()
    for node, is_at_start in import_statements(path):
        if at_start and not is_at_start:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            parts = package.split(".")
            start = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # `from edgespec import cli` imports edgespec.cli
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in SOURCES else base for alias in node.names}
    return frozenset(found)


@cache
def import_statements(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import, and whether it runs when the module is loaded: not in a function, not for types only."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), True)]
    while todo:
        parent, at_start = todo.pop()
        for node in ast.iter_child_nodes(parent):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.append((node, at_start))
            elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                todo.append((node, at_start and not is_function and not for_types))
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def ours(name: str, at_start: bool = False) -> set[str]:
    return {target for target in imports(name, at_start) if within(target, "edgespec")}


def room_of(name: str) -> str:
    """The folder or the plain module a module is in; `edgespec` for the package itself, which loads runtimes."""
    parts = name.split(".")
    return {"__main__": "cli"}.get(parts[1], parts[1]) if len(parts) > 1 else "edgespec"


def arrows_from(room: str) -> set[tuple[str, str]]:
    """The modules of a room, each with every room it imports from."""
    return {(name, room_of(target)) for name in SOURCES if room_of(name) == room for target in ours(name)}


def third_party(name: str) -> set[str]:
    top_level = {target.partition(".")[0] for target in imports(name)}
    return top_level - set(sys.stdlib_module_names) - {"edgespec"}


def in_package(*packages: str) -> list[str]:
    return [name for name in SOURCES if within(name, *packages)]


@pytest.mark.parametrize("room", sorted({room_of(name) for name in SOURCES}))
def test_a_room_imports_what_it_may_and_may_no_more(room: str) -> None:
    below = [*ROOMS][: [*ROOMS].index(room)]
    allowed, plain = {*ROOMS[room].split()}, {room, *(name for name in PLAIN.split() if name in below)}
    stray = {(name, above) for name, above in arrows_from(room) if above not in allowed | plain}
    assert stray == set()
    assert allowed - {above for _, above in arrows_from(room)} == set()  # which nobody uses


def test_a_room_is_on_the_floor_above_those_that_it_imports() -> None:
    order = {room: floor for floor, room in enumerate(ROOMS)}
    assert [
        (room, each) for room, others in ROOMS.items() for each in others.split() if order[each] > order[room]
    ] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions and for types count, too."""
    graph = {name: ours(name) & set(SOURCES) - {name} for name in SOURCES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_core_and_drafters_need_numpy_alone() -> None:
    needed = {name: third_party(name) for name in in_package("edgespec.core", "edgespec.drafters")}
    assert {name: packages for name, packages in needed.items() if not packages <= {"numpy"}} == {}


def test_only_the_llama_package_touches_llama_cpp() -> None:
    users = {name for name in SOURCES if "llama_cpp" in third_party(name)}
    assert {name for name in users if not within(name, "edgespec.llama")} == set()


@pytest.mark.slow
def test_models_and_tui_are_never_imported_by_the_names_of_their_folders() -> None:
    def top_level(path: Path) -> set[str]:
        return {target.partition(".")[0] for target in imported_names(path, "")}

    paths = [*SOURCES.values(), *(ROOT / "tests").rglob("*.py")]
    assert [path for path in paths if not top_level(path).isdisjoint({"models", "tui"})] == []


@pytest.mark.parametrize(
    "code",
    [
        "import edgespec",
        "import edgespec.cli",
        "from edgespec.cli import main; main(['--help'])",
    ],
)
def test_starting_loads_nothing_heavy(code: str) -> None:
    assert loaded_after(code) & HEAVY == set()


def test_the_version_loads_only_the_library_that_it_describes() -> None:
    loaded = loaded_after("from edgespec.cli import main; main(['--version'])") & HEAVY
    assert loaded <= {"llama_cpp", "numpy", "jinja2"}  # the binding imports the other two


@pytest.mark.parametrize("name", [name for name in SOURCES if not within(name, "edgespec.training")])
def test_only_the_training_room_touches_pytorch(name: str) -> None:
    assert "torch" not in third_party(name)


def test_only_one_module_touches_ray() -> None:
    source = {name: path.read_text(encoding="utf-8") for name, path in SOURCES.items()}
    assert {name for name in SOURCES if '"ray"' in source[name] or "ray" in third_party(name)} == {
        "edgespec.cluster.library"
    }


def test_only_the_process_of_a_tool_server_touches_mcp() -> None:
    users = {name for name in SOURCES if {"mcp", "mcp_types"} & third_party(name)}
    assert users == {"edgespec.tools.host"}


def test_pytorch_is_loaded_when_training_begins() -> None:
    assert "torch" not in loaded_after("import edgespec.training.pipeline")


def test_core_loads_numpy_alone() -> None:
    code = f"import {', '.join(in_package('edgespec.core'))}"
    assert loaded_after(code) - loaded_after("import edgespec") == {"numpy"}
    assert not [name for name in loaded_after(code, whole_names=True) if within(name, "edgespec.llama")]
