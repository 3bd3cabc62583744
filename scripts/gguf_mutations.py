"""Ways to damage a GGUF file, of which most leave its header readable."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

EXTREMES = (
    0, 1, 2, 3, 7, 255, 256, *((1 << bits) + plus for bits in (15, 31, 32, 40, 63) for plus in (-1, 0)),
    (1 << 64) - 1,
)  # fmt: skip
FLOATS = (0.0, -1.0, 1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan)
WORDS = (
    "", "llama", "qwen2", "gemma2", "bert", "clip", "mamba", "rwkv7", "gpt2", "t5", "plamo2", "none", "default",
    "llama-bpe", "yarn", "longrope", "no such thing", "\x00", "a" * 300,
)  # fmt: skip
_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class Field(NamedTuple):
    """One value in a header: where it stands, how it is packed (struct's letter, "s" for text), what it is."""

    start: int
    end: int
    format: str
    what: str


@dataclass(frozen=True)
class Base:
    """An intact file, with every field of its header and where its header ends."""

    name: str
    data: bytes
    fields: tuple[Field, ...]
    tensors: tuple[tuple[int, int], ...]
    header_end: int

    def numbers(self, *what: str) -> list[Field]:
        return [field for field in self.fields if field.format != "s" and (not what or field.what in what)]

    def texts(self) -> list[Field]:
        return [field for field in self.fields if field.format == "s"]

    def with_header(self, header: bytes | bytearray) -> bytes:
        """This file with another header, the data following at the next multiple of 32."""
        return bytes(header) + bytes(-len(header) % 32) + self.data[self.header_end + -self.header_end % 32 :]


Mutator = Callable[[random.Random, Base], bytes]


def flip_bits(dice: random.Random, base: Base) -> bytes:
    data = bytearray(base.data)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        data[dice.randrange(base.header_end)] ^= 1 << dice.randrange(8)
    return bytes(data)


def overwrite_bytes(dice: random.Random, base: Base) -> bytes:
    data, n = bytearray(base.data), dice.choice((1, 2, 4, 8, 64))
    start = dice.randrange(base.header_end)
    data[start : start + n] = dice.randbytes(n)
    return bytes(data[: len(base.data)])


def extreme_number(dice: random.Random, base: Base) -> bytes:
    field = dice.choice(base.numbers("count", "length", "dimensions", "dimension", "offset", "value", "version"))
    return _changed(base, field, dice.choice(EXTREMES))


def change_type(dice: random.Random, base: Base) -> bytes:
    field = dice.choice(base.numbers("type", "tensor type"))
    return _changed(base, field, dice.randrange(45) if dice.random() < 0.9 else dice.choice(EXTREMES))


def replace_value(dice: random.Random, base: Base) -> bytes:
    """A metadata value that might be meant: another small number, twice, half, one more or less."""
    field = dice.choice(base.numbers("value"))
    (old,) = struct.unpack(f"<{field.format}", base.data[field.start : field.end])
    if field.format in "fd":
        return _changed(base, field, dice.choice((*FLOATS, old * 2, -old)))
    return _changed(base, field, dice.choice((dice.randrange(10), old * 2, old // 2, old + 1, old - 1, old + 2)))


def replace_text(dice: random.Random, base: Base) -> bytes:
    field = dice.choice(base.texts())
    word = dice.choice((*WORDS, base.data[slice(*dice.choice(base.texts())[:2])].decode("utf-8", "replace"))).encode()
    before, after = base.data[: field.start - 8], base.data[field.end : base.header_end]
    return base.with_header(before + struct.pack("<Q", len(word)) + word + after)


def swap_texts(dice: random.Random, base: Base) -> bytes:
    one, two = sorted(dice.sample(base.texts(), 2))
    data, head, tail = base.data, slice(one.start - 8, one.end), slice(two.start - 8, two.end)
    between = data[one.end : two.start - 8]
    return base.with_header(data[: one.start - 8] + data[tail] + between + data[head] + data[two.end : base.header_end])


def delete_chunk(dice: random.Random, base: Base) -> bytes:
    start = dice.randrange(base.header_end if dice.random() < 0.8 else len(base.data))
    return base.data[:start] + base.data[start + dice.choice((1, 4, 8, 32, 256, 4096)) :]


def duplicate_chunk(dice: random.Random, base: Base) -> bytes:
    start, n = (
        dice.randrange(base.header_end if dice.random() < 0.8 else len(base.data)),
        dice.choice((1, 4, 8, 32, 256)),
    )
    return base.data[: start + n] + base.data[start:]


def truncate(dice: random.Random, base: Base) -> bytes:
    return base.data[: dice.randrange(base.header_end if dice.random() < 0.5 else len(base.data))]


def permute_tensors(dice: random.Random, base: Base) -> bytes:
    """Tensor descriptions in another order, or with two names swapped."""
    order = list(base.tensors)
    if dice.random() < 0.5:
        dice.shuffle(order)
    else:
        first, second = dice.sample(range(len(order)), 2)
        order[first], order[second] = order[second], order[first]
    start, end = base.tensors[0][0], base.tensors[-1][1]
    infos = b"".join(base.data[slice(*place)] for place in order)
    return base.with_header(base.data[:start] + infos + base.data[end : base.header_end])


def swap_dimensions(dice: random.Random, base: Base) -> bytes:
    data = bytearray(base.data)
    one, two = dice.sample(base.numbers("dimension"), 2)
    data[one.start : one.end], data[two.start : two.end] = (
        base.data[two.start : two.end],
        base.data[one.start : one.end],
    )
    return bytes(data)


def damage_weights(dice: random.Random, base: Base) -> bytes:
    data = bytearray(base.data)
    for _ in range(dice.choice((1, 16, 256))):
        start = dice.randrange(base.header_end, len(data) - 4)
        data[start : start + 4] = dice.choice((dice.randbytes(4), struct.pack("<f", dice.choice(FLOATS))))
    return bytes(data)


MUTATORS: dict[Mutator, int] = {  # how often each
    flip_bits: 4,
    overwrite_bytes: 2,
    extreme_number: 4,
    change_type: 3,
    replace_value: 5,
    replace_text: 2,
    swap_texts: 2,
    delete_chunk: 1,
    duplicate_chunk: 1,
    truncate: 1,
    permute_tensors: 1,
    swap_dimensions: 1,
    damage_weights: 1,
}


def mutation(bases: Sequence[Base], seed: int, number: int) -> tuple[Base, str, bytes]:
    """Mutation `number` of a run: the base, the mutator's name, the bytes. The same for the same arguments."""
    dice = random.Random(f"{seed}/{number}")
    base = bases[number % len(bases)]
    mutate = dice.choices(list(MUTATORS), weights=list(MUTATORS.values()))[0]
    return base, mutate.__name__, mutate(dice, base)


def read_base(path: Path) -> Base:
    """Note every field of an intact file's header."""
    data = path.read_bytes()
    fields: list[Field] = []
    pos = 4

    def number(format: str, what: str) -> int:
        nonlocal pos
        fields.append(Field(pos, pos + struct.calcsize(f"<{format}"), format, what))
        (value,) = struct.unpack_from(f"<{format}", data, pos)
        pos = fields[-1].end
        return int(value) if format not in "fd" else 0

    def text() -> None:
        nonlocal pos
        length = number("Q", "length")
        fields.append(Field(pos, pos + length, "s", "text"))
        pos += length

    def value(kind: int) -> None:
        if kind == _STRING:
            text()
        elif kind == _ARRAY:
            kind, n = number("I", "type"), number("Q", "count")
            for _ in range(n):
                value(kind)
        else:
            number(_SIZES[kind], "value")

    number("I", "version")
    n_tensors, n_entries = number("Q", "count"), number("Q", "count")
    for _ in range(n_entries):
        text()
        value(number("I", "type"))
    tensors = []
    for _ in range(n_tensors):
        start = pos
        text()
        for _ in range(number("I", "dimensions")):
            number("Q", "dimension")
        number("I", "tensor type")
        number("Q", "offset")
        tensors.append((start, pos))
    return Base(path.stem, data, _thinned(fields), tuple(tensors), pos)


def _thinned(fields: list[Field]) -> tuple[Field, ...]:
    """Fewer of the vocabulary's fields, whose thousands would crowd out all others: one in twenty."""
    kept = []
    for index, field in enumerate(fields):
        neighbours = fields[max(0, index - 4) : index + 5]
        in_a_list = all(other.what in ("length", "text") or other.what == field.what for other in neighbours)
        if not in_a_list or index % 20 == 0:
            kept.append(field)
    return tuple(kept)


def _changed(base: Base, field: Field, value: float) -> bytes:
    size = field.end - field.start
    if field.format in "fd":
        packed = struct.pack(f"<{field.format}", value)
    else:
        packed = (int(value) % (1 << 8 * size)).to_bytes(size, "little")
    return base.data[: field.start] + packed + base.data[field.end :]
