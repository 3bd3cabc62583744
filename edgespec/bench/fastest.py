"""Which weight type is fastest here with drafts, from measured passes of the same model in other types.

The acceptance rate hardly depends on the weight type; the cost of a pass of each width does, and it is saved for every
file that has drafted on this machine. So the texts recorded with one file are replayed with the costs of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.bench.replay import Tape, replay_auto
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.engine.calibrate import remembered_costs
from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Header, read_header
from edgespec.runtime.runtime import Runtime

# The parts of a context's fingerprint that affect the cost of passes besides the weights
_SETTINGS = ("threads", "gpu_layers", "cache", "flash_attention", "exact", "streams")


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens per second of a file, without drafting and with the measured draft lengths."""

    file: str
    plain: float
    drafting: float


def expected(llm: Runtime, tapes: Sequence[Tape]) -> list[Expected]:
    """The loaded file, and others of the same model whose costs are known under the same settings."""
    own, context = llm.model.header, llm.context.fingerprint
    found = {own.path.resolve(): _expect(own.path, tapes, tapes[0].costs)}
    for facts, costs in remembered_costs():
        path = Path(str(facts["target"]["file"]))
        is_alike = all(facts["target"].get(name) == context[name] for name in _SETTINGS)
        if path not in found and is_alike and _is_same(own, path, facts):
            for source in {tape.source for tape in tapes}:
                costs.observe_step(source, tapes[0].costs.step(source))
            found[path] = _expect(path, tapes, costs)
    return list(found.values())


def fastest(files: Sequence[Expected]) -> str:
    """One line about the fastest of several files; empty if there is only one."""
    if len(files) < 2:
        return ""
    best = max(files, key=lambda file: max(file.plain, file.drafting))
    plain = max(files, key=lambda file: file.plain)
    if best.plain >= best.drafting:
        return f"{best.file} without drafting, about {best.plain:.0f} tok/s"
    return (
        f"{best.file} with drafting, about {best.drafting:.0f} tok/s; without drafting {plain.file}, {plain.plain:.0f}"
    )


def _expect(path: Path, tapes: Sequence[Tape], costs: Costs) -> Expected:
    plain = 1 / costs.target(1)
    run = replay_auto([replace(tape, costs=costs) for tape in tapes], MeasuredPolicy(costs))
    return Expected(path.name, plain, plain * run.speedup)


def _is_same(own: Header, path: Path, facts: dict[str, dict[str, object]]) -> bool:
    """Whether the file still exists as it was measured, as another type of the same model."""
    try:
        stat, other = path.stat(), read_header(path)
    except (OSError, EdgespecError):
        return False
    unchanged = (facts["target"]["size"], facts["target"]["mtime"]) == (stat.st_size, stat.st_mtime_ns)
    shapes = [{name: tensor.shape for name, tensor in header.tensors.items()} for header in (own, other)]
    return (
        unchanged and shapes[0] == shapes[1] and (own.architecture, own.n_vocab) == (other.architecture, other.n_vocab)
    )
