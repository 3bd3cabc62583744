"""Texts that want to run, to look like the page or to leave it: as messages, titles, names and results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import ENTER, Browser, chromium
from page_client import PageClient
from serving import serving
from talks import talk

from edgespec.history import AnswerRecord, Store, new_id
from edgespec.page.chats import Chats
from edgespec.page.routes import Page
from edgespec.runtime.worker import Worker
from edgespec.serve.guard import Rules
from edgespec.settings import LoadSettings
from edgespec.tools.results import ToolResult
from edgespec.tools.toolbox import Toolbox

pytestmark = [pytest.mark.native, pytest.mark.cli, pytest.mark.slow]
RUNS = "window.ran=true"
ATTACKS = (
    f"<script>{RUNS}</script>",
    f"<img src=x onerror={RUNS}>",
    f"<svg onload={RUNS}><animate onbegin={RUNS} attributeName=x dur=1s>",
    f"[a](javascript:{RUNS}) [b](JaVaScRiPt:{RUNS}) [c](data:text/html,<script>{RUNS}</script>)",
    f'<a href="&#106;avascript:{RUNS}">d</a> <a href="java\tscript:{RUNS}">e</a> <a href="//e.example">f</a>',
    f"![x](x\" onerror=\"{RUNS}) [y](https://e.example/\"onmouseover=\"{RUNS})",
    f"<iframe srcdoc='<script>parent.{RUNS}</script>'></iframe><object data='javascript:{RUNS}'></object><embed src=x>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={RUNS}&gt;'>",
    f"<form><math><mtext></form><form><mglyph><style></math><img src onerror={RUNS}>",
    f"<svg></p><style><a id='</style><img src=1 onerror={RUNS}>'>",
    f"<noscript><p title='</noscript><img src=x onerror={RUNS}>'></noscript>",
    f"<details open ontoggle={RUNS}>x</details><b onfocus={RUNS} tabindex=0 autofocus>y</b>",
    f"$\\href{{javascript:{RUNS}}}{{x}}$ $\\htmlData{{x=1}}{{y}}$ $$\\includegraphics[alt=x]{{https://e.example/x.png}}$$",
    f"```\"><img src=x onerror={RUNS}>\n<script>{RUNS}</script>\n```",
    "<div id=turns name=body class='toast banner' style='position:fixed;inset:0'>log in again</div>",
    "<form action=https://e.example><input name=key><button>Send</button></form><style>*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=https://e.example'><base href=x><link rel=stylesheet href=x>",
    f"<think><img src=x onerror={RUNS}></think><img src=x onerror={RUNS}>",
)  # fmt: skip
EVERYWHERE = "".join(ATTACKS)


def unhurt(browser: Browser) -> None:
    """Check that no text has run, left the page or looks like a part of it."""
    for link in browser.all(".prose a[href]"):
        assert (link.get_attribute("href") or "").startswith(("https://", "http://", "mailto:"))
        assert link.get_attribute("rel") == "noopener noreferrer"
    assert not browser.all(
        ".prose :is(script, img, svg:not(.icon), iframe, object, embed, form, input, style, link, meta, base)"
    )
    assert not browser.all(".prose [style], .prose [id], .prose [name], .prose .toast, .prose .banner")
    handlers = "return [...document.querySelectorAll('*')].some(e => [...e.attributes].some(a => /^on/i.test(a.name)))"
    assert not browser.run(handlers)
    assert not browser.has_run
    assert browser.refused == []


@pytest.mark.parametrize("text", ATTACKS)
def test_no_text_of_a_message_runs(browser: Browser, page: PageClient, text: str) -> None:
    chat, _ = talk(page.chats.store, text, text)
    browser.open(f"{page.server.url}/#/chat/{chat}")
    browser.wait(lambda: browser.all(".turn.assistant .prose:not(.raw)"))
    assert browser.text(".bubble").split() == text.split()  # as it was typed
    for link in browser.all(".prose a"):
        browser.run("arguments[0].dispatchEvent(new MouseEvent('mouseover'))", link)
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    browser.wait(lambda: browser.run("return document.readyState") == "complete")
    unhurt(browser)


def test_titles_names_and_results_are_only_text(browser: Browser, page: PageClient) -> None:
    store: Store = page.chats.store
    chat = new_id()
    store.create(chat, title=EVERYWHERE)
    asked = store.append(chat, None, "user", "Look")
    answer = store.append(chat, asked.key, "assistant", "", AnswerRecord(model=EVERYWHERE))
    result = ToolResult(
        f"server/{ATTACKS[1].replace(' ', '')}", '{"x": "<script>window.ran=true</script>"}', "ok", EVERYWHERE
    )
    called = store.append(chat, answer.key, "tool", result.content)
    store.append(chat, called.key, "assistant", "Done", AnswerRecord(model=EVERYWHERE))
    browser.open(f"{page.server.url}/#/chat/{chat}")
    browser.wait(lambda: browser.all(".turn.tool"))
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert EVERYWHERE.split() == browser.texts(".tool-part pre")[1].split()
    browser.click("#chat-menu")
    browser.click(".menu button")
    assert browser.run("return document.querySelector('dialog input').value").startswith("<script>")
    browser.press(ENTER)
    browser.type("#search", "ran")
    browser.wait(lambda: browser.all("#chats .hit"))
    unhurt(browser)


def test_a_name_of_a_file_is_only_text(browser: Browser, page: PageClient) -> None:
    browser.open(page.server.url)
    browser.run(
        "const files = new DataTransfer();"
        "files.items.add(new File(['x'], arguments[0]));"
        "document.querySelector('#message').dispatchEvent("
        "new ClipboardEvent('paste', {clipboardData: files, bubbles: true, cancelable: true}))",
        "<img src=x onerror=window.ran=true>.txt",
    )
    browser.wait(lambda: browser.text("#attached .chip-name").startswith("<img"))
    unhurt(browser)


@pytest.fixture(scope="module")
def with_key() -> Iterator[PageClient]:
    """A server with a key, and a model whose name is an attack."""
    settings = LoadSettings("demo", threads=1, store=False)
    with Worker(settings) as worker, Chats(Toolbox([]), print) as chats:
        routes = Page(chats, has_key=True).routes()
        name = "<img src=x onerror=window.ran=true>"
        with serving(worker, rules=Rules(api_key="s3cret"), name=name, more=routes) as server:
            yield PageClient(server, chats)


def test_a_key_is_asked_for_and_can_be_remembered(browser: Browser, with_key: PageClient) -> None:
    browser.driver.get(with_key.server.url)
    for key in ("wrong", "s3cret"):
        if key == "s3cret":
            assert "did not accept" in browser.wait(lambda: browser.text("dialog p"))
        browser.replace("dialog [type=password]", key + ENTER)
        browser.wait(lambda: not browser.all("dialog") or "did not accept" in browser.text("dialog"))
    browser.wait(lambda: browser.text("#model").startswith("<img"))
    browser.click("#model")
    browser.wait(lambda: browser.text(".menu").startswith("<img"))
    unhurt(browser)
    assert browser.run("return [sessionStorage, localStorage].map(each => each.getItem('edgespec.key'))") == [
        "s3cret",
        None,
    ]
    browser.open(with_key.server.url)
    assert browser.text("#model").startswith("<img")


def test_a_page_of_another_origin_cannot_frame_this_one(page: PageClient) -> None:
    with chromium() as browser:
        browser.driver.get(f"data:text/html,<iframe src='{page.server.url}'></iframe>")
        browser.driver.switch_to.frame(0)
        assert not browser.all("#message")
