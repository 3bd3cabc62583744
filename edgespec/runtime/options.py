"""The keywords of `Runtime.generate`, `chat` and `complete`, so that editors and type checkers know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from edgespec.core.sampling import SamplingSettings
from edgespec.core.verify import VerifyRule


class AnswerOptions(TypedDict, total=False):
    """The fields of `Request` and `SamplingSettings`, which describe them and hold the defaults.

    Beyond those, `stop` may be a list, `json_schema` a dict, and `logit_bias` a dict from token id to bias.
    `sampling` sets all sampling settings; single ones given beside it take precedence.
    """

    max_tokens: int
    sampling: SamplingSettings
    seed: int
    sample: int
    verify: VerifyRule
    reference: tuple[int, ...]
    stop: tuple[str, ...] | list[str]
    logprobs: int | None
    special: bool
    ignore_eos: bool
    grammar: str
    json_schema: str | Mapping[str, Any] | bool
    regex: str
    left: int
    lenient: bool

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...] | Mapping[int, float]
