"""A GGUF model in memory: its weights, vocabulary and properties."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from edgespec.closable import Closable
from edgespec.errors import ModelFileError, OutOfMemoryError, UsageError
from edgespec.gguf_file.head_check import check_draft_file
from edgespec.gguf_file.header import EXPERTS, Header, quantisation, read_header
from edgespec.gguf_file.model_check import check_vocabulary
from edgespec.llama import rpc
from edgespec.llama.device_lost import FEWER_LAYERS
from edgespec.llama.devices import identities
from edgespec.llama.library import api, complaints, first_complaint, ggml_function, gpus
from edgespec.llama.workers import RemoteDevice
from edgespec.text.figures import count_of
from edgespec.text.finder import TextFinder

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

SAMPLED_TOKENS = 1024  # the number of tokens from which `vocabulary_id` is computed
_HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|p|a|ul|ol|li|blockquote|strong|em|b|i|u|s|sub|sup|code)>"
)  # Gemma's
_READ = 0  # LLAMA_LOAD_MODE_NONE, which llama-cpp-python does not name


class FillTokens(NamedTuple):
    """The control tokens of fill-in-the-middle prompts: around the gap, and before a repository and each of its files.
    None: the vocabulary has no such token."""

    prefix: int | None
    suffix: int | None
    middle: int | None
    repository: int | None
    file: int | None


def _number(function: str) -> cached_property[int]:
    """Return a property of a model that a function of llama.cpp returns."""
    return cached_property(lambda model: int(getattr(api, function)(model.handle)))


def _token(name: str) -> cached_property[int | None]:
    """Return a token of the vocabulary that llama.cpp knows by this name; None: the vocabulary has none."""
    return cached_property(lambda model: _token_or_none(getattr(api, f"llama_vocab_{name}")(model.vocabulary_handle)))


def _adds(name: str) -> cached_property[bool]:
    """Return whether the tokenizer adds this token to a text."""
    return cached_property(lambda model: bool(getattr(api, f"llama_vocab_get_add_{name}")(model.vocabulary_handle)))


class Placement(TypedDict, total=False):
    """The layers that `LlamaModel` loads on GPUs."""

    gpu_layers: int
    devices: Sequence[str]
    n_cpu_moe: int


class LlamaModel(Closable):
    """The weights and the vocabulary of one GGUF file, which may be a draft head.

    The header of the file is checked before llama.cpp reads it, unless a checked header is passed. Raises
    ModelNotFoundError or ModelFileError.

    `gpu_layers` layers, counted from the output down, are loaded on GPUs, which must exist: those named `devices`, or
    all. llama.cpp gives each GPU a share by its free memory. The experts of the first `n_cpu_moe` layers stay in main
    memory. `remote` layers, a number for each device of a worker, are loaded on other machines instead: the last
    layers, but not the output, whose rows of logits would have to be sent back. The file is memory-mapped unless the
    weights are to be `copied` into memory. MTP blocks are left out unless `with_mtp`. `progress` is called with 0..1
    while loading.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Header,
        *,
        gpu_layers: int = 0,
        devices: Sequence[str] = (),
        n_cpu_moe: int = 0,
        use_extra_bufts: bool = True,
        copied: bool = False,
        with_mtp: bool = False,
        remote: Sequence[tuple[RemoteDevice, int]] = (),
        vocabulary_only: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.path = path.path if isinstance(path, Header) else Path(path)
        self._native = None
        if vocabulary_only:
            check_vocabulary(read_header(self.path))
        else:
            self.header = path if isinstance(path, Header) else check_draft_file(self.path)
        params = api.llama_model_default_params()
        params.vocab_only = vocabulary_only
        params.use_extra_bufts = use_extra_bufts
        params.load_mtp = with_mtp
        self.is_copied = copied
        if copied:
            params.load_mode = _READ
        params.n_gpu_layers = self.gpu_layers = gpu_layers
        used = gpus(devices) if gpu_layers else []
        self.gpus = tuple(gpu.name for gpu in used)
        self.remote = [(device, layers) for device, layers in remote if layers]
        self.n_cpu_moe = n_cpu_moe if used or self.remote else 0
        experts = experts_of(self.n_cpu_moe)
        if self.remote:
            kept_alive: object = on_workers(params, self.remote, experts)
        else:
            # Several GPUs would divide wide passes and work in turn, which takes four copies of the inputs, and gains
            # nothing here, since a batch is one pass. An override prevents this, even if it matches no weight.
            experts += [b"^$"] * (len(used) > 1)
            # Without a layer on GPUs no GPU is passed: otherwise wide passes would still use memory of the GPUs.
            kept_alive = on_devices(params, [gpu.handle for gpu in used], experts)
        # ctypes does not keep a callback alive; this reference does.
        self._progress = _progress_callback(progress, [device.address for device, _ in self.remote])
        params.progress_callback = self._progress
        with complaints() as lines:
            self._native = api.llama_model_load_from_file(os.fsencode(self.path), params)
        del kept_alive
        if not self._native:
            if self.is_offloaded and "alloc" in first_complaint(lines):
                where = "on the workers" if self.remote else "on the GPU"
                hint = "put fewer layers there (`gpu_layers=N`)" if self.remote else FEWER_LAYERS
                raise OutOfMemoryError(f"{self.path.name} does not fit {where}", why=first_complaint(lines), hint=hint)
            raise ModelFileError(
                f"cannot load {self.path}",
                why=first_complaint(lines),
                hint="the file may be damaged or need a newer llama.cpp: download it again or try another",
            )
        stat = self.path.stat()
        # All that the results depend on: the same file with the same settings gives the same rows.
        self.fingerprint: dict[str, object] = {
            "file": str(self.path.resolve()),
            "size": stat.st_size,
            "mtime": stat.st_mtime_ns,
            "gpu_layers": gpu_layers,
            "extra_buffers": use_extra_bufts,
        }
        if used:
            self.fingerprint["devices"] = identities(self.gpus)
        if self.n_cpu_moe:
            self.fingerprint["n_cpu_moe"] = self.n_cpu_moe
        if self.remote:
            kinds = [(device.address, device.total_bytes, device.alignment, n) for device, n in self.remote]
            self.fingerprint["remote"] = kinds
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self.n_vocab: int = api.llama_vocab_n_tokens(self.vocabulary_handle)

    @classmethod
    def load_vocabulary(cls, path: str | os.PathLike[str]) -> LlamaModel:
        """Load only the tokenizer of a file, which may have no weights. Raises ModelNotFoundError, ModelFileError."""
        return cls(path, vocabulary_only=True)

    @property
    def handle(self) -> int:
        """The native model. Raises UsageError if the model is closed."""
        if self._native is None:
            raise UsageError("this model is closed")
        return int(self._native)

    @property
    def vocabulary_handle(self) -> int:
        """The native vocabulary."""
        return int(api.llama_model_get_vocab(self.handle))

    def tensor(self, name: str) -> int | None:
        """Return the address of a tensor of the loaded weights; None if there is none, or if this build gives none."""
        if _GET_TENSOR is None:
            return None
        address = _GET_TENSOR(self.handle, name.encode())
        return None if address is None else int(address)

    def close(self) -> None:
        """Free the weights; later calls raise UsageError."""
        if self._native is not None:
            api.llama_model_free(self._native)
            self._native = None

    @property
    def is_offloaded(self) -> bool:
        """True if a decode may still run when the call that started it returns."""
        return self.gpu_layers > 0 or bool(self.remote)

    @property
    def fewer_layers(self) -> str:
        """The advice to put fewer layers on GPUs; empty if there are none."""
        return FEWER_LAYERS if self.gpu_layers else ""

    @property
    def is_on_gpu(self) -> bool:
        """True if all layers are on GPUs, the output too."""
        return self.gpu_layers > self.n_layer and not self.n_cpu_moe

    @property
    def devices(self) -> frozenset[str]:
        """The devices that its layers are on: "CPU", "RPC", or the names of GPUs, which hold the output too."""
        if self.remote:
            return frozenset({"CPU", "RPC"})
        return frozenset(self.gpus if self.is_on_gpu else ("CPU", *self.gpus))

    # --- what it is -----------------------------------------------------------------------------------------------

    n_params = _number("llama_model_n_params")
    size_bytes = _number("llama_model_size")
    n_ctx_train = _number("llama_model_n_ctx_train")
    n_embd = _number("llama_model_n_embd")
    #: The width of the rows that can replace tokens, such as those of an image.
    n_embd_inp = _number("llama_model_n_embd_inp")
    #: The width of the last layer's output: some models have several streams there.
    n_embd_out = _number("llama_model_n_embd_out")
    n_layer = _number("llama_model_n_layer")
    #: The number of tokens that layers with a sliding window look back; 0 if there are none.
    sliding_window = _number("llama_model_n_swa")

    @cached_property
    def can_roll_back(self) -> bool:
        """True if tokens can be removed from the memory: not in recurrent and hybrid models."""
        return not (api.llama_model_is_recurrent(self.handle) or api.llama_model_is_hybrid(self.handle))

    @cached_property
    def has_mrope(self) -> bool:
        """True if positions have several parts, as those of the cells of an image do."""
        return api.llama_model_rope_type(self.handle) in (api.LLAMA_ROPE_TYPE_MROPE, api.LLAMA_ROPE_TYPE_IMROPE)

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja source of the file's default chat template."""
        return self._template(None)

    @cached_property
    def rerank_template(self) -> str | None:
        """The file's text around {query} and {document}, if it is a reranker that needs one."""
        return self._template(b"rerank")

    def _template(self, name: bytes | None) -> str | None:
        template = api.llama_model_chat_template(self.handle, name)
        return template.decode("utf-8", "replace") if template else None

    # --- vocabulary -----------------------------------------------------------------------------------------------

    @cached_property
    def vocabulary_id(self) -> str:
        """Identifies the vocabulary: token ids mean the same in models with the same id, barring collisions."""
        digest = sha256(f"{self.n_vocab} {self.bos} {self.eos}".encode())
        for token in range(0, self.n_vocab, max(1, self.n_vocab // SAMPLED_TOKENS)):
            digest.update(self.token_bytes(token, special=True) + b"\0")
        return digest.hexdigest()[:16]

    bos, eos, sep = _token("bos"), _token("eos"), _token("sep")
    adds_bos, adds_eos, adds_sep = _adds("bos"), _adds("eos"), _adds("sep")

    @cached_property
    def eot(self) -> int | None:
        """The token that ends a turn, or else a text."""
        found = _token_or_none(api.llama_vocab_eot(self.vocabulary_handle))
        return self.eos if found is None else found

    @cached_property
    def fill_tokens(self) -> FillTokens:
        names = ("pre", "suf", "mid", "rep", "sep")
        tokens = (getattr(api, f"llama_vocab_fim_{name}")(self.vocabulary_handle) for name in names)
        return FillTokens(*map(_token_or_none, tokens))

    def is_end(self, token: int) -> bool:
        """Return whether this token ends a generation."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(api.llama_vocab_is_eog(self.vocabulary_handle, token))
        return known

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """All ids that end a generation; searches the whole vocabulary once."""
        return tuple(token for token in range(self.n_vocab) if self.is_end(token))

    def is_control(self, token: int) -> bool:
        return bool(api.llama_vocab_is_control(self.vocabulary_handle, token))

    def is_special(self, token: int) -> bool:
        """Return whether a token is a control token, or was added to the vocabulary, such as `<tool_call>`: llguidance
        does not read these as text."""
        added = int(api.llama_vocab_get_attr(self.vocabulary_handle, token)) & api.LLAMA_TOKEN_ATTR_USER_DEFINED
        return bool(added) or self.is_control(token)

    @cached_property
    def control_texts(self) -> TextFinder:
        """A finder of the texts that `tokenize` reads as text only without `parse_special`; searches the whole
        vocabulary once."""
        return TextFinder(self._texts_of(api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN))

    @cached_property
    def added_texts(self) -> TextFinder:
        """A finder of the texts of added tokens such as `<tool_call>`, which `tokenize` never reads as text; without
        blanks and tags of HTML, which are text in some vocabularies. Searches the whole vocabulary once."""
        texts = self._texts_of(api.LLAMA_TOKEN_ATTR_USER_DEFINED)
        return TextFinder(text for text in texts if len(text.strip("\u2581 \t\r\n")) > 1 and not _HTML.fullmatch(text))

    def _texts_of(self, attributes: int) -> Iterator[str]:
        """Yield the texts of all tokens that have one of these attributes."""
        for id in range(self.n_vocab):
            if int(api.llama_vocab_get_attr(self.vocabulary_handle, id)) & attributes:
                yield self.token_bytes(id, special=True).decode("utf-8", "replace")

    def tokenize_text(self, text: str) -> list[int]:
        """Convert text to token ids, none of which is a control token or an added token."""
        return [id for part in self.added_texts.cut(text) for id in self.tokenize(part)]

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Convert text to token ids.

        `add_special` adds the tokens that the model wants around a prompt, such as BOS, unless the text has them.
        `parse_special` parses control tokens written in the text.
        """
        data = text.encode("utf-8")
        room = len(data) + 16
        while True:
            ids = (api.llama_token * room)()
            count = api.llama_tokenize(self.vocabulary_handle, data, len(data), ids, room, add_special, parse_special)
            if count >= 0:
                return self._with_single_ends(ids[:count]) if add_special else list(ids[:count])
            if count == -(2**31):
                raise UsageError("the text is too long to tokenize", hint="pass less than 2 GB")
            room = -count

    def _with_single_ends(self, ids: list[int]) -> list[int]:
        """Return a prompt without an added token that the text itself begins or ends with: models know one of each."""
        ends = [[token, token] for token, adds in ((self.eos, self.adds_eos), (self.sep, self.adds_sep)) if adds]
        is_twice_begun = self.adds_bos and ids[:2] == [self.bos, self.bos]
        return ids[is_twice_begun : len(ids) - (len(ids) > 2 and ids[-2:] in ends)]

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of one token; control tokens are empty unless `special`."""
        key = token if not special else ~token
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._read_piece(token, special)
        return piece

    def detokenize(self, tokens: list[int], *, special: bool = False) -> bytes:
        return b"".join(self.token_bytes(token, special=special) for token in tokens)

    def _read_piece(self, token: int, special: bool) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = api.llama_token_to_piece(self.vocabulary_handle, token, buffer, room, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            room = -length


def described(header: Header) -> str:
    """Return a few words, such as "llama 134.5M Q4_1". llama.cpp's own summary names a size by the number of layers,
    which is sometimes that of another model."""
    return f"{header.architecture} {count_of(header.n_params)} {quantisation(header)}"


def _get_tensor() -> CFuncPtr | None:
    """Return `llama_model::get_tensor`, a C++ method that libraries of some builds offer, or None."""
    found: CFuncPtr | None = getattr(api._lib, "_ZNK11llama_model10get_tensorEPKc", None)
    if found is not None:
        found.restype, found.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    return found


_GET_TENSOR = _get_tensor()


def _token_or_none(token: int) -> int | None:
    return None if token < 0 else int(token)


def _progress_callback(progress: Callable[[float], None] | None, workers: list[str]) -> object:
    def call(fraction: float, _user_data: object) -> bool:
        # The connections to workers exist once weights are sent.
        if workers and rpc.guard(workers):
            workers.clear()
        if progress is not None:
            progress(fraction)
        return True  # continue to load

    return api.llama_progress_callback(call)


# --- the devices of weights -------------------------------------------------------------------------------------------

# The devices that the weights of a model are loaded on, as parameters of llama.cpp.


def on_workers(
    params: ctypes.Structure, remote: Sequence[tuple[RemoteDevice, int]], experts: Sequence[bytes]
) -> object:
    """Put this number of layers on each of these devices, in this order, and the output and experts in main memory.

    The caller must keep the returned object alive until the model is loaded.
    """
    # llama.cpp starts the next device at the first layer beyond a share, and counts the output as the last layer.
    # The halves put each boundary between two layers.
    shares = [float(layers) for _, layers in remote]
    shares[0] -= 0.5
    shares[-1] += 1.5
    split = (ctypes.c_float * int(api.llama_max_devices()))(*shares)
    params.n_gpu_layers = sum(layers for _, layers in remote) + 1
    params.tensor_split = ctypes.cast(split, ctypes.POINTER(ctypes.c_float))
    return split, on_devices(params, rpc.handles([device for device, _ in remote]), [*_OUTPUT, *experts])


def on_devices(params: ctypes.Structure, handles: Sequence[int], in_main_memory: Sequence[bytes]) -> object:
    """Use these devices, but keep the weights whose names match one of the patterns in main memory.

    The caller must keep the returned object alive until the model is loaded.
    """
    devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
    main_memory = ggml_function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    chosen = [_Override(pattern, main_memory) for pattern in in_main_memory]
    overrides = (_Override * (len(chosen) + 1))(*chosen)
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return devices, overrides


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override"""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


_OUTPUT = (rb"^output", rb"^token_embd\.")  # the embeddings may serve as the output too


def experts_of(n_layers: int) -> list[bytes]:
    """Return a pattern for the names of the experts in the first layers.

    It is one pattern for all layers, because llama.cpp compiles each pattern for each tensor.
    """
    layers = "|".join(map(str, range(n_layers)))
    return [rf"^blk\.({layers})\.{EXPERTS}".encode()] if n_layers else []
