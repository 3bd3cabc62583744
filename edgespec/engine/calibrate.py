"""Cost measurements for the draft-length policy, kept between runs.

For a new pair of target and draft, passes of the widths that drafts may have are measured, within about a second. The
next starts measure the narrow ones again in less time, since one measurement may be disturbed by other programs.
Widths for which there was no time use an assumed cost curve, which depends on the weight type. The results, and all
that is learned while generating, are saved for each combination of model file, draft, machine, build, threads and
cache; the next start continues from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from edgespec.core.policy.costs import Costs, Shape
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import pass_widths
from edgespec.drafters.base import Drafter
from edgespec.drafters.decoding import DecodingContext
from edgespec.drafters.model import ModelDrafter
from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.llama.context import Context
from edgespec.llama.library import build_id
from edgespec.llama.model import Model

VERSION = 5
SAVE_EVERY_S = 60.0
CHUNK = 64
MEASURE_S, MEASURED_DEPTH, TURNS = 1.0, 64, 2  # time limit, tokens before each pass, and passes per width
STARTS = 4  # starts that measure
AGAIN_S, WIDEST_AGAIN = 0.25, 8  # time limit of all but the first of these starts, and the widest pass they measure
LEAST_AGAIN = 3  # narrowest passes that need to fit into this time, or else there is none left for a wider one
WARM_WIDTHS = (*range(1, 17), 24, 48, 96, 512)  # each kind of tile that kernels have
PREFIX_SHARE = 0.25  # most of this time that may be spent on the tokens before

OFFLOADED: Shape = {1: 1.0, 8: 1.1, 16: 1.2, 64: 1.8, 512: 8.0}
BY_BITS: tuple[tuple[float, Shape], ...] = (
    (12.0, {1: 1.0, 2: 1.3, 4: 1.5, 8: 2.3, 16: 3.3, 64: 9.0, 512: 60.0}),
    (7.0, {1: 1.0, 2: 1.6, 4: 2.2, 8: 3.2, 16: 4.4, 64: 13.0, 512: 100.0}),
    (0.0, {1: 1.0, 2: 1.6, 4: 2.2, 8: 3.2, 16: 5.0, 64: 15.0, 512: 115.0}),
)


def assumed_shape(model: Model) -> Shape:
    """Return the cost curve that is assumed for a model until it is measured."""
    if model.gpu_layers:
        return OFFLOADED
    bits = 8 * model.size_bytes / max(1, model.n_params)
    return next(shape for least, shape in BY_BITS if bits >= least)


def warm_up(context: Context) -> None:
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
    progress: Callable[[float], None] | None = None,
) -> dict[int, float]:
    """Return the median seconds of a pass for each width, after `depth` tokens.

    Widths are measured alternately, so that a busy moment does not hit one width only, after a warm-up round. Each
    token asks for its logits, and the context must have room for them. Uses sequence 0 of the context, which is empty
    afterwards.
    """
    depth = max(1, min(depth, context.n_ctx - max(widths)))
    times: dict[int, list[float]] = {width: [] for width in widths}
    try:
        context.forget(0)
        for turn in range(repeat + 1):
            for place, width in enumerate(widths):
                seconds = _timed_pass(context, width, depth)
                if turn:
                    times[width].append(seconds)
                if progress is not None:
                    progress((turn * len(widths) + place + 1) / ((repeat + 1) * len(widths)))
    finally:
        context.forget(0)
    return {width: median(taken) for width, taken in times.items()}


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
    """Order widths so that the first ones say most about the curve: 1, the widest, then the middle of each gap."""
    order, gaps = [widths[0], widths[-1]], [(0, len(widths) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(widths[middle])
            gaps += [(low, middle), (middle, high)]
    return list(dict.fromkeys(order))


class CostModelCache:
    """The measurements of a target and its drafters: costs, acceptance, and a draft-length policy for each set of
    drafters.

    `compiles` is true if one of the models is on a device that compiles kernels when they are first used. `note` is
    called with a message if saved measurements cannot be used.
    """

    def __init__(
        self,
        context: Context,
        drafters: Iterable[Drafter],
        least_width: int,
        note: Callable[[str], None],
        *,
        compiles: bool = False,
    ) -> None:
        self._drafters, self._compiles = {drafter.name: drafter for drafter in drafters}, compiles
        self.costs = self._new_costs(context)
        self._paces: dict[tuple[str, int], MeasuredPolicy] = {}
        self._n_measured = 0  # starts that measured passes
        self._least_width = least_width
        self._facts = facts = {
            "version": VERSION,
            "build": build_id(),
            "target": context.fingerprint,
            "least_width": least_width,
            "drafts": [drafter.fingerprint for drafter in self._drafters.values() if drafter.fingerprint],
        }
        self._name = cache_name("pace", facts)
        self._saved_s = perf_counter()
        stored = read_cache(self._name)
        if stored is not None:
            try:
                self._restore(json.loads(stored))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                note(f"the saved measurements of this pair cannot be read; measuring again ({error})")
                self.costs, self._paces, self._n_measured = self._new_costs(context), {}, 0

    def _new_costs(self, context: Context) -> Costs:
        assumed = {name: drafter.assumed_s for name, drafter in self._drafters.items() if drafter.assumed_s}
        costs = Costs(assumed_shape(context.model), assumed, compiles=self._compiles, threads=context.threads)
        costs.use_threads(context.threads_now)
        context.on_threads = costs.use_threads
        return costs

    @property
    def is_settled(self) -> bool:
        """True if passes were measured at enough starts, or take too long to measure them again."""
        is_slow = self.costs.is_measured and LEAST_AGAIN * self.costs.target(self._least_width) > AGAIN_S
        return is_slow or self._n_measured >= STARTS

    def measure(self, context: Context, widest: int, progress: Callable[[float], None]) -> None:
        """Measure passes of up to `widest` tokens, within about a second.

        If they are known, only narrow ones are measured again, in less time. If the model is too slow for that, some
        widths are left out, and the others are measured with an empty cache.
        """
        is_new = not self.costs.is_measured
        limit_s = MEASURE_S if is_new else AGAIN_S
        depth = max(1, min(MEASURED_DEPTH, context.n_ctx - widest))
        narrow = self._least_width
        widths = sorted({max(narrow, width) for width in pass_widths(widest - 1)})
        order = _spread_out(widths) if is_new else [width for width in widths if width <= WIDEST_AGAIN]
        try:
            context.forget(0)
            _timed_pass(context, narrow, 0)  # warm up: the first pass of a model is slower
            warm = {narrow}
            started_s = perf_counter()
            least_s = {narrow: _timed_pass(context, narrow, 0)}
            scale = least_s[narrow] / self.costs.target(narrow)
            if scale * self.costs.target(depth) > PREFIX_SHARE * limit_s:
                depth = 0
            for turn in range(TURNS):
                for place, width in enumerate(order):
                    expected_s = least_s.get(width, scale * self.costs.target(width))
                    if expected_s <= limit_s - (perf_counter() - started_s):
                        if self._compiles and width not in warm:  # the first pass may compile kernels for minutes
                            started_s += _timed_pass(context, width, depth)
                            warm.add(width)
                        seconds = _timed_pass(context, width, depth)
                        least_s[width] = min(seconds, least_s.get(width, seconds))
                    progress((turn * len(order) + place + 1) / (TURNS * len(order)))
        finally:
            context.forget(0)
        if is_new:
            for width, seconds in least_s.items():
                self.costs.observe_target(width, seconds, warm=True)
        elif least_s[narrow] > 0:  # in relation to the narrowest pass: the machine may be slower or faster now
            scale = self.costs.target(narrow) / least_s[narrow]
            for width, seconds in least_s.items():
                self.costs.lower_target(width, scale * seconds)
        self._n_measured += 1

    def measured_now(
        self,
        context: Context,
        models: Iterable[ModelDrafter],
        widths: Iterable[int],
        depth: int,
        repeat: int,
        progress: Callable[[float], None],
    ) -> dict[str, dict[str, float]]:
        """Measure the target and the draft models after `depth` tokens; the contents of their caches are lost.

        Returns the seconds of the target's passes by width ("target"), and of a draft model's pass over one token
        ("step").
        """
        step = dict[str, float]()
        target = measure_passes(context, list(widths), depth=depth, repeat=repeat, progress=progress)
        for width, seconds in target.items():
            self.costs.observe_target(width, seconds, depth, warm=True)
        for model in models:
            try:
                step[model.name] = measure_passes(model.context, [1], depth=depth, repeat=2 * repeat)[1]
            finally:
                model.forget()
            self.costs.observe_step(model.name, step[model.name], depth, warm=True)
        return {"target": {str(width): seconds for width, seconds in target.items()}, "step": step}

    def pace(self, drafters: Iterable[str], leaves: int = 1) -> MeasuredPolicy:
        """Return the measured policy for drafters that work together, on trees of up to `leaves` leaves."""
        names = sorted(drafters)
        key = ",".join(names), leaves
        if key not in self._paces:
            self._paces[key] = MeasuredPolicy(self.costs, self._least_width, leaves, max(1, len(names)))
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
            "measured": self._n_measured,
            "costs": self.costs.state(),
            "paces": [[drafters, leaves, pace.state()] for (drafters, leaves), pace in [*self._paces.items()]],
            "drafters": {name: drafter.state() for name, drafter in self._drafters.items()},
        }
        write_cache(self._name, json.dumps(state))

    def _restore(self, state: dict[str, Any]) -> None:
        self.costs.restore(state["costs"])
        self._n_measured = int(state["measured"])
        for drafters, leaves, learnt in state["paces"]:
            self.pace(str(drafters).split(","), int(leaves)).restore(learnt)
        for name, learnt in state["drafters"].items():
            if name in self._drafters:
                self._drafters[name].restore(learnt)
