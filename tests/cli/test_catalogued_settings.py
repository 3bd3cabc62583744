"""Settings of the catalogue for a model, `--exact` and `--fast`: which setting overrides which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cli_program import edgespec_here
from fake_index import FakeIndex

from edgespec.cli.commands.run import RunOptions
from edgespec.cli.options.command import Call
from edgespec.llama.context import Context
from edgespec.llama.kernels import have_exact_kernels

CATALOGUED = '\nsystem = "Be brief."\ntemperature = 0.25\ntop_p = 0.5\n'


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FakeIndex]:
    """The catalogue entry "packed", with settings."""
    with FakeIndex(tmp_path) as index:
        with (tmp_path / "config" / "models.toml").open("a", encoding="utf-8") as toml:
            toml.write(CATALOGUED)
        yield index


def answered_with(home: Path, *args: str, model: str = "packed", **variables: str) -> dict[str, Any]:
    """Return the settings of `run` that the catalogue can set."""
    seen: dict[str, Any] = {}

    def note(call: Call[RunOptions], *args: Any, **more: Any) -> None:
        sampling = call.options.answer.sampling
        seen.update(system=call.options.system, temperature=sampling.temperature, top_p=sampling.top_p)
        call.ctx.exit(0)  # before the model is loaded

    with patch("edgespec.cli.commands.run.fetch_models", note):
        done = edgespec_here("run", "-m", model, *args, "x", home=home, stdin=b"", **variables)
    assert done.returncode == 0, done.stderr
    return seen


@pytest.mark.usefixtures("index")
def test_a_model_answers_as_catalogued(tmp_path: Path) -> None:
    catalogued = {"system": "Be brief.", "temperature": 0.25, "top_p": 0.5}
    assert answered_with(tmp_path) == catalogued
    assert answered_with(tmp_path, model="Packed:Q4_0") == catalogued
    assert answered_with(tmp_path, model="demo") == answered_with(tmp_path, model="tiny.gguf") != catalogued


def test_show_quotes_the_texts_among_the_settings(tmp_path: Path, index: FakeIndex) -> None:
    assert edgespec_here("pull", "packed", home=tmp_path, stdin=b"", **index.environment()).returncode == 0
    shown = edgespec_here("show", "packed", home=tmp_path).stdout.decode()
    assert 'answers with system "Be brief.", temperature 0.25, top_p 0.5 (unless you set them)' in " ".join(
        shown.split()
    )


@pytest.mark.usefixtures("index")
def test_what_the_user_sets_goes_before_the_catalogue(tmp_path: Path) -> None:
    assert answered_with(tmp_path, "--temp", "0.8") == {"system": "Be brief.", "temperature": 0.8, "top_p": 0.5}
    assert answered_with(tmp_path, "-s", "Shout.")["system"] == "Shout."
    assert answered_with(tmp_path, "-s", "")["system"] == ""
    assert answered_with(tmp_path, EDGESPEC_TEMP="0.7")["temperature"] == 0.7
    (tmp_path / "edgespec.toml").write_text("top-p = 0.6\n", encoding="utf-8")
    assert answered_with(tmp_path)["top_p"] == 0.6


@pytest.mark.usefixtures("index")
def test_a_prompt_that_is_completed_verbatim_takes_no_system_prompt(tmp_path: Path) -> None:
    raw = answered_with(tmp_path, "--raw")
    assert (raw["system"], raw["temperature"]) == (None, 0.25)


@pytest.mark.long
def test_the_answer_of_a_catalogued_model_is_the_one_with_its_settings_typed(tmp_path: Path, index: FakeIndex) -> None:
    """The model has no chat template, so that its system prompt would be an error without --raw."""

    def text(*args: str) -> bytes:
        asked = ("run", "-m", "packed", "-y", "--raw", "-n", "12", "--seed", "4", *args, "import")
        done = edgespec_here(*asked, home=tmp_path, stdin=b"", **index.environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert text() == text("--temp", "0.25", "--top-p", "0.5") != text("--temp", "1.5", "--top-p", "1")


@pytest.mark.long(but=2)
@pytest.mark.parametrize(("args", "exact"), [((), True), (("--fast",), False), (("--exact",), True)])
def test_contexts_are_exact_unless_fast_ones_are_asked_for(tmp_path: Path, args: tuple[str, ...], exact: bool) -> None:
    with patch("edgespec.runtime.loading.Context", wraps=Context) as made:
        done = edgespec_here("run", "-m", "demo", "-n", "4", "--raw", *args, "x", home=tmp_path, stdin=b"")
    assert done.returncode == 0, done.stderr
    assert {call.args[1].exact for call in made.call_args_list} == {exact and have_exact_kernels()}
