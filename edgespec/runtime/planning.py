"""Plan how a model is loaded: how many sequences, with which context, what is on GPUs or workers, and how weights are
read. A plan that does not fit into memory is made smaller or refused before anything is loaded.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgespec.core import exactness
from edgespec.drafters.registry import REGISTRY
from edgespec.engine.width_classes import WIDEST
from edgespec.errors import OutOfMemoryError
from edgespec.gguf_file.head_check import is_head, n_features
from edgespec.gguf_file.header import Header
from edgespec.llama.devices import chosen
from edgespec.llama.kernels import have_exact_kernels, repacked_types
from edgespec.llama.library import available_memory_bytes, gpus, supports_gpu, total_memory_bytes
from edgespec.llama.model import LlamaModel, Placement
from edgespec.llama.trial import extra_buffers_work, self_check
from edgespec.llama.workers import RemoteDevice
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.models.memory.fit import largest_context, usual_context, wanted_attention, what_would_fit, with_context
from edgespec.models.memory.placement import (
    GPU_RESERVE_BYTES,
    needed_on_gpus,
    placed,
    placement,
    spread,
    where_layers_are,
)
from edgespec.runtime.guarantee import may_pad
from edgespec.runtime.model_files import ModelFiles, drafters_with
from edgespec.settings import (
    AUTO_SEQUENCES,
    MAX_LEAVES,
    MAX_SEQUENCES,
    MTP,
    SHARED_DRAFT_TOKENS,
    LoadSettings,
    Offload,
    fixed_length,
)
from edgespec.text.figures import size_of

MEMORY_SHARE = 0.5  # of the free memory, for the contexts of several sequences
CACHE_SHARE, MOST_CACHE_BYTES = 8, 8 << 30  # of the free memory, for the prefix cache

MOST_REPACKED = 0.75  # of the machine's memory, for repacked weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How a target and its draft are loaded.

    Attributes:
        settings: Those that were given, with the number of sequences that was chosen.
        target: The target with its context; it includes the plan of the draft.
        drafters: The names of the drafters, in the order in which they are asked.
        leaves: The most leaves of a tree that they draft.
        is_draft_optional: True if the draft is left out if it cannot be loaded.
    """

    settings: LoadSettings
    target: MemoryPlan
    drafters: Sequence[str]
    leaves: int
    is_draft_optional: bool


def plan_loading(settings: LoadSettings, files: ModelFiles, note: Callable[[str], None]) -> LoadPlan:
    """Return how to load these files. A draft that no setting asks for is left out if there is no memory for it.

    Raises OutOfMemoryError, PairError.
    """
    try:
        return _planned(settings, files, files.draft, note)
    except OutOfMemoryError as error:
        if files.draft is None or not files.is_draft_optional:
            raise
        note(f"{files.draft.path.name} is not used: {error.why or error.what}")
    return _planned(settings, files, None, note)


def _planned(settings: LoadSettings, files: ModelFiles, draft: Header | None, note: Callable[[str], None]) -> LoadPlan:
    names = drafters_with(settings, files.target, draft) if settings.draft_n_max > 0 else []
    workers, (gpu_layers, gpu_layers_draft) = files.workers, settings.offload
    resolved = replace(settings, sequences=settings.sequences or 1)
    request = _request(resolved, files, draft, names, on_gpu=False)
    on_gpu = not workers and uses_gpu(request, gpu_layers, gpu_layers_draft)
    if not on_gpu and not workers and gpu_layers == "auto":
        gpu_layers = 0  # the CPU has exact kernels
    offload = gpu_layers, gpu_layers_draft
    request = _request(resolved, files, draft, names, on_gpu=on_gpu)
    if settings.sequences == 0 and not settings.strict:
        sequences = sequences_that_fit(request, *offload, workers, most=settings.most_sequences)
        resolved = replace(settings, sequences=sequences)
        request = _request(resolved, files, draft, names, on_gpu=on_gpu)
    must_fit = settings.must_fit or (draft is not None and files.is_draft_optional)
    may_shrink = not settings.ctx_size and not must_fit
    plan = fitted(request, note, *offload, may_shrink=may_shrink, must_fit=must_fit, workers=workers)
    return LoadPlan(resolved, plan, names, most_leaves(settings, names), files.is_draft_optional)


def base_plan(header: Header, settings: LoadSettings, n_ctx: int) -> MemoryPlan:
    """Return the plan of a model with one sequence, as the settings say, before it is fitted into memory."""
    return MemoryPlan(
        header,
        n_ctx=n_ctx,
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        flash_attention=settings.flash_attention,
        devices=chosen(settings.device),
        n_cpu_moe=settings.experts_on_cpu,
        may_repack=settings.repack,
    )


def most_leaves(settings: LoadSettings, names: Sequence[str]) -> int:
    """Return the most leaves of a tree that these drafters draft."""
    return settings.spec_tree if any(REGISTRY[name].drafts_trees for name in names) else 1


def with_branches(plan: MemoryPlan, leaves: int) -> MemoryPlan:
    """Return the plan with sequence ids for trees of this many leaves. All sequences share those of the target; a draft
    has as many, and one more for each sequence."""
    sequences, branches = plan.sequences, 0
    if exactness.allows_branches(sequences, exact=plan.exact):
        branches = max(0, min((leaves - 1) * sequences, MAX_LEAVES - 1, MAX_SEQUENCES - 2 * sequences))
    draft = plan.draft and replace(plan.draft, branches=branches + sequences if branches else 0)
    return replace(plan, branches=branches, draft=draft)


def is_exact(settings: LoadSettings, *, on_gpu: bool) -> bool:
    """Return whether passes must give each token the logits of a single-token pass."""
    return settings.exact and have_exact_kernels() and not on_gpu


def _request(
    settings: LoadSettings, files: ModelFiles, draft: Header | None, names: Sequence[str], *, on_gpu: bool
) -> MemoryPlan:
    """Return the plan that the settings ask for, whether or not it fits."""
    sequences, exact = settings.sequences, is_exact(settings, on_gpu=on_gpu)
    padding = WIDEST if may_pad(settings, on_gpu=on_gpu) else 0
    outputs = sequences + (_most_drafted(settings) if names or settings.strict else 0)
    on_cpu = not on_gpu and (exact or settings.strict)
    plan = replace(
        base_plan(files.target, settings, settings.ctx_size or usual_context(files.target)),
        sequences=sequences,
        max_outputs=max(outputs, padding),
        n_scored=exactness.SCORED,
        flash_attention=wanted_attention(settings, exact=on_cpu),
        scratch=padding,
        rollback=settings.draft_n_max if names else 0,
        exact=exact,
        mtp=MTP in names,
        projector=files.projector.stat().st_size if files.projector else 0,
        adapters=files.adapter_headers,
    )
    leaves = most_leaves(settings, names)
    if draft is not None:
        drafting = _request_draft(settings, draft, plan, leaves)
        plan = replace(plan, draft=drafting.as_head(n_features(draft)) if is_head(draft) else drafting)
    plan = with_branches(plan, leaves)
    return replace(plan, streams=sequences > 1 and plan.can_stream)


def _request_draft(settings: LoadSettings, draft: Header, target: MemoryPlan, leaves: int) -> MemoryPlan:
    return MemoryPlan(
        draft,
        n_ctx=settings.ctx_size_draft or target.n_ctx,
        sequences=settings.sequences,
        max_outputs=leaves * settings.sequences,
        threads=settings.threads_draft or settings.threads,
        threads_batch=settings.threads_batch_draft or settings.threads_batch,
        cache_type_k=settings.cache_type_k_draft or settings.cache_type_k,
        cache_type_v=settings.cache_type_v_draft or settings.cache_type_v,
        flash_attention=wanted_attention(settings, exact=target.exact),
        exact=target.exact,
        devices=chosen(settings.device_draft or settings.device),
        may_repack=settings.repack,
    )


def _most_drafted(settings: LoadSettings) -> int:
    """Return the maximum number of draft tokens in one pass, over all sequences."""
    n_max = settings.draft_n_max
    most = n_max * settings.sequences
    if settings.spec_draft_n_max is not None or fixed_length(settings.pace) is not None:
        return most
    return min(most, max(n_max, SHARED_DRAFT_TOKENS))


# --- what fits into memory --------------------------------------------------------------------------------------------


def fitted(
    plan: MemoryPlan,
    note: Callable[[str], None],
    gpu_layers: Offload = "auto",
    gpu_layers_draft: Offload = "auto",
    *,
    may_shrink: bool = False,
    must_fit: bool = False,
    workers: Sequence[RemoteDevice] = (),
) -> MemoryPlan:
    """Return the plan with layers on GPUs or workers as requested ("auto": as many as fit).

    With `may_shrink` the context becomes smaller if it does not fit. Mapped weights that are too large make a model
    slow rather than impossible, so they count only with `must_fit`. `note` receives messages for the user. Raises
    OutOfMemoryError, which says what would fit.
    """
    plan, free_vram = _with_gpus(plan, gpu_layers, gpu_layers_draft)
    wanted = {gpu_layers, gpu_layers_draft} if plan.draft else {gpu_layers}
    if not free_vram and not workers and wanted - {"auto", 0}:
        note("this build of llama.cpp has no usable GPU: all layers stay on the CPU")

    def arranged(plan: MemoryPlan) -> MemoryPlan:
        return _repacked(_arranged(plan, gpu_layers, gpu_layers_draft, free_vram, workers))

    fit = arranged(plan)
    _check_gpus(fit, free_vram)
    needed, free = estimate(fit), available_memory_bytes()
    if needed.allocated > free:
        n_ctx = largest_context(fit, free + needed.mapped)
        if not (may_shrink and n_ctx):
            raise OutOfMemoryError(
                f"a context of {plan.n_ctx * plan.sequences:,} tokens does not fit",
                why=f"it needs {size_of(needed.allocated)} besides memory-mapped weights, {size_of(free)} are free",
                hint="; ".join(what_would_fit(fit, free + needed.mapped)) or "use a smaller model",
            )
        note(f"a context of {plan.n_ctx} tokens does not fit into memory; using {n_ctx}")
        fit = arranged(with_context(plan, n_ctx))
    elif must_fit and needed.allocated + needed.mapped > free:
        needs = f"it needs {size_of(needed.allocated + needed.mapped)}, {size_of(free)} are free"
        raise OutOfMemoryError("the model does not fit into memory", why=needs)
    elif needed.mapped > free:
        note(
            f"the weights take {size_of(needed.mapped)}, but only {size_of(free)} of memory are free: they will be "
            "read from disk again and again, which is very slow"
        )
    if workers:
        note(where_layers_are(fit, [device.address for device in workers]))
        changed = _repacked(replace(fit, split=())).repacked - _repacked(fit).repacked
        if types := ", ".join(sorted(changed & fit.header.weight_types)):
            note(f"{types} weights are not repacked with workers: other texts than without `rpc`, and slower")
    elif free_vram:
        where = placement(fit, free_vram)
        logger.info("%s", where)
        if _is_left_out(fit, gpu_layers) or (fit.draft and _is_left_out(fit.draft, gpu_layers_draft)):
            note(where)
    return fit


def uses_gpu(plan: MemoryPlan, gpu_layers: Offload, gpu_layers_draft: Offload) -> bool:
    """Return whether layers of the target will be on GPUs."""
    plan, free_vram = _with_gpus(plan, gpu_layers, gpu_layers_draft)
    return placed(plan, gpu_layers, gpu_layers_draft, free_vram).gpu_layers > 0


def _check_gpus(plan: MemoryPlan, free_vram: Mapping[str, int]) -> None:
    """Raise OutOfMemoryError if a GPU lacks memory for the layers that were requested."""
    for name, n_bytes in needed_on_gpus(plan, free_vram).items():
        if n_bytes > free_vram[name]:
            fewer = placed(plan, "auto", "auto", free_vram)
            layers = f"`gpu_layers={fewer.gpu_layers}`"
            layers += f" `gpu_layers_draft={fewer.draft.gpu_layers}`" if fewer.draft else ""
            raise OutOfMemoryError(
                f"the layers do not fit on {name}",
                why=f"they need {size_of(n_bytes)} there, {size_of(free_vram[name])} are free",
                hint=f"{layers} fits (auto chooses it), or use a smaller context (`ctx_size`)",
            )


def _arranged(
    plan: MemoryPlan,
    gpu_layers: Offload,
    gpu_layers_draft: Offload,
    free_vram: Mapping[str, int],
    workers: Sequence[RemoteDevice],
) -> MemoryPlan:
    """Place the layers. With workers, those of the target are on workers and the CPU; a draft is on the CPU or GPUs."""
    if not workers:
        return placed(plan, gpu_layers, gpu_layers_draft, free_vram)
    free = [_steady(device.free_bytes, device.total_bytes) for device in workers]
    here = available_memory_bytes()
    return spread(placed(plan, 0, gpu_layers_draft, free_vram), gpu_layers, free, _steady(here, total_memory_bytes()))


def _steady(free_bytes: int, total_bytes: int) -> int:
    """Round free memory down, so that layers are placed as in the last run: measurements depend on the place."""
    step = max(1, total_bytes // 16)
    return free_bytes // step * step or free_bytes


def sequences_that_fit(
    plan: MemoryPlan,
    gpu_layers: Offload = "auto",
    gpu_layers_draft: Offload = "auto",
    workers: Sequence[RemoteDevice] = (),
    *,
    most: int = AUTO_SEQUENCES,
) -> int:
    """Return how many answers can be decoded together, up to `most`: as many as half of the free memory holds."""
    plan, free_vram = _with_gpus(plan, gpu_layers, gpu_layers_draft)
    plan = _repacked(_arranged(plan, gpu_layers, gpu_layers_draft, free_vram, workers))
    one = estimate(plan)
    vram = sum(free_vram.values()) - GPU_RESERVE_BYTES * len(free_vram)
    if workers:
        vram = sum(device.free_bytes for device in workers)
    room = (available_memory_bytes() - one.allocated, vram - one.vram)

    def too_many(sequences: int) -> bool:
        several = estimate(_times(plan, sequences))
        more = (several.allocated - one.allocated, several.vram - one.vram)
        return any(each > max(0, MEMORY_SHARE * left) for each, left in zip(more, room, strict=True))

    return 1 + bisect_right(range(2, most + 1), False, key=too_many)


def _times(plan: MemoryPlan, sequences: int) -> MemoryPlan:
    """Return the plan of one sequence for several."""
    several = replace(plan, sequences=sequences, max_outputs=plan.max_outputs * sequences, streams=plan.can_stream)
    draft = plan.draft and replace(plan.draft, sequences=sequences, max_outputs=plan.draft.max_outputs * sequences)
    return replace(several, draft=draft)


def _is_left_out(plan: MemoryPlan, wanted: Offload) -> bool:
    """True if layers stay on the CPU although no setting asks for it."""
    return wanted == "auto" and plan.gpu_layers < plan.n_layers


def repacks(plan: MemoryPlan) -> bool:
    """True if weights are repacked where this build can.

    Not if repacking crashes, or if the weights take most of this machine's memory, or more than is free, since the
    system has to be able to drop them. With the kernels of llama.cpp, repacked weights give other results, and workers
    repack nothing: then no weights are repacked.
    """
    is_wanted = plan.may_repack and (have_exact_kernels() or not any(plan.split))
    return is_wanted and self_check() == "works" and not _is_too_large(plan)


def _is_too_large(plan: MemoryPlan) -> bool:
    """Return whether the weights leave too little memory for a repacked copy of them."""
    return plan.header.weights_bytes > min(MOST_REPACKED * total_memory_bytes(), available_memory_bytes())


def copies(plan: MemoryPlan) -> bool:
    """True if weights are read into memory rather than mapped.

    Then this build uses huge pages, which makes narrow passes faster. Weights that would take half of the free memory
    are mapped, since the system can drop mapped pages, and so are those that stay in their file by a setting.
    """
    has_huge_pages = sys.platform == "linux" and have_exact_kernels()
    is_small = 2 * plan.header.weights_bytes <= available_memory_bytes()
    return has_huge_pages and plan.may_repack and not plan.gpu_layers and is_small


def _with_gpus(plan: MemoryPlan, gpu_layers: Offload, gpu_layers_draft: Offload) -> tuple[MemoryPlan, dict[str, int]]:
    """Return the plan with the names of its GPUs, and the free bytes of each.

    A plan without names uses all usual GPUs. An integrated one is as fast as the memory that it shares with the CPU,
    whose kernels are exact, so it is used only if it is named or gets a number of layers. Main memory counts for a GPU
    that does not report its memory.
    """
    free_vram = dict[str, int]()

    def used(names: Sequence[str], wanted: Offload) -> tuple[str, ...]:
        found = [gpu for gpu in gpus(names) if names or wanted != "auto" or not gpu.is_integrated]
        for gpu in found:
            free_vram[gpu.name] = gpu.free_bytes if gpu.total_bytes else available_memory_bytes()
        return tuple(gpu.name for gpu in found)

    n_moe = plan.header.number("block_count") if plan.header.number("expert_count") else 0
    plan = replace(plan, n_cpu_moe=min(plan.n_cpu_moe, n_moe))
    if supports_gpu():
        draft = plan.draft and replace(plan.draft, devices=used(plan.draft.devices, gpu_layers_draft))
        plan = replace(plan, devices=used(plan.devices, gpu_layers), draft=draft)
    return plan, free_vram


def _repacked(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with the types of weights that this build repacks. With layers on a GPU it repacks none."""
    types = repacked_types() if not plan.gpu_layers and repacks(plan) else frozenset[str]()
    draft = _repacked(plan.draft) if plan.draft else None
    return replace(plan, repacked=types, interleaves=bool(types) and have_exact_kernels(), draft=draft)


# --- what is loaded ---------------------------------------------------------------------------------------------------


def open_model(
    plan: MemoryPlan,
    note: Callable[[str], None],
    progress: Callable[[float], None],
    workers: Sequence[RemoteDevice] = (),
) -> LlamaModel:
    """Load the weights of a plan as this build can. Raises ModelFileError, OutOfMemoryError."""
    header = plan.header
    if have_exact_kernels() and plan.may_repack and not plan.gpu_layers and _is_too_large(plan):
        note(f"{header.path.name} takes most of the memory: it stays in its file, and passes take longer")
    place: Placement = {"gpu_layers": plan.gpu_layers, "devices": plan.devices, "n_cpu_moe": plan.n_cpu_moe}
    if any(plan.split) and header.weights_bytes > available_memory_bytes():  # too large to be tried on this machine
        extra_buffers = self_check() == "works" and repacks(plan)
    else:
        extra_buffers = extra_buffers_work(header.path, note, **place) and repacks(plan)
    return LlamaModel(
        header,
        **place,
        use_extra_bufts=extra_buffers,
        copied=copies(plan),
        with_mtp=plan.mtp,
        remote=[*zip(workers, plan.split, strict=True)] if plan.split else (),
        progress=progress,
    )


def cache_bytes(cache_ram: int | None, models: Iterable[LlamaModel], note: Callable[[str], None]) -> int:
    """Return the size of the prefix cache in bytes (`LoadSettings.cache_ram`), once everything is loaded.

    It is at most the free memory without the weights of these models, which may be mapped and not yet read.
    """
    weights = sum(model.size_bytes for model in models if not (model.is_copied or model.is_offloaded))
    free = max(0, available_memory_bytes() - weights)
    if cache_ram is None:
        return min(free // CACHE_SHARE, MOST_CACHE_BYTES)
    if cache_ram << 20 > free:
        note(f"`cache_ram={cache_ram}` is more memory than is free; using {size_of(free)} for it")
    return min(cache_ram << 20, free)
