"""An answer with everything that models write: for tests, and to look at it.

python tests/support/rich_answer.py                 draw it in this terminal, word by word
python tests/support/rich_answer.py --screen        show it in the full-screen chat
python tests/support/rich_answer.py --plain         draw it for a screen reader
NO_COLOR=1 python tests/support/rich_answer.py      without colours
"""

from __future__ import annotations

import sys
import time

REASONING = "The user wants everything. I show headings, lists, tables, code and formulas, and then I am done."
ANSWER = r"""# The quadratic formula

A quadratic equation \(ax^2 + bx + c = 0\) with $a \neq 0$ has the solutions

\[
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\]

where the *discriminant* $\Delta = b^2 - 4ac$ decides **how many** real solutions there are[^1]. A ticket costs $5 and a
coffee $6, so both are $11; `$HOME/bin` and `snake_case_name` are code, and 2 * 3 * 4 is 24.

## What to do

1. Compute $\Delta$:
   - if $\Delta > 0$, there are **two** solutions
   - if $\Delta = 0$, there is *one*, and this item is long enough to be wrapped in any window that is not very wide
2. Run it:

   ```python
   def solve(a: float, b: float, c: float) -> list[float]:
       '''Return the real solutions.'''
       delta = b**2 - 4 * a * c  # the discriminant
       return [(-b + sign * delta**0.5) / (2 * a) for sign in (1, -1)] if delta >= 0 else []
   ```

3. See the [documentation](https://docs.python.org/3/library/math.html), or <https://example.org/>.

- [x] read the question
- [ ] check the answer

| Discriminant | Solutions | Example |
|:-------------|:---------:|--------:|
| $\Delta > 0$ | two | $x^2 - 1$ |
| $\Delta = 0$ | one | $x^2$ |
| negative | none | `x**2 + 1` |

```diff
--- a/solve.py
+++ b/solve.py
@@ -1,2 +1,2 @@
-delta = b*b - 4*a*c
+delta = b**2 - 4 * a * c
 return delta
```

> A matrix \(A\) is quoted:
>
> $$A = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}, \quad \sum_{i=1}^{n} i = \frac{n(n+1)}{2}$$

---

A family 👨‍👩‍👧‍👦, a flag 🇩🇪, a thumb 👍🏽 and a cafe\u0301 are ~~not~~ single characters. The answer is $\boxed{42}$.

[^1]: See *Algebra*, chapter 3.
""".replace("\\u0301", "\u0301")


def main() -> None:
    text = f"<think>\n{REASONING}\n</think>\n\n{ANSWER}"
    if "--screen" in sys.argv:
        from textual.app import App, ComposeResult
        from textual.containers import VerticalScroll

        from edgespec.history import Turn
        from edgespec.tui.turn_view import Shared, TurnView

        class Shown(App[None]):
            def compose(self) -> ComposeResult:
                shared = Shared(pieces=lambda key: (), siblings=lambda key: ())
                with VerticalScroll():
                    yield TurnView(Turn("key", None, "assistant", text, time.time(), None), shared)

        Shown().run()
        return
    from edgespec.cli.terminal.output import Output

    answer = Output(quiet=True).new_answer(thinks=True, for_reader="--plain" in sys.argv)
    for start in range(0, len(text), 3):
        answer.add(text[start : start + 3])
        time.sleep(0.005)
    answer.end()


if __name__ == "__main__":
    main()
