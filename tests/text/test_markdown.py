"""What the reader of Markdown finds in answers of models."""

from __future__ import annotations

import pytest

from edgespec.text.markdown import Formula, Paragraph, Piece, Rows, Signs, parts_of


def text_of(text: str) -> str:
    """The text of all paragraphs, with formulas between ⟦ and ⟧."""
    return "\n".join(
        "".join(f"⟦{piece.text}⟧" if "formula" in piece.marks else piece.text for piece in part.pieces)
        for part in parts_of(text)
        if isinstance(part, Paragraph)
    )


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $6.",
        "US$5 to CA$6, total $11",
        "$5-$6 or 7$; ($5)/($6)",
        "It is $3-4 per lb, i.e. 7$.",
        "$20/month and 15$/month",
        "$HOME/bin:$PATH and $name$",
        "a $ b $ c",
        "$100 million$",
        "one $x",
    ],
)
def test_prices_and_variables_are_no_formulas(text: str) -> None:
    assert text_of(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"\(a^2\), $x, y \in A$ and $n$", "⟦a²⟧, ⟦x, y ∈ A⟧ and ⟦n⟧"),
        (r"$$E = mc^2$$ or \[ x \, y \] here", "⟦E = mc²⟧ or ⟦x y⟧ here"),
        (r"It costs $5, and $x_1$ is $5x$.", "It costs $5, and ⟦x₁⟧ is ⟦5x⟧."),
        (r"**bold $a+b+c$**", "bold ⟦a + b + c⟧"),
        (r"`$x$ \(y\)` \$x\$ array\[0\] \(see below\)", r"$x$ \(y\) $x$ array[0] (see below)"),
    ],
)
def test_formulas_are_found_in_all_their_marks_but_not_in_code(text: str, shown: str) -> None:
    assert text_of(text) == shown


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("\\[\nx = 1\n\\]", "x = 1"),
        ("before\n$$\na\n- b\n$$\nafter", "a\n- b"),
        ("1. item\n   \\[ x \\]", "x"),
        ("> $$y$$", "y"),
        ("\\begin{align}a &= b\\end{align}", "\\begin{align}a &= b\\end{align}"),
    ],
)
def test_a_formula_on_its_own_lines_is_a_part(text: str, source: str) -> None:
    assert [part.source for part in parts_of(text) if isinstance(part, Formula)] == [source]


def test_a_formula_that_never_ends_is_text() -> None:
    for text in ("$$ open\n\nmore", "$$ open\n\nmore $$", "    \\[ code \\]", "- $$ open\n\nmore $$"):
        assert not any(isinstance(part, Formula) for part in parts_of(text))
    assert text_of("$$ open\n\nmore") == "$$ open\nmore"


def test_items_of_a_task_list_have_boxes() -> None:
    parts = parts_of("- [ ] open\n- [x] **done**\n- [link](x)\n1. [X] third\n- [ ]")
    assert [part.first for part in parts] == ["☐ ", "☑ ", "• ", "1. ☑ ", "☐ "]
    assert text_of("- [ ] open\n- [x] **done**") == "open\ndone"
    assert parts_of("- [x] a", Signs(tasks=("[ ] ", "[x] ")))[0].first == "[x] "


def test_footnotes_have_their_labels() -> None:
    note, text, second = parts_of("A claim[^1].\n\n[^1]: The *source*\n    goes on\n[^b]: other")
    assert isinstance(note, Paragraph) and note.pieces[1] == Piece("[1]", ("note",))
    assert isinstance(text, Paragraph) and text.first == "[1] " and second.first == "[b] "
    assert "".join(piece.text for piece in text.pieces) == "The source\ngoes on"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[text](https://e.org/a)", "text (https://e.org/a)"),
        ("<https://e.org/>", "https://e.org/"),
        ("[e.org](https://e.org/)", "e.org"),
        ("[https://good.org](https://evil.org)", "https://good.org (https://evil.org)"),
        ("![a cat](cat.png)", "[image: a cat] (cat.png)"),
    ],
)
def test_a_link_shows_where_it_leads(text: str, shown: str) -> None:
    assert text_of(text) == shown


def test_entities_bring_no_control_characters() -> None:
    shown = text_of("a&#27;[31m&#13;b&#10;c&#155;&#7; `x&#27;` [l&#13;](https://e.org/&#13;&#27;)")
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)


def test_cells_of_a_table_have_formulas_and_alignment() -> None:
    (rows,) = parts_of("| a | $x^2$ |\n|:-:|--:|\n| **b** | 1 |")
    assert isinstance(rows, Rows)
    assert rows.aligned == ("center", "right")
    assert rows.rows[0][1] == (Piece("x²", ("formula",)),)
