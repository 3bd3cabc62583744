"""LaTeX formulas as Unicode: in one line, and drawn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.text.formulas import LONGEST, drawn, drawn_within, in_one_line


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (r"E = mc^2", "E = mc²"),
        (r"a \leq b \neq c", "a ≤ b ≠ c"),
        (r"x^{n+1} + x_{i,j} - x_b", "xⁿ⁺¹ + x_(i, j) − x_b"),
        (r"e^{i\pi} = -1", "e^(iπ) = −1"),
        (r"\frac{1}{2}mv^2", "½mv²"),
        (r"\frac{n}{3}x", "(n/3)x"),
        (r"\frac{-b \pm \sqrt{b^2-4ac}}{2a}", "(−b ± √(b² − 4ac))/(2a)"),
        (r"\frac{dy}{dx} = \dfrac{\sin x}{x}", "dy/dx = (sin x)/x"),
        (r"P(A \mid B) = \frac{P(B \mid A)P(A)}{P(B)}", "P(A ∣ B) = P(B ∣ A)P(A)/P(B)"),
        (r"\sqrt2 + \sqrt[3]{27} + \sqrt[n]{x y}", "√2 + ∛27 + ⁿ√(xy)"),
        (r"\sum_{i=1}^{n} x_i \int_0^1 f(x)\,dx", "∑ᵢ₌₁ⁿ xᵢ ∫₀¹ f(x) dx"),
        (r"\lim_{x \to 0} f(x)", "lim_(x → 0) f(x)"),
        (r"\mathbb{R}^n, \mathcal{L}, \mathfrak{g}, \mathbf{x}", "ℝⁿ, ℒ, 𝔤, x"),
        (r"\hat{x} \cdot \vec{v} \times \overline{AB}", "x̂ · v⃗ × A̅B̅"),
        (r"\left( \frac{a}{b} \right)^2", "(a/b)²"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "(1, 2; 3, 4)"),
        (r"\begin{cases} 1 & \text{if } x > 0 \\ 0 & \text{else} \end{cases}", "{1, if x > 0; 0, else"),
        (r"\binom{n}{k}", "C(n, k)"),
        (r"\boxed{42}", "[42]"),
        (r"f'(x) = f''(x)", "f′(x) = f″(x)"),
        (r"90^\circ, 10\%, \$5, 100{,}000", "90°, 10%, $5, 100,000"),
        (r"\text{speed} = 3 \text{ km/h}", "speed = 3 km/h"),
        (r"\operatorname{softmax}(x) \not= y \pmod 3", "softmax(x) ≠ y (mod 3)"),
        (r"\ce{2H2 + O2 -> 2H2O}", "2H₂ + O₂ → 2H₂O"),
        (r"x % a comment", "x"),
    ],
)
def test_a_formula_is_a_line_of_text_with_the_same_meaning(source: str, line: str) -> None:
    assert in_one_line(source) == line


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (r"x = \frac{a+1}{2}", ["    a + 1", "x = ─────", "      2"]),
        (r"\sum_{i=1}^n i", ["  n", "  ∑   i", "i = 1"]),
        (r"A = \begin{bmatrix} 1 & 20 \\ 3 & 4 \end{bmatrix}", ["A = ⎡ 1  20 ⎤", "    ⎣ 3  4  ⎦"]),
        (
            r"f = \begin{cases} 1 & x > 0 \\ 0 & x = 0 \\ -1 & x < 0 \end{cases}",
            ["    ⎧ 1   x > 0", "f = ⎨ 0   x = 0", "    ⎩ −1  x < 0"],
        ),
        (r"\begin{align} a &= b + c \\ &= d \end{align}", ["a = b + c", "  = d"]),
        (r"a^{\pi x}", [" πx", "a"]),
        (r"\sqrt{\frac{a}{b}}", [" ┌─", "│ a", "│ ─", "√ b"]),
        (r"\boxed{42}", ["┌────┐", "│ 42 │", "└────┘"]),
        (r"E = mc^2", ["E = mc²"]),
    ],
)
def test_a_formula_is_drawn_on_as_many_lines_as_it_needs(source: str, lines: list[str]) -> None:
    assert [*drawn(source)] == lines


def test_a_drawing_without_room_becomes_one_line() -> None:
    assert drawn_within(r"\frac{a+b}{c}", 4) == ("(a + b)/c",)
    assert len(drawn_within(r"\frac{a+b}{c}", 5)) == 3


@pytest.mark.parametrize(
    "source", [r"\frac{a", "{{{", r"a}", r"\left(", r"\begin{matrix} 1", "x^", "{" * 50 + "}" * 50, "x" * LONGEST + "x"]
)
def test_what_cannot_be_read_stays_as_it_was_written(source: str) -> None:
    assert in_one_line(source) == source
    assert drawn(source) == (source,)


def test_an_unknown_command_keeps_its_name_and_its_argument() -> None:
    assert in_one_line(r"\unknown{x} + \other y") == r"\unknown{x} + \other y"


COMMANDS = r"\frac \sqrt \left( \right) \begin{matrix} \end{matrix} \sum \hat \text \over \binom \boxed \unknown \\"
PARTS = [*COMMANDS.split(" "), *"{}^_&[]a1+' ="]


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=14))
def test_no_text_is_too_strange(parts: list[str]) -> None:
    source = " ".join(parts)
    lines = drawn(source)
    assert in_one_line(source) or not source.strip()
    assert all("\n" not in line for line in lines)
