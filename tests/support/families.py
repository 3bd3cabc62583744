"""Families of thinking models: a small chat template in the style of each, and answers as its model writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Turn:
    """An answer: its reasoning, its text, and its calls, which are names with arguments."""

    thought: str
    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True)
class Family:
    """The way in which the models of a family write.

    Attributes:
        template: The chat template. It shows the reasoning of answers since the last message of the user.
        control: The marks that are control tokens.
        written: Returns an answer, given the number of calls before it.
        sent: Returns an answer as the template writes it later; None: as the model does.
        results: Returns the results of calls, and what follows them up to the next answer.
        n_calls: The most calls that an answer has.
    """

    template: str
    control: tuple[str, ...]
    written: Callable[[Turn, int], str]
    results: Callable[[Turn, Sequence[str], int], str]
    sent: Callable[[Turn, int], str] | None = None
    added: tuple[str, ...] = ()
    n_calls: int = 2

    def shown(self, turn: Turn, n_before: int) -> str:
        """Return an answer in the prompt of the next one."""
        return (self.sent or self.written)(turn, n_before)


LAST = (
    "{% set last = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set last.at = loop.index0 %}"
    "{% endif %}{% endfor %}"
)
TOOLS = "{% if tools %}{% for t in tools %}[{{ t.function.name }}]{% endfor %}{% endif %}"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- gpt-oss ----------------------------------------------------------------------------------------------------------

GPT_OSS = (
    LAST + "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('either content or thinking') }}{% endif %}"
    "{% if loop.index0 > last.at and (m.content or m.thinking) %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}"
    "<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}{% if loop.first %}" + TOOLS + "{% endif %}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def _oss_call(turn: Turn) -> str:
    ((name, arguments),) = turn.calls
    return f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{as_text(arguments)}<|call|>"


def _oss_written(turn: Turn, n_before: int) -> str:
    thought = f"<|channel|>analysis<|message|>{turn.thought}<|end|>"
    if not turn.calls:
        return f"{thought}<|start|>assistant<|channel|>final<|message|>{turn.text}<|return|>"
    text = f"<|start|>assistant<|channel|>commentary<|message|>{turn.text}<|end|>" if turn.text else ""
    return thought + text + _oss_call(turn)


def _oss_sent(turn: Turn, n_before: int) -> str:
    """Both are in one message: the template has no place for a text before a call."""
    said = "\n\n".join(filter(None, [turn.thought, turn.text]))
    return f"<|channel|>analysis<|message|>{said}<|end|>{_oss_call(turn)}"


def _oss_results(turn: Turn, results: Sequence[str], n_before: int) -> str:
    start = "<|start|>functions to=assistant<|channel|>commentary<|message|>"
    return (
        "".join(f"{start}{json.dumps(result, ensure_ascii=False)}<|end|>" for result in results) + "<|start|>assistant"
    )


# --- GLM --------------------------------------------------------------------------------------------------------------

GLM = (
    LAST + "[gMASK]<sop>" + TOOLS + "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n<think>"
    "{{ m.reasoning_content if m.reasoning_content and loop.index0 > last.at }}</think>"
    "{% if m.content %}{{ '\n' }}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>"
    "{{ c.function.name }}\n{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}{{ '<|observation|>' if loop.previtem.role != 'tool' }}\n"
    "<tool_response>\n{{ m.content }}\n</tool_response>{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _glm_written(turn: Turn, n_before: int) -> str:
    said = f"\n<think>{turn.thought}</think>" + (f"\n{turn.text}" if turn.text else "")
    for name, arguments in turn.calls:
        pairs = (f"<arg_key>{k}</arg_key>\n<arg_value>{as_text(v)}</arg_value>\n" for k, v in arguments.items())
        said += f"\n<tool_call>{name}\n{''.join(pairs)}</tool_call>"
    return said


def _glm_results(turn: Turn, results: Sequence[str], n_before: int) -> str:
    shown = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in results)
    return f"<|observation|>{shown}<|assistant|>"


# --- Gemma 4 ----------------------------------------------------------------------------------------------------------

QUOTE = '<|"|>'
GEMMA = (
    LAST + "{% macro shown(v) %}{% if v is string %}" + QUOTE + "{{ v }}" + QUOTE + "{% else %}{{ v | tojson }}"
    "{% endif %}{% endmacro %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if loop.previtem.role != 'tool' %}<|turn>model\n{% endif %}"
    "{% if m.reasoning_content and m.tool_calls and loop.index0 > last.at %}"
    "<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name + '{' }}"
    "{% for k, v in c.function.arguments | items %}{{ k }}:{{ shown(v) }}{{ ',' if not loop.last }}{% endfor %}"
    "}<tool_call|>{% endfor %}{% if not m.tool_calls %}<turn|>\n{% endif %}"
    "{% elif m.role == 'tool' %}<|tool_response>response{value:{{ shown(m.content) }}}<tool_response|>"
    "{% else %}<|turn>{{ m.role }}\n{{ m.content }}{% if loop.first %}" + TOOLS + "{% endif %}<turn|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model\n{% endif %}"
)


def _gemma_written(turn: Turn, n_before: int) -> str:
    said = f"<|channel>thought\n{turn.thought}\n<channel|>{turn.text}"
    for name, arguments in turn.calls:
        pairs = (f"{k}:{QUOTE}{v}{QUOTE}" if isinstance(v, str) else f"{k}:{v}" for k, v in arguments.items())
        said += f"<|tool_call>call:{name}{{{','.join(pairs)}}}<tool_call|>"
    return said


def _gemma_results(turn: Turn, results: Sequence[str], n_before: int) -> str:
    start, end = f"<|tool_response>response{{value:{QUOTE}", f"{QUOTE}}}<tool_response|>"
    return "".join(f"{start}{result}{end}" for result in results)


# --- Qwen 3.5 ---------------------------------------------------------------------------------------------------------

QWEN = (
    LAST + "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if loop.index0 > last.at %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\n\n' if loop.first and m.content else '\n' if not loop.first }}"
    "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% elif m.role == 'tool' %}{{ '<|im_start|>user' if loop.previtem.role != 'tool' }}\n<tool_response>\n"
    "{{ m.content }}\n</tool_response>{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if loop.first %}" + TOOLS + "{% endif %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking else '<think>\n' }}{% endif %}"
)


def _qwen_written(turn: Turn, n_before: int) -> str:
    calls = list[str]()
    for name, arguments in turn.calls:
        pairs = (f"<parameter={key}>\n{as_text(value)}\n</parameter>\n" for key, value in arguments.items())
        calls.append(f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>")
    between = "\n\n" if turn.text and calls else ""
    return f"{turn.thought}\n</think>\n\n{turn.text}{between}" + "\n".join(calls)


def _qwen_results(turn: Turn, results: Sequence[str], n_before: int) -> str:
    shown = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in results)
    return f"<|im_end|>\n<|im_start|>user{shown}<|im_end|>\n<|im_start|>assistant\n<think>\n"


# --- Kimi K2 ----------------------------------------------------------------------------------------------------------

KIMI = (  # as the original one, it writes the ids that it is given
    LAST + TOOLS + "{% for m in messages %}{% if m.role == 'assistant' %}<|im_assistant|>assistant<|im_middle|>"
    "<think>{{ m.reasoning_content if m.tool_calls and loop.index0 > last.at }}</think>{{ m.content }}"
    "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}"
    "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>{% endif %}<|im_end|>{% elif m.role == 'tool' %}<|im_system|>tool<|im_middle|>"
    "## Return of {{ m.tool_call_id }}\n{{ m.content }}<|im_end|>{% else %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
    "{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)


def _kimi_written(turn: Turn, n_before: int) -> str:
    calls = (
        f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{as_text(arguments)}<|tool_call_end|>"
        for n, (name, arguments) in enumerate(turn.calls, n_before)
    )
    section = f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>" if turn.calls else ""
    return f"<think>{turn.thought}</think>{turn.text}{section}"


def _kimi_results(turn: Turn, results: Sequence[str], n_before: int) -> str:
    ids = (f"functions.{name}:{n}" for n, (name, _) in enumerate(turn.calls, n_before))
    start = "<|im_end|>"
    for id, result in zip(ids, results, strict=True):
        start += f"<|im_system|>tool<|im_middle|>## Return of {id}\n{result}<|im_end|>"
    return f"{start}<|im_assistant|>assistant<|im_middle|>"


THINK = ("<think>", "</think>")
FAMILIES = {
    "gpt-oss": Family(
        GPT_OSS,
        tuple(f"<|{name}|>" for name in ("start", "end", "message", "channel", "call", "return", "constrain")),
        _oss_written,
        _oss_results,
        _oss_sent,
        n_calls=1,
    ),
    "GLM": Family(
        GLM,
        ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"),
        _glm_written,
        _glm_results,
        added=(*THINK, "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "Gemma 4": Family(
        GEMMA,
        ("<|turn>", "<turn|>"),
        _gemma_written,
        _gemma_results,
        added=(
            QUOTE,
            *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
        ),
    ),
    "Qwen 3.5": Family(QWEN, (), _qwen_written, _qwen_results, added=(*THINK, "<tool_call>", "</tool_call>")),
    "Kimi K2": Family(
        KIMI,
        tuple(f"<|im_{name}|>" for name in ("middle", "assistant", "user", "system"))
        + tuple(
            f"<|tool_call{name}|>" for name in ("s_section_begin", "s_section_end", "_begin", "_argument_begin", "_end")
        ),
        _kimi_written,
        _kimi_results,
        added=THINK,
    ),
}
