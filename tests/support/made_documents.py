"""Documents that tests make: PDF files by hand, and DOCX files from their parts."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
STYLES = "<w:style w:type='paragraph' w:styleId='Heading1'><w:name w:val='heading 1'/></w:style>"


def pdf(*pages: str, trailer: str = "", objects: Sequence[bytes] = ()) -> bytes:
    """Return a PDF file with these texts, one a page. `objects` follow those of the pages."""
    n = len(pages)
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(n))
    found = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {n} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for index, text in enumerate(pages):
        page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >>"
        found += [f"{page} /Contents {5 + 2 * index} 0 R >>".encode(), stream(_shown(text))]
    return file_of([*found, *objects], trailer)


def stream(data: bytes, more: str = "") -> bytes:
    """Return a compressed stream."""
    packed = zlib.compress(data)
    return f"<< /Length {len(packed)} /Filter /FlateDecode {more} >>\nstream\n".encode() + packed + b"\nendstream"


def file_of(objects: Sequence[bytes], trailer: str = "") -> bytes:
    """Return a PDF file of these objects, the first of which is its catalogue."""
    out, places = io.BytesIO(b"%PDF-1.7\n"), []
    out.seek(0, io.SEEK_END)
    for number, content in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, content))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1))
    out.writelines(b"%010d 00000 n \n" % place for place in places)
    out.write(b"trailer << /Size %d /Root 1 0 R %s >>\n" % (len(places) + 1, trailer.encode()))
    out.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def _shown(text: str) -> bytes:
    """Return the instructions that show the lines of a text."""
    lines = [line.translate({ord(mark): f"\\{mark}" for mark in "\\()"}) for line in text.split("\n") if text]
    return b"BT /F1 11 Tf 14 TL 50 780 Td " + b" ".join(f"({line}) Tj T*".encode("cp1252") for line in lines) + b" ET"


def docx(body: str, parts: Mapping[str, str | bytes] | None = None, links: str = "") -> bytes:
    """Return a DOCX file with this XML as its body. `parts` are further ones, and `links` further relationships."""
    document = f"<w:document xmlns:w='{WORD}' xmlns:r='{OFFICE}'><w:body>{body}</w:body></w:document>"
    types = "<Default Extension='xml' ContentType='application/xml'/>"
    made: dict[str, str | bytes] = {
        "[Content_Types].xml": f"<Types xmlns='{PACKAGE}/content-types'>{types}</Types>",
        "_rels/.rels": _relationships(relationship("a", "officeDocument", "word/document.xml")),
        "word/document.xml": document,
        "word/styles.xml": f"<w:styles xmlns:w='{WORD}'>{STYLES}</w:styles>",
        "word/_rels/document.xml.rels": _relationships(relationship("s", "styles", "styles.xml") + links),
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in (made | dict(parts or {})).items():
            file.writestr(name, content)
    return out.getvalue()


def paragraph(text: str, style: str = "") -> str:
    about = f"<w:pPr><w:pStyle w:val='{style}'/></w:pPr>" if style else ""
    return f"<w:p>{about}<w:r><w:t>{text}</w:t></w:r></w:p>"


def table(*rows: Sequence[str]) -> str:
    made = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in made)}</w:tbl>"


def relationship(id: str, kind: str, target: str, mode: str = "Internal") -> str:
    return f"<Relationship Id='{id}' Type='{OFFICE}/{kind}' Target='{target}' TargetMode='{mode}'/>"


def _relationships(inner: str) -> str:
    return f"<Relationships xmlns='{PACKAGE}/relationships'>{inner}</Relationships>"
