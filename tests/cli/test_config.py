"""The command line overrides the environment, the project file and the user file; invalid settings are named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_program import edgespec_here
from fake_engine import FakeEngine

from edgespec.chat.commands import run_line
from edgespec.chat.controls import Controls
from edgespec.chat.session import Session
from edgespec.chat.settings import SETTINGS, ChatSettings
from edgespec.cli.commands.run import run
from edgespec.cli.options.command import config_files, project_file
from edgespec.cli.options.common import Option
from edgespec.cli.options.group import ELSEWHERE
from edgespec.cli.options.shared import CONFIGURABLE
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError
from edgespec.files import cache, paths
from edgespec.history import Store
from edgespec.settings import LoadSettings


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
    assert cache.read_cache("check/build.json") is None
    cache.write_cache("check/build.json", "größer")
    cache.write_cache("check/build.json", "größer 2")
    assert cache.read_cache("check/build.json") == "größer 2"
    assert [file.name for file in (home / "home" / "cache" / "check").iterdir()] == ["build.json"]


def test_a_cache_that_cannot_be_used_is_no_error(home: Path) -> None:
    (home / "home" / "cache").write_text("a file where the folder should be")
    cache.write_cache("x", "text")
    assert cache.read_cache("x") is None


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


# --- edgespec config set, unset ---------------------------------------------------------------------------------------


def refused(home: Path, *args: str) -> str:
    done = edgespec_here("config", *args, home=home / "home", stdin=b"")
    assert (done.returncode, done.stdout) == (2, b"")
    return done.stderr.decode()


def test_a_setting_is_saved_in_the_users_file_and_its_comments_stay(home: Path) -> None:
    file = write_user(home, "# mine\ntemp = 0.5  # warm\n")
    assert shown(home, "set", "temp", "0.2") == f"temp = 0.2  # {file}\n"
    shown(home, "set", "max-tokens", "-1")
    shown(home, "set", "stop", "a b", "c")
    shown(home, "set", "stats", "true")
    shown(home, "set", "system", "7")
    assert file.read_text(encoding="utf-8") == (
        '# mine\ntemp = 0.2  # warm\nmax-tokens = -1\nstop = ["a b", "c"]\nstats = true\nsystem = "7"\n'
    )
    given = values()
    assert (given["temperature"], given["stop"], given["stats"], given["system"]) == (0.2, ("a b", "c"), True, "7")
    assert shown(home, "unset", "temp") == f"temp is no longer set in {file}\n"
    assert values()["temperature"] == 0.8


def test_a_path_is_saved_so_that_it_is_found_from_everywhere(home: Path) -> None:
    shown(home, "set", "model", "./a.gguf")  # the program runs in the home folder
    assert Path(values()["model"]) == home / "home" / "a.gguf"


def test_what_a_file_could_not_say_is_refused_and_changes_nothing(home: Path) -> None:
    file = write_user(home, "temp = 0.5\n")
    assert "unknown setting 'temperature'" in refused(home, "set", "temperature", "0.5")
    assert "did you mean 'temp'?" in refused(home, "set", "temperature", "0.5")
    assert "invalid value for 'temp': 'hot' must be a number" in refused(home, "set", "temp", "hot")
    assert "invalid value for 'temp': -1" in refused(home, "set", "temp", "-1")
    assert "'temp' has one value, and 2 are given" in refused(home, "set", "temp", "1", "2")
    assert f"'seed' is not set in {file}" in refused(home, "unset", "seed")
    assert file.read_text() == "temp = 0.5\n"
    write_user(home, "temp = ")
    assert "is not valid TOML" in refused(home, "set", "temp", "1")


def test_an_unknown_key_of_the_file_can_be_removed(home: Path) -> None:
    write_user(home, "tmep = 0.5\n")
    shown(home, "unset", "tmep")
    assert values()["temperature"] == 0.8


def test_what_overrides_a_saved_setting_is_noted(home: Path) -> None:
    file = home / "home" / "edgespec.toml"
    file.write_text("temp = 0.2")
    done = edgespec_here("config", "set", "temp", "0.5", home=home / "home", stdin=b"")
    assert f"{file} overrides this setting here" in done.stderr.decode()
    done = edgespec_here("config", "set", "temp", "0.5", home=home / "home", stdin=b"", EDGESPEC_TEMP="1")
    assert "EDGESPEC_TEMP overrides this setting" in done.stderr.decode()


class Said:
    """A front end that records what it is given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str, level: str = "info") -> None:
        self.texts.append(text)


def test_a_chat_saves_its_settings_and_its_model_for_new_chats(home: Path) -> None:
    file = write_user(home, '# mine\ntemp = 0.5\npace = "off"\n')
    engine = FakeEngine()
    loaded = LoadSettings("demo", draft_model="demo:draft", spec_type="lookup", pace="off")
    settings = ChatSettings(sampling=SamplingSettings(top_k=7, repeat_penalty=1.1), stop=("a", "b"))
    with Store.in_memory() as store:
        session = Session(store, lambda *_: engine, loaded, settings)
        session.load()
        front: Any = Said()
        controls = Controls(session, front)
        run_line(controls, "/set save")
        run_line(controls, "/model save")
    assert front.texts == [
        f"new chats use top-k 7, repeat-penalty 1.1, stop a, b: saved in {file}",
        f"new chats use demo: saved in {file}",
    ]
    given = values()
    assert (given["temperature"], given["top_k"], given["repeat_penalty"], given["stop"]) == (0.8, 7, 1.1, ("a", "b"))
    assert (given["model"], given["draft_model"], given["spec_type"], given["pace"]) == (
        "demo", "demo:draft", "lookup", "off",
    )  # fmt: skip
    assert file.read_text().startswith("# mine\n")


def test_every_setting_of_a_chat_is_one_of_a_file() -> None:
    keys = {option.key for option in run.params if isinstance(option, Option) and option.config}
    assert {item.name for item in SETTINGS} <= keys


def test_the_options_that_files_may_set_are_those_of_run() -> None:
    of_run = [param for param in run.params if isinstance(param, Option) and param.config and param.name != "help_all"]
    assert {*CONFIGURABLE} == {*of_run} and len(CONFIGURABLE) == len(of_run)
