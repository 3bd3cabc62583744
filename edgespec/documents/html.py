"""Reads HTML files: justhtml parses them as browsers do, and markdownify writes them as Markdown."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

from bs4 import BeautifulSoup, Tag
from bs4.dammit import EncodingDetector
from justhtml import JustHTML
from markdownify import MarkdownConverter

from edgespec.documents.document import Document, Span
from edgespec.documents.texts import lines_of
from edgespec.errors import UsageError
from edgespec.text.encodings import decoded

LEFT_OUT = ("head", "script", "style", "noscript", "template", "svg", "iframe", "object", "select", "button")


def read(name: str, data: bytes, span: Span | None, report: Callable[[str], None]) -> Document:
    """Return a page as Markdown, from its main part if it marks one. Raises UsageError."""
    # Beautiful Soup, which markdownify needs, does not know which tags a page may leave out.
    soup = BeautifulSoup(JustHTML(_decode(name, data), sanitize=False).to_html(pretty=False), "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for tag in [*soup(LEFT_OUT), *soup(hidden=True)]:
        tag.decompose()
    articles = soup("article")
    part = soup.find("main") or (articles[0] if len(articles) == 1 else soup)
    text = markdown_of(part)
    if not text:
        why, hint = "scripts may make its text", "print it to a PDF file in a browser"
        raise UsageError(f"{name} has no text", why=why, hint=hint)
    if title and not part.find("h1"):
        text = f"# {title}\n\n{text}"
    return lines_of(name, text, span)


def markdown_of(part: Tag) -> str:
    """Return a part of a page as Markdown. Links are their text, and images their description."""
    for image in part("img"):
        image.replace_with(str(image.get("alt") or ""))
    converter = MarkdownConverter(
        heading_style="atx",
        bullets="-",
        strip=["a"],
        table_infer_header=True,
        escape_asterisks=False,
        escape_underscores=False,
    )
    text = re.sub(r"[ \t]+$", "", converter.convert_soup(part), flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _decode(name: str, data: bytes) -> str:
    """Decode a page as browsers do: a byte order mark, else the charset that the page declares, else UTF-8, else
    Windows-1252."""
    what = f"{name} cannot be read"
    charset = EncodingDetector.find_declared_encoding(data, is_html=True, search_entire_document=False)
    if charset and not data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return data.decode(charset)
        except LookupError:
            raise UsageError(what, why=f"there is no charset {charset!r}", hint="save it as UTF-8") from None
        except UnicodeDecodeError as error:
            why = f"it declares the charset {charset}, but byte {error.start} is invalid"
            raise UsageError(what, why=why, hint="save it as UTF-8") from None
    try:
        return decoded(data)
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")
