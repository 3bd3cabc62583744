"""Personas: their files, what they set, and what a chat without them goes back to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from edgespec.chat.personas import BUNDLED, Persona, as_toml, file_of, parsed, persona, personas, save
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings, with_changes
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError
from edgespec.history import Store
from edgespec.settings import LoadSettings

POET = 'description = "Rhymes."\nsystem = """\nYou rhyme.\nAlways.\n"""\ntemp = 1.5\nstop = ["END"]\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    (tmp_path / "config" / "personas").mkdir(parents=True)
    return tmp_path / "config" / "personas"


@pytest.fixture
def session() -> Iterator[Session]:
    with Store.in_memory() as store:
        session = Session(store, lambda *_: FakeEngine(), LoadSettings("demo"), ChatSettings(seed=3), "mine")
        session.load()
        yield session


def test_a_persona_is_read_and_written_as_it_was(home: Path) -> None:
    (home / "poet.toml").write_text(POET)
    poet = persona("poet")
    assert (poet.description, poet.system) == ("Rhymes.", "You rhyme.\nAlways.")
    assert poet.settings == {"temp": "1.5", "stop": "END"}
    odd = Persona("odd", 'a "b"', "it's '''\n\x01 \\ \"\"\" é\n'", {"stop": "a, \\n", "seed": "5"}, "m.gguf")
    for each in (poet, odd, *BUNDLED):
        assert parsed(each.name, as_toml(each)) == each


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ('system = "x', "end of document|line 1", "."),
        ("system = 'x'\n\ntemprature = 1\n", "line 3", "did you mean temp"),
        ("system = 'x'\ntemp = 'hot'\n", "line 2", "temp must be a number"),
        ("temp = -1\n", "line 1", "temp"),
        ("a = 1\n[b]\n", "line 1", "unknown setting"),
        ("system = 5", "line 1", "must be a text"),
        ("seed = true", "line 1", "a number or a text"),
    ],
)
def test_a_broken_file_is_reported_with_its_line_and_stops_nothing(
    home: Path, text: str, place: str, said: str
) -> None:
    (home / "bad.toml").write_text(text)
    (home / "latin.toml").write_bytes(b"a\n\xe9")
    (home / "odd name.toml").write_text("")
    with pytest.raises(UsageError, match=place) as raised:
        persona("bad")
    assert "bad.toml" in str(raised.value)
    assert said in str(raised.value)
    found, problems = personas()
    assert found == list(BUNDLED)
    assert len(problems) == 3
    assert "line 2" in problems[1]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "none", "save", ".x", "x" * 41, "a\n"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        file_of(name)


def test_the_users_file_comes_before_a_bundled_one_and_the_old_one_is_kept(home: Path) -> None:
    save(Persona("coder", system="Mine."))
    save(Persona("coder", system="Mine too."))
    assert persona("coder").system == "Mine too."
    assert "Mine." in (home / "coder.toml.bak").read_text()
    with pytest.raises(UsageError, match="did you mean coder"):
        persona("codr")


def test_a_persona_is_taken_left_and_remembered(session: Session, home: Path) -> None:
    (home / "poet.toml").write_text(POET)
    before = session.chat.settings
    session.chat.take_persona(persona("poet"))
    session.chat.change({"top-k": "7"})
    list(session.ask("hello"))
    assert (session.chat.system, session.chat.settings.sampling.temperature) == ("You rhyme.\nAlways.", 1.5)
    session.chat.new()
    assert (session.chat.persona, session.chat.system) == ("", "mine")
    assert session.chat.settings.sampling == SamplingSettings(top_k=7)
    session.chat.open("last")
    assert (session.chat.persona, session.chat.settings.stop) == ("poet", ("END",))
    session.chat.take_persona(persona("coder"))
    assert session.chat.settings.stop == ()
    session.chat.change({"temp": "0.9"})  # the user's own choice stays
    session.chat.take_persona(None)
    assert (session.chat.persona, session.chat.system) == ("", "mine")
    assert session.chat.settings.sampling == SamplingSettings(temperature=0.9, top_k=7)
    assert session.chat.settings.seed == before.seed
    (home / "poet.toml").unlink()
    session.chat.open("last")
    assert session.chat.persona == ""


def test_a_chat_whose_persona_is_gone_still_opens(session: Session, home: Path) -> None:
    (home / "poet.toml").write_text(POET)
    session.chat.take_persona(persona("poet"))
    list(session.ask("hello"))
    session.chat.new()
    (home / "poet.toml").write_text("broken")
    session.chat.open("last")
    assert (session.chat.persona, session.chat.settings.sampling.temperature) == ("poet", 1.5)


def test_what_was_typed_comes_first_and_new_chats_begin_as_the_persona(session: Session) -> None:
    session.chat.begin_as(persona("coder"), {"system"})
    assert (session.chat.system, session.chat.settings.sampling.temperature) == ("mine", 0.2)
    session.chat.take_persona(None)
    assert session.chat.settings.sampling == SamplingSettings()
    session.chat.new()
    assert (session.chat.persona, session.chat.settings.sampling.temperature) == ("coder", 0.2)


@pytest.mark.slow
def test_a_constraint_replaces_another() -> None:
    settings = with_changes(with_changes(ChatSettings(), {"json-schema": "{}"}), {"regex": "a+"})
    assert (settings.json_schema, settings.regex) == ("", "a+")
    with pytest.raises(UsageError, match="column 1: unclosed group"):
        with_changes(settings, {"regex": "(a"})


def test_settings_that_need_each_other_are_changed_in_any_order() -> None:
    settings = with_changes(ChatSettings(), {"spec-draft-n-max": "4"})
    assert with_changes(settings, {"pace": "fixed:8", "spec-draft-n-max": "8"}).pace == "fixed:8"
    with pytest.raises(UsageError, match="draft"):
        with_changes(settings, {"temp": "0", "pace": "fixed:8", "spec-draft-n-max": "4"})
