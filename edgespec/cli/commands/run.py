"""`edgespec run`: answer one prompt."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from edgespec.cli.footer import explanation, footer
from edgespec.cli.options import shared
from edgespec.cli.options.command import Call, Options, command, settings_of, value_of
from edgespec.cli.options.types import Text
from edgespec.cli.setup.documents import check_size, read_files
from edgespec.cli.setup.first_model import model_to_talk_to
from edgespec.cli.setup.models import (
    PERSONA,
    answer_as,
    fetch_models,
    named_persona,
    note_model_as_prompt,
    settings_of_model,
    show_notes,
)
from edgespec.cli.setup.running_servers import servers
from edgespec.cli.setup.servers import check_options, model_of_server, open_servers
from edgespec.cli.setup.tools import ALLOW_TOOL, MCP_CONFIG, ToolRun, open_toolbox
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import read_images, read_prompt
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, OutOfMemoryError, UsageError
from edgespec.events import CONTEXT_FULL, TokenEvent, ended_json
from edgespec.settings import CONSTRAINTS, Image, LoadSettings, Message, Request
from edgespec.text.figures import counted
from edgespec.text.repetition import Repetition, RepetitionDetector
from edgespec.validation import check_rule

if TYPE_CHECKING:
    from edgespec.chat.attachments import Attachment
    from edgespec.llm.info import ModelInfo
    from edgespec.llm.model import Model
    from edgespec.llm.stream import Events
    from edgespec.runtime.runtime import Runtime
    from edgespec.tools.toolbox import Toolbox

LOOP_HINT = "Ctrl-C stops it, and --repeat-penalty 1.1 may prevent it"
TOGETHER = 8  # samples decoded together, each with its own KV cache


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    prompt: str | None = value_of(click.Argument(["prompt"], required=False, type=Text()))
    persona: str | None = value_of(PERSONA)
    mcp_config: Path | None = value_of(MCP_CONFIG)
    allow_tool: tuple[str, ...] = value_of(ALLOW_TOOL)
    file: tuple[str, ...] = value_of(shared.FILE)
    system: str | None = value_of(shared.SYSTEM)
    chat: bool | None = value_of(shared.CHAT_OR_RAW)
    server: str | None = value_of(shared.SERVER)
    load: LoadSettings = settings_of(LoadSettings, [*shared.MODEL, *shared.SPECULATION])
    yes: bool = value_of(shared.YES)
    keep_alive: float | None = value_of(shared.KEEP_ALIVE)
    answer: Request = settings_of(Request, [shared.SPECIAL, *shared.SAMPLING, *shared.ANSWER])
    samples: int = value_of(shared.SAMPLES)
    markdown: bool = value_of(shared.MARKDOWN)
    as_json: bool = value_of(shared.AS_JSON)
    explain: bool = value_of(shared.EXPLAIN)
    stats: bool = value_of(shared.STATS)

    @property
    def url(self) -> str | None:
        """The server to ask, if a server is named."""
        return None if self.server == shared.AUTO else self.server


@command(RunOptions, shared.QUIET, shared.VERBOSE)
def run(call: Call[RunOptions]) -> None:
    """Answer one prompt.

    The prompt is PROMPT, then each --file, then piped input: cat notes.txt | edgespec run 'Summarise:'. A file can be
    an image: edgespec run -f photo.jpg 'What is this?'. The answer goes to stdout, everything else to stderr. Ctrl-C
    stops the answer.

    Defaults can be set in ./edgespec.toml, in the user's config.toml ('edgespec config' shows the path) and in
    environment variables: --max-tokens is max-tokens in a file, and EDGESPEC_MAX_TOKENS.
    """
    prompt = _read_prompt(call)
    _refuse_contradictions(call, prompt)
    note_model_as_prompt(call.output, call.options.prompt, call.options.load.model)
    if (persona := named_persona(call, call.options.persona)) is not None:
        answer_as(call, persona)
    if call.options.url:
        check_options(call)
        with open_servers(call, [call.options.url], call.options.load)[0] as server:
            _answer(server, prompt, call)
        return
    options = call.options
    model = options.load.model or model_to_talk_to(call, options.load, yes=options.yes)
    call.change({"model": model} | settings_of_model(call, model))
    options = call.options
    settings = fetch_models(call, options.load, yes=options.yes)
    if options.samples > 1 and not settings.strict:
        settings = replace(settings, sequences=min(options.samples, TOGETHER))
    check_rule(settings, options.answer.verify)
    if (options.server or options.keep_alive) and _answer_of_server(settings, prompt, call):
        return
    with (
        open_toolbox(options.mcp_config) if options.allow_tool else nullcontext() as toolbox,
        _load(settings, call) as llm,
    ):
        _answer(llm, prompt, call, toolbox)


class Prompt(NamedTuple):
    """The user's prompt: a text, which includes the contents of `files`, and images."""

    text: str
    images: Sequence[Image]
    files: list[Attachment]


def _read_prompt(call: Call[RunOptions]) -> Prompt:
    """Read the prompt from the command line, files and stdin. Raises UsageError."""
    files: list[Attachment] = []

    def read(names: str) -> list[Attachment]:
        files.extend(attachments := read_files(call, names))
        return attachments

    def note(text: str) -> None:  # with --quiet too: otherwise users do not know what the program is waiting for
        call.output.aside(f"note: {text}")

    images, names = read_images(call.options.file)
    text = read_prompt(call.options.prompt, names, note, read, is_needed=not images)
    return Prompt(text, images, files)


def _refuse_contradictions(call: Call[RunOptions], prompt: Prompt) -> None:
    options = call.options
    if not prompt.text and not prompt.images and options.chat is not False:
        raise UsageError("the prompt is empty", hint='usage: edgespec run "PROMPT"')
    if call.is_typed("logprobs") and not options.as_json:
        raise UsageError("--logprobs needs --json", why="log probabilities are only printed as JSON")
    if options.mcp_config and not options.allow_tool:
        raise UsageError(
            "--mcp-config needs --allow-tool", hint="name the tools that may run: --allow-tool SERVER/TOOL"
        )
    if options.allow_tool and options.samples > 1:
        raise UsageError("--allow-tool and --samples exclude each other")
    if options.allow_tool and options.url:
        raise UsageError("--allow-tool and --server exclude each other", why="tools need a model in this process")


def _answer_of_server(settings: LoadSettings, prompt: Prompt, call: Call[RunOptions]) -> bool:
    """Show the answer of a model that a server of this user keeps loaded; False if there is none, or it fails before
    the first token."""
    from edgespec.remote.loaded_model import UnansweredError

    options = call.options
    llm = model_of_server(
        call, settings, options.answer.verify, options.keep_alive, uses_tools=bool(options.allow_tool)
    )
    if llm is None:
        return False
    with llm:
        try:
            _answer(llm, prompt, call)
        except UnansweredError as error:
            call.output.note(f"{error.line}; loading {settings.model}")
            return False
    return True


def _answer(llm: Model, prompt: Prompt, call: Call[RunOptions], toolbox: Toolbox | None = None) -> None:
    """Show the answers to a prompt as they stream, and the notes. Raises the error that ended them."""
    options, output = call.options, call.output
    asked = request(llm.info, prompt, call)
    llm.check_settings(asked)  # errors come before anything is shown
    # Servers are asked without tools.
    tools = ToolRun(call, cast("Runtime", llm), asked, toolbox, options.allow_tool) if toolbox else None
    check_size(llm, tools.request if tools else asked, prompt.files, call)
    requests = (replace(asked, sample=number) for number in range(options.samples))
    stream: Events = tools.events() if tools else llm.stream(requests, call.cancel)
    tells_seed = options.answer.seed < 0 and asked.sampling.temperature > 0 and not output.quiet
    draws = options.markdown and bool(asked.messages) and asked.constraint is None
    samples = _Samples(options.samples, output, as_json=options.as_json, draws=draws)
    failure: GenerationError | None = None
    with call.cancelling(), closing(stream):
        show_notes(llm, output)
        try:
            for index, event in stream:
                if isinstance(event, EdgespecError):
                    raise event
                if tells_seed and (event.id >= 0 or event.is_last):  # a server that fails before gives no answer
                    output.aside(f"seed {asked.seed}")  # needed to get the same text again
                    tells_seed = False
                samples.add(index, event)
                if event.id < 0 and not event.is_last:  # it says that there is a note, such as that the server is busy
                    show_notes(llm, output)
        except GenerationError as error:
            failure = error
        finally:
            samples.end()
        show_notes(llm, output)
    if options.as_json:
        called = {"tool_calls": tools.as_json()} if tools else {}
        output.json(_as_json(llm, asked, samples, is_cancelled=call.cancel.is_set()) | called)
    elif failure is None and asked.constraint is None:  # a constrained answer that is cut off is an error
        _note_limit(llm, asked, samples, output)
    _account(llm, asked, samples, call)
    if failure is not None:
        raise failure
    if asked.constraint is not None and samples.n_cut_off:
        raise _cut_off(llm, asked, samples)


def request(info: ModelInfo, prompt: Prompt, call: Call[RunOptions]) -> Request:
    """Return what to generate: the answer to a user message, or the completion of a text. Raises UsageError."""
    options, system = call.options, call.options.system
    chat = info.has_chat_template if options.chat is None else options.chat
    why = "--raw was asked for" if options.chat is False else "this model has no chat template"
    if not chat and call.is_unset("system"):
        system = None  # it is the catalogue's default for chats
    if system and not chat:
        raise UsageError("a system message needs a chat", why=why, hint="put it at the beginning of the prompt")
    if prompt.images and not chat:
        raise UsageError("images need a chat", why=why)
    seed = secrets.randbits(32) if options.answer.seed < 0 else options.answer.seed
    asked = replace(shared.with_texts(options.answer), seed=seed)
    if not chat:
        return replace(asked, prompt=prompt.text)
    message = Message("user", prompt.text, images=tuple(prompt.images))
    return replace(asked, messages=(Message("system", system), message) if system else (message,))


def _load(settings: LoadSettings, call: Call[RunOptions]) -> Runtime:
    """Load the model, for one answer at a time if the memory is too small for several."""
    call.output.progress(f"loading {settings.model}", 0)
    from edgespec.runtime.runtime import Runtime

    with call.output.showing_progress():
        try:
            return Runtime(settings, call.progress_of(settings.model))
        except OutOfMemoryError as error:
            if settings.sequences == 1:
                error.hint = "; ".join(filter(None, [error.hint, _kept_models()]))
                raise
    return _load(replace(settings, sequences=1), call)


def _kept_models() -> str:
    """Return a hint about models that take memory because they are kept loaded, empty if there are none."""
    names = [model.name for server in servers() if server.kept_s is not None for model in server.models]
    return f"'edgespec ps --stop' unloads {', '.join(names)}" if names else ""


class _Samples:
    """The samples of an answer and their total `stats`. A single sample is shown while it is generated; several are
    generated together, and shown when all are complete."""

    def __init__(self, n: int, output: Output, *, as_json: bool, draws: bool) -> None:
        self.events: list[list[TokenEvent]] = [[] for _ in range(n)]
        self._loops = [RepetitionDetector() for _ in range(n)]
        self._output, self._as_json = output, as_json
        self._new_answer = partial(output.new_answer, draws=draws, thinks=True)
        self._answer = self._new_answer()
        self._started_s = self._ended_s = 0.0

    def add(self, index: int, event: TokenEvent) -> None:
        self._ended_s = perf_counter()
        self._started_s = self._started_s or self._ended_s
        self.events[index].append(event)
        if len(self.events) > 1:
            n_done = sum(events[-1].finish_reason is not None for events in self.events if events)
            self._output.progress(f"{n_done} of {len(self.events)} answers are complete", None)
        elif not self._as_json:
            self._answer.add(event.text)
        if event.id >= 0 and self._loops[index].add(event.id):
            self._answer.interject(f"the answer repeats itself ({self._loops[index].found}): {LOOP_HINT}")

    def end(self) -> None:
        """Show several samples, complete or not, and end the last line."""
        self._output.end_progress()
        several = self.events if len(self.events) > 1 and any(self.events) and not self._as_json else ()
        for number, events in enumerate(several, start=1):
            if not self._output.quiet:
                self._output.aside(f"sample {number} of {len(self.events)}")
            answer = self._new_answer()
            answer.add("".join(event.text for event in events))
            answer.end()
        self._answer.end()

    @property
    def repetitions(self) -> list[Repetition | None]:
        """The repetition that was found in each sample, if any."""
        return [loop.found for loop in self._loops]

    @property
    def n_cut_off(self) -> int:
        """The number of samples that ended at the token limit or at the end of the context."""
        return sum(events[-1].finish_reason == "length" for events in self.events if events)

    @property
    def stats(self) -> Stats:
        parts = [stats for events in self.events if events and (stats := events[-1].stats) is not None]
        if len(parts) == 1:
            return parts[0]
        total = Stats()
        for stats in parts:
            total.add(stats)
        total.prompt_s = max((stats.prompt_s for stats in parts), default=0.0)
        total.generation_s = self._ended_s - self._started_s  # the samples were decoded together
        return total


def _cut_off(llm: Model, asked: Request, samples: _Samples) -> GenerationError:
    """Return the error for a partial constrained answer, which a program cannot use."""
    kind = CONSTRAINTS[asked.constraint[0]] if asked.constraint else ""
    which = "the answer is" if len(samples.events) == 1 else f"{samples.n_cut_off} of {len(samples.events)} answers are"
    if _is_within_context(llm, asked, samples):
        why, hint = f"-n {asked.max_tokens} is reached", "raise -n, or leave it out"
    else:
        why, hint = CONTEXT_FULL.format(llm.info.ctx_size), "use a larger one (-c)"
    return GenerationError(f"{which} cut off and may not fit the {kind}", why=why, hint=hint)


def _is_within_context(llm: Model, asked: Request, samples: _Samples) -> bool:
    """Return whether -n was reached before the context was full."""
    n_prompt = samples.stats.prompt_tokens // len(samples.events)
    return 0 <= asked.max_tokens < llm.info.ctx_size - n_prompt


def _note_limit(llm: Model, asked: Request, samples: _Samples, output: Output) -> None:
    """Note that a limit ended the answer; for a full context there is already a note."""
    if any(events[-1].finish_reason == "repetition" for events in samples.events if events):
        output.note(f"stopped after {counted(asked.repeat_limit, 'repeated token')} (--repeat-limit)")
    if asked.max_tokens and samples.n_cut_off and _is_within_context(llm, asked, samples):
        n = len(samples.events)
        which = "stopped" if n == 1 else f"{samples.n_cut_off} of {n} answers stopped"
        output.note(f"{which} after {counted(asked.max_tokens, 'token')} (-n)")


def _account(llm: Model, asked: Request, samples: _Samples, call: Call[RunOptions]) -> None:
    """Show the statistics of the answer if requested. Raises Interrupted if the user stopped the answer."""
    output, options, verdicts = call.output, call.options, llm.pace_verdicts(asked)
    if options.explain:
        table, lines = explanation(samples.stats, verdicts)
        output.show(table, aside=True)
        output.aside("\n".join(["", *lines]))
    interrupted = call.interrupts.received is not None
    is_short = not options.explain and not output.quiet  # --explain has shown more than the short line
    if options.stats or (is_short and (interrupted or output.stderr_is_terminal)):
        for line in footer(samples.stats, llm.info, details=options.stats, verify=asked.verify, pace=verdicts):
            output.aside(line)
    call.interrupts.raise_if_received()


def _as_json(llm: Model, asked: Request, samples: _Samples, *, is_cancelled: bool) -> dict[str, object]:
    info = llm.info
    unfinished = {"finish_reason": "cancelled" if is_cancelled else "error"}  # before the first token
    parts = [
        _sample_as_json(llm, events, repetition) | ({} if events else unfinished)
        for events, repetition in zip(samples.events, samples.repetitions, strict=True)
    ]
    choices = [{"index": index, **part} for index, part in enumerate(parts)]
    return {
        **(parts[0] if len(parts) == 1 else {"choices": choices}),
        "model": info.model,
        "draft_model": info.draft_model,
        "seed": asked.seed,
        "verify": asked.verify,
        "strict": info.strict,
        "rounding": info.rounding,
        **samples.stats.as_json(),
        "notes": list(llm.notes),
    }


def _sample_as_json(llm: Model, events: list[TokenEvent], repetition: Repetition | None) -> dict[str, object]:
    return {
        "content": "".join(event.text for event in events),
        **ended_json(events[-1].finish_reason if events else None),
        "repetition": asdict(repetition) if repetition else None,
        "tokens": [_token_as_json(llm, event) for event in events if event.id >= 0],
    }


def _token_as_json(llm: Model, event: TokenEvent) -> dict[str, object]:
    top = [{"id": token, "text": llm.token_text(token), "logprob": logprob} for token, logprob in event.top_logprobs]
    names = ("id", "text", "from_draft", "source", "round", "logprob")
    return {name: getattr(event, name) for name in names} | {"top_logprobs": top}
