"""Grammars in GBNF: what llama.cpp reads is read, matches the same, and mistakes are found where they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_grammar
from llguidance import LLMatcher, LLTokenizer
from native_grammar import NativeGrammar

import edgespec
from edgespec.errors import UsageError
from edgespec.llama.constraint import compiled
from edgespec.llama.gbnf import to_lark
from edgespec.llama.gbnf.rules import Reference, parsed, without_recursion
from edgespec.llama.gbnf.terminals import terminals_of
from edgespec.llama.grammar import Grammars
from edgespec.llama.model import LlamaModel

BYTES = LLTokenizer("byte")
CHESS = r"""
# Specifies chess moves as a list in algebraic notation, using PGN conventions
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?

# piece type, optional file/rank, optional capture, dest file & rank
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""
JAPANESE = r"""
root        ::= jp-char+ ([ \t\n] jp-char+)*
jp-char     ::= hiragana | katakana | punctuation | cjk
hiragana    ::= [ぁ-ゟ]
katakana    ::= [ァ-ヿ]
punctuation ::= [、-〾]
cjk         ::= [一-鿿]
"""
ENGLISH = r"""
root        ::= en-char+ ([ \t\n] en-char+)*
en-char     ::= letter | digit | punctuation
letter      ::= [a-zA-Z]
digit       ::= [0-9]
punctuation ::= [!"#$%&'()*+,-./:;<=>?@[\\\]^_`{|}~]
"""
LLAMA_CPP = {
    "arithmetic": (llama_grammar.ARITHMETIC_GBNF, ["a+1=2\n", "(x1 *3)= 4 \n"], ["a+=2\n", "a=1"]),
    "c": (llama_grammar.C_GBNF, ["int f(char c){while(c<3){}}"], ["int main()"]),
    "chess": (
        CHESS,
        ["1. e4 e5\n2. Nf3 O-O-O\n", "1. exd5 Qh4+\n12. a8=Q h1\n"],
        ["1. e4 e5\n", "1. z4 e5\n2. e4 e5\n"],
    ),
    "json": (llama_grammar.JSON_GBNF, ['{"a": [1, -2.5e3, true], "b\\n": {}}'], ['{"a": 01x}', "[1]"]),
    "json_arr": (llama_grammar.JSON_ARR_GBNF, ['[\n{"a": "\\u00e9"},\n[[]],\n10 ]', "[\n]"], ['["a"]']),
    "list": (llama_grammar.LIST_GBNF, ["- a\n- b c\n"], ["- a", "-a\n", "- a\u2028\n"]),
    "japanese": (JAPANESE, ["ひらカタ漢字。 あ"], ["a", "ひ  ひ"]),
    "english": (ENGLISH, ["Hello, [world]\\ -.^ ok"], ["é", "a  b"]),
}


def matcher_of(grammar: str) -> LLMatcher:
    return LLMatcher(BYTES, compiled("grammar", grammar), log_level=0)


def matches(matcher: LLMatcher, text: str) -> bool:
    trial, raw = matcher.deep_copy(), list(text.encode())
    return trial.try_consume_tokens(raw) == len(raw) and trial.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "matching", "others"),
    [
        ('root ::= ("a"{2}){3}', ["aaaaaa"], ["aaaa", "aaaaaaa"]),
        ('root ::= ("a"+)?', ["", "a", "aa"], ["b"]),
        ('root ::= ("a"*)* "b"', ["b", "aab"], ["a"]),
        ('root ::= "a"+? "b"', ["b", "ab", "aab"], ["a"]),
        ('root ::= ("a"?){0,2} "b"{0} "c"{1,}', ["c", "acc", "aac"], ["aaac", "abc", "a"]),
        (r'root ::= "\u00e9\x41\U0001F600" [\u00e0-\u00ef\x30]', ["éA😀é", "éA😀0"], ["éA😀a", "éA"]),
        (r'root ::= [^\u00e9\n] . "\t\r\n\\\"\[\]"', ['a\n\t\r\n\\"[]'], ['é\n\t\r\n\\"[]']),
        (r"root ::= [-a] [b-] [\]\\^] [a^]", ["-b]^", "a-\\a"], ["bb]^"]),
        ('root ::= "a" # first\n  | "b" # second\n\n  | ("c"\n  "d")\n# end', ["a", "b", "cd"], ["", "c"]),
        ('# a comment\r\nroot ::=\r\n  word word\r\nword ::= "a" |\r\n "b"\r\n', ["ab", "bb"], ["a"]),
        ('root ::= start\nstart ::= "s"', ["s"], []),
        ('root ::= ""', [""], ["a"]),
        ('root ::= Word-1_x WORD\nWord-1_x ::= "a"\nWORD ::= "b"', ["ab"], ["a"]),
        ('root ::= "(" root ")" | ""', ["", "(())"], ["(()"]),
        ('root ::= list\nlist ::= item "," list | item\nitem ::= [0-9]+', ["1", "1,22,3"], ["1,", ""]),
        ('root ::= "a" | "b"\nroot ::= "c"', ["c"], ["a"]),
    ],
)
def test_what_llama_cpp_reads_is_read(grammar: str, matching: list[str], others: list[str]) -> None:
    matcher = matcher_of(grammar)
    assert [text for text in matching if not matches(matcher, text)] == []
    assert [text for text in others if matches(matcher, text)] == []


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_the_grammars_of_llama_cpp_match_what_they_should(name: str) -> None:
    grammar, matching, others = LLAMA_CPP[name]
    matcher = matcher_of(grammar)
    assert [text for text in matching if not matches(matcher, text)] == []
    assert [text for text in others if matches(matcher, text)] == []


@pytest.mark.parametrize(
    ("grammar", "matching"),
    [
        ('root ::= word "a"\nword ::= [a-z]+', "ba"),
        ('root ::= ("a" | "ab") "bc"', "abc"),
        ('root ::= "(" root ")" | word "a"\nword ::= [a-z]+', "(ba)"),
        ('root ::= "<" root ">" | "if" name | name\nname ::= [a-z]+', "<ifa>"),
        ('root ::= x "ab" | "(" root ")"\nx ::= "a"?', "(aab)"),
    ],
)
def test_a_part_never_takes_what_the_next_part_needs(grammar: str, matching: str) -> None:
    assert matches(matcher_of(grammar), matching)


def test_strings_and_numbers_of_recursive_grammars_are_terminals() -> None:
    for grammar in (llama_grammar.JSON_GBNF, llama_grammar.JSON_ARR_GBNF):
        chosen = terminals_of({name: without_recursion(name, rule) for name, rule in parsed(grammar).items()})
        assert {"string", "number"} <= {node.name for node in chosen if isinstance(node, Reference)}


def test_where_llguidance_fails_on_a_terminal_there_is_none() -> None:
    assert matches(matcher_of('root ::= "baaaaaaaaaaaaaaaa" | "b" a\na ::= "aaaaaaaaaaaaaaaa"'), "b" + 16 * "a")


LETTERS = st.sampled_from(["a", "b", "ab", "ba"])
EXPRESSIONS = st.recursive(
    st.one_of(
        LETTERS.map(lambda text: (f'"{text}"', text)),
        st.sampled_from([("[a-b]", "[ab]"), ("[^b()]", "[^b()]"), ('""', "")]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (f"({' '.join(own for own, _ in parts)})", f"(?:{''.join(other for _, other in parts)})")
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (f"({' | '.join(own for own, _ in parts)})", f"(?:{'|'.join(other for _, other in parts)})")
        ),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,2}", "{0,1}"])).map(
            lambda both: (f"({both[0][0]}){both[1]}", f"(?:{both[0][1]}){both[1]}")
        ),
    ),
    max_leaves=6,
)
TEXTS = ["".join("ab"[number >> bit & 1] for bit in range(n)) for n in range(5) for number in range(2**n)]


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS)
@pytest.mark.slow
def test_a_grammar_matches_what_the_same_regular_expression_matches(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    expression = re.compile(first[1] + second[1])
    flat = matcher_of(f"root ::= {first[0]} part\npart ::= {second[0]}")
    nested = matcher_of(f'root ::= {first[0]} part | "(" root ")"\npart ::= {second[0]}')
    for text in TEXTS:
        is_match = expression.fullmatch(text) is not None
        assert (matches(flat, text), matches(nested, f"({text})")) == (is_match, is_match), text


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with edgespec.load("demo", spec_type="none", threads=1, store=False) as llm:
        yield llm.model


@pytest.mark.long(but=3)
@pytest.mark.parametrize("name", ["arithmetic", "c", "chess", "json", "json_arr", "english"])
def test_the_same_tokens_may_follow_as_in_llama_cpp(model: LlamaModel, name: str) -> None:
    grammar = LLAMA_CPP[name][0]
    rng = np.random.default_rng(5)
    texts = [model.token_bytes(token) for token in range(model.n_vocab)]
    # llama.cpp takes bytes that no text has, and never a NUL.
    compared = np.array([bool(text) and not re.search(rb"[\0\xc0\xc1\xf5-\xff]", text) for text in texts])
    compared &= [not model.is_control(token) for token in range(model.n_vocab)]
    constraint = Grammars(model).constraint("grammar", grammar, 0)
    tokens: list[int] = []
    with NativeGrammar(model, grammar) as native:
        for _ in range(20):
            theirs, ours = native.allowed() & compared, constraint.allowed(tokens) & compared
            assert not (ours & ~theirs).any(), [texts[token] for token in np.flatnonzero(ours & ~theirs)]
            if ours.sum() != 1:  # where the text is certain, only its usual spelling is allowed
                assert (ours == theirs).all(), [texts[token] for token in np.flatnonzero(ours != theirs)]
            if not ours.any():
                break
            tokens.append(int(rng.choice(np.flatnonzero(ours))))
            native.accept(tokens[-1])


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('root ::= "a" b\n\nb ::= "c" | (', "line 3, column 14: Unexpected end of the grammar, expected )"),
        ('root ::= "yes" | "no', "line 1, column 21: Unexpected end"),
        ("root ::= a\na ::= other", "line 2, column 7: rule 'other' not found"),
        ('a ::= "b"', "rule 'root' not found"),
        ("", "rule 'root' not found"),
        ('root = "a"', "line 1, column 6: expected ::=, not '='"),
        ('root ::= "a" ) "b"', "line 1, column 14: expected the end of the rule, not ')'"),
        (
            'root ::= ("a" "b"\nx ::= "c"',
            "line 2, column 3: expected a string, characters, a group or the name of a rule",
        ),
        ("root ::= * [a]", "line 1, column 10: * must follow what it repeats"),
        ('root ::= "a"{2,1}', "line 1, column 13: at most 1 repetitions cannot be at least 2"),
        ('root ::= "a"{x}', "line 1, column 13: expected {n}, {n,} or {n,m}"),
        ('root ::= "a"{99999999999999999999}', "line 1, column 13: a number of repetitions has more than 6 digits"),
        (r'root ::= "\q"', r"line 1, column 11: \q is no escape sequence"),
        (r'root ::= "\u12"', r"line 1, column 11: \u is no escape sequence, or needs more hexadecimal digits"),
        (r'root ::= "\ud800"', r"line 1, column 11: \ud800 is no character"),
        ("root ::= [z-a]", "line 1, column 11: the range is the wrong way round"),
        ("root ::= []", "line 1, column 10: no character is in these brackets"),
        ("root ::= <think>", "line 1, column 10: tokens (<...>) are not supported"),
    ],
)
def test_a_mistake_is_found_where_it_is(grammar: str, said: str) -> None:
    with pytest.raises((UsageError, ValueError), match=re.escape(said)):
        to_lark(grammar)


@pytest.mark.slow
def test_many_rules_and_long_strings_are_translated_without_recursion() -> None:
    chain = "root ::= a0\n" + "".join(f'a{n} ::= "x" a{n + 1}\n' for n in range(2000)) + 'a2000 ::= "y"'
    nested = chain.replace('"y"', '"y" | "(" root ")"')
    for grammar in (chain, nested, 'root ::= "' + "a" * 100_000 + '" root?'):
        rules = parsed(grammar)
        terminals_of(rules)
        assert len(rules) == grammar.count("::=")
    with pytest.raises(ValueError, match="it is nested too deeply"):
        compiled("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000)


def test_lark_stays_as_it_is() -> None:
    for lark in ('%llguidance {}\nstart: "a"', 'start: "a" b\nb: "::="'):
        assert to_lark(lark) == lark
