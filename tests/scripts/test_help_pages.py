"""docs/commands.md, which is made from the program."""

from __future__ import annotations

import help_pages


def test_the_page_of_commands_shows_the_help_that_the_program_prints() -> None:
    page = help_pages.PAGE.read_text(encoding="utf-8")
    assert page == help_pages.page(), "run scripts/help_pages.py"
    assert "## edgespec draft train" in page
