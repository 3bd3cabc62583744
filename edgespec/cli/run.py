"""`edgespec run`: answer one prompt."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.command import Command, Option
from edgespec.cli.footer import explanation, footer
from edgespec.cli.interrupt import Interrupts
from edgespec.cli.options import NO_MODEL, generation_options, load_settings, request
from edgespec.cli.output import Output
from edgespec.cli.prompt import read_prompt
from edgespec.core.verify import CHANGES_LAW
from edgespec.errors import GenerationError, UsageError
from edgespec.events import PROGRESS, TokenEvent
from edgespec.settings import LoadSettings, Request, check_rule

if TYPE_CHECKING:
    from edgespec.runtime import Answer, Runtime


@click.command(cls=Command)
@click.argument("prompt", required=False)
@generation_options
@click.option(
    "--trace", cls=Option, section="Speculation", config=False, metavar="FILE", type=click.Path(dir_okay=False),
    help="Record each round in FILE (JSON lines): guesses, how sure they were, how many were right, what passes took. "
    "Where nothing is to be guessed it guesses without using it, so the run is slower; the text is the same.",
)  # fmt: skip
@click.pass_context
def run(ctx: click.Context, /, prompt: str | None, **values: Any) -> None:
    """Answer one prompt.

    PROMPT is the prompt's text, or '-' to read it from stdin. Without PROMPT and --file, what is piped in is the
    prompt; beside PROMPT it is ignored. The answer goes to stdout, everything else to stderr. Ctrl-C stops the
    answer, a second one the program.

    Every option can also be set in ./edgespec.toml or the user's config.toml ('edgespec config' says where) under its
    long name, and as an environment variable EDGESPEC_<LONG_NAME>.
    """
    output = Output(quiet=values["quiet"])
    output.log_to_stderr(verbose=values["verbose"])
    text = read_prompt(prompt, values["file"])
    _refuse_contradictions(ctx, text, values)
    if values["model"] is None:
        values["model"] = "demo"
        output.note(NO_MODEL)
    settings = replace(load_settings(values), measure_rounding=values["stats"])
    check_rule(settings, values["verify"])
    with _load(settings, output) as llm:
        chat = llm.has_chat_template if values["chat"] is None else values["chat"]
        if values["system"] and not chat:
            raise UsageError(
                "a system message needs a chat",
                why="--raw was asked for" if values["chat"] is False else "this model has no chat template",
                hint="put it at the beginning of the prompt",
            )
        draws_seed = values["seed"] < 0
        seed = secrets.randbits(32) if draws_seed else values["seed"]
        asked = request(values, text, chat=chat, seed=seed)
        cancel = CancelFlag()
        stream = llm.answer(asked, cancel)
        if draws_seed and values["temperature"] > 0 and not output.quiet:
            output.aside(f"seed {seed}")  # only this number brings the same text back
        interrupts = ctx.find_object(Interrupts) or Interrupts()
        with ExitStack() as stack:
            if values["trace"] is not None:
                stack.enter_context(llm.recording(Path(values["trace"]), asked))
                output.end_progress()
            stack.enter_context(interrupts.cancelling(cancel))
            stack.enter_context(closing(stream))
            events, failure = _show_answer(llm, stream, output, as_json=values["as_json"])
        if values["as_json"]:
            output.json(_as_json(llm, asked, events))
        if values["explain"]:
            output.show(explanation(llm.stats, llm.pace_verdicts(asked)), aside=True)
        _account(llm, asked, output, interrupts, stats=values["stats"])
        if failure is not None:
            raise failure


def _refuse_contradictions(ctx: click.Context, text: str, values: dict[str, Any]) -> None:
    if not text and values["chat"] is not False:
        raise UsageError("the prompt is empty", hint="with --raw, a model that has a BOS token can start from nothing")
    typed_logprobs = ctx.get_parameter_source("logprobs") is click.ParameterSource.COMMANDLINE
    if typed_logprobs and not values["as_json"]:
        raise UsageError("--logprobs shows in JSON only", hint="add --json")


def _load(settings: LoadSettings, output: Output) -> Runtime:
    output.progress(f"loading {settings.model}", 0)
    from edgespec.runtime import Runtime

    try:
        llm = Runtime(settings, lambda what, done: output.progress(PROGRESS[what].format(settings.model), done))
    finally:
        output.end_progress()
    return llm


def _show_answer(
    llm: Runtime, stream: Answer, output: Output, *, as_json: bool
) -> tuple[list[TokenEvent], GenerationError | None]:
    """Show the answer while it comes, with the notes before and after it; and what broke it off, if anything did."""
    shown = _show_notes(llm, output, 0)
    events: list[TokenEvent] = []
    failure = None
    try:
        for event in stream:
            events.append(event)
            if not as_json:
                output.answer(event.text)
    except GenerationError as error:
        failure = error
    finally:
        output.end_answer()
    _show_notes(llm, output, shown)
    return events, failure


def _account(llm: Runtime, asked: Request, output: Output, interrupts: Interrupts, *, stats: bool) -> None:
    """Show the statistics where they are wanted. Raises Interrupted if the user stopped the answer."""
    interrupted = interrupts.received is not None
    if stats or (not output.quiet and (interrupted or output.stderr_is_terminal)):
        about = llm.describe()
        for line in footer(
            llm.stats,
            details=stats,
            verify=asked.verify,
            drafters=about["drafters"],
            rounding=about["rounding"],
            pace=llm.pace_verdicts(asked),
        ):
            output.aside(line)
    interrupts.raise_if_received()


def _show_notes(llm: Runtime, output: Output, shown: int) -> int:
    """Show the notes that are new since `shown` of them were."""
    for note in llm.notes[shown:]:
        output.note(note)
    return len(llm.notes)


def _as_json(llm: Runtime, asked: Request, events: list[TokenEvent]) -> dict[str, Any]:
    about = llm.describe()
    return {
        "content": "".join(event.text for event in events),
        "model": about["model"],
        "draft_model": about["draft_model"],
        "seed": asked.seed,
        "verify": asked.verify,
        "changes_distribution": asked.verify in CHANGES_LAW,
        "strict": about["strict"],
        "rounding": about["rounding"],
        "finish_reason": events[-1].finish_reason if events else "error",
        **llm.stats.as_json(),
        "tokens": [_token_as_json(llm, event) for event in events if event.id >= 0],
        "notes": list(llm.notes),
    }


def _token_as_json(llm: Runtime, event: TokenEvent) -> dict[str, Any]:
    top = [{"id": token, "text": llm.token_text(token), "logprob": logprob} for token, logprob in event.top_logprobs]
    return {
        "id": event.id,
        "text": event.text,
        "from_draft": event.from_draft,
        "source": event.source,
        "round": event.round,
        "logprob": event.logprob,
        "top_logprobs": top,
    }
