"""The guarantee of a loaded target: can drafts change its text, and how passes prevent that."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.core import exactness
from edgespec.llama.context import Context
from edgespec.llama.installing import exact_build
from edgespec.llama.kernels import have_bounds
from edgespec.llama.rounding import Widths, measured_widths
from edgespec.llama.width_classes import WidthClasses, measured_classes
from edgespec.settings import LoadSettings

# By default, a class of widths is used if it makes plain passes at most this many times as slow; --strict uses any.
MOST_COST = 1.1


def pads(settings: LoadSettings, *, offloaded: bool) -> bool:
    """Return whether passes are padded to a class of widths, if one is found: kernels of GPUs have no bounds."""
    return settings.strict or (settings.exact and offloaded and settings.sequences == 1)


class Guarantee:
    """The effect of drafts on the text, measured for one target, its context and its settings.

    `draft_n_max` is 0 without drafts. Passes over generated tokens have `least_width` (0: any) to `most_rows` tokens.
    """

    def __init__(
        self, context: Context, settings: LoadSettings, draft_n_max: int, progress: Callable[[str, float], None]
    ) -> None:
        self._context, self._settings = context, settings
        self._widths: Widths | None = None
        self.classes: WidthClasses | None = None
        self._on_gpu = context.model.gpu_layers > 0
        if pads(settings, offloaded=self._on_gpu):
            self.classes = measured_classes(context, lambda done: progress("rounding", done))
        elif draft_n_max and context.exact:
            widest = min((1 + draft_n_max) * settings.sequences, exactness.NARROW, context.max_outputs)
            self._widths = measured_widths(context, widest, lambda done: progress("rounding", done))

    @property
    def width_class(self) -> tuple[int, int] | None:
        """The fewest and the most tokens of passes over generated tokens, if these passes are padded."""
        if self.classes is None:
            return None
        return self.classes.best() if self._settings.strict else self.classes.best(MOST_COST)

    @property
    def least_width(self) -> int:
        return self.width_class[0] if self.width_class else 0

    @property
    def most_rows(self) -> int:
        context, widths = self._context, self._widths
        if self.width_class:
            return self.width_class[1]
        if not context.exact:
            return context.n_batch
        exact_to, widest = (None, 0) if widths is None else (widths.exact_to, widths.widest)
        return exactness.widest_verification(exact_to, widest, min(context.n_batch, context.max_outputs))

    @property
    def rounding(self) -> float | None:
        """The largest difference of a logit that drafts can cause; None if it is unknown or irrelevant."""
        if self.classes is not None:
            return 0.0 if self.width_class else self.classes.max_difference
        if self._widths is None:
            return None
        return 0.0 if self.most_rows <= self._widths.exact_to else self._widths.max_difference

    @property
    def way_out(self) -> str:
        """The option that makes the text independent of drafts; empty if it is, or if no option is known."""
        if self.rounding == 0.0 or self._settings.strict:
            return ""
        if self._on_gpu:
            return "--strict" if self.classes and self.classes.best() else ""
        return "leaving out --fast" if have_bounds() and not self._settings.exact else "--strict"

    @property
    def warning(self) -> str:
        """A sentence for the user if drafts may change the text although the settings ask for exactness; else empty."""
        settings, may = self._settings, "the same seed may give another text with drafts than without"
        if not settings.exact or settings.strict or self.rounding == 0.0:
            return ""
        if self._on_gpu:
            if settings.sequences > 1:
                return f"answers that are generated together on a GPU are not exact: {may}"
            if self.classes is None:
                return f"how this GPU rounds cannot be measured (the context or the model's state): {may}"
            if best := self.classes.best():
                cost = f"{self.classes.cost(best[0]):.2f} times as slow"
                return f"exact passes would be {cost} on this GPU: {may} (--strict prevents it, --fast accepts it)"
            return f"this GPU rounds differently for each number of tokens in a pass: {may}"
        if not have_bounds():
            return f"this build of llama.cpp lacks edgespec's kernels: {may}. To install them: {exact_build()}"
        if self.rounding is None and self._context.exact:
            return ""
        return f"logits depend on the width of a pass here: {may} (--strict prevents it, --fast accepts it)"
