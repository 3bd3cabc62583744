"""Files attached to a message: reading them, adding their text to the message, and finding them in it again.

Images are kept as files, named in messages by the hash of their content, and deleted with the chats.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.chat.paths import named_files, shown_name
from edgespec.documents.document import HEADER, Document, Span, block_of
from edgespec.documents.files import read_bytes
from edgespec.documents.reader import Said, from_text, read_file, reader, unit_of
from edgespec.errors import UsageError, told_as
from edgespec.files.images import MOST_BYTES as MOST_IMAGE_BYTES
from edgespec.files.images import has_image_name, is_image, size_of_image
from edgespec.files.paths import data_dir, write_whole
from edgespec.history import Store
from edgespec.models.names.model_names import short_spec
from edgespec.processes.child import NotWaitedForError
from edgespec.settings import Image, Message
from edgespec.text.figures import size_of
from edgespec.text.printable import one_line

MOST_BYTES = 16 << 20  # all files of a message together
STDIN = "stdin"
SCHEME = "](edgespec:"
IMAGE = re.compile(
    r"!\[(?P<name>[^\]\n]{1,1000}), (?P<size>\d+x\d+)" + re.escape(SCHEME) + r"(?P<digest>[0-9a-f]{64})\)"
)

Read = tuple[list["Attachment"], list[str]]
"""The files that were read, and why others were left out."""


@dataclass(frozen=True, slots=True)
class Attachment(Document):
    """A file as it was when it was attached. `path` is None for other texts. An image has no text, but a `mark`, which
    is its place in the message."""

    path: Path | None = field(default=None, compare=False)
    mark: str = ""

    @property
    def block(self) -> str:
        """The file as a part of the message."""
        return self.mark or block_of(self)

    @property
    def spec(self) -> str:
        """The path that names this file from the working folder, or the name of another text."""
        return short_spec(str(self.path)) if self.path else self.name


def described(files: Sequence[Document], n_tokens: int | None = None) -> str:
    """Return the extent of a file, or the size of all files, and if it is known, their number of tokens."""
    about = files[0].about if len(files) == 1 else ""
    size = about or size_of(sum(file.n_bytes for file in files))
    return size + ("" if n_tokens is None else f", {n_tokens:,} tokens")


def attachment(name: str, data: bytes) -> Attachment:
    """Return a text or an image with this content. Raises UsageError."""
    name = one_line(name)
    if is_image(data) and has_image_name(name):
        return _image(name, data)
    return Attachment(name, from_text(name, data).text)


def _image(name: str, data: bytes, path: Path | None = None) -> Attachment:
    mark = keep_image(name, data)
    match = IMAGE.fullmatch(mark)
    return Attachment(name, "", match["size"] if match else "", path, mark)


def read_named(names: str, said: Said = lambda what: None, cancel: CancelFlag | None = None) -> Read:
    """Read the files that `names` means, or the pages, rows or lines of them that a range at its end chooses.

    Raises UsageError if no file can be attached, or once `cancel` is set.
    """
    added: list[Attachment] = []
    refused: list[UsageError] = []
    names, span = with_span(names)
    try:
        for path in named_files(names):
            if sum(file.n_bytes for file in added) > MOST_BYTES:
                break
            try:
                added.append(_read(path, span, said, cancel))
            except NotWaitedForError:
                raise UsageError("nothing was attached", why="reading was cancelled") from None
            except UsageError as error:
                refused.append(error)
    finally:
        reader().close()  # its process is not needed until the next file is attached
    if not added:
        raise refused[0] if len(refused) == 1 else UsageError("\n".join(map(str, refused)))
    return added, [str(error) for error in refused]


def _read(path: Path, span: Span | None, said: Said, cancel: CancelFlag | None) -> Attachment:
    name = one_line(shown_name(path))
    if has_image_name(path.name) and is_image(data := read_bytes(name, path, MOST_IMAGE_BYTES)):
        return _image(name, data, path.absolute())
    read = read_file(name, path, span, said, cancel)
    return Attachment(read.name, read.text, read.about, path.absolute())


def with_span(names: str) -> tuple[str, Span | None]:
    """Split a range such as "1-20" off the end of a text that names files, unless a file has that name.

    Raises UsageError if the range after the name of a file is wrong.
    """
    before, _, last = names.strip().rpartition(" ")
    if not before:
        return names, None
    with suppress(OSError):
        if Path(last).exists() or Path(names.strip()).exists():
            return names, None
    span = Span.of(last)
    if span is None:
        _check_range(before, last)
    return (before, span) if span else (names, None)


def _check_range(names: str, text: str) -> None:
    """Raise UsageError if this text after names of files is a wrong range."""
    unit = unit_of(names.strip("'\""))
    if (fault := Span.fault(text, unit)) and all(map(os.path.isfile, named_files(names))):
        raise UsageError(f"{unit}s {text} of {names} cannot be read", why=fault)


def joined(attached: Sequence[Attachment], added: Sequence[Attachment]) -> list[Attachment]:
    """Return all attachments; a file that is attached already is replaced. Raises UsageError if they are too large."""
    paths = {file.path for file in added if file.path}
    together = [file for file in attached if file.path not in paths]
    taken = {file.name for file in together}
    together += [
        replace(file, name=file.path.as_posix()) if file.path and file.name in taken else file for file in added
    ]
    check_size(together)
    return together


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
    while image := IMAGE.match(content):
        files.append(Attachment(image["name"], "", image["size"], mark=image[0]))
        content = content[image.end() :].removeprefix("\n\n")
    while header := HEADER.match(content):
        name, fence = header["name"], header["fence"]
        end = content.find(f"\n{fence}", header.end() - 1)
        after = end + 1 + len(fence)
        is_file = name == STDIN or "." in name or "/" in name
        if not is_file or end < 0 or content[after : after + 2] not in ("", "\n\n"):
            break
        files.append(Attachment(name, content[header.end() : end], header["about"] or ""))
        content = content[after + 2 :]
    return files, content


# --- images -----------------------------------------------------------------------------------------------------


def kept_file(digest: str) -> Path:
    """Return where the image with this hash is kept."""
    return data_dir() / "images" / digest


def digest_of(file: Attachment) -> str:
    """Return the hash of an image; empty for other files."""
    match = IMAGE.fullmatch(file.mark)
    return match["digest"] if match else ""


def keep_image(name: str, data: bytes) -> str:
    """Keep an image for the chats of this user, and return its mark in a message. Raises UsageError."""
    size, digest = size_of_image(data, name), sha256(data).hexdigest()
    file = kept_file(digest)
    with told_as(UsageError, f"{name} cannot be kept with the chat"):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not file.exists():
            write_whole(file, data)
    return f"![{name.replace(']', ')')}, {size}{SCHEME}{digest})"


def with_images(role: str, content: str) -> Message:
    """Return a message with the images that its content names, which only those of the user have. An image whose file
    was deleted is described instead."""
    images, parts, start = list[Image](), list[str](), 0
    for match in IMAGE.finditer(content) if role == "user" else ():
        parts.append(content[start : match.start()])
        start = match.end() + 2 * content.startswith("\n\n", match.end())
        try:
            data = kept_file(match["digest"]).read_bytes()
        except OSError:
            parts.append(f"[{match['name']}, an image that was deleted]\n\n")
            continue
        images.append(Image(data, sum(map(len, parts)), match["name"]))
    return Message(role, "".join([*parts, content[start:]]), images=tuple(images))


def delete_chats(store: Store, chats: Sequence[str]) -> int:
    """Delete chats, and their images unless a message of another chat has them. Returns the number of deleted chats.
    Raises StoreError."""
    images = _digests(content for chat in chats for content in store.contents_with(SCHEME, chat))
    n_deleted = store.remove(chats)
    for digest in images and images - _digests(store.contents_with(SCHEME)):
        with suppress(OSError):
            kept_file(digest).unlink()
    return n_deleted


def _digests(contents: Iterable[str]) -> set[str]:
    return {match["digest"] for content in contents for match in IMAGE.finditer(content)}
