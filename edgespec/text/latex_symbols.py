"""The names of LaTeX commands, and the characters of symbols. HTML has most of them under the same names."""

from __future__ import annotations

from html.entities import html5


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SPACES = {" ": 1, ",": 1, ":": 1, ";": 1, ">": 1, "quad": 2, "qquad": 4, "!": 0, "enspace": 1, "thinspace": 1}
TEXTS = _words("text textrm textbf textit texttt textsf textnormal textup mbox hbox mathrm mathsf mathtt mathit")
ALPHABETS = dict.fromkeys(["mathbf", "boldsymbol", "bm", "pmb", "mathnormal", "vb", "mathop"], "") | _pairs(
    "mathbb DOUBLE-STRUCK Bbb DOUBLE-STRUCK mathcal SCRIPT mathscr SCRIPT mathfrak FRAKTUR"
)
ACCENTS = {
    **dict.fromkeys(["hat", "widehat"], "\u0302"),
    **dict.fromkeys(["tilde", "widetilde"], "\u0303"),
    **dict.fromkeys(["bar", "overline"], "\u0305"),
    **dict.fromkeys(["vec", "overrightarrow"], "\u20d7"),
    "underline": "\u0332",
    "dot": "\u0307",
    "ddot": "\u0308",
    "dddot": "\u20db",
    "check": "\u030c",
    "breve": "\u0306",
    "acute": "\u0301",
    "grave": "\u0300",
    "mathring": "\u030a",
}
_NAMES = """arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim ln log max min mod Pr
    sec sin sinh sup tan tanh"""
FUNCTIONS = {name: name for name in _NAMES.split()} | {
    "liminf": "lim inf",
    "limsup": "lim sup",
    "argmax": "arg max",
    "argmin": "arg min",
    "bmod": "mod",
}
#: Signs and functions whose scripts are above and below them
BIG = _words(
    """sum prod coprod bigcup bigcap bigoplus bigotimes bigvee bigwedge bigsqcup lim liminf limsup max min sup inf
    argmax argmin det gcd Pr"""
)
IGNORED = _words(
    """displaystyle textstyle scriptstyle nonumber notag hline strut mathstrut middle big Big bigg Bigg bigl bigr Bigl
    Bigr biggl biggr Biggl Biggr bigm Bigm rm bf it sf tt cal allowbreak break relax centering / left. limits
    nolimits"""
)
IGNORED_WITH_ARGUMENT = {"label", "color", "phantom", "hphantom", "vphantom", "hspace", "vspace"}
DELIMITERS = {".": "", "<": "⟨", ">": "⟩", "\\{": "{", "\\}": "}", "\\|": "‖"}
_SYMBOLS = {name: name for name in "#$%&_{}"} | _pairs(
    """neq ≠ to → gets ← ldots … dots … dotsc … dotsb ⋯ cdots ⋯ vdots ⋮ ddots ⋱ neg ¬ lnot ¬ land ∧ lor ∨ exists ∃
    infty ∞ partial ∂ iint ∬ Box □ surd √ implies ⟹ impliedby ⟸ iff ⟺ leadsto ⇝ lvert | rvert | lVert ‖ rVert ‖ | ‖
    backslash \\ degree ° cdot · circ ∘ star ⋆ ast ∗ oslash ⊘ asymp ≍ epsilon ϵ varepsilon ε phi ϕ varphi φ models ⊨
    colon : vert | Vert ‖ square □ blacksquare ■ qed ∎ triangle △ unlhd ⊴ copyright © pounds £ S § P ¶ lt < gt > dag †
    longrightarrow ⟶ coloneqq ≔ defeq ≔ bigoplus ⨁ bigsqcup ⨆ bigcirc ◯"""
)


def symbol(name: str) -> str:
    """Return the character of a command, empty if it is not known."""
    return _SYMBOLS.get(name) or html5.get(f"{name};", "")
