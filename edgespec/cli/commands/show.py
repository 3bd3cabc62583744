"""`edgespec show`: details of a model or a draft head, from its header alone."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.common import JSON
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.render.rows import Row, short_spec, write_rows
from edgespec.cli.terminal.output import Output
from edgespec.text.figures import count_of, counted, percent, size_of

if TYPE_CHECKING:
    from edgespec.gguf_file.header import Header
    from edgespec.models.names.local import LocalModel

Facts = dict[str, Any]

CONTEXTS = (4096, 8192)  # context sizes for which the size of the KV cache is shown, and the trained one
ABOUT = {  # facts from the metadata: the value of the first key that exists
    "licence": ("general.license.name", "general.license"),
    "author": ("general.author", "general.organization"),
    "made_from": ("general.base_model.0.repo_url", "general.base_model.0.name"),
    "source": ("general.source.url", "general.repo_url", "general.url"),
}
WIDEST = 100  # columns of text that is easy to read
LONGEST, LONGEST_ARRAY = 300, 16  # characters of a text and elements of an array in the metadata


@click.command(context_settings=HELP_NAMES)
@click.argument("model", type=ModelSpec())
@click.option("--template", is_flag=True, help="Also print the chat template.")
@click.option("--metadata", is_flag=True, help="Also print the metadata of the file.")
@JSON
def show(model: str, template: bool, metadata: bool, as_json: bool) -> None:
    """Show the details of MODEL.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'; it may be a draft head. The model is not loaded.
    'edgespec pair suggest MODEL' lists the models that can draft for it.
    """
    from edgespec.models.names.local import local_model

    output = Output(quiet=False)
    found = local_model(model)
    header = found.header
    assert header is not None  # a file without a valid header is an error
    facts = _facts(found, header)
    text = header.metadata.get("tokenizer.chat_template")
    if as_json:
        facts |= {"chat_template_text": text} if template else {}
        facts |= {"metadata": _metadata(header)} if metadata else {}
        output.json(facts)
        return
    _print(output, [*_rows(facts), *_catalogue_rows(model)])
    if metadata:
        output.line("")
        _print(output, [Row(key, _shortened(str(value))) for key, value in _metadata(header).items()])
    if template and text:
        output.line(f"\n{text}")


# --- the facts --------------------------------------------------------------------------------------------------------


def _facts(model: LocalModel, header: Header) -> Facts:
    from edgespec.gguf_file.head_check import is_head
    from edgespec.models.memory.estimate import bytes_per_token
    from edgespec.models.names.known import name_of

    bytes_by_type: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_by_type[tensor.type] += tensor.size_bytes
    facts = {
        "model": name_of(header.path),
        "path": str(header.path.absolute()),
        "files": [str(path.absolute()) for path in header.parts or (header.path,)],
        "size_bytes": header.size_bytes,
        "name": header.name,
        "architecture": header.architecture,
        "layers": header.number("block_count"),
        "width": header.number("embedding_length"),
        "parameters": model.n_params,
        "quantisation": model.quantisation,
        "bytes_by_type": dict(bytes_by_type.most_common()),
        "tensors_by_type": dict(Counter(tensor.type for tensor in header.tensors.values())),
        "n_vocab": header.n_vocab,
        "tokenizer": str(header.metadata.get("tokenizer.ggml.model", "unknown")),
        "ctx_trained": header.number("context_length"),
        "sliding_window": header.number("attention.sliding_window"),
        "chat_template": "tokenizer.chat_template" in header.metadata,
        "kv_bytes_per_token": int(bytes_per_token(header)),
    }
    facts |= {name: text for name, keys in ABOUT.items() if (text := _first(header, keys))}
    return facts | (_head_facts(header) if is_head(header) else _model_facts(header))


def _model_facts(header: Header) -> Facts:
    """Return the facts that only complete models have: attention, experts and special tokens."""
    from edgespec.models.pair.vocabulary import Vocabulary

    vocabulary = Vocabulary.of(header)
    ids: dict[str, Any] = {"bos": vocabulary.bos, "eos": vocabulary.eos}
    for key, value in header.metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            ids.setdefault(key.removeprefix("tokenizer.ggml.").removesuffix("_token_id"), value)
    texts = vocabulary.texts
    return {
        "heads": _per_layer(header, "attention.head_count"),
        "kv_heads": _per_layer(header, "attention.head_count_kv"),
        "head_size": header.head_sizes[0],
        "experts": header.number("expert_count"),
        "experts_used": header.number("expert_used_count"),
        "vocabulary": vocabulary.kind,
        "adds_bos": vocabulary.adds_bos,
        "special_tokens": {
            name: texts[id].decode("utf-8", "replace")
            for name, id in ids.items()
            if isinstance(id, int) and 0 <= id < len(texts)
        },
    }


def _per_layer(header: Header, key: str) -> list[int]:
    """Return the values that the layers have, each once and in order."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    values = [value] if isinstance(value, int) else header.numbers(f"{header.architecture}.{key}").tolist()
    return sorted({int(each) for each in values})


def _head_facts(header: Header) -> Facts:
    """Return what a draft head was made for, and how it was trained if the file says so."""
    from edgespec.gguf_file.head_check import NETWORKS, kind_of_head, layers_read, n_draft_tokens, n_tokens

    def number(key: str) -> float:
        value = header.metadata.get(f"edgespec.head.{key}")
        return value if isinstance(value, int | float) and math.isfinite(value) else 0

    acceptance = header.numbers("edgespec.head.acceptance")
    kind = kind_of_head(header)
    return {
        "head": kind,
        "target": _first(header, ABOUT["made_from"]),
        "target_width": header.number("embedding_length" if kind == "eagle1" else "target_hidden_size"),
        "n_vocab": n_tokens(header),
        "n_draft_tokens": n_draft_tokens(header),
        "layers_read": () if kind == "eagle1" else layers_read(header),
        "networks": header.number("block_count") if header.architecture in NETWORKS else 0,
        "training_tokens": number("training_tokens"),
        "training_minutes": number("training_minutes"),
        "acceptance": [round(float(share), 4) for share in acceptance] if acceptance.dtype.kind == "f" else [],
    }


def _metadata(header: Header) -> Facts:
    """Return the metadata without the chat template, and of long arrays only the length."""
    return {key: _value(header, key) for key in header.metadata if key != "tokenizer.chat_template"}


def _value(header: Header, key: str) -> Any:
    from edgespec.gguf_file.walk import Array

    value, length = header.metadata[key], header.length(key)
    if length > LONGEST_ARRAY:
        return f"an array of {length} elements"
    if isinstance(value, Array):  # of strings
        return [text.decode("utf-8", "replace") for text in header.strings(key)]
    return [*value] if isinstance(value, tuple) else value


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"


def _first(header: Header, keys: Sequence[str]) -> str:
    return next((text for key in keys if (text := str(header.metadata.get(key, "")).strip())), "")


# --- as text ----------------------------------------------------------------------------------------------------------


def _rows(facts: Facts) -> Iterator[Row]:
    total = sum(facts["bytes_by_type"].values()) or 1
    types = ", ".join(f"{name} {100 * size / total:.1f} %" for name, size in facts["bytes_by_type"].items())
    yield Row("named", short_spec(facts["model"]))
    yield Row("model", facts["name"])
    parts = f" in {len(facts['files'])} files" if len(facts["files"]) > 1 else ""
    yield Row("file", f"{short_spec(facts['path'])}, {size_of(facts['size_bytes'])}{parts}")
    if "head" in facts:
        yield Row("architecture", f"{facts['architecture']}, {_shape_of_head(facts)}")
    else:
        yield Row("architecture", f"{facts['architecture']}, {facts['layers']} layers, width {facts['width']}")
    yield Row("parameters", count_of(facts["parameters"]))
    yield Row("weights", f"{facts['quantisation']}: {types} of {size_of(total)}")
    yield Row("tensors", ", ".join(f"{n} of {name}" for name, n in facts["tensors_by_type"].items()))
    if "head" in facts:
        yield from _head_rows(facts)
    else:
        yield Row("vocabulary", f"{facts['n_vocab']} tokens, tokenizer {facts['tokenizer']}")
        yield from _model_rows(facts)
        yield Row("chat template", "yes" if facts["chat_template"] else "none")
        yield Row("context", f"trained for {facts['ctx_trained']} tokens")
    if facts["kv_bytes_per_token"] or "head" not in facts:
        yield Row("KV cache", _kv_cache(facts))
    for name in ABOUT:
        if name in facts and not ("head" in facts and name == "made_from"):
            yield Row(name.replace("_", " "), facts[name])


def _model_rows(facts: Facts) -> Iterator[Row]:
    bos = "begin with BOS" if facts["adds_bos"] else "do not begin with BOS"
    special = ", ".join(f"{name} {text!r}" for name, text in facts["special_tokens"].items())
    yield Row("tokens", f"{facts['vocabulary']}; prompts {bos}")
    yield Row("special tokens", special or "none")
    if any(facts["heads"]):
        shared = f", {_range(facts['kv_heads'])} for keys and values" if facts["kv_heads"] else ""
        yield Row("attention", f"{_range(facts['heads'])} heads{shared}, {facts['head_size']} numbers each")
    if facts["experts"]:
        yield Row("experts", f"{facts['experts']} in a layer, {facts['experts_used']} used for a token")


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _shape_of_head(facts: Facts) -> str:
    if facts["layers_read"]:
        return f"a draft head that reads layers {', '.join(map(str, facts['layers_read']))} of its model"
    made_of = counted(facts["networks"], "network") if facts["networks"] else "a layer"
    return f"a draft head: {made_of} on the final state of its model"


def _head_rows(facts: Facts) -> Iterator[Row]:
    shape = f"width {facts['target_width']}, {facts['n_vocab']} tokens"
    yield Row("made for", f"{facts['target']} ({shape})" if facts["target"] else f"a model of {shape}")
    yield Row("drafts", f"{facts['n_draft_tokens']} of these tokens (-md, --spec-type {facts['head']})")
    if facts["training_tokens"]:
        yield Row("trained", f"{facts['training_minutes']:.0f} minutes, on {count_of(facts['training_tokens'])} tokens")
    if shares := facts["acceptance"]:
        lengths = f"1 to {len(shares)} tokens" if len(shares) > 1 else "1 token"
        yield Row("acceptance", f"{', '.join(map(percent, shares))} of greedy drafts of {lengths} on held-out answers")


def _kv_cache(facts: Facts) -> str:
    per_token, trained = facts["kv_bytes_per_token"], facts["ctx_trained"]
    if not per_token:
        return "none: a state of constant size"
    lengths = sorted({length for length in (*CONTEXTS, trained) if 0 < length <= trained})
    sizes = ", ".join(f"{size_of(length * per_token)} for {length}" for length in lengths)
    window = f"; less for layers with a sliding window of {facts['sliding_window']}" if facts["sliding_window"] else ""
    return f"{size_of(per_token)} per token of context (F16){': ' if sizes else ''}{sizes}{window}"


def _catalogue_rows(model: str) -> Iterator[Row]:
    """Yield what the catalogue says about a model of this name; nothing for a path."""
    from edgespec.models.names.spec import catalogued

    entry = catalogued(model)
    if entry is not None and entry.package:
        yield Row("made from", f"{PurePosixPath(entry.member).name} of the package {entry.package}")
    if entry is not None and entry.settings:
        settings = (f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in entry.settings.items())
        yield Row("answers with", f"{', '.join(settings)} (unless you set them)")


def _print(output: Output, rows: Sequence[Row]) -> None:
    """Print as wide as the terminal, but no wider than is readable."""
    indent = max(len(row.label) for row in rows) + 2
    columns = max(min(WIDEST, shutil.get_terminal_size().columns), indent + 20)
    write_rows(output, [row._replace(text=row.text or "-") for row in rows], indent=indent, columns=columns)
