"""Fields of bodies that are declared once: their kinds, defaults and limits."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from edgespec.core.setting import facts_of
from edgespec.remote.wire import body_of
from edgespec.requests import forms
from edgespec.requests.bad_input import BadInputError
from edgespec.requests.fields import Fields
from edgespec.requests.known_fields import CHAT, TEXT, Known, check
from edgespec.settings import Message, Request

FORMS = [form for form in vars(forms).values() if isinstance(form, type) and form.__module__ == forms.__name__]
WRONG = {"flag": "yes", "integer": 1.5, "choice": "other", "text": 3}


@pytest.mark.parametrize("form", FORMS)
def test_each_field_is_read_by_its_kind_and_has_a_default(form: type[Any]) -> None:
    assert Fields({}).read(form) == form()
    assert [*facts_of(form)] == [field.name for field in fields(form)]
    for name, facts in facts_of(form).items():
        taken = Fields({name: None, "other": 1})
        assert taken.read(form) == form()
        with pytest.raises(BadInputError, match=rf"outer\.{name} must be ") as caught:
            Fields({name: WRONG[facts.kind]}, where="outer").read(form)
        assert caught.value.where == f"outer.{name}"


def test_limits_are_those_of_the_declaration() -> None:
    assert Fields({"n_probs": 20}).read(forms.AnswerFields).n_probs == 20
    with pytest.raises(BadInputError, match="n_probs must be an integer from 0 to 20, not 21"):
        Fields({"n_probs": 21}).read(forms.AnswerFields)


def test_settings_of_an_answer_that_only_the_server_reads_keep_their_limits() -> None:
    body = Fields({"sample": 3, "left": 5, "remembered": False, "temperature": 1})
    assert body.declared(Request, forms.SERVER_SETTINGS) == {"sample": 3, "left": 5, "remembered": False}
    assert body.rest() == {"temperature": 1}
    for value in (-1, 2**32):
        with pytest.raises(BadInputError, match="sample must be an integer from 0 to"):
            Fields({"sample": value}).declared(Request, forms.SERVER_SETTINGS)


@pytest.mark.parametrize(("asked", "known"), [(Request("x"), TEXT), (Request(messages=(Message("user", "x"),)), CHAT)])
def test_the_server_knows_all_fields_that_clients_of_edgespec_send(asked: Request, known: Known) -> None:
    _, body = body_of(asked, is_own=True)
    assert check(body, known) == []
