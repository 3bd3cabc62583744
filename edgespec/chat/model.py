"""The model of a chat: loading it, its drafting settings, and recovery after it has died."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.chat.events import Opener
from edgespec.chat.settings import DRAFTING, ChatSettings, in_chats
from edgespec.errors import EdgespecError, UsageError
from edgespec.events import Progress
from edgespec.gguf_file.head_check import check_draft_file
from edgespec.gguf_file.model_check import check_model
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import Model
from edgespec.models.names.model_names import short_name
from edgespec.models.names.source import lasting
from edgespec.models.names.spec import own_settings, resolve
from edgespec.runtime.worker import LoadingStoppedError, Remedy, WorkerDiedError, remedies
from edgespec.runtime.worker.death import lost_workers
from edgespec.settings import AUTO_DRAFT, LoadSettings, Message
from edgespec.tools.offer import Style, style_of

Catalogued = Mapping[str, str | float]


def drafting_with(settings: LoadSettings, draft: str | None) -> LoadSettings:
    """Return the settings with another draft model; None means the target's own, "none" no draft model."""
    if draft == "none":
        return replace(settings, draft_model=None, spec_type=settings.without_draft)
    return replace(settings, draft_model=draft, spec_type=settings.with_draft)


class ChatModel:
    """A model that is loaded with `settings`, on this machine or on a `server`.

    `engine` is None while no model is loaded, and after it has died; `failure` is the reason, and `wanted` what was to
    be loaded. `info` describes the model that is or was loaded.
    """

    def __init__(self, open_engine: Opener, settings: LoadSettings, server: str = "") -> None:
        self.open_engine, self.settings, self.server = open_engine, settings, server
        self.engine: Model | None = None
        self.info = ModelInfo("")
        self._drafting: dict[str, object] = {}  # the drafting settings of the engine
        self.failure: EdgespecError | None = None
        self.wanted = settings
        self._style: Style | None = None
        self._knows_style = False

    def load(
        self, wanted: LoadSettings, progress: Progress | None, cancel: CancelFlag | None
    ) -> tuple[Catalogued, Catalogued]:
        """Load a model; return the catalogue's default settings for the previous model, and for this one.

        After errors that are detected beforehand the loaded model stays. Raises what Runtime raises.
        """
        try:
            self.check(wanted)
            catalogued = own_settings(self.settings.model), own_settings(wanted.model)
            if not self.server:
                self.unload()  # both may not fit into memory
            opened = self.open_engine(wanted, progress, cancel)
            self.unload()
            self.engine = opened
        except EdgespecError as error:
            if self.engine is None:
                self.wanted, self.failure = wanted, error
                if self.was_cancelled:
                    error.hint = "/restart loads it again, /model MODEL loads another one"
            raise
        self.failure, self.settings, self.wanted = None, wanted, wanted
        self.info, self._drafting = self.engine.info, {}
        self._style, self._knows_style = None, False
        return catalogued

    def check(self, wanted: LoadSettings) -> None:
        """Raise the errors of loading that can be detected beforehand."""
        if not self.server:
            check_model(resolve(wanted.model).path)
            if wanted.draft_model and wanted.draft_model != AUTO_DRAFT:
                check_draft_file(resolve(wanted.draft_model).path)

    def unload(self) -> None:
        """Free the model."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def remedies(self) -> list[Remedy]:
        """Return settings to restart with after the model has died, or could not be loaded."""
        wanted = self.wanted
        if self.failure is None:
            return []
        if self.server:
            found = [Remedy("Connect again", wanted)]
        elif self.was_cancelled:  # the model did not fail, so loading it with less would not help
            found = [Remedy("Load again", wanted)]
        else:
            found = remedies(wanted, self.info if wanted == self.settings else ModelInfo(""), error=self.failure)
        if wanted != self.settings:
            found.append(Remedy(f"Back to {self.settings.model}", self.settings))
        return found

    @property
    def was_cancelled(self) -> bool:
        """True if no model is loaded because the user cancelled loading."""
        return isinstance(self.failure, LoadingStoppedError)

    @property
    def waits_for_workers(self) -> bool:
        """True if no model is loaded because workers were lost, which may return."""
        return self.failure is not None and lost_workers(self.wanted, self.failure)

    def needed(self) -> Model:
        """Return the engine. Raises UsageError if no model is loaded."""
        if self.engine is None:
            raise UsageError("no model is loaded", hint="/restart loads it again, /model another one")
        return self.engine

    def draft_as(self, settings: ChatSettings) -> None:
        """Use the drafting settings of a chat, else those the model was loaded with. Raises UsageError."""
        if self.engine is None:
            return
        loaded = {name: getattr(self.settings, name) for name in DRAFTING}
        loaded["spec_draft_n_max"] = self.settings.draft_n_max
        if (wanted := loaded | settings.drafting) == self._drafting:
            return
        with self.watched() as engine:
            engine.draft_with(**wanted)
            self.info, self._drafting = engine.info, wanted

    def count(self, messages: Sequence[Message], template: str = "") -> int:
        """Return the number of tokens of messages, with arguments of the chat template. Raises UsageError if no model
        is loaded."""
        with self.watched() as engine:
            return engine.count(messages, template)

    @property
    def style(self) -> Style | None:
        """How the model calls tools; None if it does not, or runs elsewhere."""
        if self.engine is not None and not self._knows_style:
            with self.watched() as engine:
                self._style = None if self.server else style_of(engine)
            self._knows_style = True
        return self._style

    @contextmanager
    def watched(self) -> Iterator[Model]:
        """Yield the engine; if it dies within this block, that is recorded. Raises UsageError if no model is loaded."""
        try:
            yield self.needed()
        except WorkerDiedError as error:
            self.wanted, self.failure = self.settings, error
            self.unload()
            raise

    def new_notes(self) -> list[str]:
        """Return the notes of the engine since the last call, with the names that settings have in chats."""
        return [] if self.engine is None else [*map(in_chats, self.engine.notes.take())]

    @property
    def name(self) -> str:
        """The names of the model and of its draft model."""
        return " + ".join(filter(None, self.names))

    @property
    def names(self) -> tuple[str, str]:
        """The names of the model and of its draft model; "" if there is none."""
        files = (self.info.model, self.info.draft_model)
        model, draft = (short_name(Path(file)) if file else "" for file in files)
        return model, draft

    def as_json(self) -> dict[str, object]:
        """Return the models as requested, by names that stay valid."""
        draft = self.settings.draft_model
        where = {"server": self.server} if self.server else {}
        return {"model": lasting(self.settings.model), "draft_model": draft and lasting(draft), **where}
