"""The keywords of `Model.chat` and similar methods, for editors and type checkers, and the requests they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypedDict

from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import SettingError, facts_of
from edgespec.core.verify import VerifyRule
from edgespec.errors import UsageError, did_you_mean
from edgespec.settings import Message, Request, bias_pairs, schema_text, shown, with_system

Messages = Sequence[Message | dict[str, Any]]
Texts = tuple[str, ...] | list[str] | str
_OF_TEXTS = ("stop", "bad_words", "must_call", "dry_sequence_breakers")


class AnswerOptions(TypedDict, total=False):
    """The fields of `Request` and `SamplingSettings`, which describe them and hold the defaults.

    Also allowed: a list or a single text for `stop` and the other settings that are several texts, a dict for
    `json_schema`, and a dict from token id to bias for `logit_bias`. `sampling` sets all sampling settings; single ones
    take precedence.

    Settings that are left out are the model's own (`Model.own_settings`), else the defaults. `add_system_prompt`:
    chats without a system message get the model's own.
    """

    add_system_prompt: bool

    max_tokens: int
    sampling: SamplingSettings
    seed: int
    sample: int
    verify: VerifyRule
    reference: tuple[int, ...]
    stop: Texts
    logprobs: int | None
    prompt_logprobs: int | None
    special: bool
    ignore_eos: bool
    repeat_limit: int
    grammar: str
    json_schema: str | Mapping[str, object] | bool
    regex: str
    left: int
    spec_type: str | None
    pace: str | None
    draft_n_max: int | None
    lenient: bool
    template: str
    remembered: bool
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    bad_words: Texts
    cache_prompt: bool
    lora: tuple[tuple[int | str, float], ...]
    reasoning_budget: int
    must_call: Texts
    parallel_calls: bool
    raw_marks: bool
    infill: bool
    return_progress: bool
    n_indent: int
    t_max_predict_ms: int

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Texts
    logit_bias: tuple[tuple[int, float], ...] | Mapping[int, float]


def chat_request(
    messages: Messages | str, options: AnswerOptions, own: Mapping[str, Any], system: str | None = None
) -> Request:
    """Return the request for the next answer of a chat, or to a question. `own` are the model's own settings, of which
    `system` replaces the system prompt. Raises UsageError for messages that are none."""
    said = (Message("user", messages),) if isinstance(messages, str) else _turns(messages)
    if system is None:
        system = own.get("system", "") if options.get("add_system_prompt", True) else ""
    elif any(message.role == "system" for message in said):
        raise UsageError("there are two system messages", why="one is in the messages", hint="leave system out")
    return request_of(options, own, messages=with_system(said, system))


def asked(prompt: str | Messages, options: AnswerOptions, own: Mapping[str, object]) -> Request:
    """Return the request for the prompt or the messages that were passed to `complete`."""
    return request_of(options, own, prompt=prompt) if isinstance(prompt, str) else chat_request(prompt, options, own)


def _turns(messages: Messages) -> tuple[Message, ...]:
    hint = 'messages are a list such as [{"role": "user", "content": "Hello"}]'
    if isinstance(messages, Mapping | bytes) or not isinstance(messages, Iterable):
        raise UsageError(f"{shown(messages)} is neither a text nor a list of messages", hint=hint)
    said = list[Message]()
    for message in messages:
        try:
            said.append(message if isinstance(message, Message) else Message(**message))
        except TypeError as error:
            what = f"a message must have exactly role and content, not {shown(message)}"
            raise UsageError(what, hint=hint) from error
    if not said:
        raise UsageError("there are no messages", hint=hint)
    return (*said,)


def request_of(options: AnswerOptions, own: Mapping[str, Any] = MappingProxyType({}), **what: Any) -> Request:
    """Return the request with these keywords, and with a model's `own` settings for those that are left out.

    Raises UsageError for an unknown keyword.
    """
    sampling_names = facts_of(SamplingSettings)
    left_out = ("system", *sampling_names) if "sampling" in options else ("system",)
    settings: dict[str, Any] = {name: value for name, value in own.items() if name not in left_out} | {**options}
    settings.pop("add_system_prompt", None)
    for name in _OF_TEXTS:
        if isinstance(texts := settings.get(name), str | list):
            settings[name] = (texts,) if isinstance(texts, str) else tuple(texts)
    sampling = {name: settings.pop(name) for name in list(settings) if name in sampling_names}
    try:
        if "json_schema" in settings:
            settings["json_schema"] = schema_text(settings["json_schema"])
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError("this JSON schema cannot be parsed", why=str(error)) from error
    if "logit_bias" in sampling:
        sampling["logit_bias"] = bias_pairs(sampling["logit_bias"])
    unknown = [name for name in settings if name not in Request.__dataclass_fields__]
    if unknown:
        known = AnswerOptions.__annotations__
        hint = did_you_mean(unknown[0], known) or f"settings are {', '.join(known)}"
        raise UsageError(f"unknown setting {unknown[0]}", hint=hint, field=unknown[0])
    if sampling:
        try:
            settings["sampling"] = replace(settings.get("sampling", SamplingSettings()), **sampling)
        except SettingError as error:
            raise UsageError(str(error), field=error.field) from error
    return Request(**what, **settings)
