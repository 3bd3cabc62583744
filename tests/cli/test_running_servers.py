"""Which servers of a user are found, and in place of which models they can answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest

from edgespec.cli.commands.serve import ServeOptions, serve
from edgespec.cli.options.command import Call
from edgespec.cli.setup.running_servers import Loaded, Presence, build, private_folder, server_with, servers
from edgespec.cli.setup.servers import _arguments
from edgespec.errors import UsageError
from edgespec.files.paths import file_facts
from edgespec.llm.info import ModelInfo
from edgespec.models.names.source import NAMES
from edgespec.serve.pool import Offer, Place
from edgespec.settings import LoadSettings, Request

POSIX = pytest.mark.skipif(os.name != "posix", reason="changes permissions")
TARGET, DRAFT = NAMES["demo"], NAMES["demo:draft"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    return tmp_path


def place(settings: LoadSettings, idle_s: float | None = None) -> Any:
    """Return a loaded model of a pool."""
    served = Mock(info=ModelInfo("demo"), notes_of_loading=["a note"])
    served.files = {"model": file_facts(TARGET), "draft_model": file_facts(DRAFT)}
    return Place(Offer("demo", settings, Request(), idle_s), served)


@pytest.fixture
def presence() -> Iterator[Presence]:
    with Presence("http://127.0.0.1:8080", "sesame", None, Mock()) as presence:
        presence.tell(Mock(loaded=[place(LoadSettings("demo", rpc=("host:1",)))]), "ready")
        yield presence


def test_a_running_server_is_found_with_its_models(presence: Presence, home: Path) -> None:
    [server] = servers()
    [model] = server.models
    assert (server.url, server.port, server.key, server.kept_s) == ("http://127.0.0.1:8080", "8080", "sesame", None)
    assert (model.name, model.settings.rpc, model.notes) == ("demo", ("host:1",), ["a note"])
    presence.tell(Mock(loaded=[]), "unloaded")
    assert servers()[0].models == []
    presence.close()
    assert servers() == []
    assert not any(private_folder().iterdir())


@POSIX
def test_only_the_user_can_read_the_files(presence: Presence) -> None:
    folder = private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@POSIX
def test_a_file_or_a_folder_that_others_can_change_is_not_believed(presence: Presence) -> None:
    [file] = private_folder().glob("*.json")
    file.chmod(0o662)
    assert servers() == []
    file.chmod(0o600)
    assert len(servers()) == 1
    file.parent.chmod(0o777)
    assert servers() == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"build": 1}', "x" * 2**21, '{"models": [{}]}'])
def test_files_of_other_versions_and_damaged_files_are_left_alone(presence: Presence, content: str) -> None:
    [file] = private_folder().glob("*.json")
    file.write_text(content)
    assert servers() == []
    assert file.is_file()


def test_another_build_of_llama_cpp_gives_other_texts(presence: Presence, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = LoadSettings("demo", rpc=("host:1",))
    assert server_with(wanted) is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert server_with(wanted) is None
    assert len(servers()) == 1


@pytest.mark.parametrize("name", ["GGML_CPU_TILED_MM", "LLAMA_ATTN_ROT_DISABLE"])
def test_variables_of_llama_cpp_give_other_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build()
    monkeypatch.setenv("GGML_NO_BACKTRACE", "other")
    assert build() == before
    monkeypatch.setenv(name, "1")
    assert build() != before


def test_a_server_of_another_machine_is_left_alone(presence: Presence, monkeypatch: pytest.MonkeyPatch) -> None:
    [file] = private_folder().glob("*.json")
    left = file.with_name("locked-there.json")
    left.write_text(file.read_text())
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert servers() == []
    assert left.is_file()


def test_a_server_that_ends_at_this_moment_does_not_hide_others(
    presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    [file] = private_folder().glob("*.json")
    monkeypatch.setattr(Path, "glob", lambda *_: [file.with_name("0.json"), file])
    assert len(servers()) == 1


def test_the_file_of_a_server_that_was_killed_is_removed(presence: Presence) -> None:
    [file] = private_folder().glob("*.json")
    left = file.with_name("killed.json")
    left.write_text(file.read_text())
    assert len(servers()) == 1
    assert [*private_folder().glob("*.json")] == [file]


def test_a_server_that_is_kept_ends_with_its_last_model() -> None:
    end = Mock()
    with Presence("http://127.0.0.1:1", "", 60, end) as presence:
        presence.tell(Mock(loaded=[place(LoadSettings("demo"), 90)]), "kept")
        assert servers()[0].kept_s == 90
        presence.tell(Mock(loaded=[]), "request")
        assert not end.called
        presence.tell(Mock(loaded=[]), "unloaded")
    assert end.called
    assert servers() == []


def test_a_server_that_cannot_write_its_file_again_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    end, model = Mock(), place(LoadSettings("demo"), 60)
    with Presence("http://127.0.0.1:1", "", 60, end) as presence:
        presence.tell(Mock(loaded=[model]), "ready")
        with monkeypatch.context() as patch:
            patch.setattr("os.open", Mock(side_effect=OSError(28, "No space left on device")))
            model.offer = replace(model.offer, idle_s=90)
            presence.tell(Mock(loaded=[model]), "kept")
        assert servers()[0].kept_s == 60
        presence.tell(Mock(loaded=[]), "unloaded")
    assert end.called


@POSIX
def test_a_server_that_cannot_be_found_is_not_kept(home: Path) -> None:
    (home / "state").write_text("no folder")
    with pytest.raises(UsageError, match="other commands could not find this server"):
        Presence("http://127.0.0.1:1", "", 60, Mock())
    with Presence("http://127.0.0.1:1", "", None, Mock()) as presence:
        presence.tell(Mock(loaded=[]), "ready")
    assert servers() == []


# --- which models can answer ------------------------------------------------------------------------------------------

PLAIN = LoadSettings("demo")


def loaded(settings: LoadSettings) -> Loaded:
    return Loaded(
        "demo", settings, ModelInfo("demo"), [], {"model": file_facts(TARGET), "draft_model": file_facts(DRAFT)}
    )


@pytest.mark.parametrize(
    ("theirs", "wanted"),
    [
        ({}, {}),
        ({}, {"model": str(TARGET)}),
        ({"sequences": 4, "cache_ram": 100, "must_fit": True}, {}),
        ({"threads": 3, "spec_tree": 2, "store": False, "corpus": "texts", "draft_model": "auto"}, {}),
        ({"threads": 3, "draft_model": "auto"}, {"threads": 3, "draft_model": "auto"}),
        ({}, {"draft_model": str(DRAFT)}),
        ({}, {"spec_type": "none"}),
        ({"pace": "fixed:3"}, {"pace": "off"}),
        ({}, {"spec_draft_n_max": 0}),
        ({"exact": False, "ctx_size": 512, "rpc": ("a:1",)}, {"exact": False, "ctx_size": 512, "rpc": ("a:1",)}),
    ],
)
def test_models_that_give_the_same_texts(theirs: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert loaded(replace(PLAIN, **theirs)).can_answer_for(replace(PLAIN, **wanted))


@pytest.mark.parametrize(
    "setting",
    [
        {"model": str(DRAFT)},
        {"draft_model": "auto"},
        {"draft_model": str(TARGET)},
        {"exact": False},
        {"strict": True},
        {"ctx_size": 4096},
        {"cache_type_k": "q8_0"},
        {"flash_attention": "on"},
        {"gpu_layers": 0},
        {"device": "none"},
        {"cpu_moe": True},
        {"rpc": ("a:1",)},
        {"lora": ("/a.gguf",)},
        {"mmproj": "none"},
        {"chat_template": "chatml"},
        {"chat_template_file": "/a.jinja"},
        {"threads": 2},
        {"spec_type": "suffix"},
        {"pace": "fixed:2"},
        {"store": False},
        {"corpus": "texts"},
    ],
)
def test_models_with_other_texts_or_other_drafts(setting: dict[str, Any]) -> None:
    assert not loaded(PLAIN).can_answer_for(replace(PLAIN, **setting))


@pytest.mark.parametrize("setting", [{"exact": False}, {"ctx_size": 4096}, {"cache_type_v": "q8_0"}, {"gpu_layers": 0}])
def test_what_texts_depend_on_is_not_left_open(setting: dict[str, Any]) -> None:
    assert not loaded(replace(PLAIN, **setting)).can_answer_for(PLAIN)


def test_a_model_file_that_was_changed_is_another_model(presence: Presence, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(TARGET.read_bytes())
    settings = LoadSettings(str(model))
    with Presence("http://127.0.0.1:2", "", None, Mock()) as other:
        there = place(settings)
        there.served.files = {"model": file_facts(model)}
        other.tell(Mock(loaded=[there]), "ready")
        found = server_with(settings)
        assert found is not None
        assert found[0].port == "2"
        os.utime(model, ns=(1, 1))
        assert server_with(settings) is None
        model.unlink()


# --- a new server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        LoadSettings("demo"),
        LoadSettings(
            "/x.gguf", draft_model="auto", spec_type="suffix", pace="fixed:3", spec_draft_n_max=3, spec_tree=2
        ),
        LoadSettings(
            "demo", exact=False, strict=True, store=False, ctx_size=512, threads=2, threads_batch=3, corpus="a"
        ),
        LoadSettings("demo", gpu_layers=0, gpu_layers_draft="all", device="none", n_cpu_moe=2, cpu_moe=True),
        LoadSettings("demo", rpc=("a:1", "b:2"), cache_type_k="q8_0", flash_attention="on", cache_ram=0, sequences=3),
    ],
)
def test_a_server_is_started_with_the_same_settings(settings: LoadSettings, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text('spec-type = "none"\nctx-size = 7\nstore = false\n')
    settings = replace(settings, ctx_size=settings.ctx_size or 9)  # an open one is up to the file, as before
    arguments = [*_arguments(settings)]
    context = serve.make_context("serve", arguments)
    options = Call(context, ServeOptions).options
    made = replace(options.load, model=options.model[0], sequences=options.parallel)
    assert asdict(made) == asdict(settings)
    assert click.ParameterSource.COMMANDLINE is context.get_parameter_source("only")
