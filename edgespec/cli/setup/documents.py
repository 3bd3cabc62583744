"""Files that options of commands name: reading them, and reporting their sizes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from edgespec.cli.options.command import Call, Options
from edgespec.errors import PromptTooLongError, UsageError
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from edgespec.chat.attachments import Attachment
    from edgespec.llm.model import Model
    from edgespec.settings import Request


def read_files(call: Call[Options], names: str) -> list[Attachment]:
    """Read the files that an option names, and note files that are left out. Raises UsageError, and Interrupted if the
    user stops the reading."""
    from edgespec.chat.attachments import read_named

    output = call.output
    try:
        with call.cancelling() as cancel, output.showing_progress():
            files, left_out = read_named(names, lambda what: output.progress(f"reading {what}", None), cancel)
    except UsageError:
        call.interrupts.raise_if_received()
        raise
    for line in left_out:
        output.aside(f"note: not attached: {line}")  # with --quiet too: the answer may be wrong without the file
    return files


def check_size(llm: Model, asked: Request, files: list[Attachment], call: Call[Options]) -> None:
    """Note the size of the files, and raise PromptTooLongError if the prompt is longer than the context."""
    from edgespec.chat.attachments import described

    if files:
        texts = [llm.token_ids(file.block, add_special=False, parse_special=False) for file in files]
        name = files[0].name if len(files) == 1 else counted(len(files), "file")
        call.output.note(f"{name}, {described(files, sum(map(len, texts)))}")
    try:
        llm.tokenize(asked)
    except PromptTooLongError as error:
        if not files:
            raise
        largest = max(files, key=lambda file: file.n_bytes)
        part = shlex.quote(f"{largest.spec} 1-20")
        hint = f"{error.hint}; a range chooses pages, rows or lines: -f {part}"
        raise error.reworded(hint=hint) from None
