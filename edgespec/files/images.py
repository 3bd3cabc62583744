"""Files of images: checked before they are decoded, since a small file may hold a very large image."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from edgespec.errors import ImageError
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")
MOST_BYTES = 32 << 20
MOST_PIXELS = 64_000_000
ORIENTATION = 0x0112  # the tag of the rotation in the data of a camera
MOST_ASPECT = 200  # the longer side by the shorter one; projectors refuse such images, or scale them to nothing


_STARTS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif", b"BM": "bmp"}


class Size(NamedTuple):
    """Width and height in pixels, after the rotation that the file asks for."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def has_image_name(path: str) -> bool:
    """Return whether a file is an image by its name."""
    return path.lower().endswith(SUFFIXES)


def is_image(data: bytes) -> bool:
    """Return whether a file begins as those of images do."""
    return bool(media_type(data))


def media_type(data: bytes) -> str:
    """Return the media type of an image by the first bytes of its file; "" for other files."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((f"image/{kind}" for start, kind in _STARTS.items() if data.startswith(start)), "")


def size_of_image(data: bytes, name: str = "the image") -> Size:
    """Return the size of an image from the header of its file. Raises ImageError for files that are not decoded."""
    with _reported_as_damage(name):
        image = _opened(data, name)
        # In other files this data may come last, so that the whole image would be decoded.
        is_turned = image.format in ("JPEG", "MPO", "WEBP") and image.getexif().get(ORIENTATION, 1) >= 5
        return Size(*image.size[::-1]) if is_turned else Size(*image.size)


def pixels_of(data: bytes, name: str = "the image") -> NDArray[np.uint8]:
    """Decode an image: uint8[height, width, 3]. Transparent parts become white. Raises ImageError."""
    import numpy as np
    from PIL.Image import fromarray
    from PIL.ImageOps import exif_transpose

    with _reported_as_damage(name):
        image = exif_transpose(_opened(data, name))
        if image.mode.startswith("I"):  # Pillow cuts 16 bits of grey to 255, which makes nearly all pixels white
            image = fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.has_transparency_data:
            from PIL import Image

            drawn = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn)
        return np.asarray(image.convert("RGB"))


def data_url(data: bytes) -> str:
    """Return an image as a data URL. Raises ImageError."""
    kind = str(_opened(data, "the image").format).lower().replace("mpo", "jpeg")  # several JPEG images in a file
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


@contextmanager
def _reported_as_damage(name: str) -> Iterator[None]:
    """Raise ImageError for the errors of a decoder, which are of many kinds."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        why, hint = str(error) or type(error).__name__, "the file may be damaged or incomplete"
        raise ImageError(f"{name} cannot be decoded", why=why, hint=hint) from error


def _opened(data: bytes, name: str) -> Image:
    """Return an image whose pixels are not decoded yet."""
    from PIL import Image, UnidentifiedImageError

    if len(data) > MOST_BYTES:
        raise ImageError(
            f"{name} is too large", why=f"{size_of(len(data))}, and at most {size_of(MOST_BYTES)} are read"
        )
    Image.MAX_IMAGE_PIXELS = None  # the limit below is lower, and its error says what to do
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise ImageError(f"{name} is not an image that can be read", hint=f"use one of: {kinds}") from None
    width, height = image.size
    if width * height > MOST_PIXELS:
        why = f"it has {width} x {height} pixels, and at most {MOST_PIXELS / 1e6:.0f} million are decoded"
        raise ImageError(f"{name} is too large", why=why, hint="make it smaller: models see fewer pixels anyway")
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise ImageError(f"{name} is too narrow", why=f"it has {width} x {height} pixels", hint="cut it into parts")
    return image
