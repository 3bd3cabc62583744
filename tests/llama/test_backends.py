"""A portable build of llama.cpp loads the best of its CPU backends. The libraries here are stand-ins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.errors import EdgespecError, UsageError
from edgespec.llama import backends
from edgespec.llama.backends import VARIANT, load_backends, variant_name

SCORES = {"x64": 1, "haswell": 64, "zen9": 0}  # zen9 is a variant that this processor cannot run
BACKENDS = ["libggml-rpc.so", *(f"libggml-cpu-{variant}.so" for variant in SCORES)]  # a backend's address is its place


class Function:
    """A function of a library, with a type that can be set."""

    restype: Any = None

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Ggml:
    """The part of libggml that registers backends; `inside` are those linked into the build."""

    def __init__(self, inside: int) -> None:
        self.registered: list[str] = []
        self.ggml_backend_reg_count = Function(lambda: inside)
        self.ggml_backend_register = Function(lambda backend: self.registered.append(BACKENDS[backend.value - 1]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with three variants, the RPC backend, a GPU backend without its driver, and no backend."""
    monkeypatch.delenv(VARIANT, raising=False)
    for name in (*BACKENDS, "libggml-base.so", "libggml-vulkan.so"):
        (tmp_path / name).touch()

    def opened(path: str) -> SimpleNamespace:
        name = Path(path).name
        if name == "libggml-vulkan.so":
            raise OSError("libvulkan.so.1: cannot open shared object file")
        if Path(path).read_text() == "half":
            raise OSError(f"{path}: file too short")
        library = SimpleNamespace(ggml_backend_score=lambda: SCORES[variant_name(Path(path))])
        if name in BACKENDS:
            is_empty = Path(path).read_text() == "broken"
            library.ggml_backend_init = Function(lambda: None if is_empty else 1 + BACKENDS.index(name))
        return library

    monkeypatch.setattr("edgespec.llama.backends.ctypes.CDLL", opened)
    return tmp_path


def load(folder: Path, monkeypatch: pytest.MonkeyPatch, *, inside: int = 0) -> tuple[Path | None, list[str]]:
    ggml = Ggml(inside)
    monkeypatch.setattr(backends, "libggml", ggml)
    return load_backends(folder), ggml.registered


def test_the_best_variant_and_all_other_backends_are_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, loaded = load(folder, monkeypatch)
    assert chosen == folder / "libggml-cpu-haswell.so"
    assert loaded == ["libggml-rpc.so", "libggml-cpu-haswell.so"]


def test_a_variant_can_be_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIANT, "x64")
    assert load(folder, monkeypatch)[0] == folder / "libggml-cpu-x64.so"


@pytest.mark.parametrize(("text", "why"), [("broken", "haswell.so"), ("half", "haswell.so: file too short")])
def test_a_damaged_variant_is_an_error(text: str, why: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "libggml-cpu-haswell.so").write_text(text)
    with pytest.raises(EdgespecError, match=rf"a part of llama.cpp cannot be loaded: .*libggml-cpu-{why}\n"):
        load(folder, monkeypatch)


@pytest.mark.parametrize(
    ("wanted", "why"), [("zen9", "this processor cannot run it"), ("z80", "there is no such variant")]
)
def test_a_variant_that_cannot_run_is_an_error(
    folder: Path, wanted: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIANT, wanted)
    with pytest.raises(UsageError, match=f"(?s){wanted}: {why}.*x64, haswell"):
        load(folder, monkeypatch)


def test_a_processor_that_no_variant_supports_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x64", "haswell"):
        (folder / f"libggml-cpu-{name}.so").unlink()
    with pytest.raises(UsageError, match="none of the CPU variants"):
        load(folder, monkeypatch)


def test_a_build_with_its_backends_inside_loads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(folder, monkeypatch, inside=1) == (None, [])
    assert load(folder / "none", monkeypatch) == (None, [])
