"""The files of the page: small, complete, without a network, and without scripts or styles in HTML."""

from __future__ import annotations

import re
from pathlib import Path

import edgespec.page

STATIC = Path(edgespec.page.__file__).parent / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
OWN = [path for path in FILES if path.parent == STATIC]


def test_all_files_together_have_at_most_a_megabyte() -> None:
    assert sum(path.stat().st_size for path in FILES) <= 1_000_000


def test_each_library_is_listed_with_its_licence() -> None:
    listed = (STATIC / "vendor" / "README.md").read_text(encoding="utf-8")
    for path in (STATIC / "vendor").iterdir():
        name = re.sub(r"^(inter|jetbrains-mono)-.*woff2$", r"\1-*.woff2", path.name)
        assert path.name == "README.md" or f"`{name}`" in listed, path.name


def test_the_page_names_only_files_that_it_has() -> None:
    for path in OWN:
        if path.suffix not in (".html", ".css", ".js"):
            continue
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"""(?:href|src)="/page/static/([^"]+)"|from "\./([^"]+)"|url\(([^)]+)\)""", text)
        for name in ("".join(each) for each in named):
            assert (STATIC / name).is_file(), f"{path.name} names {name}"
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), path.name
        assert "https://" not in text, path.name


def test_html_has_no_scripts_styles_or_handlers_in_it() -> None:
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", html) == []


def test_no_module_writes_html_past_the_sanitizer() -> None:
    for path in OWN:
        if path.suffix == ".js":
            text = path.read_text(encoding="utf-8")
            found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
            assert found == [], path.name
