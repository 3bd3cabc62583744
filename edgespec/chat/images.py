"""Images in chats: kept as files, named in messages by the hash of their content, and deleted with the chats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from edgespec.errors import UsageError, told_as
from edgespec.files.images import size_of_image
from edgespec.files.paths import data_dir, write_whole
from edgespec.history import Store
from edgespec.settings import Image, Message

SCHEME = "](edgespec:"
BLOCK = re.compile(
    r"!\[(?P<name>[^\]\n]{1,1000}), (?P<size>\d+x\d+)" + re.escape(SCHEME) + r"(?P<digest>[0-9a-f]{64})\)"
)


def kept_file(digest: str) -> Path:
    """Return where the image with this hash is kept."""
    return data_dir() / "images" / digest


def keep(name: str, data: bytes) -> str:
    """Keep an image for the chats of this user, and return the text that stands for it in a message. Raises
    UsageError."""
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
    for found in BLOCK.finditer(content) if role == "user" else ():
        parts.append(content[start : found.start()])
        start = found.end() + 2 * content.startswith("\n\n", found.end())
        try:
            data = kept_file(found["digest"]).read_bytes()
        except OSError:
            parts.append(f"[{found['name']}, an image that was deleted]\n\n")
            continue
        images.append(Image(data, sum(map(len, parts)), found["name"]))
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
    return {found["digest"] for content in contents for found in BLOCK.finditer(content)}
