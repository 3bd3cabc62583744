"""The LoRA adapters of a model in memory, and the sets of them that answers use."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Sequence
from hashlib import sha256

from edgespec.errors import ModelFileError, UsageError
from edgespec.files.paths import file_facts
from edgespec.gguf_file.adapters import Adapter, checked_scale
from edgespec.llama.library import api, complaints, first_complaint
from edgespec.llama.model import LlamaModel

AdapterSet = tuple[tuple[int, float], ...]
"""The numbers of the adapters that a pass uses, in order, and their scales. Empty: the model alone."""

AskedAdapters = Sequence[tuple[int | str, float]]
"""The numbers or the names of adapters, and their scales. Empty: the default set."""

# llama.cpp adds more than two adapters in an order that depends on their addresses, and so changes with each start.
MOST_TOGETHER = 2


class Adapters:
    """The adapters of a model, whose files were checked. They are loaded before a context is made, and freed with the
    model. Raises ModelFileError, UsageError.

    Attributes:
        default: The set of requests that do not ask for another one.
        facts: All that the results depend on: the files and their default scales.
    """

    def __init__(self, model: LlamaModel, adapters: Sequence[Adapter]) -> None:
        self._names = [adapter.name for adapter in adapters]
        self._scales = [adapter.scale for adapter in adapters]
        self.default = _usable(enumerate(self._scales))
        self._handles = [_load(model, adapter) for adapter in adapters]
        self.facts = [[*file_facts(adapter.path), adapter.scale] for adapter in adapters]

    @property
    def every(self) -> AdapterSet:
        """All adapters together, to measure how passes round with any of them."""
        return tuple((number, 1.0) for number in range(len(self._names)))

    @property
    def mark(self) -> str:
        """Identifies the adapters in the names of files; empty if there are none."""
        return f"-{sha256(json.dumps(self.facts).encode()).hexdigest()[:16]}" if self else ""

    def describe(self) -> dict[str, float]:
        """Return the default scales by name."""
        return dict(zip(self._names, self._scales, strict=True))

    def chosen(self, asked: AskedAdapters) -> AdapterSet:
        """Return the set that a request asks for. Raises UsageError."""
        if not asked:
            return self.default
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in asked):
            raise UsageError("lora must be pairs of an adapter and its scale", field="lora")
        scales = [(self._number(which), checked_scale(scale)) for which, scale in asked]
        if len(dict(scales)) < len(scales):
            raise UsageError("lora names an adapter twice", field="lora")
        return _usable(scales)

    def __bool__(self) -> bool:
        return bool(self._names)

    def use(self, context: int, chosen: AdapterSet) -> None:
        """Let a native context use a set from its next decode on. If it is another one, its buffers are reserved
        again."""
        handles = (api.llama_adapter_lora_p_ctypes * len(chosen))(*(self._handles[number] for number, _ in chosen))
        scales = (ctypes.c_float * len(chosen))(*(scale for _, scale in chosen))
        api.llama_set_adapters_lora(context, handles, len(chosen), scales)

    def _number(self, which: int | str) -> int:
        if isinstance(which, str) and which in self._names:
            return self._names.index(which)
        if isinstance(which, int) and 0 <= which < len(self._names):
            return which
        loaded = ", ".join(self._names) or "no adapters"
        what = f"lora names an adapter that is not loaded: {which!r}"
        raise UsageError(what, hint=f"the model has {loaded}", field="lora")


def _usable(scales: Iterable[tuple[int, float]]) -> AdapterSet:
    used = tuple(sorted((number, scale) for number, scale in scales if scale))
    if len(used) > MOST_TOGETHER:
        what = f"lora has {len(used)} adapters for one answer, and {MOST_TOGETHER} are possible"
        hint = "a scale of 0 (`lora=FILE=0`) loads an adapter for requests that ask for it"
        raise UsageError(what, hint=hint, field="lora")
    return used


def _load(model: LlamaModel, adapter: Adapter) -> int:
    with complaints() as lines:
        handle: int = api.llama_adapter_lora_init(model.handle, os.fsencode(adapter.path))
    if not handle:
        raise ModelFileError(f"cannot load the adapter {adapter.path}", why=first_complaint(lines))
    return handle
