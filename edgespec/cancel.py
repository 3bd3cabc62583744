"""A flag that stops a generation from another thread or a signal handler, also inside a native decode."""

from __future__ import annotations

import ctypes


class CancelFlag:
    """One byte of native memory, so that llama.cpp can poll it without taking the interpreter lock."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(2)

    def set(self) -> None:
        self.buffer[0] = b"\x01"

    def clear(self) -> None:
        self.buffer[0] = b"\x00"

    def is_set(self) -> bool:
        return self.buffer[0] != b"\x00"
