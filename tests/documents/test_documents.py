"""The text of documents of each kind, and parts of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_documents import docx, paragraph, pdf, table

from edgespec.documents.document import Document, Span
from edgespec.documents.reader import read_file
from edgespec.documents.texts import rows_of
from edgespec.errors import UsageError

PAGE = """<!doctype html><html><head><title>A page</title><style>p {}</style></head><body>
<nav>Menu</nav><main><h1>Title</h1><p hidden>Unseen</p><script>run()</script>
<p>Some <b>bold</b> a_b*c <a href="https://example.org/x">link</a><img alt="A picture" src="x.png"></p>
<ul><li>one<li>two</ul><table><tr><th>n<th>m<tr><td>1<td>2</table><pre>if x:
    y()</pre></main></body></html>"""


def read(folder: Path, name: str, content: bytes, span: Span | None = None) -> Document:
    (folder / name).write_bytes(content)
    return read_file(name, folder / name, span)


def test_the_pages_of_a_pdf_have_marks_to_cite(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "a.pdf").write_bytes(pdf("First (page)\nline 2", "", "Café"))
    document = read_file("a.pdf", tmp_path / "a.pdf", said=said.append)
    assert document.text == "[page 1]\nFirst (page)\nline 2\n\n[page 2]\n\n[page 3]\nCafé"
    assert document.block.startswith("a.pdf (3 pages, 1 without text):\n```\n[page 1]\n")
    assert said == ["a.pdf", "a.pdf, page 1 of 3", "a.pdf, page 2 of 3", "a.pdf, page 3 of 3"]


def test_some_pages_are_read_alone(tmp_path: Path) -> None:
    pages = pdf("one", "two", "three")
    document = read(tmp_path, "a", pages, Span(2, 9))  # its content says that it is a PDF
    assert document == Document("a", "[page 2]\ntwo\n\n[page 3]\nthree", "pages 2-3 of 3")
    assert read(tmp_path, "a.pdf", pages, Span(1, 1)).about == "page 1 of 3"
    with pytest.raises(UsageError, match="has no page 4: it has 3 pages"):
        read(tmp_path, "a.pdf", pages, Span(4, None))


def test_a_docx_becomes_markdown(tmp_path: Path) -> None:
    body = paragraph("Title", "Heading1") + paragraph("Some a_b*c &amp; more") + table(["n", "m"], ["1", "2"])
    document = read(tmp_path, "a.docx", docx(body))
    assert document.text == "# Title\n\nSome a_b*c & more\n\n| n | m |\n| --- | --- |\n| 1 | 2 |"


def test_the_main_part_of_a_page_becomes_markdown(tmp_path: Path) -> None:
    text = read(tmp_path, "a.html", PAGE.encode()).text
    assert text == (
        "# Title\n\nSome **bold** a_b*c linkA picture\n\n- one\n- two\n\n"
        "| n | m |\n| --- | --- |\n| 1 | 2 |\n\n```\nif x:\n    y()\n```"
    )
    assert read(tmp_path, "a.htm", b"<title>Name</title><p>x<p>y").text == "# Name\n\nx\n\ny"


@pytest.mark.parametrize(
    "content",
    [
        "<p>Café".encode(),
        "<p>Café".encode("utf-16"),
        "<meta charset=iso-8859-15><p>Café".encode("iso-8859-15"),
        "<p>Café".encode("cp1252"),  # as browsers do without a declaration
    ],
)
def test_a_page_is_decoded_as_browsers_do(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, "a.html", content).text == "Café"


def test_a_table_stays_as_it_is_and_its_rows_are_counted(tmp_path: Path) -> None:
    table = 'name;note\na;"two\nlines, here"\n\nb;x\nc;y'
    assert read(tmp_path, "a.csv", table.replace("\n", "\r\n").encode("utf-16")) == Document("a.csv", table, "3 rows")
    assert rows_of("a.csv", table, Span(1, 2)).text == 'name;note\na;"two\nlines, here"\nb;x'
    assert rows_of("a.tsv", "n\tm\n1\t2", Span(1, 1)) == Document("a.tsv", "n\tm\n1\t2", "1 row")
    with pytest.raises(UsageError, match="has no row 4: it has 3 rows"):
        rows_of("a.csv", table, Span(4, 5))


def test_text_is_read_without_a_process_and_in_part(tmp_path: Path) -> None:
    text = "one\ntwo\nthree"
    assert read(tmp_path, "a.txt", text.encode()) == Document("a.txt", text)
    assert read(tmp_path, "a.md", text.encode(), Span(2, None)) == Document("a.md", "two\nthree", "lines 2-3 of 3")


@pytest.mark.parametrize(
    ("text", "span"),
    [("7", Span(7, 7)), ("1-20", Span(1, 20)), ("30-", Span(30, None)), ("0", None), ("3-1", None), ("a", None)],
)
def test_ranges(text: str, span: Span | None) -> None:
    assert Span.of(text) == span
