"""`edgespec perplexity`: perplexity on a text, as in llama.cpp."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.bench import LEAST_WINDOW, WINDOW
from edgespec.cli.options.command import Call, Options, command, settings_of, value_of
from edgespec.cli.options.common import JSON, QUIET, VERBOSE, option
from edgespec.cli.options.shared import HELD, LOADING, TARGET, YES
from edgespec.cli.options.types import Integer
from edgespec.cli.setup.models import TARGET_NAME, fetch_missing, use_named_model
from edgespec.settings import LoadSettings
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from edgespec.bench.quality import Perplexity


# fmt: off
@dataclass(frozen=True, kw_only=True)
class PerplexityOptions(Options):
    target: str | None = value_of(TARGET_NAME)
    text: str | None = value_of(option(
        "Prompt", "--text", type=click.Path(), metavar="FILE", show_default="the prompts and answers of the suites",
        help="Text to read (UTF-8).",
    ))
    limit: int | None = value_of(option(
        "Prompt", "--limit", type=Integer(1), show_default="all", help="Read the first N windows only.",
    ))
    model: str | None = value_of(TARGET)
    window: int = value_of(option(
        "Model", "-c", "--ctx-size", "window", type=Integer(LEAST_WINDOW), default=WINDOW,
        help="Tokens per window; the second half of each counts.",
    ))
    load: LoadSettings = settings_of(LoadSettings, [LOADING["gpu_layers"], *HELD])
    yes: bool = value_of(YES)
    as_json: bool = value_of(JSON)
# fmt: on


@command(PerplexityOptions, QUIET, VERBOSE)
def perplexity(call: Call[PerplexityOptions]) -> None:
    """Measure perplexity on a text.

    Follows llama.cpp: MODEL (smollm2 by default) reads windows of N tokens, and the second half of each counts. Ctrl-C
    stops and shows what was measured.
    """
    options, output = call.options, call.output
    name = use_named_model(call, options.target, options.model or "")
    fetch_missing(call, [name], yes=options.yes)
    output.progress(f"loading {name}", 0)
    from edgespec.bench.measure import TimeLeft
    from edgespec.bench.quality import default_text, opened, read_text, windows
    from edgespec.bench.quality import perplexity as measure
    from edgespec.models.names.spec import resolve

    text = default_text() if options.text is None else read_text(Path(options.text))
    path, size = resolve(name).path, options.window
    settings = call.options.load
    notes: list[str] = []
    with (
        output.showing_progress(),
        opened(path, settings, size, notes.append, lambda done: output.progress(f"loading {name}", done)) as context,
    ):
        if size > context.model.n_ctx_train:
            notes.append(f"the model was trained for a context of {context.model.n_ctx_train} tokens, not {size}")
        read = windows(context.model, text, size, options.limit)
        left = TimeLeft(len(read))

        def tell(done: int, total: int) -> None:
            left.done = done
            output.progress(left.line(f"reading a text with {name}"), left.share)

        with call.cancelling() as cancel:
            found = measure(context, read, tell, cancel)
    for note in notes:
        output.note(note)
    if found is None:
        output.note("stopped before the first window was read")
    elif options.as_json:
        text_name = Path(options.text).name if options.text else None
        about = {"model": path.name, "text": text_name, "window": size}
        output.json({**about, **asdict(found), "complete": found.windows == len(read)})
    else:
        output.facts(_facts(name, size, found, len(read)))
    call.interrupts.raise_if_received()


def _facts(name: str, size: int, found: Perplexity, n_windows: int) -> list[tuple[str, str]]:
    facts = [
        ("model", name),
        ("perplexity", f"{found.value:.4f} ± {found.standard_error:.4f}"),
        ("counted", f"{found.positions} tokens of {counted(found.windows, 'window')} of {size}"),
        ("speed", f"{found.tokens_per_s:.0f} tokens per second, {found.seconds:.1f} s"),
    ]
    is_complete = found.windows == n_windows
    return facts if is_complete else [*facts, ("stopped", f"after {found.windows} of {n_windows} windows")]
