"""The description of a loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from edgespec.text.printable import one_line


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The facts about a loaded model and its decoding, as commands, chats and servers show them."""

    #: the file, or the name on a server
    model: str
    #: architecture, size and quantisation
    description: str = ""
    #: tokens of each context
    ctx_size: int = 0
    #: answers that are decoded together
    sequences: int = 1
    has_chat_template: bool = True
    #: identifies the vocabulary; "" for models of other programs' servers
    vocabulary: str = ""
    draft_model: str | None = None
    #: the file that reads images
    projector: str | None = None
    drafters: tuple[str, ...] = ()
    #: how texts become vectors, "rank" for scores; "" for a model that generates text
    pooling: str = ""
    #: numbers of a vector
    n_embd: int = 0
    #: LoRA adapters and their scales
    adapters: Mapping[str, float] = field(default_factory=dict)
    threads: int = 0
    threads_batch: int = 0
    #: a GPU or a worker has layers of the model
    offloaded: bool = False
    gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    #: layers of RPC workers, by address
    workers: Mapping[str, int] = field(default_factory=dict)
    pace: str = "auto"
    strict: bool = False
    fast: bool = False
    #: passes of all widths give the same logits
    exact: bool = True
    #: the greatest difference in a logit between passes of different widths, if it was measured
    rounding: float | None = None
    #: the least and the greatest width of passes that give the same logits, if not all do
    width_class: tuple[int, int] | None = None
    #: tokens in the KV cache up to which this was measured
    measured_depth: int | None = None
    #: the setting that made passes exact, if any
    made_exact_by: str = ""
    #: the chat template begins answers with reasoning
    opens_thinking: bool = False
    #: the chat template leaves out the reasoning of earlier answers
    drops_thinking: bool = False
    #: earlier answers stay in the prompt as they were generated
    keeps_answers: bool = True
    #: requests can turn reasoning off
    switches_thinking: bool = False
    #: URL and models of the server, for a model of a server
    server: str = ""
    models: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the description as plain data."""
        plain = asdict(self)
        if not self.server:
            del plain["server"], plain["models"]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, object]) -> ModelInfo:
        """Return the description that `as_json` made plain data, without unknown fields of other versions."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: _value(value) for name, value in plain.items() if name in names})


def _value(value: object) -> Any:
    """Return a value of JSON as a field has it; texts of a server are shown, so they get one line."""
    if isinstance(value, list):
        return tuple(map(_value, value))
    return one_line(value) if isinstance(value, str) else value
