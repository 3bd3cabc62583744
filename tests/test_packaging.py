"""The wheel: it holds every file of the package, from all three folders, and works away from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"edgespec": "edgespec", "models": "edgespec/models", "tui": "edgespec/tui"}  # in the tree: in the wheel


def files_of_the_tree() -> dict[str, Path]:
    """Every file that belongs to the package, by its name in the wheel."""
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, installed in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def module_names() -> list[str]:
    sources = [name.removesuffix(".py") for name in files_of_the_tree() if name.endswith(".py")]
    sources = [name.removesuffix("/__init__") for name in sources]
    return sorted(name.replace("/", ".") for name in sources if not name.endswith("__main__"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder appears in the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"import setuptools.build_meta as backend; backend.build_wheel({str(out)!r})"  # as pip does, in its process
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_the_list_of_packages_is_the_tree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    in_tree = {name.rpartition("/")[0].replace("/", ".") for name in files_of_the_tree() if name.endswith(".py")}
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(in_tree)


def test_the_version_is_said_once_in_each_place() -> None:
    import edgespec

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == edgespec.__version__
    for page in ("README.md", "docs/install.md"):
        assert f"/v{edgespec.__version__}\n" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_the_bundled_models(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist() if ".dist-info/" not in entry.filename}
    assert sizes.keys() == files_of_the_tree().keys()
    models = {name: size for name, size in sizes.items() if name.endswith(".gguf")}
    assert {"edgespec/models/demo/target.gguf", "edgespec/models/demo/draft.gguf"} <= models.keys()
    assert sum(models.values()) <= 36_000_000


@pytest.mark.long
@pytest.mark.slow
def test_installed_elsewhere_every_module_imports_from_there(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:  # what pip does with a wheel of Python files
        archive.extractall(site)
    has_torch = find_spec("torch") is not None
    names = [name for name in module_names() if has_torch or not name.startswith("edgespec.training.")]
    program = (
        "import importlib, pathlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    print(pathlib.Path(importlib.import_module(name).__file__).resolve())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *names],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=True,
    )
    origins = run.stdout.splitlines()
    assert len(origins) == len(names)
    assert [origin for origin in origins if not Path(origin).is_relative_to(site.resolve())] == []
