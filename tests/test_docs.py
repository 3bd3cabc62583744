"""The pages of docs/: links and their anchors exist, each page is in the navigation, and examples have real options."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from cli_program import edgespec_here

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINKING = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG"))]
WRITTEN = [page for page in PAGES if page.name != "commands.md"]  # by hand
LONG = 600  # words, about two screens
BLOCK = re.compile(r"^```.*?^```$|(?:^ {4}\S[^\n]*\n)+", re.DOTALL | re.MULTILINE)
NAMES = {page: page.name for page in LINKING}.get


@cache
def prose(page: Path) -> str:
    """Return the text of a page without its examples."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """Return the anchor that MkDocs and GitHub make of a heading."""
    plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower())
    return re.sub(r"[-\s]+", "-", plain.strip())


def anchors(page: Path, levels: str = "#+") -> list[str]:
    return [anchor(heading) for heading in re.findall(rf"^{levels} (.*)$", prose(page), re.MULTILINE)]


def links(page: Path) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not link.startswith("http")]


@pytest.mark.parametrize("page", LINKING, ids=NAMES)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page):
        name, _, heading = link.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), link
        assert not heading or heading in anchors(file), link


@pytest.mark.parametrize("page", WRITTEN, ids=NAMES)
def test_a_long_page_begins_with_its_contents(page: Path) -> None:
    text = prose(page)
    contents = re.search(r"^On this page: (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert contents or len(text.split()) < LONG
    if contents:
        assert "\n## " not in text[: contents.start()]
        listed = re.findall(r"\]\(#([^)]+)\)", contents[1])
        assert [name for name in listed if name in anchors(page, "##")] == anchors(page, "##")


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r": ([\w-]+\.md)$", config.partition("\nnav:")[2], re.MULTILINE)
    assert sorted(named) == [page.name for page in PAGES]


def commands(page: Path) -> list[str]:
    """Return the commands in the examples of a page, without what a shell does with their output."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(match[0] for match in BLOCK.finditer(text) if not re.match(r"```(?!sh)", match[0]))
    lines = re.sub(r"\\\n\s*", "", blocks).splitlines()
    found = (re.search(r"(?:^|\s)(?:\./scripts/)?edgespec ([a-z].*)", line.partition("  #")[0]) for line in lines)
    return [re.split(r" (?:>|\||&|<)", match[1])[0] for match in found if match]


EXAMPLES = [
    (page, command)
    for page in (*WRITTEN, ROOT / "README.md")
    for command in commands(page)
    if not command.startswith("pieces ")  # of the example of a plugin
]


def test_the_pages_have_examples() -> None:
    assert len({page for page, _ in EXAMPLES}) > 15
    assert len(EXAMPLES) > 120


@pytest.mark.parametrize(("page", "command"), EXAMPLES, ids=[f"{page.stem}-{line}" for page, line in EXAMPLES])
def test_an_example_has_options_that_exist(page: Path, command: str, tmp_path: Path) -> None:
    shown = edgespec_here(*shlex.split(command), "--help", home=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_an_option_that_does_not_exist_would_be_found(tmp_path: Path) -> None:
    assert edgespec_here("run", "--no-such-option", "Why?", "--help", home=tmp_path).returncode == 2
