"""The table of draft heads: what each kind reads of its target, and the tensors in its file.

A new kind of head needs an entry here, a drafter, and a context that computes it. Checks of files, `draft convert`,
`draft trim`, `draft train`, the catalogue and the table of drafters (`registry.py`) read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Form = Literal["networks", "eagle", "block", "assistant"]
Reads = Literal["layers", "state", "cache"]
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Head:
    """The facts about a kind of draft head."""

    #: The name of its drafter.
    name: str
    title: str
    #: Completes the sentence "NAME: ..." in the help of --spec-type.
    help: str
    #: The architecture in its file. Files of edgespec's own architectures are not loaded by llama.cpp.
    architecture: str
    #: Networks without a cache, layers that draft from their own states, layers that draft a block in one pass, or the
    #: assistant of a Gemma 4.
    form: Form
    #: What it reads of the target: the inputs of some layers, the final state, or the KV cache.
    reads: Reads
    #: The tensors of its file: names, "*" for the number of a layer, "?" after optional ones, and sizes in words.
    tensors: Mapping[str, str]
    #: The key or tensor by which its files differ from those of other kinds with the same architecture.
    mark: str = ""
    #: The form in which such heads are published: "safetensors" are converted; empty: they are not published.
    published: Literal["", "gguf", "safetensors"] = ""

    def shapes(
        self, n_layers: int, sizes: Callable[[int], Sizes], has: Callable[[str], bool]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of a head with `n_layers` layers or networks, inputs first, as GGUF does.

        Args:
            sizes: Returns the numbers for the words in `tensors`, which may differ between layers.
            has: Returns True for the optional tensors to include.
        """
        shapes, numbers = {}, [sizes(layer) for layer in range(max(1, n_layers))]
        for pattern, words in self.tensors.items():
            for layer in range(n_layers) if "*" in pattern else (0,):
                name = pattern.replace("*", str(layer)).removesuffix("?")
                if not pattern.endswith("?") or has(name):
                    shapes[name] = tuple(
                        int(word) if word.isdecimal() else numbers[layer][word] for word in words.split()
                    )
        return shapes

    @property
    def by_draft_token(self) -> list[str]:
        """The tensors with a row for each token that the head can draft."""
        return [name.removesuffix("?") for name, words in self.tensors.items() if words.endswith(" drafts")]


def _tensors(*tables: str) -> dict[str, str]:
    """Return the lines of tables as names and sizes; names without another end get ".weight"."""
    tensors = {}
    for line in filter(str.strip, "\n".join(tables).splitlines()):
        name, sizes = line.split(maxsplit=1)
        stem, optional = name.removesuffix("?"), "?" * name.endswith("?")
        tensors[stem + optional if stem.endswith((".bias", "d2t")) else f"{stem}.weight{optional}"] = sizes
    return tensors


# The words: `width` of the head, `target` of its target; `read`, the numbers of the target that it reads of a token;
# `inputs` of a layer; `queries`, `keys` and `values` of all attention heads; `head`, the size of one, and `pairs`, half
# of that; `ffn`, the inner width of a layer; `tokens` of the target, `drafts` those that the head can draft;
# `both`, twice the target's width; `rank` and `lattice`, the inner sizes of a Markov head and of DFlash2's selector.
_NETWORKS = """
    head.*.up            inputs width
    head.*.down          width width
    output               width drafts
    d2t                  drafts
"""
_LAYER = """
    blk.*.attn_norm      width
    blk.*.attn_q         inputs queries
    blk.*.attn_k         inputs keys
    blk.*.attn_v         inputs values
    blk.*.attn_output    queries width
    blk.*.ffn_norm       width
    blk.*.ffn_gate       width ffn
    blk.*.ffn_up         width ffn
    blk.*.ffn_down       ffn width
    output_norm          width
    token_embd?          width tokens
"""
_EAGLE = f"""
    fc                   read width
    enc.output_norm?     read
    blk.0.attn_norm_2    width
    {_LAYER}
"""
_PARALLEL = """
    output               width drafts
    mask_state           width
    rope_freqs?          pairs
    blk.*.attn_q_norm?   head
    blk.*.attn_k_norm?   head
    blk.*.attn_q.bias?   queries
    blk.*.attn_k.bias?   keys
    blk.*.attn_v.bias?   values
    blk.*.attn_output.bias?  width
    blk.*.ffn_gate.bias?     ffn
    blk.*.ffn_up.bias?       ffn
    blk.*.ffn_down.bias?     width
"""
# Without values, the keys are used. The last three are those of DFlash2.
_BLOCK = f"""
    fc                   read width
    enc.output_norm      width
    blk.*.attn_q_norm    head
    blk.*.attn_k_norm    head
    {_LAYER.replace("attn_v ", "attn_v?")}
    output?              width drafts
    selector_hidden?       width lattice
    selector_predecessor?  lattice tokens
    selector_successor?    lattice tokens
"""
_ASSISTANT = """
    token_embd           width tokens
    output_norm          width
    nextn.pre_projection   both width
    nextn.post_projection  width target
    blk.*.attn_norm      width
    blk.*.attn_q         width queries
    blk.*.attn_output    queries width
    blk.*.attn_q_norm    head
    blk.*.post_attention_norm  width
    blk.*.layer_output_scale   1
    blk.*.ffn_norm       width
    blk.*.ffn_gate       width ffn
    blk.*.ffn_up         width ffn
    blk.*.ffn_down       ffn width
    blk.*.post_ffw_norm  width
    rope_freqs?          pairs
"""

# In the order in which their drafters are asked.
_HEADS = (
    Head(
        "assistant", "assistant", "the assistant of a Gemma 4, which reads the target's cache (-md ASSISTANT.gguf)",
        "gemma4-assistant", "assistant", "cache", _tensors(_ASSISTANT), published="gguf",
    ),
    Head(
        "medusa", "Medusa head", "a Medusa draft head (-md HEAD.gguf)",
        "edgespec-medusa", "networks", "state", _tensors(_NETWORKS),
    ),
    Head(
        "hydra", "Hydra head", "a Hydra draft head",
        "edgespec-hydra", "networks", "state", _tensors("embd_norm width", _NETWORKS),
    ),
    Head(
        "eagle1", "EAGLE head", "an EAGLE-1 draft head",
        "eagle3", "eagle", "state", _tensors(_EAGLE, "output? width drafts"), mark="edgespec.head.reads",
    ),
    Head(
        "eagle3", "EAGLE-3 head", "an EAGLE-3 draft head",
        "eagle3", "eagle", "layers", _tensors(_EAGLE, "output? width drafts"), published="safetensors",
    ),
    Head(
        "peagle", "P-EAGLE head", "a P-EAGLE draft head, which drafts several tokens in one pass",
        "edgespec-peagle", "eagle", "layers", _tensors(_EAGLE, _PARALLEL), published="safetensors",
    ),
    Head(
        "dflash", "DFlash head", "a DFlash or DFlash2 draft head, which drafts a block of tokens in one pass",
        "dflash", "block", "layers", _tensors(_BLOCK), published="safetensors",
    ),
    Head(
        "dspark", "DSpark head", "a DSpark draft head, which does too",
        "dflash", "block", "layers", _tensors(_BLOCK, "markov_w1 rank tokens", "markov_w2 rank drafts"),
        mark="markov_w1.weight", published="safetensors",
    ),
)  # fmt: skip
HEADS = {head.name: head for head in _HEADS}


def architectures(*forms: Form) -> tuple[str, ...]:
    """Return the architectures of the heads of some forms, or of all."""
    return tuple(dict.fromkeys(head.architecture for head in _HEADS if not forms or head.form in forms))
