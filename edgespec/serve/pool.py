"""The models that requests name: each is loaded into a worker process when it is needed, and unloaded again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, OutOfMemoryError
from edgespec.gguf_file.adapters import parse_adapters
from edgespec.llm.stream import Stream
from edgespec.requests.bad_input import JsonObject
from edgespec.runtime.worker import Worker
from edgespec.serve.errors import ApiError, busy, unavailable
from edgespec.serve.served import Served
from edgespec.serve.threads import in_thread
from edgespec.settings import Inputs, LoadSettings, Request

LOOK_S = 5.0  # how long the list of local models is valid
SHOWN = 12  # names in an error

Tell = Callable[[JsonObject], None]
"""Called with an event of a model as plain data: `event` and `model`."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that requests may name.

    Attributes:
        settings: how it is loaded.
        defaults: settings of requests that they leave out.
        seed: the seed of requests without one; None: a random one for each.
        idle_s: after this time without a request it is unloaded; None: never.
        system: the system prompt of chats without a system message.
    """

    name: str
    settings: LoadSettings
    defaults: Request
    idle_s: float | None = None
    system: str = ""
    seed: int | None = None

    @property
    def adapters(self) -> list[str]:
        """The names of the model's LoRA adapters."""
        return [adapter.name for adapter in parse_adapters(self.settings.lora)]


Offers = Mapping[str, Offer]
"""Offers by all names that requests may use."""


@dataclass(slots=True, eq=False)
class Place:
    """A model, loaded or not. `users` counts the requests that use it or wait for it."""

    offer: Offer
    served: Served | None = None
    users: int = 0
    used_s: float = 0.0
    loading: asyncio.Task[Served] | None = None
    has_failed: bool = False
    idle: asyncio.TimerHandle | None = None

    @property
    def living(self) -> Served | None:
        """The model, if it is loaded and its worker lives."""
        return self.served if self.served is not None and self.served.worker.is_alive else None

    @property
    def state(self) -> str:
        return "loaded" if self.living else "loading" if self.loading else "unloaded"


class Pool:
    """The models by their names. `named` are always offered; `look` finds all offers, which may take a while. At most
    `max_loaded` are loaded at a time, and `max_waiting` answers wait for each.

    Models are loaded one after the other. If too many are loaded, or memory is short, unused ones are unloaded, least
    recently used first. A pool belongs to one event loop. If it `lets_keep`, requests may choose how long models stay.
    """

    lets_keep = False

    def __init__(
        self,
        named: Sequence[Offer],
        look: Callable[[], Offers],
        note: Callable[[str], None],
        tell: Tell = lambda what: None,
        *,
        max_loaded: int = 4,
        max_waiting: int = 256,
    ) -> None:
        self._places = {offer.name: Place(offer) for offer in named}
        self._names = {offer.name: offer.name for offer in named}
        self._default = named[0].name if named else ""
        self._named = list(self._places)
        self._look, self._note, self._tell = look, note, tell
        self._max_loaded, self._max_waiting = max_loaded, max_waiting
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()
        self._stop_loading = CancelFlag()
        self.loads, self.unloads, self.deaths = Counter[str](), Counter[str](), Counter[str]()  # by model
        self.is_closing = False

    # --- what is there ------------------------------------------------------------------------------------------------

    async def places(self) -> list[Place]:
        """Return all models, those in `named` first."""
        await self._refresh()
        return list(self._places.values())

    async def place(self, name: str) -> Place:
        """Return the model with this name, the first one for "". Raises ApiError."""
        if (known := self._known(name)) is None:
            await self._refresh()
            known = self._known(name)
        if known is None and self._looking is not None:
            raise unavailable("the models of this machine are being listed: try again later", code="listing")
        if known is None:
            here = [*self._places][:SHOWN]
            more = ", ..." if len(self._places) > SHOWN else ""
            raise ApiError(
                404,
                f"model {name[:80]!r} not found; this server has {', '.join(here)}{more}",
                type="not_found_error",
                param="model",
                code="model_not_found",
            )
        return self._places[known]

    def _known(self, name: str) -> str | None:
        """Return the name of the offer that a request names. Clients of Ollama add `:latest` or leave it out. After the
        name there may be one of the model's adapters."""
        words = (name, f"{name}:latest", name.removesuffix(":latest")) if name else (self._default,)
        known = next((self._names[word] for word in words if word in self._names), None)
        model, _, adapter = name.rpartition(":")
        base = self._names.get(model)
        return base if known is None and base and adapter in self._places[base].offer.adapters else known

    @property
    def load(self) -> tuple[int, int]:
        """The number of answers that are generated, and of those that wait."""
        loaded = [place.served for place in self.loaded if place.served]
        processing = sum(min(model.n_open, model.n_slots) for model in loaded)
        waiting = sum(place.users for place in self._places.values() if not place.living)
        return processing, sum(model.n_open for model in loaded) - processing + waiting

    @property
    def n_loaded(self) -> int:
        return sum(place.living is not None for place in self.loaded)

    @property
    def loaded(self) -> list[Place]:
        return [place for place in self._places.values() if place.served is not None]

    async def _refresh(self) -> None:
        """Look for models if the list is old, and wait a limited time for it."""
        if self._looking is None and time.monotonic() - self._looked_s > LOOK_S:
            self._looking = self._begin(self._find())
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=LOOK_S)

    async def _find(self) -> None:
        try:
            try:
                offers = await in_thread(self._look, "lists models")
            except (EdgespecError, OSError) as error:
                self._note(f"the models of this machine cannot be listed: {error}")
                offers = {}
            kept = [name for name, place in self._places.items() if place.served or place.users or place.loading]
            found = {offer.name: Place(offer) for offer in offers.values()}
            self._places = {name: self._places.get(name) or found[name] for name in [*self._named, *kept, *found]}
            by_name = {name: offer.name for name, offer in offers.items()}
            self._names = by_name | {name: name for name in self._places}
        finally:
            self._looked_s, self._looking = time.monotonic(), None

    # --- answers ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[Served]:
        """Load the model with this name, and keep it loaded in this block. Raises ApiError, and errors of loading."""
        place = await self.place(name)
        if place.living is None and place.users > self._max_waiting:
            raise busy(place.users)
        place.users += 1
        self._watch_idle(place)
        try:
            if (model := place.living) is None:
                place.loading = place.loading or self._begin(self._load(place))
                model = await asyncio.shield(place.loading)  # requests share it, and it continues when they leave
            yield model
        finally:
            place.users -= 1
            place.used_s = time.monotonic()
            self._watch_idle(place)

    @contextmanager
    def submit(self, model: Served, requests: Sequence[Request | Inputs]) -> Iterator[Stream]:
        """Ask a model for answers, if its queue has room for them; they are cancelled at the end of this block.

        Raises ApiError, EdgespecError.
        """
        with self.counted(model, len(requests)), model.worker.submit_all(requests) as events:
            yield events

    @contextmanager
    def counted(self, model: Served, n_answers: int) -> Iterator[None]:
        """Count answers that a model is asked for in this block. Raises ApiError if its queue has no room for them."""
        waiting = max(0, model.n_open + n_answers - model.n_slots)
        if waiting > self._max_waiting and model.n_open:
            raise busy(self.load[1])
        model.n_open += n_answers
        try:
            yield
        finally:
            model.n_open -= n_answers
            model.show_notes()

    async def unload(self, name: str) -> str:
        """Unload the model with this name, and return the name of its offer. Raises ApiError if it is in use."""
        place = await self.place(name)
        if place.users:
            raise unavailable(f"{place.offer.name} is in use: try again later", code="models_busy")
        await asyncio.shield(self._begin(self._unload_unused(place, "asked")))  # it continues when the client leaves
        return place.offer.name

    def keep(self, name: str, idle_s: float) -> None:
        """Unload a model after another time without a request, if `lets_keep`."""
        if self.lets_keep:
            self._places[name].offer = replace(self._places[name].offer, idle_s=idle_s)
            self._watch_idle(self._places[name])
            self._tell({"event": "kept", "model": name, "why": f"for {idle_s:.0f} s after a request"})

    async def close(self) -> None:
        """End all models, and stop loading."""
        self.is_closing = True
        self._stop_loading.set()
        if self._looking is not None:
            self._looking.cancel()
        async with self._changing:
            await asyncio.gather(*map(self._drop, self.loaded))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- loading ------------------------------------------------------------------------------------------------------

    def adopt(self, name: str, worker: Worker) -> Served:
        """Serve a model that was loaded elsewhere. Blocks while its vocabulary is read."""
        place = self._places[name]
        offer = place.offer
        place.served = Served(name, worker, offer.defaults, self._note, offer.system, offer.seed)
        place.used_s = time.monotonic()
        self._watch_idle(place)
        return place.served

    async def _load(self, place: Place) -> Served:
        name = place.offer.name
        try:
            async with self._changing:
                if place.served is not None:
                    self._note(f"{name}: the worker has died; restarting it")
                    self._tell({"event": "died", "model": name})
                    self.deaths[name] += 1
                    await self._drop(place)
                started_s = time.monotonic()
                place.served = served = await self._opened(place.offer)
                place.has_failed = False
                self.loads[name] += 1
                self._tell({"event": "loaded", "model": name, "seconds": round(time.monotonic() - started_s, 3)})
                served.show_notes()
                return served
        except EdgespecError:  # ApiError only means that there was no room
            place.has_failed = not self.is_closing
            raise
        finally:
            place.loading = None
            self._watch_idle(place)

    async def _opened(self, offer: Offer) -> Served:
        """Load the model of an offer, in addition to others if it fits without a smaller context."""
        while len(self.loaded) >= self._max_loaded:
            await self._make_room(f"{len(self.loaded)} models are loaded and in use")
        while True:
            if self.is_closing:
                raise unavailable("the server is shutting down", code="shutting_down")
            settings = replace(offer.settings, must_fit=bool(self.loaded))
            try:
                return await in_thread(partial(self._open, offer, settings), f"loads {offer.name}")
            except OutOfMemoryError as error:
                if not self.loaded:
                    raise
                await self._make_room(f"memory is short while other models are in use: {error.what}, {error.why}")

    def _open(self, offer: Offer, settings: LoadSettings) -> Served:
        worker = Worker(settings, cancel=self._stop_loading)
        try:
            worker.check_settings(offer.defaults)
            return Served(offer.name, worker, offer.defaults, self._note, offer.system, offer.seed)
        except BaseException:
            worker.close()
            raise

    async def _make_room(self, why: str) -> None:
        """Unload the least recently used model. Raises ApiError with `why` if all are in use."""
        unused = [place for place in self.loaded if not place.users]
        if not unused:
            raise unavailable(f"{why}: try again later", code="models_busy")
        await self._unload(min(unused, key=lambda place: place.used_s), "to make room")

    async def _unload(self, place: Place, why: str) -> None:
        name = place.offer.name
        self.unloads[name] += 1
        await self._drop(place)
        self._tell({"event": "unloaded", "model": name, "why": why})

    async def _drop(self, place: Place) -> None:
        served, place.served = place.served, None
        self._watch_idle(place)
        if served is not None:
            try:
                await served.close()
            except EdgespecError as error:
                self._note(f"{place.offer.name}: {error}")

    def _watch_idle(self, place: Place) -> None:
        """Unload an unused model after its idle time. Call it whenever its use changes."""
        if place.idle is not None:
            place.idle.cancel()
            place.idle = None
        idle_s = place.offer.idle_s
        if place.served is not None and not place.users and idle_s is not None and not self.is_closing:
            unload = partial(self._unload_unused, place, "idle")
            place.idle = asyncio.get_running_loop().call_later(idle_s, lambda: self._begin(unload()))

    async def _unload_unused(self, place: Place, why: str) -> None:
        async with self._changing:
            if place.served is not None and not place.users and not self.is_closing:
                await self._unload(place, why)

    def _begin(self, work: Coroutine[object, object, Made]) -> asyncio.Task[Made]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who wait for the task get the error
