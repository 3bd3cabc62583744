"""`edgespec show`: a model's details, from its header alone, and compatible drafts on this machine."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.common import JSON, QUIET
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.render.rows import Row, write_rows
from edgespec.cli.terminal.output import Output
from edgespec.text.figures import count_of, counted, size_of

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
@click.argument("model", type=ModelSpec())
@click.option("--template", is_flag=True, help="Print the text of its chat template, too.")
@click.option("--metadata", is_flag=True, help="Print all metadata, too.")
@JSON
@QUIET
def show(model: str, template: bool, metadata: bool, as_json: bool, quiet: bool) -> None:
    """Show the details of MODEL, and which models here can draft for it.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'. Only its header is read: nothing is loaded.
    """
    from edgespec.models.names.local import local_model

    output = Output(quiet=quiet)
    found = local_model(model)
    header = found.header
    assert header is not None  # else it would have been rejected
    facts = _facts(found, header)
    text = header.metadata.get("tokenizer.chat_template")
    drafts = _drafts(header, output)
    if as_json:
        extra: Facts = {"chat_template_text": text} if template else {}
        extra |= {"metadata": _metadata(header)} if metadata else {}
        fitting = [asdict(each) for each in drafts if each.verdict != "no"]
        output.json(facts | extra | {"drafts": fitting})
        return
    rows = [Row("named", facts["model"]), *_catalogue_rows(model), *header_rows(facts), *_more_rows(facts)]
    rows += _draft_rows(model, drafts)
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
    return [
        Row("model", facts["name"]),
        Row("file", f"{with_tilde(Path(facts['path']))}, {size_of(facts['size_bytes'])}"),
        Row("architecture", f"{facts['architecture']}, {facts['layers']} layers, width {facts['width']}"),
        Row("weights", f"{', '.join(types)} of {size_of(total)}"),
        Row("vocabulary", f"{facts['n_vocab']} tokens, tokenizer {facts['tokenizer']}"),
        Row("chat template", "yes" if facts["chat_template"] else "none"),
        Row("context", f"trained for {facts['ctx_trained']} tokens"),
    ]


def _facts(model: LocalModel, header: Header) -> Facts:
    """Everything `show` prints about the model itself."""
    from edgespec.models.memory.kv_cache import bytes_per_token
    from edgespec.models.names.known import name_of

    per_token = int(bytes_per_token(header))
    trained = header.number("context_length")
    lengths = sorted({length for length in (*CONTEXTS, trained) if 0 < length <= trained})
    return {
        "model": name_of(header.path),
        **header_facts(header),
        "files": [str(path.absolute()) for path in header.parts or (header.path,)],
        "parameters": model.n_params,
        "quantisation": model.quantisation,
        "heads": _per_layer(header, "attention.head_count"),
        "kv_heads": _per_layer(header, "attention.head_count_kv"),
        "head_size": header.head_sizes[0],
        "sliding_window": header.number("attention.sliding_window"),
        "experts": header.number("expert_count"),
        "experts_used": header.number("expert_used_count"),
        "tensors_by_type": dict(Counter(tensor.type for tensor in header.tensors.values()).most_common()),
        **_vocabulary(header),
        "kv_bytes_per_token": per_token,
        "kv_bytes": {str(length): length * per_token for length in lengths},
        **{name: text for name, keys in ABOUT.items() if (text := _first(header, keys))},
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
    if any(facts["heads"]):
        shared = f", {_range(facts['kv_heads'])} for keys and values" if facts["kv_heads"] else ""
        yield Row("heads", f"{_range(facts['heads'])}{shared}, {facts['head_size']} numbers each")
    if facts["experts"]:
        yield Row("experts", f"{facts['experts']} per layer, {facts['experts_used']} used per token")
    tensors = ((name, n, facts["bytes_by_type"][name]) for name, n in facts["tensors_by_type"].items())
    yield Row("tensors", "; ".join(f"{n} of {name}, {size_of(size)}" for name, n, size in tensors))
    yield Row("tokens", f"{facts['vocabulary']}, prompts begin {'with' if facts['adds_bos'] else 'without'} BOS")
    yield Row(
        "special tokens", ", ".join(f"{name} {text!r}" for name, text in facts["special_tokens"].items()) or "none"
    )
    yield Row("KV cache", _kv_cache(facts))
    for name in ABOUT:
        if name in facts:
            yield Row(name.replace("_", " "), facts[name])


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
