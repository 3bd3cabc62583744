"""llama-cpp-python's own `Llama` with the same file, for comparison: plain, or with its prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import GenerationError
from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.trial import self_check
from edgespec.settings import CACHE_TYPES, LoadSettings

LOOKUP_TOKENS = 10


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Ids, seconds until the first token and from there to the last, and for each pass after the prompt's its width and
    the number of tokens it yielded."""

    tokens: list[int]
    prompt_s: float
    generation_s: float
    passes: list[tuple[int, int]]


class Peer(Closable):
    """One `Llama` for both ways of decoding, with the model's settings and those of `context`. Holds up to `n_ctx`
    tokens. Raises GenerationError if it cannot be loaded."""

    def __init__(self, context: Context, settings: LoadSettings, n_ctx: int) -> None:
        model = context.model
        if self_check() != "works":
            raise GenerationError(
                "cannot compare with llama-cpp-python's Llama",
                why="this build crashes with repacked weights, and Llama always uses them",
            )
        try:
            self._llama = _CountingLlama(
                str(model.path),
                n_ctx=n_ctx,
                n_threads=context.threads,
                n_threads_batch=context.threads_batch,
                n_gpu_layers=model.gpu_layers,
                flash_attn=settings.flash_attention != "off",
                type_k=CACHE_TYPES[settings.cache_type_k].ggml_type,
                type_v=CACHE_TYPES[settings.cache_type_v].ggml_type,
                logits_all=True,  # makes room for them, which lookup needs; plain decoding does not ask for them
                verbose=False,
            )
        except ValueError as error:
            raise GenerationError(
                "llama-cpp-python's Llama cannot load the model", why=str(error), hint="leave out --peer"
            ) from error
        self._lookup = LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS)

    def close(self) -> None:
        self._llama.close()

    def answer(
        self,
        prompt: Sequence[int],
        n: int,
        cancel: CancelFlag,
        *,
        lookup: bool,
        sampling: SamplingSettings,
        seed: int,
        reference: Sequence[int] = (),
    ) -> PeerAnswer:
        """`n` tokens after a prompt, those of `reference` if given; fewer if `cancel` is set."""
        llama = self._llama
        kernels.use(kernels.STOCK)  # passes of `context` set theirs again
        llama.reset()
        llama.set_seed(seed)
        llama.draft_model, llama._logits_all = (self._lookup, True) if lookup else (None, False)
        llama.widths.clear()
        tokens: list[int] = []
        given: list[int] = []
        started_s = first_s = perf_counter()
        stream = llama.generate(
            prompt,
            temp=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            typical_p=sampling.typical_p,
            logits_processor=LogitsProcessorList([_Forced(reference)]) if reference else None,
        )
        for token in stream:
            tokens.append(token)
            given += [0] * (len(llama.widths) - len(given))
            given[-1] += 1
            if len(tokens) == 1:
                first_s = perf_counter()
            if len(tokens) == n or cancel.is_set():
                break
        generation_s = perf_counter() - first_s
        stream.close()
        return PeerAnswer(tokens, first_s - started_s, generation_s, list(zip(llama.widths, given, strict=True))[1:])


class _CountingLlama(Llama):  # type: ignore[misc]
    """Records the widths of its passes; the prompt counts as one."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.widths: list[int] = []
        super().__init__(*args, **settings)

    def eval(self, tokens: Sequence[int]) -> None:
        self.widths.append(len(tokens))
        super().eval(tokens)


class _Forced:
    """A logits processor that allows only the next token of a reference."""

    def __init__(self, reference: Sequence[int]) -> None:
        self._next = iter(reference)

    def __call__(self, _tokens: NDArray[np.intc], logits: NDArray[np.single]) -> NDArray[np.single]:
        forced = np.full(len(logits), -np.inf, np.single)
        forced[next(self._next)] = 0
        return forced
