"""The fields of bodies that have a kind, a default and limits, besides the settings of an answer.

`Fields.read` reads them, and `known_fields.py` has their names from here. Messages, prompts and tools have readers.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.core.setting import Facts, facts_of, setting
from edgespec.settings import LARGEST, Request

MOST_LOGPROBS = 20
SERVER_SETTINGS = tuple(
    name for name, facts in facts_of(Request).items() if not facts.row and facts.wire != "apart" and name != "lenient"
)
"""The settings that edgespec's clients send to the server, and that rows of a batch do not have. `lenient` is for chats
only."""


@dataclass(frozen=True, slots=True)
class AnswerFields:
    """Fields of all requests for answers."""

    stream: bool = setting(False, Facts("flag"))
    #: the same as `logprobs` and `top_logprobs`, in llama.cpp's server
    n_probs: int = setting(0, Facts("integer", least=0, most=MOST_LOGPROBS))
    #: refuse the request unless the model is exact
    strict: bool = setting(False, Facts("flag"))
    #: return everything that is known about each token
    return_tokens: bool = setting(False, Facts("flag"))


@dataclass(frozen=True, slots=True)
class StreamOptions:
    include_usage: bool = setting(False, Facts("flag"))


@dataclass(frozen=True, slots=True)
class ChatFields:
    """Fields of chats."""

    #: begin a chat without a system message with that of the model
    add_system_prompt: bool = setting(True, Facts("flag"))
    reasoning_format: str = setting("auto", Facts("choice", choices=("auto", "none", "deepseek")))
    lenient: bool = setting(True, Facts("flag"))
    verbosity: str = setting("medium", Facts("choice", choices=("low", "medium", "high")))
    add_generation_prompt: bool | None = setting(None, Facts("flag"))
    continue_final_message: bool | None = setting(None, Facts("flag"))


@dataclass(frozen=True, slots=True)
class TextFields:
    """Fields of completions."""

    echo: bool = setting(False, Facts("flag"))
    suffix: str = setting("", Facts("text"))


@dataclass(frozen=True, slots=True)
class Thinking:
    """Anthropic's `thinking`."""

    type: str | None = setting(None, Facts("choice", choices=("enabled", "disabled", "adaptive")))
    budget_tokens: int | None = setting(None, Facts("integer", least=1, most=LARGEST))


@dataclass(frozen=True, slots=True)
class GenerateFields:
    """Fields of Ollama's /api/generate."""

    prompt: str = setting("", Facts("text"))
    system: str = setting("", Facts("text"))
    suffix: str = setting("", Facts("text"))
    raw: bool = setting(False, Facts("flag"))


@dataclass(frozen=True, slots=True)
class InfillFields:
    """Texts of llama.cpp's /infill around a gap."""

    input_prefix: str = setting("", Facts("text"))
    input_suffix: str = setting("", Facts("text"))
    prompt: str = setting("", Facts("text"))


@dataclass(frozen=True, slots=True)
class RerankFields:
    query: str = setting("", Facts("text"))
    return_documents: bool = setting(False, Facts("flag"))
    #: the same, in Text Embeddings Inference
    return_text: bool = setting(False, Facts("flag"))


@dataclass(frozen=True, slots=True)
class TokenizeFields:
    """Fields of /tokenize, two of them under vLLM's names, too."""

    content: str | None = setting(None, Facts("text"))
    prompt: str = setting("", Facts("text"))
    add_special: bool | None = setting(None, Facts("flag"))
    add_special_tokens: bool = setting(False, Facts("flag"))
    parse_special: bool = setting(True, Facts("flag"))
    with_pieces: bool = setting(False, Facts("flag"))
