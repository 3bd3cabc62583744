"""What a context is like where nobody says it: how many tokens it has, and whether it takes flash attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from edgespec.gguf_file.header import Header
from edgespec.models.memory.estimate import Plan, scores_bytes
from edgespec.settings import CACHE_TYPES, LoadSettings

# A model may have been trained for more context than most answers need or most machines can hold.
DEFAULT_CTX_SIZE = 8192
# Passes that read prompts; the smallest still holds a wide pass and its rest (`Engine`), and is hardly slower on a CPU.
BATCH_SIZES, SCORES_BYTES = (512, 256, 128), 256_000_000


def usual_context(header: Header) -> int:
    """Tokens of context where nobody asks for a number."""
    return min(header.number("context_length") or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)


def attention_of(header: Header, settings: LoadSettings) -> Literal["auto", "on", "off"]:
    """Whether a target on CPUs takes flash attention; "auto" leaves it to llama.cpp."""
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
    """Whether a context takes flash attention, be there room or not; "auto" leaves it to llama.cpp."""
    if settings.flash_attention != "auto" or not exact:
        return settings.flash_attention
    return exact_attention(header, cache_type_v, trees=settings.spec_tree > 1)


def with_room(plan: Plan, settings: LoadSettings) -> Plan:
    """The plan with an attention that fits into memory, unless somebody said which it is to be."""
    given = settings.strict or settings.flash_attention != "auto"
    return plan if given else with_room_for_scores(plan)


def exact_attention(header: Header, cache_type_v: str, *, trees: bool = False) -> Literal["on", "off"]:
    """Whether a context whose passes are to be exact takes flash attention, where nobody asks for it.

    Without it single tokens and drafts cost less (docs/performance.md). With it sliding windows do, and the cells of
    other branches are passed over, so that a branch's sums are those of a chain; quantised values need it. A rule, not
    a measurement: one that came out otherwise the next time would change texts.
    """
    is_quantised = CACHE_TYPES[cache_type_v].block > 1
    return "on" if is_quantised or trees or header.number("attention.sliding_window") else "off"


def with_room_for_scores(plan: Plan) -> Plan:
    """The plan with prompts read in smaller passes, where without flash attention the scores of all cells would take
    more than `SCORES_BYTES`; with flash attention where the smallest ones do too."""
    if plan.flash_attention != "off":
        return plan
    sizes = [replace(plan, n_batch=n_batch) for n_batch in BATCH_SIZES]
    fit = next((smaller for smaller in sizes if scores_bytes(smaller) <= SCORES_BYTES), None)
    return fit or replace(plan, flash_attention="on")
