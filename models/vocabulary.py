"""What a GGUF header says about its tokens, as llama.cpp reads it, without llama.cpp.

Written from llama.cpp's `llama-vocab.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.header import Header

NO_TEXT = b"\xff\xff"  # begins what no UTF-8 text holds


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model by id: `texts` as the file has them, escapes and all, `types` as numbers of llama.cpp's.

    No types are as many normal ones. `bos` and `eos` are ids, `adds_bos` is whether prompts begin with the first.
    """

    kind: str
    tokenizer: str
    texts: list[bytes]
    types: list[int]
    bos: int | None
    eos: int | None
    adds_bos: bool

    @classmethod
    def of(cls, header: Header) -> Vocabulary:
        """Reads the tokens from the file."""
        model, pre = (str(header.metadata.get(f"tokenizer.ggml.{key}", "")) for key in ("model", "pre"))
        pre = "gemma4" if model == "gemma4" else pre
        kind = KINDS.get(model, "another kind")
        bos, eos = _USUAL_IDS.get(model, (None, None))
        adds_bos = header.metadata.get("tokenizer.ggml.add_bos_token")
        if not isinstance(adds_bos, bool) or pre == "gemma4":
            adds_bos = model in ("llama", "bert") or (kind == _BPE and pre in _BEGIN_WITH_BOS)
        return cls(
            kind=kind,
            tokenizer=pre if kind == _BPE else model,
            texts=header.strings("tokenizer.ggml.tokens"),
            types=header.numbers("tokenizer.ggml.token_type").tolist(),
            bos=_special(header, "bos", None if pre in _WITHOUT_BOS else bos),
            eos=_special(header, "eos", eos),
            adds_bos=adds_bos,
        )

    def pieces(self) -> list[bytes]:
        """What each token stands for, empty for none; a control token for its part, or its name after `NO_TEXT`.

        llama.cpp takes a few more tokens for control tokens, by their texts.
        """
        if self.kind == _BPE and self.tokenizer not in _SPACES_ESCAPED:
            pieces = [text if text.isascii() else _bytes_of(text) for text in self.texts]
        else:
            space = _SPACE if self.tokenizer != "plamo2" else b" "
            pieces = [text.replace(space, b" ") for text in self.texts]
        for id, type in enumerate(self.types[: len(pieces)]):
            if type != _NORMAL:
                pieces[id] = _special_piece(self.texts[id], type)
        for special, part in ((self.eos, b"end"), (self.bos, b"begin")):  # one token may be both
            if special is not None:
                pieces[special] = NO_TEXT + part
        return pieces


def _special(header: Header, name: str, usual: int | None) -> int | None:
    """A token's id as the file gives it, or the tokenizer's usual one where that is none of its tokens."""
    id = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if isinstance(id, int) and 0 <= id < header.n_vocab:
        return id
    return usual if usual is not None and usual < header.n_vocab else None


def _bytes_of(text: bytes) -> bytes:
    """A text in the alphabet whose characters stand for bytes."""
    try:
        return text.decode("utf-8").translate(_BYTES).encode("latin-1")
    except UnicodeError:  # no text in that alphabet: it stands for itself, whatever llama.cpp makes of it
        return text


def _special_piece(text: bytes, type: int) -> bytes:
    match type:
        case 3:  # control
            return NO_TEXT + b"name " + text
        case 4:  # defined by the user: never escaped
            return text
        case 6:  # a byte, "<0x0A>"
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                return text
    return b""  # unknown, unused


_NORMAL, _BPE = 1, "byte-level BPE"
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
_USUAL_IDS: dict[str, tuple[int | None, int | None]] = {  # of the tokens that begin and end a text
    "llama": (1, 2),
    "plamo2": (1, 2),
    "gpt2": (11, 11),
    "hybriddna": (11, 11),
    "whitespace": (11, 11),
    "bert": (101, None),
    "t5": (None, 1),
}
# Of the splitting rules (tokenizer.ggml.pre) that llama.cpp 0c1e57098 has for models that write, those that change more
_BOS_RULES = "chameleon falcon-h1 falcon3 gemma4 lfm2 llama-bpe llama-v3 llama3 midm-2.0 pixtral tekken"
_BEGIN_WITH_BOS = frozenset(_BOS_RULES.split())
_WITHOUT_BOS = frozenset(("chatglm-bpe", "glm4", "glm5"))
_SPACES_ESCAPED = frozenset(("gemma4", "sarvam-moe"))

_SPACE = "▁".encode()
_VISIBLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
# Bytes that are no visible character of Latin-1 are written as the characters from 256 on (GPT-2).
_BYTES = {256 + rank: byte for rank, byte in enumerate(byte for byte in range(256) if byte not in _VISIBLE)}
