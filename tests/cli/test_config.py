"""The command line overrides the environment, the project file and the user file; invalid settings are named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_program import edgespec_here

from edgespec.cli.commands.run import run
from edgespec.cli.options.command import config_files, project_file
from edgespec.cli.options.common import Option
from edgespec.cli.options.group import ELSEWHERE
from edgespec.errors import UsageError
from edgespec.files import paths


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """EDGESPEC_HOME, and a project whose folder is the working folder."""
    (tmp_path / "home" / "config").mkdir(parents=True)
    (tmp_path / "project" / "src").mkdir(parents=True)
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project" / "src")
    return tmp_path


def write_user(home: Path, text: str) -> Path:
    file = home / "home" / "config" / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def write_project(home: Path, text: str) -> Path:
    file = home / "project" / "edgespec.toml"
    file.write_text(text, encoding="utf-8")
    return file


def values(*args: str) -> Mapping[str, Any]:
    return run.make_context("run", ["hello", *args]).params


def refusal(*args: str) -> str:
    with pytest.raises(UsageError) as caught:
        values(*args)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_each_source_wins_over_the_weaker_ones(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values()["temperature"] == 0.8
    write_user(home, "temp = 0.1")
    assert values()["temperature"] == 0.1
    write_project(home, "temp = 0.2")
    assert values()["temperature"] == 0.2
    monkeypatch.setenv("EDGESPEC_TEMP", "0.3")
    assert values()["temperature"] == 0.3
    assert values("--temp", "0.4")["temperature"] == 0.4


def test_files_add_up(home: Path) -> None:
    write_user(home, "temp = 0\nseed = 5")
    write_project(home, "seed = 6\nstats = true")
    given = values()
    assert (given["temperature"], given["seed"], given["stats"]) == (0, 6, True)


def test_every_kind_of_option_can_be_configured(home: Path) -> None:
    write_project(
        home,
        'gpu-layers = 12\ngpu-layers-draft = "all"\nflash-attn = "off"\nchat = false\nstop = ["a b", "c"]\n'
        'logit-bias = "7-inf"\ntop-p = 1\nsystem = "Be brief."\n',
    )
    given = values()
    assert (given["gpu_layers"], given["gpu_layers_draft"], given["flash_attention"]) == (12, "all", "off")
    assert (given["chat"], given["stop"], given["logit_bias"]) == (False, ("a b", "c"), ((7, float("-inf")),))
    assert (given["top_p"], given["system"]) == (1.0, "Be brief.")


def test_typed_repetitions_replace_configured_ones(home: Path) -> None:
    write_project(home, 'stop = ["a"]')
    assert values("--stop", "b")["stop"] == ("b",)


def test_a_switch_that_is_on_in_a_file_can_be_turned_off_in_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_user(home, "chat = true")
    monkeypatch.setenv("EDGESPEC_CHAT", "no")
    assert values()["chat"] is False


def test_a_variable_holds_one_stop_string_whatever_spaces_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_STOP", "\n the end ")
    assert values()["stop"] == ("\n the end ",)


def test_paths_in_a_file_start_from_its_folder(home: Path) -> None:
    file = write_project(home, 'model = "models/a.gguf"\ndraft-model = "./b.gguf"')
    given = values()
    assert Path(given["model"]) == file.parent / "models" / "a.gguf"
    assert Path(given["draft_model"]) == file.parent / "b.gguf"


def test_names_of_models_in_a_file_stay_names(home: Path) -> None:
    write_project(home, 'model = "demo"')
    assert values()["model"] == "demo"


def test_an_unknown_key_is_named_with_its_file_and_a_near_one(home: Path) -> None:
    file = write_user(home, "tmep = 0.5")
    message = refusal()
    assert str(file) in message
    assert "'tmep'" in message
    assert "did you mean 'temp'?" in message


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("temperature", "temp"),
        ("Temperature", "temp"),
        ("flash_attention", "flash-attn"),
        ("num_ctx", "ctx-size"),
        ("n_predict", "max-tokens"),
        ("repetition_penalty", "repeat-penalty"),
        ("repetiton-penalty", "repeat-penalty"),
    ],
)
def test_another_name_of_a_key_is_answered_with_the_key(home: Path, key: str, meant: str) -> None:
    write_user(home, f"{key} = 0.5")
    assert f"did you mean '{meant}'?" in refusal()


def test_every_other_name_means_an_option_and_is_none() -> None:
    keys = {param.key for param in run.params if isinstance(param, Option)}
    assert set(ELSEWHERE.values()) <= keys
    assert not set(ELSEWHERE) & keys


def test_an_underscore_is_answered_with_the_hyphen(home: Path) -> None:
    write_user(home, "max_tokens = 5")
    assert "did you mean 'max-tokens'?" in refusal()


@pytest.mark.parametrize("key", ["file", "help", "version", "prompt"])
def test_what_only_makes_sense_on_a_command_line_is_no_setting(home: Path, key: str) -> None:
    write_user(home, f'{key} = "x"')
    assert f"unknown setting '{key}'" in refusal()


@pytest.mark.parametrize(
    "setting",
    ['temp = "0.5"', "temp = -1", "temp = true", "temp = nan", "max-tokens = 3.7", "ctx-size = true", "ctx-size = 0",
     'stats = "yes"', "model = 5", 'flash-attn = "maybe"', "stop = [1]", 'stop = [""]', 'logit-bias = "x"',
     "temp = [0.5]", "gpu-layers = -1", "[temp]\nx = 1"],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_or_range_is_named_with_its_file(home: Path, setting: str) -> None:
    file = write_project(home, setting)
    message = refusal()
    assert str(file) in message
    assert f"'{setting.strip('[').split(' ')[0].split(']')[0]}'" in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"temp = ", "not valid TOML"), (b"temp = 0.5\ntemp = 0.6", "not valid TOML"), (b'model = "\xff"', "not UTF-8")],
)
def test_a_broken_file_is_named(home: Path, content: bytes, reason: str) -> None:
    file = write_user(home, "")
    file.write_bytes(content)
    message = refusal()
    assert str(file) in message
    assert reason in message


def test_a_broken_file_does_not_keep_the_help_away(home: Path) -> None:
    write_user(home, "temp = ")
    with pytest.raises(SystemExit) as left:
        run.main(["--help"])
    assert left.value.code == 0


def test_the_nearest_project_file_counts(home: Path) -> None:
    write_project(home, "seed = 1")
    nearer = home / "project" / "src" / "edgespec.toml"
    nearer.write_text("seed = 2")
    assert project_file() == nearer
    assert values()["seed"] == 2


def test_without_files_there_are_no_settings(home: Path) -> None:
    assert config_files() == []


def test_folders_are_inside_edgespec_home_and_are_not_made_by_asking(home: Path) -> None:
    root = home / "home"
    assert [paths.config_dir(), paths.cache_dir(), paths.data_dir()] == [root / "config", root / "cache", root / "data"]
    assert not (root / "cache").exists()


def test_without_edgespec_home_the_folders_are_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESPEC_HOME")
    folders = {paths.config_dir(), paths.cache_dir(), paths.data_dir()}
    assert all(folder.is_absolute() and "edgespec" in folder.parts for folder in folders)


def test_the_cache_remembers_whole_texts(home: Path) -> None:
    assert paths.read_cache("check/build.json") is None
    assert paths.write_cache("check/build.json", "größer")
    assert paths.write_cache("check/build.json", "größer 2")
    assert paths.read_cache("check/build.json") == "größer 2"
    assert [file.name for file in (home / "home" / "cache" / "check").iterdir()] == ["build.json"]


def test_a_cache_that_cannot_be_used_is_no_error(home: Path) -> None:
    (home / "home" / "cache").write_text("a file where the folder should be")
    assert paths.write_cache("x", "text") is False
    assert paths.read_cache("x") is None


# --- edgespec config --------------------------------------------------------------------------------------------------


def shown(home: Path, *args: str, **variables: str) -> str:
    done = edgespec_here("config", *args, home=home / "home", stdin=b"", **variables)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_settings_are_shown_with_where_they_come_from(home: Path) -> None:
    write_user(home, "temp = 0.5")
    assert shown(home, EDGESPEC_SEED="7").splitlines()[-2:] == ["temp = 0.5  # user", "seed = 7  # EDGESPEC_SEED"]
    assert shown(home, EDGESPEC_TEMP="hot").splitlines()[-1] == "temp = hot  # EDGESPEC_TEMP"


def test_a_persona_that_cannot_be_used_is_shown_with_the_reason(home: Path) -> None:
    folder = home / "home" / "config" / "personas"
    folder.mkdir()
    (folder / "hot.toml").write_text('system = "Be quick."\ntemp = "hot"\n')
    [line] = [line for line in shown(home).splitlines() if "cannot be used" in line]
    assert "hot.toml, line 2: " in line
