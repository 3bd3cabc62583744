"""From settings to a plan: how many sequences, with which context, and what is on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from edgespec.core import exactness
from edgespec.drafters.registry import REGISTRY
from edgespec.engine.width_classes import WIDEST
from edgespec.gguf_file.head_check import is_head, n_features
from edgespec.gguf_file.header import Header
from edgespec.llama.devices import chosen
from edgespec.llama.kernels import have_exact_kernels
from edgespec.llama.workers import RemoteDevice
from edgespec.models.memory.estimate import Plan
from edgespec.models.memory.fit import usual_context, wanted_attention
from edgespec.runtime.fitting import fitted, sequences_that_fit, uses_gpu
from edgespec.runtime.guarantee import may_pad
from edgespec.settings import MAX_LEAVES, MAX_SEQUENCES, MTP, SHARED_DRAFT_TOKENS, LoadSettings, fixed_length


class Planner:
    """Plans how to load a target, and its draft if it has one.

    Attributes:
        settings: those that were given, with the number of sequences that the last plan decided.
    """

    def __init__(
        self,
        settings: LoadSettings,
        header: Header,
        adapters: tuple[Header, ...],
        projector: Path | None,
        workers: Sequence[RemoteDevice],
        note: Callable[[str], None],
    ) -> None:
        self.settings = self._given = settings
        self._header, self._adapters, self._projector = header, adapters, projector
        self._workers, self._note = workers, note
        self._on_gpu = False

    @property
    def is_exact(self) -> bool:
        """True if passes must give each token the logits of a single-token pass."""
        return self._given.exact and have_exact_kernels() and not self._on_gpu

    def plan(self, draft: Header | None, names: Sequence[str], *, must_fit: bool = False) -> Plan:
        """Return what is loaded, in which contexts and where; `names` are those of the drafters.

        With `must_fit`, everything has to be in memory, with the whole context. Raises OutOfMemoryError.
        """
        self.settings = settings = self._given
        self._on_gpu = False
        gpu_layers, gpu_layers_draft = settings.offload
        if settings.sequences == 0:
            self.settings = replace(settings, sequences=1)
        wanted = self._wanted(draft, names)
        self._on_gpu = not self._workers and uses_gpu(wanted, gpu_layers, gpu_layers_draft)
        if not self._on_gpu and not self._workers and gpu_layers == "auto":
            gpu_layers = 0  # the CPU has exact kernels
        offload = gpu_layers, gpu_layers_draft
        wanted = self._wanted(draft, names)
        if settings.sequences == 0 and not settings.strict:
            self.settings = replace(settings, sequences=sequences_that_fit(wanted, *offload, self._workers))
            wanted = self._wanted(draft, names)
        must_fit = must_fit or settings.must_fit
        fits = {"may_shrink": not settings.ctx_size and not must_fit, "must_fit": must_fit}
        return fitted(wanted, self._note, *offload, **fits, workers=self._workers)

    def with_branches(self, plan: Plan, leaves: int) -> Plan:
        """Return the plan with sequence ids for trees of this many leaves. All sequences share those of the target; a
        draft has as many, and one more for each sequence."""
        sequences, branches = self.settings.sequences, 0
        if exactness.allows_branches(sequences, exact=self.is_exact):
            branches = max(0, min((leaves - 1) * sequences, MAX_LEAVES - 1, MAX_SEQUENCES - 2 * sequences))
        draft = plan.draft and replace(plan.draft, branches=branches + sequences if branches else 0)
        return replace(plan, branches=branches, draft=draft)

    def leaves(self, names: Sequence[str]) -> int:
        """Return the most leaves of a tree that these drafters draft."""
        return self._given.spec_tree if any(REGISTRY[name].drafts_trees for name in names) else 1

    def _wanted(self, draft: Header | None, names: Sequence[str]) -> Plan:
        """Return the plan that the settings ask for."""
        settings, header = self.settings, self._header
        sequences, exact = settings.sequences, self.is_exact
        padding = WIDEST if may_pad(settings, on_gpu=self._on_gpu) else 0
        outputs = sequences + (self._drafted() if names or settings.strict else 0)
        outputs = max(outputs, padding)
        on_cpu = not self._on_gpu and (exact or settings.strict)
        plan = Plan(
            header,
            n_ctx=settings.ctx_size or usual_context(header),
            sequences=sequences,
            max_outputs=outputs,
            n_scored=exactness.SCORED,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attention=wanted_attention(settings, exact=on_cpu),
            scratch=padding,
            rollback=settings.draft_n_max if names else 0,
            exact=exact,
            devices=chosen(settings.device),
            n_cpu_moe=settings.experts_on_cpu,
            may_repack=settings.repack,
            mtp=MTP in names,
            projector=self._projector.stat().st_size if self._projector else 0,
            adapters=self._adapters,
        )
        leaves = self.leaves(names)
        if draft is not None:
            drafting = self._wanted_draft(draft, plan.n_ctx, leaves)
            plan = replace(plan, draft=drafting.as_head(n_features(draft)) if is_head(draft) else drafting)
        plan = self.with_branches(plan, leaves)
        return replace(plan, streams=sequences > 1 and plan.can_stream)

    def _wanted_draft(self, draft: Header, n_ctx: int, leaves: int) -> Plan:
        """Return the plan of the draft; `n_ctx` is the context of the target."""
        settings, exact = self.settings, self.is_exact
        return Plan(
            draft,
            n_ctx=settings.ctx_size_draft or n_ctx,
            sequences=settings.sequences,
            max_outputs=leaves * settings.sequences,
            cache_type_k=settings.cache_type_k_draft or settings.cache_type_k,
            cache_type_v=settings.cache_type_v_draft or settings.cache_type_v,
            flash_attention=wanted_attention(settings, exact=exact),
            exact=exact,
            devices=chosen(settings.device_draft or settings.device),
            may_repack=settings.repack,
        )

    def _drafted(self) -> int:
        """Return the maximum number of draft tokens in one pass, over all sequences."""
        settings, n_max = self.settings, self.settings.draft_n_max
        most = n_max * settings.sequences
        if settings.spec_draft_n_max is not None or fixed_length(settings.pace) is not None:
            return most
        return min(most, max(n_max, SHARED_DRAFT_TOKENS))
