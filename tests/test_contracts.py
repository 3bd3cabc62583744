"""Who may import what: the layers of the package, and what starting it must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"llama_cpp", "textual", "huggingface_hub", "gguf", "numpy", "jinja2", "rich"}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by the name it is imported as, and its source."""
    for folder, package in (("edgespec", "edgespec"), ("models", "edgespec.models"), ("tui", "edgespec.tui")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            yield ".".join(parts).removesuffix(".__init__"), path


SOURCES = dict(modules())


def imports(name: str) -> set[str]:
    """The absolute names of what a module imports, anywhere in its source: also in functions and for types only."""
    package = name if SOURCES[name].name == "__init__.py" else name.rpartition(".")[0]
    return imported_names(SOURCES[name], package)


def imported_names(path: Path, package: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            start = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # `from edgespec import cli` imports edgespec.cli
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in SOURCES else base for alias in node.names}
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def ours(name: str) -> set[str]:
    return {target for target in imports(name) if within(target, "edgespec")}


def third_party(name: str) -> set[str]:
    top_level = {target.partition(".")[0] for target in imports(name)}
    return top_level - set(sys.stdlib_module_names) - {"edgespec"}


def in_package(*packages: str) -> list[str]:
    return [name for name in SOURCES if within(name, *packages)]


@pytest.mark.parametrize("name", in_package("edgespec.core"))
def test_core_is_numpy_alone(name: str) -> None:
    assert third_party(name) <= {"numpy"}
    assert {target for target in ours(name) if not within(target, "edgespec.core")} == set()


@pytest.mark.parametrize("name", in_package("edgespec.drafters"))
def test_drafters_know_core_and_only_the_draft_model_knows_llama(name: str) -> None:
    allowed = ["edgespec.core", "edgespec.drafters"]
    if name == "edgespec.drafters.model":
        allowed.append("edgespec.llama")
    assert third_party(name) <= {"numpy"}
    assert {target for target in ours(name) if not within(target, *allowed)} == set()


@pytest.mark.parametrize("name", in_package("edgespec.llama"))
def test_llama_knows_nothing_of_speculation(name: str) -> None:
    above = ["edgespec.drafters", "edgespec.engine.engine", "edgespec.runtime.runtime", "edgespec.models"]
    assert {target for target in ours(name) if within(target, *above)} == set()


@pytest.mark.parametrize("name", [name for name in SOURCES if not within(name, "edgespec.llama")])
def test_only_the_llama_package_touches_llama_cpp(name: str) -> None:
    assert "llama_cpp" not in third_party(name)


@pytest.mark.parametrize("name", [name for name in SOURCES if not within(name, "edgespec.cli", "edgespec.__main__")])
def test_nothing_below_reaches_up_to_the_interfaces(name: str) -> None:
    assert {target for target in ours(name) if within(target, "edgespec.cli")} == set()
    if not within(name, "edgespec.tui"):
        assert {target for target in ours(name) if within(target, "edgespec.tui")} == set()


@pytest.mark.parametrize(
    "path", [*SOURCES.values(), *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda path: str(path.relative_to(ROOT))
)
def test_models_and_tui_are_never_imported_by_the_names_of_their_folders(path: Path) -> None:
    top_level = {target.partition(".")[0] for target in imported_names(path, "")}
    assert top_level.isdisjoint({"models", "tui"})


@pytest.mark.parametrize(
    "code",
    [
        "import edgespec",
        "import edgespec.cli",
        "from edgespec.cli import main; main(['--help'])",
        "from edgespec.cli import main; main(['--version'])",
    ],
)
def test_starting_loads_nothing_heavy(code: str) -> None:
    assert loaded_after(code) & HEAVY == set()


def test_core_loads_numpy_alone() -> None:
    code = f"import {', '.join(in_package('edgespec.core'))}"
    assert loaded_after(code) - loaded_after("import edgespec") == {"numpy"}
    assert not [name for name in loaded_after(code, whole_names=True) if within(name, "edgespec.llama")]


def loaded_after(code: str, whole_names: bool = False) -> set[str]:
    """Third-party packages, or all modules, that a fresh interpreter holds after `code`."""
    program = f"import sys\n{code}\nprint('\\nloaded:', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8", check=True)
    names = set(run.stdout.rpartition("\nloaded:")[2].split())
    return names if whole_names else {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
