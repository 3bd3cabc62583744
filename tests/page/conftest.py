"""A server with the page, which all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, chromium
from calling import calling_model, tool_server
from page_client import PageClient
from serving import serving

from edgespec.page.chats import Chats
from edgespec.page.routes import Page
from edgespec.runtime.worker import Worker
from edgespec.serve.guard import Rules
from edgespec.settings import LoadSettings
from edgespec.tools.toolbox import Toolbox


@pytest.fixture(scope="session")
def page() -> Iterator[PageClient]:
    """The demo model without a key, and an allowed page of another site."""
    settings = LoadSettings("demo", threads=1, sequences=2, store=False)
    notes: list[str] = []
    with Worker(settings) as worker, Chats(Toolbox([]), notes.append) as chats:
        routes = Page(chats, has_key=False).routes()
        with serving(worker, rules=Rules(origins=("http://other.example",)), more=routes) as server:
            yield PageClient(server, chats)
    assert notes == []


@pytest.fixture(scope="session")
def page_with_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    """A model whose template has tools, and a server of tools."""
    file = calling_model(tmp_path_factory.mktemp("model"))
    settings = LoadSettings(str(file), ctx_size=2048, threads=1, store=False)
    with (
        Worker(settings) as worker,
        Toolbox([tool_server()]) as toolbox,
        Chats(toolbox, print) as chats,
        serving(worker, name="calling", more=Page(chats, has_key=False).routes()) as server,
    ):
        yield PageClient(server, chats)


@pytest.fixture(scope="session")
def one_browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    """A browser that knows no page yet."""
    one_browser.offline(False)
    one_browser.resize(1280)
    one_browser.forget()
    return one_browser
