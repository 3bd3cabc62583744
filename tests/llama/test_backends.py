"""A portable build of llama.cpp loads the best of its CPU backends. The libraries here are stand-ins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.errors import UsageError
from edgespec.llama import backends
from edgespec.llama.backends import VARIANT, load_backends, variant_name


class Ggml:
    """The part of libggml that loads backends; `registered` are those inside the build."""

    def __init__(self, registered: int) -> None:
        self.loaded: list[str] = []
        self.ggml_backend_reg_count: Any = lambda: registered
        self.ggml_backend_load: Any = lambda path: self.loaded.append(Path(path.decode()).name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, _Callable(value) if callable(value) else value)


class _Callable:
    def __init__(self, function: Any) -> None:
        self.function, self.restype = function, None

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with three variants, the last of which this processor cannot run, and two other libraries."""
    scores = {"x64": 1, "haswell": 64, "zen9": 0}
    monkeypatch.delenv(VARIANT, raising=False)
    for name in (*(f"cpu-{variant}" for variant in scores), "rpc", "base"):
        (tmp_path / f"libggml-{name}.so").touch()

    def opened(path: str) -> SimpleNamespace:
        score = scores.get(variant_name(Path(path)), 0)
        library = SimpleNamespace(ggml_backend_score=lambda: score, ggml_backend_init=None)
        if path.endswith("base.so"):
            del library.ggml_backend_init
        return library

    monkeypatch.setattr("edgespec.llama.backends.ctypes.CDLL", opened)
    return tmp_path


def load(folder: Path, monkeypatch: pytest.MonkeyPatch, *, registered: int = 0) -> tuple[Path | None, list[str]]:
    ggml = Ggml(registered)
    monkeypatch.setattr(backends, "libggml", ggml)
    return load_backends(folder), ggml.loaded


def test_the_best_variant_and_all_other_backends_are_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, loaded = load(folder, monkeypatch)
    assert chosen == folder / "libggml-cpu-haswell.so"
    assert loaded == ["libggml-rpc.so", "libggml-cpu-haswell.so"]


def test_a_variant_can_be_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIANT, "x64")
    assert load(folder, monkeypatch)[0] == folder / "libggml-cpu-x64.so"


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
    assert load(folder, monkeypatch, registered=1) == (None, [])
    assert load(folder / "none", monkeypatch) == (None, [])
