"""The vocabulary in a GGUF header, as llama.cpp reads it, without llama.cpp.

Written from llama.cpp's `llama-vocab.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import DEFAULT_TOKENS

NO_TEXT = b"\xff\xff"  # begins what no UTF-8 text holds


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model by id.

    Attributes:
        texts: The texts as in the file, with escapes; read-only.
        types: llama.cpp's numbers of token types; empty if all tokens are normal.
        bos: The id of the token that begins a text; prompts begin with it if `adds_bos`.
    """

    kind: str
    tokenizer: str
    texts: list[bytes]
    types: np.ndarray[tuple[int, ...], np.dtype[np.integer]]
    bos: int | None
    eos: int | None
    adds_bos: bool

    @classmethod
    def of(cls, header: Header) -> Vocabulary:
        """Reads the tokens from the file."""
        model, pre = (str(header.metadata.get(f"tokenizer.ggml.{key}", "")) for key in ("model", "pre"))
        pre = "gemma4" if model == "gemma4" else pre
        kind = KINDS.get(model, "another kind")
        bos, eos = DEFAULT_TOKENS.get(model, (None, None))
        adds_bos = header.metadata.get("tokenizer.ggml.add_bos_token")
        if not isinstance(adds_bos, bool) or pre == "gemma4":
            adds_bos = model in ("llama", "bert") or (kind == _BPE and pre in _BEGIN_WITH_BOS)
        return cls(
            kind=kind,
            tokenizer=pre if kind == _BPE else model,
            texts=header.strings("tokenizer.ggml.tokens"),
            types=header.numbers("tokenizer.ggml.token_type"),
            bos=_special(header, "bos", None if pre in _WITHOUT_BOS else bos),
            eos=_special(header, "eos", eos),
            adds_bos=adds_bos,
        )

    def pieces(self) -> list[bytes]:
        """Return the bytes of each token, empty for none; for a control token its role or name after `NO_TEXT`.

        llama.cpp treats a few more tokens as control tokens, because of their texts.
        """
        if self.kind == _BPE and self.tokenizer not in _SPACES_ESCAPED:
            pieces = list(map(_bytes_of, self.texts))
        else:
            space = _SPACE if self.tokenizer != "plamo2" else b" "
            pieces = [text.replace(space, b" ") for text in self.texts]
        for id, piece in self._special_pieces():
            pieces[id] = piece
        return pieces

    def _special_pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield ids of tokens whose bytes are not their texts, and their pieces; the last piece of an id counts."""
        special = np.flatnonzero(self.types[: len(self.texts)] != _NORMAL)
        for id, type in zip(special.tolist(), self.types[special].tolist(), strict=True):
            yield id, _special_piece(self.texts[id], type) if type in _WITH_PIECES else b""
        for named, part in ((self.eos, b"end"), (self.bos, b"begin")):  # one token may be both
            if named is not None:
                yield named, NO_TEXT + part


def _special(header: Header, name: str, usual: int | None) -> int | None:
    """Return a token's id in the file, or the tokenizer's usual id if the file has no valid one."""
    id = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if isinstance(id, int) and 0 <= id < header.n_vocab:
        return id
    return usual if usual is not None and usual < header.n_vocab else None


def _bytes_of(text: bytes) -> bytes:
    """Decode a text of byte-level BPE. One with other characters is kept, even if llama.cpp would change it."""
    try:
        return text.decode("utf-8").translate(_BYTES).encode("latin-1")
    except UnicodeError:
        return text


def _special_piece(text: bytes, type: int) -> bytes:
    if type == _CONTROL:
        return NO_TEXT + b"name " + text
    if type == _BYTE:  # "<0x0A>"
        with suppress(ValueError):
            return bytes([int(text[3:5], 16)])
    return text  # defined by the user: never escaped


_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_WITH_PIECES = (_CONTROL, _USER_DEFINED, _BYTE)  # unknown and unused ones have none
_BPE = "byte-level BPE"
KINDS = {  # tokenizer.ggml.model
    "llama": "SentencePiece",
    "gpt2": _BPE,
    "gemma4": _BPE,
    "hybriddna": _BPE,
    "whitespace": _BPE,
    "bert": "WordPiece",
    "t5": "Unigram",
    "rwkv": "RWKV",
    "plamo2": "PLaMo-2",
}
# Of the splitting rules (tokenizer.ggml.pre) that llama.cpp 0c1e57098 has for models that write, those that change more
_BOS_RULES = "chameleon falcon-h1 falcon3 gemma4 lfm2 llama-bpe llama-v3 llama3 midm-2.0 pixtral tekken"
_BEGIN_WITH_BOS = frozenset(_BOS_RULES.split())
_WITHOUT_BOS = frozenset(("chatglm-bpe", "glm4", "glm5"))
_SPACES_ESCAPED = frozenset(("gemma4", "sarvam-moe"))

_SPACE = "▁".encode()
_VISIBLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
# Bytes that are not visible characters in Latin-1 are written as the characters from 256 on (GPT-2).
_BYTES = {256 + rank: byte for rank, byte in enumerate(byte for byte in range(256) if byte not in _VISIBLE)}
