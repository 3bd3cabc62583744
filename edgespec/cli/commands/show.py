"""`edgespec show`: details of a model or a draft head, from its header alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.terminal.output import Output, in_options
from edgespec.text.figures import count_of, counted, percent, size_of
from edgespec.text.strict_json import json_line

if TYPE_CHECKING:
    from edgespec.gguf_file.header import Header
    from edgespec.models.names.local import LocalModel

Rows = Iterator[tuple[str, str]]

CONTEXTS = (4096, 8192)  # context sizes for which the size of the KV cache is shown, and the trained one
ABOUT = {  # facts from the metadata: the value of the first key that exists
    "licence": ("general.license.name", "general.license"),
    "author": ("general.author", "general.organization"),
    "made from": ("general.base_model.0.repo_url", "general.base_model.0.name"),
    "source": ("general.source.url", "general.repo_url", "general.url"),
}


@click.command(context_settings=HELP_NAMES)
@click.argument("model", type=ModelSpec())
@click.option("--template", is_flag=True, help="Also print the chat template.")
def show(model: str, template: bool) -> None:
    """Show the details of MODEL, and the draft heads near it.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'; it may be a draft head. The model is not loaded.
    'edgespec pair suggest MODEL' lists the models that can draft for it; 'gguf-dump FILE' prints all metadata.
    """
    from edgespec.models.names.local import local_model

    output = Output(quiet=False)
    found = local_model(model, embeds=True)
    header = found.header
    assert header is not None  # a file without a valid header is an error
    rows = [*_rows(found, header), *_drafting_rows(found, model, header), *_catalogue_rows(model)]
    output.facts([(label, text or "-") for label, text in rows])
    for name, text in _templates(header) if template else ():
        output.line(f"\n{{# {name} #}}\n{text}" if name else f"\n{text}")


def _templates(header: Header) -> list[tuple[str, str]]:
    """Return the chat templates of a file by their names, the default one as ""."""
    from edgespec.gguf_file.chat_templates import chat_templates, named_templates

    default = chat_templates(header).default
    return [*([("", default)] if default else []), *named_templates(header).items()]


def _rows(model: LocalModel, header: Header) -> Rows:
    from edgespec.gguf_file.head_check import is_head
    from edgespec.gguf_file.pooling import NAMES, pooling_of
    from edgespec.models.names.model_names import name_of, short_spec

    of_head = is_head(header)
    sizes = Counter[str]()
    for tensor in header.tensors.values():
        sizes[tensor.type] += tensor.size_bytes
    total = sum(sizes.values()) or 1
    types = ", ".join(f"{type} {100 * size / total:.1f} %" for type, size in sizes.most_common())
    yield "named", short_spec(name_of(header.path))
    yield "model", header.name
    parts = f" in {len(header.parts)} files" if len(header.parts) > 1 else ""
    yield "file", f"{short_spec(str(header.path.absolute()))}, {size_of(header.size_bytes)}{parts}"
    layers = f"{header.number('block_count')} layers, width {header.number('embedding_length')}"
    yield "architecture", f"{header.architecture}, {_shape_of_head(header) if of_head else layers}"
    yield "parameters", count_of(model.n_params)
    yield "weights", f"{model.quantisation}: {types} of {size_of(total)}"
    yield from _head_rows(header) if of_head else _model_rows(header)
    cache = _kv_cache(header)
    if model.is_embedding:
        yield "pooling", f"{NAMES[pooling_of(header)]}: it cannot generate text ('edgespec serve')"
    elif cache or not of_head:
        yield "KV cache", cache or "none: a state of constant size"
    for label, keys in ABOUT.items():
        if (text := _first(header, keys)) and not (of_head and label == "made from"):
            yield label, text


def _model_rows(header: Header) -> Rows:
    """Yield what only complete models have: attention, experts and special tokens."""
    from edgespec.models.pair.vocabulary import Vocabulary

    vocabulary = Vocabulary.of(header)
    yield "vocabulary", f"{header.n_vocab} tokens, tokenizer {header.metadata.get('tokenizer.ggml.model', 'unknown')}"
    bos = "begin with BOS" if vocabulary.adds_bos else "do not begin with BOS"
    yield "tokens", f"{vocabulary.kind}; prompts {bos}"
    ids: dict[str, object] = {"bos": vocabulary.bos, "eos": vocabulary.eos}
    for key, value in header.metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            ids.setdefault(key.removeprefix("tokenizer.ggml.").removesuffix("_token_id"), value)
    texts = vocabulary.texts
    special = (
        f"{name} {texts[id].decode('utf-8', 'replace')!r}"
        for name, id in ids.items()
        if isinstance(id, int) and 0 <= id < len(texts)
    )
    yield "special tokens", ", ".join(special) or "none"
    heads, kv_heads = (_per_layer(header, key) for key in ("attention.head_count", "attention.head_count_kv"))
    if any(heads):
        shared = f", {_range(kv_heads)} for keys and values" if kv_heads else ""
        yield "attention", f"{_range(heads)} heads{shared}, {header.head_sizes[0]} numbers each"
    if n_experts := header.number("expert_count"):
        yield "experts", f"{n_experts} in a layer, {header.number('expert_used_count')} used for a token"
    names = [name or "default" for name, _ in _templates(header)]
    yield "chat template", "yes" if names == ["default"] else ", ".join(names) or "none"
    if names:
        from edgespec.dialects.about import calls_of, reasoning_of
        from edgespec.gguf_file.chat_templates import chat_templates

        templates = chat_templates(header)
        yield "reasoning", reasoning_of(templates.default)
        yield "calls of tools", calls_of(templates.of(has_tools=True))
    yield "context", f"trained for {header.number('context_length')} tokens"


def _per_layer(header: Header, key: str) -> list[int]:
    """Return the values that the layers have, each once and in order."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    values = [value] if isinstance(value, int) else header.numbers(f"{header.architecture}.{key}").tolist()
    return sorted({int(each) for each in values})


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _shape_of_head(header: Header) -> str:
    from edgespec.drafters.heads import HEADS
    from edgespec.gguf_file.head_check import kind_of_head, layers_read

    head, n = HEADS[kind_of_head(header)], header.number("block_count")
    if head.reads == "layers":
        return f"a draft head that reads layers {', '.join(map(str, layers_read(header)))} of its model"
    if head.reads == "cache":
        return f"an assistant: {counted(n, 'layer')} that read the cache of its model"
    made_of = counted(n, "network") if head.form == "networks" else "a layer"
    return f"a draft head: {made_of} on the final state of its model"


def _head_rows(header: Header) -> Rows:
    """Yield what a draft head was made for, and how it was trained if the file says so."""
    from edgespec.gguf_file.head_check import kind_of_head, n_draft_tokens, n_tokens, width_of_target

    def number(key: str) -> float:
        value = header.metadata.get(f"edgespec.head.{key}")
        return value if isinstance(value, int | float) and math.isfinite(value) else 0

    kind, target = kind_of_head(header), _first(header, ABOUT["made from"])
    shape = f"width {width_of_target(header)}, {n_tokens(header)} tokens"
    yield "made for", f"{target} ({shape})" if target else f"a model of {shape}"
    yield "drafts", f"{n_draft_tokens(header)} of these tokens (-md, --spec-type {kind})"
    if n_trained := number("training_tokens"):
        yield "trained", f"{number('training_minutes'):.0f} minutes, on {count_of(int(n_trained))} tokens"
    shares = header.numbers("edgespec.head.acceptance")
    if shares.dtype.kind == "f" and len(shares):
        lengths = f"1 to {len(shares)} tokens" if len(shares) > 1 else "1 token"
        accepted = ", ".join(percent(float(share)) for share in shares)
        yield "acceptance", f"{accepted} of greedy drafts of {lengths} on held-out answers"


def _kv_cache(header: Header) -> str:
    """Return the size of the KV cache, or "" if the model has none."""
    from edgespec.models.memory.estimate import bytes_per_token

    per_token, trained = int(bytes_per_token(header)), header.number("context_length")
    if not per_token:
        return ""
    lengths = sorted({length for length in (*CONTEXTS, trained) if 0 < length <= trained})
    sizes = ", ".join(f"{size_of(length * per_token)} for {length}" for length in lengths)
    window = header.number("attention.sliding_window")
    less = f"; less for layers with a sliding window of {window}" if window else ""
    return f"{size_of(per_token)} per token of context (F16){': ' if sizes else ''}{sizes}{less}"


def _catalogue_rows(model: str) -> Rows:
    """Yield what the catalogue, or Ollama, says about a model of this name; nothing for a path."""
    from edgespec.models.names.spec import catalogued, own_settings

    entry = catalogued(model)
    if entry is not None and entry.package:
        yield "made from", f"{PurePosixPath(entry.member).name} of the package {entry.package}"
    for place, head in enumerate(entry.heads if entry is not None else ()):
        page = f" ({head.source})" if head.gain and head.source else ""
        yield "" if place else "published heads", f"{head.repository or 'in its file'}: {head.facts()}{page}"
    if own := own_settings(model):
        settings = (f"{name} {json_line(value)}" for name, value in own.items())
        yield "answers with", f"{', '.join(settings)} (unless you set them)"


def _drafting_rows(model: LocalModel, spec: str, header: Header) -> Rows:
    """Yield the model's draft head, and the drafts near it with what speaks against those that do not fit."""
    from edgespec.gguf_file.head_check import is_head
    from edgespec.models.names.model_names import short_spec
    from edgespec.models.pair.known_heads import head_of
    from edgespec.models.pair.near import drafts_near

    if is_head(header) or model.is_embedding:
        return
    if known := head_of(model):
        yield "draft head", known.with_command(short_spec(spec))
    for place, draft in enumerate(drafts_near(header)):
        of_head = f"{draft.found.kind} head, " if draft.found.kind else ""
        fits = f"{of_head}does not fit: {draft.problem}" if draft.problem else f"fits, {draft.found.why}"
        if draft.is_bundled:
            fits += f" (bundled: --spec-type {draft.found.kind} uses it)"
        yield "" if place else "drafts near it", f"{short_spec(draft.found.spec)}: {in_options(fits)}"


def _first(header: Header, keys: Sequence[str]) -> str:
    return next((text for key in keys if (text := str(header.metadata.get(key, "")).strip())), "")
