"""The properties of a model that its texts depend on: two jobs with the same ones have comparable texts."""

from __future__ import annotations

import os
from hashlib import sha256

from edgespec.errors import UsageError, told_as
from edgespec.gguf_file.adapters import parse_adapters
from edgespec.gguf_file.chat_templates import chat_templates
from edgespec.gguf_file.header import Header, read_header
from edgespec.models.memory.fit import wanted_attention
from edgespec.settings import LoadSettings

N_PROBES, PROBE_BYTES = 64, 4096  # samples of the weights, which are too large to read entirely


def text_facts(header: Header, load: LoadSettings) -> dict[str, object]:
    """Return the properties of a loaded model that texts depend on. `header` has all parts of a split target."""
    adapters = [[_digest(read_header(adapter.path)), adapter.scale] for adapter in parse_adapters(load.lora)]
    made: dict[str, object] = {"lora": adapters} if adapters else {}
    if load.chat_template is not None or load.chat_template_file is not None:
        text = chat_templates(header, load.chat_template, load.chat_template_file).default
        made["chat template"] = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return made | {
        "model": header.path.name,
        "model size": header.size_bytes,
        "model digest": _digest(header),
        "exact": load.exact,
        "strict": load.strict,
        "cache_type_k": load.cache_type_k,
        "cache_type_v": load.cache_type_v,
        "flash_attention": wanted_attention(load, exact=load.exact or load.strict),
    }


def _digest(header: Header) -> str:
    """Return a digest of the header and of samples of the weights. Raises UsageError."""
    digest = sha256()
    for file in header.files:
        with told_as(UsageError, f"cannot read {header.path}"), file.open("rb") as data:
            size_bytes = data.seek(0, os.SEEK_END)
            data.seek(0)
            if file == header.path:
                digest.update(data.read(_header_bytes(header)))
            for probe in range(N_PROBES):
                data.seek(size_bytes * probe // N_PROBES)
                digest.update(data.read(PROBE_BYTES))
    return digest.hexdigest()[:32]


def _header_bytes(header: Header) -> int:
    offsets = [tensor.offset for tensor in header.tensors.values() if tensor.part == 0]
    return min(offsets, default=header.size_bytes)
