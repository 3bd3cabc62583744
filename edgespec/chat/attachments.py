"""Files attached to a message: reading them, adding their text to the message, and finding them in it again."""

from __future__ import annotations

import codecs
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgespec.chat.images import BLOCK, keep
from edgespec.chat.paths import named_files, shown_name
from edgespec.errors import UsageError, told_as
from edgespec.files.images import MOST_BYTES as MOST_IMAGE_BYTES
from edgespec.files.images import has_image_name, is_image
from edgespec.text.figures import size_of
from edgespec.text.printable import one_line, with_unix_line_ends

MOST_FILE_BYTES = 4 << 20
MOST_BYTES = 16 << 20  # all files of a message together
STDIN = "stdin"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file as it was when it was attached. `n_bytes` is the size of its text; `path` is None for other texts. An
    image has no text, but a `mark` that stands for it in the message."""

    name: str
    text: str
    path: Path | None = field(default=None, compare=False)
    mark: str = ""

    @property
    def n_bytes(self) -> int:
        return len(self.text.encode("utf-8", "replace"))

    @property
    def block(self) -> str:
        """The file as a part of the message: its name, and its text in a fence."""
        if self.mark:
            return self.mark
        return f"{self.name}:\n{fenced(self.text.rstrip())}"


def fenced(text: str) -> str:
    """Return a text in a fence that it does not contain."""
    longest_run = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest_run + 1)
    return f"{fence}\n{text}\n{fence}"


def described(files: Sequence[Attachment], n_tokens: int | None = None) -> str:
    """Return the size of all files, or of a single image, and, if it is known, their number of tokens."""
    image = BLOCK.fullmatch(files[0].mark) if len(files) == 1 else None
    size = image["size"] if image else size_of(sum(file.n_bytes for file in files))
    return size + ("" if n_tokens is None else f", {n_tokens:,} tokens")


def attachment(name: str, data: bytes, path: Path | None = None) -> Attachment:
    """Return a text file or an image with this content. Raises UsageError."""
    name = one_line(name)
    if is_image(data) and has_image_name(name):
        return Attachment(name, "", path, keep(name, data))
    if not data.strip():
        raise UsageError(f"{name} is empty", why="0 bytes" if not data else "there is only white space")
    if len(data) > MOST_FILE_BYTES:
        raise UsageError(f"{name} is too large", why=f"files of up to {MOST_FILE_BYTES >> 20} MB can be attached")
    if data.startswith(_UTF_16):
        raise UsageError(f"{name} is not UTF-8", why="it looks like UTF-16", hint="save it as UTF-8")
    if b"\0" in data:
        raise UsageError(f"{name} is a binary file", why=f"byte {data.index(0)} is null")
    try:
        return Attachment(name, with_unix_line_ends(data.decode("utf-8-sig")).rstrip(), path)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8", why=f"byte {error.start} is invalid") from None


def read_attachment(path: Path) -> Attachment:
    """Read a file to attach. Raises UsageError if it is neither a text file nor an image."""
    with told_as(UsageError, f"{one_line(str(path))} cannot be read"):
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{one_line(str(path))} is not a file", why="it is a folder, a device or a pipe")
        with path.open("rb") as opened:
            data = opened.read((MOST_IMAGE_BYTES if has_image_name(path.name) else MOST_FILE_BYTES) + 1)
    return attachment(shown_name(path), data, path.absolute())


def attach(attached: Sequence[Attachment], names: str) -> tuple[list[Attachment], list[str]]:
    """Read the files that `names` means; a file that is attached already is read again.

    Returns all attachments, and why other files were left out. Raises UsageError if no file can be attached, or if the
    files are too large.
    """
    added: list[Attachment] = []
    refused: list[UsageError] = []
    for path in named_files(names):
        if sum(file.n_bytes for file in added) > MOST_BYTES:
            break
        try:
            added.append(read_attachment(path))
        except UsageError as error:
            refused.append(error)
    if not added:
        raise refused[0] if len(refused) == 1 else UsageError("\n".join(map(str, refused)))
    together = [file for file in attached if file.path not in {other.path for other in added}]
    taken = {file.name for file in together}
    together += [
        replace(file, name=file.path.as_posix()) if file.path and file.name in taken else file for file in added
    ]
    check_size(together)
    return together, [str(error) for error in refused]


def check_size(files: Sequence[Attachment]) -> None:
    """Raise UsageError if these files are too large for one message."""
    if sum(file.n_bytes for file in files) > MOST_BYTES:
        raise UsageError("this is too much for one message", why=f"more than {MOST_BYTES >> 20} MB in all")


def with_files(files: Sequence[Attachment], text: str) -> str:
    """Return the message to send and store: the files, each in a fence that its text does not contain, and the text."""
    files = sorted(files, key=lambda file: not file.mark)  # images first, as `without_files` expects
    return "\n\n".join(filter(None, [*(file.block for file in files), text]))


def without_files(content: str) -> tuple[list[Attachment], str]:
    """Return the files at the beginning of a message that `with_files` made, and the rest of its text."""
    files: list[Attachment] = []
    while image := BLOCK.match(content):
        files.append(Attachment(image["name"], "", mark=image[0]))
        content = content[image.end() :].removeprefix("\n\n")
    while found := re.compile(r"([^\n]{1,1000}):\n(`{3,})\n").match(content):
        name, fence = found.groups()
        end = content.find(f"\n{fence}", found.end() - 1)
        after = end + 1 + len(fence)
        is_file = name == STDIN or "." in name or "/" in name
        if not is_file or end < 0 or content[after : after + 2] not in ("", "\n\n"):
            break
        files.append(Attachment(name, content[found.end() : end]))
        content = content[after + 2 :]
    return files, content
