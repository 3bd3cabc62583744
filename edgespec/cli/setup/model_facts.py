"""Facts about a model for `doctor`: a trial load, and a measurement of how its passes round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgespec.core.exactness import NARROW
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.llama.kernels import have_bounds
from edgespec.llama.rounding import Widths, measured_widths
from edgespec.models.memory.defaults import usual_context, wanted_attention, with_room
from edgespec.models.memory.estimate import Plan
from edgespec.runtime.fitting import can_be_exact, fitted, open_model
from edgespec.settings import LoadSettings

MEASURED_CONTEXT = 512  # tokens; enough to measure rounding, and small enough to fit beside other programs


def model_facts(path: Path, progress: Callable[[str, float], None]) -> dict[str, Any]:
    """Check a model's header, load the model in a child process and here, and measure how its passes round.

    `progress` is called with what is done and a number in 0..1. Raises ModelNotFoundError, ModelFileError,
    OutOfMemoryError, GenerationError.
    """
    header, exact, usual, notes = check_model(path), can_be_exact(), LoadSettings(str(path)), list[str]()
    attention = wanted_attention(header, usual, usual.cache_type_v, exact=exact)
    n_ctx = min(usual_context(header), MEASURED_CONTEXT)
    plan = Plan(header, n_ctx=n_ctx, max_outputs=NARROW, flash_attention=attention, exact=exact)
    plan = fitted(with_room(plan, usual), notes.append)
    with (
        open_model(plan, notes.append, lambda done: progress(f"loading {path.name}", done)) as model,
        Context(model, **plan.context) as context,
    ):
        widths = measured_widths(context, NARROW, lambda done: progress("measuring rounding", done))
    types = header.weight_types
    return {
        "path": str(path),
        "name": header.name,
        "architecture": header.architecture,
        "layers": header.number("block_count"),
        "ctx_trained": header.number("context_length"),
        "size_bytes": header.size_bytes,
        "weight_types": sorted(types),
        "kernels": _kernels(exact=exact, repacked=sorted(types & plan.repacked)),
        "rounding": _rounding(widths),
        "exact_to": widths.exact_to if widths else None,
        "max_difference": widths.max_difference if widths else None,
        "notes": notes,
    }


def _kernels(*, exact: bool, repacked: list[str]) -> str:
    """Say whether this build has an exact mode for the model, and which weights it repacks for speed."""
    if not exact:
        why = "on a GPU" if have_bounds() else "in this build of llama.cpp"
        mode = f"no exact mode {why}"
    else:
        mode = "exact mode"
    return f"{mode}, {', '.join(repacked)} weights repacked" if repacked else f"{mode}, weights not repacked"


def _rounding(widths: Widths | None) -> str:
    if widths is None:
        return "not measured: the context is too short, or the model's state cannot be rolled back"
    if widths.exact_to >= widths.widest:
        return f"exact: decoding up to {widths.widest} tokens at once gives the same logits as one at a time"
    narrow = f"exact for up to {widths.exact_to} tokens at once; " if widths.exact_to > 1 else ""
    return (
        f"{narrow}decoding several tokens at once changes logits by up to {widths.max_difference:.2g}, so texts may "
        "differ from plain decoding where two tokens are almost equally likely"
    )
