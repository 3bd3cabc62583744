"""Dialects that a template does not show, by a text in its source."""

from __future__ import annotations

import re

from edgespec.dialects.dialect import THINK, Calls, Dialect, Kind, Messages
from edgespec.dialects.literals import QUOTE


def _harmony(header: str) -> tuple[Kind, str]:
    """Return what a message is, and the tool that it calls, given a header such as `<|channel|>analysis`."""
    if found := re.search(r"to=(?:functions\.)?([^\s<]+)", header):
        return ("thinking" if found[1] in ("assistant", "user", "all") else "drop"), found[1]
    return ("thinking" if "analysis" in header else "answer"), ""


def _muse(header: str) -> tuple[Kind, str]:
    to = header.rpartition("to=")[2].strip() or "user"
    return ("answer" if to == "user" else "thinking" if to == "self" else "drop"), to


def _functionary(header: str) -> tuple[Kind, str]:
    return ("answer", "") if header.strip() == "all" else ("drop", header.strip())


KIMI_K2 = Dialect(
    reasoning=THINK,
    calls=Calls(
        "named",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call=("<|tool_call_begin|>", "<|tool_call_end|>"),
        name=("", "<|tool_call_argument_begin|>"),
        ids="functions.{name}:{number}",
    ),
)
KIMI_K3 = Dialect(
    reasoning=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    content=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    calls=Calls(
        "tagged",
        section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        call=('<|open|>call tool="', "<|close|>call<|sep|>"),
        name=("", '" index="1"<|sep|>'),
        key=('<|open|>argument key="', '" type="string"<|sep|>'),
        value=("", "<|close|>argument<|sep|>"),
    ),
    silent=("<|close|>message<|sep|>",),
)
LFM2 = Dialect(
    reasoning=THINK, calls=Calls("python", section=("<|tool_call_start|>[", "]<|tool_call_end|>"), call=("", ""))
)
GEMMA_4 = Dialect(
    reasoning=("<|channel>thought", "<channel|>"),
    calls=Calls("gemma", call=("<|tool_call>call:", "<tool_call|>"), value=(QUOTE, QUOTE)),
    silent=("<|tool_response>", "<|channel>thought\n<channel|>"),
)
FIREFUNCTION = Dialect(calls=Calls("json", section=("functools", "")))
SOLAR = Dialect(
    reasoning=("<|think|>", "<|end|>"),
    content=("<|begin|>assistant<|content|>", ""),
    calls=Calls(
        "named",
        section=("<|tool_calls|>", "<|calls|>"),
        call=("<|tool_call:begin|>", "<|tool_call:end|>"),
        name=("<|tool_call:name|>", "<|tool_call:args|>"),
    ),
)
HARMONY = Dialect(
    messages=Messages(
        "<|start|>assistant",
        "<|message|>",
        ("<|end|>", "<|call|>", "<|return|>", "<|start|>"),
        _harmony,
        "<|channel|>final",
        "<|channel|>analysis",
        "<|channel|>commentary to=functions.{} <|constrain|>json",
    ),
    calls=Calls("json"),
    reasoning_field="thinking",
)
MUSE = Dialect(
    messages=Messages(
        "<|start|>assistant",
        "<|message|>",
        ("<|eom|>", "<|eot|>", "<|start|>"),
        _muse,
        " to=user",
        " to=self",
        " to={}",
    ),
    calls=Calls(
        "tagged",
        section=("<atem:function_calls>", "</atem:function_calls>"),
        call=('<atem:invoke name="', "</atem:invoke>"),
        name=("", '">'),
        key=('<atem:parameter name="', '">'),
        value=("", "</atem:parameter>"),
    ),
)
FUNCTIONARY = Dialect(messages=Messages(">>>", "\n", (">>>",), _functionary, "all", call="{}"), calls=Calls("json"))

_KNOWN = {
    "<|tool_call_argument_begin|>": KIMI_K2,
    "<|open|>": KIMI_K3,
    "<|tool_list_start|>": LFM2,
    "List of tools: [": LFM2,
    "<|channel>": GEMMA_4,
    "functools": FIREFUNCTION,
    "<|tool_call:begin|>": SOLAR,
    "<|channel|>": HARMONY,
    "<atem:": MUSE,
    ">>>all": FUNCTIONARY,
}


def known(source: str) -> Dialect | None:
    """Return the dialect of a template that is known by name."""
    return next((dialect for text, dialect in _KNOWN.items() if text in source), None)
