"""The models of this machine: the bundled pair and the GGUF files where people keep them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.header import Header, read_header
from edgespec.model_check import check_model
from edgespec.models.spec import NAMES, resolve

DEPTH = 3  # levels of folders that are looked into


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be loaded as `spec`, or a file that cannot: `problem` then says why, and little else is known.

    `size_bytes` counts all parts of a split file; `default_draft` is the draft model that comes with it.
    """

    spec: str
    path: Path
    name: str
    architecture: str = ""
    n_params: int = 0
    quantisation: str = ""
    size_bytes: int = 0
    n_ctx_train: int = 0
    n_vocab: int = 0
    default_draft: Path | None = None
    problem: str = ""
    header: Header | None = field(default=None, repr=False, compare=False)


def local_models(folders: Sequence[Path] = ()) -> Iterator[LocalModel]:
    """The bundled pair, then what lies in the Hugging Face cache, the working folder, `~/models` and `folders`.

    Each file once, one after another as they are read. Folders that cannot be read are left out, and so are files that
    are no language models, such as projectors.
    """
    seen: set[str] = set()
    for spec in NAMES:
        with suppress(ModelNotFoundError):
            path = resolve(spec).path
            seen.add(os.path.realpath(path))
            yield from _read(path, spec)
    for folder in [*_usual_folders(), *folders]:
        for path in _files(folder):
            if (file := os.path.realpath(path)) not in seen:
                seen.add(file)
                yield from _read(path, str(path))


def local_model(spec: str) -> LocalModel:
    """One model by its name or path. Raises ModelNotFoundError, ModelFileError."""
    return _described(check_model(resolve(spec).path), spec)


# --- one file ---------------------------------------------------------------------------------------------------------


def _read(path: Path, spec: str) -> Iterator[LocalModel]:
    """The model that a file is, or what is wrong with it; nothing for what goes with a model and is none."""
    if "mmproj" in path.name.lower() or _part_number(path) > 1:
        return
    try:
        header = read_header(path)
        if not {header.architecture, header.metadata.get("general.type")} & _EXTRAS:
            yield _described(check_model(header), spec)
    except EdgespecError as error:
        yield LocalModel(spec, path, path.stem, problem=error.why or error.what)


def _described(header: Header, spec: str) -> LocalModel:
    return LocalModel(
        spec=spec,
        path=header.path,
        name=header.name,
        architecture=header.architecture,
        n_params=header.n_params,
        quantisation=_quantisation(header),
        size_bytes=header.size_bytes,
        n_ctx_train=header.number("context_length"),
        n_vocab=header.n_vocab,
        default_draft=resolve(spec).default_draft,
        header=header,
    )


def _quantisation(header: Header) -> str:
    """What its quantiser called the mixture of types, or else the type that most of the weights have."""
    file_type = header.metadata.get("general.file_type")
    if isinstance(file_type, int) and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    bytes_by_type: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_by_type[tensor.type] += tensor.size_bytes
    return bytes_by_type.most_common(1)[0][0]


def _part_number(path: Path) -> int:
    """Which part of a split model a file is by its name; 1 for a whole one."""
    match = re.search(r"-(\d{5})-of-\d{5}\.gguf$", path.name)
    return int(match[1]) if match else 1


# --- folders ----------------------------------------------------------------------------------------------------------


def _usual_folders() -> Iterator[Path]:
    with suppress(OSError):
        kept = [folder for folder in _hub_cache().iterdir() if folder.name.startswith("models--")]
        yield from sorted(folder / "snapshots" for folder in kept)
    with suppress(OSError):  # someone may have removed it
        yield Path.cwd()
    with suppress(RuntimeError):  # nobody has to have a home
        yield Path.home() / "models"


def _hub_cache() -> Path:
    """Where huggingface_hub keeps what it downloads; importing it to ask would take half a second."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(hub))))  # noqa: PTH100, PTH111


def _files(folder: Path) -> Iterator[Path]:
    """The .gguf files in and below a folder, the nearest first; links are followed, each folder is entered once."""
    seen: set[str] = set()
    level = [folder]
    for _ in range(DEPTH + 1):
        below: list[Path] = []
        for place in level:
            if (real := os.path.realpath(place)) not in seen:
                seen.add(real)
                files, inner = _entries(place)
                yield from files
                below += inner
        level = below


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """The .gguf files in a folder and the folders in it that are not hidden, both in order."""
    files, folders = [], []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # a link to itself
                if entry.name.lower().endswith(".gguf") and entry.is_file():
                    files.append(folder / entry.name)
                elif not entry.name.startswith(".") and entry.is_dir():
                    folders.append(folder / entry.name)
    return sorted(files), sorted(folders)


# Architectures and types (general.type) of files that go with a model
_EXTRAS = frozenset(("adapter", "clip", "controlvector", "imatrix", "mmproj"))
FILE_TYPES = {  # general.file_type
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
}
