"""Every known field of every format: one that would change an answer is read, noted or refused, and never ignored."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from serving import Serving
from tiny_projector import picture

from edgespec.gguf_file.chat_templates import ChatTemplates
from edgespec.requests.bad_input import BadInputError, UnsupportedError
from edgespec.requests.known_fields import (
    APPLY_TEMPLATE,
    CHAT,
    COMPLETION,
    DETOKENIZE,
    EMBEDDING,
    EMBEDDINGS,
    INFILL,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_SAMPLING,
    RERANK,
    RESPONSES,
    TEXT,
    TOKENIZE,
    Field,
    Known,
    check,
)
from edgespec.serve.anthropic import message_call
from edgespec.serve.chat import Call
from edgespec.serve.completion import completion_call, infill_call
from edgespec.serve.embeddings import (
    EmbeddingsObject,
    NativeEmbeddingObject,
    OllamaEmbeddingObject,
    OllamaEmbedObject,
    RerankObject,
    VectorsObject,
)
from edgespec.serve.errors import ApiError, error_for
from edgespec.serve.ollama import ollama_chat, ollama_generate
from edgespec.serve.openai import chat_call, text_call
from edgespec.serve.responses import response_call
from edgespec.serve.served import Served

pytestmark = pytest.mark.cli
PICTURE, OTHER = (b64encode(picture(seed)).decode() for seed in (1, 2))
DATA = f"data:image/png;base64,{PICTURE}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": PICTURE}
SEEN = {"type": "image", "source": {"type": "base64", "data": OTHER}}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
USUAL: dict[str, Any] = {
    "temperature": 0.1,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.5,
    "typical_p": 0.5,
    "typ_p": 0.5,
    "repeat_penalty": 2,
    "repetition_penalty": 2,
    "repeat_last_n": 3,
    "repeat_limit": 300,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "top_n_sigma": 1,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dry_multiplier": 0.8,
    "dry_base": 2,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": '["x", "y"]',
    "logit_bias": {"5": 3},
    "max_tokens": 5,
    "n_predict": 5,
    "seed": 4,
    "stop": "x",
    "special": True,
    "ignore_eos": True,
    "verify": "block",
    "min_tokens": 2,
    "stop_token_ids": [5],
    "bad_words": ["x"],
    "cache_prompt": False,
    **dict.fromkeys(("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"), 5),
    "thinking_token_budget": 5,
    "lora": [{"id": 0, "scale": 1}],
    "lora[0].id": "two",
    "lora[0].scale": 0.5,
    "infill": True,
    "n_indent": 4,
    "t_max_predict_ms": 100,
    "samplers": ["top_k", "temperature"],
    "sampler_priority": ["min_p", "top_k"],
    "sampler_order": [5, 0],
    "temperature_last": False,
    "typical": 0.5,
    "nsigma": 1,
    "rep_pen": 2,
    **dict.fromkeys(("rep_pen_range", "repetition_penalty_range"), 3),
    "sampler_seed": 4,
    **dict.fromkeys(("max_new_tokens", "num_predict"), 5),
    "min_length": 2,
    "stopping_strings": ["x"],
    "ban_eos_token": True,
    "grammar_string": 'root ::= "a"',
    "custom_token_bans": "5,6",
    "remembered": False,
    "spec_type": "none",
    "pace": "off",
    "draft_n_max": 1,
    "grammar": 'root ::= "a"',
    "json_schema": SCHEMA,
    "regex": "a",
    "guided_json": SCHEMA,
    "guided_regex": "a",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"',
    "response_format": {"type": "json_object"},
    "response_format.type": "json_schema",
    "response_format.schema": SCHEMA,
    "response_format.json_schema": {},
    "response_format.json_schema.schema": SCHEMA,
    "structured_outputs": {"json": SCHEMA},
    "structured_outputs.json": SCHEMA,
    "structured_outputs.regex": "a",
    "structured_outputs.choice": ["a"],
    "structured_outputs.grammar": 'root ::= "a"',
    "structured_outputs.json_object": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "stream_options.include_usage": True,
    "n_probs": 2,
    "strict": "yes",
    "sample": 2,
    "left": 5,
    "return_tokens": True,
    "return_progress": True,
    "raw_marks": False,
}
OF_COMPLETION = USUAL | {"n": 2, "n_cmpl": 2, "best_of": 2, "logprobs": 2, "special": False}
OF_COMPLETION |= {"response_fields": "content", "return_tokens": "yes"}  # what the object reads
OF_BLOCKS = {path: value for path, value in USUAL.items() if not path.startswith(("response_format", "n_probs"))}
OF_CHATS: dict[str, Any] = {
    "reasoning_effort": "none",
    "chat_template_kwargs": {"mood": 1},
    "enable_thinking": False,
    "reasoning_format": "none",
    "lenient": False,
    "add_system_prompt": "yes",  # the model has none
}
CALLED = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
TALK: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {"role": "assistant", "content": "So", "tool_calls": CALLED},
    {"role": "tool", "tool_call_id": "a", "content": "1"},
]
OF_TOOLS: dict[str, Any] = {
    "tools[0].type": "custom",
    "tools[0].function": {"name": "g"},
    "tools[0].function.name": "g",
    "tools[0].function.description": "d",
    "tools[0].function.parameters": {},
}
CUSTOM: dict[str, Any] = {"type": "custom", "custom": {"name": "g", "format": {"definition": "a"}}}
OF_FORMATS: dict[str, Any] = {
    "format": {"definition": "b"},
    "format.syntax": "regex",
    "format.definition": "b",
    "format.grammar": {"definition": "b"},
    "format.grammar.syntax": "regex",
    "format.grammar.definition": "b",
}
OF_TOOLS |= {
    "tools[1].custom": {"name": "h"},
    "tools[1].custom.name": "h",
    "tools[1].custom.description": "d",
    **{f"tools[1].custom.{name}": value for name, value in OF_FORMATS.items()},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
NAMED = {"type": "function", "name": "f"}
GROUP: dict[str, Any] = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "x"}]}
BLOCKS: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [TALK[0]["content"][0]]}]},
]
ITEMS: list[Any] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
]


CSV = "bixtCjEsMgo="  # n,m and 1,2
OF_FILES = {"filename": "a.csv", "file_data": "Yg==", "file_id": "file-1"}
OF_ITEM_FILES = OF_FILES | {"file_url": "http://example.org/a.pdf"}
OF_DOCUMENTS: dict[str, Any] = {
    "title": "a.csv",
    "context": "A table",
    "citations": {"enabled": True},
    "source": {"type": "text", "data": "x"},
    "source.type": "text",
    "source.media_type": "text/csv",
    "source.data": "Yg==",
    "source.content": "x",
    "source.url": "http://example.org/a.pdf",
    "source.file_id": "file-1",
}
DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": CSV}}


def within(place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{place}.{name}": value for name, value in fields.items()}


OLLAMA_TALK: list[Any] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "tool_name": "f", "content": "1"},
]
OF_OLLAMA: dict[str, Any] = {
    "stream": False,
    "format": "json",
    "think": False,
    "logprobs": True,
    "top_logprobs": 2,
    "options": {"seed": 2},
    **{f"options.{name}": USUAL[name] for name in OLLAMA_SAMPLING},
    "options.num_predict": 5,
    "add_system_prompt": "yes",
}


@dataclass(frozen=True, slots=True)
class Format:
    """A body that is read with `read` by the table `known`, and values that change what is asked, by their paths."""

    read: Callable[[Mapping[str, Any], Served], Call | VectorsObject]
    known: Known
    body: dict[str, Any]
    examples: Mapping[str, Any]


def of_texts(style: type[VectorsObject], pooling: str) -> Callable[[Mapping[str, Any], Served], VectorsObject]:
    """Read a body as if the model had this pooling."""

    def read(body: Mapping[str, Any], model: Served) -> VectorsObject:
        changed = copy(model)
        changed.info = replace(model.info, pooling=pooling, n_embd=64)
        return style(body, changed)

    return read


FORMATS = {
    "chat": Format(
        chat_call,
        CHAT,
        {"messages": TALK, "tools": TOOLS, "seed": 1},
        USUAL
        | OF_CHATS
        | OF_TOOLS
        | {
            "max_completion_tokens": 5,
            "n": 2,
            "n_cmpl": 2,
            "best_of": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "prompt_logprobs": 2,
            "tools": [],
            "tool_choice": "none",
            "tool_choice.type": "often",
            "tool_choice.function": {"name": "f"},
            "tool_choice.function.name": "f",
            "tool_choice.custom": {"name": "f"},
            "tool_choice.custom.name": "f",
            "tool_choice.allowed_tools": {"mode": "required", "tools": [NAMED]},
            "tool_choice.allowed_tools.mode": "required",
            "tool_choice.allowed_tools.tools": [],
            "messages[1].tool_calls[0].type": "custom",
            "messages[1].tool_calls[0].custom": {"name": "g", "input": "x"},
            "messages[1].tool_calls[0].custom.name": "g",
            "messages[1].tool_calls[0].custom.input": "x",
            "verbosity": "low",
            "parallel_tool_calls": False,
            "add_generation_prompt": False,
            "continue_final_message": True,
            "messages": TALK[:1],
            "messages[0].role": "system",
            "messages[0].name": "ann",
            "messages[1]": {"role": "assistant", "refusal": "no"},
            "messages[1].refusal": 3,
            "messages[2].tool_call_id": "b",
            "messages[1].reasoning_content": "hm",
            "messages[1].reasoning": "hm",
            "messages[1].tokens": [5],
            "messages[0].content": "Hi",
            **within("messages[0].content[0].file", OF_FILES),
            "messages[0].content[0].file": {"file_data": CSV},
            "messages[0].content[0].type": "image_url",
            "messages[0].content[0].text": "Hi",
            "messages[0].content[0].image_url": {"url": DATA},
            "messages[0].content[0].image_url.url": DATA,
            "messages[1].tool_calls": [],
            "messages[0].content[0].refusal": {"type": "refusal", "refusal": "no"},
            "messages[1].tool_calls[0].id": "b",
            "messages[1].tool_calls[0].function": {"name": "g"},
            "messages[1].tool_calls[0].function.name": "g",
            "messages[1].tool_calls[0].function.arguments": '{"a": 1}',
        },
    ),
    "completions": Format(
        text_call,
        TEXT,
        {"prompt": "Hello", "seed": 1},
        USUAL
        | {"prompt": "Hi", "n": 2, "n_cmpl": 2, "best_of": 2, "logprobs": 2, "echo": True, "suffix": "x"}
        | {"prompt_logprobs": 2},
    ),
    "completion": Format(
        completion_call,
        COMPLETION,
        {"prompt": "Hello", "seed": 1},
        OF_COMPLETION | {"prompt": "Hi", "echo": True, "suffix": "x"},
    ),
    "infill": Format(
        infill_call,
        INFILL,
        {"prompt": "Hello", "input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}], "seed": 1},
        OF_COMPLETION
        | {
            "prompt": "Hi",
            "input_prefix": "x",
            "input_suffix": "x",
            "input_extra": [],
            "input_extra[0].text": "x",
            "input_extra[0].filename": 3,
        },
    ),
    "messages": Format(
        message_call,
        MESSAGES,
        {
            "messages": BLOCKS,
            "max_tokens": 9,
            "seed": 1,
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "output_config": {"effort": None},
        },
        OF_BLOCKS
        | OF_CHATS
        | {
            "stop_sequences": ["x"],
            "system": "Be brief.",
            "tools": [],
            "tool_choice": {"type": "none"},
            "system[0].type": "image",
            "system[0].text": "x",
            "messages": BLOCKS[:1],
            "messages[0].role": "system",
            "messages[0].content": "Hi",
            **within("messages[0].content[0]", OF_DOCUMENTS),
            **within("messages[2].content[0].content[0]", OF_DOCUMENTS),
            "messages[0].content[0].type": "image",
            "messages[0].content[0].text": "x",
            "messages[0].content[0].source": SOURCE,
            "messages[0].content[0].source.type": "url",
            "messages[0].content[0].source.data": PICTURE,
            "messages[2].content[0].content[0].source": SOURCE,
            "messages[2].content[0].content[0].source.type": "url",
            "messages[2].content[0].content[0].source.data": PICTURE,
            "messages[1].content[0].id": "b",
            "messages[1].content[0].name": "g",
            "messages[1].content[0].input": {"a": 1},
            "messages[2].content[0].tool_use_id": "b",
            "messages[2].content[0].is_error": True,
            "messages[2].content[0].content": "2",
            "messages[1].content[0]": {"type": "thinking", "thinking": "hm"},
            "messages[1].content[0].thinking": "hm",
            "messages[2].content[0].content[0].type": "image",
            "messages[2].content[0].content[0].text": "2",
            "messages[2].content[0].content[0].tool_name": "g",
            "tools[0].type": "web_search",
            "tools[0].name": "g",
            "tools[0].description": "d",
            "tools[0].input_schema": {},
            "tools[0].eager_input_streaming": True,
            "tool_choice.type": "any",
            "tool_choice.name": "f",
            "tool_choice.disable_parallel_tool_use": True,
            "thinking": {"type": "disabled"},
            "thinking.type": "disabled",
            "thinking.budget_tokens": 5,
            "thinking.display": "omitted",
            "output_config": {"effort": "high"},
            "output_config.effort": "high",
            "output_config.format": {"type": "json_schema", "schema": SCHEMA},
            "output_config.format.type": "xml",
            "output_config.format.schema": SCHEMA,
        },
    ),
    "responses": Format(
        response_call,
        RESPONSES,
        {
            "input": ITEMS,
            "seed": 1,
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        },
        OF_BLOCKS
        | OF_CHATS
        | {
            "max_output_tokens": 5,
            "instructions": "Be brief.",
            "parallel_tool_calls": False,
            "tool_choice.type": "often",
            "tool_choice.name": "f",
            "tool_choice.namespace": "g",
            "tool_choice.mode": "required",
            "tool_choice.tools": [],
            "input[1].namespace": "g",
            "input[1].input": "x",
            "input[1].action": {"a": 1},
            "input[1].operation": {"a": 1},
            "input[1].error": "x",
            "input[1].summary": [{"text": "x"}],
            **{f"tools[1].{name}": value for name, value in OF_FORMATS.items()},
            "tools[1].tools": [{"type": "function", "name": "g"}],
            "tools[1].tools[0].type": "web_search",
            "tools[1].tools[0].name": "h",
            "tools[1].tools[0].description": "d",
            "tools[1].tools[0].parameters": SCHEMA,
            **{f"tools[1].tools[0].{name}": value for name, value in OF_FORMATS.items()},
            "text.verbosity": "low",
            "include": ["message.output_text.logprobs"],
            "tool_choice": "none",
            "tools": [],
            "input": "Hi",
            "input[0].type": "image",
            "input[0].role": "system",
            "input[1].call_id": "b",
            "input[1].name": "g",
            "input[1].arguments": '{"a": 1}',
            "input[0].content": "Hi",
            "input[2].output": "2",
            **within("input[0].content[0]", OF_ITEM_FILES),
            **within("input[2].output[0]", OF_ITEM_FILES),
            "input[0].content[0].type": "input_image",
            "input[0].content[0].text": "x",
            "input[0].content[0].image_url": DATA,
            "input[0].content[0].image_url.url": DATA,
            "input[2].output[0].image_url": DATA,
            "input[2].output[0].image_url.url": DATA,
            "input[0].content[0]": {"type": "refusal", "refusal": "no"},
            "input[0].content[0].refusal": 3,
            "input[2].output[0].type": "input_image",
            "input[2].output[0].text": "x",
            "input[2].output[0]": {"type": "refusal", "refusal": "no"},
            "input[2].output[0].refusal": 3,
            "tools[0].type": "web_search",
            "tools[0].name": "g",
            "tools[0].description": "d",
            "tools[0].parameters": {},
            "text": {"format": {"type": "json_object"}},
            "text.format": {"type": "json_object"},
            "text.format.type": "json_object",
            "text.format.schema": SCHEMA,
            "reasoning": {"effort": "high"},
            "reasoning.effort": "high",
        },
    ),
    "ollama chat": Format(
        ollama_chat,
        OLLAMA_CHAT,
        {"messages": OLLAMA_TALK, "tools": TOOLS, "options": {"seed": 1}},
        OF_OLLAMA
        | OF_TOOLS
        | {
            "messages": OLLAMA_TALK[:1],
            "messages[0].role": "system",
            "messages[0].content": "Hi",
            "messages[0].images": ["aGk="],
            "messages[1].thinking": "hm",
            "messages[1].tool_calls": [],
            "messages[2].tool_name": "g",
            "messages[2].name": "g",
            "messages[2].tool_call_id": "b",
            "tools": [],
        },
    ),
    "ollama generate": Format(
        ollama_generate,
        OLLAMA_GENERATE,
        {"prompt": "Hello", "options": {"seed": 1}},
        OF_OLLAMA | {"prompt": "Hi", "suffix": "x", "system": "Be brief.", "raw": True, "images": [PICTURE]},
    ),
    "embeddings": Format(
        of_texts(EmbeddingsObject, "mean"),
        EMBEDDINGS,
        {"input": "Hello"},
        {"input": "Hi", "encoding_format": "base64", "dimensions": 8},
    ),
    "rerank": Format(
        of_texts(RerankObject, "rank"),
        RERANK,
        {"query": "What?", "documents": [{"text": "a"}, "b"]},
        {"query": "Why?", "documents": ["b"], "documents[0].text": "c", "top_n": 1, "return_documents": True}
        | {"texts": ["b"], "return_text": True},
    ),
    "embedding": Format(
        of_texts(NativeEmbeddingObject, "mean"),
        EMBEDDING,
        {"content": "Hello"},
        {"content": "Hi", "input": "Hi", "dimensions": 8},
    ),
    "ollama embed": Format(
        of_texts(OllamaEmbedObject, "mean"),
        OLLAMA_EMBED,
        {"input": "Hello"},
        {"input": "Hi", "truncate": False, "dimensions": 8},
    ),
    "ollama embeddings": Format(
        of_texts(OllamaEmbeddingObject, "mean"), OLLAMA_EMBEDDINGS, {"prompt": "Hello"}, {"prompt": "Hi"}
    ),
}
# Fields of objects that a choice is made of: alone they change nothing, and the object is an example with all of them.
WITH: dict[str, dict[str, Any]] = {
    "response_format.schema": {"response_format.type": "json_object"},
    "response_format.json_schema.schema": {"response_format.type": "json_schema"},
    "messages[0].content[0].refusal": {"messages[0].content[0].type": "refusal"},
    "messages[0].content[0].image_url": {"messages[0].content[0].type": "image_url"},
    "messages[0].content[0].image_url.url": {"messages[0].content[0].type": "image_url"},
    "input[0].content[0].image_url": {"input[0].content[0].type": "input_image"},
    "input[0].content[0].image_url.url": {"input[0].content[0].type": "input_image"},
    "input[2].output[0].image_url": {"input[2].output[0].type": "input_image"},
    "input[2].output[0].image_url.url": {"input[2].output[0].type": "input_image"},
    **{f"messages[0].content[0].source{name}": {"messages[0].content[0]": SEEN} for name in ("", ".type", ".data")},
    **{
        f"messages[2].content[0].content[0].source{name}": {"messages[2].content[0].content": [SEEN]}
        for name in ("", ".type", ".data")
    },
    "messages[1].refusal": {"messages[1].content": None},
    "top_logprobs": {"logprobs": True},
    "return_text": {"texts": ["a"], "documents": None},
    "messages[2].name": {"messages[2].tool_name": None},
    "messages[1].content[0].thinking": {"messages[1].content[0].type": "thinking"},
    "messages[2].content[0].content[0].tool_name": {"messages[2].content[0].content[0].type": "tool_reference"},
    "system[0].text": {"system[0].type": "text"},
    "tool_choice.name": {"tool_choice.type": "tool"},
    "tool_choice.function": {"tool_choice.type": "function"},
    "tool_choice.function.name": {"tool_choice.type": "function"},
    "tool_choice.custom": {"tool_choice.type": "custom"},
    "tool_choice.custom.name": {"tool_choice.type": "custom"},
    **{
        f"tool_choice.allowed_tools{name}": {
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [NAMED]}}
        }
        for name in ("", ".mode", ".tools")
    },
    **{
        f"tool_choice.{name}": {"tool_choice": {"type": "allowed_tools", "tools": [NAMED]}}
        for name in ("mode", "tools")
    },
    "tool_choice.namespace": {"tool_choice": {"type": "function", "name": "f"}},
    **{
        f"messages[1].tool_calls[0].custom{name}": {"messages[1].tool_calls[0].type": "custom"}
        for name in ("", ".name", ".input")
    },
    "input[1].input": {"input[1].type": "custom_tool_call"},
    "input[1].action": {"input[1].type": "local_shell_call"},
    "input[1].operation": {"input[1].type": "apply_patch_call"},
    "input[1].error": {"input[1].type": "mcp_call"},
    "input[1].summary": {"input[1].type": "reasoning"},
    **{path: {"tools[1]": CUSTOM} for path in OF_TOOLS if path.startswith("tools[1].custom")},
    **{f"tools[1].{name}": {"tools[1]": {"type": "custom", **CUSTOM["custom"]}} for name in OF_FORMATS},
    "tools[1].tools": {"tools[1]": GROUP},
    **{f"tools[1].tools[0].{name}": {"tools[1]": GROUP} for name in ("type", "name", "description", "parameters")},
    **{
        f"tools[1].tools[0].{name}": {
            "tools[1]": {"type": "namespace", "tools": [{"type": "custom", **CUSTOM["custom"]}]}
        }
        for name in OF_FORMATS
    },
    "output_config.format.schema": {"output_config.format.type": "json_schema"},
    "text.format.schema": {"text.format.type": "json_schema"},
    "input[0].content[0].refusal": {"input[0].content[0].type": "refusal"},
    "input[2].output[0].refusal": {"input[2].output[0].type": "refusal"},
}
PLACES: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {
    "messages[0].content[0].file": (OF_FILES, {"messages[0].content[0]": {"type": "file", "file": {"file_data": CSV}}}),
    "input[0].content[0]": (OF_ITEM_FILES, {"input[0].content[0]": {"type": "input_file", "file_data": CSV}}),
    "input[2].output[0]": (OF_ITEM_FILES, {"input[2].output[0]": {"type": "input_file", "file_data": CSV}}),
    "messages[0].content[0]": (OF_DOCUMENTS, {"messages[0].content[0]": DOCUMENT}),
    "messages[2].content[0].content[0]": (OF_DOCUMENTS, {"messages[2].content[0].content[0]": DOCUMENT}),
}
WITH |= {f"{place}.{name}": needed for place, (fields, needed) in PLACES.items() for name in fields}
WITH["messages[0].content[0].file"] = {"messages[0].content[0].type": "file"}
for place in ("messages[0].content[0]", "messages[2].content[0].content[0]"):
    WITH[f"{place}.source.content"] = {place: {"type": "document", "source": {"type": "content", "content": "b"}}}
    for kind, name in (("url", "url"), ("file", "file_id")):
        WITH[f"{place}.source.{name}"] = {place: {"type": "document", "source": {"type": kind}}}
OF_THE_OBJECT = {"thinking.display"}  # what the object of the answer reads


@pytest.fixture
def model(templated: Serving) -> Served:
    """A model that fills gaps, and whose template reads tools, so that ids of calls and the like are part of its
    prompt."""
    changed = copy(templated.served)
    template = "{{ tools }}{{ enable_thinking }}{% for m in messages %}{{ m.content }}{% endfor %}"
    changed.templates = ChatTemplates(template)
    return changed


def paths(known: Known, where: str = "") -> Iterator[tuple[str, Field]]:
    for name, field in known.items():
        yield where + name, field
        if field.inner is not None:
            yield from paths(field.inner, f"{where}{name}/")


def plain(path: str) -> str:
    """A path as the tables have it, without numbers of elements. Names of fields may have dots."""
    return re.sub(r"\[\d+\]", "", path).replace(".", "/")


def put(body: dict[str, Any], path: str, value: Any) -> None:
    """Set what a path leads to, making objects and lists on the way."""
    steps = [int(step) if step.isdigit() else step for step in re.split(r"[.\[\]]+", path) if step]
    place: Any = body
    for step, following in zip(steps, [*steps[1:], ""], strict=True):
        if isinstance(step, int) and step == len(place):
            place.append({})
        if following == "":
            place[step] = value
        elif isinstance(step, str) and not isinstance(place.get(step), dict | list):
            place[step] = [] if isinstance(following, int) else {}
        place = place[step]


def asked(call: Call | VectorsObject) -> Any:
    """All that a call asks for, to compare."""
    if isinstance(call, VectorsObject):
        return {name: value for name, value in vars(call).items() if name not in ("_served", "_started_ns")}
    return (
        *(call.requests, call.stream, call.include_usage, call.splits, call.returns_tokens, call.opened),
        *(call.words, call.notes, call.echoes, call.dialect, call.schemas, call.most_calls, call.eager),
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_field_that_is_read_changes_what_is_asked_or_is_refused(name: str, model: Served) -> None:
    format = FORMATS[name]
    found = {plain(path) for path in format.examples}
    missing = {path for path, field in paths(format.known) if field.use == "read"} - found
    assert missing == set()
    ignored = []
    for path, value in format.examples.items():
        body = deepcopy(format.body)
        for other, needed in WITH.get(path, {}).items():
            put(body, other, deepcopy(needed))
        try:
            before: Any = asked(format.read(body, model))
        except (ApiError, BadInputError):
            before = None
        put(body, path, deepcopy(value))
        try:
            now = asked(format.read(body, model))
        except (ApiError, BadInputError) as error:
            assert error_for(error).param or path == "messages"
        else:
            if now == before and path not in OF_THE_OBJECT:
                ignored.append(path)
    assert ignored == []


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_server_does_not_have_is_refused_by_name(name: str, model: Served) -> None:
    format = FORMATS[name]
    for path, field in paths(format.known):
        body = deepcopy(format.body)
        place: Any = body
        *outer, last = path.split("/")
        for step in outer:
            place[step] = place = {}
        place[last] = "zz"
        if field.use == "only":
            with pytest.raises(UnsupportedError) as caught:
                format.read(body, model)
            assert caught.value.where == path.replace("/", ".")
            for harmless in field.values:
                place[last] = harmless
                assert not any(path.replace("/", ".") in note for note in check(body, format.known))


def test_unknown_fields_are_noted_wherever_they_stand() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}], "y": 2}], "z": 3}
    notes = check(body, CHAT)
    names = [re.findall("'(.*)'", note)[0] for note in notes]
    assert names == ["messages[0].content[0].x", "messages[0].y", "z"]
    assert check(body | {"z": None}, APPLY_TEMPLATE) == notes[:2]
    assert check({"content": "a", "pieces": True}, TOKENIZE) == ["unknown field 'pieces' ignored"]
    assert check({"tokens": [1], "with_pieces": True}, DETOKENIZE) == []
    assert len(check({f"x{number}": 1 for number in range(99)}, CHAT)) == 8


def test_a_body_of_very_many_objects_is_refused() -> None:
    parts: list[Any] = [{}] * 60_000
    assert check({"messages": [{"content": parts}, *[[]] * 200_000]}, CHAT) == []
    with pytest.raises(BadInputError, match=r"messages\[1\]\.content\[\d+\] is one of more than 100,000 objects"):
        check({"messages": [{"content": parts}, {"content": parts}]}, CHAT)
