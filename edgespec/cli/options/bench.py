"""The options of `edgespec bench`."""

from __future__ import annotations

import click

from edgespec.cli.options.common import QUIET, VERBOSE, Decorated, option, with_options
from edgespec.cli.options.generation import CORPUS, DRAFT_MODEL, LARGEST, MODEL
from edgespec.cli.options.types import Integer, Number, Text

PER_CATEGORY = 3
PEERS = ("llama-cpp-python",)
_FILE = click.Path(dir_okay=False, allow_dash=True)

OPTIONS = [
    DRAFT_MODEL,
    CORPUS,
    option(
        "Speculation", "--mode", "modes", multiple=True, type=Text(), metavar="MODE",
        show_default="all drafters, each alone, and fixed lengths",
        help=(
            "Mode to compare with plain decoding: drafters (or all), auto or fixed:K, optionally tree:W and a "
            "verification rule, such as 'all auto', 'suffix fixed:4', 'self:8 auto', 'draft fixed:6 tree:4 "
            "rejection'. Repeatable."
        ),
    ),
    option(
        "Speculation", "--peer", type=click.Choice(PEERS), help="Measure this program on the same prompts, too.",
    ),
    option(
        "Prompt", "--suite", "categories", multiple=True, type=Text(), metavar="CATEGORY", show_default="all",
        help="Use only the prompts of this category. Repeatable.",
    ),
    option(
        "Prompt", "--prompts", type=click.Path(), metavar="FILE",
        help="Use the prompts in this JSONL file instead of the built-in suites.",
    ),
    option(
        "Prompt", "--per-category", type=Integer(1, LARGEST), metavar="N",
        show_default=f"{PER_CATEGORY}, or all in FILE", help="Prompts per category.",
    ),
    option(
        "Sampling", "--temp", "temperatures", multiple=True, type=Number(min=0), metavar="T",
        show_default="0 and 0.8; 0 with --reference", help="Temperature. Repeatable.",
    ),
    option(
        "Answer", "-n", "--max-tokens", "tokens", type=Integer(1, LARGEST), metavar="N",
        show_default="48, or all with --reference", help="Tokens per answer.",
    ),
    option(
        "Answer", "--repeat", type=Integer(1, LARGEST), default=1, show_default=True, metavar="N",
        help="Repeat every measurement N times.",
    ),
    option(
        "Answer", "--reference", is_flag=True,
        help=(
            "Force the reference answers that come with the prompts: measures the gain on realistic text even if the "
            "model cannot write it."
        ),
    ),
    option("Output", "--json", "json_file", type=_FILE, metavar="FILE", help="All figures as JSON; '-' for stdout."),
    option("Output", "--csv", "csv_file", type=_FILE, metavar="FILE", help="A CSV line per answer; '-' for stdout."),
    option("Output", "--plot", "plot_file", type=_FILE, metavar="FILE", help="Plot the result as PNG or SVG."),
    option(
        "Output", "--compare", nargs=2, type=click.Path(), metavar="A B",
        help="Compare two files written by --json, without measuring.",
    ),
    QUIET,
    VERBOSE,
]  # fmt: skip


def bench_options(command: Decorated) -> Decorated:
    """The model options, and all of the above."""
    return with_options(command, [*MODEL, *OPTIONS])
