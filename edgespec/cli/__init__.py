"""The program `edgespec`: runs a command and turns its outcome into one message and an exit code.

Nothing heavier than `signal` is imported before Ctrl-C is handled. Exit codes: 0 done (or the reader of the output went
away), 1 generation failed, or was cut off before a schema or grammar was satisfied, 2 usage, 3 model not found or not
usable, 4 incompatible pair, 5 not enough memory, 6 rows of a batch failed, 128 + the signal when interrupted (130 for
Ctrl-C).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.cli.terminal.interrupt import Interrupted, Interrupts

if TYPE_CHECKING:
    import click

    from edgespec.cli.terminal.output import Output


def main(args: Sequence[str] | None = None) -> int:
    """Run the program with `args`, by default those of the process, and return its exit code."""
    try:
        interrupts = Interrupts()
        interrupts.install()
        return run_program(sys.argv[1:] if args is None else args, interrupts)
    except KeyboardInterrupt:
        return 130


def run_program(args: Sequence[str], interrupts: Interrupts) -> int:
    """Run the command in `args` and return the exit code. The caller handles signals."""
    import click

    from edgespec.cli.commands import edgespec
    from edgespec.cli.terminal.output import Output, StdoutClosed, in_options, stdout_failure
    from edgespec.errors import EdgespecError, OutOfMemoryError
    from edgespec.llama import device_lost

    device_lost.in_words_of_front = in_options
    errors = Output(quiet=False, verbose=False)
    if sys.stdout is None:  # and the next opened file would get its number, and the program's output
        errors.error("there is no stdout to write to", hint="leave out '>&-'; '> /dev/null' drops what is written")
        return 1
    try:
        # A prompt is not a file pattern: Windows must not expand it.
        code = edgespec.main(
            list(args), prog_name="edgespec", standalone_mode=False, windows_expand_args=False, obj=interrupts
        )
        return code if isinstance(code, int) else 0
    except StdoutClosed:
        return 0
    except Interrupted as interrupted:
        return 128 + interrupted.signal_number
    except click.Abort:
        return 130
    except click.ClickException as error:
        _show_usage_error(error, errors)
        return error.exit_code
    except EdgespecError as error:
        errors.error(str(error), trace=True)
        return error.exit_code
    except MemoryError:
        errors.error("out of memory (in Python)", trace=True)
        return OutOfMemoryError.exit_code
    except Exception as error:
        if (why := stdout_failure(error)) is not None:
            errors.error(f"the output cannot be written: {why}")
            return 1
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            errors.error(f"{error.filename}: {error.strerror}", trace=True, hint="run with -v for details")
            return 1
        shown = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        errors.error(f"unexpected error: {shown}", trace=True, hint="run with -v for details")
        return 1
    except SystemExit as leaving:  # click's own way out: shell completion, or --help into a closed pipe
        if "_EDGESPEC_COMPLETE" not in os.environ:
            return 0
        return leaving.code if isinstance(leaving.code, int) else 1


def _show_usage_error(error: click.ClickException, errors: Output) -> None:
    import click

    from edgespec.cli.options.group import usage_hint

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.UsageError) and (hint := usage_hint(error)):
        errors.error(error.message, hint=hint)
    else:
        errors.error(error.format_message(), hint=f"try '{context.command_path} --help'" if context else "")
