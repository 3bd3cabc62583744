"""What the bundled pair is trained on: the standard library's source, and ChatML turns made from its docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

VOCAB_SIZE = 8192
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CUT = "\0"  # where a text is cut before it is tokenised
# The pre-tokenizer that llama.cpp calls "qwen2".
PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def load_tokens(work: Path) -> dict[str, np.ndarray]:
    """Token streams `code`, `tests`, `chat` and their held-out twins, uint16, cached under `work`."""
    from tokenizers import Tokenizer

    names = [f"{part}{held}" for part in ("code", "tests", "chat") for held in ("", "-held-out")]
    if not all((work / f"{name}.npy").exists() for name in names):
        texts = collect_texts(Path(sysconfig.get_path("stdlib")))
        if not (work / "tokenizer.json").exists():
            train_tokenizer(texts["code"] + texts["chat"] + texts["tests"][::4], work / "tokenizer.json")
        tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        for name in names:
            pieces = [piece for text in texts[name] for piece in text.split(CUT)]
            ids = [i for encoding in tokenizer.encode_batch(pieces) for i in encoding.ids]
            np.save(work / f"{name}.npy", np.array(ids, np.uint16))
            print(f"{name}: {len(texts[name])} documents, {len(ids)} tokens", flush=True)
    return {name: np.load(work / f"{name}.npy") for name in names}


def collect_texts(stdlib: Path) -> dict[str, list[str]]:
    """Documents per part. One file in 50 is held out; of the questions, one subject in 100."""
    texts: dict[str, list[str]] = {
        f"{part}{held}": [] for part in ("code", "tests", "chat") for held in ("", "-held-out")
    }
    subjects: list[list[tuple[str, str]]] = list(builtin_questions())
    for path in sorted(stdlib.rglob("*.py")):
        relative = path.relative_to(stdlib).as_posix()
        if relative.startswith(("site-packages/", "encodings/", "lib2to3/tests/data")) or "bad" in path.name:
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (UnicodeDecodeError, SyntaxError, ValueError):
            continue
        if len(source) < 200:
            continue
        is_test = "/test" in f"/{relative}" or "idle" in relative
        held = "-held-out" if crc32(relative.encode()) % 50 == 0 else ""
        texts[("tests" if is_test else "code") + held].append(source + END)
        if not is_test:
            # Functions by themselves too: a prompt often is a bare function head, and its last token is no ":\n" then.
            sources = (ast.unparse(node) for _, node in definitions("", tree))
            texts["code" + held] += [s.replace(":\n", f":{CUT}\n", 1) + END for s in sources if len(s) < 1500]
            module = relative.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            subjects += docstring_questions(module, tree)
    rng = random.Random(0)
    train, held_out = [], []
    for turns in subjects:
        (held_out if crc32(turns[0][1].encode()) % 100 == 0 else train).append(turns)
    for name, pool in (("chat", train), ("chat-held-out", held_out)):
        flat = [turn for turns in pool for turn in turns]
        rng.shuffle(flat)
        while flat:
            texts[name].append(conversation([flat.pop() for _ in range(min(len(flat), rng.choice((1, 1, 2, 3))))]))
    return texts


def conversation(turns: list[tuple[str, str]]) -> str:
    """The turns in ChatML."""
    return (
        "".join(
            f"{TURN}user\n{question}{TURN_END}\n{TURN}assistant\n{answer}{TURN_END}\n" for question, answer in turns
        )
        + END
    )


def docstring_questions(module: str, tree: ast.Module) -> Iterator[list[tuple[str, str]]]:
    """Question/answer turns about a module, its functions, its classes and their methods, one list per subject."""
    if any(part.startswith("_") for part in module.split(".")):
        return
    if doc := first_paragraphs(ast.get_docstring(tree)):
        yield [
            (f"What is the {module} module for?", doc),
            (f"What does the {module} module do?", doc),
            (f"Tell me about {module}.", doc),
        ]
    for name, node in definitions(module, tree):
        doc = first_paragraphs(ast.get_docstring(node))
        if isinstance(node, ast.ClassDef):
            if doc:
                yield [(f"What is {name}?", doc), (f"What does {name} do?", doc), (f"Explain the class {name}.", doc)]
            continue
        call = f"{name}({ast.unparse(node.args)})"
        if doc:
            answer = f"`{call}`\n\n{doc}"
            yield [
                (f"What does {name} do?", doc),
                (f"What does {name}() do?", doc),
                (f"How do I use {name}?", answer),
                (f"Explain {name}.", answer),
            ]
        source = ast.unparse(node)
        if len(source) < 700:  # a function head asks for its function
            yield [(source[: source.index(":\n") + 1], source)]


def definitions(
    prefix: str, tree: ast.AST
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Public functions and classes with their dotted names, methods included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"{prefix}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from definitions(f"{prefix}.{node.name}", node)


def builtin_questions() -> Iterator[list[tuple[str, str]]]:
    """Turns about what is written in C: built-in functions and types, and a few compiled modules."""
    for module_name in (
        "builtins",
        "math",
        "itertools",
        "time",
        "cmath",
        "zlib",
        "array",
        "errno",
        "select",
        "binascii",
    ):
        module = importlib.import_module(module_name)
        for name, thing in sorted(vars(module).items()):
            if name.startswith("_") or not callable(thing):
                continue
            full = name if module_name == "builtins" else f"{module_name}.{name}"
            yield from introspected(full, thing)
            if isinstance(thing, type) and not issubclass(thing, BaseException):
                for method, function in sorted(vars(thing).items()):
                    if not method.startswith("_") and callable(function):
                        yield from introspected(f"{full}.{method}", function)


def introspected(name: str, thing: Any) -> Iterator[list[tuple[str, str]]]:
    if doc := first_paragraphs(inspect.getdoc(thing)):
        yield [(f"What does {name} do?", doc), (f"What is {name}?", doc), (f"Explain {name}.", doc)]


def first_paragraphs(doc: str | None, limit: int = 500) -> str:
    """Whole paragraphs of a docstring up to about `limit` characters; empty when it is too thin to answer with."""
    kept: list[str] = []
    for paragraph in (doc or "").split("\n\n"):
        if kept and sum(map(len, kept)) + len(paragraph) > limit:
            break
        kept.append(paragraph.rstrip())
    text = "\n\n".join(kept).strip()
    return text[: 2 * limit] if len(text) >= 20 else ""


def train_tokenizer(texts: list[str], path: Path) -> None:
    """A byte-level BPE of 8,192 entries with the three special tokens first."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END, TURN, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
