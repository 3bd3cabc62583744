"""Constrained answers: masks that depend on the prefix alone, the same bytes with speculation, clear refusals."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_program import edgespec_alone, edgespec_here
from numpy.typing import NDArray

import edgespec
from edgespec.chat.settings import ChatSettings, changed, setting
from edgespec.core.candidates import draft_candidates
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule
from edgespec.errors import UsageError
from edgespec.events import TokenEvent
from edgespec.llama.compiler import settled
from edgespec.llama.constraint import constraint_text
from edgespec.llama.grammar import Grammars
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Message, Request
from edgespec.validation import check_request

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = json.dumps(PERSON)
GBNF = 'root ::= "yes " word+\nword ::= [a-z]{2,6} " "?'
ENDLESS = """{
    "$ref": "#/$defs/a",
    "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}
}"""
STRICT: dict[str, Any] = {"strict": True, "store": False, "threads": 1}
EVERY_DRAFTER = "grammar,lookup,suffix,recycling,draft"


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", spec_type="none", threads=1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def drafting() -> Iterator[Runtime]:
    with edgespec.load("demo", pace="fixed:4", store=False, threads=1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def grammars(llm: Runtime) -> Iterator[Grammars]:
    with Grammars(llm.model) as opened:
        yield opened


@pytest.fixture
def one_compiler(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constraints are compiled by processes that are running already."""
    monkeypatch.setattr("edgespec.llama.compiler.quick_compiler", lambda: nullcontext(grammars._compiler))


def text_of(events: Iterator[TokenEvent]) -> str:
    return "".join(event.text for event in events)


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "tags"]
        and len(value["name"]) <= 12
        and 0 <= value["age"] <= 150
        and len(value["tags"]) <= 3
        and {*value["tags"]} <= {"red", "green", "blue"}
    )


# --- masks ------------------------------------------------------------------------------------------------------------


def test_allowed_are_the_tokens_that_keep_a_match_possible(llm: Runtime, grammars: Grammars) -> None:
    constraint = grammars.constraint("regex", "[0-9]+-[a-z]{3}", 2)
    texts = [llm.model.token_bytes(token) for token in range(llm.model.n_vocab)]
    prompt = llm.model.tokenize("ab")[:1] * 2
    for written, rest in (
        ("", rb"[0-9]+(-[a-z]{0,3})?"),
        ("1", rb"([0-9]+(-[a-z]{0,3})?|-[a-z]{0,3})"),
        ("1-a", rb"[a-z]{1,2}"),
    ):
        prefix = prompt + [texts.index(bytes([byte])) for byte in written.encode()]
        allowed = {int(token) for token in np.flatnonzero(constraint.allowed(prefix))}
        fitting = {
            token
            for token, text in enumerate(texts)
            if text and re.fullmatch(rest, text) and not llm.model.is_control(token)
        }
        assert allowed == fitting


def test_a_complete_text_allows_the_end_alone_and_one_that_may_go_on_more(llm: Runtime, grammars: Grammars) -> None:
    ends = {*llm.model.end_tokens}
    tokens = llm.model.tokenize("1-abc", add_special=False)
    done = grammars.constraint("regex", "[0-9]+-[a-z]{3}", 0).allowed(tokens)
    assert {*np.flatnonzero(done)} == ends
    open_ended = grammars.constraint("regex", "[0-9]-[a-z]+", 0).allowed(tokens)
    assert ends < {*np.flatnonzero(open_ended)}
    assert not grammars.constraint("regex", "[0-9]-[a-z]{5}", 0).allowed(tokens)[sorted(ends)].any()


def test_a_mask_depends_on_the_prefix_and_not_on_what_was_asked_before(llm: Runtime, grammars: Grammars) -> None:
    answer = llm.model.tokenize('{"name": "Ann", "age": 41, "tags": ["red", "blue"]}', add_special=False)
    wanted = [grammars.constraint("json_schema", SCHEMA, 0).allowed(answer[:n]) for n in range(len(answer) + 1)]
    wandering, rng = grammars.constraint("json_schema", SCHEMA, 0), random.Random(3)
    for n in rng.choices(range(len(answer) + 1), k=60):
        assert (wandering.allowed(answer[:n]) == wanted[n]).all()
    astray = llm.model.tokenize("}]", add_special=False)
    assert wandering.allowed(astray).all()
    assert wandering.forced(astray) == []
    elsewhere = llm.model.tokenize('{"name": "Bo"', add_special=False)
    wandering.allowed(elsewhere)
    assert (wandering.allowed(answer) == wanted[-1]).all()


def test_what_is_forced_is_allowed_token_by_token(llm: Runtime, grammars: Grammars) -> None:
    constraint = grammars.constraint("json_schema", SCHEMA, 0)
    tokens = llm.model.tokenize('{"name": "Ann"', add_special=False)
    forced = constraint.forced(tokens)
    assert llm.model.detokenize(forced).decode().startswith(', "age": ')
    for token in forced:
        assert constraint.allowed(tokens)[token]
        tokens.append(token)
    assert constraint.forced(llm.model.tokenize('{"name": "A', add_special=False)) == []


class Some:
    """Allows some ids, whatever came before."""

    is_narrow = True

    def __init__(self, n_vocab: int, *ids: int) -> None:
        self._allowed = np.zeros(n_vocab, np.bool_)
        self._allowed[list(ids)] = True

    def allowed(self, tokens: Any) -> NDArray[np.bool_]:
        return self._allowed

    def forced(self, tokens: Any) -> list[int]:
        return []


def test_truncation_looks_at_what_is_allowed_alone() -> None:
    """Top-k of the mask, not the mask of the top k, by which nothing might be left."""
    row = np.arange(30, dtype=np.float32)
    chain = SamplingSettings(temperature=1, top_k=2, top_p=1, min_p=0)
    sampler = Sampler(chain, 1, 0, 30, constraint=Some(30, 3, 7, 11))
    distribution = sampler.distribution(row, [], 0)
    assert {*distribution.ids} == {7, 11}
    assert np.allclose(distribution.probability(11), 1 / (1 + np.exp(-4.0)))
    assert {sampler.choose(row, [], position).id for position in range(200)} == {7, 11}
    assert {found.token for found in draft_candidates(sampler, row[:20], [], 0, 4)} == {7, 11}


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("kind", "text"), [("json_schema", SCHEMA), ("grammar", GBNF), ("regex", "[A-Z][a-z]{1,9}( [a-z]{1,9}){3}[.]")]
)
def test_speculation_changes_no_byte(kind: str, text: str, temperature: float) -> None:
    answers, constraint = [], dict[str, Any]({kind: text})
    with edgespec.load("demo", spec_type=EVERY_DRAFTER, **STRICT) as runtime:
        for spec_type in ("none", EVERY_DRAFTER, "grammar", "draft", "lookup"):
            runtime.draft_with(spec_type=spec_type)
            answers.append(
                [
                    text_of(runtime.generate("Say: ", seed=seed, temperature=temperature, max_tokens=48, **constraint))
                    for seed in range(2)
                ]
            )
    assert all(answer == answers[0] for answer in answers)
    assert all(answers[0])


@pytest.mark.parametrize("verify", ["coupled", "rejection", "block"])
def test_answers_fit_the_schema_under_every_rule(drafting: Runtime, verify: VerifyRule) -> None:
    for seed in range(4):
        events = drafting.generate("A person: ", seed=seed, json_schema=SCHEMA, verify=verify, max_tokens=90)
        assert is_person(text_of(events))
        assert drafting.stats.by_source["grammar"].accepted > 0


def test_what_the_grammar_forces_takes_fewer_passes() -> None:
    with edgespec.load("demo", spec_type="grammar", pace="fixed:4", **STRICT) as runtime:
        *tokens, last = runtime.generate("A person: ", seed=1, json_schema=SCHEMA, max_tokens=90)
        assert last.finish_reason == "stop"
        assert runtime.stats.rounds < runtime.stats.generated_tokens
        assert {token.source for token in tokens if token.from_draft} == {"grammar"}
        list(runtime.generate("A person: ", max_tokens=16))
        assert runtime.stats.proposed == 0  # nothing to draft from


def test_many_answers_at_once_each_fit_their_own(llm: Runtime) -> None:
    with edgespec.load("demo", sequences=3, store=False, threads=1) as runtime:
        asked = [
            Request("A: ", regex="[0-9]{4}", max_tokens=20),
            Request("A: ", json_schema=SCHEMA, max_tokens=90),
            Request("A: ", max_tokens=10, ignore_eos=True),
            Request("A: ", grammar='root ::= "no"', max_tokens=20),
        ]
        texts = [""] * 4
        for index, event in runtime.stream(asked):
            assert isinstance(event, TokenEvent)
            texts[index] += event.text
    assert re.fullmatch("[0-9]{4}", texts[0])
    assert is_person(texts[1])
    assert texts[3] == "no"
    assert texts[2]


def test_an_answer_that_was_begun_goes_on_as_the_grammar_wants(llm: Runtime) -> None:
    begun = tuple(llm.model.tokenize("12", add_special=False))
    messages = (Message("user", "A number"), Message("assistant", "12", begun))
    events = llm.submit(Request(messages=messages, regex="[0-9]{4}", max_tokens=20))
    assert re.fullmatch("[0-9]{2}", text_of(events))


def test_an_answer_that_was_begun_counts_whether_its_ids_are_known_or_not(llm: Runtime) -> None:
    for begun in ((), tuple(llm.model.tokenize("12"))):
        messages = (Message("user", "A number"), Message("assistant", "12", begun))
        assert re.fullmatch(
            "[0-9]{2}", text_of(llm.submit(Request(messages=messages, regex="[0-9]{4}", max_tokens=20)))
        )


def test_from_python_a_schema_may_be_an_object(llm: Runtime) -> None:
    as_object = text_of(
        llm.generate("A: ", json_schema={"type": "integer", "minimum": 10, "maximum": 20}, max_tokens=8)
    )
    assert 10 <= int(as_object) <= 20
    first, *_ = llm.generate("A: ", logit_bias={5: 100.0}, temperature=0, max_tokens=2)
    assert first.id == 5
    for settings in ({"json_schema": [1]}, {"regex": 5}):
        with pytest.raises(UsageError, match="must be a string"):
            llm.generate("A: ", **settings)


def test_log_probabilities_are_those_among_what_is_allowed(llm: Runtime) -> None:
    first, *_ = llm.generate("A: ", regex="(yes|no)", logprobs=4, temperature=0, max_tokens=4)
    assert first.logprob is not None
    assert first.top_logprobs[0] == (first.id, first.logprob)
    assert sum(np.exp(logprob) for _, logprob in first.top_logprobs) <= 1 + 1e-6
    allowed = {bytes(llm.model.token_bytes(token)) for token, logprob in first.top_logprobs if logprob > -np.inf}
    assert all(b"yes".startswith(text) or b"no".startswith(text) for text in allowed)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("grammar", 'root ::= "a" b\n\nb ::= "c" | (', "line 3, column 14: "),
        ("grammar", 'root ::= "yes" | "no', "line 1, column 21: Unexpected end"),
        ("grammar", "root ::= other", "'other' not found"),
        ("json_schema", "{", "line 1 column 2"),
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "minLength (5) is greater"),
        ("json_schema", '{"not": {"const": 1}}', '"not" at #/not is not supported'),
        ("json_schema", '{"$ref": "#/nowhere"}', "/nowhere"),
        ("json_schema", "false", "nothing can match it"),
        ("json_schema", "[1]", "a schema is an object"),
        ("json_schema", '{"type": "string", "pattern": "a(b"}', "a(b, column 2: unclosed group"),
        ("regex", "[0-9", "expression: [0-9, column 1: unclosed character class"),
        ("regex", "a(?=b)", "column 2: look-around, including look-ahead and look-behind, is not supported"),
        ("regex", r"a\b", r"word boundaries (\b)"),
        ("regex", r"[^\s\S]", "nothing can match it"),
        ("json_schema", '{"type": "string", "pattern": "^a$", "minLength": 5}', "nothing can match it"),
        ("grammar", 'root ::= root "a"', "nothing can match it"),
        ("json_schema", '{"$ref": "#"}', "nothing can match it"),
        ("regex", "(a?){500}a{500}", "it is too large, or can never end"),
        ("json_schema", ENDLESS, "it is too large, or can never end"),
    ],
)
def test_what_is_wrong_with_a_text_is_said_before_anything_is_generated(
    llm: Runtime, kind: str, text: str, reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        llm.generate("A: ", **dict[str, Any]({kind: text}))
    assert reason in str(caught.value)


def test_what_turns_out_to_be_too_much_ends_the_answer_in_plain_words(llm: Runtime) -> None:
    late = "[bc]{160}(a?){1000}a{1000}"  # later than any text that is written in the trial
    with pytest.raises(UsageError, match=r"this .* failed: it is too large, or can never end"):
        list(llm.generate("A: ", regex=late, max_tokens=200))


def test_two_constraints_or_one_without_an_end_exclude_each_other() -> None:
    for request in (
        Request("x", regex="a", grammar='root ::= "a"'),
        Request("x", regex="a", ignore_eos=True),
        Request("x", json_schema="{}", reference=(1,)),
    ):
        with pytest.raises(UsageError, match="cannot be combined"):
            check_request(request, 10)


# --- the program ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_run_takes_schemas_grammars_and_expressions(home: Path) -> None:
    (home / "person.json").write_text(SCHEMA)
    (home / "yes.gbnf").write_text(GBNF)
    run = ("run", "-m", "demo", "-q", "-t", "1", "--spec-type", "none", "--seed", "3", "-n", "90", "A: ")
    assert is_person(edgespec_alone(*run, "--json-schema", SCHEMA, home=home).stdout.decode())
    assert edgespec_alone(*run, "--grammar", "yes.gbnf", home=home).stdout.decode().startswith("yes ")
    assert re.fullmatch("[0-9]{3}\n", edgespec_alone(*run, "--regex", "[0-9]{3}", home=home).stdout.decode())
    (home / "edgespec.toml").write_text('json-schema = "person.json"')
    assert is_person(edgespec_alone(*run, home=home).stdout.decode())
    (home / "edgespec.toml").unlink()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-j", "gone.json"), "cannot read the JSON schema gone.json"),
        (("--grammar", "gone.gbnf"), "root ::= "),
        (("-j", "empty.json"), "it is empty"),
        (("-j", "bad.json"), "cannot use the JSON schema in bad.json: Expecting"),
        (("--grammar", 'root ::= "'), "line 1, column 11"),
        (("-j", "[1]"), "cannot use this JSON schema"),
        (("--regex", ""), "use 'none' for none"),
    ],
)
def test_run_says_what_it_cannot_use_before_it_looks_for_a_model(home: Path, args: tuple[str, ...], said: str) -> None:
    (home / "empty.json").write_text("\n")
    (home / "bad.json").write_text("{:}")
    done = edgespec_here("run", "-m", "gone.gguf", "A: ", *args, home=home)
    assert done.returncode == 2
    assert said in done.stderr.decode()


@pytest.mark.long
def test_none_takes_away_what_the_configuration_says(home: Path) -> None:
    (home / "edgespec.toml").write_text('json-schema = "{}"')
    args = ("run", "-m", "demo", "-q", "-t", "1", "--spec-type", "none", "--seed", "3", "-n", "4", "A: ")
    free = edgespec_alone(*args, "-j", "none", home=home)
    assert free.returncode == 0
    numbers = edgespec_alone(*args, "--regex", "[0-9]{2}", home=home)  # nearer than the file
    assert re.fullmatch(rb"[0-9]{2}\n", numbers.stdout)
    short = edgespec_alone(*args, "-n", "2", home=home)  # a word of JSON, and whole
    assert (short.returncode, json.loads(short.stdout)) == (0, False)
    (home / "edgespec.toml").unlink()
    assert edgespec_alone(*args, home=home).stdout == free.stdout


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}', encoding="utf-8-sig")
    assert constraint_text("json_schema", str(file)) == '{"type": "integer"}'


def test_a_chat_can_constrain_its_answers(tmp_path: Path, one_compiler: None) -> None:
    file = tmp_path / "person.json"
    file.write_text(SCHEMA)
    settings = changed(ChatSettings(), "json-schema", str(file))
    assert settings.constraints["json_schema"] == SCHEMA
    assert ChatSettings.from_json(settings.as_json()) == settings
    assert changed(settings, "json-schema", setting("json-schema").show(settings)) == settings
    for nothing in ("", "none"):
        assert changed(settings, "json-schema", nothing) == ChatSettings()
    replaced = changed(settings, "regex", "a+").constraints
    assert {kind for kind, text in replaced.items() if text} == {"regex"}
    file.unlink()
    assert ChatSettings.from_json(settings.as_json()) == settings
    with pytest.raises(UsageError, match="cannot read"):
        _ = settings.constraints


def test_files_are_kept_by_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_compiler: None
) -> None:
    (tmp_path / "yes.gbnf").write_text(GBNF)
    monkeypatch.chdir(tmp_path)
    kept = settled("grammar", "yes.gbnf")
    monkeypatch.chdir("/")
    assert constraint_text("grammar", kept) == GBNF
    assert settled("grammar", GBNF) == GBNF
    assert settled("json_schema", ' {"type": "null"}') == ' {"type": "null"}'
    assert settled("regex", "person.json") == "person.json"


def test_without_speculation_nothing_is_drafted() -> None:
    assert LoadSettings("demo", spec_type="none").drafters == ()
    assert LoadSettings("demo").drafters[0] == "grammar"
    assert replace(LoadSettings("demo"), spec_type="draft").drafters == ("draft",)
