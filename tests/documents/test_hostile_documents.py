"""Broken and hostile documents: each has one clear error, within bounds, and none reads another file."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_documents import WORD, docx, file_of, paragraph, pdf, relationship, stream
from pypdf import PdfReader, PdfWriter

from edgespec.cancel import CancelFlag
from edgespec.documents.reader import DocumentReader, read_file
from edgespec.errors import UsageError

CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
ZEROS = "00" * 48
AES = (
    f"/Encrypt << /Filter /Standard /V 5 /R 6 /Length 256 /P -4 /O <{ZEROS}> /U <{ZEROS}> /OE <{ZEROS[:64]}>"
    f" /UE <{ZEROS[:64]}> /Perms <{ZEROS[:32]}> /CF << /StdCF << /CFM /AESV3 /Length 32 >> >> /StmF /StdCF"
    " /StrF /StdCF >> /ID [<00> <00>]"
)


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    with DocumentReader() as reader:
        yield reader


def error_of(reader: DocumentReader, kind: str, data: bytes) -> str:
    with pytest.raises(UsageError) as caught:
        reader.read("f", kind, {"data": base64.b64encode(data).decode()})
    return str(caught.value)


def encrypted(password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("secret"))))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def one_page(content: bytes) -> bytes:
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>"
    return file_of([CATALOG, b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", page, content])


def document_xml(declaration: str, text: str) -> bytes:
    body = f"<w:document xmlns:w='{WORD}'><w:body>{paragraph(text)}</w:body></w:document>"
    return docx("", {"word/document.xml": declaration + body})


def zip_of(**parts: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "f is empty"),
        (b"<html>not found</html>", "f is not a PDF file"),
        (b"%PDF-1.7\n" + bytes(range(256)) * 20, "f cannot be read: it may be damaged"),
        (pdf("text", "text")[:400], "f cannot be read: it may be damaged"),
        (pdf(), "f has no pages"),
        (pdf("", ""), "f has no text: 2 pages, which may be scanned\n  recognise its text first"),
        (encrypted("password"), "f is encrypted: it needs a password"),
        (pdf("text", trailer=AES), "f is encrypted: "),  # the package cryptography may be there
        (file_of([CATALOG, b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>"]), "f cannot be read"),
        (file_of([b"<< /Pages 2 0 R /X " + b"[" * 50_000 + b" >>", b"<< >>"]), "f cannot be read"),
        (one_page(stream(b"(" + b" " * (100 << 20) + b") Tj")), "f has no text"),
    ],
    ids=["empty", "HTML", "garbage", "cut", "no page", "scan", "password", "AES", "loop", "deep", "bomb"],
)
def test_pdf_files(reader: DocumentReader, data: bytes, said: str) -> None:
    assert error_of(reader, "pdf", data).startswith(said)


def test_a_pdf_that_only_forbids_changes_is_read(reader: DocumentReader) -> None:
    data = base64.b64encode(encrypted("")).decode()
    assert reader.read("f", "pdf", {"data": data}).text == "[page 1]\nsecret"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"text", "f is not a DOCX file"),
        (b"\xd0\xcf\x11\xe0" + bytes(99), "f is not a DOCX file: it is encrypted or an old .doc file"),
        (zip_of(x="y"), "f cannot be read"),
        (docx(paragraph("text"))[:-30], "f is not a DOCX file"),
        (docx("<w:p>"), "f is damaged: word/document.xml: mismatched tag"),
        (docx(""), "f has no text"),
        (docx(paragraph("text"), {"word/more.xml": b" " * (65 << 20)}), "f is too large: it unpacks to 68.2 MB"),
        (docx("<w:tbl><w:tr><w:tc>" * 9000 + "</w:tc></w:tr></w:tbl>" * 9000), "f cannot be read: it is nested"),
        (document_xml("<!DOCTYPE d [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>", "&e;"), "f cannot be read"),
        (document_xml(f"<!DOCTYPE d [<!ENTITY a '{'a' * 99}'><!ENTITY e '{'&a;' * 99}'>]>", "&e;"), "f cannot be read"),
    ],
    ids=["text", "OLE", "zip", "cut", "tags", "empty", "bomb", "deep", "entity", "laughs"],
)
def test_docx_files(reader: DocumentReader, data: bytes, said: str) -> None:
    assert error_of(reader, "docx", data).startswith(said)


def test_links_and_images_of_a_docx_are_not_followed(reader: DocumentReader, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    drawing = "http://schemas.openxmlformats.org/drawingml/2006"
    image = (
        f"<w:p><w:r><w:drawing><wp:inline xmlns:wp='{drawing}/wordprocessingDrawing' xmlns:a='{drawing}/main'"
        f" xmlns:p='{drawing}/picture'><wp:docPr id='1' descr='described'/><a:graphic><a:graphicData><p:pic>"
        "<p:blipFill><a:blip r:link='x'/></p:blipFill></p:pic></a:graphicData></a:graphic></wp:inline></w:drawing>"
        "</w:r></w:p>"
    )
    link = relationship("x", "image", (tmp_path / "secret").as_uri(), "External")
    data = base64.b64encode(docx(paragraph("text") + image, links=link)).decode()
    assert reader.read("f", "docx", {"data": data}).text == "text\n\ndescribed"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<div>" * 10_000 + b"x", "f cannot be read: it is nested too deeply"),
        (b"<script>only</script>", "f has no text: scripts may make its text"),
        (b"<meta charset=klingon>text", "f cannot be read: there is no charset 'klingon'"),
        (b"<meta charset=utf-8>caf\xe9", "f cannot be read: it declares the charset utf-8, but byte 23 is invalid"),
    ],
)
def test_pages(reader: DocumentReader, data: bytes, said: str) -> None:
    assert error_of(reader, "html", data).startswith(said)


def test_time_and_memory_are_limited() -> None:
    with DocumentReader(page_s=0.2) as reader:
        assert error_of(reader, "pdf", pdf("one", "word\n" * 20_000)).startswith("f cannot be read: it takes too long")
    with DocumentReader(memory_bytes=64 << 20) as reader:
        assert error_of(reader, "html", b"<p>x" * 200_000) == "f cannot be read: it takes more than 67.1 MB of memory"


def test_reading_can_be_cancelled_between_pages(tmp_path: Path) -> None:
    cancel = CancelFlag()
    (tmp_path / "a.pdf").write_bytes(pdf(*["text"] * 300))

    def stop(page: str) -> None:
        if "page 2 of" in page:
            cancel.set()

    with pytest.raises(UsageError, match="cancelled"):
        read_file("a.pdf", tmp_path / "a.pdf", None, stop, cancel)


def test_huge_files_pipes_and_files_that_vanish(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match=r"a.csv is too large: it has 1\.1 GB, and files of this kind may have 4 MB"):
        read_file("a.csv", tmp_path / "a.csv")
    os.mkfifo(tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="is not a file"):
        read_file("a.pdf", tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="No such file"):
        read_file("b.pdf", tmp_path / "b.pdf")


def test_nothing_is_opened_while_a_document_is_parsed(tmp_path: Path) -> None:
    tries = ["open('secret')", "os.system('echo')", "socket.socket()", "subprocess.run(['echo'])", "open('new', 'w')"]
    tries += ["open(os.__file__ + '/../../../../../../../../etc/passwd')", "open(os.__file__, 'a')"]
    code = f"""
import os, socket, subprocess, sys
from edgespec.documents import parsing
sys.addaudithook(parsing._audit)
for each in {tries}:
    with parsing._shut():
        try:
            eval(each)
        except PermissionError:
            print("refused")
import encodings.cp1252
with parsing._shut():
    import encodings.cp1251
"""
    (tmp_path / "secret").write_text("SECRET")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n" * len(tries)
