"""`edgespec pair`: whether one model can draft for another, why not, and which models on this machine can."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from edgespec.bench.tables import Figures, Lines
from edgespec.cli.call import Call
from edgespec.cli.options.command import Command
from edgespec.cli.options.common import JSON, QUIET
from edgespec.cli.options.generation import FETCHING
from edgespec.cli.options.group import Group
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.render.rows import short_spec
from edgespec.cli.setup.fetching import fetch_missing
from edgespec.cli.terminal.output import Output
from edgespec.errors import PairError
from edgespec.gguf_file.head_check import check_draft_file, is_head
from edgespec.gguf_file.model_check import check_model
from edgespec.models.names.local import local_models
from edgespec.models.names.spec import NotFetchedError, resolve
from edgespec.models.pair.check import Comparison, PairVerdict, Side, Token, compare_pair
from edgespec.models.pair.suggest import LEAST_OFFERED, Suggestion, catalogue_drafts, instead, of_catalogue, suggestions
from edgespec.text.figures import count_of, size_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgespec.gguf_file.header import Header


@click.group(cls=Group)
def pair() -> None:
    """Check whether one model can draft for another.

    Reads only the headers of the files; no model is loaded.
    """


@pair.command(cls=Command, params=[*FETCHING, JSON])
@click.argument("target", type=ModelSpec(), metavar="MODEL")
@click.argument("draft", type=ModelSpec())
def check(call: Call) -> None:
    """Check whether DRAFT can draft for MODEL, and why.

    Each is a GGUF file, or a name as shown by 'edgespec ls'. Exit code 4 if DRAFT is incompatible. 'edgespec tune'
    measures whether a compatible draft pays off.
    """
    target, draft, output = call.values["target"], call.values["draft"], call.output
    fetch_missing(call, [target, draft])
    headers = check_model(resolve(target).path), check_draft_file(resolve(draft).path)
    found = compare_pair(*headers)
    if call.values["as_json"]:
        output.json(_as_json(target, draft, headers, found))
    else:
        for part in _report(target, draft, found, of_head=is_head(headers[1])):
            output.show(part)
    if found.verdict.verdict == "no":
        call.ctx.exit(PairError.exit_code)


@pair.command(cls=Command, params=[*FETCHING, JSON, QUIET])
@click.argument("target", type=ModelSpec(), metavar="MODEL")
def suggest(call: Call) -> None:
    """List compatible drafts for MODEL, best first.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'. Models on this machine come first, then drafts that can
    be downloaded, then models that are too large or incompatible, and why.
    """
    target, output = call.values["target"], call.output
    try:
        fetch_missing(call, [target])
        is_here, found = True, _compared(target, output)
    except NotFetchedError:
        is_here, found = False, list(of_catalogue(catalogue_drafts(target, None)))
        if not found:
            raise
    if call.values["as_json"]:
        output.json({"target": target, "is_here": is_here, "drafts": [asdict(suggestion) for suggestion in found]})
        return
    if found:
        output.show(Lines([_line(suggestion, compared=is_here) for suggestion in found]))
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
        return suggestions(header, local_models(), catalogue_drafts(target, header.path))


def _line(suggestion: Suggestion, *, compared: bool) -> tuple[str, str]:
    size = f", {size_of(suggestion.size_bytes)}" if suggestion.verdict != "no" and suggestion.size_bytes else ""
    label = "here" if suggestion.is_here and not compared else suggestion.label
    return label, f"{short_spec(suggestion.spec)}: {suggestion.why}{size}"


# --- as text ----------------------------------------------------------------------------------------------------------


def _report(target: str, draft: str, found: Comparison, *, of_head: bool) -> Iterator[RenderableType]:
    yield Lines([("target", target), ("draft", draft), ("verdict", _words(found.verdict))])
    yield Text()
    yield Figures("Both models", ["", "target", "draft"], list(_rows(found, of_head=of_head)))
    if found.n_differing > 1:
        tokens = [[f"{ours.id}", ours.text, theirs.text] for ours, theirs in found.differing]
        yield Text()
        yield Figures(f"First of {found.n_differing} ids that differ", ["id", "target", "draft"], tokens)
    yield Text()
    yield Lines(list(_about(found, of_head=of_head)))
    if found.verdict.verdict != "no":
        yield Lines([("speedup", f"measure it with: {shlex.join(['edgespec', 'tune', target, '-md', draft])}")])


def _words(verdict: PairVerdict) -> str:
    but = f", but is {verdict.size}" if verdict.size.slows_down else ""
    if verdict.verdict == "works":
        return f"works{but}"
    if verdict.verdict == "shared":
        works = "works for shared tokens" if verdict.overlap >= LEAST_OFFERED else "works, but rarely pays off"
        return f"{works} ({verdict.summary}){but}"
    return f"incompatible: {verdict.summary.removeprefix('no: ')}"


def _rows(found: Comparison, *, of_head: bool) -> Iterator[list[str]]:
    """Yield the properties of both models. A draft head has the target's vocabulary and template."""

    def row(name: str, cell: Callable[[Side], str]) -> list[str]:
        return [name, cell(found.target), cell(found.draft)]

    yield row("architecture", lambda side: side.architecture)
    yield row("parameters", lambda side: count_of(side.n_params))
    yield row("tokens", lambda side: str(side.n_vocab))
    if not of_head:
        yield row("vocabulary", lambda side: side.vocabulary)
        yield row("tokenizer", lambda side: side.tokenizer or "-")
        yield row("BOS", lambda side: _token(side.bos))
        yield row("EOS", lambda side: _token(side.eos))
        yield row("EOT", lambda side: _token(side.eot))
        yield row("starts with BOS", lambda side: "yes" if side.adds_bos else "no")
        yield ["chat template", *_templates(found)]
        yield row("trained context", lambda side: str(side.n_ctx_train))
    yield row("weights", lambda side: size_of(side.weights_bytes))
    yield row("read per token", lambda side: size_of(side.read_bytes))
    yield row(f"memory, {found.n_ctx} tokens", lambda side: size_of(side.memory_bytes))


def _token(token: Token | None) -> str:
    return "-" if token is None else f"{token.id} {token.text}"


def _templates(found: Comparison) -> tuple[str, str]:
    ours, theirs = found.target.has_chat_template, found.draft.has_chat_template
    another = "the same" if found.same_chat_template else "another"
    return "yes" if ours else "none", "none" if not theirs else another if ours else "yes"


def _about(found: Comparison, *, of_head: bool) -> Iterator[tuple[str, str]]:
    verdict = found.verdict
    for number, reason in enumerate(verdict.reasons):
        yield "" if number else "why", reason
    if of_head and verdict.verdict == "no":
        return
    if not of_head:
        yield "size", str(verdict.size)
    share = math.floor(1000 * verdict.size.cost_ratio + 1e-9) / 10  # rounded down, so that 100 means all
    yield "cost", f"a draft pass reads {share:g}\xa0% of the weights that a target pass reads"
    together = found.target.memory_bytes + found.draft.memory_bytes
    yield "memory", f"{size_of(together)} together, with 16-bit caches of {found.n_ctx} tokens"
    for number, note in enumerate(found.notes):
        yield "" if number else "note", note


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _as_json(target: str, draft: str, headers: tuple[Header, Header], found: Comparison) -> dict[str, Any]:
    files = [str(header.path.absolute()) for header in headers]
    verdict, size = found.verdict, found.verdict.size
    return {
        "target": {"model": target, "file": files[0], **asdict(found.target)},
        "draft": {"model": draft, "file": files[1], **asdict(found.draft)},
        "verdict": verdict.verdict,
        "summary": verdict.summary,
        "reasons": verdict.reasons,
        "overlap": verdict.overlap,
        "n_differing": found.n_differing,
        "differing": [{"id": a.id, "target": a.text, "draft": b.text} for a, b in found.differing],
        "same_chat_template": found.same_chat_template,
        "notes": found.notes,
        "size": str(size),
        "slows_down": size.slows_down,
        "is_same_file": size.is_same_file,
        "times_smaller": size.times_smaller,
        "cost_ratio": size.cost_ratio,
        "n_ctx": found.n_ctx,
    }
