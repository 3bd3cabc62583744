"""Files of images: what is decoded, and what is refused before it is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_projector import picture

from edgespec.errors import UsageError
from edgespec.files.images import MOST_BYTES, data_url, is_image, pixels_of, size_of_image


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    made = io.BytesIO()
    image.save(made, format, **options)
    return made.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header promises this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + png_end()


def png_end() -> bytes:
    data = zlib.compress(bytes(100))
    return struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_usual_formats_are_decoded(format: str) -> None:
    data = picture(3, 40, 30, format)
    assert is_image(data)
    assert str(size_of_image(data)) == "40x30"
    pixels = pixels_of(data)
    assert (pixels.shape, str(pixels.dtype)) == ((30, 40, 3), "uint8")
    assert abs(pixels.astype(int) - pixels_of(picture(3, 40, 30))).mean() < 12
    assert data_url(data).startswith(f"data:image/{format.lower()};base64,")


def test_transparent_parts_are_white_and_photos_are_turned() -> None:
    assert (pixels_of(saved(Image.new("RGBA", (4, 4), (9, 9, 9, 0)), "PNG")) == 255).all()
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = saved(Image.new("RGB", (40, 20)), "JPEG", exif=exif)
    assert str(size_of_image(turned)) == "20x40"
    assert pixels_of(turned).shape == (40, 20, 3)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (png_of_size(60_000, 60_000), r"too large: it has 60000 x 60000 pixels, and at most 64 million"),
        (png_of_size(9_000, 9_000), r"too large: it has 9000 x 9000 pixels, and at most 64 million"),
        (png_of_size(30_000, 10), "too narrow"),
        (b"\x89PNG\r\n\x1a\n" + bytes(MOST_BYTES), "too large: 3"),
        (b"%PDF-1.7", "not an image"),
        (b"", "not an image"),
        (saved(Image.new("RGB", (9, 9)), "TIFF"), "use one of: PNG, JPEG"),
    ],
)
def test_other_files_and_bombs_are_refused_by_their_headers(data: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        size_of_image(data, "a.png")
    with pytest.raises(UsageError, match=why):
        pixels_of(data, "a.png")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_cut_files_are_errors(format: str) -> None:
    data = picture(0, 200, 200, format)
    for length in (len(data) // 4, len(data) // 2, len(data) - 30):
        with pytest.raises(UsageError, match=r"^a.png (cannot be|is not an image)"):
            pixels_of(data[:length], "a.png")


def test_16_bits_of_grey_keep_their_shades() -> None:
    shades = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    pixels = pixels_of(saved(Image.fromarray(shades), "PNG"))
    assert (pixels[..., 0] == shades >> 8).all()


def test_photos_with_several_images_are_turned_and_are_jpeg_for_others() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = Image.new("RGB", (40, 30))
    data = saved(photo, "MPO", save_all=True, append_images=[photo], exif=exif)
    assert size_of_image(data) == pixels_of(data).shape[1::-1]
    assert data_url(data).startswith("data:image/jpeg;base64,")
