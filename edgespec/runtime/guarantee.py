"""The guarantee of a loaded target: can drafts change its text, and which widths of passes prevent that."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.engine.width_classes import WidthClasses, measured_classes
from edgespec.llama.context import Context
from edgespec.llama.kernels import exact_build, have_exact_kernels, is_own_build
from edgespec.llama.rounding import Widths, measured_widths
from edgespec.settings import LoadSettings

# By default, a class of widths is used if it makes plain passes at most this many times as slow; `strict` uses any.
MOST_COST = 1.1
LEAST_VERIFIED = 4  # tokens of a pass that are enough to verify drafts: in a narrower one, drafting does not pay off
_EITHER = "`strict=True` prevents it, `exact=False` accepts it"


def may_pad(settings: LoadSettings, *, on_gpu: bool) -> bool:
    """Return whether passes may be padded to a class of widths. Only one answer at a time can be, and no trees."""
    return settings.strict or (settings.exact and on_gpu and settings.sequences == 1 and settings.spec_tree == 1)


class Guarantee:
    """The effect of drafts on the text, measured for one target, its context and its settings.

    Attributes:
        width_class: The fewest and the most tokens of passes over generated tokens, if these passes are padded.
    """

    def __init__(
        self, context: Context, settings: LoadSettings, progress: Callable[[str, float], None], *, drafts: bool
    ) -> None:
        self._context, self._settings = context, settings
        self._widths: Widths | None = None
        self.classes: WidthClasses | None = None
        self.width_class: tuple[int, int] | None = None
        if context.exact and (drafts or settings.strict):
            widest = min((1 + settings.draft_n_max) * settings.sequences, context.max_outputs)
            self._widths = measured_widths(context, widest, lambda done: progress("rounding", done))
        # With some layers on the CPU, wider passes cost more than is accepted by default.
        if may_pad(settings, on_gpu=context.model.is_on_gpu) and self.rounding != 0.0:
            self.classes = measured_classes(context, lambda done: progress("rounding", done))
        if self.classes is not None:
            self.width_class = self.classes.best() if settings.strict else self.classes.best(MOST_COST)

    @property
    def least_width(self) -> int:
        """The number of tokens to which passes are padded; 0 if they are not."""
        return self.width_class[0] if self.width_class else 0

    @property
    def most_rows(self) -> int:
        """The most tokens of a pass that verifies drafts.

        If passes that are wide enough for drafts round differently, drafts may change the text, and a note says so.
        """
        if self.width_class:
            return self.width_class[1]
        widths = self._widths
        is_limited = widths is not None and self.rounding == 0.0 and widths.exact_to < widths.widest
        return widths.exact_to if widths is not None and is_limited else self._context.n_batch

    @property
    def rounding(self) -> float | None:
        """The largest difference of a logit that drafts can cause; None if it is unknown or irrelevant."""
        if self.classes is not None:
            return 0.0 if self.width_class else self.classes.max_difference
        if self._widths is None:
            return None
        is_exact = self._widths.exact_to >= min(LEAST_VERIFIED, self._widths.widest)
        return 0.0 if is_exact else self._widths.max_difference

    @property
    def way_out(self) -> str:
        """The setting that makes the text independent of drafts; empty if it is, or if no setting is known."""
        settings, context = self._settings, self._context
        is_known = self.rounding is not None or not context.exact  # what cannot be measured cannot be prevented
        if self.rounding == 0.0 or settings.strict or not is_known or not context.model.can_roll_back:
            return ""
        if not settings.exact and not context.model.gpu_layers and have_exact_kernels():
            return "leaving out `exact=False`"
        if settings.sequences > 1 or settings.spec_tree > 1:  # `strict` excludes them
            return ""
        if self.classes is not None:
            return "`strict=True`" if self.classes.best() else ""
        return "" if context.model.is_on_gpu else "`strict=True`"

    @property
    def warning(self) -> str:
        """A sentence for the user if drafts may change the text although the settings ask for exactness; else empty."""
        settings, model = self._settings, self._context.model
        may = "the same seed may give another text with drafts than without"
        if not settings.exact or settings.strict or self.rounding == 0.0:
            return ""
        if model.gpu_layers:
            if settings.sequences > 1:
                return f"answers that are generated together on a GPU are not exact: {may}"
            if settings.spec_tree > 1:
                return f"trees on a GPU are not exact: {may} (chains can be: leave out `spec_tree`)"
            if not model.is_on_gpu:
                return f"a model with layers on a GPU and on the CPU is not exact: {may} (`strict=True` prevents it)"
            if self.classes is None:
                return f"how this GPU rounds cannot be measured, because the context is too short: {may}"
            if best := self.classes.best():
                cost = f"{self.classes.cost(best[0]):.2f} times as slow"
                return f"exact passes would be {cost} on this GPU: {may} ({_EITHER})"
            return f"this GPU rounds differently for each number of tokens in a pass: {may}"
        if not is_own_build():
            return f"this build of llama.cpp lacks edgespec's kernels: {may}. To install them: {exact_build()}"
        if not have_exact_kernels():
            return f"edgespec's kernels need a processor with AVX2 or NEON: {may} (`strict=True` prevents it)"
        if self.rounding is None and self._context.exact:
            return ""
        return f"logits depend on the width of a pass here: {may} ({_EITHER})"
