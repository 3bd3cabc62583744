"""Check the tokenizer against llama.cpp's own cases: vocabulary-only GGUFs with texts (.inp) and their tokens (.out).

    python scripts/check_tokenizer.py llama.cpp/models      # from llama.cpp's repository or llama-cpp-python's sdist

Prints a count for each file, and the first case that differs. Exit code 1 if any does, or if there are no cases.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edgespec.llama.model import Model

SEPARATOR = "\n__ggml_vocab_test__\n"  # tests/test-tokenizer-0.cpp


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds NAME.gguf, NAME.gguf.inp and NAME.gguf.out")
    vocabularies = sorted(path.with_suffix("") for path in parser.parse_args().folder.glob("*.gguf.inp"))
    if not vocabularies:
        print("no .gguf.inp files there", file=sys.stderr)
        return 1
    results = [check(path) for path in vocabularies]
    n_equal, n_cases = sum(equal for equal, _ in results), sum(cases for _, cases in results)
    print(f"{n_equal} of {n_cases} cases in {len(results)} vocabularies are equal")
    return 0 if n_equal == n_cases else 1


def check(path: Path) -> tuple[int, int]:
    """Tokenise the cases of one vocabulary. Returns (equal, all)."""
    texts, wanted = read_cases(path)
    n_equal, first = 0, ""
    with Model.load_vocabulary(path) as model:
        for text, ids in zip(texts, wanted, strict=True):
            got = model.tokenize(text, add_special=False, parse_special=False)
            n_equal += got == ids
            first = first or ("" if got == ids else f"{text!r}: {got} instead of {ids}")
    print(f"{path.name:36} {n_equal:3} of {len(texts):3} equal" + (f"; {first}" if first else ""))
    return n_equal, len(texts)


def read_cases(path: Path) -> tuple[list[str], list[list[int]]]:
    """The texts and token ids that stand beside a vocabulary."""
    # newlines are part of the texts: nothing may translate them
    inputs = path.with_name(f"{path.name}.inp").read_bytes().decode("utf-8")
    texts = inputs.removesuffix(SEPARATOR).split(SEPARATOR)  # the last case is followed by one too
    lines = path.with_name(f"{path.name}.out").read_text(encoding="utf-8").splitlines()
    wanted = [[int(id) for id in line.split()] for line in lines]
    return texts, wanted


if __name__ == "__main__":
    sys.exit(main())
