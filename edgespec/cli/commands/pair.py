"""`edgespec pair`: whether one model can draft for another, why not, and which models on this machine can."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.command import Call, Options, command, value_of
from edgespec.cli.options.common import JSON, QUIET
from edgespec.cli.options.group import Group
from edgespec.cli.options.shared import OFFLINE, YES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.setup.models import fetch_missing
from edgespec.cli.terminal.output import Output, in_options
from edgespec.errors import PairError
from edgespec.gguf_file.head_check import check_draft_file, is_head, n_tokens
from edgespec.gguf_file.model_check import check_model
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.models.names.local import local_models
from edgespec.models.names.model_names import short_spec
from edgespec.models.names.spec import NotFetchedError, resolve
from edgespec.models.pair.check import PairVerdict, check_pair
from edgespec.models.pair.near import drafts_near
from edgespec.models.pair.suggest import (
    LEAST_OFFERED,
    Suggestion,
    catalogue_drafts,
    instead,
    of_catalogue,
    place,
    suggestions,
)
from edgespec.text.figures import count_of, size_of

if TYPE_CHECKING:
    from edgespec.gguf_file.header import Header

CTX_SIZE = 8192  # tokens of the caches in the memory that is shown, if the target was trained for as many


@click.group(cls=Group)
def pair() -> None:
    """Check whether one model can draft for another.

    Reads only the headers of the files; no model is loaded.
    """


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    target: str = value_of(click.Argument(["target"], type=ModelSpec(), metavar="MODEL"))
    draft: str = value_of(click.Argument(["draft"], type=ModelSpec()))
    yes: bool = value_of(YES)


@command(CheckOptions, OFFLINE, group=pair)
def check(call: Call[CheckOptions]) -> None:
    """Check whether DRAFT can draft for MODEL, and why.

    Each is a GGUF file, or a name as shown by 'edgespec ls'. Exit code 4 if DRAFT is incompatible. 'edgespec tune'
    measures whether a compatible draft pays off.
    """
    target, draft, output = call.options.target, call.options.draft, call.output
    fetch_missing(call, [target, draft], yes=call.options.yes)
    headers = check_model(resolve(target).path), check_draft_file(resolve(draft).path)
    found = check_pair(*headers)
    output.facts(list(_report(target, draft, headers, found)))
    if found.verdict == "no":
        call.ctx.exit(PairError.exit_code)


@dataclass(frozen=True, kw_only=True)
class SuggestOptions(Options):
    target: str = value_of(click.Argument(["target"], type=ModelSpec(), metavar="MODEL"))
    yes: bool = value_of(YES)
    as_json: bool = value_of(JSON)


@command(SuggestOptions, OFFLINE, QUIET, group=pair)
def suggest(call: Call[SuggestOptions]) -> None:
    """List compatible drafts for MODEL, best first.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'. Models on this machine come first, also draft heads, then
    drafts that can be downloaded, then models that are too large or incompatible, and why.
    """
    target, output = call.options.target, call.output
    try:
        fetch_missing(call, [target], yes=call.options.yes)
        is_here, found = True, _compared(target, output)
    except NotFetchedError:
        is_here, found = False, list(of_catalogue(catalogue_drafts(target, None)))
        if not found:
            raise
    if call.options.as_json:
        output.json({"target": target, "is_here": is_here, "drafts": [asdict(suggestion) for suggestion in found]})
        return
    if found:
        output.facts([_line(suggestion, compared=is_here) for suggestion in found])
    if not is_here:
        output.note(
            f"no headers were compared, because {target} is not downloaded; to download it: edgespec pull {target}"
        )
    elif not any(suggestion.verdict != "no" for suggestion in found):
        output.note(instead(found))


def _compared(target: str, output: Output) -> list[Suggestion]:
    with output.showing_progress():
        output.progress("reading headers", None)
        header = check_model(resolve(target).path)
        near = {os.path.realpath(draft.path): draft.found for draft in drafts_near(header)}
        others = (model for model in local_models() if os.path.realpath(model.path) not in near)
        found = suggestions(header, others, catalogue_drafts(target, header.path))
        return sorted([*found, *near.values()], key=place)


def _line(suggestion: Suggestion, *, compared: bool) -> tuple[str, str]:
    size = f", {size_of(suggestion.size_bytes)}" if suggestion.verdict != "no" and suggestion.size_bytes else ""
    label = "here" if suggestion.is_here and not compared else suggestion.label
    return label, f"{short_spec(suggestion.spec)}: {in_options(suggestion.why)}{size}"


def _report(target: str, draft: str, headers: tuple[Header, Header], verdict: PairVerdict) -> Iterator[tuple[str, str]]:
    """Yield labels and texts."""
    yield "target", f"{target}: {_about(headers[0])}"
    yield "draft", f"{draft}: {_about(headers[1])}"
    yield "verdict", _words(verdict)
    for number, reason in enumerate(verdict.reasons):
        yield "" if number else "why", reason
    of_head = is_head(headers[1])
    if of_head and verdict.verdict == "no":
        return
    if not of_head:
        yield "size", str(verdict.size)
    share = math.floor(1000 * verdict.size.cost_ratio + 1e-9) / 10  # rounded down, so that 100 means all
    yield "cost", f"a draft pass reads {share:g}\xa0% of the weights that a target pass reads"
    n_ctx = min(CTX_SIZE, headers[0].number("context_length") or CTX_SIZE)
    needed = [estimate(MemoryPlan(header, n_ctx=n_ctx)) for header in headers]
    together = sum(memory.weights + memory.kv for memory in needed)
    yield "memory", f"{size_of(together)} together, with 16-bit caches of {n_ctx} tokens"
    if verdict.verdict != "no":
        yield "speedup", f"measure it with: {shlex.join(['edgespec', 'tune', target, '-md', draft])}"


def _about(header: Header) -> str:
    n_vocab = n_tokens(header) if is_head(header) else header.n_vocab
    return f"{header.architecture}, {count_of(header.n_params)} parameters, {n_vocab} tokens"


def _words(verdict: PairVerdict) -> str:
    but = f", but is {verdict.size}" if verdict.size.slows_down else ""
    if verdict.verdict == "works":
        return f"works{but}"
    if verdict.verdict == "shared":
        works = "works for shared tokens" if verdict.overlap >= LEAST_OFFERED else "works, but rarely pays off"
        return f"{works} ({verdict.why}){but}"
    return f"incompatible: {verdict.why}"
