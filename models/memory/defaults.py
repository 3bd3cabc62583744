"""Defaults of a context: its size in tokens, and flash attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from edgespec.gguf_file.header import Header
from edgespec.models.memory.estimate import Plan, scores_bytes
from edgespec.settings import CACHE_TYPES, LoadSettings

# Models are often trained for more context than most answers need or most machines can hold.
DEFAULT_CTX_SIZE = 8192
# Prefill passes; the smallest still holds a wide pass and its remainder (`Engine`), and is hardly slower on a CPU.
BATCH_SIZES, SCORES_BYTES = (512, 256, 128), 256_000_000


def usual_context(header: Header) -> int:
    """Return the default context size in tokens."""
    return min(header.number("context_length") or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)


def attention_of(header: Header, settings: LoadSettings) -> Literal["auto", "on", "off"]:
    """Return if a target on CPUs uses flash attention; "auto" leaves the choice to llama.cpp."""
    attention = wanted_attention(header, settings, settings.cache_type_v, exact=settings.exact)
    plan = Plan(
        header,
        n_ctx=settings.ctx_size or usual_context(header),
        flash_attention="off" if settings.strict else attention,
    )
    return with_room(plan, settings).flash_attention


def wanted_attention(
    header: Header, settings: LoadSettings, cache_type_v: str, *, exact: bool
) -> Literal["auto", "on", "off"]:
    """Return if a context uses flash attention, regardless of memory; "auto" leaves the choice to llama.cpp.

    Without flash attention, single tokens and drafts cost less (docs/performance.md). With it, sliding windows cost
    less, and cells of other branches are skipped, so that a branch has the same sums as a chain. Quantised values need
    it. This is a rule and not a measurement: a measurement with another result the next time would change texts.
    """
    if settings.flash_attention != "auto" or not exact:
        return settings.flash_attention
    is_quantised, has_trees = CACHE_TYPES[cache_type_v].block > 1, settings.spec_tree > 1
    return "on" if is_quantised or has_trees or header.number("attention.sliding_window") else "off"


def with_room(plan: Plan, settings: LoadSettings) -> Plan:
    """Return the plan with smaller prefill passes if the attention scores would take more than `SCORES_BYTES`.

    If even the smallest passes take more, the plan uses flash attention, which stores no scores. An attention that the
    settings name stays as it is.
    """
    if settings.strict or settings.flash_attention != "auto" or plan.flash_attention != "off":
        return plan
    sizes = [replace(plan, n_batch=n_batch) for n_batch in BATCH_SIZES]
    fit = next((smaller for smaller in sizes if scores_bytes(smaller) <= SCORES_BYTES), None)
    return fit or replace(plan, flash_attention="on")
