"""A simulated machine for the draft-length policy: passes with known costs, drafters that are right with known chances,
other programs that disturb the clock, and saved costs that are wrong.

    python -m tests.support.pace_world

prints a table: the lowest speed of the policy over plain decoding under any disturbance, and in brackets the share that
this is of its speed if it knows the costs and nothing disturbs it.

    python -m tests.support.pace_world constants

prints the mean and the lowest speed of every third run, with half and with twice the value of each constant.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import fmean
from types import ModuleType

from edgespec.core.draft import Draft
from edgespec.core.policy import costs, measured
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import Proposal, ProposalContext, Verified, pass_widths

PLAIN_S, N_MAX = 0.03, 31
NOISE = 0.03  # standard deviation of the time of a pass
ANSWER = 250  # tokens

Curve = Mapping[int, float]
CURVES: dict[str, Curve] = {
    "own": {1: 1.0, 2: 1.08, 4: 1.24, 8: 1.65, 16: 2.7, 32: 5.0},
    "steep": {1: 1.0, 2: 1.6, 4: 2.2, 8: 3.2, 16: 5.0, 32: 9.0},
    "gpu": {1: 1.0, 2: 1.03, 4: 1.05, 8: 1.1, 16: 1.2, 32: 1.5},
}


@dataclass(frozen=True)
class Guesser:
    """A drafter: `chance` is the probability that its next token is right, by the place in the text; `step` is the cost
    of a token in plain passes, or of a draft if it `looks_up`, with the share of steps in which it finds something."""

    name: str
    step: float
    chance: Callable[[int], float]
    says: Callable[[float], float] = lambda chance: chance
    finds: float = 1.0
    looks_up: bool = False


def always(chance: float) -> Callable[[int], float]:
    return lambda place: chance


def in_turns(one: float, other: float, tokens: int = 60) -> Callable[[int], float]:
    return lambda place: one if place // tokens % 2 == 0 else other


TEXTS: dict[str, tuple[Guesser, ...]] = {
    "story": (Guesser("model", 0.12, always(0.45)), Guesser("suffix", 0.01, always(0.3), finds=0.2, looks_up=True)),
    "chat": (Guesser("model", 0.12, always(0.65)), Guesser("suffix", 0.01, always(0.5), finds=0.2, looks_up=True)),
    "code": (Guesser("model", 0.12, always(0.8)),),
    "copy": (Guesser("suffix", 0.01, in_turns(0.97, 0.3), looks_up=True),),
    "useless": (Guesser("model", 0.12, always(0.15), says=lambda chance: 0.8),),
    "turns": (Guesser("model", 0.2, in_turns(0.9, 0.2)),),
}

Disturbance = Callable[[float, random.Random], float]
DISTURBANCES: dict[str, Disturbance] = {
    "quiet": lambda now_s, random: 1.0,
    "bursts": lambda now_s, random: random.uniform(1.5, 3.0) if now_s % 4 < 1 else 1.0,
    "busy": lambda now_s, random: random.choice((1.2, 1.5, 2.0, 2.5)),
    "throttled": lambda now_s, random: 1.0 if now_s < 10 else 2.0,
    "turbo": lambda now_s, random: 1.0 + 0.3 * (now_s % 20) / 20,
}

SAVED: dict[str, Callable[[int, float], float] | None] = {
    "none": None,
    "right": lambda width, cost: cost,
    "half": lambda width, cost: 1 + (cost - 1) / 2,
    "twice": lambda width, cost: 1 + 2 * (cost - 1),
    "scrambled": lambda width, cost: {2: 0.73, 3: 2.4, 4: 1.2, 8: 4.7}.get(width, cost),
}


def cost_of(curve: Curve, width: int) -> float:
    """Interpolate a curve of costs."""
    below = max(each for each in curve if each <= width)
    above = min((each for each in curve if each >= width), default=below)
    share = (width - below) / (above - below) if above > below else 0.0
    return curve[below] + share * (curve[above] - curve[below])


class World:
    """A text that is generated with the measured policy on a machine with a clock."""

    def __init__(self, curve: str, text: str, disturbance: str, seed: int = 1) -> None:
        self.curve, self.guessers, self.disturbance = CURVES[curve], TEXTS[text], DISTURBANCES[disturbance]
        self.random, self.now_s = random.Random(seed), 0.0
        self._chances = random.Random(seed + 1)

    def took(self, cost: float) -> float:
        """Do the work of `cost` plain passes, and return its seconds."""
        seconds = PLAIN_S * cost * self.disturbance(self.now_s, self.random) * self.random.lognormvariate(0, NOISE)
        self.now_s += seconds
        return seconds

    def n_right(self, guesser: Guesser, place: int, length: int) -> int:
        for n in range(length):
            if self._chances.random() >= guesser.chance(place + n):
                return n
        return length

    def costs(self, saved: str) -> Costs:
        costs, wrong = Costs({1: 1.0, 2: 1.6, 4: 2.2, 8: 3.2, 16: 5.0, 64: 15.0}), SAVED[saved]
        if wrong is not None:
            costs.observe_plain(1, PLAIN_S)
            for width in pass_widths(N_MAX)[1:]:
                costs.observe_target(width, PLAIN_S * wrong(width, cost_of(self.curve, width)))
            costs.restore(costs.state())
        return costs

    def step(self, policy: MeasuredPolicy, place: int) -> int:
        """Generate with the policy from this place of an answer; return the number of tokens."""
        at = place % ANSWER
        context = ProposalContext("coupled", min(N_MAX, ANSWER - at), remaining=ANSWER - at, depth=at, step=at)
        right = dict[str, int]()
        for guesser in self.guessers:
            budget = policy.budget(context, guesser.name, lambda: 0)
            if budget is None or not budget.tokens:
                continue
            finds = self.random.random() < guesser.finds
            says = [guesser.says(guesser.chance(place + n)) for n in range(budget.tokens)]
            n, reaches, reach = 0, list[float](), 1.0
            while finds and n < budget.tokens and (not n or guesser.looks_up or budget.worth(reaches, reach)):
                reach *= says[n]
                reaches.append(reach)
                n += 1
            passes = 1 if guesser.looks_up else max(1, n)
            draft = Draft.chain(list(range(n)), says[:n], guesser.name)
            seconds = self.took(passes * guesser.step)
            context.proposals.append(Proposal(guesser.name, draft, 0, passes, seconds))
            right[guesser.name] = self.n_right(guesser, place, n)
        [draft] = policy.select([context], 1, N_MAX)
        seconds = self.took(cost_of(self.curve, 1 + len(draft)))
        path = range(min(len(draft), right[draft.source])) if draft else range(0)
        policy.record([Verified(context, draft, path, [0] * (1 + len(path)))], seconds)
        return 1 + len(path)


def speed(curve: str, text: str, disturbance: str, saved: str, tokens: int = 2000, before: int = 200) -> float:
    """Return the speed of the policy over plain decoding, by the world's clock, after the first `before` tokens."""
    world, place, begin_s = World(curve, text, disturbance), 0, 0.0
    policy = MeasuredPolicy(world.costs(saved), drafters=len(world.guessers))
    while place < tokens:
        if place < before:
            begin_s = world.now_s
        place += world.step(policy, place)
    plain, n_plain = World(curve, text, disturbance, seed=7), 0
    plain.now_s = begin_s
    while plain.now_s < world.now_s:
        plain.took(1.0)
        n_plain += 1
    return (place - before) / n_plain


@cache
def undisturbed(curve: str, text: str) -> float:
    """Return the speed of the policy if it knows the costs and nothing disturbs it."""
    return speed(curve, text, "quiet", "right")


CONSTANTS: dict[str, ModuleType] = {
    **dict.fromkeys(("MEMORY", "PLAIN_MEMORY", "SPIKE"), costs),
    **dict.fromkeys(("PLAIN_EVERY", "TRIAL_SHARE", "STEPS", "DRAFTS", "ANSWERS", "DEBT", "UNVERIFIED"), measured),
}


def with_other_constants() -> None:
    """Print the mean and the lowest speed of every third run, with other values of the constants."""
    runs = [*product(CURVES, TEXTS, DISTURBANCES, SAVED)][::3]

    def speeds() -> str:
        found = [speed(*run) for run in runs]
        return f"{fmean(found):.3f} | {min(found):.2f}"

    print(f"| | value | mean | lowest | half: mean | lowest | twice: mean | lowest |\n|---|{'---|' * 7}")
    usual = speeds()
    for name, module in CONSTANTS.items():
        value, cells = getattr(module, name), [usual]
        for factor in (0.5, 2.0):
            setattr(module, name, type(value)(value * factor))
            cells.append(speeds())
        setattr(module, name, value)
        print(f"| `{name}` | {value} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    print(f"| costs | saved | {' | '.join(TEXTS)} |")
    print(f"|---|---|{'---|' * len(TEXTS)}")
    owns, shares = list[float](), list[float]()
    for curve in CURVES:
        for saved in SAVED:
            cells = list[str]()
            for text in TEXTS:
                speeds = [speed(curve, text, disturbance, saved) for disturbance in DISTURBANCES]
                owns += speeds
                shares += [each / undisturbed(curve, text) for each in speeds]
                cells.append(f"{min(speeds):.2f} ({min(speeds) / undisturbed(curve, text):.2f})")
            print(f"| {curve} | {saved} | {' | '.join(cells)} |", flush=True)
    print(f"\nof {len(owns)} runs, over plain decoding: {min(owns):.3f} at least, {fmean(owns):.3f} on average")
    print(f"over the undisturbed policy: {min(shares):.3f} at least, {fmean(shares):.3f} on average")


if __name__ == "__main__":
    with_other_constants() if "constants" in sys.argv[1:] else main()
