"""Models that call tools: a tiny random one with a chat template for tools, whose answers a grammar forces."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_gguf import write_model

from edgespec.cancel import CancelFlag
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import Model
from edgespec.llm.stream import Answer
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Request
from edgespec.tools.config import ServerConfig

SUPPORT = Path(__file__).parent
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %} {{ tool.function | tojson }}{% endfor %}"
    " Call them within <tool_call></tool_call>.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT_TEMPLATE = (  # as Mistral's: an answer has calls in a field, or the next message is the user's
    "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls"
    " and messages[loop.index0 - 1].role != 'tool' %}{{ raise_exception('a result without a call') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>"
    "{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}<|im_start|>assistant\n"
)


def tool_server(script: str = "tool_server.py", *args: str, name: str = "calculator") -> ServerConfig:
    return ServerConfig(name, command=sys.executable, args=(str(SUPPORT / script), *args))


def calling_model(folder: Path, template: str = TEMPLATE) -> Path:
    return write_model(folder / "calling.gguf", "llama", chat_template=template, n_ctx=4096)


def written_call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


class Forced(Model):
    """A model whose first answers to a message are forced by grammars: `texts` in turn, then `length` letters of its
    own. The real engine generates all of them, with its drafters and its KV cache. `requests` are those it got. The
    runtime stays open."""

    def __init__(self, runtime: Runtime, texts: Sequence[str], length: int = 12) -> None:
        self._runtime, self._texts, self._length = runtime, list(texts), length
        self.requests: list[Request] = []

        self.notes, self.loop = runtime.notes, runtime.loop

    @property
    def settings(self) -> LoadSettings:
        return self._runtime.settings

    @property
    def info(self) -> ModelInfo:
        return self._runtime.info

    @property
    def room(self) -> int:
        return self._runtime.room

    def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        return self._runtime.call(name, *args, **keywords)

    def submit(self, request: Request, cancel: CancelFlag | None = None) -> Answer:
        self.requests.append(request)
        text = json.dumps(self._texts.pop(0)) if self._texts else f"[a-z]{{{self._length}}}"
        return self._runtime.submit(replace(request, regex="", grammar=f"root ::= {text}"), cancel)

    def close(self) -> None:
        self._runtime.forget()
