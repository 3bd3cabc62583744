"""A setting of an answer exists once: its declaration is all that the rest of the program needs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from edgespec.chat.settings import DRAFTING, SETTINGS, ChatSettings
from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import Facts, SettingError, facts_of
from edgespec.llm.model import DraftingOptions
from edgespec.models.names.catalog import NUMBERS, SAMPLING
from edgespec.settings import AnswerSettings, LoadSettings, Request

NEW_SETTING = Path(__file__).parent / "support" / "new_setting.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "field"), [("edgespec.core.sampling", "top_k"), ("edgespec.settings", "max_tokens")]
)
def test_a_declared_setting_is_known_everywhere(module: str, field: str) -> None:
    command = [sys.executable, str(NEW_SETTING), module, field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    is_sampling = module == "edgespec.core.sampling"
    assert json.loads(done.stdout) == {
        "option": [["--daring"], "How daring an answer is.", 0.5],
        "out of range": "daring must be from 0 to 1, not 2",
        "python": 0.5,
        "row": 0.5,
        "body": [0.5, []],
        "chat": [0.5, "0.5", 0.5],
        "chat, out of range": "daring must be from 0 to 1, not 2.0",
        "chat, saved": 0.5,
        "chat, help": ["How daring an answer is."],
        "edgespec's server": 0.5,
        "another server": "0.5" if is_sampling else "this server does not support daring",
        "sidecar": [0.5, None],
        "properties": 0.5,
    }


def test_all_settings_are_declared() -> None:
    """A field without facts would be no option, and nothing would compare it."""
    plain = {
        SamplingSettings: set[str](),
        AnswerSettings: {"sampling"},
        LoadSettings: {"model"},
        Request: {
            *("sampling", "prompt", "prompt_tokens", "messages", "reference"),
            *("must_call", "parallel_calls"),  # tools of this machine are not for models of a server
        },
    }
    for settings, names in plain.items():
        assert {each.name for each in fields(settings)} - facts_of(settings).keys() == names


def test_the_drafting_of_a_chat_is_what_a_loaded_model_can_change() -> None:
    drafting = {item.field for item in SETTINGS if item.group == "drafting"}
    assert drafting == {*DRAFTING} == get_type_hints(DraftingOptions).keys()
    assert drafting <= {each.name for each in fields(ChatSettings)}


def test_the_defaults_of_the_catalogue_are_settings_of_answers() -> None:
    numbers = {name for name, facts in facts_of(SamplingSettings).items() if facts.kind in ("integer", "number")}
    assert {*SAMPLING} <= numbers
    assert {*NUMBERS} - {*SAMPLING} <= facts_of(AnswerSettings).keys()


@pytest.mark.parametrize(
    ("facts", "allowed", "refused", "words"),
    [
        (Facts("number", least=0, most=1), (0, 0.5, 1), (-0.1, 1.1), "from 0 to 1"),
        (Facts("number", least=0, most=1, is_open=True), (0.1, 1), (0, 2), "above 0 and at most 1"),
        (Facts("number", least=0, is_open=True), (0.1, 1e9), (0, -1), "above 0"),
        (Facts("integer", least=-1), (-1, 0, 7), (-2,), "-1 or more"),
        (Facts("integer", most=7), (-9, 7), (8,), "at most 7"),
        (Facts("integer", least=-1, must="-1 (all) or more"), (-1,), (-2,), "-1 (all) or more"),
        (Facts("number"), (-1e9, 1e9), (), "a number"),
    ],
)
def test_limits(facts: Facts, allowed: tuple[float, ...], refused: tuple[float, ...], words: str) -> None:
    assert all(map(facts.allows, allowed))
    assert not any(map(facts.allows, refused))
    assert facts.range == words


def test_an_invalid_sampling_setting_is_named_by_its_error() -> None:
    with pytest.raises(SettingError) as caught:
        SamplingSettings(min_p=2)
    assert (caught.value.field, str(caught.value)) == ("min_p", "min_p must be from 0 to 1, not 2")
