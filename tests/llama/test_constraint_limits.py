"""Constraints that would crash, block or slow down the engine are refused, and say which limit they exceed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hostile
import pytest
from cli_program import edgespec_here

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.errors import UsageError
from edgespec.llama import compiler as compiler_module
from edgespec.llama import grammar
from edgespec.llama.compiler import Compiler, quick_compiler, settled
from edgespec.llama.grammar import Grammars
from edgespec.processes.child import NotWaitedForError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Constraint, Request

DEEP = "it is nested too deeply, or its rules or definitions form too long a chain"


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with quick_compiler() as opened:
        yield opened


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", spec_type="none", threads=1) as runtime:
        yield runtime


@pytest.fixture
def grammars(llm: Runtime) -> Iterator[Grammars]:
    with Grammars(llm.model) as opened:
        yield opened


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", hostile.TOO_DEEP)
def test_what_exhausts_the_stack_is_too_deep_and_the_next_one_compiles(compiler: Compiler, name: str) -> None:
    with pytest.raises(UsageError, match=DEEP):
        compiler.compiled(*hostile.TOO_DEEP[name])
    assert "json_schema" in compiler.compiled("json_schema", hostile.PERSON)


def test_answers_with_slow_masks_share_a_limit_of_time(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MASK_S", 0.0)
    monkeypatch.setattr(grammar, "MASKS_S", 1e9)
    grammars.allowance = grammar.Allowance(1e-9, 0.0)
    for pattern in ("a+", "b+"):
        with pytest.raises(UsageError, match="too ambiguous"):
            grammars.constraint("regex", pattern, 0).allowed([])


def test_what_takes_too_long_says_so() -> None:
    with Compiler(0.2) as compiler:
        with pytest.raises(UsageError, match=r"compiling it takes longer than 0\.2 s"):
            compiler.compiled("json_schema", hostile.ENDLESS)
        assert compiler.compiled("json_schema", hostile.PERSON)


def test_what_takes_too_much_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MEMORY_BYTES", 8 << 20)
    text = '%llguidance {}\nstart: %regex {"substring_chars": "' + "abcdefghij" * 20_000 + '"}'
    with Compiler(60.0) as compiler, pytest.raises(UsageError, match="takes too much memory"):
        compiler.compiled("grammar", text)


@pytest.mark.long
def test_an_ambiguous_grammar_is_refused_and_a_large_one_is_not(compiler: Compiler) -> None:
    with pytest.raises(UsageError, match="it is too ambiguous or too large"):
        compiler.compiled("grammar", hostile.AMBIGUOUS)
    rules = [f'r{i} ::= "word {i}" [a-z]+' for i in range(200)]
    compiler.compiled("grammar", "\n".join(["root ::= " + " | ".join(f"r{i}" for i in range(200)), *rules]))
    compiler.compiled("grammar", 'root ::= e\ne ::= e "+" e | e "*" e | "(" e ")" | [0-9]+')
    compiler.compiled("json_schema", hostile.chain_of_objects(100))
    compiler.compiled("json_schema", json.dumps({"enum": [f"value {i}" for i in range(5000)]}))
    properties = {f"property {i}": {"type": ["string", "null"]} for i in range(300)}
    compiler.compiled("json_schema", json.dumps({"type": "object", "properties": properties}))


def test_the_process_ends_with_the_compiler_closed_or_not() -> None:
    opened = Compiler(60.0)
    opened.compiled("regex", "a")
    process = opened.child.process
    assert process is not None
    del opened
    assert process.wait(60)


def test_a_process_that_was_killed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Compiler(2.0) as compiler:
        with monkeypatch.context() as patch:
            patch.setattr(compiler.child, "_command", [sys.executable, "-c", "import time; time.sleep(600)"])
            compiler.child.start().kill()  # while it starts
        assert compiler.compiled("regex", "[ab]")
        compiler.child.start().kill()
        assert compiler.compiled("regex", "[ab]")


def test_nobody_waits_for_the_constraint_of_a_client_that_has_left() -> None:
    with Compiler(60.0) as compiler:
        compiler.compiled("regex", "a")
        left = CancelFlag()
        left.set()
        with pytest.raises(NotWaitedForError):
            compiler.compiled("json_schema", hostile.ENDLESS, cancel=left)
        assert compiler.compiled("regex", "b", cancel=CancelFlag())


def test_a_verdict_is_remembered_be_it_good_or_bad(grammars: Grammars) -> None:
    asked: list[tuple[Constraint, str]] = [("json_schema", hostile.PERSON), hostile.TOO_DEEP["references"]]
    requests = [Request("A: ", **dict[str, Any]({kind: text})) for kind, text in asked]
    assert [grammars.must_compile(request) for request in requests] == [True, True]
    grammars.matcher(*asked[0])
    with pytest.raises(UsageError, match=DEEP):
        grammars.matcher(*asked[1])
    assert [grammars.must_compile(request) for request in requests] == [False, False]
    left = CancelFlag()
    left.set()  # whoever has left waits for no compiler, but is answered from memory
    assert grammars.matcher(*asked[0], left)
    with pytest.raises(UsageError, match=DEEP):
        grammars.matcher(*asked[1], left)


def test_requests_with_the_same_new_constraint_compile_it_once(grammars: Grammars) -> None:
    with ThreadPoolExecutor(8) as pool:
        matchers = [*pool.map(lambda _: grammars.matcher("json_schema", hostile.PERSON), range(8))]
    assert all(matcher is matchers[0] for matcher in matchers)


@pytest.mark.long
def test_an_answer_whose_masks_take_too_long_ends_and_its_constraint_is_refused_from_then_on(
    llm: Runtime, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "MASK_S", 0.005)
    constraint = grammars.constraint("grammar", hostile.AMBIGUOUS_LATER, 0)
    b, a = llm.model.tokenize("b", add_special=False), llm.model.tokenize("a", add_special=False)
    text = b * 160
    with pytest.raises(UsageError, match="it is too ambiguous or too large"):
        for _ in range(2000):
            constraint.allowed(text)
            text += a
    with pytest.raises(UsageError, match="it has slowed down all answers before"):
        grammars.matcher("grammar", hostile.AMBIGUOUS_LATER)


def test_a_constraint_that_failed_once_in_time_may_be_used_again(llm: Runtime, grammars: Grammars) -> None:
    late = "[bc]{160}(a?){1000}a{1000}"
    b, a = llm.model.tokenize("b", add_special=False), llm.model.tokenize("a", add_special=False)
    for _ in range(2):
        constraint = grammars.constraint("regex", late, 0)
        assert constraint.allowed(b * 160).any()
        with pytest.raises(UsageError, match="too large, or can never end"):
            constraint.allowed(b * 160 + a)


# --- doors ------------------------------------------------------------------------------------------------------------


def test_the_command_line_refuses_it_before_it_looks_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(hostile.TOO_DEEP["references"][1])
    done = edgespec_here("run", "-m", "gone.gguf", "A: ", "-j", "deep.json", home=tmp_path)
    assert done.returncode == 2
    assert f"cannot use the JSON schema in deep.json: {DEEP}" in done.stderr.decode()
    with pytest.raises(UsageError, match=DEEP):
        settled(*hostile.TOO_DEEP["rules"])


def test_from_python_it_is_an_error_of_this_request_alone(llm: Runtime) -> None:
    kind, text = hostile.TOO_DEEP["objects"]
    with pytest.raises(UsageError, match=DEEP):
        llm.generate("A: ", **dict[str, Any]({kind: text}))
    rows = [{"prompt": "A: ", kind: text, "max_tokens": 4}, {"prompt": "A: ", "max_tokens": 4}]
    refused, answered = sorted(llm.batch(rows, chat=False), key=lambda result: int(result["id"]))
    assert DEEP in str(refused)
    assert "error" not in answered
