"""The descriptions of how models reason and call tools, for people."""

from __future__ import annotations

import pytest
from families import FAMILIES

from edgespec.dialects.about import calls_of, reasoning_of

CALLS = {
    "gpt-oss": "JSON in messages <|channel|>commentary to=functions.NAME <|constrain|>json",
    "GLM": "a name and marked arguments between <tool_call> and </tool_call>",
    "Gemma 4": "a name and an object between <|tool_call>call: and <tool_call|>",
    "Qwen 3.5": "a name and marked arguments between <tool_call> <function= and </function> </tool_call>",
    "Kimi K2": "a name and JSON between <|tool_calls_section_begin|> and <|tool_calls_section_end|>",
}
REASONING = {
    "gpt-oss": "in messages <|channel|>analysis",
    "GLM": "between <think> and </think>",
    "Gemma 4": "between <|channel>thought and <channel|>",
    "Qwen 3.5": "between <think> and </think>, switched by enable_thinking",
    "Kimi K2": "between <think> and </think>",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_and_reasoning_are_described_with_their_marks(name: str) -> None:
    template = FAMILIES[name].template
    assert (calls_of(template), reasoning_of(template)) == (CALLS[name], REASONING[name])
    assert "'<" in calls_of(template, repr)


def test_a_template_without_them_has_none() -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    assert (calls_of(template), reasoning_of(template)) == ("none", "none")
