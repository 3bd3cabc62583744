"""A flag that stops a generation from another thread or a signal handler, also inside a native decode, or ends its
reasoning."""

from __future__ import annotations

import ctypes


class CancelFlag:
    """One byte of native memory, so that llama.cpp can poll it without taking the interpreter lock.

    Attributes:
        ends_reasoning: The reasoning of the answer shall end now, and its content begin.
    """

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(2)
        self.ends_reasoning = False

    def set(self) -> None:
        self.buffer[0] = b"\x01"

    def end_reasoning(self) -> None:
        self.ends_reasoning = True

    def clear(self) -> None:
        self.buffer[0] = b"\x00"

    def is_set(self) -> bool:
        return self.buffer[0] != b"\x00"
