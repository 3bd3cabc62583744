"""Reads the parts of messages: texts, and images as the formats of clients have them."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence

from edgespec.errors import UsageError
from edgespec.files.images import MOST_BYTES, size_of_image
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, object_in, wrong
from edgespec.settings import Image, shown

MOST_IMAGES = 64  # in a message
TEXTS = ("text", "input_text", "output_text", "refusal")
_DATA = re.compile(r"data:[\w.+/-]*(?:;[\w.=+-]+)*;base64,", re.IGNORECASE)


def parts_of(where: str, given: object) -> tuple[str, tuple[Image, ...]]:
    """Return the text of a message, which may be given in parts, and its images. Raises BadInputError.

    Texts are separated by a line break, unless an image is between them.
    """
    content, images, follows_text = "", list[Image](), False
    for part in given if isinstance(given, list) else [given]:
        fields, text = object_in(part), part
        kind = fields.get("type")
        if kind in TEXTS:
            text = fields.get("refusal" if kind == "refusal" else "text")
        elif isinstance(kind, str):
            images.append(image_of(where, image_data(where, fields), len(content)))
            follows_text = False
            continue
        if not isinstance(text, str):
            raise wrong(where, "be a string or a list of parts", given)
        content += "\n" * follows_text + text
        follows_text = True
    if len(images) > MOST_IMAGES:
        raise BadInputError(f"{where} may have {MOST_IMAGES} images, not {len(images)}", where)
    return content, tuple(images)


def image_data(where: str, part: JsonObject) -> object:
    """Return the base64 text of an image in a part of a message. Raises BadInputError."""
    kind = part["type"]
    if kind == "image":  # Anthropic's
        source = part.get("source")
        if not isinstance(source, Mapping) or source.get("type") != "base64":
            raise UnsupportedError(where, "only images with a source of type base64 are accepted")
        return source.get("data")
    if kind not in ("image_url", "input_image"):
        raise UnsupportedError(where, f"parts of type {shown(kind)} are neither text nor images")
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str):
        raise wrong(where, "have an image_url", part)
    if not (found := _DATA.match(url[:256])):
        raise UnsupportedError(where, "the server fetches no URLs: send a data URL (data:image/png;base64,...)")
    return url[found.end() :]


def image_of(where: str, data: object, at: int = 0) -> Image:
    """Return an image from base64 text, for a place in the content. Raises BadInputError."""
    if not isinstance(data, str):
        raise wrong(where, "have the image as base64 text", data)
    if len(data) > 4 * MOST_BYTES // 3 + 4:
        raise BadInputError(f"an image of {where} is larger than {MOST_BYTES >> 20} MB", where)
    try:
        decoded = b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInputError(f"an image of {where} is not valid base64 ({error})", where) from error
    try:
        size_of_image(decoded)
    except UsageError as error:
        raise BadInputError(f"an image of {where} cannot be used: {error.why or error.what}", where) from error
    return Image(decoded, at)


def without_images(where: str, content: tuple[str, Sequence[Image]]) -> str:
    """Return the text of parts. Raises BadInputError if there are images."""
    text, images = content
    if images:
        raise UnsupportedError(where, "only messages of the user and results of tools can have images")
    return text
