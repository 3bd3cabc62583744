"""What is read out of a chat template, and answers that are read with it."""

from __future__ import annotations

import pytest
from answers import read

from edgespec.dialects.dialect import THINK, Dialect
from edgespec.dialects.templates import dialect_of, dialect_with

HEAD = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ '[' + m.role + ']' }}"
    "{% if m.role == 'assistant' and m.reasoning_content %}{{ '<deliberation>' + m.reasoning_content }}"
    "{{ '</deliberation>' }}{% endif %}{{ m.content }}"
)
TAIL = "{{ '[end]' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
END = "{% endfor %}"
EACH = "{% for call in m.tool_calls or [] %}{% set f = call.function %}"
ROME = ("weather", {"city": "Rome", "days": 2})
NOW: tuple[str, dict[str, str]] = ("now", {})


class Words:
    """A vocabulary with some words; all other tokens are characters."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        return [self._words.index(text)] if text in self._words else [ord(character) for character in text]

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        return self._words[token].encode()

    def is_control(self, token: int) -> bool:
        return token < len(self._words)

    def is_special(self, token: int) -> bool:
        return token < len(self._words)


# Families of call formats, with marks that no model has.
FAMILIES = {
    "objects": (
        EACH + "{{ '<do>' + {'tool': f.name, 'with': f.arguments} | tojson + '</do>' }}{% endfor %}",
        '<do>{"tool": "weather", "with": {"city": "Rome", "days": 2}}</do><do>{"tool": "now", "with": {}}</do>',
    ),
    "a list": (
        "{% if m.tool_calls %}{{ '<do>[' }}" + EACH + "{{ {'tool': f.name, 'with': f.arguments} | tojson }}"
        "{{ ', ' if not loop.last }}{% endfor %}{{ ']</do>' }}{% endif %}",
        '<do>[{"tool": "weather", "with": {"city": "Rome", "days": 2}}, {"tool": "now", "with": {}}]</do>',
    ),
    "names as keys": (
        EACH + "{{ '<do>' + {f.name: f.arguments} | tojson + '</do>' }}{% endfor %}",
        '<do>{"weather": {"city": "Rome", "days": 2}}</do><do>{"now": {}}</do>',
    ),
    "names before objects": (
        "{% if m.tool_calls %}{{ '<all>' }}"
        + EACH
        + "{{ '<one>' + f.name + '<with>' + f.arguments | tojson + '</one>' }}"
        "{% endfor %}{{ '</all>' }}{% endif %}",
        '<all><one>weather<with>{"city": "Rome", "days": 2}</one><one>now<with>{}</one></all>',
    ),
    "marked arguments": (
        EACH + "{{ '<do:' + f.name + '>\n' }}{% for k, v in f.arguments.items() %}"
        "{{ '<arg:' + k + '>' + (v if v is string else v | tojson) + '</arg>\n' }}{% endfor %}{{ '</do>' }}" + END,
        "<do:weather>\n<arg:city>Rome</arg>\n<arg:days>2</arg>\n</do><do:now>\n</do>",
    ),
    "marked keys and values": (
        EACH + "{{ '<do>' + f.name + '\n' }}{% for k, v in f.arguments.items() %}"
        "{{ '<k>' + k + '</k>\n<v>' + (v if v is string else v | tojson) + '</v>\n' }}{% endfor %}{{ '</do>' }}" + END,
        "<do>weather\n<k>city</k>\n<v>Rome</v>\n<k>days</k>\n<v>2</v>\n</do><do>now\n</do>",
    ),
    "attributes": (
        EACH + "{{ '<do name=\"' + f.name + '\">' }}{% for k, v in f.arguments.items() %}"
        "{{ '<arg name=\"' + k + '\" text=\"' + ('yes' if v is string else 'no') + '\">' }}"
        "{{ (v if v is string else v | tojson) + '</arg>' }}{% endfor %}{{ '</do>' }}" + END,
        '<do name="weather"><arg name="city" text="yes">Rome</arg><arg name="days" text="no">2</arg></do>'
        '<do name="now"></do>',
    ),
    "elements": (
        EACH + "{{ '<do name=\"' + f.name + '\">' }}{% for k, v in f.arguments.items() %}"
        "{{ '<' + k + '>' + (v if v is string else v | tojson) + '</' + k + '>' }}{% endfor %}{{ '</do>' }}" + END,
        '<do name="weather"><city>Rome</city><days>2</days></do><do name="now"></do>',
    ),
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_with_marks_of_its_own_is_understood(family: str, size: int) -> None:
    written, answer = FAMILIES[family]
    dialect = dialect_of(HEAD + written + TAIL)
    assert dialect.reasoning == ("<deliberation>", "</deliberation>")
    assert dialect.reasoning_field == "reasoning_content"
    text = f"<deliberation>Hm.</deliberation>I look.{answer}"
    assert read(dialect, text, size) == ("Hm.", "I look.", [ROME, NOW])
    assert read(dialect, answer, size) == ("", "", [ROME, NOW])
    assert read(dialect, "Nothing <to do>, [really].", size) == ("", "Nothing <to do>, [really].", [])


@pytest.mark.parametrize("size", [1, 1000])
def test_a_call_inside_of_reasoning_ends_it(size: int) -> None:
    written, answer = FAMILIES["objects"]
    dialect = dialect_of(HEAD + written + TAIL)
    assert read(dialect, f"Hm.{answer}", size, opened="") == ("Hm.", "", [ROME, NOW])


def test_a_prompt_shows_whether_reasoning_is_open() -> None:
    dialect = Dialect(THINK)
    assert dialect.opened("<think>a</think>b<assistant><think>\n") == "\n"
    assert dialect.opened("<think>a</think>b<assistant><think>\n\n</think>") is None
    assert dialect.opened("<assistant>") is None
    assert dialect.opened("<user>What does <think> mean?<assistant>") is None
    assert dialect.opened("<user>What is <think><assistant>", begun="It") is None
    assert dialect.opened("<user>What is <think><assistant>", begun="<think>\nHm") == ""
    assert dialect.opened("<assistant><think>\n", begun="<think>\nHm") == ""
    assert dialect.opened("<assistant><think>\n", begun="<think>\nHm.</think>So") is None
    assert dialect.opened("<assistant><think>\n", begun="So") is None


def test_a_begun_answer_continues_the_prompt() -> None:
    dialect = Dialect(THINK)
    assert dialect.continued("<assistant>", "So") == "So"
    assert dialect.continued("<assistant>", "<think>\nHm") == "<think>\nHm"
    assert dialect.continued("<assistant><think>\n", "<think>\nHm") == "Hm"
    assert dialect.continued("<assistant><think>\n", "So") == "</think>\n\nSo"


@pytest.mark.slow
@pytest.mark.parametrize("template", ["", "{{ messages[0].content }}", "{% for %}", "{{ 1 / 0 }}", "{{ 'x' * 10**9 }}"])
def test_a_template_that_shows_nothing_has_the_usual_dialect(template: str) -> None:
    dialect = dialect_of(template)
    assert (dialect.reasoning, dialect.reasoning_field) == (THINK, "")
    text = '<think>Hm.</think>So.<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert read(dialect, text, 4) == ("Hm.", "So.", [NOW])


def test_reasoning_may_be_between_tokens_that_the_template_does_not_show() -> None:
    template = "{{ messages[0].content }}"
    bracketed = dialect_with(Words("[THINK]", "[/THINK]"), template)
    assert read(bracketed, "[THINK]I think[/THINK]Hello", 3) == ("I think", "Hello", [])
    assert dialect_with(Words(), template) == dialect_of(template)
    assert dialect_with(Words("[THINK]", "[/THINK]"), "<think>").reasoning == THINK


@pytest.mark.parametrize("text", ["[", "{", "<", '{"a":'])
def test_a_template_that_writes_many_brackets_has_a_dialect(text: str) -> None:
    calls = "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
    template = f"{{% for m in messages %}}{{{{ {text!r} * 20000 }}}}{{{{ m.content }}}}{calls}{{% endfor %}}"
    assert dialect_of(template).calls is not None
