"""Cost measurements for the draft-length policy, kept between runs.

For a new pair of target and draft, passes of the widths that drafts may have are measured, within about a second, each
in relation to the plain passes before and after it. Widths for which there was no time use an assumed cost curve. The
results, and all that is learned while generating, are saved for each combination of model file, draft, machine, build,
threads and cache. The next start measures some of them again, in less time, and continues from the saved ones if they
agree. If not, other programs disturbed one of the measurements, and all are repeated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from edgespec.core.policy.costs import PLAIN_RUN, Costs, Shape
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import pass_widths
from edgespec.drafters.assistant import AssistantDrafter
from edgespec.drafters.base import Drafter
from edgespec.drafters.decoding import DecodingContext
from edgespec.drafters.model import ModelDrafter
from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.llama.context import Context
from edgespec.llama.kernels import have_exact_kernels
from edgespec.llama.library import build_id
from edgespec.llama.model import LlamaModel

VERSION = 9
SAVE_EVERY_S = 60.0
CHUNK = 64
MEASURE_S, MEASURED_DEPTH, TURNS = 1.0, 64, 3  # time limit, tokens before each pass, and passes per width
CHECKED, CHECK_S, TOLERANCE = (4, 8, 2), 0.5, 0.2  # widths of a check, its time limit, and by how much it may be off
WARM_WIDTHS = (*range(1, 17), 24, 32, 48, 64, 96, 512)  # each kind of tile that kernels have
PREFIX_SHARE = 0.25  # most of this time that may be spent on the tokens before

OWN: Shape = {1: 1.0, 2: 1.1, 4: 1.25, 8: 1.65, 16: 2.8, 64: 10.0, 512: 85.0}  # edgespec's kernels
OFFLOADED: Shape = {1: 1.0, 8: 1.1, 16: 1.2, 64: 1.8, 512: 8.0}
BY_BITS: tuple[tuple[float, Shape], ...] = (
    (12.0, {1: 1.0, 2: 1.3, 4: 1.5, 8: 2.3, 16: 3.3, 64: 9.0, 512: 60.0}),
    (7.0, {1: 1.0, 2: 1.6, 4: 2.2, 8: 3.2, 16: 4.4, 64: 13.0, 512: 100.0}),
    (0.0, {1: 1.0, 2: 1.6, 4: 2.2, 8: 3.2, 16: 5.0, 64: 15.0, 512: 115.0}),
)


def assumed_shape(model: LlamaModel) -> Shape:
    """Return the cost curve that is assumed for a model until it is measured."""
    if model.gpu_layers:
        return OFFLOADED
    if have_exact_kernels():
        return OWN
    bits = 8 * model.size_bytes / max(1, model.n_params)
    return next(shape for least, shape in BY_BITS if bits >= least)


def warm_up(context: DecodingContext) -> None:
    """Decode a pass of each width that drafting needs, so that the device compiles its kernels now.

    Uses sequence 0 of the context, which is empty afterwards.
    """
    for width in sorted({min(width, context.n_batch, context.n_ctx) for width in WARM_WIDTHS}):
        n_outputs = min(width, context.max_outputs)
        context.decode_filler(0, [False] * (width - n_outputs) + [True] * n_outputs)
        context.forget(0)


def measure_passes(
    context: DecodingContext,
    widths: Sequence[int],
    *,
    depth: int = 128,
    repeat: int = 5,
    limit_s: float = math.inf,
    expected: Callable[[int], float] = float,
    progress: Callable[[float], None] | None = None,
) -> dict[int, float]:
    """Return the seconds of a pass for each width, after `depth` tokens: medians of `repeat` passes.

    Each pass is compared with a pass of the first width before it and one after it, so that other programs and turbo
    clocks hardly matter. Each token asks for its logits, and the context must have room for them. If `limit_s` seconds
    are not enough, the tokens before are left out, and the last widths; `expected` returns about what a pass costs,
    in passes over one token. Uses sequence 0 of the context, which is empty afterwards.
    """
    first, others = widths[0], widths[1:] or widths
    depth = max(1, min(depth, context.n_ctx - max(widths)))
    firsts, ratios = list[float](), dict[int, list[float]]()

    def first_pass() -> float:
        firsts.append(_timed_pass(context, first, depth))
        return firsts[-1]

    try:
        context.forget(0)
        _timed_pass(context, first, 0)  # the first pass of a model is slower
        before_s = _timed_pass(context, first, 0)
        started_s = perf_counter()
        if before_s * expected(depth) > PREFIX_SHARE * limit_s:
            depth = 0
        else:
            before_s = first_pass()
        for turn in range(repeat):
            for place, width in enumerate(others):
                expected_s = before_s * (PLAIN_RUN + expected(width) / expected(first))
                if expected_s <= limit_s - (perf_counter() - started_s):
                    seconds = _timed_pass(context, width, depth)
                    for _ in range(PLAIN_RUN - 1):
                        _timed_pass(context, first, depth)
                    after_s = first_pass()
                    if min(before_s, seconds, after_s) > 0:  # the clock may be reset
                        ratios.setdefault(width, []).append(seconds / math.sqrt(before_s * after_s))
                    before_s = after_s
                if progress is not None:
                    progress((turn * len(others) + place + 1) / (repeat * len(others)))
    finally:
        context.forget(0)
    first_s = median(firsts or [before_s])
    return {first: first_s} | {width: first_s * median(each) for width, each in ratios.items() if width != first}


def _timed_pass(context: DecodingContext, width: int, depth: int) -> float:
    """Return the seconds of a pass over `width` tokens after `depth` others; decodes these first if they are
    missing."""
    if context.length(0) != depth and not context.truncate(0, depth):
        context.forget(0)
    for start in range(context.length(0), depth, CHUNK):
        context.decode_filler(start, [False] * min(CHUNK, depth - start))
    started_s = perf_counter()
    context.decode_filler(depth, [True] * width)
    return perf_counter() - started_s


def _spread_out(widths: Sequence[int]) -> list[int]:
    """Order widths so that the first ones say most about the curve: both ends, then the middle of each gap."""
    order, gaps = [*widths[:1], *widths[-1:]], [(0, len(widths) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(widths[middle])
            gaps += [(low, middle), (middle, high)]
    return list(dict.fromkeys(order))


class CostModelCache:
    """The measurements of a target and its drafters: costs, acceptance, and a draft-length policy for each set of
    drafters. Target passes are padded to `least_width` tokens.

    `compiles` is true if one of the models is on a device that compiles kernels when they are first used.
    """

    def __init__(
        self, context: Context, drafters: Iterable[Drafter], least_width: int, *, compiles: bool = False
    ) -> None:
        self._drafters, self._compiles = {drafter.name: drafter for drafter in drafters}, compiles
        self.costs = Costs(
            assumed_shape(context.model),
            {name: drafter.assumed_s for name, drafter in self._drafters.items() if drafter.assumed_s},
            least_width=least_width,
            compiles=compiles,
            threads=context.threads,
        )
        self.costs.use_threads(context.threads_now)
        context.on_threads = self.costs.use_threads
        self._paces: dict[tuple[str, int], MeasuredPolicy] = {}
        self._facts = {
            "version": VERSION,
            "build": build_id(),
            "target": context.fingerprint,
            "least_width": least_width,
            "drafts": [drafter.fingerprint for drafter in self._drafters.values() if drafter.fingerprint],
        }
        self._name = cache_name("pace", self._facts)
        self._saved_s = perf_counter()
        if (stored := read_cache(self._name)) is not None:
            self._restore(json.loads(stored))

    def measure(self, context: Context, widest: int, progress: Callable[[float], None]) -> None:
        """Measure passes of up to `widest` tokens, within about a second, if they are unknown or a check fails.

        If the model is too slow for that, some widths are left out, and the others are measured with an empty cache.
        """
        narrow, *widths = sorted({max(self.costs.least_width, width) for width in pass_widths(widest - 1)})
        measured = partial(measure_passes, context, depth=MEASURED_DEPTH, expected=self.costs.target, progress=progress)
        if self.costs.is_measured:
            checked = [width for width in CHECKED if width in widths] or widths[:2]
            for turns in (1, TURNS):  # one disturbed pass is no reason to measure everything
                seconds = measured([narrow, *checked], repeat=turns, limit_s=CHECK_S)
                self.costs.observe_plain(narrow, seconds[narrow])
                if self.costs.knows(self._costs(seconds), TOLERANCE):
                    return
            self.costs.forget_target()
        self._learn(measured([narrow, *_spread_out(widths)], repeat=TURNS, limit_s=MEASURE_S))

    def _costs(self, seconds: dict[int, float], depth: int = 0) -> dict[int, float]:
        """Return the costs of target passes from their seconds by width. The first width is the narrowest."""
        narrow = next(iter(seconds))
        plain_s = seconds[narrow] / self.costs.target(narrow, depth)
        return {width: taken / plain_s for width, taken in seconds.items() if width != narrow}

    def _learn(self, seconds: dict[int, float], depth: int = 0) -> None:
        """Replace the costs of target passes by measured ones; `seconds` are theirs by width."""
        narrow = next(iter(seconds))
        self.costs.observe_plain(narrow, seconds[narrow], depth)
        for width, cost in self._costs(seconds, depth).items():
            self.costs.put(("target", width), cost, depth)

    def measured_now(
        self,
        context: Context,
        models: Iterable[ModelDrafter | AssistantDrafter],
        widths: Iterable[int],
        depth: int,
        repeat: int,
        progress: Callable[[float], None],
    ) -> dict[str, dict[str, float]]:
        """Measure the target and the draft models after `depth` tokens; the contents of their caches are lost.

        Returns the seconds of the target's passes by width ("target"), and of a draft model's pass over one token
        ("step").
        """
        models, step = [*models], dict[str, float]()
        for each in [context, *(model.context for model in models)] if self._compiles else []:
            warm_up(each)
        target = measure_passes(context, sorted(widths), depth=depth, repeat=repeat, progress=progress)
        self._learn(target, depth)
        narrow = min(target)
        plain_s = target[narrow] / self.costs.target(narrow, depth)
        for model in models:
            try:
                if isinstance(model, AssistantDrafter):
                    _timed_pass(context, 1, depth)  # it reads the target's cache
                step[model.name] = measure_passes(model.context, [1], depth=depth, repeat=2 * repeat)[1]
            finally:
                model.forget()
                context.forget(0)
            self.costs.put(("step", model.name, 1, 1), step[model.name] / plain_s, depth)
        return {"target": {str(width): seconds for width, seconds in target.items()}, "step": step}

    def pace(self, drafters: Iterable[str], leaves: int = 1) -> MeasuredPolicy:
        """Return the measured policy for drafters that work together, on trees of up to `leaves` leaves."""
        names = sorted(drafters)
        key = ",".join(names), leaves
        if key not in self._paces:
            self._paces[key] = MeasuredPolicy(self.costs, leaves, max(1, len(names)))
        return self._paces[key]

    def steps_without_gain(self, drafter: str) -> int | None:
        """Return the steps since the start if a drafter was backed off in them; 0 if it gains time, None if unknown."""
        used = ((names.split(","), pace) for (names, _), pace in self._paces.items() if pace.n_steps)
        paces = [pace for names, pace in used if drafter in names]
        known = [(pace.n_steps, gained) for pace in paces if (gained := pace.has_gained(drafter)) is not None]
        if any(gained for _, gained in known):
            return 0
        return sum(steps for steps, _ in known) if known else None

    def save(self, *, now: bool = True) -> None:
        """Save all measurements; unless `now`, at most once a minute."""
        if not self._paces or not (now or perf_counter() - self._saved_s > SAVE_EVERY_S):
            return
        self._saved_s = perf_counter()
        state = {
            "facts": self._facts,
            "costs": self.costs.state(),
            "paces": [[drafters, leaves, pace.state()] for (drafters, leaves), pace in [*self._paces.items()]],
            "drafters": {name: drafter.state() for name, drafter in self._drafters.items()},
        }
        write_cache(self._name, json.dumps(state))

    def _restore(self, state: dict[str, Any]) -> None:
        self.costs.restore(state["costs"])
        for drafters, leaves, learnt in state["paces"]:
            self.pace(drafters.split(","), leaves).restore(learnt)
        for name, learnt in state["drafters"].items():
            if name in self._drafters:
                self._drafters[name].restore(learnt)
