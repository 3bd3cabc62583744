"""`edgespec show`: details of a model or a draft head, from its header alone, and compatible drafts on this machine."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.common import JSON, MODEL_TOO, QUIET
from edgespec.cli.options.given import one_model
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.render.rows import Row, write_rows
from edgespec.cli.terminal.output import Output
from edgespec.text.figures import count_of, counted, percent, size_of

if TYPE_CHECKING:
    from edgespec.gguf_file.header import Header
    from edgespec.models.names.local import LocalModel
    from edgespec.models.pair.suggest import Suggestion

Facts = dict[str, Any]
Rows = list[Row]

CONTEXTS = (4096, 8192)  # context sizes to show the cache for, beside the trained one
ABOUT = {  # the authors' description, from the first existing key
    "licence": ("general.license.name", "general.license"),
    "author": ("general.author", "general.organization"),
    "quantised_by": ("general.quantized_by",),
    "made_from": ("general.base_model.0.repo_url", "general.base_model.0.name"),
    "source": ("general.source.url", "general.repo_url", "general.url"),
    "about": ("general.description",),
}
WIDEST = 100  # columns of text that is easy to read
LONGEST = 300  # characters of a text among the metadata


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False, type=ModelSpec(), metavar="MODEL")
@MODEL_TOO
@click.option("--template", is_flag=True, help="Print the text of its chat template, too.")
@click.option("--metadata", is_flag=True, help="Print all metadata, too.")
@JSON
@QUIET
def show(model: str | None, model_too: str | None, template: bool, metadata: bool, as_json: bool, quiet: bool) -> None:
    """Show the details of MODEL, and which models here can draft for it.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'; it may be a draft head. Only its header is read: nothing
    is loaded.
    """
    from edgespec.models.names.local import local_model

    output = Output(quiet=quiet)
    model = one_model(model, model_too)
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.", click.get_current_context())
    found = local_model(model)
    header = found.header
    assert header is not None  # else it would have been rejected
    facts = _facts(found, header)
    text = header.metadata.get("tokenizer.chat_template")
    is_model = "head" not in facts
    drafts = _drafts(header, output) if is_model else []
    if as_json:
        extra: Facts = {"chat_template_text": text} if template else {}
        extra |= {"metadata": _metadata(header)} if metadata else {}
        extra |= {"drafts": [asdict(each) for each in drafts if each.verdict != "no"]} if is_model else {}
        output.json(facts | extra)
        return
    rows = [Row("named", facts["model"]), *_catalogue_rows(model), *header_rows(facts), *_more_rows(facts)]
    rows += _draft_rows(model, drafts) if is_model else []
    _print(output, rows)
    if metadata:
        output.line("")
        _print(output, _metadata_rows(header))
    if template and text:
        output.line(f"\n{text}")


# --- a file -----------------------------------------------------------------------------------------------------------


def header_facts(header: Header) -> Facts:
    """The facts shown for every model."""
    bytes_by_type: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_by_type[tensor.type] += tensor.size_bytes
    return {
        "path": str(header.path.absolute()),
        "size_bytes": header.size_bytes,
        "name": header.name,
        "architecture": header.architecture,
        "layers": header.number("block_count"),
        "width": header.number("embedding_length"),
        "bytes_by_type": dict(bytes_by_type.most_common()),
        "n_vocab": header.n_vocab,
        "tokenizer": str(header.metadata.get("tokenizer.ggml.model", "unknown")),
        "ctx_trained": header.number("context_length"),
        "chat_template": "tokenizer.chat_template" in header.metadata,
    }


def header_rows(facts: Facts) -> Rows:
    """The same as labels and texts."""
    from edgespec.models.names.known import with_tilde

    total = sum(facts["bytes_by_type"].values()) or 1
    types = (f"{name} {100 * size / total:.1f} %" for name, size in facts["bytes_by_type"].items())
    is_head = "head" in facts
    shape = _shape_of_head(facts) if is_head else f"{facts['layers']} layers, width {facts['width']}"
    rows = [
        Row("model", facts["name"]),
        Row("file", f"{with_tilde(Path(facts['path']))}, {size_of(facts['size_bytes'])}"),
        Row("architecture", f"{facts['architecture']}, {shape}"),
        Row("weights", f"{', '.join(types)} of {size_of(total)}"),
    ]
    if is_head:
        return [*rows, *_head_rows(facts)]
    return [
        *rows,
        Row("vocabulary", f"{facts['n_vocab']} tokens, tokenizer {facts['tokenizer']}"),
        Row("chat template", "yes" if facts["chat_template"] else "none"),
        Row("context", f"trained for {facts['ctx_trained']} tokens"),
    ]


def _facts(model: LocalModel, header: Header) -> Facts:
    """Everything `show` prints about the model itself."""
    from edgespec.gguf_file.head_check import is_head
    from edgespec.models.names.known import name_of

    return {
        "model": name_of(header.path),
        **header_facts(header),
        "files": [str(path.absolute()) for path in header.parts or (header.path,)],
        "parameters": model.n_params,
        "quantisation": model.quantisation,
        "tensors_by_type": dict(Counter(tensor.type for tensor in header.tensors.values()).most_common()),
        **(_head_facts(header) if is_head(header) else _model_facts(header)),
        **{name: text for name, keys in ABOUT.items() if (text := _first(header, keys))},
    }


def _model_facts(header: Header) -> Facts:
    from edgespec.models.memory.kv_cache import bytes_per_token

    per_token = int(bytes_per_token(header))
    trained = header.number("context_length")
    lengths = sorted({length for length in (*CONTEXTS, trained) if 0 < length <= trained})
    return {
        "heads": _per_layer(header, "attention.head_count"),
        "kv_heads": _per_layer(header, "attention.head_count_kv"),
        "head_size": header.head_sizes[0],
        "sliding_window": header.number("attention.sliding_window"),
        "experts": header.number("expert_count"),
        "experts_used": header.number("expert_used_count"),
        **_vocabulary(header),
        "kv_bytes_per_token": per_token,
        "kv_bytes": {str(length): length * per_token for length in lengths},
    }


def _per_layer(header: Header, key: str) -> list[int]:
    """The different values of the layers, in order."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    values = [value] if isinstance(value, int) else header.numbers(f"{header.architecture}.{key}").tolist()
    return sorted({int(each) for each in values})


def _vocabulary(header: Header) -> Facts:
    """Its kind, and the texts of special tokens by role."""
    from edgespec.models.pair.vocabulary import Vocabulary

    vocabulary = Vocabulary.of(header)
    ids = {"bos": vocabulary.bos, "eos": vocabulary.eos}
    for key, value in header.metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and isinstance(value, int):
            ids.setdefault(key.removeprefix("tokenizer.ggml.").removesuffix("_token_id"), value)
    texts = vocabulary.texts
    special = {
        name: texts[id].decode("utf-8", "replace")
        for name, id in ids.items()
        if id is not None and 0 <= id < len(texts)
    }
    return {"vocabulary": vocabulary.kind, "special_tokens": special, "adds_bos": vocabulary.adds_bos}


def _first(header: Header, keys: Sequence[str]) -> str:
    return next((text for key in keys if (text := str(header.metadata.get(key, "")).strip())), "")


def _metadata(header: Header) -> Facts:
    """All of it, but only the length of long arrays."""
    return {
        key: {"length": header.length(key)} if _is_long(header, key) else value
        for key, value in header.metadata.items()
        if key != "tokenizer.chat_template"
    }


def _is_long(header: Header, key: str) -> bool:
    return bool(header.length(key)) and not isinstance(header.metadata[key], tuple)


# --- a draft head -----------------------------------------------------------------------------------------------------


def _head_facts(header: Header) -> Facts:
    """What it was made for, and how it was trained, as far as the file says."""
    from edgespec.gguf_file.head_check import NETWORKS, kind_of_head, layers_read, n_draft_tokens, n_tokens
    from edgespec.models.memory.kv_cache import bytes_per_token

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
        "kv_bytes_per_token": int(bytes_per_token(header)),
        "training_tokens": number("training_tokens"),
        "training_minutes": number("training_minutes"),
        "acceptance": [round(float(share), 4) for share in acceptance] if acceptance.dtype.kind == "f" else [],
    }


def _shape_of_head(facts: Facts) -> str:
    if facts["layers_read"]:
        return f"a draft head that reads layers {', '.join(map(str, facts['layers_read']))} of its target"
    made_of = counted(facts["networks"], "network") if facts["networks"] else "a layer"
    return f"a draft head: {made_of} on the final state of its target"


def _head_rows(facts: Facts) -> Iterator[Row]:
    shape = f"width {facts['target_width']}, {facts['n_vocab']} tokens"
    yield Row("made for", f"{facts['target']} ({shape})" if facts["target"] else f"a model of {shape}")
    yield Row("drafts", f"{facts['n_draft_tokens']} of these tokens (-md, --spec-type {facts['head']})")
    if facts["training_tokens"]:
        yield Row("trained", f"{facts['training_minutes']:.0f} minutes, on {count_of(facts['training_tokens'])} tokens")
    if shares := facts["acceptance"]:
        right = ", ".join(percent(share) for share in shares)
        lengths = f"drafts of 1 to {len(shares)} tokens" if len(shares) > 1 else "drafts of 1 token"
        yield Row("acceptance", f"{right} of greedy {lengths} are right as a whole on held-out answers")


# --- drafts -----------------------------------------------------------------------------------------------------------


def _drafts(target: Header, output: Output) -> list[Suggestion]:
    """How the models here would do as its drafts, best first."""
    from edgespec.models.names.local import local_models
    from edgespec.models.pair.suggest import suggestions

    def told() -> Iterator[LocalModel]:
        for model in local_models():
            output.progress(f"comparing with {model.path.name}", None)
            yield model

    try:
        return suggestions(target, told())
    finally:
        output.end_progress()


def _draft_rows(model: str, drafts: Sequence[Suggestion]) -> Rows:
    fitting = [each for each in drafts if each.verdict != "no"]
    texts = [f"{each.spec}, {each.why}" for each in fitting] or ["none here"]
    if n_unfit := len(drafts) - len(fitting):
        others = f"{counted(n_unfit, 'other model')} here" if fitting else f"{n_unfit}"
        texts.append(f"{others} cannot draft for it: 'edgespec pair suggest {model}' shows why")
    return [Row("" if number else "drafts", text) for number, text in enumerate(texts)]


# --- layout -----------------------------------------------------------------------------------------------------------


def _catalogue_rows(model: str) -> Iterator[Row]:
    """What the catalogue adds to a model of that name; nothing for a path."""
    from edgespec.models.names.spec import catalogued

    entry = catalogued(model)
    if entry is None:
        return
    if entry.package:
        yield Row("made from", f"{PurePosixPath(entry.member).name} of the package {entry.package}")
    if entry.settings:
        settings = ", ".join(f"{name} {value}" for name, value in entry.settings.items())
        yield Row("answers with", f"{settings} (unless you set them)")


def _more_rows(facts: Facts) -> Iterator[Row]:
    if len(facts["files"]) > 1:
        yield Row("parts", f"{len(facts['files'])} files")
    yield Row("parameters", count_of(facts["parameters"]))
    yield Row("quantisation", facts["quantisation"])
    tensors = ((name, n, facts["bytes_by_type"][name]) for name, n in facts["tensors_by_type"].items())
    yield Row("tensors", "; ".join(f"{n} of {name}, {size_of(size)}" for name, n, size in tensors))
    if "head" not in facts:
        yield from _model_rows(facts)
    elif facts["kv_bytes_per_token"]:
        yield Row("KV cache", f"{size_of(facts['kv_bytes_per_token'])} per token of context (F16)")
    for name in ABOUT:
        if name in facts and not ("head" in facts and name == "made_from"):
            yield Row(name.replace("_", " "), facts[name])


def _model_rows(facts: Facts) -> Iterator[Row]:
    if any(facts["heads"]):
        shared = f", {_range(facts['kv_heads'])} for keys and values" if facts["kv_heads"] else ""
        yield Row("heads", f"{_range(facts['heads'])}{shared}, {facts['head_size']} numbers each")
    if facts["experts"]:
        yield Row("experts", f"{facts['experts']} per layer, {facts['experts_used']} used per token")
    yield Row("tokens", f"{facts['vocabulary']}, prompts begin {'with' if facts['adds_bos'] else 'without'} BOS")
    yield Row(
        "special tokens", ", ".join(f"{name} {text!r}" for name, text in facts["special_tokens"].items()) or "none"
    )
    yield Row("KV cache", _kv_cache(facts))


def _kv_cache(facts: Facts) -> str:
    if not facts["kv_bytes_per_token"]:
        return "none: a state of constant size"
    sizes = (f"{size_of(size)} for {int(length):,}" for length, size in facts["kv_bytes"].items())
    window = (
        f"; less for layers with a sliding window of {facts['sliding_window']:,}" if facts["sliding_window"] else ""
    )
    return f"{size_of(facts['kv_bytes_per_token'])} per token of context (F16): {', '.join(sizes)}{window}"


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _metadata_rows(header: Header) -> Rows:
    rows = []
    for key, value in header.metadata.items():
        text = f"{header.length(key):,} elements" if _is_long(header, key) else str(value)
        if key == "tokenizer.chat_template":
            text = f"a text of {len(text):,} characters, see --template"
        elif len(text) > LONGEST:
            text = f"{text[:LONGEST]} ... ({len(text):,} characters)"
        rows.append(Row(key, text))
    return rows


def _print(output: Output, rows: Sequence[Row]) -> None:
    """As wide as the terminal, but no wider than is readable."""
    indent = max(len(row.label) for row in rows) + 2
    columns = max(min(WIDEST, shutil.get_terminal_size().columns), indent + 20)
    write_rows(output, [row._replace(text=row.text or "-") for row in rows], indent=indent, columns=columns)
