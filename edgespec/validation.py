"""Checks of settings and requests before anything is loaded or generated."""

from __future__ import annotations

import ipaddress
import operator

from edgespec.core.infill import MOST_CANDIDATES
from edgespec.core.setting import facts_of
from edgespec.core.verify import VerifyRule
from edgespec.drafters.registry import REGISTRY
from edgespec.errors import UsageError, did_you_mean
from edgespec.settings import (
    CONSTRAINTS,
    LARGEST,
    MAX_DRAFT,
    Image,
    LoadSettings,
    Message,
    Request,
    drafter_of,
    fixed_length,
    shown,
)

MOST_BAD_WORDS, MOST_CHARACTERS = 256, 256  # in a request, and in each of them


def check_load_settings(settings: LoadSettings) -> None:
    """Raise UsageError for invalid settings and combinations, before anything is loaded."""
    _check_fields(settings)
    check_pace(settings.pace)
    length = fixed_length(settings.pace)
    if length is not None and length > settings.draft_n_max:
        what = f"pace fixed:{length} needs `spec_draft_n_max={length}` or more, not {settings.draft_n_max}"
        raise UsageError(what, field="pace")
    check_spec_type(settings.spec_type)
    for name in ("gpu_layers", "gpu_layers_draft"):
        if getattr(settings, name) not in ("auto", "all"):
            _check_integer(name, getattr(settings, name), 0, LARGEST)
    for name in ("device", "device_draft"):
        if (value := getattr(settings, name)) is not None and (not isinstance(value, str) or not value.strip()):
            raise UsageError(f"{name} must be auto, none, or names of devices, not {shown(value)}", field=name)
    if settings.chat_template is not None and settings.chat_template_file is not None:
        raise UsageError("chat_template and chat_template_file cannot be combined", hint="use one of them")
    if settings.strict:
        for is_given, setting in (
            (settings.spec_tree > 1, "a tree (`spec_tree`)"),
            (settings.sequences > 1, "several sequences"),
        ):
            if is_given:
                why = "each pass is padded for one chain of tokens"
                raise UsageError(f"strict cannot be combined with {setting}", why=why)


def check_rule(settings: LoadSettings, rule: VerifyRule) -> None:
    """Raise UsageError for a verification rule that the loaded settings exclude."""
    if settings.strict and rule != "coupled":
        raise UsageError(
            f"strict cannot be combined with verify {rule}", why="only the coupled rule preserves the text"
        )


def check_pace(pace: object) -> None:
    """Raise UsageError unless `pace` is "auto", "off", or "fixed:K" with a valid number of tokens."""
    if pace in ("auto", "off"):
        return
    kind, _, length = pace.partition(":") if isinstance(pace, str) else ("", "", "")
    is_fixed = kind == "fixed" and length.isascii() and length.isdigit() and len(length) < 4
    if not is_fixed or not 1 <= int(length) <= MAX_DRAFT:
        raise UsageError(
            f"pace must be auto, off, or fixed:K with K from 1 to {MAX_DRAFT}, not {shown(pace)}", field="pace"
        )


def check_spec_type(spec_type: object) -> None:
    """Raise UsageError unless `spec_type` is "auto", "none" or a list of drafters."""
    if spec_type in ("auto", "none"):
        return
    names = spec_type.split(",") if isinstance(spec_type, str) else []
    drafters = [drafter_of(name) for name in names]
    unknown = [name for name, drafter in zip(names, drafters, strict=True) if drafter not in REGISTRY]
    if unknown and unknown[0] not in ("auto", "none"):
        raise UsageError(
            f"spec_type: unknown drafter {shown(unknown[0])}",
            hint=did_you_mean(unknown[0], REGISTRY) or f"choose from auto, none, {', '.join(_spellings())}",
            field="spec_type",
        )
    if not names or unknown or "self" in names or len(set(drafters)) != len(names):
        raise UsageError(
            f"spec_type must be auto, none, or some of {','.join(_spellings())}, not {shown(spec_type)}",
            hint="each drafter can be named once, and auto and none cannot be combined with others; self:8 uses 8 "
            "layers, self:Q2_K smaller weights",
            field="spec_type",
        )
    if {"draft", "self"} <= set(drafters):
        hint = "name one of them in spec_type"
        raise UsageError("draft and self are one draft model each", hint=hint, field="spec_type")


def _spellings() -> list[str]:
    return [entry.spelling for entry in REGISTRY.values()]


def check_request(request: Request, n_vocab: int) -> None:
    """Raise UsageError for invalid requests, before anything is generated."""
    for name, n in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
        if n is not None:
            _check_integer(name, n, 0, n_vocab)
    _check_fields(request)
    _check_lists(request)
    for name, field, ids in (
        ("a token id in a message", "messages", [token for each in request.messages for token in each.tokens]),
        ("a token id in reference", "reference", request.reference),
        ("prompt_tokens", "prompt_tokens", request.prompt_tokens),
        ("a token id in logit_bias", "logit_bias", [token for token, _ in request.sampling.logit_bias]),
        ("stop_token_ids", "stop_token_ids", request.stop_token_ids),
    ):
        for token in ids:
            _check_integer(name, token, 0, n_vocab - 1, field)
    if request.spec_type is not None:
        check_spec_type(request.spec_type)
    if request.pace is not None:
        check_pace(request.pace)
    if request.prompt_logprobs is not None and any(message.images for message in request.messages):
        what, why = "prompt_logprobs and images cannot be combined", "an image has no log probabilities"
        raise UsageError(what, why=why, field="prompt_logprobs")
    for name in CONSTRAINTS:
        if not isinstance(getattr(request, name), str):
            raise UsageError(f"{name} must be a string, not {shown(getattr(request, name))}", field=name)
    constraints = [name for name in CONSTRAINTS if getattr(request, name)]
    if len(constraints) > 1:
        what = f"{constraints[0]} and {constraints[1]} cannot be combined"
        raise UsageError(what, hint="use one of them", field=constraints[0])
    if constraints and (request.ignore_eos or request.reference):
        excluded = "ignore_eos" if request.ignore_eos else "a reference answer"
        raise UsageError(
            f"{constraints[0]} and {excluded} cannot be combined",
            why=f"the {CONSTRAINTS[constraints[0]]} determines where an answer ends",
            field=constraints[0],
        )
    if request.reference and request.verify != "coupled":
        what = f"reference answers cannot be verified by {request.verify}"
        raise UsageError(what, hint="use the coupled rule", field="verify")
    _check_ends(request)
    for message in request.messages:
        _check_images(message)
    said = [text for message in request.messages for text in (message.role, message.content, message.extra)]
    for text in (request.prompt, request.template, *said):
        if not isinstance(text, str):
            raise UsageError(f"a prompt or message must be a string, not {shown(text)}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError("the prompt is not valid text", why=str(error)) from error


def _check_lists(request: Request) -> None:
    if not isinstance(request.stop, tuple | list) or not all(isinstance(stop, str) and stop for stop in request.stop):
        raise UsageError("stop must be texts that are not empty", field="stop")
    for name in ("stop_token_ids", "bad_words", "lora"):
        if not isinstance(value := getattr(request, name), tuple | list):
            raise UsageError(f"{name} must be a list, not {shown(value)}", field=name)


def _check_images(message: Message) -> None:
    places = [image.at if isinstance(image, Image) and type(image.at) is int else -1 for image in message.images]
    if places != sorted(places) or not all(0 <= place <= len(message.content) for place in places):
        raise UsageError("the images of a message must be in the order of their places in its content")
    if not all(isinstance(image.data, bytes) for image in message.images):
        raise UsageError("an image must be the bytes of its file")
    if message.images and message.role == "assistant":
        raise UsageError("an answer cannot have images", why="models of this kind write text only")


def _check_ends(request: Request) -> None:
    """Check when an answer may end, and the words that it must not contain."""
    least, most, words = request.min_tokens, request.max_tokens, request.bad_words
    if 0 <= most < least:
        raise UsageError(f"min_tokens must be at most max_tokens ({most}), not {least}", field="min_tokens")
    if len(words) > MOST_BAD_WORDS or not all(isinstance(word, str) and word.strip() for word in words):
        raise UsageError(f"bad_words must be at most {MOST_BAD_WORDS} texts that are not blank", field="bad_words")
    if any(len(word) > MOST_CHARACTERS for word in words):
        raise UsageError(f"bad_words must have at most {MOST_CHARACTERS} characters each", field="bad_words")
    asked = [name for name in ("min_tokens", "stop_token_ids", "bad_words") if getattr(request, name)]
    others = [name for name in (*CONSTRAINTS, "reference") if getattr(request, name)]
    if asked and others:
        what, why = f"{asked[0]} and {others[0]} cannot be combined", f"{others[0]} determines the answer"
        raise UsageError(what, why=why, field=asked[0])
    sampling = request.sampling
    if request.infill and not (0 < sampling.top_k <= MOST_CANDIDATES and sampling.temperature):
        what = f"infill needs a top_k from 1 to {MOST_CANDIDATES}, and a temperature above 0"
        raise UsageError(what, field="infill")
    if least and request.stop:
        what, why = "min_tokens and stop cannot be combined", "a stop string may come before min_tokens"
        raise UsageError(what, why=why, field="min_tokens")


def _check_fields(settings: LoadSettings | Request) -> None:
    """Check the settings that have limits or choices. None is allowed where it is the default."""
    for name, facts in facts_of(type(settings)).items():
        value = getattr(settings, name)
        if value is None and facts.default is None:
            continue
        if facts.kind == "integer" and facts.least is not None:
            _check_integer(name, value, int(facts.least), LARGEST if facts.most is None else int(facts.most))
        if facts.kind == "number" and not (isinstance(value, float | int) and facts.allows(value)):
            raise UsageError(f"{name} must be {facts.range}, not {shown(value)}", field=name)
        if facts.choices and value not in facts.choices:
            raise UsageError(f"{name} must be one of {', '.join(facts.choices)}, not {shown(value)}", field=name)


def _check_integer(name: str, value: object, least: int, most: int, field: str = "") -> None:
    try:
        number = operator.index(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        what = f"{name} must be an integer from {least} to {most}, not {shown(value)}"
        raise UsageError(what, field=field or name)


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached only from this machine."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
