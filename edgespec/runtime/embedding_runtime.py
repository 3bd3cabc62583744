"""A model that makes vectors or scores of texts, and cannot generate text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, ModelFileError, UsageError
from edgespec.events import Progress
from edgespec.gguf_file.adapters import check_adapter, parse_adapters
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.model_check import check_model, is_embedding
from edgespec.gguf_file.pooling import NAMES, RANK, has_head, pooling_of, reads_whole
from edgespec.llama import rpc
from edgespec.llama.adapters import Adapters
from edgespec.llama.context import PooledContext
from edgespec.llama.template import ChatTemplate
from edgespec.llama.workers import parse_addresses
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import Model
from edgespec.llm.notes import Notes
from edgespec.models.memory.estimate import MemoryPlan
from edgespec.models.memory.fit import usual_context
from edgespec.models.names.spec import resolve
from edgespec.runtime.answering import attempted
from edgespec.runtime.embedding import Embedder
from edgespec.runtime.inputs import InputReader, Texts
from edgespec.runtime.loading import about_model
from edgespec.runtime.planning import base_plan, fitted, open_model, uses_gpu
from edgespec.runtime.prompts import Prompts
from edgespec.runtime.runtime import Runtime, Work
from edgespec.settings import AUTO_DRAFT, Inputs, LoadSettings, Request
from edgespec.validation import check_load_settings

PIECE = 128  # tokens of a pass, where a text can be read in pieces: more would take more memory
MOST_SHARED = 64  # texts in a pass


def open_runtime(
    settings: LoadSettings, progress: Progress, has_work: Callable[[], bool]
) -> Runtime | EmbeddingRuntime:
    """Load a model. `has_work` is asked whether other requests wait while a state is saved. Raises the errors of
    `Runtime`, also for a model that cannot generate unless `settings.embeds`."""
    if settings.embeds and is_embedding(read_header(resolve(settings.model).path)):
        return EmbeddingRuntime(settings, progress)
    runtime = Runtime(settings, progress)
    runtime.kept_states.gives_way = has_work
    return runtime


class EmbeddingRuntime(Model):
    """An embedding model or a reranker, loaded in this process. Raises the errors of `Runtime`."""

    def __init__(self, settings: LoadSettings, progress: Progress) -> None:
        check_load_settings(settings)
        self._settings = settings
        self.notes = Notes()
        header = check_model(resolve(settings.model).path, embeds=True)
        for what, named in (
            ("draft model", settings.draft_model),
            ("projector", settings.mmproj),
            ("chat template", settings.chat_template),
            ("chat template", settings.chat_template_file),
        ):
            if named not in (None, AUTO_DRAFT):
                self.notes.add(f"{what} {named} is not used: {header.path.name} does not generate text")
        adapters = parse_adapters(settings.lora)
        adapter_headers = [check_adapter(adapter.path, header) for adapter in adapters]
        if pooling_of(header) == RANK and not has_head(header):
            why = "it is a reranking model without its classification head"
            raise ModelFileError(f"{header.path} cannot be loaded", why=why, hint="Look for another conversion.")
        workers = rpc.offers(parse_addresses(settings.rpc)) if settings.rpc else []
        plan, (gpu_layers, _) = replace(pooled_plan(header, settings), adapters=(*adapter_headers,)), settings.offload
        if gpu_layers == "auto" and not workers and not uses_gpu(plan, gpu_layers, 0):
            gpu_layers = 0  # all GPUs are integrated: they are not faster than the CPU
        may_shrink = not settings.ctx_size and not settings.must_fit
        plan = fitted(
            plan, self.notes.add, gpu_layers, may_shrink=may_shrink, must_fit=settings.must_fit, workers=workers
        )
        self.model = open_model(plan, self.notes.add, lambda done: progress("loading", done), workers)
        n_batch = min(plan.n_batch, plan.n_ctx)  # the context may be smaller than planned
        branches = min(MOST_SHARED, n_batch) - 1 if _shares_passes(settings, on_gpu=self.model.gpu_layers > 0) else 0
        plan = replace(plan, n_batch=n_batch, max_outputs=n_batch, branches=branches)
        try:
            self._adapters = Adapters(self.model, adapters)
            self.context = PooledContext(self.model, plan, adapters=self._adapters)
        except BaseException:
            self.model.close()
            raise
        self.loop: Embedder = Embedder(self.context)
        self.prompts = Prompts(self.model, ChatTemplate(self.model), self.context.n_ctx, self.notes.add)
        self._inputs = InputReader(self.model, self.context.n_ctx)

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            **about_model(self.model),
            has_chat_template=False,
            pooling=NAMES[pooling_of(self.model.header)],
            n_embd=self.model.n_embd_out,
            adapters=self._adapters.describe(),
            ctx_size=self.context.n_ctx,
            threads=self.context.threads,
            threads_batch=self.context.threads_batch,
        )

    def call(self, name: str, *args: object, **keywords: object) -> Any:
        return attrgetter(name)(self)(*args, **keywords)

    def waits_for(self, request: Request | Inputs) -> Work:
        """Return the work by which a request becomes ready."""
        return "reading"

    @property
    def room(self) -> int:
        return 1

    def prepared(self, request: Request | Inputs, cancel: CancelFlag | None = None) -> Texts | EdgespecError:
        """Return the tokens of texts, or the error with which they are refused."""
        if isinstance(request, Inputs):
            return attempted(partial(self._inputs.of, request, cancel))
        return attempted(partial(self.check_settings, request))

    def check_settings(self, request: Request) -> NoReturn:
        """Raise UsageError: there are no settings of answers."""
        raise UsageError(f"{self.model.path.name} is an embedding model", why="it cannot generate text")

    def close(self) -> None:
        """End the requests, and free the model; safe to call twice."""
        self.loop.shut()
        self.context.close()
        self.model.close()


def pooled_plan(header: Header, settings: LoadSettings) -> MemoryPlan:
    """Return the plan of a context for texts.

    No text may be longer than the context that the model was trained for: some models have a vector for each position.
    """
    n_ctx = min(settings.ctx_size or usual_context(header), header.number("context_length"))
    n_batch = n_ctx if reads_whole(header) else PIECE
    plan = base_plan(header, settings, n_ctx)
    return replace(plan, n_batch=n_batch, max_outputs=n_batch, pooling=pooling_of(header))


def _shares_passes(settings: LoadSettings, *, on_gpu: bool) -> bool:
    """Return whether several texts are read in a pass. On a CPU that is hardly faster, and changes bits."""
    return not settings.strict and (on_gpu or not settings.exact)
